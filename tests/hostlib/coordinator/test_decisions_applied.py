"""One node: the policy's tables reach all ranks, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.coordinator.control import ControlError
from ringstep.hostlib.native.caller import IGNORE, Costs
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

TABLE = """\
collective,bytes,algorithm,protocol,channels,chunk
allreduce,..1MiB,tree,ll128,2,
allreduce,1MiB..,ring,simple,8,512KiB
allgather,64KiB..,ring,ll128,4,
"""
SMALL = ((Algo.TREE, Proto.LL128), 2)
LARGE = ((Algo.RING, Proto.SIMPLE), 8)
GATHER = ((Algo.RING, Proto.LL128), 4)
NCCLS = ((Algo.TREE, Proto.LL), 0)
"""What the caller's even costs make NCCL choose."""

Make = Callable[..., Any]


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return f"fixed:{path}"


def test_a_table_is_applied_by_all_ranks(start: Make, make_ranks: Make, table: str) -> None:
    start(table)
    ranks = make_ranks(4)
    assert ranks.step() == [NCCLS] * 4
    ranks.run_until(LARGE)
    assert ranks.step(n_bytes=1 << 19) == [SMALL] * 4
    assert ranks.step(n_bytes=5 << 30) == [LARGE] * 4
    assert ranks.ranks[0].get_chunk_size(
        Collective.ALL_REDUCE, 1 << 20, Algo.RING, Proto.SIMPLE, 1 << 20
    ) == (512 << 10)


def test_a_collective_is_decided_once_every_rank_was_asked_for_it(
    start: Make, make_ranks: Make, table: str, until: Make
) -> None:
    running = start(table)
    ranks = make_ranks(2)
    gather = {"collective": Collective.ALL_GATHER}
    ranks.run_until(LARGE)
    assert ranks.step(**gather) == [NCCLS] * 2
    ranks.run_until(GATHER, **gather)
    assert running.comm()["epoch"] == 2
    assert running.status()["last_epoch"] == 2


def test_the_policy_is_switched_while_the_job_runs(
    start: Make, make_ranks: Make, table: str, tmp_path: Path
) -> None:
    running = start()
    ranks = make_ranks(3)
    for _ in range(50):
        assert ranks.step() == [NCCLS] * 3
    assert running.comm()["epoch"] == 0
    running.ask(do="policy", name=table)
    ranks.run_until(LARGE)
    other = tmp_path / "other.csv"
    other.write_text("collective,bytes,algorithm,protocol\nallreduce,..,ring,ll\n")
    running.ask(do="policy", name=f"fixed:{other}")
    ranks.run_until(((Algo.RING, Proto.LL), 0))
    running.ask(do="policy", name="nccl")
    ranks.run_until(NCCLS)
    assert ranks.step(n_bytes=1 << 10) == [NCCLS] * 3
    assert running.comm()["epoch"] == 3
    with pytest.raises(ControlError, match=r"choose nccl, fixed, autoccl, dynamic"):
        running.ask(do="policy", name="fast")
    assert running.status()["policy"] == "nccl"


def test_bypass_leaves_nccl_alone_and_comes_back(start: Make, make_ranks: Make, table: str) -> None:
    running = start(table)
    ranks = make_ranks(2)
    ranks.run_until(LARGE)
    assert running.ask(do="bypass", on=True)["bypass"] is True
    ranks.run_until(NCCLS)
    assert running.ask(do="bypass", on=False)["bypass"] is False
    ranks.run_until(LARGE)


def test_a_pair_that_one_rank_cannot_use_is_left_out_and_said(
    start: Make, make_ranks: Make, table: str, until: Make
) -> None:
    running = start(table)
    ranks = make_ranks(2).ranks

    def step() -> list[int]:
        channels = []
        for rank in ranks:
            costs = Costs()
            if rank is ranks[1]:
                costs[Algo.RING, Proto.SIMPLE] = IGNORE
            channels.append(rank.get_coll_info(n_bytes=1 << 19, costs=costs)[1])
            handle = rank.launch(count=1 << 18)
            rank.run_kernels(handle, 2)
        return channels

    until(lambda: step() == [2, 2])
    (rank_view,) = {r.refused_epoch for r in running.coordinator.file.comm(0).ranks}
    assert rank_view == 0
    big = {"collective": Collective.ALL_REDUCE, "n_bytes": 1 << 21}
    for rank in ranks:
        rank.collective(**big)
    note = until(lambda: [k["note"] for k in running.comm()["keys"] if k["note"]], step)
    assert note == ["RING/SIMPLE is not usable on every rank"]


def test_several_communicators_have_epochs_of_their_own(
    start: Make, make_ranks: Make, table: str
) -> None:
    running = start(table)
    one, two = make_ranks(2, 1), make_ranks(3, 2)
    one.run_until(LARGE)
    two.run_until(LARGE)
    epochs = [c["epoch"] for c in running.status()["communicators"]]
    assert sorted(epochs) == [1, 2]
    for rank in one.ranks:
        rank.finalize()
    three = make_ranks(2, 3)
    three.run_until(LARGE)
    two.run_until(LARGE)


def test_a_dead_rank_stops_switches_and_nothing_else(
    start: Make, make_ranks: Make, table: str
) -> None:
    running = start(table)
    ranks = make_ranks(3)
    ranks.run_until(LARGE)
    dead = ranks.ranks.pop()
    running.ask(do="bypass", on=True)
    for _ in range(100):
        assert ranks.step() == [LARGE] * 2
    assert running.comm()["on_offer"] == 2
    dead.collective()


def test_a_static_table_holds_from_the_first_collective(
    start: Make, make_ranks: Make, table: str, until: Make
) -> None:
    told: list[dict[str, Any]] = []
    running = start(table, static=True, tell=told.append)
    ranks = make_ranks(2)
    assert ranks.step() == [LARGE] * 2
    digest = until(lambda: [e for e in told if e["event"] == "ready"])[0]["static_digest"]
    assert int(digest, 16) == running.coordinator.file.static_table().digest(0)
    for _ in range(50):
        assert ranks.step() == [LARGE] * 2
    until(lambda: running.comm()["keys"])
    assert running.comm()["keys"][0]["in_force"]["channels"] == 8
    running.ask(do="policy", name="nccl")
    ranks.run_until(NCCLS)


def test_what_another_policy_decided_is_never_kept(
    start: Make, make_ranks: Make, table: str
) -> None:
    running = start(table)
    ranks = make_ranks(2)
    ranks.run_until(LARGE)
    running.ask(do="policy", name="autoccl")
    ranks.run_until(NCCLS, n_bytes=1 << 10)
