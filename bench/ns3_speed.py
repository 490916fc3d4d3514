"""Packet-hops per second of the simulator on one core, against astra-sim's ns-3 backend.

The scenario is the one on which that backend was measured: ring AllReduce, 4 ToR + 4 spine
switches, 10 Gb/s and 1 us links, hosts interleaved over the ToRs, a QP per step, counted arrivals,
DCQCN ``hpcc_config``, RED 50/100 KB 0.2, packets of 1036 and ACKs of 48 bytes. A hop is one data
packet or ACK crossing one link. Statistics are recorded as by default.

``--astra`` takes the command that runs the same scenario there and prints ``hops=N`` and
``seconds=S`` on a line each; both then run in turn on this machine and the ratio is printed.
``core_events_per_s`` counts events of the model's own queue; ns-3's scheduler sees a handful.

    python bench/ns3_speed.py [--json] [--hosts N] [--chunk-bytes N] [--window none|bdp|variable]
        [--repeats N] [--no-stats] [--astra COMMAND]
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

try:
    from ringstep_ns3 import _core as core
except ImportError:
    sys.exit("the simulator is not installed: pip install ./ns3-model")

TORS = SPINES = 4
RATE_BPS = 10 * 10**9
DELAY_NS = 1000


@dataclass(frozen=True)
class Run:
    """One run of the scenario."""

    hops: int
    events: int
    seconds: float
    cct_ms: float


def run(hosts: int, chunk_bytes: int, window: str, seed: int, record: bool) -> Run:
    """Simulate one AllReduce of ``chunk_bytes`` per step; seconds are processor time."""
    net = core.Network()
    ids = [net.add_host() for _ in range(hosts)]
    red = core.RedEntry(rate_bps=RATE_BPS, k_min_bytes=50_000, k_max_bytes=100_000, p_max=0.2)
    config = core.SwitchConfig(red=[red])
    tors = [net.add_switch(config) for _ in range(TORS)]
    spines = [net.add_switch(config, tier=1) for _ in range(SPINES)]
    per_tor = hosts // TORS
    for index, host in enumerate(ids):
        net.add_link(host, tors[index // per_tor], RATE_BPS, DELAY_NS)
    for tor in tors:
        for spine in spines:
            net.add_link(tor, spine, RATE_BPS, DELAY_NS)
    transport = core.TransportConfig(
        cc=core.CcConfig(preset="hpcc_config"),
        window=window,
        rto_ns=0,
        header_bytes=36,
        ack_bytes=48,
        round_to_ns=True,
        sport_base=10_000,
        dport=100,
    )
    stats = core.StatsConfig()
    if not record:
        stats = core.StatsConfig(flows=False, steps=False, sample_ns=0, queue_bin_bytes=0)
    sim = core.Simulation(net, transport, seed=seed, stats=stats)
    sim.add_job(
        core.JobSpec(
            job_id=1,
            hosts=[ids[t * per_tor + i] for i in range(per_tor) for t in range(TORS)],
            ops=[core.Op(kind="all_reduce", bytes_=chunk_bytes * hosts)],
            dependency="count",
            notify="sender_ack",
        )
    )
    start = time.process_time()
    totals = sim.run()
    seconds = time.process_time() - start
    return Run(totals.hops, totals.events, seconds, float(sim.collectives()["cct_ns"][0]) / 1e6)


def astra_hops_per_s(command: str) -> float:
    """Run the other simulator; return what it did per second."""
    out = subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
    found = {name: float(value) for name, value in re.findall(r"(hops|seconds)=([\d.]+)", out)}
    if found.keys() != {"hops", "seconds"} or found["seconds"] <= 0:
        sys.exit("--astra: the command must print hops=N and seconds=S")
    return found["hops"] / found["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--hosts", type=int, default=32, help="a multiple of 4, at least 8")
    parser.add_argument("--chunk-bytes", type=int, default=1 << 20)
    parser.add_argument("--window", choices=("none", "bdp", "variable"), default="none")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-stats", action="store_true", help="record nothing but totals")
    parser.add_argument("--astra", help="command that runs the same on astra-sim's ns-3 backend")
    args = parser.parse_args()
    if args.hosts % TORS or args.hosts < 2 * TORS:
        parser.error(f"--hosts {args.hosts}: must be a multiple of {TORS}, at least {2 * TORS}")
    if args.chunk_bytes < 1 or args.repeats < 1:
        parser.error("--chunk-bytes and --repeats must be at least 1")

    runs, other = [], []
    for index in range(args.repeats):
        runs.append(run(args.hosts, args.chunk_bytes, args.window, 1 + index, not args.no_stats))
        if args.astra:
            other.append(astra_hops_per_s(args.astra))
    hops = statistics.median(r.hops / r.seconds for r in runs)
    astra = statistics.median(other) if other else None
    result = {
        "hops_per_s": round(hops),
        "core_events_per_s": round(statistics.median(r.events / r.seconds for r in runs)),
        "astra_hops_per_s": None if astra is None else round(astra),
        "ratio": None if astra is None else round(hops / astra, 2),
        "rss_mib": round(core.memory_peak_bytes() / 2**20, 1),
        "hosts": args.hosts,
        "chunk_bytes": args.chunk_bytes,
        "window": args.window,
        "hops": runs[0].hops,
        "seconds": [round(r.seconds, 3) for r in runs],
        "cct_ms": [round(r.cct_ms, 3) for r in runs],
        "recorded": not args.no_stats,
        "versions": core.version(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }
    if args.json:
        print(json.dumps(result))
        return
    print(f"{result['versions']}: ring of {args.hosts}, {args.chunk_bytes} B per step, "
          f"window {args.window}")  # fmt: skip
    print(f"  {hops / 1e6:.2f} M hops/s, {result['rss_mib']} MiB, one core")
    if astra is None:
        print("  astra-sim's ns-3 backend: not run (--astra COMMAND)")
    else:
        print(f"  astra-sim's ns-3 backend: {astra / 1e6:.2f} M hops/s; ratio {hops / astra:.1f}")


if __name__ == "__main__":
    main()
