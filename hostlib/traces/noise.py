"""What measured latencies have beyond the model: jitter, slow drift, outliers, load that wavers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class NoiseParams:
    """All as shares of a call's time.

    Attributes:
        jitter: standard deviation of the logarithm, call by call.
        drift: standard deviation of a slow wandering.
        drift_calls: calls over which that forgets.
        outlier_rate: chance that a call is an outlier.
        outlier: an outlier takes this much longer at most (a power law below that).
        contended: further jitter at full load, in proportion to the load.
        first: the first call takes this much longer.
    """

    jitter: float = 0.02
    drift: float = 0.01
    drift_calls: float = 50.0
    outlier_rate: float = 0.004
    outlier: float = 3.0
    contended: float = 0.08
    first: float = 1.5


def factors(rng: np.random.Generator, level: Floats, p: NoiseParams) -> Floats:
    """Return a factor on the latency of each call; the same draws whatever the levels are."""
    n = len(level)
    white, walk = rng.standard_normal(n), rng.standard_normal(n)
    chance, size = rng.random(n), rng.random(n)
    keep = math.exp(-1 / p.drift_calls)
    drift = np.empty(n)
    value = walk[0]
    for i in range(n):
        value = keep * value + math.sqrt(1 - keep * keep) * walk[i]
        drift[i] = value
    found = np.exp(white * np.hypot(p.jitter, p.contended * level) + p.drift * drift)
    # Pareto with exponent 1.5 from a tenth on, cut.
    tail = np.minimum(0.1 * (1 - size) ** (-1 / 1.5), p.outlier)
    found = np.where(chance < p.outlier_rate, found * (1 + tail), found)
    found[0] *= 1 + p.first
    return found


def random_noise(rng: np.random.Generator) -> NoiseParams:
    """Return noise of some cluster, from quiet (two in three) to restless."""
    restless = rng.random() < 1 / 3
    return NoiseParams(
        jitter=float(np.exp(rng.uniform(np.log(0.005), np.log(0.15 if restless else 0.05)))),
        drift=float(rng.uniform(0.0, 0.08 if restless else 0.03)),
        drift_calls=float(rng.uniform(20, 200)),
        outlier_rate=float(
            rng.choice([0.0, 0.005, 0.02, 0.05] if restless else [0.0, 0.002, 0.01])
        ),
        contended=float(rng.uniform(0.02, 0.15)),
    )
