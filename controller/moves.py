"""How a running job moves to other paths: what to write, in which order.

First what only adds, so that every switch knows the job wherever its packets may soon pass; then
the flips, rules that pin another path, which take effect at a step boundary; last what is no
longer needed. All of a phase may be written at once, on all switches; a phase starts when the one
before is on the switches. Every pinned port is on a shortest path, so packets reach their target
whatever mix of old and new rules they meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringstep.controller.desired import RULE_TABLES
from ringstep.controller.entries import EntryKey, EntryValue

_RULES = frozenset(RULE_TABLES.values())

Writes = dict[str, dict[EntryKey, EntryValue]]
"""Switch -> entries to insert or modify."""


@dataclass(frozen=True, slots=True)
class Move:
    """The phases of a move; a switch that a phase does not touch is not in it.

    Attributes:
        adds: entries that are new, and parameters and blocks that change.
        flips: existing rules whose path id changes.
        removals: entries to be deleted, with the value that they have.
    """

    adds: Writes
    flips: Writes
    removals: Writes

    def __bool__(self) -> bool:
        return bool(self.adds or self.flips or self.removals)


def plan_move(
    old: Mapping[str, Mapping[EntryKey, EntryValue]],
    new: Mapping[str, Mapping[EntryKey, EntryValue]],
) -> Move:
    """Split the way from one state of a job's entries to another into phases.

    Args:
        old: switch -> entries of the job now, as :func:`ringstep.controller.desired.job_entries`.
        new: the same as it shall be.
    """
    move = Move({}, {}, {})
    for switch in sorted({*old, *new}):
        before, after = old.get(switch, {}), new.get(switch, {})
        if before is after:
            continue
        adds: dict[EntryKey, EntryValue] = {}
        flips: dict[EntryKey, EntryValue] = {}
        for key, value in after.items():
            known = before.get(key)
            if known is None:
                adds[key] = value
            elif known != value:
                (flips if key.table in _RULES else adds)[key] = value
        removals = {key: value for key, value in before.items() if key not in after}
        for phase, entries in ((move.adds, adds), (move.flips, flips), (move.removals, removals)):
            if entries:
                phase[switch] = entries
    return move
