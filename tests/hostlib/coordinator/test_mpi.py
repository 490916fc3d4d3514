"""Skeleton and stub as the two processes of an MPI job."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.coordinator.control import ControlError, ask, socket_path
from ringstep.hostlib.native.build import Built
from ringstep.hostlib.native.caller import Plugin, Rank
from ringstep.hostlib.shm import ShmError, ShmFile, default_path

Make = Callable[..., Any]


def mpiexec() -> str:
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("needs mpi4py; `pip install mpi4py mpich`")
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("needs mpiexec; `pip install mpich`")
    return found


def answer(path: Path) -> dict[str, Any] | None:
    try:
        return ask(socket_path(path), {"do": "status"})
    except ControlError:
        return None


def test_both_nodes_of_an_mpi_job_get_the_same_table(
    tmp_path: Path, shm_dir: Path, built: Built, until: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = mpiexec()
    table = tmp_path / "t.csv"
    table.write_text("collective,bytes,algorithm,protocol,channels\nallreduce,..,ring,ll,9\n")
    paths = [default_path("j", tmp_path / name) for name in "ab"]
    command = [launcher]
    for path in paths:
        command += [
            *([":"] if len(command) > 1 else []), "-n", "1", sys.executable, "-m",
            "ringstep.cli.main", "tuner", "coordinator", "--mpi", "--no-gpu", "--job", "j",
            "--shm", str(path.parent), "--policy", f"fixed:{table}",
        ]  # fmt: skip
    environment = {**os.environ, "RINGSTEP_SHM_TOKEN": "5eed"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as job:  # fmt: skip
        try:
            until(lambda: job.poll() is not None or all(answer(path) for path in paths))
            if job.poll() is not None:
                assert job.stdout is not None
                said = job.stdout.read()
                if "--mpi needs mpi4py" in said:
                    pytest.skip("needs an MPI library that mpi4py finds; `pip install mpich`")
                raise AssertionError(said)
            monkeypatch.setenv("RINGSTEP_SHM_TOKEN", "5eed")
            monkeypatch.setenv("RINGSTEP_JOB", "j")
            ranks = []
            for node, path in enumerate(paths):
                library = tmp_path / f"plugin{node}.so"
                shutil.copy(built.plugin, library)
                monkeypatch.setenv("RINGSTEP_SHM_DIR", str(path.parent))
                ranks.append(Rank(Plugin(library), 5, 2, node, n_nodes=2))
            files = [ShmFile.open(path, writable=True) for path in paths]

            def step() -> list[int]:
                return [rank.collective()[1] for rank in ranks]

            def switched() -> bool:
                step()
                try:
                    members = [file.fence_member(0, rank) for rank, file in enumerate(files)]
                except ShmError:
                    return False
                pairs = [member.propose() for member in members]
                for member in members:
                    member.settle(pairs[0] == pairs[1] and pairs[0][0] > 0)
                return step() == [9, 9]

            until(switched)
            status = until(lambda: [s for s in [answer(paths[0])] if s and s["epoch"] == 1])[0]
            assert status["nodes"] == ["rank 0", "rank 1"]
            stub = answer(paths[1])
            assert stub is not None
            assert (stub["role"], stub["linked"]) == ("stub", True)
            for rank in ranks:
                rank.finalize()
            for file in files:
                file.close()
            for path in reversed(paths):
                ask(socket_path(path), {"do": "stop"})
            assert job.wait(60) == 0
        finally:
            job.kill()
    assert [p for path in paths for p in path.parent.iterdir()] == []


def test_without_mpi4py_it_is_said(monkeypatch: pytest.MonkeyPatch, shm_dir: Path) -> None:
    from typer.testing import CliRunner

    from ringstep.hostlib.cli import app

    monkeypatch.setitem(sys.modules, "mpi4py", None)
    found = CliRunner().invoke(app, ["coordinator", "--mpi", "--no-gpu"])
    assert found.exit_code == 2
    assert "--mpi needs mpi4py and an MPI library" in found.stderr
