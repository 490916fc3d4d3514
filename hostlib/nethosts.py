"""Hosts on one switch of this machine: a network namespace each, with links that have a rate.

What runs on such a host has its own loopback, its own address 10.77.0.N and a real TCP connection
to every other host, so collectives meet real queues. Everything else (files, process ids) it
shares with the machine. The namespaces have no names: each lives as long as a process in it, and
the kernel kills what holds it, and what :meth:`NetHosts.start` started, with the thread that made
them. So nothing is left, however the program ends, and programs that do this at the same time
cannot meet.

Example:
    >>> with NetHosts(4, rate_bps=1e9) as hosts:
    ...     hosts.start(0, ["ringstep-perf", "--help"]).wait()
"""

from __future__ import annotations

import contextlib
import math
import shutil
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

__all__ = ["NetHosts", "NetHostsError", "missing"]

_TOOLS: Final = {
    "ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux",
    "setpriv": "util-linux",
}  # fmt: skip
_WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL")
_PATIENCE_S: Final = 10.0
_LEAST_QUEUE: Final = 64 << 10  # bytes: a whole segmentation-offload packet waits


class NetHostsError(RuntimeError):
    """The hosts could not be made; the message says what the tool said."""


def missing() -> str | None:
    """Return why this machine cannot have such hosts and what to do, None where it can."""
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            return f"needs {tool}; `apt-get install {package}`"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return (
            "needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN) to make network namespaces; run it with "
            "sudo, or in a container with `--cap-add SYS_ADMIN --cap-add NET_ADMIN`"
        )
    return None


class NetHosts:
    """``count`` hosts with addresses 10.77.0.1 and up; use it in ``with``.

    Args:
        count: 1 to 250 hosts.
        rate_bps: of every host's link in each direction, bits per second; None for no limit.
        queue_ms: depth of a limited link's queue, as time at its rate; what does not fit is
            dropped. None: what waits 50 ms beyond the burst.
        burst_ms: of the token bucket that limits a link, as time at its rate.
        least_burst: of the same, bytes; by default a whole segmentation-offload packet passes.
        rto_min_ms: least time to a TCP retransmission; None: the kernel's 200 ms, which is not
            what data centres run.
        congestion: TCP congestion control of the hosts; None: the kernel's default.

    Raises:
        ValueError: a number that makes no sense.
        NetHostsError: no right, or a tool failed.
    """

    def __init__(
        self,
        count: int,
        *,
        rate_bps: float | None = None,
        queue_ms: float | None = None,
        burst_ms: float = 2.0,
        least_burst: int = 128 << 10,
        rto_min_ms: float | None = None,
        congestion: str | None = None,
    ) -> None:
        if not 1 <= count <= 250:
            raise ValueError(f"{count} hosts: 1 to 250")
        for name, value in (
            ("queue_ms", queue_ms), ("burst_ms", burst_ms), ("rto_min_ms", rto_min_ms),
        ):  # fmt: skip
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} = {value}: a finite time above 0")
        self.count = count
        self._queue_ms, self._burst_ms, self._least_burst = queue_ms, burst_ms, least_burst
        self._route: list[str] = []
        if rto_min_ms is not None:
            self._route += ["rto_min", f"{rto_min_ms:g}ms"]
        if congestion is not None:
            self._route += ["congctl", congestion]
        self._holders: list[subprocess.Popen[bytes]] = []
        self._started: list[subprocess.Popen[Any]] = []
        try:
            self._build()
            self.set_rate(rate_bps)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def address(self, host: int) -> str:
        """Return a host's IPv4 address."""
        return f"10.77.0.{host + 1}"

    def command(self, host: int, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs ``arguments`` on a host, as the same process."""
        return ["nsenter", f"--net=/proc/{self.pid(host)}/ns/net", "--", *arguments]

    def pid(self, host: int) -> int:
        """Return the process that holds a host's namespace."""
        return self._holders[host + 1].pid

    def start(
        self,
        host: int,
        arguments: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a program on a host; it is killed when the hosts are closed.

        Ctrl-C does not reach it: it is for the caller to end what it started.
        """
        process = subprocess.Popen(
            [*_WITH_PARENT, *self.command(host, arguments)],
            env=env, stdin=stdin, stdout=stdout, stderr=stderr, text=True, process_group=0,
        )  # fmt: skip
        self._started.append(process)
        return process

    def set_rate(self, rate_bps: float | None) -> None:
        """Limit every link in each direction, or lift the limit.

        Raises:
            NetHostsError: tc failed.
        """
        for host in range(self.count):
            for place, device in ((host + 1, "eth0"), (0, f"p{host + 1}")):
                if rate_bps is None:
                    self._tool(place, "tc", "qdisc", "replace", "dev", device, "root", "pfifo",
                               "limit", "1000")  # fmt: skip
                    continue
                burst = max(int(rate_bps / 8 * self._burst_ms / 1e3), self._least_burst)
                queue = ["latency", "50ms"]
                if self._queue_ms is not None:
                    limit = max(int(rate_bps / 8 * self._queue_ms / 1e3), _LEAST_QUEUE)
                    queue = ["limit", str(limit)]
                self._tool(place, "tc", "qdisc", "replace", "dev", device, "root", "tbf",
                           "rate", f"{int(rate_bps)}bit", "burst", str(burst), *queue)  # fmt: skip

    def set_link(self, host: int, *, up: bool) -> None:
        """Cut a host off, or connect it again.

        Raises:
            NetHostsError: ip failed.
        """
        self._tool(0, "ip", "link", "set", f"p{host + 1}", "up" if up else "down")

    def received_bytes(self, host: int) -> int:
        """Return what a host's interface has received so far.

        Raises:
            NetHostsError: nsenter failed.
        """
        rows = self._tool(host + 1, "cat", "/proc/net/dev").splitlines()
        row = next(row for row in rows if row.strip().startswith("eth0:"))
        return int(row.partition(":")[2].split()[0])

    def mpiexec(self, folder: Path, program: str = "mpiexec.hydra") -> list[str]:
        """Return the command line that starts MPICH's rank N on host N, one each.

        What follows it are further options and the program to run.

        Args:
            folder: where the script that stands for ssh is written.
            program: path of Hydra's mpiexec.
        """
        cases = "\n".join(
            f"  {self.address(host)}) ns=/proc/{self.pid(host)}/ns/net ;;"
            for host in range(self.count)
        )
        script = folder / "onto-host.sh"
        # Hydra calls it as ssh: options, the host, then words that a shell would join again.
        script.write_text(
            "#!/bin/sh\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            f'case "$1" in\n{cases}\n  *) echo "no host $1" >&2; exit 2 ;;\nesac\n'
            'shift\nexec nsenter --net="$ns" -- /bin/sh -c "$*"\n'
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        names = ",".join(self.address(host) for host in range(self.count))
        return self.command(0, [
            program, "-localhost", self.address(0), "-launcher", "ssh",
            "-launcher-exec", str(script), "-hosts", names, "-ppn", "1", "-n", str(self.count),
        ])  # fmt: skip

    def close(self) -> None:
        """Kill what was started on the hosts, and remove them."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
        for process in self._started:
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):  # what was not read is lost with the reader
                        stream.close()
        self._started.clear()
        for holder in self._holders:
            holder.kill()
        for holder in self._holders:
            holder.wait()
            if holder.stderr is not None:
                holder.stderr.close()
        self._holders.clear()

    def _build(self) -> None:
        own = Path("/proc/self/ns/net").stat().st_ino
        for _ in range(self.count + 1):  # the first one is the switch
            self._holders.append(
                subprocess.Popen(
                    [*_WITH_PARENT, "unshare", "--net", "sleep", "infinity"],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                    process_group=0,
                )
            )  # fmt: skip
        for holder in self._holders:
            self._wait_for_namespace(holder, own)
        self._tool(0, "ip", "link", "add", "br0", "type", "bridge")
        self._tool(0, "ip", "link", "set", "br0", "up")
        for host in range(self.count):
            port = f"p{host + 1}"
            self._tool(0, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0",
                       "netns", str(self.pid(host)))  # fmt: skip
            self._tool(0, "ip", "link", "set", port, "master", "br0", "up")
            self._tool(host + 1, "ip", "link", "set", "lo", "up")
            self._tool(host + 1, "ip", "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            self._tool(host + 1, "ip", "link", "set", "eth0", "up")
            if self._route:
                self._tool(host + 1, "ip", "route", "change", "10.77.0.0/24", "dev", "eth0",
                           *self._route)  # fmt: skip

    @staticmethod
    def _wait_for_namespace(holder: subprocess.Popen[bytes], own: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while holder.poll() is None:
            try:
                there = Path(f"/proc/{holder.pid}/ns/net").stat().st_ino
            except OSError:
                break
            if there != own:
                return
            if time.monotonic() > deadline:
                raise NetHostsError(f"no network namespace after {_PATIENCE_S:.0f} s")
            time.sleep(0.002)
        said = holder.stderr.read().decode(errors="replace") if holder.stderr else ""
        raise NetHostsError(f"cannot make a network namespace: {said.strip() or 'no right'}")

    def _tool(self, place: int, *arguments: str) -> str:
        pid = self._holders[place].pid
        command = ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NetHostsError(f"{' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
        return done.stdout
