"""Fences of a process group (docs/agreement.md): who is fenced together, and what is settled.

A torch group does not say which communicators NCCL made for it. The ranks find out: they intersect,
by exchanges of minimum and maximum, the ids of the communicators of the group's size that each of
them has under the group's rank. What all have is a communicator of exactly these ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ringstep.hostlib.shm import FenceMember, ShmError, ShmFile
from ringstep.hostlib.shm_layout import CommState, Scope, SlotState

__all__ = ["Exchange", "Fences"]

Exchange = Callable[[Sequence[int]], tuple[list[int], list[int]]]
"""Gives all ranks the greatest and the least of each 64-bit word (signed), or raises."""

_NONE_LEFT: Final = (1 << 63) - 1
_NOTHING: Final = (0, 0)


class Fences:
    """The communicators that a group's ranks settle together."""

    def __init__(self, file: ShmFile, pid: int, rank: int, size: int) -> None:
        """Look for communicators in a file.

        Args:
            file: mapped writable.
            pid: of this process.
            rank: of this process in the group.
            size: ranks of the group.
        """
        self._file = file
        self._pid, self._rank, self._size = pid, rank, size
        self.own: int | None = None
        """Block that the hook's telemetry goes to; nothing is decided there."""
        self._seen: frozenset[int] = frozenset()
        self._known: tuple[int, ...] = ()
        self.epochs: dict[int, int] = {}
        """Epoch settled last, by communicator's id."""

    def mine(self) -> dict[int, int]:
        """Return this process's communicators that may be the group's: id (signed) to block."""
        comms = self._file.raw["comms"][0]
        at = np.flatnonzero(
            np.isin(comms["state"], (CommState.FILLING, CommState.FULL))
            & (comms["n_ranks"] == self._size)
        )
        ranks = comms["ranks"]
        found = {}
        for block in at.tolist():
            slots = ranks[block]
            here = (slots["pid"] == self._pid) & (slots["state"] == SlotState.ATTACHED)
            if block != self.own and bool((here & (slots["rank"] == self._rank)).any()):
                found[_signed(int(comms["comm_id"][block]))] = block
        return found

    def settle(self, exchange: Exchange) -> bool:
        """Settle what all ranks hold; every rank calls it between the same collectives.

        Returns:
            Whether a newer table is in force from the next collective on.

        Raises:
            Exception: what the exchange raised; the job has failed, as with any collective.
        """
        mine = self.mine()
        outcome = self._round(mine, frozenset(mine) != self._seen, exchange)
        if outcome is None:
            self._seen = frozenset(mine)
            self._known = _common(sorted(mine), exchange)
            outcome = self._round(mine, False, exchange)
        return bool(outcome)

    def _round(self, mine: dict[int, int], changed: bool, exchange: Exchange) -> bool | None:
        """Return whether anything newer was settled; None where communicators changed somewhere."""
        members = [self._member(mine.get(comm)) for comm in self._known]
        proposals = [_NOTHING if m is None else m.propose() for m in members]
        words = [int(changed), *(_signed(word) for pair in proposals for word in pair)]
        most, least = exchange(words)
        if most[0]:
            for member in members:
                if member is not None:
                    member.settle(agreed=False)
            return None
        switched = False
        for i, (comm, member) in enumerate(zip(self._known, members, strict=True)):
            at = slice(1 + 2 * i, 3 + 2 * i)
            agreed = most[at] == least[at] and proposals[i] != _NOTHING
            if member is not None:
                member.settle(agreed=agreed)
            if agreed and self.epochs.get(comm) != proposals[i][0]:
                self.epochs[comm] = proposals[i][0]
                switched = True
        return switched

    def _member(self, block: int | None) -> FenceMember | None:
        if block is None or int(self._file.raw["comms"][0]["scope"][block]) != Scope.FENCED:
            return None
        try:
            return self._file.fence_member(block, self._rank)
        except ShmError:
            return None  # It has just left.


def _common(ids: list[int], exchange: Exchange) -> tuple[int, ...]:
    """Return the ids that every rank has, ascending; the same on every rank."""
    left = list(reversed(ids))
    found: list[int] = []
    while True:
        lowest = left[-1] if left else _NONE_LEFT
        (most,), (least,) = exchange([lowest])
        if most == _NONE_LEFT:
            return tuple(found)
        if most == least:
            found.append(left.pop())
        while left and left[-1] < most:
            left.pop()


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
