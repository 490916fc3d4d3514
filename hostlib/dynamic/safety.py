"""Trials: a proposed configuration stays only if it is shown to be better than NCCL's choice.

A trial begins with rows (:mod:`.opening`), because the detector's window has measured NCCL's choice
under the same contention already. What comes of it goes into a closed loop, where blocks of calls
decide on what rows left open, and checks see whether it stays better. The sequential bets
and the account of losses are those of :mod:`ringstep.protocol.loop`; an epoch there is one
collective here. The account lives on from trial to trial.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median
from typing import Final

from ringstep.hostlib.dynamic.actions import Config
from ringstep.hostlib.dynamic.opening import MOST_BEFORE, ODDS, Opening, clearly, looks_better, odds
from ringstep.protocol.loop import OUTLIER, SPENT, Arm, ClosedLoop, LoopParams, within

NCCLS: Final = "nccl"
HELD: Final = "held"
BEFORE: Final = 4
"""Calls of NCCL's choice before a trial that count as its first measurements, at least."""
PROBE: Final = 5
"""Calls of NCCL's choice in a row when what is in force takes another time than it did.

It ends with the first that takes as long as NCCL's choice did: then contention is not over.
"""
SAME: Final = 0.85
"""As long: this share of it, or more."""
PROBE_REST: Final = 16
"""Calls between two probes at least."""
JUMP: Final = 0.2
"""log ratio of the last calls to those before that is another level, if it is clear."""
SINCE: Final = 48
"""Calls of either that ranks look back on."""
_LEVEL: Final = 12
_LAST: Final = 4


@dataclass(frozen=True, slots=True)
class SafetyParams:
    """What a trial may cost, per key.

    Attributes:
        budget: the most that a key's collectives may take longer than with NCCL's choice, a share.
        startup: calls up to which that is not promised: before, 0.75 * budget * startup calls'
            time and the surprise of one call.
        worst: what one call of an untried configuration may cost beyond NCCL's, a share.
        worth: a smaller gain is none.
        confidence: of a verdict.
        check: one call in so many is NCCL's choice while another is in force.
        patience: blocks of calls after which an undecided proposal is rolled back.
        enough: calls after which one that does not look better by ``worth`` is.
        lean: calls of an undecided proposal for each of NCCL's choice beside them.
    """

    budget: float = 0.01
    startup: int = 300
    worst: float = 0.9
    worth: float = 0.03
    confidence: float = 0.95
    check: int = 96
    patience: int = 24
    enough: int = 20
    lean: int = 5

    def loop(self, seed: int) -> dict[str, float | int]:
        """Return the closed loop's parameters."""
        return {
            "startup": self.startup, "worst": self.worst, "worth": self.worth,
            "confidence": self.confidence, "check": self.check, "patience": self.patience,
            "rest": self.startup, "seed": seed, "lean": self.lean,
        }  # fmt: skip


class Verdict(Enum):
    """Where a trial stands."""

    OPEN = "open"
    KEPT = "kept"
    ROLLED_BACK = "rolled back"


class Guard:
    """The trials of one key.

    ``config()`` says what the next call shall run (None: NCCL's choice), ``observe()`` takes what
    it took. Without an open trial that is always NCCL's choice.
    """

    def __init__(self, params: SafetyParams | None = None, seed: int = 0) -> None:
        self._params = params or SafetyParams()
        self._seed = seed
        loop = self._params.loop(seed)
        # Checked once here rather than at the first trial.
        self._capacity = LoopParams(budget=self._params.budget, **loop).capacity  # type: ignore[arg-type]
        self._account = self._capacity
        self._opening: Opening | None = None
        self._loop: ClosedLoop | None = None
        self._held: Config | None = None
        """What the loop has beside NCCL's choice."""
        self._since: dict[str, deque[float]] = {}
        """What both took in this trial."""
        self._usual: deque[float] = deque(maxlen=MOST_BEFORE)
        self._calls = 0
        self._probe = 0
        self._unprobed = 0
        self._shocks = 0.0
        """What calls in a row took too long, in calls of NCCL's choice."""
        self._level: deque[float] = deque(maxlen=_LEVEL)
        self.trials = 0
        self.rollbacks = 0
        self.lost: list[Config] = []
        """Proposals of the last trial that were no better."""

    @property
    def open(self) -> bool:
        """A trial is under way, or what it proved is in force."""
        return self._opening is not None or self._loop is not None

    @property
    def account(self) -> float:
        """What may still be lost, in calls of NCCL's choice."""
        if self._opening is not None:
            return self._opening.account
        return self._loop.account if self._loop is not None else self._account

    @property
    def in_force(self) -> Config | None:
        """What is tried or kept at the moment; None: NCCL's choice."""
        if self._opening is not None:
            return self._opening.config
        if self._loop is None or self._loop.in_force == NCCLS:
            return None
        return self._held

    @property
    def proven(self) -> bool:
        """What is in force is not NCCL's choice, and was shown to be better."""
        return self._loop is not None and self.in_force is not None and self._loop.proven

    def can_open(self) -> bool:
        """Whether the account pays for a trial's first call."""
        return not self.open and self._account >= self._params.worst

    def begin(self, proposals: Sequence[Config], measured: int = BEFORE) -> bool:
        """Start a trial.

        Args:
            proposals: one or more, the best first.
            measured: how many of the last calls of NCCL's choice met the load of now.

        Returns:
            False where it cannot be paid, or NCCL's choice was hardly measured.
        """
        if not proposals or not self.can_open() or len(self._usual) < BEFORE:
            return False
        p = self._params
        before = list(self._usual)[-max(measured, BEFORE) :]
        self._opening = Opening(before, proposals, p.worth, p.worst, self._account)
        self.lost = []
        self.trials += 1
        return True

    def end(self) -> None:
        """Go back to NCCL's choice."""
        if self.open:
            self._account = min(self.account, self._capacity)
            self._opening = self._loop = self._held = None
            self._level.clear()
            self._probe, self._shocks = 0, 0.0

    def config(self) -> Config | None:
        """Return what the next call shall run; None: NCCL's choice."""
        if self._opening is not None:
            return self._opening.config
        if self._loop is None or self._probe > 0 or self._loop.next_arm().name == NCCLS:
            return None
        return self._held

    def observe(self, config: Config | None, latency_us: float) -> Verdict | None:
        """Take a call: what really ran (None: NCCL's choice) and how long it took.

        Returns:
            Where the trial stands after it; None without one.
        """
        self._calls += 1
        if config is None and self._opening is None:
            self._see_usual(latency_us)
        awaited = self._held if self._opening is None else self._opening.config
        if config is not None and config != awaited:
            self.charge(config, latency_us)  # ranks agreed on the next one only later
        if self._opening is not None:
            return self._open(self._opening, config, latency_us)
        loop = self._loop
        if loop is None:
            if self._calls > self._params.startup:
                self._account = min(self._account + SPENT * self._params.budget, self._capacity)
            return None
        if config not in (None, self._held):
            return Verdict.OPEN  # something from before the trial; it says nothing about it
        name = NCCLS if config is None else HELD
        if config is not None and self._is_shocked(latency_us):
            loop.charge(self._shocks)
            return self._roll_back()
        loop.observe(name, latency_us)
        self._since[name].append(latency_us)
        if config is not None and loop.in_force == HELD:
            self._watch_level(latency_us)
        self._unprobed += 1
        if loop.in_force == HELD and not loop.proven and self._judge(loop):
            return self._roll_back()
        loop.next_arm()  # it may find that the account no longer covers what is planned
        if loop.in_force == NCCLS or (loop.waits and not self._gains()):
            # It lost, or the account does not cover it, and it would be long until that did.
            return self._roll_back()
        return Verdict.KEPT if loop.in_force == HELD and loop.proven else Verdict.OPEN

    def charge(self, config: Config | None, latency_us: float) -> None:
        """Book a call that judges nothing: it ran late, or while connections were settling."""
        if config is None or not self._usual:
            return
        usual = median(self._usual)
        loss = within(latency_us, usual) / usual - 1
        if self._opening is not None:
            self._opening.account -= max(loss, 0.0)
        elif self._loop is not None:
            self._loop.charge(loss)
        else:
            self._account = min(self._account - loss, self._capacity)

    def _gains(self) -> bool:
        return looks_better(self._since[HELD], self._since[NCCLS], 0.0)

    def _is_shocked(self, latency_us: float) -> bool:
        """Take a call of what is in force; say whether two in a row took far too long.

        The loop books no call with more than twice NCCL's: one is chance, on many networks, and has
        NCCL's choice asked; a second is not, and what both took is booked whole.
        """
        if latency_us <= OUTLIER * max(self._usual):
            self._shocks = 0.0
            return False
        before, self._shocks = self._shocks, self._shocks + latency_us / median(self._usual) - 1
        self._probe = max(self._probe, 1)
        return before > 0

    def _judge(self, loop: ClosedLoop) -> bool:
        """Judge an undecided proposal by ranks; return whether it looks no better for long enough.

        The loop's bets are safe to look at after each call, and slow where single calls take long
        at random. A look at ranks after each call errs more often; what it lets pass is bounded by
        the account, and dropped by the loop where it turns out to be worse.
        """
        p, held, usual = self._params, self._since[HELD], self._since[NCCLS]
        if clearly(held, usual, 1 - p.worth):
            loop.accept()
        return not loop.proven and (
            len(held) >= p.enough
            and len(usual) >= MOST_BEFORE
            and not looks_better(held, usual, p.worth)
        )

    def _roll_back(self) -> Verdict:
        if self._held is not None:
            self.lost.append(self._held)
        self.rollbacks += 1
        self.end()
        return Verdict.ROLLED_BACK

    def _open(self, opening: Opening, config: Config | None, latency_us: float) -> Verdict:
        """Take a call of the opening, and go on with what it found."""
        if config is None:
            opening.before(latency_us)
        if config is None or config != opening.config:
            return Verdict.OPEN  # not in force on all ranks yet
        opening.observe(latency_us)
        if opening.config is not None:
            return Verdict.OPEN
        self.lost = opening.lost
        self._held = opening.champion or opening.undecided
        if self._held is None:
            return self._roll_back()
        p = self._params
        loop = ClosedLoop(
            [Arm(NCCLS), Arm(HELD)], NCCLS, HELD, p.budget, **p.loop(self._seed + self.trials)
        )
        for name, what in ((NCCLS, None), (HELD, self._held)):
            self._since[name] = deque(opening.calls[what], maxlen=SINCE)
            for latency in opening.calls[what]:
                loop.observe(name, latency)
        state = {**loop.to_dict(), "account": opening.account, "plan": []}
        self._loop, self._opening = ClosedLoop.from_dict(state), None
        if opening.champion is not None:
            self._loop.accept()
        return Verdict.KEPT if opening.champion is not None else Verdict.OPEN

    def _see_usual(self, latency_us: float) -> None:
        """Take a call of NCCL's choice; a probe ends where contention is not over."""
        if self._probe > 0:
            same = len(self._usual) > 0 and latency_us >= SAME * median(self._usual)
            self._probe = 0 if same else self._probe - 1
        self._usual.append(latency_us)

    def _watch_level(self, latency_us: float) -> None:
        """Ask NCCL's choice again when the network seems to be another one.

        What another configuration takes on a clean network is not known, so only its own past
        tells of a change; whether contention is over, calls in NCCL's choice say.
        """
        self._level.append(math.log(latency_us))
        logs = list(self._level)
        if len(logs) < _LEVEL or self._unprobed < PROBE_REST:
            return
        old, new = logs[:-_LAST], logs[-_LAST:]
        above = sum(a > b for a in new for b in old)
        clear = odds(len(old), len(new), min(above, len(old) * len(new) - above)) <= ODDS
        if clear and abs(median(new) - median(old)) > JUMP:
            self._probe, self._unprobed = PROBE, 0
            self._level.clear()
