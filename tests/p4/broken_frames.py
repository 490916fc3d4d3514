"""Frames that are broken, or are no RoCEv2, for every program to be sent."""

from __future__ import annotations

import random

from committed_program import host
from sample_frames import frame

from ringstep.protocol.rocev2 import Opcode, build, ipv4_checksum

ETHERNET = 14
PORT = 3
JOB = 7
BLOCK = 70


def roce(step: int = 6, psn: int = 300, v6: bool = False, **more: object) -> bytes:
    """Return a frame of the job: by default one that is ahead and so would be marked."""
    return build(frame(v6=v6, dst_ip=host(PORT, v6), sport=0xC000 + step, psn=psn, **more))  # type: ignore[arg-type]


def put(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value) :]


def put_ip(data: bytes, offset: int, value: bytes) -> bytes:
    return mended(put(data, ETHERNET + offset, value))


def mended(data: bytes) -> bytes:
    length = max(20, (data[ETHERNET] & 15) * 4)
    header = bytearray(data[ETHERNET : ETHERNET + length])
    if len(header) < length:
        return data
    header[10:12] = b"\0\0"
    return put(data, ETHERNET + 10, ipv4_checksum(header).to_bytes(2, "big"))


def with_options(data: bytes, words: int) -> bytes:
    """Put IPv4 options before the UDP header, lengths and checksum right."""
    at = ETHERNET + 20
    data = data[:at] + b"\x01" * (4 * words) + data[at:]
    total = int.from_bytes(data[ETHERNET + 2 : ETHERNET + 4], "big") + 4 * words
    data = put(data, ETHERNET + 2, total.to_bytes(2, "big"))
    return put_ip(data, 0, bytes([0x45 + words]))


def with_extension(data: bytes, kind: int) -> bytes:
    """Put an IPv6 extension header of 8 bytes before the UDP header, lengths right."""
    at = ETHERNET + 40
    data = data[:at] + bytes([17, 0, 1, 4, 0, 0, 0, 0]) + data[at:]
    length = int.from_bytes(data[ETHERNET + 4 : ETHERNET + 6], "big") + 8
    return put(put(data, ETHERNET + 4, length.to_bytes(2, "big")), ETHERNET + 6, bytes([kind]))


V4_FRAME, V6_FRAME = roce(), roce(v6=True)
VLAN_FRAME = roce(vlan=9)
LAST_FRAME = roce(opcode=Opcode.RC_SEND_ONLY, payload=b"")

KINDS: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"\x02",
    "ARP": put(V4_FRAME, 12, b"\x08\x06"),
    "RoCEv1": put(V4_FRAME, 12, b"\x89\x15"),
    "802.3 length": put(V4_FRAME, 12, b"\x00\x50"),
    "MPLS": put(V4_FRAME, 12, b"\x88\x47"),
    "two VLAN tags": put(VLAN_FRAME, 16, b"\x81\x00"),
    "IPv6 version under IPv4": put_ip(V4_FRAME, 0, b"\x65"),
    "IPv4 version under IPv6": put(V6_FRAME, ETHERNET, b"\x40"),
    "IPv4 header of 4 words": put_ip(V4_FRAME, 0, b"\x44"),
    "IPv4 header of 0 words": put_ip(V4_FRAME, 0, b"\x40"),
    "IPv4 header longer than the frame": put(LAST_FRAME[:40], ETHERNET, b"\x4f"),
    "IPv4 checksum": put(V4_FRAME, ETHERNET + 10, b"\xde\xad"),
    "IPv4 options": with_options(V4_FRAME, 1),
    "most IPv4 options": with_options(V4_FRAME, 10),
    "first fragment": put_ip(V4_FRAME, 6, b"\x20\x00"),
    "later fragment": put_ip(V4_FRAME, 6, b"\x00\xb9"),
    "last fragment": put_ip(V4_FRAME, 6, b"\x1f\xff"),
    "IPv4 total length 0": put_ip(V4_FRAME, 2, b"\x00\x00"),
    "IPv4 total length 19": put_ip(V4_FRAME, 2, b"\x00\x13"),
    "IPv4 total length too short": put_ip(V4_FRAME, 2, b"\x00\x40"),
    "IPv4 total length too long": put_ip(V4_FRAME, 2, b"\xff\xff"),
    "IPv4 length too long, UDP alike": put(
        put_ip(V4_FRAME, 2, b"\x01\x00"), ETHERNET + 24, b"\x00\xec"
    ),
    "TCP": put_ip(V4_FRAME, 9, b"\x06"),
    "TTL 0": put_ip(V4_FRAME, 8, b"\x00"),
    "TTL 1": put_ip(V4_FRAME, 8, b"\x01"),
    "hop limit 0": put(V6_FRAME, ETHERNET + 7, b"\x00"),
    "hop limit 1": put(V6_FRAME, ETHERNET + 7, b"\x01"),
    "hop-by-hop options": with_extension(V6_FRAME, 0),
    "routing header": with_extension(V6_FRAME, 43),
    "IPv6 fragment": with_extension(V6_FRAME, 44),
    "destination options": with_extension(V6_FRAME, 60),
    "IPv6 length 0": put(V6_FRAME, ETHERNET + 4, b"\x00\x00"),
    "IPv6 length too long": put(V6_FRAME, ETHERNET + 4, b"\x10\x00"),
    "IPv6 length too long, UDP alike": put(
        put(V6_FRAME, ETHERNET + 4, b"\x10\x00"), ETHERNET + 44, b"\x10\x00"
    ),
    "UDP length 0": put(V4_FRAME, ETHERNET + 24, b"\x00\x00"),
    "UDP length one short": put(V4_FRAME, ETHERNET + 24, b"\x00\x37"),
    "UDP length one long": put(V4_FRAME, ETHERNET + 24, b"\x00\x39"),
    "UDP length 65535": put(V6_FRAME, ETHERNET + 44, b"\xff\xff"),
    "no room for the ICRC": put(
        put_ip(LAST_FRAME[:-1], 2, b"\x00\x2b"), ETHERNET + 24, b"\x00\x17"
    ),
    "another UDP port": put(V4_FRAME, ETHERNET + 22, b"\x12\xb6"),
    "source and destination port swapped": put(V4_FRAME, ETHERNET + 20, b"\x12\xb7\xc0\x06"),
    "untagged": put(V4_FRAME, ETHERNET + 20, b"\xbf\xff"),
}  # fmt: skip
for _opcode in sorted(set(range(256)) - set(range(0x0C)) - set(range(0x20, 0x2C))):
    KINDS[f"opcode 0x{_opcode:02X}"] = put(V4_FRAME, ETHERNET + 28, bytes([_opcode]))


def carries_ce(data: bytes) -> bool:
    at = ETHERNET + (4 if data[12:14] == b"\x81\x00" else 0)
    kind = data[at - 2 : at]
    if kind == b"\x08\x00" and len(data) > at + 1:
        return data[at + 1] & 3 == 3
    if kind == b"\x86\xdd" and len(data) > at + 1:
        return data[at + 1] >> 4 & 3 == 3
    return False


def random_mutation(source: random.Random) -> bytes:
    whole = bytearray(source.choice([V4_FRAME, V6_FRAME, VLAN_FRAME, LAST_FRAME]))
    for _ in range(source.randint(0, 5)):
        whole[source.randrange(len(whole))] = source.randrange(256)
    data = bytes(whole[: len(whole) - source.choice([0, 0, 0, 1, 7, 30])])
    # Half of them with the checksum mended, to get past it.
    return mended(data) if data[12:14] == b"\x08\x00" and source.random() < 0.5 else data


def random_bytes(source: random.Random) -> bytes:
    ethernet = source.choice([V4_FRAME[:14], V6_FRAME[:14], b""])
    return ethernet + source.randbytes(source.randint(0, 90))
