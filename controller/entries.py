"""What a switch holds, as plain values that can be compared, sorted and printed.

Nothing here knows protobuf or byte strings: two servers that pad the same number differently
yield the same value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Exact(NamedTuple):
    """The field has this value.

    Match values are tuples because keys are hashed and compared all the time.
    """

    value: int

    def __str__(self) -> str:
        return f"{self.value:#x}" if self.value > 0xFFFF else str(self.value)


class Lpm(NamedTuple):
    """The upper ``prefix_len`` bits of the field are those of ``value``."""

    value: int
    prefix_len: int

    def __str__(self) -> str:
        return f"{self.value:#x}/{self.prefix_len}"


class Ternary(NamedTuple):
    """The field has ``value`` where ``mask`` has ones."""

    value: int
    mask: int

    def __str__(self) -> str:
        return f"{self.value:#x}&&&{self.mask:#x}"


class Range(NamedTuple):
    """The field lies in ``low``..``high``; only programs with tables of their own have such."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


FieldValue = Exact | Lpm | Ternary | Range


@dataclass(frozen=True, slots=True)
class EntryKey:
    """What makes a table entry unique: table, match and priority.

    ``match`` is sorted by field name; a field that matches everything is left out.
    """

    table: str
    match: tuple[tuple[str, FieldValue], ...]
    priority: int = 0

    def __str__(self) -> str:
        fields = " ".join(f"{name}={value}" for name, value in self.match)
        priority = f" priority={self.priority}" if self.priority else ""
        return f"{self.table} {fields}{priority}"


def entry_key(table: str, priority: int = 0, **match: FieldValue) -> EntryKey:
    """Return the key of an entry; fields may come in any order."""
    return EntryKey(table, tuple(sorted(match.items(), key=lambda item: item[0])), priority)


@dataclass(frozen=True, slots=True)
class ActionCall:
    """An action with its arguments, sorted by name."""

    name: str
    args: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        args = ", ".join(f"{name}={value}" for name, value in self.args)
        return f"{self.name}({args})"


def action(name: str, args: Mapping[str, int] | None = None) -> ActionCall:
    """Return an action call; arguments may come in any order."""
    return ActionCall(name, tuple(sorted((args or {}).items())))


@dataclass(frozen=True, slots=True)
class GroupRef:
    """The entry's action is picked by a group of an action profile."""

    group_id: int

    def __str__(self) -> str:
        return f"group {self.group_id}"


@dataclass(frozen=True, slots=True)
class MemberRef:
    """The entry's action is that of one member of an action profile."""

    member_id: int

    def __str__(self) -> str:
        return f"member {self.member_id}"


@dataclass(frozen=True, slots=True)
class ActionSet:
    """A one-shot set of weighted actions, as a foreign controller may have written it."""

    actions: tuple[tuple[ActionCall, int], ...]

    def __str__(self) -> str:
        return "one-shot " + ", ".join(f"{weight}*{call}" for call, weight in self.actions)


EntryValue = ActionCall | GroupRef | MemberRef | ActionSet


@dataclass(frozen=True, slots=True, order=True)
class ProfileKey:
    """A member or a group of an action profile."""

    profile: str
    id: int


GroupMembers = tuple[tuple[int, int], ...]
"""(member id, weight), ascending: the order in which the data plane counts them."""


@dataclass(slots=True)
class SwitchTables:
    """All that one switch should hold, or does hold."""

    defaults: dict[str, ActionCall] = field(default_factory=dict)
    members: dict[ProfileKey, ActionCall] = field(default_factory=dict)
    groups: dict[ProfileKey, GroupMembers] = field(default_factory=dict)
    entries: dict[EntryKey, EntryValue] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.members) + len(self.groups) + len(self.entries)

    def copy(self) -> SwitchTables:
        """Return a copy that can be changed without changing this one."""
        return SwitchTables(
            dict(self.defaults), dict(self.members), dict(self.groups), dict(self.entries)
        )

    def lines(self) -> Iterator[str]:
        """Yield one readable line per item, sorted: for golden files and for people."""
        yield from sorted(f"default {table} -> {call}" for table, call in self.defaults.items())
        for key, call in sorted(self.members.items(), key=lambda item: item[0]):
            yield f"member {key.profile} {key.id} -> {call}"
        for key, members in sorted(self.groups.items(), key=lambda item: item[0]):
            ids = " ".join(str(member) for member, _ in members)
            yield f"group {key.profile} {key.id} -> {ids}"
        yield from sorted(f"entry {key} -> {value}" for key, value in self.entries.items())


def merged(base: SwitchTables, additions: Iterable[Mapping[EntryKey, EntryValue]]) -> SwitchTables:
    """Return ``base`` with the entries of ``additions`` put on top."""
    result = base.copy()
    for entries in additions:
        result.entries.update(entries)
    return result
