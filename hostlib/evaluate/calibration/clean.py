"""Tells from a row of calls of one kind whether the network was clean while they ran.

Contention that comes, goes or flickers shows in the calls themselves. Contention that is there from
the first call to the last, always the same, does not: only an expectation can tell it from a slower
network. Limits were chosen on random clusters, noise and schedules (bench/tuner_calibration.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.dynamic.detector import Detector, Memory
from ringstep.hostlib.dynamic.features import detector_scalars, log_rho
from ringstep.hostlib.dynamic.sample import LONGEST_US
from ringstep.hostlib.dynamic.sprt import Sprt, State

LEAST: Final = 16
"""Calls, the cold ones left out, from which something can be said."""
WINDOW: Final = 9
"""Calls of a running median."""
STEP: Final = 0.15
"""Running medians may differ by this share, or by :data:`NOISE_STEP` times the noise if more."""
NOISE_STEP: Final = 2.0
TAIL: Final = 0.05
"""Share of the calls that may be slow."""
SLOW: Final = 0.3
"""A call that takes so much longer than the median is slow; more on a noisy network."""
NOISE_SLOW: Final = 4.0
SPREAD: Final = 0.15
"""Median deviation from the median, as a share, above which a network is not clean."""
NOISIEST: Final = 0.2
"""Noise from one call to the next above which a network is not clean, and to which it is allowed
for: load that flickers looks like noise."""
EXPECTED: Final = 1.25
"""Times an earlier calibration's latency: what takes longer is not clean."""
MISSED: Final = 0.05
"""Share of the calls that a rank may leave untold."""
ADVICE: Final = "measure again when nothing else uses the network"


class NotClean(ValueError):
    """Nothing may be learned from these calls; the message says of what, why, and what to do."""


@dataclass(frozen=True)
class Series:
    """Calls of one kind, one after another, in NCCL's own configuration.

    Attributes:
        name: for messages.
        key: what the baseline is of.
        n_bytes: larger side.
        config: what ran; None where that is not known.
        latency_us: of the slowest rank, by call, the cold ones left out.
        time_ns: when each ended or began, by one clock; empty where there is none.
        missed: calls that a rank did not tell of, by rank; they are not in ``latency_us``.
        before_us: older calls of the same kind, which are not learned from; where they were faster,
            the network is not clean now.
    """

    name: str
    key: Key
    n_bytes: int
    config: Config | None
    latency_us: Sequence[float]
    time_ns: Sequence[int] = ()
    missed: Mapping[int, int] = field(default_factory=dict)
    before_us: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """What clean calls say.

    Attributes:
        latency_us: their median.
        spread: median deviation from it, a share.
        noise: standard deviation from one call to the next, a share, drift left out.
        calls: how many.
    """

    latency_us: float
    spread: float
    noise: float
    calls: int


def judge(
    series: Series, detector: Detector | None = None, expected_us: float | None = None
) -> Judged:
    """Return what the calls say of a clean network.

    Args:
        series: the calls.
        detector: is asked too.
        expected_us: of an earlier calibration.

    Raises:
        NotClean: contention, and how it showed; or calls that cannot be, or too few of them.
    """
    times = _plausible(series)
    middle = float(np.median(times))
    spread = float(np.median(np.abs(times - middle)) / middle)
    # From one call to the next, so that a change of level in between does not count as noise.
    noise = float(np.median(np.abs(np.diff(np.log(times)))) / 0.954)
    allowed = min(noise, NOISIEST)
    why = (
        _step(times, allowed)
        or _tail(times, middle, allowed)
        or _spread(spread, noise)
        or _slower_than_before(series.before_us, middle, allowed)
    )
    if why is not None:
        raise NotClean(f"{series.name}: {why}; {ADVICE}")
    if expected_us is not None and middle > EXPECTED * expected_us:
        raise NotClean(
            f"{series.name}: {middle:.0f} µs, where {expected_us:.0f} µs are expected of a clean "
            f"network (at most {EXPECTED:g} times that): find out what else uses the network or "
            "slows the hosts, or calibrate without the expectation if the cluster has changed"
        )
    if detector is not None:
        _ask(series, detector, times, middle)
    return Judged(middle, spread, noise, len(times))


def _plausible(series: Series) -> Any:
    times = np.asarray(series.latency_us, np.float64)
    asked = len(times) + max(series.missed.values(), default=0)
    worst = max(series.missed, key=lambda rank: series.missed[rank], default=None)
    if worst is not None and series.missed[worst] > max(MISSED * asked, 1):
        raise NotClean(
            f"{series.name}: rank {worst} did not tell of {series.missed[worst]} of {asked} calls: "
            "see with `ringstep tuner status` whether it runs with the plugin"
        )
    bad = ~np.isfinite(times) | (times <= 0) | (times > LONGEST_US)
    if bad.any():
        at = int(np.argmax(bad))
        raise NotClean(
            f"{series.name}: call {at} took {times[at]:g} µs, which no call can: "
            "the clock stepped, or the record is damaged"
        )
    back = np.flatnonzero(np.diff(np.asarray(series.time_ns, np.int64)) < 0)
    if len(back):
        raise NotClean(
            f"{series.name}: the clock stepped back before call {int(back[0]) + 1}: "
            "measure with a steady clock (CLOCK_MONOTONIC)"
        )
    if len(times) < LEAST:
        raise NotClean(
            f"{series.name}: {len(times)} calls in NCCL's own configuration, "
            f"{LEAST} or more are needed: measure for longer"
        )
    return times


def _running(times: Any) -> Any:
    return np.median(np.lib.stride_tricks.sliding_window_view(times, WINDOW), axis=1)


def _step(times: Any, noise: float) -> str | None:
    """Load that comes, goes or changes: medians of a few calls differ."""
    running = _running(times)
    low, high = int(np.argmin(running)), int(np.argmax(running))
    if running[high] / running[low] - 1 <= max(STEP, NOISE_STEP * noise):
        return None
    return (
        f"{running[low]:.0f} µs in calls {low} to {low + WINDOW - 1}, {running[high]:.0f} µs in "
        f"calls {high} to {high + WINDOW - 1}: load came or went meanwhile"
    )


def _tail(times: Any, middle: float, noise: float) -> str | None:
    limit = 1 + max(SLOW, NOISE_SLOW * noise)
    slow = int((times > limit * middle).sum())
    if slow > max(TAIL * len(times), 1):
        return (
            f"{slow} of {len(times)} calls took more than {limit:.2g} times their median: spikes "
            "of other load"
        )
    # Nothing makes a call fast but the absence of load: a median that was contended shows there.
    fast = int((times < middle / limit).sum())
    if fast > 1:
        return (
            f"{fast} of {len(times)} calls took less than 1/{limit:.2g} of their median: the load "
            "that slowed the others came or went meanwhile"
        )
    return None


def _slower_than_before(before: Sequence[float], middle: float, noise: float) -> str | None:
    times = np.asarray(before, np.float64)
    times = times[np.isfinite(times) & (times > 0)]
    if len(times) < WINDOW:
        return None
    least = float(_running(times).min())
    if middle / least - 1 <= max(STEP, NOISE_STEP * noise):
        return None
    return f"{middle:.0f} µs, where calls before these took {least:.0f} µs: load came meanwhile"


def _spread(spread: float, noise: float) -> str | None:
    if spread > SPREAD:
        return f"calls differ from their median by {spread:.0%} (at most {SPREAD:.0%})"
    if noise > NOISIEST:
        return f"calls differ from one to the next by {noise:.0%} (at most {NOISIEST:.0%})"
    return None


def _ask(series: Series, detector: Detector, times: Any, middle: float) -> None:
    config = series.config
    if config is None:
        return
    memory = Memory()
    test = Sprt(detector.rule, prior=detector.prior, temper=detector.temper)
    for at, latency in enumerate(times.tolist()):
        rho = log_rho(latency, middle)
        scalars = detector_scalars(series.key, series.n_bytes, rho, config, False, None)
        logit = detector.step(scalars, series.key.collective, memory)
        if test.update(logit, rho) is State.SUSTAINED:
            raise NotClean(f"{series.name}: the detector found contention in call {at}; {ADVICE}")


def judge_repeats(
    name: str, rows: Sequence[Sequence[float]], expected_us: float | None = None
) -> float:
    """Return the noise of many configurations' calls, few of each, measured in random order.

    A sweep has five calls of each configuration rather than forty of one: each call is taken as a
    share of its configuration's median. Earlier calls of a row were measured earlier.

    Args:
        name: for messages.
        rows: times in µs, by configuration; the first row is NCCL's choice.
        expected_us: of NCCL's choice, by an earlier calibration.

    Raises:
        NotClean: contention, and how it showed; or too few calls.
    """
    usable = [np.asarray(row, np.float64) for row in rows if len(row) >= 3]
    count = sum(map(len, usable))
    if count < 2 * LEAST:
        raise NotClean(
            f"{name}: {count} calls of configurations with three or more each, {2 * LEAST} are "
            "needed: sweep with more repeats"
        )
    shares = np.concatenate([row / np.median(row) for row in usable])
    # The median itself deviates by nothing, and says nothing of the noise.
    others = [np.delete(row / np.median(row) - 1, np.argsort(row)[len(row) // 2]) for row in usable]
    noise = float(1.4826 * np.median(np.abs(np.concatenate(others))))
    early = np.concatenate([(row / np.median(row))[: len(row) // 2] for row in usable])
    late = np.concatenate([(row / np.median(row))[-(len(row) // 2) :] for row in usable])
    apart = float(abs(math.log(np.median(early) / np.median(late))))
    why = _tail(shares, 1.0, min(noise, NOISIEST))
    if apart > STEP:
        why = (
            f"first and last calls of the configurations differ by {math.expm1(apart):.0%}: load "
            "came or went meanwhile"
        )
    elif why is None:
        why = _spread(float(np.median(np.abs(shares - 1))), noise)
    if why is not None:
        raise NotClean(f"{name}: {why}; {ADVICE}")
    middle = float(np.median(np.asarray(rows[0], np.float64)))
    if expected_us is not None and middle > EXPECTED * expected_us:
        raise NotClean(
            f"{name}: NCCL's choice takes {middle:.0f} µs, where {expected_us:.0f} µs are expected "
            "of a clean network: find out what else uses the network"
        )
    return noise
