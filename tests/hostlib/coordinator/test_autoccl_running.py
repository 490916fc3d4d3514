"""The search in a running job: real ranks, a coordinator, durations of a surface."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ringstep.hostlib.cli import app
from ringstep.hostlib.coordinator.fixed import by_place, read_table
from ringstep.hostlib.native.caller import IGNORE, Costs, Rank
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

Make = Callable[..., Any]
run = CliRunner().invoke
USABLE = ((Algo.TREE, Proto.LL), (Algo.TREE, Proto.SIMPLE), (Algo.RING, Proto.LL),
          (Algo.RING, Proto.SIMPLE))  # fmt: skip
BASE = dict(zip(USABLE, (2.0, 1.5, 1.6, 1.0), strict=True))
SMALL = dict(zip(USABLE, (0.5, 1.5, 1.6, 1.4), strict=True))


class Job:
    """Two ranks; what they choose decides how long their kernels take."""

    def __init__(self, ranks: list[Rank]) -> None:
        self.ranks = ranks
        self.rng = random.Random(1)
        self.ran: dict[int, tuple[int, int, int]] = {}

    def took_ns(self, n_bytes: int, pair: Any, channels: int) -> int:
        base = (SMALL if n_bytes < 1 << 16 else BASE)[pair]
        peak = 4 if n_bytes < 1 << 16 else 8
        took = base * (1 + 0.15 * math.log2(channels / peak) ** 2)
        noise = math.exp(self.rng.gauss(0, 0.02)) * (8 if self.rng.random() < 0.02 else 1)
        return int(1e6 * took * noise)

    def step(self, n_bytes: int) -> None:
        chosen = set()
        took = 0
        for rank in self.ranks:
            costs = Costs([IGNORE] * 21)
            for i, pair in enumerate(USABLE):
                costs[pair] = 100.0 - i * (1 if n_bytes < 1 << 16 else -1)
            answer, channels = rank.get_coll_info(Collective.ALL_REDUCE, n_bytes, costs)
            pair = answer.chosen()
            assert pair is not None
            channels = channels or 2
            chosen.add((*pair, channels))
            took = took or self.took_ns(n_bytes, pair, channels)
            handle = rank.launch(
                count=n_bytes // 4, algo=Algo(pair[0]), proto=Proto(pair[1]), n_channels=channels
            )
            rank.run_kernels(handle, channels, 1000, 1000 + took)
        assert len(chosen) == 1, "ranks that choose differently hang"
        self.ran[n_bytes] = chosen.pop()


def test_two_sizes_converge_at_once_and_are_saved(
    start: Make, make_rank: Make, shm_dir: Path, until: Make
) -> None:
    running = start("autoccl")
    job = Job([make_rank(1, 2, rank) for rank in range(2)])

    def step() -> None:
        for n_bytes in (1 << 12, 1 << 24):
            job.step(n_bytes)

    def settled() -> bool:
        status = running.status()
        keys = status["communicators"][0]["keys"] if status["communicators"] else []
        return len(keys) == 2 and all(k["state"] == "converged" for k in keys)

    count = 0
    while not settled():
        count += 1
        assert count < 1000
        for _ in range(20):
            step()
    for _ in range(20):  # until the last epoch is in force
        until(lambda: running.comm()["on_offer"] is None, step)
    small, large = job.ran[1 << 12], job.ran[1 << 24]
    assert small[:2] == (Algo.TREE, Proto.LL)
    assert small[2] in (3, 4, 6)
    assert large[:2] == (Algo.RING, Proto.SIMPLE)
    assert large[2] in (6, 8, 12)
    version = running.status()["policy_version"]
    epoch = running.comm()["epoch"]
    for _ in range(50):
        step()
    assert (running.status()["policy_version"], running.comm()["epoch"]) == (version, epoch)

    saved = shm_dir / "saved.csv"
    assert run(app, ["save-table", str(saved)]).exit_code == 0
    found = by_place(read_table(saved))
    assert {place[1]: (d.algo, d.proto, d.n_channels) for place, d in found.items()} == {
        12: small, 24: large,
    }  # fmt: skip
    shown = json.loads(run(app, ["show-decisions", "--json"]).output)
    assert {d["state"] for d in shown["communicators"][0]["decisions"]} == {"converged"}
    running.ask(do="policy", name=f"autoccl:{saved}")
    for _ in range(30):
        step()
    until(lambda: (step(), job.ran == {1 << 12: small, 1 << 24: large})[1])


@pytest.mark.parametrize("dies", [True, False])
def test_a_search_goes_on_without_a_rank_s_records(
    start: Make, make_rank: Make, until: Make, dies: bool
) -> None:
    """A rank whose records are lost does not hold the others' samples up for good."""
    running = start("nccl")
    ranks = [make_rank(1, 3, rank) for rank in range(3)]
    job = Job(ranks)
    job.step(1 << 20)
    if dies:
        job.ranks = ranks[:2]
    until(lambda: running.status()["samples_learned"] >= 12, lambda: job.step(1 << 20))
    comm = running.comm()
    assert comm["absent_ranks"] == ([2] if dies else [])
