"""Bridges in threads, sockets that stand in for engines, and a cable that can be looked into."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.bridge import Bridge, BridgeConfig, attach
from ringstep.protocol.rocev2 import RoceFrame, parse

from .stand_in import TIMEOUT_S, Engine

Hook = Callable[[int, bytes], list[bytes]]


class Cable:
    """A UDP wire with a person in the middle: ``hook(side, frame)`` says what goes on."""

    def __init__(self, hook: Hook | None = None) -> None:
        self.frames: tuple[list[bytes], list[bytes]] = ([], [])
        self.hook = hook
        self._middle = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        ends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        for sock in (*self._middle, *ends):
            sock.bind(("127.0.0.1", 0))
        for sock in self._middle:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._ends = [sock.getsockname() for sock in ends]
        for sock in ends:
            sock.close()
        self._stop_rx, self._stop_tx = socket.socketpair()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wire(self, side: int) -> str:
        near, middle = self._ends[side], self._middle[side].getsockname()
        return f"udp:127.0.0.1:{near[1]},127.0.0.1:{middle[1]}"

    def parsed(self, side: int) -> list[RoceFrame]:
        return [parse(frame) for frame in self.frames[side]]

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([*self._middle, self._stop_rx], (), ())
            if self._stop_rx in ready:
                return
            for side, sock in enumerate(self._middle):
                if sock not in ready:
                    continue
                try:
                    frame = sock.recv(65535)
                except ConnectionRefusedError:
                    continue
                self.frames[side].append(frame)
                for out in [frame] if self.hook is None else self.hook(side, frame):
                    self._middle[1 - side].sendto(out, self._ends[1 - side])

    def close(self) -> None:
        self._stop_tx.send(b"\0")
        self._thread.join()
        for sock in (*self._middle, self._stop_rx, self._stop_tx):
            sock.close()


class Running:
    """A bridge in a thread."""

    def __init__(self, path: Path, wire: str, options: dict[str, Any], mtu: int | None) -> None:
        self.log: list[str] = []
        self.bridge = Bridge(
            path, attach(wire, mtu=mtu), BridgeConfig(**options), log=self.log.append
        )
        self.path = path
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self.bridge:
            self.bridge.run()

    def stop(self) -> None:
        self.bridge.stop()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()


StartBridge = Callable[..., Running]
MakeCable = Callable[..., Cable]
Connect = Callable[..., tuple[Engine, Engine]]


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    opened: list[Engine] = []
    yield opened
    for engine in opened:
        engine.close()


@pytest.fixture
def make_cable() -> Iterator[MakeCable]:
    made: list[Cable] = []

    def make(hook: Hook | None = None) -> Cable:
        made.append(Cable(hook))
        return made[-1]

    yield make
    for cable in made:
        cable.close()


@pytest.fixture
def start(tmp_path: Path, make_cable: MakeCable, engines: list[Engine]) -> Iterator[StartBridge]:
    # The cable is asked for so that it outlives the bridges, which end first.
    running: list[Running] = []

    def start_one(
        wire: str = "udp:127.0.0.1:0", *, mtu: int | None = None, **options: Any
    ) -> Running:
        path = tmp_path / f"{len(running)}.sock"
        running.append(Running(path, wire, options, mtu))
        return running[-1]

    yield start_one
    for one in running:
        one.stop()


@pytest.fixture
def connect(engines: list[Engine]) -> Connect:
    """Opens a connection between two bridges, or within one."""

    def connected(a: Running, b: Running, channel: int = 0) -> tuple[Engine, Engine]:
        left, right = Engine(a.path), Engine(b.path)
        engines.extend((left, right))
        ends = left.open(0, 1, channel), right.open(1, 0, channel)
        assert left.connect(ends[1]) == 0
        assert right.connect(ends[0]) == 0
        return left, right

    return connected
