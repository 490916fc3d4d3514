"""One rank: runs collectives on the engine as standard input says.

``python -m ringstep.hostlib.evaluate.engine.worker LIBRARY RANK RANKS ADDRESS ROOT``. Each line is
``COLLECTIVE BYTES ALGO PROTO CHANNELS`` (NCCL's numbers; channels 0: as the engine's own cost model
chooses). A communicator per configuration is made when it is first asked for; NCCL's environment
variables hold it to that. Each answer is ``NANOSECONDS ALGO PROTO CHANNELS``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Final

from ringstep.hostlib.shm_layout import Algo, Collective, Proto

PORT: Final = 29_500
_FLOAT32: Final = 7
_SUM: Final = 0
_TIMEOUT_S: Final = 60.0


class Config(ctypes.Structure):
    """re_config."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("address", ctypes.c_char_p),
        ("bridge", ctypes.c_char_p),
        ("node", ctypes.c_char_p),
        ("timeout_s", ctypes.c_double),
        ("max_channels", ctypes.c_int),
        ("no_plugins", ctypes.c_int),
    )


class Run(ctypes.Structure):
    """re_run."""

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


class Rank:
    """Communicators of one rank, by configuration."""

    def __init__(self, library: str, rank: int, ranks: int, address: str, root: str) -> None:
        self._lib = ctypes.CDLL(library)
        self._lib.re_last_error.restype = ctypes.c_char_p
        self._rank, self._ranks, self._address, self._root = rank, ranks, address, root
        self._comms: dict[tuple[int, int, int], ctypes.c_void_p] = {}
        self._buffers: dict[int, tuple[Any, Any]] = {}

    def run(self, collective: Collective, size: int, algo: int, proto: int, channels: int) -> Run:
        """Run a collective; ``size`` is that of the larger side in bytes.

        Raises:
            RuntimeError: the engine said no.
        """
        comm = self._comm(algo, proto, channels)
        if size not in self._buffers:
            self._buffers = {size: ((ctypes.c_char * size)(), (ctypes.c_char * size)())}
        send, recv = self._buffers[size]
        lib, count = self._lib, ctypes.c_size_t(size // 4)
        part = ctypes.c_size_t(size // 4 // self._ranks)
        if collective is Collective.ALL_REDUCE:
            self._check(lib.re_all_reduce(send, recv, count, _FLOAT32, _SUM, comm))
        elif collective is Collective.ALL_GATHER:
            self._check(lib.re_all_gather(send, recv, part, _FLOAT32, comm))
        elif collective is Collective.REDUCE_SCATTER:
            self._check(lib.re_reduce_scatter(send, recv, part, _FLOAT32, _SUM, comm))
        elif collective is Collective.BROADCAST:
            self._check(lib.re_broadcast(send, recv, count, _FLOAT32, 0, comm))
        else:
            raise RuntimeError(f"the engine has no {collective.name}")
        found = Run()
        self._check(lib.re_comm_last_run(comm, ctypes.byref(found)))
        return found

    def _comm(self, algo: int, proto: int, channels: int) -> ctypes.c_void_p:
        at = (algo, proto, channels)
        found = self._comms.get(at)
        if found is None:
            forced = {
                "NCCL_ALGO": Algo(algo).name, "NCCL_PROTO": Proto(proto).name,
                "NCCL_MIN_NCHANNELS": str(channels), "NCCL_MAX_NCHANNELS": str(channels),
            } if channels else {}  # fmt: skip
            for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"):
                os.environ.pop(name, None)
            os.environ.update(forced)
            unique = (ctypes.c_char * 128)()
            place = f"{self._root}:{PORT + len(self._comms)}".encode()
            self._check(self._lib.re_unique_id_of(unique, place))
            config = Config(
                ctypes.sizeof(Config), self._address.encode(), None, f"n{self._rank}".encode(),
                _TIMEOUT_S, 8, 1,
            )  # fmt: skip
            found = ctypes.c_void_p()
            self._check(
                self._lib.re_comm_init(
                    ctypes.byref(found), unique, self._ranks, self._rank, ctypes.byref(config)
                )
            )
            self._comms[at] = found
        return found

    def _check(self, result: int) -> None:
        if result != 0:
            raise RuntimeError(self._lib.re_last_error().decode(errors="replace"))


def main() -> None:
    """Answer line by line until standard input ends."""
    library, rank, ranks, address, root = sys.argv[1:]
    one = Rank(library, int(rank), int(ranks), address, root)
    print("ready", flush=True)
    for line in sys.stdin:
        collective, size, algo, proto, channels = (int(word) for word in line.split())
        try:
            ran = one.run(Collective(collective), size, algo, proto, channels)
        except RuntimeError as error:
            print(f"error {error}", flush=True)
            continue
        print(ran.nanoseconds, ran.algo, ran.proto, ran.n_channels, flush=True)


if __name__ == "__main__":
    main()
