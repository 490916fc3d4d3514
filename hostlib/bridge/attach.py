"""Where the bridge's NIC is plugged in: wires by name, addresses, and the way back to itself."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

from ringstep.hostlib.rnic import SoftRnic
from ringstep.hostlib.wires import AfPacketWire, UdpWire, Wire
from ringstep.protocol.rocev2 import IpAddress

__all__ = ["Attachment", "HairpinPort", "MeshWire", "WireError", "attach", "destination_of"]

_IB_MTUS: Final = (4096, 2048, 1024, 512, 256)
_HEADERS: Final = 40 + 8 + 12 + 16 + 4 + 4
"""IPv6, UDP, BTH, RETH, immediate data and ICRC; the interface's MTU does not count Ethernet."""
_SIOCGIFADDR: Final = 0x8915
_SIOCGIFMTU: Final = 0x8921
_SIOCGIFHWADDR: Final = 0x8927
_HAIRPIN_ROUNDS: Final = 8


class WireError(ValueError):
    """A wire cannot be set up as asked; the text says which one and why."""


def destination_of(frame: bytes) -> bytes:
    """Return the packed destination address of an untagged IP frame; b"" where it is none."""
    ethertype = frame[12:14]
    if ethertype == b"\x08\x00":
        return frame[30:34]
    return frame[38:54] if ethertype == b"\x86\xdd" else b""


class MeshWire(UdpWire):
    """UDP without a switch: each frame goes to the socket of the NIC that has its address."""

    def __init__(self, bind: tuple[str, int]) -> None:
        super().__init__(bind)
        self._routes: dict[bytes, tuple[str, int]] = {}
        self._known: set[tuple[str, int]] = set()

    def route(self, ip: IpAddress, wire: tuple[str, int]) -> None:
        """Send frames for ``ip`` to ``wire``, and accept its frames."""
        self._routes[ip.packed] = wire
        self._known = set(self._routes.values())

    def send(self, frame: bytes) -> None:
        """Send one frame; it is lost, and counted, where no NIC has its address."""
        wire = self._routes.get(destination_of(frame))
        if wire is None:
            self.lost += 1
            return
        try:
            self._sock.sendto(frame, wire)
        except OSError:
            self.lost += 1

    def receive(self, limit: int = 64) -> list[bytes]:
        """Return frames of known NICs that have arrived, at most ``limit``, without waiting."""
        frames: list[bytes] = []
        receive = self._sock.recvfrom
        known = self._known
        for _ in range(limit):
            try:
                frame, source = receive(65535)
            except BlockingIOError:
                break
            except OSError:
                # An earlier frame went to a port where nobody listens.
                continue
            if source[:2] in known:
                frames.append(frame)
        return frames


class HairpinPort:
    """A NIC whose frames to its own address come back without touching the wire.

    So several ranks of one host share a NIC, as on real ones.
    """

    def __init__(self, rnic: SoftRnic) -> None:
        self._rnic = rnic
        self._own = rnic.ip.packed
        self.on_frame = rnic.on_frame
        self.next_wakeup = rnic.next_wakeup

    def poll(self, now_us: float) -> list[bytes]:
        """Return the frames for others; those for this NIC are handed to it."""
        rnic, own = self._rnic, self._own
        outside: list[bytes] = []
        # A bound, so that traffic within the host does not keep the wire waiting.
        for _ in range(_HAIRPIN_ROUNDS):
            inside = 0
            for frame in rnic.poll(now_us):
                if destination_of(frame) == own:
                    rnic.on_frame(frame, now_us)
                    inside += 1
                else:
                    outside.append(frame)
            if not inside:
                break
        return outside


@dataclass(frozen=True)
class Attachment:
    """A wire, open, and what its NIC is to be."""

    wire: Wire
    ip: IpAddress
    mac: int
    mtu: int
    """Payload of a full packet, bytes."""
    udp: tuple[str, int] | None
    """The wire's own address, where peers send to it directly."""
    route: Callable[[IpAddress, tuple[str, int]], None] | None
    """Tells a UDP wire without a switch where a peer is."""
    text: str
    """The wire in words."""


def _host_port(text: str, wire: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise WireError(f"wire {wire!r}: {text!r} is not HOST:PORT with a port from 0 to 65535")
    host = host.strip("[]")
    try:
        return str(ip_address(host)), int(port)
    except ValueError:
        try:
            return socket.gethostbyname(host), int(port)
        except OSError as error:
            raise WireError(f"wire {wire!r}: no address for {host!r}: {error}") from None


def _default_ip(bind: tuple[str, int]) -> IpAddress:
    address = ip_address(bind[0])
    if not address.is_loopback:
        return address
    # Several NICs share the loopback address; the port tells them apart.
    if address.version == 4:
        return ip_address(f"127.1.{bind[1] >> 8}.{bind[1] & 255}")
    return IPv6Address((0xFD << 120) | bind[1])


def _default_mac(ip: IpAddress) -> int:
    return 0x0252 << 32 | int.from_bytes(ip.packed[-4:], "big")


def _ask(interface: str, what: int) -> bytes:
    """Ask the kernel, not /sys, which may be another network namespace's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock, what, struct.pack("256s", interface.encode()[:15]))[16:24]


def _interface_ip(interface: str) -> IpAddress:
    try:
        return ip_address(_ask(interface, _SIOCGIFADDR)[4:8])
    except OSError:
        raise WireError(
            f"interface {interface} has no IPv4 address; give the NIC one with --address"
        ) from None


def _interface(name: str) -> tuple[int, int]:
    """Return MTU and MAC address."""
    try:
        (mtu,) = struct.unpack_from("=i", _ask(name, _SIOCGIFMTU))
        return mtu, int.from_bytes(_ask(name, _SIOCGIFHWADDR)[2:8], "big")
    except OSError:
        known = ", ".join(sorted(other for _, other in socket.if_nameindex()))
        raise WireError(f"no network interface {name!r} here; known: {known}") from None


def attach(
    wire: str, *, ip: IpAddress | None = None, mac: int | None = None, mtu: int | None = None
) -> Attachment:
    """Open ``udp:HOST:PORT``, ``udp:HOST:PORT,PEERHOST:PEERPORT`` or ``packet:INTERFACE``.

    Args:
        wire: the name. A UDP wire with a peer is a cable to it (a port of a switch); without one,
            frames go straight to the other bridges, whose endpoints tell where they are.
        ip: the NIC's address; by default the interface's, or one made of HOST and PORT.
        mac: the NIC's MAC address; by default the interface's, or one made of ``ip``.
        mtu: payload of a full packet, bytes; by default the largest InfiniBand MTU that fits.

    Raises:
        WireError: the name is wrong or the interface lacks something.
        OSError: the socket cannot be opened.
    """
    kind, _, rest = wire.partition(":")
    if kind in ("packet", "afpacket") and rest:
        link, own_mac = _interface(rest)
        fitting = next((size for size in _IB_MTUS if size + _HEADERS <= link), _IB_MTUS[-1])
        address = _interface_ip(rest) if ip is None else ip
        if mtu is not None and mtu + _HEADERS > link:
            raise WireError(
                f"packets of {mtu} bytes do not fit through {rest} (MTU {link}): at most {fitting}"
            )
        return Attachment(
            AfPacketWire(rest), address, own_mac if mac is None else mac,
            fitting if mtu is None else mtu, None, None, wire,
        )  # fmt: skip
    if kind != "udp" or not rest:
        raise WireError(
            f"wire {wire!r} is none of udp:HOST:PORT, udp:HOST:PORT,PEERHOST:PEERPORT, "
            "packet:INTERFACE"
        )
    first, comma, second = rest.partition(",")
    bind = _host_port(first, wire)
    size = _IB_MTUS[0] if mtu is None else mtu
    if comma:
        cable = UdpWire(bind, _host_port(second, wire))
        address = _default_ip(cable.address) if ip is None else ip
        text = f"udp:{cable.address[0]}:{cable.address[1]},{second}"
        return Attachment(
            cable, address, _default_mac(address) if mac is None else mac, size, None, None, text
        )
    if ip_address(bind[0]).is_unspecified:
        raise WireError(f"wire {wire!r}: name the address that the other bridges reach, not any")
    mesh = MeshWire(bind)
    address = _default_ip(mesh.address) if ip is None else ip
    return Attachment(
        mesh, address, _default_mac(address) if mac is None else mac, size, mesh.address,
        mesh.route, f"udp:{mesh.address[0]}:{mesh.address[1]}",
    )  # fmt: skip
