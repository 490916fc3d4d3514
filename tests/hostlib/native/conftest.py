"""The built library, a shared-memory file of the test's own, and ranks in this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.native.build import Built, build, missing_tools
from ringstep.hostlib.native.caller import Plugin, Rank
from ringstep.hostlib.shm import ShmFile, default_path

DRIVER = Path(__file__).with_name("driver.c")

MakeRank = Callable[..., Rank]


@pytest.fixture(scope="session")
def built() -> Built:
    ready = os.environ.get("RINGSTEP_TEST_LIBRARY")  # instrumented, by test_sanitizers.py
    if ready is not None:
        return Built(Path(ready))
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    return build(driver=DRIVER)


@pytest.fixture(scope="session")
def plugin(built: Built) -> Plugin:
    return Plugin(built.plugin)


@pytest.fixture
def shm_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where the plugin looks; nothing is in it."""
    for name in ("RINGSTEP_JOB", "RINGSTEP_SHM_TOKEN", "RINGSTEP_STATIC_DIGEST",
                 "RINGSTEP_MAX_CHANNELS", "RINGSTEP_PROFILE", "CUDA_LAUNCH_BLOCKING",
                 "RINGSTEP_NO_GRAPHS"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RINGSTEP_SHM_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def shm(shm_dir: Path) -> Iterator[ShmFile]:
    """The job's file, owned by the test."""
    with ShmFile.create(default_path()) as file:
        yield file


@pytest.fixture
def make_rank(plugin: Plugin, shm_dir: Path) -> Iterator[MakeRank]:
    """Makes ranks that are finalized when the test ends."""
    made: list[Rank] = []

    def make(*args: Any, **options: Any) -> Rank:
        made.append(Rank(plugin, *args, **options))
        return made[-1]

    yield make
    for rank in made:
        with contextlib.suppress(AssertionError):
            rank.finalize()


class Log:
    """Collects what the plugin logs: the reason's number is passed as the line."""

    def __init__(self) -> None:
        self.reasons: list[int] = []
        self.levels: set[int] = set()

    def __call__(self, level: int, _subsys: int, _file: bytes, line: int, _format: bytes) -> None:
        self.levels.add(level)
        self.reasons.append(line)


@pytest.fixture
def log() -> Log:
    return Log()
