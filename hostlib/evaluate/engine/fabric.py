"""A star of network namespaces on one machine: a host per node, links of a limited rate.

Needs root, ``ip`` and ``tc``. Everything is named after the process, and removed at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

NETWORK: Final = "10.231.0"
BURST_MS: Final = 4
"""Of the token bucket that limits a link."""
QUEUE_MS: Final = 40
"""Bytes of a full queue, in time: what does not fit is dropped."""


class FabricError(RuntimeError):
    """Namespaces or links cannot be made; the message says which command failed, and how."""


def missing() -> str | None:
    """Return why no fabric can be made here, None where one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"needs {tool}: apt-get install iproute2"
    return None


class Fabric:
    """A context in which ``nodes`` hosts hang on one switch.

    Args:
        nodes: hosts, 2 to 64.
        rate_bps: of every link, in either direction.
    """

    def __init__(self, nodes: int, rate_bps: float) -> None:
        if not 2 <= nodes <= 64:
            raise ValueError(f"nodes = {nodes}: 2 to 64")
        if not rate_bps >= 1e6:
            raise ValueError(f"rate_bps = {rate_bps}: 1 Mb/s or more")
        self.nodes, self.rate_bps = nodes, rate_bps
        self._tag = f"rs{os.getpid() % 100_000}"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._stack.close()

    def address(self, node: int) -> str:
        """Return a host's address."""
        return f"{NETWORK}.{node + 1}"

    def inside(self, node: int, command: Sequence[str]) -> list[str]:
        """Return a command that runs ``command`` on a host."""
        return ["ip", "netns", "exec", self._host(node), *command]

    def _host(self, node: int) -> str:
        return f"{self._tag}-{node}"

    def _make(self) -> None:
        switch = f"{self._tag}-s"
        self._namespace(switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        for node in range(self.nodes):
            host = self._host(node)
            self._namespace(host)
            port = f"p{node}"
            _run(
                "ip", "link", "add", "eth0", "netns", host, "type", "veth",
                "peer", "name", port, "netns", switch,
            )  # fmt: skip
            _run("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
            _run("ip", "-n", host, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            for each, device in ((host, "eth0"), (host, "lo")):
                _run("ip", "-n", each, "link", "set", device, "up")
            self._limit(host, "eth0")
            self._limit(switch, port)

    def _namespace(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._stack.callback(
            subprocess.run, ["ip", "netns", "del", name], check=False, capture_output=True
        )

    def _limit(self, namespace: str, device: str) -> None:
        burst = max(int(self.rate_bps / 8 * BURST_MS / 1e3), 16_384)
        limit = max(int(self.rate_bps / 8 * QUEUE_MS / 1e3), 65_536)
        _run(
            "tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf",
            "rate", f"{int(self.rate_bps)}bit", "burst", str(burst), "limit", str(limit),
        )  # fmt: skip


def _run(*command: str) -> None:
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    if found.returncode != 0:
        raise FabricError(f"{' '.join(command)}: {found.stderr.strip() or found.returncode}")
