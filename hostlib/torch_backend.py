"""Backend "ringstep" of torch.distributed: CPU collectives by the engine.

Importing the module registers it::

    import ringstep.hostlib.torch_backend
    torch.distributed.init_process_group("ringstep")

All-reduce, all-gather, reduce-scatter, broadcast and barrier, blocking or not, coalesced or not, of
CPU tensors; anything else raises. Each group is a communicator of its own, whose collectives run in
order on a thread of its own. The engine asks the plugins that NCCL_TUNER_PLUGIN and
NCCL_PROFILER_PLUGIN name, as NCCL would. docs/torch.md has settings and limits.
"""

from __future__ import annotations

import functools
import os
import socket
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self

import torch.distributed as dist

from ringstep.hostlib.engine import Comm, Engine, EngineError
from ringstep.hostlib.torch_tensors import (
    all_gather_list_step,
    all_gather_step,
    all_reduce_step,
    barrier_step,
    broadcast_step,
    listed,
    only,
    reduce_scatter_list_step,
    reduce_scatter_step,
)
from ringstep.hostlib.torch_work import EngineWork, Step, Worker

__all__ = ["Options", "RingstepProcessGroup", "register"]

NAME: Final = "ringstep"
_KEY: Final = "ringstep/unique_id"
_FAILED: Final = b"failed:"


@dataclass(frozen=True)
class Options:
    """Settings of a group, for ``pg_options``; by default from the environment."""

    address: str | None = None
    """Own address that peers connect to (RINGSTEP_ENGINE_ADDRESS); by default that of the route to
    MASTER_ADDR, or 127.0.0.1."""
    bridge: Path | None = None
    """Socket of the software RNIC (RINGSTEP_ENGINE_BRIDGE); TCP by default."""
    node: str | None = None
    """Name of this node (RINGSTEP_ENGINE_NODE); host name and network namespace by default."""
    max_channels: int = 0
    """1 to 8 (RINGSTEP_ENGINE_MAX_CHANNELS); 0: 8."""

    @classmethod
    def from_environment(cls) -> Self:
        """Return what the environment says.

        Raises:
            ValueError: RINGSTEP_ENGINE_MAX_CHANNELS is not 0 to 8.
        """
        bridge = os.environ.get("RINGSTEP_ENGINE_BRIDGE")
        channels = os.environ.get("RINGSTEP_ENGINE_MAX_CHANNELS", "0")
        if channels not in map(str, range(9)):
            raise ValueError(f"RINGSTEP_ENGINE_MAX_CHANNELS={channels}: 1 to 8, or 0 for 8")
        return cls(
            os.environ.get("RINGSTEP_ENGINE_ADDRESS") or None,
            Path(bridge) if bridge else None,
            os.environ.get("RINGSTEP_ENGINE_NODE") or None,
            int(channels),
        )


def register() -> None:
    """Make "ringstep" known to torch.distributed; again does no harm."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


@functools.cache
def _engine() -> Engine:
    return Engine()


def _create(info: Any, options: Options | None) -> RingstepProcessGroup:
    if options is None:
        options = Options.from_environment()
    if not isinstance(options, Options):
        raise TypeError(
            f"pg_options of {type(options).__name__}: backend {NAME} takes "
            "ringstep.hostlib.torch_backend.Options"
        )
    return RingstepProcessGroup(
        info.store, info.group_rank, info.group_size, info.timeout.total_seconds(), options,
        str(info.group_id),
    )  # fmt: skip


def _own_address() -> str:
    """Return the address by which this host reaches MASTER_ADDR."""
    master = os.environ.get("MASTER_ADDR")
    if not master:
        return "127.0.0.1"
    port = int(os.environ.get("MASTER_PORT") or 1)
    family, kind, _, _, place = socket.getaddrinfo(master, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)  # Sends nothing: it asks the routing table.
        return str(probe.getsockname()[0])


def _connect(
    engine: Engine, store: Any, rank: int, size: int, timeout_s: float, options: Options
) -> Comm:
    address = options.address or _own_address()
    if rank == 0:
        try:
            unique_id = engine.unique_id(address)
        except EngineError as error:
            store.set(_KEY, _FAILED + str(error).encode())
            raise
        store.set(_KEY, unique_id)
    else:
        store.wait([_KEY], timedelta(seconds=timeout_s))
        unique_id = bytes(store.get(_KEY))
        if unique_id.startswith(_FAILED):
            raise RuntimeError(f"rank 0: {unique_id.removeprefix(_FAILED).decode()}")
    return Comm(
        engine, unique_id, size, rank, address=options.address, bridge=options.bridge,
        node=options.node, timeout_s=timeout_s, max_channels=options.max_channels,
    )  # fmt: skip


class RingstepProcessGroup(dist.ProcessGroup):  # type: ignore[misc]  # torch has no types here
    """A process group whose collectives the engine runs.

    Tensors that the engine cannot take as they lie (not contiguous) go through a copy made when the
    collective is issued; the result is copied back before the work is done.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout_s: float,
        options: Options,
        group_name: str = NAME,
    ) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._group_name, self._group_desc = group_name, ""
        self._sequence = 0
        self._coalescing: list[tuple[EngineWork, list[Step]]] | None = None
        self._pre_hooks: dict[int, Callable[[Any], None]] = {}
        self._post_hooks: dict[int, Callable[[Any], None]] = {}
        engine = _engine()
        connect = functools.partial(_connect, engine, store, rank, size, timeout_s, options)
        self._worker = Worker(f"{NAME} rank {rank} of {size}", engine, connect)
        # Also at the interpreter's exit, so that no thread is in the engine when it goes.
        self._left = weakref.finalize(self, _leave, self._worker, os.getpid())

    @property
    def comm(self) -> Comm:
        """The engine's communicator, to look at; collectives go through the group."""
        return self._worker.comm

    # torch calls these by these names; its own versions ask a backend that is not there.

    def getBackendName(self) -> str:  # noqa: N802
        """Return "ringstep"."""
        return NAME

    def getGroupName(self) -> str:  # noqa: N802
        """Return the group's name, the same on its ranks."""
        return self._group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Name the group."""
        self._group_name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return what the group is for."""
        return self._group_desc

    def setGroupDesc(self, group_desc: str) -> None:  # noqa: N802
        """Say what the group is for."""
        self._group_desc = group_desc

    def __repr__(self) -> str:
        return f"RingstepProcessGroup(rank {self._rank} of {self._size})"

    # --- collectives ---

    def allreduce(self, tensors: Any, opts: Any = None) -> EngineWork:
        """Reduce one tensor in place."""
        return self.allreduce_coalesced([only(listed(tensors), "all_reduce")], opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> EngineWork:
        """Reduce several tensors in place, as one group."""
        what = "all_reduce"
        tensors = listed(tensors)
        steps = [all_reduce_step(what, tensor, opts) for tensor in tensors]
        return self._issue(what, "ALLREDUCE", opts, steps, tensors, [])

    def broadcast(self, tensors: Any, opts: Any = None) -> EngineWork:
        """Give everybody the root's tensor."""
        what = "broadcast"
        tensor = only(listed(tensors), what)
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        steps = [broadcast_step(what, tensor, root)]
        return self._issue(what, "BROADCAST", opts, steps, [tensor], [], root)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> EngineWork:
        """Gather a tensor from every rank into a list."""
        outputs, send = only(output_tensors, "all_gather"), only(input_tensors, "all_gather")
        return self.allgather_coalesced([outputs], [send], opts)

    def allgather_coalesced(
        self, output_tensor_lists: Any, input_tensors: Any, opts: Any = None
    ) -> EngineWork:
        """Gather several tensors from every rank into lists, as one group."""
        what = "all_gather"
        steps = [
            all_gather_list_step(what, outputs, send, self._size)
            for outputs, send in zip(output_tensor_lists, input_tensors, strict=True)
        ]
        flat = [tensor for outputs in output_tensor_lists for tensor in outputs]
        return self._issue(what, "ALLGATHER", opts, steps, list(input_tensors), flat)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> EngineWork:
        """Gather a tensor from every rank into one."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> EngineWork:
        """Gather several tensors from every rank into one each, as one group."""
        what = "all_gather"
        steps = [
            all_gather_step(what, output, send, self._size)
            for output, send in zip(outputs, inputs, strict=True)
        ]
        return self._issue(what, "ALLGATHER", opts, steps, list(inputs), list(outputs))

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None
    ) -> EngineWork:
        """Reduce a list of tensors, one for each rank, and keep this rank's."""
        what = "reduce_scatter"
        output, sends = only(output_tensors, what), only(input_tensors, what)
        steps = [reduce_scatter_list_step(what, output, sends, opts, self._size)]
        return self._issue(what, "REDUCE_SCATTER", opts, steps, list(sends), [output])

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> EngineWork:
        """Reduce a tensor and keep this rank's part of it."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> EngineWork:
        """Reduce several tensors and keep this rank's part of each, as one group."""
        what = "reduce_scatter"
        steps = [
            reduce_scatter_step(what, output, send, opts, self._size)
            for output, send in zip(outputs, inputs, strict=True)
        ]
        return self._issue(what, "REDUCE_SCATTER", opts, steps, list(inputs), list(outputs))

    def barrier(self, opts: Any = None) -> EngineWork:
        """Wait for every rank."""
        return self._issue("barrier", "BARRIER", opts, [barrier_step()], [], [])

    # What the same operations are called elsewhere in torch, by version.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --- issuing ---

    def start_coalescing(self, _device: Any = None) -> None:
        """Collect what is issued from here on."""
        if self._coalescing is not None:
            raise RuntimeError(f"{NAME}: coalescing is under way already")
        self._coalescing = []

    def end_coalescing(self, _device: Any = None) -> EngineWork:
        """Issue what was collected as one group; its work is done when all of it is."""
        if self._coalescing is None:
            raise RuntimeError(f"{NAME}: no coalescing is under way")
        collected, self._coalescing = self._coalescing, None
        whole = EngineWork(
            self._named("coalesced collectives"), self._sequence,
            [tensor for work, _ in collected for tensor in work.tensors],
        )  # fmt: skip
        steps = [step for _, steps in collected for step in steps]
        for work, _ in collected:
            work.collected = False

        def done(_future: Any) -> None:
            for work, _ in collected:
                work.finish(whole.exception())

        whole.get_future().add_done_callback(done)
        try:
            self._worker.submit(whole, steps)
        except BaseException as error:
            whole.finish(error)  # Nobody else will: who waits for a part of it must hear of it.
            raise
        return whole

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    def _named(self, what: str) -> str:
        return f"{what} on group {self._group_name} (rank {self._rank} of {self._size})"

    def _issue(
        self,
        what: str,
        hook_name: str,
        opts: Any,
        steps: list[Step],
        inputs: list[Any],
        outputs: list[Any],
        root: int = -1,
    ) -> EngineWork:
        self._sequence += 1
        hooked = SimpleNamespace(
            name=hook_name, async_op=bool(getattr(opts, "asyncOp", False)), op_id=self._sequence,
            input_tensors=inputs, output_tensors=outputs, root=root, work=None,
        )  # fmt: skip
        for hook in tuple(self._pre_hooks.values()):
            hook(hooked)
        work = hooked.work = EngineWork(self._named(what), self._sequence, outputs or inputs)
        if self._coalescing is None:
            self._worker.submit(work, steps)
        else:
            work.collected = True
            self._coalescing.append((work, steps))
        for hook in tuple(self._post_hooks.values()):
            hook(hooked)
        return work

    # --- hooks, as on torch's own groups (2.14 and later) ---

    def register_pre_hook(self, hook_id: int, hook: Callable[[Any], None]) -> None:
        """Call a hook before each operation is issued."""
        self._pre_hooks[hook_id] = hook

    def unregister_pre_hook(self, hook_id: int) -> None:
        """Forget a hook."""
        self._pre_hooks.pop(hook_id, None)

    def register_post_hook(self, hook_id: int, hook: Callable[[Any], None]) -> None:
        """Call a hook after each operation was issued."""
        self._post_hooks[hook_id] = hook

    def unregister_post_hook(self, hook_id: int) -> None:
        """Forget a hook."""
        self._post_hooks.pop(hook_id, None)

    # --- life ---

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: ranks count alike from 0."""

    def abort(self) -> None:
        """End whatever runs or waits, with an error; the group is of no use then."""
        self._worker.abort()

    def shutdown(self) -> None:
        """Leave once everything issued is done; a second Ctrl-C ends the wait."""
        try:
            self._worker.stop()
        except BaseException:
            self._worker.abort()
            raise
        self._left.detach()


def _leave(worker: Worker, pid: int) -> None:
    if os.getpid() == pid:  # In a forked child the connections are its parent's.
        worker.abort()
        worker.stop(timeout_s=5.0)


def _unsupported(operation: str) -> Callable[..., None]:
    def refuse(self: RingstepProcessGroup, *_arguments: Any, **_options: Any) -> None:
        raise NotImplementedError(
            f"backend {NAME} has no {operation}: it has all_reduce, all_gather, reduce_scatter, "
            "broadcast and barrier. Make a group of another backend for the rest: "
            "torch.distributed.new_group(backend='gloo')"
        )

    refuse.__name__ = operation
    refuse.__doc__ = "Raise: the engine does not have it."
    return refuse


for _operation in (
    "reduce", "gather", "gather_single", "gather_into_tensor", "scatter", "alltoall",
    "alltoall_base", "all_to_all_single", "send", "recv", "recv_anysource", "allreduce_sparse",
    "monitored_barrier", "split_group", "merge_remote_group",
):  # fmt: skip
    setattr(RingstepProcessGroup, _operation, _unsupported(_operation))


register()
