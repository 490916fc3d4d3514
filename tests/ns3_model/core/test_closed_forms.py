"""Times that can be worked out with a pencil: flows exactly, collectives on an ideal fabric."""

from __future__ import annotations

from typing import Any

import pytest

from ringstep_ns3 import _core as core

DELAY = 1000
WIRE = 1048
TX = WIRE * 8 / 10  # ns at 10 Gb/s


def only_last_acks(build: Any, **options: Any) -> Any:
    """Line rate, and ACKs that take no bandwidth worth mentioning."""
    return build.transport(ack_interval=10**6, ack_bytes=1, rto_ns=0, **options)


@pytest.mark.parametrize("packets", [1, 2, 1000])
def test_one_flow_across_the_spine_is_exact(build: Any, packets: int) -> None:
    fabric = build.leaf_spine()
    sim = build.run(
        fabric, build.transport(), flows=[(fabric.hosts[0], fabric.hosts[15], packets * 1000)]
    )
    flow = sim.flows()
    delivered = packets * TX + 3 * TX + 4 * DELAY
    assert flow["delivered_ns"][0] == int(delivered + 1e-6)
    assert flow["end_ns"][0] == int(delivered + 4 * (60 * 0.8 + DELAY) + 1e-6)


def test_ns3_compat_rounds_transmission_times_to_whole_ns(build: Any) -> None:
    fabric = build.leaf_spine()
    transport = build.transport(header_bytes=36, ack_bytes=48, round_to_ns=True)
    sim = build.run(fabric, transport, flows=[(fabric.hosts[0], fabric.hosts[15], 10_000)])
    # 1036 B take 828.8 ns, 48 B take 38.4 ns.
    delivered = 13 * 829 + 4 * DELAY
    assert sim.flows()["delivered_ns"][0] == delivered
    assert sim.flows()["end_ns"][0] == delivered + 4 * (38 + DELAY)


def test_the_last_packet_is_as_long_as_what_is_left(build: Any) -> None:
    fabric = build.star(2)
    sim = build.run(fabric, build.transport(), flows=[(0, 1, 1001)])
    # The short second packet waits for the first one at neither hop.
    second = TX + 49 * 0.8 + 49 * 0.8 + 2 * DELAY
    first = 2 * TX + 2 * DELAY
    assert sim.flows()["delivered_ns"][0] == int(max(second, first + 49 * 0.8) + 1e-6)


def test_an_empty_message_is_one_header(build: Any) -> None:
    fabric = build.star(2)
    sim = build.run(fabric, build.transport(), flows=[(0, 1, 0)])
    assert sim.flows()["delivered_ns"][0] == int(2 * 48 * 0.8 + 2 * DELAY)


@pytest.mark.parametrize("senders", [2, 7, 31])
def test_incast_shares_the_last_link_exactly(build: Any, senders: int) -> None:
    fabric = build.star(senders + 1)
    packets = 200
    sim = build.run(
        fabric,
        build.transport(rto_ns=0),
        flows=[(h, fabric.hosts[0], packets * 1000) for h in fabric.hosts[1:]],
    )
    last = TX + DELAY + senders * packets * TX + DELAY
    assert sim.flows()["delivered_ns"].max() == int(last + 1e-6)
    # All flows are served packet by packet: they end within one round of each other.
    assert sim.flows()["delivered_ns"].min() >= last - senders * TX - 1


def test_a_slow_link_sets_the_pace(build: Any) -> None:
    net = core.Network()
    a, b = net.add_host(), net.add_host()
    hub = net.add_switch(core.SwitchConfig())
    net.add_link(a, hub, 40 * build.GIG, 500)
    net.add_link(hub, b, 10 * build.GIG, 700)
    sim = core.Simulation(net, build.transport(rto_ns=0))
    sim.add_flow(core.FlowSpec(src=a, dst=b, bytes_=100_000))
    sim.run()
    assert sim.flows()["delivered_ns"][0] == int(TX / 4 + 500 + 100 * TX + 700 + 1e-6)


def test_two_hosts_on_one_cable(build: Any) -> None:
    net = core.Network()
    a, b = net.add_host(), net.add_host()
    net.add_link(a, b, 10 * build.GIG, DELAY)
    sim = core.Simulation(net, build.transport())
    sim.add_flow(core.FlowSpec(src=a, dst=b, bytes_=5000))
    sim.run()
    assert sim.flows()["delivered_ns"][0] == int(5 * TX + DELAY + 1e-6)


def test_a_fixed_rate_paces(build: Any) -> None:
    fabric = build.star(2)
    transport = build.transport(cc=core.CcConfig(kind="fixed", fixed_rate_bps=1e9))
    sim = build.run(fabric, transport, flows=[(0, 1, 10_000)])
    assert sim.flows()["delivered_ns"][0] == int(9 * WIRE * 8 + 2 * TX + 2 * DELAY + 1e-6)


def test_a_window_of_one_packet_waits_for_each_ack(build: Any) -> None:
    fabric = build.star(2)
    transport = build.transport(window="bdp", window_bytes=1)
    sim = build.run(fabric, transport, flows=[(0, 1, 10_000)])
    rtt = 2 * TX + 2 * 48 + 4 * DELAY
    assert sim.flows()["end_ns"][0] == int(10 * rtt + 1e-6)


# --- collectives on one switch: a step is its packets, one more store-and-forward, two delays ---


def step(packets: float) -> float:
    return packets * TX + TX + 2 * DELAY


def cct(sim: Any) -> float:
    table = sim.collectives()
    assert (table["end_ns"] != core.NO_VALUE).all()
    return float(table["cct_ns"].max())


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("sender", ["qp_per_step", "persistent", "qp_pool"])
def test_ring_all_reduce(build: Any, ranks: int, sender: str) -> None:
    fabric = build.star(ranks)
    job = build.ring(fabric.hosts, ranks * 100_000, sender=sender)
    sim = build.run(fabric, only_last_acks(build), [job])
    assert cct(sim) == pytest.approx(2 * (ranks - 1) * step(100), rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "rounds"), [("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)]
)
def test_half_rings(build: Any, kind: str, rounds: int) -> None:
    fabric = build.star(5)
    sim = build.run(fabric, only_last_acks(build), [build.ring(fabric.hosts, 500_000, kind=kind)])
    assert cct(sim) == pytest.approx(rounds * 4 * step(100), rel=1e-4)


def test_parallel_short_rings_with_passes_count_their_steps_on(build: Any) -> None:
    fabric = build.star(8)
    job = build.ring(fabric.hosts, 400_000, rings=[[0, 1, 2, 3], [4, 5, 6, 7]], passes=5)
    sim = build.run(fabric, only_last_acks(build), [job])
    assert cct(sim) == pytest.approx(5 * 6 * step(100), rel=1e-4)
    steps = sim.steps()
    assert sorted(set(steps["step"].tolist())) == list(range(30))
    assert (steps["messages"] == 4).all()


def test_channels_share_the_link(build: Any) -> None:
    fabric = build.star(4)
    job = build.ring(fabric.hosts, 4 * 200_000, channels=2)
    sim = build.run(fabric, only_last_acks(build), [job])
    assert cct(sim) == pytest.approx(6 * step(200), rel=0.01)


def test_ring_2d(build: Any) -> None:
    fabric = build.star(12)
    job = build.ring(fabric.hosts, 1_200_000, algorithm="ring_2d", dims=[3, 4])
    sim = build.run(fabric, only_last_acks(build), [job])
    expected = 2 * step(400) + 6 * step(100) + 2 * step(400)
    assert cct(sim) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_halving_doubling(build: Any, ranks: int) -> None:
    fabric = build.star(ranks)
    packets = 1600
    job = build.ring(fabric.hosts, packets * 1000, algorithm="halving_doubling")
    sim = build.run(fabric, only_last_acks(build), [job])
    rounds, size = [], packets
    while size > packets / ranks:
        size /= 2
        rounds.append(size)
    assert cct(sim) == pytest.approx(2 * sum(step(r) for r in rounds), rel=0.01)


def test_halving_doubling_folds_ranks_beyond_a_power_of_two(build: Any) -> None:
    fabric = build.star(6)
    job = build.ring(fabric.hosts, 400_000, algorithm="halving_doubling")
    sim = build.run(fabric, only_last_acks(build), [job])
    # Ranks 4 and 5 hand 400 packets to ranks 0 and 1, which get 200 more from 2 and 3 meanwhile;
    # then rank 0 has 1000 packets to send: two rounds each way, and the result to rank 4.
    # Messages of two rounds share a link here and there, so this is a bound and no closed form.
    packets = cct(sim) / TX
    assert 600 + 1000 <= packets < 1.3 * (600 + 1000)


def test_double_binary_tree_of_two(build: Any) -> None:
    fabric = build.star(2)
    job = build.ring(fabric.hosts, 400_000, algorithm="double_binary_tree")
    sim = build.run(fabric, only_last_acks(build), [job])
    assert cct(sim) == pytest.approx(2 * step(200), rel=0.01)


def test_double_binary_tree_of_four(build: Any) -> None:
    # Tree 0-2-{1, 3} and its mirror 3-1-{2, 0}: two halves into one inner node, up, down, and two
    # halves out of the inner node; the trees use different links throughout.
    fabric = build.star(4)
    job = build.ring(fabric.hosts, 2_000_000, algorithm="double_binary_tree")
    sim = build.run(fabric, only_last_acks(build), [job])
    assert cct(sim) == pytest.approx(step(2000) + 2 * step(1000) + step(2000), rel=0.01)


@pytest.mark.parametrize("ranks", [3, 5, 7, 12])
def test_double_binary_tree_moves_every_byte_of_other_sizes(build: Any, ranks: int) -> None:
    fabric = build.star(ranks)
    job = build.ring(fabric.hosts, 100_003, algorithm="double_binary_tree", chunks=3)
    sim = build.run(fabric, only_last_acks(build), [job])
    assert cct(sim) > 0
    assert sim.jobs()["bytes"][0] == 2 * (ranks - 1) * 100_003


def test_broadcast_is_a_pipeline(build: Any) -> None:
    fabric = build.star(5)
    job = build.ring(
        fabric.hosts, 1_000_000, kind="broadcast", chunks=10, root=2, sender="persistent"
    )
    sim = build.run(fabric, only_last_acks(build), [job])
    assert cct(sim) == pytest.approx(9 * 100 * TX + 4 * step(100), rel=0.01)


def test_all_to_all_one_at_a_time(build: Any) -> None:
    fabric = build.star(6)
    op = core.Op(kind="all_to_all", algorithm="direct", bytes_=600_000, window=1)
    sim = build.run(
        fabric, only_last_acks(build), [core.JobSpec(job_id=1, hosts=fabric.hosts, ops=[op])]
    )
    ack = 2 * (0.8 + DELAY)
    assert cct(sim) == pytest.approx(5 * step(100) + 4 * ack, rel=0.01)


def test_point_to_point(build: Any) -> None:
    fabric = build.star(4)
    op = core.Op(kind="send", algorithm="direct", bytes_=100_000, src=3, dst=1)
    sim = build.run(
        fabric, only_last_acks(build), [core.JobSpec(job_id=1, hosts=fabric.hosts, ops=[op])]
    )
    assert cct(sim) == pytest.approx(step(100), rel=1e-3)


def test_notify_at_the_senders_ack_costs_the_way_back(build: Any) -> None:
    fabric = build.star(4)
    sims = [
        build.run(fabric, only_last_acks(build), [build.ring(fabric.hosts, 400_000, notify=notify)])
        for notify in ("receiver", "sender_ack")
    ]
    way_back = 2 * (0.8 + DELAY)
    assert cct(sims[1]) - cct(sims[0]) == pytest.approx(6 * way_back, rel=0.01)


def test_endpoint_delay_comes_with_every_step(build: Any) -> None:
    fabric = build.star(4)
    job = build.ring(fabric.hosts, 400_000, endpoint_delay_ns=10_000)
    sim = build.run(fabric, only_last_acks(build), [job])
    assert cct(sim) == pytest.approx(6 * (step(100) + 10_000), rel=1e-3)


def test_sizes_beyond_32_bits_and_psns_beyond_24_are_counted_exactly(build: Any) -> None:
    size, mtu = (5 << 30) + 1, 60_000
    fabric = build.star(2)
    transport = build.transport(mtu_bytes=mtu, first_psn=0xFFFFF0, rto_ns=0)
    sim = build.run(fabric, transport, flows=[(0, 1, size)])
    packets = -(-size // mtu)
    assert sim.flows()["bytes"][0] == size
    assert sim.links()["data_packets"].max() == packets
    # The second cable is busy from the first packet's arrival on.
    wire = mtu + 48 + size + 48 * packets
    assert sim.flows()["delivered_ns"][0] == pytest.approx(0.8 * wire + 2000, abs=2)
