"""The sender's fast path renders what ``build`` builds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_frames import frame

from ringstep.protocol.rocev2 import (
    Aeth,
    Bth,
    FrameTemplate,
    Opcode,
    Reth,
    build,
    encode_aeth,
    encode_reth,
    parse,
)

families = pytest.mark.parametrize("v6", [False, True], ids=["ipv4", "ipv6"])


@families
@pytest.mark.parametrize("vlan", [None, 5])
@pytest.mark.parametrize("opcode", [Opcode.RC_WRITE_MIDDLE, Opcode.RC_WRITE_LAST])
def test_rendered_frames_equal_built_ones(v6: bool, vlan: int | None, opcode: Opcode) -> None:
    f = frame(v6=v6, vlan=vlan)
    template = FrameTemplate(f)
    for psn, ack_req, payload in ((0, False, bytes(32)), (0xFFFFFF, True, bytes(range(32, 64)))):
        bth = replace(f.bth, psn=psn, ack_req=ack_req, opcode=opcode)
        expected = build(replace(f, bth=bth, payload=payload))
        rendered = template.render(psn, opcode, payload, ack_req)
        assert rendered == expected
        assert len(rendered) == template.size
        parse(rendered)


@families
def test_extended_headers_are_part_of_the_body(v6: bool) -> None:
    first = frame(Opcode.RC_WRITE_FIRST, v6=v6)
    assert first.reth is not None
    body = encode_reth(first.reth) + first.payload
    assert FrameTemplate(first).render(77, Opcode.RC_WRITE_FIRST, body) == build(first)
    ack = frame(Opcode.RC_ACK, v6=v6)
    assert ack.aeth is not None
    assert FrameTemplate(ack).render(77, Opcode.RC_ACK, encode_aeth(ack.aeth)) == build(ack)
    imm = frame(Opcode.RC_WRITE_LAST_IMM, v6=v6)
    assert imm.imm is not None
    body = imm.imm.to_bytes(4, "big") + imm.payload
    assert FrameTemplate(imm).render(77, Opcode.RC_WRITE_LAST_IMM, body) == build(imm)


def test_encoders_give_the_wire_format() -> None:
    assert encode_reth(Reth(1, 2, 3)) == bytes.fromhex("0000000000000001 00000002 00000003")
    assert encode_aeth(Aeth(0x1F, 0x010203)) == bytes.fromhex("1f010203")


def test_padding_is_part_of_the_body() -> None:
    f = frame(Opcode.RC_SEND_ONLY, payload=b"abcde")
    assert FrameTemplate(f).render(77, Opcode.RC_SEND_ONLY, b"abcde\0\0\0") == build(f)


def test_all_other_bth_bits_stay() -> None:
    bth = Bth(
        opcode=Opcode.RC_SEND_MIDDLE, dest_qp=0xABCDEF, psn=1, solicited=True, migreq=False,
        tver=9, pkey=0x1234, fecn=True, becn=True, resv6a=0x2A, resv7=0x55,
    )  # fmt: skip
    f = frame(Opcode.RC_SEND_MIDDLE, bth=bth)
    rendered = FrameTemplate(f).render(2, Opcode.RC_SEND_LAST, f.payload, ack_req=True)
    again = replace(f, bth=replace(bth, psn=2, opcode=Opcode.RC_SEND_LAST, ack_req=True))
    assert rendered == build(again)


def test_trailer_of_the_model_frame_is_not_rendered() -> None:
    f = frame(extra=bytes(6))
    template = FrameTemplate(f)
    rendered = template.render(77, Opcode.RC_WRITE_MIDDLE, f.payload)
    assert rendered == build(replace(f, extra=b""))
    assert template.size == len(rendered)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_body_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"body of {size} bytes in a template of 32"):
        FrameTemplate(frame()).render(0, Opcode.RC_WRITE_MIDDLE, bytes(size))


def test_a_frame_that_cannot_be_built_makes_no_template() -> None:
    with pytest.raises(ValueError, match="needs RETH"):
        FrameTemplate(frame(Opcode.RC_WRITE_FIRST, reth=None))


@given(
    st.integers(0, 0xFFFFFF),
    st.sampled_from([Opcode.RC_WRITE_MIDDLE, Opcode.RC_SEND_LAST, Opcode.UC_SEND_MIDDLE]),
    st.binary(min_size=32, max_size=32),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=100)
def test_any_render_parses(
    psn: int, opcode: Opcode, payload: bytes, ack_req: bool, v6: bool
) -> None:
    read = parse(FrameTemplate(frame(v6=v6)).render(psn, opcode, payload, ack_req))
    assert (read.bth.psn, read.bth.opcode, read.bth.ack_req) == (psn, opcode, ack_req)
    assert read.payload == payload
