"""Ranks on hosts of their own, a coordinator, and somebody who looks at what every rank ran."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringstep.hostlib.coordinator.control import ask, socket_path
from ringstep.hostlib.native.build import Built
from ringstep.hostlib.nethosts import NetHosts
from ringstep.hostlib.shm import Record, ShmError, ShmFile, default_path
from ringstep.hostlib.shm_layout import RecordFlag

RANK = Path(__file__).with_name("rank.py")
PATIENCE_S = 90.0
"""Longer than anything takes on a busy machine; only a failure takes that long."""
PAUSE_S = 0.005
"""After each round of a rank: while a test waits for something else, ranks leave it the CPUs."""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition; return what it gave."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.005)


class Process:
    """A program whose lines of JSON are collected as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._follow), threading.Thread(target=self._complaints),
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.append(json.loads(line))

    def _complaints(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def wait(self) -> int:
        code = self.process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return code

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    @property
    def text(self) -> str:
        return "".join(self.errors[-40:])


class RankProcess(Process):
    """One rank; it ends in good order when the file ``stop`` is there."""

    def __init__(self, process: subprocess.Popen[str], stop: Path) -> None:
        super().__init__(process)
        self.stop = stop

    @property
    def round(self) -> int:
        """The newest round it told of."""
        return next((line["at"] for line in reversed(self.lines) if "at" in line), 0)

    @property
    def decided(self) -> int:
        """How many rounds had ended with a decided collective, when it told of the newest one."""
        return next((line["decided"] for line in reversed(self.lines) if "at" in line), 0)

    @property
    def result(self) -> dict[str, Any]:
        """What it said at last."""
        return self.lines[-1] if self.lines else {}


class CoordinatorProcess(Process):
    """``ringstep tuner coordinator``."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        super().__init__(process)
        self._path = path

    def ask(self, **request: Any) -> dict[str, Any]:
        return ask(socket_path(self._path), request)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if line.get("event") == kind]


class Watcher:
    """Reads the telemetry of one shared-memory file all the while, whatever becomes of the file."""

    def __init__(self, path: Path) -> None:
        self.records: list[Record] = []
        self._file = ShmFile.open(path)
        self._readers: dict[tuple[int, int], Any] = {}
        self._ending = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _look(self) -> None:
        for reader in self._file.rings():
            known = self._readers.setdefault((reader.slot, reader.pid), reader)
            self.records += [r for r in known.poll() if isinstance(r, Record)]

    def _run(self) -> None:
        while not self._ending:
            self._look()
            time.sleep(0.01)
        self._look()

    def close(self) -> list[Record]:
        self._ending = True
        self._thread.join()
        self._file.close()
        return self.records


@dataclass
class Found:
    """What all ranks' records say together."""

    indices: int = 0
    epochs: set[int] = field(default_factory=set)
    decided: int = 0
    settings: set[tuple[Any, ...]] = field(default_factory=set)
    differences: list[str] = field(default_factory=list)


def audit(records: Iterable[Record], n_ranks: int) -> Found:
    """Compare, for every communicator and index that all ranks told of, epoch and what ran."""
    table: dict[tuple[int | None, int], dict[int, Record]] = {}
    for record in records:
        if RecordFlag.PARTIAL not in record.flags:
            table.setdefault((record.comm, record.index), {})[record.rank] = record
    found = Found()
    for place, by_rank in sorted(table.items(), key=str):
        if len(by_rank) != n_ranks:
            continue
        found.indices += 1
        ran = {
            rank: (r.epoch, r.func, r.bytes, r.algo, r.proto, r.n_channels,
                   RecordFlag.DECIDED in r.flags)
            for rank, r in by_rank.items()
        }  # fmt: skip
        if len(set(ran.values())) != 1:
            found.differences.append(f"communicator and index {place}: {ran}")
        one = next(iter(ran.values()))
        found.epochs.add(one[0])
        found.decided += one[-1]
        found.settings.add(one[3:])
    return found


class World:
    """Hosts, and what runs on them; everything ends with it."""

    def __init__(self, hosts: NetHosts, built: Built, folder: Path, job: str = "default") -> None:
        self.hosts, self.built, self.folder = hosts, built, folder
        self.job = job
        self.token: str | None = None
        """RINGSTEP_SHM_TOKEN, where the job has one."""
        self.ranks: list[RankProcess] = []
        self.coordinators: list[CoordinatorProcess] = []
        self._port = 29500

    def path(self, folder: Path | None = None) -> Path:
        return default_path(self.job, folder or self.folder)

    def coordinator(self, *options: str, folder: Path | None = None, host: int | None = None,
                    wait: bool = True) -> CoordinatorProcess:  # fmt: skip
        """Start one; it is ready when this returns."""
        where = folder or self.folder
        command = [
            sys.executable, "-c", "from ringstep.cli.main import main; main()", "tuner",
            "coordinator", "--shm", str(where), "--job", self.job, "--json", "--no-gpu",
            "--die-with-parent", *options,
        ]  # fmt: skip
        if host is not None:
            command = self.hosts.command(host, command)
        process = CoordinatorProcess(
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, env=self.environment(where),
            ),
            self.path(where),
        )  # fmt: skip
        self.coordinators.append(process)
        if wait:
            until(
                lambda: process.events("ready") or process.process.poll() is not None,
                "the coordinator",
            )
            assert process.events("ready"), process.text
        return process

    def environment(self, folder: Path | None = None, *, plugin: bool = True) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("NCCL_", "RINGSTEP_")) or name == "RINGSTEP_NATIVE_DIR"
        }  # fmt: skip
        kept |= {"RINGSTEP_SHM_DIR": str(folder or self.folder), "RINGSTEP_JOB": self.job}
        if self.token is not None:
            kept["RINGSTEP_SHM_TOKEN"] = self.token
        if plugin:
            name = str(self.built.plugin)
            kept |= {"NCCL_TUNER_PLUGIN": name, "NCCL_PROFILER_PLUGIN": name}
        return kept

    def start_ranks(
        self,
        *,
        folders: list[Path] | None = None,
        nodes: list[str] | None = None,
        sizes: Iterable[int] = (1 << 10, 1 << 16, 1 << 18),
        count: int | None = None,
        **settings: Any,
    ) -> list[RankProcess]:
        """Start one rank on every host; they go on until :meth:`finish`.

        Args:
            count: of ranks, where the last hosts are to have none.
            folders: of the shared-memory file, by rank; :attr:`folder` by default.
            nodes: names by rank; by default all are on one node, whatever hosts they are on.
            sizes: bytes of the AllReduces of a round.
            **settings: for rank.py.
        """
        self._port += 20
        stop = self.folder / f"stop-{self._port}"
        count = count or self.hosts.count
        started = []
        for rank in range(count):
            given = {
                "rank": rank, "ranks": count, "root": self.hosts.address(0),
                "port": self._port, "sizes": list(sizes), "stop": str(stop),
                "node": nodes[rank] if nodes else "node", "pause_s": PAUSE_S, **settings,
            }  # fmt: skip
            folder = folders[rank] if folders else self.folder
            process = self.hosts.start(
                rank, [sys.executable, str(RANK), json.dumps(given)],
                env=self.environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            started.append(RankProcess(process, stop))
        self.ranks += started
        return started

    def go_on(self, ranks: list[RankProcess], rounds: int = 10) -> None:
        """Wait until every rank is that many rounds further."""
        for rank in ranks:
            begin = rank.round
            until(
                lambda rank=rank, begin=begin: (
                    rank.round >= begin + rounds or rank.process.poll() is not None
                ),
                f"{rounds} more rounds",
            )
            assert rank.process.poll() is None, rank.text + str(rank.result)

    def finish(self, ranks: list[RankProcess]) -> list[dict[str, Any]]:
        """Have the ranks end in good order; return what they did, all results right."""
        for rank in ranks:
            rank.stop.touch()
        for rank in ranks:
            assert rank.wait() == 0, rank.text + str(rank.result)
        results = [rank.result for rank in ranks]
        assert [result["wrong"] for result in results] == [0] * len(results)
        assert len({result["rounds"] for result in results}) == 1
        return results

    def watch(self, folder: Path | None = None) -> Watcher:
        return Watcher(self.path(folder))

    def close(self) -> None:
        for process in (*self.coordinators, *self.ranks):
            if process.process.poll() is None:
                process.kill()
            process.wait()


__all__ = [
    "CoordinatorProcess", "Found", "Process", "RankProcess", "ShmError", "Watcher", "World",
    "audit", "until",
]  # fmt: skip
