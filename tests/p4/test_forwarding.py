"""Routing, ECMP, planned paths, RED, checksums, VLAN, and the in-band read of the program."""

from __future__ import annotations

import random
from collections import Counter
from ipaddress import ip_address

import pytest
from committed_program import INGRESS_PORT, STATE, Bench, Programmed, host
from sample_frames import V4, frame
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_Router_Alert
from scapy.layers.inet6 import IPv6, IPv6ExtHdrHopByHop
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from ringstep.fabric.ecmp import FlowKey, ecmp_index
from ringstep.protocol.inband import OP_PACKET, OP_READ_STATE, ReadRequest, StateReply
from ringstep.protocol.limits import CPU_PORT
from ringstep.protocol.marker import Marker, MarkerParams, ProgressMode
from ringstep.protocol.rocev2 import CE, Bth, Opcode, RoceFrame, build, ipv4_checksum, parse
from ringstep.protocol.tag import TagLayout
from ringstep.softswitch.tables import Exact, Lpm

families = pytest.mark.parametrize("v6", [False, True], ids=["ipv4", "ipv6"])
UPLINKS = (11, 12, 13, 14)


@pytest.fixture
def bench(empty: Programmed) -> Programmed:
    """Hosts behind ports 1 to 3, everything else over four uplinks; on each engine."""
    empty.hosts(1, 2, 3)
    empty.nexthop(100, *UPLINKS)
    empty.route("10.0.0.0/8", 100)
    empty.route("2001:db8::/32", 100)
    return empty


# Needs a queue's pace, the time, the random numbers or whole registers in hand, or a packet-out
# that no P4Runtime client can send.
in_memory = pytest.mark.parametrize("empty", ["softswitch"], indirect=True)


def one(out: list[tuple[int, bytes]]) -> tuple[int, bytes]:
    assert len(out) == 1
    return out[0]


def remote(number: int, v6: bool = False) -> object:
    return ip_address(f"2001:db8:99::{number:x}" if v6 else f"10.99.0.{number}")


# -- routing ---------------------------------------------------------------------------------


@families
@pytest.mark.parametrize("port", [1, 2, 3])
def test_routed_to_the_host_with_new_macs_and_one_hop_less(
    bench: Programmed, port: int, v6: bool
) -> None:
    sent = frame(v6=v6, dst_ip=host(port, v6), ttl=17)
    at, data = one(bench.send(build(sent)))
    left = parse(data)
    assert at == port
    assert (left.src_mac, left.dst_mac) == (0x020000000A00 + port, 0x020000000B00 + port)
    assert left.ttl == 16
    # Nothing else changed, and the ICRC is still right.
    left.src_mac, left.dst_mac, left.ttl = sent.src_mac, sent.dst_mac, 17
    assert left == sent


@families
def test_longest_prefix_wins(bench: Programmed, v6: bool) -> None:
    prefix = "2001:db8:1::/64" if v6 else "10.1.0.0/16"
    bench.route(prefix, 3)
    assert one(bench.send(build(frame(v6=v6, dst_ip=host(2, v6)))))[0] == 2
    assert one(bench.send(build(frame(v6=v6, dst_ip=host(77, v6)))))[0] == 3


@families
def test_no_route_is_a_drop(empty: Programmed, v6: bool) -> None:
    assert empty.send(build(frame(v6=v6))) == []
    assert empty.ingress_drops() == 0
    if isinstance(empty, Bench):
        assert empty.switch.port_stats()[INGRESS_PORT].ingress_drops == 1


def test_a_route_can_drop(bench: Programmed) -> None:
    bench.insert("route_v4", (Lpm(int(ip_address("10.1.0.2")), 32),), "drop")
    assert bench.send(build(frame(dst_ip=host(2)))) == []


@families
@pytest.mark.parametrize(("ttl", "passes"), [(0, False), (1, False), (2, True), (255, True)])
def test_ttl(bench: Programmed, ttl: int, passes: bool, v6: bool) -> None:
    out = bench.send(build(frame(v6=v6, dst_ip=host(1, v6), ttl=ttl)))
    assert [parse(data).ttl for _, data in out] == [ttl - 1] * passes


@families
@pytest.mark.parametrize("tci", [0, 5, 0xE123])
def test_vlan_tag_is_kept(bench: Programmed, tci: int, v6: bool) -> None:
    _, data = one(bench.send(build(frame(v6=v6, vlan=tci, dst_ip=host(1, v6)))))
    assert parse(data).vlan == tci


def test_other_protocols_are_routed(bench: Programmed) -> None:
    dst4, dst6 = str(host(1)), str(host(1, v6=True))
    for packet in (
        Ether() / IP(src="10.0.0.1", dst=dst4) / ICMP(),
        Ether() / IP(src="10.0.0.1", dst=dst4) / TCP() / b"data",
        Ether() / IP(src="10.0.0.1", dst=dst4) / UDP(sport=1, dport=2) / b"data",
        Ether() / Dot1Q(vlan=3) / IP(src="10.0.0.1", dst=dst4) / TCP(),
        Ether() / IPv6(src="2001:db8::1", dst=dst6) / TCP() / b"data",
        Ether() / IPv6(src="2001:db8::1", dst=dst6) / IPv6ExtHdrHopByHop() / UDP() / b"data",
        Ether() / IP(src="10.0.0.1", dst=dst4, frag=4, flags="MF") / Raw(b"fragment"),
    ):
        port, data = one(bench.send(bytes(packet.build())))
        assert port == 1
        read, sent = Ether(data), Ether(packet.build())
        layer = IP if IP in sent else IPv6
        assert bytes(read[layer].payload) == bytes(sent[layer].payload)


# -- checksums -------------------------------------------------------------------------------


def ip_header(data: bytes) -> bytes:
    return data[14 : 14 + (data[14] & 15) * 4]


@in_memory
@pytest.mark.parametrize("ttl", [2, 3, 64, 255])
@pytest.mark.parametrize("ecn", [0, 1, 2, 3])
@pytest.mark.parametrize("red", [False, True], ids=["", "RED"])
@pytest.mark.parametrize("options", [False, True], ids=["", "options"])
def test_ipv4_checksum_is_right(bench: Bench, ttl: int, ecn: int, red: bool, options: bool) -> None:
    bench.queue(1, 1e6)
    if red:
        bench.red(1, 0, 0, 0)
    option = [IPOption_Router_Alert()] if options else []
    packet = (
        Ether()
        / IP(src="10.0.0.1", dst=str(host(1)), ttl=ttl, tos=ecn, options=option)
        / UDP(sport=1, dport=2)
        / b"data"
    )
    data = bytes(packet.build())
    assert ipv4_checksum(ip_header(data)) == 0
    # The first leaves at once, the second with one packet left behind it.
    bench.send(data, 10)
    bench.switch.receive(1, data, 10)
    bench.switch.receive(1, data, 10)
    _, left = one(bench.switch.advance(11))
    assert ipv4_checksum(ip_header(left)) == 0
    assert left[14 + 8] == ttl - 1
    assert left[14 + 1] & 3 == (CE if red and ecn in (1, 2) else ecn)


def test_incremental_checksum_at_every_value(bench: Programmed) -> None:
    # All 65536 values of the identification field lead through all values of the checksum,
    # 0x0000 and the carries among them; a stride keeps the test short and hits the edges.
    edges = [*range(0, 0x10000, 257), *range(0xFE00, 0x10000, 3)]
    frames = []
    template = bytearray(
        (
            Ether() / IP(src="10.0.0.1", dst=str(host(1)), options=[IPOption_Router_Alert()]) / b"x"
        ).build()
    )
    for value in edges:
        template[18:20] = value.to_bytes(2, "big")
        template[24:26] = b"\0\0"
        template[24:26] = ipv4_checksum(template[14:38]).to_bytes(2, "big")
        frames.append(bytes(template))
    seen = {sent[24:26] for sent in frames}
    for out in bench.send_all(frames):
        _, left = one(out)
        header = bytearray(ip_header(left))
        found = bytes(header[10:12])
        header[10:12] = b"\0\0"
        assert found == ipv4_checksum(header).to_bytes(2, "big")
    assert len(seen) > 300


def test_a_wrong_checksum_with_options_stays_wrong(bench: Programmed) -> None:
    packet = Ether() / IP(
        src="10.0.0.1", dst=str(host(1)), options=[IPOption_Router_Alert()], chksum=0x1234
    )
    _, left = one(bench.send(bytes(packet.build())))
    assert ipv4_checksum(ip_header(left)) != 0


# -- ECMP and planned paths ------------------------------------------------------------------


def flows(v6: bool, count: int = 256) -> list[RoceFrame]:
    return [
        frame(v6=v6, dst_ip=remote(i % 200 + 1, v6), sport=0xC000 + 7 * i, psn=i)
        for i in range(count)
    ]


@families
@pytest.mark.parametrize("seed", [0, 1, 0xDEADBEEF])
def test_ecmp_takes_the_member_that_the_fabric_model_names(
    bench: Programmed, seed: int, v6: bool
) -> None:
    bench.seed(seed)
    for sent in flows(v6, 64):
        port, _ = one(bench.send(build(sent)))
        key = FlowKey(sent.src_ip, sent.dst_ip, sent.sport, 4791)
        assert port == UPLINKS[ecmp_index(seed, key, len(UPLINKS))]


@families
def test_ecmp_spreads_flows_and_keeps_each_on_its_path(bench: Programmed, v6: bool) -> None:
    psns = (0, 77, 0xFFFFFF)
    again = [
        frame(v6=v6, dst_ip=sent.dst_ip, sport=sent.sport, psn=psn, dscp=psn & 63)
        for sent in flows(v6)
        for psn in psns
    ]
    ports = [one(out)[0] for out in bench.send_all([build(f) for f in again])]
    chosen = [set(ports[at : at + len(psns)]) for at in range(0, len(ports), len(psns))]
    assert all(len(choice) == 1 for choice in chosen)
    counts = Counter(choice.pop() for choice in chosen)
    assert set(counts) == set(UPLINKS)
    # 256 flows over 4 paths: 64 each, a standard deviation of 7.
    assert all(30 < count < 98 for count in counts.values())


def spreads(bench: Programmed, members: int) -> list[tuple[int, int]]:
    """Return each flow's choice among ``members`` uplinks under two seeds."""
    bench.nexthop(200, *UPLINKS[:members])
    bench.route("10.99.0.0/16", 200)
    found = []
    for seed in (1, 99):
        bench.seed(seed)
        outs = bench.send_all([build(sent) for sent in flows(False)])
        found.append([one(out)[0] for out in outs])
    return list(zip(*found, strict=True))


@pytest.mark.parametrize("members", [2, 3, 4])
def test_another_seed_is_another_spread(bench: Programmed, members: int) -> None:
    pairs = spreads(bench, members)
    assert any(first != second for first, second in pairs)


@pytest.mark.parametrize("members", [2, 3, 4])
def test_choices_under_two_seeds_are_independent(bench: Programmed, members: int) -> None:
    pairs = Counter(spreads(bench, members))
    assert len(pairs) == members**2
    expected = 256 / members**2
    assert all(abs(count - expected) < 5 * expected**0.5 for count in pairs.values())


def test_the_step_of_the_tag_is_ecmp_entropy(bench: Programmed) -> None:
    ports = {
        one(bench.send(build(frame(dst_ip=remote(1), sport=TagLayout().sport(step)))))[0]
        for step in range(32)
    }
    assert ports == set(UPLINKS)


@families
def test_a_planned_path_overrides_ecmp_for_the_jobs_packets_alone(
    bench: Programmed, v6: bool
) -> None:
    dst = remote(9, v6)
    bench.job_by_dst_qp(dst, 0x11, job=5, path=40)
    bench.insert("planned_path", (Exact(40),), "forward", 13, 0xA, 0xB)
    planned, by_hash = set(), set()
    for step in range(24):
        port, data = one(bench.send(build(frame(v6=v6, dst_ip=dst, sport=0xC000 + step))))
        assert (parse(data).src_mac, parse(data).dst_mac) == (0xA, 0xB)
        planned.add(port)
        for other in (
            frame(v6=v6, dst_ip=dst, sport=0xC000 + step, dest_qp=0x12),
            frame(v6=v6, dst_ip=dst, sport=0x8000 + step),
            frame(Opcode.RC_ACK, v6=v6, dst_ip=dst, sport=0xC000 + step),
        ):
            by_hash.add(one(bench.send(build(other)))[0])
    assert planned == {13}
    assert by_hash == set(UPLINKS)


def test_without_the_planned_port_ecmp_takes_over(bench: Programmed) -> None:
    dst = remote(9)
    bench.job_by_dst_qp(dst, 0x11, job=5, path=40)
    sent = [frame(dst_ip=dst, sport=0xC000 + step) for step in range(24)]

    def ports() -> set[int]:
        return {one(bench.send(build(f)))[0] for f in sent}

    assert ports() == set(UPLINKS)
    bench.insert("planned_path", (Exact(40),), "forward", 13, 0xA, 0xB)
    assert ports() == {13}
    bench.delete("planned_path", (Exact(40),))
    assert ports() == set(UPLINKS)


def test_a_planned_path_needs_a_route_all_the_same(bench: Programmed) -> None:
    dst = ip_address("192.0.2.1")
    bench.job_by_dst_qp(dst, 0x11, job=5, path=40)
    bench.insert("planned_path", (Exact(40),), "forward", 13, 0xA, 0xB)
    assert bench.send(build(frame(dst_ip=dst))) == []


# -- finding the job -------------------------------------------------------------------------


def followed_by(bench: Programmed, f: RoceFrame) -> int:
    """Return the job whose data counter a frame moved, 0 for none."""
    before = {job: bench.counter("job_data", job) for job in range(1, 7)}
    one(bench.send(build(f)))
    moved = [job for job, count in before.items() if bench.counter("job_data", job) != count]
    assert len(moved) <= 1
    return moved[0] if moved else 0


@pytest.fixture
def six_jobs(bench: Programmed) -> Programmed:
    for job in range(1, 7):
        bench.job_params(job, MarkerParams())
        bench.block_map(job, 1, job)
    return bench


@families
def test_rules_are_asked_in_order(six_jobs: Programmed, v6: bool) -> None:
    dst = host(1, v6)
    src = frame(v6=v6).src_ip
    assert followed_by(six_jobs, frame(v6=v6, dst_ip=dst)) == 0
    six_jobs.job_by_tag(3, sport=(0xC000, 0xC000))
    assert followed_by(six_jobs, frame(v6=v6, dst_ip=dst)) == 3
    six_jobs.job_by_pair(src, dst, 2)
    assert followed_by(six_jobs, frame(v6=v6, dst_ip=dst)) == 2
    six_jobs.job_by_dst_qp(dst, 0x11, 1)
    assert followed_by(six_jobs, frame(v6=v6, dst_ip=dst)) == 1
    assert followed_by(six_jobs, frame(v6=v6, dst_ip=dst, dest_qp=0x12)) == 2
    assert followed_by(six_jobs, frame(v6=v6, dst_ip=dst, sport=0x8001)) == 0


@families
def test_each_carrier_of_a_job_tag(six_jobs: Programmed, v6: bool) -> None:
    layout = TagLayout(4, 10)
    for job in (1, 2):
        six_jobs.job_by_tag(job, sport=layout.sport_match(job), priority=10)
    six_jobs.job_by_tag(3, resv6a=(33, 63), priority=20)
    six_jobs.job_by_tag(4, dscp=(33, 63), priority=30)
    dst = host(1, v6)

    def tagged(sport: int, resv6a: int = 0, dscp: int = 0) -> RoceFrame:
        bth = Bth(Opcode.RC_WRITE_MIDDLE, dest_qp=1, psn=1, resv6a=resv6a)
        return frame(v6=v6, dst_ip=dst, sport=sport, bth=bth, dscp=dscp)

    for step in (0, 1, 1023):
        assert followed_by(six_jobs, tagged(layout.sport(step, 1))) == 1
        assert followed_by(six_jobs, tagged(layout.sport(step, 2))) == 2
        assert followed_by(six_jobs, tagged(layout.sport(step, 3))) == 0
    assert followed_by(six_jobs, tagged(0xFFFF, resv6a=33)) == 3
    assert followed_by(six_jobs, tagged(0xFFFF, dscp=33)) == 4
    assert followed_by(six_jobs, tagged(0xFFFF, resv6a=33, dscp=33)) == 4
    assert followed_by(six_jobs, tagged(layout.sport(5, 1), resv6a=33)) == 3


def test_job_0_is_no_job(bench: Programmed) -> None:
    bench.job_params(0, MarkerParams())
    bench.block_map(0, 1, 9)
    bench.job_by_dst_qp(host(1), 0x11, job=0)
    one(bench.send(build(frame(dst_ip=host(1)))))
    assert bench.block(9)["generation"] == 0
    assert bench.counter("job_data", 0) == 0


def test_a_job_without_parameters_is_routed_and_not_followed(bench: Programmed) -> None:
    bench.job_by_dst_qp(host(1), 0x11, job=5)
    bench.block_map(5, 1, 9)
    before = bench.all_state()
    one(bench.send(build(frame(dst_ip=host(1)))))
    assert bench.all_state() == before


# -- RED -------------------------------------------------------------------------------------


def depths_and_marks(bench: Bench, count: int) -> list[tuple[int, bool]]:
    """Fill the queue of port 1 with ``count`` packets behind a first one; return (depth at dequeue,
    CE) of each of the others."""
    data = build(frame(dst_ip=host(1), sport=0x8000))
    bench.queue(1, 1e6, capacity=4096)
    for _ in range(count + 1):
        bench.switch.receive(INGRESS_PORT, data, 1000)
    left = bench.switch.advance(1000 + count)
    marks = [parse(frame_).ecn == CE for _, frame_ in left[1:]]
    return list(zip(range(count - 1, -1, -1), marks, strict=True))


def test_red_between_the_thresholds_takes_exactly_the_random_number() -> None:
    # r = 6553: marks where 6553 * (30 - 10) < 13107 * (depth - 10), that is depth > 20 (13107 is
    # p_max = 0.2 and r is a tenth of 2^16).
    bench = Bench()
    bench.hosts(1)
    bench.red(1, 10, 30, 13107)
    bench.draw.value = 6553
    for depth, marked in depths_and_marks(bench, 40):
        assert marked == (depth >= 20), depth
    # Asked for depths 11 to 30 only.
    assert bench.draw.calls == 20


@pytest.mark.parametrize(("r", "least"), [(0, 11), (65535, 31)])
def test_red_at_its_ends(r: int, least: int) -> None:
    bench = Bench()
    bench.hosts(1)
    bench.red(1, 10, 30, 13107)
    bench.draw.value = r
    assert {d for d, marked in depths_and_marks(bench, 40) if marked} == set(range(least, 40))


def test_red_probability_is_linear() -> None:
    source = random.Random(5)
    bench = Bench(rng=source.randint)
    bench.hosts(1)
    bench.red(1, 100, 1100, 32768)
    seen = depths_and_marks(bench, 1200)
    for low in range(100, 1100, 200):
        share = [marked for depth, marked in seen if low < depth <= low + 200]
        expected = 0.5 * (low + 100 - 100) / 1000
        # Five standard deviations of 200 draws.
        assert abs(sum(share) / 200 - expected) < 5 * (expected * (1 - expected) / 200) ** 0.5
    assert all(marked for depth, marked in seen if depth > 1100)
    assert not any(marked for depth, marked in seen if depth <= 100)


def test_red_is_per_port_and_off_without_an_entry() -> None:
    bench = Bench()
    bench.hosts(1)
    bench.red(2, 0, 0, 65535)
    assert not any(marked for _, marked in depths_and_marks(bench, 30))


# -- CPU port --------------------------------------------------------------------------------


def packet_out(port: int, op: int, payload: bytes) -> bytes:
    return (port << 7 | op).to_bytes(2, "big") + payload


@in_memory
def test_a_packet_out_leaves_as_it_is(bench: Bench) -> None:
    data = build(frame(ttl=1, sport=0xC001))
    out = bench.send(packet_out(2, OP_PACKET, data), port=CPU_PORT)
    assert out == [(2, data)]


@in_memory
def test_a_packet_out_to_the_drop_port_goes_nowhere(bench: Bench) -> None:
    assert bench.send(packet_out(511, OP_PACKET, build(frame())), port=CPU_PORT) == []


@in_memory
@pytest.mark.parametrize("op", [2, 127])
def test_an_unknown_op_is_an_ordinary_packet_out(bench: Bench, op: int) -> None:
    data = build(frame())
    assert bench.send(packet_out(3, op, data), port=CPU_PORT) == [(3, data)]


@in_memory
def test_a_packet_out_is_never_followed(bench: Bench) -> None:
    bench.job_params(5, MarkerParams())
    bench.block_map(5, 1, 5)
    bench.job_by_tag(5, sport=(0xC000, 0xC000))
    before = bench.all_state()
    bench.send(packet_out(1, OP_PACKET, build(frame(dst_ip=host(1)))), port=CPU_PORT)
    assert bench.all_state() == before


@in_memory
def test_a_packet_routed_to_the_cpu_port_carries_where_it_came_from(bench: Bench) -> None:
    bench.nexthop(CPU_PORT, CPU_PORT)
    bench.route("10.7.7.7/32", CPU_PORT)
    port, data = one(bench.send(build(frame(dst_ip=ip_address("10.7.7.7"))), port=33))
    assert port == CPU_PORT
    assert int.from_bytes(data[:2], "big") == 33 << 7 | OP_PACKET
    assert parse(data[2:]).dst_ip == ip_address("10.7.7.7")


def read_state(
    bench: Bench, request: ReadRequest, now: int = 0, trailer: bytes = b""
) -> StateReply:
    payload = packet_out(0, OP_READ_STATE, request.encode() + trailer)
    port, data = one(bench.send(payload, now, port=CPU_PORT))
    assert port == CPU_PORT
    assert int.from_bytes(data[:2], "big") == CPU_PORT << 7 | OP_READ_STATE
    reply = StateReply.decode(data[2:])
    assert data[2:] == reply.encode() + trailer
    return reply


@in_memory
@pytest.mark.parametrize("trailer", [b"", bytes(46)], ids=["bare", "padded"])
def test_in_band_read_gives_exactly_the_registers(bench: Bench, trailer: bytes) -> None:
    job, block = 16383, 65535
    bench.job_params(
        job, MarkerParams(mode=ProgressMode.ANCHORED, generation=200, q_gate=None, n_warmup=0)
    )
    bench.block_map(job, 1, block)
    bench.job_by_dst_qp(host(1), 0x11, job)
    for i, step in enumerate((4, 5, 6, 7, 5, 6, 7, 8)):
        bench.send(build(frame(dst_ip=host(1), sport=0xC000 + step, psn=900 + 5 * i)), 50 + i)
    before = bench.all_state()
    reply = read_state(bench, ReadRequest(0xFEEDF00D, job, block), now=1234, trailer=trailer)
    assert bench.all_state() == before
    assert (reply.request_id, reply.job, reply.block, reply.now) == (0xFEEDF00D, job, block, 1234)
    assert {name: getattr(reply, name) for name in STATE} == bench.block(block)
    assert reply.generation == 200
    assert reply.cnt_total == 8
    assert reply.anchors == tuple(bench.anchor(job, slot) for slot in range(4))
    assert reply.anchors[0] == (200, 8, 935)


@in_memory
def test_in_band_read_of_full_registers(bench: Bench) -> None:
    widths = {"step_min": 16, "psn_rec": 24, "alpha": 8, "cnt_total": 32, "cnt_op": 32,
              "win_start": 48, "generation": 8}  # fmt: skip
    for name, bits in widths.items():
        bench.register(name)[12] = (1 << bits) - 1
    for slot in range(4):
        bench.register("anchors")[4 * 3 + slot] = (1 << 48) - 1 - slot
    reply = read_state(bench, ReadRequest(1, 3, 12), now=(1 << 48) + 5)
    assert {name: getattr(reply, name) for name in widths} == bench.block(12)
    assert reply.anchors == tuple((255, 65535, 0xFFFFFF - slot) for slot in range(4))
    assert reply.now == 5


@in_memory
def test_in_band_read_of_what_was_never_written_is_zero(bench: Bench) -> None:
    reply = read_state(bench, ReadRequest(7, 1, 2), now=3)
    assert reply == StateReply(7, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, ((0, 0, 0),) * 4)


@in_memory
@pytest.mark.parametrize("length", range(8))
def test_a_short_read_request_is_dropped(bench: Bench, length: int) -> None:
    request = ReadRequest(7, 1, 2).encode()[:length]
    assert bench.send(packet_out(0, OP_READ_STATE, request), port=CPU_PORT) == []


@in_memory
@pytest.mark.parametrize("data", [b"", b"\x01"])
def test_a_short_packet_out_is_dropped(bench: Bench, data: bytes) -> None:
    assert bench.send(data, port=CPU_PORT) == []


@in_memory
def test_a_packet_out_header_on_another_port_is_just_bytes(bench: Bench) -> None:
    before = bench.all_state()
    request = packet_out(0, OP_READ_STATE, ReadRequest(7, 1, 2).encode() + bytes(60))
    assert bench.send(request, port=5) == []
    assert bench.all_state() == before


@in_memory
def test_the_switch_marks_what_the_reference_marks_and_the_icrc_stays_valid(bench: Bench) -> None:
    params = MarkerParams(k=1 << 16, q_gate=None, n_warmup=0)
    bench.job_params(5, params)
    bench.block_map(5, 1, 5)
    bench.job_by_pair(V4[0], host(1), 5)
    marker = Marker(params)
    for i in range(30):
        step, psn = i % 2, i // 2
        bench.draw.value = (i * 7919) & 0xFFFF
        _, data = one(bench.send(build(frame(dst_ip=host(1), sport=0xC000 + step, psn=psn)), i))
        decision = marker.on_packet(i, step, psn, False, True, bench.draw.value)
        assert (parse(data).ecn == CE) == decision.ce
    assert marker.counters.marks > 0
