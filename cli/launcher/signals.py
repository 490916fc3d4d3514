"""Signals as data: who sent one decides whether the command has got it already.

The command stays in the launcher's process group, so that the terminal and the shell's job control
treat both as one: what the terminal sends (ctrl-C, hang-up) reaches the command by itself, and what
somebody sends to the launcher alone is passed on. The two are told apart by the kernel's note on
each signal, which only a signalfd or sigwaitinfo shows. Suspending (ctrl-Z) stays the default.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

PASSED_ON: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""End the launcher while there is no command yet."""
_SIGSET_BYTES: Final = 128
_INFO_BYTES: Final = 128
_INFO: Final = struct.Struct("=Iii")
_FD_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK


class Signals:
    """Holds signals back while it is entered, and hands them out once somebody listens.

    To be entered in the main thread before other threads start, so that no thread has them
    unblocked. A signal that was ignored before (``nohup``, a shell's ``&``) stays ignored, here and
    in the command.
    """

    def __init__(self) -> None:
        self._fd = -1
        self._before: set[int | signal.Signals] = set()

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            # Inherited from a careless parent; the kernel would throw exit statuses away.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        wanted = [s for s in PASSED_ON if signal.getsignal(s) is not signal.SIG_IGN]
        self._before = set(signal.pthread_sigmask(signal.SIG_BLOCK, wanted))
        self._fd = _signalfd(wanted)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._read(lambda *_: None)  # What is left would hit a handler once it is unblocked.
        os.close(self._fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    @contextmanager
    def listening(self, received: Callable[[signal.Signals, bool], None]) -> Iterator[None]:
        """Call ``received`` in the running loop: the signal, and whether the kernel sent it.

        What the kernel sends comes from the terminal, to the whole process group.
        """
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, self._read, received)
        try:
            yield
        finally:
            loop.remove_reader(self._fd)

    @property
    def mask_before(self) -> set[int | signal.Signals]:
        """What was blocked before, for the command."""
        return self._before

    def _read(self, received: Callable[[signal.Signals, bool], None]) -> None:
        while True:
            try:
                info = os.read(self._fd, _INFO_BYTES)
            except BlockingIOError:
                return
            number, _, code = _INFO.unpack_from(info)
            received(signal.Signals(number), code > 0)


def _signalfd(wanted: list[signal.Signals]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    mask = ctypes.create_string_buffer(_SIGSET_BYTES)
    libc.sigemptyset(mask)
    for number in wanted:
        libc.sigaddset(mask, int(number))
    fd = libc.signalfd(-1, mask, _FD_FLAGS)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"signalfd: {os.strerror(code)}")
    return int(fd)
