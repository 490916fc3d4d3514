"""What carries the frames of software NICs: sockets in real time, memory in virtual time.

* :class:`UdpWire` is a cable over loopback: one raw Ethernet frame per datagram, no root needed.
* :class:`AfPacketWire` is a network interface of Linux; it needs CAP_NET_RAW.
* :class:`HostLoop` drives NICs on such wires in real time.
* :class:`VirtualNet` drives NICs, and switches of the same shape, in virtual time: a run is exact
  and repeatable, and takes as long as its packets need to be computed.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import select
import socket
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Protocol, Self

__all__ = [
    "AfPacketWire",
    "Host",
    "HostLoop",
    "LinkHook",
    "Switch",
    "UdpWire",
    "VirtualNet",
    "Wire",
    "monotonic_us",
]

_MAX_FRAME: Final = 65535
_BATCH: Final = 64
"""Frames read from one wire before the others get their turn."""
_SOCKET_BUFFER: Final = 4 << 20
_SOL_PACKET: Final = 263
_PACKET_IGNORE_OUTGOING: Final = 23


def monotonic_us() -> float:
    """Return the monotonic clock in microseconds."""
    return time.monotonic_ns() / 1000


class Host(Protocol):
    """One port, sans-IO: a ``SoftRnic``."""

    def on_frame(self, frame: bytes, now_us: float) -> None:
        """Take a received frame."""

    def poll(self, now_us: float) -> list[bytes]:
        """Return the frames to send now."""

    def next_wakeup(self, now_us: float) -> float | None:
        """Return when to poll next."""


class Switch(Protocol):
    """Several ports, sans-IO."""

    def receive(self, port: int, frame: bytes, now_us: float) -> None:
        """Take a frame received on ``port``."""

    def advance(self, now_us: float) -> list[tuple[int, bytes]]:
        """Return the frames that leave by ``now_us``, each with its port."""

    def next_departure(self) -> float | None:
        """Return when to advance next."""


class Wire(Protocol):
    """A cable's end in the real world."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""

    def send(self, frame: bytes) -> None:
        """Put a frame on the wire; a frame that does not fit the kernel's buffer is lost."""

    def receive(self, limit: int = _BATCH) -> list[bytes]:
        """Return the frames that have arrived, at most ``limit``, without waiting."""

    def close(self) -> None:
        """Release the wire; closing twice is allowed."""


class _SocketWire:
    """Common part of wires over a datagram socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)
        self._sock = sock
        self.lost = 0
        """Frames that the kernel did not take."""

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._sock.fileno()

    def receive(self, limit: int = _BATCH) -> list[bytes]:
        """Return the frames that have arrived, at most ``limit``, without waiting."""
        frames: list[bytes] = []
        receive = self._sock.recv
        try:
            while len(frames) < limit:
                frames.append(receive(_MAX_FRAME))
        except OSError:
            # Nothing more has come; or loopback reports that nobody listened to an earlier frame,
            # or the interface is down: a loose cable, no error.
            pass
        return frames

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class UdpWire(_SocketWire):
    """A cable over UDP: one raw Ethernet frame per datagram, from ``bind`` to ``peer``.

    Frames from other addresses than ``peer`` are not seen. ``peer`` may be given later with
    :meth:`connect`: until then frames sent are lost and frames of anyone are received.
    """

    def __init__(
        self, bind: tuple[str, int] = ("127.0.0.1", 0), peer: tuple[str, int] | None = None
    ) -> None:
        """Bind at once.

        Raises:
            OSError: the address cannot be bound; the text names it.
        """
        family = socket.AF_INET6 if ":" in bind[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM)
        try:
            sock.bind(bind)
            super().__init__(sock)
            self._peer: tuple[str, int] | None = None
            if peer is not None:
                self.connect(peer)
        except OSError as error:
            sock.close()
            raise OSError(
                error.errno,
                f"UDP wire {bind[0]}:{bind[1]}: {error.strerror}; "
                "choose another port, or 0 for any free one",
            ) from None

    @property
    def address(self) -> tuple[str, int]:
        """The address that the other end sends to."""
        name = self._sock.getsockname()
        return name[0], name[1]

    def connect(self, peer: tuple[str, int]) -> None:
        """Name the other end."""
        self._sock.connect(peer)
        self._peer = peer

    def send(self, frame: bytes) -> None:
        """Send one frame; it is lost, and counted, if the kernel does not take it."""
        if self._peer is None:
            self.lost += 1
            return
        try:
            self._sock.send(frame)
        except ConnectionRefusedError:
            # The error belongs to an earlier frame; this one was not sent yet.
            try:
                self._sock.send(frame)
            except OSError:
                self.lost += 1
        except OSError:
            self.lost += 1


class AfPacketWire(_SocketWire):
    """A Linux network interface, all its Ethernet frames. Needs CAP_NET_RAW."""

    def __init__(self, interface: str) -> None:
        """Open the interface.

        Raises:
            OSError: no such interface, or no right to open it; the text says how to get it.
        """
        if not hasattr(socket, "AF_PACKET"):
            raise OSError(f"interface {interface}: AF_PACKET exists on Linux only; use a UDP wire")
        try:
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        except PermissionError as error:
            raise PermissionError(
                error.errno,
                f"interface {interface}: raw sockets need CAP_NET_RAW; run as root, or "
                "`setcap cap_net_raw+ep` on the Python binary, or use a UDP wire",
            ) from None
        try:
            # Before Linux 4.20 the kernel hands out own frames too; they are left out below.
            with contextlib.suppress(OSError):
                sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
            sock.bind((interface, 0))
            super().__init__(sock)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, f"interface {interface}: {error.strerror}") from None
        self.interface = interface

    def send(self, frame: bytes) -> None:
        """Send one frame; it is lost, and counted, if the kernel does not take it."""
        try:
            self._sock.send(frame)
        except OSError:
            # Its buffer is full, the frame is longer than the MTU, or the interface is down.
            self.lost += 1

    def receive(self, limit: int = _BATCH) -> list[bytes]:
        """Return the frames that have arrived; those that this host sent itself are left out."""
        frames: list[bytes] = []
        try:
            while len(frames) < limit:
                frame, address = self._sock.recvfrom(_MAX_FRAME)
                if address[2] != socket.PACKET_OUTGOING:
                    frames.append(frame)
        except OSError:
            # Nothing more has come, or the interface is down.
            pass
        return frames


class _Timers:
    """Callbacks at given times, in order of time and then of their being asked for."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def add(self, time_us: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time_us, next(self._count), action))

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def run(self, now_us: float) -> bool:
        ran = False
        while self._heap and self._heap[0][0] <= now_us:
            heapq.heappop(self._heap)[2]()
            ran = True
        return ran


class HostLoop:
    """Drives NICs on wires in real time, in the calling thread.

    Waits with ``select``, whose timeout is exact to microseconds where epoll's is rounded to
    milliseconds. Use it as a context manager: leaving it, also by ctrl-C, closes every wire.
    """

    def __init__(
        self,
        ports: Iterable[tuple[Host, Wire]],
        *,
        clock: Callable[[], float] = monotonic_us,
        on_progress: Callable[[], None] | None = None,
    ) -> None:
        """Args: ``ports`` pairs NICs with wires; ``on_progress`` is called after each round."""
        self._ports = list(ports)
        self._clock = clock
        self._on_progress = on_progress
        self._timers = _Timers()
        self._wake_rx, self._wake_tx = socket.socketpair()
        self._wake_rx.setblocking(False)
        self._wake_tx.setblocking(False)
        self._stopped = False

    @property
    def now_us(self) -> float:
        """Present time of the loop's clock."""
        return self._clock()

    def call_at(self, time_us: float, action: Callable[[], None]) -> None:
        """Run ``action`` in the loop at ``time_us`` or soon after."""
        self._timers.add(time_us, action)

    def stop(self) -> None:
        """Make :meth:`run` return; may be called from a signal handler or another thread."""
        self._stopped = True
        # The loop may be closed, or its wake-up pending already.
        with contextlib.suppress(OSError):
            self._wake_tx.send(b"\0")

    def run(
        self, until: Callable[[], bool] | None = None, *, deadline_us: float | None = None
    ) -> bool:
        """Run until ``until()`` holds, :meth:`stop` is called or the clock reaches ``deadline_us``.

        Returns:
            Whether ``until()`` held.
        """
        self._stopped = False
        while True:
            now = self._clock()
            self._timers.run(now)
            wake = self._timers.next()
            for host, wire in self._ports:
                for frame in host.poll(now):
                    wire.send(frame)
            if self._on_progress is not None:
                self._on_progress()
            if until is not None and until():
                return True
            if self._stopped or (deadline_us is not None and now >= deadline_us):
                return False
            if deadline_us is not None and (wake is None or deadline_us < wake):
                wake = deadline_us
            for host, _ in self._ports:
                due = host.next_wakeup(now)
                if due is not None and (wake is None or due < wake):
                    wake = due
            self._wait(wake)

    def _wait(self, wake_us: float | None) -> None:
        timeout = None if wake_us is None else max(0.0, (wake_us - self._clock()) / 1e6)
        waiting: list[Wire | socket.socket] = [wire for _, wire in self._ports]
        waiting.append(self._wake_rx)
        readable, _, _ = select.select(waiting, (), (), timeout)
        if not readable:
            return
        if self._wake_rx in readable:
            self._wake_rx.recv(64)
        for host, wire in self._ports:
            if wire in readable:
                now = self._clock()
                for frame in wire.receive():
                    host.on_frame(frame, now)

    def close(self) -> None:
        """Close the wires."""
        for _, wire in self._ports:
            wire.close()
        self._wake_rx.close()
        self._wake_tx.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


LinkHook = Callable[[bytes, float], Iterable[tuple[float, bytes]]]
"""Called as ``hook(frame, now_us)`` for each frame put on a link; yields what arrives at the other
end as (extra delay in us, frame): nothing for a loss, two for a duplicate, a changed frame for a
mark.
"""

Port = tuple[str, int]
"""Name of a node and number of its port; a host has port 0."""


class VirtualNet:
    """Hosts and switches connected in memory, under a virtual clock in microseconds.

    Events at the same time happen in a fixed order (callbacks, arrivals in the order of their being
    sent, then polls in the order in which nodes were added), so a run is repeatable to the byte.
    """

    def __init__(self, start_us: float = 0.0) -> None:
        self.now_us = start_us
        self._hosts: dict[str, Host] = {}
        self._switches: dict[str, Switch] = {}
        self._links: dict[Port, tuple[Port, float, LinkHook | None]] = {}
        self._taps: dict[Port, Callable[[bytes, float], None]] = {}
        self._timers = _Timers()
        self._flying: list[tuple[float, int, Port, bytes]] = []
        self._count = itertools.count()
        self.unconnected = 0
        """Frames sent out of a port that no link was connected to."""

    def add_host(self, name: str, host: Host) -> None:
        """Add a node with one port, number 0. Raises ValueError if the name is taken."""
        self._check_name(name)
        self._hosts[name] = host

    def add_switch(self, name: str, switch: Switch) -> None:
        """Add a node with several ports. Raises ValueError if the name is taken."""
        self._check_name(name)
        self._switches[name] = switch

    def _check_name(self, name: str) -> None:
        if name in self._hosts or name in self._switches:
            raise ValueError(f"there is a node {name!r} already")

    def link(
        self,
        a: Port | str,
        b: Port | str,
        delay_us: float = 1.0,
        *,
        a_to_b: LinkHook | None = None,
        b_to_a: LinkHook | None = None,
    ) -> None:
        """Connect two ports in both directions; a host may be named without its port.

        Raises:
            ValueError: unknown node, port in use, or a negative delay.
        """
        if delay_us < 0:
            raise ValueError(f"delay_us = {delay_us} must not be negative")
        ends = [(end, 0) if isinstance(end, str) else end for end in (a, b)]
        for node, port in ends:
            if node not in self._hosts and node not in self._switches:
                known = ", ".join([*self._hosts, *self._switches]) or "none"
                raise ValueError(f"no node {node!r}; known: {known}")
            if node in self._hosts and port != 0:
                raise ValueError(f"host {node!r} has port 0 only, not {port}")
            self._check_free((node, port))
        self._links[ends[0]] = (ends[1], delay_us, a_to_b)
        self._links[ends[1]] = (ends[0], delay_us, b_to_a)

    def tap(self, port: Port, action: Callable[[bytes, float], None]) -> None:
        """Hand what leaves ``port`` to ``action(frame, now_us)``, as a CPU port's packets.

        Raises:
            ValueError: unknown switch, or port in use.
        """
        if port[0] not in self._switches:
            raise ValueError(f"no switch {port[0]!r}; known: {', '.join(self._switches) or 'none'}")
        self._check_free(port)
        self._taps[port] = action

    def _check_free(self, port: Port) -> None:
        if port in self._links or port in self._taps:
            raise ValueError(f"port {port[1]} of {port[0]!r} is connected already")

    def call_at(self, time_us: float, action: Callable[[], None]) -> None:
        """Run ``action`` at ``time_us``. Raises ValueError for a time in the past."""
        if time_us < self.now_us:
            raise ValueError(f"{time_us} us has passed, it is {self.now_us} us")
        self._timers.add(time_us, action)

    def run(
        self, until: Callable[[], bool] | None = None, *, deadline_us: float | None = None
    ) -> bool:
        """Run until ``until()`` holds, nothing is left to happen, or ``deadline_us`` is reached.

        Returns:
            Whether ``until()`` held; without ``until``, whether nothing is left to happen.
        """
        while True:
            self._step()
            if until is not None and until():
                return True
            due = self._next_event()
            if due is None:
                return until is None
            if deadline_us is not None and due > deadline_us:
                self.now_us = max(self.now_us, deadline_us)
                return False
            self.now_us = max(self.now_us, due)

    def _next_event(self) -> float | None:
        now = self.now_us
        due = [self._timers.next(), self._flying[0][0] if self._flying else None]
        due += [host.next_wakeup(now) for host in self._hosts.values()]
        due += [switch.next_departure() for switch in self._switches.values()]
        return min((at for at in due if at is not None), default=None)

    def _step(self) -> None:
        now = self.now_us
        self._timers.run(now)
        while self._flying and self._flying[0][0] <= now:
            _, _, (node, port), frame = heapq.heappop(self._flying)
            host = self._hosts.get(node)
            if host is not None:
                host.on_frame(frame, now)
            else:
                self._switches[node].receive(port, frame, now)
        for name, host in self._hosts.items():
            for frame in host.poll(now):
                self._put((name, 0), frame)
        for name, switch in self._switches.items():
            for port, frame in switch.advance(now):
                self._put((name, port), frame)

    def _put(self, source: Port, frame: bytes) -> None:
        link = self._links.get(source)
        if link is None:
            tap = self._taps.get(source)
            if tap is None:
                self.unconnected += 1
            else:
                tap(frame, self.now_us)
            return
        target, delay_us, hook = link
        arrivals = ((0.0, frame),) if hook is None else hook(frame, self.now_us)
        for extra_us, arriving in arrivals:
            at = self.now_us + delay_us + extra_us
            heapq.heappush(self._flying, (at, next(self._count), target, arriving))
