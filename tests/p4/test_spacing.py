"""Marks on packets of jobs are spaced as ringstep.protocol.red says, by each program.

The v1model program in the software switch against the reference, packet by packet; the Tofino 2
program the same within its clock's error; every engine over the wire as far as nobody needs to
set its clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import committed_program
import pytest
import t2na_program
from broken_frames import BLOCK, JOB, PORT, roce
from committed_program import WireBench, host
from sample_frames import frame

from ringstep.protocol.marker import MarkerParams
from ringstep.protocol.red import MARK_GAP_MAX, MarkSpacing, RedParams
from ringstep.protocol.rocev2 import CE, build, parse

MARKS_ALL_AHEAD = MarkerParams(k=1 << 16, n_warmup=0, q_gate=None, t_win=1 << 31)
TAGGED, PLAIN = 0xC000, 0x8000


def data(port: int = 1, sport: int = TAGGED, ecn: int = 2) -> bytes:
    return build(frame(dst_ip=host(port), sport=sport, ecn=ecn, psn=200))


def left_of(bench: committed_program.Bench, now: int, frames: list[bytes]) -> list[bool]:
    """CE of packets that come at one time and leave one per microsecond from ``now`` on."""
    for one in frames:
        bench.switch.receive(committed_program.INGRESS_PORT, one, now)
    return [parse(one).ecn == CE for _, one in bench.switch.advance(now + len(frames))]


@pytest.fixture
def queued() -> Callable[[int], committed_program.Bench]:
    """A switch whose port 1 sends one packet per microsecond; RED from the first waiting one."""

    def make(gap: int, q_max: int = 4000) -> committed_program.Bench:
        bench = committed_program.Bench()
        bench.hosts(1)
        bench.queue(1, 1e6, capacity=4096)
        bench.red(1, 0, q_max, 65535, gap)
        bench.job_params(JOB, MarkerParams(enabled=False))
        bench.block_map(JOB, 1, BLOCK)
        bench.job_by_tag(JOB, sport=(0xC000, 0xC000))
        bench.draw.value = 0
        return bench

    return make


@pytest.mark.parametrize("gap", [0, 1, 7, 20, 200])
def test_red_on_a_jobs_packets_is_spaced(
    queued: Callable[[int], committed_program.Bench], gap: int
) -> None:
    bench, spacing, params = queued(gap), MarkSpacing(), RedParams(0, 4000, 65535, gap)
    for start in (10, 400, 511):
        count = 100
        marks = left_of(bench, start, [data()] * count)
        # The first leaves at once, when none is behind it, and so does the last.
        wanted = [
            0 < i < count - 1 and spacing.stands(params, start + i, count - 1 - i)
            for i in range(count)
        ]
        assert marks == wanted


def test_other_packets_are_marked_as_ever(
    queued: Callable[[int], committed_program.Bench],
) -> None:
    bench = queued(50)
    mixed = [data(sport=TAGGED if i % 2 else PLAIN) for i in range(41)]
    marks = left_of(bench, 10, mixed)
    assert all(marks[2:40:2])
    assert marks[1:40:2] == [True] + [False] * 19
    assert bench.counter("port_spared", 1) == 19
    assert bench.counter("job_red_marks", JOB) == 20, "what RED said, spared or not"


def test_a_packet_that_cannot_be_marked_takes_nobodys_turn(
    queued: Callable[[int], committed_program.Bench],
) -> None:
    bench = queued(50)
    marks = left_of(bench, 10, [data(ecn=0), data(ecn=0), data(ecn=CE), data(), data(), data()])
    assert marks == [False, False, True, True, False, False]


def test_a_deep_queue_is_marked_as_ever(
    queued: Callable[[int], committed_program.Bench],
) -> None:
    bench = queued(5000, q_max=10)
    marks = left_of(bench, 10, [data()] * 60)
    # The first leaves nothing behind; 21 and more are beyond twice q_max.
    assert [59 - i for i, marked in enumerate(marks) if marked] == [*range(58, 20, -1), 20]


def test_the_markers_marks_and_reds_share_the_gap() -> None:
    bench = committed_program.Bench()
    bench.hosts(1)
    bench.red(1, 4000, 4000, 0, 20)
    bench.job_params(JOB, MARKS_ALL_AHEAD)
    bench.block_map(JOB, 1, BLOCK)
    bench.job_by_tag(JOB, sport=(0xC000, 0xC000))

    def send(now: int, step: int) -> bool:
        ((_, left),) = bench.send(data(sport=TAGGED + step), now)
        return parse(left).ecn == CE

    assert not send(0, 5)
    assert [now for now in (1, 2, 20, 21, 22, 41) if send(now, 6)] == [1, 21, 41]
    bench.red(1, 0, 4000, 65535, 20)
    bench.draw.value = 0
    bench.queue(1, 1e6, capacity=4096)
    marks = left_of(bench, 58, [data(sport=TAGGED + 5)] * 6)
    assert marks == [False, False, False, True, False, False], "61 us: RED waits for the marker"


def test_ports_are_spaced_each_by_itself() -> None:
    bench = committed_program.Bench()
    bench.hosts(1, 2)
    bench.job_params(JOB, MARKS_ALL_AHEAD)
    bench.job_by_tag(JOB, sport=(0xC000, 0xC000))
    for port in (1, 2):
        bench.red(port, 4000, 4000, 0, MARK_GAP_MAX)
        bench.block_map(JOB, port, BLOCK)
    bench.send(data(sport=TAGGED + 5), 0)
    marks = []
    for port in (1, 2, 1, 2):
        ((_, left),) = bench.send(data(port, sport=TAGGED + 6), 1)
        marks.append(parse(left).ecn == CE)
    assert marks == [True, True, False, False]


@pytest.mark.parametrize("gap", [1, 3, 20, 50, 1000, MARK_GAP_MAX])
def test_tofino_2_spaces_within_its_clocks_error(gap: int) -> None:
    # docs/tofino2.md: a gap is over from 0.26 us too early to 0.78 us too late.
    source = random.Random(gap)
    bench = t2na_program.Bench()
    bench.hosts(1)
    bench.red(1, 10, 30, 0, gap)
    bench.set_params(JOB, MarkerParams(enabled=False).to_table())
    bench.block_map(JOB, 1, BLOCK)
    bench.job_by_dst_qp(host(1), 0x11, JOB)
    one = build(frame(dst_ip=host(1)))

    def mark(now_ns: int, depth: int = 31) -> bool:
        out = bench.send(one, now_ns=now_ns, qdepth_cells=depth * 8)
        assert out is not None
        return parse(out[1]).ecn == CE

    for base in (1_000_000_000, (1 << 40) - 300, (1 << 39) - 300, 5_000_000_000_000):
        assert mark(base)
        assert not mark(base)
        assert not mark(base + source.randrange(gap * 1000 - 260) if gap > 1 else base)
        assert mark(base + 1, depth=61), "a deep queue"
        assert mark(base + gap * 1000 + 780)
    assert bench.counter("port_spared", 1) == 8


def test_tofino_2_leaves_other_packets_alone() -> None:
    bench = t2na_program.Bench()
    bench.hosts(1)
    bench.red(1, 10, 30, 0, MARK_GAP_MAX)
    for _ in range(3):
        out = bench.send(data(), qdepth_cells=31 * 8)
        assert out is not None
        assert parse(out[1]).ecn == CE


def test_every_engine_spaces_marks(wire: WireBench) -> None:
    """The longest gap, and a burst that takes much less; then none."""
    wire.hosts(PORT)
    wire.job_params(JOB, MARKS_ALL_AHEAD)
    wire.block_map(JOB, PORT, BLOCK)
    wire.job_by_tag(JOB, sport=(0xC000, 0xC000))
    wire.send(roce(step=5, psn=200))
    count = 20

    def marks() -> int:
        outs = wire.send_all([roce(step=6, psn=200)] * count)
        return sum(parse(left).ecn == CE for ((_, left),) in outs)

    wire.red(PORT, 4000, 4000, 0, 0)
    assert marks() == count
    before = wire.counter("port_spared", PORT)
    wire.red(PORT, 4000, 4000, 0, MARK_GAP_MAX)
    found = marks()
    # At least one, and on a machine of whatever pace one more per 65 ms.
    assert 1 <= found < count
    assert wire.counter("port_spared", PORT) - before == count - found
    assert wire.counter("job_marks", JOB) == 2 * count


@pytest.fixture
def wire(engine: object) -> WireBench:
    return WireBench(engine)  # type: ignore[arg-type]
