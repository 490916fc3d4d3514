"""Egress queues: depth, departure times, tail drop, order."""

from __future__ import annotations

import pytest
from bmv2_json import ProgramBuilder, assign, extract, field, send_to, std
from hypothesis import given, settings
from hypothesis import strategies as st

from ringstep.softswitch.engine import Switch
from ringstep.softswitch.queueing import EgressQueue, QueueConfig

FRAME = bytes(1250)


def telling() -> ProgramBuilder:
    """Sends to port 2 and writes what egress sees into the frame."""
    program = ProgramBuilder()
    names = [
        "enq_qdepth", "deq_qdepth", "enq_timestamp", "deq_timedelta", "egress_global_timestamp",
        "ingress_global_timestamp",
    ]  # fmt: skip
    program.header("h", [[n, 48] for n in names])
    program.state("start", [extract("h")])
    program.do("ingress", [send_to(2)])
    program.do("egress", [assign(field("h", n), std(n)) for n in names])
    return program


def fields(frame: bytes) -> tuple[int, ...]:
    return tuple(int.from_bytes(frame[i : i + 6], "big") for i in range(0, 36, 6))


def paced(**config: float) -> Switch:
    return telling().switch(queues={2: QueueConfig(**config)})  # type: ignore[arg-type]


def test_unlimited_port_sends_at_once_with_empty_queue() -> None:
    switch = telling().switch()
    switch.receive(1, FRAME, 70)
    assert switch.next_departure() == float("-inf")
    ((port, frame),) = switch.advance(70)
    assert (port, fields(frame)) == (2, (0, 0, 70, 0, 70, 70))
    assert switch.next_departure() is None


def test_bit_rate_spaces_departures_by_the_wire_time() -> None:
    switch = paced(rate_bps=10e6)  # 1250 bytes take 1000 us
    for now in (100, 200, 300):
        switch.receive(1, FRAME, now)
    assert switch.next_departure() == 1100
    assert switch.advance(1099) == []
    seen = []
    for now in (1100, 2100, 3100):
        ((_, frame),) = switch.advance(now)
        seen.append(fields(frame))
    # depth before enqueue, depth after dequeue, when enqueued, how long it waited
    assert seen == [
        (0, 2, 100, 1000, 1100, 100),
        (1, 1, 200, 1900, 2100, 200),
        (2, 0, 300, 2800, 3100, 300),
    ]


def test_idle_time_earns_no_burst() -> None:
    switch = paced(rate_bps=10e6)
    switch.receive(1, FRAME, 0)
    switch.receive(1, FRAME, 100_000)
    switch.receive(1, FRAME, 100_000)
    assert len(switch.advance(100_999)) == 1
    assert len(switch.advance(101_000)) == 1
    assert switch.next_departure() == 102_000


def test_packet_rate_lets_the_first_go_and_spaces_the_rest() -> None:
    switch = paced(rate_pps=1000)
    for _ in range(3):
        switch.receive(1, FRAME, 50)
    assert len(switch.advance(50)) == 1
    assert switch.next_departure() == 1050
    assert len(switch.advance(2050)) == 2


def test_egress_runs_at_the_departure_not_when_it_is_noticed() -> None:
    switch = paced(rate_bps=10e6)
    switch.receive(1, FRAME, 0)
    ((_, frame),) = switch.advance(50_000)
    assert fields(frame)[4] == 1000


def test_full_queue_drops_the_tail_and_counts() -> None:
    switch = paced(rate_bps=10e6, capacity=2)
    for _ in range(5):
        switch.receive(1, FRAME, 0)
    assert switch.port_stats()[2].tail_drops == 3
    assert switch.port_stats()[2].queue_depth == 2
    assert len(switch.advance(10_000)) == 2
    assert switch.port_stats()[2].queue_depth == 0
    switch.receive(1, FRAME, 10_000)
    assert len(switch.advance(20_000)) == 1


def test_a_departure_that_is_due_makes_room_for_an_arrival() -> None:
    switch = paced(rate_bps=10e6, capacity=1)
    switch.receive(1, FRAME, 0)
    switch.receive(1, FRAME, 1000)
    assert switch.port_stats()[2].tail_drops == 0
    assert len(switch.advance(2000)) == 2


def test_default_capacity_is_bmv2s() -> None:
    assert QueueConfig().capacity == 64


def test_packets_of_one_port_keep_their_order_when_the_rate_changes() -> None:
    switch = paced(rate_bps=1e6)
    for index in range(4):
        switch.receive(1, bytes(40) + bytes([index]), 0)
    switch.configure_queue(2, QueueConfig())
    switch.receive(1, bytes(40) + bytes([9]), 1)
    assert [f[-1] for _, f in switch.advance(10_000)] == [0, 1, 2, 3, 9]


@pytest.mark.parametrize(
    ("config", "reason"),
    [({"rate_bps": -1}, "rate_bps is -1"), ({"capacity": 0}, "capacity is 0")],
)
def test_nonsense_is_refused(config: dict[str, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        QueueConfig(**config)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 1500)), min_size=1, max_size=40),
    st.integers(1_000_000, 1_000_000_000),
)
def test_departures_never_exceed_the_rate(arrivals: list[tuple[int, int]], rate_bps: int) -> None:
    queue = EgressQueue(QueueConfig(rate_bps=rate_bps))
    now = 0.0
    last = float("-inf")
    for gap, length in arrivals:
        now += gap
        at = queue.departure(now, length)
        wire = length * 8e6 / rate_bps
        assert at == pytest.approx(max(now, last) + wire)
        last = at
