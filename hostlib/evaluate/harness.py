"""Runs one policy through one episode, as the coordinator would, and keeps what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.dynamic.sample import Sample
from ringstep.hostlib.dynamic.sprt import State
from ringstep.hostlib.evaluate.environment import Environment
from ringstep.hostlib.traces.scenarios import Label, Schedule

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Decider(Protocol):
    """What a policy is to the harness."""

    def process(self, key: Key) -> Config | None:
        """Return what the next call shall run; None: NCCL's choice."""

    def observe(self, sample: Sample) -> None:
        """Take a finished call."""


@runtime_checkable
class Detects(Protocol):
    """A policy that has a state of the network."""

    def state(self, key: Key) -> State:
        """Return it."""


@dataclass(frozen=True)
class Episode:
    """What happened.

    Attributes:
        schedule: the network.
        latency_us: by call.
        configs: by call; None: NCCL's choice.
        sustained: by call: the policy held contention for sustained after it.
    """

    schedule: Schedule
    latency_us: Floats
    configs: list[Config | None]
    sustained: np.ndarray[Any, np.dtype[np.bool_]]

    @property
    def detect_calls(self) -> float:
        """Contended calls it took to find sustained contention; inf: never, NaN: there was none.

        A state that was ``SUSTAINED`` at the onset already counts as 0: that is a false alarm.
        """
        onset = self.schedule.onset
        if onset is None:
            return float("nan")
        if onset > 0 and self.sustained[onset - 1]:
            return 0.0
        last = onset + int(np.argmin(self.schedule.label[onset:] == Label.SUSTAINED)) or len(
            self.schedule
        )
        found = np.flatnonzero(self.sustained[onset : last if last > onset else None])
        return float(found[0] + 1) if len(found) else float("inf")

    @property
    def false_alarms(self) -> int:
        """Times the state became ``SUSTAINED`` in calls without sustained contention."""
        rose = self.sustained & ~np.concatenate([[False], self.sustained[:-1]])
        return int((rose & (self.schedule.label != Label.SUSTAINED)).sum())

    @property
    def reconfigurations(self) -> int:
        """Times another configuration ran than in the call before."""
        return sum(a != b for a, b in zip(self.configs, self.configs[1:], strict=False))

    @property
    def false_reconfigurations(self) -> int:
        """Times NCCL's choice was left in a call without sustained contention."""
        return sum(
            before is None and now is not None and label != Label.SUSTAINED
            for before, now, label in zip(
                self.configs, self.configs[1:], self.schedule.label[1:].tolist(), strict=False
            )
        )


def run_episode(policy: Decider, env: Environment, schedule: Schedule, seed: int) -> Episode:
    """Run a policy through a schedule.

    Args:
        policy: a fresh one, unless what it knows shall be kept.
        env: what runs calls.
        schedule: of contention.
        seed: of the noise.
    """
    env.start(schedule, seed)
    latency = np.empty(len(schedule))
    sustained = np.zeros(len(schedule), np.bool_)
    configs: list[Config | None] = []
    detects = policy if isinstance(policy, Detects) else None
    for call in range(len(schedule)):
        key, n_bytes = env.key, env.n_bytes
        ran = env.run(policy.process(key))
        latency[call] = ran.latency_us
        configs.append(ran.config if ran.decided else None)
        policy.observe(Sample(key, n_bytes, ran.latency_us, ran.time_ns, ran.config, ran.decided))
        if detects is not None:
            sustained[call] = detects.state(key) is State.SUSTAINED
    return Episode(schedule, latency, configs, sustained)
