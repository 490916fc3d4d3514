"""The engine, built once; and ranks of it in processes of their own."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ringstep.hostlib.native.build import (
    BuildError,
    BuiltEngine,
    build_engine,
    cache_folder,
    missing_tools,
)

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for engine_reference, beside these tests

if TYPE_CHECKING:
    from engine_reference import Array, Case

ENGINE = HERE.parents[2] / "hostlib" / "native" / "engine"

BuildDriver = Callable[[str], Path]


def _compiler() -> str:
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "clang++"


def _built_driver(sanitize: str) -> Path:
    """The driver, linked with what the engine's own build has compiled: it needs more than the
    library exports."""
    try:
        built = build_engine(sanitize=sanitize.replace(",", ";"))
    except BuildError as error:
        if sanitize and "cannot find" in str(error):
            pytest.skip(f"needs the compiler's sanitizer libraries ({sanitize}); gcc brings them")
        raise
    objects = sorted(built.folder.rglob("engine.dir/runtime/*.o"))
    assert objects, f"no object files of the engine's runtime in {built.folder}"
    source = HERE / "driver.cpp"
    digest = hashlib.sha256(built.folder.name.encode() + source.read_bytes()).hexdigest()[:16]
    target = cache_folder() / f"engine-driver-{digest}"
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _compile_driver(source, objects, sanitize, target)
    return target


def _compile_driver(source: Path, objects: list[Path], sanitize: str, target: Path) -> None:
    flags = ["-std=c++20", "-g", "-Wall", "-Wextra", "-Wshadow", "-Wno-missing-field-initializers",
             f"-I{ENGINE}", f"-I{ENGINE.parent / 'include'}"]  # fmt: skip
    flags += [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-O1"] if sanitize else ["-O2"]
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        command = [_compiler(), *flags, str(source), *map(str, objects), "-lpthread",
                   "-o", f"{folder}/driver"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        Path(folder, "driver").replace(target)


@pytest.fixture(scope="session")
def build_driver() -> BuildDriver:
    """Builds the test driver for what `-fsanitize=` is given, "" for none."""
    missing = missing_tools("C++")
    if missing is not None:
        pytest.skip(missing)
    return _built_driver


@pytest.fixture(scope="session")
def engine() -> BuiltEngine:
    """The engine as it is shipped."""
    missing = missing_tools("C++")
    if missing is not None:
        pytest.skip(missing)
    return build_engine()


class Rank:
    """A process that is one rank; see driver.cpp for what it can be told."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line and self.process.poll() not in (None, 0):
            assert self.process.stderr is not None
            raise AssertionError(f"the rank ended: {self.process.stderr.read()[-3000:]}")
        return line

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(60)


class Ranks:
    """A communicator's ranks."""

    def __init__(self, driver: Path, folder: Path) -> None:
        self.driver = driver
        self.folder = folder
        self.ranks: list[Rank] = []

    def output(self, rank: int) -> Path:
        return self.folder / f"out.{rank}"

    def start(
        self,
        n_ranks: int,
        inputs: list[bytes] | None = None,
        *options: str,
        where: str = "",
        each: Callable[[int], list[str]] | None = None,
        prefix: Callable[[int], list[str]] | None = None,
        env: dict[str, str] | None = None,
        wait: bool = True,
        says: Callable[[int], tuple[int, int]] | None = None,
    ) -> list[Rank]:
        where = where or f"file:{self.folder / 'id'}"
        for rank in range(n_ranks):
            given = self.folder / f"in.{rank}"
            given.write_bytes(inputs[rank] if inputs is not None else bytes(1 << 20))
            told = map(str, says(rank) if says else (rank, n_ranks))
            command = [*(prefix(rank) if prefix else []), str(self.driver), *told, where,
                       str(given), str(self.output(rank)), *options,
                       *(each(rank) if each else [])]  # fmt: skip
            self.ranks.append(Rank(command, env))
        if wait:
            for rank_process in self.ranks:
                line = rank_process.answer()
                assert line.startswith("joined"), line
        return self.ranks

    def tell(self, line: str) -> None:
        for rank in self.ranks:
            rank.tell(line)

    def ask(self, line: str) -> list[str]:
        self.tell(line)
        return [rank.answer() for rank in self.ranks]

    def collect(
        self, cases: list[Case], sent: list[list[Array]], *, group: bool = False
    ) -> list[list[Array]]:
        """What each rank gets from each of the cases, run one after the other or as one group."""
        n = len(self.ranks)
        for rank, process in enumerate(self.ranks):
            path = self.folder / f"in.{rank}"
            path.write_bytes(b"".join(data[rank].tobytes() for data in sent))
            process.tell(f"input {path}")
        starts = [path.stat().st_size if (path := self.output(r)).exists() else 0 for r in range(n)]
        if group:
            self.tell(f"group {len(cases)}")
        for case in cases:
            self.tell(case.line())
        for case in cases[-1:] if group else cases:
            for rank, process in enumerate(self.ranks):
                answer = process.answer()
                assert answer.startswith("ok"), f"{case}, rank {rank}: {answer}"
        got: list[list[Array]] = [[] for _ in cases]
        for rank in range(n):
            left = memoryview(self.output(rank).read_bytes())[starts[rank] :]
            for i, case in enumerate(cases):
                size = case.received(n) * case.stored.itemsize
                got[i].append(np.frombuffer(left[:size], case.stored))
                left = left[size:]
        return got

    def close(self) -> None:
        for rank in self.ranks:
            assert rank.process.stdin is not None
            rank.process.stdin.close()
        for rank in self.ranks:
            assert rank.process.wait(60) == 0, rank.process.stderr and rank.process.stderr.read()


@pytest.fixture
def driver(build_driver: BuildDriver) -> Path:
    return build_driver(os.environ.get("RINGSTEP_TEST_SANITIZE", ""))


@pytest.fixture
def ranks(driver: Path, tmp_path: Path) -> Iterator[Ranks]:
    """Starts ranks on demand; none survives the test."""
    made = Ranks(driver, tmp_path)
    yield made
    for rank in made.ranks:
        if rank.process.poll() is None:
            rank.kill()
        for pipe in (rank.process.stdin, rank.process.stdout, rank.process.stderr):
            if pipe is not None:
                pipe.close()
