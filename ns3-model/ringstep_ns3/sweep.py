"""Many runs of one scenario: axes of key paths and values, times seeds.

Each run goes to ``runs/<hash>`` of the sweep's folder, where the hash names the effective
configuration and the seed; a run that is there already is not repeated. The combined tables depend
on the sweep alone, not on how many workers made them or in which order. A folder with runs that
another build of the simulator made is not gone on with unasked.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BeforeValidator, Field

from ringstep.fabric.tomlfile import FileError, Location, TomlTable
from ringstep_ns3.build import build as build_simulation
from ringstep_ns3.metrics import distribution
from ringstep_ns3.outfolder import check_folder, write_file, write_folder
from ringstep_ns3.prepare import prepare
from ringstep_ns3.results import SUMMARY, collective_times, json_bytes, table_bytes
from ringstep_ns3.scenario import Names, Options, Scenario, ScenarioError
from ringstep_ns3.simulate import Progress, run
from ringstep_ns3.simulate import versions as simulator_versions
from ringstep_ns3.tables import Column
from ringstep_ns3.tomldoc import Document, Findings, build, read_layer
from ringstep_ns3.units import Count, Name, Whole

MARK: Final = "sweep.json"
_MAX_RUNS: Final = 1_000_000
_EXAMPLES: Final[Mapping[str, str]] = {
    "scenario": 'scenario = "ring.toml"',
    "title": 'title = "Path schemes"',
    "values": 'values = ["hpcc_run", "connectx"]',
}
_RUN_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    "seed": pa.int64(),
    "hash": pa.string(),
    "complete": pa.bool_(),
    "job": pa.int64(),
    "name": pa.string(),
    "ranks": pa.int64(),
    "start_ns": pa.int64(),
    "jct_ns": pa.int64(),
    "cct_median_ns": pa.float64(),
    "cct_max_ns": pa.int64(),
    "bound_ns": pa.int64(),
    "throughput_bps": pa.float64(),
    "last_step_span_ns": pa.int64(),
    "max_overlap": pa.int64(),
    "max_distance": pa.int64(),
    "background_fct_ns": pa.float64(),
}
_TOTALS: Final = (
    "marks_red",
    "marks_marker",
    "pauses",
    "drops_buffer",
    "drops_wire",
    "retransmissions",
    "timeouts",
    "hops",
)
"""Totals of the whole run that stand in every row of it."""


_SUBMIT: Final[Mapping[str, str]] = {
    "slurm": "sbatch",
    "pbs": "qsub",
    "lsf": "bsub",
    "sge": "qsub",
}
"""What a batch system is given jobs with."""


class SweepError(FileError):
    """A sweep that cannot be run; ``problems`` holds one line per mistake."""


def _seeds(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError(f"{value} seeds; write how many, from 1, or a list such as [1, 2, 3]")
        return tuple(range(1, value + 1))
    return value


class Axis(TomlTable):
    """``[[axis]]``: one key path, or several that change together, and the values to take."""

    name: str = ""
    """Column in the tables; empty: the last part of the first key."""
    key: str = ""
    keys: Names = ()
    """Instead of ``key``: several; each of ``values`` is then a list of as many. With neither, each
    value is a table of key paths, of its own."""
    values: Annotated[tuple[Any, ...], Field(min_length=1)]
    labels: Names = ()
    """What the tables call the values; empty: the values themselves."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The key paths that it sets, at some value at least."""
        if self.keys or self.key:
            return self.keys or (self.key,)
        return tuple(dict.fromkeys(path for value in self.values for path in value))

    def settings(self, index: int) -> Mapping[str, Any]:
        """Return the keys that a value sets, by key path."""
        value = self.values[index]
        if self.keys or self.key:
            return dict(zip(self.paths, value if self.keys else [value], strict=True))
        return dict(value)

    @property
    def column(self) -> str:
        """The name of the axis in tables."""
        return self.name or self.paths[0].split(".")[-1]

    def label(self, index: int) -> str:
        """Return what tables call a value."""
        if self.labels:
            return self.labels[index]
        value = self.values[index]
        parts = value if isinstance(value, (list, tuple)) and self.keys else [value]
        return "/".join(part if isinstance(part, str) else json.dumps(part) for part in parts)


class DaskTable(TomlTable):
    """``[dask]``: where ``--engine dask`` runs."""

    scheduler: str = ""
    """Address of a running scheduler, ``tcp://host:8786``."""
    cluster: Literal["none", "local", "slurm", "pbs", "lsf", "sge"] = "none"
    """Start one: on this machine, or by dask-jobqueue."""
    jobs: Count = 1
    """Batch jobs (or local workers) to ask for."""
    options: Options = Field(default_factory=dict)
    """Keywords of the cluster's class, such as ``queue``, ``cores``, ``memory``, ``walltime``."""


class StudyTable(TomlTable):
    """``[study]``: how ``ringstep sim study`` reports a sweep with an axis ``variant``."""

    title: str
    description: str = ""
    time: Literal["cct", "jct"] = "cct"
    """What variants are compared by; where a group has several jobs, by their median."""
    statistic: Literal["median", "mean"] = "median"
    """Over seeds."""
    split: bool = False
    """Whether jobs are groups of their own, by their name up to a dot."""


class Sweep(TomlTable):
    """A sweep file."""

    name: Name = "sweep"
    study: StudyTable | None = None
    scenario: str
    """Scenario file, relative to the sweep."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys to set in every run, by key path."""
    seeds: Annotated[tuple[Whole, ...], BeforeValidator(_seeds), Field(min_length=1)] = (1,)
    """A list, or how many from 1."""
    axis: tuple[Axis, ...] = ()
    dask: DaskTable = DaskTable()

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        settings: Mapping[str, Any] | None = None,
        seeds: Sequence[int] = (),
        wanted: Callable[[Mapping[str, str]], bool] | None = None,
    ) -> tuple[Sweep, list[Point]]:
        """Return a sweep file and its points, every one checked.

        ``settings`` go before the file's ``[set]`` but not before its axes; ``seeds``, where there
        are any, in place of the file's. ``wanted`` tells by the labels, by axis, which points are
        returned and checked; None: all.

        Raises:
            SweepError: it cannot be read, holds unknown keys, or a point makes no sense.
            ScenarioError: the scenario it names cannot be read.
        """
        sweep, findings = cls._read(path)
        if settings:
            sweep = sweep.model_copy(update={"set": {**sweep.set, **settings}})
        if seeds:
            sweep = sweep.model_copy(update={"seeds": tuple(seeds)})
        _check_axes(sweep, findings)
        findings.raise_if_any()
        base = Path(path).parent / sweep.scenario
        if not base.is_file():
            findings.add(
                ("scenario",), f"{base} is not there; give a path from {Path(path).parent}"
            )
            findings.raise_if_any()
        return sweep, list(_points(sweep, Scenario.load(base), findings, wanted))

    @classmethod
    def read(cls, path: str | Path) -> Sweep:
        """Return a sweep file as it stands; neither its scenario nor its points are looked at.

        Raises:
            SweepError: it cannot be read, or holds unknown keys.
        """
        sweep, findings = cls._read(path)
        _check_axes(sweep, findings)
        findings.raise_if_any()
        return sweep

    @classmethod
    def _read(cls, path: str | Path) -> tuple[Sweep, Findings]:
        path = Path(path)
        layer = read_layer(path, "a sweep file", SweepError)
        if "scenario" not in layer.data and ("job" in layer.data or "fabric" in layer.data):
            raise SweepError(
                str(path), [f"{path}: is a scenario; run it with: ringstep sim run {path}"]
            )
        document = Document.of([layer])
        sweep = build(document, cls, _EXAMPLES, SweepError)
        if "name" not in document.data:
            sweep = sweep.model_copy(update={"name": path.stem})
        return sweep, Findings(document, SweepError)


@dataclass(frozen=True)
class Point:
    """One combination of values, with the scenario that it makes."""

    index: int
    labels: tuple[str, ...]
    scenario: Scenario


@dataclass(frozen=True)
class Unit:
    """One run: a point with a seed. ``key`` names its folder."""

    point: int
    scenario: Scenario
    seed: int
    key: str


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """Where a sweep stands; ``reused`` of ``done`` were there before."""

    done: int
    total: int
    reused: int


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep left: combined tables (also in its folder) and whether all runs are done."""

    summary: Mapping[str, Any]
    runs: pa.Table
    collectives: pa.Table
    complete: bool
    interrupted: bool


def _check_axes(sweep: Sweep, findings: Findings) -> None:
    seen: dict[str, int] = {}
    reserved = {"point", *_RUN_COLUMNS, *_TOTALS, "op", "kind", "cct_ns"}
    for i, axis in enumerate(sweep.axis):
        where: Location = ("axis", i)
        tables = all(isinstance(value, dict) for value in axis.values)
        if (axis.key and axis.keys) or not (axis.key or axis.keys or tables):
            findings.add(
                where,
                "takes either 'key' or 'keys', or tables as values; write for example key = "
                '"marker.k"',
            )
            continue
        if not (axis.key or axis.keys) and not (axis.name and axis.labels):
            findings.add(where, "values that are tables need a 'name' and 'labels'; add them")
            continue
        if axis.keys and any(
            not isinstance(v, (list, tuple)) or len(v) != len(axis.keys) for v in axis.values
        ):
            findings.add(
                (*where, "values"), f"each value is a list of {len(axis.keys)}, one per key"
            )
        if axis.labels and len(axis.labels) != len(axis.values):
            findings.add(
                (*where, "labels"), f"{len(axis.labels)} labels for {len(axis.values)} values"
            )
        if axis.column in reserved:
            findings.add(
                (*where, "name"), f"{axis.column!r} is a column of the tables; take another name"
            )
        if axis.column in seen:
            findings.add(
                (*where, "name"),
                f"{axis.column!r} names axis[{seen[axis.column] + 1}] too; give each a name",
            )
        seen[axis.column] = i
    runs = len(sweep.seeds)
    for axis in sweep.axis:
        runs *= len(axis.values)
    if runs > _MAX_RUNS:
        findings.add((), f"{runs} runs; a sweep has at most {_MAX_RUNS}")
    if len(set(sweep.seeds)) < len(sweep.seeds):
        findings.add(("seeds",), "a seed stands twice; it would give the same run again")


def _points(
    sweep: Sweep,
    base: Scenario,
    findings: Findings,
    wanted: Callable[[Mapping[str, str]], bool] | None,
) -> Iterator[Point]:
    names = [axis.column for axis in sweep.axis]
    choices = [range(len(axis.values)) for axis in sweep.axis]
    points = []
    for index, chosen in enumerate(itertools.product(*choices)):
        labels = tuple(axis.label(i) for axis, i in zip(sweep.axis, chosen, strict=True))
        if wanted is not None and not wanted(dict(zip(names, labels, strict=True))):
            continue
        values = dict(sweep.set)
        for axis, i in zip(sweep.axis, chosen, strict=True):
            values.update(axis.settings(i))
        try:
            scenario = base.setting(values) if values else base
            build_simulation(prepare(scenario, sweep.seeds[0]))
        except ScenarioError as error:
            named = ", ".join(
                f"{name} = {label}" for name, label in zip(names, labels, strict=True)
            )
            for problem in error.problems:
                findings.add((), f"point {index + 1}{f' ({named})' if named else ''}: {problem}")
            continue
        points.append(Point(index, labels, scenario))
    findings.raise_if_any()
    yield from points


def units_of(sweep: Sweep, points: Sequence[Point]) -> list[Unit]:
    """Return every run of a sweep, in the order of the tables."""
    return [
        Unit(point.index, point.scenario, seed, point.scenario.content_hash(seed))
        for point in points
        for seed in sweep.seeds
    ]


def run_sweep(
    sweep: Sweep,
    points: Sequence[Point],
    folder: str | Path,
    *,
    workers: int = 1,
    engine: Literal["processes", "dask"] = "processes",
    mixed: bool = False,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> SweepOutcome:
    """Run what is not done yet, and write the combined tables.

    Ctrl-C ends it: runs that are done stay, the tables hold them, and the outcome says so.
    ``mixed``: keep runs that another build of the simulator made.

    Raises:
        OutputError: the folder cannot be used.
        SweepError: a run failed, a worker died, dask is not installed, or without ``mixed`` there
            are runs of another build.
    """
    folder = Path(folder)
    check_folder(folder, MARK, replace=True)
    runs = folder / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    units = units_of(sweep, points)
    if not mixed:
        _check_builds(folder, units)
    if not (folder / MARK).is_file():
        write_file(folder / MARK, json_bytes({"name": sweep.name, "complete": False}))
    todo: dict[str, Unit] = {}
    for unit in units:
        if not _is_done(runs / unit.key):
            todo.setdefault(unit.key, unit)
    reused = len(units) - sum(unit.key in todo for unit in units)
    done = reused
    copies = {key: sum(unit.key == key for unit in units) for key in todo}

    def tell() -> None:
        if on_progress is not None:
            on_progress(SweepProgress(done, len(units), reused))

    interrupted = False
    tell()
    try:
        for unit, files in _execute(sweep, list(todo.values()), workers, engine):
            write_folder(runs / unit.key, files)
            done += copies[unit.key]
            tell()
    except KeyboardInterrupt:
        interrupted = True
    return _combine(sweep, points, units, folder, interrupted)


def _is_done(folder: Path) -> bool:
    return _made_by(folder) is not None


def _made_by(folder: Path) -> str | None:
    """Return what made the run of a folder, None where it is not done."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        return _build(summary.get("versions", {})) if summary["stopped"] else None
    except (OSError, ValueError, KeyError):
        return None


def _build(versions: Mapping[str, str]) -> str:
    return f"{versions.get('core', 'unknown')}, Python parts {versions.get('ringstep_ns3', '?')}"


def _check_builds(folder: Path, units: Sequence[Unit]) -> None:
    """Refuse runs that another simulator made: a table would compare the two.

    Raises:
        SweepError: there are some.
    """
    this = _build(simulator_versions())
    found = {unit.key: _made_by(folder / "runs" / unit.key) for unit in units}
    others = [build for build in found.values() if build not in {None, this}]
    if others:
        raise SweepError(
            str(folder),
            [f"{folder}: {len(others)} of its runs were made by another build of the simulator "
             f"({others[0]}; this is {this}); give another --out, remove {folder / 'runs'} to run "
             "them anew, or keep them with --mixed"],
        )  # fmt: skip


# --- Engines ----------------------------------------------------------------------------------

_stop: Event | None = None
Outcome = tuple[Literal["done", "failed", "stopped"], Any]


def _work(scenario: Scenario, seed: int) -> Outcome:
    """One run in a worker: its files, or what was wrong with it (exceptions may not travel)."""

    def watch(_progress: Progress) -> None:
        if _stop is not None and _stop.is_set():
            raise KeyboardInterrupt

    try:
        return "done", run(scenario, seed, watch).files()
    except KeyboardInterrupt:
        return "stopped", ()
    except FileError as error:
        return "failed", tuple(error.problems)


def _start_worker(stop: Event) -> None:
    globals()["_stop"] = stop


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Block SIGINT: it comes after the block, and processes that start in it never get it.

    Ctrl-C goes to the whole process group, but the parent alone decides what it means.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _checked(unit: Unit, outcome: Outcome) -> Mapping[str, bytes]:
    kind, content = outcome
    if kind == "stopped":
        raise KeyboardInterrupt
    if kind == "failed":
        raise SweepError(
            unit.key, [f"point {unit.point + 1}, seed {unit.seed}: {text}" for text in content]
        )
    files: Mapping[str, bytes] = content
    return files


def _execute(
    sweep: Sweep, units: Sequence[Unit], workers: int, engine: str
) -> Iterator[tuple[Unit, Mapping[str, bytes]]]:
    if engine == "dask":
        return _on_dask(sweep, units)
    if workers <= 1:
        return ((unit, _checked(unit, _work(unit.scenario, unit.seed))) for unit in units)
    return _on_processes(units, workers)


def _on_processes(
    units: Sequence[Unit], workers: int
) -> Iterator[tuple[Unit, Mapping[str, bytes]]]:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(
        min(workers, max(len(units), 1)), context, initializer=_start_worker, initargs=(stop,)
    )
    waiting = iter(units)
    running: dict[Future[Outcome], Unit] = {}
    try:
        while True:
            # Only a few runs are handed out ahead, so that ctrl-C has little to take back.
            for unit in itertools.islice(waiting, 2 * workers - len(running)):
                with _ctrl_c_held_back():
                    running[pool.submit(_work, unit.scenario, unit.seed)] = unit
            if not running:
                return
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                unit = running.pop(future)
                yield unit, _checked(unit, future.result())
    except BrokenProcessPool:
        raise SweepError(
            "sweep",
            ["a worker died, perhaps for want of memory; what is done is kept: run it again with "
             "fewer --workers"],
        ) from None  # fmt: skip
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _on_dask(sweep: Sweep, units: Sequence[Unit]) -> Iterator[tuple[Unit, Mapping[str, bytes]]]:
    try:
        distributed: Any = import_module("dask.distributed")
    except ImportError:
        raise SweepError(
            "dask",
            ["--engine dask needs dask.distributed; install it with: pip install "
             "'ringstep-ns3[dask]'"],
        ) from None  # fmt: skip
    client, cluster = _dask_client(sweep.dask, distributed)
    try:
        futures = {
            client.submit(
                _work, unit.scenario, unit.seed, key=f"ringstep-{unit.key}", pure=False
            ): (unit)
            for unit in units
        }
        try:
            for future in distributed.as_completed(list(futures)):
                yield futures[future], _checked(futures[future], future.result())
        finally:
            client.cancel(list(futures))
    finally:
        client.close()
        if cluster is not None:
            cluster.close()


def _dask_client(table: DaskTable, distributed: Any) -> tuple[Any, Any]:
    if table.scheduler:
        try:
            return distributed.Client(table.scheduler, timeout=30), None
        except OSError as error:
            raise SweepError(
                "dask", [f"dask.scheduler: {table.scheduler} does not answer ({error})"]
            ) from None
    if table.cluster in ("none", "local"):
        try:
            cluster = distributed.LocalCluster(
                n_workers=table.jobs, threads_per_worker=1, dashboard_address=None, **table.options
            )
        except (TypeError, ValueError) as error:
            raise SweepError("dask", [f"dask.options: {error}"]) from None
    else:
        try:
            dask_jobqueue: Any = import_module("dask_jobqueue")
        except ImportError:
            raise SweepError(
                "dask",
                [f"dask.cluster: {table.cluster!r} needs dask-jobqueue; install it with: pip "
                 "install 'ringstep-ns3[dask]'"],
            ) from None  # fmt: skip
        names = {"slurm": "SLURM", "pbs": "PBS", "lsf": "LSF", "sge": "SGE"}
        command = _SUBMIT[table.cluster]
        if shutil.which(command) is None:
            raise SweepError(
                "dask",
                [f"dask.cluster: {table.cluster!r} needs the command {command!r}, which is not on "
                 "the PATH; run the sweep where jobs are submitted"],
            )  # fmt: skip
        try:
            cluster = getattr(dask_jobqueue, f"{names[table.cluster]}Cluster")(**table.options)
            cluster.scale(jobs=table.jobs)
        except (TypeError, ValueError) as error:
            told = " ".join(str(error).split())
            raise SweepError("dask", [f"dask.options: {told}"]) from None
    return distributed.Client(cluster), cluster


# --- Combined tables --------------------------------------------------------------------------


def _combine(
    sweep: Sweep,
    points: Sequence[Point],
    units: Sequence[Unit],
    folder: Path,
    interrupted: bool,
) -> SweepOutcome:
    labels = {point.index: point.labels for point in points}
    axes = [axis.column for axis in sweep.axis]
    runs: dict[str, list[Any]] = {name: [] for name in ("point", *axes, *_RUN_COLUMNS, *_TOTALS)}
    kinds = {"point": pa.int64(), **dict.fromkeys(axes, pa.string()), **_RUN_COLUMNS}
    kinds |= dict.fromkeys(_TOTALS, pa.int64())
    collectives: list[pa.Table] = []
    cct: dict[int, list[Column]] = {point.index: [] for point in points}
    jct: dict[int, list[Column]] = {point.index: [] for point in points}
    done: dict[int, int] = {point.index: 0 for point in points}
    stalled = 0
    builds: set[str] = set()
    for unit in units:
        run_folder = folder / "runs" / unit.key
        if not _is_done(run_folder):
            continue
        summary = json.loads((run_folder / SUMMARY).read_text(encoding="utf-8"))
        table = pq.read_table(run_folder / "collectives.parquet")
        done[unit.point] += 1
        builds.add(_build(summary.get("versions", {})))
        stalled += summary["stopped"] == "stalled"
        own = dict(zip(axes, labels[unit.point], strict=True))
        cct[unit.point].append(collective_times(table))
        times = [job["jct_ns"] for job in summary["jobs"] if job["jct_ns"] is not None]
        jct[unit.point].append(np.array(times, dtype=np.int64))
        for job in summary["jobs"]:
            _add_row(runs, unit, own, summary, job)
        collectives.append(_tagged(table, unit, own))
    runs_table = pa.table({name: pa.array(runs[name], kind) for name, kind in kinds.items()})
    all_collectives = pa.concat_tables(collectives) if collectives else pa.table({"point": []})
    complete = sum(done.values()) == len(units)
    outcome = {
        "name": sweep.name,
        "complete": complete,
        "runs": len(units),
        "done": sum(done.values()),
        "stalled": stalled,
        "builds": sorted(builds),
        "seeds": list(sweep.seeds),
        "axes": [{"name": axis.column, "keys": list(axis.paths)} for axis in sweep.axis],
        "points": [
            {
                "point": point.index,
                **dict(zip(axes, point.labels, strict=True)),
                "done": done[point.index],
                "cct_ns": distribution(_joined(cct[point.index])),
                "jct_ns": distribution(_joined(jct[point.index])),
            }
            for point in points
        ],
    }
    write_file(folder / "runs.parquet", table_bytes(runs_table))
    write_file(folder / "collectives.parquet", table_bytes(all_collectives))
    write_file(folder / MARK, json_bytes(outcome))
    return SweepOutcome(outcome, runs_table, all_collectives, complete, interrupted)


def _add_row(
    runs: dict[str, list[Any]],
    unit: Unit,
    own: Mapping[str, str],
    summary: Mapping[str, Any],
    job: Mapping[str, Any],
) -> None:
    cct = job["cct_ns"]
    totals = summary["totals"]
    row = {
        **job,
        **own,
        "point": unit.point,
        "seed": unit.seed,
        "hash": unit.key,
        "complete": summary["complete"],
        "cct_median_ns": cct.get("median"),
        "cct_max_ns": cct.get("max"),
        "bound_ns": job.get("bound_ns"),
        "background_fct_ns": summary["background"]["fct_ns"].get("median"),
        **{name: totals[name] for name in _TOTALS},
    }
    for name, values in runs.items():
        values.append(row[name])


def _tagged(table: pa.Table, unit: Unit, own: Mapping[str, str]) -> pa.Table:
    rows = table.num_rows
    columns = {
        "point": pa.array([unit.point] * rows, pa.int64()),
        **{name: pa.array([label] * rows, pa.string()) for name, label in own.items()},
        "seed": pa.array([unit.seed] * rows, pa.int64()),
    }
    for name in table.column_names:
        columns.setdefault(f"op_{name}" if name in own else name, table.column(name))
    return pa.table(columns)


def _joined(parts: Sequence[Column]) -> Column:
    return np.concatenate(parts) if parts else np.array([], dtype=np.int64)


def default_workers() -> int:
    """Return the number of processors that this process may use."""
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
