"""The standard figures, from result folders or from a sweep (extra ``plot``).

``cct``: distribution of completion times. ``bars``: their medians. ``overlap``: steps that share a
link over time. ``rate``: normalised step completion rate over steps. ``throughput``: per job over
time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from ringstep.fabric.tomlfile import FileError
from ringstep_ns3.outfolder import check_folder
from ringstep_ns3.results import SUMMARY, Results
from ringstep_ns3.sweep import MARK
from ringstep_ns3.tables import Column

_MOST_LINES: Final = 12


class PlotError(FileError):
    """Nothing to draw, or nothing to draw with."""


@dataclass(frozen=True)
class Group:
    """Runs that a figure shows as one: the seeds of a point, or one result folder."""

    label: str
    cct_ms: Column
    runs: tuple[Path, ...]

    def first(self) -> Results:
        """Return the results of the first run."""
        return Results.read(self.runs[0])


def read_groups(folders: Sequence[Path]) -> list[Group]:
    """Return what folders hold: a group per result folder, and per point of a sweep.

    Raises:
        PlotError: a folder holds neither.
    """
    groups: list[Group] = []
    for folder in folders:
        if (folder / MARK).is_file():
            groups += _sweep_groups(folder)
        elif (folder / SUMMARY).is_file():
            results = Results.read(folder)
            label = f"{results.name}, seed {results.seed}"
            groups.append(Group(label, results.cct_ns / 1e6, (folder,)))
        else:
            raise PlotError(
                str(folder),
                [f"{folder}: neither results nor a sweep; name a folder that run or sweep wrote"],
            )
    return groups


def _sweep_groups(folder: Path) -> list[Group]:
    summary = json.loads((folder / MARK).read_text(encoding="utf-8"))
    if "points" not in summary:
        raise PlotError(str(folder), [f"{folder}: the sweep has no runs yet; run it first"])
    axes = [axis["name"] for axis in summary["axes"]]
    runs = pq.read_table(folder / "runs.parquet", columns=["point", "hash"]).to_pydict()
    collectives = pq.read_table(folder / "collectives.parquet")
    groups = []
    for point in summary["points"]:
        index = point["point"]
        hashes = dict.fromkeys(
            h for p, h in zip(runs["point"], runs["hash"], strict=True) if p == index
        )
        if not hashes:
            continue
        names = set(collectives.column_names)
        kind = "op_kind" if "op_kind" in names else "kind"
        times = [
            time / 1e6
            for p, k, time in zip(
                collectives.column("point").to_pylist(),
                collectives.column(kind).to_pylist(),
                collectives.column("cct_ns").to_pylist(),
                strict=True,
            )
            if p == index and k != "compute" and time is not None
        ]
        label = ", ".join(point[axis] for axis in axes) or summary["name"]
        paths = tuple(folder / "runs" / h for h in hashes)
        groups.append(Group(label, np.array(times), paths))
    return groups


def draw(
    folders: Sequence[Path], figures: Sequence[str], out: Path, file_format: str = "png"
) -> list[Path]:
    """Draw figures (all where none is named) into ``out``, made where missing; return the files.

    Raises:
        OutputError: ``out`` is a file, or its parent is missing or cannot be written to.
        PlotError: matplotlib is missing, a figure is unknown, or there is nothing to draw.
        ResultsError: a result folder is not whole.
    """
    unknown = [name for name in figures if name not in FIGURES]
    if unknown:
        raise PlotError(
            unknown[0], [f"--figure {unknown[0]}: no such figure; write {', '.join(FIGURES)}"]
        )
    if not out.is_dir():
        check_folder(out, SUMMARY)
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError(
            "matplotlib",
            ["plots need matplotlib; install it with: pip install 'ringstep-ns3[plot]'"],
        ) from None
    groups = read_groups(folders)
    if not groups:
        raise PlotError("plot", ["no finished runs to draw; run the sweep first"])
    out.mkdir(exist_ok=True)
    written = []
    for name in figures or FIGURES:
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        FIGURES[name](axes, groups)
        path = out / f"{name}.{file_format}"
        # Without a date, equal results give equal files.
        metadata: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(
            file_format, {}
        )
        try:
            figure.savefig(path, format=file_format, dpi=150, metadata=metadata)
        except OSError as error:
            raise PlotError(
                str(path), [f"{path}: cannot be written ({error.strerror}); name another --out"]
            ) from None
        written.append(path)
    return written


def _cct(axes: Any, groups: Sequence[Group]) -> None:
    for group in groups[:_MOST_LINES]:
        times = np.sort(group.cct_ms)
        if len(times):
            share = np.arange(1, len(times) + 1) / len(times)
            axes.step(np.r_[times[0], times], np.r_[0.0, share], where="post", label=group.label)
    axes.set(xlabel="CCT (ms)", ylabel="share of collectives", ylim=(0, 1))
    _legend(axes)


def _bars(axes: Any, groups: Sequence[Group]) -> None:
    shown = [group for group in groups if len(group.cct_ms)]
    middle = np.array([np.median(group.cct_ms) for group in shown])
    low = middle - np.array([group.cct_ms.min() for group in shown])
    high = np.array([group.cct_ms.max() for group in shown]) - middle
    axes.bar(range(len(shown)), middle, yerr=np.stack([low, high]) if shown else None, capsize=3)
    axes.set_xticks(range(len(shown)), [group.label for group in shown], rotation=30, ha="right")
    axes.set(ylabel="CCT (ms): median, min, max")


def _overlap(axes: Any, groups: Sequence[Group]) -> None:
    for group in groups[:_MOST_LINES]:
        results = group.first()
        time = results.column("overlap", "time_ns") / 1e6
        steps = results.column("overlap", "max_steps")
        for job, mine in _by_job(results.column("overlap", "job")):
            axes.plot(time[mine], steps[mine], label=_job_label(group, results, job))
    axes.set(xlabel="time (ms)", ylabel="steps on one link (most)", ylim=(0, None))
    _legend(axes)


def _rate(axes: Any, groups: Sequence[Group]) -> None:
    for group in groups[:_MOST_LINES]:
        results = group.first()
        step = results.column("step_rate", "step")
        rate = results.column("step_rate", "rate").astype(np.float64)
        for job, mine in _by_job(results.column("step_rate", "job")):
            known = mine & ~np.isnan(rate)
            steps, where = np.unique(step[known], return_inverse=True)
            if not len(steps):
                continue
            # The slowest ring of a step; over rings the rates are harmonic by nature.
            mean = len(steps) and 1 / (np.bincount(where, 1 / rate[known]) / np.bincount(where))
            axes.plot(steps, 100 * mean, label=_job_label(group, results, job))
    axes.set(xlabel="step", ylabel="step completion rate (% of line rate)", ylim=(0, None))
    _legend(axes)


def _throughput(axes: Any, groups: Sequence[Group]) -> None:
    for group in groups[:_MOST_LINES]:
        results = group.first()
        time = results.column("throughput", "time_ns") / 1e6
        rate = results.column("throughput", "bps") / 1e9
        for job, mine in _by_job(results.column("throughput", "job")):
            axes.plot(time[mine], rate[mine], label=_job_label(group, results, job))
    axes.set(xlabel="time (ms)", ylabel="payload (Gbit/s)", ylim=(0, None))
    _legend(axes)


def _by_job(job: Column) -> list[tuple[int, Column]]:
    return [(int(each), job == each) for each in np.unique(job)[:_MOST_LINES]]


def _job_label(group: Group, results: Results, job: int) -> str:
    if job == 0:
        return f"{group.label}: background"
    jobs = results.summary["jobs"]
    return group.label if len(jobs) == 1 else f"{group.label}: {jobs[job - 1]['name']}"


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")


FIGURES: Final[Mapping[str, Callable[[Any, Sequence[Group]], None]]] = {
    "cct": _cct,
    "bars": _bars,
    "overlap": _overlap,
    "rate": _rate,
    "throughput": _throughput,
}
"""Figure by name."""
