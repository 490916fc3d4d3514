"""One rank of the comparisons in engine_paths.py, which starts it on every host.

    engine_ranks.py mpich SETTINGS      under mpiexec: the engine and MPICH, turn by turn
    engine_ranks.py overhead SETTINGS   with and without plugins, turn by turn

SETTINGS is one JSON object. Rank 0 prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ringstep.hostlib.engine import Comm, Engine, Op

Array = np.ndarray[Any, Any]
Run = Callable[[Array, Array], None]

ENGINE_VARIABLES: Final = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
# Of MPICH's algorithms those that make sense for more than a few bytes.
MPICH_ALGORITHMS: Final = (
    "auto", "recursive_doubling", "recursive_multiplying", "reduce_scatter_allgather",
    "k_reduce_scatter_allgather", "tree", "recexch", "ring",
)  # fmt: skip


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables that the engine reads when a communicator is made; none of the others."""
    before = {name: os.environ.pop(name, None) for name in ENGINE_VARIABLES}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class MpichAlgorithm:
    """MPICH's choice of AllReduce algorithm, changed while it runs (MPI_T)."""

    def __init__(self, library: str) -> None:
        self._mpi = ctypes.CDLL(library)
        level, index, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._handle = ctypes.c_void_p()
        self._must(self._mpi.MPI_T_init_thread(0, ctypes.byref(level)))
        name = b"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"
        self._must(self._mpi.MPI_T_cvar_get_index(name, ctypes.byref(index)))
        self._must(
            self._mpi.MPI_T_cvar_handle_alloc(
                index, None, ctypes.byref(self._handle), ctypes.byref(count)
            )
        )
        # The numbers are the order of the lines of the variable's description.
        lines = self._description(index.value).splitlines()
        words = [line.partition(" - ")[0].strip() for line in lines if " - " in line]
        self.numbers = {word: number for number, word in enumerate(words)}

    def choose(self, algorithm: str) -> None:
        """All ranks have to choose the same, between the same collectives."""
        value = ctypes.c_int(self.numbers[algorithm])
        self._must(self._mpi.MPI_T_cvar_write(self._handle, ctypes.byref(value)))

    def _description(self, index: int) -> str:
        name, text = ctypes.create_string_buffer(256), ctypes.create_string_buffer(8192)
        lengths = ctypes.c_int(256), ctypes.c_int(8192)
        a, b, c, d = (ctypes.c_int() for _ in range(4))
        self._must(
            self._mpi.MPI_T_cvar_get_info(
                index, name, ctypes.byref(lengths[0]), ctypes.byref(a), ctypes.byref(b), None,
                text, ctypes.byref(lengths[1]), ctypes.byref(c), ctypes.byref(d),
            )
        )  # fmt: skip
        return text.value.decode()

    @staticmethod
    def _must(code: int) -> None:
        if code != 0:
            raise RuntimeError(f"MPI_T: error {code}; MPICH 5 is needed")


@dataclass
class Timer:
    """Times blocks of runs that all ranks do together; the slowest rank counts."""

    barrier: Callable[[], None]
    slowest: Callable[[float], float]

    def block(self, run: Run, send: Array, recv: Array, repeats: int) -> float:
        """Return seconds per run."""
        self.barrier()
        begin = time.perf_counter()
        for _ in range(repeats):
            run(send, recv)
        return self.slowest((time.perf_counter() - begin) / repeats)

    def repeats(self, run: Run, send: Array, recv: Array, block_s: float) -> int:
        """Return how many runs fill a block of that many seconds, the same on all ranks."""
        run(send, recv)
        return max(1, math.ceil(block_s / max(self.block(run, send, recv, 2), 1e-6)))


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return first quartile, median and third quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, mid, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, mid, high


def received_bytes() -> int:
    """Return what this host's interface has received so far."""
    rows = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    row = next(row for row in rows if row.strip().startswith("eth0:"))
    return int(row.partition(":")[2].split()[0])


def by_engine(comm: Comm) -> Run:
    """Return AllReduce on a communicator of the engine."""

    def run(send: Array, recv: Array) -> None:
        comm.all_reduce(send, recv)

    return run


# --- against MPICH ---


def engine_runs(engine: Engine, settings: dict[str, Any], rank: int) -> dict[str, Comm]:
    """Make a communicator for the engine's own choice, and for each setting to be tried."""
    port = int(settings["port"])
    ways: dict[str, dict[str, str]] = {"default": {}}
    for algo in ("ring", "tree"):
        for proto in ("simple", "ll"):
            for channels in settings["channels"]:
                ways[f"{algo}/{proto}/{channels}"] = {
                    "NCCL_ALGO": algo,
                    "NCCL_PROTO": proto,
                    "NCCL_MIN_NCHANNELS": str(channels),
                    "NCCL_MAX_NCHANNELS": str(channels),
                }
    made = {}
    for number, (name, variables) in enumerate(ways.items()):
        place = engine.unique_id_of(f"{settings['root']}:{port + number}")
        with environment(variables):
            made[name] = Comm(engine, place, settings["ranks"], rank, no_plugins=True)
    return made


def against_mpich(settings: dict[str, Any]) -> dict[str, Any]:
    """Time the engine and MPICH on the same links, in turn, by size."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, n_ranks = world.rank, world.size
    algorithm = MpichAlgorithm(os.environ["MPI4PY_LIBMPI"])
    comms = engine_runs(Engine(), settings, rank)
    timer = Timer(world.Barrier, lambda s: world.allreduce(s, op=MPI.MAX))

    def mpich(name: str) -> Run:
        def run(send: Array, recv: Array) -> None:
            world.Allreduce(send, recv)

        algorithm.choose(name)
        return run

    ways: dict[str, Callable[[], Run]] = {}
    for name in MPICH_ALGORITHMS:
        if name in algorithm.numbers:
            ways[f"mpich {name}"] = lambda name=name: mpich(name)  # type: ignore[misc]
    for name, comm in comms.items():
        ways[f"engine {name}"] = lambda comm=comm: by_engine(comm)  # type: ignore[misc]

    rows = []
    for size in settings["sizes"]:
        send = np.full(size // 4, rank + 1, np.float32)
        recv = np.empty_like(send)
        expected = n_ranks * (n_ranks + 1) / 2
        tried = {}
        for name, way in ways.items():
            run = way()
            recv.fill(0)
            run(send, recv)
            if not (recv == expected).all():
                raise RuntimeError(f"{name} on {size} bytes: wrong result")
            tried[name] = timer.block(run, send, recv, settings["tries"])
        kept = []
        for kind, own in (("mpich", "mpich auto"), ("engine", "engine default")):
            of_kind = sorted((t, name) for name, t in tried.items() if name.startswith(kind))
            kept += [name for _, name in of_kind[: settings["keep"]]]
            kept += [own] if own not in kept else []
        repeats = {
            name: timer.repeats(ways[name](), send, recv, settings["block_s"]) for name in kept
        }
        times: dict[str, list[float]] = {name: [] for name in kept}
        wire: dict[str, list[float]] = {name: [] for name in kept}
        for turn in range(settings["turns"]):
            for name in kept if turn % 2 == 0 else reversed(kept):
                run = ways[name]()
                before = received_bytes()
                times[name].append(timer.block(run, send, recv, repeats[name]))
                wire[name].append((received_bytes() - before) / repeats[name] / size)
        rows.append(compare(size, times, wire))
    for comm in comms.values():
        comm.close()
    return {"rows": rows}


def compare(
    size: int, times: dict[str, list[float]], wire: dict[str, list[float]]
) -> dict[str, Any]:
    """Put one size's times together: the best of each by median, and their ratio turn by turn."""
    best = {
        kind: min(
            (name for name in times if name.startswith(kind)),
            key=lambda name: statistics.median(times[name]),
        )
        for kind in ("engine", "mpich")
    }

    def ratio(one: str, other: str) -> tuple[float, float, float]:
        return quartiles([a / b for a, b in zip(times[one], times[other], strict=True)])

    low, mid, high = ratio(best["engine"], best["mpich"])
    own = ratio("engine default", best["mpich"])
    return {
        "bytes": size,
        "engine": best["engine"].removeprefix("engine "),
        "mpich": best["mpich"].removeprefix("mpich "),
        "engine_ms": statistics.median(times[best["engine"]]) * 1e3,
        "mpich_ms": statistics.median(times[best["mpich"]]) * 1e3,
        "ratio": mid,
        "ratio_quartiles": [low, high],
        "ratio_of_own_choice": own[1],
        # What rank 0 received by message size: below 1 something did not go over the wire.
        "wire_engine": statistics.median(wire[best["engine"]]),
        "wire_mpich": statistics.median(wire[best["mpich"]]),
    }


# --- with and without plugins ---


def overhead(settings: dict[str, Any]) -> dict[str, Any]:
    """Time the engine with plugins and without, in turn, by size."""
    rank, n_ranks = settings["rank"], settings["ranks"]
    engine = Engine()
    root, port = settings["root"], settings["port"]
    comms = {
        name: Comm(
            engine, engine.unique_id_of(f"{root}:{port + number}"), n_ranks, rank,
            no_plugins=name == "without",
        )
        for number, name in enumerate(("without", "with"))
    }  # fmt: skip
    small = np.zeros(1, np.float64)

    def slowest(seconds: float) -> float:
        small[0] = seconds
        comms["without"].all_reduce(small, op=Op.MAX)
        return float(small[0])

    timer = Timer(lambda: slowest(0.0) and None, slowest)
    ratios: dict[int, list[float]] = {}
    decided = 0
    for size in settings["sizes"]:
        send = np.ones(size // 4, np.float32)
        recv = np.empty_like(send)

        # Decisions come while this runs; wait until what is to be compared is in force.
        for _ in range(settings["settle"]):
            by_engine(comms["with"])(send, recv)
        repeats = timer.repeats(by_engine(comms["without"]), send, recv, settings["block_s"])
        ratios[size] = []
        for turn in range(settings["turns"]):
            order = ("with", "without") if turn % 2 == 0 else ("without", "with")
            took = {
                name: timer.block(by_engine(comms[name]), send, recv, repeats) for name in order
            }
            ratios[size].append(took["with"] / took["without"])
        decided += int(comms["with"].last_run().decided)
    for comm in comms.values():
        comm.close()
    return {"ratios": ratios, "decided_sizes": decided}


def main() -> int:
    what, settings = sys.argv[1], json.loads(sys.argv[2])
    result = {"mpich": against_mpich, "overhead": overhead}[what](settings)
    rank = settings["rank"] if what == "overhead" else None
    if rank is None:
        from mpi4py import MPI

        rank = MPI.COMM_WORLD.rank
    if rank == 0:
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
