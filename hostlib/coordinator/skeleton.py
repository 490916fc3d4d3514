"""What computes: from what the nodes tell to tables, epochs and offers.

One per job. It knows every communicator over all nodes (:mod:`group`), feeds the policy, asks it,
and hands out epochs. It touches no file: nodes do (:mod:`agent`), its own among them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.coordinator.calls import CallLog
from ringstep.hostlib.coordinator.gpu import mean
from ringstep.hostlib.coordinator.group import Group, Member, Pending, entries_of
from ringstep.hostlib.coordinator.inference import Answer, Inference
from ringstep.hostlib.coordinator.join import Joined
from ringstep.hostlib.coordinator.membership import grouped
from ringstep.hostlib.coordinator.messages import (
    Abandon,
    Command,
    CommGone,
    CommStatus,
    Event,
    NodeGone,
    NodeHello,
    Offer,
    OfferState,
    Outcome,
    Records,
    Where,
)
from ringstep.hostlib.coordinator.policy import (
    GpuFigures,
    NetworkFigures,
    Policy,
    Ran,
    Sample,
)
from ringstep.hostlib.coordinator.report import group_status
from ringstep.hostlib.shm import size_class
from ringstep.hostlib.shm_layout import EntryState, Scope

__all__ = ["Settings", "Skeleton"]

LOOK_S: Final = 0.05
"""Between looks for collectives that waited long enough, and after an offer that failed."""
_LOG: Final = logging.getLogger("ringstep.coordinator")


@dataclass(frozen=True, slots=True)
class Settings:
    """How the skeleton works."""

    warm_up: int = 8
    """Collectives of a key before its first decision."""
    cooldown: int = 3
    """Collectives of a key after each change before the next one."""
    nodes: int = 1
    """That have to be there before anything is offered."""
    capacity: int = 512
    """Keys remembered by communicator."""
    policy_limit_s: float = 1.0
    """What one call of the policy may take."""
    supersede_s: float = 0.05
    """Age from which an offer that nobody committed gives way to a newer table."""
    supersede_fenced_s: float = 5.0


class Skeleton:
    """Computes for all nodes.

    Args:
        make_policy: makes the policy, anew when it is resumed after a fault.
        settings: see there.
        send: passes a command to a node.
        wake: called on another thread when there is something to do.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        make_policy: Callable[[], Policy],
        settings: Settings,
        send: Callable[[str, Command], None],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._send = send
        self._wake = wake
        self._clock = clock
        self._nodes: dict[str, dict[Where, CommStatus]] = {}
        self._groups: dict[frozenset[Member], Group] = {}
        self._of: dict[Member, Group] = {}
        self._gpu: dict[str, GpuFigures] = {}
        self._thin: dict[str, int] = {}
        self._network: NetworkFigures | None = None
        self._version: int | None = None
        self._fault: str | None = None
        self._make_policy = make_policy
        self._inference = self._started(make_policy)
        self.epoch = 0
        """The highest epoch that any node or this skeleton ever used."""
        self.bypass = False
        """The operator's wish to leave NCCL alone."""
        self.refusals: list[str] = []
        """The newest reasons why a table was refused."""
        self.lost_records = 0
        self.calls = CallLog()
        """What the newest collectives of each kind took, to calibrate from."""
        self._complete = False
        """Whether all nodes have been there: no epoch is given out before."""
        self._next_look = 0.0

    def _started(self, make_policy: Callable[[], Policy]) -> Inference:
        policy = make_policy()
        return Inference(
            policy, self._wake, limit_s=self._settings.policy_limit_s, clock=self._clock
        )

    def close(self) -> None:
        """End the policy's thread."""
        self._inference.close()

    # --- the operator ---

    @property
    def policy(self) -> Policy:
        """The policy in use."""
        return self._inference.policy

    @property
    def fault(self) -> str | None:
        """Why the policy is bypassed, None while it works."""
        return self._fault

    @property
    def bypassed(self) -> bool:
        """Whether NCCL is left alone, by wish or because the policy failed."""
        return self.bypass or self._fault is not None

    def switch_policy(self, make_policy: Callable[[], Policy]) -> None:
        """Use another policy from now on; what the last one decided is taken back.

        Raises:
            PolicyError: it cannot be made; the present one stays.
        """
        started = self._started(make_policy)
        self._inference.close()
        self._inference, self._make_policy = started, make_policy
        self._fault = None
        self._version = None
        for group in self._groups.values():
            group.cache.forget_answers()
            group.asked_static.clear()
            for place in group.in_force or {}:
                state = group.cache.touch(place, 1 << place[1])
                state.answered_version = -1  # nobody's: not kept until somebody answers
            group.dirty = True

    def set_bypass(self, on: bool) -> None:
        """Leave NCCL alone, or go on; a policy that failed is made anew.

        Raises:
            PolicyError: it cannot be made anew.
        """
        if not on and self._fault is not None:
            self.switch_policy(self._make_policy)
        self.bypass = on
        for group in self._groups.values():
            group.dirty = True
            group.decided_at = self._clock()

    def note_network(self, figures: NetworkFigures | None) -> None:
        """Give the policy what the network says, with every sample from now on."""
        self._network = figures

    # --- what nodes tell ---

    def event(self, node: str, event: Event) -> None:
        """Take in what a node tells."""
        if isinstance(event, Records):
            self._records(node, event)
        elif isinstance(event, Outcome):
            self._outcome(node, event)
        elif isinstance(event, CommStatus):
            self._nodes.setdefault(node, {})[event.where] = event
            self._status(node, event)
        elif isinstance(event, CommGone):
            if self._nodes.get(node, {}).pop(event.where, None) is not None:
                self._regroup()
        elif isinstance(event, NodeHello):
            self._nodes[node] = {}
            self.epoch = max(self.epoch, event.last_epoch)
            self._regroup()
        elif isinstance(event, NodeGone):
            self._nodes.pop(node, None)
            self._gpu.pop(node, None)
            self._regroup()
        elif event.figures is None:
            self._gpu.pop(node, None)
        else:
            self._gpu[node] = event.figures

    def _status(self, node: str, status: CommStatus) -> None:
        member = (node, status.where)
        group = self._of.get(member)
        before = group.members.get(member) if group is not None else None
        if group is not None and before is not None and before.ranks == status.ranks:
            group.members[member] = status
            group.changed()
            return
        self._regroup()

    def _regroup(self) -> None:
        """Find out anew which parts on the nodes are one communicator."""
        groups = grouped(self._nodes, self._groups, self._settings.capacity)
        for identity, group in self._groups.items():
            if groups.get(identity) is not group:
                self._take_back(group)
        self._groups = groups
        self._of = {m: group for group in groups.values() for m in group.members}

    def _take_back(self, group: Group) -> None:
        pending, group.pending = group.pending, None
        for node, where in group.members if pending is not None else ():
            if where in self._nodes.get(node, {}):
                assert pending is not None
                self._send(node, Abandon(where, pending.epoch))

    def _records(self, node: str, records: Records) -> None:
        self.lost_records += records.lost
        self._thin[node] = records.thin
        now = self._clock()
        for block in np.unique(records.slots["comm"]).tolist():
            group = self._of.get((node, (block, records.generations.get(block, -1))))
            if group is None:
                continue
            group.joiner.thin = max(self._thin.get(n, 0) for n, _ in group.members)
            mine = records.slots["comm"] == block
            group.joiner.add(records.slots[mine], now)
            self._learn(group, now)

    def _learn(self, group: Group, now: float) -> None:
        for one in group.joiner.ready(group.ranks, now):
            self._sample(group, one)

    def _sample(self, group: Group, one: Joined) -> None:
        place = (one.func, size_class(one.bytes))
        state = group.cache.touch(place, one.bytes)
        phase = group.state_of(state, 0 if self.policy.static else self._settings.warm_up)
        state.seen += 1
        if state.settling > 0 and one.epoch >= state.changed_at:
            state.settling -= 1
            group.dirty |= state.settling == 0
        group.dirty |= state.seen in (1, self._settings.warm_up)
        if one.mixed:
            return
        self.calls.add(group.name, group.n_ranks, group.n_nodes, one)
        if self._fault is not None:
            return
        late = phase is EntryState.COOLDOWN and one.epoch < state.changed_at
        if late or phase not in (EntryState.WARMUP, EntryState.COOLDOWN):
            phase = EntryState.NONE  # told late: it ran what had settled before the change
        table = group.tables.get(one.epoch, {})
        self._inference.observe(
            Sample(
                key=group.key(place, one.bytes),
                index=one.index,
                coll_seq=one.coll_seq,
                start_ns=one.start_ns,
                duration_ns=one.duration_ns,
                missing=one.missing,
                ran=Ran(one.algo, one.proto, one.n_channels),
                epoch=one.epoch,
                decision=table.get(place),
                decided=one.decided,
                state=phase,
                stalls=one.stalls,
                gpu=mean([self._gpu[n] for n, _ in group.members if n in self._gpu]),
                network=self._network,
            )
        )

    # --- what follows from it ---

    def step(self) -> None:
        """Ask the policy, take its answers, put tables on offer. Quick where nothing changed."""
        now = self._clock()
        fault = self._inference.fault
        if fault is not None and self._fault is None:
            self._fault = fault
            _LOG.warning("policy %s %s: NCCL is left alone", self.policy.name, fault)
            for group in self._groups.values():
                group.dirty = True
        for answer in self._inference.answers():
            self._take(answer)
        if self._version != self._inference.version:
            self._version = self._inference.version
            for group in self._groups.values():
                group.dirty = True
        self._complete |= len(self._nodes) >= self._settings.nodes
        look_again = now >= self._next_look
        if look_again:
            self._next_look = now + LOOK_S
        for group in self._groups.values():
            if look_again and group.joiner.waiting:
                self._learn(group, now)
            if group.dirty and now >= group.not_before:
                group.dirty = False
                if self._fault is None:
                    self._ask(group)
                self._offer(group, now)

    def _ask(self, group: Group) -> None:
        if group.obstacle is not None:
            return
        policy = self.policy
        if policy.static:
            for collective in group.seen - group.asked_static:
                group.asked_static.add(collective)
                for which in range(lay.SIZE_CLASSES):
                    group.cache.touch((collective, which), 1 << which)
        for place, state in group.cache.items():
            if state.answered_version == self._inference.version or state.asked is not None:
                continue
            ready = state.seen >= self._settings.warm_up and state.settling == 0
            if (policy.static or ready) and place[0] in group.seen:
                state.asked = group.key(place, state.bytes)
                self._inference.ask(state.asked)

    def _take(self, answer: Answer) -> None:
        place = (answer.key.collective, answer.key.size_class)
        for group in self._groups.values():
            if group.name != answer.key.comm:
                continue
            state = group.cache.get(place)
            if state is None or state.asked is not answer.key:
                return  # asked before the policy was switched, or forgotten since
            state.asked = None
            state.answered_version = answer.version
            state.answer = answer.decision
            group.decided_at = answer.at
            group.dirty = True
            return

    def _offer(self, group: Group, now: float) -> None:
        if group.obstacle is not None or not self._complete:
            group.dirty |= not self._complete
            return
        if any(state.asked is not None for _, state in group.cache.items()) and not self.bypassed:
            return  # its answer will make the group dirty again: one epoch for all of them
        wanted = group.wanted(bypass=self.bypassed)
        if not group.differs(wanted) or group.was_refused(wanted):
            return
        if group.pending is not None and not self._supersede(group, now):
            return
        if self.epoch >= lay.EPOCH_MAX:
            return
        self.epoch += 1
        # Without an answer since the last offer, something else made the table another one: now.
        decided_at = group.decided_at if group.decided_at > group.offered_at else now
        group.offered_at = now
        pending = Pending(self.epoch, wanted, now, decided_at, set(group.members))
        group.pending = pending
        group.remember(self.epoch, wanted)
        entries = entries_of(wanted)
        for node, where in list(group.members):
            if group.pending is pending:
                self._send(node, Offer(where, pending.epoch, group.scope, entries))

    def _supersede(self, group: Group, now: float) -> bool:
        """Whether an offer that is not in force gives way to a newer one."""
        pending = group.pending
        assert pending is not None
        fenced = group.scope is Scope.FENCED
        age = self._settings.supersede_fenced_s if fenced else self._settings.supersede_s
        if now - pending.since < age or pending.acknowledged >= set(group.members):
            group.dirty = True  # looked at again in the next step
            return False
        return True

    def _outcome(self, node: str, outcome: Outcome) -> None:
        member = (node, outcome.where)
        group = self._of.get(member)
        pending = group.pending if group is not None else None
        if group is None or pending is None or pending.epoch != outcome.epoch:
            return
        if outcome.state in (OfferState.ACKNOWLEDGED, OfferState.COMMITTED):
            pending.acknowledged.add(member)
            return
        group.dirty = True
        if outcome.state is OfferState.APPLIED:
            pending.waiting.discard(member)
            if not pending.waiting:
                group.put_in_force(pending, self._settings.cooldown)
                group.last_ms = (self._clock() - pending.decided_at) * 1e3
                group.pending = None
            return
        group.pending = None
        group.not_before = self._clock() + LOOK_S
        for other, where in group.members:
            if (other, where) != member:
                self._send(other, Abandon(where, pending.epoch))
        if outcome.state is OfferState.REFUSED:
            why = f"{group.name} on {node}: {'; '.join(outcome.reasons)}"
            group.refuse(pending.decisions, why)
            self.refusals = [*self.refusals[-15:], why]
            _LOG.warning("a table was refused and is not offered again: %s", why)

    # --- for people ---

    def status(self) -> dict[str, Any]:
        """Return the state of everything, for ``ringstep tuner status``."""
        warm_up = 0 if self.policy.static else self._settings.warm_up
        return {
            "policy": self.policy.name,
            "policy_version": self._inference.version,
            "bypass": self.bypassed,
            "fault": self._fault,
            "epoch": self.epoch,
            "nodes": sorted(self._nodes),
            "samples_learned": self._inference.observed,
            "samples_dropped": self._inference.dropped,
            "records_lost": self.lost_records,
            "looks_at_one_in": {node: 2**thin for node, thin in sorted(self._thin.items())},
            "refusals": self.refusals,
            "communicators": [group_status(g, warm_up) for g in self._groups.values()],
        }
