"""Works on interfaces in other network namespaces: opens a NIC's wire, switches offloads off."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from ringstep.hostlib.wires import AfPacketWire

_CLONE_NEWNET: Final = 0x40000000
_SIOCETHTOOL: Final = 0x8946
# ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO of linux/ethtool.h.
_OFFLOADS: Final = (0x17, 0x1F, 0x24, 0x2C)


def open_wire(pid: int, interface: str) -> AfPacketWire:
    """Open an interface in the network namespace of a process.

    A socket stays in the namespace in which it was made, so that one process may drive the NICs of
    many hosts.

    Raises:
        OSError: no such process or interface, or no right to enter.
    """
    with _inside(pid):
        return AfPacketWire(interface)


def no_offloads(pid: int, interface: str) -> None:
    """Have the kernel of a host make whole packets itself: checksums, segments of the link's size.

    Between two ends of a veth pair it saves itself the trouble, but the pipeline forwards what it
    gets. Where the kernel refuses, nothing is changed.

    Raises:
        OSError: no such process, or no right to enter its namespace.
    """
    with _inside(pid), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))
            with suppress(OSError):
                fcntl.ioctl(sock, _SIOCETHTOOL, request)


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
