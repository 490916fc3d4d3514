"""Puts the report's sections in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ringstep.hostlib.evaluate.report import breadth, detection, insight, performance, summary
from ringstep.hostlib.evaluate.report.doc import Document, Section
from ringstep.hostlib.evaluate.report.read import Measured

TITLE: Final = "The learned tuner, measured beside the paper"

_SECTIONS: Final[tuple[Callable[[Sequence[Measured]], Section], ...]] = (
    summary.found, summary.goals,
    detection.timeline, detection.spikes, detection.onsets, detection.transitions, detection.rules,
    performance.latency, performance.oracle, performance.rivals, performance.safety,
    breadth.sizes, breadth.distributions, breadth.workloads, breadth.scaling, breadth.trained,
    detection.cost,
    insight.detector_training, insight.selector_training, insight.attribution,
    summary.made, summary.limits,
)  # fmt: skip


def build(measured: Sequence[Measured]) -> Document:
    """Return the report on one environment or several.

    Raises:
        ValueError: none.
    """
    if not measured:
        raise ValueError("no results to report on")
    return Document(TITLE, [make(measured) for make in _SECTIONS])
