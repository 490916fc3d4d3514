"""What a P4Info says, indexed by id for the server (specification section "The P4Info Message").

Only what the server needs is kept: widths, match kinds, action scopes, which resources belong to
which table. Kinds of objects that the server refuses are remembered by name, so that a refusal can
name them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, TypeVar

from finsy.proto import p4i

from ringstep.softswitch.p4rt.digests import Layout
from ringstep.softswitch.p4rt.errors import P4RuntimeError, invalid, not_found


class MatchKind(IntEnum):
    """p4.config.v1.MatchField.MatchType, the kinds this server translates."""

    EXACT = 2
    LPM = 3
    TERNARY = 4
    RANGE = 5
    OPTIONAL = 6

    @property
    def needs_priority(self) -> bool:
        """Whether a table with such a field orders its entries by priority."""
        return self in (MatchKind.TERNARY, MatchKind.RANGE, MatchKind.OPTIONAL)


class Scope(IntEnum):
    """p4.config.v1.ActionRef.Scope: where a table may use an action."""

    TABLE_AND_DEFAULT = 0
    TABLE_ONLY = 1
    DEFAULT_ONLY = 2


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter or a packet metadata field: id, name, width in bits."""

    id: int
    name: str
    width: int


@dataclass(frozen=True, slots=True)
class MatchField:
    """A match field: id, name, width in bits, match kind."""

    id: int
    name: str
    width: int
    kind: MatchKind


@dataclass(frozen=True, slots=True)
class Action:
    """An action; `params` in declaration order."""

    id: int
    name: str
    alias: str
    params: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `match_fields` in key order, `actions` by action id with their scope."""

    id: int
    name: str
    alias: str
    match_fields: tuple[MatchField, ...]
    actions: dict[int, tuple[Action, Scope]]
    profile_id: int
    has_direct_counter: bool
    has_direct_meter: bool
    has_idle_timeout: bool
    is_const: bool

    @property
    def needs_priority(self) -> bool:
        """Whether entries carry a priority: some field is ternary, range or optional."""
        return any(match.kind.needs_priority for match in self.match_fields)


@dataclass(frozen=True, slots=True)
class Profile:
    """An action profile, or a selector (`with_selector`)."""

    id: int
    name: str
    alias: str
    table_ids: tuple[int, ...]
    with_selector: bool
    max_group_size: int
    sum_of_members: bool
    max_member_weight: int
    weights_disallowed: bool


@dataclass(frozen=True, slots=True)
class Counter:
    """An indirect counter array."""

    id: int
    name: str
    alias: str
    size: int


@dataclass(frozen=True, slots=True)
class Meter:
    """An indirect meter array."""

    id: int
    name: str
    alias: str
    size: int


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest and how its values become a message."""

    id: int
    name: str
    alias: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class PacketHeader:
    """Controller metadata of packet-in or packet-out, in header order."""

    name: str
    fields: tuple[Field, ...]


@dataclass(slots=True)
class Schema:
    """The objects of one P4Info by id; names are those of the preamble, as in the BMv2 JSON."""

    tables: dict[int, Table] = field(default_factory=dict)
    actions: dict[int, Action] = field(default_factory=dict)
    profiles: dict[int, Profile] = field(default_factory=dict)
    counters: dict[int, Counter] = field(default_factory=dict)
    meters: dict[int, Meter] = field(default_factory=dict)
    digests: dict[int, Digest] = field(default_factory=dict)
    packet_headers: dict[str, PacketHeader] = field(default_factory=dict)
    other_names: dict[int, str] = field(default_factory=dict)
    action_by_name: dict[str, Action] = field(default_factory=dict)

    def table(self, table_id: int) -> Table:
        """Return a table. Raises INVALID_ARGUMENT for id 0, NOT_FOUND for an unknown one."""
        return _find(self.tables, table_id, "table")

    def profile(self, profile_id: int) -> Profile:
        """Return an action profile. Raises INVALID_ARGUMENT for id 0, NOT_FOUND if unknown."""
        return _find(self.profiles, profile_id, "action profile")

    def counter(self, counter_id: int) -> Counter:
        """Return an indirect counter. Raises INVALID_ARGUMENT for id 0, NOT_FOUND if unknown."""
        return _find(self.counters, counter_id, "counter")

    def meter(self, meter_id: int) -> Meter:
        """Return an indirect meter. Raises INVALID_ARGUMENT for id 0, NOT_FOUND if unknown."""
        return _find(self.meters, meter_id, "meter")

    def digest(self, digest_id: int) -> Digest:
        """Return a digest. Raises INVALID_ARGUMENT for id 0, NOT_FOUND if unknown."""
        return _find(self.digests, digest_id, "digest")

    def name_of(self, object_id: int) -> str:
        """Return how messages call an object of a kind that the server does not support."""
        return self.other_names.get(object_id, f"id {object_id}")

    def selector_actions(self, profile: Profile) -> dict[int, tuple[Action, Scope]]:
        """Return the actions that members of a profile may have: those of its tables."""
        found: dict[int, tuple[Action, Scope]] = {}
        for table_id in profile.table_ids:
            if table_id in self.tables:
                found.update(self.tables[table_id].actions)
        return found


class _Named(Protocol):
    @property
    def alias(self) -> str: ...


_N = TypeVar("_N", bound=_Named)


def _find(objects: dict[int, _N], object_id: int, kind: str) -> _N:
    found = objects.get(object_id)
    if found is not None:
        return found
    if object_id == 0:
        raise invalid(f"{kind} id 0 is not a valid id; set it as in the P4Info")
    known = ", ".join(f"{one.alias} ({known_id})" for known_id, one in sorted(objects.items()))
    raise not_found(f"no {kind} has id {object_id}; the P4Info has {_cut(known) or 'none'}")


def _cut(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def build_schema(p4info: p4i.P4Info) -> Schema:
    """Index a P4Info. Raises INVALID_ARGUMENT where it contradicts itself or is not supported."""
    schema = Schema()
    seen: dict[int, str] = {}
    for action in p4info.actions:
        _claim(seen, action.preamble)
        built = Action(
            action.preamble.id,
            action.preamble.name,
            action.preamble.alias or action.preamble.name,
            tuple(
                Field(p.id, p.name, _width(p.bitwidth, f"action {action.preamble.name}", p.name))
                for p in action.params
            ),
        )
        schema.actions[built.id] = built
        schema.action_by_name[built.name] = built
    counters = {one.preamble.id for one in p4info.direct_counters}
    meters = {one.preamble.id for one in p4info.direct_meters}
    for table in p4info.tables:
        _claim(seen, table.preamble)
        schema.tables[table.preamble.id] = _table(table, schema, counters, meters)
    for profile in p4info.action_profiles:
        _claim(seen, profile.preamble)
        schema.profiles[profile.preamble.id] = Profile(
            profile.preamble.id,
            profile.preamble.name,
            profile.preamble.alias or profile.preamble.name,
            tuple(profile.table_ids),
            profile.with_selector,
            profile.max_group_size,
            profile.WhichOneof("selector_size_semantics") == "sum_of_members",
            profile.sum_of_members.max_member_weight,
            profile.weights_disallowed,
        )
    for counter in p4info.counters:
        _claim(seen, counter.preamble)
        schema.counters[counter.preamble.id] = Counter(
            counter.preamble.id,
            counter.preamble.name,
            counter.preamble.alias or counter.preamble.name,
            counter.size,
        )
    for meter in p4info.meters:
        _claim(seen, meter.preamble)
        _check_meter_type(meter.preamble.name, meter.spec)
        schema.meters[meter.preamble.id] = Meter(
            meter.preamble.id,
            meter.preamble.name,
            meter.preamble.alias or meter.preamble.name,
            meter.size,
        )
    for direct in p4info.direct_meters:
        _check_meter_type(direct.preamble.name, direct.spec)
    for digest in p4info.digests:
        _claim(seen, digest.preamble)
        name = digest.preamble.name
        layout = Layout(name, digest.type_spec, p4info.type_info)
        schema.digests[digest.preamble.id] = Digest(
            digest.preamble.id, name, digest.preamble.alias or name, layout
        )
    for header in p4info.controller_packet_metadata:
        _claim(seen, header.preamble)
        _add_packet_header(schema, header)
    for kind, others in (
        ("direct counter", p4info.direct_counters),
        ("direct meter", p4info.direct_meters),
        ("register", p4info.registers),
        ("value set", p4info.value_sets),
    ):
        for other in others:
            _claim(seen, other.preamble)
            schema.other_names[other.preamble.id] = f"{kind} {other.preamble.name}"
    _check_references(schema)
    return schema


def _claim(seen: dict[int, str], preamble: p4i.Preamble) -> None:
    if preamble.id == 0:
        raise invalid(f"P4Info: {preamble.name or 'an object'} has id 0, which is not a valid id")
    if preamble.id in seen:
        raise invalid(
            f"P4Info: {preamble.name} and {seen[preamble.id]} have the same id {preamble.id}"
        )
    seen[preamble.id] = preamble.name


def _check_meter_type(name: str, spec: p4i.MeterSpec) -> None:
    if spec.type != p4i.MeterSpec.TWO_RATE_THREE_COLOR:
        raise invalid(
            f"P4Info: meter {name} is {p4i.MeterSpec.Type.Name(spec.type)}; "
            "this switch has TWO_RATE_THREE_COLOR"
        )


def _width(bitwidth: int, owner: str, name: str) -> int:
    if bitwidth < 1:
        raise invalid(
            f"P4Info: {owner}: {name} has no bit width (a string-translated type?); "
            "this switch needs bit<W> fields"
        )
    return bitwidth


def _table(
    table: p4i.Table, schema: Schema, direct_counters: set[int], direct_meters: set[int]
) -> Table:
    name = table.preamble.name
    fields = []
    for one in table.match_fields:
        try:
            kind = MatchKind(one.match_type)
        except ValueError:
            wanted = one.other_match_type or one.match_type
            raise invalid(
                f"P4Info: table {name}: match field {one.name} has match kind {wanted}; "
                "this switch has exact, lpm, ternary, range and optional"
            ) from None
        width = _width(one.bitwidth, f"table {name}", one.name)
        fields.append(MatchField(one.id, one.name, width, kind))
    actions = {}
    for ref in table.action_refs:
        action = schema.actions.get(ref.id)
        if action is None:
            raise invalid(f"P4Info: table {name} refers to action id {ref.id}, which is missing")
        actions[ref.id] = (action, Scope(ref.scope))
    resources = set(table.direct_resource_ids)
    return Table(
        table.preamble.id,
        name,
        table.preamble.alias or name,
        tuple(fields),
        actions,
        table.implementation_id,
        bool(resources & direct_counters),
        bool(resources & direct_meters),
        table.idle_timeout_behavior != p4i.Table.NO_TIMEOUT,
        table.is_const_table,
    )


def _add_packet_header(schema: Schema, header: p4i.ControllerPacketMetadata) -> None:
    name = header.preamble.name
    fields = tuple(
        Field(one.id, one.name, _width(one.bitwidth, name, one.name)) for one in header.metadata
    )
    bits = sum(one.width for one in fields)
    if bits % 8:
        raise invalid(
            f"P4Info: header {name} has {bits} bits, which is not a whole number of bytes"
        )
    schema.packet_headers[name] = PacketHeader(name, fields)


def _check_references(schema: Schema) -> None:
    problem: P4RuntimeError | None = None
    for table in schema.tables.values():
        if table.profile_id and table.profile_id not in schema.profiles:
            problem = invalid(
                f"P4Info: table {table.name} refers to action profile id {table.profile_id}, "
                "which is missing"
            )
    if problem is not None:
        raise problem
