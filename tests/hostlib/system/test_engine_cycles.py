"""Communicators made and ended 100 times through the engine: nothing is left over."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringstep.hostlib.native.build import Built
from ringstep.hostlib.shm import Decision, DecisionTable, ShmFile, default_path
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

RANK = r"""
import json, os, sys
import numpy as np
from ringstep.hostlib.engine import Comm, Engine

rank, ids, cycles, plugin = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
engine = Engine()
out = sys.stdout if rank == 0 else open(ids)

def counts():
    maps = open("/proc/self/maps").read()
    return {"fds": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")),
            "mapped": maps.count(os.path.basename(plugin)), "files": maps.count(".shm")}

wrong = decided = 0
for cycle in range(3 + cycles):
    if cycle == 3:
        before = counts()
    if rank == 0:
        place = engine.unique_id()
        with open(ids, "a") as file:
            file.write(place.hex() + "\n")
    else:
        line = ""
        while not line.endswith("\n"):
            line += out.readline()
        place = bytes.fromhex(line.strip())
    with Comm(engine, place, 2, rank, timeout_s=60) as comm:
        data = np.full(1000, rank + 1, np.float32)
        comm.all_reduce(data)
        wrong += int((data != 3).any())
        decided += comm.last_run().decided
after = counts()
print(json.dumps({"left": {k: after[k] - before[k] for k in after}, "mapped": after["mapped"],
                  "files": after["files"], "wrong": wrong, "decided": decided}))
"""


@pytest.mark.parametrize("with_file", [True, False])
def test_a_hundred_communicators_leave_nothing_behind(
    built: Built, tmp_path: Path, with_file: bool
) -> None:
    """Plugins are loaded with the first communicator and unloaded with the last, as in NCCL."""
    ids = tmp_path / "ids"
    ids.touch()
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("NCCL_")},
        "NCCL_TUNER_PLUGIN": str(built.plugin),
        "NCCL_PROFILER_PLUGIN": str(built.plugin),
        "RINGSTEP_SHM_DIR": str(tmp_path),
    }
    table = DecisionTable()
    table.set(Collective.ALL_REDUCE, range(64), Decision(Algo.TREE, Proto.LL, 1))
    with contextlib.ExitStack() as stack:
        if with_file:
            shm = stack.enter_context(ShmFile.create(default_path(directory=tmp_path)))
            shm.write_static(table)
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, str(rank), str(ids), "100", str(built.plugin)],
                    env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
            )
            for rank in range(2)
        ]  # fmt: skip
        stack.callback(lambda: [rank.kill() for rank in ranks])
        for rank in ranks:
            out, err = rank.communicate(timeout=90)
            assert rank.returncode == 0, err
            found = json.loads(out)
            assert found["left"] == {"fds": 0, "threads": 0, "mapped": 0, "files": 0}
            assert (found["mapped"], found["files"]) == (0, 0)
            assert found["wrong"] == 0
            assert found["decided"] == (103 if with_file else 0)
        if with_file:
            assert list(shm.comms()) == []
