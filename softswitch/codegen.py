"""From a program to Python source: one function for ingress, one for egress.

    ingress(data, port, now)  -> None (dropped), or the tuple that goes into the egress queue:
                                 (egress port, packet length, data, values egress needs ...)
    egress(item, now, enq_time, enq_depth, deq_depth) -> the frame to send, or None (dropped)

`data` is the frame as bytes, times are integer microseconds. Fields are local variables. A header
field is read from the frame only if something reads it later (`pyir.prune`); on the way out the
original frame is patched where headers were written, and only packets that gained or lost headers
are put together anew. Actions are inlined where their table dispatches.

Names in generated source: fields are `header_field`; `header__valid`, `header__at` (byte offset
in the frame) and `header__dirty` belong to a header; upper-case names are bound from outside.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from ringstep.protocol.limits import DROP_PORT
from ringstep.softswitch.controls import ControlGenerator
from ringstep.softswitch.deparsing import DeparserGenerator
from ringstep.softswitch.expressions import Value, constant
from ringstep.softswitch.model import Program
from ringstep.softswitch.parsing import ParserGenerator
from ringstep.softswitch.pyir import Assign, Body, Branch, Effect, Return, prune, render, written
from ringstep.softswitch.scope import Scope
from ringstep.softswitch.statements import Statements

_RUNTIME_FIELDS = {
    # (header, field) as BMv2 knows them -> expression at the start of each function
    "ingress": {
        ("standard_metadata", "ingress_port"): "port",
        ("standard_metadata", "packet_length"): "length",
        ("standard_metadata", "instance_type"): "0",
        ("intrinsic_metadata", "ingress_global_timestamp"): "now",
    },
    "egress": {
        ("standard_metadata", "egress_port"): "port",
        ("standard_metadata", "egress_spec"): str(DROP_PORT + 1),
        ("standard_metadata", "packet_length"): "length",
        ("standard_metadata", "instance_type"): "0",
        ("intrinsic_metadata", "egress_global_timestamp"): "now",
        ("queueing_metadata", "enq_timestamp"): "enq_time",
        ("queueing_metadata", "enq_qdepth"): "enq_depth",
        ("queueing_metadata", "deq_timedelta"): "now - enq_time",
        ("queueing_metadata", "deq_qdepth"): "deq_depth",
    },
}


@dataclass(slots=True)
class Generated:
    """The source, and what the names it binds from outside stand for.

    `bindings` maps each name to ("table.get", table name), ("table.search", ...),
    ("table.default", ...), ("register", name), ("counter.packets", name),
    ("counter.bytes", name), ("hash", algorithm), ("struct", format) or ("runtime", name).
    """

    source: str
    bindings: dict[str, tuple[str, str]]


class Generator:
    """Generates one program. `counter_units` gives packets, bytes or both per counter (P4Info)."""

    def __init__(self, program: Program, counter_units: dict[str, str] | None = None) -> None:
        self._scope = Scope(program, counter_units or {})

    def _start_fields(self, control: str) -> Body:
        body: Body = []
        for (header, name), text in _RUNTIME_FIELDS[control].items():
            ref = self._scope.program.architecture_field(header, name)
            if ref is None:
                continue
            kind = self._scope.program.field(ref)
            bounded = text in ("port", "length", "enq_depth", "deq_depth")
            if text.isdigit():
                value = constant(int(text))
            else:
                top = (1 << kind.width) - 1 if bounded else None
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
        self._scope.length()
        statements = Statements(self._scope)
        parser = ParserGenerator(self._scope, statements)

        def control(name: str) -> Body:
            made = ControlGenerator(self._scope, statements, program.controls[name])
            return made.generate()

        egress: Body = [
            *self._start_fields("egress"),
            *control("egress"),
            *self._drop_check(),
            *statements.update_checksums(),
            *DeparserGenerator(self._scope).generate(),
        ]
        egress, egress_in = prune(egress, frozenset(), self._scope.vars)

        ingress: Body = [
            Effect("end = len(data)"),
            Assign(self._scope.length(), "end"),
            *self._start_fields("ingress"),
            *parser.generate(),
            *statements.verify_checksums(),
            *control("ingress"),
            *self._drop_check(),
        ]
        provided = {self._scope.length()}
        carried = sorted((egress_in & written(ingress)) - provided)
        zeroed = sorted(egress_in - set(carried) - provided)
        spec = self._scope.field_var(self._scope.egress_spec())
        ingress.append(Return(f"({', '.join([spec, 'length', 'data', *carried])})"))
        ingress, ingress_in = prune(ingress, frozenset(), self._scope.vars)

        unpack = ", ".join(["port", "length", "data", *carried])
        lines = [
            "    def ingress(data, port, now):",
            *_zero(sorted(ingress_in)),
            *render(ingress, 2),
            "",
            "    def egress(item, now, enq_time, enq_depth, deq_depth):",
            f"        {unpack} = item",
            *_zero(zeroed),
            *render(egress, 2),
            "",
            "    return ingress, egress",
            "",
        ]
        head = f"def build({', '.join(sorted(self._scope.bindings))}):"
        return Generated("\n".join([head, *lines]), dict(self._scope.bindings))


def _zero(names: list[str]) -> list[str]:
    return [f"        {' = '.join(names)} = 0"] if names else []


def bind_structs(fmt: str, method: str) -> Any:
    """The bound method of a compiled big-endian struct."""
    return getattr(struct.Struct(">" + fmt), method)
