"""The marker of the core: golden vectors, and the same code in every switch of a run."""

from __future__ import annotations

from typing import Any

import marker_vectors
import numpy as np
import pytest

from ringstep_ns3 import _core as core

VECTORS = {vector.name: vector for vector in marker_vectors.load_all()}


def params_of(text: dict[str, str]) -> Any:
    return core.MarkerParams(
        k=int(text["k"]),
        tau_num=int(text["tau_num"]),
        tau_den=int(text["tau_den"]),
        t_win_us=int(text["t_win"]),
        n_sample=int(text["n_sample"]),
        n_warmup=int(text["n_warmup"]),
        alpha_max=int(text["alpha_max"]),
        q_gate_packets=None if text["q_gate"] == "none" else int(text["q_gate"]),
        step_bits=int(text["step_bits"]),
        anchored=text["mode"] == "anchored",
        packets_per_step=int(text["packets_per_step"]),
        enabled=text["enabled"] == "1",
        generation=int(text["generation"]),
    )


@pytest.mark.parametrize("name", VECTORS)
def test_golden_vector(name: str) -> None:
    markers: dict[int, Any] = {}
    for settings, changed, row in VECTORS[name].replay():
        for job in {job for job, _ in changed}:
            text = settings.jobs[job]
            if job in markers:
                markers[job].update(params_of(text))
            else:
                markers[job] = core.Marker(params_of(text), text["scope"])
        for (job, port), block in settings.blocks.items():
            if job in markers:
                markers[job].set_block(port, block)
        if not row.followed:
            continue
        where = f"{name}, line {row.line}"
        marker = markers[row.job]
        mark, ce, progress = marker.on_packet(
            row.now_us, row.step, row.psn, row.is_last, row.ecn in (1, 2), row.r, row.qdepth,
            bool(row.red), row.port,
        )  # fmt: skip
        assert int(mark) == row.mark, where
        assert (3 if ce else row.ecn) == row.ecn_out, where
        assert progress == row.progress, where
        assert marker.block(row.port) == row.state, where
        if row.base is not None:
            assert marker.anchors()[row.step % 4][2] == row.base, where


def marked_run(build: Any, scope: str, policy: bool = False, seed: int = 1, **job: Any) -> Any:
    fabric = build.leaf_spine(
        red=[build.red()], marking="none" if policy else "marker", marker_scope=scope
    )
    params = core.MarkerParams(k=6554, q_gate_packets=2, n_sample=4, n_warmup=2)
    sim = core.Simulation(
        fabric.net, build.transport("hpcc_run"), seed=seed, stats=core.StatsConfig(alpha_ns=50_000)
    )
    sim.add_job(build.ring(build.interleaved(fabric), 16 * 128_000, marker=params, **job))
    if policy:
        for switch in fabric.tors + fabric.spines:
            marker = core.Marker(params, scope)

            def decide(packet: Any, marker: Any = marker) -> bool:
                if not packet.job:
                    return False
                mark, _, _ = marker.on_packet(
                    packet.now_ns // 1000, packet.step & 0x3FFF, packet.psn, packet.last,
                    packet.ect, packet.r, packet.qdepth_packets, packet.red, packet.port,
                )  # fmt: skip
                return bool(mark)

            sim.set_marking_policy(switch, decide)
    sim.run()
    return sim


@pytest.mark.parametrize("scope", ["port", "switch"])
def test_a_policy_in_python_that_runs_the_marker_gives_the_same_run(build: Any, scope: str) -> None:
    # Departures are carried out late in one run and at their time in the other: all must agree.
    inside, outside = marked_run(build, scope), marked_run(build, scope, policy=True)
    assert inside.stats().marks_marker > 100
    assert inside.stats().marks_marker == outside.stats().marks_marker
    for table in ("flows", "links", "link_series"):
        one, two = getattr(inside, table)(), getattr(outside, table)()
        for column in one:
            np.testing.assert_array_equal(one[column], two[column], err_msg=f"{table}.{column}")


def test_counters_and_alpha_trace_are_kept_per_job_and_switch(build: Any) -> None:
    sim = marked_run(build, "port")
    counters = sim.markers()
    assert set(counters["job"].tolist()) == {1}
    assert len(counters["switch"]) == 8
    # Every data packet passes two ToRs and one spine.
    assert counters["data"].sum() == 3 * sim.stats().data_packets
    assert counters["marks"].sum() == sim.stats().marks_marker
    trace = sim.alpha_trace()
    assert (trace["alpha"] >= 1).all()
    assert len(trace["time_ns"]) > 0


def test_marking_only_where_a_switch_is_told_to(build: Any) -> None:
    net = core.Network()
    hosts = [net.add_host() for _ in range(4)]
    tors = [net.add_switch(core.SwitchConfig(marking="marker")) for _ in range(2)]
    spine = net.add_switch(core.SwitchConfig(), tier=1)
    for index, host in enumerate(hosts):
        net.add_link(host, tors[index // 2], 10 * build.GIG, 1000)
    for tor in tors:
        net.add_link(tor, spine, 10 * build.GIG, 1000)
    sim = core.Simulation(net, build.transport("hpcc_run"))
    order = [hosts[0], hosts[2], hosts[1], hosts[3]]
    sim.add_job(build.ring(order, 400_000, marker=core.MarkerParams()))
    sim.run()
    assert set(sim.markers()["switch"].tolist()) == set(tors)


def test_jobs_without_a_marker_are_left_alone(build: Any) -> None:
    fabric = build.leaf_spine(marking="marker")
    sim = build.run(fabric, build.transport("hpcc_run"), [build.ring(fabric.hosts, 160_000)])
    assert len(sim.markers()["job"]) == 0


def test_an_exception_in_a_policy_ends_the_run_and_comes_out(build: Any) -> None:
    fabric = build.star(2)
    sim = core.Simulation(fabric.net, build.transport())
    sim.add_flow(core.FlowSpec(src=0, dst=1, bytes_=10_000))

    def broken(packet: Any) -> bool:
        raise RuntimeError(f"no idea about psn {packet.psn}")

    sim.set_marking_policy(fabric.tors[0], broken)
    with pytest.raises(RuntimeError, match="no idea about psn 0"):
        sim.run()
    assert sim.stats().stopped == "callback"
    sim.set_marking_policy(fabric.tors[0], None)
    sim.run()
    assert sim.stats().data_packets == 10


def test_priority_for_laggards_serves_the_last_step_first(build: Any) -> None:
    fabric = build.leaf_spine(red=[build.red()], marking="priority")
    job = build.ring(build.interleaved(fabric), 16 * 128_000, marker=core.MarkerParams())
    sim = build.run(fabric, build.transport("hpcc_run"), [job])
    assert sim.stats().finished
    assert sim.stats().marks_marker == 0
    assert sim.stats().retransmissions == 0


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("k", 70000, "k = 70000"),
        ("tau_den", 0, "tau_den = 0"),
        ("alpha_max", 0, "alpha_max = 0"),
        ("step_bits", 15, "step_bits = 15"),
        ("generation", 0, "generation = 0"),
    ],
)
def test_parameters_out_of_range(field: str, value: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        core.Marker(core.MarkerParams(**{field: value}))
