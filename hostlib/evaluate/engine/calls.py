"""What every rank ran, read from the job's shared-memory files while it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from ringstep.hostlib.dynamic.actions import Config
from ringstep.hostlib.shm import Record, ShmFile, size_class
from ringstep.hostlib.shm_layout import Collective, RecordFlag

LOOK_S: Final = 0.05
"""Between looks; a process keeps its last thousand records."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective over all ranks.

    Attributes:
        index: of the collective in its communicator.
        collective, n_bytes: what it was.
        config: what ran, as the first rank told.
        decided: by a policy's decision, on every rank.
        epoch: in force at launch.
        start_ns: on the first rank, monotonic.
        latency_us: on the slowest rank: what waits for ranks that come late is in it.
        fastest_us: on the fastest rank, which came last.
        alike: every rank ran the same under the same epoch.
    """

    index: int
    collective: Collective
    n_bytes: int
    config: Config
    decided: bool
    epoch: int
    start_ns: int
    latency_us: float
    fastest_us: float
    alike: bool

    @property
    def place(self) -> tuple[Collective, int]:
        """What decisions are made for: collective and size class."""
        return self.collective, size_class(self.n_bytes)


class CallLog:
    """Reads the telemetry of files of several nodes until closed; a context manager."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files = [ShmFile.open(path) for path in paths]
        self._readers: dict[tuple[int, int, int], Any] = {}
        self._records: list[Record] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="call-log")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        for file in self._files:
            file.close()

    def calls(self, n_ranks: int) -> list[Call]:
        """Return what all ranks of a communicator of ``n_ranks`` told of, in order."""
        return joined(list(self._records), n_ranks)

    def _run(self) -> None:
        while not self._ending.wait(LOOK_S):
            self._look()
        self._look()

    def _look(self) -> None:
        for at, file in enumerate(self._files):
            for reader in file.rings():
                known = self._readers.setdefault((at, reader.slot, reader.pid), reader)
                self._records += [r for r in known.poll() if isinstance(r, Record)]


def joined(records: Sequence[Record], n_ranks: int) -> list[Call]:
    """Return the collectives that every rank told of, with a duration, in order."""
    table: dict[int, dict[int, Record]] = {}
    for record in records:
        if RecordFlag.PARTIAL not in record.flags and record.func is not None:
            table.setdefault(record.index, {})[record.rank] = record
    found = []
    for index in sorted(table):
        ranks = list(table[index].values())
        one = ranks[0]
        if len(ranks) != n_ranks or one.func is None or one.algo is None or one.proto is None:
            continue
        ran = {(r.epoch, r.func, r.bytes, r.algo, r.proto, r.n_channels) for r in ranks}
        config = Config(one.algo, one.proto, one.n_channels)
        decided = all(RecordFlag.DECIDED in r.flags for r in ranks)
        start_ns = min(r.start_ns for r in ranks)
        took_us = [r.duration_ns / 1e3 for r in ranks]
        found.append(
            Call(
                index, one.func, one.bytes, config, decided, one.epoch, start_ns, max(took_us),
                min(took_us), alike=len(ran) == 1,
            )
        )  # fmt: skip
    return found
