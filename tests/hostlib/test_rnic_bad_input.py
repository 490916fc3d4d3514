"""Frames that are broken, foreign or absurd: dropped, counted, and nothing changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringstep.hostlib.peek import peek
from ringstep.hostlib.rnic import SoftRnic, Status
from ringstep.protocol.rocev2 import (
    Aeth,
    Bth,
    Opcode,
    Reth,
    RoceFrame,
    build,
    cnp,
    parse,
)
from ringstep.protocol.tag import TagLayout

MakePair = Callable[..., Any]


def write_only(**changes: Any) -> RoceFrame:
    frame = RoceFrame(
        src_mac=0x02_00_00_00_00_0A,
        dst_mac=0x02_00_00_00_00_0B,
        src_ip=IPv4Address("10.0.0.1"),
        dst_ip=IPv4Address("10.0.0.2"),
        sport=0xC001,
        bth=Bth(Opcode.RC_WRITE_ONLY, 0x22, 0, ack_req=True),
        reth=Reth(0, 0, 8),
        payload=b"ringstep",
        ecn=2,
    )
    return replace(frame, **changes)


def ack(**changes: Any) -> RoceFrame:
    frame = write_only(bth=Bth(Opcode.RC_ACK, 0x22, 0), reth=None, payload=b"", aeth=Aeth.ack(1))
    return replace(frame, **changes)


def flip(frame: bytes, offset: int, value: int) -> bytes:
    changed = bytearray(frame)
    changed[offset] = value
    return bytes(changed)


GOOD = build(write_only())

BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "malformed"),
    "ethernet only": (GOOD[:14], "malformed"),
    "cut in the IP header": (GOOD[:30], "malformed"),
    "cut in the BTH": (GOOD[:50], "malformed"),
    "cut in the payload": (GOOD[:-6], "malformed"),
    "ARP": (GOOD[:12] + b"\x08\x06" + GOOD[14:], "not_roce"),
    "payload bit": (flip(GOOD, len(GOOD) - 8, GOOD[-8] ^ 1), "bad_icrc"),
    "ICRC bit": (flip(GOOD, len(GOOD) - 1, GOOD[-1] ^ 0x80), "bad_icrc"),
    "IP checksum": (flip(GOOD, 24, GOOD[24] ^ 1), "malformed"),
    "another UDP port": (GOOD[:36] + b"\x12\xb5" + GOOD[38:], "not_roce"),
    "UDP length": (flip(GOOD, 39, GOOD[39] + 1), "malformed"),
    "options": (flip(GOOD, 14, 0x46), "not_roce"),
    "another host": (build(write_only(dst_ip=IPv4Address("10.0.0.3"))), "other_ip"),
    "another MAC": (build(write_only(dst_mac=0x02_00_00_00_00_0C)), "other_mac"),
    "no such queue pair": (build(write_only(bth=Bth(Opcode.RC_WRITE_ONLY, 0x23, 0))), "no_qp"),
    "another peer": (build(write_only(src_ip=IPv4Address("10.0.0.9"))), "other_peer"),
    "P_Key": (build(write_only(bth=Bth(Opcode.RC_WRITE_ONLY, 0x22, 0, pkey=1))), "bad_bth"),
    "TVer": (build(write_only(bth=Bth(Opcode.RC_WRITE_ONLY, 0x22, 0, tver=1))), "bad_bth"),
    "UC": (build(write_only(bth=Bth(Opcode.UC_WRITE_ONLY, 0x22, 0))), "opcode"),
    "IPv6": (
        build(write_only(src_ip=IPv6Address("fd00::1"), dst_ip=IPv6Address("fd00::2"))),
        "other_ip",
    ),
    "ACK with a payload": (build(ack(payload=b"more")), "malformed"),
    "CNP without BECN": (
        build(write_only(bth=Bth(Opcode.CNP, 0x22, 0), reth=None, payload=bytes(16))),
        "malformed",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_is_dropped_and_counted(make_pair: MakePair, name: str) -> None:
    frame, reason = BAD[name]
    pair = make_pair()
    pair.b.on_frame(frame, 1.0)
    assert dict(pair.b.stats.drops) == {reason: 1}
    assert pair.b.stats.last_drop
    assert pair.b.poll(1.0) == []
    assert pair.b.poll_arrivals() == []
    # And the connection works on.
    wr = pair.qa.post_write(1000)
    pair.run()
    assert wr.status is Status.OK


def test_the_good_frame_is_taken(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.b.on_frame(GOOD, 1.0)
    assert not pair.b.stats.drops
    assert [(x.nbytes, x.step) for x in pair.b.poll_arrivals()] == [(8, 1)]


def test_a_vlan_tag_is_accepted(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.b.on_frame(build(write_only(vlan=0x6001)), 1.0)
    assert [(x.nbytes, x.step) for x in pair.b.poll_arrivals()] == [(8, 1)]


def test_ethernet_padding_is_not_payload(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.b.on_frame(GOOD + bytes(20), 1.0)
    assert [x.nbytes for x in pair.b.poll_arrivals()] == [8]


@pytest.mark.parametrize("length", [0, 7, 9, 4096, 0xFFFFFFFF])
def test_a_length_that_contradicts_the_payload_is_refused(make_pair: MakePair, length: int) -> None:
    pair = make_pair()
    pair.b.on_frame(build(write_only(reth=Reth(0, 0, length))), 1.0)
    assert pair.b.poll_arrivals() == []
    (answer,) = [parse(frame) for frame in pair.b.poll(1.0)]
    assert answer.aeth is not None
    assert answer.aeth.syndrome == 0x61


@pytest.mark.parametrize("psn", [0, 5, 0x7FFFFF, 0x800000, 0xFFFFFF])
def test_an_acknowledgement_of_nothing_sent_is_ignored(make_pair: MakePair, psn: int) -> None:
    pair = make_pair()
    pair.b.on_frame(build(ack(bth=Bth(Opcode.RC_ACK, 0x22, psn))), 1.0)
    assert pair.qb.stats.stale_acks_rx == 1
    pair.b.on_frame(
        build(ack(bth=Bth(Opcode.RC_ACK, 0x22, psn), aeth=Aeth.nak_sequence_error(0))), 1.0
    )
    assert pair.qb.stats.stale_acks_rx == 2
    wr = pair.qb.post_write(1000)
    pair.run()
    assert wr.status is Status.OK


def test_a_cnp_for_an_uncontrolled_queue_pair_is_only_counted(make_pair: MakePair) -> None:
    pair = make_pair()
    frame = cnp(
        src_mac=pair.a.mac,
        dst_mac=pair.b.mac,
        src_ip=pair.a.ip,
        dst_ip=pair.b.ip,
        sport=0x8000,
        dest_qp=pair.qb.qpn,
    )
    pair.b.on_frame(build(frame), 1.0)
    assert pair.qb.stats.cnps_rx == 1
    assert pair.qb.rate_bps == 10e9


SEEDS = [
    GOOD,
    build(write_only(vlan=5)),
    build(write_only(src_ip=IPv6Address("fd00::1"), dst_ip=IPv6Address("fd00::2"))),
    build(ack()),
    GOOD + bytes(6),
]


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=3),
    st.integers(0, 120),
)
@example(GOOD, [], 0)
@example(GOOD, [(16, 0xFF), (17, 0xFF)], 0)
@example(GOOD, [(16, 0), (17, 0)], 0)
def test_the_fast_path_accepts_what_the_parser_accepts(
    frame: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    changed = bytearray(frame)
    for offset, value in changes:
        if offset < len(changed):
            changed[offset] = value
    data = bytes(changed[: len(changed) - cut] if cut < len(changed) else b"")
    peeked = peek(data)
    refusal = ""
    try:
        parsed = parse(data)
    except ValueError as error:
        refusal = str(error)
    if refusal:
        # A missing extension header or padding is left to the queue pair, which refuses it.
        assert peeked is None or "needs" in refusal
        return
    assert peeked is not None
    src, dst, ecn, opcode, flags, pkey, qp_word, psn_word, at, end = peeked
    assert (src, dst, ecn) == (parsed.src_ip.packed, parsed.dst_ip.packed, parsed.ecn)
    assert (opcode, flags >> 4 & 3, pkey) == (parsed.bth.opcode, parsed.bth.pad, parsed.bth.pkey)
    assert (qp_word & 0xFFFFFF, psn_word & 0xFFFFFF) == (parsed.bth.dest_qp, parsed.bth.psn)
    assert data[at:end].endswith(parsed.payload + bytes(data[end - parsed.bth.pad : end]))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_random_valid_headers_never_raise(seed: int) -> None:
    rng = random.Random(seed)
    nic = SoftRnic(0x02_00_00_00_00_0B, "10.0.0.2", 1, 1e9)
    nic.create_qp(0x22, "10.0.0.1", 0x11, mtu_payload=8)
    for _ in range(40):
        opcode = rng.choice([*Opcode, rng.randrange(256)])
        frame = write_only(
            bth=Bth(
                opcode,
                0x22,
                rng.choice([0, 1, 2, 3, 0xFFFFFF, 0x800000]),
                ack_req=rng.random() < 0.5,
                becn=rng.random() < 0.5,
                pad=rng.randrange(4),
            ),
            reth=None,
            aeth=None,
            payload=rng.randbytes(rng.randrange(40)),
            ecn=rng.randrange(4),
        )
        try:
            data = build(frame)
        except ValueError:
            frame.reth = Reth(rng.randrange(99), 0, rng.randrange(20))
            frame.bth.pad = -len(frame.payload) & 3
            try:
                data = build(frame)
            except ValueError:
                continue
        nic.on_frame(data, 1.0)
        for sent in nic.poll(1.0 + rng.random() * 9):
            parse(sent)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"mac": 1 << 48}, "mac 0x1000000000000"),
        ({"line_rate_bps": 0}, "line_rate_bps = 0"),
        ({"ecn": 4}, "ecn = 4"),
        ({"ip": "10.0.0"}, "10.0.0"),
        ({"cnp_dscp": 64}, "cnp_dscp = 64"),
        ({"wire_overhead_bytes": -1}, "wire_overhead_bytes"),
    ],
)
def test_nic_arguments_out_of_range_are_named(change: dict[str, Any], text: str) -> None:
    good: dict[str, Any] = {"mac": 1, "ip": "10.0.0.1", "gateway_mac": 2, "line_rate_bps": 1e9}
    with pytest.raises(ValueError, match=text):
        SoftRnic(**{**good, **change})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"local_qpn": 1}, "local_qpn = 1 must lie in 2"),
        ({"local_qpn": 1 << 24}, "local_qpn"),
        ({"remote_qpn": 0}, "remote_qpn"),
        ({"initial_psn": 1 << 24}, "initial_psn"),
        ({"mtu_payload": 1022}, "multiple of 4"),
        ({"ack_interval": 0}, "ack_interval"),
        ({"rto_us": 0}, "rto_us"),
        ({"window_bytes": 0}, "None is unlimited"),
        ({"remote_ip": "fd00::1"}, "different IP versions"),
        ({"job_tag": 1}, "job tag 1"),
        ({"resv6a": 64}, "resv6a = 64"),
    ],
)
def test_queue_pair_arguments_out_of_range_are_named(change: dict[str, Any], text: str) -> None:
    nic = SoftRnic(1, "10.0.0.1", 2, 1e9)
    good: dict[str, Any] = {"local_qpn": 16, "remote_ip": "10.0.0.2", "remote_qpn": 17}
    with pytest.raises(ValueError, match=text):
        nic.create_qp(**{**good, **change})
    assert nic.qps == {}


def test_a_queue_pair_number_is_used_once() -> None:
    nic = SoftRnic(1, "10.0.0.1", 2, 1e9)
    nic.create_qp(16, "10.0.0.2", 17)
    with pytest.raises(ValueError, match="queue pair 0x10 exists already"):
        nic.create_qp(16, "10.0.0.2", 18)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"data": -1}, "message of -1 bytes"),
        ({"data": (1 << 31) + 1}, "RC carries"),
        ({"data": 1, "imm": 1 << 32}, "32 bits"),
        ({"data": 1, "raddr": 1 << 64}, "64 bits"),
        ({"data": 1, "rkey": -1}, "32 bits"),
    ],
)
def test_request_arguments_out_of_range_are_named(change: dict[str, Any], text: str) -> None:
    qp = SoftRnic(1, "10.0.0.1", 2, 1e9).create_qp(
        16, "10.0.0.2", 17, layout=TagLayout(job_bits=0, step_bits=14)
    )
    with pytest.raises(ValueError, match=text):
        qp.post_write(**change)
    assert qp.idle


def test_memory_regions_must_fit() -> None:
    nic = SoftRnic(1, "10.0.0.1", 2, 1e9)
    nic.register_memory(16, va=0, rkey=1)
    with pytest.raises(ValueError, match="rkey 0x1 is taken"):
        nic.register_memory(16, va=0, rkey=1)
    with pytest.raises(ValueError, match="does not fit"):
        nic.register_memory(16, va=(1 << 64) - 15, rkey=2)
