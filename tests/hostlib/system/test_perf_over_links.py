"""`ringstep-perf`, a rank on each host, while the coordinator searches."""

from __future__ import annotations

import json
import subprocess

import pytest

from ringstep.hostlib.native.build import build_engine

from .world import World, audit

pytestmark = pytest.mark.root


@pytest.fixture
def n_hosts() -> int:
    return 4  # by which the sizes can be divided


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_search_changes_times_and_no_result(world: World, collective: str) -> None:
    """The program itself says at the end of each size whether all ranks ran the same."""
    coordinator = world.coordinator("--policy", "autoccl")
    watcher = world.watch()
    n_ranks = world.hosts.count
    ranks = [
        world.hosts.start(
            rank,
            [str(build_engine().perf), collective, "--rank", str(rank), "--ranks", str(n_ranks),
             "--root", f"{world.hosts.address(0)}:29400", "--bind", world.hosts.address(rank),
             "--sizes", "64K,1M", "-n", "10", "--duration", "2", "--fence", "3",
             "--json"],
            env=world.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(n_ranks)
    ]  # fmt: skip
    said = [rank.communicate(timeout=90) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * n_ranks, [err for _, err in said]
    result = json.loads(said[0][0])
    assert result["wrong"] == 0
    assert [row["size"] for row in result["rows"]] == [1 << 16, 1 << 20]
    found = audit(watcher.close(), n_ranks)
    assert found.differences == []
    assert found.decided > 0  # each host is a node here, so switches come at the fences
    assert coordinator.ask(do="status")["fault"] is None
