"""What the Tofino 2 program does with frames, held against the v1model program, frame by frame.

The v1model program in the software switch is the judge of routing, rules, headers and what is left
alone; only ECMP's hash and the length check differ, and have tests of their own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address

import committed_program
import pytest
from broken_frames import (
    KINDS,
    LAST_FRAME,
    PORT,
    V4_FRAME,
    V6_FRAME,
    VLAN_FRAME,
    put,
    random_bytes,
    random_mutation,
    roce,
    with_options,
)
from committed_program import host, key_of
from sample_frames import V4, V6, frame
from t2na_program import INGRESS_PORT, Bench

from ringstep.protocol.inband import OP_PACKET, OP_READ_STATE, ReadRequest, StateReply
from ringstep.protocol.limits import CPU_PORT, T2NA_CPU_PORT, T2NA_RECIRC_PORT
from ringstep.protocol.marker import MarkerParams, ProgressMode
from ringstep.protocol.rocev2 import CE, Bth, Opcode, build, ipv4_checksum, parse
from ringstep.protocol.tag import TagLayout

families = pytest.mark.parametrize("v6", [False, True], ids=["ipv4", "ipv6"])
UPLINKS = (11, 12, 13, 14)
PARAMS = MarkerParams(k=1 << 16, n_warmup=0, q_gate=None, t_win=1 << 28)
JOB, BLOCK = 7, 70


class Both:
    """The two programs with the same entries."""

    def __init__(self) -> None:
        self.t2na = Bench()
        self.v1model = committed_program.Bench()
        self.t2na.hosts(1, 2, PORT)
        self.v1model.hosts(1, 2, PORT)
        self.t2na.set_params(JOB, PARAMS.to_table())
        self.v1model.job_params(JOB, PARAMS)
        for bench in (self.t2na, self.v1model):
            bench.block_map(JOB, PORT, BLOCK)
        for v6, (src, _) in ((False, V4), (True, V6)):
            self.v1model.job_by_pair(src, host(PORT, v6), JOB)
            key = {"src_addr": key_of(src), "dst_addr": key_of(host(PORT, v6))}
            self.t2na.table("job_by_pair").add(key, "set_job", job=JOB, path_id=0)
        self.v1model.job_by_tag(JOB, sport=(0xC000, 0xC000))
        self.t2na.table("job_by_tag").add(
            {"sport": (0xC000, 0xC000), "resv6a": (0, 0), "dscp": (0, 0)},
            "set_job",
            job=JOB,
            path_id=0,
        )
        self.now = 1000
        self.send(roce(step=5, psn=200))
        assert self.t2na.block(BLOCK, 14)["psn_rec"] == 200

    def send(self, data: bytes) -> list[tuple[int, bytes]]:
        """Send a frame through both; return what left, which must be the same."""
        self.now += 1
        expected = self.v1model.send(data, self.now)
        found = self.t2na.send(data, now_ns=self.now * 1000)
        assert ([] if found is None else [found]) == expected
        counted = self.v1model.counter("job_data", JOB)
        assert self.t2na.counter("job_data", JOB) == counted
        drops = [self.v1model.counter("ingress_drops", reason) for reason in range(4)]
        assert [self.t2na.counter("ingress_drops", reason) for reason in range(4)] == drops
        return expected


@pytest.fixture
def both() -> Both:
    return Both()


LENGTHS = {
    # The frame ends before its IP packet does, which ingress cannot see: docs/tofino2.md.
    "IPv4 length too long, UDP alike", "IPv6 length too long, UDP alike",
}  # fmt: skip


@families
@pytest.mark.parametrize("opcode", Opcode)
def test_every_opcode(both: Both, opcode: Opcode, v6: bool) -> None:
    for ecn in range(4):
        both.send(roce(v6=v6, opcode=opcode, ecn=ecn))


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - LENGTHS))
def test_every_kind_of_broken_frame(both: Both, kind: str) -> None:
    both.send(KINDS[kind])


@pytest.mark.parametrize("kind", sorted(LENGTHS))
def test_a_frame_that_its_ip_packet_outgrows_is_followed(both: Both, kind: str) -> None:
    before = both.t2na.counter("job_data", JOB)
    assert both.t2na.send(KINDS[kind]) is not None
    assert both.t2na.counter("job_data", JOB) == before + 1


@pytest.mark.parametrize(
    "whole", [V4_FRAME, V6_FRAME, VLAN_FRAME, LAST_FRAME], ids=["ipv4", "ipv6", "vlan", "last"]
)
def test_short_within_the_headers(both: Both, whole: bytes) -> None:
    bth_end = len(build(frame(Opcode.RC_SEND_ONLY, payload=b""))) - 4
    for length in range(bth_end):
        both.send(whole[:length])


@pytest.mark.parametrize("make", [random_mutation, random_bytes])
@pytest.mark.parametrize("seed", range(3))
def test_random_frames(both: Both, make: Callable[[random.Random], bytes], seed: int) -> None:
    source = random.Random(seed)
    for _ in range(200):
        data = make(source)
        if make is random_mutation:
            # Not cut short: see LENGTHS. A length field that outgrows the frame is the same.
            data += bytes(64)
            if max(data[16:18], data[18:20], data[20:22], data[22:24]) > b"\x00\x80":
                continue
        both.send(data)


@families
@pytest.mark.parametrize("ttl", [0, 1, 2, 64, 255])
@pytest.mark.parametrize("tci", [None, 0, 0xE123])
def test_ttl_and_vlan(both: Both, ttl: int, tci: int | None, v6: bool) -> None:
    both.send(build(frame(v6=v6, dst_ip=host(1, v6), ttl=ttl, vlan=tci)))


@families
def test_longest_prefix_wins_and_a_route_can_drop(both: Both, v6: bool) -> None:
    for bench in (both.t2na, both.v1model):
        bench.route("2001:db8:1::/64" if v6 else "10.1.0.0/16", 2)
    assert both.send(build(frame(v6=v6, dst_ip=host(77, v6))))[0][0] == 2
    assert both.send(build(frame(v6=v6, dst_ip=host(1, v6))))[0][0] == 1
    table = both.t2na.table("route_v6" if v6 else "route_v4")
    table.add({"dst_addr": (int(host(1, v6)), 128 if v6 else 32)}, "drop")
    assert both.t2na.send(build(frame(v6=v6, dst_ip=host(1, v6)))) is None


@pytest.mark.parametrize("ecn", range(4))
@pytest.mark.parametrize("words", [0, 1, 10])
def test_ipv4_checksum_at_every_value(both: Both, ecn: int, words: int) -> None:
    # Values of the identification field lead to all kinds of checksums, carries among them.
    for value in [*range(0, 0x10000, 1999), *range(0xFF00, 0x10000, 17)]:
        data = put(with_options(roce(ecn=ecn), words), 18, value.to_bytes(2, "big"))
        header = bytearray(data[14 : 34 + 4 * words])
        header[10:12] = b"\0\0"
        data = put(data, 24, ipv4_checksum(header).to_bytes(2, "big"))
        ((_, left),) = both.send(data)
        assert ipv4_checksum(left[14 : 34 + 4 * words]) == 0


# -- ECMP and planned paths ----------------------------------------------------------------------


@pytest.fixture
def uplinks() -> Bench:
    bench = Bench()
    bench.nexthop(100, *UPLINKS)
    bench.route("10.0.0.0/8", 100)
    bench.route("2001:db8::/32", 100)
    return bench


def flow(index: int, v6: bool) -> bytes:
    number = index % 200 + 1
    dst = ip_address(f"2001:db8:99::{number:x}" if v6 else f"10.99.0.{number}")
    return build(frame(v6=v6, dst_ip=dst, sport=0xC000 + 7 * index))


def ports(bench: Bench, seed: int, v6: bool, count: int = 256) -> list[int]:
    bench.table("switch_config").set_default("set_switch", ecmp_seed=seed)
    found = [bench.send(flow(index, v6)) for index in range(count)]
    return [out[0] for out in found if out is not None]


@families
@pytest.mark.parametrize("seed", [0, 1, 0xDEADBEEF])
def test_ecmp_spreads_flows_and_keeps_each_on_its_path(uplinks: Bench, seed: int, v6: bool) -> None:
    first = ports(uplinks, seed, v6)
    assert ports(uplinks, seed, v6) == first
    # 256 flows over 4 paths: 64 each, a standard deviation of 7.
    assert all(30 < first.count(port) < 98 for port in UPLINKS)


@pytest.mark.parametrize("members", [2, 3, 4])
@pytest.mark.parametrize("seeds", [(1, 99), (0, 1), (5, 6), (0x10000, 0x20000)])
def test_choices_under_two_seeds_are_independent(
    uplinks: Bench, members: int, seeds: tuple[int, int]
) -> None:
    uplinks.nexthop(100, *UPLINKS[:members])
    pairs = Counter(zip(*(ports(uplinks, seed, False) for seed in seeds), strict=True))
    expected = 256 / members**2
    assert len(pairs) == members**2
    assert all(abs(count - expected) < 5 * expected**0.5 for count in pairs.values())


@families
def test_a_planned_path_overrides_ecmp_until_it_is_withdrawn(uplinks: Bench, v6: bool) -> None:
    dst = ip_address("2001:db8:99::9" if v6 else "10.99.0.9")
    sent = [build(frame(v6=v6, dst_ip=dst, sport=0xC000 + step)) for step in range(24)]

    def taken() -> set[int]:
        return {out[0] for data in sent if (out := uplinks.send(data)) is not None}

    uplinks.job_by_dst_qp(dst, 0x11, job=5, path=40)
    assert taken() == set(UPLINKS)
    table = uplinks.table("planned_path")
    table.add({"path_id": 40}, "forward", port=13, src_mac=0xA, dst_mac=0xB)
    assert taken() == {13}
    table.clear()
    assert taken() == set(UPLINKS)


# -- finding the job -----------------------------------------------------------------------------


@families
def test_rules_are_asked_in_order(v6: bool) -> None:
    bench = Bench()
    bench.hosts(1)
    for job in range(1, 5):
        bench.set_params(job, MarkerParams().to_table())
        bench.block_map(job, 1, job)
    dst, src = host(1, v6), frame(v6=v6).src_ip

    def followed_by(**more: object) -> int:
        before = {job: bench.counter("job_data", job) for job in range(1, 5)}
        assert bench.send(build(frame(v6=v6, dst_ip=dst, **more))) is not None  # type: ignore[arg-type]
        moved = [job for job in before if bench.counter("job_data", job) != before[job]]
        return moved[0] if moved else 0

    assert followed_by() == 0
    tag = bench.table("job_by_tag")
    key = {"sport": (0xC000, 0xC000), "resv6a": (0, 0), "dscp": (0, 0)}
    tag.add(key, "set_job", priority=1, job=3, path_id=0)
    tag.add(key | {"dscp": (33, 63)}, "set_job", priority=2, job=4, path_id=0)
    assert followed_by() == 3
    assert followed_by(dscp=33) == 4
    pair = {"src_addr": key_of(src), "dst_addr": key_of(dst)}
    bench.table("job_by_pair").add(pair, "set_job", job=2, path_id=0)
    assert followed_by() == 2
    bench.job_by_dst_qp(dst, 0x11, 1)
    assert followed_by() == 1
    assert followed_by(dest_qp=0x12) == 2
    assert followed_by(sport=0x8001) == 0


def test_job_0_is_no_job() -> None:
    bench = Bench()
    bench.hosts(1)
    bench.set_params(0, MarkerParams().to_table())
    bench.block_map(0, 1, 9)
    bench.job_by_dst_qp(host(1), 0x11, job=0)
    assert bench.send(build(frame(dst_ip=host(1)))) is not None
    assert bench.state()["RingstepEgress.marker.block_generation"] == {}


def test_a_job_without_parameters_or_block_is_not_followed() -> None:
    bench = Bench()
    bench.hosts(1, 2)
    bench.job_by_dst_qp(host(1), 0x11, job=5)
    bench.job_by_dst_qp(host(2), 0x11, job=5)
    bench.block_map(5, 1, 9)
    assert bench.send(build(frame(dst_ip=host(1)))) is not None
    bench.set_params(5, MarkerParams().to_table())
    assert bench.send(build(frame(dst_ip=host(2)))) is not None
    assert all(cells == {} for cells in bench.state().values())
    assert bench.send(build(frame(dst_ip=host(1)))) is not None
    assert bench.block(9, 14)["generation"] == 1


# -- RED and the queue gate ----------------------------------------------------------------------


def red_marked(bench: Bench, depth: int, r: int) -> bool:
    bench.draw = r
    out = bench.send(build(frame(dst_ip=host(1), sport=0x8000)), qdepth_cells=depth * 8 + 7)
    assert out is not None
    return parse(out[1]).ecn == CE


def test_red_at_its_ends_and_between() -> None:
    bench = Bench()
    bench.hosts(1)
    assert not red_marked(bench, 1000, 0)
    bench.red(1, 10, 30, 13107)
    assert not any(red_marked(bench, depth, 0) for depth in range(11))
    assert all(red_marked(bench, depth, 0) for depth in range(11, 60))
    assert not any(red_marked(bench, depth, 65535) for depth in range(31))
    assert all(red_marked(bench, depth, 65535) for depth in range(31, 60))
    # r = 6553: marks where 6553 * 20 < 13107 * (depth - 10), that is depth > 20.
    assert [red_marked(bench, depth, 6400) for depth in range(11, 31)] == [False] * 9 + [True] * 11


def test_red_with_p_max_0_marks_only_beyond_q_max() -> None:
    bench = Bench()
    bench.hosts(1)
    bench.red(1, 10, 30, 0)
    assert not any(red_marked(bench, depth, 0) for depth in range(31))
    assert red_marked(bench, 31, 65535)


def test_the_queue_gate_counts_units_of_eight_cells() -> None:
    bench = Bench()
    bench.hosts(1)
    params = MarkerParams(k=1 << 16, n_warmup=0, q_gate=10, t_win=1 << 28)
    bench.set_params(5, params.to_table())
    bench.block_map(5, 1, 5)
    bench.job_by_dst_qp(host(1), 0x11, 5)
    bench.send(build(frame(dst_ip=host(1), sport=0xC000, psn=50)))
    for cells, marks in ((0, False), (87, False), (88, True), (1 << 18, True)):
        bench.send(build(frame(dst_ip=host(1), sport=0xC001, psn=50)), qdepth_cells=cells)
        assert bench.mark == marks, cells


# -- the clock -----------------------------------------------------------------------------------


@pytest.mark.parametrize("t_win", [1, 2, 31, 32, 33, 100, 999, 123_456, (1 << 29) - 1])
def test_a_window_ends_within_a_microsecond_of_t_win(t_win: int) -> None:
    # docs/tofino2.md: from 0.26 us too early to 0.78 us too late.
    rng = random.Random(t_win)
    bench = Bench()
    bench.hosts(1)
    bench.set_params(5, MarkerParams(t_win=t_win).to_table())
    bench.block_map(5, 1, 5)
    bench.job_by_dst_qp(host(1), 0x11, 5)
    data = build(frame(dst_ip=host(1)))

    def ends(start: int, length: int) -> bool:
        bench.set_params(5, MarkerParams(t_win=t_win, generation=rng.randrange(1, 255)).to_table())
        bench.send(data, now_ns=start)
        bench.send(data, now_ns=start + length)
        return bench.block(5, 14)["cnt_total"] == 1

    for _ in range(40):
        start = rng.getrandbits(48)
        bench.register("block_generation").cells.clear()
        assert not ends(start, t_win * 1000 - 257)
        bench.register("block_generation").cells.clear()
        assert ends(start, t_win * 1000 + 768)


def test_a_window_beyond_2_29_us_is_cut_at_549_s() -> None:
    bench = Bench()
    bench.hosts(1)
    bench.set_params(5, MarkerParams(t_win=(1 << 32) - 1).to_table())
    bench.block_map(5, 1, 5)
    bench.job_by_dst_qp(host(1), 0x11, 5)
    data = build(frame(dst_ip=host(1)))
    bench.send(data, now_ns=0)
    bench.send(data, now_ns=549_000_000_000)
    assert bench.block(5, 14)["cnt_total"] == 2
    bench.send(data, now_ns=550_000_000_000)
    assert bench.block(5, 14)["cnt_total"] == 1


def test_a_packet_stamped_a_little_earlier_ends_no_window() -> None:
    # Parsers stamp, and several feed one pipe.
    bench = Bench()
    bench.hosts(1)
    bench.set_params(5, MarkerParams(t_win=100).to_table())
    bench.block_map(5, 1, 5)
    bench.job_by_dst_qp(host(1), 0x11, 5)
    data = build(frame(dst_ip=host(1)))
    bench.send(data, now_ns=1_000_000)
    bench.send(data, now_ns=1_000_000 - 1500)
    assert bench.block(5, 14)["cnt_total"] == 2
    bench.send(data, now_ns=1_000_000 - 3_000)
    assert bench.block(5, 14)["cnt_total"] == 1


# -- CPU port ------------------------------------------------------------------------------------


def packet_out(port: int, op: int, payload: bytes) -> bytes:
    return (port << 7 | op).to_bytes(2, "big") + payload


def test_a_packet_out_leaves_as_it_is_and_is_never_followed(both: Both) -> None:
    data = roce(ttl=1)
    before = both.t2na.state()
    out = both.t2na.send(packet_out(PORT, OP_PACKET, data), port=T2NA_CPU_PORT)
    assert out == (PORT, data)
    assert both.t2na.state() == before


def test_a_packet_routed_to_the_cpu_port_carries_where_it_came_from() -> None:
    bench = Bench()
    bench.nexthop(CPU_PORT, CPU_PORT)
    bench.route("10.7.7.7/32", CPU_PORT)
    out = bench.send(build(frame(dst_ip=ip_address("10.7.7.7"))), port=33)
    assert out is not None
    port, data = out
    assert port == T2NA_CPU_PORT
    assert int.from_bytes(data[:2], "big") == 33 << 7 | OP_PACKET
    assert parse(data[2:]).dst_ip == ip_address("10.7.7.7")


PIPES = [0, 1, 2, 3]


def read_state(bench: Bench, request: ReadRequest, port: int, now_ns: int) -> StateReply:
    """Read a block of the pipe of ``port``: the CPU port's, or a recirculation port."""
    data = packet_out(port, OP_READ_STATE, request.encode())
    out = bench.send(data, T2NA_CPU_PORT, now_ns)
    assert out is not None
    leaves_by, reply = out
    if port != CPU_PORT:
        assert leaves_by == port
        out = bench.send(reply, port, now_ns)
        assert out is not None
        leaves_by, again = out
        assert again == reply
    assert leaves_by == T2NA_CPU_PORT
    assert int.from_bytes(reply[:2], "big") == CPU_PORT << 7 | OP_READ_STATE
    decoded = StateReply.decode(reply[2:])
    assert decoded.encode() == reply[2:]
    return decoded


@pytest.mark.parametrize("port", [CPU_PORT, *(pipe << 7 | T2NA_RECIRC_PORT for pipe in PIPES)])
@pytest.mark.parametrize("step_bits", range(3, 15))
def test_in_band_read_gives_exactly_the_registers(port: int, step_bits: int) -> None:
    layout = TagLayout(14 - step_bits, step_bits)
    job, block = 16383, 65535
    bench = Bench()
    bench.hosts(1)
    params = MarkerParams(
        mode=ProgressMode.ANCHORED, generation=200, q_gate=None, n_warmup=0, layout=layout
    )
    bench.set_params(job, params.to_table())
    bench.block_map(job, 1, block)
    bench.job_by_dst_qp(host(1), 0x11, job)
    for i, step in enumerate((4, 5, 6, 7, 5, 6, 7, 8)):
        sport = layout.sport(step)
        data = build(frame(dst_ip=host(1), sport=sport, psn=900 + 5 * i))
        bench.send(data, now_ns=(50 + i) * 1000)
    before = bench.state()
    reply = read_state(bench, ReadRequest(0xFEEDF00D, job, block), port, 1_234_000)
    assert bench.state() == before
    assert (reply.request_id, reply.job, reply.block) == (0xFEEDF00D, job, block)
    assert reply.now == 1_234_000 >> 8
    found = bench.block(block, step_bits)
    assert {name: getattr(reply, name) for name in found} == found
    assert reply.cnt_total == 8
    assert reply.anchors == tuple(bench.anchor(job, slot) for slot in range(4))
    assert reply.anchors[0] == (200, 8 % (1 << step_bits), 935)


@pytest.mark.parametrize("length", range(8))
def test_a_short_read_request_is_dropped(length: int) -> None:
    request = ReadRequest(7, 1, 2).encode()[:length]
    assert Bench().send(packet_out(0, OP_READ_STATE, request), port=T2NA_CPU_PORT) is None


def test_a_packet_out_header_on_another_port_is_just_bytes(both: Both) -> None:
    request = packet_out(0, OP_READ_STATE, ReadRequest(7, 1, 2).encode() + bytes(60))
    assert both.t2na.send(request, INGRESS_PORT) is None


def test_resv6a_and_the_icrc_are_left_alone(both: Both) -> None:
    bth = Bth(Opcode.RC_WRITE_MIDDLE, dest_qp=0x11, psn=300, resv6a=33)
    ((_, left),) = both.send(build(frame(dst_ip=host(PORT), sport=0xC006, bth=bth)))
    assert parse(left).bth.resv6a == 33
