"""The process's surroundings: the job's file, signals, the process that started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from ringstep.hostlib.shm import ShmError, ShmFile, alive
from ringstep.hostlib.shm_layout import SlotState

__all__ = ["Ending", "die_with_parent", "open_file"]

_PR_SET_PDEATHSIG: Final = 1


def open_file(path: Path, token: int) -> tuple[ShmFile, bool]:
    """Return the job's file, owned, and whether it was there before.

    The file of a coordinator that is gone is taken over if it is of this run: the same token or,
    without one, ranks that are still alive. Else a new one takes its place.

    Raises:
        ShmError: another coordinator owns it, or there is no storage.
    """
    if path.exists():
        file = None
        with contextlib.suppress(ShmError):  # owned: create() says so; unusable: replaced
            file = ShmFile.reopen(path)
        if file is not None:
            if file.token == token and (token != 0 or _in_use(file)):
                return file, True
            file.close()
    try:
        return ShmFile.create(path, token=token), False
    except OSError as error:
        raise ShmError(
            f"{path}: {error.strerror}; set RINGSTEP_SHM_DIR or --shm to a folder of your own"
        ) from error


def _in_use(file: ShmFile) -> bool:
    slots = file.raw["comms"][0]["ranks"].reshape(-1)
    here = slots[slots["state"] == SlotState.ATTACHED]
    return any(
        alive(int(pid), int(start))
        for pid, start in zip(here["pid"], here["pid_start"], strict=True)
    )


class Ending:
    """The wish to end: of a signal, an operator, a caller on another thread."""

    def __init__(self) -> None:
        self.asked = False
        self._wake: Callable[[], None] = lambda: None

    def ask(self) -> None:
        """End soon."""
        self.asked = True
        self._wake()

    def wakes(self, wake: Callable[[], None]) -> None:
        """Have a wait ended when the wish comes."""
        self._wake = wake

    @contextlib.contextmanager
    def by_signals(self) -> Iterator[None]:
        """Take SIGTERM and SIGINT as the wish to end; for the main thread."""

        def end(number: int, frame: Any) -> None:
            self.ask()

        before = {n: signal.signal(n, end) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def die_with_parent() -> None:
    """Have the kernel send SIGTERM when the process that started this one ends."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it ended in between
        os.kill(os.getpid(), signal.SIGTERM)
