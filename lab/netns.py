"""Opens a software NIC's wire on an interface of another network namespace."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ringstep.hostlib.wires import AfPacketWire

_CLONE_NEWNET: Final = 0x40000000


def open_wire(pid: int, interface: str) -> AfPacketWire:
    """Open an interface in the network namespace of a process.

    A socket stays in the namespace in which it was made, so that one process may drive the NICs of
    many hosts.

    Raises:
        OSError: no such process or interface, or no right to enter.
    """
    with _inside(pid):
        return AfPacketWire(interface)


@contextmanager
def _inside(pid: int) -> Iterator[None]:
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(home)
    finally:
        os.close(home)


def _enter(namespace: int) -> None:
    # os.setns came with Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter a network namespace: {os.strerror(number)}")
