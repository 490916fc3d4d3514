"""Which collectives are looked at where there are too many: the same ones on every rank and node.

A collective is kept where its count per function, scattered by a golden-ratio hash, is small. So
what is kept at one level is kept at every lower level too, and no pattern of a training step,
however regular, hides from it as it would from every n-th collective.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = ["THIN_MAX", "Pace", "kept", "kept_of"]

THIN_MAX: Final = 12
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


def kept(coll_seq: int, thin: int) -> bool:
    """Whether a collective is looked at where one in 2**thin is."""
    return thin == 0 or (coll_seq * _GOLDEN & _MASK) >> (64 - thin) == 0


def kept_of(coll_seqs: np.ndarray[Any, Any], thin: int) -> np.ndarray[Any, Any]:
    """Return :func:`kept` for many."""
    if thin == 0:
        return np.ones(len(coll_seqs), bool)
    scattered = coll_seqs * np.uint64(_GOLDEN)
    found: np.ndarray[Any, Any] = scattered >> np.uint64(64 - thin) == 0
    return found


class Pace:
    """Chooses how much is looked at, so that no more than so many records a second are.

    Args:
        per_second: records that may be looked at; may be changed.
    """

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._rate = 0.0
        self.thin = 0

    def note(self, records: int, seconds: float) -> None:
        """Take in how many records came in how long a time."""
        if seconds <= 0:
            return
        self._rate += min(seconds, 1.0) * (records / seconds - self._rate)
        load = max(self._rate, records)  # a burst counts as if it were a second's
        while self.thin < THIN_MAX and load / 2**self.thin > self.per_second:
            self.thin += 1
        while self.thin > 0 and load / 2 ** (self.thin - 1) < self.per_second / 2:
            self.thin -= 1
