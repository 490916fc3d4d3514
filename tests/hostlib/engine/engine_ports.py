"""Ports for a root that ranks are told beforehand."""

from __future__ import annotations

import socket


def free_port(n: int = 4) -> int:
    """A port whose next ``n`` are free too."""
    for _ in range(100):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
        try:
            for i in range(n):
                with socket.socket() as other:
                    other.bind(("127.0.0.1", port + i))
        except (OSError, OverflowError):
            continue
        return port
    raise AssertionError("no free ports")
