"""Marks, notifications, rates and pacing."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ringstep.hostlib.dcqcn import NotificationMode, NotificationPoint, preset
from ringstep.hostlib.rnic import QueuePair, SoftRnic, Status
from ringstep.hostlib.wires import VirtualNet
from ringstep.protocol.rocev2 import CE, Opcode, build, parse

MakePair = Callable[..., Any]
MTU = 1000
WIRE = 14 + 20 + 8 + 12 + MTU + 4
"""Frame of a MIDDLE packet."""


def mark(frame: bytes) -> bytes:
    changed = parse(frame)
    if changed.ecn == 0:
        return frame
    changed.ecn = CE
    return build(changed)


def mark_data(when: Callable[[float], bool] = lambda now_us: True) -> Callable[..., Any]:
    def hook(frame: bytes, now_us: float) -> list[tuple[float, bytes]]:
        return [(0.0, mark(frame) if when(now_us) else frame)]

    return hook


class Bottleneck:
    """A switch whose ports send at a rate and mark above a queue length; drops nothing."""

    def __init__(self, ports: dict[int, str], rate_bps: float, mark_above: int) -> None:
        self.ports = ports
        self.rate = rate_bps
        self.mark_above = mark_above
        self.queues: dict[int, deque[bytes]] = {port: deque() for port in ports}
        self.free = dict.fromkeys(ports, 0.0)
        self.deepest = 0
        self.now = 0.0

    def receive(self, port: int, frame: bytes, now_us: float) -> None:
        target = str(parse(frame, check_icrc=False).dst_ip)
        out = next(port for port, ip in self.ports.items() if ip == target)
        self.queues[out].append(frame)
        self.deepest = max(self.deepest, len(self.queues[out]))
        self.free[out] = max(self.free[out], now_us)

    def advance(self, now_us: float) -> list[tuple[int, bytes]]:
        left: list[tuple[int, bytes]] = []
        for port, queue in self.queues.items():
            while queue and self.free[port] <= now_us:
                frame = queue.popleft()
                self.free[port] += len(frame) * 8e6 / self.rate
                left.append((port, mark(frame) if len(queue) > self.mark_above else frame))
        return left

    def next_departure(self) -> float | None:
        return min((self.free[port] for port, queue in self.queues.items() if queue), default=None)


def incast(
    senders: int, nbytes: int, name: str = "connectx", **options: Any
) -> tuple[VirtualNet, Bottleneck, list[QueuePair], list[QueuePair]]:
    line = 10e9
    ips = {0: "10.0.0.100", **{i: f"10.0.0.{i}" for i in range(1, senders + 1)}}
    switch = Bottleneck(ips, line, mark_above=20)
    net = VirtualNet()
    net.add_switch("s", switch)
    receiver = SoftRnic(100, ips[0], 1, line)
    net.add_host("r", receiver)
    net.link("r", ("s", 0), 1.0)
    tx, rx = [], []
    params = preset(name, line)
    for i in range(1, senders + 1):
        nic = SoftRnic(i, ips[i], 100, line, promiscuous=True)
        net.add_host(f"h{i}", nic)
        net.link(f"h{i}", ("s", i), 1.0)
        tx.append(
            nic.create_qp(
                16, ips[0], 100 + i, params, mtu_payload=MTU, record_rates=True, **options
            )
        )
        rx.append(receiver.create_qp(100 + i, ips[i], 16, params, mtu_payload=MTU))
        tx[-1].post_write(nbytes)
    receiver.promiscuous = True
    return net, switch, tx, rx


def test_two_senders_share_a_bottleneck_without_loss() -> None:
    net, _, tx, rx = incast(2, 2_000_000)
    assert net.run(deadline_us=1e6)
    assert all(qp.idle and qp.stats.retransmissions == 0 for qp in tx)
    assert all(qp.stats.cnps_rx > 0 for qp in tx)
    assert [qp.stats.cnps_tx for qp in rx] == [qp.stats.cnps_rx for qp in tx]
    assert sum(qp.stats.ce_rx for qp in rx) > 0
    # Nobody can be faster than the line, and the two rates went below it.
    assert net.now_us > 2 * 2000 * WIRE * 8e6 / 10e9
    assert all(min(rate for _, rate in qp.rate_samples) < 5e9 for qp in tx)


def test_without_rate_control_the_queue_only_grows() -> None:
    depth = {}
    for controlled in (True, False):
        net, switch, tx, _ = incast(3, 400_000)
        if not controlled:
            for qp in tx:
                qp.rp = None
        assert net.run(deadline_us=1e6)
        depth[controlled] = switch.deepest
    assert depth[True] < depth[False] / 2


def test_cnps_are_limited_per_queue_pair_and_interval(make_pair: MakePair) -> None:
    params = replace(preset("connectx", 10e9), cnp_interval_us=50.0)
    pair = make_pair(a_to_b=mark_data(), dcqcn=params, mtu_payload=MTU)
    pair.qa.rp = None  # Keep sending at line rate.
    pair.qa.post_write(400 * MTU)
    pair.run()
    arrived = (400 * WIRE + 16) * 8e6 / 10e9
    assert pair.qb.stats.ce_rx == 400
    assert pair.qb.stats.cnps_tx == int(arrived // 50) + 1
    cnps = [frame for frame in pair.to_a if frame.bth.opcode == Opcode.CNP]
    assert len(cnps) == pair.qb.stats.cnps_tx == pair.qa.stats.cnps_rx
    for frame in cnps:
        assert (frame.bth.becn, frame.bth.dest_qp, frame.bth.psn) == (True, pair.qa.qpn, 0)
        assert (frame.ecn, frame.payload) == (0, bytes(16))


def test_echo_mode_puts_the_mark_into_the_acknowledgement(make_pair: MakePair) -> None:
    pair = make_pair(
        a_to_b=mark_data(lambda now: now < 2),
        dcqcn=preset("hpcc_run", 10e9),
        mtu_payload=MTU,
        ack_interval=1,
    )
    pair.qa.post_write(10 * MTU)
    pair.run()
    becn = [frame.bth.becn for frame in pair.to_a]
    assert {frame.bth.opcode for frame in pair.to_a} == {Opcode.RC_ACK}
    # Packets 0, 1 and 2 start before 2 us.
    assert becn == [True] * 3 + [False] * 7
    assert pair.qa.stats.cnps_rx == 3


def test_echo_survives_coalescing(make_pair: MakePair) -> None:
    pair = make_pair(
        a_to_b=mark_data(lambda now: now < 0.1),
        dcqcn=preset("hpcc_run", 10e9),
        mtu_payload=MTU,
        ack_interval=16,
    )
    pair.qa.post_write(10 * MTU)
    pair.run()
    assert [frame.bth.becn for frame in pair.to_a] == [True]


def test_a_receiver_without_parameters_stays_silent(make_pair: MakePair) -> None:
    pair = make_pair(a_to_b=mark_data())
    pair.qa.post_write(1000)
    pair.run()
    assert (pair.qb.stats.ce_rx, pair.qb.stats.cnps_tx) == (4, 0)


def test_a_receiver_may_notify_without_being_controlled(make_pair: MakePair) -> None:
    np = NotificationPoint(NotificationMode.CNP, 1e6)
    pair = make_pair(a_to_b=mark_data(), notify=np)
    pair.qa.post_write(1000)
    pair.run()
    assert (pair.qb.stats.cnps_tx, pair.qa.stats.cnps_rx, np.suppressed) == (1, 1, 3)


def test_marks_on_lost_order_and_duplicates_count_too(make_pair: MakePair) -> None:
    def hook(frame: bytes, now_us: float) -> list[tuple[float, bytes]]:
        return [] if parse(frame).bth.psn == 0 and now_us < 1 else [(0.0, mark(frame))]

    pair = make_pair(a_to_b=hook, dcqcn=preset("connectx", 10e9))
    pair.qa.post_write(700)
    pair.run()
    assert pair.qb.stats.ce_rx == pair.qb.stats.rx_packets > 3


def test_packets_keep_the_distance_of_the_rate(make_pair: MakePair) -> None:
    """next start = start + wire size / rate, with the rate at that start."""
    starts: list[tuple[float, float]] = []
    pair = make_pair(
        a_to_b=mark_data(lambda now: now < 40),
        dcqcn=preset("connectx", 10e9),
        mtu_payload=MTU,
        record_rates=True,
    )
    poll = pair.a.poll

    def noting(now_us: float) -> list[bytes]:
        frames = poll(now_us)
        starts.extend((now_us, pair.qa.rate_bps) for _ in frames)
        return frames

    pair.a.poll = noting
    pair.qa.post_write(300 * MTU)
    pair.run()
    assert min(rate for _, rate in starts) < 2e9
    gaps = [(b[0] - a[0], a[1]) for a, b in itertools.pairwise(starts[1:-1])]
    for gap, rate in gaps:
        assert gap == pytest.approx(WIRE * 8e6 / rate, rel=1e-6)


@pytest.mark.parametrize("retime", [False, True])
def test_retiming_wakes_a_queue_pair_that_was_cut_to_the_ground(
    make_pair: MakePair, retime: bool
) -> None:
    # Cut from 10 Gb/s to some Mb/s, the next packet is a millisecond away; the rate recovers in 300
    # us.
    pair = make_pair(dcqcn=preset("connectx", 10e9), mtu_payload=MTU, retime=retime)
    for at in range(48):
        pair.net.call_at(float(at), lambda at=at: pair.qa.rp.on_cnp(float(at)))
    pair.net.call_at(48.0, lambda: pair.qa.post_write(3 * MTU, now_us=48.0))
    pair.run()
    floor = WIRE * 8e6 / 4e6
    assert pair.completions[0].status is Status.OK
    if retime:
        assert pair.net.now_us < 500
    else:
        assert pair.net.now_us > floor / 4


def test_an_idle_queue_pair_saves_up_no_credit(make_pair: MakePair) -> None:
    times: list[float] = []

    def hook(frame: bytes, now_us: float) -> list[tuple[float, bytes]]:
        times.append(now_us)
        return [(0.0, frame)]

    pair = make_pair(a_to_b=hook, mtu_payload=MTU, line_rate_bps=1e9)
    pair.net.call_at(1000.0, lambda: pair.qa.post_write(3 * MTU, now_us=1000.0))
    pair.run()
    assert times[0] == 1000.0
    assert times[1] - times[0] == pytest.approx((WIRE + 16) * 8e6 / 1e9)
    assert times[2] - times[1] == pytest.approx(WIRE * 8e6 / 1e9)


def test_a_late_poll_catches_up_no_more_than_the_slack() -> None:
    nic = SoftRnic(1, "10.0.0.1", 2, 8e6, pacing_slack_us=5000.0)
    nic.create_qp(16, "10.0.0.2", 17, mtu_payload=MTU).post_write(MTU * 100)
    frame_us = float(WIRE)
    assert len(nic.poll(0.0)) == 1
    # 3 ms late: the frames of that time go out at once, the rate holds on average.
    assert len(nic.poll(3 * frame_us + 100)) == 3
    # A stall of a second is not made good.
    assert len(nic.poll(1e6)) <= 6


def test_wire_overhead_takes_time_on_the_line() -> None:
    nic = SoftRnic(1, "10.0.0.1", 2, 1e9, wire_overhead_bytes=24)
    nic.create_qp(16, "10.0.0.2", 17, mtu_payload=MTU).post_write(3 * MTU)
    (first,) = nic.poll(0.0)
    assert nic.next_wakeup(0.0) == pytest.approx((len(first) + 24) * 8e6 / 1e9)


def test_a_variable_window_shrinks_with_the_rate(make_pair: MakePair) -> None:
    pair = make_pair(
        dcqcn=preset("hpcc_run", 10e9),
        mtu_payload=MTU,
        window_bytes=20 * MTU,
        var_window=True,
        delay_us=100.0,
    )
    for at in range(40):
        pair.qa.rp.on_cnp(float(at))
    assert pair.qa.rate_bps == 1e9
    pair.qa.post_write(30 * MTU, now_us=40.0)
    sent = 0
    now = 40.0
    while now < 200:
        sent += len(pair.a.poll(now))
        now += 0.5
    assert sent == 2


def test_the_same_run_twice_gives_the_same_rates() -> None:
    samples = []
    for _ in range(2):
        net, _, tx, _ = incast(3, 300_000, "hpcc_run", ack_interval=1)
        net.run(deadline_us=1e6)
        samples.append([qp.rate_samples for qp in tx])
    assert samples[0] == samples[1]
    assert samples[0][0]
