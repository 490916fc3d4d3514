"""What a policy sees and answers: the border between the coordinator and everything that decides.

A policy has two functions. :meth:`Policy.observe` learns from one collective;
:meth:`Policy.process` says what to do for a key and must be quick: it only looks up what was
learned. Both are called on one thread of their own, never while a collective waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ringstep.hostlib.shm import Decision
from ringstep.hostlib.shm_layout import Algo, Collective, EntryState, Proto

__all__ = [
    "CallKey",
    "GpuFigures",
    "NetworkFigures",
    "Options",
    "Pair",
    "Policy",
    "PolicyError",
    "Ran",
    "Sample",
]

Pair = tuple[Algo, Proto]


class PolicyError(ValueError):
    """A policy that cannot be made; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class CallKey:
    """What is decided for: collectives of one kind and size class on one communicator."""

    comm: str
    """Names the communicator while it lives."""
    collective: Collective
    size_class: int
    """floor(log2 bytes)"""
    bytes: int
    """Size of the newest collective of the class, larger side, as getCollInfo sees it."""
    n_ranks: int
    n_nodes: int
    usable: frozenset[Pair]
    """Pairs that every rank was offered in every call so far: others are not applied."""

    @property
    def place(self) -> tuple[str, Collective, int]:
        """What stays the same while sizes within the class and usable pairs change."""
        return self.comm, self.collective, self.size_class


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """Figures of a node's GPUs; None where the machine or its driver does not tell."""

    utilization: float | None = None
    """Share of time with a kernel running, 0 to 1."""
    memory_used: float | None = None
    """Share of memory in use, 0 to 1."""
    pcie_tx_bps: float | None = None
    pcie_rx_bps: float | None = None
    nvlink_tx_bps: float | None = None
    nvlink_rx_bps: float | None = None
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    throttled: bool | None = None
    """Whether the clocks are held down by power, heat or hardware."""


@dataclass(frozen=True, slots=True)
class NetworkFigures:
    """What the network says of the job; None where it does not."""

    alpha: float | None = None
    """How far the ring is out of step; 1 is in step."""
    outpacing: float | None = None
    """Share of packets that run ahead, 0 to 1."""
    marks_red: int | None = None
    marks_marker: int | None = None
    corrections: int | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """What really ran; None where the ranks' records do not tell."""

    algo: Algo | None
    proto: Proto | None
    n_channels: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One collective, over the ranks that told of it."""

    key: CallKey
    index: int
    """Of the collective in its communicator, low 32 bits."""
    coll_seq: int
    """NCCL's own count per function."""
    start_ns: int
    """CLOCK_MONOTONIC of the node whose record came first."""
    duration_ns: dict[int, int]
    """By rank; ranks whose record is missing or was closed early are left out."""
    missing: frozenset[int]
    """Ranks that never told."""
    ran: Ran
    epoch: int
    """In force at launch, 0 before the first."""
    decision: Decision | None
    """What the table of that epoch says for the key; None leaves NCCL alone."""
    decided: bool
    """Whether every rank that told applied a decision."""
    state: EntryState
    """WARMUP and COOLDOWN: to learn from, not to judge a setting by."""
    stalls: dict[int, int] = field(default_factory=dict)
    """Sends that waited for the network, by channel, over all ranks."""
    gpu: GpuFigures | None = None
    network: NetworkFigures | None = None

    @property
    def max_ns(self) -> int:
        """Duration on the slowest rank; 0 where no rank measured it."""
        return max(self.duration_ns.values(), default=0)

    @property
    def min_ns(self) -> int:
        """Duration on the fastest rank; 0 where no rank measured it."""
        return min(self.duration_ns.values(), default=0)


@runtime_checkable
class Policy(Protocol):
    """Decides.

    ``version`` rises whenever answers may have changed; the coordinator then asks again.
    ``static`` says that answers depend on the key alone: all sizes of a collective are asked for at
    once, without warm-up. A policy whose functions raise, hang or are slow is bypassed.
    """

    name: str
    version: int
    static: bool

    def observe(self, sample: Sample) -> None:
        """Learn from one collective."""

    def process(self, key: CallKey) -> Decision | None:
        """Return what to do from now on, None to leave NCCL alone."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line tells a policy."""

    argument: str = ""
    """What follows the colon: ``fixed:FILE``."""
    explore_share: float = 1.0
    """Share of collectives that may run something else than the best known."""
    seed: int = 0
    folder: Path = Path()
    """Relative files are looked up here."""


Factory = Callable[[Options], Any]
"""Makes a policy; raises PolicyError where it cannot."""
