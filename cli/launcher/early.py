"""Starts the coordinator's process before anybody knows what it is to do.

Loading the launcher and loading the coordinator take half a second each; side by side they take
half a second together. The process loads its modules and waits for words on a pipe; where they do
not come (bad input, nothing to coordinate) it ends, as it does when this process is gone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

_TETHER: Final = "ringstep.cli.launcher.tether"
_WITHOUT: Final = frozenset({"--no-tuner", "--dry-run", "--help", "-h"})
_waiting: list[Early] = []


def tethered(
    module: Sequence[str], fds: Sequence[int], log: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the command line and file actions of a Python module that dies with this process.

    Args:
        module: and its arguments.
        fds: descriptors that it keeps; they are made inheritable.
        log: descriptor that its output goes to.
    """
    kept = ",".join(map(str, fds)) or "-"
    words = [sys.executable, "-m", _TETHER, str(os.getpid()), kept, *module]
    for fd in fds:
        os.set_inheritable(fd, True)
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    return words, actions


class Early:
    """A process that waits for its words; its log and readiness come by pipes.

    Attributes:
        pid: of the process.
        log: descriptor to read its output from.
        ready: descriptor to read its readiness from.
        ready_write: number of the descriptor that it is to write that to.
    """

    def __init__(self) -> None:
        self.log, log = os.pipe()
        self.ready, self.ready_write = os.pipe()
        words, self._words = os.pipe()
        arguments, actions = tethered(["-"], [words, self.ready_write], log)
        try:
            self.pid = os.posix_spawn(
                sys.executable, arguments, os.environ, file_actions=actions, setsid=True
            )
        except OSError:
            self.dismiss()
            raise
        finally:
            for fd in (log, words, self.ready_write):
                os.close(fd)

    def tell(self, module: Sequence[str], env: Mapping[str, str]) -> None:
        """Say what module to run with which arguments and environment.

        Raises:
            OSError: the process has ended.
        """
        with os.fdopen(self._words, "w") as pipe:
            json.dump({"module": list(module), "env": dict(env)}, pipe)

    def dismiss(self) -> None:
        """Let the process end: there is nothing for it to do."""
        for fd in (self._words, self.log, self.ready):
            os.close(fd)


def start(arguments: Sequence[str]) -> None:
    """Start the process, unless the command line of ``run`` wants none."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if _WITHOUT.isdisjoint(own) and os.environ.get("SLURM_LOCALID", "0") == "0":
        try:
            _waiting.append(Early())
        except OSError:
            return  # Whoever needs it starts it later, and says why that fails.


def take() -> Early | None:
    """Return the process that waits, once; None where there is none."""
    return _waiting.pop() if _waiting else None
