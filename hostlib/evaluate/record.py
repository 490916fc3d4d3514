"""Traces from any environment: sweeps over configurations, recorded episodes, the oracle they make.

This is how real links get into training: sweep the environment once per load (medians of every
configuration, interleaved at random so that drift hits all alike), then record episodes. The sweep
goes into the trace file, so that a selector can be trained on all actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.actions import LEGAL, Config, decode
from ringstep.hostlib.evaluate.environment import Environment, Ran
from ringstep.hostlib.traces.fluid import CLEAN, Load
from ringstep.hostlib.traces.format import COLUMNS, Traces
from ringstep.hostlib.traces.scenarios import Schedule, blank
from ringstep.hostlib.traces.sweep import Sweep

Array = np.ndarray[Any, np.dtype[Any]]

SETTLE: Final = 2
"""Calls after a change of load that are not counted."""
ROW: Final = 4
"""Calls of a configuration in a row that are counted, after one that is not.

A configuration is in force for many calls; the first finds its connections idle.
"""


def sweep(
    env: Environment,
    loads: Sequence[Load],
    repeats: int = 5,
    seed: int = 0,
    max_channels: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Measure every legal configuration under every load.

    Takes five calls for four that are counted, ``len(loads) * (configurations + 1) * repeats``, in
    rows in random order, so that drift hits all configurations alike.

    Args:
        env: what is measured.
        loads: with a clean one.
        repeats: calls of each.
        seed: of the order.
        max_channels: as many as communicators have.
        progress: called with calls done and to do.

    Raises:
        ValueError: no clean load among ``loads``, or no repeats.
    """
    loads = sorted(loads, key=lambda load: load.level)
    if not loads or loads[0] != CLEAN:
        raise ValueError("loads: a clean one is missing, by which rewards are reckoned")
    if repeats < 1:
        raise ValueError(f"repeats = {repeats}: 1 or more")
    actions = [
        a
        for a in np.flatnonzero(LEGAL[env.key.collective]).tolist()
        if decode(a).n_channels <= max_channels
    ]
    configs: list[Config | None] = [None, *(decode(a).plain for a in actions)]
    times: list[dict[Config | None, list[float]]] = []
    usual, of = None, len(loads) * len(configs) * repeats
    for i, load in enumerate(loads):
        rows = [min(ROW, repeats - done) for done in range(0, repeats, ROW)]
        plan = [(config, row) for config in configs for row in rows]
        order = np.random.default_rng([seed, 11, i]).permutation(len(plan))
        env.start(_steady(load, SETTLE + sum(row + 1 for _, row in plan)), seed + i)
        for _ in range(SETTLE):
            env.run(None)
        found: dict[Config | None, list[float]] = {}
        for config, row in (plan[at] for at in order):
            env.run(config)
            for _ in range(row):
                ran = env.run(config)
                found.setdefault(config, []).append(ran.latency_us)
                if config is None:
                    usual = ran.config
            if progress is not None:
                progress(i * len(configs) * repeats + sum(map(len, found.values())), of)
        times.append(found)
    assert usual is not None
    return Sweep(
        env.name, env.key, env.n_bytes, tuple(loads), usual,
        tuple(tuple(found[None]) for found in times),
        {c: tuple(tuple(found[c]) for found in times) for c in configs if c is not None},
    )  # fmt: skip


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
        told: Callable[[], None] | None = None,
    ) -> None:
        """Run an episode and keep it.

        Args:
            env: what runs it.
            schedule: of contention.
            asked: configuration by call; None: NCCL's choice.
            seed: of the noise, where the environment has one.
            found: the environment's sweep.
            told: called after each call.

        Raises:
            ValueError: another number of configurations than calls.
        """
        n = len(schedule)
        if len(asked) != n:
            raise ValueError(f"{len(asked)} configurations for {n} calls")
        env.start(schedule, seed)
        ran: list[Ran] = []
        for config in asked:
            ran.append(env.run(config))
            if told is not None:
                told()
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
        sweeps = [found.to_dict() for found in self._sweeps]
        return Traces(
            columns,
            {**header, "source": self._source, "sweeps": sweeps, "sweep_of": self._of_trace},
        )
