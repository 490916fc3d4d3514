"""Ports of loopback that a program is told to listen at."""

from __future__ import annotations

import random
import socket

_GIVEN: set[int] = set()


def free_port(n: int = 1) -> int:
    """Return a TCP port whose next ``n - 1`` are free too, which this process did not get before.

    Below those that the kernel gives to connections: one of these may be taken before the program
    that is to listen has started.
    """
    for port in random.SystemRandom().sample(range(15_000, 32_000), 1000):
        wanted = range(port, port + n)
        if not _GIVEN.isdisjoint(wanted):
            continue
        try:
            for each in wanted:
                with socket.socket() as one:
                    one.bind(("127.0.0.1", each))
        except OSError:
            continue
        _GIVEN.update(wanted)
        return port
    raise AssertionError("no free ports")
