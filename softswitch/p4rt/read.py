"""The Read RPC: each entity of a request is a filter over one kind of state.

Specification sections "Read RPC" and, for what each kind lets a client filter by, "P4 Entity
Messages". State is copied under the lock; messages are built afterwards, so a large read does not
hold up packets and a client that reads slowly holds up nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from finsy.proto import p4r

from ringstep.softswitch import tables as t
from ringstep.softswitch.meters import MeterConfig
from ringstep.softswitch.p4rt import metering, translate
from ringstep.softswitch.p4rt.errors import (
    P4RuntimeError,
    from_table_error,
    invalid,
    not_found,
)
from ringstep.softswitch.p4rt.pipeline import EntryId, Loaded
from ringstep.softswitch.p4rt.schema import Counter, Meter, Profile, Table
from ringstep.softswitch.p4rt.write import (
    cells_of,
    check_direct_counter,
    check_direct_meter,
    check_resources,
    refuse_kind,
)

# A reply message stays well below gRPC's default limit of 4 MiB on the receiving side.
CHUNK_BYTES = 512 * 1024
CHUNK_ENTITIES = 1024


@dataclass(frozen=True, slots=True)
class _Row:
    """An entry, with its count and the configuration of its meter where asked for."""

    entry: t.Entry
    counts: tuple[int, int] | None
    meter: MeterConfig | None


class Reader:
    """Reads entities of one loaded config. The caller holds the server's write lock.

    The iterators that it returns touch copies only and may be used after the lock is gone.
    """

    def __init__(self, loaded: Loaded, lock: threading.RLock) -> None:
        self._loaded = loaded
        self._schema = loaded.schema
        self._lock = lock
        self._handlers: Mapping[str, Callable[[p4r.Entity], Iterator[p4r.Entity]]] = {
            "table_entry": lambda e: self._select(e.table_entry),
            "action_profile_member": lambda e: self._members(e.action_profile_member),
            "action_profile_group": lambda e: self._groups(e.action_profile_group),
            "counter_entry": lambda e: self._counters(e.counter_entry),
            "direct_counter_entry": lambda e: self._direct_counters(e.direct_counter_entry),
            "meter_entry": lambda e: self._meters(e.meter_entry),
            "direct_meter_entry": lambda e: self._direct_meters(e.direct_meter_entry),
            "packet_replication_engine_entry": lambda e: self._replication(
                e.packet_replication_engine_entry
            ),
            "digest_entry": lambda e: self._digests(e.digest_entry),
        }

    def collect(
        self, requests: Iterable[p4r.Entity]
    ) -> tuple[Iterator[p4r.Entity], list[P4RuntimeError | None]]:
        """Return what the valid requests found, and the outcome of each request in order."""
        found: list[Iterator[p4r.Entity]] = []
        results: list[P4RuntimeError | None] = []
        for request in requests:
            try:
                handler = self._handlers.get(request.WhichOneof("entity") or "")
                if handler is None:
                    raise refuse_kind(self._loaded, request)
                found.append(handler(request))
                results.append(None)
            except P4RuntimeError as error:
                results.append(error)
            except t.TableError as error:
                results.append(from_table_error(error))
        return chain.from_iterable(found), results

    # ------------------------------------------------------------------------------ table entries

    def _select(self, query: p4r.TableEntry) -> Iterator[p4r.Entity]:
        if query.table_id == 0:
            _refuse_filters_without_table(query)
            wanted = list(self._schema.tables.values())
        else:
            wanted = [self._schema.table(query.table_id)]
            check_resources(wanted[0], query)
        return chain.from_iterable([self._select_in(table, query) for table in wanted])

    def _select_in(self, table: Table, query: p4r.TableEntry) -> Iterator[p4r.Entity]:
        if query.is_default_action:
            return (p4r.Entity(table_entry=one) for one in self._default_entry(table, query))
        rows = self._rows(table, query)
        modes = {}
        if table.profile_id:
            profile = self._schema.profile(table.profile_id)
            modes = dict(self._loaded.one_shots.get(profile.name, {}))
        return (self._encode_row(table, row, modes) for row in rows)

    def _rows(self, table: Table, query: p4r.TableEntry) -> list[_Row]:
        """Copy the entries that pass the query's filters, with their resources where asked for."""
        built = self._loaded.pipeline.tables[table.name]
        accept = self._filter(table, query)
        counted = query.HasField("counter_data") and table.has_direct_counter
        metered = query.HasField("meter_config") and table.has_direct_meter
        with self._lock:
            if query.match:
                match = translate.decode_match(table, query.match)
                if query.priority or not table.needs_priority:
                    found = built.get(match, query.priority)
                    entries = [found] if found is not None else []
                else:
                    entries = [one for one in built.entries() if one.match == match]
            else:
                entries = built.entries()
            return [
                _Row(
                    one,
                    built.read_direct(one.match, one.priority) if counted else None,
                    built.read_meter(one.match, one.priority) if metered else None,
                )
                for one in entries
                if accept(one)
            ]

    def _filter(self, table: Table, query: p4r.TableEntry) -> Callable[[t.Entry], bool]:
        action_name = self._action_filter(table, query)

        def accept(entry: t.Entry) -> bool:
            return (
                (not query.priority or entry.priority == query.priority)
                and (not query.metadata or entry.metadata == query.metadata)
                and (
                    not query.controller_metadata
                    or entry.controller_metadata == query.controller_metadata
                )
                and (
                    action_name is None
                    or (isinstance(entry.action, t.ActionCall) and entry.action.name == action_name)
                )
            )

        return accept

    @staticmethod
    def _action_filter(table: Table, query: p4r.TableEntry) -> str | None:
        if not query.HasField("action"):
            return None
        if query.action.WhichOneof("type") != "action" or query.action.action.params:
            raise invalid(
                f"table {table.alias}: entries can be filtered by action_id only, not by "
                "parameters, members, groups or one-shot sets"
            )
        action_id = query.action.action.action_id
        if action_id not in table.actions:
            raise invalid(f"table {table.alias}: no action of it has id {action_id}")
        return table.actions[action_id][0].name

    def _encode_row(
        self, table: Table, row: _Row, modes: Mapping[EntryId, tuple[int, int]]
    ) -> p4r.Entity:
        entry, entity = row.entry, p4r.Entity()
        message = entity.table_entry
        translate.put_entry(message, self._schema, table, entry)
        if row.counts is not None:
            message.counter_data.CopyFrom(translate.encode_counter(*row.counts))
        if row.meter is not None:
            message.meter_config.CopyFrom(metering.encode_config(row.meter))
        mode = modes.get((table.name, entry.match, entry.priority)) if modes else None
        if mode is not None:
            one_shot = message.action.action_profile_action_set
            one_shot.action_selection_mode, one_shot.size_semantics = mode  # type: ignore[assignment]
        return entity

    def _default_entry(self, table: Table, query: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        if query.match or query.priority:
            raise invalid(
                f"table {table.alias}: the default entry has neither match fields nor a priority"
            )
        wanted_name = self._action_filter(table, query)
        built = self._loaded.pipeline.tables[table.name]
        metadata, controller_metadata = self._loaded.default_metadata.get(table.name, (b"", 0))
        with self._lock:
            call = built.default
            is_const = built.default_is_const
        message = p4r.TableEntry(
            table_id=table.id,
            is_default_action=True,
            metadata=metadata,
            controller_metadata=controller_metadata,
            is_const=is_const,
        )
        if call is not None and call.name in self._schema.action_by_name:
            message.action.action.CopyFrom(translate.encode_action(self._schema, call))
        if (
            (query.metadata and query.metadata != metadata)
            or (query.controller_metadata and query.controller_metadata != controller_metadata)
            or (wanted_name is not None and (call is None or call.name != wanted_name))
        ):
            return iter(())
        return iter((message,))

    # ------------------------------------------------------------------------- members and groups

    def _manual_profiles(self, profile_id: int, filtered: bool) -> list[tuple[Profile, bool]]:
        if profile_id == 0:
            if filtered:
                raise invalid("a member or group id needs its action_profile_id beside it")
            return [(one, False) for one in self._schema.profiles.values()]
        return [(self._schema.profile(profile_id), filtered)]

    def _members(self, query: p4r.ActionProfileMember) -> Iterator[p4r.Entity]:
        found: list[tuple[int, int, t.ActionCall]] = []
        for profile, one_only in self._manual_profiles(
            query.action_profile_id, query.member_id != 0
        ):
            with self._lock:
                members = self._loaded.pipeline.action_profiles[profile.name].members()
            found += [
                (profile.id, member_id, call)
                for member_id, call in sorted(members.items())
                if not one_only or member_id == query.member_id
            ]
        return (
            p4r.Entity(
                action_profile_member=p4r.ActionProfileMember(
                    action_profile_id=profile_id,
                    member_id=member_id,
                    action=translate.encode_action(self._schema, call),
                )
            )
            for profile_id, member_id, call in found
        )

    def _groups(self, query: p4r.ActionProfileGroup) -> Iterator[p4r.Entity]:
        found: list[tuple[int, int, t.Group]] = []
        for profile, one_only in self._manual_profiles(
            query.action_profile_id, query.group_id != 0
        ):
            with self._lock:
                groups = self._loaded.pipeline.action_profiles[profile.name].groups()
            found += [
                (profile.id, group_id, group)
                for group_id, group in sorted(groups.items())
                if not one_only or group_id == query.group_id
            ]
        return (
            p4r.Entity(
                action_profile_group=p4r.ActionProfileGroup(
                    action_profile_id=profile_id,
                    group_id=group_id,
                    members=[
                        p4r.ActionProfileGroup.Member(member_id=member_id, weight=weight)
                        for member_id, weight in group.members
                    ],
                    max_size=group.max_size,
                )
            )
            for profile_id, group_id, group in found
        )

    # ----------------------------------------------------------------------------------- counters

    def _counters(self, query: p4r.CounterEntry) -> Iterator[p4r.Entity]:
        if query.counter_id == 0:
            if query.HasField("index"):
                raise invalid("a counter index needs its counter_id beside it")
            wanted = list(self._schema.counters.values())
        else:
            wanted = [self._schema.counter(query.counter_id)]
        found: list[tuple[Counter, range, list[tuple[int, int]]]] = []
        for counter in wanted:
            cells = cells_of("counter", counter, query)
            built = self._loaded.pipeline.counters[counter.name]
            with self._lock:
                found.append((counter, cells, [built.read(index) for index in cells]))
        return (
            p4r.Entity(
                counter_entry=p4r.CounterEntry(
                    counter_id=counter.id,
                    index=p4r.Index(index=index),
                    data=translate.encode_counter(*counts),
                )
            )
            for counter, cells, values in found
            for index, counts in zip(cells, values, strict=True)
        )

    def _direct_counters(self, query: p4r.DirectCounterEntry) -> Iterator[p4r.Entity]:
        found = self._direct_rows(
            query.table_entry, "counter", check_direct_counter, lambda one: one.has_direct_counter
        )
        return (
            p4r.Entity(
                direct_counter_entry=p4r.DirectCounterEntry(
                    table_entry=_key(table, row.entry), data=translate.encode_counter(*row.counts)
                )
            )
            for table, row in found
            if row.counts is not None
        )

    def _direct_rows(
        self,
        key: p4r.TableEntry,
        resource: str,
        check: Callable[[Table], None],
        has_resource: Callable[[Table], bool],
    ) -> list[tuple[Table, _Row]]:
        """The entries that a read of a direct resource is about, with all their resources."""
        wanted_key = p4r.TableEntry(match=key.match, priority=key.priority)
        wanted_key.counter_data.SetInParent()
        wanted_key.meter_config.SetInParent()
        if key.table_id == 0:
            _refuse_filters_without_table(key)
            wanted = [one for one in self._schema.tables.values() if has_resource(one)]
        else:
            wanted = [self._schema.table(key.table_id)]
            check(wanted[0])
        if key.is_default_action:
            raise invalid(f"the default entry has no direct {resource} here")
        found: list[tuple[Table, _Row]] = []
        for table in wanted:
            rows = self._rows(table, wanted_key)
            if key.match and not rows:
                raise not_found(f"table {table.alias}: no entry has this match and priority")
            found += [(table, row) for row in rows]
        return found

    # ------------------------------------------------------------------------------------- meters

    def _meters(self, query: p4r.MeterEntry) -> Iterator[p4r.Entity]:
        if query.HasField("counter_data"):
            metering.refuse_color_counters("meters")
        if query.meter_id == 0:
            if query.HasField("index"):
                raise invalid("a meter index needs its meter_id beside it")
            wanted = list(self._schema.meters.values())
        else:
            wanted = [self._schema.meter(query.meter_id)]
        found: list[tuple[Meter, int, MeterConfig | None]] = []
        for meter in wanted:
            built = self._loaded.pipeline.meters[meter.name]
            with self._lock:
                found += [
                    (meter, index, built.read(index)) for index in cells_of("meter", meter, query)
                ]
        return (
            p4r.Entity(
                meter_entry=p4r.MeterEntry(
                    meter_id=meter.id,
                    index=p4r.Index(index=index),
                    config=None if config is None else metering.encode_config(config),
                )
            )
            for meter, index, config in found
        )

    def _direct_meters(self, query: p4r.DirectMeterEntry) -> Iterator[p4r.Entity]:
        if query.HasField("counter_data"):
            metering.refuse_color_counters("direct meters")
        found = self._direct_rows(
            query.table_entry, "meter", check_direct_meter, lambda one: one.has_direct_meter
        )
        return (
            p4r.Entity(
                direct_meter_entry=p4r.DirectMeterEntry(
                    table_entry=_key(table, row.entry),
                    config=None if row.meter is None else metering.encode_config(row.meter),
                )
            )
            for table, row in found
        )

    # ----------------------------------------------------------------------- replication, digests

    def _replication(self, query: p4r.PacketReplicationEngineEntry) -> Iterator[p4r.Entity]:
        kind = query.WhichOneof("type")
        if kind is None:
            raise invalid(
                "packet_replication_engine_entry: neither multicast_group_entry nor "
                "clone_session_entry is set"
            )
        groups = kind == "multicast_group_entry"
        what = "multicast group" if groups else "clone session"
        number = (
            query.multicast_group_entry.multicast_group_id
            if groups
            else query.clone_session_entry.session_id
        )
        found = [
            entry
            for (entry_kind, entry_id), entry in sorted(
                self._loaded.replicas.items(), key=lambda item: item[0]
            )
            if entry_kind == what and number in (0, entry_id)
        ]
        return (
            p4r.Entity(
                packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
                    multicast_group_entry=entry
                )
                if isinstance(entry, p4r.MulticastGroupEntry)
                else p4r.PacketReplicationEngineEntry(clone_session_entry=entry)
            )
            for entry in found
        )

    def _digests(self, query: p4r.DigestEntry) -> Iterator[p4r.Entity]:
        if query.digest_id:
            self._schema.digest(query.digest_id)
        configs = self._loaded.digests.configs()
        return (
            p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=digest_id, config=config))
            for digest_id, config in sorted(configs.items())
            if query.digest_id in (0, digest_id)
        )


def _key(table: Table, entry: t.Entry) -> p4r.TableEntry:
    """The key of an entry, as direct resources name it."""
    return p4r.TableEntry(
        table_id=table.id,
        match=translate.encode_match(table, entry.match),
        priority=entry.priority,
    )


def _refuse_filters_without_table(query: p4r.TableEntry) -> None:
    """With table id 0 no filter applies (section "Wildcard Reads"); is_default_action selects.

    Reading the default entries of all tables in one request is not in the specification; it costs
    nothing here and saves a client one request per table.
    """
    if (
        query.match
        or query.priority
        or query.metadata
        or query.controller_metadata
        or query.HasField("action")
    ):
        raise invalid("table id 0 reads all tables; give a table id to filter its entries")


def chunks(entities: Iterable[p4r.Entity]) -> Iterator[p4r.ReadResponse]:
    """Pack entities into reply messages of bounded size."""
    reply = p4r.ReadResponse()
    size = 0
    for entity in entities:
        reply.entities.append(entity)
        size += entity.ByteSize()
        if size >= CHUNK_BYTES or len(reply.entities) >= CHUNK_ENTITIES:
            yield reply
            reply = p4r.ReadResponse()
            size = 0
    if reply.entities:
        yield reply
