"""AutoCCL's search for one key: coordinate descent within each (algorithm, protocol).

The few-valued parameters, algorithm and protocol, span subspaces; in each of them one resource
parameter after the other (channels, chunk) is moved as long as that helps, and the best point of
all subspaces is taken (AutoCCL, section 4, algorithms 1 and 2). Bandwidth has one peak along each
parameter, so the descent ends at it. Differences, all because trials run in somebody's training:

- a subspace starts at the best channels known, not at a random point; one whose first trial is
  several times slower than the best known is left at once;
- a trial is the median of several collectives, of more where it is close to what it is compared
  with; a step has to win by a margin;
- at the end the best few and NCCL's own choice are measured anew, one after the other, so that
  what won by luck or in a quiet moment does not stay; NCCL is left alone unless it is beaten.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from ringstep.hostlib.coordinator.policy import Pair
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

__all__ = ["CHANNELS", "CHUNKS", "Limits", "Search", "Setting"]

CHANNELS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CHUNKS: Final = tuple(1 << k for k in range(15, 23))
"""32 KiB to 4 MiB"""
_FIRST_CHUNKS: Final = (512 << 10, 128 << 10, 2 << 20)
"""Tried from NCCL's own chunk, whose size is not known."""
_MAD_TO_SIGMA: Final = 1.4826
_MEDIAN_TO_MEAN: Final = 1.2533
"""A median of n has this many times the standard error of a mean of n."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What to try; 0 keeps NCCL's choice."""

    algo: Algo
    proto: Proto
    n_channels: int = 0
    chunk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is measured."""

    samples: int = 5
    """Collectives of a trial."""
    samples_max: int = 20
    """Of one that is close to what it is compared with."""
    gain: float = 0.02
    """Share of the time that a step has to save."""
    hopeless: float = 4.0
    """Times the best known at which a subspace is left."""
    finalists: int = 3


@dataclass(slots=True)
class _Trial:
    setting: Setting | None
    """None leaves NCCL alone."""
    reference: float | None
    """What it is compared with, ns."""
    samples: list[int] = field(default_factory=list)


def clear(samples: list[int], reference: float | None, limits: Limits) -> bool:
    """Whether enough was measured to tell on which side of the reference the median is."""
    n = len(samples)
    if n < limits.samples:
        return False
    if reference is None or n >= limits.samples_max:
        return True
    median = statistics.median(samples)
    spread = statistics.median(abs(s - median) for s in samples)
    error = _MEDIAN_TO_MEAN * _MAD_TO_SIGMA * spread / n**0.5
    return bool(abs(median - reference * (1 - limits.gain)) > 2 * error)


class Search:
    """Searches for one key.

    Args:
        collective: of the key.
        pairs: that every rank can use.
        baseline: durations of NCCL's own choice, ns; at least one.
        ran: what NCCL itself chose, as far as it is known, and its channels.
        limits: see there.
    """

    def __init__(
        self,
        collective: Collective,
        pairs: Iterable[Pair],
        baseline: list[int],
        ran: tuple[Pair | None, int],
        limits: Limits,
    ) -> None:
        self._limits = limits
        self._own = ran
        self._pairs = sorted(
            (p for p in pairs if p[0] is not Algo.TREE or collective is Collective.ALL_REDUCE),
            key=lambda pair: (pair != ran[0], pair),
        )
        self._found: dict[Setting | None, float] = {None: float(statistics.median(baseline))}
        self.trials = 0
        self.converged = False
        self._steps = self._search()
        self._trial: _Trial | None = None
        self._go_on(None)

    @property
    def candidate(self) -> Setting | None:
        """What to run now; None leaves NCCL alone."""
        return self.best if self._trial is None else self._trial.setting

    @property
    def best(self) -> Setting | None:
        """The best known."""
        return min(self._found, key=lambda s: self._found[s])

    @property
    def best_ns(self) -> float:
        """Median duration of the best known."""
        return self._found[self.best]

    def report(self, duration_ns: int) -> bool:
        """Take in a collective that ran the candidate; True where there is a new candidate."""
        trial = self._trial
        if trial is None:
            return False
        trial.samples.append(duration_ns)
        if not clear(trial.samples, trial.reference, self._limits):
            return False
        self._go_on(float(statistics.median(trial.samples)))
        return True

    def skip(self) -> None:
        """Give the candidate up: it cannot be applied."""
        if self._trial is not None:
            self._go_on(float("inf"))

    def _go_on(self, measured: float | None) -> None:
        try:
            self._trial = next(self._steps) if measured is None else self._steps.send(measured)
            self.trials += 1
        except StopIteration:
            self._trial = None
            self.converged = True

    # --- the search, as one story ---

    def _search(self) -> Generator[_Trial, float, None]:
        for pair in self._pairs:
            yield from self._subspace(pair)
        yield from self._final()

    def _measure(
        self, setting: Setting | None, reference: float | None
    ) -> Generator[_Trial, float, float]:
        known = self._found.get(setting)
        if known is None:
            known = self._found[setting] = yield _Trial(setting, reference)
        return known

    def _subspace(self, pair: Pair) -> Generator[_Trial, float, None]:
        at = Setting(*pair, self._start_channels(pair))
        best = self.best_ns
        took = yield from self._measure(at, best)
        if took > best * self._limits.hopeless:
            return
        moved = True
        while moved:
            after, after_took = yield from self._along_channels(at, took)
            after, after_took = yield from self._along_chunk(after, after_took)
            moved = after != at
            at, took = after, after_took

    def _start_channels(self, pair: Pair) -> int:
        own_pair, own_channels = self._own
        known = self.best
        wanted = own_channels if pair == own_pair or known is None else known.n_channels
        wanted = wanted or own_channels or 2
        return min(CHANNELS, key=lambda n: abs(n - wanted))

    def _along_channels(
        self, at: Setting, took: float
    ) -> Generator[_Trial, float, tuple[Setting, float]]:
        points = [replace(at, n_channels=n) for n in CHANNELS]
        return (yield from self._descend(points, points.index(at), took))

    def _along_chunk(
        self, at: Setting, took: float
    ) -> Generator[_Trial, float, tuple[Setting, float]]:
        points = [replace(at, chunk_bytes=n) for n in CHUNKS]
        if at.chunk_bytes == 0:
            for chunk in _FIRST_CHUNKS:
                trial = replace(at, chunk_bytes=chunk)
                trial_took = yield from self._measure(trial, took)
                if trial_took < took * (1 - self._limits.gain):
                    return (yield from self._descend(points, points.index(trial), trial_took))
            return at, took
        return (yield from self._descend(points, points.index(at), took))

    def _descend(
        self, points: list[Setting], where: int, took: float
    ) -> Generator[_Trial, float, tuple[Setting, float]]:
        """Go along one parameter: further after a gain, finer or the other way after a loss."""
        for direction in (1, -1):
            step, moved = 1, False
            while 0 <= where + direction * step < len(points):
                there = where + direction * step
                there_took = yield from self._measure(points[there], took)
                if there_took < took * (1 - self._limits.gain):
                    where, took, moved = there, there_took, True
                    step *= 2
                    while step > 1 and not 0 <= where + direction * step < len(points):
                        step //= 2
                elif step > 1:
                    step = 1
                else:
                    break
            if moved:
                break
        return points[where], took

    def _final(self) -> Generator[_Trial, float, None]:
        ranked = sorted((s for s in self._found if s is not None), key=lambda s: self._found[s])
        ranked = [s for s in ranked if self._found[s] < float("inf")]
        finalists: list[Setting | None] = [None, *ranked[: self._limits.finalists]]
        again: dict[Setting | None, float] = {}
        for setting in finalists if ranked else ():
            again[setting] = yield _Trial(setting, min(again.values(), default=None))
        if not again:
            self._found = {None: self._found[None]}
            return
        winner = min(again, key=lambda s: again[s])
        if winner is not None and again[winner] > again[None] * (1 - self._limits.gain):
            winner = None
        self._found = {winner: again[winner]}
