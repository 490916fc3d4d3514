"""Puts the ranks' records of one collective together.

Records of one collective carry the same count per function, on every rank of a communicator. They
come in batches, ring by ring and node by node, late or never: a collective is given on once every
rank that still reports has told, or after a while without the rest. A rank that missed several in
a row is not waited for until it is heard again, so a dead one costs one wait, not one each time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.coordinator.thinning import kept
from ringstep.hostlib.shm_layout import Algo, Collective, Proto, RecordFlag

__all__ = ["Joined", "Joiner"]

(_KIND, _FUNC, _ALGO, _PROTO, _CHANNELS, _FLAGS, _RANK, _EPOCH, _SEQ, _BYTES, _START, _DURATION,
 _STALLS, _INDEX) = (
    (lay.RECORD.names or ()).index(name)
    for name in ("kind", "func", "algo", "proto", "n_channels", "flags", "rank", "epoch",
                 "coll_seq", "bytes", "start_ns", "duration_ns", "stalls", "index")
)  # fmt: skip

GIVEN_UP_AFTER: Final = 8
"""Collectives in a row that a rank may miss before it is not waited for."""
REMEMBERED: Final = 4096
"""Collectives given on that late records are still told from new ones by."""


@dataclass(slots=True)
class Joined:
    """One collective over the ranks that told of it."""

    func: Collective
    coll_seq: int
    bytes: int
    index: int
    epoch: int
    start_ns: int
    algo: Algo | None
    proto: Proto | None
    n_channels: int
    ran: tuple[int, int, int, int]
    """Algorithm, protocol, channels and epoch as the first rank told them."""
    decided: bool
    since: float
    duration_ns: dict[int, int] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    missing: frozenset[int] = frozenset()
    stalls: dict[int, int] = field(default_factory=dict)
    stalls_due: set[int] = field(default_factory=set)
    mixed: bool = False
    """Ranks that ran different things, or under different epochs: nothing to learn from."""


class Joiner:
    """Joins one communicator's records.

    Args:
        wait_s: for the ranks that have not told yet.
        limit: collectives waited for at a time; the oldest is given on when it is exceeded.
    """

    def __init__(self, *, wait_s: float = 1.0, limit: int = 2048) -> None:
        self._wait_s = wait_s
        self._limit = limit
        self._open: OrderedDict[tuple[int, int], Joined] = OrderedDict()
        self._given: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._missed: dict[int, int] = {}
        self.thin = 0
        """Only one collective in 2**thin is told of by all ranks; the others are passed over."""
        self.late = 0
        """Records of collectives given on already, and second ones of the same rank."""
        self.odd = 0
        """Records of no collective that has decisions."""

    @property
    def absent(self) -> frozenset[int]:
        """Ranks that are not waited for."""
        return frozenset(r for r, missed in self._missed.items() if missed >= GIVEN_UP_AFTER)

    @property
    def waiting(self) -> int:
        """Collectives that not every rank has told of yet."""
        return len(self._open)

    def add(self, slots: np.ndarray[Any, Any], now: float) -> None:
        """Take in telemetry slots of this communicator (``shm_layout.RECORD``)."""
        for i, row in enumerate(slots.tolist()):
            func, seq = row[_FUNC], row[_SEQ]
            if func >= lay.COLLECTIVES:
                self.odd += 1
            elif not kept(seq, self.thin):
                continue
            elif row[_KIND] == lay.RecordKind.COLLECTIVE:
                self._missed[row[_RANK]] = 0
                self._add_record((func, seq), row, now)
            elif row[_KIND] == lay.RecordKind.STALLS:
                self._add_stalls((func, seq), row[_RANK], slots[i : i + 1])
            else:
                self.odd += 1

    def _add_record(self, key: tuple[int, int], row: tuple[int, ...], now: float) -> None:
        rank, flags, duration = row[_RANK], row[_FLAGS], row[_DURATION]
        one = self._open.get(key)
        if one is None:
            if key in self._given:
                self.late += 1
                return
            one = self._open[key] = _started(key, row, now)
        elif rank in one.told:
            self.late += 1
            return
        one.told.add(rank)
        if duration > 0 and not flags & RecordFlag.PARTIAL:
            one.duration_ns[rank] = duration
        if not flags & RecordFlag.DECIDED:
            one.decided = False
        ran = (row[_ALGO], row[_PROTO], row[_CHANNELS], row[_EPOCH])
        if ran != one.ran:
            one.mixed = True
        if row[_STALLS]:
            one.stalls_due.add(rank)

    def _add_stalls(self, key: tuple[int, int], rank: int, slot: np.ndarray[Any, Any]) -> None:
        one = self._open.get(key)
        if one is None:
            self.late += 1
            return
        one.stalls_due.discard(rank)
        stalls = slot.view(lay.STALL_RECORD)[0]
        first = int(stalls["first_channel"])
        for channel, n in enumerate(stalls["stalls"].tolist(), first):
            if n:
                one.stalls[channel] = one.stalls.get(channel, 0) + n

    def ready(self, ranks: frozenset[int], now: float) -> list[Joined]:
        """Return what is complete or has waited long enough, oldest first.

        Args:
            ranks: of the communicator, as far as they are known.
            now: monotonic seconds.
        """
        found = []
        awaited = ranks - self.absent
        for key, one in list(self._open.items()):
            if not kept(key[1], self.thin):
                del self._open[key]
                continue
            over = now - one.since >= self._wait_s or len(self._open) > self._limit
            if not over and (not awaited <= one.told or one.stalls_due):
                continue
            del self._open[key]
            one.missing = ranks - one.told
            for rank in one.missing:
                self._missed[rank] = self._missed.get(rank, 0) + 1
            self._given[key] = None
            if len(self._given) > REMEMBERED:
                self._given.popitem(last=False)
            found.append(one)
        return found


def _started(key: tuple[int, int], row: tuple[int, ...], now: float) -> Joined:
    algo, proto = row[_ALGO], row[_PROTO]
    return Joined(
        func=Collective(key[0]), coll_seq=key[1], bytes=row[_BYTES], index=row[_INDEX],
        epoch=row[_EPOCH], start_ns=row[_START],
        algo=Algo(algo) if algo <= Algo.PAT else None,
        proto=Proto(proto) if proto <= Proto.SIMPLE else None,
        n_channels=row[_CHANNELS], ran=(algo, proto, row[_CHANNELS], row[_EPOCH]),
        decided=True, since=now,
    )  # fmt: skip
