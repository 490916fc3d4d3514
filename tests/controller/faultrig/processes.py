"""Controller and software switches as processes that can be killed, stopped and started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from forked import ForkedProcess
from free_ports import free_port

START_S = 90.0
"""Until a process that does not serve is given up."""
RINGSTEP = [sys.executable, "-m", "ringstep.cli"]


class RigError(Exception):
    """Something of the rig itself does not work: the run says nothing about the controller."""


def rss_mib(pid: int) -> float:
    """Resident memory of a process, MiB; 0 where it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Child:
    """A process with a log file; :meth:`close` kills it, stopped or not.

    ``forked``: it is ``ringstep``, and is forked instead of executed, which takes a part of the
    time.
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None,
        *, forked: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.command = list(command)
        self.log = folder / f"{name}.log"
        self.env = dict(env or {})
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self.stopped = False
        self._forked = forked

    def start(self) -> None:
        """Start it; the log goes on where the last life ended."""
        with self.log.open("ab") as log:
            if self._forked:
                arguments = self.command[len(RINGSTEP) :]
                self.process = ForkedProcess(arguments, log, env=os.environ | self.env)
                self.stopped = False
                return
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.env,
                # Ctrl-C is for the bench, which then ends its children in order.
                start_new_session=True,
            )
        self.stopped = False

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was not started"
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it is there."""
        if self.alive:
            os.kill(self.pid, number)
            self.stopped = number is signal.SIGSTOP or (
                self.stopped and number is not signal.SIGCONT
            )

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
        self.stopped = False

    def terminate(self, patience_s: float = 10.0) -> int:
        """SIGTERM, then SIGKILL; return the exit status."""
        if self.process is None:
            return 0
        self.signal(signal.SIGCONT)
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    close = kill

    def tail(self, lines: int = 15) -> str:
        """Return the end of the log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class SwitchProcess(Child):
    """``ringstep softswitch run`` at a fixed address; every start is an empty switch."""

    def __init__(
        self, name: str, device_id: int, folder: Path, port: int | None = None, nice: int = 0,
        *, forked: bool = False,
    ) -> None:  # fmt: skip
        self.device_id = device_id
        self.address = f"127.0.0.1:{port or free_port()}"
        self._ready = folder / f"{name}.ready.json"
        super().__init__(
            name,
            [
                *(["nice", "-n", str(nice)] if nice else []),
                *RINGSTEP, "softswitch", "run", "--device-id", str(device_id),
                "--grpc", self.address, "--ready-file", str(self._ready), "--log-level", "error",
            ],
            folder,
            forked=forked and not nice,
        )  # fmt: skip

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        super().start()

    def wait_ready(self) -> None:
        """Block until it serves.

        Raises:
            RigError: it ended, or does not serve in time.
        """
        deadline = time.monotonic() + START_S
        while not self.ready:
            if not self.alive or time.monotonic() > deadline:
                raise RigError(f"switch {self.name} did not start:\n{self.tail()}")
            time.sleep(0.01)

    @property
    def ready(self) -> bool:
        return self._ready.exists()


class ControllerProcess(Child):
    """``ringstep controller serve`` at a fixed address, by a configuration file."""

    def __init__(
        self,
        name: str,
        folder: Path,
        topology: Path,
        store: str,
        *,
        settings: str = "",
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        forked: bool = False,
    ) -> None:
        """``settings`` is put at the end of controller.toml."""
        self.address = f"127.0.0.1:{port or free_port()}"
        self._ready = folder / f"{name}.ready.json"
        config = folder / f"{name}.toml"
        config.write_text(
            f'topology = "{topology}"\nlisten = "{self.address}"\nstore = "{store}"\n{settings}'
        )
        super().__init__(
            name,
            [
                *RINGSTEP, "controller", "serve", "--config", str(config),
                "--ready-file", str(self._ready), *arguments,
            ],
            folder,
            env,
            forked=forked,
        )  # fmt: skip

    def start(self) -> None:
        self._ready.unlink(missing_ok=True)
        super().start()

    @property
    def ready(self) -> bool:
        """Whether it said that it serves: leads, or waits for its turn."""
        return self._ready.exists()

    @property
    def listening(self) -> bool:
        """Whether its port takes connections."""
        host, _, port = self.address.rpartition(":")
        with socket.socket() as one:
            one.settimeout(0.5)
            return one.connect_ex((host, int(port))) == 0

    def wait_listening(self, patience_s: float = START_S) -> None:
        """Block until it listens and says that it serves: that it leads, or stands by.

        Raises:
            RigError: it ended, or does neither in time.
        """
        deadline = time.monotonic() + patience_s
        while not (self.ready and self.listening):
            if not self.alive or time.monotonic() > deadline:
                raise RigError(f"{self.name} did not start:\n{self.tail()}")
            time.sleep(0.02)

    def facts(self) -> dict[str, object]:
        """What its ready file says."""
        result: dict[str, object] = json.loads(self._ready.read_text())
        return result


def start_switches(switches: Sequence[SwitchProcess], at_once: int = 8) -> None:
    """Start switches, some at a time, and wait until all serve.

    Raises:
        RigError: as :meth:`SwitchProcess.wait_ready`.
    """
    for first in range(0, len(switches), at_once):
        batch = switches[first : first + at_once]
        for switch in batch:
            switch.start()
        for switch in batch:
            switch.wait_ready()
