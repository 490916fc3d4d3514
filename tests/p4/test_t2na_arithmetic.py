"""The arithmetic of the Tofino 2 pipeline against the reference's, over the whole input range.

A logarithm is monotone and the tables give one value per mantissa, so the greatest error lies at
the ends of a mantissa's range: looking at both ends of every range looks at every number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from t2na_program import Bench

from ringstep.protocol import p4tables
from ringstep.protocol.limits import K_BITS, PSN_BITS, QDEPTH_BITS, RANDOM_BITS
from ringstep.protocol.p4tables import (
    EXP_GRAIN,
    FRACTION_BITS,
    LOG2_CONTROLS,
    LOG_BIAS,
    LOG_BITS,
    MANTISSA_BITS,
    MARK_ERROR,
    RED_ERROR,
    alpha_exceeded,
    exp_entries,
    exp_pipeline,
    exp_steps,
    fractions,
    heads,
    log2_pipeline,
    mantissa,
    red_marks,
)

T2NA = Path(__file__).resolve().parents[2] / "p4src" / "include" / "t2na"
UNIT = 1 << FRACTION_BITS
GRAIN = 1 << RANDOM_BITS


# -- the generated source ------------------------------------------------------------------------


def test_the_committed_tables_are_the_generated_ones() -> None:
    assert (T2NA / p4tables.FILE).read_text() == p4tables.render()


@pytest.fixture(scope="module")
def source_tables() -> dict[str, list[tuple[object, str, list[int]]]]:
    """Return the const entries as they stand in the P4 source, by path of the table."""
    return {
        name: [(e.match, e.action, e.args) for e in table.entries]  # type: ignore[misc]
        for name, table in Bench().program.tables.items()
        if table.const
    }


USES = {
    "marker.log_random": "Log2Random", "marker.log_gain": "Log2Gain", "marker.log_psn": "Log2Psn",
    "marker.log_rec": "Log2Psn", "red.log_random": "Log2Random", "red.log_share": "Log2Random",
    "red.log_span": "Log2Depth", "red.log_excess": "Log2Depth",
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_entries_in_the_source_are_those_of_the_generator(
    use: str, source_tables: dict[str, list[tuple[object, str, list[int]]]]
) -> None:
    (control,) = (c for c in LOG2_CONTROLS if c.name == USES[use])
    found = source_tables[f"RingstepEgress.{use}.leading_one"]
    assert found == [
        (((e.value << control.low, e.mask << control.low),), f"one_at_{e.result}", [])
        for e in heads(control.bits)
    ]
    found = source_tables[f"RingstepEgress.{use}.fraction"]
    assert found == [((i,), "set_fraction", [v]) for i, v in enumerate(fractions())]


def test_the_exponential_in_the_source_is_that_of_the_generator(
    source_tables: dict[str, list[tuple[object, str, list[int]]]],
) -> None:
    found = source_tables["RingstepEgress.marker.exp.whole_part"]
    assert found == [(((e.value, e.mask),), "set_whole", [e.result]) for e in exp_entries()]


def test_the_exponential_covers_every_logarithm_once() -> None:
    covered = sum((1 << LOG_BITS) - e.mask for e in exp_entries())
    assert covered == 1 << LOG_BITS
    for e in exp_entries():
        assert exp_pipeline(e.value) == e.result
        assert exp_pipeline(e.value | (1 << LOG_BITS) - 1 - e.mask) == e.result


# -- the error of each table ---------------------------------------------------------------------


def numbers(bits: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of every range of numbers that share leading one and mantissa."""
    for msb in range(bits):
        ignored = max(msb - MANTISSA_BITS, 0)
        for head in range(1 << msb - ignored, 2 << msb - ignored):
            yield head << ignored, (head + 1 << ignored) - 1


def log_error(bits: int) -> float:
    """Return the greatest error of a logarithm, in units of its last bit."""
    worst = 0.0
    expected = 1
    for first, last in numbers(bits):
        assert first == expected
        expected = last + 1
        assert log2_pipeline(first) == log2_pipeline(last)
        for x in (first, last):
            worst = max(worst, abs(log2_pipeline(x) - UNIT * math.log2(x)))
    assert expected == 1 << bits
    return worst


def exp_error() -> float:
    return max(abs(step - UNIT * math.log2(n)) for n, step in enumerate(exp_steps()) if n > 1)


SATURATION = 3
"""What a sum may lose where it saturates, in units of its last bit; see below."""


def test_sums_lose_next_to_nothing_where_they_saturate() -> None:
    most = {bits: log2_pipeline((1 << bits) - 1) for bits in (PSN_BITS, RANDOM_BITS, QDEPTH_BITS)}
    full = (1 << LOG_BITS) - 1
    assert most[RANDOM_BITS] + LOG_BIAS + most[PSN_BITS] <= full + SATURATION
    assert log2_pipeline(1 << K_BITS - 1) + LOG_BIAS + most[PSN_BITS] <= full + SATURATION
    assert most[RANDOM_BITS] + LOG_BIAS + most[QDEPTH_BITS] <= full


def test_r_0_lies_below_everything() -> None:
    # log2 of psn_rec alone never exceeds the other side, so N is 0 and any alpha marks.
    most = log2_pipeline((1 << PSN_BITS) - 1)
    least = log2_pipeline(1) + LOG_BIAS + log2_pipeline(1)
    assert most - least <= 0
    assert alpha_exceeded(0, (1 << PSN_BITS) - 1, 1, 1) == 0


def test_the_stated_error_of_the_mark_holds_over_the_whole_range() -> None:
    units = (
        log_error(RANDOM_BITS) + 2 * log_error(PSN_BITS) + log_error(K_BITS)
        + exp_error() + SATURATION
    )  # fmt: skip
    bound = 2 ** (units / UNIT) - 1
    assert bound <= MARK_ERROR
    # And it is no idle promise.
    assert bound > 0.9 * MARK_ERROR


def test_the_stated_error_of_red_holds_over_the_whole_range() -> None:
    units = 2 * log_error(RANDOM_BITS) + 2 * log_error(QDEPTH_BITS)
    bound = 2 ** (units / UNIT) - 1
    assert bound <= RED_ERROR
    assert bound > 0.9 * RED_ERROR


# -- decisions and probabilities -----------------------------------------------------------------


def marks(k: int, alpha: int, psn: int, psn_rec: int) -> int:
    """Return how many of the 65536 random numbers mark in the pipeline: those below a threshold."""
    low, high = 0, GRAIN
    while low < high:
        middle = (low + high) // 2
        if alpha > alpha_exceeded(middle, psn_rec, k, psn):
            low = middle + 1
        else:
            high = middle
    return low


psns = st.one_of(st.integers(1, (1 << PSN_BITS) - 1), st.integers(1, 4096))
gains = st.one_of(st.integers(1, 1 << K_BITS - 1), st.integers(1, 4096))
alphas = st.integers(1, 255)


@settings(max_examples=400)
@given(gains, alphas, psns, psns)
@example(1 << 16, 255, (1 << 24) - 1, (1 << 24) - 1)
@example(1, 1, 1, (1 << 24) - 1)
@example(655, 1, 1000, 1000)
def test_probability_is_within_the_error_of_the_references(
    k: int, alpha: int, psn: int, psn_rec: int
) -> None:
    # The reference marks the r in 0 .. 65535 with r * psn_rec < K * alpha * psn.
    exact = min(Fraction(k * alpha * psn, psn_rec), Fraction(GRAIN))
    found = marks(k, alpha, psn, psn_rec)
    error = Fraction(MARK_ERROR).limit_denominator()
    assert math.ceil(exact / (1 + error)) <= found <= min(math.ceil(exact * (1 + error)), GRAIN)


@settings(max_examples=400)
@given(st.integers(0, GRAIN - 1), gains, alphas, psns, psns)
def test_a_decision_differs_only_within_the_error(
    r: int, k: int, alpha: int, psn: int, psn_rec: int
) -> None:
    left, right = r * psn_rec, k * alpha * psn
    found = alpha > alpha_exceeded(r, psn_rec, k, psn)
    if left * (1 + MARK_ERROR) < right:
        assert found
    elif left > right * (1 + MARK_ERROR):
        assert not found


@settings(max_examples=400)
@given(
    st.integers(0, GRAIN - 1),
    st.integers(1, (1 << QDEPTH_BITS) - 1),
    st.integers(1, GRAIN - 1),
    st.integers(0, (1 << QDEPTH_BITS) - 2),
)
def test_a_decision_of_red_differs_only_within_the_error(
    r: int, span: int, share: int, excess: int
) -> None:
    excess = excess % span + 1
    left, right = r * span, share * excess
    found = red_marks(r, span, share, excess)
    if left * (1 + RED_ERROR) < right:
        assert found
    elif left > right * (1 + RED_ERROR):
        assert not found


def test_probability_never_falls_where_the_references_rises() -> None:
    source = random.Random(7)
    for _ in range(200):
        k, psn, rec = source.randrange(1, 65537), source.randrange(1, 1 << 24), 1 << 12
        counts = [marks(k, alpha, psn, rec) for alpha in (1, 2, 3, 50, 51, 254, 255)]
        assert counts == sorted(counts)


def test_mantissa_is_what_follows_the_leading_one() -> None:
    assert [mantissa(x, x.bit_length() - 1) for x in (1, 2, 3, 4, 5, 256, 257, 511, 512, 515)] == [
        0, 0, 128, 0, 64, 0, 1, 255, 0, 1,
    ]  # fmt: skip
    assert EXP_GRAIN <= 4
