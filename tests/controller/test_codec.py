"""What the direct codec writes is what finsy writes, and it reads back what it wrote."""

from __future__ import annotations

from typing import Any

import pytest
from finsy import (
    P4ActionProfileGroup,
    P4ActionProfileMember,
    P4IndirectAction,
    P4Member,
    P4TableAction,
    P4TableEntry,
    P4TableMatch,
)
from finsy.proto import p4i, p4r
from hypothesis import given
from hypothesis import strategies as st

from ringstep.controller.codec import CodecError, decode_into, encode_lookup, encode_update
from ringstep.controller.entries import (
    ActionCall,
    ActionSet,
    EntryKey,
    EntryValue,
    Exact,
    FieldValue,
    GroupRef,
    Lpm,
    MemberRef,
    ProfileKey,
    Range,
    SwitchTables,
    Ternary,
    action,
    entry_key,
)
from ringstep.controller.pipeline import Pipeline, load_pipeline
from ringstep.controller.plan import DefaultUpdate, EntryUpdate, GroupUpdate, MemberUpdate, Op

PIPELINE = load_pipeline(uec=True)
SCHEMA = PIPELINE.schema
TABLES = {table.preamble.alias: table for table in SCHEMA.p4info.tables}
ACTIONS = {one.preamble.id: one for one in SCHEMA.p4info.actions}
BY_NAME = {one.preamble.alias: one for one in SCHEMA.p4info.actions}
IDS = st.integers(1, 1 << 31)


def numbers(width: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << width) - 1) | st.sampled_from([0, 1, (1 << width) - 1])


def fields(field: p4i.MatchField) -> st.SearchStrategy[FieldValue | None]:
    """Values of a match field; None: it matches everything."""
    top = (1 << field.bitwidth) - 1
    if field.match_type == p4i.MatchField.EXACT:
        return numbers(field.bitwidth).map(Exact)
    if field.match_type == p4i.MatchField.LPM:
        return st.none() | st.builds(
            lambda value, length: Lpm(value & ~(top >> length), length),
            numbers(field.bitwidth),
            st.integers(1, field.bitwidth),
        )
    return st.none() | st.builds(
        lambda value, mask: Ternary(value & mask, mask),
        numbers(field.bitwidth),
        st.integers(1, top),
    )


def calls(table: p4i.Table) -> st.SearchStrategy[ActionCall]:
    usable = [ref.id for ref in table.action_refs if ref.scope != p4i.ActionRef.DEFAULT_ONLY]

    def with_args(info: p4i.Action) -> st.SearchStrategy[ActionCall]:
        args = {param.name: numbers(param.bitwidth) for param in info.params}
        return st.fixed_dictionaries(args).map(lambda a: action(info.preamble.alias, a))

    return st.sampled_from([ACTIONS[number] for number in usable]).flatmap(with_args)


def values(table: p4i.Table) -> st.SearchStrategy[EntryValue]:
    if not table.implementation_id:
        return calls(table)
    sets = st.lists(st.tuples(calls(table), st.integers(1, 9)), min_size=1, max_size=3)
    return (
        IDS.map(GroupRef) | IDS.map(MemberRef) | sets.map(lambda actions: ActionSet(tuple(actions)))
    )


@st.composite
def entries(draw: st.DrawFn) -> tuple[EntryKey, EntryValue]:
    name = draw(st.sampled_from([name for name, one in TABLES.items() if one.match_fields]))
    table = TABLES[name]
    drawn = {field.name: draw(fields(field)) for field in table.match_fields}
    ternary = any(field.match_type == p4i.MatchField.TERNARY for field in table.match_fields)
    key = entry_key(
        name,
        draw(st.integers(1, 1 << 30)) if ternary else 0,
        **{field: value for field, value in drawn.items() if value is not None},
    )
    return key, draw(values(table))


def finsy_action(value: EntryValue) -> P4TableAction | P4IndirectAction:
    match value:
        case ActionCall():
            args, info = dict(value.args), BY_NAME[value.name]
            return P4TableAction(value.name, **{p.name: args[p.name] for p in info.params})
        case GroupRef():
            return P4IndirectAction(group_id=value.group_id)
        case MemberRef():
            return P4IndirectAction(member_id=value.member_id)
        case ActionSet():
            pairs = [(weight, finsy_action(call)) for call, weight in value.actions]
            return P4IndirectAction(pairs)  # type: ignore[arg-type]


def finsy_entry(key: EntryKey, value: EntryValue | None) -> p4r.Entity:
    match: dict[str, Any] = {
        name: field.value if isinstance(field, Exact) else tuple(field) for name, field in key.match
    }
    return P4TableEntry(
        key.table,
        match=P4TableMatch(match),
        action=None if value is None else finsy_action(value),
        priority=key.priority,
    ).encode(SCHEMA)


def canonical(entity: p4r.Entity) -> bytes:
    """The entity with its fields in the order of their ids, which means nothing."""
    ordered = p4r.Entity()
    ordered.CopyFrom(entity)
    del ordered.table_entry.match[:]
    ordered.table_entry.match.extend(sorted(entity.table_entry.match, key=lambda f: f.field_id))
    return ordered.SerializeToString(deterministic=True)


@given(entries())
def test_entry_is_encoded_as_finsy_does_and_read_back(entry: tuple[EntryKey, EntryValue]) -> None:
    key, value = entry
    update = EntryUpdate(Op.INSERT, key, value)
    encoded = encode_update(update, SCHEMA)
    assert encoded.type == p4r.Update.INSERT
    assert canonical(encoded.entity) == canonical(finsy_entry(key, value))
    assert canonical(encode_lookup(update, SCHEMA)) == canonical(finsy_entry(key, None))
    tables = SwitchTables()
    decode_into(tables, [encoded.entity], SCHEMA)
    assert tables.entries == {key: value}


@given(st.sampled_from(["switch_config", "route_v4", "route_v6"]).flatmap(
    lambda name: st.tuples(st.just(name), calls(TABLES[name]))
))  # fmt: skip
def test_default_action_is_encoded_as_finsy_does_and_read_back(
    default: tuple[str, ActionCall],
) -> None:
    update = DefaultUpdate(*default)
    encoded = encode_update(update, SCHEMA).entity
    theirs = P4TableEntry(
        update.table, action=finsy_action(update.value), is_default_action=True
    ).encode(SCHEMA)
    assert encoded == theirs
    asked = P4TableEntry(update.table, is_default_action=True).encode(SCHEMA)
    assert encode_lookup(update, SCHEMA) == asked
    tables = SwitchTables()
    decode_into(tables, [encoded], SCHEMA)
    assert tables.defaults == dict([default])


@given(IDS, calls(TABLES["nexthop"]), st.dictionaries(IDS, st.integers(1, 99), max_size=4))
def test_members_and_groups_are_encoded_as_finsy_does_and_read_back(
    number: int, call: ActionCall, members: dict[int, int]
) -> None:
    key, group = ProfileKey("ecmp", number), tuple(sorted(members.items()))
    member = encode_update(MemberUpdate(Op.MODIFY, key, call), SCHEMA).entity
    assert member == P4ActionProfileMember(
        "ecmp", member_id=number, action=finsy_action(call)  # type: ignore[arg-type]
    ).encode(SCHEMA)  # fmt: skip
    grouped = encode_update(GroupUpdate(Op.MODIFY, key, group), SCHEMA).entity
    assert grouped == P4ActionProfileGroup(
        "ecmp", group_id=number, members=[P4Member(one, weight=w) for one, w in group]
    ).encode(SCHEMA)
    tables = SwitchTables()
    decode_into(tables, [member, grouped], SCHEMA)
    assert tables.members == {key: call}
    assert tables.groups == {key: group}


@given(entries(), st.integers(1, 3))
def test_padded_bytes_mean_the_same(entry: tuple[EntryKey, EntryValue], zeros: int) -> None:
    """p4lang/PI#454: a server may give numbers back with leading zeros."""
    encoded = encode_update(EntryUpdate(Op.INSERT, *entry), SCHEMA).entity
    for field in encoded.table_entry.match:
        if field.HasField("exact"):
            field.exact.value = bytes(zeros) + field.exact.value
        if field.HasField("ternary"):
            field.ternary.mask = bytes(zeros) + field.ternary.mask
    for param in encoded.table_entry.action.action.params:
        param.value = bytes(zeros) + param.value
    tables = SwitchTables()
    decode_into(tables, [encoded], SCHEMA)
    assert tables.entries == dict([entry])


PORT = entry_key("red", egress_port=Exact(1))
RED = {"q_min": 1, "q_max": 2, "p_max": 3, "gap": 4}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (entry_key("red", egress_port=Exact(512)), action("set_red", RED), "egress_port: 0x200"),
        (entry_key("red", egress_port=Exact(-1)), action("set_red", RED), "does not fit in 9 bits"),
        (entry_key("red"), action("set_red", RED), "field egress_port is missing"),
        (entry_key("red", port=Exact(1)), action("set_red", RED), "no match field port"),
        (entry_key("red", egress_port=Lpm(1, 9)), action("set_red", RED), "is matched EXACT"),
        (entry_key("red", egress_port=Range(1, 9)), action("set_red", RED), "is matched EXACT"),
        (entry_key("route_v4", dst_addr=Lpm(1, 33)), action("drop"), "33 is not in 0..32"),
        (entry_key("blue", egress_port=Exact(1)), action("set_red", RED), "no table blue"),
        (PORT, action("set_blue", RED), "no action set_blue"),
        (PORT, action("set_block", {"block": 1}), "table red has no action set_block"),
        (PORT, action("set_red", {"q_min": 1}), "takes gap, p_max, q_max, q_min, not q_min"),
        (PORT, action("set_red", {**RED, "p_max": 1 << 16}), "p_max: 0x10000 does not fit in 16"),
    ],
)
def test_entry_that_does_not_fit_the_program_is_refused(
    key: EntryKey, value: EntryValue, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        encode_update(EntryUpdate(Op.INSERT, key, value), SCHEMA)


def _unknown_table(entity: p4r.Entity) -> None:
    entity.table_entry.table_id = 99


def _unknown_field(entity: p4r.Entity) -> None:
    entity.table_entry.match[0].field_id = 9


def _unknown_action(entity: p4r.Entity) -> None:
    entity.table_entry.action.action.action_id = 9


def _unknown_parameter(entity: p4r.Entity) -> None:
    entity.table_entry.action.action.params[0].param_id = 9


def _wide_value(entity: p4r.Entity) -> None:
    entity.table_entry.match[0].exact.value = b"\x02\x00"


def _empty_value(entity: p4r.Entity) -> None:
    entity.table_entry.match[0].exact.value = b""


def _no_action(entity: p4r.Entity) -> None:
    entity.table_entry.ClearField("action")


@pytest.mark.parametrize(
    "spoil",
    [
        _unknown_table, _unknown_field, _unknown_action, _unknown_parameter, _wide_value,
        _empty_value, _no_action,
    ],
)  # fmt: skip
def test_entity_that_the_program_does_not_describe_is_an_error(
    spoil: Any, pipeline: Pipeline
) -> None:
    update = EntryUpdate(Op.INSERT, PORT, action("set_red", RED))
    entity = encode_update(update, pipeline.schema).entity
    spoil(entity)
    with pytest.raises(CodecError, match="runs another pipeline under the same cookie"):
        decode_into(SwitchTables(), [entity], pipeline.schema)


def test_entry_that_matches_everything_has_no_field(pipeline: Pipeline) -> None:
    key = entry_key("route_v4", dst_addr=Lpm(0, 0))
    entity = encode_update(EntryUpdate(Op.INSERT, key, action("drop")), pipeline.schema).entity
    assert not entity.table_entry.match
