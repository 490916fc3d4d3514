"""Fabrics and jobs for the tests of the simulator's core."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

core = pytest.importorskip(
    "ringstep_ns3._core", reason="the simulator is not installed: pip install ./ns3-model"
)

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
if str(VECTORS) not in sys.path:
    sys.path.insert(0, str(VECTORS))

GIG = 10**9


@dataclass
class Fabric:
    """A network with names for its parts."""

    net: Any
    hosts: list[int]
    tors: list[int]
    spines: list[int]


class Build:
    """Short ways to networks, transports and jobs."""

    GIG = GIG

    @staticmethod
    def red(rate: int = 10 * GIG, low: int = 50_000, high: int = 100_000, p: float = 0.2) -> Any:
        return core.RedEntry(rate_bps=rate, k_min_bytes=low, k_max_bytes=high, p_max=p)

    @staticmethod
    def star(hosts: int, rate: int = 10 * GIG, delay_ns: int = 1000, **switch: Any) -> Fabric:
        net = core.Network()
        ids = [net.add_host() for _ in range(hosts)]
        hub = net.add_switch(core.SwitchConfig(**switch))
        for host in ids:
            net.add_link(host, hub, rate, delay_ns)
        return Fabric(net, ids, [hub], [])

    @staticmethod
    def leaf_spine(
        hosts_per_tor: int = 4,
        tors: int = 4,
        spines: int = 4,
        rate: int = 10 * GIG,
        delay_ns: int = 1000,
        **switch: Any,
    ) -> Fabric:
        net = core.Network()
        ids = [net.add_host() for _ in range(hosts_per_tor * tors)]
        leaf = [net.add_switch(core.SwitchConfig(**switch)) for _ in range(tors)]
        top = [net.add_switch(core.SwitchConfig(**switch), tier=1) for _ in range(spines)]
        for index, host in enumerate(ids):
            net.add_link(host, leaf[index // hosts_per_tor], rate, delay_ns)
        for low in leaf:
            for high in top:
                net.add_link(low, high, rate, delay_ns)
        return Fabric(net, ids, leaf, top)

    @staticmethod
    def interleaved(fabric: Fabric) -> list[int]:
        """Hosts in an order in which every ring edge crosses the spines."""
        per = len(fabric.hosts) // len(fabric.tors)
        return [fabric.hosts[t * per + i] for i in range(per) for t in range(len(fabric.tors))]

    @staticmethod
    def transport(preset: str | None = None, **options: Any) -> Any:
        """DCQCN with ``preset``, or line rate without congestion control."""
        if "cc" not in options:
            options["cc"] = core.CcConfig(preset=preset) if preset else core.CcConfig(kind="fixed")
        return core.TransportConfig(**options)

    @staticmethod
    def ring(hosts: Sequence[int], bytes_: int, **job: Any) -> Any:
        op = {
            name: job.pop(name)
            for name in (
                "kind", "algorithm", "rings", "channels", "passes", "dims", "chunks", "root",
            )
            if name in job
        }  # fmt: skip
        op.setdefault("kind", "all_reduce")
        job.setdefault("job_id", 1)
        return core.JobSpec(hosts=list(hosts), ops=[core.Op(bytes_=bytes_, **op)], **job)

    @staticmethod
    def run(
        fabric: Fabric,
        transport: Any,
        jobs: Sequence[Any] = (),
        flows: Sequence[tuple[int, int, int]] = (),
        seed: int = 1,
        **stats: Any,
    ) -> Any:
        """Run to the end; return the simulation."""
        sim = core.Simulation(fabric.net, transport, seed=seed, stats=core.StatsConfig(**stats))
        for job in jobs:
            sim.add_job(job)
        for src, dst, size in flows:
            sim.add_flow(core.FlowSpec(src=src, dst=dst, bytes_=size))
        sim.run()
        return sim


@pytest.fixture(scope="session")
def build() -> type[Build]:
    return Build
