"""Drives the software NICs of many hosts in one process, in real time, and measures its own lag.

Unlike ``hostlib.wires.HostLoop`` it looks only at NICs that have something to do, which is what
makes a dozen of them affordable, and it records how late it was: the first thing to know about
a measurement in real time.
"""

from __future__ import annotations

import heapq
import itertools
import select
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ringstep.hostlib.rnic import SoftRnic
from ringstep.hostlib.wires import Wire, monotonic_us


@dataclass(slots=True)
class Port:
    """A NIC on its wire; ``due_us`` is when it wants to be polled."""

    name: str
    nic: SoftRnic
    wire: Wire
    due_us: float | None = None
    on_event: Callable[[float], None] | None = None
    """Called after the NIC has taken frames in; may post to this NIC."""


@dataclass(slots=True)
class Lag:
    """How late NICs were polled, us."""

    samples: list[float] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        """Return the least lag that ``share`` of the polls did not exceed; 0 without polls."""
        if not self.samples:
            return 0.0
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class NicLoop:
    """Moves frames between NICs and wires in the calling thread."""

    def __init__(self, ports: Mapping[str, tuple[SoftRnic, Wire]]) -> None:
        self.ports = {name: Port(name, nic, wire) for name, (nic, wire) in ports.items()}
        self.lag = Lag()
        self._by_fd = {port.wire.fileno(): port for port in self.ports.values()}
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = itertools.count()

    @property
    def now_us(self) -> float:
        """Present time."""
        return monotonic_us()

    def call_at(self, time_us: float, name: str, action: Callable[[float], None]) -> None:
        """Run ``action(now_us)``, which may post to NIC ``name``, at a time or soon after."""
        port = self.ports[name]

        def act(now_us: float) -> None:
            action(now_us)
            port.due_us = now_us

        heapq.heappush(self._timers, (time_us, next(self._count), act))

    def forget_timers(self) -> None:
        """Drop what :meth:`call_at` was asked for and was not yet due."""
        self._timers.clear()

    def touch(self, name: str) -> None:
        """Have a NIC polled next: something was posted to it."""
        self.ports[name].due_us = self.now_us

    def run(self, until: Callable[[], bool], deadline_us: float) -> bool:
        """Run until ``until()`` holds or the clock reaches ``deadline_us``; return which."""
        fds = list(self._by_fd)
        samples = self.lag.samples
        while True:
            now = monotonic_us()
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2](now)
            wake = min(self._timers[0][0], deadline_us) if self._timers else deadline_us
            for port in self.ports.values():
                due = port.due_us
                if due is None:
                    continue
                if due <= now:
                    samples.append(now - due)
                    send = port.wire.send
                    for frame in port.nic.poll(now):
                        send(frame)
                    due = port.due_us = port.nic.next_wakeup(now)
                    if due is None:
                        continue
                if due < wake:
                    wake = due
            if until():
                return True
            if now >= deadline_us:
                return False
            timeout = max(0.0, (wake - monotonic_us()) / 1e6)
            for fd in select.select(fds, (), (), timeout)[0]:
                self._receive(self._by_fd[fd])

    def _receive(self, port: Port) -> None:
        now = monotonic_us()
        frames = port.wire.receive()
        for frame in frames:
            port.nic.on_frame(frame, now)
        if not frames:
            return
        if port.on_event is not None:
            port.on_event(now)
        due = port.nic.next_wakeup(now)
        if due is not None and (port.due_us is None or due < port.due_us):
            port.due_us = due

    def close(self) -> None:
        """Close the wires."""
        for port in self.ports.values():
            port.wire.close()
