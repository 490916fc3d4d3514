"""Results of the ring AllReduce in the lab: medians, intervals, ``result.json``, table, plot."""

from __future__ import annotations

import io
import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ringstep.fabric.intervals import expanded_tail
from ringstep.lab.allreduce import Traffic
from ringstep.lab.pace import Pace
from ringstep.lab.results import write_atomically

RESAMPLES: Final = 4000
FEWEST: Final = 5
"""Seeds from which on an interval says something."""
UNMARKED: Final = "off"
Interval = tuple[float, float]
Variant = tuple[str, str, bool]
"""Paths, marking, background."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step on one edge; times in ms after the start of the collective."""

    rank: int
    step: int
    way: str
    """Switches on its way, such as ``leaf1>spine2>leaf2``."""
    posted_ms: float
    first_ms: float
    """Start of its first packet."""
    arrived_ms: float
    """Arrival of its last packet."""


@dataclass(frozen=True, slots=True)
class RingRun:
    """One collective."""

    seed: int
    paths: str
    marking: str
    background: bool
    cct_ms: float
    counted: Mapping[str, int]
    """The job's counters over all switches: data, marks, red_marks, corrections, advances."""
    ways_confirmed: bool | None
    """Whether switches and ports counted what the steps' ways say; None after a loss."""
    traffic: Traffic
    background_bytes: int
    steps: Sequence[StepRow]
    pace: Pace

    @property
    def variant(self) -> Variant:
        """What was varied, but for the seed."""
        return self.paths, self.marking, self.background

    def overlap(self) -> Overlap:
        """Return how many steps were on the wire at once."""
        return Overlap.of(self.steps)

    def to_json(self) -> dict[str, Any]:
        """Return the record of ``result.json``."""
        overlap = self.overlap()
        return {
            "seed": self.seed,
            "paths": self.paths,
            "marking": self.marking,
            "background": self.background,
            "cct_ms": self.cct_ms,
            "marks": self.counted.get("marks", 0),
            "red_marks": self.counted.get("red_marks", 0),
            "counted": dict(self.counted),
            "cnps": self.traffic.cnps,
            "dropped": self.traffic.dropped,
            "ways_confirmed": self.ways_confirmed,
            "traffic": asdict(self.traffic),
            "background_bytes": self.background_bytes,
            "overlap_max": overlap.most,
            "overlap_mean": round(overlap.mean, 3),
            "collisions_share": round(shared_share(self.steps), 4),
            "pace": self.pace.to_json(),
            "steps": [asdict(row) for row in self.steps],
        }


@dataclass(frozen=True, slots=True)
class Overlap:
    """Number of different steps under way over time, as a staircase."""

    times_ms: tuple[float, ...]
    counts: tuple[int, ...]
    """``counts[i]`` holds from ``times_ms[i]`` to the next."""

    @classmethod
    def of(cls, rows: Iterable[StepRow]) -> Overlap:
        """Count steps from the first packet of their first edge to the last of their last."""
        events = []
        for row in rows:
            events += [(row.first_ms, 1, row.step), (row.arrived_ms, -1, row.step)]
        # Where one ends as another starts, the end comes first.
        events.sort(key=lambda event: (event[0], event[1]))
        flows: dict[int, int] = {}
        times: list[float] = []
        counts: list[int] = []
        for time_ms, change, step in events:
            flows[step] = flows.get(step, 0) + change
            if not flows[step]:
                del flows[step]
            if times and times[-1] == time_ms:
                counts[-1] = len(flows)
            else:
                times.append(time_ms)
                counts.append(len(flows))
        return cls(tuple(times), tuple(counts))

    @property
    def most(self) -> int:
        """The most steps under way at once."""
        return max(self.counts, default=0)

    @property
    def mean(self) -> float:
        """Mean over time."""
        if len(self.times_ms) < 2:
            return 0.0
        spans = np.diff(np.array(self.times_ms))
        return float(np.sum(spans * np.array(self.counts[:-1])) / max(float(np.sum(spans)), 1e-9))


def links_of(way: str) -> tuple[str, ...]:
    """Return the links between switches on a way, such as ``("leaf1>spine2", "spine2>leaf2")``."""
    stops = way.split(">")
    return tuple(f"{a}>{b}" for a, b in itertools.pairwise(stops))


def shared_share(rows: Sequence[StepRow]) -> float:
    """Return the share of the flows' time that they share a link between switches with another."""
    total = shared = 0.0
    by_link: dict[str, list[StepRow]] = {}
    for row in rows:
        for link in links_of(row.way):
            by_link.setdefault(link, []).append(row)
    for row in rows:
        span = row.arrived_ms - row.first_ms
        total += span
        others = [
            (max(other.first_ms, row.first_ms), min(other.arrived_ms, row.arrived_ms))
            for link in links_of(row.way)
            for other in by_link[link]
            if other is not row
        ]
        shared += _union(others)
    return shared / total if total else 0.0


def _union(intervals: Iterable[tuple[float, float]]) -> float:
    covered, reach = 0.0, float("-inf")
    for begin, end in sorted(i for i in intervals if i[1] > i[0]):
        covered += max(0.0, end - max(begin, reach))
        reach = max(reach, end)
    return covered


def bootstrap(values: Sequence[float]) -> Interval | None:
    """Return the 95 % bootstrap interval of the median; the same values, the same one.

    None with fewer than 5 values, which say nothing about their spread.
    """
    count = len(values)
    if count < FEWEST:
        return None
    data = np.asarray(values, dtype=float)
    picks = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    medians = np.median(data[picks], axis=1)
    tail = expanded_tail(count)
    low, high = np.quantile(medians, [tail, 1 - tail])
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Summary:
    """All runs of one variant."""

    variant: Variant
    runs: tuple[RingRun, ...]

    @property
    def cct_ms(self) -> float:
        """Median completion time."""
        return statistics.median(run.cct_ms for run in self.runs)

    @property
    def interval_ms(self) -> Interval | None:
        """Bootstrap interval of the median; None with few seeds."""
        return bootstrap([run.cct_ms for run in self.runs])

    @property
    def lost_pace(self) -> int:
        """Runs whose pace the machine did not keep."""
        return sum(not run.pace.kept for run in self.runs)

    def median(self, of: Callable[[RingRun], float]) -> float:
        """Return the median of something over the runs."""
        return statistics.median(of(run) for run in self.runs)

    def change_against(self, base: Summary) -> tuple[float, Interval | None] | None:
        """Return the median change of CCT in percent, seed by seed, with its interval."""
        theirs = {run.seed: run.cct_ms for run in base.runs}
        changes = [
            100 * (run.cct_ms / theirs[run.seed] - 1) for run in self.runs if run.seed in theirs
        ]
        return (statistics.median(changes), bootstrap(changes)) if changes else None


@dataclass(slots=True)
class RingExperiment:
    """Everything that one ``ringstep lab run ring-allreduce`` measured."""

    parameters: Mapping[str, Any]
    bound_ms: float
    """What the collective needs with planned paths and links to itself."""
    runs: list[RingRun] = field(default_factory=list)
    interrupted: bool = False

    def summaries(self) -> list[Summary]:
        """Return the variants: by background, then by paths, then by marking, as first met."""
        found: dict[Variant, list[RingRun]] = {}
        for run in self.runs:
            found.setdefault(run.variant, []).append(run)
        met: list[dict[Any, int]] = [
            {value: place for place, value in enumerate(dict.fromkeys(values))}
            for values in zip(*found, strict=True)
        ]
        paths, marking, background = met or [{}, {}, {}]
        ordered = sorted(found, key=lambda v: (background[v[2]], paths[v[0]], marking[v[1]]))
        return [Summary(variant, tuple(found[variant])) for variant in ordered]

    def base_of(self, summary: Summary) -> Summary:
        """Return what a variant is compared with: the first one with the same background."""
        return next(s for s in self.summaries() if s.variant[2] == summary.variant[2])

    def unmarked(self, summary: Summary) -> Summary | None:
        """Return the variant with plain RED that has the same paths and background."""
        paths, marking, background = summary.variant
        if marking == UNMARKED:
            return None
        wanted = (paths, UNMARKED, background)
        return next((s for s in self.summaries() if s.variant == wanted), None)

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``result.json``."""
        return {
            "parameters": dict(self.parameters),
            "interrupted": self.interrupted,
            "bound_ms": self.bound_ms,
            "summary": [self._summary_json(s) for s in self.summaries()],
            "lost_pace": sum(not run.pace.kept for run in self.runs),
            "runs": [run.to_json() for run in self.runs],
        }

    def _summary_json(self, s: Summary) -> dict[str, Any]:
        paths, marking, background = s.variant
        change = s.change_against(self.base_of(s))
        unmarked = self.unmarked(s)
        by_marker = None if unmarked is None else s.change_against(unmarked)
        return {
            "paths": paths,
            "marking": marking,
            "background": background,
            "runs": len(s.runs),
            "lost_pace": s.lost_pace,
            "cct_ms": round(s.cct_ms, 3),
            "cct_interval_ms": _rounded(s.interval_ms, 3),
            "of_bound": round(s.cct_ms / self.bound_ms, 3),
            "change_percent": None if change is None else round(change[0], 2),
            "change_interval_percent": None if change is None else _rounded(change[1], 2),
            "marker_change_percent": None if by_marker is None else round(by_marker[0], 2),
            "marker_change_interval_percent": None
            if by_marker is None
            else _rounded(by_marker[1], 2),
            "marks": s.median(lambda run: run.counted.get("marks", 0)),
            "red_marks": s.median(lambda run: run.counted.get("red_marks", 0)),
            "cnps": s.median(lambda run: run.traffic.cnps),
            "dropped": sum(run.traffic.dropped for run in s.runs),
            "overlap_max": s.median(lambda run: run.overlap().most),
            "overlap_mean": round(s.median(lambda run: run.overlap().mean), 3),
        }


def _rounded(interval: Interval | None, digits: int) -> list[float] | None:
    return None if interval is None else [round(value, digits) for value in interval]


def write_json(experiment: RingExperiment, path: Path) -> None:
    """Write ``result.json``."""
    write_atomically(path, json.dumps(experiment.to_json(), indent=1) + "\n")


def table(experiment: RingExperiment) -> Table:
    """Return the table that ``ringstep lab run`` prints; it fits 80 columns."""
    out = Table(
        title=f"Ring AllReduce: CCT in ms, median of {_most_runs(experiment)} seeds "
        f"(bound {experiment.bound_ms:.0f})",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
    )
    for name in ("paths", "marker"):
        out.add_column(name, no_wrap=True)
    for name in ("CCT", "95 %", "change", "marks/RED/CNP", "drops", "steps", "pace"):
        out.add_column(name, justify="right", no_wrap=True)
    label = ""
    for summary in experiment.summaries():
        paths, marking, background = summary.variant
        before, label = label, f"{paths}{' +bg' if background else ''}"
        if before and before != label:
            out.add_section()
        interval = summary.interval_ms
        lost = summary.lost_pace
        out.add_row(
            "" if label == before else label,
            marking,
            f"{summary.cct_ms:.0f}",
            "-" if interval is None else f"{interval[0]:.0f}-{interval[1]:.0f}",
            _change(experiment, summary),
            "/".join(f"{value:.0f}" for value in _signals(summary)),
            str(sum(run.traffic.dropped for run in summary.runs)),
            f"{summary.median(lambda run: run.overlap().most):.0f}",
            f"[red]lost {lost}[/]" if lost else "[green]kept[/]",
        )
    return out


def _signals(summary: Summary) -> tuple[float, float, float]:
    return (
        summary.median(lambda run: run.counted.get("marks", 0)),
        summary.median(lambda run: run.counted.get("red_marks", 0)),
        summary.median(lambda run: run.traffic.cnps),
    )


def marker_lines(experiment: RingExperiment) -> list[str]:
    """Say what marking changed where paths and background were the same, with the intervals."""
    lines = []
    for summary in experiment.summaries():
        unmarked = experiment.unmarked(summary)
        change = None if unmarked is None else summary.change_against(unmarked)
        if change is None:
            continue
        paths, marking, background = summary.variant
        middle, interval = change
        label = f"{paths}{' +bg' if background else ''}"
        span = "" if interval is None else f" ({interval[0]:+.1f} to {interval[1]:+.1f})"
        lines.append(f"  {label:<11} {marking:<8} {middle:+6.1f} %{span}")
    return lines


def _most_runs(experiment: RingExperiment) -> int:
    return max((len(s.runs) for s in experiment.summaries()), default=0)


def _change(experiment: RingExperiment, summary: Summary) -> str:
    base = experiment.base_of(summary)
    if base.variant == summary.variant:
        return "-"
    change = summary.change_against(base)
    return "-" if change is None else f"{change[0]:+.1f} %"


_MARKINGS: Final = {
    "off": "#7f7f7f", "paper": "#c0504d", "spaced": "#9bbb59", "ringstep": "#4f81bd",
}  # fmt: skip


def draw(experiment: RingExperiment, path: Path) -> None:
    """Draw step overlap over time as PNG: above all variants, below who was on which uplink.

    Each column is one way of finding paths. Of a variant's runs the one with the median completion
    time is drawn.

    Raises:
        ModuleNotFoundError: matplotlib (extra ``[report]``) is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    background = experiment.runs[0].background
    chosen = {
        s.variant[:2]: sorted(s.runs, key=lambda r: r.cct_ms)[(len(s.runs) - 1) // 2]
        for s in experiment.summaries()
        if s.variant[2] == background
    }
    columns = list(dict.fromkeys(paths for paths, _ in chosen))
    markings = list(dict.fromkeys(marking for _, marking in chosen))
    links = sorted({link for run in chosen.values() for r in run.steps
                    for link in links_of(r.way)[:1]})  # fmt: skip
    rows = 1 + len(markings)
    figure = Figure(
        figsize=(2 + 5.5 * len(columns), 2.4 + len(markings) * (0.6 + 0.22 * len(links))),
        layout="constrained",
    )
    axes = figure.subplots(
        rows, len(columns), squeeze=False, sharex=True,
        gridspec_kw={"height_ratios": [2.2, *([0.6 + 0.22 * len(links)] * len(markings))]},
    )  # fmt: skip
    steps = int(experiment.parameters["steps"])
    top = max((run.overlap().most for run in chosen.values()), default=1)
    for column, paths in enumerate(columns):
        _draw_overlap(axes[0][column], paths, chosen, top)
        for row, marking in enumerate(markings, 1):
            if (paths, marking) in chosen:
                _draw_links(axes[row][column], chosen[paths, marking], links, steps)
            axes[row][column].set_title(f"{paths}, marker {marking}", loc="left", fontsize="small")
        axes[-1][column].set_xlabel("ms since the first rank's start")
    axes[0][0].set_ylabel("steps at once")
    with_or_without = "with" if background else "without"
    figure.suptitle(
        f"Steps of a ring AllReduce on the leaves' uplinks, {with_or_without} background flow; "
        "colour = step, run of median CCT",
        fontsize="medium",
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())


def _draw_overlap(
    axis: Any, paths: str, chosen: Mapping[tuple[str, str], RingRun], top: int
) -> None:
    for (column, marking), run in chosen.items():
        if column == paths:
            overlap = run.overlap()
            axis.step(
                overlap.times_ms, overlap.counts, where="post",
                color=_MARKINGS.get(marking, "black"), linewidth=1.1,
                label=f"{marking}: {run.cct_ms:.0f} ms",
            )  # fmt: skip
    axis.set_title(f"paths: {paths}", loc="left", fontsize="medium")
    axis.set_ylim(0, top + 0.5)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="x-small", loc="upper right")


def _draw_links(axis: Any, run: RingRun, links: Sequence[str], steps: int) -> None:
    from matplotlib import colormaps

    colors = colormaps["turbo"]
    place = {link: row for row, link in enumerate(links)}
    lanes: dict[str, list[float]] = {link: [] for link in links}
    for row in sorted(run.steps, key=lambda r: r.first_ms):
        link = links_of(row.way)[0] if row.way else ""
        if link not in place:
            continue
        ends = lanes[link]
        lane = next((n for n, end in enumerate(ends) if end <= row.first_ms), len(ends))
        ends[lane : lane + 1] = [row.arrived_ms]
        shift = (lane % 4) * 0.22 - 0.33
        axis.barh(
            place[link] + shift, row.arrived_ms - row.first_ms, left=row.first_ms, height=0.2,
            color=colors(row.step / max(steps - 1, 1)), edgecolor="none",
        )  # fmt: skip
    axis.set_yticks(range(len(links)), links, fontsize="x-small")
    axis.set_ylim(-0.6, len(links) - 0.4)
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)
