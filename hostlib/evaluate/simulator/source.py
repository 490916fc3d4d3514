"""Sweeps of the packet simulator: what ``ringstep sim sweep`` makes of them, in rounds.

A run is cut off at a simulated time, for rivals never end. Runs whose calls were not over by then
are made again with twice the time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.actions import LEGAL, Config, decode
from ringstep.hostlib.evaluate.simulator import scenario
from ringstep.hostlib.evaluate.simulator.scenario import CALLS, Case, Rivals
from ringstep.hostlib.evaluate.sources import Progress, SourceError, SweepOptions
from ringstep.hostlib.traces.fluid import CLEAN_CHANNELS
from ringstep.hostlib.traces.sweep import Sweep

COMMAND: Final = (sys.executable, "-m", "ringstep.cli", "sim", "sweep")
PATIENCE: Final = 64
"""A call may take so many times what was expected."""
_LOOK_S: Final = 0.5
_PATIENCE_S: Final = 30.0
_RESULTS: Final = "results"

Calls = tuple[float, ...]
"""µs of the calls of a run; not all of them where it was cut off."""
Runs = Mapping[tuple[str, int], Calls]
"""By name and seed."""


def simulate(asked: SweepOptions, progress: Progress, rivals: Rivals = Rivals.FABRIC) -> Sweep:
    """Measure a sweep in the packet simulator.

    Args:
        asked: its ``repeats`` are calls, two in a run; each run has a seed of its own.
        progress: told of runs; cut-off ones add to what there is to do.
        rivals: where rival flows come from.

    Raises:
        SourceError: the simulator is not installed, refuses, or a call takes far too long.
        KeyboardInterrupt: ctrl-C; runs that are done stay in ``asked.work``.
    """
    _check(asked)
    configs = [
        config
        for action in np.flatnonzero(LEGAL[asked.collective]).tolist()
        if (config := decode(action).plain).n_channels <= asked.max_channels
    ]
    cases = [Case(config, load) for load in asked.loads for config in configs]
    if asked.work is not None:
        try:
            asked.work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SourceError(f"{asked.work}: {error.strerror}") from None
        times = _measure(asked, cases, rivals, asked.work, progress)
    else:
        with tempfile.TemporaryDirectory(prefix="ringstep-sweep-") as folder:
            times = _measure(asked, cases, rivals, Path(folder), progress)
    calls = {config: tuple(times[Case(config, load)] for load in asked.loads) for config in configs}
    usual = nccls_choice({config: rows[0] for config, rows in calls.items()}, asked.max_channels)
    where = "" if rivals is Rivals.FABRIC else ", rivals on the hosts"
    name = f"simulator {asked.nodes} nodes {asked.rate_bps / 1e9:g}G{where}"
    return Sweep(name, asked.key, asked.n_bytes, asked.loads, usual, calls[usual], calls)


def nccls_choice(clean_us: Mapping[Config, Calls], max_channels: int = 8) -> Config:
    """Return what a static cost model picks: the best pair on a clean network, usual channels."""
    channels = min(CLEAN_CHANNELS, max_channels)
    pairs = [config for config in clean_us if config.n_channels == channels]
    return min(pairs, key=lambda config: float(np.median(clean_us[config])))


def _check(asked: SweepOptions) -> None:
    if asked.collective not in scenario.KINDS:
        words = ", ".join(scenario.KINDS.values())
        raise SourceError(
            f"{asked.collective.name.lower()}: the simulator has no such collective; {words}"
        )
    if asked.ranks_per_node != 1:
        raise SourceError(
            f"{asked.ranks_per_node} ranks per node: in the simulator a node has one rank; links "
            "inside a node are not modelled"
        )


def _measure(
    asked: SweepOptions, cases: list[Case], rivals: Rivals, folder: Path, progress: Progress
) -> dict[Case, Calls]:
    """Return all calls of every case, running what the folder does not hold yet."""
    seeds = [asked.seed + 1 + i for i in range(-(-asked.repeats // CALLS))]
    first = {
        case: scenario.start_ns(asked, case.load) + CALLS * scenario.expected_ns(asked, case)
        for case in cases
    }
    until, ended = dict(first), dict[Case, Calls]()
    while True:
        runs = _read(folder / _RESULTS / "runs")
        todo: list[dict[str, Any]] = []
        for case in cases:
            while case not in ended:
                point = scenario.point(asked, case, rivals, until[case])
                found = [runs.get((point["name"], seed)) for seed in seeds]
                if any(calls is None for calls in found):
                    todo.append(point)
                    break
                if all(calls is not None and len(calls) == CALLS for calls in found):
                    ended[case] = tuple(t for calls in found for t in calls or ())
                elif until[case] < PATIENCE * first[case]:
                    until[case] *= 2
                else:
                    raise SourceError(
                        f"{case.config} at {case.load.level:.0%} load: {CALLS} calls did not end "
                        f"within {until[case] / 1e6:.0f} ms of simulated time; fewer bytes or "
                        "lower levels would"
                    )
        if not todo:
            return ended
        done = len(ended) * len(seeds)
        of = done + len(todo) * len(seeds)
        _sweep(asked, rivals, todo, seeds, folder, progress, done, of)


def _sweep(
    asked: SweepOptions,
    rivals: Rivals,
    points: Iterable[Mapping[str, Any]],
    seeds: list[int],
    folder: Path,
    progress: Progress,
    done: int,
    of: int,
) -> None:
    """Run points with ``ringstep sim sweep``; ``done`` of ``of`` runs are there already."""
    points = list(points)
    first = {**scenario.base(asked, rivals), **points[0]}
    axis = {
        "name": "case", "labels": [point["name"] for point in points], "values": points
    }  # fmt: skip
    try:
        (folder / "base.toml").write_text(scenario.document(first))
        (folder / "sweep.toml").write_text(
            scenario.document({"scenario": "base.toml", "seeds": seeds, "axis": [axis]})
        )
    except OSError as error:
        raise SourceError(f"{folder}: {error.strerror}") from None
    runs = folder / _RESULTS / "runs"
    before = _count(runs)
    arguments = ["sweep.toml", "--out", _RESULTS, "--workers", str(asked.jobs), "--quiet"]
    with (
        tempfile.TemporaryFile() as said,
        # Ctrl-C comes to us alone and is handed on once: a second one would hit its cleaning up.
        subprocess.Popen(
            [*COMMAND, *arguments], cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            while True:
                progress(min(done + _count(runs) - before, of), of)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
                    break
        except BaseException:
            _end(process)
            raise
        progress(min(done + _count(runs) - before, of), of)
        if process.returncode:
            said.seek(0)
            raise SourceError(_complaint(said.read().decode(errors="replace"), process.returncode))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a simulator to stop, and make it where it does not."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _complaint(said: str, status: int) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("error: "):
            return f"ringstep sim: {line.removeprefix('error: ')}"
    return f"ringstep sim: {lines[-1] if lines else f'exit status {status}'}"


def _count(runs: Path) -> int:
    return sum(1 for _ in runs.iterdir()) if runs.is_dir() else 0


def _read(runs: Path) -> Runs:
    """Return the calls of every run in a sweep's folder."""
    found: dict[tuple[str, int], Calls] = {}
    for file in runs.glob("*/summary.json"):
        try:
            summary = json.loads(file.read_text())
            if not summary["stopped"]:
                continue
            cct = summary["jobs"][0]["cct_ns"]
            calls = [cct["min"], cct["max"]] if cct["count"] == CALLS else []
            name, seed = str(summary["scenario"]), int(summary["seed"])
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise SourceError(f"{file}: not the summary of a run: {error!r}") from None
        found[name, seed] = tuple(ns / 1e3 for ns in calls)
    return found


def with_rivals_on_hosts(asked: SweepOptions, progress: Progress) -> Sweep:
    """Measure a sweep whose rival flows leave by the nodes' own NICs.

    Raises:
        SourceError: as :func:`simulate`.
    """
    return simulate(asked, progress, Rivals.HOST)
