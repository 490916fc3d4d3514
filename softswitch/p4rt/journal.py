"""Changes to the switch's state that can be taken back, for batches that are all-or-nothing.

P4Runtime 1.5 section "Batch Atomicity": ROLLBACK_ON_ERROR and DATAPLANE_ATOMIC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ringstep.softswitch import tables as t
from ringstep.softswitch.meters import MeterConfig


class Journal:
    """Applies single changes and remembers how to undo each. Errors are those of `tables`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def mark(self) -> int:
        """Return the present position, for `rollback`."""
        return len(self._undo)

    def rollback(self, mark: int = 0) -> None:
        """Undo, newest first, everything done since `mark`."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def note(self, undo: Callable[[], object]) -> None:
        """Remember how to undo a change that the caller made itself."""
        self._undo.append(undo)

    def insert_entry(self, table: t.Table, entry: t.Entry) -> None:
        """Insert a table entry."""
        table.insert(entry)
        self.note(lambda: table.delete(entry.match, entry.priority))

    def modify_entry(self, table: t.Table, old: t.Entry, entry: t.Entry) -> None:
        """Replace a table entry."""
        table.modify(entry)
        self.note(lambda: table.modify(old))

    def delete_entry(self, table: t.Table, old: t.Entry) -> None:
        """Delete a table entry, with its direct counter and the configuration of its meter."""
        key = old.match, old.priority
        count = table.read_direct(*key) if table.direct_counter is not None else None
        config = table.read_meter(*key) if table.direct_meter is not None else None
        table.delete(*key)

        def undo() -> None:
            table.insert(old)
            if count is not None:
                table.write_direct(*key, *count)
            if config is not None:
                table.write_meter(*key, config)

        self.note(undo)

    def set_default(self, table: t.Table, action: t.ActionCall | None) -> None:
        """Set a table's default action; None is the program's own."""
        old = table.default
        table.set_default(action)
        self.note(lambda: table.set_default(old))

    def write_direct(self, table: t.Table, entry: t.Entry, packets: int, byte_count: int) -> None:
        """Set the direct counter of an entry."""
        old = table.read_direct(entry.match, entry.priority)
        table.write_direct(entry.match, entry.priority, packets, byte_count)
        self.note(lambda: table.write_direct(entry.match, entry.priority, *old))

    def write_counter(
        self, counter: t.CounterArray, index: int, packets: int, byte_count: int
    ) -> None:
        """Set one cell of an indirect counter."""
        old = counter.read(index)
        counter.write(index, packets, byte_count)
        self.note(lambda: counter.write(index, *old))

    def write_direct_meter(
        self, table: t.Table, entry: t.Entry, config: MeterConfig | None
    ) -> None:
        """Configure the direct meter of an entry; None makes it green."""
        old = table.read_meter(entry.match, entry.priority)
        table.write_meter(entry.match, entry.priority, config)
        self.note(lambda: table.write_meter(entry.match, entry.priority, old))

    def write_meter(self, meter: t.MeterArray, index: int, config: MeterConfig | None) -> None:
        """Configure one cell of an indirect meter; None makes it green."""
        old = meter.read(index)
        meter.write(index, config)
        self.note(lambda: meter.write(index, old))

    def insert_member(self, profile: t.ActionProfile, member_id: int, call: t.ActionCall) -> None:
        """Insert an action profile member."""
        profile.insert_member(member_id, call)
        self.note(lambda: profile.delete_member(member_id))

    def modify_member(
        self, profile: t.ActionProfile, member_id: int, old: t.ActionCall, call: t.ActionCall
    ) -> None:
        """Give an action profile member another action."""
        profile.modify_member(member_id, call)
        self.note(lambda: profile.modify_member(member_id, old))

    def delete_member(self, profile: t.ActionProfile, member_id: int, old: t.ActionCall) -> None:
        """Delete an action profile member."""
        profile.delete_member(member_id)
        self.note(lambda: profile.insert_member(member_id, old))

    def insert_group(
        self,
        profile: t.ActionProfile,
        group_id: int,
        members: Iterable[tuple[int, int]],
        max_size: int,
    ) -> None:
        """Insert a selector group."""
        profile.insert_group(group_id, members, max_size)
        self.note(lambda: profile.delete_group(group_id))

    def modify_group(
        self,
        profile: t.ActionProfile,
        group_id: int,
        old: t.Group,
        members: Iterable[tuple[int, int]],
        max_size: int,
    ) -> None:
        """Replace the members of a selector group."""
        profile.modify_group(group_id, members, max_size)
        self.note(lambda: profile.modify_group(group_id, old.members, old.max_size))

    def delete_group(self, profile: t.ActionProfile, group_id: int, old: t.Group) -> None:
        """Delete a selector group."""
        profile.delete_group(group_id)
        self.note(lambda: profile.insert_group(group_id, old.members, old.max_size))
