"""Runs as a whole: determinism, progress, stopping and going on, programs, several jobs, memory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ringstep_ns3 import _core as core

TABLES = (
    "flows", "steps", "collectives", "op_ranks", "jobs", "links", "link_series", "alpha_trace",
    "queue_histogram", "markers",
)  # fmt: skip


def all_bytes(sim: Any) -> dict[str, bytes]:
    return {
        f"{table}.{name}": column.tobytes()
        for table in TABLES
        for name, column in getattr(sim, table)().items()
    }


def busy(build: Any, seed: int = 1, **stats: Any) -> Any:
    """Random marks, spraying on two switches, loss, PFC and two jobs: all that draws numbers."""
    net = core.Network()
    hosts = [net.add_host() for _ in range(8)]
    common = {
        "red": [build.red()],
        "buffer_bytes": 400_000,
        "pfc": core.PfcConfig(enabled=True),
        "marking": "marker",
    }
    tors = [net.add_switch(core.SwitchConfig(lb=lb, **common)) for lb in ("spray", "ecmp")]
    spines = [net.add_switch(core.SwitchConfig(**common), tier=1) for _ in range(2)]
    for index, host in enumerate(hosts):
        net.add_link(host, tors[index % 2], 10 * build.GIG, 1000, loss=1e-4)
    for tor in tors:
        for spine in spines:
            net.add_link(tor, spine, 10 * build.GIG, 1000)
    sim = core.Simulation(
        net,
        build.transport("hpcc_run", recovery="selective", rto_ns=500_000),
        seed=seed,
        stats=core.StatsConfig(alpha_ns=100_000, **stats),
    )
    for job, ranks in ((1, hosts[:4]), (2, hosts[4:])):
        sim.add_job(
            build.ring(ranks, 800_000, job_id=job, passes=2, marker=core.MarkerParams(k=6554))
        )
    sim.add_flows([0, 5], [7, 2], [300_000, 300_000], [0, 100_000])
    return sim


def test_same_seed_same_bytes(build: Any) -> None:
    one, two = busy(build), busy(build)
    one.run()
    two.run()
    assert one.stats().finished
    assert all_bytes(one) == all_bytes(two)


def test_another_seed_differs(build: Any) -> None:
    one, two = busy(build, seed=1), busy(build, seed=2)
    one.run()
    two.run()
    assert all_bytes(one)["flows.end_ns"] != all_bytes(two)["flows.end_ns"]


def test_stopping_and_going_on_changes_nothing(build: Any) -> None:
    whole, parts = busy(build), busy(build)
    whole.run()
    for until in (1, 100_000, 333_333, 1_000_000, 2_000_000):
        stats = parts.run(until_ns=until)
        assert stats.stopped == "until"
        assert stats.sim_time_ns == until
    assert parts.run().stopped == "done"
    assert all_bytes(whole) == all_bytes(parts)


def test_looking_at_tables_changes_nothing(build: Any) -> None:
    whole, watched = busy(build), busy(build)
    whole.run()
    watched.run(on_progress=lambda *_: all_bytes(watched), progress_events=5000)
    assert all_bytes(whole) == all_bytes(watched)


def test_what_is_recorded_does_not_change_the_run(build: Any) -> None:
    loud, quiet = busy(build), busy(build, sample_ns=0, queue_bin_bytes=0, steps=False)
    loud.run()
    quiet.run()
    np.testing.assert_array_equal(loud.flows()["end_ns"], quiet.flows()["end_ns"])
    assert len(quiet.link_series()["link"]) == 0
    assert len(quiet.steps()["step"]) == 0


def test_progress_rises_to_the_end(build: Any) -> None:
    seen: list[tuple[int, float, int]] = []
    sim = busy(build)
    sim.run(on_progress=lambda *what: seen.append(what), progress_events=10_000)
    assert len(seen) == sim.stats().events // 10_000
    for earlier, later in itertools.pairwise(seen):
        assert earlier[0] <= later[0]
        assert earlier[1] <= later[1]
        assert earlier[2] + 10_000 == later[2]
    assert 0.5 < seen[-1][1] <= 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_run_keeps_what_is_done(build: Any, error: type[BaseException]) -> None:
    def stop(*_: object) -> None:
        raise error("enough")

    sim = busy(build)
    with pytest.raises(error, match="enough"):
        sim.run(on_progress=stop, progress_events=20_000)
    assert sim.stats().stopped == "callback"
    assert sim.stats().events == 20_000
    assert (sim.flows()["end_ns"] == core.NO_VALUE).any()
    whole = busy(build)
    whole.run()
    sim.run()
    assert all_bytes(whole) == all_bytes(sim)


def test_user_events_run_on_ns3s_clock(build: Any) -> None:
    seen: list[int] = []
    sim = busy(build)
    for at in (500_000, 10, 250_000):
        sim.at(at, lambda: seen.append(sim.stats().sim_time_ns))
    stats = sim.run()
    assert seen == [10, 250_000, 500_000]
    assert stats.ns3_events >= 5


def test_only_one_run_at_a_time(build: Any) -> None:
    outer, inner = busy(build), busy(build)
    outer.at(100, inner.run)
    with pytest.raises(RuntimeError, match="another simulation is running"):
        outer.run()
    assert inner.run().finished


def test_a_program_runs_in_the_order_of_its_dependencies(build: Any) -> None:
    fabric = build.star(4)
    ops = [
        core.Op(kind="compute", compute_ns=[10_000]),
        core.Op(kind="all_reduce", bytes_=40_000, after=[0]),
        core.Op(kind="compute", compute_ns=[30_000, 30_000, 30_000, 90_000], after=[0]),
        core.Op(kind="all_gather", bytes_=40_000, after=[1, 2]),
        core.Op(kind="send", algorithm="direct", src=0, dst=2, bytes_=1000, after=[3]),
    ]
    job = core.JobSpec(job_id=7, hosts=fabric.hosts, ops=ops, compute_scale=[1, 1, 2, 1])
    sim = build.run(fabric, build.transport(), [job])
    ranks = sim.op_ranks()
    places = list(zip(ranks["op"].tolist(), ranks["rank"].tolist(), strict=True))
    start = dict(zip(places, ranks["start_ns"].tolist(), strict=True))
    end = dict(zip(places, ranks["end_ns"].tolist(), strict=True))
    assert [end[0, r] for r in range(4)] == [10_000, 10_000, 20_000, 10_000]
    for rank in range(4):
        assert start[1, rank] == start[2, rank] == end[0, rank]
        assert start[3, rank] == max(end[1, rank], end[2, rank])
        assert start[4, rank] == end[3, rank]
    assert end[2, 3] == 100_000
    # Steps count on over the operations.
    steps = sim.steps()
    assert steps["step"][steps["op"] == 1].max() == 5
    assert sorted(steps["step"][steps["op"] == 3].tolist()) == [6, 7, 8]
    assert steps["step"][steps["op"] == 4].tolist() == [9]


def test_a_dependency_cycle_is_named(build: Any) -> None:
    fabric = build.star(2)
    ops = [
        core.Op(kind="compute", compute_ns=[1], after=[2]),
        core.Op(kind="compute", compute_ns=[1], after=[0]),
        core.Op(kind="compute", compute_ns=[1], after=[1]),
    ]
    sim = core.Simulation(fabric.net, build.transport())
    with pytest.raises(ValueError, match=r"job 3: .* cycle: 0 after 2 after 1 after 0"):
        sim.add_job(core.JobSpec(job_id=3, hosts=fabric.hosts, ops=ops))


@pytest.mark.parametrize("size", [0, 1, 3, 999, 1001, 77_777])
@pytest.mark.parametrize(
    "op",
    [
        {"kind": "all_reduce"},
        {"kind": "all_reduce", "channels": 3},
        {"kind": "all_reduce", "algorithm": "double_binary_tree"},
        {"kind": "all_reduce", "algorithm": "halving_doubling"},
        {"kind": "all_gather"},
        {"kind": "reduce_scatter"},
        {"kind": "broadcast", "chunks": 4},
        {"kind": "all_to_all", "algorithm": "direct"},
    ],
    ids=lambda op: "-".join(str(v) for v in op.values()),
)
def test_sizes_that_divide_by_nothing(build: Any, size: int, op: dict[str, Any]) -> None:
    fabric = build.star(5)
    job = core.JobSpec(job_id=1, hosts=fabric.hosts, ops=[core.Op(bytes_=size, **op)])
    sim = build.run(fabric, build.transport(), [job])
    assert sim.stats().finished
    moved = sim.jobs()["bytes"][0]
    expected = {"all_gather": 4, "reduce_scatter": 4, "broadcast": 4, "all_reduce": 8}
    if op["kind"] in expected and op.get("algorithm") != "halving_doubling":
        assert moved == expected[op["kind"]] * size


def test_a_zero_collective_releases_what_comes_after_it(build: Any) -> None:
    fabric = build.star(3)
    ops = [core.Op(kind="all_reduce"), core.Op(kind="all_reduce", bytes_=3000, after=[0])]
    job = core.JobSpec(job_id=1, hosts=fabric.hosts, ops=ops)
    assert build.run(fabric, build.transport(), [job]).stats().finished


@pytest.mark.parametrize("dependency", ["count", "in_order", "per_chunk"])
@pytest.mark.parametrize("sender", ["qp_per_step", "persistent", "qp_pool"])
@pytest.mark.parametrize("nic", ["round_robin", "in_order"])
def test_senders_and_dependencies_under_contention(
    build: Any, dependency: str, sender: str, nic: str
) -> None:
    fabric = build.leaf_spine(red=[build.red()])
    port = "sticky" if sender == "persistent" else "per_step"
    job = build.ring(
        build.interleaved(fabric), 16 * 64_000, passes=2, dependency=dependency, sender=sender,
        port=port,
    )  # fmt: skip
    sim = build.run(fabric, build.transport("hpcc_run", nic=nic), [job])
    assert sim.stats().finished
    assert sim.jobs()["bytes"][0] == 2 * 30 * 16 * 64_000
    assert sim.stats().retransmissions == 0
    flows = sim.flows()
    assert len(flows["id"]) == 2 * 30 * 16
    connections = len(set(flows["qp"].tolist()))
    if sender == "persistent":
        assert connections == 16
    if sender == "qp_pool":
        assert connections == 64


def test_a_persistent_connection_that_changes_its_port_reorders_and_is_warned_of(
    build: Any,
) -> None:
    fabric = build.leaf_spine(red=[build.red()])
    job = build.ring(build.interleaved(fabric), 16 * 64_000, sender="persistent")
    sim = build.run(fabric, build.transport("hpcc_run"), [job])
    assert any("job 1" in line and "sticky" in line for line in sim.warnings())
    assert sim.stats().retransmissions > 0


def test_a_straggler_holds_the_others_up(build: Any) -> None:
    late = 500_000
    fabric = build.star(4)
    plain = build.run(fabric, build.transport(), [build.ring(fabric.hosts, 40_000)])
    job = build.ring(fabric.hosts, 40_000, rank_delay_ns=[0, 0, late, 0])
    delayed = build.run(build.star(4), build.transport(), [job])
    gap = delayed.jobs()["jct_ns"][0] - plain.jobs()["jct_ns"][0]
    # Held-up steps then leave side by side, each at a share of the rate: the delay grows.
    assert late * 0.9 < gap < late * 1.5
    slow = build.ring(fabric.hosts, 40_000, step_delay_ns=[0, 0, 50_000, 0])
    throughout = build.run(build.star(4), build.transport(), [slow])
    assert throughout.jobs()["jct_ns"][0] > plain.jobs()["jct_ns"][0] + 50_000


def test_jobs_start_at_their_time_and_are_told_apart(build: Any) -> None:
    fabric = build.leaf_spine()
    jobs = [
        build.ring(fabric.hosts[:4], 80_000, job_id=5),
        build.ring(fabric.hosts[12:], 80_000, job_id=9, start_ns=500_000_000),
    ]
    sim = build.run(fabric, build.transport(), jobs, links="all")
    table = sim.jobs()
    assert table["job"].tolist() == [5, 9]
    assert table["start_ns"].tolist() == [0, 500_000_000]
    assert table["jct_ns"][0] == table["jct_ns"][1]
    series = sim.link_series()
    assert set(series["job"].tolist()) == {5, 9}
    assert (series["time_ns"][series["job"] == 9] >= 500_000_000).all()


def test_step_overlap_as_number_and_as_distance(build: Any) -> None:
    fabric = build.leaf_spine(red=[build.red()])
    job = build.ring(build.interleaved(fabric), 16 * 128_000, dependency="count")
    sim = build.run(fabric, build.transport("hpcc_config"), [job], sample_ns=100_000)
    series, links = sim.link_series(), sim.links()
    assert (series["steps"] >= 1).all()
    # So many distinct steps lie at least that far apart.
    assert (series["distance"] >= series["steps"] - 1).all()
    assert series["steps"].max() == links["max_steps"].max() > 1
    assert series["distance"].max() == links["max_distance"].max()
    fabric_links = np.isin(links["link"], series["link"])
    assert series["data_packets"].sum() == links["data_packets"][fabric_links].sum()


def test_every_hop_is_one_event(build: Any) -> None:
    fabric = build.leaf_spine(red=[build.red()])
    job = build.ring(build.interleaved(fabric), 16 * 128_000)
    sim = build.run(fabric, build.transport("hpcc_config", rto_ns=0), [job])
    stats = sim.stats()
    assert stats.hops == 8 * stats.data_packets
    assert stats.events < 1.02 * stats.hops


def test_memory_stays_flat_over_steps(build: Any) -> None:
    peaks = []
    for passes in (2, 20):
        fabric = build.leaf_spine(red=[build.red()])
        job = build.ring(build.interleaved(fabric), 16 * 16_000, passes=passes)
        sim = build.run(fabric, build.transport("hpcc_run"), [job], steps=False)
        peaks.append(sim.stats().peak_packets)
    assert peaks[1] < 2 * peaks[0]


@pytest.mark.slow
def test_a_ring_of_256_stays_flat_in_memory(build: Any) -> None:
    fabric = build.leaf_spine(hosts_per_tor=16, tors=16, spines=16, red=[build.red()])
    job = build.ring(build.interleaved(fabric), 256 * 8000)
    sim = core.Simulation(
        fabric.net, build.transport("hpcc_run"), stats=core.StatsConfig(flows=False, sample_ns=0)
    )
    sim.add_job(job)
    resident: list[int] = []
    sim.run(
        on_progress=lambda *_: resident.append(core.memory_peak_bytes()), progress_events=500_000
    )
    assert sim.stats().finished
    assert resident[-1] - resident[len(resident) // 4] < 8 << 20


@pytest.mark.slow
def test_four_thousand_hosts_and_ten_thousand_queue_pairs_load(build: Any) -> None:
    fabric = build.leaf_spine(hosts_per_tor=64, tors=64, spines=32)
    sim = core.Simulation(fabric.net, build.transport("hpcc_run", rto_ns=0))
    n = len(fabric.hosts)
    sources = [i % n for i in range(10_000)]
    targets = [(s + 1 + i * 31 % (n - 1)) % n for i, s in enumerate(sources)]
    sim.add_flows(sources, targets, [3000] * 10_000, [0] * 10_000)
    assert sim.run().finished


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"hosts": [0, 99]}, r"job 1: hosts = 99"),
        ({"hosts": [0, 0]}, r"host 0 carries two ranks"),
        ({"hosts": []}, r"job 1 has no hosts"),
        ({"hosts": [0]}, r"a collective needs at least two ranks"),
        ({"job_id": 0}, r"job_id = 0: must lie in 1..16383"),
        ({"sender": "quic"}, r'sender = "quic"'),
        ({"dependency": "none"}, r'dependency = "none"'),
        ({"notify": "never"}, r'notify = "never"'),
        ({"rank_delay_ns": [1]}, r"one value per rank \(4\) or none"),
        ({"priority": 1}, r"priority = 1"),
        ({"passes": 0}, r"passes = 0"),
        ({"pool": 257}, r"pool = 257: must lie in 1..256"),
        ({"bytes_": -1}, r"bytes_ = -1"),
        ({"rings": [[0, 1], [1, 2]]}, r"rings = 1: a rank is in two rings"),
        ({"algorithm": "butterfly"}, r'algorithm "butterfly" does not do all_reduce'),
        ({"algorithm": "ring_2d", "dims": [3, 2]}, r"product is the number of ranks"),
        ({"kind": "gather"}, r'kind = "gather"'),
    ],
)
def test_jobs_that_cannot_be(build: Any, change: dict[str, Any], text: str) -> None:
    fabric = build.star(4)
    change = {"hosts": fabric.hosts, "bytes_": 1000} | change
    sim = core.Simulation(fabric.net, build.transport())
    with pytest.raises(ValueError, match=text):
        sim.add_job(build.ring(change.pop("hosts"), change.pop("bytes_"), **change))


def test_a_job_id_is_used_once(build: Any) -> None:
    fabric = build.star(4)
    sim = core.Simulation(fabric.net, build.transport())
    sim.add_job(build.ring(fabric.hosts, 1000))
    with pytest.raises(ValueError, match="job_id = 1: is in use"):
        sim.add_job(build.ring(fabric.hosts, 1000))


def test_networks_that_cannot_be(build: Any) -> None:
    net = core.Network()
    a, b = net.add_host("a"), net.add_host("b")
    with pytest.raises(ValueError, match=r"host 0 \(a\) has 0 cables"):
        core.Simulation(net, build.transport())
    islands = [net.add_switch(core.SwitchConfig()) for _ in range(2)]
    net.add_link(a, islands[0], build.GIG, 1000)
    net.add_link(b, islands[1], build.GIG, 1000)
    sim = core.Simulation(net, build.transport())
    with pytest.raises(ValueError, match="host 1 cannot be reached from host 0"):
        sim.add_flow(core.FlowSpec(src=a, dst=b, bytes_=1))
    with pytest.raises(ValueError, match="no such node"):
        net.add_link(0, 7, build.GIG, 1000)
    with pytest.raises(ValueError, match="no such cable"):
        net.add_event(0, 5, "fail")


def test_unknown_keywords_and_types_are_named() -> None:
    with pytest.raises(TypeError, match='unexpected keyword argument "mtu"'):
        core.TransportConfig(mtu=1000)
    with pytest.raises(TypeError, match="mtu_bytes = 'big' has the wrong type"):
        core.TransportConfig(mtu_bytes="big")
    with pytest.raises(TypeError, match='needs the keyword argument "p_max"'):
        core.RedEntry(rate_bps=1, k_min_bytes=0, k_max_bytes=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mtu_bytes", 10),
        ("window", "wide"),
        ("recovery", "tcp"),
        ("nic", "random"),
        ("ack_interval", 0),
        ("rto_ns", -1),
    ],
)
def test_transports_that_cannot_be(build: Any, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        core.Simulation(build.star(2).net, core.TransportConfig(**{field: value}))


def test_a_background_flow_is_found_by_its_number(build: Any) -> None:
    fabric = build.star(4)
    sim = core.Simulation(fabric.net, build.transport("hpcc_run"))
    late = sim.add_flow(core.FlowSpec(src=0, dst=1, bytes_=5000, start_ns=9000))
    early = sim.add_flow(core.FlowSpec(src=2, dst=3, bytes_=7000))
    sim.trace_rate(0, 1)
    sim.run()
    flows = sim.flows()
    assert dict(zip(flows["op"].tolist(), flows["bytes"].tolist(), strict=True)) == {
        late: 5000,
        early: 7000,
    }
    # Numbers count from the first that was sent; the rate trace uses them too.
    number = flows["id"][flows["op"] == late][0]
    assert number == 1
    assert set(sim.rate_trace()["flow"].tolist()) == {number}


def test_a_ring_2d_over_unequal_links_completes(build: Any) -> None:
    net = core.Network()
    hub = net.add_switch(core.SwitchConfig())
    hosts = [net.add_host() for _ in range(8)]
    for index, host in enumerate(hosts):
        net.add_link(host, hub, (10 if index % 2 else 40) * build.GIG, 500 + 3000 * index)
    sim = core.Simulation(net, build.transport())
    sim.add_job(build.ring(hosts, 800_001, algorithm="ring_2d", dims=[4, 2], channels=4, passes=2))
    assert sim.run().finished


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_any_32_bit_seed_will_do(build: Any, seed: int) -> None:
    sim = busy(build, seed=seed)
    assert sim.run().finished
