"""How far out the percentiles of a bootstrap lie for an interval from few values."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

CONFIDENCE: Final = 0.95


def expanded_tail(count: int) -> float:
    """Return the share of resamples beyond each end of a 95 % interval from ``count`` values.

    Plain percentiles of the mean of six normal values cover 85 %, these 93 %. The expanded
    percentile interval of T. Hesterberg, What Teachers Should Know About the Bootstrap (2015); the
    quantile of Student's t by its Cornish-Fisher expansion.
    """
    normal = NormalDist()
    z, nu = normal.inv_cdf((1 + CONFIDENCE) / 2), count - 1
    t = (
        z
        + (z**3 + z) / (4 * nu)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * nu**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * nu**3)
    )
    return normal.cdf(-math.sqrt(count / nu) * t)
