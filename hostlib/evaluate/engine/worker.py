"""One rank: runs collectives on the engine as standard input says.

``python -m ringstep.hostlib.evaluate.engine.worker LIBRARY RANK RANKS NODE ADDRESS ROOT``. Each
line is ``COLLECTIVE BYTES ALGO PROTO CHANNELS LATE`` (NCCL's numbers; channels 0: as the engine's
own cost model chooses; the rank begins LATE µs after the others). A communicator per configuration
is made when it is first asked for; NCCL's environment variables hold it to that. Each answer is
``NANOSECONDS ALGO PROTO CHANNELS``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from ringstep.hostlib.engine import Array, Comm, Engine, EngineError, Op, Run, Type
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

PORT: Final = 29_500
_TIMEOUT_S: Final = 60.0


class Rank:
    """Communicators of one rank, by configuration."""

    def __init__(
        self, library: str, rank: int, ranks: int, node: str, address: str, root: str
    ) -> None:
        self._engine = Engine(Path(library))
        self._rank, self._ranks, self._node = rank, ranks, node
        self._address, self._root = address, root
        self._comms: dict[tuple[int, int, int], Comm] = {}
        self._buffers: tuple[Array, Array] = (np.zeros(0, "u1"), np.zeros(0, "u1"))

    def run(
        self, collective: Collective, size: int, algo: int, proto: int, channels: int, late_us: int
    ) -> Run:
        """Run a collective; ``size`` is that of the larger side in bytes.

        Raises:
            EngineError: the engine said no, or has no such collective.
        """
        comm = self._comm(algo, proto, channels)
        if size > len(self._buffers[0]):
            self._buffers = (np.zeros(size, "u1"), np.zeros(size, "u1"))
        send, recv = (buffer.ctypes.data for buffer in self._buffers)
        if late_us:
            time.sleep(late_us / 1e6)
        count, part = size // 4, size // 4 // self._ranks
        if collective is Collective.ALL_REDUCE:
            comm.all_reduce_raw(send, recv, count, Type.FLOAT32, Op.SUM)
        elif collective is Collective.ALL_GATHER:
            comm.all_gather_raw(send, recv, part, Type.FLOAT32)
        elif collective is Collective.REDUCE_SCATTER:
            comm.reduce_scatter_raw(send, recv, part, Type.FLOAT32, Op.SUM)
        elif collective is Collective.BROADCAST:
            comm.broadcast_raw(send, recv, count, Type.FLOAT32, 0)
        else:
            raise EngineError(f"the engine has no {collective.name}")
        return comm.last_run()

    def _comm(self, algo: int, proto: int, channels: int) -> Comm:
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
            place = self._engine.unique_id_of(f"{self._root}:{PORT + len(self._comms)}")
            found = Comm(
                self._engine, place, self._ranks, self._rank, address=self._address,
                node=self._node, timeout_s=_TIMEOUT_S, max_channels=8, no_plugins=True,
            )  # fmt: skip
            self._comms[at] = found
        return found


def main() -> None:
    """Answer line by line until standard input ends."""
    library, rank, ranks, node, address, root = sys.argv[1:]
    one = Rank(library, int(rank), int(ranks), node, address, root)
    print("ready", flush=True)
    for line in sys.stdin:
        collective, size, algo, proto, channels, late = (int(word) for word in line.split())
        try:
            ran = one.run(Collective(collective), size, algo, proto, channels, late)
        except EngineError as error:
            print(f"error {error}", flush=True)
            continue
        print(ran.duration_ns, int(ran.algo), int(ran.proto), ran.n_channels, flush=True)


if __name__ == "__main__":
    main()
