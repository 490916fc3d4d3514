"""Nodes that share no memory: a skeleton, a stub, and the job's own fences."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringstep.hostlib.shm_layout import Algo, Proto

from .world import CoordinatorProcess, RankProcess, World, audit, until

pytestmark = pytest.mark.root

NODES = ["left", "left", "right", "right"]


@pytest.fixture
def n_hosts() -> int:
    return len(NODES)


def folders(world: World) -> tuple[Path, Path]:
    world.token = "5eed5eed5eed5eed"
    made = (world.folder / "left", world.folder / "right")
    for folder in made:
        folder.mkdir(mode=0o700)
    return made


def skeleton(world: World, folder: Path, policy: str) -> CoordinatorProcess:
    return world.coordinator(
        "--policy", policy, "--listen", "127.0.0.1:0", "--nodes", "2", "--node", "left",
        folder=folder,
    )  # fmt: skip


def stub(world: World, folder: Path, of: CoordinatorProcess) -> CoordinatorProcess:
    (ready,) = of.events("ready")
    made = world.coordinator(
        "--skeleton", ready["address"], "--node", "right", folder=folder,
    )  # fmt: skip
    until(lambda: made.events("linked"), "the stub's link")
    return made


def start(world: World, left: Path, right: Path) -> list[RankProcess]:
    return world.start_ranks(
        folders=[left, left, right, right], nodes=NODES, sizes=[1 << 12, 1 << 18], fence_every=5
    )


def on_both(coordinator: CoordinatorProcess, since: int = 0) -> None:
    """Wait until an epoch is applied on both nodes."""
    until(
        lambda: (
            {e["node"] for e in coordinator.events("applied")[since:]} == {"left", "right"}
            or coordinator.process.poll() is not None
        ),
        "a decision in force on both nodes",
    )
    assert coordinator.process.poll() is None, coordinator.text


def test_nodes_switch_at_the_same_fence(world: World) -> None:
    left, right = folders(world)
    table = world.folder / "table.csv"
    table.write_text("collective,bytes,algorithm,protocol,channels\nallreduce,..,tree,ll,1\n")
    first = skeleton(world, left, "nccl")
    stub(world, right, first)
    watchers = [world.watch(left), world.watch(right)]
    ranks = start(world, left, right)
    world.go_on(ranks, 10)
    first.ask(do="policy", name=f"fixed:{table}")
    on_both(first)
    world.go_on(ranks, 10)
    since = len(first.events("applied"))
    first.ask(do="policy", name="nccl")
    on_both(first, since)
    world.go_on(ranks, 10)
    world.finish(ranks)
    found = audit([r for w in watchers for r in w.close()], len(ranks))
    assert found.differences == []
    assert len(found.epochs) >= 3
    assert (Algo.TREE, Proto.LL, 1, True) in found.settings


def test_node_whose_coordinator_dies_stays_with_the_others(world: World) -> None:
    left, right = folders(world)
    first = skeleton(world, left, "autoccl")
    second = stub(world, right, first)
    watchers = [world.watch(left), world.watch(right)]
    ranks = start(world, left, right)
    on_both(first)
    second.kill()
    second.wait()
    world.go_on(ranks, 15)
    since = len(first.events("applied"))
    stub(world, right, first)
    on_both(first, since)
    first.kill()
    first.wait()
    world.go_on(ranks, 15)
    world.finish(ranks)
    found = audit([r for w in watchers for r in w.close()], len(ranks))
    assert found.differences == []
    assert found.decided > 0


def test_node_without_a_coordinator_keeps_all_at_their_own_choice(world: World) -> None:
    left, right = folders(world)
    table = world.folder / "table.csv"
    table.write_text("collective,bytes,algorithm,protocol,channels\nallreduce,..,tree,ll,1\n")
    world.coordinator("--policy", f"fixed:{table}", folder=left)
    ranks = start(world, left, right)
    world.go_on(ranks, 20)
    assert [result["decided"] for result in world.finish(ranks)] == [0] * len(ranks)
