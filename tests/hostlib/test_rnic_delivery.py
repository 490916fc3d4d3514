"""What was posted arrives, once and in order, whatever the wire does to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringstep.hostlib.rnic import QpState, QpStateError, SoftRnic, Status
from ringstep.protocol.rocev2 import Bth, Opcode, RoceFrame, build, is_last, parse
from ringstep.protocol.tag import TagLayout

MakePair = Callable[..., Any]
MTU = 256
RKEY = 0xBEEF
VA = 0x7000_0000_0000


def lose(*which: Callable[[RoceFrame], bool]) -> Callable[[bytes, float], Any]:
    """Lose, for each predicate, the first frame that it holds for."""
    left = list(which)

    def hook(frame: bytes, now_us: float) -> Iterable[tuple[float, bytes]]:
        seen = parse(frame)
        for predicate in left:
            if predicate(seen):
                left.remove(predicate)
                return []
        return [(0.0, frame)]

    return hook


def psn_is(psn: int) -> Callable[[RoceFrame], bool]:
    return lambda frame: frame.bth.psn == psn


def pattern(length: int) -> bytes:
    return random.Random(length).randbytes(length)


def check_delivery(pair: Any, sizes: list[int]) -> None:
    """Post messages of ``sizes`` back to back in memory, run, and compare the memory."""
    region = pair.b.register_memory(max(1, sum(sizes)), va=VA, rkey=RKEY)
    at, whole = VA, b""
    for size in sizes:
        data = pattern(size)
        pair.qa.post_write(data, raddr=at, rkey=RKEY)
        at += size
        whole += data
    pair.run()
    assert [c.status for c in pair.completions] == [Status.OK] * len(sizes)
    assert [c.wr.wr_id for c in pair.completions] == list(range(len(sizes)))
    assert [(x.nbytes, x.rkey) for x in pair.arrivals] == [(size, RKEY) for size in sizes]
    assert bytes(region.buffer[: len(whole)]) == whole
    assert pair.qa.idle
    assert pair.qa.outstanding == 0
    assert pair.qb.stats.rx_bytes == len(whole)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, MTU - 1, MTU, MTU + 1, 2 * MTU, 10 * MTU + 5])
def test_sizes(make_pair: MakePair, size: int) -> None:
    pair = make_pair()
    check_delivery(pair, [size])
    packets = max(1, -(-size // MTU))
    assert len(pair.to_b) == packets
    assert pair.qa.stats.retransmissions == 0


def test_packetisation(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.qa.post_write(3 * MTU + 1, raddr=VA, rkey=RKEY, step=5, imm=0xCAFE)
    pair.qa.post_write(1, raddr=VA, rkey=RKEY, step=6)
    pair.run()
    assert [frame.bth.opcode for frame in pair.to_b] == [
        Opcode.RC_WRITE_FIRST,
        Opcode.RC_WRITE_MIDDLE,
        Opcode.RC_WRITE_MIDDLE,
        Opcode.RC_WRITE_LAST_IMM,
        Opcode.RC_WRITE_ONLY,
    ]
    first, last, only = pair.to_b[0], pair.to_b[3], pair.to_b[4]
    assert (first.reth.va, first.reth.rkey, first.reth.dma_len) == (VA, RKEY, 3 * MTU + 1)
    assert (last.imm, last.bth.pad, len(last.payload)) == (0xCAFE, 3, 1)
    assert only.reth.dma_len == 1
    assert [frame.bth.ack_req for frame in pair.to_b] == [False, False, False, True, True]
    assert [frame.sport for frame in pair.to_b] == [0xC005] * 4 + [0xC006]
    assert {frame.ecn for frame in pair.to_b} == {2}
    assert [(x.imm, x.step) for x in pair.arrivals] == [(0xCAFE, 5), (None, 6)]


def test_several_messages(make_pair: MakePair) -> None:
    check_delivery(make_pair(), [700, 0, 1, MTU, 5000, 3])


def test_ipv6(make_pair: MakePair) -> None:
    check_delivery(make_pair(ip_a="fd00::1", ip_b="fd00::2"), [3 * MTU + 2, 7])


@pytest.mark.parametrize("lost", [0, 1, 5, 8])
def test_a_lost_packet_costs_one_nak(make_pair: MakePair, lost: int) -> None:
    pair = make_pair(a_to_b=lose(psn_is(lost)))
    check_delivery(pair, [10 * MTU])
    assert pair.qb.stats.naks_tx == 1
    assert pair.qa.stats.naks_rx == 1
    assert pair.qa.stats.rtos == 0
    # Go-back-N: what was in flight behind the gap is sent again.
    assert pair.qa.stats.retransmissions >= 1


def test_a_lost_last_packet_is_found_by_the_timeout(make_pair: MakePair) -> None:
    pair = make_pair(a_to_b=lose(lambda frame: is_last(frame.bth.opcode)))
    check_delivery(pair, [10 * MTU])
    assert (pair.qa.stats.rtos, pair.qb.stats.naks_tx) == (1, 0)
    assert pair.completions[0].acked_us > 500


def test_a_lost_only_packet(make_pair: MakePair) -> None:
    pair = make_pair(a_to_b=lose(psn_is(0)))
    check_delivery(pair, [1])
    assert pair.qa.stats.rtos == 1


def test_a_lost_acknowledgement_does_not_deliver_twice(make_pair: MakePair) -> None:
    pair = make_pair(b_to_a=lose(lambda frame: frame.bth.opcode == Opcode.RC_ACK))
    check_delivery(pair, [3 * MTU])
    assert pair.qa.stats.rtos == 1
    assert pair.qb.stats.duplicates >= 1
    assert pair.qb.stats.messages_rx == 1


def test_a_duplicate_is_acknowledged_with_the_latest_psn(make_pair: MakePair) -> None:
    pair = make_pair(b_to_a=lose(lambda frame: frame.bth.opcode == Opcode.RC_ACK))
    check_delivery(pair, [3 * MTU])
    assert pair.to_a[1].bth.psn == 2
    # It reaches the sender before the duplicate of the last packet would have been acknowledged.
    assert pair.qa.stats.retransmissions <= 3


def test_a_lost_nak_is_healed_by_the_timeout(make_pair: MakePair) -> None:
    pair = make_pair(
        a_to_b=lose(psn_is(2)),
        b_to_a=lose(lambda frame: frame.aeth is not None and frame.aeth.is_nak),
    )
    check_delivery(pair, [6 * MTU])
    assert pair.qa.stats.rtos == 1


def test_one_nak_per_gap(make_pair: MakePair) -> None:
    lost = [psn_is(3)] * 2 + [psn_is(20)] * 3
    pair = make_pair(a_to_b=lose(*lost), delay_us=20.0)
    check_delivery(pair, [40 * MTU])
    expected = [frame.bth.psn for frame in pair.to_a if frame.aeth and frame.aeth.is_nak]
    assert expected == [3, 20]
    # The retransmission of 3 was lost as well: no second NAK for the same gap, the timeout repairs
    # it.
    assert pair.qa.stats.rtos == 1


def test_reordering_is_a_gap_and_then_a_duplicate(make_pair: MakePair) -> None:
    def swap(frame: bytes, now_us: float) -> list[tuple[float, bytes]]:
        late = parse(frame).bth.psn == 4 and now_us < 3
        return [(3.0 if late else 0.0, frame)]

    pair = make_pair(a_to_b=swap)
    check_delivery(pair, [12 * MTU])
    assert pair.qb.stats.out_of_order > 0


def test_every_frame_duplicated(make_pair: MakePair) -> None:
    def twice(frame: bytes, now_us: float) -> list[tuple[float, bytes]]:
        return [(0.0, frame), (0.3, frame)]

    pair = make_pair(a_to_b=twice, b_to_a=twice)
    check_delivery(pair, [2 * MTU, 5, 0, 4 * MTU])
    assert pair.qa.stats.retransmissions == 0
    assert pair.qb.stats.duplicates >= 8


@pytest.mark.parametrize("start", [0xFFFFFF, 0xFFFFFD, 0x7FFFFF, 0x800000])
def test_psn_wraps(make_pair: MakePair, start: int) -> None:
    pair = make_pair(initial_psn=start, a_to_b=lose(psn_is((start + 4) & 0xFFFFFF)))
    check_delivery(pair, [3 * MTU, 3 * MTU, 1])
    psns = [frame.bth.psn for frame in pair.to_b]
    assert psns[:5] == [(start + index) & 0xFFFFFF for index in range(5)]
    assert pair.qa.next_psn == (start + 7) & 0xFFFFFF


@pytest.mark.parametrize("ack_interval", [1, 3, 4, 20])
def test_acknowledgements_are_coalesced(make_pair: MakePair, ack_interval: int) -> None:
    pair = make_pair(ack_interval=ack_interval)
    check_delivery(pair, [22 * MTU])
    asked = [frame.bth.psn for frame in pair.to_b if frame.bth.ack_req]
    assert asked == sorted({*range(ack_interval - 1, 22, ack_interval), 21})
    assert len(pair.to_a) == len(asked)
    assert [frame.aeth.msn for frame in pair.to_a][-1] == 1


@pytest.mark.parametrize("window_packets", [1, 2, 5])
def test_a_window_bounds_what_is_in_flight(make_pair: MakePair, window_packets: int) -> None:
    pair = make_pair(window_bytes=window_packets * MTU, delay_us=30.0)
    in_flight: list[int] = []
    poll = pair.a.poll

    def noting(now_us: float) -> list[bytes]:
        frames = poll(now_us)
        in_flight.append(pair.qa.outstanding)
        return frames

    pair.a.poll = noting
    check_delivery(pair, [23 * MTU])
    assert max(in_flight) == window_packets
    assert pair.qa.stats.rtos == 0


def test_a_dead_peer_ends_in_an_error_completion(make_pair: MakePair) -> None:
    pair = make_pair(a_to_b=lambda frame, now_us: [], retry_limit=3)
    first = pair.qa.post_write(2 * MTU, signaled=False)
    second = pair.qa.post_write(1)
    pair.run()
    assert [(c.wr, c.status) for c in pair.completions] == [
        (first, Status.RETRY_EXCEEDED),
        (second, Status.FLUSHED),
    ]
    assert pair.qa.stats.rtos == 4
    # Sent once and repeated as often as the limit allows.
    assert len([f for f in pair.to_b if f.bth.psn == 0]) == 4
    assert pair.qa.state is QpState.ERROR
    with pytest.raises(QpStateError, match="create a new one"):
        pair.qa.post_write(1)


def test_progress_restores_the_retries(make_pair: MakePair) -> None:
    # Each packet is lost twice: with a limit of 2 this passes only if progress resets the count.
    seen: dict[int, int] = {}

    def hook(frame: bytes, now_us: float) -> list[tuple[float, bytes]]:
        psn = parse(frame).bth.psn
        seen[psn] = seen.get(psn, 0) + 1
        return [] if seen[psn] <= 2 else [(0.0, frame)]

    pair = make_pair(a_to_b=hook, retry_limit=2, window_bytes=1)
    check_delivery(pair, [5 * MTU])


def test_an_unsignaled_success_makes_no_completion(make_pair: MakePair) -> None:
    pair = make_pair()
    wr = pair.qa.post_write(10, signaled=False)
    pair.run()
    assert (pair.completions, wr.status, wr.done) == ([], Status.OK, True)


def test_times_of_a_request(make_pair: MakePair) -> None:
    pair = make_pair(delay_us=10.0)
    pair.net.call_at(100.0, lambda: pair.qa.post_write(4 * MTU, now_us=100.0))
    pair.run()
    (done,) = pair.completions
    (arrival,) = pair.arrivals
    assert done.posted_us == done.first_tx_us == 100.0
    assert arrival.first_rx_us == 110.0
    # 58 bytes of headers, 16 of RETH: three frames go before the last one.
    assert done.wr.last_tx_us == pytest.approx(100 + (3 * (256 + 58) + 16) * 8e6 / 10e9)
    assert arrival.time_us == pytest.approx(done.wr.last_tx_us + 10)
    assert done.acked_us == pytest.approx(arrival.time_us + 10)


def test_queue_pairs_share_the_line_in_turn() -> None:
    nic = SoftRnic(1, "10.0.0.1", 2, 1e9)
    for qpn in (16, 17, 18):
        nic.create_qp(qpn, "10.0.0.2", qpn + 100, mtu_payload=1000).post_write(4000)
    frames: list[RoceFrame] = []
    now: float | None = 0.0
    while now is not None and len(frames) < 12:
        frames += [parse(frame) for frame in nic.poll(now)]
        now = nic.next_wakeup(now)
    assert [frame.bth.dest_qp for frame in frames] == [116, 117, 118] * 4


def test_acknowledgements_go_before_data(make_pair: MakePair) -> None:
    pair = make_pair(line_rate_bps=1e6)
    # Both ends send at once; the acknowledgement of b waits for one frame of its own data at most.
    pair.qa.post_write(1)
    pair.qb.post_write(100 * MTU)
    pair.run()
    kinds = [frame.bth.opcode for frame in pair.to_a]
    assert Opcode.RC_ACK in kinds[:3]


def test_both_directions_on_one_connection(make_pair: MakePair) -> None:
    pair = make_pair(a_to_b=lose(psn_is(1)), b_to_a=lose(psn_is(2)))
    forth = pair.qa.post_write(10 * MTU)
    back = pair.qb.post_write(10 * MTU)
    pair.run()
    assert (forth.status, back.status) == (Status.OK, Status.OK)


def test_a_write_outside_the_region_is_refused(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.b.register_memory(100, va=VA, rkey=RKEY)
    good = pair.qa.post_write(100, raddr=VA, rkey=RKEY)
    bad = pair.qa.post_write(100, raddr=VA + 1, rkey=RKEY)
    pair.run()
    assert (good.status, bad.status) == (Status.OK, Status.REMOTE_ACCESS_ERROR)


def test_a_wrong_key_is_refused_and_zero_bytes_need_none(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.b.register_memory(100, va=VA, rkey=RKEY)
    nothing = pair.qa.post_write(0)
    bad = pair.qa.post_write(4, raddr=VA, rkey=RKEY + 1)
    pair.run()
    assert (nothing.status, bad.status) == (Status.OK, Status.REMOTE_ACCESS_ERROR)


def test_receiver_not_ready_is_refused(make_pair: MakePair) -> None:
    def rnr(frame: bytes, now_us: float) -> list[tuple[float, bytes]]:
        ack = parse(frame)
        assert ack.aeth is not None
        ack.aeth.syndrome = 0b00100001
        return [(0.0, build(ack))]

    pair = make_pair(b_to_a=rnr)
    wr = pair.qa.post_write(4)
    pair.run()
    assert wr.status is Status.RNR_REFUSED


def test_different_mtus_are_an_invalid_request(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.qb.mtu_payload = 512
    wr = pair.qa.post_write(2000)
    pair.run()
    assert wr.status is Status.REMOTE_INVALID_REQUEST
    assert pair.arrivals == []


@pytest.mark.parametrize("opcode", [Opcode.RC_SEND_ONLY, 0x13])
def test_requests_that_are_not_writes_get_a_nak(make_pair: MakePair, opcode: int) -> None:
    pair = make_pair()
    frame = RoceFrame(
        src_mac=pair.a.mac,
        dst_mac=pair.b.mac,
        src_ip=pair.a.ip,
        dst_ip=pair.b.ip,
        sport=0xC000,
        bth=Bth(opcode, pair.qb.qpn, 0),
        payload=bytes(16),
    )
    pair.b.on_frame(build(frame), 0.0)
    (answer,) = [parse(sent) for sent in pair.b.poll(0.0)]
    assert answer.aeth is not None
    assert answer.aeth.syndrome == 0x61


def test_a_message_that_starts_twice_is_refused(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.qa.post_write(2 * MTU)
    (first,) = pair.a.poll(0.0)[:1]
    pair.b.on_frame(first, 1.0)
    again = parse(first)
    again.bth.psn = 1
    pair.b.on_frame(build(again), 2.0)
    (answer,) = [parse(sent) for sent in pair.b.poll(2.0)]
    assert answer.aeth is not None
    assert answer.aeth.syndrome == 0x61


def test_destroying_a_queue_pair_flushes_it(make_pair: MakePair) -> None:
    pair = make_pair()
    wr = pair.qa.post_write(4)
    pair.a.destroy_qp(pair.qa.qpn)
    assert wr.status is Status.FLUSHED
    assert pair.a.poll(0.0) == []
    assert pair.a.next_wakeup(0.0) is None
    with pytest.raises(KeyError):
        pair.a.destroy_qp(pair.qa.qpn)


def test_untagged_traffic_keeps_out_of_the_tag_range(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.qa.post_write(4)
    pair.qa.post_write(4, sport=0xC123)
    pair.run()
    assert not TagLayout.is_tagged(pair.to_b[0].sport)
    assert pair.to_b[1].sport == 0xC123
    assert [x.step for x in pair.arrivals] == [None, 0x123]
    assert not any(TagLayout.is_tagged(frame.sport) for frame in pair.to_a)


@pytest.mark.parametrize("carrier", [{"dscp": 21}, {"resv6a": 21}])
def test_the_job_may_ride_in_dscp_or_bth(make_pair: MakePair, carrier: dict[str, int]) -> None:
    pair = make_pair(**carrier)
    check_delivery(pair, [MTU + 1])
    for frame in pair.to_b:
        assert (frame.dscp or frame.bth.resv6a) == 21


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(0, 12 * MTU), min_size=1, max_size=6),
    loss=st.sampled_from([0.0, 0.02, 0.2]),
    jitter_us=st.sampled_from([0.0, 1.0, 30.0]),
    duplicate=st.sampled_from([0.0, 0.1]),
    corrupt=st.sampled_from([0.0, 0.05]),
    initial_psn=st.sampled_from([0, 0xFFFFF0, 0x7FFFFA]),
    ack_interval=st.sampled_from([1, 4, 16]),
    window_bytes=st.sampled_from([None, 1, 5 * MTU]),
)
def test_any_wire_delivers_everything_once(
    make_pair: MakePair,
    seed: int,
    sizes: list[int],
    loss: float,
    jitter_us: float,
    duplicate: float,
    corrupt: float,
    initial_psn: int,
    ack_interval: int,
    window_bytes: int | None,
) -> None:
    rng = random.Random(seed)

    def hook(frame: bytes, now_us: float) -> list[tuple[float, bytes]]:
        if rng.random() < loss:
            return []
        if rng.random() < corrupt:
            broken = bytearray(frame)
            broken[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
            frame = bytes(broken)
        copies = 2 if rng.random() < duplicate else 1
        return [(rng.random() * jitter_us, frame) for _ in range(copies)]

    pair = make_pair(
        a_to_b=hook,
        b_to_a=hook,
        initial_psn=initial_psn,
        ack_interval=ack_interval,
        window_bytes=window_bytes,
        retry_limit=1000,
    )
    check_delivery(pair, sizes)


def test_frames_go_to_the_peers_own_mac_where_one_is_given() -> None:
    nic = SoftRnic(1, "10.0.0.1", 2, 1e9)
    nic.create_qp(16, "10.0.0.2", 17).post_write(10)
    nic.create_qp(18, "10.0.0.3", 19, remote_mac=3).post_write(10)
    assert {frame[5] for frame in nic.poll(100.0)} == {2, 3}
    with pytest.raises(ValueError, match="remote_mac"):
        nic.create_qp(20, "10.0.0.4", 21, remote_mac=1 << 48)


def test_a_region_that_was_withdrawn_is_refused(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.b.register_memory(100, va=0, rkey=1)
    pair.b.register_memory(100, va=0, rkey=2)
    pair.b.deregister_memory(1)
    request = pair.qa.post_write(10, rkey=1)
    pair.run()
    assert request.status is Status.REMOTE_ACCESS_ERROR
    with pytest.raises(KeyError):
        pair.b.deregister_memory(1)
    assert pair.b.qp(pair.qb.qpn) is pair.qb
    assert pair.b.qp(pair.qb.qpn + 1) is None
