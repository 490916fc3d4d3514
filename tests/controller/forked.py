"""``ringstep`` as processes that are forked from one which has imported everything already.

Importing takes most of the processor time of a controller or switch that lives for the few seconds
of a test. The process that forks runs no thread and has opened nothing, and a forked one goes on as
``ringstep`` would: arguments, environment, session and output of its own, and the same way to end.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

_IMPORTED = (
    "psycopg",
    "ringstep.controller.cli",
    "ringstep.controller.serve",
    "ringstep.softswitch.cli",
    "ringstep.softswitch.p4rt.server",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
)
_MESSAGE_BYTES = 1 << 17
_LOST = 255
"""Exit status where the process that forks is gone, which nobody ends before the tests do."""


class ForkedProcess:
    """``ringstep`` with arguments of its own; has what is used of :class:`subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str],
        output: IO[Any],
        errors: IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """``errors``: as ``output``, if not given. ``env``: all of the environment."""
        self.args = ["ringstep", *arguments]
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._status, status_end = os.pipe()
        # Not before: a thread may wait while another one sees the end.
        weakref.finalize(self, os.close, self._status)
        try:
            environment = dict(os.environ if env is None else env)
            _forker(environment.get("LD_PRELOAD", "")).order(
                json.dumps([self.args, environment, str(Path.cwd())]).encode(),
                [output.fileno(), (errors or output).fileno(), status_end],
            )
        finally:
            os.close(status_end)
        self.pid = int(self._line())

    def _line(self) -> str:
        """Read a line of what is told about the process; empty where nobody is left to tell."""
        line = b""
        while not line.endswith(b"\n") and (byte := os.read(self._status, 1)):
            line += byte
        return line.decode()

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs; as the negative number of a signal."""
        with self._lock:
            if self.returncode is None and _readable(self._status, 0):
                self.returncode = int(self._line() or _LOST)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: it runs still.
        """
        if self.poll() is None:
            _readable(self._status, timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_forked(
    *arguments: str, timeout: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``ringstep`` to its end and return what it wrote; the environment is ours and ``env``.

    Raises:
        subprocess.TimeoutExpired: it did not end; it is killed.
    """
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        process = ForkedProcess(arguments, output, errors, os.environ | (env or {}))
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(process.args, status, output.read(), errors.read())


def _readable(descriptor: int, timeout: float | None) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(waiting.poll(None if timeout is None else 1000 * timeout))


class _Forker:
    """The process that forks; ends with the process that started it."""

    def __init__(self, preload: str) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                # -P: modules of this folder are no part of what a user runs.
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                # Buffered as for a pipe or a file, whatever the tests write to.
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=os.environ
                | {
                    "GRPC_VERBOSITY": "NONE",
                    "LD_PRELOAD": preload,
                    "OPENBLAS_NUM_THREADS": "1",
                },
                # Ctrl-C is for the tests, which then end what they started.
                start_new_session=True,
            )

        atexit.register(self._close)

    def order(self, message: bytes, descriptors: list[int]) -> None:
        socket.send_fds(self._orders, [message], descriptors)

    def _close(self) -> None:
        self._orders.close()
        self._process.wait()


_forkers: dict[str, _Forker] = {}
"""By the libraries that are loaded before all others, which nothing does in a running process."""
_starting = threading.Lock()


def _forker(preload: str) -> _Forker:
    with _starting:
        if preload not in _forkers:
            _forkers[preload] = _Forker(preload)
        return _forkers[preload]


# -- in the process that forks -------------------------------------------------------------------


def _fork_by_order(orders: socket.socket) -> None:
    """Fork as told, and tell how each process ended; returns in every process that is forked."""
    noticed, notice = os.pipe()
    os.set_blocking(noticed, False)
    os.set_blocking(notice, False)
    signal.set_wakeup_fd(notice)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    tell: dict[int, int] = {}
    waiting = select.poll()
    waiting.register(orders, select.POLLIN | select.POLLHUP)
    waiting.register(noticed, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if noticed in ready:
            os.read(noticed, 4096)
            _tell_ends(tell)
        if orders.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(orders, _MESSAGE_BYTES, 3)
        if not message:
            # Not as others end: what they would clean up was never theirs.
            os._exit(0)
        output, errors, status = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            orders.close()
            for descriptor in (noticed, notice, status, *tell.values()):
                os.close(descriptor)
            _become(json.loads(message), output, errors)
            return
        os.close(output)
        os.close(errors)
        tell[pid] = status
        os.write(status, f"{pid}\n".encode())


def _tell_ends(tell: dict[int, int]) -> None:
    while tell:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        descriptor = tell.pop(pid)
        with suppress(BrokenPipeError):
            os.write(descriptor, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(descriptor)


def _become(order: tuple[list[str], dict[str, str], str], output: int, errors: int) -> None:
    sys.argv, env, folder = order
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)


if __name__ == "__main__":
    from importlib import import_module

    for name in _IMPORTED:
        # Without psycopg there is no PostgreSQL, and its tests are skipped.
        with suppress(ImportError):
            import_module(name)
    from ringstep.cli.main import main

    gc.collect()
    gc.freeze()
    _fork_by_order(socket.socket(fileno=int(sys.argv[1])))
    main()
