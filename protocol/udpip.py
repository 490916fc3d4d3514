"""What RoCEv2 and UEC frames share: Ethernet / [VLAN] / IPv4 or IPv6 / UDP around their headers.

Sources: RFC 791, RFC 8200, RFC 768, IEEE 802.1Q.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Protocol

ETHERTYPE_IPV4: Final = 0x0800
ETHERTYPE_IPV6: Final = 0x86DD
ETHERTYPE_VLAN: Final = 0x8100
IPPROTO_UDP: Final = 17

ETHERNET_BYTES: Final = 14
VLAN_BYTES: Final = 4
IPV4_BYTES: Final = 20
IPV6_BYTES: Final = 40
UDP_BYTES: Final = 8

NOT_ECT: Final = 0
ECT1: Final = 1
ECT0: Final = 2
CE: Final = 3
"""Values of the two ECN bits (RFC 3168)."""

IpAddress = IPv4Address | IPv6Address


class OtherTraffic(ValueError):
    """The frame is whole but something else than was asked for; the text says what."""


class MalformedFrame(ValueError):
    """The frame claims to be RoCEv2 or UEC and is broken; the text says where."""


_UDP: Final = struct.Struct("!HHHH")
_IPV4: Final = struct.Struct("!BBHHHBBH4s4s")
_IPV6: Final = struct.Struct("!IHBB16s16s")


class Outer(Protocol):
    """A frame's fields outside its own headers. MAC addresses are 48-bit integers."""

    src_mac: int
    dst_mac: int
    src_ip: IpAddress
    dst_ip: IpAddress
    sport: int
    ecn: int
    dscp: int
    ttl: int
    vlan: int | None
    flow_label: int
    ident: int


def ipv4_checksum(header: bytes | bytearray | memoryview) -> int:
    """Return the RFC 1071 checksum of an IPv4 header whose checksum field is zero or left in.

    Over a header with a correct checksum in place the result is 0.
    """
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def encode_udp(frame: Outer, dport: int, payload_bytes: int) -> tuple[int, bytes]:
    """Return (IP version, IP header + UDP header) for a payload of ``payload_bytes``.

    The UDP checksum is 0 (RFC 6935 allows that over IPv6 for tunnels).
    """
    udp_length = UDP_BYTES + payload_bytes
    version, header = _ip_header(frame, udp_length)
    return version, header + _UDP.pack(frame.sport, dport, udp_length, 0)


def _ip_header(frame: Outer, udp_length: int) -> tuple[int, bytes]:
    tos = frame.dscp << 2 | frame.ecn
    src, dst = frame.src_ip.packed, frame.dst_ip.packed
    if frame.src_ip.version == 6:
        word = 6 << 28 | tos << 20 | frame.flow_label
        return 6, _IPV6.pack(word, udp_length, IPPROTO_UDP, frame.ttl, src, dst)
    header = bytearray(
        _IPV4.pack(
            0x45, tos, IPV4_BYTES + udp_length, frame.ident, 0x4000, frame.ttl, IPPROTO_UDP, 0,
            src, dst,
        )
    )  # fmt: skip
    header[10:12] = ipv4_checksum(header).to_bytes(2, "big")
    return 4, bytes(header)


def encode_ethernet(frame: Outer, version: int) -> bytes:
    """Return the Ethernet header, with a VLAN tag where the frame has one."""
    ethertype = (ETHERTYPE_IPV4 if version == 4 else ETHERTYPE_IPV6).to_bytes(2, "big")
    head = frame.dst_mac.to_bytes(6, "big") + frame.src_mac.to_bytes(6, "big")
    if frame.vlan is None:
        return head + ethertype
    return head + ETHERTYPE_VLAN.to_bytes(2, "big") + frame.vlan.to_bytes(2, "big") + ethertype


@dataclass(frozen=True, slots=True)
class _Ip:
    version: int
    header_bytes: int
    payload_bytes: int
    tos: int
    ttl: int
    src: IpAddress
    dst: IpAddress
    flow_label: int = 0
    ident: int = 0


@dataclass(frozen=True, slots=True)
class Datagram:
    """A UDP datagram found in a frame: what lies around it, and where its payload is."""

    vlan: int | None
    ip: _Ip
    sport: int
    l3: int
    """Offset of the IP header."""
    start: int
    """Offset of the UDP payload."""
    end: int
    """Offset behind it, which is the end of the IP packet."""


def find_udp(data: bytes, port: int) -> Datagram:
    """Find the datagram to ``port`` in an Ethernet frame without FCS.

    Raises:
        OtherTraffic: whole, but something else: another EtherType or protocol, a fragment, IPv4
            options, IPv6 extension headers, another UDP port.
        MalformedFrame: short, lengths that contradict one another, a bad checksum.
    """
    vlan, ethertype, l3 = _parse_ethernet(data)
    if ethertype == ETHERTYPE_IPV4:
        ip = _parse_ipv4(data, l3)
    elif ethertype == ETHERTYPE_IPV6:
        ip = _parse_ipv6(data, l3)
    else:
        raise OtherTraffic(f"EtherType 0x{ethertype:04X} is neither IPv4 nor IPv6")
    end = l3 + ip.header_bytes + ip.payload_bytes
    if end > len(data):
        raise MalformedFrame(
            f"IP says {ip.header_bytes + ip.payload_bytes} bytes, the frame holds {len(data) - l3}"
        )
    udp = l3 + ip.header_bytes
    if ip.payload_bytes < UDP_BYTES:
        raise MalformedFrame(f"{ip.payload_bytes} bytes are too few for a UDP header")
    sport, dport, udp_length, _ = _UDP.unpack_from(data, udp)
    if dport != port:
        raise OtherTraffic(f"UDP port {dport} is not {port}")
    if udp_length != ip.payload_bytes:
        raise MalformedFrame(
            f"UDP length {udp_length} differs from the IP payload, {ip.payload_bytes}"
        )
    return Datagram(vlan=vlan, ip=ip, sport=sport, l3=l3, start=udp + UDP_BYTES, end=end)


def _parse_ethernet(data: bytes) -> tuple[int | None, int, int]:
    if len(data) < ETHERNET_BYTES:
        raise MalformedFrame(f"{len(data)} bytes are too few for an Ethernet header")
    ethertype = int.from_bytes(data[12:14], "big")
    if ethertype != ETHERTYPE_VLAN:
        return None, ethertype, ETHERNET_BYTES
    if len(data) < ETHERNET_BYTES + VLAN_BYTES:
        raise MalformedFrame(f"{len(data)} bytes are too few for a VLAN tag")
    vlan = int.from_bytes(data[14:16], "big")
    return vlan, int.from_bytes(data[16:18], "big"), ETHERNET_BYTES + VLAN_BYTES


def _parse_ipv4(data: bytes, l3: int) -> _Ip:
    if len(data) < l3 + IPV4_BYTES:
        raise MalformedFrame(f"{len(data) - l3} bytes are too few for an IPv4 header")
    first, tos, total, ident, fragment, ttl, proto, _, src, dst = _IPV4.unpack_from(data, l3)
    if first >> 4 != 4:
        raise MalformedFrame(f"IP version {first >> 4} under EtherType IPv4")
    if first & 15 < 5:
        raise MalformedFrame(f"IPv4 header length of {first & 15} words; 5 is the least")
    if first & 15 > 5:
        raise OtherTraffic("IPv4 options")
    if total < IPV4_BYTES:
        raise MalformedFrame(f"IPv4 total length {total} is less than the header")
    if ipv4_checksum(data[l3 : l3 + IPV4_BYTES]):
        raise MalformedFrame("IPv4 header checksum is wrong")
    if fragment & 0x3FFF:
        raise OtherTraffic("an IPv4 fragment")
    if proto != IPPROTO_UDP:
        raise OtherTraffic(f"IP protocol {proto} is not UDP")
    return _Ip(
        version=4,
        header_bytes=IPV4_BYTES,
        payload_bytes=total - IPV4_BYTES,
        tos=tos,
        ttl=ttl,
        src=IPv4Address(src),
        dst=IPv4Address(dst),
        ident=ident,
    )


def _parse_ipv6(data: bytes, l3: int) -> _Ip:
    if len(data) < l3 + IPV6_BYTES:
        raise MalformedFrame(f"{len(data) - l3} bytes are too few for an IPv6 header")
    word, length, next_header, hop_limit, src, dst = _IPV6.unpack_from(data, l3)
    if word >> 28 != 6:
        raise MalformedFrame(f"IP version {word >> 28} under EtherType IPv6")
    if next_header != IPPROTO_UDP:
        raise OtherTraffic(f"IPv6 next header {next_header} is not UDP")
    return _Ip(
        version=6,
        header_bytes=IPV6_BYTES,
        payload_bytes=length,
        tos=word >> 20 & 0xFF,
        ttl=hop_limit,
        src=IPv6Address(src),
        dst=IPv6Address(dst),
        flow_label=word & 0xFFFFF,
    )
