"""Geometry, bounds and the reading of the paper's figure."""

import pytest

from ringstep.lab.scenario import (
    PAPER_DCQCN,
    PAPER_MARKER,
    PAPER_PERIOD_MS,
    Bound,
    Geometry,
    Starts,
    fair_share,
    overlap_ms,
    starts,
    work_conserving_bound,
)


@pytest.mark.parametrize("table", [PAPER_DCQCN, PAPER_MARKER])
def test_every_row_of_the_figure_fits_the_geometry(table: dict) -> None:
    for delay, row in table.items():
        at = starts(Geometry.PAPER, delay, PAPER_PERIOD_MS)
        assert at.a_ms == 0
        assert row.overlap_ms == overlap_ms(at, row.a_ms, row.b_ms)


def test_text_of_the_paper_at_500_ms() -> None:
    assert (PAPER_DCQCN[500].a_ms, PAPER_MARKER[500].a_ms) == (1382, 1210)
    assert (PAPER_DCQCN[500].b_ms, PAPER_MARKER[500].b_ms) == (1399, 1433)
    assert (PAPER_DCQCN[500].overlap_ms, PAPER_MARKER[500].overlap_ms) == (882, 710)


def test_geometries() -> None:
    assert starts(Geometry.PAPER, 250, 1000) == Starts(0, 750)
    assert starts(Geometry.PAPER, 1000, 1000) == Starts(0, 0)
    assert starts(Geometry.LATE, 250, 1000) == Starts(250, 0)


@pytest.mark.parametrize(
    ("at", "bound", "share"),
    [
        (Starts(0, 0), Bound(100, 200), Bound(200, 200)),
        (Starts(0, 50), Bound(100, 150), Bound(150, 150)),
        (Starts(50, 0), Bound(100, 200), Bound(150, 150)),
        (Starts(0, 100), Bound(100, 100), Bound(100, 100)),
        (Starts(0, 150), Bound(100, 100), Bound(100, 100)),
        (Starts(150, 0), Bound(100, 100), Bound(100, 100)),
    ],
)
def test_bound_and_fair_share_by_hand(at: Starts, bound: Bound, share: Bound) -> None:
    assert work_conserving_bound(at, 100) == bound
    assert fair_share(at, 100) == share


def test_bound_never_idles_the_link() -> None:
    for a in range(0, 120, 10):
        for b in range(0, 120, 10):
            at = Starts(a, b)
            bound = work_conserving_bound(at, 100)
            last = max(a + bound.a_ms, b + bound.b_ms)
            first = min(a, b)
            assert last == max(first + 200, max(a, b) + 100)


def test_overlap_is_never_negative() -> None:
    assert overlap_ms(Starts(0, 100), 50, 50) == 0
    assert overlap_ms(Starts(0, 40), 50, 50) == 10
