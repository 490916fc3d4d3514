"""What a policy is told of one finished collective, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.shm_layout import Collective

LONGEST_US: Final = 3600e6
"""No collective takes an hour: a longer one is a clock's fault."""


class BadSample(ValueError):
    """A measurement that cannot be: it is left out, and counted."""


@dataclass(frozen=True, slots=True)
class GpuStats:
    """A look at a GPU by NVML; all shares from 0 to 1.

    Attributes:
        busy: share of time in which a kernel ran.
        memory: share of time in which memory was read or written.
        power: of the limit.
        pcie_tx, pcie_rx: of the link's rate.
    """

    busy: float = 0.0
    memory: float = 0.0
    power: float = 0.0
    pcie_tx: float = 0.0
    pcie_rx: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished collective, the slowest rank's time.

    Attributes:
        key: what it was.
        n_bytes: larger side, bytes.
        latency_us: from the first rank's start to the last rank's end, µs.
        time_ns: when it ended, on one clock for all samples of a policy.
        config: what really ran.
        decided: by a policy's decision; False: NCCL's own choice.
        gpu: None where there is no GPU.
        settling: one of the first calls after a change: connections and rivals are still finding
            their rates, so it says nothing of the configuration.
    """

    key: Key
    n_bytes: int
    latency_us: float
    time_ns: int
    config: Config
    decided: bool = False
    gpu: GpuStats | None = None
    settling: bool = False


def check(sample: Sample, last_ns: int | None) -> None:
    """Refuse what cannot have been measured.

    Raises:
        BadSample: a latency that is no time, a clock that went back, a collective nobody knows.
    """
    latency = sample.latency_us
    if not math.isfinite(latency):
        raise BadSample(f"latency {latency}: not a number")
    if latency <= 0:
        raise BadSample(f"latency {latency} µs: not above 0")
    if latency > LONGEST_US:
        raise BadSample(f"latency {latency:.3g} µs: longer than an hour, a clock stepped")
    if last_ns is not None and sample.time_ns < last_ns:
        raise BadSample(f"time {sample.time_ns} ns: before {last_ns} ns, a clock stepped back")
    key = sample.key
    if not isinstance(key.collective, Collective):
        raise BadSample(f"collective {key.collective!r}: not one of NCCL's five")
    if key.n_ranks < 2 or not 1 <= key.n_nodes <= key.n_ranks:
        raise BadSample(f"{key.n_ranks} ranks on {key.n_nodes} nodes: not a communicator")
    if sample.n_bytes <= 0:
        raise BadSample(f"{sample.n_bytes} bytes: not above 0")
