"""What has to be written to turn what a switch holds into what it should hold. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ringstep.controller.entries import (
    ActionCall,
    EntryKey,
    EntryValue,
    Exact,
    GroupMembers,
    GroupRef,
    MemberRef,
    ProfileKey,
    SwitchTables,
)

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


class Kind(StrEnum):
    """What a :class:`Place` is a place for."""

    DEFAULT = "default"
    MEMBER = "member"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a default action, a member or a group stands; an entry's place is its EntryKey."""

    kind: Kind
    owner: str
    id: int = 0

    def __str__(self) -> str:
        if self.kind is Kind.DEFAULT:
            return f"default action of {self.owner}"
        return f"{self.kind} {self.id} of {self.owner}"


Target = EntryKey | Place
"""What an update changes: a table entry by its key, anything else by its place."""
Value = EntryValue | GroupMembers


def target_of(update: Update) -> Target:
    """Return what an update changes."""
    match update:
        case EntryUpdate():
            return update.key
        case DefaultUpdate():
            return Place(Kind.DEFAULT, update.table)
        case MemberUpdate():
            return Place(Kind.MEMBER, update.key.profile, update.key.id)
        case GroupUpdate():
            return Place(Kind.GROUP, update.key.profile, update.key.id)


def value_at(tables: SwitchTables, target: Target) -> Value | None:
    """Return what stands at a target, or None."""
    if isinstance(target, EntryKey):
        return tables.entries.get(target)
    if target.kind is Kind.DEFAULT:
        return tables.defaults.get(target.owner)
    key = ProfileKey(target.owner, target.id)
    return (tables.members if target.kind is Kind.MEMBER else tables.groups).get(key)


def put_value(tables: SwitchTables, target: Target, value: Value | None) -> None:
    """Put a value at a target; None takes away what stands there."""
    held: Any
    key: Any = target
    if isinstance(target, EntryKey):
        held = tables.entries
    elif target.kind is Kind.DEFAULT:
        held, key = tables.defaults, target.owner
    else:
        held = tables.members if target.kind is Kind.MEMBER else tables.groups
        key = ProfileKey(target.owner, target.id)
    if value is None:
        held.pop(key, None)
    else:
        held[key] = value


def update_at(target: Target, have: Value | None, want: Value | None) -> Update | None:
    """Return the update that turns one value into the other, or None where they are equal.

    A default action that nobody wants is left as it is: there is always one.
    """
    if have == want:
        return None
    op = Op.DELETE if want is None else Op.INSERT if have is None else Op.MODIFY
    update: Any
    if isinstance(target, EntryKey):
        update = EntryUpdate(op, target, want)  # type: ignore[arg-type]
    elif target.kind is Kind.DEFAULT:
        update = None if want is None else DefaultUpdate(target.owner, want)  # type: ignore[arg-type]
    else:
        make: Any = MemberUpdate if target.kind is Kind.MEMBER else GroupUpdate
        update = make(op, ProfileKey(target.owner, target.id), want)
    return update  # type: ignore[no-any-return]


def other_places(tables: SwitchTables) -> list[Place]:
    """Return the places of all default actions, members and groups."""
    return [
        *(Place(Kind.DEFAULT, table) for table in tables.defaults),
        *(Place(Kind.MEMBER, key.profile, key.id) for key in tables.members),
        *(Place(Kind.GROUP, key.profile, key.id) for key in tables.groups),
    ]


def leads_to(target: Target, value: Value | None, profile: str) -> list[Target]:
    """Return what has to stand before ``value`` may stand at ``target``.

    A rule needs its job's parameters, a route its next hop, a next hop its group or member of
    ``profile``, and a group its members.
    """
    if isinstance(value, GroupRef):
        return [Place(Kind.GROUP, profile, value.group_id)]
    if isinstance(value, MemberRef):
        return [Place(Kind.MEMBER, profile, value.member_id)]
    if isinstance(value, ActionCall):
        if value.name == "set_job":
            return [
                EntryKey("job_params", (("job", Exact(number)),))
                for name, number in value.args
                if name == "job"
            ]
        if value.name == "set_nexthop":
            return [EntryKey("nexthop", ((name, Exact(n)),)) for name, n in value.args]
    if isinstance(value, tuple) and isinstance(target, Place):
        return [Place(Kind.MEMBER, target.owner, member) for member, _ in value]
    return []


def plan_updates(actual: SwitchTables, desired: SwitchTables) -> list[list[Update]]:
    """Return all updates that turn ``actual`` into ``desired``, in phases (:func:`in_phases`).

    Default actions that ``desired`` does not name stay.
    """
    targets: list[Target] = [*other_places(desired), *desired.entries]
    targets += [place for place in other_places(actual) if value_at(desired, place) is None]
    targets += [key for key in actual.entries if key not in desired.entries]
    updates = (update_at(t, value_at(actual, t), value_at(desired, t)) for t in targets)
    return in_phases(update for update in updates if update is not None)


def in_phases(updates: Iterable[Update]) -> list[list[Update]]:
    """Sort updates into phases; a phase is written only after the one before it.

    Members come before groups, groups before entries, and deletions last, in reverse: at no
    moment does an entry refer to something that is not there. Nothing to do is an empty list.
    """
    phases: dict[int, list[Update]] = {}
    for update in updates:
        phases.setdefault(phase_of(update), []).append(update)
    phases.get(_DEFAULTS, []).sort(key=str)
    return [phases[number] for number in sorted(phases)]


_DEFAULTS = 2
_ENTRIES = 3


def phase_of(update: Update) -> int:
    """Return the number of an update's phase (:func:`in_phases`); they ascend, with gaps."""
    match update:
        case EntryUpdate():
            rank = _RANK.get(update.key.table, len(_RANK))
            number = _ENTRIES + rank
        case DefaultUpdate():
            number = _DEFAULTS
        case GroupUpdate():
            number = 1
        case MemberUpdate():
            number = 0
    # Deletions go the other way, after all that is written.
    return number if update.op is not Op.DELETE else 2 * (_ENTRIES + len(_RANK)) + 1 - number


def new_jobs(updates: Iterable[Update], actual: SwitchTables) -> list[int]:
    """Return the Job_IDs, ascending, whose counters a switch holds for somebody else.

    Those are the ones whose parameters come to the switch, and those that were handed out anew
    while it was away: then their generation differs.
    """
    return sorted(
        match.value
        for update in updates
        if isinstance(update, EntryUpdate) and update.key.table == "job_params"
        if _generation(actual.entries.get(update.key)) != _generation(update.value)
        if update.op is not Op.DELETE
        for _, match in update.key.match
        if isinstance(match, Exact)
    )


def _generation(params: EntryValue | None) -> int | None:
    return dict(params.args).get("generation") if isinstance(params, ActionCall) else None


def apply_update(tables: SwitchTables, update: Update) -> None:
    """Change ``tables`` the way a switch changes that accepts ``update``."""
    put_value(tables, target_of(update), update.value)
