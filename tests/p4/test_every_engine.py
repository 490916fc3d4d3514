"""The committed program over P4Runtime and real packets: the same on every engine.

The software switch always, BMv2 where it is installed. Nobody can set BMv2's clock, its random
numbers or (over P4Runtime) the pace of its queues, so what depends on them is steered by the
parameters instead, or judged by its frequency.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from collections.abc import Iterator

import marker_vectors
import pytest
from broken_frames import BLOCK, JOB, KINDS, PORT, roce
from committed_program import JOB_COUNTERS, STATE, Programmed, WireBench, host
from engines import WHY_NOT, Engine, find_bmv2, forget_replicas
from finsy.proto import p4r
from marker_reference import ReferenceJobs, params_of
from marker_vectors import Packet, Settings
from p4rt_rig import COPIES, exact, ternary
from rule_book import OTHER_PORT, WHOLE, ecn_of, judge, without_ecn
from sample_frames import frame

from ringstep.protocol.marker import MarkerParams, ProgressMode
from ringstep.protocol.rocev2 import CE, Opcode, build, parse
from ringstep.softswitch.tables import Exact

VECTORS = {vector.name: vector for vector in marker_vectors.load_all()}
NEVER = (1 << 32) - 1
"""A window that does not end while a test runs: 71 minutes."""
DEEPEST = (1 << 19) - 2


def test_bmv2_is_here() -> None:
    """Says once, for all tests that would also run on it, that BMv2 is missing."""
    if find_bmv2() is None:
        pytest.skip(WHY_NOT)


@pytest.fixture
def wire(engine: Engine) -> WireBench:
    """The program with empty tables on each engine, over P4Runtime."""
    return WireBench(engine)


# -- the golden vectors


def qp_of(job: int) -> int:
    return 0x10000 + job if job else 0x99


class WireReplay:
    """Sends the rows of a vector and knows what must be read back.

    Whether a window ends with a row, and whether the queue is deep enough, is worked out from the
    row and put into the parameters: a window of 0 us ends with every packet, one of 71 minutes
    with none. RED is off, since it needs a queue.
    """

    def __init__(self, bench: WireBench, name: str, v6: bool) -> None:
        self.bench, self.v6 = bench, v6
        self.ports = sorted({packet.port for packet in VECTORS[name].packets})
        bench.hosts(*self.ports)
        self.in_force: dict[int, tuple[int, ...]] = {}
        self.win_start: dict[int, int] = {}

    def configure(self, settings: Settings, changed: set[int]) -> None:
        for job in changed:
            for port in self.ports:
                self.bench.job_by_dst_qp(host(port, self.v6), qp_of(job), job)
        for (job, port), block in settings.blocks.items():
            self.bench.block_map(job, port, block)

    def steer(self, settings: Settings, row: Packet, window_ends: bool) -> None:
        """Bring the job's parameters into force as the row needs them."""
        params = params_of(settings.jobs[row.job])
        open_gate = params.q_gate is None or row.qdepth > params.q_gate
        values = dict(params.to_table())
        values["t_win"] = 0 if window_ends else NEVER
        values["q_min"] = 0 if open_gate else DEEPEST
        wanted = tuple(values.values())
        if self.in_force.get(row.job) != wanted:
            self.bench.insert("job_params", (Exact(row.job),), "set_params", *wanted)
            self.in_force[row.job] = wanted

    def send(self, row: Packet) -> int:
        """The ECN field with which the row's packet leaves."""
        data = build(
            frame(
                Opcode[row.opcode],
                v6=self.v6,
                dst_ip=host(row.port, self.v6),
                sport=row.sport,
                psn=row.psn,
                dest_qp=qp_of(row.job),
                ecn=row.ecn,
            )
        )
        ((port, left),) = self.bench.send(data)
        assert port == row.port
        return parse(left).ecn

    def check_state(self, row: Packet, restarted: bool, anchored: bool, where: str) -> None:
        assert row.block is not None
        reply = self.bench.read(row.job, row.block)
        found = {name: getattr(reply, name) for name in STATE}
        # Its clock is its own: win_start is this packet's time, or what it was.
        since = found.pop("win_start")
        wanted = row.state
        del wanted["win_start"]
        assert found == wanted, where
        if restarted:
            assert self.win_start.get(row.block, 0) <= since <= reply.now, where
        else:
            assert since == self.win_start.get(row.block, 0), where
        self.win_start[row.block] = since
        if anchored:
            assert row.step is not None
            expected = row.state["generation"], row.step, row.base
            assert reply.anchors[row.step % 4] == expected, where


def window_ends(reference: ReferenceJobs, row: Packet) -> tuple[bool, bool]:
    """Whether the row's packet ends its block's window, and whether it starts one anew."""
    marker = reference.markers[row.job]
    block = marker.block(row.port)
    fresh = block.generation != marker.params.generation
    since = row.now_us if fresh else block.win_start
    ends = (row.now_us - since) & (1 << 48) - 1 >= marker.params.t_win
    return ends, ends or fresh


def verdicts(reference: ReferenceJobs, settings: Settings, row: Packet) -> set[int]:
    """The marker's words that the random number can lead to."""
    found = set()
    for r in (0, 0xFFFF):
        other = copy.deepcopy(reference)
        word = other.packet(settings, dataclasses.replace(row, r=r, red=0))["mark"]
        assert word is not None
        found.add(word)
    return found


@pytest.mark.parametrize("v6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("name", VECTORS)
def test_golden_vectors(wire: WireBench, name: str, v6: bool) -> None:
    replay = WireReplay(wire, name, v6)
    reference = ReferenceJobs()
    least = most = 0
    for settings, changed, row in VECTORS[name].replay():
        where = f"{name}.txt, line {row.line}"
        if changed:
            replay.configure(settings, {job for job, _ in changed})
        reference.take(settings, changed)
        possible = verdicts(reference, settings, row)
        restarted = False
        if row.followed:
            ends, restarted = window_ends(reference, row)
            replay.steer(settings, row, ends)
        reference.packet(settings, row)
        left = replay.send(row)
        ect = row.ecn in (1, 2)
        assert left in {CE if word and ect else row.ecn for word in possible}, where
        least += ect and row.followed and possible == {1}
        most += ect and row.followed and 1 in possible
        if row.followed:
            anchored = settings.jobs[row.job]["mode"] == "anchored"
            replay.check_state(row, restarted, anchored, where)
    counted = {
        field: sum(wire.counter(alias, job) for job in reference.markers)
        for field, alias in JOB_COUNTERS.items()
    }
    for field in ("data", "corrections", "advances"):
        expected = sum(getattr(marker.counters, field) for marker in reference.markers.values())
        assert counted[field] == expected, f"{name}, {field}"
    assert least <= counted["marks"] <= most
    assert counted["red_marks"] == 0


# -- how often marks come

MISTAKE = 1e-9
"""How often a right engine may fail a test of frequency, each side."""


def binomial_bounds(n: int, p: float) -> tuple[int, int]:
    """The smallest and the largest count outside which a binomial falls less than MISTAKE often
    on either side, from its exact distribution."""
    log_p, log_q = math.log(p), math.log1p(-p)

    def mass(k: int) -> float:
        ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        return math.exp(ways + k * log_p + (n - k) * log_q)

    def edge(counts: Iterator[int]) -> int:
        total = 0.0
        for k in counts:
            total += mass(k)
            if total > MISTAKE:
                return k
        raise AssertionError("the distribution does not add up")

    return edge(iter(range(n + 1))), edge(iter(range(n, -1, -1)))


def test_binomial_bounds() -> None:
    assert binomial_bounds(1, 0.5) == (0, 1)
    low, high = binomial_bounds(10_000, 0.5)
    # Six standard deviations of 50.
    assert low == 10_000 - high
    assert 4690 < low < 4710
    assert binomial_bounds(30, 0.5)[0] == 1


@pytest.mark.parametrize(
    ("k", "psn", "psn_rec"),
    [(655, 100, 100), (6554, 300, 400), (32768, 50, 100), (6554, 900, 100)],
)
def test_marks_come_as_often_as_they_should(
    wire: WireBench, k: int, psn: int, psn_rec: int
) -> None:
    """P = k alpha psn / psn_rec, with k in 1/65536 and alpha 1. BMv2's random source has a seed
    of its own, so the count is held to the exact bounds of a binomial."""
    count = 4000
    wire.hosts(PORT)
    params = MarkerParams(k=k, q_gate=None, n_warmup=0, t_win=1 << 31)
    wire.job_params(JOB, params)
    wire.block_map(JOB, PORT, BLOCK)
    wire.job_by_tag(JOB, sport=(0xC000, 0xC000))
    wire.send(roce(step=5, psn=psn_rec))
    outs = wire.send_all([roce(step=6, psn=psn)] * count)
    marks = sum(parse(left).ecn == CE for ((_, left),) in outs)
    # r takes each of 65536 values equally often, and marks below k psn / psn_rec.
    chance = math.ceil(k * psn / psn_rec) / 65536
    low, high = binomial_bounds(count, chance)
    assert low <= marks <= high, f"{marks} of {count}, P = {chance}"
    assert wire.counter("job_marks", JOB) == marks
    assert wire.block(BLOCK)["cnt_op"] == count


# -- broken frames


def test_every_frame_goes_the_way_of_the_rule_book(wire: WireBench) -> None:
    wire.hosts(PORT, OTHER_PORT)
    wire.job_params(JOB, MarkerParams(k=1 << 16, n_warmup=0, q_gate=None, t_win=1 << 31))
    for port in (PORT, OTHER_PORT):
        wire.block_map(JOB, port, BLOCK)
    wire.job_by_tag(JOB, sport=(0xC000, 0xC000))
    wire.send(roce(step=5, psn=200))
    source = random.Random(7)
    frames = [one for one in [*KINDS.values(), *WHOLE] if one]
    for _ in range(800):
        data = bytearray(source.choice(WHOLE))
        for _ in range(source.randint(0, 3)):
            data[source.randrange(12, 60)] = source.choice([0, 1, 5, 17, source.randrange(256)])
        frames.append(bytes(data[: len(data) - source.choice([0, 0, 0, 1, 9, 40])]))
    before = wire.counter("job_data", JOB)
    followed = 0
    for data, out in zip(frames, wire.send_all(frames), strict=True):
        expected = judge(data)
        if expected is None:
            assert out == [], data.hex()
            continue
        followed += expected.tagged
        assert [port for port, _ in out] == [expected.port], data.hex()
        left = out[0][1]
        assert without_ecn(left, expected) == without_ecn(expected.left, expected), data.hex()
        ecn, ecn_left = ecn_of(data, expected), ecn_of(left, expected)
        if ecn != ecn_left:
            assert (ecn in (1, 2), ecn_left, expected.tagged) == (True, CE, True), data.hex()
    assert wire.counter("job_data", JOB) - before == followed > 100


def test_what_is_no_jobs_leaves_no_trace(wire: WireBench) -> None:
    wire.hosts(PORT)
    wire.job_params(JOB, MarkerParams(k=1 << 16, n_warmup=0, q_gate=None, t_win=1 << 31))
    wire.block_map(JOB, PORT, BLOCK)
    wire.job_by_tag(JOB, sport=(0xC000, 0xC000))
    wire.send(roce(step=5, psn=200))
    before = wire.all_state()
    wire.send_all([one for one in KINDS.values() if one])
    assert wire.all_state() == before


# -- two ports of one job at once


THREADS = (1, 2, 3, 4)
"""Ports that BMv2 runs on four different threads."""
AT_ONCE = 200
"""So many packets over four ports that no queue of 64 is ever full."""


def test_ports_that_update_one_job_at_once_lose_nothing(wire: WireBench) -> None:
    """Every packet of a burst over four ports must be counted in the one block, and the end of a
    step must move it on."""
    wire.hosts(*THREADS)
    wire.job_params(JOB, MarkerParams(k=0, q_gate=None, t_win=NEVER, mode=ProgressMode.PER_STEP))
    for port in THREADS:
        wire.block_map(JOB, port, BLOCK)
        wire.job_by_dst_qp(host(port), 0x11, JOB)
    burst = [
        (9, build(frame(dst_ip=host(port), sport=0xC003, psn=1000 + at)))
        for at in range(AT_ONCE // len(THREADS))
        for port in THREADS
    ]
    rounds = 30
    outs = wire.engine.exchange(burst * rounds, AT_ONCE)
    assert all(len(out) == 1 for out in outs)
    sent = rounds * len(burst)
    state = wire.block(BLOCK)
    assert (state["cnt_total"], state["cnt_op"], state["step_min"]) == (sent, 0, 3)
    assert state["psn_rec"] == 1000 + AT_ONCE // len(THREADS) - 1
    assert wire.counter("job_data", JOB) == sent
    # A LAST of the same step from each port: the first moves step_min on, the others find
    # themselves behind it and end the step again.
    lasts = [
        build(frame(Opcode.RC_WRITE_LAST, dst_ip=host(port), sport=0xC003, psn=1015))
        for port in THREADS
    ]
    wire.send_all(lasts)
    assert wire.block(BLOCK)["step_min"] == 4
    assert wire.block(BLOCK)["cnt_total"] == sent + len(lasts)


def test_ports_that_meet_in_a_fresh_block_lose_nothing(wire: WireBench) -> None:
    """BMv2 takes a packet's time before it waits for the block. Who comes second may so have the
    earlier time; that must not end the window that the first one has begun."""
    wire.hosts(*THREADS)
    wire.job_params(JOB, MarkerParams(k=0, q_gate=None, t_win=NEVER, mode=ProgressMode.PER_STEP))
    for port in THREADS:
        wire.job_by_dst_qp(host(port), 0x11, JOB)
    burst = [
        (9, build(frame(dst_ip=host(port), sport=0xC003, psn=1000 + at)))
        for at in range(10)
        for port in THREADS
    ]
    # About one in forty such bursts found the mistake.
    for block in range(100, 220):
        for port in THREADS:
            wire.block_map(JOB, port, block)
        assert all(len(out) == 1 for out in wire.engine.exchange(burst, len(burst)))
        assert wire.block(block)["cnt_total"] == len(burst)


def test_such_a_burst_finds_an_update_that_is_split_over_actions(engine: Engine) -> None:
    """The control to the test above: a counter in one action, and one in two. On BMv2 the second
    loses packets; the software switch runs one packet after the other and loses none."""
    engine.client.push(program="split")
    sent = 0
    for _ in range(50):
        burst = [(9, bytes([port]) + bytes(9)) for port in THREADS] * (AT_ONCE // len(THREADS))
        outs = engine.exchange(burst * 8, AT_ONCE)
        assert all(len(out) == 1 for out in outs)
        sent += len(outs)
        (((_, answer),),) = engine.exchange([(9, bytes([1, 1]) + bytes(8))])
        whole, torn = (int.from_bytes(answer[at : at + 4], "big") for at in (2, 6))
        assert whole == sent
        if engine.name == "softswitch":
            assert torn == sent
            return
        if torn < sent:
            return
    raise AssertionError(f"{sent} packets over four ports and no race: BMv2 has changed")


def test_a_job_of_one_port_does_not_see_another_ports_block(wire: WireBench) -> None:
    wire.hosts(1, 2)
    for job, port in ((1, 1), (2, 2)):
        wire.job_params(job, MarkerParams(q_gate=None, t_win=NEVER))
        wire.block_map(job, port, 10 + job)
        wire.job_by_dst_qp(host(port), 0x11, job)
    outs = wire.send_all([build(frame(dst_ip=host(port))) for port in (1, 2, 1, 1)])
    assert all(len(out) == 1 for out in outs)
    assert [wire.block(10 + job)["cnt_total"] for job in (1, 2)] == [3, 1]


# -- copies, meters, digests: the program of tests/softswitch/data


def todo(code: int, action: str, *args: int) -> p4r.Entity:
    return p4r.Entity(
        table_entry=p4r.TableEntry(
            table_id=COPIES["todo"], match=[exact(1, code)], action=COPIES.does(action, *args)
        )
    )


def replicas(*pairs: tuple[int, int]) -> list[p4r.Replica]:
    return [p4r.Replica(egress_port=port, instance=instance) for port, instance in pairs]


def group(number: int, *pairs: tuple[int, int]) -> p4r.Entity:
    entry = p4r.MulticastGroupEntry(multicast_group_id=number, replicas=replicas(*pairs))
    return p4r.Entity(
        packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
            multicast_group_entry=entry
        )
    )


def session(number: int, *pairs: tuple[int, int]) -> p4r.Entity:
    entry = p4r.CloneSessionEntry(session_id=number, replicas=replicas(*pairs))
    return p4r.Entity(
        packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(clone_session_entry=entry)
    )


@pytest.fixture
def copies(engine: Engine) -> Iterator[Engine]:
    """The copies program on each engine, with an entry for each of its actions."""
    client = engine.client
    client.push(program="copies")
    client.insert(
        todo(1, "forward", 2), todo(2, "multicast", 9), todo(3, "clone_packet", 2, 100),
        todo(4, "clone_and_drop", 100), todo(5, "clone_at_the_end", 2, 100),
        todo(6, "again_at_once", 2), todo(7, "round_again", 2, 3), todo(8, "cut_to", 2, 5),
        todo(9, "drop"), todo(10, "multicast", 77), todo(11, "clone_packet", 2, 5),
        todo(12, "cut_to", 2, 200), todo(13, "learn", 2, 1), todo(14, "learn", 2, 0),
    )  # fmt: skip
    client.insert(group(9, (3, 1), (4, 2), (3, 5)), session(100, (8, 3), (9, 0)))
    yield engine
    forget_replicas(client)


EXPECTED: dict[int, list[tuple[int, str]]] = {
    # code -> (port, trail and todo in hexadecimal): kind and egress_rid; code, passes, kind and
    # ingress port seen in ingress, what metadata were kept and lost, colour, length
    0: [],
    1: [(2, "000000" "0101000705100013")],
    2: [(3, "050001" "0201000705100013"), (3, "050005" "0201000705100013"),
        (4, "050002" "0201000705100013")],
    3: [(2, "000000" "0301000705100013"), (8, "010003" "0300000005000000"),
        (9, "010000" "0300000005000000")],
    4: [(8, "010003" "0400000000090000"), (9, "010000" "0400000000090000")],
    5: [(2, "000000" "0501000705100013"), (8, "020003" "0501000705190013"),
        (9, "020000" "0501000705190013")],
    6: [(2, "000000" "060106000f100013")],
    7: [(2, "000000" "0704040023100013")],
    8: [(2, "000000" "0801")],
    9: [],
    10: [],
    11: [(2, "000000" "0b01000705100013")],
    12: [(2, "000000" "0c01000705100013")],
}  # fmt: skip


def test_copies_are_what_bmv2_makes_of_them(copies: Engine) -> None:
    payload = b"rest of it."
    packets = [(7, bytes([code]) + bytes(7) + payload) for code in EXPECTED]
    for (_, sent), found in zip(packets, copies.exchange(packets), strict=True):
        code = sent[0]
        wanted = [(port, bytes.fromhex(head)) for port, head in EXPECTED[code]]
        cut = code == 8
        assert sorted(found) == [(p, head if cut else head + payload) for p, head in wanted], code


def test_meters_colour_alike(copies: Engine) -> None:
    # Without a rate no token comes back, whatever the time between the packets.
    config = p4r.MeterConfig(cir=0, cburst=1, pir=0, pburst=3)
    meter = p4r.MeterEntry(meter_id=COPIES["by_code"], index=p4r.Index(index=1), config=config)
    limit = p4r.TableEntry(
        table_id=COPIES["limits"],
        match=[ternary(1, 1, 0xFF)],
        priority=1,
        action=COPIES.does("metered"),
        meter_config=p4r.MeterConfig(cir=0, cburst=2, pir=0, pburst=4),
    )
    copies.client.modify(p4r.Entity(meter_entry=meter))
    copies.client.insert(p4r.Entity(table_entry=limit))
    outs = copies.exchange([(3, b"\1" + bytes(7))] * 6)
    colours = [left[9] for ((_, left),) in outs]
    # The direct meter in the upper half, the indirect one in the lower.
    assert colours == [0x00, 0x01, 0x11, 0x12, 0x22, 0x22]


def test_digests_say_the_same(copies: Engine) -> None:
    digest = p4r.DigestEntry(digest_id=COPIES["learned_t"])
    digest.config.max_list_size = 1
    copies.client.insert(p4r.Entity(digest_entry=digest))
    for code, length, expected in (
        (13, 8, [b"\x0d", b"\x01\x2c", b"\x07", b"\x01", b"\x01\x02\x03\x04\x05\x06"]),
        (14, 99, [b"\x0e", b"\x01\x2c", b"\xc8", b"\x00", b"\x01\x02\x03\x04\x05\x06"]),
    ):
        copies.exchange([(300, bytes([code]) + bytes(length - 1))])
        found = copies.digest()
        assert found.digest_id == COPIES["learned_t"]
        (message,) = found.data
        # BMv2's server calls every digest a tuple.
        members = message.struct.members or message.tuple.members
        assert [one.bitstring for one in members] == expected


def test_programmed_is_what_both_benches_are() -> None:
    assert issubclass(WireBench, Programmed)
