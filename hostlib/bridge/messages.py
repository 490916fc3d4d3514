"""What passes a bridge's socket (``native/engine/rnic_bridge.h``), and what bridges exchange."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from ringstep.protocol.limits import PSN_BITS
from ringstep.protocol.rocev2 import IpAddress
from ringstep.protocol.tag import TagLayout

__all__ = [
    "CONNECT",
    "CONNECTED",
    "KIND_CONNECT",
    "KIND_OPEN",
    "MAGIC",
    "MAX_MESSAGE",
    "MESSAGE",
    "OPEN",
    "OPENED",
    "UNTAGGED",
    "Endpoint",
    "EndpointError",
    "Signal",
]

MAGIC: Final = 0x31425352
KIND_OPEN: Final = 1
KIND_CONNECT: Final = 2
UNTAGGED: Final = 0xFFFFFFFF
"""Step of a message that belongs to no step."""
MAX_MESSAGE: Final = 0x4000000

# The socket joins two processes of one machine, so numbers are in its own byte order.
OPEN: Final = struct.Struct("=IIQIIII")
"""rb_open: magic, kind, comm_id, rank, peer, channel, reserved."""
OPENED: Final = struct.Struct("=II64s")
"""rb_opened: magic, status, endpoint."""
CONNECT: Final = struct.Struct("=II64s")
"""rb_connect: magic, kind, endpoint."""
CONNECTED: Final = struct.Struct("=II")
"""rb_connected: magic, status."""
MESSAGE: Final = struct.Struct("=II")
"""rb_message: length, step."""

_ENDPOINT: Final = struct.Struct("!4sBBH16s6sHIIBBBB16sH2x")
_ENDPOINT_MAGIC: Final = b"RSEP"
_VERSION: Final = 1


class Signal(IntEnum):
    """What a WRITE of zero bytes means: the upper half of its address (IMM: its immediate)."""

    HELLO = 1
    """The sender's queue pairs are there."""
    CREDIT = 2
    """The receiver's engine has taken the stream up to byte IMM mod 2^32."""
    LONG = 3
    """A message of IMM bytes starts at the address in the lower half, in several WRITEs."""
    END = 4
    """The sender's engine is gone; its stream ends at byte IMM mod 2^32, or here where the lower
    half of the address is not 0: then the rest is lost."""
    ALIVE = 5
    """Nothing; that it is acknowledged shows that the peer is there."""


class EndpointError(ValueError):
    """An endpoint is damaged, of another version, or does not go with this side's."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One side of a connection, as the peer needs to know it."""

    ip: IpAddress
    mac: int
    qpn: int
    """Number of the control queue pair; those for data follow."""
    psn: int
    """First PSN of every queue pair."""
    data_qps: int
    mtu: int
    """Payload of a full packet, bytes."""
    layout: TagLayout
    ring_log2: int
    """log2 of the bytes that may be on their way to this side, or wait there for its engine."""
    piece_log2: int
    """log2 of the longest WRITE that this side accepts."""
    wire: tuple[str, int] | None = None
    """Where a UDP wire without a switch sends frames for this side."""

    @property
    def rkey(self) -> int:
        """Key of the ring for whole messages; the next one is for pieces of long messages."""
        return self.qpn

    def pack(self) -> bytes:
        """Return the 64 bytes that the ranks exchange."""
        wire_ip = b"" if self.wire is None else ip_address(self.wire[0]).packed
        return _ENDPOINT.pack(
            _ENDPOINT_MAGIC,
            _VERSION,
            self.ip.version,
            self.data_qps,
            self.ip.packed,
            self.mac.to_bytes(6, "big"),
            self.mtu,
            self.qpn,
            self.psn,
            self.layout.job_bits,
            self.layout.step_bits,
            self.ring_log2,
            self.piece_log2,
            wire_ip,
            0 if self.wire is None else self.wire[1],
        )

    @classmethod
    def unpack(cls, data: bytes) -> Endpoint:
        """Read what :meth:`pack` made.

        Raises:
            EndpointError: the bytes are not an endpoint of this version.
        """
        if len(data) != _ENDPOINT.size:
            raise EndpointError(f"an endpoint has {_ENDPOINT.size} bytes, not {len(data)}")
        (magic, version, family, data_qps, ip, mac, mtu, qpn, psn, job_bits, step_bits,
         ring_log2, piece_log2, wire_ip, wire_port) = _ENDPOINT.unpack(data)  # fmt: skip
        if magic != _ENDPOINT_MAGIC:
            raise EndpointError(
                f"an endpoint starts with {_ENDPOINT_MAGIC!r}, not {magic!r}; "
                "hand rb_connect what the peer's bridge wrote into rb_opened"
            )
        if version != _VERSION:
            raise EndpointError(f"endpoint of version {version}; this bridge speaks {_VERSION}")
        try:
            layout = TagLayout(job_bits, step_bits)
        except ValueError as error:
            raise EndpointError(f"endpoint: {error}") from None
        if family not in (4, 6) or not 2 <= qpn < 1 << 24 or not 0 <= psn < 1 << PSN_BITS:
            raise EndpointError(f"endpoint with IP version {family}, qpn {qpn:#x}, psn {psn:#x}")
        if not 1 <= data_qps <= 1 << 14 or not 12 <= piece_log2 < ring_log2 <= 30 or not mtu:
            raise EndpointError(
                f"endpoint with {data_qps} queue pairs, MTU {mtu}, ring 2^{ring_log2}, "
                f"pieces of 2^{piece_log2}"
            )
        peer: IpAddress = IPv4Address(ip[:4]) if family == 4 else IPv6Address(ip)
        wire = None
        if wire_port:
            # A UDP wire is of one family, and the unused bytes of an IPv4 address are zero.
            short = not any(wire_ip[4:])
            wire = (str(ip_address(wire_ip[:4] if short else wire_ip)), wire_port)
        return cls(
            peer, int.from_bytes(mac, "big"), qpn, psn, data_qps, mtu, layout, ring_log2,
            piece_log2, wire,
        )  # fmt: skip

    def check_peer(self, peer: Endpoint) -> None:
        """Raise EndpointError where the two sides cannot be connected, saying what differs."""
        for what, mine, theirs in (
            ("MTU", self.mtu, peer.mtu),
            ("queue pairs for data", self.data_qps, peer.data_qps),
            ("step bits of the tag", self.layout.step_bits, peer.layout.step_bits),
            ("IP version", self.ip.version, peer.ip.version),
            ("first PSN", self.psn, peer.psn),
            ("way of connecting UDP wires", self.wire is None, peer.wire is None),
        ):
            if mine != theirs:
                raise EndpointError(
                    f"the bridges differ in {what}: {mine} here, {theirs} at {peer.ip}; "
                    "start them with the same options"
                )
