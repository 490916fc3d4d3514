"""Traces from the fluid model: random clusters, jobs, schedules and configurations, by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.actions import LEGAL, N_ACTIONS, Config, Key, decode
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces.fluid import (
    CLEAN,
    FluidParams,
    best,
    latency_us,
    nccls_choice,
    scaled,
)
from ringstep.hostlib.traces.format import COLUMNS, Traces
from ringstep.hostlib.traces.noise import Floats, NoiseParams, factors, random_noise
from ringstep.hostlib.traces.scenarios import Schedule, random_schedule

_COLLECTIVES: Final = (
    Collective.ALL_REDUCE, Collective.ALL_REDUCE, Collective.ALL_REDUCE, Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER, Collective.BROADCAST, Collective.REDUCE,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """A cluster and a collective that is repeated on it."""

    params: FluidParams
    key: Key
    n_bytes: int
    noise: NoiseParams

    @property
    def nccls(self) -> Config:
        """What NCCL's static model picks."""
        return nccls_choice(self.key, self.n_bytes, self.params)


def random_params(rng: np.random.Generator, around: FluidParams | None = None) -> FluidParams:
    """Return a cluster near ``around`` (a calibrated one), or any."""
    p = around or FluidParams(link_rate=float(rng.choice([125.0, 1250.0, 3125.0, 12500.0])))
    if around is None:  # hosts as fast as their links deserve
        p = scaled(
            p, cpu_rate=max(p.link_rate / 1250.0, 0.3), local_rate=max(p.link_rate / 2500, 1)
        )
    wide = 0.15 if around else 0.5
    jitter = {
        name: float(np.exp(rng.normal(0, wide)))
        for name in (
            "hop_ll", "hop_simple", "queue", "cpu_rate", "message", "channel", "ll_window",
            "rival_weight", "background_flows",
        )
    }  # fmt: skip
    # How much of a tree's two flows a link sees at a time differs most between implementations.
    tree = (0.0, 0.05) if around else (-0.35, 0.35)
    jitter["tree_flows"] = float(np.exp(rng.normal(*tree)))
    jitter["tree_bytes"] = float(np.exp(rng.normal(0.0 if around else 0.1, 0.05)))
    return scaled(p, **jitter)


def random_job(rng: np.random.Generator, around: FluidParams | None = None) -> Job:
    """Return a job of 2 to 64 ranks on 2 nodes or more, with collectives of 64 KiB to 2 GiB."""
    nodes = int(rng.choice([2, 3, 4, 6, 8, 16]))
    ranks = nodes * int(rng.choice([1, 1, 2, 4]))
    size = int(2 ** rng.uniform(16, 31))
    collective = _COLLECTIVES[int(rng.integers(len(_COLLECTIVES)))]
    return Job(
        random_params(rng, around), Key.of(ranks, nodes, collective, size), size, random_noise(rng)
    )


def random_configs(
    rng: np.random.Generator, legal: np.ndarray[Any, Any], calls: int, rate: float
) -> list[Config | None]:
    """Return what is asked for call by call: NCCL's choice, with stretches of others."""
    found: list[Config | None] = [None] * calls
    if rng.random() >= rate:
        return found
    at = 10 + int(rng.integers(0, calls))
    while at < calls:
        stretch = int(rng.choice([1, 2, 4, 12, 40]))
        found[at : at + stretch] = [decode(int(rng.choice(legal))).plain] * len(
            found[at : at + stretch]
        )
        at += stretch + int(rng.choice([1, 2, 8, 24]))
    return found[:calls]


def simulate(
    job: Job, schedule: Schedule, asked: list[Config | None], rng: np.random.Generator
) -> dict[str, Any]:
    """Return the columns of one trace, without ``trace``."""
    n = len(schedule)
    noise = factors(rng, schedule.level, job.noise)
    nccls = job.nccls
    ran = [config or nccls for config in asked]
    cache: dict[Any, float] = {}
    latency = np.empty(n)
    for i in range(n):
        load = schedule.load(i)
        at = (ran[i], load)
        if at not in cache:
            cache[at] = latency_us(job.key, job.n_bytes, ran[i], load, job.params)
        latency[i] = cache[at] * noise[i]
    return columns(
        job.key, job.n_bytes, schedule, asked, nccls, latency, rng,
        latency_us(job.key, job.n_bytes, nccls, CLEAN, job.params),
        best(job.key, job.n_bytes, CLEAN, job.params)[1],
    )  # fmt: skip


def columns(
    key: Key, n_bytes: int, schedule: Schedule, asked: Sequence[Config | None], nccls: Config,
    latency: Floats, rng: np.random.Generator, clean_us: float, best_us: float,
) -> dict[str, Any]:  # fmt: skip
    """Return the columns of one trace, without ``trace``, with computing and GPUs drawn to it."""
    n = len(schedule)
    ran = [config or nccls for config in asked]
    compute = rng.uniform(1.0, 4.0) * clean_us
    gpu = rng.random() < 0.3
    busy = np.clip(rng.uniform(0.3, 1.0) + rng.normal(0, 0.05, n), 0, 1)
    ends = 10**9 + np.cumsum((latency + compute) * 1e3).astype(np.int64)
    return {
        "call": np.arange(n),
        "time_ns": ends,
        "latency_us": latency,
        "ranks": np.full(n, key.n_ranks),
        "nodes": np.full(n, key.n_nodes),
        "collective": np.full(n, key.collective),
        "bytes": np.full(n, n_bytes),
        "algo": np.array([c.algo for c in ran]),
        "proto": np.array([c.proto for c in ran]),
        "channels": np.array([c.n_channels for c in ran]),
        "chunk_bytes": np.array([c.chunk_bytes for c in ran]),
        "decided": np.array([c is not None for c in asked]),
        "gpu_busy": busy if gpu else np.full(n, np.nan),
        "gpu_memory": busy * 0.5 if gpu else np.full(n, np.nan),
        "gpu_power": 0.3 + 0.6 * busy if gpu else np.full(n, np.nan),
        "label": schedule.label,
        "level": schedule.level,
        "clean_us": np.full(n, clean_us),
        "best_us": np.full(n, best_us),
    }


def generate(
    seed: int,
    traces: int,
    calls: int = 64,
    around: FluidParams | None = None,
    reconfigured: float = 0.4,
    progress: Callable[[int], None] | None = None,
) -> Traces:
    """Return random traces; the same seed gives the same bytes.

    Args:
        seed: of everything.
        traces: how many.
        calls: of each.
        around: a calibrated cluster to stay near; None: any cluster.
        reconfigured: share of traces in which other configurations than NCCL's run now and then.
        progress: called with how many are done.

    Raises:
        ValueError: a number that makes no sense.
    """
    if traces < 1:
        raise ValueError(f"traces = {traces}: 1 or more")
    if not 0 <= reconfigured <= 1:
        raise ValueError(f"reconfigured = {reconfigured}: 0 to 1")
    parts: list[dict[str, Any]] = []
    for i in range(traces):
        rng, job, schedule = _draw(seed, i, calls, around)
        legal = np.flatnonzero(LEGAL[job.key.collective])
        asked = random_configs(rng, legal, calls, reconfigured)
        parts.append(simulate(job, schedule, asked, rng))
        if progress is not None:
            progress(i + 1)
    header = {
        "source": "fluid", "seed": seed, "traces": traces, "calls": calls,
        "reconfigured": reconfigured, "around": None if around is None else asdict(around),
    }  # fmt: skip
    return Traces(joined(parts), header)


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of several traces, one after the other."""
    numbered = [{"trace": np.full(len(p["call"]), i), **p} for i, p in enumerate(parts)]
    return {
        name: np.concatenate([part[name] for part in numbered]).astype(kind)
        for name, kind in COLUMNS.items()
    }


def _draw(
    seed: int, trace: int, calls: int, around: FluidParams | None
) -> tuple[np.random.Generator, Job, Schedule]:
    rng = np.random.default_rng([seed, trace])
    job = random_job(rng, around)
    return rng, job, random_schedule(rng, calls)


class FluidOracle:
    """What every action would have taken in the calls of generated traces.

    Raises:
        ValueError: the traces are not from :func:`generate`.
    """

    def __init__(self, traces: Traces) -> None:
        header = traces.header
        if header.get("source") != "fluid":
            raise ValueError(
                f"traces from {header.get('source')!r}: only the fluid model knows all actions"
            )
        self._seed, self._calls = int(header["seed"]), int(header["calls"])
        around = header.get("around")
        self._around = None if around is None else FluidParams(**around)
        self._cache: dict[Any, Any] = {}
        self._trace = -1

    def latencies_us(self, trace: int, call: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the expected time of each of the 96 actions, NaN where it is not legal."""
        if trace != self._trace:
            _, self._job, self._schedule = _draw(self._seed, trace, self._calls, self._around)
            self._trace, self._cache = trace, {}
        s, job = self._schedule, self._job
        load = s.load(call)
        if load not in self._cache:
            found = np.full(N_ACTIONS, np.nan)
            for action in np.flatnonzero(LEGAL[job.key.collective]).tolist():
                time = latency_us(job.key, job.n_bytes, decode(action), load, job.params)
                found[action - action % 3 : action - action % 3 + 3] = time  # threads do nothing
            self._cache[load] = found
        return self._cache[load]  # type: ignore[no-any-return]
