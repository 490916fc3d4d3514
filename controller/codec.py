"""Between planned updates and P4Runtime messages, and from entities read back to plain values.

Only values are moved, so a server that pads byte strings and one that trims them read back alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from weakref import WeakKeyDictionary

from finsy import P4Schema
from finsy.proto import p4r

from ringstep.controller.entries import ProfileKey, SwitchTables
from ringstep.controller.plan import (
    DefaultUpdate,
    EntryUpdate,
    GroupUpdate,
    MemberUpdate,
    Op,
    Update,
)
from ringstep.controller.tablecodec import CodecError, TableCodec

__all__ = ["CodecError", "codec_of", "decode_into", "encode_lookup", "encode_update"]

_OPS: Final = {
    Op.INSERT: p4r.Update.INSERT,
    Op.MODIFY: p4r.Update.MODIFY,
    Op.DELETE: p4r.Update.DELETE,
}
_codecs: WeakKeyDictionary[P4Schema, TableCodec] = WeakKeyDictionary()


def codec_of(schema: P4Schema) -> TableCodec:
    """Return the codec of a program; sessions with switches that run the same one share it."""
    codec = _codecs.get(schema)
    if codec is None:
        codec = _codecs[schema] = TableCodec(schema)
    return codec


def encode_update(update: Update, schema: P4Schema) -> p4r.Update:
    """Return the P4Runtime update for a planned one.

    Raises:
        ValueError: a value does not fit the P4Info.
    """
    message = p4r.Update(type=_OPS[update.op])
    _put(message.entity, update, codec_of(schema), key_only=False)
    return message


def encode_lookup(update: Update, schema: P4Schema) -> p4r.Entity:
    """Return the entity to read back what ``update`` wrote: its key without its value.

    Raises:
        ValueError: the key does not fit the P4Info.
    """
    message = p4r.Entity()
    _put(message, update, codec_of(schema), key_only=True)
    return message


def _put(entity: p4r.Entity, update: Update, codec: TableCodec, *, key_only: bool) -> None:
    match update:
        case EntryUpdate():
            codec.put_entry(entity.table_entry, update.key, None if key_only else update.value)
        case DefaultUpdate():
            codec.put_default(entity.table_entry, update.table, None if key_only else update.value)
        case MemberUpdate():
            member = entity.action_profile_member
            member.action_profile_id = codec.profile_id(update.key.profile)
            member.member_id = update.key.id
            if update.value is not None and not key_only:
                codec.put_call(member.action, update.value)
        case GroupUpdate():
            group = entity.action_profile_group
            group.action_profile_id = codec.profile_id(update.key.profile)
            group.group_id = update.key.id
            for number, weight in () if key_only else update.value or ():
                group.members.add(member_id=number, weight=weight)


def decode_into(tables: SwitchTables, entities: Iterable[p4r.Entity], schema: P4Schema) -> None:
    """Put what a switch sent into ``tables``; entries of const tables are left out.

    Raises:
        CodecError: an entity names something that is not in the P4Info.
    """
    codec = codec_of(schema)
    for entity in entities:
        try:
            _take(tables, entity, codec)
        except CodecError as error:
            raise CodecError(
                f"the switch holds an entity that the program does not describe ({error}); it "
                "runs another pipeline under the same cookie: load this controller's again "
                "(restart the switch without its saved program)"
            ) from None


def _take(tables: SwitchTables, entity: p4r.Entity, codec: TableCodec) -> None:
    kind = entity.WhichOneof("entity")
    if kind == "table_entry":
        entry = entity.table_entry
        if entry.is_default_action:
            if (default := codec.default_of(entry)) is not None:
                tables.defaults[default[0]] = default[1]
        elif (key := codec.key_of(entry)) is not None:
            tables.entries[key] = codec.value_of(entry)
    elif kind == "action_profile_member":
        member = entity.action_profile_member
        profile = codec.profile_name(member.action_profile_id)
        tables.members[ProfileKey(profile, member.member_id)] = codec.call_of(member.action)
    elif kind == "action_profile_group":
        group = entity.action_profile_group
        profile = codec.profile_name(group.action_profile_id)
        tables.groups[ProfileKey(profile, group.group_id)] = tuple(
            sorted((one.member_id, one.weight) for one in group.members)
        )
