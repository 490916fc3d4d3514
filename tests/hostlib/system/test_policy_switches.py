"""The policy changes while ranks run: no result changes, and all ranks change at one index."""

from __future__ import annotations

import pytest

from ringstep.hostlib.shm_layout import Algo, Proto

from .world import World, audit, until

pytestmark = pytest.mark.root

TABLE = """collective,bytes,algorithm,protocol,channels
allreduce,..64KiB,tree,ll,1
allreduce,64KiB..,ring,simple,2
allgather,..,ring,simple,2
"""


def test_policies_follow_one_another_under_way(world: World) -> None:
    table = world.folder / "table.csv"
    table.write_text(TABLE)
    coordinator = world.coordinator("--policy", "nccl")
    watcher = world.watch()
    ranks = world.start_ranks(comms=2, sizes=[1 << 10, 1 << 16, 1 << 20])
    world.go_on(ranks, 30)
    assert coordinator.events("applied") == []
    coordinator.ask(do="policy", name=f"fixed:{table}")
    until(lambda: coordinator.events("applied"), "the table in force")
    world.go_on(ranks, 10)
    coordinator.ask(do="policy", name="autoccl")
    before = len(coordinator.events("applied"))
    until(lambda: len(coordinator.events("applied")) >= before + 8, "some of the search")
    coordinator.ask(do="policy", name="nccl")
    world.go_on(ranks, 20)
    world.finish(ranks)
    found = audit(watcher.close(), len(ranks))
    assert found.differences == []
    assert len(found.epochs) >= 5
    assert found.decided > 0
    assert (Algo.TREE, Proto.LL, 1, True) in found.settings  # of the table
    assert len({setting for setting in found.settings if setting[-1]}) >= 3  # and of the search
