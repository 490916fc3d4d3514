"""Agreement with astra-sim's ns-3 backend to the nanosecond, on cases of docs/validation.md.

The numbers are results of that backend; bench/validate_astra.py compares all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

core = pytest.importorskip(
    "ringstep_ns3._core", reason="the simulator is not installed: pip install ./ns3-model"
)

CASES = json.loads((Path(__file__).parent / "data" / "astra_gates.json").read_text())["cases"]
RATE_BPS = 10 * 10**9
TORS = SPINES = 4
ENDPOINT_NS = 10


def simulation(case: dict[str, Any]) -> Any:
    """Return the fabric of the case in the settings that compare with ns-3."""
    hosts = case["hosts"]
    red = []
    if case["dcqcn"]:
        step = case["mark_above_bytes"]
        red = [core.RedEntry(rate_bps=RATE_BPS, k_min_bytes=step, k_max_bytes=step, p_max=1.0)]
    switch = core.SwitchConfig(
        buffer_bytes=case["buffer_mib"] << 20,
        pfc=core.PfcConfig(enabled=True, headroom="hpcc", pause_bytes=31),
        red=red,
        ecmp_hash="ns3_compat",
    )
    net = core.Network()
    for _ in range(hosts):
        net.add_host()
    for _ in range(TORS + SPINES):
        net.add_switch(switch)
    for host in range(hosts):
        tor = host % TORS if case["placement"] == "interleaved" else host // (hosts // TORS)
        net.add_link(host, hosts + tor, RATE_BPS, case["delay_ns"])
    for tor in range(TORS):
        for spine in range(SPINES):
            net.add_link(hosts + tor, hosts + TORS + spine, RATE_BPS, case["delay_ns"])
    cc = core.CcConfig(preset="hpcc_config") if case["dcqcn"] else core.CcConfig(kind="fixed")
    transport = core.TransportConfig(
        header_bytes=36,
        ack_bytes=48,
        cc=cc,
        window=case["window"],
        rto_ns=0,
        round_to_ns=True,
        sport_base=10_000,
        dport=100,
    )
    return core.Simulation(net, transport)


@pytest.mark.parametrize(
    "case", [c for c in CASES if "flows" in c], ids=lambda case: str(case["case"])
)
def test_every_flow_ends_in_the_same_nanosecond(case: dict[str, Any]) -> None:
    sim = simulation(case)
    ports: dict[tuple[int, int], int] = {}
    for src, dst, size, start in case["flows"]:
        port = ports.get((src, dst), 10_000)
        ports[src, dst] = port + 1
        sim.add_flow(core.FlowSpec(src=src, dst=dst, bytes_=size, start_ns=start, sport=port))
    stats = sim.run()
    flows = sim.flows()
    took = dict(zip(flows["op"].tolist(), flows["end_ns"] - flows["start_ns"], strict=True))
    assert [took[i] for i in range(len(case["flows"]))] == case["fct_ns"]
    assert stats.pauses == case["pauses"]


@pytest.mark.parametrize(
    "case", [c for c in CASES if "flows" not in c], ids=lambda case: str(case["case"])
)
def test_every_rank_of_a_ring_ends_in_the_same_nanosecond(case: dict[str, Any]) -> None:
    sim = simulation(case)
    hosts = case["hosts"]
    sim.add_job(
        core.JobSpec(
            job_id=1,
            hosts=list(range(hosts)),
            ops=[core.Op(kind="all_reduce", bytes_=case["chunk_bytes"] * hosts)],
            dependency="count",
            notify="sender_ack",
            endpoint_delay_ns=ENDPOINT_NS,
            rank_delay_ns=[ENDPOINT_NS] * hosts,
        )
    )
    sim.run()
    assert sim.op_ranks()["end_ns"].tolist() == case["finish_ns"]
    assert max(case["finish_ns"]) == case["cct_ns"]
