"""Ranks of the engine on hosts with limited links, and rival flows on the same links.

One cluster serves any number of keys: a rank keeps a communicator per configuration, and its
connections are what every collective of that configuration runs on.

Nothing outlives the program that made it, however it ends: hosts, ranks and flows are killed with
the thread that started them, and end by themselves when their standard input does.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.native.build import build_engine
from ringstep.hostlib.nethosts import NetHosts
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.fluid import CLEAN, Load

RATE_BPS: Final = 200e6
"""Small enough that two cores keep up: four nodes take a fifth of them."""
QUEUE_MS: Final = 40.0
BURST_MS: Final = 4.0
LEAST_BURST: Final = 16 << 10
RTO_MIN_MS: Final = 20.0
"""Linux' own 200 ms is not what data centres run."""
SETTLE_S: Final = 0.3
"""After a change of load, until congestion control has found its rates."""
FLOWS: Final = 4
"""Rival flows per link, where a load does not say."""
_PACKAGE: Final = "ringstep.hostlib.evaluate.engine"
_AVAILABLE: Final = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
_DEFAULT: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")


class EngineError(RuntimeError):
    """A rank or a flow failed; the message says which, and what it said."""


def congestion_controls() -> tuple[str, ...]:
    """Return what TCP of this kernel can run; the first is its default."""
    default = _DEFAULT.read_text().strip()
    return (default, *(name for name in _AVAILABLE.read_text().split() if name != default))


class EngineCluster:
    """Hosts, ranks and rivals; use it in ``with``.

    Args:
        nodes: hosts, 2 to 64.
        rate_bps: of every host's link in either direction, 1 Mb/s or more.
        queue_ms: depth of every queue, as time at that rate. Many connections gain from deep
            queues, and lose to timeouts in shallow ones.
        settle_s: pause after a change of load, seconds.
        ranks_per_node: they share their host's link; 1 to 16.
        ranks: TCP congestion control of the ranks; None: the kernel's default.
        rivals: that of the rival flows. The paper's are ``bbr``.
        backlog: unsent bytes that a rival flow's socket may hold; 0: as the kernel likes, which is
            megabytes. What a socket holds is sent later: without a limit rivals want more than
            their load, the longer contention lasts.

    Raises:
        ValueError: a number that makes no sense, or a congestion control this kernel has not.
    """

    def __init__(
        self,
        nodes: int = 4,
        rate_bps: float = RATE_BPS,
        queue_ms: float = QUEUE_MS,
        *,
        settle_s: float = SETTLE_S,
        ranks_per_node: int = 1,
        ranks: str | None = None,
        rivals: str | None = None,
        backlog: int = 0,
    ) -> None:
        if not 2 <= nodes <= 64:
            raise ValueError(f"nodes = {nodes}: 2 to 64")
        if not 1 <= ranks_per_node <= 16:
            raise ValueError(f"ranks_per_node = {ranks_per_node}: 1 to 16")
        if not (math.isfinite(rate_bps) and rate_bps >= 1e6):
            raise ValueError(f"rate_bps = {rate_bps}: 1 Mb/s or more")
        for name, value in (("queue_ms", queue_ms), ("settle_s", settle_s)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} = {value}: a finite time above 0")
        if not 0 <= backlog <= 1 << 30:
            raise ValueError(f"backlog = {backlog}: 0 to 2^30 bytes")
        known = congestion_controls()
        for name, control in (("ranks", ranks), ("rivals", rivals)):
            if control is not None and control not in known:
                raise ValueError(
                    f"{name} = {control!r}: this kernel has {', '.join(known)}; "
                    f"`modprobe tcp_{control}` may add it"
                )
        self.nodes, self.ranks_per_node = nodes, ranks_per_node
        self.rate_bps, self.queue_ms = rate_bps, queue_ms
        self.rank_control, self.rival_control = ranks or known[0], rivals or known[0]
        self._settle_s, self._backlog = settle_s, backlog
        self._hosts: NetHosts | None = None
        self._ranks: list[subprocess.Popen[str]] = []
        self._sources: list[subprocess.Popen[str]] = []
        self._load = CLEAN

    def __enter__(self) -> Self:
        """Start everything.

        Raises:
            NetHostsError: no right to make hosts, or a tool failed.
            EngineError: a rank or a flow did not start.
            ringstep.hostlib.native.build.BuildError: the engine could not be built.
        """
        library = build_engine().library
        try:
            self._start(str(library))
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
    def n_ranks(self) -> int:
        """Of all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def name(self) -> str:
        """For reports."""
        each = f" of {self.ranks_per_node} ranks" if self.ranks_per_node > 1 else ""
        held = f", rivals hold {self._backlog / 1024:g} KiB" if self._backlog else ""
        return (
            f"{self.nodes} nodes{each} at {self.rate_bps / 1e6:g} Mb/s, queues of "
            f"{self.queue_ms:g} ms, {self.rank_control} against {self.rival_control}{held}"
        )

    def key(self, collective: Collective, n_bytes: int) -> Key:
        """Return the key of a collective here."""
        return Key.of(self.n_ranks, self.nodes, collective, n_bytes)

    def whole(self, n_bytes: int) -> int:
        """Return the bytes nearest below that divide into an fp32 part per rank.

        Raises:
            ValueError: too few.
        """
        unit = 4 * self.n_ranks
        if n_bytes < unit:
            raise ValueError(f"n_bytes = {n_bytes}: {unit} or more for {self.n_ranks} ranks")
        return n_bytes // unit * unit

    def set_load(self, load: Load) -> None:
        """Have the rival flows want their share of every link, and wait until they have it.

        Raises:
            EngineError: a flow failed.
        """
        load = Load(load.level, load.flows)
        if load == self._load:
            return
        flows = int(load.flows or FLOWS) if load.level > 0 else 0
        rate = load.level * self.rate_bps / 8
        _ask(self._sources, [f"{flows} {rate}"] * self.nodes)
        self._load = load
        time.sleep(self._settle_s)

    def run(
        self, collective: Collective, n_bytes: int, config: Config | None, late_us: float = 0.0
    ) -> tuple[Config, float]:
        """Run a collective; return what ran, and the µs of the slowest rank.

        Args:
            collective: AllReduce, AllGather, ReduceScatter or Broadcast.
            n_bytes: larger side, as :meth:`whole` returns it.
            config: None: as the engine's own model chooses.
            late_us: by which the last rank comes late.

        Raises:
            EngineError: a rank failed.
        """
        wanted = config or Config(Algo.RING, Proto.SIMPLE, 0)
        line = (
            f"{int(collective)} {n_bytes} {int(wanted.algo)} {int(wanted.proto)} "
            f"{wanted.n_channels}"
        )
        lines = [f"{line} 0"] * (self.n_ranks - 1) + [f"{line} {late_us:.0f}"]
        answers = [[int(word) for word in each.split()] for each in _ask(self._ranks, lines)]
        _, algo, proto, channels = answers[0]
        return (
            Config(Algo(algo), Proto(proto), channels),
            max(answer[0] for answer in answers) / 1e3,
        )

    # --- processes ---

    def _start(self, library: str) -> None:
        self._hosts = hosts = NetHosts(
            self.nodes, rate_bps=self.rate_bps, queue_ms=self.queue_ms, burst_ms=BURST_MS,
            least_burst=LEAST_BURST, rto_min_ms=RTO_MIN_MS, congestion=self.rank_control,
        )  # fmt: skip
        all_nodes = range(self.nodes)
        _ready([self._spawn(node, "flows", "sink") for node in all_nodes], "sink of node")
        self._sources = [
            self._spawn(
                node, "flows", "source", hosts.address((node + 1) % self.nodes),
                self.rival_control, str(self._backlog),
            )
            for node in all_nodes
        ]  # fmt: skip
        self._ranks = [
            self._spawn(
                rank // self.ranks_per_node, "worker", library, str(rank), str(self.n_ranks),
                str(rank // self.ranks_per_node), hosts.address(rank // self.ranks_per_node),
                hosts.address(0),
            )
            for rank in range(self.n_ranks)
        ]  # fmt: skip
        _ready(self._sources, "flows of node")
        _ready(self._ranks, "rank")

    def _spawn(self, node: int, module: str, *arguments: str) -> subprocess.Popen[str]:
        assert self._hosts is not None
        return self._hosts.start(
            node, [sys.executable, "-m", f"{_PACKAGE}.{module}", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def _close(self) -> None:
        if self._hosts is not None:
            self._hosts.close()
        self._hosts, self._ranks, self._sources, self._load = None, [], [], CLEAN


def _ready(processes: Sequence[subprocess.Popen[str]], what: str) -> None:
    for i, process in enumerate(processes):
        if _line(process) != "ready":
            raise EngineError(f"{what} {i} did not start")


def _ask(processes: Sequence[subprocess.Popen[str]], lines: Sequence[str]) -> list[str]:
    if not processes:
        raise EngineError("the cluster is not running; use it in `with`")
    for process, line in zip(processes, lines, strict=True):
        assert process.stdin is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except OSError as error:
            raise EngineError(f"process {process.pid} is gone: {error}") from None
    found = [_line(process) for process in processes]
    for i, answer in enumerate(found):
        if not answer or answer.startswith("error"):
            raise EngineError(f"rank or node {i}: {answer.removeprefix('error ') or 'ended'}")
    return found


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
