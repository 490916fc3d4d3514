"""The compiled P4 program decides on marks inside a run, as a policy in Python.

One ToR of the simulated fabric hands each data packet at dequeue to the software switch that runs
the committed program, with the random number of that decision. The run must be the one in which the
simulator's own marker decides.
"""

from __future__ import annotations

import sys
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringstep_ns3 import _core as core

P4_TESTS = Path(__file__).resolve().parents[2] / "p4"
if str(P4_TESTS) not in sys.path:
    sys.path.insert(0, str(P4_TESTS))

committed_program = pytest.importorskip(
    "committed_program", reason="needs the software switch: pip install -e ."
)
marker = pytest.importorskip("ringstep.protocol.marker")
rocev2 = pytest.importorskip("ringstep.protocol.rocev2")

JOB = 5
CE = 3
OPCODES = {
    (True, True): rocev2.Opcode.RC_WRITE_ONLY,
    (True, False): rocev2.Opcode.RC_WRITE_FIRST,
    (False, False): rocev2.Opcode.RC_WRITE_MIDDLE,
    (False, True): rocev2.Opcode.RC_WRITE_LAST,
}


class P4Tor:
    """The program in a switch with the ports of a simulated ToR."""

    def __init__(self, ports: int, scope: str, params: Any) -> None:
        self.bench = committed_program.Bench()
        self.bench.hosts(*range(1, ports + 1))
        self.bench.job_params(JOB, params)
        self.qp = 0x1234
        self.seen = 0
        for port in range(1, ports + 1):
            self.bench.job_by_dst_qp(committed_program.host(port), self.qp, JOB)
            self.bench.block_map(JOB, port, 40 + (port if scope == "port" else 0))

    def __call__(self, packet: Any) -> bool:
        self.seen += 1
        reth = None
        if packet.first:
            reth = rocev2.Reth(va=0, rkey=1, dma_len=packet.payload_bytes)
        frame = rocev2.RoceFrame(
            src_mac=1,
            dst_mac=2,
            src_ip=IPv4Address("10.9.0.1"),
            dst_ip=committed_program.host(packet.port),
            sport=packet.sport,
            bth=rocev2.Bth(
                opcode=OPCODES[packet.first, packet.last], dest_qp=self.qp, psn=packet.psn
            ),
            payload=b"",
            reth=reth,
            ecn=2 if packet.ect else CE,
        )
        self.bench.draw.value = packet.r
        ((port, data),) = self.bench.send(rocev2.build(frame), packet.now_ns // 1000)
        assert port == packet.port
        return packet.ect and rocev2.parse(data).ecn == CE


@pytest.mark.parametrize("scope", ["switch", "port"])
@pytest.mark.parametrize("mode", ["per_step", "anchored"])
def test_the_program_marks_what_the_simulators_marker_marks(
    build: Any, scope: str, mode: str
) -> None:
    anchored = mode == "anchored"
    reference = marker.MarkerParams(
        k=6554,
        n_sample=4,
        n_warmup=2,
        q_gate=None,
        t_win=50,
        mode=marker.ProgressMode(mode),
        packets_per_step=16 if anchored else 0,
    )
    params = core.MarkerParams(
        k=6554,
        n_sample=4,
        n_warmup=2,
        q_gate_packets=None,
        t_win_us=50,
        anchored=anchored,
        packets_per_step=16 if anchored else 0,
    )

    def simulate(policy: Any) -> Any:
        net = core.Network()
        hosts = [net.add_host() for _ in range(8)]
        plain = {"red": [build.red(low=20_000, high=60_000)]}
        own = "none" if policy else "marker"
        tors = [
            net.add_switch(core.SwitchConfig(marking=own, marker_scope=scope, **plain)),
            net.add_switch(core.SwitchConfig(**plain)),
        ]
        spines = [net.add_switch(core.SwitchConfig(**plain), tier=1) for _ in range(2)]
        for index, host in enumerate(hosts):
            net.add_link(host, tors[index // 4], 10 * build.GIG, 1000)
        for tor in tors:
            for spine in spines:
                net.add_link(tor, spine, 10 * build.GIG, 1000)
        transport = build.transport("hpcc_run", first_psn=0xFFFF00 if anchored else 0)
        sim = core.Simulation(net, transport, seed=4)
        order = [hosts[i // 2 + 4 * (i % 2)] for i in range(8)]
        job = build.ring(
            order, 8 * 16_000, passes=2, job_id=JOB, marker=params, dependency="count",
            sender="persistent" if anchored else "qp_per_step",
        )  # fmt: skip
        sim.add_job(job)
        if policy:
            sim.set_marking_policy(tors[0], policy)
        assert sim.run().finished
        return sim

    tor = P4Tor(6, scope, reference)
    inside, outside = simulate(None), simulate(tor)
    assert tor.seen == inside.markers()["data"].sum()
    assert inside.stats().marks_marker > 20
    for name, column in inside.links().items():
        if name in ("marks_marker", "marks_red"):
            continue
        np.testing.assert_array_equal(column, outside.links()[name], err_msg=name)
    assert inside.stats().marks_marker == outside.stats().marks_marker
    np.testing.assert_array_equal(inside.flows()["end_ns"], outside.flows()["end_ns"])
    counter = tor.bench.counter("job_marks", JOB)
    assert counter == inside.markers()["marks"].sum()
