"""Telemetry rings: read in batches by the coordinator, written by processes without a plugin."""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.shm import HostLibrary, Record, ShmError, ShmFile

__all__ = ["HookWriter", "RingTail", "Tails", "encode"]

NO_COMM: Final = 0xFFFF
_WORDS: Final = lay.RECORD.itemsize // 8
_LOCK_TRIES, _LOCK_PAUSE_S = 500, 0.001


class RingTail:
    """Follows one process's ring; several readers do not disturb one another."""

    def __init__(self, proc: np.ndarray[Any, Any], first: int = 0) -> None:
        self._proc = proc
        # As words: numpy copies those many times faster than records with fields.
        self._words = proc["slots"].view(np.uint64).reshape(lay.RING_SLOTS, _WORDS)
        self._generation = int(proc["generation"])
        self._next = first
        self._waited = -1
        self.lost = 0

    @property
    def settled(self) -> bool:
        """Whether nothing was left for the next call because it was still being written."""
        return self._waited < 0

    def read(self) -> np.ndarray[Any, Any] | None:
        """Return what was written since the last call, oldest first; None for nothing.

        Each row is a slot in words of eight bytes (:func:`records_of`).
        """
        generation, head = int(self._proc["generation"]), int(self._proc["head"])
        if generation != self._generation or head < self._next:
            # Another process has the place, and its records follow those of the one before.
            self._generation = generation
            self._next = min(self._next, head)
        if head == self._next:
            return None
        first = max(self._next, head - lay.RING_SLOTS)
        self.lost += first - self._next
        numbers = np.arange(first, head, dtype=np.uint64)
        places = (numbers % lay.RING_SLOTS).astype(np.intp)
        copies = self._words[places]
        stands = copies[:, 0] == 2 * numbers + 2
        # Overwritten while it was copied: sequence numbers are looked at once more.
        stands &= self._words[places, 0] == copies[:, 0]
        self._next = self._after(head, numbers, stands)
        kept = copies[stands & (numbers < self._next)]
        self.lost += self._next - first - len(kept)
        return kept if len(kept) else None

    def _after(self, head: int, numbers: np.ndarray[Any, Any], stands: np.ndarray[Any, Any]) -> int:
        """Return where to go on: at a record that is still being written, once."""
        open_ones = numbers[~stands]
        if len(open_ones) == 0:
            self._waited = -1
            return head
        at = int(open_ones[0])
        if at == self._waited:  # Its writer died, or was overtaken: what follows is not kept up.
            self._waited = -1
            return head
        self._waited = at
        return at


def records_of(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return slots in words as ``shm_layout.RECORD``."""
    return np.ascontiguousarray(words).view(lay.RECORD).reshape(-1)


class Tails:
    """The rings of all processes of a file, from now on.

    What is in them already belongs to whoever read before; its communicators may be gone.
    """

    def __init__(self, file: ShmFile) -> None:
        procs = file.raw["procs"][0]
        self._heads = procs["head"]
        self._last = self._heads.copy()
        self._unsettled: set[int] = set()
        self._tails = [RingTail(procs[i], int(head)) for i, head in enumerate(self._last)]

    def read(self) -> np.ndarray[Any, Any] | None:
        """Return new records of all processes, each one's in order; None for nothing."""
        heads = self._heads.copy()
        changed = set(np.flatnonzero(heads != self._last).tolist()) | self._unsettled
        self._last = heads
        found = []
        self._unsettled = set()
        for place in sorted(changed):
            records = self._tails[place].read()
            if records is not None:
                found.append(records)
            if not self._tails[place].settled:
                self._unsettled.add(place)
        return records_of(np.concatenate(found)) if found else None

    @property
    def lost(self) -> int:
        """Records that were overwritten before they were read."""
        return sum(tail.lost for tail in self._tails)


def encode(record: Record) -> np.ndarray[Any, Any]:
    """Return a record as a telemetry slot without its sequence number."""
    slot = np.zeros(1, lay.RECORD)
    one = slot[0]
    one["kind"] = lay.RecordKind.COLLECTIVE
    for name in ("func", "algo", "proto"):
        value = getattr(record, name)
        one[name] = 255 if value is None else value
    one["comm"] = NO_COMM if record.comm is None else record.comm
    for name in ("n_channels", "flags", "rank", "epoch", "coll_seq", "bytes", "start_ns",
                 "duration_ns", "stalls"):  # fmt: skip
        one[name] = int(getattr(record, name))
    one["index"] = record.index & 0xFFFFFFFF
    return slot


class HookWriter:
    """Writes telemetry of a process whose collectives no plugin sees (gloo, another backend).

    The process gets a ring in the job's file, the plugin's own where it has one, and its
    communicators get blocks. Their ranks acknowledge nothing, so nothing is ever decided for
    them. Close it, or use it in ``with``. Not to be used across a fork.

    Raises:
        ShmError: no file, or no free place in it.
    """

    def __init__(self, path: Path) -> None:
        self._file = ShmFile.open(path, writable=True)
        self._path = path
        self._host = HostLibrary.get()
        self._members: list[tuple[int, int]] = []
        self._pid = os.getpid()
        base = int(self._file.raw.ctypes.data)
        self._base = ctypes.c_void_p(base)
        try:
            with self._locked():
                place = int(self._host.rs_host_claim_proc(self._base))
            if place < 0:
                raise ShmError(f"{path}: all {lay.MAX_PROCS} places for processes are taken")
        except BaseException:
            self._file.close()
            raise
        procs = self._file.raw["procs"][0]
        self._proc = ctypes.c_void_p(int(procs[place : place + 1].ctypes.data))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the file's own lock, as the plugin does at init and finalize."""
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            for left in range(_LOCK_TRIES, -1, -1):
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if left == 0:
                        raise ShmError(f"{self._path}: another process holds its lock") from None
                    time.sleep(_LOCK_PAUSE_S)
            yield
        finally:
            os.close(fd)

    def join(self, comm_id: int, n_ranks: int, rank: int, *, n_nodes: int = 1) -> int:
        """Return the block of a communicator that this process is a rank of.

        Args:
            comm_id: any 64-bit number that all ranks of the communicator share, and no other.
            n_ranks: of the communicator.
            rank: of this process in it.
            n_nodes: that it spans.

        Raises:
            ShmError: no free block, or the rank is there already.
        """
        if not 0 <= rank < n_ranks:
            raise ValueError(f"rank {rank} of {n_ranks}: 0 to {n_ranks - 1}")
        with self._locked():
            place = int(self._host.rs_host_attach(self._base, comm_id, n_ranks, n_nodes, rank))
        if place < 0:
            raise ShmError(f"{self._path}: no free block for communicator {comm_id:016x}")
        self._members.append((place >> 8, place & 0xFF))
        return place >> 8

    def write(self, record: Record) -> None:
        """Append a record to the ring; ``record.comm`` is what :meth:`join` returned."""
        self.write_slots(encode(record))

    def write_slots(self, slots: np.ndarray[Any, Any]) -> None:
        """Append records that are encoded already: contiguous, of type ``shm_layout.RECORD``."""
        if os.getpid() != self._pid:
            return
        first = int(slots.ctypes.data)
        for place in range(first, first + slots.nbytes, lay.RECORD.itemsize):
            self._host.rs_host_ring_write(self._proc, place)

    def close(self) -> None:
        """Leave the communicators and unmap; the ring stays to be read."""
        if os.getpid() == self._pid and self._members:
            with self._locked():
                for comm, slot in self._members:
                    self._host.rs_host_detach(self._base, comm, slot)
        self._members = []
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
