"""Our own studies: sweeps in ``studies/`` whose variants are compared with a baseline, by groups.

A study is a sweep file with an axis ``variant`` that holds ``baseline``; the other axes make the
groups. Its table ``[study]`` says what it is about and what variants are compared by.
``NAME.small.toml`` is the form for CI. A folder of results holds, per study, ``NAME.json``,
``NAME.md``, ``NAME.png`` and the sweep ``NAME-runs/``, as a paper's does.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from ringstep_ns3.paper.choices import PaperError
from ringstep_ns3.paper.figures import BASELINE, METRICS, VARIANT, Experiment
from ringstep_ns3.paper.measure import Row, read_samples, rows_of
from ringstep_ns3.paper.report import Report, prepare_folder, write_report
from ringstep_ns3.sweep import Point, StudyTable, Sweep, SweepProgress, run_sweep

StudyScale = Literal["small", "full"]
FOLDER: Final = Path(__file__).parent / "studies"
MARK: Final = "studies.json"
"""The file by which a folder of results is known."""
FORMAT: Final = 1
TOLERANCE_PCT: Final = 1.0
"""What marking, or anything else, may cost a job; from here on a group counts as worse."""
_SMALL: Final = ".small"


@dataclass(frozen=True, kw_only=True)
class Study(Experiment):
    """One study; what it is called, compared by and made of stands in its sweep file.

    Attributes:
        path: its sweep file.
    """

    description: str
    path: Path

    def sweep(self, scale: StudyScale) -> Path:
        """Return the sweep file of a scale.

        Raises:
            PaperError: it has no small form.
        """
        if scale == "full":
            return self.path
        small = self.path.with_name(f"{self.key}{_SMALL}.toml")
        if not small.is_file():
            raise PaperError(
                self.key, [f"study {self.key} has no small form; take --scale full, --seeds 1"]
            )
        return small

    @property
    def scales(self) -> tuple[StudyScale, ...]:
        """The scales that it has sweeps for."""
        small = self.path.with_name(f"{self.key}{_SMALL}.toml")
        return ("full", "small") if small.is_file() else ("full",)


def study_names() -> list[str]:
    """Return what studies there are, sorted."""
    paths = (path for path in FOLDER.glob("*.toml") if not path.stem.endswith(_SMALL))
    return sorted(path.stem for path in paths if _is_sweep(path))


def _is_sweep(path: Path) -> bool:
    """Whether a file is no scenario; one that is no TOML counts, for its error to be seen."""
    try:
        return "scenario" in tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True


def find_study(name: str) -> Study:
    """Return a study.

    Raises:
        PaperError: there is none of that name, or its sweep is no study.
        SweepError: its sweep file cannot be read.
    """
    if name not in study_names():
        raise PaperError(name, [f"{name!r} is no study; write {', '.join(study_names())}"])
    path = FOLDER / f"{name}.toml"
    sweep = Sweep.read(path)
    table = sweep.study or StudyTable(title=name)
    labels = {axis.column: [axis.label(i) for i in range(len(axis.values))] for axis in sweep.axis}
    if BASELINE not in labels.get(VARIANT, ()):
        raise PaperError(
            name, [f"{path}: needs an axis {VARIANT!r} with a value of label {BASELINE!r}"]
        )
    return Study(
        key=name,
        title=table.title,
        description=table.description,
        time=table.time,
        metrics=(f"{table.time}_ms", "reduction_pct", "background_pct"),
        statistic=table.statistic,
        drawing="panels",
        split=table.split,
        path=path,
    )


def describe(study: Study) -> dict[str, Any]:
    """Return what a list of studies shows, as plain data; ``runs`` those of the full form."""
    sweep = Sweep.read(study.path)
    points = prod(len(axis.values) for axis in sweep.axis)
    variants = next(axis for axis in sweep.axis if axis.column == VARIANT)
    return {
        "name": study.key,
        "title": study.title,
        "description": study.description,
        "groups": points // len(variants.values),
        "variants": [variants.label(i) for i in range(len(variants.values))],
        "seeds": len(sweep.seeds),
        "runs": points * len(sweep.seeds),
        "scales": list(study.scales),
    }


@dataclass(frozen=True)
class Verdict:
    """A variant against the baseline over all groups; percentages are reductions of the time.

    ``worse`` groups are longer than the baseline by more than :data:`TOLERANCE_PCT`,
    ``surely_worse`` ones with their whole interval, ``surely_better`` ones shorter by more than
    that in the same way. ``harmed`` and ``surely_harmed`` are the same for the background's time,
    of ``background_groups`` that have a background.
    """

    variant: str
    groups: int
    worse: int
    surely_worse: int
    surely_better: int
    median_pct: float
    worst_pct: float
    worst_group: str
    background_groups: int
    harmed: int
    surely_harmed: int


def verdicts_of(rows: Sequence[Row]) -> tuple[Verdict, ...]:
    """Return the verdict on every variant but the baseline, in the order of the rows."""
    found = []
    for variant in dict.fromkeys(row.variant for row in rows if row.variant != BASELINE):
        mine = [row for row in rows if row.variant == variant]
        times = [row for row in mine if row.metric == "reduction_pct"]
        harm = [row for row in mine if row.metric == "background_pct"]
        if not times:
            continue
        worst = min(times, key=lambda row: row.value)
        found.append(
            Verdict(
                variant,
                len(times),
                sum(row.value < -TOLERANCE_PCT for row in times),
                sum(row.high is not None and row.high < -TOLERANCE_PCT for row in times),
                sum(row.low is not None and row.low > TOLERANCE_PCT for row in times),
                float(np.median([row.value for row in times])),
                worst.value,
                worst.group,
                len(harm),
                sum(row.value > TOLERANCE_PCT for row in harm),
                sum(row.low is not None and row.low > TOLERANCE_PCT for row in harm),
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class StudyReport(Report):
    """What came out of a study; ``only`` are the patterns of groups that it was held to."""

    only: tuple[str, ...]
    stalled: int
    verdicts: tuple[Verdict, ...]

    @property
    def study(self) -> Study:
        """The study."""
        assert isinstance(self.figure, Study)
        return self.figure

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, single runs included."""
        base = super().as_dict()
        for key in ("figure", "choices", "curves"):
            del base[key]
        rows = [
            {key: value for key, value in row.items() if key not in _OF_PAPERS}
            for row in base["rows"]
        ]
        return {
            **base,
            "study": self.study.key,
            "description": self.study.description,
            "time": self.study.time,
            "statistic": self.study.statistic,
            "only": list(self.only),
            "stalled": self.stalled,
            "tolerance_pct": TOLERANCE_PCT,
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
            "rows": rows,
        }

    def markdown(self) -> str:
        """Return verdicts and tables as Markdown: groups down, variants across."""
        study = self.study
        lines = [f"# {study.heading}: {study.title}", ""]
        if study.description:
            lines += [study.description, ""]
        lines += [self.about(), "", *_table(VERDICT_HEADINGS, self.verdict_cells())]
        lines += ["", "Surely: with the whole interval, by more than 1 %."]
        lines += ["", f"{study.time.upper()} less than baseline, %; first column: in ms.", ""]
        lines += self._across("reduction_pct", f"{study.time}_ms")
        if any(row.metric == "background_pct" for row in self.rows):
            lines += ["", "Background FCT longer than beside the baseline, %.", ""]
            lines += self._across("background_pct")
        return "\n".join(lines) + "\n"

    def about(self) -> str:
        """Return in one paragraph what the numbers are made of."""
        text = f"Scale {self.scale}, {self.seeds} seeds, {self.done} of {self.runs} runs"
        if self.stalled:
            text += f", {self.stalled} of which came to a standstill and do not count"
        text += f"; {self.study.statistic} (95 % interval, paired bootstrap over seeds)."
        if self.only:
            text += f" Only {', '.join(self.only)}."
        if self.settings:
            text += f" Also set: {', '.join(f'{k} = {v}' for k, v in self.settings.items())}."
        return text

    def table_headings(self) -> tuple[str, ...]:
        """Return the headings of :meth:`table_cells`."""
        return ("group", "variant", "seeds", *(METRICS[each] for each in self._metrics()))

    def table_cells(self) -> list[tuple[str, ...]]:
        """Return a row of texts per group and variant: what was measured, with its interval."""
        rows: dict[tuple[str, str], dict[str, Row]] = {}
        for row in self.rows:
            rows.setdefault((row.group, row.variant), {})[row.metric] = row
        return [
            (
                group,
                variant,
                str(max(row.seeds for row in found.values())),
                *(_cell(found.get(metric)) for metric in self._metrics()),
            )
            for (group, variant), found in rows.items()
        ]

    def verdict_cells(self) -> list[tuple[str, ...]]:
        """Return the verdicts as texts, under :data:`VERDICT_HEADINGS`."""
        return [
            (
                each.variant,
                str(each.groups),
                str(each.worse),
                str(each.surely_worse),
                str(each.surely_better),
                _number(each.median_pct),
                _number(each.worst_pct),
                each.worst_group,
                f"{each.harmed} ({each.surely_harmed}) of {each.background_groups}"
                if each.background_groups
                else _NOTHING,
            )
            for each in self.verdicts
        ]

    def _metrics(self) -> list[str]:
        seen = {row.metric for row in self.rows}
        return [metric for metric in self.study.metrics if metric in seen]

    def _across(self, metric: str, of_baseline: str = "") -> list[str]:
        """A table with a row per group and a column per variant."""
        shown = {(r.group, r.variant): r for r in self.rows if r.metric == metric}
        base = {r.group: r for r in self.rows if (r.variant, r.metric) == (BASELINE, of_baseline)}
        variants = list(dict.fromkeys(variant for _, variant in shown))
        first = (BASELINE,) if of_baseline else ()
        cells = [
            (
                group,
                *(_cell(base.get(group)) for _ in first),
                *(_cell(shown.get((group, variant))) for variant in variants),
            )
            for group in dict.fromkeys(group for group, _ in shown)
        ]
        return _table(("group", *first, *variants), cells)


_NOTHING: Final = "\N{EN DASH}"
_MINUS: Final = "\N{MINUS SIGN}"
_OF_PAPERS: Final = ("paper", "paper_low", "paper_high", "place")
VERDICT_HEADINGS: Final = (
    "variant",
    "groups",
    "worse by > 1 %",
    "surely worse",
    "surely better",
    "median, %",
    "worst, %",
    "worst in",
    "background worse (surely)",
)


def _table(headings: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def _number(value: float) -> str:
    return f"{value:.1f}".replace("-0.0", "0.0").replace("-", _MINUS)


def _cell(row: Row | None) -> str:
    if row is None:
        return _NOTHING
    if row.low is None or row.high is None:
        return _number(row.value)
    return f"{_number(row.value)} ({_number(row.low)} … {_number(row.high)})"


@dataclass(frozen=True)
class LoadedStudy:
    """A study with the points of a scale, each checked."""

    study: Study
    scale: StudyScale
    sweep: Sweep
    points: tuple[Point, ...]
    settings: Mapping[str, Any]
    only: tuple[str, ...]


def load_study(
    name: str,
    scale: StudyScale = "full",
    *,
    settings: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (),
    only: Sequence[str] = (),
) -> LoadedStudy:
    """Return a study with further scenario keys, held to the groups that ``only`` match.

    ``only`` are patterns of shell kind over the labels of a group joined by ``/``; empty: all.

    Raises:
        PaperError: no such study, scale or group, or a key that the study itself varies.
        SweepError, ScenarioError: a key or value that no scenario has.
    """
    study = find_study(name)
    path = study.sweep(scale)
    plain = Sweep.read(path)
    varied = {each for axis in plain.axis for each in axis.paths}
    clash = [
        f"--set {key}: study {name} varies it; leave it out"
        for key in settings or ()
        if key in varied
    ]
    if clash:
        raise PaperError(name, clash)
    seen: dict[str, None] = {}

    def wanted(labels: Mapping[str, str]) -> bool:
        group = "/".join(label for axis, label in labels.items() if axis != VARIANT)
        seen[group] = None
        return not only or any(fnmatchcase(group, pattern) for pattern in only)

    sweep, points = Sweep.load(path, settings=settings, seeds=seeds, wanted=wanted)
    unmet = [each for each in only if not any(fnmatchcase(group, each) for group in seen)]
    if unmet:
        raise PaperError(
            name,
            [f"--only {each}: no group of study {name} is like this; there are {', '.join(seen)}"
             for each in unmet],
        )  # fmt: skip
    return LoadedStudy(study, scale, sweep, tuple(points), dict(settings or {}), tuple(only))


def run_study(
    loaded: LoadedStudy,
    out: Path,
    *,
    workers: int = 1,
    mixed: bool = False,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> StudyReport:
    """Run what is not in ``out`` yet of a study, write JSON, Markdown and plot, and return them.

    Raises:
        SweepError: a run failed.
        OutputError: ``out`` cannot be used.
    """
    study, sweep = loaded.study, loaded.sweep
    folder = prepare_folder(out, study, MARK, {"format": FORMAT})
    outcome = run_sweep(
        sweep, loaded.points, folder, workers=workers, mixed=mixed, on_progress=on_progress
    )
    samples = read_samples(study, outcome, loaded.points, bounds=False)
    rows = tuple(rows_of(study, samples, None))
    report = StudyReport(
        figure=study,
        scale=loaded.scale,
        choices={},
        settings=loaded.settings,
        seed_list=tuple(sweep.seeds),
        runs=int(outcome.summary["runs"]),
        done=int(outcome.summary["done"]),
        interrupted=outcome.interrupted,
        samples=samples,
        rows=rows,
        curves={},
        only=loaded.only,
        stalled=int(outcome.summary["stalled"]),
        verdicts=verdicts_of(rows),
    )
    write_report(report, out)
    return report
