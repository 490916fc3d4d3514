"""Reading state in band: the bytes, and that the P4 program declares the same ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep.protocol import limits
from ringstep.protocol.inband import ReadRequest, StateReply

P4SRC = Path(__file__).resolve().parents[2] / "p4src" / "include"


def uint(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


def test_request_bytes() -> None:
    request = ReadRequest(0x01020304, job=0x3FFF, block=0xABCD)
    assert request.encode() == bytes.fromhex("01020304 3fff abcd")
    assert ReadRequest.decode(request.encode()) == request


def test_reply_bytes() -> None:
    reply = StateReply(
        1, job=2, block=3, now=4, generation=5, step_min=6, psn_rec=7, alpha=8, cnt_total=9,
        cnt_op=10, win_start=11, anchors=((12, 13, 14), (15, 16, 17), (18, 19, 20), (21, 22, 23)),
    )  # fmt: skip
    assert reply.encode() == bytes.fromhex(
        "00000001 0002 0003 0000000000000004 05 0006 00000007 08 00000009 0000000a"
        "000000000000000b"
        "0c 000d 0000000e  0f 0010 00000011  12 0013 00000014  15 0016 00000017"
    )


@given(uint(32), uint(14), uint(16), st.binary(max_size=9))
def test_request_round_trip(request_id: int, job: int, block: int, trailer: bytes) -> None:
    request = ReadRequest(request_id, job, block)
    assert ReadRequest.decode(request.encode() + trailer) == request


@given(
    st.builds(
        StateReply,
        uint(32), uint(14), uint(16), uint(48), uint(8), uint(16), uint(24), uint(8), uint(32),
        uint(32), uint(48),
        st.tuples(*[st.tuples(uint(8), uint(16), uint(24))] * 4),
    ),
    st.binary(max_size=9),
)  # fmt: skip
def test_reply_round_trip(reply: StateReply, trailer: bytes) -> None:
    assert StateReply.decode(reply.encode() + trailer) == reply


@pytest.mark.parametrize("length", range(8))
def test_short_request_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"read request of {length} bytes; 8 are needed"):
        ReadRequest.decode(bytes(length))


def test_short_reply_is_refused_at_every_length() -> None:
    needed = len(StateReply(*[0] * 11, anchors=((0, 0, 0),) * 4).encode())
    for length in range(needed):
        with pytest.raises(ValueError, match=f"{length} bytes; {needed} are needed"):
            StateReply.decode(bytes(length))


# -- the P4 side -----------------------------------------------------------------------------


def p4_types() -> dict[str, int]:
    text = (P4SRC / "constants.p4").read_text() + (P4SRC / "headers.p4").read_text()
    return {name: int(bits) for bits, name in re.findall(r"typedef bit<(\d+)> (\w+);", text)}


def p4_header(name: str) -> list[tuple[str, int]]:
    """Return (field, bits) of a header in headers.p4."""
    text = (P4SRC / "headers.p4").read_text()
    (body,) = re.findall(rf"header {name} \{{(.*?)\}}", text, re.DOTALL)
    types = p4_types()
    found = []
    for kind, field in re.findall(r"(\S+) (\w+);", body):
        bits = re.fullmatch(r"bit<(\d+)>", kind)
        found.append((field, int(bits[1]) if bits else types[kind]))
    return found


def pack(layout: list[tuple[str, int]], values: dict[str, int]) -> bytes:
    """Pack fields bit by bit in the order of the header; fields named ``*_pad`` are zero."""
    word = total = 0
    for field, bits in layout:
        value = 0 if field.endswith("_pad") else values[field]
        assert value < 1 << bits, field
        word, total = word << bits | value, total + bits
    assert total % 8 == 0
    return word.to_bytes(total // 8, "big")


def test_p4_request_header_is_the_same() -> None:
    values = {"request_id": 0xDEADBEEF, "job": 0x2AAA, "block": 0xFEDC}
    assert pack(p4_header("read_request_h"), values) == ReadRequest(**values).encode()


def test_p4_reply_headers_are_the_same() -> None:
    values = {
        "request_id": 0xDEADBEEF, "job": 0x2AAA, "block": 0xFEDC, "now": 0x123456789ABC,
        "generation": 0x81, "step_min": 0x3F3F, "psn_rec": 0x987654, "alpha": 0xFE,
        "cnt_total": 0xCAFEBABE, "cnt_op": 0x0BADF00D, "win_start": 0xA1B2C3D4E5F6,
    }  # fmt: skip
    anchors = ((1, 0x2002, 0x300003), (4, 5, 6), (7, 8, 9), (255, 0x3FFF, 0xFFFFFF))
    data = pack(p4_header("state_reply_h"), values)
    for generation, step, base in anchors:
        data += pack(p4_header("anchor_h"), {"generation": generation, "step": step, "base": base})
    assert data == StateReply(**values, anchors=anchors).encode()


def test_p4_widths_are_the_limits() -> None:
    widths = dict(p4_header("state_reply_h"))
    assert widths["job"] == limits.JOB_BITS
    assert widths["block"] == limits.BLOCK_BITS
    assert widths["psn_rec"] == limits.PSN_BITS
    assert widths["now"] == widths["win_start"] == limits.CLOCK_BITS
    assert widths["alpha"] == limits.ALPHA_BITS
    assert widths["cnt_total"] == widths["cnt_op"] == limits.COUNT_BITS


def test_packet_metadata_is_two_bytes_of_port_and_op() -> None:
    for name, port in (("packet_out_h", "egress_port"), ("packet_in_h", "ingress_port")):
        assert p4_header(name) == [(port, 9), ("op", 7)]
