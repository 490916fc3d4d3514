"""What a node and the skeleton tell one another, in one process or over a link."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from ringstep.hostlib.coordinator.policy import GpuFigures, Pair
from ringstep.hostlib.shm_layout import Collective, Scope

__all__ = [
    "Abandon",
    "CommGone",
    "CommStatus",
    "Command",
    "Event",
    "Gpu",
    "NodeGone",
    "NodeHello",
    "Offer",
    "OfferState",
    "Outcome",
    "Records",
    "Where",
]

Where = tuple[int, int]
"""Block and generation: one communicator on one node, for ever."""


@dataclass(frozen=True, slots=True)
class NodeHello:
    """A node is there, and everything that it told before is void."""

    last_epoch: int
    """Highest ever announced in its file."""
    file_id: int


@dataclass(frozen=True, slots=True)
class NodeGone:
    """The link to a node is down."""

    reason: str


@dataclass(frozen=True, slots=True)
class CommStatus:
    """A communicator's ranks on one node, told when any of it changes."""

    where: Where
    comm_id: int
    n_ranks: int
    n_nodes: int
    scope: Scope
    ranks: tuple[int, ...]
    """That are attached here and whose number is known."""
    whole: bool
    """All ranks are here."""
    trusted: bool
    """Every rank here counts collectives alike."""
    frozen: bool
    epoch: int | None
    """In force; None where ranks differ, which lasts a moment."""
    usable: dict[Collective, frozenset[Pair]]
    """By collective that all ranks here were asked for: what all of them can use."""
    table: np.ndarray[Any, Any] | None
    """Entries in force, with the first status and with every other epoch, where the file has them;
    in epoch 0 those of the static table, if it holds."""


@dataclass(frozen=True, slots=True)
class CommGone:
    """A communicator is closing or gone."""

    where: Where


@dataclass(frozen=True, slots=True)
class Records:
    """Telemetry slots, as ``shm_layout.RECORD``; each one's block has the generation given."""

    slots: np.ndarray[Any, Any]
    generations: dict[int, int]
    lost: int = 0
    thin: int = 0
    """Only one collective in 2**thin is told, the same ones on all ranks (:mod:`thinning`)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Newest figures of a node, mean over its GPUs; None without any."""

    figures: GpuFigures | None


class OfferState(Enum):
    """How far an offer came on one node."""

    ACKNOWLEDGED = "acknowledged"
    COMMITTED = "committed"
    APPLIED = "applied"
    REFUSED = "refused"
    FROZEN = "frozen"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Outcome:
    """An offer came further on a node, or to its end."""

    where: Where
    epoch: int
    state: OfferState
    reasons: tuple[str, ...] = ()
    took_ms: float = 0.0
    """From when the table was on offer on the node."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Put a table on offer to a communicator."""

    where: Where
    epoch: int
    scope: Scope
    entries: np.ndarray[Any, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Abandon:
    """Take an offer back, unless it is committed."""

    where: Where
    epoch: int


Event = NodeHello | NodeGone | CommStatus | CommGone | Records | Gpu | Outcome
Command = Offer | Abandon
