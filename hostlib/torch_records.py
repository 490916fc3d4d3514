"""Telemetry of a process group: one record per collective, through torch's own hooks.

torch calls a group's hooks where an operation is dispatched, so those that DistributedDataParallel
issues from C++ are seen like all others. A collective on the CPU is timed from its issue to the end
of its Work; one on a GPU by NCCL's own CUDA events, which are asked once they have passed, so
that no stream waits for anything.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

import numpy as np
import torch

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.shm_layout import Collective, RecordFlag

__all__ = ["Recorder", "Sink"]

_LOG: Final = logging.getLogger("ringstep.torch_hook")
_UNKNOWN: Final = 255
_FUNCS: Final[dict[str, int]] = {
    "ALLREDUCE": Collective.ALL_REDUCE,
    "ALLGATHER": Collective.ALL_GATHER,
    "REDUCE_SCATTER": Collective.REDUCE_SCATTER,
    "BROADCAST": Collective.BROADCAST,
    "REDUCE": Collective.REDUCE,
    "ALLTOALL": _UNKNOWN,
    "SCATTER": _UNKNOWN,
    "GATHER": _UNKNOWN,
}
"""Operations that are reported; the layout calls the last three others."""
_PENDING: Final = 1024
"""GPU collectives whose end is not known yet; older ones are given up."""


_BATCH: Final = 64
"""Records that wait for the next flush at most, where nobody calls it."""
_COLUMNS: Final = ("func", "bytes", "coll_seq", "index", "start_ns", "duration_ns", "flags")

_Issued = tuple[int, int, int, int, int]
"""The first five columns."""


class Sink(Protocol):
    """Takes records as telemetry slots."""

    def write_slots(self, slots: np.ndarray[Any, Any]) -> None:
        """Append records of type ``shm_layout.RECORD``."""


class Recorder:
    """Makes records of what a group issues and hands them to a sink, in batches.

    A backend's thread does no more than note when a collective ended: it would hold the interpreter
    while the training loop wants it. Failures never reach the loop: they are counted, and logged
    once.
    """

    def __init__(self, sink: Sink, rank: int, comm: int | None) -> None:
        """Record for a rank.

        Args:
            sink: where records go.
            rank: this process's in the group.
            comm: the group's block in the shared-memory file, None where it has none.
        """
        self._sink = sink
        self._rank, self._comm = rank, 0xFFFF if comm is None else comm
        self._index = itertools.count()
        self._sequences: Counter[str] = Counter()
        self._open: dict[int, tuple[_Issued, bool]] = {}
        self._on_gpu: deque[tuple[Any, _Issued]] = deque()
        self._ended: deque[tuple[int, ...]] = deque()
        self._quiet = threading.local()
        self.written = 0
        self.untimed = 0
        """Records without a duration: the Work could not tell when it ended."""
        self.given_up = 0
        """GPU collectives dropped because their end did not come to be known in time."""
        self.failures = 0

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Do not record this thread's operations within the block."""
        self._quiet.on = True
        try:
            yield
        finally:
            self._quiet.on = False

    def before(self, call: Any) -> None:
        """Be torch's pre-hook."""
        try:
            name = getattr(call.name, "name", call.name)
            if name not in _FUNCS or getattr(self._quiet, "on", False):
                return
            index = next(self._index)
            sequence = self._sequences[name]
            self._sequences[name] = sequence + 1
            sent, received = call.input_tensors, call.output_tensors
            gpu = any(tensor.is_cuda for tensor in sent or received)
            if gpu and torch.cuda.is_current_stream_capturing():
                return
            larger = max(_bytes(sent), _bytes(received))
            issued = (_FUNCS[name], larger, sequence, index, time.monotonic_ns())
            self._open[call.op_id] = issued, gpu
        except Exception:
            self._failed()

    def after(self, call: Any) -> None:
        """Be torch's post-hook."""
        try:
            issued, gpu = self._open.pop(call.op_id, (None, False))
            if issued is None:
                return
            if gpu:
                self._poll()
                self._on_gpu.append((call.work, issued))
                if len(self._on_gpu) > _PENDING:
                    self._on_gpu.popleft()
                    self.given_up += 1
            elif call.work is None:
                self._note(issued)
            else:
                future = _future(call.work)
                if future is None:
                    self._ended.append((*issued, 0, RecordFlag.PARTIAL))
                else:
                    future.add_done_callback(functools.partial(self._note, issued))
            if len(self._ended) >= _BATCH:
                self._write()
        except Exception:
            self._failed()

    def flush(self) -> None:
        """Hand over what has ended. Asks the GPU's events, and waits for none."""
        try:
            self._poll()
            self._write()
        except Exception:
            self._failed()

    def _poll(self) -> None:
        if not self._on_gpu or torch.cuda.is_current_stream_capturing():
            return
        while self._on_gpu and self._on_gpu[0][0].is_completed():
            work, issued = self._on_gpu.popleft()
            duration_ns = _gpu_duration_ns(work)
            if duration_ns is None:
                self._ended.append((*issued, 0, RecordFlag.PARTIAL))
            else:
                self._ended.append((*issued, duration_ns, RecordFlag.GPU_TIMER))

    def _note(self, issued: _Issued, future: Any = None) -> None:
        now_ns = time.monotonic_ns()
        try:
            if future is not None:
                future.value()
        except Exception:
            return  # It failed: that is no duration.
        self._ended.append((*issued, now_ns - issued[-1], RecordFlag.HOST_TIMER))

    def _write(self) -> None:
        rows = []
        with suppress(IndexError):
            while True:
                rows.append(self._ended.popleft())
        if not rows:
            return
        slots = np.zeros(len(rows), lay.RECORD)
        slots["kind"] = lay.RecordKind.COLLECTIVE
        slots["algo"] = slots["proto"] = _UNKNOWN
        slots["comm"], slots["rank"] = self._comm, self._rank
        for name, column in zip(_COLUMNS, zip(*rows, strict=True), strict=True):
            slots[name] = column
        self._sink.write_slots(slots)
        self.written += len(rows)
        self.untimed += sum(row[-1] == RecordFlag.PARTIAL for row in rows)

    def _failed(self) -> None:
        self.failures += 1
        if self.failures == 1:
            _LOG.warning("telemetry is incomplete from here on", exc_info=True)


def _bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _future(work: Any) -> Any:
    try:
        return work.get_future()
    except (RuntimeError, NotImplementedError):
        return None  # gloo's reduce-scatter, for one.


def _gpu_duration_ns(work: Any) -> int | None:
    try:
        return int(work._get_duration() * 1e6)
    except RuntimeError:
        return None  # Part of a coalesced call, or timing was not on yet when it was issued.
