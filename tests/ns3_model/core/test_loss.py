"""Losses: recovery by go-back-N, selective repeat and timeout; dead links; lost ends."""

from __future__ import annotations

from typing import Any

import pytest

from ringstep_ns3 import _core as core

BOTH = pytest.mark.parametrize("recovery", ["gbn", "selective"])


@BOTH
@pytest.mark.parametrize("loss", [1e-4, 1e-2])
def test_random_loss_delays_but_does_not_stop(build: Any, recovery: str, loss: float) -> None:
    net = core.Network()
    a, b = net.add_host(), net.add_host()
    hub = net.add_switch(core.SwitchConfig())
    net.add_link(a, hub, 10 * build.GIG, 1000, loss=loss)
    net.add_link(hub, b, 10 * build.GIG, 1000, loss=loss)
    transport = build.transport(recovery=recovery, nak_interval_ns=4000, rto_ns=100_000)
    sim = core.Simulation(net, transport)
    sim.add_flow(core.FlowSpec(src=a, dst=b, bytes_=5_000_000))
    stats = sim.run()
    assert stats.finished
    assert stats.drops_wire > 0 or loss < 1e-3
    assert (stats.retransmissions > 0) == (stats.naks + stats.timeouts > 0)
    assert sim.flows()["retransmissions"][0] == stats.retransmissions


def test_selective_repeat_sends_less_again_than_go_back_n(build: Any) -> None:
    again = {}
    for recovery in ("gbn", "selective"):
        fabric = build.star(2)
        fabric.net.add_drop(kind="data", which="nth", n=100, times=1)
        transport = build.transport(recovery=recovery, rto_ns=1_000_000)
        sim = build.run(fabric, transport, flows=[(0, 1, 2_000_000)])
        assert sim.stats().finished
        assert sim.stats().timeouts == 0
        again[recovery] = sim.stats().retransmissions
    assert again["selective"] == 1
    assert again["gbn"] > 1


@BOTH
def test_exactly_the_last_packet_is_lost(build: Any, recovery: str) -> None:
    fabric = build.star(2)
    fabric.net.add_drop(kind="data", which="last")
    sim = build.run(
        fabric, build.transport(recovery=recovery, rto_ns=500_000), flows=[(0, 1, 20_000)]
    )
    stats = sim.stats()
    assert (stats.drops_wire, stats.timeouts, stats.retransmissions) == (1, 1, 1)
    assert stats.finished
    assert sim.flows()["end_ns"][0] > 500_000


@BOTH
def test_exactly_the_last_ack_is_lost(build: Any, recovery: str) -> None:
    fabric = build.star(2)
    fabric.net.add_drop(kind="ack", which="last")
    sim = build.run(
        fabric, build.transport(recovery=recovery, rto_ns=500_000), flows=[(0, 1, 20_000)]
    )
    stats = sim.stats()
    # The receiver answers the duplicate with what it has.
    assert (stats.drops_wire, stats.timeouts, stats.retransmissions) == (1, 1, 1)
    assert stats.finished
    assert sim.flows()["delivered_ns"][0] < 500_000 < sim.flows()["end_ns"][0]


@BOTH
@pytest.mark.parametrize("sender", ["qp_per_step", "persistent", "qp_pool"])
def test_a_ring_survives_the_loss_of_a_last(build: Any, recovery: str, sender: str) -> None:
    fabric = build.star(4)
    fabric.net.add_drop(kind="data", which="last", step=2, src=fabric.hosts[1])
    fabric.net.add_drop(kind="ack", which="last", step=3)
    job = build.ring(fabric.hosts, 80_000, sender=sender)
    sim = build.run(fabric, build.transport(recovery=recovery, rto_ns=200_000), [job])
    stats = sim.stats()
    assert stats.finished
    assert stats.drops_wire == 2
    # On a persistent connection the next step's packets tell of the gap before the timeout does.
    assert stats.retransmissions > 0


def test_without_a_timeout_a_lost_last_stalls_and_says_so(build: Any) -> None:
    fabric = build.star(2)
    fabric.net.add_drop(kind="data", which="last")
    sim = core.Simulation(fabric.net, build.transport(rto_ns=0))
    assert any("rto_ns = 0" in line for line in sim.warnings())
    sim.add_flow(core.FlowSpec(src=0, dst=1, bytes_=20_000))
    stats = sim.run()
    assert stats.stopped == "stalled"
    assert not stats.finished
    assert sim.flows()["end_ns"][0] == core.NO_VALUE


def test_naks_keep_their_interval(build: Any) -> None:
    fabric = build.star(2)
    fabric.net.add_drop(kind="data", which="nth", n=5)
    sim = build.run(fabric, build.transport(nak_interval_ns=10**9), flows=[(0, 1, 500_000)])
    assert sim.stats().naks == 1
    assert sim.stats().finished


@pytest.mark.parametrize("interval", [1, 4, 20, 1000])
@pytest.mark.parametrize("packets", [1, 19, 40, 41])
def test_ack_interval(build: Any, interval: int, packets: int) -> None:
    fabric = build.star(2)
    transport = build.transport(ack_interval=interval)
    sim = build.run(fabric, transport, flows=[(0, 1, packets * 1000)])
    assert sim.stats().acks == -(-packets // interval)
    assert sim.stats().timeouts == 0


@pytest.mark.parametrize("interval", [1, 4, 20])
def test_marks_survive_long_ack_intervals(build: Any, interval: int) -> None:
    fabric = build.star(3, red=[build.red(low=5000, high=20_000, p=1.0)])
    transport = build.transport("hpcc_run", ack_interval=interval, rto_ns=0)
    sim = core.Simulation(fabric.net, transport)
    sim.trace_rate(1, 0)
    for src in (1, 2):
        sim.add_flow(core.FlowSpec(src=src, dst=0, bytes_=1_000_000))
    assert sim.run().finished
    assert sim.rate_trace()["rate_bps"].min() < 6e9


def test_a_lossy_switch_drops_when_its_buffer_is_full(build: Any) -> None:
    fabric = build.star(9, buffer_bytes=60_000)
    transport = build.transport(rto_ns=300_000, nak_interval_ns=50_000)
    sim = build.run(fabric, transport, flows=[(h, 0, 200_000) for h in fabric.hosts[1:]])
    stats = sim.stats()
    assert stats.finished
    assert stats.drops_buffer > 0
    # One queue may take as much as it leaves free.
    assert sim.links()["max_queue_bytes"].max() <= 30_000 + 1048


def test_a_failed_link_is_routed_round(build: Any) -> None:
    fabric = build.leaf_spine()
    for cable in (16, 17):  # two of the first ToR's uplinks
        fabric.net.add_event(200_000, cable, "fail")
    job = build.ring(build.interleaved(fabric), 16 * 64_000)
    transport = build.transport("hpcc_run", rto_ns=500_000)
    sim = build.run(fabric, transport, [job])
    whole = build.run(build.leaf_spine(), transport, [job])
    assert sim.stats().finished
    assert sim.stats().drops_wire > 0
    assert sim.jobs()["jct_ns"][0] > whole.jobs()["jct_ns"][0]
    assert sim.links()["packets"][32] < whole.links()["packets"][32]


def test_a_host_that_is_cut_off_comes_back(build: Any) -> None:
    fabric = build.star(4)
    fabric.net.add_event(50_000, 1, "fail")
    fabric.net.add_event(2_000_000, 1, "restore")
    transport = build.transport(rto_ns=300_000)
    sim = build.run(fabric, transport, [build.ring(fabric.hosts, 400_000)])
    assert sim.stats().finished
    assert sim.jobs()["jct_ns"][0] > 2_000_000


def test_a_degraded_link_is_slower_by_its_rate(build: Any) -> None:
    fabric = build.star(2)
    fabric.net.add_event(0, 1, "degrade", build.GIG)
    sim = build.run(fabric, build.transport(rto_ns=0), flows=[(0, 1, 1_000_000)])
    assert sim.flows()["delivered_ns"][0] == pytest.approx(1000 * 8384, rel=0.001)


def test_restoring_gives_the_first_rate_back(build: Any) -> None:
    fabric = build.star(2)
    fabric.net.add_event(0, 1, "degrade", build.GIG)
    fabric.net.add_event(4_000_000, 1, "restore")
    sim = build.run(fabric, build.transport(rto_ns=0), flows=[(0, 1, 1_000_000)])
    assert 4_000_000 < sim.flows()["delivered_ns"][0] < 5_000_000
