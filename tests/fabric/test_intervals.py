"""Expanded percentiles: the definition, with Student's t from a table."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from ringstep.fabric.intervals import expanded_tail


@pytest.mark.parametrize(("count", "t"), [(6, 2.5706), (11, 2.2281), (21, 2.0860), (101, 1.9840)])
def test_the_tail_is_that_of_students_t(count: int, t: float) -> None:
    expected = NormalDist().cdf(-math.sqrt(count / (count - 1)) * t)
    assert expanded_tail(count) == pytest.approx(expected, rel=0.01)


def test_few_values_are_taken_further_out_and_many_as_they_are() -> None:
    tails = [expanded_tail(count) for count in (5, 6, 10, 20, 1000)]
    assert tails == sorted(tails)
    assert tails[-1] == pytest.approx(0.025, rel=0.01)
