"""A child process of the launcher, started without forking Python and waited for without polling.

``posix_spawn`` rather than :mod:`subprocess`: the command gets the signal mask and the inherited
descriptors that it would have without the launcher, and no Python runs between fork and exec.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

_AS_FOUND: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these; whoever it starts should not."""


class Child:
    """A running process of our own; ``exited`` becomes its return code, negative for a signal."""

    def __init__(self, pid: int) -> None:
        loop = asyncio.get_running_loop()
        self.pid = pid
        self.exited: asyncio.Future[int] = loop.create_future()
        self._reaped = False
        threading.Thread(target=self._wait, args=(loop,), daemon=True).start()

    @classmethod
    def spawn(
        cls,
        program: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        mask: Iterable[int] = (),
        actions: Sequence[tuple[Any, ...]] = (),
        own_session: bool = False,
    ) -> Self:
        """Start a program; ``actions`` are those of :func:`os.posix_spawn`.

        To be called in the main thread: the kernel takes the thread that started a process for its
        parent.

        Raises:
            OSError: the program cannot be started.
        """
        return cls(
            os.posix_spawn(
                program,
                list(arguments),
                env,
                file_actions=actions,
                setsid=own_session,
                setsigmask=list(mask),
                setsigdef=list(_AS_FOUND),
            )
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if not self._reaped:
            os.kill(self.pid, number)

    def send_group(self, number: signal.Signals) -> None:
        """Send a signal to the process's own session's group, unless it has ended."""
        if not self._reaped:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                os.kill(self.pid, number)

    def shares_group(self) -> bool:
        """Say whether the process is in our process group, and gets what the terminal sends."""
        try:
            return not self._reaped and os.getpgid(self.pid) == os.getpgrp()
        except ProcessLookupError:
            return True

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        # Not reaped here: its number stays taken until the loop knows, so that no signal goes to
        # another process.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        try:
            loop.call_soon_threadsafe(self._reap)
        except RuntimeError:
            return  # The loop is closed; nobody waits any more.

    def _reap(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        self._reaped = True
        if not self.exited.done():
            self.exited.set_result(os.waitstatus_to_exitcode(status))


def shell_status(returncode: int) -> int:
    """Return an exit status as shells give it: 128 + N for signal N."""
    return 128 - returncode if returncode < 0 else returncode
