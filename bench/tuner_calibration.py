#!/usr/bin/env python3
"""How often a calibration is refused on a clean network, and accepted on a contended one.

Example: python bench/tuner_calibration.py --json

Random clusters, collectives, noise and schedules of the fluid model (`fluid`); the same as calls
drawn again from sweeps (`recorded`); and sweeps whose clean part was measured under the schedule
(`sweep`: five calls of each configuration). Seeds that no training uses.

For each kind of schedule: `accepted`, and of all those `harmful`, where the baseline is more than
10 % above what a call takes without contention or noise: a short spike that leaves the median alone
does no harm. For clean networks `refused` is wrong. Quiet: jitter of at most 5 % from call to call
and few outliers; restless: up to 15 %. `bias_p95` is the error of the baselines accepted, its 95th
percentile. `constant` is contention that never changes: with an expectation that is up to 10 % off
(`+expected`), and without one, where nothing can tell. With --weights the detector is asked too.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ringstep.hostlib.dynamic.detector import Detector
from ringstep.hostlib.dynamic.policy import DETECTOR_FILE
from ringstep.hostlib.dynamic.weights import WeightsError, load
from ringstep.hostlib.evaluate.calibration.clean import NotClean, Series, judge, judge_repeats
from ringstep.hostlib.evaluate.calibration.live import COLD
from ringstep.hostlib.evaluate.environment import (
    Environment,
    FluidEnvironment,
    RecordedEnvironment,
)
from ringstep.hostlib.evaluate.record import sweep
from ringstep.hostlib.traces import scenarios as sc
from ringstep.hostlib.traces.fluid import CLEAN, Load
from ringstep.hostlib.traces.generate import Job, random_job
from ringstep.hostlib.traces.scenarios import Schedule
from ringstep.hostlib.traces.sweep import Sweep

SEED = 910_001
HARM = 0.10
SOURCES = ("fluid", "recorded", "sweep")
LEVELS = (0.35, 0.65, 0.95)


def shifted(rng: np.random.Generator, calls: int, kind: str) -> Schedule:
    """A random schedule seen from any moment on, not from its quiet beginning; contended."""
    while True:
        s = sc.random_schedule(rng, 2 * calls, kind)
        at = int(rng.integers(0, calls + 1))
        part = Schedule(
            s.name, s.level[at : at + calls], s.flows[at : at + calls],
            s.slow_host[at : at + calls], s.label[at : at + calls],
        )  # fmt: skip
        level = part.level[COLD:]
        # All of it at one level is `constant`.
        if (level > 0).any() and len(np.unique(level)) > 1:
            return part


def schedule_of(rng: np.random.Generator, kind: str, calls: int) -> Schedule:
    if kind == "clean":
        return sc.clean(calls)
    if kind == "constant":
        return sc.sustained(calls, float(rng.choice(LEVELS)), 0)
    if kind == "single_spike":
        at, level = int(rng.integers(COLD, calls - 2)), float(rng.uniform(0.2, 0.9))
        return sc.spikes(calls, {at: level}, int(rng.integers(1, 3)))
    return shifted(rng, calls, kind)


KINDS = ("clean", "single_spike", "spikes", "bursty", "sustained", "steps", "constant")


def episodes(source: str, kind: str, jobs: int, calls: int) -> Iterator[tuple[Series, float, str]]:
    """Yield the calls of an episode, what they take on a clean network, and how noisy it is."""
    for i in range(jobs):
        rng = np.random.default_rng([SEED, KINDS.index(kind), i])
        job = random_job(rng)
        env: Environment = FluidEnvironment(job)
        true = FluidEnvironment(job).expected_us(None, CLEAN)
        if source == "recorded":
            loads = [CLEAN, *(Load(level, 4.0) for level in LEVELS)]
            found = sweep(env, loads, 7, i, max_channels=1)
            env, true = RecordedEnvironment(found), found.clean_us
        s = schedule_of(rng, kind, calls)
        env.start(s, i)
        ran = [env.run(None) for _ in range(calls)][COLD:]
        yield (
            Series(
                env.name, env.key, env.n_bytes, ran[-1].config, [r.latency_us for r in ran],
                [r.time_ns for r in ran],
            ),
            true, noise_of(job),
        )  # fmt: skip


class Disturbed(FluidEnvironment):
    """Is not as clean as it is asked to be."""

    def __init__(self, job: Job, rng: np.random.Generator, kind: str) -> None:
        super().__init__(job)
        self._rng, self._kind = rng, kind

    def start(self, schedule: Schedule, seed: int) -> None:
        """Begin an episode of as many calls, with another schedule."""
        super().start(schedule_of(self._rng, self._kind, len(schedule)), seed)


def baseline(series: Series, expected_us: float | None, detector: Detector | None) -> float:
    return judge(series, detector, expected_us).latency_us


def sweeps(kind: str, jobs: int) -> Iterator[tuple[Sweep, float, str]]:
    """Yield sweeps that were measured under a schedule, as :func:`episodes` does calls."""
    for i in range(jobs):
        rng = np.random.default_rng([SEED, KINDS.index(kind), i])
        job = random_job(rng)
        found = sweep(Disturbed(job, rng, kind), [CLEAN], 5, i)
        yield found, FluidEnvironment(job).expected_us(None, CLEAN), noise_of(job)


def baseline_of_sweep(found: Sweep, expected_us: float | None, _: Detector | None) -> float:
    rows = [found.usual_calls_us[0], *(times[0] for times in found.calls_us.values())]
    judge_repeats(found.env, rows, expected_us)
    return found.clean_us


def noise_of(job: Job) -> str:
    quiet = job.noise.jitter <= 0.05 and job.noise.outlier_rate <= 0.01
    return "quiet" if quiet else "restless"


def interval(hits: int, of: int) -> list[float]:
    """Wilson's interval, 95 %."""
    if of == 0:
        return [0.0, 1.0]
    z, p = 1.96, hits / of
    middle = p + z * z / (2 * of)
    half = z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    return [round(max(x, 0.0) / (1 + z * z / of), 4) for x in (middle - half, middle + half)]


def share(hits: int, of: int) -> dict[str, Any]:
    low, high = interval(hits, of)
    return {"value": round(hits / of, 4) if of else None, "low": low, "high": high, "of": of}


def rates(
    source: str, kind: str, jobs: int, calls: int, expected: bool, detector: Detector | None
) -> dict[str, Any]:
    rows: dict[str, list[float | None]] = {"quiet": [], "restless": []}
    if source == "sweep":
        found_in, judged = sweeps(kind, jobs), baseline_of_sweep
    else:
        found_in, judged = episodes(source, kind, jobs, calls), baseline
    for i, (measured, true, noise) in enumerate(found_in):
        off = float(np.random.default_rng([SEED, 99, i]).uniform(0.9, 1.1))
        try:
            rows[noise].append(
                judged(measured, true * off if expected else None, detector) / true - 1
            )
        except NotClean:
            rows[noise].append(None)
    found: dict[str, Any] = {}
    for noise, row in rows.items():
        accepted = [bias for bias in row if bias is not None]
        found[noise] = {
            "accepted": share(len(accepted), len(row)),
            "harmful": share(sum(bias > HARM for bias in accepted), len(row)),
            "refused": share(len(row) - len(accepted), len(row)),
            "bias_p95": round(float(np.percentile(np.abs(accepted), 95)), 4) if accepted else None,
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=400, help="random jobs of each kind")
    parser.add_argument("--calls", type=int, default=64, help="of each measurement")
    parser.add_argument("--source", choices=SOURCES, action="append")
    parser.add_argument("--weights", type=Path, help="folder with detector.safetensors")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.jobs < 1 or arguments.calls < 24:
        parser.error("--jobs: 1 or more; --calls: 24 or more")
    detector = None
    if arguments.weights is not None:
        try:
            detector = Detector(load(arguments.weights / DETECTOR_FILE, "detector"))
        except WeightsError as error:
            parser.error(str(error))
    result: dict[str, Any] = {"jobs": arguments.jobs, "calls": arguments.calls}
    for source in arguments.source or SOURCES:
        for expected in (False, True):
            name = source + ("+expected" if expected else "")
            result[name] = {}
            for kind in KINDS:
                print(f"measuring: {name}, {kind} …", file=sys.stderr)
                result[name][kind] = rates(
                    source, kind, arguments.jobs, arguments.calls, expected, detector
                )
    if arguments.json:
        print(json.dumps(result))
        return 0
    for name, kinds in result.items():
        if not isinstance(kinds, dict):
            continue
        for kind, row in kinds.items():
            for noise, found in row.items():
                if found["accepted"]["of"]:
                    accepted, harmful = (found[x]["value"] for x in ("accepted", "harmful"))
                    print(
                        f"{name:18} {kind:13} {noise:9} accepted {accepted:.3f} harmful "
                        f"{harmful:.3f} bias p95 {found['bias_p95']} of {found['accepted']['of']}"
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
