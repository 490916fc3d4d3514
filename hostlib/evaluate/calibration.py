"""Measures a cluster once, on a clean network, and refuses to learn from a contended one.

The clean latencies of NCCL's choice become the baselines from which contention is seen from the
first call on (:func:`ringstep.hostlib.dynamic.baseline.save_calibration`); with a sweep the fluid
model is fitted to the cluster as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.dynamic.detector import Detector, Memory
from ringstep.hostlib.dynamic.features import detector_scalars, log_rho
from ringstep.hostlib.dynamic.sprt import Sprt, State
from ringstep.hostlib.evaluate.environment import Environment
from ringstep.hostlib.traces.scenarios import clean

CALLS: Final = 40
COLD: Final = 3
"""Calls left out at the start."""
SPREAD: Final = 0.15
"""Median deviation from the median, as a share, above which a network is not clean."""
SPLIT: Final = 0.15
"""Two halves of the calls whose medians differ by more are not of one network."""
TAIL: Final = 0.1
"""Share of the calls that may take over one and a half times the median."""


class NotClean(ValueError):
    """The network was contended while it was measured; the message says how that showed."""


@dataclass(frozen=True)
class Calibration:
    """What was measured.

    Attributes:
        baselines: clean latency in µs, by key.
        spread: median deviation from it, a share, by key.
    """

    baselines: dict[Key, float]
    spread: dict[Key, float]


def measure(
    environments: Sequence[Environment],
    calls: int = CALLS,
    detector: Detector | None = None,
    expected_us: Callable[[Environment], float | None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Measure NCCL's choice in every environment.

    Args:
        environments: one per key.
        calls: of each.
        detector: where there is one it has to find nothing either.
        expected_us: what a cost model or an earlier calibration says; a median above 1.5 times that
            is refused. Contention that lasts through all of the measurement, and never changes,
            cannot be told from a slow network without it.
        progress: called with environments done and to do.

    Raises:
        NotClean: it was contended, in which environment, and how that showed.
        ValueError: too few calls.
    """
    if calls < COLD + 16:
        raise ValueError(f"calls = {calls}: {COLD + 16} or more")
    found, spreads = {}, {}
    for i, env in enumerate(environments):
        env.start(clean(calls), i)
        ran = [env.run(None) for _ in range(calls)]
        times = np.array([r.latency_us for r in ran[COLD:]])
        middle, spread = _judge(env, times)
        limit = None if expected_us is None else expected_us(env)
        if limit is not None and middle > 1.5 * limit:
            raise NotClean(
                f"{env.name}: {middle:.0f} µs, where {limit:.0f} µs are expected of a clean network"
            )
        if detector is not None:
            _ask(env, detector, ran[COLD:], middle)
        found[env.key], spreads[env.key] = middle, spread
        if progress is not None:
            progress(i + 1, len(environments))
    return Calibration(found, spreads)


def _judge(env: Environment, times: Any) -> tuple[float, float]:
    middle = float(median(times.tolist()))
    spread = float(np.median(np.abs(times - middle)) / middle)
    if spread > SPREAD:
        raise NotClean(
            f"{env.name}: calls differ from their median by {spread:.0%} (at most {SPREAD:.0%}): "
            "measure when nothing else uses the network"
        )
    half = len(times) // 2
    one, two = float(np.median(times[:half])), float(np.median(times[half:]))
    if abs(one / two - 1) > SPLIT:
        raise NotClean(
            f"{env.name}: {one:.0f} µs at first, {two:.0f} µs later: load came or went meanwhile"
        )
    tail = float((times > 1.5 * middle).mean())
    if tail > TAIL:
        raise NotClean(f"{env.name}: {tail:.0%} of the calls took half as long again: spikes")
    return middle, spread


def _ask(env: Environment, detector: Detector, ran: Sequence[Any], middle: float) -> None:
    memory = Memory()
    test = Sprt(detector.rule, prior=detector.prior, temper=detector.temper)
    for at, call in enumerate(ran):
        rho = log_rho(call.latency_us, middle)
        scalars = detector_scalars(env.key, env.n_bytes, rho, call.config, False, None)
        logit = detector.step(scalars, env.key.collective, memory)
        if test.update(logit, rho) is State.SUSTAINED:
            raise NotClean(f"{env.name}: the detector found contention in call {at + COLD}")
