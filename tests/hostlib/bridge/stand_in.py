"""A socket that stands in for an engine."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

TIMEOUT_S = 60.0
UNTAGGED = 0xFFFFFFFF


class Engine:
    """One side of a connection, speaking rnic_bridge.h with its numbers written out."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(path))

    def open(self, rank: int = 0, peer: int = 1, channel: int = 0) -> bytes:
        self.sock.sendall(struct.pack("=IIQIIII", 0x31425352, 1, 7, rank, peer, channel, 0))
        magic, status, endpoint = struct.unpack("=II64s", self.read(72))
        assert (magic, status) == (0x31425352, 0)
        return bytes(endpoint)

    def connect(self, endpoint: bytes) -> int:
        self.sock.sendall(struct.pack("=II64s", 0x31425352, 2, endpoint))
        magic, status = struct.unpack("=II", self.read(8))
        assert magic == 0x31425352
        return int(status)

    def send(self, data: bytes, step: int) -> None:
        self.sock.sendall(struct.pack("=II", len(data), step) + data)

    def receive(self) -> tuple[bytes, int]:
        length, step = struct.unpack("=II", self.read(8))
        return self.read(length), step

    def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.sock.recv(size - len(data))
            if not part:
                raise EOFError(f"closed after {len(data)} of {size} bytes")
            data += part
        return bytes(data)

    def closed(self) -> bool:
        """Wait for the end; True where the bridge closes without sending anything more."""
        try:
            return not self.sock.recv(1)
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.sock.close()
