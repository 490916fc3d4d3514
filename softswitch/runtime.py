"""One process, one switch: the loop that moves packets, beside the P4Runtime server.

The loop runs in the main thread; the gRPC server has its own threads. They share the switch under
`Switch.lock`, which the loop holds for one batch of packets at a time.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ringstep.softswitch.engine import Switch
from ringstep.softswitch.wires import Wire

log = logging.getLogger(__name__)

MAX_WAIT_S = 1.0
"""Longest the loop sleeps without a reason."""

MAX_PACKET_OUTS = 1024
"""Packet-outs that may wait for the loop; a controller that sends more loses the rest."""


class Runtime:
    """Moves packets between a switch and its wires until stopped.

    `packet_in` is called, without the lock, with each frame that leaves at the CPU port, `digest`
    with each digest's name and values.
    """

    def __init__(self, switch: Switch, wires: Mapping[int, Wire]) -> None:
        self.switch = switch
        self.wires = dict(wires)
        self.unwired_drops = 0
        self.packet_out_drops = 0
        self.packet_in: Any = None
        self.digest: Any = None
        self._packet_outs: deque[bytes] = deque()
        self._stopping = False
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._start_ns = time.monotonic_ns()

    def now_us(self) -> float:
        """Microseconds since the switch was started, as BMv2 counts them."""
        return (time.monotonic_ns() - self._start_ns) / 1000

    # -- from other threads and signal handlers

    def wake(self) -> None:
        """Make the loop look again."""
        # A full pipe means that it has not looked yet, so it will.
        with suppress(BlockingIOError):
            os.write(self._wake_out, b"\0")

    def submit_packet_out(self, frame: bytes) -> None:
        """Take in a frame, its packet_out header in front; any thread may call this.

        Where too many wait already it is dropped and counted.
        """
        if len(self._packet_outs) >= MAX_PACKET_OUTS:
            self.packet_out_drops += 1
            return
        self._packet_outs.append(frame)
        self.wake()

    def stop(self) -> None:
        """End `run` soon; any thread or signal handler may call this."""
        self._stopping = True
        self.wake()

    # -- the loop

    def run(self) -> None:
        """Move packets until `stop`."""
        by_fd = {fd: (port, w) for port, w in self.wires.items() if (fd := w.fileno()) is not None}
        polled = [(port, w) for port, w in self.wires.items() if w.fileno() is None]
        watched = [*by_fd, self._wake_in]
        timeout = 0.0
        while not self._stopping:
            ready = select.select(watched, (), (), timeout)[0]
            arrived: list[tuple[int, list[bytes]]] = []
            now = self.now_us()
            for fd in ready:
                if fd == self._wake_in:
                    os.read(fd, 4096)
                else:
                    port, wire = by_fd[fd]
                    arrived.append((port, wire.receive(now)))
            for port, wire in polled:
                frames = wire.receive(now)
                if frames:
                    arrived.append((port, frames))
            self._forward(self._process(arrived))
            timeout = self._timeout(polled)

    def _process(self, arrived: list[tuple[int, list[bytes]]]) -> list[tuple[int, bytes]]:
        switch = self.switch
        with switch.lock:
            while self._packet_outs:
                switch.packet_out(self._packet_outs.popleft(), self.now_us())
            for port, frames in arrived:
                for frame in frames:
                    switch.receive(port, frame, self.now_us())
            sent = switch.advance(self.now_us())
            digests = switch.take_digests()
        if self.digest is not None:
            for name, values in digests:
                self.digest(name, values)
        return sent

    def _forward(self, sent: list[tuple[int, bytes]]) -> None:
        for port, frame in sent:
            wire = self.wires.get(port)
            if wire is not None:
                wire.send(frame, self.now_us())
            elif port == self.switch.cpu_port and self.packet_in is not None:
                self.packet_in(frame)
            else:
                self.unwired_drops += 1

    def _timeout(self, polled: list[tuple[int, Wire]]) -> float:
        if self._packet_outs:
            return 0.0
        due = [at for _, wire in polled if (at := wire.next_arrival()) is not None]
        with self.switch.lock:
            departure = self.switch.next_departure()
        if departure is not None:
            due.append(departure)
        if not due:
            return MAX_WAIT_S
        return min(max((min(due) - self.now_us()) / 1e6, 0.0), MAX_WAIT_S)

    def statistics(self) -> dict[str, Any]:
        """All counts, ready for JSON."""
        with self.switch.lock:
            ports = {
                str(port): {
                    **dataclasses.asdict(stats),
                    "wire_errors": self.wires[port].tx_errors if port in self.wires else 0,
                }
                for port, stats in self.switch.port_stats().items()
            }
            totals = dataclasses.asdict(self.switch.stats)
        return {
            "device_id": self.switch.device_id,
            "now_us": int(self.now_us()),
            "ports": ports,
            "unwired_drops": self.unwired_drops,
            "packet_out_drops": self.packet_out_drops,
            **totals,
        }

    def close(self) -> None:
        """Close the wires and the wake-up pipe."""
        for wire in self.wires.values():
            wire.close()
        os.close(self._wake_in)
        os.close(self._wake_out)


@contextmanager
def stopped_by_signals(runtime: Runtime) -> Iterator[None]:
    """SIGINT and SIGTERM stop `runtime` while this lasts."""

    def handler(number: int, frame: object) -> None:
        runtime.stop()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def write_json_atomically(path: Path, document: object) -> None:
    """One line of JSON that readers see whole or not at all. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(document) + "\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
