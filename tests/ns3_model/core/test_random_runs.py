"""Whatever is combined: runs end, every byte arrives, and what must not be lost is not."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringstep_ns3 import _core as core

RATES = (10, 25, 40)


@st.composite
def scenarios(draw: Any) -> dict[str, Any]:
    return {
        "tors": draw(st.integers(1, 3)),
        "spines": draw(st.integers(1, 3)),
        "hosts_per_tor": draw(st.integers(2, 4)),
        "host_gbps": draw(st.sampled_from(RATES)),
        "up_gbps": draw(st.sampled_from(RATES)),
        "delay_ns": draw(st.sampled_from((0, 600, 5000))),
        "loss": draw(st.sampled_from((0.0, 0.0, 0.003))),
        "pfc": draw(st.booleans()),
        "red": draw(st.booleans()),
        "lb": draw(st.sampled_from(("ecmp", "flowlet", "spray", "least_loaded"))),
        "marking": draw(st.sampled_from(("none", "marker", "priority"))),
        "scope": draw(st.sampled_from(("port", "switch"))),
        "cc": draw(st.sampled_from(("fixed", "hpcc", *core.dcqcn_preset_names()))),
        "window": draw(st.sampled_from(("none", "bdp", "variable"))),
        "recovery": draw(st.sampled_from(("gbn", "selective"))),
        "nic": draw(st.sampled_from(("round_robin", "in_order"))),
        "ack_interval": draw(st.sampled_from((1, 3, 16))),
        "ack_priority": draw(st.booleans()),
        "mtu": draw(st.sampled_from((512, 1000, 4096))),
        "kind": draw(st.sampled_from(("all_reduce", "all_gather", "reduce_scatter"))),
        "bytes": draw(st.integers(0, 60_000)),
        "channels": draw(st.integers(1, 2)),
        "passes": draw(st.integers(1, 2)),
        "sender": draw(st.sampled_from(("qp_per_step", "persistent", "qp_pool"))),
        "port": draw(st.sampled_from(("per_step", "sticky"))),
        "dependency": draw(st.sampled_from(("count", "in_order", "per_chunk"))),
        "notify": draw(st.sampled_from(("receiver", "sender_ack"))),
        "endpoint_delay_ns": draw(st.sampled_from((0, 70))),
        "fail": draw(st.booleans()),
        "seed": draw(st.integers(0, 1000)),
    }


def simulate(s: dict[str, Any]) -> Any:
    net = core.Network()
    rates = {s["host_gbps"], s["up_gbps"]}
    red = [
        core.RedEntry(rate_bps=r * 10**9, k_min_bytes=5000, k_max_bytes=50_000, p_max=0.5)
        for r in rates
    ]
    config = core.SwitchConfig(
        buffer_bytes=940_000 if s["pfc"] else 0,
        pfc=core.PfcConfig(enabled=s["pfc"]),
        red=red if s["red"] else [],
        lb=s["lb"],
        marking=s["marking"],
        marker_scope=s["scope"],
    )
    hosts = [net.add_host() for _ in range(s["tors"] * s["hosts_per_tor"])]
    tors = [net.add_switch(config) for _ in range(s["tors"])]
    spines = [net.add_switch(config, tier=1) for _ in range(s["spines"])]
    for index, host in enumerate(hosts):
        rate = s["host_gbps"] * 10**9
        net.add_link(host, tors[index % s["tors"]], rate, s["delay_ns"], loss=s["loss"])
    for tor in tors:
        for spine in spines:
            cable = net.add_link(tor, spine, s["up_gbps"] * 10**9, s["delay_ns"])
    if s["fail"]:
        net.add_event(20_000, cable, "fail")
        net.add_event(150_000, cable, "restore")
    cc = (
        core.CcConfig(kind=s["cc"])
        if s["cc"] in ("fixed", "hpcc")
        else core.CcConfig(preset=s["cc"])
    )
    transport = core.TransportConfig(
        mtu_bytes=s["mtu"],
        cc=cc,
        window=s["window"],
        recovery=s["recovery"],
        nic=s["nic"],
        ack_interval=s["ack_interval"],
        ack_priority=s["ack_priority"],
        rto_ns=400_000,
        nak_interval_ns=20_000,
    )
    sim = core.Simulation(net, transport, seed=s["seed"])
    op = core.Op(kind=s["kind"], bytes_=s["bytes"], channels=s["channels"], passes=s["passes"])
    sim.add_job(
        core.JobSpec(
            job_id=1,
            hosts=hosts,
            ops=[op],
            sender=s["sender"],
            port=s["port"],
            dependency=s["dependency"],
            notify=s["notify"],
            endpoint_delay_ns=s["endpoint_delay_ns"],
            marker=core.MarkerParams(n_sample=2, n_warmup=1, q_gate_packets=0),
        )
    )
    sim.add_flow(core.FlowSpec(src=hosts[0], dst=hosts[-1], bytes_=30_000, priority=4))
    sim.run(until_ns=2_000_000_000)
    return sim


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_any_combination_ends_well(s: dict[str, Any]) -> None:
    sim = simulate(s)
    stats = sim.stats()
    assert stats.finished, (stats.stopped, stats.sim_time_ns)
    n = s["tors"] * s["hosts_per_tor"]
    rounds = 2 if s["kind"] == "all_reduce" else 1
    assert sim.jobs()["bytes"][0] == rounds * (n - 1) * s["passes"] * s["bytes"]

    flows, links = sim.flows(), sim.links()
    assert (flows["delivered_ns"] <= flows["end_ns"]).all()
    # No message is faster than its bytes on its sender's link.
    fastest = flows["bytes"] * 8 / s["host_gbps"] + 2 * s["delay_ns"]
    assert (flows["delivered_ns"] - flows["start_ns"] >= fastest.astype(np.int64)).all()
    assert stats.drops_buffer == 0
    if s["loss"] == 0 and not s["fail"]:
        assert stats.drops_wire == 0
        # What cannot reorder is never sent again, but for a timeout.
        one_path = s["sender"] != "persistent" or s["port"] == "sticky"
        one_queue = s["marking"] != "priority" or s["sender"] == "qp_per_step"
        kept = s["lb"] == "ecmp" or (s["lb"] == "least_loaded" and s["sender"] == "qp_per_step")
        if kept and one_path and one_queue and stats.timeouts == 0:
            assert stats.retransmissions == 0
    assert links["packets"].sum() >= stats.hops
    assert stats.marks_red == links["marks_red"].sum()
    assert stats.marks_marker == links["marks_marker"].sum()


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_any_combination_repeats_byte_for_byte(s: dict[str, Any]) -> None:
    one, two = simulate(s), simulate(s)
    for table in ("flows", "links", "link_series", "steps", "markers", "queue_histogram"):
        first, second = getattr(one, table)(), getattr(two, table)()
        for name, column in first.items():
            assert column.tobytes() == second[name].tobytes(), f"{table}.{name}"
