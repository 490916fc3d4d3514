"""Invariant CRC of RoCEv2 (IBTA Annex A17; CRC-32 of Ethernet, sent least significant byte first).

It covers the packet from the IP header to the end of the payload, after eight bytes of ones that
stand for the LRH, with the fields that change on the way set to ones: IPv4 TTL, TOS and header
checksum, IPv6 traffic class, flow label and hop limit, the UDP checksum, and BTH byte 4
(FECN, BECN, resv6a). So a switch may set CE, DSCP and resv6a, and must leave the source port alone.
"""

from __future__ import annotations

import zlib
from typing import Final

LRH_CRC: Final = zlib.crc32(b"\xff" * 8)
"""CRC state after the eight bytes that stand for the LRH."""
ICRC_BYTES: Final = 4


def masked_headers(packet: bytes | bytearray | memoryview, ip_version: int) -> bytearray:
    """Return the IP and UDP headers at the start of ``packet`` as the ICRC sees them."""
    if ip_version == 4:
        head = bytearray(packet[:28])
        head[1] = head[8] = head[10] = head[11] = 0xFF
    else:
        head = bytearray(packet[:48])
        head[0] |= 0x0F
        head[1] = head[2] = head[3] = head[7] = 0xFF
    head[-2] = head[-1] = 0xFF
    return head


def icrc(packet: bytes | bytearray | memoryview, ip_version: int) -> int:
    """Return the ICRC of ``packet``: IP header to the end of the payload, without the ICRC.

    Args:
        packet: starts with an IPv4 header of 20 bytes or an IPv6 header of 40, then UDP, then BTH.
        ip_version: 4 or 6.
    """
    head = masked_headers(packet, ip_version)
    bth = len(head)
    head += packet[bth : bth + 12]
    head[bth + 4] = 0xFF
    crc = zlib.crc32(head, LRH_CRC)
    return zlib.crc32(memoryview(packet)[len(head) :], crc)


def icrc_bytes(packet: bytes | bytearray | memoryview, ip_version: int) -> bytes:
    """Return the ICRC as the four bytes that end the frame."""
    return icrc(packet, ip_version).to_bytes(ICRC_BYTES, "little")
