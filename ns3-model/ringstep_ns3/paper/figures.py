"""Figures and tables of section 4: which sweep makes them and what is measured.

Variants: ``baseline`` DCQCN with ECMP; ``priority`` strict priority for laggards; ``paper`` the
paper's marker; ``late`` the same, switched on later; ``gated`` Ringstep's marker with ECMP;
``planned`` planned paths without a marker; ``ours`` planned paths and Ringstep's marker.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

Scale = Literal["small", "paper"]
FOLDER: Final = Path(__file__).parent / "symphony"
VARIANT: Final = "variant"
BASELINE: Final = "baseline"

METRICS: Final[Mapping[str, str]] = {
    "cct_ms": "CCT, ms",
    "jct_ms": "JCT, ms",
    "reduction_pct": "less than baseline, %",
    "reduction_vs_priority_pct": "less than priority, %",
    "over_bound_pct": "over fabric bound, %",
    "over_host_bound_pct": "over host bound, %",
    "max_overlap": "overlap: steps",
    "max_distance": "overlap: distance",
    "last_span_ms": "span of last step, ms",
    "background_pct": "background longer than baseline, %",
}
"""What is measured, and its heading. A reduction is of the figure's time; the background's time is
the median FCT of messages outside the jobs, so ``background_pct`` is harm done to other tenants.

Overlap is the most distinct steps of a job that left by one link in a window, or the largest
distance between them; the paper does not say which it means.
"""


@dataclass(frozen=True)
class Experiment:
    """A sweep with an axis ``variant``, and how its runs become a table.

    Attributes:
        key: as the command takes it.
        title: what it shows.
        time: the time that reductions are about, ``cct`` or ``jct``.
        metrics: of :data:`METRICS`, in the order of the table.
        statistic: over seeds.
        drawing: of :data:`ringstep_ns3.paper.draw.DRAWINGS`.
        split: what else than axes tells groups apart: jobs by their name up to a dot.
    """

    key: str
    title: str
    time: Literal["cct", "jct"]
    metrics: tuple[str, ...]
    statistic: Literal["median", "mean"]
    drawing: str
    split: bool = False

    @property
    def name(self) -> str:
        """Name of its files and folder."""
        return self.key

    @property
    def heading(self) -> str:
        """What people call it."""
        return f"Study {self.key}"


@dataclass(frozen=True)
class Figure(Experiment):
    """One figure or table of the paper; title and statistic as the paper states them.

    Attributes:
        form: rings that the paper's text means, ``1d`` or ``2d``.
        forms: those that it has sweeps for; the others but ``form`` in ``NAME-FORM`` files.
    """

    form: Literal["1d", "2d"] = "1d"
    forms: tuple[Literal["1d", "2d"], ...] = ()

    @property
    def name(self) -> str:
        """Name of its files and folder."""
        return self.key if self.key.startswith("table") else f"fig{self.key}"

    @property
    def heading(self) -> str:
        """What people call it."""
        return "Table 2" if self.key == "table2" else f"Figure {self.key}"

    def sweep(self, scale: Scale, form: str = "") -> Path:
        """Return its sweep file; in another form of rings where there is one."""
        other = f"-{form}" if form in self.forms and form != self.form else ""
        return FOLDER / f"{self.name}{other}.{scale}.toml"


_STEPS = ("over_bound_pct", "over_host_bound_pct", "max_overlap", "max_distance")

FIGURES: Final[Mapping[str, Figure]] = {
    figure.key: figure
    for figure in (
        Figure(
            "2",
            "Step overlap and step completion rate under disturbances",
            "cct",
            ("cct_ms", *_STEPS),
            "median",
            "overlap_and_rate",
            forms=("1d", "2d"),
        ),
        Figure(
            "4",
            "Step overlap over time, and the CDF of its maximum",
            "cct",
            ("cct_ms", "reduction_pct", *_STEPS),
            "median",
            "overlap_and_cdf",
            forms=("1d", "2d"),
        ),
        Figure(
            "5",
            "CDF of CCT for Ring AllReduce",
            "cct",
            ("cct_ms", "reduction_pct", "reduction_vs_priority_pct", "over_bound_pct"),
            "median",
            "cdf_of_time",
            form="2d",
            forms=("1d", "2d"),
        ),
        Figure(
            "6",
            "Normalised JCT of a Transformer as computation gets faster",
            "jct",
            ("jct_ms", "reduction_pct"),
            "mean",
            "bars",
        ),
        Figure(
            "7a",
            "Throughput of two co-located jobs",
            "jct",
            ("jct_ms", "reduction_pct"),
            "median",
            "throughput",
            split=True,
        ),
        Figure(
            "7b",
            "CDF of the span of the last step of two co-located jobs",
            "jct",
            ("last_span_ms", "jct_ms", "reduction_pct"),
            "median",
            "cdf_of_span",
            split=True,
        ),
        Figure(
            "7c",
            "CDF of normalised JCT by job scale, random arrivals",
            "jct",
            ("jct_ms", "reduction_pct"),
            "median",
            "cdf_of_normalised",
            split=True,
        ),
        Figure(
            "8a",
            "Normalised JCT by load imbalance",
            "jct",
            ("jct_ms", "reduction_pct", "over_bound_pct"),
            "mean",
            "bars",
        ),
        Figure(
            "8b",
            "Normalised CCT by k",
            "cct",
            ("cct_ms", "reduction_pct"),
            "mean",
            "by_k",
            form="2d",
        ),
        Figure(
            "8c",
            "Normalised CCT by chunk size",
            "cct",
            ("cct_ms", "reduction_pct"),
            "mean",
            "bars",
            form="2d",
        ),
        Figure(
            "table2",
            "Gradient synchronisation of training workloads",
            "jct",
            ("jct_ms", "reduction_pct"),
            "mean",
            "bars",
        ),
    )
}


@dataclass(frozen=True)
class Published:
    """A number of the paper; ``low`` and ``high`` where it states a range."""

    figure: str
    variant: str
    metric: str
    value: float
    place: str
    group: str = ""
    low: float | None = None
    high: float | None = None


@cache
def published() -> tuple[Published, ...]:
    """Return every number of the paper that results are set beside."""
    text = (FOLDER / "published.toml").read_text(encoding="utf-8")
    return tuple(Published(**number) for number in tomllib.loads(text)["number"])


def published_for(
    figure: str, group: str, variant: str, metric: str, scale: Scale
) -> Published | None:
    """Return the paper's number for a row; None: it states none.

    At small scale only percentages stand beside the paper's: times and step counts go by the size.
    A group such as ``VGG-128@16``, where 16 nodes stand for 128, takes the number of ``VGG-128``;
    both readings of overlap take the paper's one number.
    """
    if scale == "small" and not metric.endswith("_pct"):
        return None
    stated = "max_overlap" if metric == "max_distance" else metric
    wanted = (figure, group.partition("@")[0], variant, stated)
    for number in published():
        if (number.figure, number.group, number.variant, number.metric) == wanted:
            return number
    return None
