"""Children that never outlive their parent and that say when they are ready."""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1


class ChildFailed(RuntimeError):
    """A child ended early or answered with an error; the text holds its last words."""


def ringstep(*arguments: str) -> list[str]:
    """Return the command line that runs ``ringstep`` with the interpreter of this process."""
    return [sys.executable, "-m", "ringstep.cli", *arguments]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """A process that ends with its parent and whose output is kept in a file."""

    def __init__(self, name: str, command: Sequence[str], scratch: Path) -> None:
        self.name = name
        self.command = tuple(command)
        self.log_path = scratch / f"{name}.log"
        self._log: IO[bytes] = self.log_path.open("wb")
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches the parent alone, which then stops its children in order.
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until ``ready()`` holds.

        Raises:
            ChildFailed: the process ended, or ``ready()`` did not hold in time.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if ready():
                return
            self.check()
            time.sleep(0.02)
        raise ChildFailed(f"{self.name} was not ready within {timeout_s:g} s; {self._last_words()}")

    def check(self) -> None:
        """Raise ChildFailed if the child has ended."""
        if (status := self._process.poll()) is not None:
            raise ChildFailed(f"{self.name} ended with status {status}; {self._last_words()}")

    def terminate(self) -> None:
        """Ask the process to end, without waiting."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """End the child: SIGTERM, then SIGKILL. Safe to call twice."""
        self.terminate()
        if self._process.poll() is None:
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def _last_words(self) -> str:
        self._log.flush()
        lines = self.log_path.read_text(errors="replace").splitlines()[-15:]
        return "its last words:\n" + "\n".join(f"  {line}" for line in lines) if lines else "silent"


class Child(Process):
    """A server process that writes one JSON line into ``ready_file`` once it serves."""

    def __init__(self, name: str, command: Sequence[str], scratch: Path) -> None:
        self.ready_file = scratch / f"{name}.ready.json"
        super().__init__(name, [*command, "--ready-file", str(self.ready_file)], scratch)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> Mapping[str, Any]:
        """Wait until the child serves and return what its ready file says.

        Raises:
            ChildFailed: it ended, or did not become ready in time.
        """
        self.wait_until(
            lambda: self.ready_file.exists() and self.ready_file.read_text().endswith("\n"),
            timeout_s,
        )
        ready: Mapping[str, Any] = json.loads(self.ready_file.read_text())
        return ready


@contextlib.contextmanager
def running(name: str, command: Sequence[str], scratch: Path) -> Iterator[Child]:
    """Run a child for the length of the block."""
    child = Child(name, command, scratch)
    try:
        yield child
    finally:
        child.stop()


def call(*arguments: str, timeout_s: float = 60.0) -> str:
    """Run a ``ringstep`` command to its end and return its standard output.

    Raises:
        ChildFailed: a non-zero exit status; the text holds what it printed.
    """
    done = subprocess.run(
        ringstep(*arguments), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise ChildFailed(
            f"`ringstep {' '.join(arguments)}` ended with status {done.returncode}:\n"
            f"{done.stderr or done.stdout}"
        )
    return done.stdout
