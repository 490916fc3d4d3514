"""What the networks see: 15 inputs of the detector, 153 of the selector.

The detector has 11 scalars and an embedding of the collective, the selector 25 scalars beside the
detector's memory.

DynamICCL, algorithms 2 and 3, gives the groups and the totals (15 and 153) and leaves the members
open; these are ours. GPU figures that are absent are zeros, and ``gpu_present`` says so.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.actions import ALGOS, MAX_CHANNELS, PROTOS, THREADS, Config, Key
from ringstep.hostlib.dynamic.sample import GpuStats
from ringstep.hostlib.shm_layout import Collective

Vector = np.ndarray[Any, np.dtype[np.float32]]

DETECTOR_SCALARS: Final = (
    "rho",  # log2 of L_obs / L_baseline, cut to -1 .. 3
    "ranks",  # log2(ranks) / 10
    "nodes",  # log2(nodes) / 10
    "bytes",  # log2(bytes) / 40
    "algo",  # 0 Tree, 1 Ring, -1 another
    "proto",  # 0 LL, 1 Simple, -1 another
    "channels",  # / 8, cut at 2
    "changed",  # 1: another configuration than the call before
    "gpu_busy",
    "gpu_power",
    "gpu_present",  # 1: the two before were measured
)
EMBEDDING: Final = 4
HIDDEN: Final = 128
DETECTOR_INPUTS: Final = len(DETECTOR_SCALARS) + EMBEDDING

SELECTOR_SCALARS: Final = (
    "direction",  # -1 improving .. 1 getting worse: slow against fast mean of log2 rho
    "magnitude",  # mean of log2 rho, 0 .. 3
    "confidence",  # of the detector's answer, 0 .. 1
    "ranks", "nodes", "bytes",
    "clean",  # log2(baseline in µs) / 30: with bytes, whether rate or delay bounds the collective
    *(f"is_{collective.name.lower()}" for collective in Collective),
    "algo", "proto", "channels", "threads",  # in force; threads: 0, 0.5, 1
    "is_nccls",  # 1: in force is NCCL's own choice
    "nccl_algo", "nccl_proto", "nccl_channels",
    "gpu_busy", "gpu_memory", "gpu_power",
    "gpu_pcie",  # the busier direction
    "gpu_present",
)  # fmt: skip
SELECTOR_INPUTS: Final = HIDDEN + len(SELECTOR_SCALARS)

assert DETECTOR_INPUTS == 15
assert SELECTOR_INPUTS == 153

SCHEMA: Final = hashlib.sha256(
    "\n".join(("2", *DETECTOR_SCALARS, str(EMBEDDING), *SELECTOR_SCALARS, str(HIDDEN))).encode()
).hexdigest()[:16]
"""Changes with every change of what the inputs mean; weights carry the one they were trained on.

The first line is a version: raise it when a scale changes and a name does not.
"""


def log_rho(latency_us: float, baseline_us: float) -> float:
    """Return log2 of the contention ratio (equation 1), cut to -1 .. 3."""
    return min(max(math.log2(latency_us / baseline_us), -1.0), 3.0)


def config_scalars(config: Config) -> tuple[float, float, float]:
    """Return algo, proto and channels as the networks see them."""
    algo = float(ALGOS.index(config.algo)) if config.algo in ALGOS else -1.0
    proto = float(PROTOS.index(config.proto)) if config.proto in PROTOS else -1.0
    return algo, proto, min(config.n_channels / MAX_CHANNELS, 2.0)


def _shape(key: Key, n_bytes: int) -> tuple[float, float, float]:
    return math.log2(key.n_ranks) / 10, math.log2(key.n_nodes) / 10, math.log2(n_bytes) / 40


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def detector_scalars(
    key: Key, n_bytes: int, rho: float, config: Config, changed: bool, gpu: GpuStats | None
) -> Vector:
    """Return the detector's 11 scalars; ``rho`` is what :func:`log_rho` returned."""
    return np.array(
        (
            rho,
            *_shape(key, n_bytes),
            *config_scalars(config),
            float(changed),
            *((0.0, 0.0, 0.0) if gpu is None else (_share(gpu.busy), _share(gpu.power), 1.0)),
        ),
        np.float32,
    )


def selector_scalars(
    key: Key,
    n_bytes: int,
    clean_us: float,
    contention: tuple[float, float, float],
    config: Config,
    is_nccls: bool,
    nccls: Config,
    gpu: GpuStats | None,
) -> Vector:
    """Return the 25 scalars beside the detector's memory; ``contention`` is the vector of 3."""
    threads = THREADS.index(config.n_threads) / 2 if config.n_threads in THREADS else 0.0
    figures = (0.0,) * 5 if gpu is None else (
        _share(gpu.busy), _share(gpu.memory), _share(gpu.power),
        _share(max(gpu.pcie_tx, gpu.pcie_rx)), 1.0,
    )  # fmt: skip
    return np.array(
        (
            *contention,
            *_shape(key, n_bytes),
            math.log2(max(clean_us, 1e-3)) / 30,
            *(float(key.collective is collective) for collective in Collective),
            *config_scalars(config),
            threads,
            float(is_nccls),
            *config_scalars(nccls),
            *figures,
        ),
        np.float32,
    )


class Trend:
    """Direction and magnitude of contention, from the ratios of a key's calls."""

    __slots__ = ("_fast", "_slow", "calls")

    def __init__(self) -> None:
        self.calls = 0
        self._fast = self._slow = 0.0

    def add(self, rho: float) -> None:
        """Take one call's log2 ratio."""
        self.calls += 1
        self._fast += (rho - self._fast) * max(0.5, 1 / self.calls)
        self._slow += (rho - self._slow) * max(0.125, 1 / self.calls)

    def vector(self, probability: float) -> tuple[float, float, float]:
        """Return direction (-1 .. 1), magnitude (0 .. 3), confidence (0 .. 1)."""
        direction = min(max(2.0 * (self._fast - self._slow), -1.0), 1.0)
        return direction, min(max(self._fast, 0.0), 3.0), abs(2 * probability - 1)
