"""The CPU collective engine from Python: communicators, collectives on numpy arrays, groups.

A typed view of :file:`native/engine/ringstep_engine.h`, whose numbers and rules are the contract;
``libringstep-engine.so`` is built on first use. Collectives block and let other Python threads run.
One communicator is used by one thread at a time; :meth:`Comm.abort` may come from any. A signal is
handled when the blocking call returns, so a program that wants Ctrl-C to end a collective calls
from a thread of its own and aborts (:mod:`ringstep.hostlib.torch_backend` does).

    engine = Engine()
    comm = Comm(engine, unique_id, n_ranks=2, rank=rank)
    comm.all_reduce(values)  # in place
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from ringstep.hostlib.native.build import build_engine
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

__all__ = [
    "UNIQUE_ID_BYTES",
    "Aborted",
    "BadArgument",
    "Comm",
    "Engine",
    "EngineError",
    "Mismatch",
    "Op",
    "PeerLost",
    "Result",
    "Run",
    "SystemFailed",
    "TimedOut",
    "TunerFailed",
    "Type",
]

UNIQUE_ID_BYTES: Final = 128
Array = np.ndarray[Any, Any]


class Result(IntEnum):
    """re_result."""

    OK = 0
    BAD_ARGUMENT = 1
    PEER_LOST = 2
    TIMEOUT = 3
    ABORTED = 4
    SYSTEM = 5
    MISMATCH = 6
    TUNER = 7


class Type(IntEnum):
    """re_type: the numbers of ncclDataType_t."""

    INT8 = 0
    UINT8 = 1
    INT32 = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return _SIZES[self]


class Op(IntEnum):
    """re_op: the numbers of ncclRedOp_t."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


_SIZES: Final = {
    Type.INT8: 1, Type.UINT8: 1, Type.INT32: 4, Type.UINT32: 4, Type.INT64: 8, Type.UINT64: 8,
    Type.FLOAT16: 2, Type.FLOAT32: 4, Type.FLOAT64: 8, Type.BFLOAT16: 2,
}  # fmt: skip
_OF_NUMPY: Final = {
    np.dtype(t.name.lower()): t for t in Type if t is not Type.BFLOAT16
}  # numpy has no bfloat16; pass uint16 and say type=Type.BFLOAT16.


class EngineError(RuntimeError):
    """A call failed; the message says what, where and what would be right."""

    code: Result = Result.SYSTEM


class BadArgument(EngineError, ValueError):
    """Nothing was sent, and the communicator is as before."""

    code = Result.BAD_ARGUMENT


class PeerLost(EngineError, ConnectionError):
    """A rank's connection ended; the communicator is broken."""

    code = Result.PEER_LOST


class TimedOut(EngineError, TimeoutError):
    """No progress for the communicator's timeout; it is broken."""

    code = Result.TIMEOUT


class Aborted(EngineError):
    """:meth:`Comm.abort` ended the call."""

    code = Result.ABORTED


class SystemFailed(EngineError):
    """A system call or an allocation failed; the communicator is broken."""

    code = Result.SYSTEM


class Mismatch(EngineError):
    """Ranks called, or chose, different things; the communicator is broken."""

    code = Result.MISMATCH


class TunerFailed(EngineError):
    """The tuner plugin failed; nothing was sent, and the communicator is as before."""

    code = Result.TUNER


_ERRORS: Final[dict[int, type[EngineError]]] = {
    kind.code: kind
    for kind in (BadArgument, PeerLost, TimedOut, Aborted, SystemFailed, Mismatch, TunerFailed)
}


class _UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * UNIQUE_ID_BYTES),)


class _Config(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("address", ctypes.c_char_p),
        ("bridge", ctypes.c_char_p),
        ("node", ctypes.c_char_p),
        ("timeout_s", ctypes.c_double),
        ("max_channels", ctypes.c_int),
        ("no_plugins", ctypes.c_int),
    )


class _Run(ctypes.Structure):
    _fields_ = (
        ("coll", ctypes.c_int),
        ("algo", ctypes.c_int),
        ("proto", ctypes.c_int),
        ("n_channels", ctypes.c_int),
        ("chunk_bytes", ctypes.c_size_t),
        ("bytes", ctypes.c_size_t),
        ("nanoseconds", ctypes.c_uint64),
        ("decided", ctypes.c_int),
    )


@dataclass(frozen=True)
class Run:
    """What a communicator's last collective ran as."""

    collective: Collective
    algo: Algo
    proto: Proto
    n_channels: int
    chunk_bytes: int
    bytes: int
    """The larger side."""
    duration_ns: int
    """From the start of the first channel to the end of the last."""
    decided: bool
    """Whether it ran as the tuner plugin said."""


_PTR, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "re_last_error": (ctypes.c_char_p, ()),
    "re_get_unique_id": (_INT, (ctypes.POINTER(_UniqueId), ctypes.c_char_p)),
    "re_unique_id_of": (_INT, (ctypes.POINTER(_UniqueId), ctypes.c_char_p)),
    "re_comm_init": (
        _INT,
        (ctypes.POINTER(_PTR), ctypes.POINTER(_UniqueId), _INT, _INT, ctypes.POINTER(_Config)),
    ),
    "re_comm_abort": (None, (_PTR,)),
    "re_comm_destroy": (None, (_PTR,)),
    "re_comm_rank": (_INT, (_PTR,)),
    "re_comm_n_ranks": (_INT, (_PTR,)),
    "re_comm_n_nodes": (_INT, (_PTR,)),
    "re_comm_id": (ctypes.c_uint64, (_PTR,)),
    "re_comm_last_run": (_INT, (_PTR, ctypes.POINTER(_Run))),
    "re_all_reduce": (_INT, (_PTR, _PTR, _SIZE, _INT, _INT, _PTR)),
    "re_all_gather": (_INT, (_PTR, _PTR, _SIZE, _INT, _PTR)),
    "re_reduce_scatter": (_INT, (_PTR, _PTR, _SIZE, _INT, _INT, _PTR)),
    "re_broadcast": (_INT, (_PTR, _PTR, _SIZE, _INT, _INT, _PTR)),
    "re_group_start": (_INT, ()),
    "re_group_end": (_INT, ()),
    "re_group_simulate_end": (_INT, ()),
    "re_comm_fence": (_INT, (_PTR,)),
}


class _Group(threading.local):
    """The calling thread's open group: what has to live, and be aborted, until it ends."""

    depth = 0

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.comms: list[Comm] = []


class Engine:
    """The loaded library."""

    def __init__(self, library: Path | None = None) -> None:
        """Load the library.

        Args:
            library: its path; by default it is built if need be.

        Raises:
            ringstep.hostlib.native.build.BuildError: no compiler or CMake, or one of them failed.
            OSError: the file is no such library.
        """
        self.library = build_engine().library if library is None else library
        self._calls = ctypes.CDLL(str(self.library))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._calls, name)
            function.restype, function.argtypes = result, list(arguments)
        self._group = _Group()

    def unique_id(self, address: str | None = None) -> bytes:
        """Start listening for a communicator's ranks; rank 0 calls it and hands the id to all.

        Args:
            address: own address, with or without a port; 127.0.0.1 by default.
        """
        made = _UniqueId()
        self._call("re_get_unique_id", ctypes.byref(made), _text(address))
        return bytes(made)

    def unique_id_of(self, host_port: str) -> bytes:
        """Return the id of a communicator whose rank 0 will listen at a place that all know."""
        made = _UniqueId()
        self._call("re_unique_id_of", ctypes.byref(made), _text(host_port))
        return bytes(made)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Collect the calling thread's collectives and run them together at the outermost end.

        If the block raises, the communicators it used are aborted: the other ranks would
        wait for the calls that did not come.
        """
        self._call("re_group_start")
        self._group.depth += 1
        failed = True
        try:
            yield
            failed = False
        finally:
            self._group.depth -= 1
            kept = list(self._group.arrays)  # Until re_group_end has returned.
            comms = list(self._group.comms)
            if self._group.depth == 0:
                self._group.arrays.clear()
                self._group.comms.clear()
            if failed:
                for comm in comms:
                    comm.abort()
                with suppress(EngineError):
                    self._call("re_group_end")
            else:
                self._call("re_group_end")
            del kept

    def simulate_group_end(self) -> None:
        """Decide for the open group as its end would, and run nothing."""
        self._call("re_group_simulate_end")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._calls, name)(*arguments)
        if code != Result.OK:
            text = (self._calls.re_last_error() or b"").decode(errors="replace")
            raise _ERRORS.get(code, EngineError)(text or f"{name} failed with code {code}")


def _text(value: str | None) -> bytes | None:
    if value is None:
        return None
    if "\0" in value:
        raise BadArgument(f"{value!r}: an address or a name without NUL")
    return value.encode()


class Comm:
    """Connections among the ranks of a communicator. Close it, or use it in ``with``."""

    def __init__(
        self,
        engine: Engine,
        unique_id: bytes,
        n_ranks: int,
        rank: int,
        *,
        address: str | None = None,
        bridge: Path | None = None,
        node: str | None = None,
        timeout_s: float = 0.0,
        max_channels: int = 0,
        no_plugins: bool = False,
    ) -> None:
        """Connect; blocks until all ranks are there.

        Args:
            engine: the library.
            unique_id: from :meth:`Engine.unique_id`, the same on all ranks.
            n_ranks: 1 or more.
            rank: of this process, 0 to n_ranks - 1.
            address: own address that peers connect to; that of the route to rank 0 by default.
            bridge: socket of the software RNIC; TCP by default.
            node: name of this rank's node; host name and network namespace by default.
            timeout_s: give up after this long without any progress, in seconds; 0: 300.
            max_channels: 1 to 8; 0: 8.
            no_plugins: load neither tuner nor profiler, whatever the environment says.

        Raises:
            EngineError: one of its kinds.
        """
        self._engine = engine
        self._use = threading.RLock()
        self._life = threading.Lock()
        self._handle: int | None = None
        if len(unique_id) != UNIQUE_ID_BYTES:
            raise BadArgument(f"unique id of {len(unique_id)} bytes; it has {UNIQUE_ID_BYTES}")
        config = _Config(
            ctypes.sizeof(_Config), _text(address), _text(None if bridge is None else str(bridge)),
            _text(node), timeout_s, max_channels, int(no_plugins),
        )  # fmt: skip
        handle = ctypes.c_void_p()
        place = _UniqueId.from_buffer_copy(unique_id)
        engine._call(
            "re_comm_init", ctypes.byref(handle), ctypes.byref(place), n_ranks, rank,
            ctypes.byref(config),
        )  # fmt: skip
        self._handle = handle.value

    # --- life ---

    def abort(self) -> None:
        """End whatever runs, with :class:`Aborted`; from any thread, any number of times."""
        with self._life:
            if self._handle is not None:
                self._engine._calls.re_comm_abort(self._handle)

    def close(self) -> None:
        """Leave the communicator, once no other thread's call is in it."""
        with self._use, self._life:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._engine._calls.re_comm_destroy(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abort()
        self.close()

    def _live(self) -> int:
        if self._handle is None:
            raise BadArgument("the communicator is closed")
        return self._handle

    # --- looking ---

    @property
    def rank(self) -> int:
        """This process's rank."""
        return int(self._engine._calls.re_comm_rank(self._live()))

    @property
    def n_ranks(self) -> int:
        """Ranks of the communicator."""
        return int(self._engine._calls.re_comm_n_ranks(self._live()))

    @property
    def n_nodes(self) -> int:
        """Nodes that its ranks are on."""
        return int(self._engine._calls.re_comm_n_nodes(self._live()))

    @property
    def id(self) -> int:
        """The communicator's id, which the plugin gets too."""
        return int(self._engine._calls.re_comm_id(self._live()))

    def last_run(self) -> Run:
        """Return what the last collective ran as.

        Raises:
            EngineError: none ran yet.
        """
        raw = _Run()
        self._engine._call("re_comm_last_run", self._live(), ctypes.byref(raw))
        return Run(
            Collective(raw.coll), Algo(raw.algo), Proto(raw.proto), raw.n_channels,
            raw.chunk_bytes, raw.bytes, raw.nanoseconds, bool(raw.decided),
        )  # fmt: skip

    # --- collectives on arrays ---

    def all_reduce(
        self, send: Array, recv: Array | None = None, op: Op = Op.SUM, *, type: Type | None = None
    ) -> Array:
        """Reduce the ranks' ``send`` into everybody's ``recv``; in place where that is left out.

        ``type`` is needed for bfloat16 only, whose bits are passed as uint16. The array that was
        written is returned; inside a group it holds the result after the group's end.

        Raises:
            EngineError: one of its kinds.
        """
        recv = send if recv is None else recv
        element = self._checked(send, recv, type, sent=1, received=1)
        self.all_reduce_raw(send.ctypes.data, recv.ctypes.data, send.size, element, op)
        return self._kept(recv, send)

    def all_gather(self, send: Array, recv: Array, *, type: Type | None = None) -> Array:
        """Put the ranks' ``send`` one after another into ``recv`` (n_ranks times as long)."""
        element = self._checked(send, recv, type, sent=1, received=self.n_ranks)
        self.all_gather_raw(send.ctypes.data, recv.ctypes.data, send.size, element)
        return self._kept(recv, send)

    def reduce_scatter(
        self, send: Array, recv: Array, op: Op = Op.SUM, *, type: Type | None = None
    ) -> Array:
        """Reduce the ranks' ``send`` (n_ranks times as long) and keep this rank's part of it."""
        element = self._checked(send, recv, type, sent=self.n_ranks, received=1)
        self.reduce_scatter_raw(send.ctypes.data, recv.ctypes.data, recv.size, element, op)
        return self._kept(recv, send)

    def broadcast(self, data: Array, root: int = 0, *, type: Type | None = None) -> Array:
        """Give everybody the root's ``data``, in place."""
        element = self._checked(data, data, type, sent=1, received=1)
        self.broadcast_raw(data.ctypes.data, data.ctypes.data, data.size, element, root)
        return self._kept(data)

    # --- collectives on addresses ---

    def all_reduce_raw(self, send: int, recv: int, count: int, type: Type, op: Op) -> None:
        """:meth:`all_reduce` on addresses, which the caller keeps alive; ``count`` elements."""
        self._run("re_all_reduce", send, recv, count, type, op)

    def all_gather_raw(self, send: int, recv: int, count: int, type: Type) -> None:
        """:meth:`all_gather` on addresses; each rank sends ``count`` elements."""
        self._run("re_all_gather", send, recv, count, type)

    def reduce_scatter_raw(self, send: int, recv: int, count: int, type: Type, op: Op) -> None:
        """:meth:`reduce_scatter` on addresses; each rank receives ``count`` elements."""
        self._run("re_reduce_scatter", send, recv, count, type, op)

    def broadcast_raw(self, send: int, recv: int, count: int, type: Type, root: int) -> None:
        """:meth:`broadcast` on addresses; ``count`` elements."""
        self._run("re_broadcast", send, recv, count, type, root)

    def fence(self) -> None:
        """Settle a newer table with the other ranks (docs/agreement.md), if there is one.

        Every rank calls it between the same collectives, outside groups.
        """
        self._run("re_comm_fence")

    def _run(self, name: str, *arguments: int) -> None:
        with self._use:
            handle = self._live()
            group = self._engine._group
            if group.depth and self not in group.comms:
                group.comms.append(self)
            self._engine._call(name, *arguments, handle)

    def _kept(self, recv: Array, *others: Array) -> Array:
        group = self._engine._group
        if group.depth:
            group.arrays += [recv, *others]
        return recv

    def _checked(
        self, send: Array, recv: Array, type: Type | None, *, sent: int, received: int
    ) -> Type:
        for name, array in (("send", send), ("recv", recv)):
            if not array.flags.c_contiguous:
                raise BadArgument(f"{name}: not contiguous; pass np.ascontiguousarray(…)")
        if not recv.flags.writeable:
            raise BadArgument("recv: a read-only array; pass one that can be written")
        if send.dtype != recv.dtype:
            raise BadArgument(f"send holds {send.dtype}, recv {recv.dtype}; they must be the same")
        if send.size * received != recv.size * sent:
            raise BadArgument(
                f"send has {send.size} elements, recv {recv.size}; "
                f"their ratio has to be {sent} : {received}"
            )
        if type is None:
            found = _OF_NUMPY.get(send.dtype)
            if found is None:
                known = ", ".join(str(d) for d in _OF_NUMPY)
                raise BadArgument(f"{send.dtype}: not among {known} (native byte order)")
            return found
        if type.size != send.dtype.itemsize:
            raise BadArgument(
                f"{send.dtype} has {send.dtype.itemsize} bytes, {type.name} {type.size}"
            )
        return type
