"""What a policy is judged on: it runs a collective now, in a configuration, and times it.

The fluid model is one; the CPU engine on limited links and the simulator are others, behind the
same members. Everything that depends on chance is drawn from the episode's seed, call by call, so
that two policies meet the same noise and their calls can be paired.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.traces.fluid import CLEAN, Load, best, latency_us
from ringstep.hostlib.traces.generate import Job
from ringstep.hostlib.traces.noise import factors
from ringstep.hostlib.traces.scenarios import Schedule
from ringstep.hostlib.traces.sweep import Draws, Sweep


@dataclass(frozen=True, slots=True)
class Ran:
    """One call that was run.

    Attributes:
        config: what really ran.
        latency_us: of the slowest rank.
        time_ns: when it ended.
        decided: by a policy's decision; False: NCCL's own choice.
    """

    config: Config
    latency_us: float
    time_ns: int
    decided: bool


class Environment(Protocol):
    """Runs collectives under a schedule of contention: of one key, or of several in turn."""

    @property
    def name(self) -> str:
        """For reports."""

    @property
    def key(self) -> Key:
        """Of the next call."""

    @property
    def n_bytes(self) -> int:
        """Of the next call."""

    def start(self, schedule: Schedule, seed: int) -> None:
        """Begin an episode; contention follows the schedule from the next call on."""

    def run(self, config: Config | None) -> Ran:
        """Run the next call; None: as NCCL chooses."""

    def oracle(self, load: Load) -> Mapping[Key, Config]:
        """Return the best configurations under a load (by sweep), as far as they are known."""


class FluidEnvironment:
    """The fluid model with noise."""

    def __init__(self, job: Job, name: str = "fluid") -> None:
        self._job, self._name = job, name
        self._nccls = job.nccls
        self._clean = latency_us(job.key, job.n_bytes, self._nccls, CLEAN, job.params)

    @property
    def name(self) -> str:
        """For reports."""
        return self._name

    @property
    def key(self) -> Key:
        """Of all calls."""
        return self._job.key

    @property
    def n_bytes(self) -> int:
        """Of all calls."""
        return self._job.n_bytes

    @property
    def job(self) -> Job:
        """What is modelled."""
        return self._job

    def start(self, schedule: Schedule, seed: int) -> None:
        """Begin an episode."""
        self._schedule, self._at, self._now = schedule, 0, 10**9
        self._noise = factors(np.random.default_rng([seed, 8]), schedule.level, self._job.noise)
        self._known: dict[Any, float] = {}

    def run(self, config: Config | None) -> Ran:
        """Run the next call.

        Raises:
            IndexError: the schedule is over.
        """
        s, at = self._schedule, self._at
        if at >= len(s):
            raise IndexError(f"call {at}: the schedule has {len(s)} calls")
        load = s.load(at)
        ran = config or self._nccls
        time = self._known.get((ran, load))
        if time is None:
            time = self._known[ran, load] = self.expected_us(config, load)
        latency = time * float(self._noise[at])
        self._at += 1
        self._now += int((latency + 2.0 * self._clean) * 1e3)
        return Ran(ran, latency, self._now, config is not None)

    def oracle(self, load: Load) -> Mapping[Key, Config]:
        """Return the best configuration under a load."""
        job = self._job
        return {job.key: best(job.key, job.n_bytes, load, job.params)[0]}

    def expected_us(self, config: Config | None, load: Load) -> float:
        """Return a call's time without noise; None: as NCCL chooses."""
        job = self._job
        return latency_us(job.key, job.n_bytes, config or self._nccls, load, job.params)


class RecordedEnvironment:
    """A sweep of a real or simulated network, its calls drawn again at random.

    Calls are independent of one another here: what was measured has no memory beyond its load.
    Chunks are the protocols' own.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._sweep, self._draws = sweep, Draws(sweep)
        self._channels = max(config.n_channels for config in sweep.calls_us)

    @property
    def name(self) -> str:
        """For reports."""
        return f"recorded {self._sweep.env}"

    @property
    def key(self) -> Key:
        """Of all calls."""
        return self._sweep.key

    @property
    def n_bytes(self) -> int:
        """Of all calls."""
        return self._sweep.n_bytes

    def start(self, schedule: Schedule, seed: int) -> None:
        """Begin an episode."""
        self._schedule, self._at, self._now = schedule, 0, 10**9
        self._u = np.random.default_rng([seed, 13]).random(len(schedule))

    def run(self, config: Config | None) -> Ran:
        """Run the next call.

        Raises:
            IndexError: the schedule is over.
            KeyError: a configuration that the sweep has not measured.
        """
        s, at = self._schedule, self._at
        if at >= len(s):
            raise IndexError(f"call {at}: the schedule has {len(s)} calls")
        ran = None
        if config is not None:  # a communicator has as many channels as were measured
            channels = min(config.n_channels, self._channels)
            ran = Config(config.algo, config.proto, channels)
        latency = self._draws.latency_us(ran, s.load(at), float(self._u[at]))
        self._at += 1
        self._now += int((latency + 2.0 * self._sweep.clean_us) * 1e3)
        return Ran(ran or self._sweep.usual, latency, self._now, config is not None)

    def oracle(self, load: Load) -> Mapping[Key, Config]:
        """Return the configuration of the least median."""
        return {self.key: self._sweep.best(load)}


class Lagged:
    """An environment in which a decision takes effect some calls later, as ranks have to agree."""

    def __init__(self, env: Environment, lag: int) -> None:
        if lag < 0:
            raise ValueError(f"lag = {lag}: 0 or more")
        self._env, self._lag = env, lag

    @property
    def name(self) -> str:
        """For reports."""
        return f"{self._env.name}, {self._lag} calls late"

    @property
    def key(self) -> Key:
        """Of the next call."""
        return self._env.key

    @property
    def n_bytes(self) -> int:
        """Of the next call."""
        return self._env.n_bytes

    def start(self, schedule: Schedule, seed: int) -> None:
        """Begin an episode."""
        self._env.start(schedule, seed)
        self._waiting: deque[Config | None] = deque([None] * self._lag)

    def run(self, config: Config | None) -> Ran:
        """Run the next call as was asked for some calls ago."""
        self._waiting.append(config)
        return self._env.run(self._waiting.popleft())

    def oracle(self, load: Load) -> Mapping[Key, Config]:
        """Return the best configurations under a load."""
        return self._env.oracle(load)
