"""Ringstep in a training loop: telemetry and fences for a torch.distributed process group.

    from ringstep.hostlib import torch_hook

    hook = torch_hook.attach(every=100)  # after init_process_group, on every rank
    for batch in data:
        ...
        optimizer.step()
        hook.step()
    hook.detach()

The hook reports each of the group's collectives to the node's coordinator where no profiler plugin
does, and lets the ranks of several nodes take over new decisions at the same collective (fences,
docs/agreement.md). Where the job has no shared-memory file it does nothing. docs/torch.md tells
what it costs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import torch
import torch.distributed as dist

from ringstep.hostlib.coordinator.telemetry import HookWriter
from ringstep.hostlib.native.build import BuildError
from ringstep.hostlib.shm import ShmError, ShmFile, alive, default_path
from ringstep.hostlib.torch_fence import Fences
from ringstep.hostlib.torch_records import Recorder

__all__ = ["Hook", "attach"]

_LOG: Final = logging.getLogger("ringstep.torch_hook")
_HOOK_ID: Final = 0x52494E47
_ON_THE_CPU: Final = ("gloo", "mpi", "ringstep")
"""Backends that are not NCCL, whatever devices they say they can do."""

_attached: weakref.WeakKeyDictionary[Any, weakref.ref[Hook]] = weakref.WeakKeyDictionary()
"""Weak on both sides: neither a group nor a hook is kept alive by the other's record here."""


def attach(group: Any = None, *, every: int = 0, path: Path | None = None) -> Hook:
    """Attach to a process group. Every rank of the group calls it: it is a collective itself.

    Args:
        group: by default the default group.
        every: fence once in so many calls of :meth:`Hook.step`; 0: only in :meth:`Hook.fence`.
        path: the job's file; by default as RINGSTEP_SHM_DIR and RINGSTEP_JOB name it.

    Raises:
        RuntimeError: torch.distributed is not initialized, this process is not in the group, or
            the group has a hook already.
        ValueError: ``every`` is negative, or not the same on all ranks.
    """
    if every < 0:
        raise ValueError(f"every={every}: 0 or more steps between fences")
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("attach the hook after torch.distributed.init_process_group")
    if group is None:
        group = dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise RuntimeError("this process is not in the group: attach where it is a member")
    before = _attached.get(group)
    if before is not None and before() is not None:
        raise RuntimeError("the group has a hook already; detach that one first")
    hook = Hook(group, every, _usable_file(path))
    _attached[group] = weakref.ref(hook)
    return hook


class Hook:
    """What :func:`attach` returns. Usable in ``with``, which detaches."""

    def __init__(self, group: Any, every: int, file: ShmFile | None) -> None:
        self.group = group
        self.every = every
        self.steps = 0
        """Calls of :meth:`step`."""
        self.fences = 0
        """Fences that were exchanged."""
        self.switches = 0
        """Fences after which a newer table was in force."""
        self.recorder: Recorder | None = None
        """Counts what was reported; None where nothing is."""
        self._file = file
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._device = _device(group)
        self._comms: Fences | None = None
        self._fencing = False
        self._gate: _Gate | None = None
        self._detached = False
        try:
            self._agree()
        except BaseException:
            self._close()
            raise

    def _agree(self) -> None:
        """Find out whether all ranks have a file, and set up what can work."""
        nonce = secrets.randbits(62) if self._rank == 0 else 0
        most, least = self._exchange([int(self._file is not None), self.every, nonce])
        if most[1] != least[1]:
            raise ValueError(
                f"every={self.every} on rank {self._rank}, but {least[1]} to {most[1]} among the "
                "ranks: give all the same, or their fences do not meet"
            )
        nodes = self._count_nodes() if most[0] else 0
        if self._file is None:
            return
        self._comms = Fences(self._file, os.getpid(), self._rank, self._size)
        self._fencing = bool(least[0])
        if not self._fencing:
            _LOG.warning(
                "no fences: some rank of the group has no shared-memory file; start a coordinator "
                "on every node"
            )
        if not self._profiled():
            self._start_telemetry(self._file.path, self._comms, most[2], nodes)

    def _count_nodes(self) -> int:
        """Return how many files the ranks have between them: there is one on each node."""
        file_id = 0 if self._file is None else int(self._file.raw["header"]["file_id"][0])
        mine = torch.tensor([file_id], dtype=torch.int64, device=self._device)
        found = [torch.empty_like(mine) for _ in range(self._size)]
        dist.all_gather(found, mine, group=self.group)
        return len(set(torch.cat(found).tolist()))

    def _start_telemetry(self, path: Path, comms: Fences, comm_id: int, n_nodes: int) -> None:
        if not hasattr(self.group, "register_pre_hook"):
            _LOG.warning("no telemetry: process groups have hooks from PyTorch 2.14 on")
            return
        try:
            writer = HookWriter(path)
        except (ShmError, BuildError, OSError) as error:
            _LOG.warning("no telemetry: %s", error)
            return
        try:
            comms.own = writer.join(comm_id, self._size, self._rank, n_nodes=n_nodes)
        except (ShmError, OSError) as error:
            _LOG.warning("telemetry without a block for the group: %s", error)
        self._gate = _Gate(writer)
        self.recorder = Recorder(self._gate, self._rank, comms.own)
        # Leaves the file in order where the program ends, or the group goes, without detach().
        weakref.finalize(self.recorder, self._gate.close)
        if self._device.type == "cuda":
            _enable_timing(self.group)
        _unregister(self.group)
        self.group.register_pre_hook(_HOOK_ID, self.recorder.before)
        self.group.register_post_hook(_HOOK_ID, self.recorder.after)

    # --- in the training loop ---

    def step(self) -> bool:
        """Count a training step; fence at every ``every``-th.

        Every rank calls it equally often, between the same collectives: after ``optimizer.step()``.

        Returns:
            Whether a newer table is in force from here on.

        Raises:
            Exception: as :meth:`fence`.
        """
        self.steps += 1
        if self.recorder is not None:
            self.recorder.flush()
        return bool(self.every) and self.steps % self.every == 0 and self.fence()

    def follow(self, optimizer: torch.optim.Optimizer) -> Any:
        """Call :meth:`step` after each step of an optimizer; return torch's handle to undo it.

        Not with a gradient scaler that may skip the step on some ranks only.
        """
        return optimizer.register_step_post_hook(lambda *_: (self.step(), None)[1])

    def fence(self) -> bool:
        """Settle with the other ranks what they all hold.

        Every rank calls it between the same collectives, on the thread that issues them. It costs
        one small all-reduce, which it waits for; nothing where some rank has no file.

        Returns:
            Whether a newer table is in force from here on.

        Raises:
            Exception: the all-reduce failed, and so has the job: do not go on.
        """
        if self._comms is None or not self._fencing:
            return False
        switched = self._comms.settle(self._exchange)
        self.fences += 1
        self.switches += switched
        return switched

    @property
    def epochs(self) -> dict[int, int]:
        """Epoch settled last, by communicator's id."""
        found = {} if self._comms is None else self._comms.epochs
        return {comm & (1 << 64) - 1: epoch for comm, epoch in found.items()}

    def detach(self) -> None:
        """Take the hook off the group and leave the file; again does no harm."""
        if self._detached:
            return  # The group may have another hook by now.
        self._detached = True
        if self.recorder is not None:
            self.recorder.flush()
            _unregister(self.group)
        _attached.pop(self.group, None)
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    # --- inside ---

    def _close(self) -> None:
        self._comms, self._fencing = None, False
        if self._gate is not None:
            self._gate.close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _exchange(self, words: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the greatest and the least of each word among the ranks."""
        mine = [*words, *(~word for word in words)]
        tensor = torch.tensor(mine, dtype=torch.int64, device=self._device)
        if self.recorder is None:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        else:
            with self.recorder.quiet():
                dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        found = tensor.tolist()
        return found[: len(words)], [~word for word in found[len(words) :]]

    def _profiled(self) -> bool:
        """Whether the profiler plugin in this process reports the group's collectives."""
        if self._device.type != "cuda" and dist.get_backend(self.group) != "ringstep":
            return False  # No plugin sees them.
        return self._comms is not None and bool(self._comms.mine())


class _Gate:
    """A writer that can be closed while a backend's thread still reports."""

    def __init__(self, writer: HookWriter) -> None:
        self._writer: HookWriter | None = writer
        self._lock = threading.Lock()

    def write_slots(self, slots: np.ndarray[Any, Any]) -> None:
        with self._lock:
            if self._writer is not None:
                self._writer.write_slots(slots)

    def close(self) -> None:
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is not None:
                with contextlib.suppress(ShmError, OSError):  # Its readers see that we are gone.
                    writer.close()


def _enable_timing(group: Any) -> None:
    """Have NCCL's Work keep the time between its events (torch cannot turn it off again)."""
    try:
        group._get_backend(torch.device("cuda"))._enable_collectives_timing()
    except (RuntimeError, AttributeError) as error:
        _LOG.warning("telemetry without durations: %s", error)


def _unregister(group: Any) -> None:
    group.unregister_pre_hook(_HOOK_ID)
    group.unregister_post_hook(_HOOK_ID)


def _device(group: Any) -> torch.device:
    """Return where a tensor has to be for the group's collectives to take it."""
    if dist.get_backend(group) in _ON_THE_CPU or not torch.cuda.is_available():
        return torch.device("cpu")
    if not any(device.type == "cuda" for device in group._device_types):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _usable_file(path: Path | None) -> ShmFile | None:
    """Return the job's file, None where there is none that the plugin would take."""
    try:
        if path is None:
            path = default_path(os.environ.get("RINGSTEP_JOB") or "default")
        if not path.exists():
            return None
        file = ShmFile.open(path, writable=True)
    except (ShmError, OSError) as error:
        _LOG.warning("not used: %s", error)
        return None
    problem = _stale(file)
    if problem is None:
        return file
    _LOG.warning("not used: %s: %s", path, problem)
    file.close()
    return None


def _stale(file: ShmFile) -> str | None:
    """Return why the file is of another run, by the plugin's rules."""
    token = os.environ.get("RINGSTEP_SHM_TOKEN")
    if token:
        try:
            wanted = int(token, 16)
        except ValueError:
            return f"RINGSTEP_SHM_TOKEN={token}: a hexadecimal number"
        return None if file.token == wanted else "it has another RINGSTEP_SHM_TOKEN"
    header = file.raw["header"][0]
    if not alive(int(header["pid"]), int(header["pid_start"])):
        return "its owner is gone; set RINGSTEP_SHM_TOKEN to have it taken all the same"
    return None
