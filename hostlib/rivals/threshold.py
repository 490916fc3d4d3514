"""Simple rules on the contention ratio, each with one configuration to switch to.

They use the same baseline as the learned policy and nothing else: a learned model has to beat them.
The configuration for contention is the same for all: a ring with bulk messages and every channel,
which takes the largest share of a link.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ringstep.hostlib.dynamic.actions import MAX_CHANNELS, Config, Key
from ringstep.hostlib.dynamic.baseline import Baselines
from ringstep.hostlib.dynamic.policy import COOLDOWN, WARM_UP
from ringstep.hostlib.dynamic.safety import Guard, SafetyParams, Verdict
from ringstep.hostlib.dynamic.sample import BadSample, Sample, check
from ringstep.hostlib.dynamic.sprt import State
from ringstep.hostlib.shm_layout import Algo, Proto

CONTENDED: Final = Config(Algo.RING, Proto.SIMPLE, MAX_CHANNELS)


@dataclass(slots=True)
class _Watched:
    state: State = State.STEADY
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    up: float = 0.0
    down: float = 0.0
    tick: int = 0
    cooldown: int = 0
    last_ns: int | None = None
    guard: Guard | None = None
    rejected: bool = False


class _Rule:
    """What the rules share: baseline, warm-up, cooldown, and a trial where ``safety`` is given."""

    def __init__(
        self,
        config: Config = CONTENDED,
        baselines: Baselines | None = None,
        safety: SafetyParams | None = None,
    ) -> None:
        self._config = config
        self._baselines = baselines or Baselines()
        self._safety = safety
        self._watched: dict[Key, _Watched] = {}

    def process(self, key: Key) -> Config | None:
        """Return the configuration for contention while it is sustained."""
        w = self._watched.get(key)
        if w is None:
            return None
        if w.guard is not None:
            return w.guard.config()
        return self._config if w.state is State.SUSTAINED else None

    def observe(self, sample: Sample) -> None:
        """Take a finished call."""
        w = self._watched.setdefault(sample.key, _Watched())
        try:
            check(sample, w.last_ns)
        except BadSample:
            return
        w.last_ns = sample.time_ns
        if self._safety is not None and w.guard is None:
            w.guard = Guard(self._safety)
        baseline = self._baselines.of(sample.key)
        if w.tick > 0 and not sample.decided:
            baseline.add(sample.latency_us)
        clean_us, w.tick = baseline.value, w.tick + 1
        if clean_us is None or w.tick <= WARM_UP:
            return
        w.state = self._judge(w, math.log2(sample.latency_us / clean_us))
        if w.guard is None:
            return
        verdict = w.guard.observe(
            sample.config.plain if sample.decided else None, sample.latency_us
        )
        if verdict is Verdict.ROLLED_BACK:
            w.rejected, w.cooldown = True, COOLDOWN
        elif w.cooldown > 0:
            w.cooldown -= 1
        elif w.state is not State.SUSTAINED:
            w.rejected = False
            w.guard.end()
        elif not w.rejected and w.guard.can_open() and w.guard.begin([self._config]):
            w.cooldown = COOLDOWN

    def state(self, key: Key) -> State:
        """Return the network's state as the rule sees it."""
        w = self._watched.get(key)
        return State.STEADY if w is None else w.state

    def _judge(self, w: _Watched, log_rho: float) -> State:
        raise NotImplementedError


class ThresholdRule(_Rule):
    """Sustained when ``calls`` calls in a row are slower than ``ratio`` times the baseline.

    Over when as many in a row are faster than ``over`` times.
    """

    def __init__(
        self, ratio: float = 1.2, calls: int = 4, over: float = 1.05, **more: object
    ) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        if not (ratio >= over > 0 and calls >= 1):
            raise ValueError(
                f"ratio {ratio}, over {over}, calls {calls}: ratio >= over > 0, calls >= 1"
            )
        self._ratio, self._over, self._calls = math.log2(ratio), math.log2(over), calls

    def _judge(self, w: _Watched, log_rho: float) -> State:
        w.recent.append(log_rho)
        last = list(w.recent)[-self._calls :]
        if len(last) == self._calls and min(last) > self._ratio:
            return State.SUSTAINED
        if w.state is State.SUSTAINED and max(last) > self._over:
            return State.SUSTAINED
        return State.SPIKE if log_rho > self._ratio else State.STEADY


class CusumRule(_Rule):
    """Page's test on log2 of the ratio, each call cut so that ``calls`` of them are needed.

    ``reference`` is taken from every call's ratio, ``height`` is where the sum decides; both are in
    doublings. This is a sequential probability ratio test for a shift of the mean that starts anew
    whenever it finds none.
    """

    def __init__(
        self, reference: float = 0.15, height: float = 0.7, calls: int = 4, **more: object
    ) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        if not (reference > 0 and height > 0 and calls >= 1):
            raise ValueError(f"reference {reference}, height {height}, calls {calls}: above 0")
        self._reference, self._height = reference, height
        self._cut = height / (calls - 0.5)

    def _judge(self, w: _Watched, log_rho: float) -> State:
        step = min(max(log_rho - self._reference, -self._cut), self._cut)
        w.up, w.down = max(w.up + step, 0.0), max(w.down - step, 0.0)
        if w.state is State.SUSTAINED:
            if w.down < self._height:
                return State.SUSTAINED
            w.up = 0.0
        elif w.up >= self._height:
            w.down = 0.0
            return State.SUSTAINED
        return State.SPIKE if log_rho > self._reference else State.STEADY
