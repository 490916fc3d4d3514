#!/usr/bin/env python3
"""Times the path planner, and sets its plans against ECMP.

Example: python bench/planner_speed.py --hosts 512 --spines 16 --rings 64 --json

Three plans: all edges from nothing, the same after a failed link, and one more job. Placements:
`random` (each ring a random order of all hosts) and `interleaved` (every hop leaves its rack).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from ringstep.fabric.explain import explain
from ringstep.fabric.pathgraph import Fabric, PlanError, leaf_spine
from ringstep.fabric.planner import Demand, Plan, extend_plan, plan_paths, ring_demands


def make_rings(fabric: Fabric, leaves: int, rings: int, placement: str, seed: int) -> list[Any]:
    hosts = list(fabric.attachments)
    rng = random.Random(seed)
    if placement == "random":
        return [rng.sample(hosts, len(hosts)) for _ in range(rings)]
    per_leaf = len(hosts) // leaves
    made = []
    for _ in range(rings):
        racks = [
            rng.sample(hosts[t * per_leaf : (t + 1) * per_leaf], per_leaf) for t in range(leaves)
        ]
        made.append([rack[i] for i in range(per_leaf) for rack in racks])
    return made


def timed(make: Callable[[], Plan], repeat: int) -> tuple[Plan, dict[str, float]]:
    seconds = []
    for _ in range(repeat):
        start = time.process_time()
        plan = make()
        seconds.append(time.process_time() - start)
    return plan, {
        "cpu_s_median": round(statistics.median(seconds), 4),
        "cpu_s_least": round(min(seconds), 4),
        "changed_edges": len(plan.changed),
        "max_relative": float(plan.max_relative),
        "bound": float(plan.bound),
        "optimal": plan.optimal,
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    leaves = args.hosts // args.hosts_per_leaf
    fabric = leaf_spine(leaves, args.spines, args.hosts_per_leaf)
    rings = make_rings(fabric, leaves, args.rings, args.placement, args.seed)
    demands = ring_demands("job", rings)
    plan, fresh = timed(lambda: plan_paths(_again(fabric), demands), args.repeat)
    broken = fabric.without([fabric.links[0].a])
    _, failure = timed(lambda: extend_plan(_again(broken), demands, plan.edges), args.repeat)
    more: tuple[Demand, ...] = ring_demands("more", rings[: max(1, args.rings // 8)])
    _, job = timed(lambda: extend_plan(_again(fabric), demands + more, plan.edges), args.repeat)
    why = explain(plan, samples=16, seed=args.seed)
    return {
        "hosts": args.hosts,
        "hosts_per_leaf": args.hosts_per_leaf,
        "spines": args.spines,
        "rings": args.rings,
        "placement": args.placement,
        "edges": len(demands),
        "inter_tor_edges": why.inter_tor_edges,
        "fresh": fresh,
        "one_link_failed": failure,
        "one_more_job": job,
        "ecmp_max_relative": why.ecmp.max_relative,
        "gain_over_ecmp": why.gain,
    }


def _again(fabric: Fabric) -> Fabric:
    """The same fabric without anything remembered from an earlier plan."""
    return fabric.without()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=512)
    parser.add_argument("--hosts-per-leaf", type=int, default=16)
    parser.add_argument("--spines", type=int, default=16)
    parser.add_argument("--rings", type=int, default=64)
    parser.add_argument("--placement", choices=["random", "interleaved"], default="random")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each plan")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON to standard output")
    args = parser.parse_args()
    if min(args.hosts_per_leaf, args.rings, args.repeat) < 1 or args.hosts < 2:
        parser.error("counts must be 1 or more, and --hosts 2 or more")
    if args.hosts % args.hosts_per_leaf:
        parser.error(
            f"--hosts {args.hosts} is not a multiple of --hosts-per-leaf {args.hosts_per_leaf}"
        )
    try:
        result = measure(args)
    except PlanError as error:
        parser.error(str(error))
    if args.json:
        json.dump(result, sys.stdout, indent=2)
        print()
        return
    print(
        f"{result['inter_tor_edges']} inter-ToR edges of {result['hosts']} hosts, "
        f"{result['rings']} rings, {result['spines']} spines, placement {result['placement']}"
    )
    for name in ("fresh", "one_link_failed", "one_more_job"):
        row = result[name]
        print(
            f"  {name:<16} {row['cpu_s_median']:7.3f} s CPU  {row['changed_edges']:6d} edges "
            f"placed  fullest link {row['max_relative']:g} (bound {row['bound']:g})"
        )
    print(
        f"  fullest link under ECMP {result['ecmp_max_relative']:.4g}: "
        f"{result['gain_over_ecmp']:.3g} times the plan's"
    )


if __name__ == "__main__":
    main()
