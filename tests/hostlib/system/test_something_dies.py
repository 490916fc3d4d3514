"""A rank or the coordinator dies, hangs or is not there while ranks run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ringstep.hostlib.shm_layout import Algo, Proto

from .world import CoordinatorProcess, World, audit, until

pytestmark = pytest.mark.root


@pytest.fixture
def table(world: World) -> Path:
    path = world.folder / "table.csv"
    path.write_text("collective,bytes,algorithm,protocol,channels\nallreduce,..,ring,ll,2\n")
    return path


def applied(coordinator: CoordinatorProcess, more_than: int = 0) -> int:
    """Wait for one more decision in force on all ranks; return how many there were."""
    until(
        lambda: (
            len(coordinator.events("applied")) > more_than or coordinator.process.poll() is not None
        ),
        "a decision in force",
    )
    assert coordinator.process.poll() is None, coordinator.text
    return len(coordinator.events("applied"))


def test_rank_that_dies_ends_the_others_and_the_next_job_is_served(
    world: World, table: Path
) -> None:
    coordinator = world.coordinator("--policy", f"fixed:{table}")
    watcher = world.watch()
    ranks = world.start_ranks()
    count = applied(coordinator)
    world.go_on(ranks, 5)
    ranks[2].kill()
    for rank in (ranks[0], ranks[1]):
        assert rank.wait() == 3, rank.text
        assert rank.result["error"] == "PeerLost", rank.result
        assert "rank 2" in rank.result["text"]
    again = world.start_ranks()
    applied(coordinator, count)
    world.go_on(again, 5)
    assert all(result["decided"] for result in world.finish(again))
    found = audit(watcher.close(), len(ranks))
    assert found.differences == []
    assert (Algo.RING, Proto.LL, 2, True) in found.settings


def test_coordinator_that_dies_is_followed_by_one_that_decides_on(
    world: World, table: Path
) -> None:
    first = world.coordinator("--policy", f"fixed:{table}")
    watcher = world.watch()
    ranks = world.start_ranks()
    applied(first)
    world.go_on(ranks, 5)
    first.kill()
    first.wait()
    world.go_on(ranks, 20)  # what is in force stays
    table.write_text("collective,bytes,algorithm,protocol,channels\nallreduce,..,tree,simple,1\n")
    second = world.coordinator("--policy", f"fixed:{table}")
    assert second.events("ready")[0]["taken_over"]
    applied(second)
    world.go_on(ranks, 5)
    world.finish(ranks)
    found = audit(watcher.close(), len(ranks))
    assert found.differences == []
    for setting in ((Algo.RING, Proto.LL, 2, True), (Algo.TREE, Proto.SIMPLE, 1, True)):
        assert setting in found.settings


@pytest.mark.slow
def test_coordinator_that_dies_over_and_over_while_it_switches(world: World, table: Path) -> None:
    """Killed at any moment of an offer; epochs go on counting and ranks stay together."""
    watcher = None
    ranks = []
    for turn in range(6):
        coordinator = world.coordinator("--policy", "autoccl")
        if watcher is None:
            watcher = world.watch()
            ranks = world.start_ranks()
        applied(coordinator, turn % 3)
        coordinator.kill()
        coordinator.wait()
    world.go_on(ranks, 10)
    world.finish(ranks)
    assert watcher is not None
    found = audit(watcher.close(), len(ranks))
    assert found.differences == []
    assert len(found.epochs) >= 6


def test_coordinator_that_hangs_holds_nobody_up(world: World, table: Path) -> None:
    coordinator = world.coordinator("--policy", "nccl")
    watcher = world.watch()
    ranks = world.start_ranks()
    world.go_on(ranks, 20)
    coordinator.kill(signal.SIGSTOP)
    world.go_on(ranks, 50)
    coordinator.kill(signal.SIGCONT)
    coordinator.ask(do="policy", name=f"fixed:{table}")
    applied(coordinator)
    world.go_on(ranks, 5)
    assert all(result["decided"] for result in world.finish(ranks))
    assert audit(watcher.close(), len(ranks)).differences == []


def test_without_a_coordinator_ranks_run_as_ever(world: World) -> None:
    ranks = world.start_ranks()
    world.go_on(ranks, 20)
    assert [result["decided"] for result in world.finish(ranks)] == [0] * len(ranks)


def test_coordinator_that_comes_late_is_for_the_next_communicator(
    world: World, table: Path
) -> None:
    """A rank looks for the file when a communicator is made, never later."""
    early = world.start_ranks()
    world.go_on(early, 5)
    world.coordinator("--policy", f"fixed:{table}")
    world.go_on(early, 20)
    assert [result["decided"] for result in world.finish(early)] == [0] * len(early)
