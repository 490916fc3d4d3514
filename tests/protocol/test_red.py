"""RED's decision and the spacing of marks, from the words of their definition."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep.protocol.red import MARK_GAP_MAX, MarkSpacing, RedParams

thresholds = st.tuples(st.integers(0, 500), st.integers(0, 500)).map(sorted)


@given(thresholds, st.integers(0, 65535), st.integers(0, 1200), st.integers(0, 65535))
def test_red_marks_with_the_probability_of_its_line(
    ends: list[int], p_max: int, depth: int, r: int
) -> None:
    q_min, q_max = ends
    wants = RedParams(q_min, q_max, p_max).wants(depth, r)
    if depth <= q_min:
        assert not wants
    elif depth > q_max:
        assert wants
    else:
        chance = Fraction(p_max, 65536) * Fraction(depth - q_min, q_max - q_min)
        assert wants == (Fraction(r, 65536) < chance)


def test_marks_are_a_gap_apart() -> None:
    params, spacing = RedParams(10, 30, 0, gap=20), MarkSpacing()
    asked = (0, 1, 19, 20, 39, 41, 60, 61)
    assert [now for now in asked if spacing.stands(params, now, 60)] == [0, 20, 41, 61]


def test_a_deep_queue_and_no_gap_let_every_mark_pass() -> None:
    params, spacing = RedParams(10, 30, 0, gap=20), MarkSpacing()
    assert spacing.stands(params, 0, 60)
    assert spacing.stands(params, 1, 61)
    assert not spacing.stands(params, 19, 60), "a mark in a deep queue is none to count from"
    assert spacing.stands(RedParams(10, 30, 0, gap=0), 19, 5)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 100)), max_size=80))
def test_no_two_marks_of_a_shallow_queue_are_closer(asked: list[tuple[int, int]]) -> None:
    params, spacing = RedParams(10, 30, 0, gap=25), MarkSpacing()
    now, last = 0, None
    for later, depth in asked:
        now += later
        stands = spacing.stands(params, now, depth)
        if depth > 60:
            assert stands
        elif stands:
            assert last is None or now - last >= 25
            last = now
        else:
            assert last is not None
            assert now - last < 25


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"q_min": 161}, "q_min 161, q_max 160: write 0 <= q_min <= q_max < 2**19 packets"),
        ({"q_max": 1 << 19}, "q_max 524288: write"),
        ({"q_min": -1}, "q_min -1"),
        ({"p_max": 65536}, "p_max 65536: write 0..65535, in units of 1/65536"),
        ({"gap": -1}, "gap -1: write 0..65535 microseconds, 0 for none"),
        ({"gap": MARK_GAP_MAX + 1}, "gap 65536"),
    ],
)
def test_values_that_no_table_holds_are_refused(values: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        RedParams(**values)
