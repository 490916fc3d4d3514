"""What holds for the marker whatever the traffic and whatever its state."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ringstep.protocol.marker import (
    LATENESS_US,
    Anchor,
    Block,
    Decision,
    Marker,
    MarkerParams,
    ProgressMode,
    Scope,
)
from ringstep.protocol.serial import ahead
from ringstep.protocol.tag import TagLayout

CLOCK = 1 << 48
PSNS = 1 << 24
GAPS = (0, 1, 5, 30, 100, 5000)


@dataclass(frozen=True)
class Pkt:
    """One data packet as the marker sees it."""

    gap: int
    step: int
    psn: int
    last: bool
    ect: bool
    r: int
    qdepth: int
    red: bool
    port: int


def uint(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


@st.composite
def params(draw: st.DrawFn) -> MarkerParams:
    mode = draw(st.sampled_from(ProgressMode))
    step_bits = draw(st.sampled_from([3, 4, 10, 14]))
    tau_den = draw(st.integers(1, 255))
    return MarkerParams(
        k=draw(st.sampled_from([0, 1, 655, 16384, 65536]) | st.integers(0, 65536)),
        tau_num=draw(st.integers(0, tau_den)),
        tau_den=tau_den,
        t_win=draw(st.sampled_from([1, 20, 100, 1000])),
        n_sample=draw(st.integers(0, 6)),
        n_warmup=draw(st.integers(0, 4)),
        alpha_max=draw(st.sampled_from([1, 2, 5, 255])),
        q_gate=draw(st.none() | st.integers(0, 5)),
        layout=TagLayout(14 - step_bits, step_bits),
        mode=mode,
        packets_per_step=draw(st.sampled_from([0, 1, 4, 9])),
        enabled=draw(st.booleans()),
        generation=draw(st.integers(1, 255)),
    )


@st.composite
def traffic(draw: st.DrawFn, size: int = 40, ports: int = 1) -> list[Pkt]:
    """Packets whose steps and PSNs lie close together, with a few from anywhere."""
    step = draw(uint(14))
    psn = draw(uint(24))
    near = st.tuples(st.integers(-2, 3), st.integers(-3, 20)).map(
        lambda offset: ((step + offset[0]) % (1 << 14), (psn + offset[1]) % PSNS)
    )
    small = st.tuples(st.integers(0, 3), st.integers(0, 12))
    anywhere = st.tuples(uint(14), uint(24))
    where = near | small | anywhere
    chance = uint(16) | st.sampled_from([0, 1, 65535])
    # All that takes one of a few values is one draw: to draw is what takes time here.
    few = st.integers(0, len(GAPS) * 4 * 2 * 9 * 2 * ports - 1)
    made = []
    for _ in range(draw(st.integers(1, size))):
        at_step, at_psn = draw(where)
        rest, gap = divmod(draw(few), len(GAPS))
        rest, last = divmod(rest, 4)
        rest, ect = divmod(rest, 2)
        rest, qdepth = divmod(rest, 9)
        rest, red = divmod(rest, 2)
        made.append(
            Pkt(
                gap=GAPS[gap],
                step=at_step,
                psn=at_psn,
                last=last == 3,
                ect=bool(ect),
                r=draw(chance),
                qdepth=qdepth,
                red=bool(red),
                port=1 + rest,
            )
        )
    return made


@st.composite
def corrupted(draw: st.DrawFn, generation: int) -> tuple[Block, list[Anchor]]:
    """Whatever the registers may hold after a fault: every field at its full width."""
    block = Block(
        step_min=draw(uint(14)),
        psn_rec=draw(uint(24)),
        alpha=draw(uint(8)),
        cnt_total=draw(uint(32)),
        cnt_op=draw(uint(32)),
        win_start=draw(uint(48)),
        generation=draw(st.sampled_from([generation, 0, 200])),
    )
    anchors = [
        Anchor(draw(st.sampled_from([generation, 0, 200])), draw(uint(14)), draw(uint(24)))
        for _ in range(4)
    ]
    return block, anchors


def marker_with(p: MarkerParams, state: tuple[Block, list[Anchor]]) -> Marker:
    marker = Marker(p)
    block, anchors = copy.deepcopy(state)
    block.step_min &= p.layout.step_mask
    for anchor in anchors:
        anchor.step &= p.layout.step_mask
    marker.blocks[1] = block
    marker.anchors = anchors
    return marker


def feed(marker: Marker, packets: Sequence[Pkt], now: int = 0) -> list[Decision]:
    decisions = []
    for pkt in packets:
        now = (now + pkt.gap) % CLOCK
        decisions.append(one(marker, pkt, now))
    return decisions


def one(marker: Marker, pkt: Pkt, now: int) -> Decision:
    return marker.on_packet(
        now,
        pkt.step & marker.params.layout.step_mask,
        pkt.psn,
        pkt.last,
        pkt.ect,
        pkt.r,
        pkt.qdepth,
        pkt.red,
        pkt.port,
    )


@given(params(), st.data(), uint(48))
def test_a_packet_at_or_behind_step_min_is_never_marked(
    p: MarkerParams, data: st.DataObject, start: int
) -> None:
    marker = marker_with(p, data.draw(corrupted(p.generation)))
    now = start
    for pkt in data.draw(traffic()):
        now = (now + pkt.gap) % CLOCK
        decision = one(marker, pkt, now)
        step = pkt.step & p.layout.step_mask
        if decision.mark:
            assert ahead(step, marker.block(1).step_min, p.layout.step_bits)
            assert marker.block(1).psn_rec > p.n_warmup
            assert p.enabled
            assert p.q_gate is None or pkt.qdepth > p.q_gate


@given(params(), traffic())
def test_only_ecn_capable_packets_are_given_ce(p: MarkerParams, packets: list[Pkt]) -> None:
    for pkt, decision in zip(packets, feed(Marker(p), packets), strict=True):
        assert decision.ce == (pkt.ect and (decision.mark or pkt.red))


@given(params(), traffic())
def test_the_ecn_field_and_red_do_not_influence_the_state(
    p: MarkerParams, packets: list[Pkt]
) -> None:
    one_way, other_way = Marker(p), Marker(p)
    plain = [replace(pkt, ect=True, red=False) for pkt in packets]
    assert [d.mark for d in feed(one_way, packets)] == [d.mark for d in feed(other_way, plain)]
    assert one_way.blocks == other_way.blocks


@given(params(), traffic(), uint(16), st.integers(0, 12), st.data())
def test_a_mark_stays_a_mark_for_smaller_r_and_deeper_queues(
    p: MarkerParams, packets: list[Pkt], r: int, deeper: int, data: st.DataObject
) -> None:
    marker = marker_with(p, data.draw(corrupted(p.generation)))
    now = 0
    for pkt in packets:
        now += pkt.gap
        twin = copy.deepcopy(marker)
        other = one(twin, replace(pkt, r=min(r, pkt.r), qdepth=pkt.qdepth + deeper), now)
        decision = one(marker, pkt, now)
        assert other.mark >= decision.mark
        assert twin.blocks == marker.blocks


@given(params(), traffic())
def test_the_integer_rule_is_the_probability_of_the_paper(
    p: MarkerParams, packets: list[Pkt]
) -> None:
    marker = Marker(replace(p, enabled=True, q_gate=None))
    now = 0
    for pkt in packets:
        now += pkt.gap
        decision = one(marker, pkt, now)
        b = marker.block(1)
        step = pkt.step & p.layout.step_mask
        if ahead(step, b.step_min, p.layout.step_bits) and b.psn_rec > p.n_warmup:
            delta = b.alpha * Fraction(decision.progress, b.psn_rec)
            probability = min(Fraction(1), Fraction(p.k, 65536) * delta)
            assert decision.mark == (Fraction(pkt.r, 65536) < probability)
        else:
            assert not decision.mark


@given(params(), traffic(80))
def test_alpha_stays_between_1_and_alpha_max(p: MarkerParams, packets: list[Pkt]) -> None:
    marker = Marker(p)
    before, now = 1, 0
    for pkt in packets:
        now += pkt.gap
        one(marker, pkt, now)
        alpha = marker.block(1).alpha
        assert 1 <= alpha <= p.alpha_max
        assert abs(alpha - before) <= 1
        before = alpha


@given(params(), traffic())
def test_a_repeated_packet_moves_neither_step_min_nor_psn_rec(
    p: MarkerParams, packets: list[Pkt]
) -> None:
    marker = Marker(p)
    now = 0
    for pkt in packets:
        now += pkt.gap
        one(marker, pkt, now)
        b = marker.block(1)
        before = (b.step_min, b.psn_rec, b.alpha, b.win_start)
        one(marker, pkt, now)
        assert (b.step_min, b.psn_rec, b.alpha, b.win_start) == before


@given(params(), uint(48), st.integers(1, LATENESS_US))
def test_a_packet_with_a_time_from_before_the_window_does_not_end_it(
    p: MarkerParams, now: int, early: int
) -> None:
    marker, pkt = Marker(p), Pkt(0, 3, 9, False, True, 0, 0, False, 1)
    one(marker, pkt, now)
    one(marker, pkt, (now - early) % CLOCK)
    assert (marker.block(1).cnt_total, marker.block(1).win_start) == (2, now)
    one(marker, pkt, (now - LATENESS_US - 1) % CLOCK)
    assert marker.block(1).cnt_total == 1


@given(params(), traffic(), uint(48))
def test_the_origin_of_the_clock_does_not_matter(
    p: MarkerParams, packets: list[Pkt], shift: int
) -> None:
    here, there = Marker(p), Marker(p)
    assert feed(here, packets) == feed(there, packets, now=shift)


@given(params(), traffic(), uint(14))
def test_the_origin_of_the_steps_does_not_matter(
    p: MarkerParams, packets: list[Pkt], shift: int
) -> None:
    moved = [replace(pkt, step=pkt.step + shift) for pkt in packets]
    assert feed(Marker(p), packets) == feed(Marker(p), moved)


@given(params(), traffic(), uint(24))
def test_the_origin_of_the_psn_does_not_matter_when_anchored(
    p: MarkerParams, packets: list[Pkt], shift: int
) -> None:
    p = replace(p, mode=ProgressMode.ANCHORED)
    moved = [replace(pkt, psn=(pkt.psn + shift) % PSNS) for pkt in packets]
    assert feed(Marker(p), packets) == feed(Marker(p), moved)


@given(params(), params(), traffic(), traffic(), st.randoms(use_true_random=False))
def test_jobs_do_not_influence_one_another(
    p: MarkerParams, q: MarkerParams, ours: list[Pkt], theirs: list[Pkt], shuffle: object
) -> None:
    alone = feed(Marker(p), ours)
    first, second = Marker(p), Marker(q)
    among = []
    queue, now, other_now = list(ours), 0, 0
    rest = list(theirs)
    while queue or rest:
        if queue and (not rest or shuffle.random() < 0.5):  # type: ignore[attr-defined]
            pkt = queue.pop(0)
            now += pkt.gap
            among.append(one(first, pkt, now))
        else:
            pkt = rest.pop(0)
            other_now += pkt.gap
            one(second, pkt, other_now)
    assert among == alone


@given(params(), traffic(60, ports=3))
def test_scope_switch_is_one_port_for_all(p: MarkerParams, packets: list[Pkt]) -> None:
    on_one = [replace(pkt, port=1) for pkt in packets]
    switch, port = Marker(p, Scope.SWITCH), Marker(p, Scope.PORT)
    assert feed(switch, packets) == feed(port, on_one)
    assert switch.block(1) is switch.block(2)


@given(params(), traffic(60, ports=3))
def test_scope_port_is_a_marker_of_its_own_per_port(p: MarkerParams, packets: list[Pkt]) -> None:
    # Anchors are the job's, so this holds for progress taken from the wire.
    p = replace(p, mode=ProgressMode.PER_STEP)
    together = Marker(p, Scope.PORT)
    alone = {port: Marker(p, Scope.PORT) for port in (1, 2, 3)}
    now = 0
    for pkt in packets:
        now += pkt.gap
        assert one(together, pkt, now) == one(alone[pkt.port], pkt, now)
    for port, marker in alone.items():
        assert together.block(port) == marker.block(port)


@given(params(), traffic(60, ports=3))
def test_counters_add_up(p: MarkerParams, packets: list[Pkt]) -> None:
    marker = Marker(p)
    decisions = feed(marker, packets)
    pairs = list(zip(packets, decisions, strict=True))
    c = marker.counters
    assert c.data == len(packets)
    assert c.marks == sum(d.mark and pkt.ect for pkt, d in pairs)
    assert c.red_marks == sum(pkt.red and pkt.ect for pkt in packets)
    assert c.advances + c.corrections <= c.data


# -- healing ---------------------------------------------------------------------------------


@given(params(), st.data(), traffic())
def test_a_new_generation_heals_everything_at_the_first_packet(
    p: MarkerParams, data: st.DataObject, packets: list[Pkt]
) -> None:
    assume(p.generation not in (199, 200))
    sick = marker_with(p, data.draw(corrupted(p.generation)))
    sick.update(generation=199)
    fresh = Marker(replace(p, generation=199))
    assert feed(sick, packets) == feed(fresh, packets)
    assert sick.blocks[1] == fresh.blocks[1]


@given(params(), st.data(), uint(48))
def test_the_end_of_a_step_heals_progress(p: MarkerParams, data: st.DataObject, now: int) -> None:
    # Mode per_step: one packet that ends a step is enough, whatever step_min and psn_rec held.
    p = replace(p, mode=ProgressMode.PER_STEP)
    sick, other = (marker_with(p, data.draw(corrupted(p.generation))) for _ in range(2))
    end = Pkt(0, data.draw(uint(14)), max(p.packets_per_step - 1, 3), True, True, 0, 0, False, 1)
    for marker in (sick, other):
        one(marker, end, now)
        b = marker.block(1)
        assert (b.step_min, b.psn_rec) == ((end.step + 1) & p.layout.step_mask, 0)


def ring_step(step: int, psn: int, packets: int) -> list[Pkt]:
    """Return one whole step of one flow, in order."""
    return [
        Pkt(1, step, (psn + i) % PSNS, i == packets - 1, True, 0, 9, False, 1)
        for i in range(packets)
    ]


@given(params(), st.data(), uint(14), uint(24), traffic())
@settings(max_examples=30)
def test_any_state_heals_within_ten_steps_and_255_windows(
    p: MarkerParams, data: st.DataObject, first: int, psn: int, packets: list[Pkt]
) -> None:
    """Whatever a fault left in the registers, in-step traffic brings back what a marker has that
    saw the same traffic from the start:

    - anchors: once every slot has seen two different steps, 8 steps;
    - step_min and psn_rec: with the next end of a step;
    - the window: with the next packet that is t_win and LATENESS_US later;
    - alpha: with as many windows as lead to where windows of this kind take it, 255 at most.

    From then on every decision is the same.
    """
    per_step = p.mode is ProgressMode.PER_STEP
    count = max(p.packets_per_step, 3)
    sick, fresh = marker_with(p, data.draw(corrupted(p.generation))), Marker(p)
    start = data.draw(uint(48))
    now = {id(sick): start, id(fresh): start}

    def both(pkts: Sequence[Pkt]) -> tuple[list[Decision], list[Decision]]:
        results = []
        for marker in (sick, fresh):
            results.append(feed(marker, pkts, now[id(marker)]))
            now[id(marker)] = (now[id(marker)] + sum(pkt.gap for pkt in pkts)) % CLOCK
        return results[0], results[1]

    for i in range(10):
        both(ring_step(first + i, 0 if per_step else psn + i * count, count))
    b, f = sick.block(1), fresh.block(1)
    assert (b.step_min, b.psn_rec) == (f.step_min, f.psn_rec)
    if not per_step:
        assert sick.anchors == fresh.anchors

    step, at = first + 10, 0 if per_step else psn + 10 * count
    both([replace(ring_step(step, at, count)[0], gap=p.t_win + LATENESS_US)])
    assert replace(b, alpha=0) == replace(f, alpha=0)

    quiet = [replace(pkt, gap=0, last=False) for pkt in ring_step(step, at, p.n_sample + 2)]
    for _ in range(256):
        both([replace(quiet[0], gap=p.t_win), *quiet[1:]])
    assert b == f

    decisions = both(packets)
    assert decisions[0] == decisions[1]
    assert b == f


@given(params(), st.data(), uint(14))
def test_lost_state_marks_nothing_until_progress_is_known_again(
    p: MarkerParams, data: st.DataObject, step: int
) -> None:
    # Registers at zero, as after a restart, in mid-flow: no packet of a single step is marked.
    marker = marker_with(p, (Block(), [Anchor() for _ in range(4)]))
    flow = [
        Pkt(1, step, (1000 + i) % PSNS, False, True, 0, 9, False, 1)
        for i in range(data.draw(st.integers(1, 40)))
    ]
    assert not any(d.mark for d in feed(marker, flow))
