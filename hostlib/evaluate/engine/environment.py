"""The engine as an environment: contention by rival flows, times as measured.

Decisions are in force with the call they are made for: this measures configurations. What it costs
to agree on them is the coordinator's part, and measured with it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from types import TracebackType
from typing import Final, Self

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.evaluate.engine.cluster import QUEUE_MS, RATE_BPS, SETTLE_S, EngineCluster
from ringstep.hostlib.evaluate.environment import Ran
from ringstep.hostlib.evaluate.workloads import InTurn, Workload
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces.fluid import Load
from ringstep.hostlib.traces.scenarios import Schedule
from ringstep.hostlib.traces.sweep import Sweep

SCALE: Final = 64
"""A workload's bytes on links of 200 Mb/s: an iteration of the largest takes one to two seconds."""
_USUAL: Final = 9
"""Calls from which it is known how long a call takes, so that a slow host can be that much late."""


class EngineEnvironment:
    """Collectives of one key; a context manager that brings its cluster, or :meth:`on` another's.

    Args:
        collective: AllReduce, AllGather, ReduceScatter or Broadcast.
        n_bytes: larger side; rounded down to whole parts.
        nodes, rate_bps, queue_ms, settle_s, ranks_per_node, ranks, rivals, backlog: as for
            :class:`EngineCluster`, which checks them.

    Raises:
        ValueError: a number that makes no sense.
    """

    def __init__(
        self,
        collective: Collective,
        n_bytes: int,
        nodes: int = 4,
        rate_bps: float = RATE_BPS,
        queue_ms: float = QUEUE_MS,
        settle_s: float = SETTLE_S,
        *,
        ranks_per_node: int = 1,
        ranks: str | None = None,
        rivals: str | None = None,
        backlog: int = 0,
    ) -> None:
        cluster = EngineCluster(
            nodes, rate_bps, queue_ms, settle_s=settle_s, ranks_per_node=ranks_per_node,
            ranks=ranks, rivals=rivals, backlog=backlog,
        )  # fmt: skip
        self._of(cluster, collective, n_bytes)

    @classmethod
    def on(cls, cluster: EngineCluster, collective: Collective, n_bytes: int) -> Self:
        """Return an environment on a cluster that others use too; it is entered by its owner.

        Raises:
            ValueError: too few bytes.
        """
        made = cls.__new__(cls)
        made._of(cluster, collective, n_bytes)
        return made

    def _of(self, cluster: EngineCluster, collective: Collective, n_bytes: int) -> None:
        self.cluster, self._collective = cluster, collective
        self._bytes = cluster.whole(n_bytes)
        self._sweep: Sweep | None = None
        self._recent: deque[float] = deque(maxlen=_USUAL)

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.cluster.__exit__(kind, value, trace)

    @property
    def name(self) -> str:
        """For reports."""
        size = f"{self._bytes / 1024:g} KiB"
        return f"engine: {self._collective.name.lower()} of {size}, {self.cluster.name}"

    @property
    def key(self) -> Key:
        """Of all calls."""
        return self.cluster.key(self._collective, self._bytes)

    @property
    def n_bytes(self) -> int:
        """Of all calls."""
        return self._bytes

    def start(self, schedule: Schedule, seed: int) -> None:
        """Begin an episode; the seed does nothing, links have their own noise."""
        self._schedule, self._at = schedule, 0

    def run(self, config: Config | None) -> Ran:
        """Run the next call.

        Raises:
            EngineError: a rank failed.
            IndexError: the schedule is over.
        """
        s, at = self._schedule, self._at
        if at >= len(s):
            raise IndexError(f"call {at}: the schedule has {len(s)} calls")
        self._at += 1
        return self.call(config, s.load(at))

    def call(self, config: Config | None, load: Load) -> Ran:
        """Run a call under a load, whatever the schedule says.

        With a slow host the last rank is late by its share of what calls took before.

        Raises:
            EngineError: a rank failed.
        """
        self.cluster.set_load(load)
        late_us = (load.slow_host - 1) * median(self._recent) if self._recent else 0.0
        ran, latency_us = self.cluster.run(self._collective, self._bytes, config, late_us)
        if load.slow_host == 1:
            self._recent.append(latency_us)
        return Ran(ran, latency_us, time.monotonic_ns(), config is not None)

    def learn(self, sweep: Sweep) -> None:
        """Take the oracle from a sweep.

        Raises:
            ValueError: a sweep of another key.
        """
        if sweep.key != self.key:
            raise ValueError(f"{sweep.env}: a sweep of {sweep.key}; this is {self.key}")
        self._sweep = sweep

    def oracle(self, load: Load) -> Mapping[Key, Config]:
        """Return what a sweep found to be best; nothing before one."""
        return {} if self._sweep is None else {self.key: self._sweep.best(load)}


def scaled(load: Workload, by: int = SCALE) -> Workload:
    """Return a workload of as many collectives with fewer bytes.

    Raises:
        ValueError: no whole factor from 1.
    """
    if by < 1:
        raise ValueError(f"by = {by}: 1 or more")
    return Workload(f"{load.name}, bytes / {by}", [(c, n // by) for c, n in load.calls])


class EngineWorkload(InTurn[EngineEnvironment]):
    """A workload on a cluster: a schedule's call is one collective, of any key.

    The caller enters the cluster.

    Args:
        load: collectives of an iteration; :func:`scaled` to what the links carry.
        cluster: where it runs.

    Raises:
        ValueError: no calls, or one of too few bytes.
    """

    def __init__(self, load: Workload, cluster: EngineCluster) -> None:
        if not load.calls:
            raise ValueError(f"{load.name}: no calls")
        of = {
            (collective, cluster.whole(size)): EngineEnvironment.on(cluster, collective, size)
            for collective, size in load.calls
        }
        super().__init__(
            f"engine: {load.name}, {cluster.name}",
            [of[collective, cluster.whole(size)] for collective, size in load.calls],
        )
        self.environments: Sequence[EngineEnvironment] = tuple(of.values())

    def start(self, schedule: Schedule, seed: int) -> None:
        """Begin an episode with an iteration; the seed does nothing, links have their own noise."""
        self._schedule, self._at = schedule, 0

    def run(self, config: Config | None) -> Ran:
        """Run the next call.

        Raises:
            EngineError: a rank failed.
            IndexError: the schedule is over.
        """
        s, at = self._schedule, self._at
        if at >= len(s):
            raise IndexError(f"call {at}: the schedule has {len(s)} calls")
        ran = self._next.call(config, s.load(at))
        self._at += 1
        return ran

    def learn(self, sweeps: Sequence[Sweep]) -> list[Key]:
        """Take the oracle of each key from sweeps; return the keys that have none."""
        left = []
        for env in self.environments:
            of_key = [sweep for sweep in sweeps if sweep.key == env.key]
            if of_key:
                env.learn(min(of_key, key=lambda sweep: abs(sweep.n_bytes - env.n_bytes)))
            elif env.key not in left:
                left.append(env.key)
        return left
