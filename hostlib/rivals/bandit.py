"""A bandit over the legal configurations: UCB on log latencies, with a memory that fades.

It has no detector: it explores from the first call on, and what it learned fades, so that it can
follow a network that changes (discounted UCB: Garivier and Moulines, ALT 2011).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ringstep.hostlib.dynamic.actions import LEGAL, Config, Key, decode
from ringstep.hostlib.dynamic.sample import BadSample, Sample, check

BOUND: Final = 1.0
"""Log latencies are taken to differ by about this much."""


class _Arms:
    def __init__(self, key: Key) -> None:
        actions = np.flatnonzero(LEGAL[key.collective]).tolist()
        self.configs: list[Config | None] = [None, *(decode(a).plain for a in actions)]
        self.pulls = np.zeros(len(self.configs))
        self.sums = np.zeros(len(self.configs))
        self.last_ns: int | None = None


class UcbBandit:
    """Discounted UCB; the first arm is NCCL's choice.

    Args:
        fade: factor on what was seen, per call.
        explore: weight of the bonus.
    """

    def __init__(self, fade: float = 0.995, explore: float = 0.15) -> None:
        if not (0 < fade <= 1 and explore > 0):
            raise ValueError(f"fade {fade}: 0 to 1; explore {explore}: above 0")
        self._fade, self._explore = fade, explore
        self._arms: dict[Key, _Arms] = {}

    def process(self, key: Key) -> Config | None:
        """Return the arm whose lower bound is lowest; arms never pulled come first, in order."""
        arms = self._arms.setdefault(key, _Arms(key))
        unseen = np.flatnonzero(arms.pulls < 1e-3)
        if len(unseen):
            return arms.configs[int(unseen[0])]
        total = max(math.log(arms.pulls.sum()), 0.0)
        bonus = self._explore * BOUND * np.sqrt(total / arms.pulls)
        return arms.configs[int(np.argmin(arms.sums / arms.pulls - bonus))]

    def observe(self, sample: Sample) -> None:
        """Take a finished call."""
        arms = self._arms.setdefault(sample.key, _Arms(sample.key))
        try:
            check(sample, arms.last_ns)
        except BadSample:
            return
        arms.last_ns = sample.time_ns
        config = sample.config.plain if sample.decided else None
        if config not in arms.configs:
            return
        arms.pulls *= self._fade
        arms.sums *= self._fade
        at = arms.configs.index(config)
        arms.pulls[at] += 1
        arms.sums[at] += math.log(sample.latency_us)
