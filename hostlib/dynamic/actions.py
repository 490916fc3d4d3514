"""What a selector may choose: 96 actions, in the paper's order, and which of them are legal.

DynamICCL, table 1 and algorithm 3: index = ((algo * 2 + proto) * 8 + channels - 1) * 3 + threads,
with Tree before Ring and LL before Simple. No tuner can set threads in stock NCCL: there one action
in three is left, 32 in all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from ringstep.hostlib.shm import size_class
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""One flag per action: it may be chosen."""

ALGOS: Final = (Algo.TREE, Algo.RING)
PROTOS: Final = (Proto.LL, Proto.SIMPLE)
MAX_CHANNELS: Final = 8
THREADS: Final = (128, 256, 512)
N_ACTIONS: Final = len(ALGOS) * len(PROTOS) * MAX_CHANNELS * len(THREADS)


class Key(NamedTuple):
    """What a baseline, a detector's memory and a decision belong to."""

    n_ranks: int
    n_nodes: int
    collective: Collective
    size_class: int

    @classmethod
    def of(cls, n_ranks: int, n_nodes: int, collective: Collective, n_bytes: int) -> Key:
        """Return the key of a collective of ``n_bytes`` (the larger side, as NCCL counts)."""
        return cls(n_ranks, n_nodes, collective, size_class(n_bytes))


@dataclass(frozen=True, slots=True, order=True)
class Config:
    """How a collective is run.

    Attributes:
        algo: algorithm.
        proto: protocol.
        n_channels: parallel connections; 0: not known or left to NCCL.
        n_threads: wanted per block; no tuner of stock NCCL can set it. 0: not asked for.
        chunk_bytes: what a message carries; 0: the protocol's default.
    """

    algo: Algo
    proto: Proto
    n_channels: int
    n_threads: int = 0
    chunk_bytes: int = 0

    @property
    def plain(self) -> Config:
        """The same without what has no effect in stock NCCL."""
        return Config(self.algo, self.proto, self.n_channels, 0, self.chunk_bytes)

    def __str__(self) -> str:
        text = f"{self.algo.name.lower()}/{self.proto.name.lower()}/{self.n_channels}"
        return text + (f"/{self.chunk_bytes} B" if self.chunk_bytes else "")


def decode(action: int) -> Config:
    """Return what action ``action`` of the paper means.

    Raises:
        ValueError: not one of the 96.
    """
    if not 0 <= action < N_ACTIONS:
        raise ValueError(f"action {action}: 0 to {N_ACTIONS - 1}")
    return Config(
        ALGOS[action // 48], PROTOS[action // 24 % 2], action // 3 % 8 + 1, THREADS[action % 3]
    )


def encode(config: Config) -> int:
    """Return the action that means ``config``; threads not asked for are 512.

    Raises:
        ValueError: outside the action space.
    """
    try:
        algo, proto = ALGOS.index(config.algo), PROTOS.index(config.proto)
        threads = THREADS.index(config.n_threads or THREADS[-1])
    except ValueError:
        raise ValueError(f"{config}: not in the action space") from None
    if not 1 <= config.n_channels <= MAX_CHANNELS:
        raise ValueError(f"{config}: 1 to {MAX_CHANNELS} channels")
    return ((algo * 2 + proto) * 8 + config.n_channels - 1) * 3 + threads


def legal(
    collective: Collective,
    usable: Collection[tuple[Algo, Proto]] | None = None,
    max_channels: int = MAX_CHANNELS,
    threads: bool = False,
) -> Mask:
    """Return which actions may be chosen for a collective.

    Args:
        collective: Tree is there for AllReduce only.
        usable: pairs that every rank's cost table had; None: all.
        max_channels: as many as the communicator has.
        threads: the runtime honours threads; else one action of each three is left.
    """
    mask = np.ones(N_ACTIONS, np.bool_)
    for action in range(N_ACTIONS):
        c = decode(action)
        mask[action] = (
            (c.algo is Algo.RING or collective is Collective.ALL_REDUCE)
            and (usable is None or (c.algo, c.proto) in usable)
            and c.n_channels <= max_channels
            and (threads or c.n_threads == THREADS[-1])
        )
    return mask


LEGAL: Final = {collective: legal(collective) for collective in Collective}
"""Without threads, every pair usable, 8 channels."""
