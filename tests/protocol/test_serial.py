from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep.protocol.serial import advance, ahead, distance

widths = st.integers(2, 24)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, int, int]:
    bits = draw(widths)
    number = st.integers(0, (1 << bits) - 1)
    return draw(number), draw(number), bits


@pytest.mark.parametrize(
    ("a", "b", "bits", "expected"),
    [
        (1, 0, 14, True),
        (0, 1, 14, False),
        (0, 0, 14, False),
        (0, 16383, 14, True),
        (16383, 0, 14, False),
        (8191, 0, 14, True),
        (8192, 0, 14, False),
        (0, 8192, 14, False),
        (8193, 0, 14, False),
        (0, 8193, 14, True),
        (1, 0, 2, True),
        (2, 0, 2, False),
        (3, 0, 2, False),
        (0, 3, 2, True),
        (0, 0xFFFFFF, 24, True),
    ],
)
def test_ahead(a: int, b: int, bits: int, expected: bool) -> None:
    assert ahead(a, b, bits) is expected


@pytest.mark.parametrize(
    ("a", "b", "bits", "expected"),
    [
        (5, 3, 14, 2),
        (3, 5, 14, -2),
        (0, 16383, 14, 1),
        (16383, 0, 14, -1),
        (8192, 0, 14, -8192),
        (8191, 0, 14, 8191),
        (1, 0xFFFFFF, 24, 2),
    ],
)
def test_distance(a: int, b: int, bits: int, expected: int) -> None:
    assert distance(a, b, bits) == expected


@given(pairs())
def test_at_most_one_is_ahead_and_none_half_the_space_apart(case: tuple[int, int, int]) -> None:
    a, b, bits = case
    both = (ahead(a, b, bits), ahead(b, a, bits))
    if a == b or (a - b) % (1 << bits) == 1 << (bits - 1):
        assert both == (False, False)
    else:
        assert sorted(both) == [False, True]


@given(pairs())
def test_distance_leads_from_b_to_a(case: tuple[int, int, int]) -> None:
    a, b, bits = case
    d = distance(a, b, bits)
    assert -(1 << (bits - 1)) <= d < 1 << (bits - 1)
    assert advance(b, d, bits) == a
    assert ahead(a, b, bits) == (d > 0)


@given(pairs(), st.integers(0, 1 << 30))
def test_order_does_not_depend_on_the_origin(case: tuple[int, int, int], shift: int) -> None:
    a, b, bits = case
    assert ahead(a, b, bits) == ahead(advance(a, shift, bits), advance(b, shift, bits), bits)


@given(widths, st.data())
def test_counting_up_is_always_ahead(bits: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, (1 << bits) - 1))
    by = data.draw(st.integers(1, (1 << (bits - 1)) - 1))
    assert ahead(advance(start, by, bits), start, bits)
