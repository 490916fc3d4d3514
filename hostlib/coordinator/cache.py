"""What was answered for each key, bounded; the least recently used is forgotten."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ringstep.hostlib.coordinator.policy import CallKey
from ringstep.hostlib.shm import Decision
from ringstep.hostlib.shm_layout import Collective

__all__ = ["DecisionCache", "KeyState", "Place"]

Place = tuple[Collective, int]
"""Collective and size class."""


@dataclass(slots=True)
class KeyState:
    """One key of one communicator."""

    bytes: int
    """Of its newest collective."""
    seen: int = 0
    """Collectives so far."""
    settling: int = 0
    """Collectives left until the cooldown after a change is over."""
    changed_at: int = 0
    """Epoch of the newest change."""
    asked: CallKey | None = None
    """On its way to the policy."""
    answered_version: int | None = None
    """The policy's version that ``answer`` is of; None before the first."""
    answer: Decision | None = None
    note: str = ""
    """Why the answer is not applied."""


class DecisionCache:
    """Key states of one communicator by (collective, size class)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._states: OrderedDict[Place, KeyState] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._states)

    def touch(self, place: Place, n_bytes: int) -> KeyState:
        """Return the state of a key, a new one where it is not there."""
        state = self._states.get(place)
        if state is not None:
            self.hits += 1
            self._states.move_to_end(place)
            state.bytes = n_bytes
            return state
        self.misses += 1
        state = self._states[place] = KeyState(n_bytes)
        if len(self._states) > self._capacity:
            self._states.popitem(last=False)
        return state

    def get(self, place: Place) -> KeyState | None:
        """Return the state of a key without touching it, None where it is not there."""
        return self._states.get(place)

    def items(self) -> list[tuple[Place, KeyState]]:
        """Return all keys, least recently used first."""
        return list(self._states.items())

    def forget_answers(self) -> None:
        """Drop what another policy answered; what was counted stays."""
        for state in self._states.values():
            state.asked, state.answered_version, state.answer = None, None, None
            state.note = ""
            state.settling = 0
