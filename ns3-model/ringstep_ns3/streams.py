"""Named random streams: each purpose draws from its own, so that one never shifts another."""

from __future__ import annotations

import hashlib
import math

import numpy as np


class Stream:
    """Random numbers for one purpose of one seed.

    Only 53-bit uniforms are drawn from numpy's PCG64; everything else is computed from them here,
    so that the numbers do not change with numpy's algorithms.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        digest = hashlib.sha256(purpose.encode()).digest()
        words = [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)]
        self._generator = np.random.Generator(
            np.random.PCG64(np.random.SeedSequence([seed, *words]))
        )

    def uniform(self) -> float:
        """Return a number in [0, 1)."""
        return float(self._generator.random())

    def below(self, n: int) -> int:
        """Return a whole number in [0, n)."""
        return min(int(self.uniform() * n), n - 1)

    def exponential(self, mean: float) -> float:
        """Return an exponentially distributed number."""
        return -math.log1p(-self.uniform()) * mean

    def permutation(self, n: int) -> list[int]:
        """Return 0..n-1 in random order."""
        return [int(i) for i in np.argsort(self._generator.random(n), kind="stable")]
