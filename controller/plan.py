"""What has to be written to turn what a switch holds into what it should hold. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from ringstep.controller.entries import (
    ActionCall,
    EntryKey,
    EntryValue,
    Exact,
    GroupMembers,
    ProfileKey,
    SwitchTables,
)

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

TABLE_ORDER = (
    "red",
    "block_map",
    "job_params",
    "nexthop",
    "route_v4",
    "route_v6",
    "planned_path",
    "job_by_dst_qp",
    "job_by_pair",
    "job_by_tag",
    "job_by_uec_id",
)
"""Insertion order: what a rule leads to stands before the rule, so that a packet never finds a job
without parameters or a route without a next hop. Deletion goes the other way."""
_RANK = {table: rank for rank, table in enumerate(TABLE_ORDER)}


class Op(StrEnum):
    """Kind of a P4Runtime update."""

    INSERT = "INSERT"
    MODIFY = "MODIFY"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class DefaultUpdate:
    """Set a table's default action; always a MODIFY."""

    table: str
    value: ActionCall
    op: Op = Op.MODIFY

    def __str__(self) -> str:
        return f"{self.op} default action of {self.table} -> {self.value}"


@dataclass(frozen=True, slots=True)
class MemberUpdate:
    """Change a member of an action profile; ``value`` is None for DELETE."""

    op: Op
    key: ProfileKey
    value: ActionCall | None = None

    def __str__(self) -> str:
        text = f"{self.op} member {self.key.id} of {self.key.profile}"
        return text if self.value is None else f"{text} -> {self.value}"


@dataclass(frozen=True, slots=True)
class GroupUpdate:
    """Change a group of an action profile; ``value`` is None for DELETE."""

    op: Op
    key: ProfileKey
    value: GroupMembers | None = None

    def __str__(self) -> str:
        text = f"{self.op} group {self.key.id} of {self.key.profile}"
        if self.value is None:
            return text
        return f"{text} -> members {' '.join(str(member) for member, _ in self.value)}"


@dataclass(frozen=True, slots=True)
class EntryUpdate:
    """Change a table entry; ``value`` is None for DELETE."""

    op: Op
    key: EntryKey
    value: EntryValue | None = None

    def __str__(self) -> str:
        text = f"{self.op} {self.key}"
        return text if self.value is None else f"{text} -> {self.value}"


Update = DefaultUpdate | MemberUpdate | GroupUpdate | EntryUpdate


def plan_updates(actual: SwitchTables, desired: SwitchTables) -> list[list[Update]]:
    """Return updates in phases; a phase is written only after the one before it.

    Members come before groups, groups before entries, and deletions last, in reverse: at no
    moment does an entry refer to something that is not there. Nothing to do is an empty list.
    """
    member_writes, member_deletes = _split(actual.members, desired.members, MemberUpdate)
    group_writes, group_deletes = _split(actual.groups, desired.groups, GroupUpdate)
    entry_writes, entry_deletes = _split(actual.entries, desired.entries, EntryUpdate)
    defaults = [
        DefaultUpdate(table, call)
        for table, call in sorted(desired.defaults.items())
        if actual.defaults.get(table) != call
    ]
    phases: list[list[Update]] = [
        list(member_writes),
        list(group_writes),
        [*defaults],
        *_by_table(entry_writes, lambda rank: rank),
        *_by_table(entry_deletes, lambda rank: -rank),
        list(group_deletes),
        list(member_deletes),
    ]
    return [phase for phase in phases if phase]


def jobs_new_to(actual: SwitchTables, desired: SwitchTables) -> list[int]:
    """Return the Job_IDs, ascending, whose counters a switch holds for somebody else.

    Those are the ones that come to the switch, and those that were handed out anew while it was
    away: then their generation differs.
    """
    return sorted(
        value.value
        for key, call in desired.entries.items()
        if key.table == "job_params" and _generation(actual.entries.get(key)) != _generation(call)
        for _, value in key.match
        if isinstance(value, Exact)
    )


def _generation(params: EntryValue | None) -> int | None:
    return dict(params.args).get("generation") if isinstance(params, ActionCall) else None


def _split(
    actual: Mapping[_K, _V],
    desired: Mapping[_K, _V],
    update: Callable[[Op, _K, _V | None], Update],
) -> tuple[list[Update], list[Update]]:
    writes = [
        update(Op.MODIFY if key in actual else Op.INSERT, key, value)
        for key, value in desired.items()
        if actual.get(key) != value
    ]
    deletes = [update(Op.DELETE, key, None) for key in actual if key not in desired]
    return writes, deletes


def _by_table(updates: Iterable[Update], order: Callable[[int], int]) -> Iterator[list[Update]]:
    ranked: dict[int, list[Update]] = {}
    for update in updates:
        assert isinstance(update, EntryUpdate)
        rank = _RANK.get(update.key.table, len(_RANK))
        ranked.setdefault(order(rank), []).append(update)
    for _, phase in sorted(ranked.items()):
        yield phase


def apply_update(tables: SwitchTables, update: Update) -> None:
    """Change ``tables`` the way a switch changes that accepts ``update``."""
    match update:
        case DefaultUpdate():
            tables.defaults[update.table] = update.value
        case MemberUpdate(value=None):
            tables.members.pop(update.key, None)
        case MemberUpdate(value=ActionCall() as call):
            tables.members[update.key] = call
        case GroupUpdate(value=None):
            tables.groups.pop(update.key, None)
        case GroupUpdate(value=tuple() as members):
            tables.groups[update.key] = members
        case EntryUpdate(value=None):
            tables.entries.pop(update.key, None)
        case EntryUpdate():
            assert update.value is not None
            tables.entries[update.key] = update.value
