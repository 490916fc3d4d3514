"""The ICRC: against frames whose ICRC real NICs computed, and what a switch may change."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from sample_frames import frame

from ringstep.protocol.icrc import icrc, icrc_bytes
from ringstep.protocol.rocev2 import (
    CE,
    ECT0,
    ECT1,
    Bth,
    MalformedFrame,
    Opcode,
    RoceFrame,
    build,
    cnp,
    ipv4_checksum,
    parse,
)

ETHERNET = 14


def captured_cnp() -> RoceFrame:
    """The fields of a CNP that a ConnectX-4 Lx sent (published with scapy's RoCE tests)."""
    return RoceFrame(
        src_mac=0x7CFE90643B32,
        dst_mac=0xE41D2DAB2BC2,
        src_ip=ip_address("10.0.17.1"),
        dst_ip=ip_address("10.0.18.1"),
        sport=0,
        bth=Bth(opcode=Opcode.CNP, dest_qp=0x118, psn=0, becn=True, migreq=False),
        payload=bytes(16),
        ecn=ECT0,
        dscp=48,
        ident=0x718C,
    )


def test_icrc_of_a_connectx_cnp() -> None:
    assert build(captured_cnp())[-4:] == bytes.fromhex("82fd002a")


def test_icrc_of_a_uc_send_with_padding() -> None:
    # Two bytes of padding, ECT(1), a UDP checksum, which is masked (published with scapy's tests).
    made = build(
        RoceFrame(
            src_mac=0x248A07A8FA22,
            dst_mac=0x248A07A8FA22,
            src_ip=ip_address("192.168.0.7"),
            dst_ip=ip_address("192.168.0.7"),
            sport=49152,
            bth=Bth(opcode=Opcode.UC_SEND_ONLY, dest_qp=211, psn=13571856, pad=2),
            payload=bytes.fromhex("4630818be28935d90e9a95505401be885e50"),
            ecn=ECT1,
            ident=1144,
        )
    )
    assert made[-4:] == bytes.fromhex("78f353f3")
    assert made[ETHERNET + 10 : ETHERNET + 12] == bytes.fromhex("b4d5")
    # Whatever the UDP checksum says, the ICRC stands.
    with_checksum = made[: ETHERNET + 26] + bytes.fromhex("aca2") + made[ETHERNET + 28 :]
    assert parse(with_checksum) == parse(made)


def test_icrc_bytes_are_least_significant_first() -> None:
    packet = build(captured_cnp())[ETHERNET:-4]
    assert icrc(packet, 4) == 0x2A00FD82
    assert icrc_bytes(packet, 4) == bytes.fromhex("82fd002a")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_icrc_takes_any_bytes_and_leaves_them_alone(kind: type) -> None:
    packet = kind(build(captured_cnp())[ETHERNET:-4])
    before = bytes(packet)
    assert icrc(packet, 4) == 0x2A00FD82
    assert bytes(packet) == before


def changed(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value) :]


def with_ipv4_checksum(data: bytes) -> bytes:
    header = bytearray(data[ETHERNET : ETHERNET + 20])
    header[10:12] = b"\0\0"
    return changed(data, ETHERNET + 10, ipv4_checksum(header).to_bytes(2, "big"))


BTH_V4 = ETHERNET + 28
BTH_V6 = ETHERNET + 48


@pytest.mark.parametrize(
    ("what", "offset", "value"),
    [
        ("ECN to CE", ETHERNET + 1, b"\x03"),
        ("DSCP", ETHERNET + 1, b"\xb8"),
        ("TTL", ETHERNET + 8, b"\x01"),
        ("UDP checksum", ETHERNET + 26, b"\x12\x34"),
        ("resv6a", BTH_V4 + 4, b"\x2a"),
        ("FECN and BECN", BTH_V4 + 4, b"\xc0"),
    ],
)
def test_ipv4_fields_that_change_on_the_way_keep_the_icrc_valid(
    what: str, offset: int, value: bytes
) -> None:
    original = build(frame())
    data = with_ipv4_checksum(changed(original, offset, value))
    assert data != original, what
    assert data[-4:] == original[-4:]
    parse(data)


@pytest.mark.parametrize(
    ("what", "offset", "value"),
    [
        ("traffic class to CE", ETHERNET, b"\x60\x30"),
        ("flow label", ETHERNET + 1, b"\x2f\xff\xff"),
        ("hop limit", ETHERNET + 7, b"\x01"),
        ("UDP checksum", ETHERNET + 46, b"\x12\x34"),
        ("resv6a", BTH_V6 + 4, b"\x2a"),
    ],
)
def test_ipv6_fields_that_change_on_the_way_keep_the_icrc_valid(
    what: str, offset: int, value: bytes
) -> None:
    data = changed(build(frame(v6=True)), offset, value)
    assert data != build(frame(v6=True)), what
    parse(data)


@pytest.mark.parametrize(
    ("what", "offset"),
    [
        ("identification", 4),
        ("source address", 15),
        ("destination address", 19),
        ("UDP source port", 21),
        ("opcode", 28),
        ("flags", 29),
        ("destination QP", 35),
        ("AckReq", 36),
        ("PSN", 39),
        ("payload", 45),
    ],
)
def test_ipv4_fields_that_belong_to_the_sender_break_the_icrc(what: str, offset: int) -> None:
    data = build(frame(Opcode.RC_SEND_MIDDLE))
    flip = 0x80 if what == "AckReq" else 0x01
    value = bytes([data[ETHERNET + offset] ^ flip])
    data = with_ipv4_checksum(changed(data, ETHERNET + offset, value))
    with pytest.raises(MalformedFrame, match=r"ICRC 0x[0-9A-F]{8} is wrong, 0x[0-9A-F]{8} would"):
        parse(data)
    parse(data, check_icrc=False)


def test_a_rewritten_source_port_breaks_the_icrc_over_ipv6() -> None:
    data = build(frame(v6=True))
    sport = ETHERNET + 40
    with pytest.raises(MalformedFrame, match="ICRC"):
        parse(changed(data, sport, b"\xc0\x06"))


def test_ethernet_and_vlan_are_outside_the_icrc() -> None:
    plain, tagged = build(frame()), build(frame(vlan=0x6123))
    assert plain[-4:] == tagged[-4:]
    parse(changed(plain, 0, bytes(12)))


def test_marking_by_rebuilding_is_marking_in_place() -> None:
    data = build(frame(ecn=ECT0))
    in_place = with_ipv4_checksum(changed(data, ETHERNET + 1, b"\x03"))
    again = parse(data)
    again.ecn = CE
    assert build(again) == in_place


def test_cnp_helper_makes_what_the_nic_sent() -> None:
    made = cnp(
        src_mac=0x7CFE90643B32,
        dst_mac=0xE41D2DAB2BC2,
        src_ip=ip_address("10.0.17.1"),
        dst_ip=ip_address("10.0.18.1"),
        sport=0,
        dest_qp=0x118,
        dscp=48,
    )
    made.ident = 0x718C
    # The NIC sends its CNPs as ECT(0), ours are not ECN-capable; the ICRC masks that.
    assert build(made)[-4:] == bytes.fromhex("82fd002a")
    made.ecn = ECT0
    assert made == captured_cnp()
