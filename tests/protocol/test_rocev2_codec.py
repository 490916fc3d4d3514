"""The codec against scapy, opcode by opcode, and against itself."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_frames import DST_MAC, SRC_MAC, frame
from scapy.contrib.roce import AETH, BTH, CNPPadding
from scapy.contrib.roce import cnp as scapy_cnp
from scapy.fields import BitField, IntField, LongField, XIntField
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw

from ringstep.protocol.rocev2 import (
    AETH_OPCODES,
    DATA_OPCODES,
    IMM_OPCODES,
    LAST_OPCODES,
    RETH_OPCODES,
    Aeth,
    Bth,
    Opcode,
    Reth,
    RoceFrame,
    build,
    cnp,
    is_data,
    is_last,
    parse,
)


class ScapyReth(Packet):
    """RETH (IBTA 9.3.3); scapy has none."""

    name = "RETH"
    fields_desc = [LongField("va", 0), XIntField("rkey", 0), IntField("dma_len", 0)]  # noqa: RUF012


class ScapyImmDt(Packet):
    """ImmDt (IBTA 9.3.6); scapy has none."""

    name = "ImmDt"
    fields_desc = [BitField("data", 0, 32)]  # noqa: RUF012


def mac(value: int) -> str:
    return value.to_bytes(6, "big").hex(":")


def by_scapy(f: RoceFrame) -> bytes:
    """Build ``f`` with scapy alone; checksums, lengths and ICRC are scapy's."""
    head: Any = Ether(src=mac(f.src_mac), dst=mac(f.dst_mac))
    if f.vlan is not None:
        head /= Dot1Q(prio=f.vlan >> 13, dei=f.vlan >> 12 & 1, vlan=f.vlan & 0xFFF)
    tos = f.dscp << 2 | f.ecn
    if f.src_ip.version == 4:
        head /= IP(src=str(f.src_ip), dst=str(f.dst_ip), tos=tos, ttl=f.ttl, id=f.ident, flags="DF")
    else:
        head /= IPv6(src=str(f.src_ip), dst=str(f.dst_ip), tc=tos, hlim=f.ttl, fl=f.flow_label)
    bth = f.bth
    head /= UDP(sport=f.sport, dport=4791, chksum=0)
    head /= BTH(
        opcode=bth.opcode,
        solicited=bth.solicited,
        migreq=bth.migreq,
        padcount=bth.pad,
        version=bth.tver,
        pkey=bth.pkey,
        fecn=bth.fecn,
        becn=bth.becn,
        resv6=bth.resv6a,
        dqpn=bth.dest_qp,
        ackreq=bth.ack_req,
        resv7=bth.resv7,
        psn=bth.psn,
    )
    if f.reth is not None:
        head /= ScapyReth(va=f.reth.va, rkey=f.reth.rkey, dma_len=f.reth.dma_len)
    if f.aeth is not None:
        head /= AETH(syndrome=f.aeth.syndrome, msn=f.aeth.msn)
    if f.imm is not None:
        head /= ScapyImmDt(data=f.imm)
    if f.bth.opcode == Opcode.CNP:
        head /= CNPPadding()
    else:
        head /= Raw(f.payload + bytes(bth.pad))
    return bytes(head.build())


families = pytest.mark.parametrize("v6", [False, True], ids=["ipv4", "ipv6"])


@families
@pytest.mark.parametrize("opcode", Opcode, ids=lambda o: o.name)
def test_every_opcode_is_built_as_scapy_builds_it(opcode: Opcode, v6: bool) -> None:
    f = frame(opcode, v6=v6)
    assert build(f) == by_scapy(f)


@families
@pytest.mark.parametrize("opcode", Opcode, ids=lambda o: o.name)
def test_every_opcode_comes_back(opcode: Opcode, v6: bool) -> None:
    f = frame(opcode, v6=v6)
    assert parse(build(f)) == f
    assert parse(by_scapy(f)) == f


@families
@pytest.mark.parametrize(
    "vlan", [None, 0, 100, 0x6064, 0xFFFF], ids=["untagged", "0", "100", "prio 3", "all ones"]
)
def test_vlan(vlan: int | None, v6: bool) -> None:
    f = frame(vlan=vlan, v6=v6)
    assert build(f) == by_scapy(f)
    assert parse(build(f)) == f


@families
@pytest.mark.parametrize("size", range(9))
def test_padding_to_four_bytes(size: int, v6: bool) -> None:
    f = frame(Opcode.RC_SEND_ONLY, payload=bytes(range(1, size + 1)), v6=v6)
    data = build(f)
    assert data == by_scapy(f)
    assert len(data) % 4 == 14 % 4
    assert parse(data).payload == f.payload


@families
@pytest.mark.parametrize("ecn", [0, 1, 2, 3])
def test_ecn_and_dscp(ecn: int, v6: bool) -> None:
    f = frame(v6=v6, ecn=ecn, dscp=46, ttl=3, ident=0 if v6 else 0xBEEF)
    assert build(f) == by_scapy(f)
    assert parse(build(f)) == f


@families
def test_every_bit_of_the_bth(v6: bool) -> None:
    for changes in (
        {"ack_req": True}, {"solicited": True}, {"migreq": False}, {"tver": 15}, {"pkey": 0x7FFF},
        {"fecn": True}, {"becn": True}, {"resv6a": 63}, {"resv7": 127}, {"psn": 0xFFFFFF},
        {"dest_qp": 0xFFFFFF}, {"psn": 0, "dest_qp": 0},
    ):  # fmt: skip
        values: dict[str, Any] = {"opcode": Opcode.RC_SEND_MIDDLE, "dest_qp": 5, "psn": 6}
        f = frame(v6=v6, bth=Bth(**(values | changes)))
        assert build(f) == by_scapy(f), changes
        assert parse(build(f)) == f, changes


@families
@pytest.mark.parametrize(
    "aeth",
    [Aeth.ack(0), Aeth.ack(0xFFFFFF), Aeth.nak_sequence_error(7), Aeth.rnr(3, 14)],
    ids=["ack", "ack, last msn", "nak", "rnr"],
)
def test_acknowledgements(aeth: Aeth, v6: bool) -> None:
    f = frame(Opcode.RC_ACK, aeth=aeth, v6=v6)
    assert build(f) == by_scapy(f)
    assert parse(build(f)).aeth == aeth


def test_aeth_syndromes() -> None:
    # IBTA table 43: 000 ACK with 5 bits of credit count, 001 RNR NAK with timer, 011 NAK with code.
    assert Aeth.ack(5).syndrome == 0b000_11111
    assert Aeth.rnr(5, 0b01110).syndrome == 0b001_01110
    assert Aeth.nak_sequence_error(5).syndrome == 0b011_00000
    kinds = [(a.is_ack, a.is_rnr, a.is_nak) for a in (Aeth.ack(0), Aeth.rnr(0, 1), Aeth(0x60, 0))]
    assert kinds == [(True, False, False), (False, True, False), (False, False, True)]


def test_cnp_as_scapy_makes_it() -> None:
    made = cnp(
        src_mac=SRC_MAC,
        dst_mac=DST_MAC,
        src_ip=ip_address("22.22.22.8"),
        dst_ip=ip_address("22.22.22.7"),
        sport=56238,
        dest_qp=0xD2,
        dscp=34,
    )
    made.ident, made.ttl = 0x98C6, 0x20
    theirs = (
        Ether(src=mac(SRC_MAC), dst=mac(DST_MAC))
        / IP(src="22.22.22.8", dst="22.22.22.7", id=0x98C6, flags="DF", ttl=0x20, tos=34 << 2)
        / UDP(sport=56238, dport=4791, chksum=0)
        / scapy_cnp(0xD2)
    )
    assert build(made) == bytes(theirs.build())
    assert parse(build(made)) == made


def test_scapy_reads_what_we_build() -> None:
    read = Ether(build(frame(Opcode.RC_ACK, psn=0x123456, sport=0xC123)))
    assert (read[UDP].sport, read[BTH].psn, read[AETH].msn) == (0xC123, 0x123456, 9)
    icrc = read[BTH].icrc
    read[BTH].icrc = None
    assert Ether(read.build())[BTH].icrc == icrc


def test_ethernet_padding_is_kept_apart_from_the_payload() -> None:
    f = frame(Opcode.RC_SEND_ONLY, payload=b"", extra=bytes(2))
    data = build(f)
    assert len(data) == 60
    assert parse(data) == f


def test_which_opcodes_are_data_and_end_a_message() -> None:
    # IBTA table 38: RC 000xxxxx, UC 001xxxxx; operations 00000 to 01011 are SEND and WRITE.
    assert {op for op in range(256) if is_data(op)} == {*range(12), *range(0x20, 0x2C)}
    ends = {2, 3, 4, 5, 8, 9, 10, 11}
    assert {op for op in range(256) if is_last(op)} == ends | {op + 0x20 for op in ends}
    assert LAST_OPCODES < DATA_OPCODES
    assert {0x06, 0x0A, 0x0B, 0x0C, 0x26, 0x2A, 0x2B} == RETH_OPCODES
    assert {3, 5, 9, 11, 0x23, 0x25, 0x29, 0x2B} == IMM_OPCODES
    assert {0x0D, 0x0F, 0x10, 0x11} == AETH_OPCODES


@pytest.mark.parametrize(
    ("f", "complaint"),
    [
        (frame(Opcode.RC_WRITE_FIRST, reth=None), "opcode 0x06 needs RETH"),
        (frame(Opcode.RC_WRITE_MIDDLE, reth=Reth(0, 0, 0)), "opcode 0x07 does not carry RETH"),
        (frame(Opcode.RC_ACK, aeth=None), "opcode 0x11 needs AETH"),
        (frame(Opcode.RC_WRITE_LAST_IMM, imm=None), "opcode 0x09 needs IMM"),
        (frame(Opcode.RC_SEND_LAST, imm=4), "opcode 0x02 does not carry IMM"),
        (frame(dst_ip=frame(v6=True).dst_ip), "10.0.0.1 and 2001:db8:1::2 are of different IP"),
        (
            frame(bth=Bth(opcode=Opcode.RC_SEND_ONLY, dest_qp=1, psn=1), payload=b"abcde"),
            "payload of 5 bytes needs BTH.pad 3, not 0",
        ),
    ],
)
def test_what_no_opcode_allows_is_not_built(f: RoceFrame, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build(f)


u24 = st.integers(0, (1 << 24) - 1)


@st.composite
def frames(draw: st.DrawFn) -> RoceFrame:
    """Any frame that build() accepts."""
    opcode = draw(st.sampled_from(Opcode))
    v6 = draw(st.booleans())
    family = st.ip_addresses(v=6 if v6 else 4)
    payload = draw(st.binary(max_size=64))
    return RoceFrame(
        src_mac=draw(st.integers(0, (1 << 48) - 1)),
        dst_mac=draw(st.integers(0, (1 << 48) - 1)),
        src_ip=draw(family),
        dst_ip=draw(family),
        sport=draw(st.integers(0, 0xFFFF)),
        bth=Bth(
            opcode=opcode,
            dest_qp=draw(u24),
            psn=draw(u24),
            ack_req=draw(st.booleans()),
            solicited=draw(st.booleans()),
            migreq=draw(st.booleans()),
            pad=-len(payload) % 4,
            tver=draw(st.integers(0, 15)),
            pkey=draw(st.integers(0, 0xFFFF)),
            fecn=draw(st.booleans()),
            becn=draw(st.booleans()),
            resv6a=draw(st.integers(0, 63)),
            resv7=draw(st.integers(0, 127)),
        ),
        payload=payload,
        reth=Reth(draw(st.integers(0, (1 << 64) - 1)), draw(st.integers(0, (1 << 32) - 1)), 4)
        if opcode in RETH_OPCODES
        else None,
        aeth=Aeth(draw(st.integers(0, 255)), draw(u24)) if opcode in AETH_OPCODES else None,
        imm=draw(st.integers(0, (1 << 32) - 1)) if opcode in IMM_OPCODES else None,
        ecn=draw(st.integers(0, 3)),
        dscp=draw(st.integers(0, 63)),
        ttl=draw(st.integers(0, 255)),
        vlan=draw(st.none() | st.integers(0, 0xFFFF)),
        flow_label=draw(st.integers(0, (1 << 20) - 1)) if v6 else 0,
        ident=0 if v6 else draw(st.integers(0, 0xFFFF)),
        extra=draw(st.binary(max_size=8)),
    )


@given(frames())
@settings(max_examples=200)
def test_parse_undoes_build(f: RoceFrame) -> None:
    assert parse(build(f)) == f


@given(frames())
@settings(max_examples=50)
def test_scapy_builds_the_same_bytes(f: RoceFrame) -> None:
    if f.bth.opcode == Opcode.CNP:
        f.payload, f.bth.pad = bytes(16), 0
    f.extra = b""
    assert build(f) == by_scapy(f)
