"""Contention schedules: what the network does during each call of a trace, and the oracle's labels.

The oracle knows the future, so contention that will last is ``SUSTAINED`` from its first call on.
A slow host is no contention, though latency looks the same: its label is ``SLOW_HOST``, and no
detector that sees latency alone can be held to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np

from ringstep.hostlib.traces.fluid import Load

Floats = np.ndarray[Any, np.dtype[np.float64]]
Labels = np.ndarray[Any, np.dtype[np.int8]]

LEVELS: Final = (0.5, 0.7, 0.8, 0.9)
"""Loads of sustained contention, as in the paper."""
SHORTEST_SUSTAINED: Final = 8
"""Calls from which contention counts as sustained; spikes last 1 to 3."""


class Label(IntEnum):
    """What the oracle says of a call."""

    STEADY = 0
    SPIKE = 1
    SUSTAINED = 2
    SLOW_HOST = 3


@dataclass(frozen=True)
class Schedule:
    """One trace's network, call by call.

    Attributes:
        name: of the kind.
        level: share of the link that the background wants, 0 to 1.
        flows: of the background; 0: the cluster's usual number.
        slow_host: factor from 1.
        label: :class:`Label` values.
    """

    name: str
    level: Floats
    flows: Floats
    slow_host: Floats
    label: Labels

    def __len__(self) -> int:
        return len(self.level)

    def load(self, call: int) -> Load:
        """Return the network's load during a call."""
        return Load(float(self.level[call]), float(self.flows[call]), float(self.slow_host[call]))

    @property
    def onset(self) -> int | None:
        """First call of sustained contention."""
        found = np.flatnonzero(self.label == Label.SUSTAINED)
        return int(found[0]) if len(found) else None


def blank(name: str, calls: int) -> Schedule:
    """Return a clean network of ``calls`` calls.

    Raises:
        ValueError: fewer than one.
    """
    if calls < 1:
        raise ValueError(f"calls = {calls}: 1 or more")
    return Schedule(
        name, np.zeros(calls), np.zeros(calls), np.ones(calls), np.zeros(calls, np.int8)
    )


def clean(calls: int) -> Schedule:
    """No contention at all."""
    return blank("clean", calls)


def _set(s: Schedule, first: int, last: int, level: float, label: Label, flows: float = 0) -> None:
    s.level[first:last], s.flows[first:last], s.label[first:last] = level, flows, label


def sustained(
    calls: int, level: float, onset: int, end: int | None = None, flows: float = 0
) -> Schedule:
    """Contention of one level from call ``onset`` to ``end`` (not included)."""
    s = blank("sustained", calls)
    _set(s, onset, calls if end is None else end, level, Label.SUSTAINED, flows)
    return s


def spikes(calls: int, at: dict[int, float], length: int = 2, flows: float = 0) -> Schedule:
    """Spikes of ``length`` calls at the calls given, each with its level."""
    s = blank("spikes", calls)
    for first, level in at.items():
        _set(s, first, first + length, level, Label.SPIKE, flows)
    return s


def paper_spikes() -> Schedule:
    """The paper's figure 11: six spikes of two calls at 30, 40 and 50 %."""
    return spikes(80, {15: 0.3, 25: 0.4, 35: 0.5, 45: 0.3, 55: 0.4, 65: 0.5})


def steps(calls: int, levels: dict[int, float], flows: float = 0) -> Schedule:
    """Levels that change at the calls given: escalating, de-escalating, ending (level 0)."""
    s = blank("steps", calls)
    points = sorted(levels.items())
    for (first, level), (last, _) in zip(points, [*points[1:], (calls, 0.0)], strict=True):
        label = Label.SUSTAINED if level > 0 else Label.STEADY
        _set(s, first, last, level, label, flows)
    return s


# --- random ones, to learn from ---

_LEAST_QUIET: Final = 9
"""Calls before anything happens: warm-up, in which the baseline is learned."""


def _random_clean(rng: np.random.Generator, calls: int) -> Schedule:
    return clean(calls)


def _random_spikes(rng: np.random.Generator, calls: int) -> Schedule:
    s = blank("spikes", calls)
    at = _LEAST_QUIET + int(rng.integers(0, 12))
    while at < calls:
        length = int(rng.integers(1, 4))
        _set(s, at, at + length, rng.uniform(0.2, 0.9), Label.SPIKE, _flows(rng))
        at += length + int(rng.integers(4, 24))
    return s


def _random_sustained(rng: np.random.Generator, calls: int) -> Schedule:
    onset = int(rng.integers(_LEAST_QUIET, max(calls - SHORTEST_SUSTAINED, _LEAST_QUIET + 1)))
    end = calls
    if rng.random() < 0.4:
        end = min(onset + SHORTEST_SUSTAINED + int(rng.integers(0, 40)), calls)
    s = sustained(calls, rng.uniform(0.35, 0.95), onset, end, _flows(rng))
    if rng.random() < 0.4:  # a spike or two before
        for _ in range(int(rng.integers(1, 3))):
            if onset - 6 > _LEAST_QUIET:
                at = int(rng.integers(_LEAST_QUIET, onset - 5))
                _set(s, at, at + int(rng.integers(1, 4)), rng.uniform(0.2, 0.9), Label.SPIKE)
    return s


def _random_steps(rng: np.random.Generator, calls: int) -> Schedule:
    at, levels = int(rng.integers(_LEAST_QUIET, 20)), {}
    while at < calls - SHORTEST_SUSTAINED:
        levels[at] = float(rng.choice([0.0, *rng.uniform(0.35, 0.95, 4)]))
        at += SHORTEST_SUSTAINED + int(rng.integers(0, 24))
    return steps(calls, levels or {calls - SHORTEST_SUSTAINED: 0.6}, _flows(rng))


def _random_bursty(rng: np.random.Generator, calls: int) -> Schedule:
    s = blank("bursty", calls)
    level, at = rng.uniform(0.3, 0.9), _LEAST_QUIET + int(rng.integers(0, 10))
    while at < calls:
        on, off = int(rng.integers(1, 4)), int(rng.integers(3, 8))
        _set(s, at, at + on, level, Label.SPIKE)
        at += on + off
    return s


def _random_from_the_start(rng: np.random.Generator, calls: int) -> Schedule:
    end = int(rng.integers(SHORTEST_SUSTAINED, calls + 1))
    return sustained(calls, rng.uniform(0.35, 0.95), 0, end, _flows(rng))


def _random_slow_host(rng: np.random.Generator, calls: int) -> Schedule:
    s = blank("slow host", calls)
    first = int(rng.integers(_LEAST_QUIET, calls))
    s.slow_host[first:] = rng.uniform(1.2, 4.0)
    s.label[first:] = Label.SLOW_HOST
    return s


def _flows(rng: np.random.Generator) -> float:
    return float(rng.integers(1, 17)) if rng.random() < 0.7 else 0.0


KINDS: Final[dict[str, tuple[float, Callable[[np.random.Generator, int], Schedule]]]] = {
    "clean": (0.2, _random_clean),
    "spikes": (0.2, _random_spikes),
    "sustained": (0.25, _random_sustained),
    "steps": (0.15, _random_steps),
    "bursty": (0.1, _random_bursty),
    "from_the_start": (0.05, _random_from_the_start),
    "slow_host": (0.05, _random_slow_host),
}
"""Kinds of random schedules: how often they come, and what makes them."""


def random_schedule(rng: np.random.Generator, calls: int, kind: str | None = None) -> Schedule:
    """Return a schedule of one kind, or of one drawn by their shares.

    Raises:
        ValueError: no such kind, or too few calls for anything to happen.
    """
    if calls < _LEAST_QUIET + SHORTEST_SUSTAINED + 1:
        raise ValueError(f"calls = {calls}: {_LEAST_QUIET + SHORTEST_SUSTAINED + 1} or more")
    if kind is None:
        shares = np.array([share for share, _ in KINDS.values()])
        kind = list(KINDS)[int(rng.choice(len(KINDS), p=shares / shares.sum()))]
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}: {', '.join(KINDS)}")
    return KINDS[kind][1](rng, calls)
