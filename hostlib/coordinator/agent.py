"""One node's half: puts tables on offer in its shared-memory file, commits them, reads telemetry.

The skeleton has one in its own process, every stub has one at the other end of a link. It decides
nothing; it says what is there and does what it is told, as docs/agreement.md wants it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.coordinator.messages import (
    Abandon,
    Command,
    CommGone,
    CommStatus,
    Event,
    Offer,
    OfferState,
    Outcome,
    Records,
    Where,
)
from ringstep.hostlib.coordinator.policy import Pair
from ringstep.hostlib.coordinator.telemetry import NO_COMM, Tails
from ringstep.hostlib.coordinator.thinning import Pace, kept_of
from ringstep.hostlib.shm import Commit, DecisionTable, ShmError, ShmFile, alive
from ringstep.hostlib.shm_layout import (
    Algo,
    Clock,
    Collective,
    CommState,
    Once,
    Proto,
    Reason,
    Scope,
    SlotState,
)

__all__ = ["NodeAgent"]

RECORDS_PER_S: Final = 4000.0
"""Looked at closely, over all ranks; where more come, whole collectives are left out."""
RECORDS_FOR_PEOPLE: Final = 500.0
"""The same where no policy learns from them."""
ROLL_CALL_S: Final = 1.0
ROLL_CALLS: Final = 4
"""In a row that nobody answered and no count moved: the communicator is dead."""
_LIVE: Final = (CommState.FILLING, CommState.FULL)
_PAIRS: Final = tuple((1 << (4 * a + p), (a, p)) for a in Algo for p in Proto)


@dataclass(slots=True)
class _Outstanding:
    offer: Offer
    since: float
    state: OfferState | None = None
    progress: tuple[int, float] = (0, 0.0)
    """Sum of the ranks' indices and when it last changed."""


class NodeAgent:
    """Works on the file of one node.

    Args:
        file: owned by this process.
        fences: whether communicators of one node switch at fences too (jobs with CUDA graphs).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        file: ShmFile,
        *,
        fences: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._fences = fences
        self._clock = clock
        self._blocks = file.raw["comms"][0]
        self._states = self._blocks["state"]
        self._generations = self._blocks["generation"]
        self._tails = Tails(file)
        self._offers: dict[Where, _Outstanding] = {}
        self._known: dict[int, tuple[Where, bytes]] = {}
        self._told: dict[Where, tuple[int | None, bool]] = {}
        """Epoch in force, and whether that is the static table, as told last."""
        self._fresh: dict[int, Where] = {}
        self._since_ns: dict[int, int] = {}
        """By block: records that began before are of the communicator that had it before."""
        self._silent: dict[int, tuple[tuple[int, int], int]] = {}
        self._next_roll_call = 0.0
        self._has_place = np.zeros(NO_COMM + 1, bool)
        self._pace = Pace(RECORDS_PER_S)
        self._last_read = clock()
        self._lost = 0
        self._last_scan_ns = 0
        self._withdraw_orphans()
        self.unplaced = 0
        """Records of communicators that are gone or have no block."""

    def _withdraw_orphans(self) -> None:
        """Take back what a coordinator before this one had on offer."""
        for block in range(lay.MAX_COMMS):
            if int(self._states[block]) in _LIVE:
                self._file.abandon(block, int(self._blocks["announced"][block]))

    # --- looking ---

    @property
    def last_epoch(self) -> int:
        """The highest epoch ever announced in the file."""
        return self._file.last_epoch

    @property
    def file_id(self) -> int:
        """Names the file itself."""
        return int(self._file.raw["header"][0]["file_id"])

    @property
    def offers_out(self) -> int:
        """Offers that have not come to their end."""
        return len(self._offers)

    def look_closely(self, wanted: bool) -> None:
        """Read many records, or only as many as people want to see."""
        self._pace.per_second = RECORDS_PER_S if wanted else RECORDS_FOR_PEOPLE

    def forget(self) -> None:
        """Tell everything anew from the next scan on: there is somebody new to tell it to."""
        self._known = {}
        self._told = {}

    def scan(self) -> list[Event]:
        """Return what changed in communicators since the last call, and new telemetry."""
        found: list[Event] = []
        states = self._states.copy()
        if self._clock() >= self._next_roll_call:
            self._next_roll_call = self._clock() + ROLL_CALL_S
            self._call_the_roll(states)
        live = set(np.flatnonzero((states == _LIVE[0]) | (states == _LIVE[1])).tolist())
        for block in sorted(live | self._known.keys()):
            known = self._known.get(block)
            if block in live and not self._is_dead(block):
                found += self._look_at(block, known)
            elif known is not None:
                found.append(self._drop(block, known[0]))
        records = self._records()
        self._last_scan_ns = time.monotonic_ns()
        if records is not None:
            found.append(records)
        return found

    def _call_the_roll(self, states: np.ndarray[Any, Any]) -> None:
        """Find communicators whose processes are all gone; nobody closes those.

        A process of another pid namespace seems gone too, but its count goes on.
        """
        for block in range(lay.MAX_COMMS):
            before = self._silent.pop(block, None)
            if states[block] not in _LIVE:
                continue
            slots = self._blocks["ranks"][block]
            here = slots[slots["state"] == SlotState.ATTACHED]
            mark = (int(self._generations[block]), int(here["index"].sum()))
            if len(here) and not any(alive(int(p), int(s)) for p, s in zip(
                here["pid"], here["pid_start"], strict=True
            )):  # fmt: skip
                times = before[1] + 1 if before is not None and before[0] == mark else 1
                self._silent[block] = (mark, times)

    def _is_dead(self, block: int) -> bool:
        return self._silent.get(block, ((0, 0), 0))[1] >= ROLL_CALLS

    def _drop(self, block: int, where: Where) -> CommGone:
        del self._known[block]
        self._offers.pop(where, None)
        return CommGone(where)

    def _look_at(self, block: int, known: tuple[Where, bytes] | None) -> list[Event]:
        found: list[Event] = []
        where = (block, int(self._generations[block]))
        if known is not None and known[0] != where:
            found.append(self._drop(block, known[0]))
            known = None
        if self._fresh.get(block, where)[1] != where[1]:
            self._since_ns[block] = self._last_scan_ns
        self._fresh[block] = where
        view = self._blocks[block]
        print_ = self._fingerprint(view)
        if known is not None and known[1] == print_:
            return found
        status = self._status(where, view)
        if int(self._generations[block]) != where[1] or int(self._states[block]) not in _LIVE:
            return found  # Taken by another communicator while we looked.
        self._known[block] = (where, print_)
        found.append(status)
        return found

    @staticmethod
    def _fingerprint(view: Any) -> bytes:
        slots = view["ranks"]
        gate = int(view["gate"])
        frozen = (gate & lay.INDEX_MASK) == lay.INDEX_MASK
        head = (int(view["attached"]), int(view["scope"]), gate >> lay.INDEX_BITS, frozen,
                int(view["once"]))  # fmt: skip
        names = ["state", "rank", "clock", "seen", "usable"]
        if int(view["scope"]) == Scope.FENCED:
            names.append("in_force")
        return repr(head).encode() + b"".join(slots[name].tobytes() for name in names)

    def _status(self, where: Where, view: Any) -> CommStatus:
        self._choose_scope(view)
        slots = view["ranks"]
        here = slots[slots["state"] == SlotState.ATTACHED]
        ranks = here["rank"]
        named = ranks != lay.RANK_UNKNOWN
        n_ranks = int(view["n_ranks"])
        gate = int(view["gate"])
        scope = Scope(int(view["scope"])) if int(view["scope"]) in (0, 1) else Scope.NODE
        epoch: int | None = gate >> lay.INDEX_BITS
        if scope is Scope.FENCED:
            in_force = {int(e) for e in here["in_force"]}
            epoch = in_force.pop() if len(in_force) == 1 else None if in_force else 0
        usable: dict[Collective, frozenset[Pair]] = {}
        if len(here) and named.all():
            seen = int(np.bitwise_and.reduce(here["seen"]))
            both = np.bitwise_and.reduce(here["usable"], axis=0).tolist()
            for which in Collective:
                if seen >> which & 1:
                    usable[which] = frozenset(p for bit, p in _PAIRS if both[which] & bit)
        static = epoch == 0 and int(view["once"]) == Once.ON
        bank = self._file.raw["static_bank"][0] if static else view["bank"]
        table = None
        if self._told.get(where) != (epoch, static):
            self._told = {w: told for w, told in self._told.items() if w[0] != where[0]}
            self._told[where] = (epoch, static)
            if static or (epoch and int(bank["epoch"]) == epoch):
                table = bank["entries"].copy()
        return CommStatus(
            where=where,
            comm_id=int(view["comm_id"]),
            n_ranks=n_ranks,
            n_nodes=int(view["n_nodes"]),
            scope=scope,
            ranks=tuple(sorted(int(r) for r in ranks[named])),
            whole=len(here) == n_ranks and len({int(r) for r in ranks[named]}) == n_ranks,
            trusted=bool((here["clock"] == Clock.TRUSTED).all()),
            frozen=(gate & lay.INDEX_MASK) == lay.INDEX_MASK and scope is Scope.NODE,
            epoch=epoch,
            usable=usable,
            table=table,
        )

    def _choose_scope(self, view: Any) -> None:
        """Nodes cannot look at one word: what spans several switches at the job's fences."""
        fenced = self._fences or int(view["n_nodes"]) > 1
        untouched = int(view["announced"]) == 0 and int(view["gate"]) >> lay.INDEX_BITS == 0
        if fenced and untouched and int(view["bank"]["epoch"]) == 0:
            view["scope"] = Scope.FENCED

    def _records(self) -> Records | None:
        slots = self._tails.read()
        lost = self._tails.lost
        newly, self._lost = lost - self._lost, lost
        now = self._clock()
        self._pace.note(0 if slots is None else len(slots), now - self._last_read)
        self._last_read = now
        if slots is None:
            return Records(np.zeros(0, lay.RECORD), {}, newly) if newly else None
        generations = {block: where[1] for block, (where, _) in self._known.items()}
        self._has_place[:] = False
        self._has_place[list(generations)] = True
        placed = self._has_place[slots["comm"]]
        for block, since in self._since_ns.items():
            stale = (slots["comm"] == block) & (slots["start_ns"] < since)
            placed &= ~(stale & (slots["kind"] == lay.RecordKind.COLLECTIVE))
        self.unplaced += int((~placed).sum())
        placed &= kept_of(slots["coll_seq"], self._pace.thin)
        return Records(slots[placed], generations, newly, self._pace.thin)

    # --- doing ---

    def handle(self, command: Command) -> list[Event]:
        """Do what the skeleton wants; what cannot be done is told as an outcome."""
        if isinstance(command, Abandon):
            out = self._offers.get(command.where)
            if out is not None and out.offer.epoch == command.epoch:
                self._withdraw(command.where, command.epoch)
            return []
        return self._offer(command)

    def _withdraw(self, where: Where, epoch: int) -> None:
        self._offers.pop(where, None)
        if self._here(where):
            self._file.abandon(where[0], epoch)

    def abandon_all(self) -> None:
        """Take back what is not committed; what is in force stays."""
        for where, out in list(self._offers.items()):
            self._withdraw(where, out.offer.epoch)

    def _here(self, where: Where) -> bool:
        block, generation = where
        return (
            0 <= block < lay.MAX_COMMS
            and int(self._generations[block]) == generation
            and int(self._states[block]) in _LIVE
        )

    def _offer(self, offer: Offer) -> list[Event]:
        where = offer.where
        if not self._here(where):
            return [Outcome(where, offer.epoch, OfferState.GONE)]
        view = self._blocks[where[0]]
        if int(view["scope"]) != offer.scope:
            try:
                self._file.set_scope(where[0], offer.scope)
            except ShmError as error:
                return [Outcome(where, offer.epoch, OfferState.REFUSED, (str(error),))]
        try:
            self._file.announce(where[0], offer.epoch, DecisionTable(offer.entries))
        except ShmError as error:
            return [Outcome(where, offer.epoch, OfferState.REFUSED, (str(error),))]
        now = self._clock()
        self._offers[where] = _Outstanding(offer, now, progress=(0, now))
        return self._check(where)

    def check_offers(self) -> list[Event]:
        """Return how outstanding offers came further since the last call. Cheap."""
        found: list[Event] = []
        for where in list(self._offers):
            found += self._check(where)
        return found

    def offer_age(self) -> float | None:
        """Return seconds since the youngest outstanding offer moved, None without any."""
        now = self._clock()
        ages = [now - max(out.since, out.progress[1]) for out in self._offers.values()]
        return min(ages, default=None)

    def _check(self, where: Where) -> list[Event]:
        out = self._offers[where]
        epoch = out.offer.epoch
        if not self._here(where):
            del self._offers[where]
            return [self._outcome(out, OfferState.GONE)]
        slots = self._blocks["ranks"][where[0]]
        here = slots["state"] == SlotState.ATTACHED
        found: list[Event] = []
        if out.state is not OfferState.COMMITTED:
            refused = here & (slots["refused_epoch"] == epoch) & (slots["ack_epoch"] != epoch)
            if refused.any():
                reasons = self._why(slots[refused])
                self._withdraw(where, epoch)
                return [self._outcome(out, OfferState.REFUSED, reasons)]
        if out.state is None and bool((slots["ack_epoch"][here] == epoch).all()) and here.any():
            out.state = OfferState.ACKNOWLEDGED
            found.append(self._outcome(out, OfferState.ACKNOWLEDGED))
        if out.state is OfferState.ACKNOWLEDGED and out.offer.scope is Scope.NODE:
            found += self._commit(where, out)
            if where not in self._offers:
                return found
        waits_for_ranks = out.state is OfferState.COMMITTED or out.offer.scope is Scope.FENCED
        if waits_for_ranks and here.any() and bool((slots["in_force"][here] == epoch).all()):
            del self._offers[where]
            found.append(self._outcome(out, OfferState.APPLIED))
            return found
        moved = int(slots["index"][here].sum())
        if moved != out.progress[0]:
            out.progress = (moved, self._clock())
        return found

    def _commit(self, where: Where, out: _Outstanding) -> list[Event]:
        try:
            outcome = self._file.commit(where[0], out.offer.epoch)
        except ShmError:
            del self._offers[where]
            return [self._outcome(out, OfferState.GONE)]
        if outcome is Commit.DONE:
            out.state = OfferState.COMMITTED
            return [self._outcome(out, OfferState.COMMITTED)]
        if outcome is Commit.FROZEN:
            self._withdraw(where, out.offer.epoch)
            return [self._outcome(out, OfferState.FROZEN, (Commit.FROZEN.value,))]
        return []

    def _outcome(
        self, out: _Outstanding, state: OfferState, reasons: tuple[str, ...] = ()
    ) -> Outcome:
        took = (self._clock() - out.since) * 1e3
        return Outcome(out.offer.where, out.offer.epoch, state, reasons, took)

    @staticmethod
    def _why(slots: Any) -> tuple[str, ...]:
        refusals = (Reason.BAD_ENTRY, Reason.NOT_FOR_COLLECTIVE, Reason.NOT_USABLE_EVERYWHERE,
                    Reason.BAD_DIGEST)  # fmt: skip
        bits = int(np.bitwise_or.reduce(slots["reasons"]))
        ranks = sorted(int(r) for r in slots["rank"])
        why = ", ".join(r.name.lower() for r in refusals if bits >> r & 1) or "no reason given"
        return (f"ranks {ranks}: {why}",)
