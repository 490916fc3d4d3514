"""The two-flow experiment of the paper's hardware prototype (arXiv:2604.16880, 4.7 and Fig. 9).

Two flows of one size leave through one switch port. Flow A belongs to step s, flow B to step s + 1.
In step, A starts a whole flow time before B and is done when B begins. The experiment starts A
``delay`` later than that, so that it is still sending when B comes: at the full delay both start
together.

The figure's geometry, as read from its numbers (time zero is the start of A): B starts at
1000 ms - delay, so "both on the wire" is A's completion time less that start (882 = 1382 - 500),
and each completion time counts from the flow's own start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PAPER_PERIOD_MS: Final = 1000.0
"""Start of B after the start of A when nothing is late, in the paper's Fig. 9."""


class Mode(StrEnum):
    """What keeps the two flows apart."""

    IDEAL = "ideal"
    """B waits until A is done: a perfect schedule at the hosts."""
    DCQCN = "dcqcn"
    """RED on the egress queue and DCQCN at the hosts, no marker."""
    MARKER = "marker"
    """The same, and the job's marker."""


class Geometry(StrEnum):
    """Which flow of a pair starts first."""

    PAPER = "paper"
    """A starts ``period - delay`` before B (Fig. 9)."""
    LATE = "late"
    """A starts ``delay`` after B: the laggard comes into a link that B already fills."""


@dataclass(frozen=True, slots=True)
class PaperResult:
    """One delay of Fig. 9, in milliseconds; completion times from each flow's own start."""

    a_ms: float
    b_ms: float
    overlap_ms: float


PAPER_DCQCN: Final[Mapping[int, PaperResult]] = {
    250: PaperResult(1132, 1146, 382),
    500: PaperResult(1382, 1399, 882),
    750: PaperResult(1637, 1647, 1387),
    1000: PaperResult(1877, 1885, 1877),
}
PAPER_MARKER: Final[Mapping[int, PaperResult]] = {
    250: PaperResult(1073, 1166, 323),
    500: PaperResult(1210, 1433, 710),
    750: PaperResult(1306, 1680, 1056),
    1000: PaperResult(1348, 1936, 1348),
}
"""Numbers of Fig. 9 as placed by the identity overlap = A - (1000 - delay), which all eight rows
satisfy. The row of 500 ms is spelled out in the text (4.7): there B ends at 1433, the figure
prints 1423."""


@dataclass(frozen=True, slots=True)
class Starts:
    """Start times of the two flows in milliseconds; the earlier one is 0."""

    a_ms: float
    b_ms: float


def starts(geometry: Geometry, delay_ms: float, period_ms: float) -> Starts:
    """Return when the flows start.

    Args:
        geometry: which flow leads.
        delay_ms: how late A is, 0..period for the paper's geometry.
        period_ms: a flow's place in the schedule, 1000 ms in the paper.
    """
    lead = delay_ms - period_ms if geometry is Geometry.PAPER else delay_ms
    return Starts(a_ms=max(lead, 0.0), b_ms=max(-lead, 0.0))


@dataclass(frozen=True, slots=True)
class Bound:
    """What no work-conserving schedule of the one link beats, as completion times.

    ``a_ms`` with A served first; ``b_ms`` is B's completion time in that same schedule.
    """

    a_ms: float
    b_ms: float


def work_conserving_bound(at: Starts, alone_ms: float) -> Bound:
    """Return the completion times when the link is never idle and A always goes first.

    Args:
        at: start times.
        alone_ms: completion time of one flow with the link to itself.
    """
    a_done = at.a_ms + alone_ms
    b_before_a = min(max(at.a_ms - at.b_ms, 0.0), alone_ms)
    b_left = alone_ms - b_before_a
    if b_left == 0:
        return Bound(alone_ms, alone_ms)
    b_done = max(a_done, at.b_ms) + b_left
    return Bound(alone_ms, b_done - at.b_ms)


def fair_share(at: Starts, alone_ms: float) -> Bound:
    """Return the completion times when both flows always share the link evenly."""
    first, second = min(at.a_ms, at.b_ms), max(at.a_ms, at.b_ms)
    shared_start = max(second, first)
    left_first = alone_ms - (shared_start - first)
    if left_first <= 0:
        return Bound(alone_ms, alone_ms)
    first_done = shared_start + 2 * left_first
    second_done = first_done + alone_ms - left_first
    lead, follow = first_done - first, second_done - second
    return Bound(lead, follow) if at.a_ms <= at.b_ms else Bound(follow, lead)


def overlap_ms(at: Starts, a_ms: float, b_ms: float) -> float:
    """Return how long both flows were on the wire."""
    begin = max(at.a_ms, at.b_ms)
    end = min(at.a_ms + a_ms, at.b_ms + b_ms)
    return max(0.0, end - begin)
