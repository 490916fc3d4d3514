"""One communicator over all nodes, as the skeleton sees it, and the tables that it gets."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.coordinator.cache import DecisionCache, KeyState, Place
from ringstep.hostlib.coordinator.join import Joiner
from ringstep.hostlib.coordinator.messages import CommStatus, Where
from ringstep.hostlib.coordinator.policy import CallKey, Pair
from ringstep.hostlib.shm import Decision, DecisionTable
from ringstep.hostlib.shm_layout import Collective, EntryState, Scope

__all__ = ["Group", "Member", "Pending", "same_setting"]

Member = tuple[str, Where]
"""Node, and block with generation there."""
REMEMBERED: Final = 64
"""Epochs whose tables are still known, and tables that were refused."""


def same_setting(one: Decision | None, other: Decision | None) -> bool:
    """Whether two decisions make NCCL do the same; what they say to people does not count."""
    if one is None or other is None:
        return one is other
    return (one.algo, one.proto, one.n_channels, one.chunk_bytes, one.state) == (
        other.algo, other.proto, other.n_channels, other.chunk_bytes, other.state,
    )  # fmt: skip


@dataclass(slots=True)
class Pending:
    """A table on offer to all members of a communicator."""

    epoch: int
    decisions: dict[Place, Decision]
    since: float
    decided_at: float
    waiting: set[Member]
    """Members that have not applied it."""
    acknowledged: set[Member] = field(default_factory=set)


class Group:
    """State of one communicator.

    Args:
        name: as policies and people see it.
        members: its part on each node.
        capacity: keys remembered.
    """

    def __init__(self, name: str, members: dict[Member, CommStatus], capacity: int) -> None:
        first = next(iter(members.values()))
        self.name = name
        self.members = members
        self._usable: dict[Collective, frozenset[Pair]] = {}
        self.n_ranks = first.n_ranks
        self.n_nodes = max(first.n_nodes, len(members))
        self.cache = DecisionCache(capacity)
        self.joiner = Joiner()
        self.pending: Pending | None = None
        self.in_force: dict[Place, Decision] | None = None
        """None where it is not known: the file was taken over in the middle of an offer."""
        self.epoch = 0
        self.tables: OrderedDict[int, dict[Place, Decision]] = OrderedDict()
        self.refused: OrderedDict[int, str] = OrderedDict()
        self.asked_static: set[Collective] = set()
        self.dirty = True
        """Whether the wanted table has to be made anew."""
        self.last_ms: float | None = None
        """From decision to applied on all ranks, newest offer."""
        self.decided_at = 0.0
        self.offered_at = 0.0
        self.not_before = 0.0
        """When the next offer may follow one that failed."""
        self._take_what_is_in_force()

    def _take_what_is_in_force(self) -> None:
        """Follow what the nodes say, where it is not what was offered last."""
        epochs = {status.epoch for status in self.members.values()}
        tables = [s.table for s in self.members.values() if s.table is not None]
        if len(epochs) != 1 or None in epochs:
            return
        (epoch,) = epochs
        assert epoch is not None
        if self.in_force is not None and epoch == self.epoch and not (epoch == 0 and tables):
            return
        if self.pending is not None and self.pending.epoch == epoch:
            return  # its outcome is on its way
        self.epoch = epoch
        if epoch and epoch in self.tables:
            self.in_force = self.tables[epoch]
        elif len(tables) == len(self.members) and all((t == tables[0]).all() for t in tables):
            self.in_force = decisions_of(tables[0])
            self.remember(epoch, self.in_force)
        elif epoch == 0:
            self.in_force = {}
        else:
            self.in_force = None

    # --- what is known ---

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks that are attached, on any node."""
        return frozenset(r for status in self.members.values() for r in status.ranks)

    @property
    def scope(self) -> Scope:
        """How it switches: at fences as soon as more than one node has a part of it."""
        several = len(self.members) > 1 or self.n_nodes > 1
        fenced = any(status.scope is Scope.FENCED for status in self.members.values())
        return Scope.FENCED if several or fenced else Scope.NODE

    @property
    def obstacle(self) -> str | None:
        """Why nothing can be put in force now, None where it can."""
        statuses = self.members.values()
        if len(self.ranks) != self.n_ranks:
            return f"{len(self.ranks)} of {self.n_ranks} ranks are attached"
        if any(status.frozen for status in statuses):
            return "frozen: CUDA graphs were captured"
        if self.scope is Scope.NODE and not all(status.trusted for status in statuses):
            return "collectives cannot be counted alike on all ranks"
        return None

    def changed(self) -> None:
        """Note that a node told something else of its part."""
        self._usable.clear()
        self._take_what_is_in_force()
        self.dirty = True

    def usable(self, collective: Collective) -> frozenset[Pair]:
        """Return what every rank can use; nothing before every rank was asked for it."""
        found = self._usable.get(collective)
        if found is None:
            sets = [s.usable.get(collective, frozenset()) for s in self.members.values()]
            found = self._usable[collective] = frozenset.intersection(*sets)
        return found

    @property
    def seen(self) -> frozenset[Collective]:
        """Collectives that every rank was asked for."""
        sets = [frozenset(status.usable) for status in self.members.values()]
        return frozenset.intersection(*sets)

    def key(self, place: Place, n_bytes: int) -> CallKey:
        """Return what a policy sees of a key."""
        collective, size_class = place
        return CallKey(
            self.name, collective, size_class, n_bytes, self.n_ranks, self.n_nodes,
            self.usable(collective),
        )  # fmt: skip

    # --- tables ---

    def wanted(self, *, bypass: bool) -> dict[Place, Decision]:
        """Return the table as the policy wants it, as far as every rank can apply it."""
        if bypass:
            return {}
        made: dict[Place, Decision] = {}
        if self.in_force:
            for place, decision in self.in_force.items():
                state = self.cache.get(place)
                unanswered = state is None or state.answered_version is None
                if unanswered and (decision.algo, decision.proto) in self.usable(place[0]):
                    made[place] = decision  # of a coordinator before this one
        for place, state in self.cache.items():
            if state.answered_version is None or state.answer is None:
                continue
            if self._fits(place, state):
                made[place] = state.answer
        return made

    def _fits(self, place: Place, state: KeyState) -> bool:
        answer = state.answer
        assert answer is not None
        if (answer.algo, answer.proto) in self.usable(place[0]):
            state.note = ""
            return True
        state.note = f"{answer.algo.name}/{answer.proto.name} is not usable on every rank"
        return False

    def differs(self, wanted: dict[Place, Decision]) -> bool:
        """Whether a table is another one than what is in force, or will be."""
        current = self.pending.decisions if self.pending else self.in_force
        if current is None:
            return True
        return current.keys() != wanted.keys() or any(
            not same_setting(current[place], decision) for place, decision in wanted.items()
        )

    def remember(self, epoch: int, decisions: dict[Place, Decision]) -> None:
        """Keep what an epoch says, for records that tell of it."""
        self.tables[epoch] = decisions
        while len(self.tables) > REMEMBERED:
            self.tables.popitem(last=False)

    def refuse(self, decisions: dict[Place, Decision], why: str) -> None:
        """Never offer this table again while ranks can use what they can use now."""
        self.refused[self._mark(decisions)] = why
        while len(self.refused) > REMEMBERED:
            self.refused.popitem(last=False)

    def was_refused(self, decisions: dict[Place, Decision]) -> bool:
        """Whether a rank refused this table under the same circumstances."""
        return bool(self.refused) and self._mark(decisions) in self.refused

    def _mark(self, decisions: dict[Place, Decision]) -> int:
        usable = tuple((c, self.usable(c)) for c in sorted(self.seen))
        return hash((frozenset(decisions.items()), usable))

    def put_in_force(self, pending: Pending, cooldown: int) -> None:
        """Note that every rank applies an offer; keys that changed have a cooldown."""
        before = self.in_force or {}
        for place in before.keys() | pending.decisions.keys():
            state = self.cache.get(place)
            old, new = before.get(place), pending.decisions.get(place)
            if state is not None and not same_setting(old, new):
                state.settling = cooldown
                state.changed_at = pending.epoch
        self.in_force, self.epoch = pending.decisions, pending.epoch

    def state_of(self, state: KeyState, warm_up: int) -> EntryState:
        """Return in which phase a key is."""
        if state.seen < warm_up:
            return EntryState.WARMUP
        if state.settling > 0:
            return EntryState.COOLDOWN
        return EntryState.NONE if state.answer is None else state.answer.state


def entries_of(decisions: dict[Place, Decision]) -> np.ndarray[Any, Any]:
    """Return a table's entries."""
    table = DecisionTable()
    first: dict[tuple[Collective, Decision], int] = {}
    alike: dict[tuple[Collective, int], list[int]] = {}
    for (collective, size_class), decision in decisions.items():
        model = first.setdefault((collective, decision), size_class)
        alike.setdefault((collective, model), []).append(size_class)
        if model == size_class:
            table.set(collective, size_class, decision)
    for (collective, model), classes in alike.items():
        table.entries[collective, classes] = table.entries[collective, model]
    return table.entries


def decisions_of(entries: np.ndarray[Any, Any]) -> dict[Place, Decision]:
    """Return what a table decides."""
    table = DecisionTable(entries)
    found = {}
    for collective in Collective:
        for size_class in np.flatnonzero(entries[collective]["flags"] == lay.ENTRY_VALID).tolist():
            decision = table.get(collective, size_class)
            if decision is not None:
                found[(collective, size_class)] = decision
    return found
