"""What training jobs communicate in an iteration, as environments: keys in turn.

Data-parallel gradients in fp32, in the buckets that PyTorch's DistributedDataParallel makes (the
first of 1 MiB, then 25 MiB each). Parameter counts are those of the published models. DLRM's
embeddings go by all-to-all, which no tuner of NCCL decides on; its dense layers are all-reduced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.evaluate.environment import Environment, FluidEnvironment, Ran
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces.fluid import FluidParams, Load
from ringstep.hostlib.traces.generate import Job
from ringstep.hostlib.traces.noise import NoiseParams
from ringstep.hostlib.traces.scenarios import Schedule

PARAMETERS: Final[Mapping[str, float]] = {
    "ResNet-50": 25.6e6,
    "BERT": 110e6,
    "NanoGPT": 124e6,
    "DLRM": 2.4e6,
    "GPT-2 Medium": 355e6,
    "ViT-Large": 304e6,
}
"""Parameters whose gradients are all-reduced."""
E = TypeVar("E", bound=Environment)
FIRST_BUCKET: Final = 1 << 20
BUCKET: Final = 25 << 20


@dataclass(frozen=True, slots=True)
class Workload:
    """Collectives of one iteration, in order: kind and bytes."""

    name: str
    calls: Sequence[tuple[Collective, int]]


def buckets(parameters: float) -> list[int]:
    """Return the bytes of the gradient buckets of a model."""
    left = int(4 * parameters)
    found = [min(FIRST_BUCKET, left)]
    left -= found[0]
    while left > 0:
        found.append(min(BUCKET, left))
        left -= found[-1]
    return found


def workload(name: str) -> Workload:
    """Return one of the six.

    Raises:
        ValueError: no such workload.
    """
    if name not in PARAMETERS:
        raise ValueError(f"workload {name!r}: {', '.join(PARAMETERS)}")
    return Workload(name, [(Collective.ALL_REDUCE, n) for n in buckets(PARAMETERS[name])])


class InTurn(Generic[E]):
    """Environments of one key each, whose calls come in turn: an iteration of a workload."""

    def __init__(self, name: str, steps: Sequence[E]) -> None:
        self._name, self._steps, self._at = name, steps, 0

    @property
    def name(self) -> str:
        """For reports."""
        return self._name

    @property
    def calls_per_iteration(self) -> int:
        """Collectives of an iteration."""
        return len(self._steps)

    @property
    def _next(self) -> E:
        return self._steps[self._at % len(self._steps)]

    @property
    def key(self) -> Key:
        """Of the next call."""
        return self._next.key

    @property
    def n_bytes(self) -> int:
        """Of the next call."""
        return self._next.n_bytes

    def oracle(self, load: Load) -> Mapping[Key, Config]:
        """Return the best configuration of each key under a load, as far as they are known."""
        return {key: c for env in self._steps for key, c in env.oracle(load).items()}


class FluidWorkload(InTurn[FluidEnvironment]):
    """A workload on the fluid model: a schedule's call is one collective, of any key."""

    def __init__(
        self,
        load: Workload,
        n_ranks: int,
        n_nodes: int,
        params: FluidParams | None = None,
        noise: NoiseParams | None = None,
    ) -> None:
        p, q = params or FluidParams(), noise or NoiseParams()
        super().__init__(
            load.name,
            [
                FluidEnvironment(Job(p, Key.of(n_ranks, n_nodes, collective, size), size, q))
                for collective, size in load.calls
            ],
        )

    def start(self, schedule: Schedule, seed: int) -> None:
        """Begin an episode."""
        self._at, self._now = 0, 10**9
        k = len(self._steps)
        for i, env in enumerate(self._steps):
            part = Schedule(
                schedule.name, schedule.level[i::k], schedule.flows[i::k],
                schedule.slow_host[i::k], schedule.label[i::k],
            )  # fmt: skip
            if len(part):
                env.start(part, int(np.random.default_rng([seed, i]).integers(1 << 31)))

    def run(self, config: Config | None) -> Ran:
        """Run the next call."""
        ran = self._next.run(config)
        self._at += 1
        self._now += int(ran.latency_us * 2e3)
        return Ran(ran.config, ran.latency_us, self._now, ran.decided)
