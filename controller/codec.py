"""Between plain values (:mod:`ringstep.controller.entries`) and P4Runtime protobufs.

finsy knows the P4Info and the byte strings; this module only moves values, so a server that pads
and one that trims read back alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from finsy import (
    P4ActionProfileGroup,
    P4ActionProfileMember,
    P4IndirectAction,
    P4Member,
    P4Schema,
    P4TableAction,
    P4TableEntry,
    P4TableMatch,
)
from finsy.p4entity import decode_entity
from finsy.p4schema import P4MatchType
from finsy.proto import p4r

from ringstep.controller.entries import (
    ActionCall,
    ActionSet,
    EntryKey,
    EntryValue,
    Exact,
    FieldValue,
    GroupMembers,
    GroupRef,
    Lpm,
    MemberRef,
    ProfileKey,
    SwitchTables,
    Ternary,
    action,
    entry_key,
)
from ringstep.controller.plan import (
    DefaultUpdate,
    EntryUpdate,
    GroupUpdate,
    MemberUpdate,
    Op,
    Update,
)

_OPS = {
    Op.INSERT: p4r.Update.INSERT,
    Op.MODIFY: p4r.Update.MODIFY,
    Op.DELETE: p4r.Update.DELETE,
}


class CodecError(Exception):
    """A switch sent an entity that the P4Info does not describe."""


def encode_update(update: Update, schema: P4Schema) -> p4r.Update:
    """Return the P4Runtime update for a planned one.

    Raises:
        ValueError: a value does not fit the P4Info.
    """
    return p4r.Update(type=_OPS[update.op], entity=_entity(update, schema))


def encode_lookup(update: Update, schema: P4Schema) -> p4r.Entity:
    """Return the entity to read back what ``update`` wrote: its key without its value."""
    match update:
        case DefaultUpdate():
            return P4TableEntry(update.table, is_default_action=True).encode(schema)
        case MemberUpdate():
            return _member(update.key, None).encode(schema)
        case GroupUpdate():
            return _group(update.key, None).encode(schema)
        case EntryUpdate():
            return _entry(update.key, None).encode(schema)


def _entity(update: Update, schema: P4Schema) -> p4r.Entity:
    match update:
        case DefaultUpdate():
            return P4TableEntry(
                update.table, action=_table_action(update.value), is_default_action=True
            ).encode(schema)
        case MemberUpdate():
            return _member(update.key, update.value).encode(schema)
        case GroupUpdate():
            return _group(update.key, update.value).encode(schema)
        case EntryUpdate():
            return _entry(update.key, update.value).encode(schema)


def _member(key: ProfileKey, call: ActionCall | None) -> P4ActionProfileMember:
    return P4ActionProfileMember(
        key.profile, member_id=key.id, action=None if call is None else _table_action(call)
    )


def _group(key: ProfileKey, members: GroupMembers | None) -> P4ActionProfileGroup:
    return P4ActionProfileGroup(
        key.profile,
        group_id=key.id,
        members=[P4Member(member, weight=weight) for member, weight in members or ()],
    )


def _entry(key: EntryKey, value: EntryValue | None) -> P4TableEntry:
    return P4TableEntry(
        key.table,
        match=P4TableMatch({name: _field(field) for name, field in key.match}),
        action=None if value is None else _action(value),
        priority=key.priority,
    )


def _field(value: FieldValue) -> int | tuple[int, int]:
    match value:
        case Exact():
            return value.value
        case Lpm():
            return value.value, value.prefix_len
        case Ternary():
            return value.value, value.mask


def _table_action(call: ActionCall) -> P4TableAction:
    return P4TableAction(call.name, **dict(call.args))


def _action(value: EntryValue) -> P4TableAction | P4IndirectAction:
    match value:
        case ActionCall():
            return _table_action(value)
        case GroupRef():
            return P4IndirectAction(group_id=value.group_id)
        case MemberRef():
            return P4IndirectAction(member_id=value.member_id)
        case ActionSet():
            return P4IndirectAction(
                [(weight, _table_action(call)) for call, weight in value.actions]
            )


def decode_into(tables: SwitchTables, entities: Iterable[p4r.Entity], schema: P4Schema) -> None:
    """Put what a switch sent into ``tables``; entries of const tables are left out.

    Raises:
        CodecError: an entity names something that is not in the P4Info.
    """
    for message in entities:
        try:
            entity = decode_entity(message, schema)
            _put(tables, entity, schema)
        except (ValueError, KeyError) as error:
            raise CodecError(
                f"the switch holds an entity that the program does not describe ({error}); it "
                "runs another pipeline under the same cookie"
            ) from None


def _put(tables: SwitchTables, entity: Any, schema: P4Schema) -> None:
    match entity:
        case P4ActionProfileMember():
            key = ProfileKey(entity.action_profile_id, entity.member_id)
            tables.members[key] = _call(entity.action)
        case P4ActionProfileGroup():
            key = ProfileKey(entity.action_profile_id, entity.group_id)
            tables.groups[key] = tuple(sorted(_weight(member) for member in entity.members or ()))
        case P4TableEntry(is_default_action=True):
            if entity.action is not None:
                tables.defaults[entity.table_id] = _call(entity.action)
        case P4TableEntry() if not schema.tables[entity.table_id].is_const and not entity.is_const:
            tables.entries[_key(entity, schema)] = _value(entity.action)
        case _:
            pass


def _weight(member: P4Member) -> tuple[int, int]:
    weight = member.weight
    return member.member_id, weight if isinstance(weight, int) else weight[0]


def _key(entity: P4TableEntry, schema: P4Schema) -> EntryKey:
    fields = schema.tables[entity.table_id].match_fields
    match = {
        name: _field_value(fields[name].match_type, value)
        for name, value in (entity.match or {}).items()
    }
    return entry_key(entity.table_id, entity.priority, **match)


def _field_value(kind: object, value: Any) -> FieldValue:
    if kind is P4MatchType.LPM:
        if isinstance(value, IPv4Network | IPv6Network):
            return Lpm(int(value.network_address), value.prefixlen)
        return Lpm(int(value[0]), value[1])
    if kind is P4MatchType.TERNARY:
        return Ternary(int(value[0]), int(value[1]))
    return Exact(int(value))


def _value(entity: Any) -> EntryValue:
    match entity:
        case P4IndirectAction(group_id=int() as group_id):
            return GroupRef(group_id)
        case P4IndirectAction(member_id=int() as member_id):
            return MemberRef(member_id)
        case P4IndirectAction(action_set=actions) if actions is not None:
            return ActionSet(
                tuple(
                    (_call(call), weight if isinstance(weight, int) else weight[0])
                    for weight, call in actions
                )
            )
        case _:
            return _call(entity)


def _call(entity: Any) -> ActionCall:
    if not isinstance(entity, P4TableAction):
        raise CodecError(f"the switch sent {entity!r} where an action was due")
    return action(entity.name, {name: int(value) for name, value in entity.args.items()})
