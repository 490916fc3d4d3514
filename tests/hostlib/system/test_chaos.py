"""Policies switched and coordinators killed at random moments, a number of times."""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path

import pytest

from ringstep.hostlib.coordinator.control import ControlError

from .world import CoordinatorProcess, World, audit

pytestmark = [pytest.mark.root, pytest.mark.slow]

TURNS = 12
ROWS = (("tree", "ll", 1), ("ring", "simple", 4), ("ring", "ll", 2), ("tree", "simple", 3))


def policies(world: World) -> list[str]:
    found = ["nccl", "autoccl", "autoccl"]
    for number, (algorithm, protocol, channels) in enumerate(ROWS):
        table = world.folder / f"{number}.csv"
        table.write_text(
            "collective,bytes,algorithm,protocol,channels\n"
            f"allreduce,..,{algorithm},{protocol},{channels}\n"
            f"allgather,..,ring,{protocol},{channels}\n"
        )
        found.append(f"fixed:{table}")
    return found


def start(world: World, folders: list[Path], policy: str) -> list[CoordinatorProcess]:
    if len(folders) == 1:
        return [world.coordinator("--policy", policy, folder=folders[0])]
    skeleton = world.coordinator(
        "--policy", policy, "--listen", "127.0.0.1:0", "--nodes", "2", "--node", "0",
        folder=folders[0],
    )  # fmt: skip
    address = skeleton.events("ready")[0]["address"]
    stub = world.coordinator("--skeleton", address, "--node", "1", folder=folders[1])
    return [skeleton, stub]


SEEDS = range(1, 1 + int(os.environ.get("RINGSTEP_CHAOS_SEEDS", "1")))


@pytest.mark.parametrize("n_nodes", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_stay_together_whatever_happens_to_coordinators(
    world: World, n_nodes: int, seed: int
) -> None:
    chance = random.Random(seed)
    world.token = "5eed5eed5eed5eed"
    folders = [world.folder / str(node) for node in range(n_nodes)]
    for folder in folders:
        folder.mkdir(mode=0o700)
    names = policies(world)
    coordinators = start(world, folders, chance.choice(names))
    watchers = [world.watch(folder) for folder in folders]
    where = [rank * n_nodes // world.hosts.count for rank in range(world.hosts.count)]
    ranks = world.start_ranks(
        folders=[folders[node] for node in where], nodes=[str(node) for node in where],
        sizes=[1 << 8, 1 << 12, 1 << 16], comms=2 if n_nodes == 1 else 1,
        fence_every=0 if n_nodes == 1 else 3,
    )  # fmt: skip
    for _ in range(TURNS):
        time.sleep(chance.uniform(0.05, 0.5))
        if chance.random() < 0.3:
            for coordinator in coordinators:
                coordinator.kill()
                coordinator.wait()
            coordinators = start(world, folders, chance.choice(names))
        else:
            with contextlib.suppress(ControlError):
                coordinators[0].ask(do="policy", name=chance.choice(names))
    world.go_on(ranks, 1)
    world.finish(ranks)
    found = audit([r for w in watchers for r in w.close()], world.hosts.count)
    assert found.differences == []
    assert found.indices > 0
    assert len(found.epochs) > 1  # it switched
    assert found.decided > 0
