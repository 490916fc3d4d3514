"""A software RNIC without the RNIC: forwards messages between Unix sockets of one process.

It keeps to rnic_bridge.h and to nothing else, passes bytes on in pieces of any length, and writes
down each message's channel, length and step.
"""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

MAGIC = 0x31425352
UNTAGGED = 0xFFFFFFFF
OPEN = struct.Struct("<IIQIIII")
REPLY = struct.Struct("<II")
CONNECT = struct.Struct("<II64s")
MESSAGE = struct.Struct("<II")


class StandIn:
    """Serves on one path per rank; all in one event loop."""

    def __init__(self, seed: int = 0) -> None:
        self.messages: list[tuple[int, int, int]] = []
        """Channel, length, step."""
        self.wrong: list[str] = []
        self._random = random.Random(seed)
        self._waiting: dict[bytes, tuple[asyncio.StreamWriter, asyncio.Event]] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, path: Path) -> None:
        self._servers.append(await asyncio.start_unix_server(self._serve, path))

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._queue_pair(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _queue_pair(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened = OPEN.unpack(await reader.readexactly(OPEN.size))
        magic, kind, channel = opened[0], opened[1], opened[5]
        if (magic, kind) != (MAGIC, 1):
            self.wrong.append(f"opened with {opened}")
        endpoint = self._random.randbytes(64)
        ready = asyncio.Event()
        self._waiting[endpoint] = (writer, ready)
        writer.write(REPLY.pack(MAGIC, 0) + endpoint)
        magic, kind, theirs = CONNECT.unpack(await reader.readexactly(CONNECT.size))
        if (magic, kind) != (MAGIC, 2) or theirs not in self._waiting:
            self.wrong.append(f"connected with {magic:x}, {kind}")
            return
        writer.write(REPLY.pack(MAGIC, 0))
        ready.set()  # the peer may write to us: what was promised before has been written
        peer, peer_ready = self._waiting[theirs]
        while True:
            head = await reader.readexactly(MESSAGE.size)
            length, step = MESSAGE.unpack(head)
            if not 1 <= length <= 64 << 20:
                self.wrong.append(f"a message of {length} bytes")
                return
            self.messages.append((channel, length, step))
            left = head + await reader.readexactly(length)
            await peer_ready.wait()
            while left:
                size = self._random.choice((1, 3, 61, 4099, 65536))
                peer.write(left[:size])
                await peer.drain()
                left = left[size:]
                await asyncio.sleep(0)
