"""Frames that are broken, or are no RoCEv2, through the committed program: never an exception,
never a mark, never a trace in a register.

The ICRC is not among them: a switch does not check it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from broken_frames import (
    BLOCK,
    JOB,
    KINDS,
    LAST_FRAME,
    PORT,
    V4_FRAME,
    V6_FRAME,
    VLAN_FRAME,
    carries_ce,
    put,
    random_bytes,
    random_mutation,
    roce,
)
from committed_program import Bench, host, key_of
from sample_frames import V4, V6

from ringstep.protocol.marker import MarkerParams
from ringstep.protocol.rocev2 import MalformedFrame, NotRoce, parse


@pytest.fixture
def bench() -> Bench:
    """A switch on which every frame to host(PORT) that looks like the job's would be followed, and
    every outpacing one marked. The job is in step 5, at progress 200."""
    made = Bench()
    made.hosts(PORT)
    made.job_params(JOB, MarkerParams(k=1 << 16, n_warmup=0, q_gate=None, t_win=1 << 31))
    made.block_map(JOB, PORT, BLOCK)
    for v6, (src, _) in ((False, V4), (True, V6)):
        made.job_by_pair(src, host(PORT, v6), JOB)
    made.job_by_tag(JOB, sport=(0xC000, 0xC000))
    made.send(roce(step=5, psn=200), 10)
    assert made.block(BLOCK)["psn_rec"] == 200
    return made


def check(bench: Bench, data: bytes, now: int = 20) -> list[tuple[int, bytes]]:
    """Send a frame that must leave no trace; return what left."""
    before = bench.all_state()
    counted = bench.counter("job_data", JOB)
    out = bench.send(data, now)
    assert bench.all_state() == before
    assert bench.counter("job_data", JOB) == counted
    for port, left in out:
        assert port == PORT
        assert not carries_ce(left) or carries_ce(data)
    return out


@pytest.mark.parametrize("whole", [V4_FRAME, V6_FRAME, VLAN_FRAME], ids=["ipv4", "ipv6", "vlan"])
def test_the_frame_that_is_broken_below_would_be_marked(bench: Bench, whole: bytes) -> None:
    ((port, left),) = bench.send(whole, 20)
    assert (port, parse(left).ecn) == (PORT, 3)
    assert bench.block(BLOCK)["cnt_op"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_passes_or_falls_without_a_trace(bench: Bench, kind: str) -> None:
    check(bench, KINDS[kind])


@pytest.mark.parametrize(
    "kind",
    [
        "ARP", "IPv4 checksum", "IPv6 version under IPv4", "IPv4 version under IPv6",
        "IPv4 header of 4 words", "IPv4 header of 0 words", "TTL 0", "TTL 1", "hop limit 0",
        "hop limit 1", "two VLAN tags", "RoCEv1", "empty", "one byte",
    ],
)  # fmt: skip
def test_what_a_router_must_not_forward_is_dropped(bench: Bench, kind: str) -> None:
    assert check(bench, KINDS[kind]) == []


@pytest.mark.parametrize(
    "kind",
    [
        "IPv4 options", "most IPv4 options", "first fragment", "later fragment", "TCP",
        "hop-by-hop options", "IPv6 fragment", "another UDP port", "untagged", "opcode 0x11",
        "opcode 0x81", "UDP length 0",
    ],
)  # fmt: skip
def test_what_is_only_no_roce_is_forwarded(bench: Bench, kind: str) -> None:
    ((port, left),) = check(bench, KINDS[kind])
    assert port == PORT
    assert len(left) == len(KINDS[kind])


@pytest.mark.parametrize(
    "whole", [V4_FRAME, V6_FRAME, VLAN_FRAME, LAST_FRAME], ids=["ipv4", "ipv6", "vlan", "last"]
)
def test_short_at_every_length(bench: Bench, whole: bytes) -> None:
    for length in range(len(whole)):
        check(bench, whole[:length])


def test_a_bad_icrc_is_not_the_switchs_business(bench: Bench) -> None:
    ((_, left),) = bench.send(put(V4_FRAME, len(V4_FRAME) - 1, b"\x00"), 20)
    assert parse(left, check_icrc=False).ecn == 3
    with pytest.raises(MalformedFrame, match="ICRC"):
        parse(left)


def test_ethernet_padding_is_no_contradiction(bench: Bench) -> None:
    ((_, left),) = bench.send(LAST_FRAME + bytes(20), 20)
    assert parse(left).extra == bytes(20)
    assert bench.block(BLOCK)["step_min"] == 7


@pytest.mark.parametrize("make", [random_mutation, random_bytes])
@pytest.mark.parametrize("seed", range(4))
def test_the_program_and_the_codec_judge_random_frames_alike(
    bench: Bench, make: Callable[[random.Random], bytes], seed: int
) -> None:
    """Whatever the program follows, ``parse`` understands as a tagged data packet.

    But for one thing: the program does not look beyond the BTH, so a RETH, an ImmDt or padding for
    which there is no room is for the host to refuse.
    """
    source = random.Random(seed)
    followed = 0
    for turn in range(300):
        data = make(source)
        before = bench.counter("job_data", JOB)
        out = bench.send(data, 100 + turn)
        if bench.counter("job_data", JOB) != before:
            followed += 1
            refused = ""
            try:
                assert parse(data, check_icrc=False).sport >= 0xC000
            except MalformedFrame as error:
                refused = str(error)
            assert refused == "" or "the frame ends before it" in refused
        elif out:
            assert not carries_ce(out[0][1]) or carries_ce(data)
            try:
                read = parse(data, check_icrc=False)
            except (NotRoce, MalformedFrame):
                continue
            # Understood and routed, but not followed: untagged, or no data opcode.
            data_opcode = read.bth.opcode & 0xDF in range(0x0C)
            assert read.sport < 0xC000 or not data_opcode
    assert followed or make is random_bytes


def test_job_keys_map_ipv4_into_ipv6() -> None:
    assert key_of(host(3)) == 0xFFFF_0A01_0003
