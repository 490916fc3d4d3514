"""Trials: a proposed configuration stays only if it is shown to be better than NCCL's choice.

The sequential bets and the account of losses are those of :mod:`ringstep.protocol.loop`; an epoch
there is one collective here. What this adds: a trial begins with the proposal in force, because
the detector's window has measured NCCL's choice under the same contention already, and the account
lives on from trial to trial.
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
from ringstep.protocol.loop import SPENT, Arm, ClosedLoop, LoopParams

NCCLS: Final = "nccl"
BEFORE: Final = 4
"""Calls of NCCL's choice before a trial that count as its first measurements."""
OPENING: Final = 5
"""Calls of the proposal in a row that a trial begins with.

Where all of them are faster than all of the calls before, by what a gain must be worth, it counts
as shown: of all orders of 4 + 5 calls that are alike, one in 126 looks so. The load may have
changed in that moment, which checks find out; what it saves is two switches for each pair of calls.
"""
PROBE: Final = 5
"""Calls of NCCL's choice in a row when what is in force takes another time than it did."""
PROBE_REST: Final = 16
"""Calls between two probes at least."""
JUMP: Final = 0.2
"""log ratio of the last calls to those before that is another level."""
_LEVEL: Final = 12
_LAST: Final = 3


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
        patience: pairs of calls after which an undecided proposal is rolled back.
    """

    budget: float = 0.01
    startup: int = 200
    worst: float = 0.9
    worth: float = 0.03
    confidence: float = 0.95
    check: int = 48
    patience: int = 24

    def loop(self, seed: int) -> dict[str, float | int]:
        """Return the closed loop's parameters."""
        return {
            "startup": self.startup, "worst": self.worst, "worth": self.worth,
            "confidence": self.confidence, "check": self.check, "patience": self.patience,
            "rest": self.startup, "seed": seed,
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
        self._loop: ClosedLoop | None = None
        self._configs: dict[str, Config | None] = {}
        self._before: deque[float] = deque(maxlen=BEFORE)
        self._calls = 0
        self._probe = 0
        self._opening: list[float] | None = None
        self._unprobed = 0
        self._level: deque[float] = deque(maxlen=_LEVEL)
        self.trials = 0
        self.rollbacks = 0

    @property
    def open(self) -> bool:
        """A trial is under way, or what it proved is in force."""
        return self._loop is not None

    @property
    def account(self) -> float:
        """What may still be lost, in calls of NCCL's choice."""
        return self._loop.account if self._loop is not None else self._account

    @property
    def in_force(self) -> Config | None:
        """What is kept at the moment; None: NCCL's choice."""
        return None if self._loop is None else self._configs[self._loop.in_force]

    @property
    def proven(self) -> bool:
        """What is in force is not NCCL's choice, and was shown to be better."""
        return self.in_force is not None and self._loop is not None and self._loop.proven

    def can_open(self) -> bool:
        """Whether the account pays for a trial's first call."""
        return self._loop is None and self._account >= self._params.worst

    def begin(self, proposals: Sequence[Config]) -> bool:
        """Start a trial of one or more proposals, the best first; False where it cannot be paid."""
        if not proposals or not self.can_open():
            return False
        names = [f"proposal {i}" for i in range(len(proposals))]
        loop = ClosedLoop(
            [Arm(NCCLS), *(Arm(name) for name in names)], NCCLS, names[0],
            self._params.budget, **self._params.loop(self._seed + self.trials),
        )  # fmt: skip
        for latency in self._before:
            loop.observe(NCCLS, latency)
        state = {**loop.to_dict(), "account": self._account}
        if len(self._before) == BEFORE:
            state["plan"] = [names[0]]  # NCCL's part of the first block has been measured
        self._loop = ClosedLoop.from_dict(state)
        self._configs = {NCCLS: None, **dict(zip(names, proposals, strict=True))}
        self._opening = [] if len(self._before) == BEFORE else None
        self.trials += 1
        return True

    def end(self) -> None:
        """Go back to NCCL's choice."""
        if self._loop is not None:
            self._account = min(self._loop.account, self._capacity)
            self._loop = None
            self._before.clear()
            self._level.clear()
            self._probe, self._opening = 0, None

    def config(self) -> Config | None:
        """Return what the next call shall run; None: NCCL's choice."""
        if self._loop is None or self._probe > 0:
            return None
        if self._opening is not None:
            return self._configs["proposal 0"]
        return self._configs[self._loop.next_arm().name]

    def observe(self, config: Config | None, latency_us: float) -> Verdict | None:
        """Take a call: what really ran (None: NCCL's choice) and how long it took.

        Returns:
            Where the trial stands after it; None without one.
        """
        self._calls += 1
        loop = self._loop
        if loop is None:
            if self._calls > self._params.startup:
                self._account = min(self._account + SPENT * self._params.budget, self._capacity)
            if config is None:
                self._before.append(latency_us)
            return None
        name = next((n for n, c in self._configs.items() if c == config), None)
        if name is None:
            return Verdict.OPEN  # something from before the trial; it says nothing about it
        loop.observe(name, latency_us)
        if self._opening is not None:
            loop = self._open(loop, config, latency_us)
        self._watch_level(config, latency_us, name == loop.in_force)
        loop.next_arm()  # it may find that the account no longer covers what is planned
        if loop.in_force != NCCLS:
            return Verdict.KEPT if loop.proven else Verdict.OPEN
        if loop.rival is not None and len(self._configs) > 2 and loop.account >= self._params.worst:
            return Verdict.OPEN
        self.rollbacks += 1
        self.end()
        return Verdict.ROLLED_BACK

    def _open(self, loop: ClosedLoop, config: Config | None, latency_us: float) -> ClosedLoop:
        """Judge the calls that a trial begins with; return the loop that goes on."""
        opening, fast = self._opening, (1 - self._params.worth) * min(self._before)
        if config != self._configs["proposal 0"] or opening is None:
            return loop
        opening.append(latency_us)
        if latency_us > fast or loop.in_force == NCCLS:
            self._opening = None  # not clearly better: pairs of calls decide
        elif len(opening) == OPENING:
            self._opening = None
            loop = ClosedLoop.from_dict({**loop.to_dict(), "proven": True, "plan": []})
            self._loop = loop
        return loop

    def _watch_level(self, config: Config | None, latency_us: float, held: bool) -> None:
        """Ask NCCL's choice again when the network seems to be another one.

        What another configuration takes on a clean network is not known, so only its own past
        tells of a change; whether contention is over, calls in NCCL's choice say.
        """
        self._unprobed += 1
        if config is None:
            self._probe = max(self._probe - 1, 0)
            return
        if not held:
            return
        self._level.append(math.log(latency_us))
        logs = list(self._level)
        if len(logs) < 2 * _LAST or self._unprobed < PROBE_REST:
            return
        if abs(median(logs[-_LAST:]) - median(logs[:-_LAST])) > JUMP:
            self._probe, self._unprobed = PROBE, 0
            self._level.clear()
