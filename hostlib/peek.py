"""A quick look into a received frame: the receiver's fast path.

:func:`peek` accepts exactly the frames that :func:`ringstep.protocol.rocev2.parse` accepts for RC
WRITE, ACK and CNP, but reads the few fields that a queue pair needs instead of building a frame
object. Whatever looks unusual makes it return None; the caller then asks ``parse`` for the reason.
"""

from __future__ import annotations

import struct
from typing import Final

from ringstep.protocol.icrc import ICRC_BYTES, icrc
from ringstep.protocol.limits import ROCE_UDP_PORT
from ringstep.protocol.rocev2 import (
    BTH_BYTES,
    ETHERNET_BYTES,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    ETHERTYPE_VLAN,
    IPPROTO_UDP,
    IPV4_BYTES,
    IPV6_BYTES,
    UDP_BYTES,
    VLAN_BYTES,
    ipv4_checksum,
)

Peeked = tuple[bytes, bytes, int, int, int, int, int, int, int, int]
"""(source, destination, ECN, opcode, flags, P_Key, QP word, PSN word, start and end of the body).

flags, QP word and PSN word are as in the BTH; the body is all between BTH and ICRC, padding
included.
"""

# IPv4 from its first byte, then UDP, then BTH.
_V4: Final = struct.Struct("!BBHHHBBH4s4sHHHHBBHII")
_V6: Final = struct.Struct("!IHBB16s16sHHHHBBHII")
_V4_BODY: Final = IPV4_BYTES + UDP_BYTES + BTH_BYTES
_V6_BODY: Final = IPV6_BYTES + UDP_BYTES + BTH_BYTES


def peek(frame: bytes) -> Peeked | None:
    """Return the fields of a well-formed RoCEv2 frame, or None (also where the ICRC is bad)."""
    size = len(frame)
    if size < ETHERNET_BYTES + _V4_BODY + ICRC_BYTES:
        return None
    l3 = ETHERNET_BYTES
    ethertype = frame[12] << 8 | frame[13]
    if ethertype == ETHERTYPE_VLAN:
        l3 += VLAN_BYTES
        ethertype = frame[16] << 8 | frame[17]
    if ethertype == ETHERTYPE_IPV4:
        if size < l3 + _V4_BODY + ICRC_BYTES:
            return None
        fields = _V4.unpack_from(frame, l3)
        (first, tos, total, _, fragment, _, proto, _, src, dst) = fields[:10]
        (_, dport, udp_bytes, _, opcode, flags, pkey, qp_word, psn_word) = fields[10:]
        end = l3 + total
        if (
            first != 0x45
            or fragment & 0x3FFF
            or proto != IPPROTO_UDP
            or udp_bytes != total - IPV4_BYTES
            or ipv4_checksum(frame[l3 : l3 + IPV4_BYTES])
        ):
            return None
        body, version = l3 + _V4_BODY, 4
    elif ethertype == ETHERTYPE_IPV6:
        if size < l3 + _V6_BODY + ICRC_BYTES:
            return None
        (
            word,
            length,
            proto,
            _,
            src,
            dst,
            _,
            dport,
            udp_bytes,
            _,
            opcode,
            flags,
            pkey,
            qp_word,
            psn_word,
        ) = _V6.unpack_from(frame, l3)
        end = l3 + IPV6_BYTES + length
        if word >> 28 != 6 or proto != IPPROTO_UDP or udp_bytes != length:
            return None
        tos = word >> 20
        body, version = l3 + _V6_BODY, 6
    else:
        return None
    end -= ICRC_BYTES
    if dport != ROCE_UDP_PORT or end < body or end + ICRC_BYTES > size:
        return None
    if icrc(frame[l3:end], version) != int.from_bytes(frame[end : end + ICRC_BYTES], "little"):
        return None
    return src, dst, tos & 3, opcode, flags, pkey, qp_word, psn_word, body, end
