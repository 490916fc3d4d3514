"""The engine as an environment: one rank per node, contention by rival flows, times as measured.

Decisions are in force with the call they are made for: this measures configurations. What it costs
to agree on them is the coordinator's part, and measured with it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.evaluate.engine.fabric import Fabric
from ringstep.hostlib.evaluate.environment import Ran
from ringstep.hostlib.native.build import build_engine
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.fluid import Load
from ringstep.hostlib.traces.scenarios import Schedule

PACKAGE: Final = "ringstep.hostlib.evaluate.engine"
FLOWS: Final = 4
"""Rival flows per link, where a load does not say."""
SETTLE_S: Final = 0.3
"""After a change of load, until congestion control has found its rates."""


class EngineError(RuntimeError):
    """A rank or a flow failed; the message says which, and what it said."""


class EngineEnvironment:
    """Collectives of one key on namespaces; a context manager.

    Args:
        collective: AllReduce, AllGather, ReduceScatter or Broadcast.
        n_bytes: larger side.
        nodes: hosts, one rank each.
        rate_bps: of their links. Small enough that this machine's cores keep up: 100 Mb/s and four
            nodes load one core.
        settle_s: pause after a change of load.
    """

    def __init__(
        self,
        collective: Collective,
        n_bytes: int,
        nodes: int = 4,
        rate_bps: float = 100e6,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._collective, self._nodes = collective, nodes
        self._bytes = n_bytes // (4 * nodes) * 4 * nodes
        if self._bytes <= 0:
            raise ValueError(f"n_bytes = {n_bytes}: {4 * nodes} or more")
        self._fabric = Fabric(nodes, rate_bps)
        self._settle_s = settle_s
        self._ranks: list[subprocess.Popen[str]] = []
        self._sources: list[subprocess.Popen[str]] = []
        self._sinks: list[subprocess.Popen[str]] = []
        self._load = Load()
        self._table: dict[float, Mapping[Key, Config]] = {}

    def __enter__(self) -> Self:
        library = build_engine().library
        self._fabric.__enter__()
        try:
            for node in range(self._nodes):
                self._sinks.append(self._spawn(node, "flows", "sink"))
            for node in range(self._nodes):
                to = self._fabric.address((node + 1) % self._nodes)
                self._sources.append(self._spawn(node, "flows", "source", to))
                self._ranks.append(self._spawn(node, "worker", *self._arguments(node, library)))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._close()

    @property
    def name(self) -> str:
        """For reports."""
        mbps = self._fabric.rate_bps / 1e6
        return f"engine: {self._collective.name.lower()}, {self._nodes} nodes at {mbps:g} Mb/s"

    @property
    def key(self) -> Key:
        """Of all calls."""
        return Key.of(self._nodes, self._nodes, self._collective, self._bytes)

    @property
    def n_bytes(self) -> int:
        """Of all calls."""
        return self._bytes

    def start(self, schedule: Schedule, seed: int) -> None:
        """Begin an episode; the seed does nothing, links have their own noise."""
        self._schedule, self._at = schedule, 0

    def run(self, config: Config | None) -> Ran:
        """Run the next call.

        Raises:
            EngineError: a rank failed.
            IndexError: the schedule is over.
        """
        s, at = self._schedule, self._at
        if at >= len(s):
            raise IndexError(f"call {at}: the schedule has {len(s)} calls")
        self._at += 1
        self._set(Load(float(s.level[at]), float(s.flows[at])))
        wanted = config or Config(Algo.RING, Proto.SIMPLE, 0)
        line = (
            f"{int(self._collective)} {self._bytes} {int(wanted.algo)} {int(wanted.proto)} "
            f"{wanted.n_channels}"
        )
        found = _ask(self._ranks, [line] * self._nodes)
        answers = [[int(word) for word in each.split()] for each in found]
        _, algo, proto, channels = answers[0]
        return Ran(
            Config(Algo(algo), Proto(proto), channels),
            max(answer[0] for answer in answers) / 1e3,
            time.monotonic_ns(),
            config is not None,
        )

    def learn_oracle(self, level: float, best: Config) -> None:
        """Note what a sweep found to be best at a level."""
        self._table[level] = {self.key: best}

    def oracle(self, load: Load) -> Mapping[Key, Config]:
        """Return what a sweep found at the nearest level; nothing before one."""
        if not self._table:
            return {}
        return self._table[min(self._table, key=lambda level: abs(level - load.level))]

    # --- processes ---

    def _arguments(self, node: int, library: Path) -> list[str]:
        f = self._fabric
        return [str(library), str(node), str(self._nodes), f.address(node), f.address(0)]

    def _spawn(self, node: int, module: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", f"{PACKAGE}.{module}", *arguments]
        process = subprocess.Popen(
            self._fabric.inside(node, command),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        if _line(process) != "ready":
            process.kill()
            raise EngineError(f"{module} on node {node} did not start")
        return process

    def _set(self, load: Load) -> None:
        if load == self._load:
            return
        self._load = load
        flows = int(load.flows or FLOWS) if load.level > 0 else 0
        rate = load.level * self._fabric.rate_bps / 8
        _ask(self._sources, [f"{flows} {rate}"] * self._nodes)
        time.sleep(self._settle_s)

    def _close(self) -> None:
        for process in (*self._ranks, *self._sources, *self._sinks):
            process.kill()
        for process in (*self._ranks, *self._sources, *self._sinks):
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not read is lost with the reader
                        pipe.close()
        self._ranks, self._sources, self._sinks = [], [], []
        self._fabric.__exit__(None, None, None)


def _ask(processes: list[subprocess.Popen[str]], lines: list[str]) -> list[str]:
    for process, line in zip(processes, lines, strict=True):
        pipe: IO[str] | None = process.stdin
        assert pipe is not None
        try:
            pipe.write(line + "\n")
            pipe.flush()
        except OSError as error:
            raise EngineError(f"process {process.pid} is gone: {error}") from None
    found: list[Any] = [_line(process) for process in processes]
    for i, answer in enumerate(found):
        if not answer or answer.startswith("error"):
            raise EngineError(f"node {i}: {answer.removeprefix('error ') or 'ended'}")
    return found


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
