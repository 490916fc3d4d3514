"""Calls the plugin through NCCL's ABIs, as NCCL does: for tests, benchmarks and trying things out.

One :class:`Plugin` is one loaded library; :class:`Rank` is one rank of one communicator, with the
order of calls that NCCL has: profiler init, tuner init, then for each group of collectives
getCollInfo for all of them, then their profiler events.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    byref,
    c_bool,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint64,
    c_ulong,
    c_void_p,
    cast,
)
from pathlib import Path
from typing import Any, Final, TypeVar

from ringstep.hostlib.shm_layout import Algo, Collective, Proto

__all__ = [
    "CollDescr",
    "Costs",
    "Descr4",
    "Descr5",
    "Event",
    "LogFunction",
    "Plugin",
    "Rank",
    "StateArgs",
]

SUCCESS: Final = 0
IGNORE: Final = -1.0

LogFunction = CFUNCTYPE(None, c_int, c_ulong, c_char_p, c_int, c_char_p)
"""Receives level, subsystems, file, line and the format; what follows the format is not read."""


class Event:
    """Event types of the profiler, also bits of its mask."""

    GROUP, COLL, P2P, PROXY_OP, PROXY_STEP, PROXY_CTRL, KERNEL_CH, NET_PLUGIN = (
        1 << i for i in range(8)
    )
    GROUP_API, COLL_API, P2P_API, KERNEL_LAUNCH, CE_COLL, CE_SYNC, CE_BATCH = (
        1 << i for i in range(8, 15)
    )
    SEND_GPU_WAIT, SEND_WAIT, SEND_PEER_WAIT, KERNEL_CH_STOP = 8, 9, 20, 22


class _Nvl(Structure):
    _fields_ = (("n", c_int), ("least", c_int), ("most", c_int))


class _Constants(Structure):
    _fields_ = (("values", c_double * 144),)


class CollDescr(Structure):
    """A collective's descriptor (v4's fields, v5's parent group)."""

    _fields_ = (
        ("seq_number", c_uint64), ("func", c_char_p), ("send_buff", c_void_p),
        ("recv_buff", c_void_p), ("count", c_size_t), ("root", c_int), ("datatype", c_char_p),
        ("n_channels", c_uint8), ("n_warps", c_uint8), ("algo", c_char_p), ("proto", c_char_p),
        ("parent_group", c_void_p),
    )  # fmt: skip


class _ApiDescr(Structure):
    _fields_ = (
        ("func", c_char_p), ("count", c_size_t), ("datatype", c_char_p), ("root", c_int),
        ("stream", c_void_p), ("graph_captured", c_bool),
    )  # fmt: skip


class _OpDescr(Structure):
    _fields_ = (
        ("pid", c_int32), ("channel_id", c_uint8), ("peer", c_int), ("n_steps", c_int),
        ("chunk_size", c_int), ("is_send", c_int),
    )  # fmt: skip


class _KernelDescr(Structure):
    _fields_ = (("channel_id", c_uint8), ("p_timer", c_uint64))


class _NetDescr(Structure):
    _fields_ = (("id", c_int64), ("data", c_void_p))


class _Union(Union):
    _fields_ = (
        ("coll", CollDescr), ("coll_api", _ApiDescr), ("proxy_op", _OpDescr),
        ("proxy_step", c_int), ("kernel_ch", _KernelDescr), ("net_plugin", _NetDescr),
    )  # fmt: skip


class Descr4(Structure):
    """ABI v4's event descriptor; its collective ends before ``parent_group``."""

    _fields_ = (("type", c_uint8), ("parent", c_void_p), ("rank", c_int), ("u", _Union))


class Descr5(Structure):
    """ABI v5's and v6's event descriptor."""

    _fields_ = (("type", c_uint64), ("parent", c_void_p), ("rank", c_int), ("u", _Union))


class StateArgs(Union):
    """Arguments of recordEventState."""

    _fields_ = (("trans_size", c_size_t), ("p_timer", c_uint64), ("data", c_void_p))


_Destroy = CFUNCTYPE(c_int, c_void_p)
_InitV3 = CFUNCTYPE(c_int, c_size_t, c_size_t, c_void_p, POINTER(c_void_p))
_InitV5 = CFUNCTYPE(
    c_int, POINTER(c_void_p), c_uint64, c_size_t, c_size_t, c_void_p, c_void_p, c_void_p
)
_InfoV3 = CFUNCTYPE(c_int, c_void_p, c_int, c_size_t, c_int, c_void_p, c_int, c_int, POINTER(c_int))
_InfoV4 = CFUNCTYPE(
    c_int, c_void_p, c_int, c_size_t, c_int, c_void_p, c_int, c_int, c_int, POINTER(c_int)
)
_Chunk = CFUNCTYPE(c_int, c_void_p, c_int, c_size_t, c_int, c_int, c_int, POINTER(c_size_t))
_ProfInit4 = CFUNCTYPE(
    c_int, POINTER(c_void_p), POINTER(c_int), c_char_p, c_uint64, c_int, c_int, c_int, c_void_p
)
_ProfInit5 = CFUNCTYPE(
    c_int, POINTER(c_void_p), c_uint64, POINTER(c_int), c_char_p, c_int, c_int, c_int, c_void_p
)
_Start = CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p), c_void_p)
_Stop = CFUNCTYPE(c_int, c_void_p)
_Record = CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)


class _Tuner(Structure):
    _fields_ = (
        ("name", c_char_p), ("init", c_void_p), ("get_coll_info", c_void_p),
        ("finalize", c_void_p), ("get_chunk_size", c_void_p),
    )  # fmt: skip


class _Profiler(Structure):
    _fields_ = (
        ("name", c_char_p), ("init", c_void_p), ("start_event", c_void_p),
        ("stop_event", c_void_p), ("record_event_state", c_void_p), ("finalize", c_void_p),
    )  # fmt: skip


class Costs:
    """A cost table: one block of floats, ``num_algo`` rows of ``num_proto``."""

    def __init__(
        self, values: Sequence[float] | float = 10.0, num_algo: int = 7, num_proto: int = 3
    ) -> None:
        n = num_algo * num_proto
        flat = [values] * n if isinstance(values, int | float) else list(values)
        self.num_algo, self.num_proto = num_algo, num_proto
        self.block = (c_float * n)(*flat)

    def __getitem__(self, at: tuple[int, int]) -> float:
        return float(self.block[at[0] * self.num_proto + at[1]])

    def __setitem__(self, at: tuple[int, int], cost: float) -> None:
        self.block[at[0] * self.num_proto + at[1]] = cost

    def chosen(self) -> tuple[int, int] | None:
        """Return what NCCL's classic selection takes: first of the smallest, none below zero."""
        best: tuple[int, int] | None = None
        least = 3.6e9
        for algo in range(self.num_algo):
            for proto in range(self.num_proto):
                if 0 <= self[algo, proto] < least:
                    best, least = (algo, proto), self[algo, proto]
        return best


_F = TypeVar("_F", bound="ctypes._CFunctionType")


class Plugin:
    """The loaded library. ``tuner`` and ``profiler`` are ABI versions."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)

    def tuner(self, version: int) -> _Tuner:
        """Return the exported struct; ``get_chunk_size`` is rubbish below v6."""
        return _Tuner.in_dll(self.library, f"ncclTunerPlugin_v{version}")

    def profiler(self, version: int) -> _Profiler:
        """Return the exported struct."""
        return _Profiler.in_dll(self.library, f"ncclProfiler_v{version}")


def _call(kind: type[_F], address: int | None) -> _F:
    assert address is not None
    return cast(address, kind)


class Rank:
    """One rank of one communicator, in this process."""

    def __init__(
        self,
        plugin: Plugin,
        comm_id: int = 0xC0FFEE,
        n_ranks: int = 1,
        rank: int = 0,
        *,
        n_nodes: int = 1,
        tuner: int | None = 6,
        profiler: int | None = 6,
        log: Callable[..., None] | None = None,
    ) -> None:
        self.plugin = plugin
        self.n_ranks = n_ranks
        self.tuner_version = tuner
        self.profiler_version = profiler
        self.context = c_void_p()
        self.profiler_context = c_void_p()
        self.mask = 0
        self.seq = dict.fromkeys(Collective, 0)
        self._log = LogFunction(log) if log else None
        log_pointer = cast(self._log, c_void_p) if self._log else None
        if profiler is not None:
            mask = c_int()
            struct = plugin.profiler(profiler)
            if profiler >= 5:
                done = _call(_ProfInit5, struct.init)(
                    byref(self.profiler_context), comm_id, byref(mask), None, n_nodes, n_ranks,
                    rank, log_pointer,
                )  # fmt: skip
            else:
                done = _call(_ProfInit4, struct.init)(
                    byref(self.profiler_context), byref(mask), None, comm_id, n_nodes, n_ranks,
                    rank, log_pointer,
                )  # fmt: skip
            assert done == SUCCESS
            self.mask = mask.value
            self._start = _call(_Start, struct.start_event)
            self._stop = _call(_Stop, struct.stop_event)
            self._record = _call(_Record, struct.record_event_state)
        if tuner is not None:
            struct_t = plugin.tuner(tuner)
            if tuner >= 5:
                done = _call(_InitV5, struct_t.init)(
                    byref(self.context), comm_id, n_ranks, n_nodes, log_pointer,
                    byref(_Nvl(1, 1, 1)), byref(_Constants()),
                )  # fmt: skip
            else:
                done = _call(_InitV3, struct_t.init)(
                    n_ranks, n_nodes, log_pointer, byref(self.context)
                )
            assert done == SUCCESS
            info = _InfoV3 if tuner == 3 else _InfoV4
            self._info: Any = _call(info, struct_t.get_coll_info)
            has_chunk = tuner >= 6 and struct_t.get_chunk_size
            self._chunk = _call(_Chunk, struct_t.get_chunk_size) if has_chunk else None

    # --- tuner ---

    def get_coll_info(
        self,
        collective: int = Collective.ALL_REDUCE,
        n_bytes: int = 1 << 20,
        costs: Costs | None = None,
        n_channels: int = 0,
        *,
        num_pipe_ops: int = 1,
    ) -> tuple[Costs, int]:
        """Ask; return the cost table and nChannels as the plugin left them."""
        table = costs or Costs()
        channels = c_int(n_channels)
        head = (self.context, collective, n_bytes, num_pipe_ops)
        tail = (cast(table.block, c_void_p), table.num_algo, table.num_proto)
        last = (byref(channels),) if self.tuner_version == 3 else (0, byref(channels))
        assert self._info(*head, *tail, *last) == SUCCESS
        return table, channels.value

    def get_chunk_size(
        self, collective: int, n_bytes: int, algo: int, proto: int, chunk: int
    ) -> int:
        """Ask for the chunk (v6); return it as the plugin left it, in bytes."""
        assert self._chunk is not None
        size = c_size_t(chunk)
        done = self._chunk(self.context, collective, n_bytes, algo, proto, 1, byref(size))
        assert done == SUCCESS
        return size.value

    # --- profiler ---

    def descr(self, kind: int, parent: int | None = None) -> Descr4 | Descr5:
        """Return an empty descriptor of this rank's ABI."""
        made = Descr5() if (self.profiler_version or 5) >= 5 else Descr4()
        made.type = kind
        made.parent = parent
        return made

    def start(self, descr: Descr4 | Descr5, context: c_void_p | None = None) -> int | None:
        """Start an event; return its handle, None where the plugin does not follow it."""
        handle = c_void_p(0xDEAD)
        where = self.profiler_context if context is None else context
        assert self._start(where, byref(handle), byref(descr)) == SUCCESS
        return handle.value

    def stop(self, handle: int | None) -> None:
        """Stop an event."""
        assert self._stop(handle) == SUCCESS

    def record(self, handle: int | None, state: int, p_timer: int = 0) -> None:
        """Record a state of an event."""
        assert self._record(handle, state, byref(StateArgs(p_timer=p_timer))) == SUCCESS

    def api_call(self, *, captured: bool = False) -> int | None:
        """Start the event of a collective's API call (v5 and later); return its handle."""
        if (self.profiler_version or 0) < 5:
            return None
        descr = self.descr(Event.COLL_API)
        descr.u.coll_api.graph_captured = captured
        return self.start(descr)

    def launch(
        self,
        collective: Collective = Collective.ALL_REDUCE,
        count: int = 1 << 18,
        datatype: bytes = b"ncclFloat32",
        algo: Algo = Algo.RING,
        proto: Proto = Proto.SIMPLE,
        n_channels: int = 2,
        *,
        api: int | None = None,
        persistent: bool = False,
    ) -> int | None:
        """Start a collective's event and stop it as NCCL does at launch; return its handle."""
        descr = self.descr(Event.COLL, api)
        coll = descr.u.coll
        words = {
            Collective.BROADCAST: b"Broadcast",
            Collective.REDUCE: b"Reduce",
            Collective.ALL_GATHER: b"AllGather",
            Collective.REDUCE_SCATTER: b"ReduceScatter",
            Collective.ALL_REDUCE: b"AllReduce",
        }
        coll.seq_number = self.seq[collective]
        coll.func = words[collective]
        coll.count = count
        coll.datatype = datatype
        coll.n_channels = n_channels
        coll.n_warps = 16
        coll.algo = algo.name.encode()
        coll.proto = proto.name.encode()
        handle = self.start(descr)
        if not persistent:
            self.seq[collective] += 1
        self.stop(handle)
        return handle

    def run_kernels(
        self, handle: int | None, n_channels: int, begin_ns: int = 1000, end_ns: int = 5000
    ) -> None:
        """Start and end the collective's kernel on every channel."""
        kernels = []
        for channel in range(n_channels):
            descr = self.descr(Event.KERNEL_CH, handle)
            descr.u.kernel_ch.channel_id = channel
            descr.u.kernel_ch.p_timer = begin_ns + channel
            kernels.append(self.start(descr))
        for channel, kernel in enumerate(kernels):
            self.record(kernel, Event.KERNEL_CH_STOP, end_ns + channel)
            self.stop(kernel)

    def proxy_op(
        self, handle: int | None, channel: int, *, send: bool = True, pid: int | None = None
    ) -> int | None:
        """Start a proxy operation of a collective; return its handle."""
        descr = self.descr(Event.PROXY_OP, handle)
        op = descr.u.proxy_op
        op.pid = os.getpid() if pid is None else pid
        op.channel_id = channel
        op.is_send = send
        return self.start(descr)

    def proxy_step(self, op: int | None, step: int) -> int | None:
        """Start a step of a proxy operation; return its handle."""
        descr = self.descr(Event.PROXY_STEP, op)
        descr.u.proxy_step = step
        return self.start(descr)

    def collective(
        self, collective: Collective = Collective.ALL_REDUCE, n_bytes: int = 1 << 20
    ) -> tuple[Costs, int]:
        """Do one collective on its own: API call, getCollInfo, launch, kernels."""
        api = self.api_call()
        answer = self.get_coll_info(collective, n_bytes)
        if self.profiler_version is not None:
            handle = self.launch(collective, n_bytes // 4, api=api)
            self.run_kernels(handle, 2)
        return answer

    def finalize(self) -> None:
        """Finalize both halves in NCCL's order."""
        if self.tuner_version is not None:
            self.finalize_tuner()
        if self.profiler_version is not None and self.profiler_context:
            struct = self.plugin.profiler(self.profiler_version)
            assert _call(_Destroy, struct.finalize)(self.profiler_context) == SUCCESS

    def finalize_tuner(self) -> None:
        """Finalize the tuner alone."""
        assert self.tuner_version is not None
        struct = self.plugin.tuner(self.tuner_version)
        assert _call(_Destroy, struct.finalize)(self.context) == SUCCESS
