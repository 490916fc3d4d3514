"""What ranks, blocks and rings hold may be anything: the coordinator goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.cli import app
from ringstep.hostlib.coordinator.agent import NodeAgent
from ringstep.hostlib.coordinator.cache import DecisionCache
from ringstep.hostlib.coordinator.messages import CommGone, CommStatus, Offer, OfferState, Outcome
from ringstep.hostlib.native.caller import Rank
from ringstep.hostlib.shm import DecisionTable, Reason, ShmFile, default_path
from ringstep.hostlib.shm_layout import Algo, Collective, Proto, Scope

Make = Callable[..., Any]
run = CliRunner().invoke
AR = Collective.ALL_REDUCE


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "table.csv"
    path.write_text("collective,bytes,algorithm,protocol,channels\nallreduce,..,ring,simple,8\n")
    return f"fixed:{path}"


LARGE = ((Algo.RING, Proto.SIMPLE), 8)


@pytest.mark.parametrize("seed", range(3))
def test_garbage_in_blocks_and_rings(start: Make, until: Make, table: str, seed: int) -> None:
    running = start(table)
    rng = np.random.default_rng(seed)
    with ShmFile.open(default_path(), writable=True) as file:
        comms = file.raw["comms"][0].view("u1").reshape(lay.MAX_COMMS, -1)
        procs = file.raw["procs"][0].view("u1").reshape(lay.MAX_PROCS, -1)
        for _ in range(30):
            comms[rng.integers(lay.MAX_COMMS)] = rng.integers(0, 256, comms.shape[1], "u1")
            file.raw["comms"][0]["state"] = rng.integers(0, 4, lay.MAX_COMMS)
            file.raw["comms"][0]["scope"] = rng.integers(0, 3, lay.MAX_COMMS)
            file.raw["comms"][0]["n_ranks"] = rng.integers(0, 4, lay.MAX_COMMS)
            place = rng.integers(lay.MAX_PROCS)
            procs[place] = rng.integers(0, 256, procs.shape[1], "u1")
            head = int(rng.integers(0, 3000))
            ring = file.raw["procs"][0][place : place + 1]
            ring["head"] = head
            numbers = np.arange(max(head - lay.RING_SLOTS, 0), head)
            ring["slots"]["seq"][0][numbers % lay.RING_SLOTS] = 2 * numbers + 2
            ring["slots"]["comm"] = rng.integers(0, 70, (1, lay.RING_SLOTS))
            ring["slots"]["kind"] = rng.integers(0, 4, (1, lay.RING_SLOTS))
            assert running.status()["ok"] is True
        file.raw["comms"][0]["state"] = 0
        procs[:] = 0
        until(lambda: running.status()["communicators"] == [])


def test_communicators_of_one_id_are_not_mixed_up(
    start: Make, make_ranks: Make, table: str, until: Make
) -> None:
    """NCCL's id may come again while the old communicator lives (ncclCommShrink)."""
    running = start(table)
    one, two = make_ranks(2, 7), make_ranks(2, 7)
    one.run_until(LARGE)
    two.run_until(LARGE)
    assert len(running.status()["communicators"]) == 2


def test_a_table_that_is_refused_is_not_offered_again(
    start: Make, make_rank: Make, until: Make
) -> None:
    """A rank that cannot be made to take a table over: the reason is said, and that is that."""
    running = start("nccl")
    rank = make_rank(1, 1, 0)
    rank.collective()
    comm = until(lambda: running.status()["communicators"])[0]
    skeleton = running.coordinator.skeleton
    (group,) = skeleton._groups.values()
    entries = DecisionTable().entries
    entries["flags"][AR, 3] = lay.ENTRY_VALID
    entries["algo"][AR, 3] = 99
    where = next(iter(group.members))[1]
    found: list[Any] = []
    agent = running.coordinator.agent
    tell, running.coordinator._tell = running.coordinator._tell, found.append
    agent.handle(Offer(where, 1, Scope.NODE, entries))
    refused = until(lambda: [e for e in found if e["event"] == "refused"], rank.collective)
    assert refused[0]["reasons"] == ["ranks [0]: bad_entry"]
    assert comm["epoch"] == 0
    running.coordinator._tell = tell


def test_outcomes_of_an_agent(make_ranks: Make, shm_dir: Path) -> None:
    with ShmFile.create(default_path()) as file:
        agent = NodeAgent(file)
        assert agent.scan() == []
        ranks = make_ranks(2)
        ranks.step()
        (status, *_) = agent.scan()
        assert isinstance(status, CommStatus)
        assert (status.ranks, status.whole, status.epoch) == ((0, 1), True, 0)
        entries = DecisionTable().entries
        assert agent.handle(Offer(status.where, 5, Scope.NODE, entries)) == []
        assert agent.handle(Offer((9, 9), 6, Scope.NODE, entries))[0].state is OfferState.GONE
        again = agent.handle(Offer(status.where, 5, Scope.NODE, entries))
        assert isinstance(again[0], Outcome)
        assert again[0].state is OfferState.REFUSED
        assert "must be above 5" in again[0].reasons[0]
        states = []
        for _ in range(3):
            ranks.step()
            states += [e.state.value for e in agent.check_offers() if isinstance(e, Outcome)]
        assert states == ["acknowledged", "committed", "applied"]
        assert agent.offers_out == 0
        late = agent.handle(Offer(status.where, 7, Scope.FENCED, entries))
        assert late[0].state is OfferState.REFUSED
        assert "its scope is fixed by its first epoch" in late[0].reasons[0]
        agent.handle(Offer(status.where, 8, Scope.NODE, entries))
        ranks.ranks[0].finalize()
        assert [e.state for e in agent.check_offers()] == [OfferState.GONE]
        assert any(isinstance(e, CommGone) for e in agent.scan())


def test_captured_graphs_freeze_and_are_said(
    start: Make, make_ranks: Make, table: str, until: Make
) -> None:
    running = start(table)
    ranks = make_ranks(2)
    ranks.run_until(LARGE)
    rank: Rank = ranks.ranks[0]
    rank.api_call(captured=True)
    obstacle = until(lambda: running.comm()["obstacle"], ranks.step)
    assert obstacle == "frozen: CUDA graphs were captured"
    running.ask(do="bypass", on=True)
    for _ in range(20):
        assert ranks.step() == [LARGE] * 2
    assert running.comm()["on_offer"] is None


def test_ranks_without_a_trusted_clock_are_said(
    start: Make, make_ranks: Make, table: str, until: Make
) -> None:
    running = start(table)
    ranks = make_ranks(2, profiler=4)
    obstacle = until(lambda: running.comm()["obstacle"], ranks.step)
    assert obstacle == "collectives cannot be counted alike on all ranks"
    seen = {reason for r in running.coordinator.file.comm(0).ranks for reason in r.reasons}
    assert Reason.NO_CLOCK in seen


def test_fences_can_be_wanted_on_one_node(
    start: Make, make_ranks: Make, table: str, until: Make
) -> None:
    running = start(table, fences=True)
    ranks = make_ranks(2)
    until(lambda: running.comm()["offer"] == "waits for the job's next fence", ranks.step)
    assert ranks.step() != [LARGE] * 2
    with ShmFile.open(default_path(), writable=True) as file:
        members = [file.fence_member(0, rank) for rank in range(2)]
        assert len({member.propose() for member in members}) == 1
        for member in members:
            member.settle(True)
        assert ranks.step() == [LARGE] * 2
    until(lambda: running.comm()["epoch"] == 1)


def test_once_looks_and_ends(shm_dir: Path, built: Any) -> None:
    found = run(app, ["coordinator", "--once", "--json", "--no-gpu"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.output)["policy"] == "nccl"
    assert list(shm_dir.iterdir()) == []


def test_a_mistake_of_ours_leaves_the_file_for_the_next_one(
    start: Make, make_ranks: Make, table: str
) -> None:
    running = start(table)
    ranks = make_ranks(2)
    ranks.run_until(LARGE)

    def fail() -> None:
        raise AssertionError("a mistake")

    hook, seen = running.hook_errors()
    with hook:
        running.coordinator.turn = fail
        running.coordinator.loop.wake()
        running.join()
    assert seen == ["a mistake"]
    assert default_path().exists()
    again = start(table)
    assert again.coordinator.taken_over
    assert ranks.step() == [LARGE] * 2


def test_the_least_recently_used_key_is_forgotten() -> None:
    cache = DecisionCache(2)
    one = cache.touch((AR, 1), 2)
    one.seen = 5
    cache.touch((AR, 2), 4)
    assert cache.touch((AR, 1), 3).seen == 5
    cache.touch((AR, 3), 8)
    assert [place[1] for place, _ in cache.items()] == [1, 3]
    assert cache.get((AR, 2)) is None
    assert (cache.hits, cache.misses, len(cache)) == (1, 3, 2)
    one.answered_version = 4
    cache.forget_answers()
    assert (one.answered_version, one.seen) == (None, 5)
