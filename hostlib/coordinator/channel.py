"""One TCP connection between coordinators: its address, and frames in and out."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Callable
from typing import Final

from ringstep.hostlib.coordinator import wire
from ringstep.hostlib.coordinator.links import LinkError
from ringstep.hostlib.coordinator.loop import Loop

__all__ = ["Channel", "need_token", "parse_address"]

GREETING_MAX: Final = 512
UNSENT_MAX: Final = 16 << 20
"""Bytes waiting for a peer that does not read."""
_READ: Final = 1 << 18


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``[V6]:PORT``.

    Raises:
        LinkError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise LinkError(f"{text!r}: write HOST:PORT, for example 10.0.0.1:9571 or [::1]:9571")
    return host, int(port)


def need_token(token: int) -> None:
    """Refuse to listen or connect without a token.

    Raises:
        LinkError: it is 0.
    """
    if token == 0:
        raise LinkError(
            "RINGSTEP_SHM_TOKEN is not set: between nodes it proves who belongs to the job; set "
            "the same 16 hexadecimal digits on all nodes"
        )


class Channel:
    """One connection: frames in and out, when the socket is ready for them."""

    def __init__(self, sock: socket.socket, loop: Loop, turn: Callable[[], None]) -> None:
        self.sock = sock
        self.heard = self.spoke = self.since = time.monotonic()
        self.reader = wire.FrameReader(GREETING_MAX)
        self.inward: wire.Sealer | None = None
        self.outward: wire.Sealer | None = None
        self._loop = loop
        self.turn = turn
        self._unsent = bytearray()
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(sock, turn)

    def start_session(self, key: bytes, inward: bytes, outward: bytes) -> None:
        """Seal from now on."""
        self.inward, self.outward = wire.Sealer(key, inward), wire.Sealer(key, outward)
        self.reader.limit = wire.FRAME_MAX

    def receive(self) -> None:
        """Take in what is there.

        Raises:
            OSError: the connection is lost.
        """
        try:
            got = self.sock.recv(_READ)
        except BlockingIOError:
            return
        if not got:
            raise ConnectionResetError(errno.ECONNRESET, "the other side hung up")
        self.heard = time.monotonic()
        self.reader.feed(got)

    def send(self, content: bytes) -> None:
        """Send a frame, now or when there is room.

        Raises:
            OSError: the connection is lost, or the other side does not read.
        """
        if self.outward is not None:
            content = self.outward.seal(content)
        self._unsent += wire.framed(content)
        self.spoke = time.monotonic()
        self.flush()
        if len(self._unsent) > UNSENT_MAX:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the other side does not read")

    def flush(self) -> None:
        """Send what waits."""
        before = bool(self._unsent)
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self.sock.send(self._unsent[:_READ])]
        if before:
            self._loop.watch(self.sock, self.turn, write=bool(self._unsent))

    def close(self) -> None:
        """Hang up."""
        self._loop.forget(self.sock)
        self.sock.close()
