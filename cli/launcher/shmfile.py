"""The shared-memory file as the launcher sees it: is it this run's, is it an earlier one's."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


def is_of_run(file: Path, token: int) -> bool:
    """Say whether a file belongs to the run of this token, and somebody looks after it."""
    # numpy, which reads it, starts threads: only once somebody asks.
    from ringstep.hostlib.shm import ShmError, ShmFile, alive

    try:
        with ShmFile.open(file) as found:
            header = found.raw["header"][0]
            owner, start = int(header["pid"]), int(header["pid_start"])
            return found.token == token and alive(owner, start)
    except ShmError:
        return False


def remove_left_over(file: Path) -> None:
    """Remove a file that no coordinator owns: one of an earlier run, also of the same token.

    An unlinked file stays for whoever has it mapped.
    """
    with contextlib.suppress(OSError):
        lock = os.open(file.with_name(f"{file.name}.owner"), os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
        finally:
            os.close(lock)
