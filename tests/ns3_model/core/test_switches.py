"""RED at dequeue, queues, routes and load balancing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ringstep_ns3 import _core as core


def test_red_marks_with_the_probability_of_the_queue_left_behind(build: Any) -> None:
    low, high, p_max = 20_000, 120_000, 0.3
    fabric = build.star(5, red=[build.red(low=low, high=high, p=p_max)])
    sim = build.run(
        fabric,
        build.transport(rto_ns=0),
        flows=[(h, 0, 60_000) for h in (1, 2, 3, 4)],
        queue_bin_bytes=1048,
        links="all",
    )
    histogram = sim.queue_histogram()
    to_target = histogram["link"] == 1
    left, count = histogram["bin"][to_target], histogram["packets"][to_target]
    p = np.clip(p_max * (left - low) / (high - low), 0, 1)
    p[left > high] = 1
    marks = int(sim.links()["marks_red"][1])
    spread = float(np.sqrt((count * p * (1 - p)).sum()))
    assert spread > 0
    assert abs(marks - float((count * p).sum())) < 4 * spread + 1


def test_red_is_a_step_where_both_thresholds_meet(build: Any) -> None:
    fabric = build.star(3, red=[build.red(low=10_000, high=10_000, p=1.0)])
    sim = build.run(
        fabric,
        build.transport(rto_ns=0),
        flows=[(1, 0, 100_000), (2, 0, 100_000)],
        queue_bin_bytes=1048,
        links="all",
    )
    histogram = sim.queue_histogram()
    here = histogram["link"] == 1
    above = here & (histogram["bin"] > 10_000)
    assert sim.stats().marks_red == histogram["packets"][above].sum()


def test_a_rate_without_a_red_entry_is_refused(build: Any) -> None:
    fabric = build.star(2, rate=25 * build.GIG, red=[build.red()])
    with pytest.raises(ValueError, match=r"port 1: no RED entry for 25000000000 bit/s"):
        core.Simulation(fabric.net, build.transport())


def test_strict_and_round_robin_queues(build: Any) -> None:
    ends = {}
    for scheduler in ("strict", "round_robin"):
        fabric = build.star(3, scheduler=scheduler)
        sim = core.Simulation(fabric.net, build.transport(rto_ns=0))
        sim.add_flow(core.FlowSpec(src=1, dst=0, bytes_=500_000, priority=4))
        sim.add_flow(core.FlowSpec(src=2, dst=0, bytes_=500_000, priority=3))
        sim.run()
        flows = sim.flows()
        ends[scheduler] = dict(
            zip(flows["src"].tolist(), flows["delivered_ns"].tolist(), strict=True)
        )
    alone = 500 * 838.4
    assert ends["strict"][2] == pytest.approx(alone, rel=0.02)
    assert ends["strict"][1] == pytest.approx(2 * alone, rel=0.02)
    assert ends["round_robin"][1] == pytest.approx(2 * alone, rel=0.02)
    assert ends["round_robin"][2] == pytest.approx(2 * alone, rel=0.02)


def test_acks_in_the_control_queue_overtake_data(build: Any) -> None:
    # Host 1 gets data from 0 while 2 sends to 0 as well: ACKs to 0 wait behind 2's data or not.
    ends = []
    for priority in (False, True):
        fabric = build.star(4)
        sim = core.Simulation(fabric.net, build.transport(rto_ns=0, ack_priority=priority))
        for src in (2, 3):
            sim.add_flow(core.FlowSpec(src=src, dst=0, bytes_=500_000))
        sim.add_flow(core.FlowSpec(src=0, dst=1, bytes_=100_000))
        sim.run()
        flows = sim.flows()
        mine = flows["src"] == 0
        ends.append(int((flows["end_ns"] - flows["delivered_ns"])[mine][0]))
    assert ends[1] < 5000 < ends[0]


def uplink_packets(sim: Any, fabric: Any) -> Any:
    links = sim.links()
    up = np.isin(links["src"], fabric.tors) & np.isin(links["dst"], fabric.spines)
    return links["data_packets"][up]


def test_ecmp_spreads_flows_evenly_over_uplinks_and_tiers(build: Any) -> None:
    fabric = build.leaf_spine(hosts_per_tor=2, tors=2, spines=4)
    sim = core.Simulation(fabric.net, build.transport())
    counts = np.zeros(4)
    for sport in range(0xC000, 0xC000 + 800):
        path = sim.path(0, 3, sport)
        counts[fabric.spines.index(fabric.net.link_ends(path[1])[1])] += 1
    chi_square = ((counts - 200) ** 2 / 200).sum()
    assert chi_square < 16.3  # 3 degrees of freedom, 0.1 %


def test_hashes_of_two_tiers_are_independent(build: Any) -> None:
    # Three tiers of switches: what the first tier chose must not decide what the second does.
    net = core.Network()
    hosts = [net.add_host(), net.add_host()]
    sw = [net.add_switch(core.SwitchConfig()) for _ in range(10)]
    tor_a, agg_a, cores, agg_b, tor_b = sw[0], sw[1:3], sw[3:7], sw[7:9], sw[9]
    net.add_link(hosts[0], tor_a, 10 * build.GIG, 1000)
    net.add_link(hosts[1], tor_b, 10 * build.GIG, 1000)
    for agg in agg_a:
        net.add_link(tor_a, agg, 10 * build.GIG, 1000)
        for c in cores:
            net.add_link(agg, c, 10 * build.GIG, 1000)
    for agg in agg_b:
        net.add_link(agg, tor_b, 10 * build.GIG, 1000)
        for c in cores:
            net.add_link(c, agg, 10 * build.GIG, 1000)
    sim = core.Simulation(net, build.transport())
    counts = np.zeros((2, 4, 2))
    for sport in range(0xC000, 0xC000 + 1600):
        via = [net.link_ends(link)[1] for link in sim.path(hosts[0], hosts[1], sport)]
        counts[agg_a.index(via[1]), cores.index(via[2]), agg_b.index(via[3])] += 1
    assert ((counts - 100) ** 2 / 100).sum() < 37.7  # 15 degrees of freedom, 0.1 %


def test_the_seed_of_ecmp_is_real(build: Any) -> None:
    def paths(seed: int, ecmp_hash: str) -> list[list[int]]:
        fabric = build.leaf_spine(ecmp_hash=ecmp_hash)
        sim = core.Simulation(fabric.net, build.transport(), seed=seed)
        return [sim.path(0, 12, sport) for sport in range(0xC000, 0xC040)]

    assert paths(1, "seeded") == paths(1, "seeded")
    assert paths(1, "seeded") != paths(2, "seeded")
    assert paths(1, "ns3_compat") == paths(2, "ns3_compat")


def test_parallel_cables_are_both_used(build: Any) -> None:
    net = core.Network()
    a, b = net.add_host(), net.add_host()
    left, right = net.add_switch(core.SwitchConfig()), net.add_switch(core.SwitchConfig())
    net.add_link(a, left, 10 * build.GIG, 1000)
    net.add_link(b, right, 10 * build.GIG, 1000)
    one, two = (net.add_link(left, right, 10 * build.GIG, 1000) for _ in range(2))
    assert net.next_hops(left, b) == [2 * one, 2 * two]
    sim = core.Simulation(net, build.transport())
    used = {sim.path(a, b, sport)[1] for sport in range(0xC000, 0xC020)}
    assert used == {2 * one, 2 * two}


@pytest.mark.parametrize("lb", ["spray", "flowlet"])
def test_other_load_balancers_use_several_uplinks_for_one_flow(build: Any, lb: str) -> None:
    fabric = build.leaf_spine(hosts_per_tor=1, tors=2, lb=lb, flowlet_gap_ns=1000)
    cc = core.CcConfig(kind="fixed", fixed_rate_bps=2e9)
    transport = build.transport(recovery="selective", cc=cc)
    sim = build.run(fabric, transport, flows=[(0, 1, 400_000)])
    assert sim.stats().finished
    packets = uplink_packets(sim, fabric)[:4]
    assert packets.sum() == 400
    assert (packets > 60).all()


def test_a_flowlet_without_gaps_stays_on_its_path(build: Any) -> None:
    fabric = build.leaf_spine(hosts_per_tor=1, tors=2, lb="flowlet", flowlet_gap_ns=50_000)
    sim = build.run(fabric, build.transport(), flows=[(0, 1, 400_000)])
    assert sorted(uplink_packets(sim, fabric)[:4].tolist()) == [0, 0, 0, 400]


def test_spraying_with_go_back_n_is_warned_of(build: Any) -> None:
    fabric = build.leaf_spine(lb="spray")
    sim = core.Simulation(fabric.net, build.transport())
    assert any("reorders" in line for line in sim.warnings())


def used(sim: Any, fabric: Any, tor: int = 0, window: int | None = None) -> list[int]:
    """Data packets on each uplink of a ToR; of one window of 100 us where it is given."""
    per = len(fabric.spines)
    cables = [len(fabric.hosts) + per * tor + s for s in range(per)]
    if window is None:
        return [int(sim.links()["data_packets"][2 * cable]) for cable in cables]
    series = sim.link_series()
    here = series["time_ns"] == window * 100_000
    return [int(series["data_packets"][here & (series["link"] == 2 * c)].sum()) for c in cables]


def starts(sim: Any, *flows: tuple[int, int, int, int]) -> None:
    """Add flows: source, destination, bytes, start in ns."""
    for src, dst, size, start in flows:
        sim.add_flow(core.FlowSpec(src=src, dst=dst, bytes_=size, start_ns=start))


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_least_loaded_uplink_is_one_that_nobody_uses(build: Any, seed: int) -> None:
    fabric = build.leaf_spine(lb="least_loaded")
    flows = [(host, 4 + host, 100_000) for host in range(4)]
    sim = build.run(fabric, build.transport(rto_ns=0), flows=flows, seed=seed)
    assert used(sim, fabric) == [100] * 4
    assert sim.stats().retransmissions == 0


def test_equally_loaded_uplinks_are_told_apart_by_the_hash(build: Any) -> None:
    first = set()
    for seed in range(1, 9):
        fabric = build.leaf_spine(lb="least_loaded")
        sim = build.run(fabric, build.transport(), flows=[(0, 4, 50_000)], seed=seed)
        assert sorted(used(sim, fabric)) == [0, 0, 0, 50]
        first.add(used(sim, fabric).index(50))
    assert len(first) > 1


def test_a_message_keeps_its_uplink_though_others_get_emptier(build: Any) -> None:
    fabric = build.leaf_spine(lb="least_loaded", spines=2)
    sim = core.Simulation(fabric.net, build.transport(rto_ns=0))
    # Three at once, so that two share an uplink; the one that has its own is soon done.
    starts(sim, (0, 4, 300_000, 0), (1, 5, 20_000, 10), (2, 6, 300_000, 20))
    sim.run()
    assert sorted(used(sim, fabric)) == [300, 320]
    assert sim.stats().retransmissions == 0


def test_a_later_message_avoids_the_uplink_that_is_in_use(build: Any) -> None:
    fabric = build.leaf_spine(lb="least_loaded", spines=2)
    sim = core.Simulation(fabric.net, build.transport(rto_ns=0))
    starts(sim, (0, 4, 1_000_000, 0))
    starts(sim, *((1, 5, 50_000, start) for start in range(100_000, 600_000, 100_000)))
    sim.run()
    assert sorted(used(sim, fabric)) == [250, 1000]


def test_a_long_message_counts_with_its_horizon_only(build: Any) -> None:
    shares = []
    for horizon_ns in (50_000, 1_000_000):
        fabric = build.leaf_spine(lb="least_loaded", spines=2, load_horizon_ns=horizon_ns)
        sim = core.Simulation(fabric.net, build.transport(rto_ns=0))
        # The short ones take 34 us each: two of them weigh more than the horizon of the long one.
        starts(sim, (0, 4, 5_000_000, 0), *((i, 4 + i, 40_000, 1000 + i) for i in (1, 2, 3)))
        sim.run()
        shares.append(sorted(used(sim, fabric)))
    assert shares == [[80, 5040], [120, 5000]]


def test_half_the_rate_is_twice_the_load(build: Any) -> None:
    fabric = build.leaf_spine(lb="least_loaded", spines=2)
    fabric.net.add_event(0, 16, "degrade", 3 * build.GIG)
    sim = core.Simulation(fabric.net, build.transport(rto_ns=0))
    # A message each 10 us, of which 2 or 3 of 4 are on the faster uplink at any time.
    starts(sim, *((i % 4, 4 + i % 4, 20_000, 1000 + 10_000 * i) for i in range(40)))
    sim.run()
    slow, fast = used(sim, fabric)
    assert slow + fast == 800
    assert 2 * slow < fast


def test_the_least_loaded_uplink_fails_and_comes_back(build: Any) -> None:
    fabric = build.leaf_spine(lb="least_loaded", spines=2)
    fabric.net.add_event(200_000, 16, "fail")
    fabric.net.add_event(500_000, 16, "restore")
    transport = build.transport(rto_ns=300_000, nak_interval_ns=20_000)
    sim = core.Simulation(fabric.net, transport, stats=core.StatsConfig(sample_ns=100_000))
    starts(sim, (0, 4, 1_000_000, 0), (1, 5, 1_000_000, 0), (2, 6, 100_000, 700_000))
    sim.run()
    assert sim.stats().finished
    assert all(used(sim, fabric, window=1))
    assert used(sim, fabric, window=3)[0] == used(sim, fabric, window=4)[0] == 0
    assert used(sim, fabric, window=7)[0] > 0


def planned(build: Any, fabric: Any, job: int = 0) -> list[int]:
    """Every ring edge over a spine of its own; returns the ranks."""
    order = build.interleaved(fabric)
    per, tors = 4, 4
    cable = {}
    for t in range(tors):
        for s in range(4):
            cable[t, s] = 16 + 4 * t + s
    for index, src in enumerate(order):
        dst = order[(index + 1) % len(order)]
        spine = (index // tors) % 4
        up, down = cable[src // per, spine], cable[dst // per, spine]
        links = [2 * src, 2 * up, 2 * down + 1, 2 * dst + 1]
        fabric.net.set_planned_path(src, dst, 0, links, job=job)
    return order


@pytest.mark.parametrize("sender", ["qp_per_step", "persistent"])
def test_planned_paths_spread_a_ring_without_contention(build: Any, sender: str) -> None:
    fabric = build.leaf_spine()
    order = planned(build, fabric)
    job = build.ring(order, 16 * 100_000, sender=sender)
    transport = build.transport(ack_interval=10**6, ack_bytes=1, rto_ns=0)
    sim = build.run(fabric, transport, [job])
    step = 100 * 838.4 + 3 * 838.4 + 4000
    assert sim.jobs()["jct_ns"][0] == pytest.approx(30 * step, rel=0.01)
    assert len(set(uplink_packets(sim, fabric).tolist())) == 1
    plain = build.run(build.leaf_spine(), transport, [job])
    assert plain.jobs()["jct_ns"][0] > 1.3 * sim.jobs()["jct_ns"][0]


def test_a_plan_of_another_job_is_not_mine(build: Any) -> None:
    fabric = build.leaf_spine()
    order = planned(build, fabric, job=9)
    sim = build.run(fabric, build.transport(), [build.ring(order, 160_000, port="sticky")])
    assert len(set(uplink_packets(sim, fabric).tolist())) > 1


def test_ecmp_takes_over_while_a_planned_link_is_down(build: Any) -> None:
    fabric = build.leaf_spine()
    order = planned(build, fabric)
    fabric.net.add_event(100_000, 16, "fail")
    transport = build.transport(rto_ns=300_000)
    sim = build.run(fabric, transport, [build.ring(order, 16 * 100_000)])
    assert sim.stats().finished


@pytest.mark.parametrize("cable", [16, 20], ids=["uplink", "downlink"])
def test_messages_under_way_and_new_ones_leave_the_plan_and_return_to_it(
    build: Any, cable: int
) -> None:
    fabric = build.leaf_spine()
    uplink, downlink = 2 * 16, 2 * 20 + 1  # over spine 0
    for src in range(4):
        fabric.net.set_planned_path(src, 4 + src, 0, [2 * src, uplink, downlink, 2 * (4 + src) + 1])
    fabric.net.add_event(300_000, cable, "fail")
    fabric.net.add_event(600_000, cable, "restore")
    transport = build.transport(rto_ns=300_000, nak_interval_ns=20_000)
    sim = core.Simulation(fabric.net, transport, stats=core.StatsConfig(sample_ns=100_000))
    # One over all the time, one that begins while the link is down, one after it is back.
    starts(sim, (0, 4, 1_000_000, 0), (1, 5, 50_000, 400_000), (2, 6, 50_000, 750_000))
    sim.run()
    assert sim.stats().finished
    flows = dict(
        zip(sim.flows()["src"].tolist(), sim.flows()["delivered_ns"].tolist(), strict=True)
    )
    assert flows[1] < 600_000
    on_plan = [used(sim, fabric, window=w)[0] for w in range(9)]
    beside = [sum(used(sim, fabric, window=w)[1:]) for w in range(9)]
    assert all(on_plan[w] > 60 and not beside[w] for w in (0, 1, 2, 7, 8))
    assert all(beside[w] > 60 and not on_plan[w] for w in (4, 5))
    # What had left the host before the failure still goes the old way.
    assert on_plan[3] <= 3
    # What was on the link is lost, and sent again without a timeout.
    assert 0 < sim.stats().drops_wire < 30
    assert sim.stats().timeouts == 0


def test_a_broken_plan_is_refused(build: Any) -> None:
    fabric = build.leaf_spine()
    with pytest.raises(ValueError, match="starts at node"):
        fabric.net.set_planned_path(0, 4, 0, [0, 40, 9])
    with pytest.raises(ValueError, match="does not end at host 4"):
        fabric.net.set_planned_path(0, 4, 0, [0, 32])


def test_hpcc_keeps_the_queue_short(build: Any) -> None:
    queues = []
    for kind in ("fixed", "hpcc"):
        fabric = build.star(5)
        transport = build.transport(cc=core.CcConfig(kind=kind), rto_ns=0)
        sim = build.run(fabric, transport, flows=[(h, 0, 4_000_000) for h in (1, 2, 3, 4)])
        assert sim.stats().finished
        queues.append(sim)
    fixed, hpcc = (int(s.links()["max_queue_bytes"][1]) for s in queues)
    assert hpcc < fixed / 50
    # And the link stays busy: no more than a tenth slower than line rate.
    assert queues[1].stats().sim_time_ns < 1.1 * queues[0].stats().sim_time_ns


def test_a_window_bounds_the_queue(build: Any) -> None:
    fabric = build.leaf_spine()
    job = build.ring(build.interleaved(fabric), 16 * 128_000, dependency="count")
    sim = build.run(fabric, build.transport(window="bdp", rto_ns=0), [job])
    # Each message in flight brings at most a bandwidth-delay product, 14 KB and one packet here.
    assert sim.links()["max_queue_bytes"].max() < 16 * 15_000


def test_hpcc_with_a_rate_per_hop(build: Any) -> None:
    fabric = build.star(5)
    cc = core.CcConfig(kind="hpcc", hpcc=core.HpccParams(multi_rate=True))
    sim = build.run(fabric, build.transport(cc=cc), flows=[(h, 0, 2_000_000) for h in (1, 2, 3, 4)])
    assert sim.stats().finished
    assert sim.links()["max_queue_bytes"][1] < 100_000


@pytest.mark.parametrize("interval", [1, 4, 20])
@pytest.mark.parametrize("packets", [3, 41, 1001])
def test_hpcc_does_not_stall_on_long_ack_intervals(build: Any, interval: int, packets: int) -> None:
    fabric = build.star(4)
    transport = build.transport(cc=core.CcConfig(kind="hpcc"), ack_interval=interval, rto_ns=0)
    sim = build.run(fabric, transport, flows=[(h, 0, packets * 1000 + 1) for h in (1, 2, 3)])
    assert sim.stats().finished
    # Each of three shares one link; a stall would take far longer.
    assert sim.stats().sim_time_ns < 3 * (packets + 2) * 838.4 * 1.5 + 50_000
