"""Runs a Python module that ends with its parent: ``python -m … PID FD,… MODULE ARGUMENT…``.

The kernel kills the process when the parent, of number PID, is gone, however it ended. Signals are
unblocked, and no descriptor is kept but the standard ones and those listed (``-`` for none). With
``-`` for MODULE the process loads what a coordinator needs, and reads from the first descriptor
what it is to run (:mod:`ringstep.cli.launcher.early`).
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
from importlib import import_module
from itertools import pairwise
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> None:
    """Tie this process to its parent and become the module."""
    parent, kept, *module = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):
        raise SystemExit(1)  # It was gone before the kernel knew of the wish.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    fds = [int(fd) for fd in kept.split(",") if fd.isdecimal()]
    for low, high in pairwise([2, *sorted(set(fds)), os.sysconf("SC_OPEN_MAX")]):
        os.closerange(low + 1, high)
    if module == ["-"]:
        module = _told(fds[0])
    # Errors come in frames that are broken at this width; the launcher hands on one line of them.
    os.environ["COLUMNS"] = "1000"
    sys.argv = module
    runpy.run_module(module[0], run_name="__main__", alter_sys=True)


def _told(words: int) -> list[str]:
    import_module("ringstep.cli.main")
    import_module("ringstep.hostlib.cli")
    with os.fdopen(words) as pipe:
        text = pipe.read()
    if not text:
        raise SystemExit(0)
    told = json.loads(text)
    os.environ.clear()
    os.environ.update(told["env"])
    module: list[str] = told["module"]
    return module


if __name__ == "__main__":
    main(sys.argv[1:])
