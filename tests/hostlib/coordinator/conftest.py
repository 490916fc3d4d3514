"""Coordinators in this process and in others, and ranks that call the plugin as NCCL does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.coordinator.control import ask, socket_path
from ringstep.hostlib.coordinator.service import Config, Coordinator
from ringstep.hostlib.native.build import Built, build, missing_tools
from ringstep.hostlib.native.caller import Plugin, Rank
from ringstep.hostlib.shm import default_path
from ringstep.hostlib.shm_layout import Collective

PATIENCE_S = 60.0
"""Longer than anything takes on a busy machine; only a failure takes that long."""


def _until(condition: Callable[[], Any], doing: Callable[[], Any] = lambda: None) -> Any:
    """Wait for a condition, doing something meanwhile; return what it gave."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"never came: {condition}"
        doing()
        time.sleep(0.001)


Until = Callable[..., Any]


@pytest.fixture(name="until")
def until_fixture() -> Until:
    return _until


@pytest.fixture(scope="session")
def built() -> Built:
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    return build()


@pytest.fixture(scope="session")
def plugin(built: Built) -> Plugin:
    return Plugin(built.plugin)


@pytest.fixture
def shm_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [n for n in os.environ if n.startswith("RINGSTEP_") and "NATIVE" not in n]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    monkeypatch.setenv("RINGSTEP_SHM_DIR", str(tmp_path))
    return tmp_path


MakeRank = Callable[..., Rank]


@pytest.fixture
def make_rank(plugin: Plugin, shm_dir: Path) -> Iterator[MakeRank]:
    made: list[Rank] = []

    def make(*args: Any, **options: Any) -> Rank:
        made.append(Rank(plugin, *args, **options))
        return made[-1]

    yield make
    for rank in made:
        with contextlib.suppress(AssertionError):
            rank.finalize()


class Running:
    """A coordinator on a thread of this process."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self._thread = threading.Thread(target=coordinator.run)
        self._thread.start()

    def ask(self, **request: Any) -> dict[str, Any]:
        return ask(socket_path(self.coordinator.config.path), request)

    def status(self) -> dict[str, Any]:
        return self.ask(do="status")

    def comm(self) -> dict[str, Any]:
        """Wait for the one communicator and return it."""
        (found,) = _until(lambda: self.status()["communicators"])
        assert isinstance(found, dict)
        return found

    def stop(self) -> None:
        self.coordinator.stop()
        self.join()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def hook_errors(self) -> tuple[contextlib.AbstractContextManager[None], list[str]]:
        """Collect what ends a thread, instead of failing the test."""
        seen: list[str] = []

        @contextlib.contextmanager
        def hook() -> Iterator[None]:
            before = threading.excepthook
            threading.excepthook = lambda what: seen.append(str(what.exc_value))
            try:
                yield
            finally:
                threading.excepthook = before

        return hook(), seen


@pytest.fixture
def start(shm_dir: Path, built: Built) -> Iterator[Callable[..., Running]]:
    """Starts coordinators that end with the test."""
    running: list[Running] = []

    def make(policy: str = "nccl", job: str = "default", *, tell: Any = None, gpu: Any = None,
             links: Any = None, uplink: Any = None, **options: Any) -> Running:  # fmt: skip
        path = options.pop("path", None) or default_path(job)
        config = Config(path=path, policy=policy, **options)
        running.append(Running(Coordinator(config, tell=tell, gpu=gpu, links=links,
                                           uplink=uplink)))  # fmt: skip
        return running[-1]

    yield make
    for one in running:
        one.stop()


@pytest.fixture
def start_process(shm_dir: Path, built: Built) -> Iterator[Callable[..., Process]]:
    """Starts `ringstep tuner coordinator` as a process that ends with the test."""
    running: list[Process] = []

    def make(*arguments: str, environment: dict[str, str] | None = None) -> Process:
        running.append(Process(arguments, environment or {}))
        return running[-1]

    yield make
    for one in running:
        one.end()


class Process:
    """`ringstep tuner coordinator … --json` and what it printed."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "ringstep.cli.main", "tuner", "coordinator", "--json"]
        self.process = subprocess.Popen(
            [*command, "--no-gpu", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **environment},
        )  # fmt: skip
        self.told: list[dict[str, Any]] = []
        self.errors = ""
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._log)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.append(json.loads(line))

    def _log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line

    def event(self, name: str) -> dict[str, Any]:
        """Wait for an event and return it."""
        found = _until(lambda: [e for e in self.told if e["event"] == name])
        assert isinstance(found, list)
        first = found[0]
        assert isinstance(first, dict)
        return first

    def end(self) -> int:
        """End it as an operator would; return its status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(PATIENCE_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            for thread in self._threads:
                thread.join()
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()
        return code


class Ranks:
    """All ranks of one communicator, in this process, one collective at a time."""

    def __init__(self, make_rank: MakeRank, n: int = 2, comm_id: int = 0xABC, **options: Any):
        self.ranks = [make_rank(comm_id, n, rank, **options) for rank in range(n)]

    def step(
        self, collective: Collective = Collective.ALL_REDUCE, n_bytes: int = 1 << 20
    ) -> list[tuple[tuple[int, int] | None, int]]:
        """Run one collective; return for each rank what NCCL would choose, and channels."""
        answers = []
        gathers = collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
        for rank in self.ranks:
            api = rank.api_call()
            costs, channels = rank.get_coll_info(collective, n_bytes)
            count = n_bytes // 4 // (rank.n_ranks if gathers else 1)  # NCCL tells one rank's part
            rank.run_kernels(rank.launch(collective, count, api=api), 2)
            answers.append((costs.chosen(), channels))
        return answers

    def run_until(self, *wanted: Any, **options: Any) -> None:
        """Run collectives until every rank does what is wanted."""
        _until(lambda: self.step(**options) == [*wanted] * len(self.ranks))


@pytest.fixture
def make_ranks(make_rank: MakeRank) -> Callable[..., Ranks]:
    def make(n: int = 2, comm_id: int = 0xABC, **options: Any) -> Ranks:
        return Ranks(make_rank, n, comm_id, **options)

    return make
