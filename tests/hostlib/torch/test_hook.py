"""The hook in a training loop: what the coordinator sees of it, and what ranks settle by it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.native.build import missing_tools
from ringstep.hostlib.shm import Decision, DecisionTable, Record, ShmFile
from ringstep.hostlib.shm_layout import Algo, Collective, Proto, RecordFlag, Scope, SlotState

PARAMETER_BYTES = 4 * (64 * 256 + 256 + 256 * 256 + 256 + 256 * 8 + 8)
"""Of the model in jobs.py: what DDP reduces per step."""


@pytest.fixture(autouse=True)
def compiler() -> None:
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)


def env(folder: Path) -> dict[str, str]:
    return {"RINGSTEP_SHM_DIR": str(folder), "RINGSTEP_SHM_TOKEN": "a1"}


def make_file(folder: Path) -> ShmFile:
    return ShmFile.create(folder / "default.shm", token=0xA1)


def records(file: ShmFile) -> list[Record]:
    return [r for ring in file.rings() for r in ring.poll() if isinstance(r, Record)]


def table(channels: int) -> DecisionTable:
    made = DecisionTable()
    made.set(Collective.ALL_REDUCE, range(64), Decision(Algo.RING, Proto.LL, channels))
    return made


def look_at_training(world: Any, file: ShmFile, backend: str) -> tuple[list[Any], list[Any]]:
    """Run the job; return what the ranks counted, and the communicators while they trained."""
    world.start("hooked", 2, env=env(world.folder), backend=backend)
    for rank in range(2):
        world.wait_for(f"trained-{rank}")
    comms = list(file.comms())
    world.say("looked")
    return world.finish(), comms


def test_buckets_of_ddp_and_all_else_are_seen_on_gloo(world: Any) -> None:
    with make_file(world.folder) as file:
        counted, comms = look_at_training(world, file, "gloo")
        found = records(file)
        left = list(file.comms())
    (comm,) = comms
    assert (comm.n_ranks, comm.n_nodes) == (2, 1)
    assert [r.state for r in comm.ranks] == [SlotState.ATTACHED] * 2
    assert all(c.ranks == () or c.ranks[0].state is SlotState.LEFT for c in left)
    for rank in range(2):
        mine = [r for r in found if r.rank == rank and r.comm == comm.index]
        assert counted[rank]["seen"] == [len(mine), 0]
        reduced = [r for r in mine if r.func is Collective.ALL_REDUCE]
        assert sum(r.bytes for r in reduced) == 3 * PARAMETER_BYTES
        assert len(reduced) > 3  # Several buckets per step.
        assert [r.coll_seq for r in sorted(reduced, key=lambda r: r.index)] == list(
            range(len(reduced))
        )
        assert [r.bytes for r in mine if r.func is Collective.BROADCAST][-1] == 4000
        assert [r.bytes for r in mine if r.func is Collective.ALL_GATHER][-1] == 80
        assert all(r.flags == RecordFlag.HOST_TIMER and r.duration_ns > 0 for r in mine)
        assert sorted(r.index for r in mine) == list(range(len(mine)))
    for rank in counted:
        assert rank["steps"] == 3
        assert rank["fences"] == 1
        assert rank["second"].startswith("RuntimeError: the group has a hook already")
        assert rank["again"] is True


def test_the_engines_backend_is_seen_too(world: Any, engine_built: Path) -> None:
    with make_file(world.folder) as file:
        counted, _ = look_at_training(world, file, "ringstep")
        found = records(file)
    assert all(rank["seen"][0] > 10 and rank["seen"][1] == 0 for rank in counted)
    reduced = [r for r in found if r.func is Collective.ALL_REDUCE and r.rank == 0]
    assert sum(r.bytes for r in reduced) == 3 * PARAMETER_BYTES


def test_what_the_profiler_reports_is_not_reported_twice(
    world: Any, engine_built: Path, plugin_built: Path
) -> None:
    plugins = dict.fromkeys(("NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"), str(plugin_built))
    with make_file(world.folder) as file:
        world.start("hooked", 2, env={**env(world.folder), **plugins}, backend="ringstep")
        world.say("looked")
        counted = world.finish()
        found = records(file)
    assert [rank["seen"] for rank in counted] == [None, None]
    reduced = [r for r in found if r.func is Collective.ALL_REDUCE and r.rank == 0]
    assert sum(r.bytes for r in reduced if r.bytes > 1000) == 3 * PARAMETER_BYTES
    assert all(r.algo is not None for r in reduced)


def test_fences_settle_over_two_nodes_and_a_replaced_coordinator(
    world: Any, tmp_path: Path
) -> None:
    """Each node has a file of its own; the switch is at the same collective on both."""
    steps = 6
    nodes = [tmp_path / f"node-{i}" for i in range(2)]
    files = [make_file(node) for node in nodes]
    world.start("fenced", 2, env_of=[env(node) for node in nodes], steps=steps)
    for rank in range(2):
        world.wait_for(f"attached-{rank}")
    blocks = []
    for file in files:
        (block,) = (c.index for c in file.comms() if c.comm_id == 0xF00D)
        assert all((c.n_ranks, c.n_nodes) == (2, 2) for c in file.comms())
        file.set_scope(block, Scope.FENCED)
        file.announce(block, 1, table(5))
        blocks.append(block)
    world.say("announced")
    for rank in range(2):
        world.wait_for(f"fenced-{rank}")
    seen = [records(file) for file in files]
    files[0].close()  # The coordinator of one node dies; another one takes its file over.
    files[0] = ShmFile.reopen(files[0].path)
    for file, block in zip(files, blocks, strict=True):
        file.announce(block, 2, table(6))
    world.say("replaced")
    first, second = world.finish()
    later = [records(file) for file in files]
    for file in files:
        file.close()
    assert first == second
    assert first["channels"][0] == 0
    assert first["channels"] == sorted(first["channels"])
    assert first["channels"][-1] == 5
    assert first["switches"] == 1
    assert first["epochs"] == [[0xF00D, 1]]
    channels, switches = first["later"]
    assert channels == sorted(channels)
    assert channels[-1] == 6
    assert switches == 2
    assert all(seen), "both coordinators read records"
    assert all(len(after) > len(before) for before, after in zip(seen, later, strict=True))


def test_a_job_on_the_engine_switches_over_two_nodes_at_one_collective(
    world: Any, tmp_path: Path, engine_built: Path, plugin_built: Path
) -> None:
    nodes = [tmp_path / f"node-{i}" for i in range(2)]
    files = [make_file(node) for node in nodes]
    plugins = dict.fromkeys(("NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"), str(plugin_built))
    named = [{**env(node), "RINGSTEP_ENGINE_NODE": node.name} for node in nodes]
    world.start("fenced_on_the_engine", 2, env=plugins, env_of=named, steps=5)
    for rank in range(2):
        world.wait_for(f"attached-{rank}")
    for file in files:
        (block,) = (c.index for c in file.comms())
        file.set_scope(block, Scope.FENCED)
        file.announce(block, 1, table(3))
    world.say("announced")
    first, second = world.finish()
    for file in files:
        file.close()
    assert first == second
    ran, switches, n_nodes = first
    assert n_nodes == 2
    assert switches == 1
    decided = [run[2] for run in ran]
    assert decided[0] is False
    assert decided == sorted(decided)
    assert ran[-1] == ["RING", 3, True]


@pytest.fixture
def coordinate(tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Starts coordinators; returns what each said when it was ready."""
    with contextlib.ExitStack() as stack:

        def start(folder: Path, *arguments: str) -> dict[str, Any]:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "ringstep.cli", "tuner", "coordinator", "--no-gpu",
                     "--json", *arguments],
                    env={**os.environ, **env(folder)}, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, text=True,
                )
            )  # fmt: skip
            stack.callback(process.terminate)
            assert process.stdout is not None
            return dict(json.loads(process.stdout.readline()))

        yield start


@pytest.mark.slow
def test_coordinators_of_two_nodes_decide_for_a_job_by_its_fences(
    world: Any, tmp_path: Path, coordinate: Any, engine_built: Path, plugin_built: Path
) -> None:
    nodes = [tmp_path / f"node-{i}" for i in range(2)]
    fixed = tmp_path / "table.csv"
    columns = "collective,bytes,algorithm,protocol,channels,chunk"
    fixed.write_text(f"{columns}\nallreduce,..,tree,simple,2,\n")
    first = coordinate(nodes[0], "--policy", f"fixed:{fixed}", "--nodes", "2", "--node", "a",
                       "--listen", "127.0.0.1:0")  # fmt: skip
    coordinate(nodes[1], "--skeleton", first["address"], "--node", "b")
    plugins = dict.fromkeys(("NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"), str(plugin_built))
    named = [{**env(node), "RINGSTEP_ENGINE_NODE": node.name} for node in nodes]
    world.start("until_switched", 2, env=plugins, env_of=named)
    ours, theirs = world.finish()
    assert ours == theirs
    assert ours[1:] == [1, "TREE", "SIMPLE", 2, True]


def test_without_a_file_nothing_is_done(world: Any) -> None:
    world.start("unattached", 2, env=env(world.folder))
    assert world.finish() == [{"recorder": True, "fences": 0, "steps": 3}] * 2


def test_a_node_without_a_file_means_telemetry_only(world: Any, tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    with make_file(tmp_path / "with") as file:
        folders = [env(tmp_path / "with"), env(tmp_path / "without")]
        world.start("unattached", 2, env_of=folders)
        first, second = world.finish()
        assert {r.rank for r in records(file)} == {0}
    assert first == {"recorder": False, "fences": 0, "steps": 3}
    assert second == {"recorder": True, "fences": 0, "steps": 3}


@pytest.mark.parametrize("token", ["b2", "not hexadecimal"])
def test_a_file_of_another_run_is_left_alone(world: Any, token: str) -> None:
    with make_file(world.folder) as file:
        world.start("unattached", 1, env={**env(world.folder), "RINGSTEP_SHM_TOKEN": token})
        assert world.finish() == [{"recorder": True, "fences": 0, "steps": 3}]
        assert not list(file.comms())


def test_a_truncated_file_is_left_alone(world: Any) -> None:
    (world.folder / "default.shm").write_bytes(b"half a fi")
    world.start("unattached", 1, env=env(world.folder))
    assert world.finish() == [{"recorder": True, "fences": 0, "steps": 3}]


def test_a_job_name_that_is_none_leaves_training_alone(world: Any) -> None:
    world.start("unattached", 1, env={**env(world.folder), "RINGSTEP_JOB": "../../etc"})
    assert world.finish() == [{"recorder": True, "fences": 0, "steps": 3}]


def test_attach_refuses_what_cannot_work(world: Any) -> None:
    with make_file(world.folder):
        world.start("attach_badly", 2, env=env(world.folder))
        first, second = world.finish()
    for found in (first, second):
        assert "after torch.distributed.init_process_group" in found["before"]
        assert found["negative"].startswith("ValueError: every=-1")
        assert "1 to 2 among the ranks" in found["differs"]
    assert "not in the group" in second["stranger"]


def test_a_fence_that_fails_fails_the_job(world: Any) -> None:
    with make_file(world.folder):
        world.start("fence_without_peer", 2, env=env(world.folder))
        survivor, gone = world.outcomes()
    assert gone == {"killed": 7}
    assert survivor["result"] != "nothing"
    assert "Error" in survivor["result"]


def test_an_optimizer_can_step_the_hook(world: Any) -> None:
    world.start("followed", 1, env=env(world.folder))
    assert world.finish() == [3]
