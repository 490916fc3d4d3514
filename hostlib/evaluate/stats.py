"""Bootstrap intervals and paired tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and where it lies with 95 % confidence; ``n`` independent units were resampled."""

    value: float
    low: float
    high: float
    n: int

    def plain(self) -> dict[str, float | int]:
        """Return it for JSON."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


def bootstrap(
    units: Sequence[Any],
    figure: Callable[[list[Any]], float],
    seed: int = 0,
    rounds: int = 1000,
    confidence: float = 0.95,
) -> Interval:
    """Return a figure of independent units with its percentile interval.

    Units are what is independent of one another: episodes, not the calls in them.

    Raises:
        ValueError: no units.
    """
    if not units:
        raise ValueError("nothing to resample")
    rng = np.random.default_rng([seed, 9])
    values = []
    for _ in range(rounds if len(units) > 1 else 0):
        chosen = rng.integers(0, len(units), len(units)).tolist()
        values.append(figure([units[i] for i in chosen]))
    value = figure(list(units))
    finite = [v for v in values if np.isfinite(v)]
    if not finite:
        return Interval(value, value, value, len(units))
    low, high = np.percentile(finite, [50 * (1 - confidence), 50 * (1 + confidence)])
    return Interval(value, float(low), float(high), len(units))


def sign_flip(differences: Sequence[float], seed: int = 0, rounds: int = 10_000) -> float:
    """Return the two-sided p-value of paired differences having mean 0, by flipping their signs.

    Raises:
        ValueError: no differences.
    """
    d = np.asarray(differences, np.float64)
    if not len(d):
        raise ValueError("no pairs to test")
    seen = abs(d.mean())
    if len(d) <= 13:  # all of them
        signs = 1 - 2.0 * ((np.arange(1 << len(d))[:, None] >> np.arange(len(d))) & 1)
        return float((np.abs(signs @ d) / len(d) >= seen - 1e-15).mean())
    rng = np.random.default_rng([seed, 10])
    signs = rng.choice((-1.0, 1.0), (rounds, len(d)))
    return float((1 + (np.abs(signs @ d) / len(d) >= seen - 1e-15).sum()) / (rounds + 1))
