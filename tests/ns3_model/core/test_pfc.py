"""PFC: lossless where the headroom is right, refused or said where it cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from ringstep_ns3 import _core as core


def lossless(**options: Any) -> Any:
    return core.PfcConfig(enabled=True, **options)


def incast(build: Any, senders: int, fast: int, delay_ns: int, packets: int, **switch: Any) -> Any:
    """Hosts at ``fast`` Gb/s into one at 10 Gb/s over two switches."""
    net = core.Network()
    config = core.SwitchConfig(**switch)
    target = net.add_host()
    left, right = net.add_switch(config), net.add_switch(config)
    net.add_link(target, right, 10 * build.GIG, delay_ns)
    net.add_link(left, right, fast * build.GIG, delay_ns)
    hosts = [net.add_host() for _ in range(senders)]
    for host in hosts:
        net.add_link(host, left, fast * build.GIG, delay_ns)
    sim = core.Simulation(net, build.transport(rto_ns=0))
    for host in hosts:
        sim.add_flow(core.FlowSpec(src=host, dst=target, bytes_=packets * 1000))
    return sim


@pytest.mark.parametrize("delay_ns", [0, 1000, 5000])
@pytest.mark.parametrize("fast", [10, 40])
def test_no_drop_with_safe_headroom(build: Any, fast: int, delay_ns: int) -> None:
    sim = incast(build, 8, fast, delay_ns, 400, buffer_bytes=700_000, pfc=lossless())
    assert sim.warnings() == []
    stats = sim.run()
    assert stats.finished
    assert stats.drops_buffer == 0
    assert stats.pauses > 0
    links = sim.links()
    assert links["pauses_sent"].sum() == links["pauses_received"].sum() == stats.pauses
    assert links["paused_ns"].max() > 0
    assert (links["max_queue_bytes"] < 700_000).all()


def test_a_thousand_flows_into_one_port(build: Any) -> None:
    sim = incast(build, 32, 40, 1000, 0, buffer_bytes=8 << 20, pfc=lossless())
    for index in range(1000):
        sim.add_flow(core.FlowSpec(src=3 + index % 32, dst=0, bytes_=20_000))
    stats = sim.run()
    assert stats.finished
    assert stats.drops_buffer == 0
    assert stats.pauses > 0


def test_a_switch_with_too_many_ports_for_its_buffer_is_refused(build: Any) -> None:
    with pytest.raises(ValueError, match="give it more than 17"):
        incast(build, 1000, 40, 1000, 40, buffer_bytes=8 << 20, pfc=lossless())


def test_headroom_of_three_delays_can_drop_and_is_said_to(build: Any) -> None:
    sim = incast(build, 8, 10, 1000, 10, buffer_bytes=700_000, pfc=lossless(headroom="hpcc"))
    assert any("headroom of 3750 B is below the" in line for line in sim.warnings())
    far = incast(build, 8, 10, 5000, 10, buffer_bytes=700_000, pfc=lossless(headroom="hpcc"))
    assert far.warnings() == []


def test_a_headroom_that_is_too_small_does_drop(build: Any) -> None:
    sim = incast(
        build, 8, 40, 1000, 400, buffer_bytes=100_000, pfc=lossless(headroom_bytes=1100, shift=0)
    )
    assert len(sim.warnings()) > 0
    sim.run(until_ns=20_000_000)
    assert sim.stats().drops_buffer > 0


def test_a_buffer_below_its_headroom_is_refused(build: Any) -> None:
    with pytest.raises(ValueError, match=r"buffer_bytes = 50000 does not hold the headroom"):
        incast(build, 8, 40, 1000, 10, buffer_bytes=50_000, pfc=lossless())


def test_pfc_without_a_buffer_size_is_refused(build: Any) -> None:
    with pytest.raises(ValueError, match="PFC needs a buffer of known size"):
        build.star(2, pfc=lossless())


@pytest.mark.parametrize("mtu", [1000, 9000])
@pytest.mark.parametrize("buffer_bytes", [400_000, 9_000_000])
def test_small_buffers_and_large_packets(build: Any, mtu: int, buffer_bytes: int) -> None:
    fabric = build.star(4, buffer_bytes=buffer_bytes, pfc=lossless())
    transport = build.transport(mtu_bytes=mtu, rto_ns=0)
    sim = build.run(fabric, transport, flows=[(h, 0, 3_000_000) for h in (1, 2, 3)])
    assert sim.stats().finished
    assert sim.stats().drops_buffer == 0


@pytest.mark.parametrize("preset", [None, "hpcc_run", "hpcc_config", "connectx"])
def test_a_lossless_ring_with_dcqcn_loses_nothing(build: Any, preset: str | None) -> None:
    fabric = build.leaf_spine(buffer_bytes=200_000, pfc=lossless(), red=[build.red()])
    job = build.ring(build.interleaved(fabric), 16 * 128_000, dependency="count")
    sim = build.run(fabric, build.transport(preset, rto_ns=0), [job])
    stats = sim.stats()
    assert stats.finished
    assert stats.drops_buffer == 0
    if preset is None:
        assert stats.pauses > 0


def test_dcqcn_needs_fewer_pauses_than_no_control(build: Any) -> None:
    pauses = []
    for preset in (None, "hpcc_run"):
        fabric = build.star(9, buffer_bytes=1_000_000, pfc=lossless(), red=[build.red()])
        sim = build.run(
            fabric,
            build.transport(preset, rto_ns=0),
            flows=[(h, 0, 1_000_000) for h in fabric.hosts[1:]],
        )
        assert sim.stats().drops_buffer == 0
        pauses.append(sim.stats().pauses)
    assert 0 < pauses[1] < pauses[0]


def test_only_the_class_that_fills_the_buffer_is_paused(build: Any) -> None:
    fabric = build.star(6, buffer_bytes=600_000, pfc=lossless())
    sim = core.Simulation(fabric.net, build.transport(rto_ns=0))
    for src in (1, 2, 3, 4):
        sim.add_flow(core.FlowSpec(src=src, dst=0, bytes_=2_000_000, priority=3))
    sim.add_flow(core.FlowSpec(src=1, dst=5, bytes_=200_000, priority=4))
    stats = sim.run()
    assert stats.pauses > 0
    assert stats.drops_buffer == 0
    flows = sim.flows()
    other = flows["dst"] == 5
    # The other class shares the NIC half and half and is not held back by the pauses.
    assert flows["delivered_ns"][other][0] < 2.5 * 200 * 838.4 + 10_000
