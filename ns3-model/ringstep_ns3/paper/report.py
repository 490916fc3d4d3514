"""Run a figure and leave its table, JSON and plot.

A folder of results holds, per figure, ``NAME.json``, ``NAME.md``, ``NAME.png`` (where matplotlib is
installed) and the sweep ``NAME-runs/``, from which an interrupted figure goes on.
A command with other choices or another scale replaces the first three and adds to the runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ringstep_ns3
from ringstep_ns3 import _core
from ringstep_ns3.outfolder import check_folder, write_file
from ringstep_ns3.paper.choices import PaperError, complete, form_of, settings
from ringstep_ns3.paper.curves import overlap_curve, rate_curve, throughput_curves
from ringstep_ns3.paper.draw import draw
from ringstep_ns3.paper.figures import FIGURES, METRICS, Experiment, Figure, Scale
from ringstep_ns3.paper.measure import Key, Row, Samples, read_samples, rows_of
from ringstep_ns3.results import json_bytes
from ringstep_ns3.sweep import MARK as SWEEP_MARK
from ringstep_ns3.sweep import Point, Sweep, SweepProgress, run_sweep

MARK: Final = "paper.json"
"""The file by which a folder of results is known."""
FORMAT: Final = 1


@dataclass(frozen=True)
class Report:
    """What came out of a figure; ``curves`` are of the first seed, by what they show."""

    figure: Experiment
    scale: str
    choices: Mapping[str, str]
    settings: Mapping[str, Any]
    seed_list: tuple[int, ...]
    runs: int
    done: int
    interrupted: bool
    samples: Samples
    rows: tuple[Row, ...]
    curves: Mapping[str, Mapping[str, Any]]

    @property
    def seeds(self) -> int:
        """How many seeds it was run with."""
        return len(self.seed_list)

    @property
    def complete(self) -> bool:
        """Whether every run is done."""
        return self.done == self.runs

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, single runs included."""
        samples = [
            {
                "group": group,
                "variant": variant,
                "bounds_ms": self.samples.bounds.get((group, variant), {}),
                "seeds": {
                    metric: {str(seed): value for seed, value in sorted(seeds.items())}
                    for metric, seeds in metrics.items()
                },
            }
            for (group, variant), metrics in self.samples.values.items()
        ]
        return {
            "format": FORMAT,
            "versions": {"ringstep_ns3": ringstep_ns3.__version__, "core": _core.version()},
            "figure": self.figure.key,
            "title": self.figure.title,
            "scale": self.scale,
            "choices": dict(self.choices),
            "settings": dict(self.settings),
            "seeds": list(self.seed_list),
            "runs": self.runs,
            "done": self.done,
            "complete": self.complete,
            "rows": [row.as_dict() for row in self.rows],
            "samples": samples,
            "curves": self.curves,
        }

    def markdown(self) -> str:
        """Return the table as Markdown, with what it was made with."""
        chosen = ", ".join(f"{name} {value}" for name, value in self.choices.items())
        lines = [
            f"# {self.figure.heading}: {self.figure.title}",
            "",
            f"Scale {self.scale}, {self.seeds} seeds, {self.done} of {self.runs} runs; {chosen}.",
        ]
        if self.settings:
            lines.append(f"Also set: {', '.join(f'{k} = {v}' for k, v in self.settings.items())}.")
        lines += ["", f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
        lines += [f"| {' | '.join(cells)} |" for cells in self.cells()]
        return "\n".join(lines) + "\n"

    def cells(self) -> list[tuple[str, ...]]:
        """Return the table's rows as texts, under :data:`HEADINGS`."""
        return [
            (
                row.group,
                row.variant,
                METRICS[row.metric],
                str(row.seeds),
                _number(row.value),
                "-" if row.low is None else f"{_number(row.low)} .. {_number(row.high)}",
                f"{_number(row.least)} .. {_number(row.most)}",
                _published(row),
                row.place,
            )
            for row in self.rows
        ]


HEADINGS: Final = (
    "group",
    "variant",
    "what",
    "seeds",
    "measured",
    "95 % interval",
    "seeds from .. to",
    "paper",
    "place in the paper",
)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def _published(row: Row) -> str:
    if row.paper is None:
        return "-"
    if row.paper_low is None:
        return f"{row.paper:g}"
    return f"{row.paper:g} ({row.paper_low:g} .. {row.paper_high:g})"


def load_figure(
    key: str,
    scale: Scale,
    chosen: Mapping[str, str],
    extra: Mapping[str, Any],
    seeds: Sequence[int],
) -> tuple[Sweep, list[Point]]:
    """Return the sweep of a figure with choices and further scenario keys, every point checked.

    Raises:
        PaperError: no such figure or choice, or a key that the figure itself varies.
        SweepError, ScenarioError: a key or value that no scenario has.
    """
    if key not in FIGURES:
        raise PaperError(key, [f"--figure {key}: no such figure; write {', '.join(FIGURES)}"])
    complete(chosen)
    path = FIGURES[key].sweep(scale, form_of(chosen))
    # One point tells what the figure's scenario is; all are checked below.
    number = itertools.count()
    sweep, points = Sweep.load(path, wanted=lambda _: next(number) == 0)
    varied = {name for axis in sweep.axis for name in axis.paths}
    clash = [
        f"--set {name}: {FIGURES[key].heading} varies it; leave it out"
        for name in extra
        if name in varied
    ]
    if clash:
        raise PaperError(key, clash)
    values = {**settings(points[0].scenario, chosen), **extra}
    kept = {name: value for name, value in values.items() if name not in varied}
    return Sweep.load(path, settings=kept, seeds=seeds)


def run_figure(
    key: str,
    out: Path,
    *,
    scale: Scale = "small",
    choices: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (),
    workers: int = 1,
    mixed: bool = False,
    on_progress: Callable[[SweepProgress], None] | None = None,
    loaded: tuple[Sweep, list[Point]] | None = None,
) -> Report:
    """Run what is not in ``out`` yet of a figure, write table, JSON and plot, and return them.

    ``seeds`` empty: as many as the figure's sweep has. ``loaded``: what :func:`load_figure`
    returned for the same arguments, where it has been called already.

    Raises:
        PaperError, SweepError, ScenarioError: as :func:`load_figure`; a run failed.
        OutputError: ``out`` cannot be used.
    """
    chosen = dict(choices or {})
    sweep, points = loaded or load_figure(key, scale, chosen, extra or {}, seeds)
    figure = FIGURES[key]
    folder = prepare_folder(out, figure, MARK, {"format": FORMAT, "paper": "arXiv:2604.16880"})
    outcome = run_sweep(
        sweep, points, folder, workers=workers, mixed=mixed, on_progress=on_progress
    )
    samples = read_samples(figure, outcome, points)
    report = Report(
        figure=figure,
        scale=scale,
        choices=complete(chosen),
        settings=dict(extra or {}),
        seed_list=tuple(sweep.seeds),
        runs=int(outcome.summary["runs"]),
        done=int(outcome.summary["done"]),
        interrupted=outcome.interrupted,
        samples=samples,
        rows=tuple(rows_of(figure, samples, scale)),
        curves=_curves(figure, samples, folder),
    )
    write_report(report, out)
    return report


def prepare_folder(out: Path, experiment: Experiment, mark: str, about: Mapping[str, Any]) -> Path:
    """Make a folder of results, known by the file ``mark``; return that of an experiment's runs.

    Raises:
        OutputError: it cannot be used.
    """
    check_folder(out, mark, replace=True)
    out.mkdir(exist_ok=True)
    if not (out / mark).is_file():
        write_file(out / mark, json_bytes(about))
    folder = out / f"{experiment.name}-runs"
    check_folder(folder, SWEEP_MARK, replace=True)
    return folder


def write_report(report: Report, out: Path) -> None:
    """Write JSON, Markdown and, where matplotlib is installed, the plot."""
    name = report.figure.name
    write_file(out / f"{name}.json", json_bytes(report.as_dict()))
    write_file(out / f"{name}.md", report.markdown().encode())
    image = draw(report)
    if image is not None:
        write_file(out / f"{name}.png", image)


def _curves(figure: Figure, samples: Samples, folder: Path) -> dict[str, dict[str, Any]]:
    """Curves over time of the first seed of each variant, for the figures that show time."""
    runs: dict[Key, Path] = {
        key: folder / "runs" / hashes[min(hashes)] for key, hashes in samples.hashes.items()
    }
    curves: dict[str, dict[str, Any]] = {}
    by_variant = {key[1]: run for key, run in runs.items()}
    if figure.drawing.startswith("overlap"):
        curves["overlap"] = {name: overlap_curve(run) for name, run in by_variant.items()}
    if figure.drawing == "overlap_and_rate":
        curves["rate"] = {name: rate_curve(run) for name, run in by_variant.items()}
    if figure.drawing == "throughput":
        curves["throughput"] = {name: throughput_curves(run) for name, run in by_variant.items()}
    return curves


__all__ = [
    "HEADINGS",
    "MARK",
    "Report",
    "load_figure",
    "prepare_folder",
    "run_figure",
    "write_report",
]
