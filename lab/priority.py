"""Gives what moves the lab's packets a CPU at once, on a machine that has other work too.

A software switch that computes for 50 us every millisecond needs little of a CPU, but needs it
when the packet comes. Under the round-robin real-time policy it gets it within some 100 us even
where ordinary processes keep every CPU busy; under the ordinary policy it waits for milliseconds,
which is several packets.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

_LOWEST_REALTIME: Final = 1


class Scheduling(StrEnum):
    """How the kernel is asked to treat the lab's switches and NICs."""

    REALTIME = "realtime"
    """SCHED_RR, where the kernel grants it."""
    NORMAL = "normal"
    """Like any process."""


def prefer(pids: Iterable[int]) -> bool:
    """Give every thread of some processes the real-time policy; return whether all got it."""
    granted = True
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
            granted &= _round_robin(int(task.name))
    return granted


def _round_robin(thread: int) -> bool:
    try:
        os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(_LOWEST_REALTIME))
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return True


@contextlib.contextmanager
def preferred_thread(scheduling: Scheduling) -> Iterator[bool]:
    """Give the calling thread the policy for the length of the block; yield whether it got it."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    if scheduling is not Scheduling.REALTIME or not _round_robin(0):
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, policy, parameters)
