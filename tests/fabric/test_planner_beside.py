"""Plans beside given loads: as good as pinning who makes them, and nobody moves."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest

from ringstep.fabric.balance import Flow
from ringstep.fabric.beside import LoadedFabric, plan_beside
from ringstep.fabric.model import Endpoint
from ringstep.fabric.pathgraph import Fabric, FabricLink, leaf_spine, multi_pod
from ringstep.fabric.planner import (
    Demand,
    EdgeKey,
    Plan,
    PlanError,
    PlannedEdge,
    Unreachable,
    extend_plan,
    plan_paths,
    ring_demands,
    search_anew,
)

G = 10**9


def fabric_of(rng: random.Random, kind: str) -> Fabric:
    """2-4 ToRs, 2-3 spines; ``kind`` says how the links differ."""
    if kind == "pods":
        return multi_pod(2, rng.randint(2, 3), 2, rng.randint(1, 2), rng.randint(1, 3))
    tors, spines, hosts = rng.randint(2, 4), rng.randint(2, 3), rng.randint(1, 4)
    links = []
    for t in range(tors):
        for s in range(spines):
            for j in range(rng.randint(1, 2) if "parallel" in kind else 1):
                rate = rng.choice([1, 2, 4]) if "rates" in kind else 1
                up = "failures" not in kind or rng.random() >= 0.2
                a, b = Endpoint(f"tor{t}", 10 + 2 * s + j), Endpoint(f"spine{s}", 1 + 2 * t + j)
                links.append(FabricLink(a, b, rate * G, up))
    return Fabric(
        switches=(*(f"tor{t}" for t in range(tors)), *(f"spine{s}" for s in range(spines))),
        links=tuple(links),
        attachments={
            f"h{t}-{h}": (Endpoint(f"tor{t}", 1 + h),) for t in range(tors) for h in range(hosts)
        },
    )


def some_rings(rng: random.Random, fabric: Fabric, job: str, most: int) -> tuple[Demand, ...]:
    names = list(fabric.attachments)
    demands: list[Demand] = []
    for number in range(rng.randint(1, 2)):
        ring = rng.sample(names, rng.randint(2, min(len(names), most)))
        demands += ring_demands(f"{job}{number}", [ring], weight=rng.choice([1, 1, 2]))
    return tuple(demands)


def loads_of(plan: Plan) -> dict[Endpoint, int]:
    return {link.src: link.load for link in plan.links}


def fullest(plan: Plan, new: Sequence[PlannedEdge]) -> Fraction:
    """Relative load of the fullest link once new edges join what a plan carries."""
    added: Counter[Endpoint] = Counter()
    for edge in new:
        for hop in edge.fabric_hops:
            added[Endpoint(hop.switch, hop.port)] += edge.demand.weight
    reference = plan.reference_bps
    return max(
        Fraction((link.load + added[link.src]) * reference, link.rate_bps) for link in plan.links
    )


@pytest.mark.parametrize(
    "kind", ["alike", "rates", "failures", "parallel", "rates, parallel, failures", "pods"]
)
@pytest.mark.parametrize("most", [4, 9])
def test_result_is_as_good_as_with_the_same_edges_pinned(kind: str, most: int) -> None:
    rng = random.Random(f"{kind} {most}")
    compared = 0
    while compared < 60:
        fabric = fabric_of(rng, kind)
        held = some_rings(rng, fabric, "held", 12)
        new = some_rings(rng, fabric, "new", most)
        try:
            old = plan_paths(fabric, held)
            pinned = extend_plan(fabric, held + new, old.edges)
        except Unreachable:
            continue
        found = plan_beside(fabric, new, loads_of(old))
        assert list(found) == [demand.key for demand in new]
        assert fullest(old, list(found.values())) <= pinned.max_relative
        # What it found is what a later plan may pin.
        again = extend_plan(fabric, held + new, {**old.edges, **found})
        assert not again.changed
        compared += 1


def test_uneven_loads_are_evened_out_by_what_comes() -> None:
    fabric = leaf_spine(2, 2, 4)
    uplink = Endpoint("tor0", 5)
    demands = [Demand(EdgeKey("j", 0, i), f"h{i}", f"h{4 + i}") for i in range(3)]
    found = plan_beside(fabric, demands, {uplink: 3})
    assert {edge.hops[0].port for edge in found.values()} == {6}


def test_flows_that_meet_are_tried_in_all_ways() -> None:
    """Flow by flow, the second edge would stand higher than it must."""
    fabric = leaf_spine(3, 2, 2)
    loaded = LoadedFabric(fabric)
    rng = random.Random(7)
    for _ in range(200):
        load = [rng.randint(0, 3) for _ in loaded.links]
        flows = [Flow(0, 1, rng.randint(1, 2)), Flow(0, 2, rng.randint(1, 2))]
        ways = loaded.place(flows, load)
        best = None
        for first in ((0, 1, s) for s in (3, 4)):
            for second in ((0, 2, s) for s in (3, 4)):
                after, used = list(load), set()
                for (source, target, spine), flow in zip((first, second), flows, strict=True):
                    for a, b in ((source, spine), (spine, target)):
                        (link,) = loaded.graph.links[loaded.graph.trunk_number[a, b]]
                        after[link.number] += flow.weight
                        used.add(link.number)
                level = max(after[n] for n in used)
                best = level if best is None else min(best, level)
        after = list(load)
        for way, flow in zip(ways, flows, strict=True):
            for number in way:
                after[number] += flow.weight
        got = max(after[n] for way in ways for n in way)
        floor = max(
            max(load[n] for n in loaded.numbers.values() if loaded.links[n].src.node == "tor0"),
            max(load[n] for n in range(len(load)) if loaded.links[n].dst.node == "tor1"),
            max(load[n] for n in range(len(load)) if loaded.links[n].dst.node == "tor2"),
        )
        assert best is not None
        assert got <= max(best, floor)


def test_edges_within_a_rack_have_one_hop() -> None:
    fabric = leaf_spine(2, 2, 2)
    found = plan_beside(fabric, ring_demands("j", [["h0", "h1"]]), {})
    assert [len(edge.hops) for edge in found.values()] == [1, 1]


def test_many_ways_are_searched_trunk_by_trunk() -> None:
    fabric = multi_pod(2, 2, 4, 20, 3)
    loaded = LoadedFabric(fabric)
    ring = [f"h{n}" for n in (0, 6, 1, 7, 2, 8, 3, 9)]
    found = plan_beside(loaded, ring_demands("j", [ring]), {})
    load: Counter[object] = Counter(hop for e in found.values() for hop in e.fabric_hops)
    assert max(load.values()) == plan_paths(fabric, ring_demands("j", [ring])).max_relative


def test_what_cannot_be_planned_is_refused() -> None:
    fabric = leaf_spine(2, 1, 2).without([Endpoint("tor0", 3)])
    with pytest.raises(Unreachable, match="tor0"):
        plan_beside(fabric, ring_demands("j", [["h0", "h2"]]), {})
    with pytest.raises(PlanError, match="'h9' is not in the fabric"):
        plan_beside(fabric, [Demand(EdgeKey("j", 0, 0), "h9", "h2")], {})
    twice = Demand(EdgeKey("j", 0, 0), "h0", "h1")
    with pytest.raises(PlanError, match="given twice"):
        plan_beside(fabric, [twice, twice], {})


def test_the_bound_is_never_above_what_is_found() -> None:
    rng = random.Random("bound")
    for _ in range(60):
        fabric = fabric_of(rng, "rates, parallel")
        loaded = LoadedFabric(fabric)
        load = [rng.randint(0, 4) for _ in loaded.links]
        flows = [
            Flow(loaded.graph.number[a], loaded.graph.number[b], rng.randint(1, 3))
            for a, b in (rng.sample([s for s in fabric.switches if s[0] == "t"], 2) for _ in "123")
        ]
        after = list(load)
        ways = loaded.place(flows, load)
        for way, flow in zip(ways, flows, strict=True):
            for number in way:
                after[number] += flow.weight
        got = max(loaded.relative(n, after[n]) for way in ways for n in way)
        assert loaded.bound(flows, load) <= got + 1e-9


def test_planning_anew_moves_only_what_stands_too_high() -> None:
    fabric = leaf_spine(2, 2, 4)
    loaded = LoadedFabric(fabric)
    flows = [Flow(0, 1, 1)] * 4
    up = loaded.links[loaded.numbers["tor0", 5]]
    down = next(link for link in loaded.links if str(link.dst).startswith("tor1:5"))
    current = [(up, down)] * 4
    found = search_anew(fabric.graph, flows, current, loaded.scale(1))
    assert sum(links != before for links, before in zip(found, current, strict=True)) == 2
    assert search_anew(fabric.graph, flows, found, loaded.scale(1)) == found
