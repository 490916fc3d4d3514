"""Ultra Ethernet frames: the codec, its complaints, and what the marker takes from them."""

from __future__ import annotations

import struct
from dataclasses import replace
from ipaddress import ip_address

import pytest
import uec_vectors
from hypothesis import given
from hypothesis import strategies as st

from ringstep.protocol.rocev2 import ipv4_checksum
from ringstep.protocol.uec import (
    DATA_OPCODES,
    PDS_BYTES,
    SES_BYTES,
    MalformedFrame,
    NextHeader,
    NotUec,
    Pds,
    PdsType,
    Ses,
    SesOpcode,
    UecFrame,
    UecTag,
    build,
    parse,
    tag_of,
)

V4 = (ip_address("10.0.0.1"), ip_address("10.0.1.2"))
V6 = (ip_address("2001:db8::1"), ip_address("2001:db8:1::2"))


def frame(v6: bool = False, **more: object) -> UecFrame:
    src, dst = V6 if v6 else V4
    values: dict[str, object] = {
        "src_mac": 1, "dst_mac": 2, "src_ip": src, "dst_ip": dst, "sport": 0x8123,
        "pds": Pds(psn=0xFEDCBA98, spdcid=0x1005), "ses": Ses(job_id=0xABCDEF), "ecn": 2,
        "body": bytes(range(44)),
    }  # fmt: skip
    return UecFrame(**(values | more))  # type: ignore[arg-type]


@pytest.mark.parametrize("vector", uec_vectors.load(), ids=lambda v: v.name)
def test_headers_of_the_vectors(vector: uec_vectors.Vector) -> None:
    pds, ses = Pds.decode(vector.data), Ses.decode(vector.data, PDS_BYTES)
    for name, value in vector.pds.items():
        assert getattr(pds, name) == value, name
    for name, value in vector.ses.items():
        assert getattr(ses, name) == value, name
    assert pds.encode() + ses.encode() == vector.data
    found = tag_of(frame(pds=pds, ses=ses))
    assert (found is None) == (vector.tag is None)
    if found is not None:
        assert vector.tag == {
            "job_id": found.job_id, "pdc": found.pdc, "psn": found.psn, "last": found.last,
        }  # fmt: skip


pds_headers = st.builds(
    Pds,
    psn=st.integers(0, (1 << 32) - 1),
    spdcid=st.integers(0, 65535),
    dpdcid=st.integers(0, 65535),
    type=st.sampled_from([PdsType.RUD_REQUEST, PdsType.ROD_REQUEST]),
    next_header=st.integers(1, 3),
    retransmit=st.booleans(),
    ack_request=st.booleans(),
    syn=st.booleans(),
    clear_psn_offset=st.integers(0, 65535),
)
ses_headers = st.builds(
    Ses,
    job_id=st.integers(0, (1 << 24) - 1),
    opcode=st.integers(0, 63),
    version=st.integers(0, 3),
    delivery_complete=st.booleans(),
    initiator_error=st.booleans(),
    relative_addressing=st.booleans(),
    header_data_present=st.booleans(),
    end_of_message=st.booleans(),
    start_of_message=st.booleans(),
    message_id=st.integers(0, 65535),
    ri_generation=st.integers(0, 255),
    pid_on_fep=st.integers(0, 4095),
    resource_index=st.integers(0, 4095),
)


@given(pds_headers, ses_headers, st.binary(max_size=64), st.booleans(), st.booleans())
def test_parse_undoes_build(pds: Pds, ses: Ses, body: bytes, v6: bool, vlan: bool) -> None:
    sent = frame(v6, pds=pds, ses=ses, body=body, vlan=0xE123 if vlan else None)
    data = build(sent)
    assert parse(data) == sent
    assert parse(data + bytes(9)) == replace(sent, extra=bytes(9))
    if not v6:
        at = 18 if vlan else 14
        assert ipv4_checksum(data[at : at + 20]) == 0


def test_addresses_of_two_families_are_refused() -> None:
    with pytest.raises(ValueError, match="different IP versions"):
        build(frame(src_ip=V6[0]))


@pytest.mark.parametrize(
    ("pds_type", "next_header", "opcode", "version", "counted"),
    [
        (PdsType.RUD_REQUEST, NextHeader.REQUEST_STANDARD, SesOpcode.WRITE, 0, True),
        (PdsType.ROD_REQUEST, NextHeader.REQUEST_SMALL, SesOpcode.SEND, 0, True),
        (PdsType.ROD_REQUEST, NextHeader.REQUEST_MEDIUM, SesOpcode.TAGGED_SEND, 0, True),
        (PdsType.RUD_REQUEST, NextHeader.REQUEST_STANDARD, SesOpcode.READ, 0, False),
        (PdsType.RUD_REQUEST, NextHeader.REQUEST_STANDARD, SesOpcode.WRITE, 1, False),
        (PdsType.RUD_REQUEST, NextHeader.RESPONSE, SesOpcode.WRITE, 0, False),
        (PdsType.RUD_CC_REQUEST, NextHeader.REQUEST_STANDARD, SesOpcode.WRITE, 0, False),
        (PdsType.RUDI_REQUEST, NextHeader.REQUEST_STANDARD, SesOpcode.WRITE, 0, False),
        (PdsType.ACK, NextHeader.NONE, SesOpcode.WRITE, 0, False),
    ],
)
def test_what_the_marker_looks_at(
    pds_type: int, next_header: int, opcode: int, version: int, counted: bool
) -> None:
    pds = Pds(psn=0xFEDCBA98, spdcid=7, type=pds_type, next_header=next_header)
    ses = Ses(job_id=9, opcode=opcode, version=version, end_of_message=True)
    found = tag_of(frame(pds=pds, ses=ses))
    assert found == (UecTag(9, 7, 0xDCBA98, True) if counted else None)


def test_only_three_opcodes_are_data() -> None:
    assert {int(op) for op in DATA_OPCODES} == {1, 5, 9}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (build(frame())[:12] + b"\x08\x06" + bytes(40), "EtherType 0x0806"),
        (build(frame())[:36] + struct.pack("!H", 4791) + build(frame())[38:], "UDP port 4791"),
        (build(frame(pds=Pds(psn=0, spdcid=1, type=PdsType.ACK))), "PDS type 7"),
        (build(frame(pds=Pds(psn=0, spdcid=1, type=PdsType.RUD_CC_REQUEST))), "PDS type 13"),
        (build(frame(pds=Pds(psn=0, spdcid=1, next_header=NextHeader.RESPONSE))), "next header 4"),
    ],
    ids=["ARP", "RoCEv2", "ACK", "RUD_CC", "response"],
)
def test_other_traffic_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(NotUec, match=reason):
        parse(data)


def with_udp_payload(payload: bytes) -> bytes:
    """Return an IPv6 frame to the UEC port with this payload, its lengths right."""
    whole = build(frame(v6=True))
    length = struct.pack("!H", 8 + len(payload))
    head = bytearray(whole[: 14 + 40 + 8])
    head[18:20] = head[58:60] = length
    return bytes(head) + payload


@pytest.mark.parametrize("room", range(PDS_BYTES + SES_BYTES))
def test_a_short_request_is_broken(room: int) -> None:
    payload = (Pds(psn=1, spdcid=2).encode() + Ses(job_id=3).encode())[:room]
    missing = "PDS" if room < PDS_BYTES else "SES"
    with pytest.raises(MalformedFrame, match=f"no room for a {missing} header"):
        parse(with_udp_payload(payload))


def test_short_at_every_length() -> None:
    for v6 in (False, True):
        whole = build(frame(v6))
        for length in range(len(whole)):
            with pytest.raises((MalformedFrame, NotUec)):
                parse(whole[:length])
