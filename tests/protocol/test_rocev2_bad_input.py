"""Nothing that arrives makes ``parse`` fail otherwise than by NotRoce or MalformedFrame."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_frames import frame

from ringstep.protocol.rocev2 import (
    MalformedFrame,
    NotRoce,
    Opcode,
    build,
    ipv4_checksum,
    parse,
)

ETHERNET = 14
V4, V6 = build(frame()), build(frame(v6=True))
VLAN = build(frame(vlan=7))


def put(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value) :]


def put_ip(data: bytes, offset: int, value: bytes) -> bytes:
    """Change the IPv4 header of an untagged frame and mend its checksum."""
    data = put(data, ETHERNET + offset, value)
    header = bytearray(data[ETHERNET : ETHERNET + 20])
    header[10:12] = b"\0\0"
    return put(data, ETHERNET + 10, ipv4_checksum(header).to_bytes(2, "big"))


def resized(data: bytes, cut: int) -> bytes:
    """Cut bytes off the end of an untagged IPv4 frame, with lengths that agree (no ICRC)."""
    data = data[: len(data) - cut]
    total = len(data) - ETHERNET
    data = put(data, ETHERNET + 24, (total - 20).to_bytes(2, "big"))
    return put_ip(data, 2, total.to_bytes(2, "big"))


def shifted(data: bytes, at: int, inserted: bytes) -> bytes:
    return data[:at] + inserted + data[at:]


@pytest.mark.parametrize("data", [V4, V6, VLAN], ids=["ipv4", "ipv6", "vlan"])
def test_short_at_every_length(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(MalformedFrame):
            parse(data[:length])
    parse(data)


@pytest.mark.parametrize("opcode", Opcode, ids=lambda o: o.name)
def test_every_opcode_cut_short_with_lengths_that_agree(opcode: Opcode) -> None:
    whole = build(frame(opcode, payload=b""))
    headers = len(whole) - ETHERNET - 20 - 8 - 12 - 4
    for cut in range(1, headers + 1):
        if opcode == Opcode.CNP:
            # Reserved bytes only, of no meaning.
            parse(resized(whole, cut), check_icrc=False)
            continue
        with pytest.raises(MalformedFrame, match=f"opcode 0x{opcode:02X} needs"):
            parse(resized(whole, cut), check_icrc=False)


def test_padding_longer_than_the_payload() -> None:
    data = build(frame(Opcode.RC_SEND_ONLY, payload=b""))
    bad = put(data, ETHERNET + 20 + 8 + 1, b"\x70")
    with pytest.raises(MalformedFrame, match="needs 3 bytes of padding"):
        parse(bad, check_icrc=False)


OPTION = b"\x94\x04\x00\x00"

CASES = [
    ("empty", b"", MalformedFrame, "0 bytes are too few for an Ethernet header"),
    ("ARP", put(V4, 12, b"\x08\x06"), NotRoce, "EtherType 0x0806 is neither IPv4 nor IPv6"),
    ("RoCEv1", put(V4, 12, b"\x89\x15"), NotRoce, "EtherType 0x8915"),
    ("802.3 length", put(V4, 12, b"\x00\x50"), NotRoce, "EtherType 0x0050"),
    ("VLAN cut", VLAN[:16], MalformedFrame, "too few for a VLAN tag"),
    ("two VLAN tags", put(VLAN, 16, b"\x81\x00"), NotRoce, "EtherType 0x8100"),
    ("QinQ", put(VLAN, 12, b"\x88\xa8"), NotRoce, "EtherType 0x88A8"),
    ("version 6 in IPv4", put_ip(V4, 0, b"\x65"), MalformedFrame, "IP version 6 under"),
    ("version 4 in IPv6", put(V6, 14, b"\x40"), MalformedFrame, "IP version 4 under"),
    ("header length 4", put_ip(V4, 0, b"\x44"), MalformedFrame, "header length of 4 words"),
    ("header length 0", put_ip(V4, 0, b"\x40"), MalformedFrame, "header length of 0 words"),
    ("options", put_ip(shifted(V4, 34, OPTION), 0, b"\x46"), NotRoce, "IPv4 options"),
    ("most options", put_ip(V4, 0, b"\x4f"), NotRoce, "IPv4 options"),
    ("total length 19", put_ip(V4, 2, b"\x00\x13"), MalformedFrame, "total length 19 is less"),
    ("total length 0", put_ip(V4, 2, b"\x00\x00"), MalformedFrame, "total length 0 is less"),
    ("total length 65535", put_ip(V4, 2, b"\xff\xff"), MalformedFrame, "IP says 65535 bytes"),
    ("total length 24", put_ip(V4, 2, b"\x00\x18"), MalformedFrame, "4 bytes are too few"),
    ("total length short", put_ip(V4, 2, b"\x00\x40"), MalformedFrame, "UDP length 56 differs"),
    ("IP checksum", put(V4, ETHERNET + 10, b"\x00\x01"), MalformedFrame, "checksum is wrong"),
    ("first fragment", put_ip(V4, 6, b"\x20\x00"), NotRoce, "an IPv4 fragment"),
    ("later fragment", put_ip(V4, 6, b"\x00\x01"), NotRoce, "an IPv4 fragment"),
    ("last fragment", put_ip(V4, 6, b"\x1f\xff"), NotRoce, "an IPv4 fragment"),
    ("TCP", put_ip(V4, 9, b"\x06"), NotRoce, "IP protocol 6 is not UDP"),
    ("TCP over IPv6", put(V6, 20, b"\x06"), NotRoce, "IPv6 next header 6 is not UDP"),
    ("hop-by-hop options", put(V6, 20, b"\x00"), NotRoce, "IPv6 next header 0"),
    ("routing header", put(V6, 20, b"\x2b"), NotRoce, "IPv6 next header 43"),
    ("IPv6 fragment", put(V6, 20, b"\x2c"), NotRoce, "IPv6 next header 44"),
    ("destination options", put(V6, 20, b"\x3c"), NotRoce, "IPv6 next header 60"),
    ("IPv6 length 0", put(V6, 18, b"\x00\x00"), MalformedFrame, "0 bytes are too few for a UDP"),
    ("IPv6 length 65535", put(V6, 18, b"\xff\xff"), MalformedFrame, "IP says 65575 bytes"),
    ("another port", put(V4, ETHERNET + 22, b"\x12\xb6"), NotRoce, "UDP port 4790 is not 4791"),
    ("VXLAN", put(V4, ETHERNET + 22, b"\x12\xb5"), NotRoce, "UDP port 4789"),
    ("UDP length 0", put(V4, ETHERNET + 24, b"\x00\x00"), MalformedFrame, "UDP length 0 differs"),
    ("UDP length 65535", put(V4, ETHERNET + 24, b"\xff\xff"), MalformedFrame, "65535 differs"),
    ("no room for BTH", resized(V4, 33), MalformedFrame, "UDP length 23 leaves no room for BTH"),
    ("ICRC", put(V4, len(V4) - 1, bytes([V4[-1] ^ 1])), MalformedFrame, "ICRC 0x"),
    ("IPv6 ICRC", put(V6, len(V6) - 4, bytes([V6[-4] ^ 128])), MalformedFrame, "ICRC 0x"),
    ("ICRC of zeros", put(V4, len(V4) - 4, bytes(4)), MalformedFrame, "ICRC 0x00000000 is wrong"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "kind", "complaint"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_each_kind_is_named(data: bytes, kind: type[ValueError], complaint: str) -> None:
    with pytest.raises(kind) as caught:
        parse(data)
    assert type(caught.value) is kind
    assert complaint in str(caught.value)


def test_least_frame_that_is_whole() -> None:
    data = build(frame(Opcode.RC_SEND_ONLY, payload=b""))
    assert len(data) == ETHERNET + 20 + 8 + 12 + 4
    parse(data)


def test_unknown_opcodes_are_read_not_guessed() -> None:
    for opcode in set(range(256)) - set(Opcode):
        data = put(V4, ETHERNET + 28, bytes([opcode]))
        read = parse(data, check_icrc=False)
        assert (read.bth.opcode, read.reth, read.aeth, read.imm) == (opcode, None, None, None)
        assert len(read.payload) == 32


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes(data: bytes) -> None:
    for check_icrc in (True, False):
        with suppress(NotRoce, MalformedFrame):
            parse(data, check_icrc)


@given(
    st.sampled_from(
        [V4, V6, VLAN, *(build(frame(op)) for op in (Opcode.RC_ACK, Opcode.RC_WRITE_ONLY_IMM))]
    ),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=6),
    st.integers(0, 8),
    st.binary(max_size=8),
)
@settings(max_examples=500)
def test_random_mutations(
    data: bytes, changes: list[tuple[int, int]], cut: int, trailer: bytes
) -> None:
    mutated = bytearray(data[: len(data) - cut] + trailer)
    for offset, value in changes:
        mutated[offset % len(mutated)] = value
    for check_icrc in (True, False):
        try:
            read = parse(bytes(mutated), check_icrc)
        except (NotRoce, MalformedFrame):
            continue
        # Whatever is understood holds no more than what was there.
        assert len(read.payload) + len(read.extra) < len(mutated)


@given(st.sampled_from([V4, V6]), st.data())
@settings(max_examples=200)
def test_no_bit_outside_the_masked_fields_changes_unnoticed(
    data: bytes, draw: st.DataObject
) -> None:
    v4 = data is V4
    l3, udp = ETHERNET, ETHERNET + (20 if v4 else 40)
    masked = {udp + 6, udp + 7, udp + 12}
    masked |= {l3 + 1, l3 + 8} if v4 else {l3, l3 + 1, l3 + 2, l3 + 3, l3 + 7}
    offset = draw.draw(st.integers(l3, len(data) - 1).filter(lambda at: at not in masked))
    bit = draw.draw(st.integers(0, 7))
    changed = put(data, offset, bytes([data[offset] ^ 1 << bit]))
    with pytest.raises((NotRoce, MalformedFrame)):
        parse(changed)
