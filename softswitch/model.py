"""From BMv2 JSON (p4c's output for v1model) to a typed program.

Source of the format: p4lang/behavioral-model `docs/JSON_format.md`, version 2.x. What is not
understood is refused here, when the program is loaded, with the construct's name and its place;
nothing unknown reaches the code generator.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ringstep.softswitch.errors import PipelineError, UnsupportedConstruct

# --------------------------------------------------------------------------------------------
# Expressions
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Const:
    """An integer constant of any sign and size."""

    value: int


@dataclass(frozen=True, slots=True)
class BoolConst:
    """true or false."""

    value: bool


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A field of a header instance; `name` may be `$valid$`."""

    header: str
    name: str


@dataclass(frozen=True, slots=True)
class HeaderRef:
    """A header instance as a whole."""

    name: str


@dataclass(frozen=True, slots=True)
class Local:
    """The index-th argument of the enclosing action."""

    index: int


@dataclass(frozen=True, slots=True)
class Lookahead:
    """`width` bits of the packet, `offset` bits after the parser's cursor."""

    offset: int
    width: int


@dataclass(frozen=True, slots=True)
class Op:
    """An operator with its operands; `?` has (condition, then, else)."""

    op: str
    args: tuple[Expr, ...]


Expr: TypeAlias = Const | BoolConst | FieldRef | HeaderRef | Local | Lookahead | Op

BINARY_DATA_OPS = frozenset({"+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^"})
COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
BINARY_BOOL_OPS = frozenset({"and", "or"})
UNARY_OPS = frozenset({"not", "~", "d2b", "b2d", "valid"})
CAST_OPS = frozenset({"two_comp_mod", "usat_cast", "sat_cast"})
BOOL_RESULT = COMPARISONS | BINARY_BOOL_OPS | {"not", "d2b", "valid"}

VALID = "$valid$"


def is_bool(expr: Expr) -> bool:
    """True iff `expr` yields a boolean, not data (BMv2 keeps the two apart)."""
    if isinstance(expr, BoolConst):
        return True
    if isinstance(expr, Op):
        if expr.op == "?":
            return is_bool(expr.args[1])
        return expr.op in BOOL_RESULT
    return False


# --------------------------------------------------------------------------------------------
# Statements of actions
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A primitive other than a jump: `args` as the primitive takes them."""

    op: str
    args: tuple[Any, ...]
    where: str


@dataclass(frozen=True, slots=True)
class If:
    """A conditional recovered from jumps."""

    condition: Expr
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]


Statement: TypeAlias = Call | If


@dataclass(frozen=True, slots=True)
class Jump:
    """`_jump`, or `_jump_if_zero` where `condition` is given: to the primitive at `target`."""

    condition: Expr | None
    target: int
    where: str


@dataclass(frozen=True, slots=True)
class NamedArg:
    """A reference to a register, counter, meter or calculation, by name."""

    kind: str
    name: str


# --------------------------------------------------------------------------------------------
# Program
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldType:
    """A field: width in bits, and where it stands in its header (bits from the start)."""

    name: str
    width: int
    signed: bool
    saturating: bool
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """A header or metadata instance."""

    name: str
    type_name: str
    metadata: bool
    fields: Mapping[str, FieldType]
    width: int

    @property
    def size(self) -> int:
        """Length on the wire in bytes."""
        return (self.width + 7) // 8


@dataclass(frozen=True, slots=True)
class Extract:
    """Take the header from the packet."""

    header: str
    where: str


@dataclass(frozen=True, slots=True)
class Advance:
    """Skip `bits` of the packet."""

    bits: Expr
    where: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Stop parsing with `error` unless `condition` holds."""

    condition: Expr
    error: Expr
    where: str


ParserOp: TypeAlias = Extract | Advance | Verify | Call


@dataclass(frozen=True, slots=True)
class Transition:
    """Taken where key & mask == value, per key field; `None` stands for the default."""

    cases: tuple[tuple[int, int], ...] | None
    next_state: str | None


@dataclass(frozen=True, slots=True)
class ParseState:
    """A parser state: operations, then the select on `key`."""

    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[FieldRef | Lookahead, ...]
    transitions: tuple[Transition, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Action:
    """An action: p4c clones an action per table, so names repeat and ids do not."""

    id: int
    name: str
    params: tuple[tuple[str, int], ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class KeyField:
    """One match field of a table."""

    name: str
    match_type: str
    target: FieldRef
    width: int
    mask: int | None


@dataclass(frozen=True, slots=True)
class ConstEntry:
    """An entry of the program. `priority` as in the JSON: the smaller number wins."""

    matches: tuple[tuple[str, int, int], ...]
    priority: int
    action_id: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TableDef:
    """A table: keys, actions by id, what follows it in the control flow."""

    name: str
    kind: str
    keys: tuple[KeyField, ...]
    action_ids: tuple[int, ...]
    max_size: int
    profile: str | None
    default_action_id: int | None
    default_args: tuple[int, ...]
    default_is_const: bool
    default_action_is_const: bool
    next_by_action: Mapping[str, str | None] | None
    next_hit: str | None
    next_miss: str | None
    base_default_next: str | None
    direct_counter: str | None
    direct_meter: str | None
    entries: tuple[ConstEntry, ...] | None
    where: str


@dataclass(frozen=True, slots=True)
class Conditional:
    """A branch of the control flow."""

    name: str
    condition: Expr
    true_next: str | None
    false_next: str | None
    where: str


@dataclass(frozen=True, slots=True)
class ActionProfileDef:
    """An action profile; a selector where `algorithm` is given."""

    name: str
    max_size: int
    algorithm: str | None
    inputs: tuple[FieldRef, ...]


@dataclass(frozen=True, slots=True)
class Control:
    """ingress or egress."""

    name: str
    start: str | None
    nodes: Mapping[str, TableDef | Conditional]


@dataclass(frozen=True, slots=True)
class Calculation:
    """A hash or checksum over `inputs`; a constant input is (value, width)."""

    name: str
    algorithm: str
    inputs: tuple[FieldRef | HeaderRef | tuple[int, int], ...]
    with_payload: bool


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum kept in `target`."""

    name: str
    target: FieldRef
    calculation: str
    verify: bool
    update: bool
    condition: Expr | None


@dataclass(frozen=True, slots=True)
class CounterDef:
    """A counter array; direct where `table` is given."""

    name: str
    size: int
    table: str | None


@dataclass(frozen=True, slots=True)
class RegisterDef:
    """A register array."""

    name: str
    size: int
    width: int


@dataclass(frozen=True, slots=True)
class MeterDef:
    """A meter array; direct where `table` is given, and then a hit puts the colour in `result`.

    `unit` is packets or bytes.
    """

    name: str
    size: int
    unit: str
    table: str | None
    result: FieldRef | None


@dataclass(frozen=True, slots=True)
class LearnList:
    """What one digest holds: its fields in order."""

    name: str
    fields: tuple[FieldRef, ...]


@dataclass(slots=True)
class Program:
    """All that the code generator needs.

    `field_lists` says by id which metadata a clone, a resubmitted or a recirculated packet keeps;
    `learn_lists` what a digest holds.
    """

    headers: dict[str, Header] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    start_state: str | None = None
    states: dict[str, ParseState] = field(default_factory=dict)
    deparser: tuple[str, ...] = ()
    actions: dict[int, Action] = field(default_factory=dict)
    controls: dict[str, Control] = field(default_factory=dict)
    profiles: dict[str, ActionProfileDef] = field(default_factory=dict)
    calculations: dict[str, Calculation] = field(default_factory=dict)
    checksums: tuple[Checksum, ...] = ()
    counters: dict[str, CounterDef] = field(default_factory=dict)
    registers: dict[str, RegisterDef] = field(default_factory=dict)
    meters: dict[str, MeterDef] = field(default_factory=dict)
    field_lists: dict[int, tuple[FieldRef, ...]] = field(default_factory=dict)
    learn_lists: dict[int, LearnList] = field(default_factory=dict)
    aliases: dict[str, FieldRef] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def field(self, ref: FieldRef) -> FieldType:
        """The type of a field."""
        return self.headers[ref.header].fields[ref.name]

    def tables(self) -> Iterable[TableDef]:
        """Tables of both controls."""
        for control in self.controls.values():
            for node in control.nodes.values():
                if isinstance(node, TableDef):
                    yield node

    def architecture_field(self, header: str, name: str) -> FieldRef | None:
        """Where the program keeps a field BMv2 knows as `header.name`, if it has it."""
        alias = self.aliases.get(f"{header}.{name}")
        if alias is not None:
            return alias
        instance = self.headers.get(header)
        if instance is not None and name in instance.fields:
            return FieldRef(header, name)
        return None


# --------------------------------------------------------------------------------------------
# Loader
# --------------------------------------------------------------------------------------------

PRIMITIVES: dict[str, tuple[str, ...]] = {
    # name -> kind of each parameter
    "assign": ("field", "expr"),
    "modify_field": ("field", "expr"),
    "assign_header": ("header", "header"),
    "copy_header": ("header", "header"),
    "add_header": ("header",),
    "remove_header": ("header",),
    "mark_to_drop": ("header",),
    "drop": (),
    "no_op": (),
    "NoAction": (),
    "exit": (),
    "register_read": ("field", "register_array", "expr"),
    "register_write": ("register_array", "expr", "expr"),
    "count": ("counter_array", "expr"),
    "execute_meter": ("meter_array", "expr", "field"),
    "clone_ingress_pkt_to_egress": ("expr", "field_list"),
    "clone_egress_pkt_to_egress": ("expr", "field_list"),
    "resubmit": ("field_list",),
    "recirculate": ("field_list",),
    "truncate": ("expr",),
    "generate_digest": ("expr", "learn_list"),
    "modify_field_rng_uniform": ("field", "expr", "expr"),
    "modify_field_with_hash_based_offset": ("field", "expr", "calculation", "expr"),
    "log_msg": ("string", "vector"),
    "assert": ("expr",),
    "assume": ("expr",),
}

REFUSED_SECTIONS = {
    "header_stacks": "header stack",
    "header_unions": "header union",
    "header_union_stacks": "header union stack",
    "extern_instances": "extern instance",
    "parse_vsets": "parser value set",
}

MAX_FIELD_WIDTH = 2048
PADDING_PREFIX = "_padding"


def load_program(json_text: str) -> Program:
    """The program in `json_text`. Raises PipelineError, UnsupportedConstruct."""
    try:
        document = json.loads(json_text)
    except ValueError as error:
        raise PipelineError(f"the BMv2 JSON is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise PipelineError("the BMv2 JSON must be an object, as p4c-bm2-ss writes it")
    try:
        return _Loader(document).load()
    except PipelineError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise PipelineError(
            f"the BMv2 JSON is malformed: {type(error).__name__}: {error}"
        ) from error


def _hex(text: Any) -> int:
    """A hexstr, which may carry a sign, as an int."""
    if isinstance(text, int):
        return text
    return int(str(text), 16)


def _locals_in(item: Any) -> Iterable[int]:
    """The indices of action arguments in a piece of JSON."""
    if isinstance(item, dict):
        if item.get("type") in ("local", "runtime_data"):
            yield int(item["value"])
        item = list(item.values())
    if isinstance(item, list):
        for one in item:
            yield from _locals_in(one)


def _source(item: Mapping[str, Any], where: str) -> str:
    """`where`, with the place in the P4 source if the JSON has it."""
    info = item.get("source_info")
    if isinstance(info, dict) and "filename" in info:
        return f"{where}; {info['filename']}:{info.get('line', '?')}"
    return where


class _Loader:
    def __init__(self, document: dict[str, Any]) -> None:
        self._doc = document
        self._program = Program()
        self._types: dict[str, tuple[dict[str, FieldType], int]] = {}

    def load(self) -> Program:
        doc, program = self._doc, self._program
        version = doc.get("__meta__", {}).get("version")
        if not isinstance(version, list) or not version or version[0] != 2:
            raise PipelineError(f"BMv2 JSON version {version} (at __meta__.version) is not 2.x")
        self._refuse_sections()
        self._load_headers()
        program.errors = {name: int(value) for name, value in doc.get("errors", [])}
        program.aliases = {
            alias: FieldRef(target[0], target[1]) for alias, target in doc.get("field_aliases", [])
        }
        for name, item in self._named("calculations"):
            program.calculations[name] = self._calculation(name, item)
        for name, item in self._named("counter_arrays"):
            program.counters[name] = CounterDef(
                name, int(item.get("size", 0)), item["binding"] if item.get("is_direct") else None
            )
        for name, item in self._named("register_arrays"):
            program.registers[name] = RegisterDef(name, int(item["size"]), int(item["bitwidth"]))
        for name, item in self._named("meter_arrays"):
            program.meters[name] = self._meter(name, item)
        for item in doc.get("field_lists", []):
            where = f"at field_lists[{item.get('name', item['id'])}]"
            program.field_lists[int(item["id"])] = self._field_list(item, where)
        for name, item in self._named("learn_lists"):
            program.learn_lists[int(item["id"])] = LearnList(
                name, self._field_list(item, _source(item, f"at learn_lists[{name}]"))
            )
        for item in doc.get("actions", []):
            action = self._action(item)
            program.actions[action.id] = action
        self._load_parser()
        self._load_deparser()
        for item in doc.get("pipelines", []):
            self._load_control(item)
        for name in ("ingress", "egress"):
            if name not in program.controls:
                raise PipelineError(f"the BMv2 JSON has no pipeline {name!r} (at pipelines)")
        program.checksums = tuple(self._checksum(i) for i in doc.get("checksums", []))
        return program

    # -- sections

    def _named(self, section: str) -> Iterable[tuple[str, dict[str, Any]]]:
        for item in self._doc.get(section, []):
            yield item["name"], item

    def _refuse_sections(self) -> None:
        for section, construct in REFUSED_SECTIONS.items():
            for item in self._doc.get(section, []):
                name = item.get("name", "?") if isinstance(item, dict) else "?"
                raise UnsupportedConstruct(
                    f"{construct} {name!r}", _source(item, f"at {section}[{name}]")
                )

    def _load_headers(self) -> None:
        for name, item in self._named("header_types"):
            fields: dict[str, FieldType] = {}
            offset = 0
            for spec in item["fields"]:
                field_name, width = spec[0], spec[1]
                where = f"at header_types[{name}].fields[{field_name}]"
                if not isinstance(width, int):
                    raise UnsupportedConstruct("a variable-length field (varbit)", where)
                if not 1 <= width <= MAX_FIELD_WIDTH:
                    raise UnsupportedConstruct(
                        f"a field of {width} bits (1..{MAX_FIELD_WIDTH} are)", where
                    )
                signed = bool(spec[2]) if len(spec) > 2 else False
                saturating = bool(spec[3]) if len(spec) > 3 else False
                fields[field_name] = FieldType(field_name, width, signed, saturating, offset)
                offset += width
            self._types[name] = (fields, offset)
        for name, item in self._named("headers"):
            type_name = item["header_type"]
            if type_name not in self._types:
                raise PipelineError(f"headers[{name}]: no header type {type_name!r}")
            fields, width = self._types[type_name]
            metadata = bool(item.get("metadata", False))
            if not metadata and width % 8:
                raise UnsupportedConstruct(
                    f"a header of {width} bits, not whole bytes", f"at headers[{name}]"
                )
            self._program.headers[name] = Header(name, type_name, metadata, fields, width)

    def _meter(self, name: str, item: dict[str, Any]) -> MeterDef:
        where = _source(item, f"at meter_arrays[{name}]")
        unit = item.get("type", "packets")
        if unit not in ("packets", "bytes") or int(item.get("rate_count", 2)) != 2:
            raise UnsupportedConstruct(
                f"a meter of {item.get('rate_count')} rates in {unit}, not of two in packets or "
                "bytes",
                where,
            )
        table = item["binding"] if item.get("is_direct") else None
        result = None if table is None else self._field_ref(item["result_target"], where)
        return MeterDef(name, int(item.get("size", 0)), unit, table, result)

    def _field_list(self, item: dict[str, Any], where: str) -> tuple[FieldRef, ...]:
        refs = []
        for element in item["elements"]:
            if element["type"] != "field":
                raise UnsupportedConstruct(f"a list element of type {element['type']!r}", where)
            refs.append(self._field_ref(element["value"], where))
        return tuple(refs)

    def _calculation(self, name: str, item: dict[str, Any]) -> Calculation:
        where = _source(item, f"at calculations[{name}]")
        inputs: list[FieldRef | HeaderRef | tuple[int, int]] = []
        payload = False
        for value in item["input"]:
            kind = value["type"]
            if kind == "field":
                inputs.append(self._field_ref(value["value"], where))
            elif kind == "hexstr":
                inputs.append((_hex(value["value"]), int(value["bitwidth"])))
            elif kind == "header":
                inputs.append(HeaderRef(self._header_name(value["value"], where)))
            elif kind == "payload":
                payload = True
            else:
                raise UnsupportedConstruct(f"calculation input {kind!r}", where)
        return Calculation(name, str(item["algo"]), tuple(inputs), payload)

    def _checksum(self, item: dict[str, Any]) -> Checksum:
        where = _source(item, f"at checksums[{item['name']}]")
        if item.get("type", "generic") != "generic":
            raise UnsupportedConstruct(f"checksum type {item['type']!r}", where)
        if item["calculation"] not in self._program.calculations:
            raise PipelineError(f"{where}: no calculation {item['calculation']!r}")
        condition = item.get("if_cond")
        return Checksum(
            item["name"],
            self._field_ref(item["target"], where),
            item["calculation"],
            bool(item.get("verify", True)),
            bool(item.get("update", True)),
            None if condition is None else self._expr(condition, where),
        )

    # -- references and expressions

    def _header_name(self, name: Any, where: str) -> str:
        if name not in self._program.headers:
            raise PipelineError(f"there is no header {name!r} ({where})")
        return str(name)

    def _field_ref(self, value: Any, where: str) -> FieldRef:
        header, name = value
        self._header_name(header, where)
        if name != VALID and name not in self._program.headers[header].fields:
            raise PipelineError(f"header {header!r} has no field {name!r} ({where})")
        return FieldRef(header, name)

    def _expr(self, item: Any, where: str) -> Expr:
        if "op" in item and "type" not in item:
            return self._operator(item, where)
        kind, value = item["type"], item["value"]
        if kind == "expression":
            return self._expr(value, where)
        if kind == "field":
            return self._field_ref(value, where)
        if kind == "hexstr":
            return Const(_hex(value))
        if kind == "bool":
            return BoolConst(bool(value))
        if kind in ("local", "runtime_data"):
            return Local(int(value))
        if kind == "header":
            return HeaderRef(self._header_name(value, where))
        if kind == "lookahead":
            return Lookahead(int(value[0]), int(value[1]))
        raise UnsupportedConstruct(f"a value of type {kind!r}", where)

    def _operator(self, item: Mapping[str, Any], where: str) -> Expr:
        op = item["op"]
        left, right = item.get("left"), item.get("right")
        if op == "?":
            return Op(
                op,
                (
                    self._expr(item["cond"], where),
                    self._expr(left, where),
                    self._expr(right, where),
                ),
            )
        if op in UNARY_OPS:
            operand = self._expr(right, where)
            if op == "valid" and not isinstance(operand, HeaderRef):
                raise PipelineError(f"valid() wants a header ({where})")
            return Op(op, (operand,))
        if op in BINARY_DATA_OPS | COMPARISONS | BINARY_BOOL_OPS | CAST_OPS:
            if left is None and op in "+-":
                return Op(op, (Const(0), self._expr(right, where)))
            return Op(op, (self._expr(left, where), self._expr(right, where)))
        raise UnsupportedConstruct(f"expression operator {op!r}", where)

    # -- actions

    def _action(self, item: dict[str, Any]) -> Action:
        name = item["name"]
        params = tuple((p["name"], int(p["bitwidth"])) for p in item.get("runtime_data", []))
        flat = [
            self._primitive(p, f"at actions[{name}].primitives[{i}]")
            for i, p in enumerate(item.get("primitives", []))
        ]
        for at, primitive in enumerate(item.get("primitives", [])):
            for index in _locals_in(primitive):
                if not 0 <= index < len(params):
                    raise PipelineError(
                        f"there is no argument {index} (at actions[{name}].primitives[{at}])"
                    )
        return Action(int(item["id"]), name, params, structure(flat, f"at actions[{name}]"))

    def _primitive(self, item: dict[str, Any], place: str) -> Call | Jump:
        op = item["op"]
        where = _source(item, place)
        params = item.get("parameters", [])
        if op == "_jump":
            return Jump(None, self._jump_target(params[0], where), where)
        if op == "_jump_if_zero":
            return Jump(self._expr(params[0], where), self._jump_target(params[1], where), where)
        kinds = PRIMITIVES.get(op)
        if kinds is None:
            raise UnsupportedConstruct(f"primitive {op!r}", where)
        if op == "drop":
            params = []
        if len(params) != len(kinds):
            raise PipelineError(f"{op} takes {len(kinds)} parameters, not {len(params)} ({where})")
        args = tuple(
            self._argument(kind, p, op, where) for kind, p in zip(kinds, params, strict=True)
        )
        return Call(op, args, where)

    def _jump_target(self, param: Any, where: str) -> int:
        target = self._expr(param, where)
        if not isinstance(target, Const):
            raise UnsupportedConstruct("a jump to a computed target", where)
        return target.value

    def _argument(self, kind: str, param: Any, op: str, where: str) -> Any:
        if kind == "expr":
            return self._expr(param, where)
        if kind == "vector":
            return tuple(self._expr(v, where) for v in param["value"])
        if kind == "string":
            return str(param["value"])
        if kind in ("field_list", "learn_list"):
            number = _hex(param["value"]) if param["type"] == "hexstr" else None
            lists = self._program.field_lists if kind == "field_list" else self._program.learn_lists
            if number is None or number not in lists:
                raise PipelineError(f"{op}: there is no {kind} {param['value']!r} ({where})")
            return number
        actual = param["type"]
        if kind == "field":
            target = self._expr(param, where)
            if not isinstance(target, FieldRef) or target.name == VALID:
                raise UnsupportedConstruct(f"{op} to something other than a field", where)
            return target
        if kind == "header":
            ref = self._expr(param, where)
            if not isinstance(ref, HeaderRef):
                raise UnsupportedConstruct(f"{op} on a value of type {actual!r}", where)
            return ref
        if actual != kind:
            raise UnsupportedConstruct(f"{op} on a value of type {actual!r}", where)
        name = param["value"]
        known: dict[str, Iterable[str]] = {
            "register_array": self._program.registers,
            "counter_array": self._program.counters,
            "meter_array": self._program.meters,
            "calculation": self._program.calculations,
        }
        if name not in known[kind]:
            raise PipelineError(f"there is no {kind} {name!r} ({where})")
        return NamedArg(kind, name)

    # -- parser and deparser

    def _load_parser(self) -> None:
        parsers = self._doc.get("parsers", [])
        if len(parsers) != 1:
            raise UnsupportedConstruct(f"{len(parsers)} parsers instead of one", "at parsers")
        parser = parsers[0]
        self._program.start_state = parser["init_state"]
        for item in parser["parse_states"]:
            state = self._parse_state(item)
            self._program.states[state.name] = state
        for state in self._program.states.values():
            for transition in state.transitions:
                target = transition.next_state
                if target is not None and target not in self._program.states:
                    raise PipelineError(f"there is no parser state {target!r} ({state.where})")

    def _parse_state(self, item: dict[str, Any]) -> ParseState:
        name = item["name"]
        place = f"at parsers.parse_states[{name}]"
        ops = tuple(
            self._parser_op(op, f"{place}.parser_ops[{i}]")
            for i, op in enumerate(item.get("parser_ops", []))
        )
        key: list[FieldRef | Lookahead] = []
        widths: list[int] = []
        for part in item.get("transition_key", []):
            value = self._expr(part, place)
            if isinstance(value, FieldRef):
                width = 1 if value.name == VALID else self._program.field(value).width
            elif isinstance(value, Lookahead):
                width = value.width
            else:
                raise UnsupportedConstruct(f"select on {part['type']!r}", place)
            key.append(value)
            widths.append(width)
        transitions = tuple(
            self._transition(t, widths, f"{place}.transitions[{i}]")
            for i, t in enumerate(item.get("transitions", []))
        )
        return ParseState(name, ops, tuple(key), transitions, place)

    def _parser_op(self, item: dict[str, Any], place: str) -> ParserOp:
        op = item["op"]
        where = _source(item, place)
        params = item.get("parameters", [])
        if op == "extract":
            if params[0]["type"] != "regular":
                raise UnsupportedConstruct(f"extract to a {params[0]['type']}", where)
            return Extract(self._header_name(params[0]["value"], where), where)
        if op == "set":
            target = self._field_ref(params[0]["value"], where)
            return Call("assign", (target, self._expr(params[1], where)), where)
        if op == "advance":
            return Advance(self._expr(params[0], where), where)
        if op == "shift":
            return Advance(Const(8 * int(params[0])), where)
        if op == "verify":
            return Verify(self._expr(params[0], where), self._expr(params[1], where), where)
        if op == "primitive":
            call = self._primitive(params[0], where)
            if isinstance(call, Jump):
                raise UnsupportedConstruct("a jump in the parser", where)
            if call.op == "exit":
                raise UnsupportedConstruct("exit in the parser", where)
            return call
        raise UnsupportedConstruct(f"parser operation {op!r}", where)

    def _transition(self, item: dict[str, Any], widths: list[int], where: str) -> Transition:
        kind = item.get("type", "hexstr" if item.get("value") != "default" else "default")
        next_state = item.get("next_state")
        if kind == "default":
            return Transition(None, next_state)
        if kind != "hexstr":
            raise UnsupportedConstruct(f"transition of type {kind!r}", where)
        value, mask = _hex(item["value"]), item.get("mask")
        mask_value = -1 if mask is None else _hex(mask)
        cases: list[tuple[int, int]] = []
        # Value and mask are the key fields, each padded to whole bytes, one after the other.
        for width in reversed(widths):
            padded = 8 * ((width + 7) // 8)
            low = (1 << padded) - 1
            part_mask = mask_value & low & ((1 << width) - 1)
            cases.append((value & low & part_mask, part_mask))
            value >>= padded
            mask_value >>= padded
        return Transition(tuple(reversed(cases)), next_state)

    def _load_deparser(self) -> None:
        deparsers = self._doc.get("deparsers", [])
        if len(deparsers) != 1:
            raise UnsupportedConstruct(f"{len(deparsers)} deparsers instead of one", "at deparsers")
        if deparsers[0].get("primitives"):
            raise UnsupportedConstruct("a method call in the deparser", "at deparsers.primitives")
        self._program.deparser = tuple(
            self._header_name(h, "at deparsers.order") for h in deparsers[0]["order"]
        )

    # -- controls

    def _load_control(self, item: dict[str, Any]) -> None:
        name = item["name"]
        nodes: dict[str, TableDef | Conditional] = {}
        if item.get("action_calls"):
            raise UnsupportedConstruct("a direct action call", f"at pipelines[{name}].action_calls")
        for profile in item.get("action_profiles", []):
            self._load_profile(profile, f"at pipelines[{name}].action_profiles")
        for table in item.get("tables", []):
            nodes[table["name"]] = self._table(table, f"at pipelines[{name}].tables")
        for branch in item.get("conditionals", []):
            where = _source(branch, f"at pipelines[{name}].conditionals[{branch['name']}]")
            nodes[branch["name"]] = Conditional(
                branch["name"],
                self._expr(branch["expression"], where),
                branch.get("true_next"),
                branch.get("false_next"),
                where,
            )
        self._program.controls[name] = Control(name, item.get("init_table"), nodes)

    def _load_profile(self, item: dict[str, Any], place: str) -> None:
        name = item["name"]
        selector = item.get("selector")
        algorithm: str | None = None
        inputs: list[FieldRef] = []
        if selector is not None:
            algorithm = str(selector["algo"])
            for value in selector["input"]:
                if value["type"] != "field":
                    raise UnsupportedConstruct(
                        f"selector input {value['type']!r}", f"{place}[{name}].selector"
                    )
                inputs.append(self._field_ref(value["value"], f"{place}[{name}].selector"))
        self._program.profiles[name] = ActionProfileDef(
            name, int(item.get("max_size", 0)), algorithm, tuple(inputs)
        )

    def _table(self, item: dict[str, Any], place: str) -> TableDef:
        name = item["name"]
        place = f"{place}[{name}]"
        where = _source(item, place)
        kind = item.get("type", "simple")
        if kind not in ("simple", "indirect", "indirect_ws"):
            raise UnsupportedConstruct(f"table type {kind!r}", where)
        meter = item.get("direct_meters")
        if meter is not None and (
            meter not in self._program.meters or self._program.meters[meter].table != name
        ):
            raise PipelineError(f"there is no direct meter {meter!r} for this table ({where})")
        keys = tuple(self._key(k, f"{place}.key[{i}]") for i, k in enumerate(item.get("key", [])))
        action_ids = tuple(int(i) for i in item.get("action_ids", []))
        for action_id in action_ids:
            if action_id not in self._program.actions:
                raise PipelineError(f"there is no action with id {action_id} ({where})")
        profile = item.get("action_profile") if kind != "simple" else None
        if profile is not None and profile not in self._program.profiles:
            raise PipelineError(f"there is no action profile {profile!r} ({where})")
        default = item.get("default_entry")
        nexts = dict(item.get("next_tables", {}))
        by_hit = "__HIT__" in nexts or "__MISS__" in nexts
        entries = item.get("entries")
        counter = next((c.name for c in self._program.counters.values() if c.table == name), None)
        return TableDef(
            name=name,
            kind=kind,
            keys=keys,
            action_ids=action_ids,
            max_size=int(item.get("max_size", 0)),
            profile=profile,
            default_action_id=None if default is None else int(default["action_id"]),
            default_args=tuple(_hex(v) for v in (default or {}).get("action_data", [])),
            default_is_const=bool((default or {}).get("action_entry_const", False)),
            default_action_is_const=bool((default or {}).get("action_const", False)),
            next_by_action=None if by_hit else nexts,
            next_hit=nexts.get("__HIT__"),
            next_miss=nexts.get("__MISS__"),
            base_default_next=item.get("base_default_next"),
            direct_counter=counter,
            direct_meter=meter,
            entries=None
            if entries is None
            else tuple(
                self._const_entry(e, keys, f"{place}.entries[{i}]") for i, e in enumerate(entries)
            ),
            where=where,
        )

    def _key(self, item: dict[str, Any], where: str) -> KeyField:
        match_type = item["match_type"]
        if match_type == "optional":
            match_type = "ternary"
        if match_type not in ("exact", "lpm", "ternary", "range"):
            raise UnsupportedConstruct(f"match type {match_type!r}", where)
        target = self._field_ref(item["target"], where)
        width = 1 if target.name == VALID else self._program.field(target).width
        if target.name != VALID and self._program.field(target).signed:
            raise UnsupportedConstruct("a signed match field", where)
        mask = item.get("mask")
        return KeyField(
            str(item.get("name", ".".join(item["target"]))),
            match_type,
            target,
            width,
            None if mask is None else _hex(mask),
        )

    def _const_entry(
        self, item: dict[str, Any], keys: tuple[KeyField, ...], where: str
    ) -> ConstEntry:
        matches: list[tuple[str, int, int]] = []
        for key, part in zip(keys, item["match_key"], strict=True):
            kind = part["match_type"]
            top = (1 << key.width) - 1
            if kind == "exact":
                matches.append(("exact", _hex(part["key"]) & top, 0))
            elif kind == "lpm":
                length = int(part["prefix_length"])
                mask = top ^ (top >> length)
                matches.append(("lpm", _hex(part["key"]) & mask, length))
            elif kind in ("ternary", "optional"):
                mask = _hex(part["mask"]) & top
                matches.append(("ternary", _hex(part["key"]) & mask, mask))
            elif kind == "range":
                matches.append(("range", _hex(part["start"]) & top, _hex(part["end"]) & top))
            else:
                raise UnsupportedConstruct(f"match type {kind!r}", where)
        entry = item["action_entry"]
        return ConstEntry(
            tuple(matches),
            int(item.get("priority", 0)),
            int(entry["action_id"]),
            tuple(_hex(v) for v in entry.get("action_data", [])),
        )


# --------------------------------------------------------------------------------------------
# Jumps to structure
# --------------------------------------------------------------------------------------------


def structure(flat: list[Call | Jump], where: str) -> tuple[Statement, ...]:
    """Nested ifs equal to a list of primitives with forward jumps, as p4c writes them.

    `if (c) A else B` arrives as `_jump_if_zero(c, b); A; _jump(end); b: B; end:`. Raises
    UnsupportedConstruct for a backward jump, and for jumps that do not nest.
    """
    for index, item in enumerate(flat):
        if isinstance(item, Jump) and not index < item.target <= len(flat):
            raise UnsupportedConstruct(
                f"a jump from primitive {index} to {item.target}, which is not forward", item.where
            )
    return _structure(flat, 0, len(flat), where)


def _structure(flat: list[Call | Jump], start: int, end: int, where: str) -> tuple[Statement, ...]:
    body: list[Statement] = []
    index = start
    while index < end:
        item = flat[index]
        if isinstance(item, Call):
            body.append(item)
            index += 1
            continue
        if item.target > end:
            raise UnsupportedConstruct(
                f"a jump from primitive {index} to {item.target} out of its block", item.where
            )
        if item.condition is None:
            # What a jump skips cannot be entered from elsewhere: whoever could jump there
            # stands before it in this block, and would have been taken apart as an if.
            index = item.target
            continue
        then_end = after = item.target
        last = flat[then_end - 1]
        if (
            then_end - 1 > index
            and isinstance(last, Jump)
            and last.condition is None
            and last.target > then_end
        ):
            after = last.target
            if after > end:
                raise UnsupportedConstruct(
                    f"a jump from primitive {then_end - 1} to {after} out of its block",
                    last.where,
                )
            then = _structure(flat, index + 1, then_end - 1, where)
        else:
            then = _structure(flat, index + 1, then_end, where)
        otherwise = _structure(flat, then_end, after, where)
        body.append(If(item.condition, then, otherwise))
        index = after
    return tuple(body)
