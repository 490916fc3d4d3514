"""Traces from any environment: sweeps over configurations, recorded episodes, the oracle they make.

This is how real links get into training: sweep the environment once per load (medians of every
configuration, interleaved at random so that drift hits all alike), then record episodes. The sweep
goes into the trace file, so that a selector can be trained on all actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.actions import LEGAL, N_ACTIONS, Config, decode
from ringstep.hostlib.evaluate.environment import Environment
from ringstep.hostlib.traces.calibrate import Measured
from ringstep.hostlib.traces.fluid import CLEAN, Load
from ringstep.hostlib.traces.format import COLUMNS, Traces
from ringstep.hostlib.traces.generate import FluidOracle
from ringstep.hostlib.traces.scenarios import Schedule, blank

Array = np.ndarray[Any, np.dtype[Any]]

SETTLE: Final = 2
"""Calls after a change of load that are not counted."""


@dataclass(frozen=True)
class Sweep:
    """What every configuration takes under every load that was tried.

    Attributes:
        env: name of the environment.
        loads: with ``CLEAN`` among them.
        usual: NCCL's choice, by load.
        usual_us: its median, by load.
        latencies_us: medians, loads by 96 actions; NaN where an action is not legal.
        samples: all measured calls, for :func:`ringstep.hostlib.traces.calibrate.calibrate`.
    """

    env: str
    loads: Sequence[Load]
    usual: Config
    usual_us: Sequence[float]
    latencies_us: Array
    samples: Sequence[Measured]

    def at(self, level: float) -> int:
        """Return the index of the load whose level is nearest."""
        return int(np.argmin([abs(load.level - level) for load in self.loads]))

    def best(self, load: Load) -> Config:
        """Return the best configuration under the load nearest to ``load``."""
        row = self.latencies_us[self.at(load.level)]
        return decode(int(np.nanargmin(row))).plain

    @property
    def clean_us(self) -> float:
        """NCCL's choice on a clean network."""
        return float(self.usual_us[self.at(0.0)])

    @property
    def best_us(self) -> float:
        """The best configuration on a clean network."""
        return float(min(np.nanmin(self.latencies_us[self.at(0.0)]), self.clean_us))


def sweep(
    env: Environment, loads: Sequence[Load], repeats: int = 5, seed: int = 0, max_channels: int = 8
) -> Sweep:
    """Measure every legal configuration under every load.

    Takes ``len(loads) * (configurations + 1) * repeats`` calls.

    Raises:
        ValueError: no clean load among ``loads``, or no repeats.
    """
    if not any(load == CLEAN for load in loads):
        raise ValueError("loads: a clean one is missing, by which rewards are reckoned")
    if repeats < 1:
        raise ValueError(f"repeats = {repeats}: 1 or more")
    actions = [
        a
        for a in np.flatnonzero(LEGAL[env.key.collective]).tolist()
        if decode(a).n_channels <= max_channels
    ]
    table = np.full((len(loads), N_ACTIONS), np.nan)
    usual_us, samples, usual = [], [], None
    for i, load in enumerate(loads):
        plan: list[int | None] = [a for a in (*actions, None) for _ in range(repeats)]
        np.random.default_rng([seed, 11, i]).shuffle(plan)
        env.start(_steady(load, SETTLE + len(plan)), seed + i)
        for _ in range(SETTLE):
            env.run(None)
        times: dict[int | None, list[float]] = {}
        for action in plan:
            config = None if action is None else decode(action).plain
            ran = env.run(config)
            times.setdefault(action, []).append(ran.latency_us)
            samples.append(Measured(env.key, env.n_bytes, ran.config, ran.latency_us, load))
            if action is None:
                usual = ran.config
        for action, found in times.items():
            if action is None:
                usual_us.append(median(found))
            else:  # the threads of an action do nothing
                table[i, action - action % 3 : action - action % 3 + 3] = median(found)
    assert usual is not None
    return Sweep(env.name, tuple(loads), usual, usual_us, table, samples)


def _steady(load: Load, calls: int) -> Schedule:
    s = blank("steady", calls)
    s.level[:], s.flows[:], s.slow_host[:] = load.level, load.flows, load.slow_host
    return s


class Recorder:
    """Collects episodes of environments into one set of traces."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._parts: list[dict[str, Array]] = []
        self._sweeps: list[Sweep] = []
        self._of_trace: list[int] = []

    def __len__(self) -> int:
        return len(self._parts)

    def add(
        self,
        env: Environment,
        schedule: Schedule,
        asked: Sequence[Config | None],
        seed: int,
        found: Sweep,
    ) -> None:
        """Run an episode and keep it.

        Args:
            env: what runs it.
            schedule: of contention.
            asked: configuration by call; None: NCCL's choice.
            seed: of the noise, where the environment has one.
            found: the environment's sweep.

        Raises:
            ValueError: another number of configurations than calls.
        """
        n = len(schedule)
        if len(asked) != n:
            raise ValueError(f"{len(asked)} configurations for {n} calls")
        env.start(schedule, seed)
        ran = [env.run(config) for config in asked]
        if found not in self._sweeps:
            self._sweeps.append(found)
        self._of_trace.append(self._sweeps.index(found))
        key, nan = env.key, np.full(n, np.nan)
        part: dict[str, Any] = {
            "trace": np.full(n, len(self._parts)),
            "call": np.arange(n),
            "time_ns": [r.time_ns for r in ran],
            "latency_us": [r.latency_us for r in ran],
            "ranks": np.full(n, key.n_ranks),
            "nodes": np.full(n, key.n_nodes),
            "collective": np.full(n, key.collective),
            "bytes": np.full(n, env.n_bytes),
            "algo": [r.config.algo for r in ran],
            "proto": [r.config.proto for r in ran],
            "channels": [r.config.n_channels for r in ran],
            "chunk_bytes": [r.config.chunk_bytes for r in ran],
            "decided": [r.decided for r in ran],
            "gpu_busy": nan,
            "gpu_memory": nan,
            "gpu_power": nan,
            "label": schedule.label,
            "level": schedule.level,
            "clean_us": np.full(n, found.clean_us),
            "best_us": np.full(n, found.best_us),
        }
        self._parts.append({name: np.asarray(part[name], kind) for name, kind in COLUMNS.items()})

    def traces(self, **header: Any) -> Traces:
        """Return what was recorded, with its sweeps in the header.

        Raises:
            ValueError: nothing was.
        """
        if not self._parts:
            raise ValueError("nothing was recorded")
        columns = {name: np.concatenate([p[name] for p in self._parts]) for name in COLUMNS}
        sweeps = [
            {
                "env": s.env,
                "levels": [load.level for load in s.loads],
                "latencies_us": [
                    [None if np.isnan(v) else float(v) for v in row] for row in s.latencies_us
                ],
            }
            for s in self._sweeps
        ]
        return Traces(
            columns,
            {**header, "source": self._source, "sweeps": sweeps, "sweep_of": self._of_trace},
        )


class SweepOracle:
    """What every action takes at the level of a call, from the sweeps of recorded traces.

    Raises:
        ValueError: the traces have no sweeps.
    """

    def __init__(self, traces: Traces) -> None:
        sweeps = traces.header.get("sweeps")
        if not sweeps:
            raise ValueError("the traces have no sweep: record them with one")
        self._of_trace = list(traces.header["sweep_of"])
        self._levels = [np.array(s["levels"], np.float64) for s in sweeps]
        self._tables = [np.array(s["latencies_us"], np.float64) for s in sweeps]
        level = traces.columns["level"]
        self._level: Mapping[tuple[int, int], float] = {
            (int(t), int(c)): float(v)
            for t, c, v in zip(traces.columns["trace"], traces.columns["call"], level, strict=True)
        }

    def latencies_us(self, trace: int, call: int) -> Array:
        """Return the measured median of each action at the nearest level that was swept."""
        which = self._of_trace[trace]
        nearest = int(np.argmin(np.abs(self._levels[which] - self._level[trace, call])))
        found: Array = self._tables[which][nearest]
        return found


def oracle_of(traces: Traces) -> FluidOracle | SweepOracle | None:
    """Return what knows all actions of these traces; None where nothing does."""
    if traces.header.get("source") == "fluid":
        return FluidOracle(traces)
    return SweepOracle(traces) if traces.header.get("sweeps") else None
