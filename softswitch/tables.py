"""Runtime state of a loaded P4 program: tables, action profiles, counters, meters, registers.

The control plane writes here; the generated pipeline code (`codegen`) reads here.

Threads. Packets are processed by one thread, control-plane changes may come from others.
`Switch.lock` makes a batch of changes atomic with respect to packets. Below that, every single
change made here leaves what the packet thread reads consistent at each bytecode: a lookup
structure is changed by one assignment into (or deletion from) a dict, or is built aside and then
swapped in by one assignment, and memo caches are cleared *after* the change they depend on
(`Table.search` explains why a stale answer cannot stay in a memo).

Records. What the packet thread finds for an entry is a *record*, a flat tuple
`(action index, *action arguments)`, with the entry's direct meter and its direct-counter cell
appended, in this order, where the table has them. The record of a group is
`(GROUP_TAG, member records)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ringstep.softswitch.meters import Meter, MeterConfig
from ringstep.softswitch.replication import ReplicationEngine

# --------------------------------------------------------------------------------------------
# Match values, actions, entries
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exact:
    """The field equals `value`."""

    value: int


@dataclass(frozen=True, slots=True)
class Lpm:
    """The first `prefix_len` bits equal those of `value`; `Lpm(0, 0)` matches everything."""

    value: int
    prefix_len: int


@dataclass(frozen=True, slots=True)
class Ternary:
    """The bits set in `mask` equal those of `value`; `Ternary(0, 0)` matches everything.

    An optional match is a Ternary whose mask is all ones or zero.
    """

    value: int
    mask: int


@dataclass(frozen=True, slots=True)
class Range:
    """The field lies in `low`..`high`, both included."""

    low: int
    high: int


Match: TypeAlias = Exact | Lpm | Ternary | Range


@dataclass(frozen=True, slots=True)
class ActionCall:
    """An action by its JSON name, with its arguments in declaration order."""

    name: str
    args: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberRef:
    """A member of the table's action profile."""

    member_id: int


@dataclass(frozen=True, slots=True)
class GroupRef:
    """A group of the table's action selector."""

    group_id: int


@dataclass(frozen=True, slots=True)
class ActionSet:
    """A one-shot group (P4Runtime 9.2.3): actions with weights, owned by the entry itself."""

    actions: tuple[tuple[ActionCall, int], ...]


ActionSpec: TypeAlias = ActionCall | MemberRef | GroupRef | ActionSet


@dataclass(frozen=True, slots=True)
class Entry:
    """A table entry.

    `priority` as in P4Runtime: the larger number wins; 0 where the table has neither ternary,
    range nor optional fields.
    """

    match: tuple[Match, ...]
    priority: int
    action: ActionSpec
    metadata: bytes = b""
    controller_metadata: int = 0
    is_const: bool = False


@dataclass(frozen=True, slots=True)
class KeySpec:
    """One match field: its name, its match type and its width in bits.

    `match_type` is exact, lpm, ternary or range; optional is ternary here, as in BMv2 JSON.
    """

    name: str
    match_type: str
    width: int


@dataclass(frozen=True, slots=True)
class ActionInfo:
    """An action's JSON name and its parameters (name, width in bits)."""

    name: str
    params: tuple[tuple[str, int], ...] = ()


# --------------------------------------------------------------------------------------------
# Errors
# --------------------------------------------------------------------------------------------


class TableError(Exception):
    """A change or a read of runtime state was refused."""


class EntryExists(TableError):
    """An insert names something that is there already."""


class EntryNotFound(TableError):
    """A modify, delete or read names something that is not there."""


class TableFull(TableError):
    """The table, profile or group has no room left."""


class InvalidEntry(TableError):
    """The value does not fit the schema: width, match type, priority, action, argument count."""


class ConstTable(TableError):
    """The P4 program declared this table, or its default action, constant."""


class InUse(TableError):
    """A member or group is still referenced."""


# --------------------------------------------------------------------------------------------
# Records
# --------------------------------------------------------------------------------------------

Record: TypeAlias = tuple[Any, ...]
LookupKey: TypeAlias = int | tuple[int, ...]

GROUP_TAG = -2
"""First item of a group's record; the second is the tuple of its members' records."""

NO_ACTION = -1

NO_ACTION_RECORD: Record = (NO_ACTION,)
"""What an empty group stands for, and a miss in a table without default action."""

MEMO_LIMIT = 16384
"""Most distinct lookup keys remembered per table; the memo is emptied when it is full."""


def _mask(width: int) -> int:
    return (1 << width) - 1


def _check_call(
    call: ActionCall, actions: dict[str, tuple[int, ActionInfo]], where: str
) -> tuple[int, ActionInfo]:
    """The (index, info) of `call`; InvalidEntry where it does not fit `actions`."""
    known = actions.get(call.name)
    if known is None:
        raise InvalidEntry(
            f"{where}: action {call.name!r} is not one of {', '.join(sorted(actions))}"
        )
    _, info = known
    if len(call.args) != len(info.params):
        raise InvalidEntry(
            f"{where}: action {call.name!r} takes {len(info.params)} arguments, "
            f"not {len(call.args)}"
        )
    for (name, width), arg in zip(info.params, call.args, strict=True):
        if not 0 <= arg <= _mask(width):
            raise InvalidEntry(
                f"{where}: argument {name!r} of action {call.name!r} is {arg:#x}, "
                f"which does not fit in {width} bits"
            )
    return known


# --------------------------------------------------------------------------------------------
# Action profiles and selectors
# --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Group:
    """A selector group: (member id, weight) pairs in ascending member id."""

    members: tuple[tuple[int, int], ...]
    max_size: int = 0


class ActionProfile:
    """An action profile, or with `with_selector` an action selector.

    Members are picked from a group by hash modulo group size, members in ascending id as in
    BMv2, each repeated `weight` times.
    """

    def __init__(self, name: str, max_size: int, with_selector: bool) -> None:
        self.name = name
        self.max_size = max_size
        self.with_selector = with_selector
        self._members: dict[int, ActionCall] = {}
        self._groups: dict[int, Group] = {}
        self._tables: list[Table] = []

    def attach(self, table: Table) -> None:
        """Make `table` one of those whose entries point into this profile."""
        self._tables.append(table)

    # -- members

    def insert_member(self, member_id: int, action: ActionCall) -> None:
        """Add a member. Raises EntryExists, TableFull, InvalidEntry."""
        if member_id in self._members:
            raise EntryExists(f"{self.name}: member {member_id} exists")
        if self.max_size and len(self._members) >= self.max_size:
            raise TableFull(f"{self.name}: all {self.max_size} members are in use")
        self._check_action(action)
        self._members[member_id] = action

    def modify_member(self, member_id: int, action: ActionCall) -> None:
        """Give a member another action; entries and groups follow. Raises EntryNotFound."""
        self._require_member(member_id)
        self._check_action(action)
        self._members[member_id] = action
        self._refresh_tables()

    def delete_member(self, member_id: int) -> None:
        """Remove a member. Raises EntryNotFound, InUse (a group or an entry points to it)."""
        self._require_member(member_id)
        for group_id, group in self._groups.items():
            if any(m == member_id for m, _ in group.members):
                raise InUse(f"{self.name}: member {member_id} is in group {group_id}")
        ref = MemberRef(member_id)
        for table in self._tables:
            if table.uses(ref):
                raise InUse(f"{self.name}: member {member_id} is used by table {table.name}")
        del self._members[member_id]

    def members(self) -> dict[int, ActionCall]:
        """A copy of all members by id."""
        return dict(self._members)

    # -- groups

    def insert_group(
        self, group_id: int, members: Iterable[tuple[int, int]], max_size: int = 0
    ) -> None:
        """Add a group of (member id, weight). Raises EntryExists, EntryNotFound, InvalidEntry."""
        if group_id in self._groups:
            raise EntryExists(f"{self.name}: group {group_id} exists")
        self._groups[group_id] = self._checked_group(group_id, members, max_size)

    def modify_group(
        self, group_id: int, members: Iterable[tuple[int, int]], max_size: int = 0
    ) -> None:
        """Replace a group's members. Raises EntryNotFound, InvalidEntry."""
        if group_id not in self._groups:
            raise EntryNotFound(f"{self.name}: no group {group_id}")
        self._groups[group_id] = self._checked_group(group_id, members, max_size)
        self._refresh_tables()

    def delete_group(self, group_id: int) -> None:
        """Remove a group. Raises EntryNotFound, InUse (an entry points to it)."""
        if group_id not in self._groups:
            raise EntryNotFound(f"{self.name}: no group {group_id}")
        ref = GroupRef(group_id)
        for table in self._tables:
            if table.uses(ref):
                raise InUse(f"{self.name}: group {group_id} is used by table {table.name}")
        del self._groups[group_id]

    def groups(self) -> dict[int, Group]:
        """A copy of all groups by id."""
        return dict(self._groups)

    def clear(self) -> None:
        """Forget all groups and members; the tables must have been cleared before."""
        self._groups.clear()
        self._members.clear()

    # -- resolution, for Table

    def resolve(
        self, ref: MemberRef | GroupRef | ActionSet, record_of: Callable[[ActionCall], Record]
    ) -> Record:
        """The record `ref` stands for now. Raises EntryNotFound, InvalidEntry."""
        if isinstance(ref, MemberRef):
            return record_of(self._require_member(ref.member_id))
        if not self.with_selector:
            raise InvalidEntry(f"{self.name}: has no selector, entries must name a member")
        if isinstance(ref, GroupRef):
            group = self._groups.get(ref.group_id)
            if group is None:
                raise EntryNotFound(f"{self.name}: no group {ref.group_id}")
            weighted = [(self._members[m], weight) for m, weight in group.members]
        else:
            weighted = list(ref.actions)
        records: list[Record] = []
        for call, weight in weighted:
            if weight < 1:
                raise InvalidEntry(f"{self.name}: weight {weight} of a member is below 1")
            records.extend([record_of(call)] * weight)
        return (GROUP_TAG, tuple(records)) if records else NO_ACTION_RECORD

    def _require_member(self, member_id: int) -> ActionCall:
        action = self._members.get(member_id)
        if action is None:
            raise EntryNotFound(f"{self.name}: no member {member_id}")
        return action

    def _check_action(self, action: ActionCall) -> None:
        for table in self._tables:
            table.check_action(action)

    def _checked_group(
        self, group_id: int, members: Iterable[tuple[int, int]], max_size: int
    ) -> Group:
        if not self.with_selector:
            raise InvalidEntry(f"{self.name}: has no selector, groups cannot be made")
        ordered = tuple(sorted(members))
        where = f"{self.name}: group {group_id}"
        if len({m for m, _ in ordered}) != len(ordered):
            raise InvalidEntry(f"{where} names a member twice; use its weight instead")
        for member_id, weight in ordered:
            self._require_member(member_id)
            if weight < 1:
                raise InvalidEntry(f"{where}: weight {weight} of member {member_id} is below 1")
        if max_size < 0:
            raise InvalidEntry(f"{where}: max_size {max_size} is negative")
        if max_size and sum(w for _, w in ordered) > max_size:
            raise TableFull(f"{where}: the weights add up to more than max_size {max_size}")
        return Group(ordered, max_size)

    def _refresh_tables(self) -> None:
        for table in self._tables:
            table.refresh_indirect()


# --------------------------------------------------------------------------------------------
# Tables
# --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Installed:
    """An entry with what the packet thread needs of it."""

    entry: Entry
    order: int
    counter: list[int]
    meter: Meter | None
    record: Record = NO_ACTION_RECORD
    masks: tuple[int, ...] = ()
    masked: tuple[int, ...] = ()


@dataclass(slots=True)
class _MaskGroup:
    """All entries that share one combination of masks, for tuple-space search."""

    masks: tuple[int, ...]
    best: dict[tuple[int, ...], list[_Installed]] = field(default_factory=dict)


EntryId: TypeAlias = tuple[tuple[Match, ...], int]


class Table:
    """A match-action table.

    Exact tables are one dict. Tables with lpm or ternary fields use tuple-space search (a dict
    per combination of masks), tables with a range field an ordered scan; both answer from a memo
    of recent lookup keys, emptied at every change.
    """

    def __init__(
        self,
        name: str,
        keys: Iterable[KeySpec],
        actions: Iterable[ActionInfo],
        *,
        max_size: int = 0,
        profile: ActionProfile | None = None,
        direct_counter: str | None = None,
        direct_meter: str | None = None,
        meter_unit: str = "packets",
        default: ActionCall | None = None,
        default_is_const: bool = False,
        default_action_is_const: bool = False,
    ) -> None:
        self.name = name
        self.keys = tuple(keys)
        self.max_size = max_size
        self.profile = profile
        self.direct_counter = direct_counter
        self.direct_meter = direct_meter
        self._meter_unit = meter_unit
        self.actions = tuple(actions)
        self.action_names = tuple(a.name for a in self.actions)
        self._action_index = {a.name: (i, a) for i, a in enumerate(self.actions)}
        match_types = {k.match_type for k in self.keys}
        self.requires_priority = bool(match_types & {"ternary", "range"})
        self.is_exact = match_types <= {"exact"}
        self._has_range = "range" in match_types
        self._lpm_key = next((i for i, k in enumerate(self.keys) if k.match_type == "lpm"), None)
        self._single = len(self.keys) == 1
        self.is_const = False

        # Read by generated code; these objects are never replaced, only their contents.
        self.index: dict[LookupKey, Record] = {}
        self.memo: dict[LookupKey, Record] = {}
        self.default_record: list[Record] = [NO_ACTION_RECORD]

        self._entries: dict[EntryId, _Installed] = {}
        self._order = 0
        self._version = 0
        self._mask_groups: dict[tuple[int, ...], _MaskGroup] = {}
        self._search_order: list[tuple[int, tuple[int, ...], dict[tuple[int, ...], _Installed]]]
        self._search_order = []
        self._scan: list[tuple[tuple[tuple[int, int, int], ...], Record]] = []
        self._stale = False

        self.initial_default = default
        self.default_is_const = default_is_const
        self.default_action_is_const = default_is_const or default_action_is_const
        self._default: ActionCall | None = None
        self._install_default(default)
        if profile is not None:
            profile.attach(self)

    # -- default entry

    @property
    def default(self) -> ActionCall | None:
        """The default action now in force, or None."""
        return self._default

    def set_default(self, action: ActionCall | None) -> None:
        """Set the default action; None restores the program's own. Raises ConstTable."""
        if self.default_is_const:
            raise ConstTable(f"table {self.name}: the default action is const")
        if action is None:
            action = self.initial_default
        elif (
            self.default_action_is_const
            and self._default is not None
            and action.name != self._default.name
        ):
            raise ConstTable(
                f"table {self.name}: the default action is fixed to {self._default.name!r}, "
                "only its arguments can be set"
            )
        self._install_default(action)

    def _install_default(self, action: ActionCall | None) -> None:
        # A fresh tuple: generated code tells a miss by the identity of this object.
        # A miss is not metered.
        self.default_record[0] = (
            self._no_action([0, 0], None) if action is None else self._record(action, [0, 0], None)
        )
        self._default = action
        self._version += 1
        self.memo.clear()

    # -- entries

    def insert(self, entry: Entry) -> None:
        """Add an entry. Raises EntryExists, TableFull, InvalidEntry, ConstTable, EntryNotFound."""
        self._require_mutable(entry)
        self.check_entry(entry)
        entry_id = (entry.match, entry.priority)
        if entry_id in self._entries:
            raise EntryExists(f"table {self.name}: the entry exists already")
        if self.max_size and len(self._entries) >= self.max_size:
            raise TableFull(f"table {self.name}: all {self.max_size} entries are in use")
        meter = None if self.direct_meter is None else Meter(self._meter_unit)
        installed = _Installed(entry, self._order, [0, 0], meter)
        self._resolve(installed)
        self._order += 1
        self._entries[entry_id] = installed
        self._publish(installed)

    def modify(self, entry: Entry) -> None:
        """Give an existing entry another action; its direct counter and meter are kept.

        Raises EntryNotFound, InvalidEntry, ConstTable.
        """
        self._require_mutable(entry)
        self.check_entry(entry)
        old = self._require((entry.match, entry.priority))
        installed = _Installed(entry, old.order, old.counter, old.meter)
        self._resolve(installed)
        self._entries[(entry.match, entry.priority)] = installed
        self._publish(installed, replaces=old)

    def delete(self, match: tuple[Match, ...], priority: int = 0) -> None:
        """Remove an entry. Raises EntryNotFound, ConstTable."""
        self._require_mutable(None)
        old = self._require((match, priority))
        del self._entries[(match, priority)]
        self._withdraw(old)

    def get(self, match: tuple[Match, ...], priority: int = 0) -> Entry | None:
        """The entry with exactly this match and priority, or None."""
        installed = self._entries.get((match, priority))
        return None if installed is None else installed.entry

    def entries(self) -> list[Entry]:
        """All entries in the order they were inserted."""
        return [i.entry for i in list(self._entries.values())]

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Back to the state after load: no entry but the const ones, the initial default."""
        for installed in list(self._entries.values()):
            if not installed.entry.is_const:
                del self._entries[(installed.entry.match, installed.entry.priority)]
                self._withdraw(installed)
            installed.counter[0] = installed.counter[1] = 0
            if installed.meter is not None:
                installed.meter.configure(None)
        self._install_default(self.initial_default)

    def install_const(self, entries: Iterable[Entry]) -> None:
        """Install the entries the program itself declares; the table is constant from then on."""
        for entry in entries:
            self.insert(entry)
        self.is_const = True

    def uses(self, ref: MemberRef | GroupRef) -> bool:
        """True iff an entry points to this member or group."""
        return any(i.entry.action == ref for i in self._entries.values())

    # -- direct counter

    def read_direct(self, match: tuple[Match, ...], priority: int = 0) -> tuple[int, int]:
        """(packets, bytes) of an entry. Raises EntryNotFound, InvalidEntry (no such counter)."""
        cell = self._direct_cell(match, priority)
        return cell[0], cell[1]

    def write_direct(
        self, match: tuple[Match, ...], priority: int, packets: int, byte_count: int
    ) -> None:
        """Set the (packets, bytes) of an entry. Raises EntryNotFound, InvalidEntry."""
        cell = self._direct_cell(match, priority)
        cell[0], cell[1] = packets, byte_count

    def _direct_cell(self, match: tuple[Match, ...], priority: int) -> list[int]:
        if self.direct_counter is None:
            raise InvalidEntry(f"table {self.name} has no direct counter")
        return self._require((match, priority)).counter

    # -- direct meter

    def read_meter(self, match: tuple[Match, ...], priority: int = 0) -> MeterConfig | None:
        """An entry's meter configuration. Raises EntryNotFound, InvalidEntry (no such meter)."""
        return self._direct_meter(match, priority).config

    def write_meter(
        self, match: tuple[Match, ...], priority: int, config: MeterConfig | None
    ) -> None:
        """Configure an entry's meter. Raises EntryNotFound, InvalidEntry (no such meter)."""
        self._direct_meter(match, priority).configure(config)

    def _direct_meter(self, match: tuple[Match, ...], priority: int) -> Meter:
        meter = self._require((match, priority)).meter
        if meter is None:
            raise InvalidEntry(f"table {self.name} has no direct meter")
        return meter

    # -- validation

    def check_action(self, action: ActionCall) -> None:
        """Raises InvalidEntry unless `action` is one of this table's, with fitting arguments."""
        _check_call(action, self._action_index, f"table {self.name}")

    def check_entry(self, entry: Entry) -> None:
        """Raises InvalidEntry unless the entry fits this table's key, priority and actions."""
        where = f"table {self.name}"
        if not self.keys:
            raise InvalidEntry(f"{where} has no match field: only its default action can be set")
        if len(entry.match) != len(self.keys):
            raise InvalidEntry(
                f"{where} matches on {len(self.keys)} fields, the entry gives {len(entry.match)}"
            )
        for key, match in zip(self.keys, entry.match, strict=True):
            self._check_match(key, match)
        if self.requires_priority and entry.priority < 1:
            raise InvalidEntry(f"{where}: a priority above 0 is required, not {entry.priority}")
        if not self.requires_priority and entry.priority != 0:
            raise InvalidEntry(f"{where}: takes no priority, the entry gives {entry.priority}")
        if isinstance(entry.action, ActionCall):
            if self.profile is not None:
                raise InvalidEntry(f"{where}: entries point into {self.profile.name}")
            self.check_action(entry.action)
        elif self.profile is None:
            raise InvalidEntry(f"{where}: has no action profile, the entry must give an action")
        elif isinstance(entry.action, ActionSet):
            for call, _ in entry.action.actions:
                self.check_action(call)

    def _check_match(self, key: KeySpec, match: Match) -> None:
        where = f"table {self.name}, match field {key.name!r}"
        top = _mask(key.width)
        values: tuple[int, ...]
        if isinstance(match, Exact):
            kind, values = "exact", (match.value,)
        elif isinstance(match, Lpm):
            kind, values = "lpm", (match.value,)
        elif isinstance(match, Ternary):
            kind, values = "ternary", (match.value, match.mask)
        else:
            kind, values = "range", (match.low, match.high)
        if kind != key.match_type:
            raise InvalidEntry(f"{where} is {key.match_type}, the entry gives {kind}")
        for value in values:
            if not 0 <= value <= top:
                raise InvalidEntry(f"{where}: {value:#x} does not fit in {key.width} bits")
        if isinstance(match, Lpm):
            if not 0 <= match.prefix_len <= key.width:
                raise InvalidEntry(
                    f"{where}: prefix length {match.prefix_len} is not in 0..{key.width}"
                )
            if match.value & (top >> match.prefix_len):
                raise InvalidEntry(f"{where}: {match.value:#x} has bits below its prefix")
        elif isinstance(match, Ternary) and match.value & ~match.mask:
            raise InvalidEntry(f"{where}: {match.value:#x} has bits outside its mask")
        elif isinstance(match, Range) and match.low > match.high:
            raise InvalidEntry(f"{where}: range {match.low}..{match.high} is empty")

    def _require(self, entry_id: EntryId) -> _Installed:
        installed = self._entries.get(entry_id)
        if installed is None:
            raise EntryNotFound(f"table {self.name}: no such entry")
        return installed

    def _require_mutable(self, entry: Entry | None) -> None:
        if self.is_const:
            raise ConstTable(f"table {self.name}: its entries are const")

    # -- records and lookup structures

    def _record(self, action: ActionCall, counter: list[int], meter: Meter | None) -> Record:
        index, _ = _check_call(action, self._action_index, f"table {self.name}")
        return (index, *action.args, *self._attached(counter, meter))

    def _no_action(self, counter: list[int], meter: Meter | None) -> Record:
        return (NO_ACTION, *self._attached(counter, meter))

    def _attached(self, counter: list[int], meter: Meter | None) -> Record:
        """What follows the arguments in a record."""
        attached: Record = () if self.direct_meter is None else (meter,)
        return attached if self.direct_counter is None else (*attached, counter)

    def _resolve(self, installed: _Installed) -> None:
        action = installed.entry.action
        counter, meter = installed.counter, installed.meter
        if isinstance(action, ActionCall):
            installed.record = self._record(action, counter, meter)
        else:
            assert self.profile is not None
            installed.record = self.profile.resolve(
                action, lambda call: self._record(call, counter, meter)
            )
            if installed.record is NO_ACTION_RECORD:
                installed.record = self._no_action(counter, meter)

    def refresh_indirect(self) -> None:
        """Bring the records of all entries up to date with the action profile."""
        for installed in self._entries.values():
            self._resolve(installed)
            if self.is_exact:
                self.index[self._exact_key(installed.entry)] = installed.record
        self._changed()

    def _exact_key(self, entry: Entry) -> LookupKey:
        values = tuple(m.value for m in entry.match if isinstance(m, Exact))
        return values[0] if self._single else values

    def _publish(self, installed: _Installed, replaces: _Installed | None = None) -> None:
        if self.is_exact:
            self.index[self._exact_key(installed.entry)] = installed.record
            return
        if not self._has_range:
            masks: list[int] = []
            values: list[int] = []
            for key, match in zip(self.keys, installed.entry.match, strict=True):
                full = _mask(key.width)
                if isinstance(match, Lpm):
                    masks.append(full ^ (full >> match.prefix_len))
                    values.append(match.value)
                elif isinstance(match, Ternary):
                    masks.append(match.mask)
                    values.append(match.value)
                else:
                    assert isinstance(match, Exact)
                    masks.append(full)
                    values.append(match.value)
            installed.masks, installed.masked = tuple(masks), tuple(values)
            group = self._mask_groups.setdefault(installed.masks, _MaskGroup(installed.masks))
            same = [i for i in group.best.get(installed.masked, []) if i is not replaces]
            same.append(installed)
            same.sort(key=self._rank)
            group.best[installed.masked] = same
        self._changed()

    def _withdraw(self, old: _Installed) -> None:
        if self.is_exact:
            del self.index[self._exact_key(old.entry)]
            return
        if not self._has_range:
            group = self._mask_groups[old.masks]
            same = [i for i in group.best[old.masked] if i is not old]
            if same:
                group.best[old.masked] = same
            else:
                del group.best[old.masked]
                if not group.best:
                    del self._mask_groups[old.masks]
        self._changed()

    def _rank(self, installed: _Installed) -> tuple[int, int]:
        """Sort key: the better entry first. Longest prefix, highest priority, oldest."""
        priority = installed.entry.priority
        if not self.requires_priority and self._lpm_key is not None:
            lpm = installed.entry.match[self._lpm_key]
            assert isinstance(lpm, Lpm)
            priority = lpm.prefix_len
        return (-priority, installed.order)

    def _changed(self) -> None:
        self._stale = True
        self._version += 1
        self.memo.clear()

    def _rebuild(self) -> None:
        """Derive the search structures from the entries (after a change, at the first lookup)."""
        self._stale = False
        if self._has_range:
            self._scan = [
                (tuple(map(self._scan_item, self.keys, i.entry.match)), i.record)
                for i in sorted(self._entries.copy().values(), key=self._rank)
            ]
            return
        order = []
        for masks, group in list(self._mask_groups.items()):
            best = {value: same[0] for value, same in group.best.items()}
            order.append((min(self._rank(i) for i in best.values()), masks, best))
        order.sort(key=lambda item: item[0])
        self._search_order = [(-rank[0], masks, best) for rank, masks, best in order]

    @staticmethod
    def _scan_item(key: KeySpec, match: Match) -> tuple[int, int, int]:
        """(mask, low, high): the field matches iff low <= field & mask <= high."""
        full = _mask(key.width)
        if isinstance(match, Range):
            return full, match.low, match.high
        if isinstance(match, Ternary):
            return match.mask, match.value, match.value
        if isinstance(match, Lpm):
            return full ^ (full >> match.prefix_len), match.value, match.value
        return full, match.value, match.value

    def search(self, key: LookupKey) -> Record:
        """The record for `key` in a table that is not exact; the default's record on a miss.

        The answer is remembered in `memo`. A change made by another thread while this runs
        raises the version, so that the answer, which may be of before the change, does not stay
        in the memo.
        """
        version = self._version
        record = self._find(key)
        if record is None:
            record = self.default_record[0]
        memo = self.memo
        if len(memo) >= MEMO_LIMIT:
            memo.clear()
        memo[key] = record
        if version != self._version:
            memo.pop(key, None)
        return record

    def _find(self, key: LookupKey) -> Record | None:
        if self._stale:
            self._rebuild()
        values: tuple[int, ...] = (key,) if isinstance(key, int) else key
        if self._has_range:
            for items, record in self._scan:
                for value, (mask, low, high) in zip(values, items, strict=True):
                    if not low <= value & mask <= high:
                        break
                else:
                    return record
            return None
        found: _Installed | None = None
        found_rank = (0, 0)
        for best_priority, masks, best in self._search_order:
            if found is not None and -found_rank[0] > best_priority:
                break
            candidate = best.get(tuple(v & m for v, m in zip(values, masks, strict=True)))
            if candidate is not None:
                rank = self._rank(candidate)
                if found is None or rank < found_rank:
                    found, found_rank = candidate, rank
        return None if found is None else found.record

    def lookup(self, key: LookupKey) -> Record:
        """The record the pipeline finds for `key` (an int, or a tuple for several fields)."""
        if self.is_exact:
            return self.index.get(key, self.default_record[0])
        return self.search(key)


# --------------------------------------------------------------------------------------------
# Counters, meters and registers
# --------------------------------------------------------------------------------------------


class CounterArray:
    """An indirect counter: packets and bytes per cell. `kind` is packets, bytes or both."""

    def __init__(self, name: str, size: int, kind: str = "both") -> None:
        self.name = name
        self.size = size
        self.kind = kind
        # Bound by generated code: changed in place, never replaced.
        self.packets = [0] * size
        self.bytes = [0] * size

    def read(self, index: int) -> tuple[int, int]:
        """(packets, bytes) of one cell. Raises EntryNotFound for an index out of range."""
        self._check(index)
        return self.packets[index], self.bytes[index]

    def write(self, index: int, packets: int, byte_count: int) -> None:
        """Set one cell. Raises EntryNotFound for an index out of range."""
        self._check(index)
        self.packets[index], self.bytes[index] = packets, byte_count

    def reset(self) -> None:
        """All cells to zero."""
        self.packets[:] = self.bytes[:] = _zeros(self.size)

    def _check(self, index: int) -> None:
        if not 0 <= index < self.size:
            raise EntryNotFound(f"counter {self.name}: index {index} is not in 0..{self.size - 1}")


@functools.cache
def _zeros(size: int) -> tuple[int, ...]:
    """What all arrays of a size are reset from; to copy it takes a tenth of making it."""
    return (0,) * size


class MeterArray:
    """An indirect meter: `size` cells."""

    def __init__(self, name: str, size: int, unit: str) -> None:
        self.name = name
        self.size = size
        self.unit = unit
        self._cells = [Meter(unit) for _ in range(size)]

    def execute(self, index: int, size: int, now: int) -> int:
        """The colour that one cell gives a packet; the caller has checked the index."""
        return self._cells[index].execute(size, now)

    def read(self, index: int) -> MeterConfig | None:
        """The configuration of one cell. Raises EntryNotFound for an index out of range."""
        return self._cell(index).config

    def write(self, index: int, config: MeterConfig | None) -> None:
        """Configure one cell. Raises EntryNotFound for an index out of range."""
        self._cell(index).configure(config)

    def reset(self) -> None:
        """Every cell without a configuration, as after load."""
        for cell in self._cells:
            cell.configure(None)

    def _cell(self, index: int) -> Meter:
        if not 0 <= index < self.size:
            raise EntryNotFound(f"meter {self.name}: index {index} is not in 0..{self.size - 1}")
        return self._cells[index]


class RegisterArray:
    """A register: `size` cells of `width` bits in the list `values`."""

    def __init__(self, name: str, size: int, width: int) -> None:
        self.name = name
        self.size = size
        self.width = width
        # Bound by generated code: changed in place, never replaced.
        self.values = [0] * size

    def reset(self) -> None:
        """All cells to zero."""
        self.values[:] = _zeros(self.size)


# --------------------------------------------------------------------------------------------
# The whole program
# --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ControllerHeader:
    """The metadata header of packet-in or packet-out: (field name, width in bits) in order."""

    name: str
    fields: tuple[tuple[str, int], ...]

    @property
    def width(self) -> int:
        """Total width in bits; a multiple of 8 once padding fields are included."""
        return sum(w for _, w in self.fields)


def _not_compiled(**bound: Any) -> Any:
    raise TypeError("this pipeline was not made by compile_pipeline")


@dataclass(slots=True)
class Pipeline:
    """A compiled program with its state.

    Everything is keyed by its JSON name, which is also the name in the preamble of P4Info.
    `build(**bound)` makes the generated functions, documented in `codegen`; `bindings` says what
    each of its parameters stands for, and `copies_packets` which kind of functions they are.
    `digests` holds the widths of each digest's fields.
    `controller_headers` holds "packet_in" and "packet_out" where the program has them.
    """

    tables: dict[str, Table]
    action_profiles: dict[str, ActionProfile]
    counters: dict[str, CounterArray]
    meters: dict[str, MeterArray]
    registers: dict[str, RegisterArray]
    actions: dict[str, list[tuple[str, int]]]
    digests: dict[str, tuple[int, ...]] = field(default_factory=dict)
    replication: ReplicationEngine = field(default_factory=ReplicationEngine)
    controller_headers: dict[str, ControllerHeader] = field(default_factory=dict)
    p4info: Any = None
    json_text: str = ""
    source: str = ""
    bindings: dict[str, tuple[str, str]] = field(default_factory=dict)
    copies_packets: bool = False
    build: Callable[..., Any] = _not_compiled

    def reset(self) -> None:
        """Back to the state after load, as if nothing had been written and no packet seen."""
        for table in self.tables.values():
            table.clear()
        for profile in self.action_profiles.values():
            profile.clear()
        for counter in self.counters.values():
            counter.reset()
        for meter in self.meters.values():
            meter.reset()
        for register in self.registers.values():
            register.reset()
        self.replication.clear()
