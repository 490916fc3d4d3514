"""What all parts of the code generator share: names, bindings, and what the program writes."""

from __future__ import annotations

import re
from typing import Any

from ringstep.softswitch.errors import PipelineError, UnsupportedConstruct
from ringstep.softswitch.expressions import Compiler, Value
from ringstep.softswitch.model import VALID, Call, FieldRef, If, Program, Statement, TableDef
from ringstep.softswitch.pyir import Body, Branch, Variables

CLONES = frozenset({"clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress"})
COPIES = CLONES | {"resubmit", "recirculate"}
"""Primitives after which a packet passes ingress or egress again."""

_RESERVED = frozenset(
    """
    data port now length item enq_time enq_depth deq_depth out start end record action key
    members at state buffer size acc bits cell hit meter kind rid passes limit kept
    if else elif not and or is in for while def return None True False pass break continue
    lambda class del from import global try except with as assert async await finally
    nonlocal raise yield min max len bytes
    bytearray match case
    """.split()  # noqa: SIM905 - a list of a hundred strings would not be read
)


class _Names:
    """Readable Python names, unique per thing."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._of: dict[Any, str] = {}

    def get(self, key: Any, wish: str) -> str:
        name = self._of.get(key)
        if name is None:
            base = re.sub(r"\W+", "_", wish).strip("_") or "x"
            if base[0].isdigit():
                base = "x" + base
            name, n = base, 1
            while name in self._taken:
                n += 1
                name = f"{base}_{n}"
            self._taken.add(name)
            self._of[key] = name
        return name


class Scope:
    """One program on its way to source.

    `known` holds the range of values that a variable is known to have at the place at hand, where
    that is less than its width allows.

    `extracted` holds the byte offsets each header is extracted at (None: known at run time only),
    `fixed_layout` whether headers leave in the order they came in, `layout_changes` whether a
    packet may gain or lose bytes on its way all the same. The parser fills the three in.
    """

    def __init__(self, program: Program, counter_units: dict[str, str]) -> None:
        self.program = program
        self.units = counter_units
        self.vars = Variables()
        self.bindings: dict[str, tuple[str, str]] = {}
        self.expr = Compiler(self.field_value, self.valid_var, self.headers_equal)
        self._names = _Names()
        for word in _RESERVED:
            self._names.get(("reserved", word), word)
        self.written_fields: dict[str, set[str]] = {}
        self.added: set[str] = set()
        self.removed: set[str] = set()
        self._collect_writes()
        self.used = {name: self._primitives_in(name) for name in program.controls}
        mcast = program.architecture_field("intrinsic_metadata", "mcast_grp")
        self.multicast = (
            mcast
            if mcast is not None and mcast.name in self.written_fields.get(mcast.header, ())
            else None
        )
        self.copies_packets = self.multicast is not None or any(
            used & COPIES for used in self.used.values()
        )
        self.known: dict[str, tuple[int, int]] = {}
        self.extracted: dict[str, set[int | None]] = {}
        self.fixed_layout = True
        self.layout_changes = bool(self.added | self.removed)

    # -- names

    def variable(self, kind: str, wish: str) -> str:
        """A tracked variable that belongs to nothing else."""
        return self.vars.add(self._names.get(("variable", kind), wish))

    def bind(self, kind: str, name: str, wish: str) -> str:
        """The name of something from outside; `codegen.Generated` lists the kinds."""
        bound = self._names.get((kind, name), wish)
        self.bindings[bound] = (kind, name)
        return bound

    def struct(self, fmt: str, method: str) -> str:
        """The name of a bound method of `struct.Struct(fmt)`."""
        return self.bind(f"struct.{method}", fmt, f"{method.upper()}_{fmt}")

    def field_var(self, ref: FieldRef) -> str:
        """The variable of a field."""
        return self.vars.add(self._names.get(ref, f"{ref.header}_{ref.name}".lower()))

    def valid_var(self, header: str) -> str:
        """The variable that is 1 while a header is valid, else 0; metadata always is."""
        if self.program.headers[header].metadata:
            return "1"
        return self.vars.add(self._names.get(("valid", header), f"{header}__valid".lower()))

    def at_var(self, header: str) -> str:
        """Source of the byte offset a header was extracted at."""
        places = self.extracted.get(header, set())
        if len(places) == 1:
            place = next(iter(places))
            if place is not None:
                return str(place)
        return self.vars.add(self._names.get(("at", header), f"{header}__at".lower()))

    def dirty_var(self, header: str) -> str:
        """The variable that is 1 once a header was written to."""
        return self.vars.add(self._names.get(("dirty", header), f"{header}__dirty".lower()))

    def field_value(self, ref: FieldRef) -> Value:
        """A field as an operand."""
        if ref.name == VALID:
            return Value(self.valid_var(ref.header), 0, 1, True)
        kind = self.program.field(ref)
        variable = self.field_var(ref)
        if variable in self.known:
            return Value(variable, *self.known[variable], True)
        if kind.signed:
            half = 1 << (kind.width - 1)
            return Value(variable, -half, half - 1, True)
        return Value(variable, 0, (1 << kind.width) - 1, True)

    def headers_equal(self, a: str, b: str) -> str:
        """The comparison of two headers: validity, then every field."""
        fields = " and ".join(
            f"{self.field_var(FieldRef(a, n))} == {self.field_var(FieldRef(b, n))}"
            for n in self.program.headers[a].fields
        )
        va, vb = self.valid_var(a), self.valid_var(b)
        return f"(({va}) == ({vb}) and (not {va} or ({fields})))"

    def moved(self) -> str:
        """The flag "headers were added or removed"."""
        return self.vars.add(self._names.get(("flag", "moved"), "headers_moved"))

    def length(self) -> str:
        """The packet's length in bytes, as BMv2's packet length register follows it."""
        return self.vars.add("length")

    def egress_spec(self) -> FieldRef:
        """standard_metadata.egress_spec. Raises PipelineError if the program has none."""
        spec = self.program.architecture_field("standard_metadata", "egress_spec")
        if spec is None:
            raise PipelineError("the program has no standard_metadata.egress_spec")
        return spec

    def exit_flag(self) -> str:
        """The flag "this control is left"."""
        return self.vars.add(self._names.get(("flag", "exit"), "exiting"))

    def request(self, what: str) -> str:
        """The variable by which an action asks for something at the end of its control.

        0 where nothing is asked for; else `clone_session` is the id with bit 15 set,
        `clone_list`, `resubmit_list` and `recirculate_list` are field list ids, `learn_list` is a
        learn list id and `truncate_to` the length plus 1.
        """
        return self.vars.add(self._names.get(("request", what), what))

    def metadata_vars(self) -> dict[str, FieldRef]:
        """The variables of all metadata fields."""
        return {
            self.field_var(FieldRef(header.name, name)): FieldRef(header.name, name)
            for header in self.program.headers.values()
            if header.metadata
            for name in header.fields
        }

    def payload_var(self) -> str:
        """The byte offset at which parsing ended."""
        return self.vars.add(self._names.get(("var", "payload"), "payload_at"))

    # -- what the program writes, anywhere

    def _collect_writes(self) -> None:
        for action in self.program.actions.values():
            self._collect_in(action.body)
        for state in self.program.states.values():
            self._collect_in(tuple(op for op in state.ops if isinstance(op, Call)))
        for checksum in self.program.checksums:
            if checksum.update:
                self._note_write(checksum.target)
        for meter in self.program.meters.values():
            if meter.result is not None:
                self._note_write(meter.result)

    def kept_fields(self) -> list[FieldRef]:
        """The metadata of all field lists, each once. Raises UnsupportedConstruct for others."""
        lists = self.program.field_lists.values()
        fields = list(dict.fromkeys(ref for one in lists for ref in one))
        for ref in fields:
            if not self.program.headers[ref.header].metadata:
                raise UnsupportedConstruct(
                    f"the header field '{ref.header}.{ref.name}' kept by a copy", "at field_lists"
                )
        return fields

    def _primitives_in(self, control: str) -> set[str]:
        """The primitives that a packet can meet in a control."""
        found: set[str] = set()

        def visit(body: tuple[Statement, ...]) -> None:
            for statement in body:
                if isinstance(statement, If):
                    visit(statement.then)
                    visit(statement.otherwise)
                else:
                    found.add(statement.op)

        for node in self.program.controls[control].nodes.values():
            if isinstance(node, TableDef):
                for action_id in node.action_ids:
                    visit(self.program.actions[action_id].body)
        return found

    def _collect_in(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, If):
                self._collect_in(statement.then)
                self._collect_in(statement.otherwise)
                continue
            target = statement.args[2 if statement.op == "execute_meter" else 0 :][:1]
            if target and isinstance(target[0], FieldRef):
                self._note_write(target[0])
            if statement.op in ("add_header", "assign_header", "copy_header"):
                header = statement.args[0].name
                self.added.add(header)
                self.written_fields.setdefault(header, set()).update(
                    self.program.headers[header].fields
                )
            if statement.op in ("remove_header", "assign_header", "copy_header"):
                self.removed.add(statement.args[0].name)

    def _note_write(self, ref: FieldRef) -> None:
        self.written_fields.setdefault(ref.header, set()).add(ref.name)

    def is_written(self, header: str) -> bool:
        """True iff something in the program writes to this header."""
        return bool(self.written_fields.get(header)) and not self.program.headers[header].metadata


def plus(base: str, offset: int) -> str:
    """The sum of an offset in source form and a number."""
    if base.isdigit():
        return str(int(base) + offset)
    return f"{base} + {offset}" if offset else base


def choose(condition: str, then: Body, otherwise: Body) -> Body:
    """if/else, decided now where the condition is a constant."""
    if condition in ("True", "1"):
        return then
    if condition in ("False", "0"):
        return otherwise
    return [Branch([(condition, then)], otherwise)]
