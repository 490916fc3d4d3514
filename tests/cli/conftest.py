"""Launchers as processes, a controller of their own, and a coordinator that does as it is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from launching import Launcher, until  # noqa: E402

from ringstep.controller.client import ControllerClient  # noqa: E402
from ringstep.controller.render import job_dict  # noqa: E402


class Controller:
    """``ringstep controller serve`` on a free port of loopback, without switches."""

    def __init__(self, folder: Path, listen: str = "127.0.0.1:0") -> None:
        self.folder = folder
        self.start(listen)

    def start(self, listen: str) -> None:
        ready = self.folder / f"ready-{time.monotonic_ns()}"
        log = (self.folder / "controller.log").open("ab")
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "ringstep.cli", "controller", "serve", "--topology",
                str(ROOT / "examples" / "two-hosts" / "topology.toml"), "--db",
                f"sqlite:///{self.folder / 'store.db'}", "--listen", listen, "--ready-file",
                str(ready),
            ],
            stdout=log,
            stderr=log,
        )  # fmt: skip
        log.close()
        until(ready.exists, "the controller listens")
        self.target: str = json.loads(ready.read_text())["listen"]

    def jobs(self) -> list[dict[str, Any]]:
        """The live jobs, as ``ringstep job list --json`` has them."""

        async def question() -> list[dict[str, Any]]:
            async with ControllerClient(self.target) as client:
                return [job_dict(job) for job in await client.jobs()]

        return asyncio.run(question())

    def release_all(self) -> None:
        async def question() -> None:
            async with ControllerClient(self.target) as client:
                for job in await client.jobs():
                    await client.release(job.id)

        asyncio.run(question())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="session")
def shared_controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    found = Controller(tmp_path_factory.mktemp("controller"))
    yield found
    found.kill()


@pytest.fixture
def controller(shared_controller: Controller) -> Iterator[Controller]:
    """A controller without jobs, for tests that leave it running."""
    yield shared_controller
    shared_controller.release_all()


@pytest.fixture
def new_controller(tmp_path: Path) -> Iterator[Callable[..., Controller]]:
    """Start a controller of the test's own, at an address of its choice."""
    started: list[Controller] = []

    def start(listen: str = "127.0.0.1:0") -> Controller:
        folder = tmp_path / f"controller-{len(started)}"
        folder.mkdir()
        started.append(Controller(folder, listen))
        return started[-1]

    yield start
    for found in started:
        found.kill()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Start ``ringstep run`` with the given words; what is left of it is killed at the end."""
    started: list[Launcher] = []

    def start(*words: str, fake: str | None = "ready", **env: str) -> Launcher:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RINGSTEP_", "NCCL_", "SLURM_", "PMI", "OMPI_", "MPI_", "PET_"))
            or name == "RINGSTEP_NATIVE_DIR"
        }
        for name in ("MASTER_ADDR", "COLUMNS"):
            clean.pop(name, None)
        folder = tmp_path / f"launcher-{len(started)}"
        folder.mkdir()
        env.setdefault("RINGSTEP_SHM_DIR", str(folder / "shm"))
        started.append(Launcher(folder, words, {**clean, **env}, fake))
        return started[-1]

    yield start
    for one in started:
        one.close()
