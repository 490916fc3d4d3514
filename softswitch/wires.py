"""What a switch port is plugged into: UDP on loopback, a network interface, pcap files, memory.

A wire moves whole Ethernet frames without FCS and never blocks. A frame it cannot take is lost
and counted, as on a cable.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

BATCH = 64
"""Most frames taken from one wire before the others have their turn."""

MAX_FRAME = 65535

_SOCKET_BUFFER = 4 << 20
_ETH_P_ALL = 0x0003
_PACKET_OUTGOING = 4
_PACKET_AUXDATA = 8
_TP_STATUS_VLAN_VALID = 1 << 4
_ETHERTYPE_VLAN = 0x8100
_AUXDATA = struct.Struct("=IIIHHHH")
"""struct tpacket_auxdata: status, len, snaplen, mac, net, vlan_tci, vlan_tpid."""
_AUXDATA_SPACE = socket.CMSG_SPACE(_AUXDATA.size)
_SOL_PACKET = 263
_PACKET_ADD_MEMBERSHIP = 1
_PACKET_MR_PROMISC = 1
_PACKET_IGNORE_OUTGOING = 23


class WireError(Exception):
    """A wire cannot be set up; the text says which one and why."""


class Wire(Protocol):
    """One end of a cable."""

    tx_errors: int
    """Frames that could not be sent."""

    def fileno(self) -> int | None:
        """What to select on for reading; None if the wire is polled."""

    def receive(self, now_us: float) -> list[bytes]:
        """Up to `BATCH` frames that have arrived."""

    def send(self, frame: bytes, now_us: float) -> None:
        """Send one frame, or count it as lost."""

    def next_arrival(self) -> float | None:
        """For a polled wire: when its next frame is due in microseconds; None if none is."""

    def describe(self) -> str:
        """Where the wire ends on this side, for the ready file."""

    def close(self) -> None:
        """Give the resources back. May be called twice."""


def _endpoint(text: str, what: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise WireError(f"{what}: {text!r} is not HOST:PORT with a port in 0..65535")
    return host.strip("[]"), int(port)


class UdpWire:
    """One Ethernet frame per UDP datagram between `bind` and `peer`.

    Datagrams from elsewhere are ignored. A peer of port 0 is whoever sent last: then the switch
    can be started before its neighbour has a port.
    """

    def __init__(self, bind: tuple[str, int], peer: tuple[str, int]) -> None:
        self.tx_errors = 0
        family = socket.AF_INET6 if ":" in bind[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                self._socket.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)
            self._socket.bind(bind)
            self._learning = peer[1] == 0
            if not self._learning:
                self._socket.connect(peer)
        except OSError as error:
            self._socket.close()
            raise WireError(
                f"udp wire {bind[0]}:{bind[1]} to {peer[0]}:{peer[1]}: {error.strerror or error}"
            ) from error
        self._peer: tuple[str, int] | None = None
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """The socket."""
        return self._socket.fileno()

    def receive(self, now_us: float) -> list[bytes]:
        """Up to `BATCH` frames."""
        frames: list[bytes] = []
        for _ in range(BATCH):
            try:
                if self._learning:
                    frame, self._peer = self._socket.recvfrom(MAX_FRAME)
                else:
                    frame = self._socket.recv(MAX_FRAME)
            except BlockingIOError:
                break
            except OSError:
                # The peer's port was closed when an earlier frame was sent (ICMP).
                continue
            frames.append(frame)
        return frames

    def send(self, frame: bytes, now_us: float) -> None:
        """Send one frame."""
        try:
            if not self._learning:
                self._socket.send(frame)
            elif self._peer is not None:
                self._socket.sendto(frame, self._peer)
            else:
                self.tx_errors += 1
        except OSError:
            self.tx_errors += 1

    def next_arrival(self) -> None:
        """Not polled."""

    def describe(self) -> str:
        """HOST:PORT this side is bound to."""
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _with_vlan_tag(frame: bytes, told: list[tuple[int, int, bytes]]) -> bytes:
    """Put back the VLAN tag that the kernel takes off a frame and tells beside it."""
    for level, kind, data in told:
        if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA) and len(data) >= _AUXDATA.size:
            status, _, _, _, _, tci, tpid = _AUXDATA.unpack_from(data)
            if status & _TP_STATUS_VLAN_VALID:
                tag = struct.pack("!HH", tpid or _ETHERTYPE_VLAN, tci)
                return frame[:12] + tag + frame[12:]
    return frame


class AfPacketWire:
    """A network interface, in promiscuous mode; needs CAP_NET_RAW."""

    def __init__(self, interface: str) -> None:
        self.tx_errors = 0
        self._interface = interface
        if not hasattr(socket, "AF_PACKET"):
            raise WireError(f"afpacket wire {interface}: only Linux has packet sockets")
        try:
            self._socket = socket.socket(
                socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)
            )
        except PermissionError:
            raise WireError(
                f"afpacket wire {interface}: needs CAP_NET_RAW (run as root, or use udp: wires)"
            ) from None
        try:
            # Before Linux 4.20 the kernel hands out own frames too; they are left out below.
            with suppress(OSError):
                self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
            self._socket.bind((interface, 0))
            request = struct.pack(
                "IHH8s", socket.if_nametoindex(interface), _PACKET_MR_PROMISC, 0, b""
            )
            self._socket.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, request)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        except OSError as error:
            self._socket.close()
            raise WireError(f"afpacket wire {interface}: {error.strerror or error}") from error
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """The socket."""
        return self._socket.fileno()

    def receive(self, now_us: float) -> list[bytes]:
        """Up to `BATCH` frames that came in, not those this host sends."""
        frames: list[bytes] = []
        for _ in range(BATCH):
            try:
                frame, told, _, address = self._socket.recvmsg(MAX_FRAME, _AUXDATA_SPACE)
            except OSError:
                break
            if address[2] != _PACKET_OUTGOING:
                frames.append(_with_vlan_tag(frame, told))
        return frames

    def send(self, frame: bytes, now_us: float) -> None:
        """Send one frame."""
        try:
            self._socket.send(frame)
        except OSError:
            self.tx_errors += 1

    def next_arrival(self) -> None:
        """Not polled."""

    def describe(self) -> str:
        """The interface's name."""
        return self._interface

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


_MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 1),
    b"\xa1\xb2\xc3\xd4": (">", 1),
    b"\x4d\x3c\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1000),
}
_LINKTYPE_ETHERNET = 1


def read_pcap(path: Path) -> list[tuple[float, bytes]]:
    """The (time in microseconds, frame) of each packet. Raises WireError for another format."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise WireError(f"pcap wire: cannot read {path}: {error.strerror}") from error
    if len(data) < 24 or data[:4] not in _MAGICS:
        raise WireError(f"pcap wire: {path} is not a pcap file (pcapng is not read)")
    order, per_us = _MAGICS[data[:4]]
    link = struct.unpack_from(order + "I", data, 20)[0] & 0xFFFF
    if link != _LINKTYPE_ETHERNET:
        raise WireError(f"pcap wire: {path} has link type {link}, not Ethernet (1)")
    packets: list[tuple[float, bytes]] = []
    at = 24
    while at + 16 <= len(data):
        seconds, fraction, captured, original = struct.unpack_from(order + "4I", data, at)
        at += 16
        if at + captured > len(data):
            break
        if captured < original:
            raise WireError(f"pcap wire: {path} holds a cut frame ({captured} of {original} bytes)")
        packets.append((seconds * 1e6 + fraction / per_us, data[at : at + captured]))
        at += captured
    return packets


class PcapWriter:
    """Writes frames with microsecond time stamps."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: BinaryIO = path.open("wb")
        except OSError as error:
            raise WireError(f"pcap wire: cannot write {path}: {error.strerror}") from error
        self._file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, MAX_FRAME, 1))

    def write(self, frame: bytes, now_us: float) -> None:
        """Append one frame."""
        seconds, micros = divmod(int(now_us), 1_000_000)
        self._file.write(struct.pack("<4I", seconds, micros, len(frame), len(frame)) + frame)

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class PcapWire:
    """Plays the frames of one file at their recorded pace and records what is sent in another."""

    def __init__(self, source: Path, sink: Path) -> None:
        self.tx_errors = 0
        self._sink_path = sink
        packets = read_pcap(source)
        first = packets[0][0] if packets else 0.0
        self._coming = deque((at - first, frame) for at, frame in packets)
        self._writer = PcapWriter(sink)
        self._start: float | None = None

    def fileno(self) -> None:
        """Polled."""

    def receive(self, now_us: float) -> list[bytes]:
        """The frames that are due, counted from the first call."""
        if self._start is None:
            self._start = now_us
        frames: list[bytes] = []
        while self._coming and len(frames) < BATCH and self._coming[0][0] + self._start <= now_us:
            frames.append(self._coming.popleft()[1])
        return frames

    def send(self, frame: bytes, now_us: float) -> None:
        """Record one frame, or count it as lost where the disk does not take it."""
        try:
            self._writer.write(frame, now_us)
        except OSError:
            self.tx_errors += 1

    def next_arrival(self) -> float | None:
        """When the next recorded frame is due."""
        if not self._coming:
            return None
        return self._coming[0][0] + (self._start or 0.0)

    def describe(self) -> str:
        """The file being written."""
        return str(self._sink_path)

    def close(self) -> None:
        """Finish the file."""
        try:
            self._writer.close()
        except OSError:
            # What was still in the buffer found no room.
            self.tx_errors += 1


class MemoryWire:
    """Two deques: `to_switch` is filled, `from_switch` read, by whoever made the wire."""

    def __init__(self) -> None:
        self.tx_errors = 0
        self.to_switch: deque[bytes] = deque()
        self.from_switch: deque[bytes] = deque()

    def fileno(self) -> None:
        """Polled."""

    def receive(self, now_us: float) -> list[bytes]:
        """Up to `BATCH` frames."""
        count = min(len(self.to_switch), BATCH)
        return [self.to_switch.popleft() for _ in range(count)]

    def send(self, frame: bytes, now_us: float) -> None:
        """Hand one frame over."""
        self.from_switch.append(frame)

    def next_arrival(self) -> float | None:
        """At once, if a frame is there."""
        return 0.0 if self.to_switch else None

    def describe(self) -> str:
        """Memory."""
        return "memory"

    def close(self) -> None:
        """Nothing to give back."""


def parse_wire(text: str) -> Wire:
    """The wire that `udp:BIND,PEER`, `afpacket:INTERFACE` or `pcap:IN,OUT` describes.

    Raises WireError.
    """
    kind, _, rest = text.partition(":")
    if kind == "afpacket" and rest:
        return AfPacketWire(rest)
    first, comma, second = rest.partition(",")
    if kind == "udp" and comma:
        return UdpWire(_endpoint(first, f"wire {text!r}"), _endpoint(second, f"wire {text!r}"))
    if kind == "pcap" and comma:
        if Path(first).resolve() == Path(second).resolve():
            raise WireError(f"wire {text!r}: the file to read and the one to write are the same")
        return PcapWire(Path(first), Path(second))
    raise WireError(
        f"wire {text!r} is none of udp:HOST:PORT,PEERHOST:PEERPORT, afpacket:INTERFACE, pcap:IN,OUT"
    )
