"""From a program to Python source: one function for ingress, one for egress.

    ingress(data, port, now)  -> None (dropped), or the tuple that goes into the egress queue:
                                 (egress port, packet length, data, values egress needs ...)
    egress(item, now, enq_time, enq_depth, deq_depth) -> the frame to send, or None (dropped)

`data` is the frame as bytes, times are integer microseconds. Fields are local variables. A header
field is read from the frame only if something reads it later (`pyir.prune`); on the way out the
original frame is patched where headers were written, and only packets that gained or lost headers
are put together anew. Actions are inlined where their table dispatches.

A program that copies packets (multicast, clone, resubmit, recirculate) has three functions:

    ingress(data, port, now, kind, kept) -> the same, or `HANDLED` (resubmitted or multicast)
    egress(...)                          -> the same, or `HANDLED` (recirculated)
    reparse(data, port, kept)            -> the item of a packet cloned in ingress

Their items begin with (egress port, packet length, data, kind, rid, passes, limit, ...): `kind` is
standard_metadata.instance_type, `rid` egress_rid, `passes` how often the packet came back, `limit`
the length it is cut to on its way out (0: none). `kept` are the metadata that a field list keeps,
one value for each field that is in any list, 0 where it is not in the packet's; None for a packet
from outside. What else becomes of the packet is asked for by calling names bound from outside:

    CLONE(session, kept)           ingress: reparse and enqueue
    CLONE_EGRESS(session, item)    egress: enqueue, the port is to be put in
    MULTICAST(group, item)         likewise, and HANDLED
    RESUBMIT(kept)                 ingress again, HANDLED
    RECIRCULATE(frame, kept)       ingress again with another frame, HANDLED
    DIGEST(name, values)           in any program

Names in generated source: fields are `header_field`; `header__valid`, `header__at` (byte offset
in the frame) and `header__dirty` belong to a header; upper-case names are bound from outside.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ringstep.protocol.limits import DROP_PORT
from ringstep.softswitch.controls import ControlGenerator
from ringstep.softswitch.deparsing import DeparserGenerator
from ringstep.softswitch.expressions import Value, constant
from ringstep.softswitch.model import VALID, FieldRef, Program
from ringstep.softswitch.parsing import ParserGenerator
from ringstep.softswitch.pyir import (
    Assign,
    Body,
    Branch,
    Effect,
    Once,
    Return,
    Take,
    prune,
    render,
    written,
)
from ringstep.softswitch.replication import MAX_SESSION
from ringstep.softswitch.scope import CLONES, Scope
from ringstep.softswitch.statements import Statements

NORMAL, INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATED, RESUBMITTED = 0, 1, 2, 4, 5, 6
"""standard_metadata.instance_type, as BMv2's simple_switch sets it."""

_STANDARD = "standard_metadata"
_RUNTIME_FIELDS = {
    # (header, field) as BMv2 knows them -> expression at the start of each function
    "ingress": {
        (_STANDARD, "ingress_port"): "port",
        (_STANDARD, "packet_length"): "length",
        (_STANDARD, "instance_type"): "0",
        ("intrinsic_metadata", "ingress_global_timestamp"): "now",
    },
    # A packet that comes back has lost its metadata.
    "ingress again": {
        (_STANDARD, "ingress_port"): "0",
        (_STANDARD, "packet_length"): "length",
        (_STANDARD, "instance_type"): "kind",
        ("intrinsic_metadata", "ingress_global_timestamp"): "0",
    },
    "reparse": {
        (_STANDARD, "ingress_port"): "port",
    },
    "egress": {
        (_STANDARD, "egress_port"): "port",
        (_STANDARD, "egress_spec"): str(DROP_PORT + 1),
        (_STANDARD, "packet_length"): "length",
        (_STANDARD, "instance_type"): "0",
        ("intrinsic_metadata", "egress_global_timestamp"): "now",
        ("queueing_metadata", "enq_timestamp"): "enq_time",
        ("queueing_metadata", "enq_qdepth"): "enq_depth",
        ("queueing_metadata", "deq_timedelta"): "now - enq_time",
        ("queueing_metadata", "deq_qdepth"): "deq_depth",
    },
}
_COPIES_FIELDS = {
    (_STANDARD, "instance_type"): "kind",
    ("intrinsic_metadata", "egress_rid"): "rid",
}
"""What egress starts with in a program that copies packets."""

_BOUNDED = ("port", "length", "enq_depth", "deq_depth", "kind", "rid")
_COPY_HEAD = ("port", "length", "data", "kind", "rid", "passes", "limit")
"""What the items of such a program begin with."""


@dataclass(slots=True)
class Generated:
    """The source, and what the names it binds from outside stand for.

    `bindings` maps each name to ("table.get", table name), ("table.search", ...),
    ("table.default", ...), ("register", name), ("counter.packets", name),
    ("counter.bytes", name), ("meter", name), ("hash", algorithm), ("struct", format) or
    ("runtime", name). `copies_packets` says which of the two kinds of functions they are.
    """

    source: str
    bindings: dict[str, tuple[str, str]]
    copies_packets: bool


class Generator:
    """Generates one program. `counter_units` gives packets, bytes or both per counter (P4Info)."""

    def __init__(self, program: Program, counter_units: dict[str, str] | None = None) -> None:
        self._scope = Scope(program, counter_units or {})

    def _start_fields(self, place: str) -> Body:
        body: Body = []
        fields = dict(_RUNTIME_FIELDS[place])
        if place == "egress" and self._scope.copies_packets:
            fields |= _COPIES_FIELDS
        for (header, name), text in fields.items():
            ref = self._scope.program.architecture_field(header, name)
            if ref is None:
                continue
            kind = self._scope.program.field(ref)
            if text.isdigit():
                value = constant(int(text))
            else:
                top = (1 << kind.width) - 1 if text in _BOUNDED else None
                value = Value(text, 0 if " " not in text else None, top)
            body.append(
                Assign(self._scope.field_var(ref), self._scope.expr.store(value, kind).text)
            )
        return body

    def _drop_check(self) -> Body:
        spec = self._scope.field_var(self._scope.egress_spec())
        return [Branch([(f"{spec} == {DROP_PORT}", [Return("None")])])]

    def generate(self) -> Generated:
        """The source. Raises UnsupportedConstruct for what only shows up here."""
        program = self._scope.program
        length = self._scope.length()
        statements = Statements(self._scope)
        parser = ParserGenerator(self._scope, statements)

        def control(name: str) -> Body:
            made = ControlGenerator(self._scope, statements, program.controls[name])
            return made.generate()

        copies = self._scope.copies_packets
        head = _COPY_HEAD if copies else _COPY_HEAD[:3]
        ingress_head: Body = [
            Effect("end = len(data)"),
            Assign(length, "end"),
            *self._start_ingress(),
            *parser.generate(),
            *statements.verify_checksums(),
            *control("ingress"),
        ]
        egress_head: Body = [
            *self._start_fields("egress"),
            # What ingress asked for was done at its end.
            Assign(self._scope.request("clone_session"), "0"),
            Assign(self._scope.request("clone_list"), "0"),
            *control("egress"),
        ]
        egress_tail: Body = [
            *self._drop_check(),
            *statements.update_checksums(),
            *self._finish(DeparserGenerator(self._scope).generate()),
        ]
        # A clone made in egress is an item again, so it holds what egress reads, and egress reads
        # what it holds.
        in_ingress = written(ingress_head)
        can_carry = in_ingress | (written(egress_head) if self._clones("egress") else set())
        carried: list[str] = []
        while True:
            tail = [*self._clone_in_egress(carried), *egress_tail]
            egress, egress_in = prune([*egress_head, *tail], frozenset(), self._scope.vars)
            wanted = sorted((egress_in & can_carry) - {length})
            if wanted == carried:
                break
            carried = sorted({*carried, *wanted})
        zeroed = sorted(egress_in - set(carried) - {length})

        spec = self._scope.field_var(self._scope.egress_spec())
        ingress, ingress_in = prune(
            [*ingress_head, *self._end_of_ingress(carried, spec)], frozenset(), self._scope.vars
        )
        parameters = ", kind, kept" if copies else ""
        lines = [
            f"    def ingress(data, port, now{parameters}):",
            *_zero(sorted(ingress_in)),
            *render(ingress, 2),
            "",
            "    def egress(item, now, enq_time, enq_depth, deq_depth):",
            f"        {', '.join([*head, *carried])} = item",
            *_zero(zeroed),
            *render(egress, 2),
            "",
        ]
        if self._clones("ingress"):
            reparse, reparse_in = prune(
                [
                    Effect("end = len(data)"),
                    Assign(length, "end"),
                    *self._start_fields("reparse"),
                    *parser.generate(),
                    *self._reparsed(carried),
                ],
                frozenset(),
                self._scope.vars,
            )
            lines += [
                "    def reparse(data, port, kept):",
                *_zero(sorted(reparse_in)),
                *render(reparse, 2),
                "",
            ]
        else:
            lines += ["    reparse = None"]
        lines += ["    return ingress, egress, reparse", ""]
        define = f"def build({', '.join(sorted(self._scope.bindings))}):"
        return Generated("\n".join([define, *lines]), dict(self._scope.bindings), copies)

    # -- copies of packets

    def _clones(self, control: str) -> bool:
        return bool(self._scope.used.get(control, set()) & CLONES)

    def _start_ingress(self) -> Body:
        if not self._scope.copies_packets:
            return self._start_fields("ingress")
        kept = tuple(self._scope.field_var(ref) for ref in self._scope.kept_fields())
        again: Body = [
            *self._start_fields("ingress again"),
            Take(kept, lambda live: _unpack(kept, live)),
        ]
        return [Branch([("kept is None", self._start_fields("ingress"))], again)]

    def _kept(self, ref: FieldRef, list_var: str) -> str:
        """The field where the list at hand keeps it, else 0."""
        lists = self._scope.program.field_lists
        keeping = [number for number, fields in lists.items() if ref in fields]
        if not keeping:
            return "0"
        value = self._scope.field_var(ref)
        if len(keeping) == len(lists):
            return value
        return f"({value} if {list_var} in {_tuple(map(str, keeping))} else 0)"

    def _kept_tuple(self, list_var: str) -> str:
        return _tuple(self._kept(ref, list_var) for ref in self._scope.kept_fields())

    def _copied(self, carried: list[str], list_var: str | None) -> list[str]:
        """What a copy carries: the packet's own, but for what is asked of the packet itself.

        With `list_var` metadata are lost that are not in the field list.
        """
        metadata = self._scope.metadata_vars()
        asked = {self._scope.request(what) for what in ("recirculate_list", "truncate_to")}
        result = []
        for name in carried:
            if name in asked:
                result.append("0")
            elif list_var is not None and name in metadata:
                result.append(self._kept(metadata[name], list_var))
            else:
                result.append(name)
        return result

    def _end_of_ingress(self, carried: list[str], spec: str) -> Body:
        body: Body = []
        used = self._scope.used["ingress"]
        if self._clones("ingress"):
            session, kept = self._scope.request("clone_session"), self._scope.request("clone_list")
            clone = self._scope.bind("runtime", "clone", "CLONE")
            ask = Effect(f"{clone}({session} & {MAX_SESSION:#x}, {self._kept_tuple(kept)})")
            body.append(Branch([(session, [ask])]))
        if "generate_digest" in used:
            body.append(self._digest())
        length = self._scope.length()
        if not self._scope.copies_packets:
            item = _tuple([spec, length, "data", *carried])
            return [*body, *self._drop_check(), Return(item)]
        if "resubmit" in used:
            kept = self._scope.request("resubmit_list")
            resubmit = self._scope.bind("runtime", "resubmit", "RESUBMIT")
            body.append(
                Branch([(kept, [Return(f"{resubmit}({self._kept_tuple(kept)})")])]),
            )
        if self._scope.multicast is not None:
            group = self._scope.field_var(self._scope.multicast)
            multicast = self._scope.bind("runtime", "multicast", "MULTICAST")
            item = _tuple(
                ["0", length, "data", str(REPLICATED), "0", "0", "0", *self._copied(carried, None)]
            )
            body.append(Branch([(group, [Return(f"{multicast}({group}, {item})")])]))
        item = _tuple([spec, length, "data", str(NORMAL), "0", "0", "0", *carried])
        return [*body, *self._drop_check(), Return(item)]

    def _digest(self) -> Branch:
        digest = self._scope.bind("runtime", "digest", "DIGEST")
        asked = self._scope.request("learn_list")
        arms: list[tuple[str, Body]] = []
        for number, learned in self._scope.program.learn_lists.items():
            values = _tuple(
                self._scope.field_value(ref).text
                if not self._signed(ref)
                else f"{self._scope.field_var(ref)} & {self._mask(ref):#x}"
                for ref in learned.fields
            )
            arms.append((f"{asked} == {number}", [Effect(f"{digest}({learned.name!r}, {values})")]))
        return Branch(arms)

    def _signed(self, ref: FieldRef) -> bool:
        return ref.name != VALID and self._scope.program.field(ref).signed

    def _mask(self, ref: FieldRef) -> int:
        return (1 << self._scope.program.field(ref).width) - 1

    def _clone_in_egress(self, carried: list[str]) -> Body:
        if not self._clones("egress"):
            return []
        session, kept = self._scope.request("clone_session"), self._scope.request("clone_list")
        clone = self._scope.bind("runtime", "clone_egress", "CLONE_EGRESS")
        item = _tuple(
            [
                "0", self._scope.length(), "data", str(EGRESS_CLONE), "0", "passes", "0",
                *self._copied(carried, kept),
            ]
        )  # fmt: skip
        return [Branch([(session, [Effect(f"{clone}({session} & {MAX_SESSION:#x}, {item})")])])]

    def _reparsed(self, carried: list[str]) -> Body:
        """The item of a clone made in ingress: headers as they came, metadata of the field list."""
        metadata = self._scope.metadata_vars()
        kept = tuple(self._scope.field_var(ref) for ref in self._scope.kept_fields())
        values = [name if name in kept or name not in metadata else "0" for name in carried]
        length = self._scope.length()
        item = _tuple(["0", length, "data", str(INGRESS_CLONE), "0", "0", "0", *values])
        return [Take(kept, lambda live: _unpack(kept, live)), Return(item)]

    def _finish(self, body: Body) -> Body:
        """The deparser with every frame cut to length, or sent round again, where asked for."""
        cut = self._scope.request("truncate_to")
        truncates = any("truncate" in used for used in self._scope.used.values())
        again = self._scope.request("recirculate_list")
        recirculates = any("recirculate" in used for used in self._scope.used.values())

        def finished(expr: str) -> Body:
            if truncates:
                expr = f"({expr})[:{cut} - 1 if {cut} else None]"
            if self._scope.copies_packets:
                expr = f"({expr})[:limit or None]"
            if not recirculates:
                return [Return(expr)]
            recirculate = self._scope.bind("runtime", "recirculate", "RECIRCULATE")
            call = f"{recirculate}({expr}, {self._kept_tuple(again)})"
            return [Branch([(again, [Return(call)])]), Return(expr)]

        if not (truncates or self._scope.copies_packets):
            return body
        return _replace_returns(body, finished)


def _replace_returns(body: Body, finished: Callable[[str], Body]) -> Body:
    result: Body = []
    for node in body:
        if isinstance(node, Return):
            result.extend(finished(node.expr))
        elif isinstance(node, Branch):
            arms = [(text, _replace_returns(arm, finished)) for text, arm in node.arms]
            result.append(Branch(arms, _replace_returns(node.otherwise, finished)))
        elif isinstance(node, Once):
            result.append(Once(_replace_returns(node.body, finished)))
        else:
            result.append(node)
    return result


def _tuple(items: Iterable[str]) -> str:
    """Source of a tuple."""
    parts = list(items)
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


def _unpack(names: tuple[str, ...], live: frozenset[str]) -> list[str]:
    """Those of `names` that are read later, from `kept`."""
    return [f"{name} = kept[{i}]" for i, name in enumerate(names) if name in live]


def _zero(names: list[str]) -> list[str]:
    return [f"        {' = '.join(names)} = 0"] if names else []


def bind_structs(fmt: str, method: str) -> Any:
    """The bound method of a compiled big-endian struct."""
    return getattr(struct.Struct(">" + fmt), method)
