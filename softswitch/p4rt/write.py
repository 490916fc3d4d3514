"""The Write RPC: updates of entities, one by one or as an all-or-nothing batch.

Specification sections "P4 Entity Messages" and "Write RPC".
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from finsy.proto import p4r

from ringstep.softswitch import tables as t
from ringstep.softswitch.p4rt import metering, replication, translate
from ringstep.softswitch.p4rt.digests import check_config
from ringstep.softswitch.p4rt.errors import (
    Code,
    P4RuntimeError,
    from_table_error,
    invalid,
    not_found,
    unimplemented,
)
from ringstep.softswitch.p4rt.journal import Journal
from ringstep.softswitch.p4rt.pipeline import EntryId, Loaded, ReplicaEntry
from ringstep.softswitch.p4rt.schema import Counter, Meter, Profile, Table

log = logging.getLogger(__name__)

_K = TypeVar("_K")
_V = TypeVar("_V")

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE

# Kinds of entities that this switch does not have, with what messages call them.
REFUSED_KINDS: Mapping[str, str] = {
    "extern_entry": "externs",
    "value_set_entry": "parser value sets",
    "register_entry": "registers (neither does BMv2; read them in-band)",
}


def refuse_kind(loaded: Loaded, entity: p4r.Entity) -> P4RuntimeError:
    """Return the error for an entity of a kind that this switch does not support."""
    kind = entity.WhichOneof("entity")
    if kind is None:
        return invalid("the entity is not set; set one of the fields of Entity")
    if kind not in REFUSED_KINDS:
        return invalid(f"{kind} is not an entity that this switch knows")
    message = getattr(entity, kind)
    object_id = 0
    for id_field in ("value_set_id", "register_id", "extern_id"):
        if id_field in message.DESCRIPTOR.fields_by_name:
            object_id = getattr(message, id_field)
    named = f" ({loaded.schema.name_of(object_id)})" if object_id else ""
    return unimplemented(f"{kind}{named}: this switch does not offer {REFUSED_KINDS[kind]}")


class Writer:
    """Applies updates to one loaded config. The caller holds the server's write lock."""

    def __init__(self, loaded: Loaded, lock: threading.RLock) -> None:
        self._loaded = loaded
        self._schema = loaded.schema
        self._lock = lock
        self._journal = Journal()
        self._handlers: Mapping[str, Callable[[int, p4r.Entity], None]] = {
            "table_entry": lambda kind, e: self._table_entry(kind, e.table_entry),
            "action_profile_member": lambda kind, e: self._member(kind, e.action_profile_member),
            "action_profile_group": lambda kind, e: self._group(kind, e.action_profile_group),
            "counter_entry": lambda kind, e: self._counter(kind, e.counter_entry),
            "direct_counter_entry": lambda kind, e: self._direct(kind, e.direct_counter_entry),
            "meter_entry": lambda kind, e: self._meter(kind, e.meter_entry),
            "direct_meter_entry": lambda kind, e: self._direct_meter(kind, e.direct_meter_entry),
            "packet_replication_engine_entry": lambda kind, e: self._replication(
                kind, e.packet_replication_engine_entry
            ),
            "digest_entry": lambda kind, e: self._digest(kind, e.digest_entry),
        }

    def apply_each(self, updates: Iterable[p4r.Update]) -> list[P4RuntimeError | None]:
        """CONTINUE_ON_ERROR: attempt every update, return the outcome of each."""
        results = []
        for update in updates:
            # One hold per update lets packets through between two updates of a long batch.
            with self._lock:
                results.append(self._attempt(update))
                self._journal = Journal()
        return results

    def apply_all(self, updates: Iterable[p4r.Update]) -> list[P4RuntimeError | None]:
        """ROLLBACK_ON_ERROR and DATAPLANE_ATOMIC: all updates or none, no packet in between.

        After a failure, updates that were rolled back or not attempted read ABORTED.
        """
        updates = list(updates)
        with self._lock:
            for position, update in enumerate(updates):
                error = self._attempt(update)
                if error is not None:
                    self._journal.rollback()
                    aborted: list[P4RuntimeError | None] = [
                        P4RuntimeError(
                            Code.ABORTED,
                            f"{'rolled back' if other < position else 'not attempted'}: "
                            f"update {position} of the batch failed",
                        )
                        for other in range(len(updates))
                    ]
                    aborted[position] = error
                    return aborted
        return [None] * len(updates)

    def _attempt(self, update: p4r.Update) -> P4RuntimeError | None:
        mark = self._journal.mark()
        try:
            if update.type not in (INSERT, MODIFY, DELETE):
                raise invalid("the update's type is not INSERT, MODIFY or DELETE")
            handler = self._handlers.get(update.entity.WhichOneof("entity") or "")
            if handler is None:
                raise refuse_kind(self._loaded, update.entity)
            handler(update.type, update.entity)
        except P4RuntimeError as error:
            self._journal.rollback(mark)
            return error
        except t.TableError as error:
            self._journal.rollback(mark)
            return from_table_error(error)
        except Exception as error:  # one update must not take the rest of its batch down
            log.exception("update failed")
            self._journal.rollback(mark)
            return P4RuntimeError(Code.INTERNAL, f"{type(error).__name__}: {error}")
        return None

    # ------------------------------------------------------------------------------ table entries

    def _table_entry(self, kind: int, message: p4r.TableEntry) -> None:
        table = self._schema.table(message.table_id)
        if message.is_const:
            raise invalid(f"table {table.alias}: is_const may not be set in a write")
        if message.is_default_action:
            self._default_entry(kind, table, message)
            return
        built = self._loaded.pipeline.tables[table.name]
        if kind == DELETE:
            self._check_constant(table, kind, message)
            self._delete_entry(table, built, message)
            return
        check_resources(table, message)
        if kind == INSERT and not table.match_fields:
            raise invalid(
                f"table {table.alias}: has no match field; only its default action can be modified"
            )
        self._check_constant(table, kind, message)
        if kind == INSERT:
            self._insert_entry(table, built, message)
        else:
            self._modify_entry(table, built, message)

    @staticmethod
    def _check_constant(table: Table, kind: int, message: p4r.TableEntry) -> None:
        if table.is_const and (kind != MODIFY or message.HasField("action")):
            raise P4RuntimeError(
                Code.PERMISSION_DENIED,
                f"table {table.alias}: its entries are const; only their direct counters can be "
                "written (MODIFY without an action)",
            )

    def _insert_entry(self, table: Table, built: t.Table, message: p4r.TableEntry) -> None:
        if not message.HasField("action"):
            raise invalid(f"table {table.alias}: INSERT needs an action")
        entry = t.Entry(
            translate.decode_match(table, message.match),
            translate.check_priority(table, message.priority),
            translate.decode_table_action(self._schema, table, message.action),
            message.metadata,
            message.controller_metadata,
        )
        self._check_programming_style(table, entry.action)
        self._journal.insert_entry(built, entry)
        self._track_one_shot(table, entry, message.action)
        self._write_direct_of(table, built, entry, message)
        if message.HasField("meter_config"):
            self._write_meter_of(table, built, entry, message)

    def _modify_entry(self, table: Table, built: t.Table, message: p4r.TableEntry) -> None:
        old = self._existing(table, built, message)
        if table.is_const or old.is_const:
            if message.HasField("action"):
                raise P4RuntimeError(
                    Code.PERMISSION_DENIED, f"table {table.alias}: the entry is const"
                )
        else:
            action = old.action
            if message.HasField("action"):
                action = translate.decode_table_action(self._schema, table, message.action)
                self._check_programming_style(table, action, replaces=old)
            entry = dataclasses.replace(
                old,
                action=action,
                metadata=message.metadata,
                controller_metadata=message.controller_metadata,
            )
            self._journal.modify_entry(built, old, entry)
            if message.HasField("action"):
                self._track_one_shot(table, entry, message.action)
        self._write_direct_of(table, built, old, message)
        if table.has_direct_meter:
            # Left out, it is back to the default (section "Direct resources").
            self._write_meter_of(table, built, old, message)

    def _delete_entry(self, table: Table, built: t.Table, message: p4r.TableEntry) -> None:
        old = self._existing(table, built, message)
        if old.is_const:
            raise P4RuntimeError(Code.PERMISSION_DENIED, f"table {table.alias}: the entry is const")
        self._journal.delete_entry(built, old)
        self._forget_one_shot(table, old)

    def _existing(self, table: Table, built: t.Table, message: p4r.TableEntry) -> t.Entry:
        match = translate.decode_match(table, message.match)
        priority = translate.check_priority(table, message.priority)
        found = built.get(match, priority)
        if found is None:
            raise not_found(f"table {table.alias}: no entry has this match and priority")
        return found

    def _write_direct_of(
        self, table: Table, built: t.Table, entry: t.Entry, message: p4r.TableEntry
    ) -> None:
        if message.HasField("counter_data"):
            counts = translate.decode_counter(f"table {table.alias}", message.counter_data)
            self._journal.write_direct(built, entry, *counts)

    def _write_meter_of(
        self, table: Table, built: t.Table, entry: t.Entry, message: p4r.TableEntry
    ) -> None:
        config = None
        if message.HasField("meter_config"):
            config = metering.decode_config(f"table {table.alias}", message.meter_config)
        self._journal.write_direct_meter(built, entry, config)

    def _default_entry(self, kind: int, table: Table, message: p4r.TableEntry) -> None:
        where = f"table {table.alias}"
        if kind != MODIFY:
            raise invalid(f"{where}: the default entry always exists; only MODIFY it")
        if message.match or message.priority:
            raise invalid(f"{where}: the default entry has neither match fields nor a priority")
        check_resources(table, message)
        if message.HasField("counter_data"):
            raise unimplemented(f"{where}: the default entry has no direct counter here")
        if message.HasField("meter_config"):
            raise unimplemented(f"{where}: the default entry has no direct meter here")
        built = self._loaded.pipeline.tables[table.name]
        if table.profile_id:
            # A table with an implementation keeps NoAction as its default entry (section 9.1.3).
            raise P4RuntimeError(
                Code.PERMISSION_DENIED,
                f"{where}: the default entry of a table with an action profile is constant",
            )
        if built.default_is_const:
            raise P4RuntimeError(Code.PERMISSION_DENIED, f"{where}: the default action is const")
        old = self._loaded.default_metadata.get(table.name)
        if message.HasField("action"):
            if message.action.WhichOneof("type") != "action":
                raise invalid(f"{where}: the default entry takes an action")
            call = translate.decode_action(
                where, table.actions, message.action.action, as_default=True
            )
            self._journal.set_default(built, call)
            new = (message.metadata, message.controller_metadata)
        else:
            self._journal.set_default(built, None)
            new = (b"", 0)
        known = self._loaded.default_metadata
        known[table.name] = new
        self._journal.note(lambda: _restore(known, table.name, old))

    # ----------------------------------------------------------------------------------- one-shot

    def _check_programming_style(
        self, table: Table, action: t.ActionSpec, replaces: t.Entry | None = None
    ) -> None:
        """A selector is programmed either one-shot or by members and groups (section 9.2.3)."""
        if not isinstance(action, t.ActionSet):
            if isinstance(action, (t.MemberRef, t.GroupRef)):
                self._refuse_beside_one_shots(self._schema.profile(table.profile_id))
            return
        profile = self._schema.profile(table.profile_id)
        built = self._loaded.pipeline.action_profiles[profile.name]
        if built.members() or built.groups():
            raise invalid(
                f"table {table.alias}: selector {profile.alias} already has members or groups; "
                "it cannot be programmed one-shot as well"
            )

    def _refuse_beside_one_shots(self, profile: Profile) -> None:
        if self._loaded.one_shots.get(profile.name):
            raise invalid(
                f"selector {profile.alias} is programmed one-shot; "
                "it cannot have members and groups as well"
            )

    def _track_one_shot(self, table: Table, entry: t.Entry, action: p4r.TableAction) -> None:
        if not table.profile_id:
            return
        if not isinstance(entry.action, t.ActionSet):
            self._forget_one_shot(table, entry)
            return
        message = action.action_profile_action_set
        profile = self._schema.profile(table.profile_id)
        kinds = p4r.ActionProfileActionSet
        own_size = kinds.SUM_OF_MEMBERS if profile.sum_of_members else kinds.SUM_OF_WEIGHTS
        if message.action_selection_mode not in (0, kinds.HASH) or message.size_semantics not in (
            0,
            own_size,
        ):
            raise unimplemented(
                f"table {table.alias}: selector {profile.alias} selects by hash and counts size as "
                f"{kinds.SizeSemantics.Name(own_size)}; per-group settings are not supported"
            )
        modes = self._loaded.one_shots.setdefault(profile.name, {})
        key: EntryId = (table.name, entry.match, entry.priority)
        old = modes.get(key)
        modes[key] = (message.action_selection_mode, message.size_semantics)
        self._journal.note(lambda: _restore(modes, key, old))

    def _forget_one_shot(self, table: Table, entry: t.Entry) -> None:
        if not table.profile_id:
            return
        modes = self._loaded.one_shots.get(self._schema.profile(table.profile_id).name, {})
        key: EntryId = (table.name, entry.match, entry.priority)
        old = modes.pop(key, None)
        self._journal.note(lambda: _restore(modes, key, old))

    # ------------------------------------------------------------------------- members and groups

    def _member(self, kind: int, message: p4r.ActionProfileMember) -> None:
        profile = self._schema.profile(message.action_profile_id)
        built = self._loaded.pipeline.action_profiles[profile.name]
        where = f"{profile.alias}, member {message.member_id}"
        if message.member_id == 0:
            raise invalid(f"{profile.alias}: member id 0 is not a valid id")
        old = built.members().get(message.member_id)
        if kind == DELETE:
            if old is None:
                raise not_found(f"{where}: there is no such member")
            self._journal.delete_member(built, message.member_id, old)
            return
        self._refuse_beside_one_shots(profile)
        if not message.HasField("action"):
            raise invalid(f"{where}: an action is needed")
        call = translate.decode_action(
            where, self._schema.selector_actions(profile), message.action
        )
        if kind == INSERT:
            self._journal.insert_member(built, message.member_id, call)
        elif old is None:
            raise not_found(f"{where}: there is no such member")
        else:
            self._journal.modify_member(built, message.member_id, old, call)

    def _group(self, kind: int, message: p4r.ActionProfileGroup) -> None:
        profile = self._schema.profile(message.action_profile_id)
        built = self._loaded.pipeline.action_profiles[profile.name]
        where = f"{profile.alias}, group {message.group_id}"
        if not profile.with_selector:
            raise invalid(f"{profile.alias}: is no selector and has no groups")
        if message.group_id == 0:
            raise invalid(f"{profile.alias}: group id 0 is not a valid id")
        old = built.groups().get(message.group_id)
        if kind != INSERT and old is None:
            raise not_found(f"{where}: there is no such group")
        if kind == DELETE and old is not None:
            self._journal.delete_group(built, message.group_id, old)
            return
        self._refuse_beside_one_shots(profile)
        members, max_size = translate.decode_group(profile, message)
        if kind == INSERT:
            self._journal.insert_group(built, message.group_id, members, max_size)
        elif old is not None:
            if max_size != old.max_size:
                raise invalid(
                    f"{where}: max_size {max_size} differs from {old.max_size}, which was set when "
                    "the group was inserted"
                )
            self._journal.modify_group(built, message.group_id, old, members, max_size)

    # ----------------------------------------------------------------------------------- counters

    def _counter(self, kind: int, message: p4r.CounterEntry) -> None:
        counter = self._schema.counter(message.counter_id)
        if kind != MODIFY:
            raise invalid(f"counter {counter.alias}: counters can only be modified")
        built = self._loaded.pipeline.counters[counter.name]
        cells = cells_of("counter", counter, message)
        if not message.HasField("data"):
            return
        packets, byte_count = translate.decode_counter(f"counter {counter.alias}", message.data)
        for index in cells:
            self._journal.write_counter(built, index, packets, byte_count)

    def _direct(self, kind: int, message: p4r.DirectCounterEntry) -> None:
        if kind != MODIFY:
            raise invalid("direct counters can only be modified")
        table = self._schema.table(message.table_entry.table_id)
        check_direct_counter(table)
        if message.table_entry.is_default_action:
            raise unimplemented(
                f"table {table.alias}: the default entry has no direct counter here"
            )
        built = self._loaded.pipeline.tables[table.name]
        entry = self._existing(table, built, message.table_entry)
        if message.HasField("data"):
            counts = translate.decode_counter(f"table {table.alias}", message.data)
            self._journal.write_direct(built, entry, *counts)

    # ------------------------------------------------------------------------------------- meters

    def _meter(self, kind: int, message: p4r.MeterEntry) -> None:
        meter = self._schema.meter(message.meter_id)
        where = f"meter {meter.alias}"
        if kind != MODIFY:
            raise invalid(f"{where}: meters can only be modified")
        if message.HasField("counter_data"):
            metering.refuse_color_counters(where)
        built = self._loaded.pipeline.meters[meter.name]
        cells = cells_of("meter", meter, message)
        config = (
            metering.decode_config(where, message.config) if message.HasField("config") else None
        )
        for index in cells:
            self._journal.write_meter(built, index, config)

    def _direct_meter(self, kind: int, message: p4r.DirectMeterEntry) -> None:
        if kind != MODIFY:
            raise invalid("direct meters can only be modified")
        table = self._schema.table(message.table_entry.table_id)
        check_direct_meter(table)
        where = f"table {table.alias}"
        if message.table_entry.is_default_action:
            raise unimplemented(f"{where}: the default entry has no direct meter here")
        if message.HasField("counter_data"):
            metering.refuse_color_counters(where)
        built = self._loaded.pipeline.tables[table.name]
        entry = self._existing(table, built, message.table_entry)
        config = (
            metering.decode_config(where, message.config) if message.HasField("config") else None
        )
        self._journal.write_direct_meter(built, entry, config)

    # -------------------------------------------------------------------------------- replication

    def _replication(self, kind: int, message: p4r.PacketReplicationEngineEntry) -> None:
        entry: ReplicaEntry
        match message.WhichOneof("type"):
            case "multicast_group_entry":
                what, entry = "multicast group", message.multicast_group_entry
                number = replication.group_id(entry)
            case "clone_session_entry":
                what, entry = "clone session", message.clone_session_entry
                number = replication.session_id(entry)
            case _:
                raise invalid(
                    "packet_replication_engine_entry: neither multicast_group_entry nor "
                    "clone_session_entry is set"
                )
        old = self._loaded.replicas.get((what, number))
        if kind == INSERT and old is not None:
            raise P4RuntimeError(Code.ALREADY_EXISTS, f"{what} {number} exists already")
        if kind != INSERT and old is None:
            raise not_found(f"there is no {what} {number}")
        self._install_replicas(what, number, None if kind == DELETE else entry)
        self._journal.note(lambda: self._install_replicas(what, number, old))

    def _install_replicas(self, what: str, number: int, entry: ReplicaEntry | None) -> None:
        engine = self._loaded.pipeline.replication
        match entry:
            case p4r.MulticastGroupEntry():
                engine.set_group(number, replication.decode_group(entry))
                self._loaded.replicas[what, number] = replication.canonical_group(entry)
            case p4r.CloneSessionEntry():
                engine.set_session(number, replication.decode_session(entry))
                self._loaded.replicas[what, number] = replication.canonical_session(entry)
            case _:
                if what == "clone session":
                    engine.set_session(number, None)
                else:
                    engine.set_group(number, None)
                self._loaded.replicas.pop((what, number), None)

    # ------------------------------------------------------------------------------------ digests

    def _digest(self, kind: int, message: p4r.DigestEntry) -> None:
        digest = self._schema.digest(message.digest_id)
        where = f"digest {digest.alias}"
        book = self._loaded.digests
        old = book.configs().get(digest.id)
        if kind == INSERT and old is not None:
            raise P4RuntimeError(Code.ALREADY_EXISTS, f"{where}: is generated already")
        if kind != INSERT and old is None:
            raise not_found(f"{where}: is not generated; INSERT it first")
        new = None
        if kind != DELETE:
            check_config(where, message.config)
            new = p4r.DigestEntry.Config()
            new.CopyFrom(message.config)
        book.configure(digest.id, new)
        self._journal.note(lambda: book.configure(digest.id, old))


def check_resources(table: Table, message: p4r.TableEntry) -> None:
    """Raise where an entry asks for resources that its table or this switch does not have."""
    where = f"table {table.alias}"
    if message.HasField("counter_data"):
        check_direct_counter(table)
    if message.HasField("meter_config"):
        check_direct_meter(table)
    if message.HasField("meter_counter_data"):
        check_direct_meter(table)
        metering.refuse_color_counters(where)
    if message.idle_timeout_ns or message.HasField("time_since_last_hit"):
        if message.is_default_action or not table.has_idle_timeout:
            raise invalid(f"{where}: idle timeout is set, which the entry does not support")
        raise unimplemented(f"{where}: this switch does not offer idle timeouts")


def check_direct_counter(table: Table) -> None:
    """Raise INVALID_ARGUMENT unless the table has a direct counter."""
    if not table.has_direct_counter:
        raise invalid(f"table {table.alias}: has no direct counter")


def check_direct_meter(table: Table) -> None:
    """Raise INVALID_ARGUMENT unless the table has a direct meter."""
    if not table.has_direct_meter:
        raise invalid(f"table {table.alias}: has no direct meter")


def cells_of(
    kind: str, array: Counter | Meter, message: p4r.CounterEntry | p4r.MeterEntry
) -> range:
    """Return the cells that an entry of an array names: one, or all where `index` is unset.

    Raises INVALID_ARGUMENT for a negative index, OUT_OF_RANGE beyond the array.
    """
    if not message.HasField("index"):
        return range(array.size)
    index = message.index.index
    if index < 0:
        raise invalid(f"{kind} {array.alias}: index {index} is negative")
    if index >= array.size:
        raise P4RuntimeError(
            Code.OUT_OF_RANGE,
            f"{kind} {array.alias}: index {index} is not in 0..{array.size - 1}",
        )
    return range(index, index + 1)


def _restore(mapping: dict[_K, _V], key: _K, old: _V | None) -> None:
    if old is None:
        mapping.pop(key, None)
    else:
        mapping[key] = old
