"""DistributedDataParallel on the engine with the plugin in it, and what may go wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.shm import Decision, DecisionTable, Record, ShmFile
from ringstep.hostlib.shm_layout import Algo, Collective, Proto, RecordFlag

pytestmark = pytest.mark.usefixtures("engine_built")


def fixed_table() -> DecisionTable:
    """Something that the cost model would not choose by itself for these sizes."""
    made = DecisionTable()
    made.set(Collective.ALL_REDUCE, range(10, 30), Decision(Algo.TREE, Proto.SIMPLE, n_channels=3))
    return made


def records(file: ShmFile) -> list[Record]:
    return [r for ring in file.rings() for r in ring.poll() if isinstance(r, Record)]


def test_ddp_trains_as_on_gloo_while_a_fixed_table_is_in_force(
    another_world: Callable[[], Any], plugin_built: Path, tmp_path: Path
) -> None:
    ranks, steps = 3, 5
    with ShmFile.create(tmp_path / "job.shm", token=0x5EED) as file:
        digest = file.write_static(fixed_table())
        ours, theirs = another_world(), another_world()
        env = {
            "NCCL_TUNER_PLUGIN": str(plugin_built), "NCCL_PROFILER_PLUGIN": str(plugin_built),
            "RINGSTEP_SHM_DIR": str(tmp_path), "RINGSTEP_JOB": "job", "RINGSTEP_SHM_TOKEN": "5eed",
            "RINGSTEP_STATIC_DIGEST": f"{digest:x}",
        }  # fmt: skip
        ours.start("ddp", ranks, env=env, backend="ringstep", steps=steps)
        found = ours.finish()
        theirs.start("ddp", ranks, backend="gloo", steps=steps)
        wanted = theirs.finish()
        seen = records(file)
    assert all(rank == found[0] for rank in found)
    assert found[0] == pytest.approx(wanted[0], rel=1e-4, abs=1e-6)
    reduced = [r for r in seen if r.func is Collective.ALL_REDUCE and r.bytes >= 1024]
    assert len(reduced) >= ranks * steps
    assert {(r.algo, r.proto) for r in reduced} == {(Algo.TREE, Proto.SIMPLE)}
    assert all(RecordFlag.DECIDED in r.flags for r in reduced)
    assert all(r.duration_ns > 0 and 1 <= r.n_channels <= 3 for r in reduced)
    assert {r.rank for r in reduced} == set(range(ranks))


def test_a_rank_killed_in_training_ends_the_others(world: Any) -> None:
    world.start("ddp_until_killed", 3, backend="ringstep")
    for rank in range(3):
        world.wait_for(f"training-{rank}")
    world.ranks[1].kill()
    first, killed, last = world.outcomes()
    assert killed == {"killed": -signal.SIGKILL}
    for survivor in (first, last):
        assert "result" in survivor, survivor
        print(survivor)
        assert "DistBackendError" in survivor["result"]
        assert "rank" in survivor["result"]


def test_ctrl_c_ends_training_on_all_ranks(world: Any) -> None:
    world.start("ddp_until_interrupted", 2, backend="ringstep")
    for rank in range(2):
        world.wait_for(f"training-{rank}")
    for process in world.ranks:
        os.kill(process.pid, signal.SIGINT)
    assert set(world.finish()) <= {"interrupted", "peer left"}
    assert [process.exitcode for process in world.ranks] == [0, 0]
