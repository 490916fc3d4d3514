"""What is known of one switch, and what is still to be done to it. No input or output here.

Three sets tell where an entry stands. *Dirty* targets have to be planned: what is wanted there may
differ from what the switch holds. *Open* targets are not known to be right: dirty ones, those being
written, and those that the switch refuses. *Own* targets are ours: what stands at any other target
and is wanted by nobody here is foreign.

A change of n entries costs O(n). Only a comparison of everything costs more; it is done in steps,
so that the event loop is never held up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ringstep.controller.entries import EntryKey, SwitchTables
from ringstep.controller.plan import (
    Kind,
    Op,
    Place,
    Target,
    Update,
    Value,
    leads_to,
    new_jobs,
    other_places,
    put_value,
    target_of,
    update_at,
    value_at,
)
from ringstep.controller.refusals import NOT_KEPT, Refusal, refusal_summary

STEP: Final = 500
"""Targets compared between two chances for the event loop; some 2 ms."""
_PROFILE: Final = "ecmp"
_WORTH_A_WHOLE_READ: Final = 50


@dataclass(slots=True)
class Drift:
    """How what a switch holds differed from what it should hold, by number of targets."""

    missing: int = 0
    changed: int = 0
    foreign: int = 0
    kept: int = 0
    strange: list[tuple[Target, Value]] = field(default_factory=list)
    """Foreign targets that the last comparison did not find yet."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.foreign)


class Worklist:
    """Compares what a switch should hold with what it holds. ``desired`` belongs to the caller.

    ``keep_foreign``: what nobody here wants stays.
    """

    def __init__(self, desired: SwitchTables, *, keep_foreign: bool) -> None:
        self.desired = desired
        self.actual = SwitchTables()
        self.known = False
        self.refused: dict[Target, Refusal] = {}
        self.total_tried = 0
        self._keep_foreign = keep_foreign
        self._dirty: dict[Target, None] = {}
        self._open: set[Target] = set()
        self._own: set[Target] = set()
        self._foreign: set[Target] = set()
        self._held: Counter[str] = Counter()

    # -- what is asked from outside ----------------------------------------------------------

    @property
    def pending(self) -> int:
        """Number of targets that are not known to be right."""
        return len(self._open)

    @property
    def has_work(self) -> bool:
        """Whether something has to be planned."""
        return bool(self._dirty)

    def changed(self, targets: Iterable[Target]) -> None:
        """Note that something else is wanted at these targets."""
        for target in targets:
            self._dirty[target] = None
            self._open.add(target)

    def unsettled(self, keys: Collection[EntryKey]) -> bool:
        """Whether one of these is not known to be on the switch as wanted."""
        return not self.known or not self._open.isdisjoint(keys)

    def forget(self) -> None:
        """Assume nothing: there is no session any more. What is ours stays known."""
        self.known = False
        self.refused.clear()
        self._dirty.clear()
        self._open.clear()

    def emptied(self) -> None:
        """Note that the switch was just emptied, by us."""
        self._own.clear()
        self._foreign.clear()

    # -- comparing everything ----------------------------------------------------------------

    def compare(self, actual: SwitchTables) -> Iterator[Drift]:
        """Compare everything with what was read; yield after every step, the last time at the end.

        What differs is dirty then. Targets that are open already are no drift.
        """
        drift, foreign = Drift(), set[Target]()
        self.actual = actual
        self._held = Counter()
        wanted: list[Target] = [*other_places(self.desired), *self.desired.entries]
        for position, target in enumerate(wanted, 1):
            self._compare_wanted(target, drift)
            if position % STEP == 0:
                yield drift
        held: list[Target] = [*other_places(actual), *actual.entries]
        for position, target in enumerate(held, 1):
            if isinstance(target, EntryKey):
                self._held[target.table] += 1
            if value_at(self.desired, target) is None:
                self._compare_unwanted(target, drift, foreign)
            if position % STEP == 0:
                yield drift
        self._foreign = foreign
        yield drift

    def _compare_wanted(self, target: Target, drift: Drift) -> None:
        want, have = value_at(self.desired, target), value_at(self.actual, target)
        if want is None:
            return  # It was dropped meanwhile and is dirty.
        if have == want:
            self._own.add(target)
            if isinstance(target, EntryKey):
                # One object for both: keys are most of what a large table takes in memory.
                del self.actual.entries[target]
            put_value(self.actual, target, want)
            if self.refused.pop(target, None):
                self._dirty[target] = None
            return
        if target not in self._open:
            drift.missing += have is None
            drift.changed += have is not None
        self._open.add(target)
        if target not in self.refused:
            self._dirty[target] = None

    def _compare_unwanted(self, target: Target, drift: Drift, foreign: set[Target]) -> None:
        value = value_at(self.actual, target)
        if value is None or (isinstance(target, Place) and target.kind is Kind.DEFAULT):
            return
        if target not in self._own:
            drift.foreign += target not in self._open
            if target not in self._foreign and target not in self._open:
                drift.strange.append((target, value))
            foreign.add(target)
            if self._keep_foreign:
                drift.kept += 1
                return
        self._open.add(target)
        if target not in self.refused:
            self._dirty[target] = None

    # -- one round ---------------------------------------------------------------------------

    def take(self) -> Iterator[tuple[list[Update], list[Target]]]:
        """Take the dirty targets; yield, step by step, their updates, and those that are right."""
        dirty = list(self._dirty)
        self._dirty.clear()
        for start in range(0, len(dirty), STEP):
            updates, right = [], []
            for target in dirty[start : start + STEP]:
                self.refused.pop(target, None)
                update = self._update(target)
                if update is None:
                    right.append(target)
                    if value_at(self.actual, target) is None:
                        self._own.discard(target)
                else:
                    updates.append(update)
            yield updates, right

    def _update(self, target: Target) -> Update | None:
        have, want = value_at(self.actual, target), value_at(self.desired, target)
        if want is None and self._keep_foreign and target not in self._own:
            return None
        return update_at(target, have, want)

    def jobs_new_in(self, updates: Iterable[Update]) -> list[int]:
        """Return the jobs whose counters have to be set to zero before ``updates``."""
        return new_jobs(updates, self.actual)

    def is_foreign(self, target: Target) -> bool:
        """Whether what stands at a target was put there by somebody else."""
        return target not in self._own

    def admit(self, phase: Sequence[Update]) -> list[Update]:
        """Return the updates of a phase that may be written; refuse those that depend on others.

        A rule is not written where its job's parameters were refused, nor are parameters deleted
        that a rule still leads to.
        """
        if not self.refused:
            return list(phase)
        admitted = []
        needed = self._still_needed() if phase[0].op is Op.DELETE else {}
        for update in phase:
            target = target_of(update)
            reason = ""
            if update.op is Op.DELETE:
                if (user := needed.get(target)) is not None:
                    reason = f"{user} still needs it and could not be changed"
            else:
                for before in leads_to(target, update.value, _PROFILE):
                    refusal = self.refused.get(before)
                    if refusal is not None and refusal.update.op is not Op.DELETE:
                        reason = f"it needs what was refused: {refusal.update.op} {before}"
            if reason:
                self.refused[target] = Refusal(update, "not sent", reason)
            else:
                admitted.append(update)
        return admitted

    def _still_needed(self) -> dict[Target, Target]:
        return {
            before: target
            for target in self.refused
            for before in leads_to(target, value_at(self.actual, target), _PROFILE)
        }

    def writing(self, updates: Iterable[Update]) -> None:
        """Note that updates are about to be sent: what they put there is ours, come what may."""
        self._own.update(target_of(u) for u in updates if u.op is not Op.DELETE)

    def written(self, update: Update) -> None:
        """Note that the switch accepted an update."""
        target = target_of(update)
        if isinstance(target, EntryKey):
            self._held[target.table] += (update.op is Op.INSERT) - (update.op is Op.DELETE)
        if update.op is Op.DELETE:
            self._own.discard(target)
        put_value(self.actual, target, update.value)

    def whole_tables(self, asked: Mapping[str, int]) -> list[str]:
        """Return the tables of which so much is to be read back that all of it is faster.

        ``asked``: number of entries by table.
        """
        return [
            table
            for table, count in asked.items()
            if count > _WORTH_A_WHOLE_READ and 2 * count >= self._held[table]
        ]

    def check(self, updates: Iterable[Update], found: SwitchTables) -> None:
        """Compare accepted updates with what was read back; what differs counts as refused."""
        for update in updates:
            target = target_of(update)
            have = value_at(found, target)
            if have != update.value:
                put_value(self.actual, target, have)
                self.refused[target] = Refusal(update, NOT_KEPT)

    def resolve(self, stale: Iterable[Refusal], found: SwitchTables) -> None:
        """Plan anew where a refusal shows that somebody else changed the switch meanwhile.

        That is an INSERT of what exists, or a change of what does not. Where the switch contradicts
        itself the update stays refused.
        """
        for refusal in stale:
            target = target_of(refusal.update)
            put_value(self.actual, target, value_at(found, target))
            again = self._update(target)
            if again is not None and again.op is refusal.update.op:
                self.refused[target] = refusal
            else:
                self._dirty[target] = None

    def settle(self, targets: Iterable[Target]) -> list[EntryKey]:
        """Close the targets that are right now; return those that are entries."""
        closed = [t for t in targets if t not in self._dirty and t not in self.refused]
        self._open.difference_update(closed)
        return [target for target in closed if isinstance(target, EntryKey)]

    def settled_keys(self) -> Iterator[list[EntryKey]]:
        """Yield, step by step, the keys of all wanted entries that are right."""
        keys = list(self.desired.entries)
        for start in range(0, len(keys), STEP):
            yield [key for key in keys[start : start + STEP] if key not in self._open]

    def retry(self) -> None:
        """Make what was refused dirty again."""
        self._dirty.update(dict.fromkeys(self.refused))

    def refusal_text(self) -> str:
        """Say what was refused, of how many updates; empty where nothing was."""
        refused = [one for one in self.refused.values() if one.code != NOT_KEPT]
        lost = [one for one in self.refused.values() if one.code == NOT_KEPT]
        parts = []
        if refused:
            parts.append(refusal_summary(refused, self.total_tried))
        if lost:
            parts.append(
                f"{len(lost)} of {self.total_tried} updates were accepted but read back "
                f"otherwise, first: {lost[0].update}"
            )
        return "; ".join(parts)
