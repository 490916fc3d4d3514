"""What a source of sweeps is asked for: one key, loads, repeats. The sources are packages here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces.fluid import Load
from ringstep.hostlib.traces.sweep import Sweep

Progress = Callable[[int, int], None]
"""Told what is done and what there is to do."""


class SourceError(RuntimeError):
    """A source that cannot measure what was asked for; the message says why, and what would do."""


@dataclass(frozen=True)
class SweepOptions:
    """A sweep to be measured.

    Attributes:
        collective: what is run.
        n_bytes: larger side.
        nodes: each with a link of its own.
        ranks_per_node: GPUs that share the node's link.
        rate_bps: of that link.
        loads: ascending by level, a clean one first; flows of 0 are the source's usual number.
        repeats: calls, or seeds, of each configuration under each load.
        seed: of everything that is drawn.
        max_channels: as many as communicators have.
        jobs: processes at once, where the source can use several.
        work: folder to keep what is done in, so that the same command goes on; None: a temporary
            one.
        queue_ms: depth of every queue, as time at the rate; None: the source's usual depth.
        rivals: congestion control of the rival flows; None: the source's usual one.
        ranks: that of the ranks; None: the source's usual one.
        backlog: unsent bytes that a rival flow may hold and send later; None: the source's usual.
    """

    collective: Collective
    n_bytes: int
    nodes: int
    ranks_per_node: int
    rate_bps: float
    loads: tuple[Load, ...]
    repeats: int
    seed: int
    max_channels: int
    jobs: int
    work: Path | None = None
    queue_ms: float | None = None
    rivals: str | None = None
    ranks: str | None = None
    backlog: int | None = None

    @property
    def key(self) -> Key:
        """Of the collective."""
        ranks = self.nodes * self.ranks_per_node
        return Key.of(ranks, self.nodes, self.collective, self.n_bytes)


Source = Callable[[SweepOptions, Progress], Sweep]
"""Measures a sweep.

Raises SourceError where it cannot, KeyboardInterrupt on ctrl-C, with nothing half-done left.
"""

Check = Callable[[SweepOptions], None]
"""Raises SourceError where a source could not measure a sweep; measures nothing."""
