"""One rank: collectives whose every result is checked, until told to stop.

    rank.py SETTINGS     one JSON object

Prints one JSON object per line: ``{"at": round, "decided": rounds}`` now and then, and at last
what it did, or ``{"error": kind, "text": …}`` with exit status 3 where the engine gave up.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ringstep.hostlib.engine import Comm, Engine, EngineError, Op


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class Job:
    """The collectives of one round, their inputs and what has to come out."""

    def __init__(self, comm: Comm, engine: Engine, sizes: list[int]) -> None:
        self.comm, self.engine = comm, engine
        self.rank, self.n = comm.rank, comm.n_ranks
        self.sizes = sizes
        self.wrong = 0
        self.collectives = 0

    def check(self, found: np.ndarray[Any, Any], expected: Any) -> None:
        self.collectives += 1
        self.wrong += int(not bool((found == expected).all()))

    def round(self, number: int) -> None:
        """Every value is small and whole, so sums are exact in any order."""
        own, total = self.rank + number % 5, self.n * (self.n - 1) // 2 + self.n * (number % 5)
        arrays = [np.full(max(size // 4, 1), own, np.float32) for size in self.sizes]
        for array in arrays:
            self.comm.all_reduce(array)
            self.check(array, total)
        if number % 4 == 0:
            self.others(number, own, total)

    def others(self, number: int, own: int, total: int) -> None:
        part = np.full(1000, own, np.int32)
        whole = np.empty(1000 * self.n, np.int32)
        self.comm.all_gather(part, whole)
        self.check(whole.reshape(self.n, 1000)[:, 0], np.arange(self.n) + number % 5)
        self.comm.reduce_scatter(np.full(1000 * self.n, own, np.int32), part)
        self.check(part, total)
        data = np.full(5000, own, np.int64)
        self.comm.broadcast(data, root=number // 4 % self.n)
        self.check(data, number // 4 % self.n + number % 5)
        one, two = np.full(3000, own, np.float64), np.full(9000, own, np.float64)
        with self.engine.group():
            self.comm.all_reduce(one)
            self.comm.all_reduce(two)
        self.check(one, total)
        self.check(two, total)


def run(settings: dict[str, Any]) -> int:
    engine = Engine()
    rank, n_ranks = settings["rank"], settings["ranks"]
    root, port = settings["root"], settings["port"]
    timeout = settings.get("timeout_s", 60.0)

    def join(number: int, **options: Any) -> Comm:
        place = engine.unique_id_of(f"{root}:{port + number}")
        return Comm(
            engine, place, n_ranks, rank, node=settings.get("node"), timeout_s=timeout, **options
        )

    own = join(0, no_plugins=True)
    comms = [join(1 + number) for number in range(settings.get("comms", 1))]
    jobs = [Job(comm, engine, settings["sizes"]) for comm in comms]
    stop = Path(settings["stop"])
    flag = np.zeros(1, np.int32)
    number = decided = 0
    said = 0.0
    pause = float(settings.get("pause_s", 0.0))
    fence: Callable[[int], bool] = lambda number: bool(  # noqa: E731
        settings.get("fence_every") and number % settings["fence_every"] == 0
    )
    while True:
        for job in jobs:
            if fence(number):
                job.comm.fence()
            job.round(number)
            decided += int(job.comm.last_run().decided)
        number += 1
        flag[0] = int(rank == 0 and stop.exists())
        own.all_reduce(flag, op=Op.MAX)
        if flag[0]:
            break
        if time.monotonic() > said + 0.05:
            said = time.monotonic()
            say(at=number, decided=decided)
        time.sleep(pause)
    for comm in (*comms, own):
        comm.close()
    say(
        rank=rank, rounds=number, wrong=sum(job.wrong for job in jobs), decided=decided,
        collectives=sum(job.collectives for job in jobs),
    )  # fmt: skip
    return 0


def main() -> int:
    try:
        return run(json.loads(sys.argv[1]))
    except EngineError as error:
        say(error=type(error).__name__, text=str(error))
        return 3


if __name__ == "__main__":
    sys.exit(main())
