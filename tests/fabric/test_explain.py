"""A plan set against ECMP: the hash where source ports are known, draws where not."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from ringstep.fabric import Topology
from ringstep.fabric.ecmp import FlowKey, ecmp_port
from ringstep.fabric.explain import explain, forecast_ecmp
from ringstep.fabric.model import Endpoint
from ringstep.fabric.pathgraph import leaf_spine, multi_pod
from ringstep.fabric.planner import Demand, EdgeKey, PlanError, plan_paths, ring_demands


def test_forecast_follows_the_hash_of_every_switch(two_tier: Topology) -> None:
    demands = ring_demands("j", [["h1", "h3", "h2", "h4"]] * 8, sports=range(0xC000, 0xC008))
    plan = plan_paths(two_tier, demands)
    expected: Counter[Endpoint] = Counter()
    for demand in demands:
        source, target = two_tier.hosts[demand.src], two_tier.hosts[demand.dst]
        assert source.ipv4 is not None
        assert target.ipv4 is not None
        assert demand.sport is not None
        flow = FlowKey(source.ipv4, target.ipv4, demand.sport, 4791)
        tor = two_tier.attachments(demand.src)[0].node
        port = ecmp_port(two_tier.switches[tor].ecmp_seed, flow, [11, 12])
        spine, _ = two_tier.ports(tor)[port]
        expected[Endpoint(tor, port)] += 1
        expected[Endpoint(spine.node, 2 if tor == "tor1" else 1)] += 1
    ecmp = forecast_ecmp(plan)
    assert ecmp.exact
    assert ecmp.samples == 1
    assert dict(zip((link.src for link in plan.links), ecmp.edges, strict=True)) == {
        link.src: float(expected[link.src]) for link in plan.links
    }
    assert ecmp.max_relative == max(expected.values())


def test_forecast_hashes_at_every_tier_and_over_parallel_links() -> None:
    fabric = multi_pod(2, 2, 2, 2, 4, parallel=2)
    names = list(fabric.attachments)
    ring = random.Random(1).sample(names, len(names))
    demands = ring_demands("j", [ring] * 4, sports=range(0xC000, 0xC004))
    plan = plan_paths(fabric, demands)
    ecmp = forecast_ecmp(plan)
    planned = sum(link.edges for link in plan.links)
    assert sum(ecmp.edges) == planned
    used = sum(1 for edges in ecmp.edges if edges)
    assert used > len(plan.links) / 2


def test_draws_spread_evenly_and_repeat_with_their_seed() -> None:
    fabric = leaf_spine(4, 4, 8)
    rings = [random.Random(i).sample(list(fabric.attachments), 32) for i in range(4)]
    plan = plan_paths(fabric, ring_demands("j", rings))
    ecmp = forecast_ecmp(plan, samples=400, seed=3)
    assert not ecmp.exact
    assert ecmp == forecast_ecmp(plan, samples=400, seed=3)
    assert ecmp != forecast_ecmp(plan, samples=400, seed=4)
    assert ecmp.low <= ecmp.max_relative <= ecmp.high
    out = {link.src: edges for link, edges in zip(plan.links, ecmp.edges, strict=True)}
    degree = sum(edges for end, edges in out.items() if end.node == "tor0")
    for end, edges in out.items():
        if end.node == "tor0":
            # Mean of 400 binomial draws: standard deviation below 0.12.
            assert abs(edges - degree / 4) < 0.75
    # No draw can be better than the bound.
    assert ecmp.low >= plan.bound


def test_draws_match_the_mean_of_all_choices() -> None:
    fabric = leaf_spine(2, 2, 2)
    demands = [Demand(EdgeKey("j", 0, i), f"h{i}", f"h{2 + i}", 3) for i in range(2)]
    # Both on one spine with probability 1/2: (6 + 3) / 2.
    ecmp = forecast_ecmp(plan_paths(fabric, demands), samples=4000)
    assert abs(ecmp.max_relative - 4.5) < 0.15
    assert (ecmp.low, ecmp.high) == (3.0, 6.0)


def test_explanation_sums_up_what_changed() -> None:
    fabric = leaf_spine(4, 4, 8)
    names = list(fabric.attachments)
    rings = [[names[8 * tor + h] for tor in range(4)] for h in range(8)]
    plan = plan_paths(fabric, ring_demands("j", rings, sports=range(0xC000, 0xC008)))
    why = explain(plan)
    assert (why.inter_tor_edges, why.intra_tor_edges, why.changed_edges) == (32, 0, 32)
    assert why.plan_max == why.bound == why.ideal_bound == 2
    assert why.gain == why.ecmp.max_relative / 2
    assert why.gain >= 1.5
    assert why.tightest is not None
    assert (why.tightest.edges, why.tightest.links) == (8, 4)
    assert [row.link for row in why.links] == list(plan.links)
    plain = json.loads(json.dumps(why.to_json()))
    assert plain["gain"] == why.gain
    assert plain["plan"] == {
        "max_relative": 2.0,
        "bound": 2.0,
        "ideal_bound": 2.0,
        "optimal": True,
    }
    assert len(plain["links"]) == len(plan.links)
    assert plain["links"][0]["plan_edges"] == plan.links[0].edges


def test_explanation_reads_as_text() -> None:
    fabric = leaf_spine(2, 2, 2)
    demands = [Demand(EdgeKey("j", 0, i), f"h{i}", f"h{2 + i}", sport=0xC000) for i in range(2)]
    plan = plan_paths(fabric, demands)
    lines = explain(plan).lines(most=1)
    assert lines[0] == "2 edges between racks, 0 within; 2 on a new path"
    assert lines[1] == "load of the fullest link, in edge weights per 100G:"
    assert lines[3].split() == ["plan", "1"]
    assert lines[4].endswith("bound         1  (2 edges out of tor0 over 2 links; reached)")
    assert lines[-1] == "and 7 more links"


def test_explanation_of_rings_within_racks_says_so() -> None:
    plan = plan_paths(leaf_spine(2, 2, 2), ring_demands("j", [["h0", "h1"]]))
    why = explain(plan)
    assert why.gain == 1.0
    assert why.lines() == ["all 2 edges stay within a rack; there is no path to plan"]


def test_missing_addresses_seeds_and_draws_are_reported() -> None:
    fabric = leaf_spine(2, 2, 1)
    demands = ring_demands("j", [["h0", "h1"]], sports=[0xC000])
    with pytest.raises(PlanError, match="host 'h0' has no address"):
        explain(plan_paths(replace(fabric, addresses={}), demands))
    with pytest.raises(PlanError, match="switch 'tor0' has no ECMP seed"):
        explain(plan_paths(replace(fabric, seeds={}), demands))
    with pytest.raises(PlanError, match="0 draws of ECMP tell nothing"):
        explain(plan_paths(fabric, demands), samples=0)
