"""Ranks as processes that torch.distributed joins, on loopback."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import runpy
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.native.build import build, build_engine, missing_tools

JOBS = Path(__file__).with_name("jobs.py")
PATIENCE_S = 120.0
"""For a whole job, on a busy machine; none is meant to take long."""


class World:
    """The ranks of one job: each runs a function of jobs.py in a process of its own."""

    def __init__(self, context: ForkServerContext, folder: Path) -> None:
        self.folder = folder
        self.ranks: list[ForkServerProcess] = []
        self._context = context

    def start(
        self,
        job: str,
        size: int,
        *,
        env: dict[str, str] | None = None,
        env_of: Sequence[dict[str, str]] = (),
        **arguments: Any,
    ) -> None:
        """Start the ranks; ``env`` is for all, ``env_of`` has one more for each."""
        for rank in range(size):
            more = env_of[rank] if env_of else {}
            told = {
                "job": job, "rank": rank, "size": size, "folder": str(self.folder),
                "env": {**(env or {}), **more}, "arguments": arguments,
            }  # fmt: skip
            process = self._context.Process(
                target=runpy.run_path, args=(str(JOBS), {"TOLD": told}, "job"), daemon=True
            )
            process.start()
            self.ranks.append(process)

    def finish(self) -> list[Any]:
        """Wait for all ranks that are to finish; return what they returned."""
        found = self.outcomes()
        wrong = [f"rank {i}:\n{o['trace']}" for i, o in enumerate(found) if "trace" in o]
        assert not wrong, "\n".join(wrong)
        return [o["result"] for o in found]

    def outcomes(self) -> list[dict[str, Any]]:
        """Wait for all ranks; return {"result"} or {"error", "message", "trace"} of each.

        A rank that was killed has {"killed": its exit code}.
        """
        end = time.monotonic() + PATIENCE_S
        for rank, process in enumerate(self.ranks):
            process.join(max(end - time.monotonic(), 0.1))
            assert process.exitcode is not None, f"rank {rank} hangs"
        return [
            json.loads(path.read_text()) if path.exists() else {"killed": process.exitcode}
            for path, process in (
                (self.folder / f"outcome-{rank}.json", p) for rank, p in enumerate(self.ranks)
            )
        ]

    def wait_for(self, name: str) -> None:
        """Wait until a rank has made a file."""
        end = time.monotonic() + PATIENCE_S
        while not (self.folder / name).exists():
            assert time.monotonic() < end, f"no rank made {name}"
            time.sleep(0.01)

    def say(self, name: str) -> None:
        """Make a file that ranks wait for."""
        (self.folder / name).touch()

    def stop(self) -> None:
        """Kill what is left."""
        for process in self.ranks:
            if process.is_alive():
                process.kill()
            process.join()


@pytest.fixture(scope="session")
def context() -> ForkServerContext:
    """A server that has imported torch once, and forks ranks from there."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch; `pip install torch`")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(
        ["torch._dynamo", "torch.distributed", "torch.nn.parallel",
         "torch.optim", "ringstep.hostlib.torch_backend", "ringstep.hostlib.torch_hook",
         "ringstep.hostlib.native.caller"]
    )  # fmt: skip
    return made


@pytest.fixture(scope="session")
def engine_built() -> Path:
    missing = missing_tools("C++")
    if missing is not None:
        pytest.skip(missing)
    return build_engine().library


@pytest.fixture(scope="session")
def plugin_built() -> Path:
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    return build().plugin


@pytest.fixture
def world(context: ForkServerContext, tmp_path: Path) -> Iterator[World]:
    made = World(context, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def another_world(context: ForkServerContext, tmp_path: Path) -> Callable[[], World]:
    """Makes worlds for tests that compare jobs."""
    count = iter(range(100))

    def make() -> World:
        folder = tmp_path / f"world-{next(count)}"
        folder.mkdir()
        return World(context, folder)

    return make
