"""Results of the two-flow experiment: medians and spread, ``result.json``, table and timelines."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ringstep.lab.scenario import (
    PAPER_DCQCN,
    PAPER_MARKER,
    Geometry,
    Mode,
    PaperResult,
    fair_share,
    starts,
    work_conserving_bound,
)


@dataclass(frozen=True, slots=True)
class FlowRun:
    """One flow of one run. Times in milliseconds, packets as counted by its sender and receiver."""

    start_ms: float
    """When it was started, after the earlier flow of the pair."""
    completion_ms: float
    """From its own start to the last acknowledgement."""
    packets: int
    retransmissions: int
    ce_received: int
    """Packets that arrived CE-marked, whoever marked them."""
    cnps_received: int


@dataclass(frozen=True, slots=True)
class Run:
    """One repetition."""

    seed: int
    a: FlowRun
    b: FlowRun
    overlap_ms: float
    marked: Mapping[str, int]
    """The switch's counters of this run: data, by marker, by RED, corrections, advances."""
    given_up: Sequence[str] = ()
    """Why tries of this run before it did not end: in real time a machine may be too busy."""


@dataclass(slots=True)
class Cell:
    """All repetitions of one delay in one mode."""

    delay_ms: float
    mode: Mode
    runs: list[Run] = field(default_factory=list)

    @property
    def a_ms(self) -> float:
        """Median completion time of flow A."""
        return statistics.median(run.a.completion_ms for run in self.runs)

    @property
    def b_ms(self) -> float:
        """Median completion time of flow B."""
        return statistics.median(run.b.completion_ms for run in self.runs)

    @property
    def overlap_ms(self) -> float:
        """Median time with both flows on the wire."""
        return statistics.median(run.overlap_ms for run in self.runs)

    def spread(self, flow: str) -> tuple[float, float]:
        """Return the least and greatest completion time of flow ``a`` or ``b``."""
        values = [getattr(run, flow).completion_ms for run in self.runs]
        return min(values), max(values)

    def to_json(self) -> dict[str, Any]:
        """Return the record of ``result.json``."""
        return {
            "delay_ms": self.delay_ms,
            "mode": str(self.mode),
            "a_ms": round(self.a_ms, 3),
            "b_ms": round(self.b_ms, 3),
            "overlap_ms": round(self.overlap_ms, 3),
            "a_spread_ms": [round(v, 3) for v in self.spread("a")],
            "b_spread_ms": [round(v, 3) for v in self.spread("b")],
            "runs": [asdict(run) for run in self.runs],
        }


@dataclass(slots=True)
class Experiment:
    """Everything that one ``ringstep demo`` measured."""

    parameters: Mapping[str, Any]
    geometry: Geometry
    period_ms: float
    delays_ms: Sequence[float]
    cells: dict[tuple[float, Mode], Cell] = field(default_factory=dict)
    interrupted: bool = False

    def cell(self, delay_ms: float, mode: Mode) -> Cell:
        """Return the cell, made on first use."""
        return self.cells.setdefault((delay_ms, mode), Cell(delay_ms, mode))

    def complete(self, delay_ms: float) -> bool:
        """Say whether every mode has a run at this delay."""
        return all(
            (delay_ms, mode) in self.cells and self.cells[delay_ms, mode].runs for mode in Mode
        )

    @property
    def alone_ms(self) -> float:
        """Completion time of a flow that has the link to itself: median over the ideal runs."""
        values = [
            flow.completion_ms
            for cell in self.cells.values()
            if cell.mode is Mode.IDEAL
            for run in cell.runs
            for flow in (run.a, run.b)
        ]
        return statistics.median(values)

    def comparison(self, delay_ms: float) -> dict[str, Any]:
        """Return what the marker changed at one delay, beside the paper and the two bounds."""
        dcqcn, marker = self.cell(delay_ms, Mode.DCQCN), self.cell(delay_ms, Mode.MARKER)
        at = starts(self.geometry, delay_ms, self.period_ms)
        paper = _paper(self.geometry, delay_ms)
        bound = work_conserving_bound(at, self.alone_ms)
        share = fair_share(at, self.alone_ms)
        return {
            "delay_ms": delay_ms,
            "delay_of_flow": round(delay_ms / self.period_ms, 3),
            "a_change_percent": _change(marker.a_ms, dcqcn.a_ms),
            "b_change_percent": _change(marker.b_ms, dcqcn.b_ms),
            "overlap_change_percent": _change(marker.overlap_ms, dcqcn.overlap_ms),
            "paper": paper,
            "bound": {"a_ms": round(bound.a_ms, 1), "b_ms": round(bound.b_ms, 1)},
            "fair_share": {"a_ms": round(share.a_ms, 1), "b_ms": round(share.b_ms, 1)},
        }

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``result.json``."""
        done = [d for d in self.delays_ms if self.complete(d)]
        return {
            "parameters": dict(self.parameters),
            "interrupted": self.interrupted,
            "alone_ms": round(self.alone_ms, 3) if self.cells else None,
            "results": [cell.to_json() for cell in self.cells.values() if cell.runs],
            "comparison": [self.comparison(d) for d in done],
        }


def _change(new: float, old: float) -> float | None:
    return round(100 * (new - old) / old, 2) if old else None


def _paper(geometry: Geometry, delay_ms: float) -> dict[str, Any] | None:
    if geometry is not Geometry.PAPER or delay_ms not in PAPER_DCQCN:
        return None
    old, new = PAPER_DCQCN[int(delay_ms)], PAPER_MARKER[int(delay_ms)]

    def change(name: str) -> float | None:
        return _change(getattr(new, name), getattr(old, name))

    return {
        "a_change_percent": change("a_ms"),
        "b_change_percent": change("b_ms"),
        "overlap_change_percent": change("overlap_ms"),
        "dcqcn": _as_dict(old),
        "marker": _as_dict(new),
    }


def _as_dict(row: PaperResult) -> dict[str, float]:
    return {"a_ms": row.a_ms, "b_ms": row.b_ms, "overlap_ms": row.overlap_ms}


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if isinstance(content, str):
            scratch.write_text(content)
        else:
            scratch.write_bytes(content)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def write_json(experiment: Experiment, path: Path) -> None:
    """Write ``result.json``."""
    write_atomically(path, json.dumps(experiment.to_json(), indent=2) + "\n")


def table(experiment: Experiment) -> Table:
    """Return the table that ``ringstep demo`` prints; it fits 80 columns."""
    out = Table(
        title="Two flows through one port: completion times in ms, medians",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    out.add_column("A late", justify="right")
    out.add_column("ms", no_wrap=True)
    for name in ("flow A", "flow B", "both on wire", "marks/RED"):
        out.add_column(name, justify="right", no_wrap=True)
    for delay in experiment.delays_ms:
        if experiment.complete(delay):
            _add_delay(out, experiment, delay)
    return out


_MODE_NAMES = {Mode.IDEAL: "ideal", Mode.DCQCN: "DCQCN only", Mode.MARKER: "with the marker"}


def _add_delay(out: Table, experiment: Experiment, delay: float) -> None:
    comparison = experiment.comparison(delay)
    label = f"{delay:g}"
    for mode in Mode:
        cell = experiment.cell(delay, mode)
        out.add_row(
            label,
            _MODE_NAMES[mode],
            _with_spread(cell.a_ms, cell.spread("a")),
            _with_spread(cell.b_ms, cell.spread("b")),
            f"{cell.overlap_ms:.0f}",
            _marks(cell),
        )
        label = ""
    out.add_row("", "[bold]marker / DCQCN[/]", *(f"[bold]{c}[/]" for c in _changes(comparison)))
    if comparison["paper"]:
        out.add_row("", "  in the paper", *_changes(comparison["paper"]))
    bound = comparison["bound"]
    out.add_row("", "bound", f"{bound['a_ms']:.0f}", f"{bound['b_ms']:.0f}", end_section=True)


def _changes(comparison: Mapping[str, Any]) -> list[str]:
    names = ("a_change_percent", "b_change_percent", "overlap_change_percent")
    values = [comparison[name] for name in names]
    return ["-" if value is None else f"{value:+.1f} %" for value in values]


def _with_spread(median: float, spread: tuple[float, float]) -> str:
    low, high = spread
    return f"{median:.0f} ±{(high - low) / 2:.0f}"


def _marks(cell: Cell) -> str:
    def median(name: str) -> float:
        return statistics.median(run.marked.get(name, 0) for run in cell.runs)

    return f"{median('marks'):.0f}/{median('red_marks'):.0f}"


def draw(experiment: Experiment, path: Path) -> None:
    """Draw the timelines in the layout of the paper's Fig. 9, as PNG.

    Raises:
        ModuleNotFoundError: matplotlib (extra ``[report]``) is not installed.
    """
    import io

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    delays = [d for d in experiment.delays_ms if experiment.complete(d)]
    figure = Figure(figsize=(9, 2.0 + 0.65 * len(delays) * len(Mode)), layout="constrained")
    axes = figure.subplots(len(Mode), 1, sharex=True)
    for axis, mode in zip(axes, Mode, strict=True):
        for row, delay in enumerate(delays):
            _draw_pair(axis, row, experiment.cell(delay, mode))
        axis.set_yticks(range(len(delays)), [f"{d:g}" for d in delays])
        axis.set_title(_MODE_NAMES[mode], loc="left", fontsize="medium")
        axis.invert_yaxis()
        axis.grid(axis="x", alpha=0.3)
    axes[-1].set_xlabel("ms since the first flow's start (medians, spread in black)")
    figure.legend(
        handles=[Patch(color=_COLORS["a"], label="flow A (step s)"),
                 Patch(color=_COLORS["b"], label="flow B (step s + 1)")],
        loc="outside upper right", ncols=2, fontsize="small",
    )  # fmt: skip
    figure.supylabel("A late by (ms)")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())


_COLORS = {"a": "#c0504d", "b": "#4f81bd"}


def _draw_pair(axis: Any, row: int, cell: Cell) -> None:
    for offset, name, median in ((-0.2, "a", cell.a_ms), (0.2, "b", cell.b_ms)):
        begin = statistics.median(_start_times(cell.runs, name))
        low, high = cell.spread(name)
        axis.barh(row + offset, median, left=begin, height=0.36, color=_COLORS[name])
        axis.plot([begin + low, begin + high], [row + offset] * 2, color="black", linewidth=1.5)
        axis.text(begin + median / 2, row + offset, f"{median:.0f}", ha="center", va="center",
                  color="white", fontsize="small")  # fmt: skip


def _start_times(runs: Iterable[Run], name: str) -> list[float]:
    return [getattr(run, name).start_ms for run in runs]
