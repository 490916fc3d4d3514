"""The processes of one training job on hosts: rival flows, a coordinator and a rank on each."""

from __future__ import annotations

import json
import math
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from ringstep.hostlib.coordinator.control import ControlError, ask, socket_path
from ringstep.hostlib.evaluate.engine.cluster import FLOWS
from ringstep.hostlib.native.build import Built
from ringstep.hostlib.nethosts import NetHosts
from ringstep.hostlib.shm import default_path

BACKLOG: Final = 16 << 10
"""Unsent bytes that a rival holds: it makes up for little of what it could not send."""
PACKAGE: Final = "ringstep.hostlib.evaluate.engine"
COORDINATOR: Final = (
    "import typer; from ringstep.hostlib.coordinator.cli import coordinator; typer.run(coordinator)"
)
SKELETON_PORT: Final = 29_700
PATIENCE_S: Final = 120.0
"""Longest silence of the ranks, and longest start of a program."""


class TrainingError(RuntimeError):
    """A rank, a coordinator or a flow failed; the message says which, and what it said."""


class _Program:
    """A process whose lines of JSON go to a queue, with the time they came at."""

    def __init__(
        self, name: str, hosts: NetHosts, node: int, command: list[str], env: dict[str, str],
        lines: queue.Queue[_Line],
    ) -> None:  # fmt: skip
        self.name = name
        self.process = hosts.start(
            node, command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        self._lines = lines
        self.said: list[str] = []
        self._threads = [
            threading.Thread(target=self._follow, daemon=True),
            threading.Thread(target=self._listen, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._lines.put((self, time.monotonic_ns(), json.loads(line)))
        self._lines.put((self, time.monotonic_ns(), None))

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said = [*self.said[-30:], line]

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        pipe: IO[str] | None = self.process.stdin
        assert pipe is not None
        try:
            pipe.write(line + "\n")
            pipe.flush()
        except OSError:
            raise TrainingError(f"{self.name} is gone: {self.last_words}") from None

    @property
    def last_words(self) -> str:
        """The end of what it said on stderr."""
        return "".join(self.said).strip() or f"exit status {self.process.poll()}"

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


_Line = tuple[_Program, int, dict[str, Any] | None]


class TrainingJob:
    """Rivals, coordinators and ranks of one job; all of them end with it.

    Args:
        hosts: one rank each.
        rate_bps: of their links.
        folder: for the nodes' shared-memory files.
        built: the plugin.
        plugin: whether the ranks load it.
    """

    def __init__(
        self, hosts: NetHosts, rate_bps: float, folder: Path, built: Built, *, plugin: bool
    ) -> None:
        self._hosts, self._rate_bps, self._folder = hosts, rate_bps, folder
        self._built, self._plugin = built, plugin
        self._token = secrets.token_hex(8)
        self._lines: queue.Queue[_Line] = queue.Queue()
        self._all: list[_Program] = []
        self._sources: list[_Program] = []
        self._ranks: list[_Program] = []
        self.parameters = 0
        self.events: list[tuple[int, dict[str, Any]]] = []
        """What the skeleton told, and when."""
        self._rows: dict[int, dict[int, dict[str, Any]]] = {}
        self._skeleton: _Program | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        for program in reversed(self._all):
            program.end()

    def file(self, node: int) -> Path:
        """Return a node's shared-memory file."""
        return default_path("train", self._folder / f"n{node}")

    # --- starting ---

    def _start(self, name: str, node: int, command: list[str]) -> _Program:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "RINGSTEP_SHM"))}
        env |= {
            "RINGSTEP_SHM_DIR": str(self._folder / f"n{node}"), "RINGSTEP_JOB": "train",
            "RINGSTEP_SHM_TOKEN": self._token, "RINGSTEP_ENGINE_NODE": f"n{node}",
            "RINGSTEP_ENGINE_ADDRESS": self._hosts.address(node),
            "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        if self._plugin:
            plugin = str(self._built.plugin)
            env |= {"NCCL_TUNER_PLUGIN": plugin, "NCCL_PROFILER_PLUGIN": plugin}
        whole = [sys.executable, *command]
        program = _Program(name, self._hosts, node, whole, env, self._lines)
        self._all.append(program)
        return program

    def start_rivals(self, control: str) -> None:
        """Start a sink and a source on each node; nothing flows yet."""
        for node in range(self._hosts.count):
            self._start(f"sink {node}", node, ["-m", f"{PACKAGE}.flows", "sink"])
        time.sleep(0.2)
        for node in range(self._hosts.count):
            to = self._hosts.address((node + 1) % self._hosts.count)
            self._sources.append(
                self._start(
                    f"source {node}",
                    node,
                    ["-m", f"{PACKAGE}.flows", "source", to, control, str(BACKLOG)],
                )
            )

    def start_coordinators(self, policy: str, seed: int) -> None:
        """Start a coordinator on each node, and wait until all are linked."""
        place = f"{self._hosts.address(0)}:{SKELETON_PORT}"
        deciding = ["--nodes", str(self._hosts.count), "--policy", _absolute(policy),
                    "--seed", str(seed)]  # fmt: skip
        self._skeleton = self._start_coordinator(0, "--listen", place, *deciding)
        self._until({self._skeleton}, "ready")
        stubs = {
            self._start_coordinator(node, "--skeleton", place)
            for node in range(1, self._hosts.count)
        }
        self._until(stubs, "linked")

    def _start_coordinator(self, node: int, *options: str) -> _Program:
        (self._folder / f"n{node}").mkdir(mode=0o700)
        return self._start(
            f"coordinator {node}", node,
            ["-c", COORDINATOR, "--job", "train", "--json", "--no-gpu", "--die-with-parent",
             "--node", f"n{node}", *options],
        )  # fmt: skip

    def start_ranks(self, told: dict[str, Any]) -> None:
        """Start a rank on each node."""
        for node in range(self._hosts.count):
            job = json.dumps({**told, "rank": node})
            self._ranks.append(self._start(f"rank {node}", node, ["-m", f"{PACKAGE}.trainer", job]))

    def _until(self, programs: set[_Program], event: str) -> None:
        waiting = set(programs)
        while waiting:
            who, line = self._next()
            if line is not None and line.get("event") == event:
                waiting.discard(who)

    # --- following ---

    def _next(self) -> tuple[_Program, dict[str, Any] | None]:
        try:
            who, at, line = self._lines.get(timeout=PATIENCE_S)
        except queue.Empty:
            said = "; ".join(f"{p.name}: {p.last_words}" for p in self._all if p.said)
            raise TrainingError(f"nothing for {PATIENCE_S:g} s; {said}") from None
        if line is None:
            who.process.wait()
            if who not in self._ranks or who.process.returncode != 0:
                raise TrainingError(f"{who.name} ended: {who.last_words}")
        elif "error" in line:
            raise TrainingError(f"{who.name}: {line['error']}")
        elif who is self._skeleton:
            self.events.append((at, line))
        return who, line

    def follow(
        self, steps: int, onset: int, level: float, progress: Callable[[int], None] | None
    ) -> int | None:
        """Take in what ranks tell until they have ended; return when contention began."""
        running, onset_ns = len(self._ranks), None
        if onset == 0:
            onset_ns = self._contend(level)
        while running:
            who, line = self._next()
            if who not in self._ranks:
                continue
            if line is None:
                running -= 1
            elif "parameters" in line:
                self.parameters = line["parameters"]
            elif "step" in line:
                rank, step = self._ranks.index(who), line["step"]
                self._rows.setdefault(step, {})[rank] = line
                if rank == 0:
                    if step + 1 == onset and step + 1 < steps:
                        onset_ns = self._contend(level)
                    if progress is not None:
                        progress(step + 1)
        return onset_ns

    def _contend(self, level: float) -> int:
        rate = level * self._rate_bps / 8
        for source in self._sources:
            source.tell(f"{FLOWS} {rate}")
        return time.monotonic_ns()

    def steps(self, steps: int) -> tuple[list[float], list[int], list[float]]:
        """Return time, begin and mean loss of each step."""
        rows = [self._rows.get(step, {}) for step in range(steps)]
        if any(len(row) != len(self._ranks) for row in rows):
            raise TrainingError("a rank did not tell of all its steps")
        loss = [math.fsum(r["loss"] for r in row.values()) / len(row) for row in rows]
        return [row[0]["took_ns"] / 1e6 for row in rows], [row[0]["began_ns"] for row in rows], loss

    def status(self) -> dict[str, Any]:
        """Return what the skeleton says at the end."""
        try:
            return ask(socket_path(self.file(0)), {"do": "status"})
        except ControlError as error:
            raise TrainingError(f"skeleton: {error}") from None


def _absolute(policy: str) -> str:
    name, colon, argument = policy.partition(":")
    if not colon or name not in ("dynamic", "fixed", "autoccl"):
        return policy
    return f"{name}:{Path(argument).resolve()}"
