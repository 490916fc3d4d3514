"""What must become of any frame: a router and a rule book in plain Python.

There are hosts behind two ports, and one job that has all tagged packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from broken_frames import PORT, V4_FRAME, V6_FRAME, VLAN_FRAME, roce
from committed_program import host
from sample_frames import frame

from ringstep.protocol.rocev2 import Opcode, build, ipv4_checksum

OTHER_PORT = 5
ROUTES = {
    ip_address(address): port
    for port in (PORT, OTHER_PORT)
    for address in (str(host(port)), str(host(port, v6=True)))
}
CE = 3


@dataclass
class Verdict:
    """What must become of a frame: where it leaves and how, and whether a job's state sees it.

    `l3` is where its IP header starts.
    """

    port: int
    left: bytes
    tagged: bool
    l3: int
    v6: bool


def judge(data: bytes) -> Verdict | None:
    """None for a frame that must be dropped."""
    l3 = 14
    if len(data) < l3:
        return None
    kind = data[12:14]
    if kind == b"\x81\x00":
        l3 = 18
        if len(data) < l3:
            return None
        kind = data[16:18]
    if kind == b"\x08\x00":
        return _ipv4(data, l3)
    return _ipv6(data, l3) if kind == b"\x86\xdd" else None


def _ipv4(data: bytes, l3: int) -> Verdict | None:
    head = data[l3 : l3 + 20]
    if len(head) < 20:
        return None
    version, words, ttl = head[0] >> 4, head[0] & 15, head[8]
    whole = words == 5 and not (head[6] & 0x20 or head[6] & 0x1F or head[7])
    is_udp = whole and head[9] == 17
    if is_udp and not _layers_fit(data, l3 + 20):
        return None
    if words == 5 and ipv4_checksum(head) != 0:
        return None
    if version != 4 or words < 5 or ttl <= 1:
        return None
    port = ROUTES.get(ip_address(head[16:20]))
    if port is None:
        return None
    new = bytearray(head)
    new[8] -= 1
    new[10:12] = b"\0\0"
    if words == 5:
        new[10:12] = ipv4_checksum(new).to_bytes(2, "big")
    else:
        # RFC 1624 from the old sum: the word of TTL and protocol fell by 0x0100.
        total = (~int.from_bytes(head[10:12], "big") & 0xFFFF) + 0xFEFF
        new[10:12] = (~(total + (total >> 16)) & 0xFFFF).to_bytes(2, "big")
    length = int.from_bytes(head[2:4], "big")
    tagged = is_udp and _tagged(data, l3 + 20, (length - 20) & 0xFFFF)
    return Verdict(port, _forwarded(data, l3, port, bytes(new)), tagged, l3, False)


def _ipv6(data: bytes, l3: int) -> Verdict | None:
    head = data[l3 : l3 + 40]
    if len(head) < 40:
        return None
    is_udp = head[6] == 17
    if is_udp and not _layers_fit(data, l3 + 40):
        return None
    if head[0] >> 4 != 6 or head[7] <= 1:
        return None
    port = ROUTES.get(ip_address(head[24:40]))
    if port is None:
        return None
    new = bytearray(head)
    new[7] -= 1
    tagged = is_udp and _tagged(data, l3 + 40, int.from_bytes(head[4:6], "big"))
    return Verdict(port, _forwarded(data, l3, port, bytes(new)), tagged, l3, True)


def _layers_fit(data: bytes, udp: int) -> bool:
    if len(data) < udp + 8:
        return False
    return data[udp + 2 : udp + 4] != b"\x12\xb7" or len(data) >= udp + 20


def _tagged(data: bytes, udp: int, bytes_by_ip: int) -> bool:
    sport, dport, length = (int.from_bytes(data[udp + i : udp + i + 2], "big") for i in (0, 2, 4))
    return (
        dport == 4791
        and sport >= 0xC000
        and data[udp + 8] & 0xDF in range(0x0C)
        and length == bytes_by_ip >= 8 + 12 + 4
        and len(data) >= udp + bytes_by_ip
    )


def _forwarded(data: bytes, l3: int, port: int, head: bytes) -> bytes:
    macs = (0x020000000B00 + port).to_bytes(6, "big") + (0x020000000A00 + port).to_bytes(6, "big")
    return macs + data[12:l3] + head + data[l3 + len(head) :]


def ecn_of(data: bytes, verdict: Verdict) -> int:
    if verdict.v6:
        return data[verdict.l3 + 1] >> 4 & 3
    return data[verdict.l3 + 1] & 3


def without_ecn(data: bytes, verdict: Verdict) -> bytes:
    """The frame with its ECN field, and the IPv4 checksum that covers it, blanked."""
    blank = bytearray(data)
    if verdict.v6:
        blank[verdict.l3 + 1] &= 0xCF
    else:
        blank[verdict.l3 + 1] &= 0xFC
        blank[verdict.l3 + 10 : verdict.l3 + 12] = b"\0\0"
    return bytes(blank)


WHOLE = [
    V4_FRAME,
    V6_FRAME,
    VLAN_FRAME,
    *(roce(step=step, psn=psn, v6=v6, ecn=ecn, opcode=opcode)
      for step, psn in ((5, 300), (6, 300), (9, 0xFFFFFF))
      for v6 in (False, True)
      for ecn in (0, 1, 3)
      for opcode in (Opcode.RC_WRITE_MIDDLE, Opcode.RC_SEND_LAST, Opcode.RC_ACK)),
    build(frame(dst_ip=host(OTHER_PORT), sport=0xC007)),
]  # fmt: skip
"""Frames to break."""
