"""Sweeps of the engine on limited links, and episodes recorded there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np

from ringstep.hostlib.dynamic.actions import encode
from ringstep.hostlib.evaluate.engine.cluster import QUEUE_MS, EngineCluster, EngineError
from ringstep.hostlib.evaluate.engine.environment import EngineEnvironment
from ringstep.hostlib.evaluate.record import Recorder, sweep
from ringstep.hostlib.evaluate.sources import Progress, SourceError, SweepOptions
from ringstep.hostlib.native.build import BuildError
from ringstep.hostlib.nethosts import NetHostsError, missing
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces.format import Traces
from ringstep.hostlib.traces.generate import random_configs
from ringstep.hostlib.traces.scenarios import random_schedule
from ringstep.hostlib.traces.sweep import Sweep, SweepError, load_sweeps, save_sweeps

COLLECTIVES: Final = (
    Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.BROADCAST,
)  # fmt: skip
"""What the engine runs."""
RECONFIGURED: Final = 0.6
"""Share of recorded episodes in which other configurations than NCCL's run now and then."""


def check(asked: SweepOptions) -> None:
    """Refuse what :func:`measure` cannot do, before anything is measured.

    Raises:
        SourceError: it cannot be done here, or was asked for wrongly.
    """
    with _environment(asked):
        _need_hosts()


def measure(asked: SweepOptions, progress: Progress) -> Sweep:
    """Measure a sweep on hosts of this machine.

    Raises:
        SourceError: it cannot be done here, or was asked for wrongly.
    """
    with _environment(asked) as env:
        kept = _kept(asked, env.name)
        if kept is not None and kept.exists():
            return _read(kept)
        with _running(env.cluster):
            found = sweep(env, asked.loads, asked.repeats, asked.seed, asked.max_channels, progress)
        if kept is not None:
            save_sweeps(kept, [found])
        return found


def record(
    sweeps: Sequence[Sweep],
    episodes: int,
    calls: int,
    seed: int,
    rate_bps: float,
    queue_ms: float | None = None,
    rivals: str | None = None,
    ranks: str | None = None,
    backlog: int | None = None,
    reconfigured: float = RECONFIGURED,
    progress: Progress | None = None,
) -> Traces:
    """Run random episodes on hosts of this machine, and return what happened.

    Args:
        sweeps: of the same links, from which the oracle comes; episodes take their keys in turn.
        episodes: how many.
        calls: of each, 18 or more.
        seed: of schedules and configurations; what they take is measured.
        rate_bps: of the links, as in the sweeps.
        queue_ms: as in the sweeps.
        rivals: congestion control of the rival flows, as in the sweeps.
        ranks: congestion control of the ranks, as in the sweeps.
        backlog: unsent bytes that a rival flow may hold, as in the sweeps.
        reconfigured: share of episodes in which other configurations than NCCL's run too.
        progress: told calls done and to do.

    Raises:
        SourceError: it cannot be done here, or the sweeps are of other links.
    """
    shapes = {(found.key.n_nodes, found.key.n_ranks) for found in sweeps}
    if len(shapes) != 1:
        raise SourceError(f"sweeps of {sorted(shapes)} nodes and ranks: record one at a time")
    [(nodes, n_ranks)] = shapes
    with _cluster(nodes, n_ranks // nodes, rate_bps, queue_ms, rivals, ranks, backlog) as cluster:
        envs = [_of(cluster, found) for found in sweeps]
        recorder = Recorder("engine")
        done = 0

        def tell() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, episodes * calls)

        with _running(cluster):
            for i in range(episodes):
                found, env = sweeps[i % len(sweeps)], envs[i % len(sweeps)]
                rng = np.random.default_rng([seed, 15, i])
                schedule = random_schedule(rng, calls)
                actions = np.array(sorted(encode(config) for config in found.calls_us))
                asked = random_configs(rng, actions, calls, reconfigured)
                recorder.add(env, schedule, asked, seed + i, found, tell)
    return recorder.traces(
        seed=seed, traces=episodes, calls=calls, reconfigured=reconfigured, env=cluster.name
    )


@contextmanager
def _cluster(
    nodes: int,
    ranks_per_node: int,
    rate_bps: float,
    queue_ms: float | None,
    rivals: str | None,
    ranks: str | None,
    backlog: int | None,
) -> Iterator[EngineCluster]:
    """Hand out a cluster that is not running yet; its errors become those of a source."""
    try:
        yield EngineCluster(
            nodes, rate_bps, QUEUE_MS if queue_ms is None else queue_ms,
            ranks_per_node=ranks_per_node, ranks=ranks, rivals=rivals, backlog=backlog or 0,
        )  # fmt: skip
    except (ValueError, EngineError, OSError) as error:
        raise SourceError(str(error)) from None


@contextmanager
def _environment(asked: SweepOptions) -> Iterator[EngineEnvironment]:
    if asked.collective not in COLLECTIVES:
        known = ", ".join(c.name.lower() for c in COLLECTIVES)
        raise SourceError(f"the engine has no {asked.collective.name.lower()}: {known}")
    with _cluster(
        asked.nodes,
        asked.ranks_per_node,
        asked.rate_bps,
        asked.queue_ms,
        asked.rivals,
        asked.ranks,
        asked.backlog,
    ) as cluster:
        yield EngineEnvironment.on(cluster, asked.collective, asked.n_bytes)


def _need_hosts() -> None:
    if (why := missing()) is not None:
        raise SourceError(f"the engine's links: {why}")


@contextmanager
def _running(cluster: EngineCluster) -> Iterator[None]:
    _need_hosts()
    try:
        with cluster:
            yield
    except (NetHostsError, BuildError) as error:
        raise SourceError(str(error)) from None


def _of(cluster: EngineCluster, found: Sweep) -> EngineEnvironment:
    env = EngineEnvironment.on(cluster, found.key.collective, found.n_bytes)
    if not env.name.startswith(found.env):  # a sweep need not name the congestion controls
        raise SourceError(f"the sweep is of {found.env!r}, and this would be {env.name!r}")
    env.learn(found)
    return env


def _kept(asked: SweepOptions, name: str) -> Path | None:
    """Return where a finished sweep is kept: another command's has another name."""
    if asked.work is None:
        return None
    asked.work.mkdir(parents=True, exist_ok=True)
    told = [name, [asdict(load) for load in asked.loads], asked.repeats, asked.seed,
            asked.max_channels]  # fmt: skip
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
    return asked.work / f"engine-{asked.collective.name.lower()}-{asked.n_bytes}-{digest}.json"


def _read(path: Path) -> Sweep:
    try:
        return load_sweeps(path)[0]
    except SweepError as error:
        raise SourceError(f"{error}; remove it to measure anew") from None
