"""Path plans: even loads, proven against all assignments; pinned edges stay; failures are local."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from brute_force import check_plan, least_max_relative
from hypothesis import given, settings
from hypothesis import strategies as st

from ringstep.fabric import Topology
from ringstep.fabric.model import Endpoint
from ringstep.fabric.pathgraph import Fabric, FabricLink, leaf_spine, multi_pod
from ringstep.fabric.planner import (
    Demand,
    EdgeKey,
    Plan,
    PlanError,
    Unreachable,
    extend_plan,
    pair_demands,
    plan_paths,
    ring_demands,
)

G = 10**9


def random_rings(
    rng: random.Random, fabric: Fabric, rings: int, hosts: int | None = None
) -> list[list[str]]:
    names = list(fabric.attachments)
    return [rng.sample(names, hosts or len(names)) for _ in range(rings)]


def degrees(plan: Plan) -> Counter[tuple[str, str]]:
    """Inter-ToR edges out of and into each ToR."""
    degree: Counter[tuple[str, str]] = Counter()
    for edge in plan.edges.values():
        if edge.fabric_hops:
            degree[edge.hops[0].switch, "out"] += 1
            degree[edge.hops[-1].switch, "in"] += 1
    return degree


def assert_ceil_bound(plan: Plan, uplinks: int) -> None:
    degree = degrees(plan)
    for link in plan.links:
        if link.src.node.startswith("tor"):
            assert link.edges <= -(-degree[link.src.node, "out"] // uplinks)
        if link.dst.node.startswith("tor"):
            assert link.edges <= -(-degree[link.dst.node, "in"] // uplinks)


# --- the promise on leaf-spine -----------------------------------------------------------------


@st.composite
def leaf_spines(draw: st.DrawFn) -> tuple[Fabric, int]:
    spines, parallel = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    fabric = leaf_spine(draw(st.integers(2, 6)), spines, draw(st.integers(1, 6)), 100 * G, parallel)
    return fabric, spines * parallel


@given(leaf_spines(), st.integers(1, 5), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_no_link_carries_more_than_its_share_of_a_multi_ring(
    made: tuple[Fabric, int], rings: int, rng: random.Random
) -> None:
    fabric, uplinks = made
    names = list(fabric.attachments)
    demands: list[Demand] = []
    for job in range(2):
        size = rng.randint(2, len(names))
        demands += ring_demands(f"job{job}", random_rings(rng, fabric, rings, size))
    plan = plan_paths(fabric, demands)
    check_plan(plan, demands)
    assert_ceil_bound(plan, uplinks)
    assert plan.optimal


@given(leaf_spines(), st.data())
@settings(deadline=None)
def test_no_link_carries_more_than_its_share_of_any_multigraph(
    made: tuple[Fabric, int], data: st.DataObject
) -> None:
    fabric, uplinks = made
    names = list(fabric.attachments)
    pairs = data.draw(
        st.lists(
            st.tuples(st.sampled_from(names), st.sampled_from(names)).filter(
                lambda pair: pair[0] != pair[1]
            ),
            max_size=80,
        )
    )
    demands = [Demand(EdgeKey("j", 0, i), src, dst) for i, (src, dst) in enumerate(pairs)]
    plan = plan_paths(fabric, demands)
    check_plan(plan, demands)
    assert_ceil_bound(plan, uplinks)
    assert plan.optimal


@pytest.mark.parametrize("spines", [16, 15])
def test_512_hosts_with_8_random_rings_meet_the_bound(spines: int) -> None:
    fabric = leaf_spine(32, spines, 16)
    demands = ring_demands("j", random_rings(random.Random(1), fabric, 8))
    plan = plan_paths(fabric, demands)
    assert_ceil_bound(plan, spines)
    assert plan.optimal


def test_equal_weights_other_than_one_scale_the_loads_only() -> None:
    fabric = leaf_spine(4, 3, 4)
    rings = random_rings(random.Random(2), fabric, 2)
    one = plan_paths(fabric, ring_demands("j", rings))
    seven = plan_paths(fabric, ring_demands("j", rings, weight=7))
    assert [e.hops for e in one.edges.values()] == [e.hops for e in seven.edges.values()]
    assert seven.max_relative == 7 * one.max_relative


# --- against all assignments -------------------------------------------------------------------


def small_fabric(rng: random.Random, kind: str) -> Fabric:
    """2-4 ToRs, 2-3 spines; ``kind`` says how the links differ."""
    tors, spines, hosts = rng.randint(2, 4), rng.randint(2, 3), rng.randint(1, 3)
    spine_rate = [rng.choice([1, 2, 4, 10]) for _ in range(spines)]
    links = []
    for t in range(tors):
        for s in range(spines):
            for j in range(rng.randint(1, 2) if "parallel" in kind else 1):
                rate = 1
                if "spine rates" in kind:
                    rate = spine_rate[s]
                elif "link rates" in kind:
                    rate = rng.choice([1, 2, 4])
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


@pytest.mark.parametrize(
    "kind",
    [
        "alike",
        "spine rates",
        "link rates",
        "parallel",
        "failures",
        "spine rates, parallel",
        "link rates, failures",
        "link rates, parallel, failures",
    ],
)
def test_small_fabrics_are_planned_as_well_as_any_assignment(kind: str) -> None:
    rng = random.Random(kind)
    compared = 0
    while compared < 40:
        fabric = small_fabric(rng, kind)
        names = list(fabric.attachments)
        demands: list[Demand] = []
        for job in range(rng.randint(1, 2)):
            ring = rng.sample(names, rng.randint(2, min(len(names), 7)))
            demands += ring_demands(f"job{job}", [ring])
        try:
            plan = plan_paths(fabric, demands)
        except Unreachable:
            continue
        check_plan(plan, demands)
        assert plan.max_relative == least_max_relative(fabric, demands, plan.reference_bps)
        compared += 1


def test_small_fabrics_with_jobs_of_different_weight_are_planned_as_well_as_any() -> None:
    rng = random.Random("weights")
    for _ in range(40):
        fabric = small_fabric(rng, "alike")
        names = list(fabric.attachments)
        demands: list[Demand] = []
        for job in range(2):
            ring = rng.sample(names, rng.randint(2, min(len(names), 6)))
            demands += ring_demands(f"job{job}", [ring], weight=rng.choice([1, 2, 3]))
        plan = plan_paths(fabric, demands)
        check_plan(plan, demands)
        assert plan.max_relative == least_max_relative(fabric, demands, plan.reference_bps)


def test_small_pods_are_planned_as_well_as_any_assignment() -> None:
    rng = random.Random("pods")
    for _ in range(12):
        fabric = multi_pod(2, 2, 2, rng.randint(1, 2), rng.randint(1, 2))
        names = list(fabric.attachments)
        ring = rng.sample(names, min(len(names), 6))
        demands = ring_demands("j", [ring])
        plan = plan_paths(fabric, demands)
        check_plan(plan, demands)
        assert plan.max_relative == least_max_relative(fabric, demands, plan.reference_bps)


def test_new_edges_are_placed_around_pinned_ones_as_well_as_any_assignment() -> None:
    rng = random.Random("pinned")
    for _ in range(40):
        fabric = small_fabric(rng, "alike")
        names = list(fabric.attachments)
        first = ring_demands("a", [rng.sample(names, rng.randint(2, min(len(names), 6)))])
        second = ring_demands("b", [rng.sample(names, rng.randint(2, min(len(names), 5)))])
        old = plan_paths(fabric, first)
        plan = extend_plan(fabric, first + second, old.edges)
        check_plan(plan, first + second)
        best = least_max_relative(fabric, first + second, plan.reference_bps, old.edges)
        assert plan.max_relative == best


def test_load_follows_the_rates_of_unequal_spines() -> None:
    tors = ["tor0", "tor1"]
    links = tuple(
        FabricLink(Endpoint(tor, 10 + s), Endpoint(f"spine{s}", 1 + t), rate * G)
        for t, tor in enumerate(tors)
        for s, rate in enumerate([100, 400])
    )
    hosts = {f"h{t}-{h}": (Endpoint(tor, 1 + h),) for t, tor in enumerate(tors) for h in range(10)}
    fabric = Fabric((*tors, "spine0", "spine1"), links, hosts)
    ring = [f"h{t}-{h}" for h in range(10) for t in range(2)]
    plan = plan_paths(fabric, ring_demands("j", [ring]))
    by_port = {link.src: link.edges for link in plan.links}
    assert by_port[Endpoint("tor0", 10)] == 2
    assert by_port[Endpoint("tor0", 11)] == 8
    assert plan.max_relative == 8
    assert plan.reference_bps == 400 * G


def test_load_follows_the_rates_of_unequal_parallel_links() -> None:
    links = tuple(
        FabricLink(Endpoint(f"tor{t}", 100 + j), Endpoint("spine0", 1 + 2 * t + j), rate * G)
        for t in range(2)
        for j, rate in enumerate([100, 400])
    )
    hosts = {f"h{t}-{h}": (Endpoint(f"tor{t}", 1 + h),) for t in range(2) for h in range(10)}
    fabric = Fabric(("tor0", "tor1", "spine0"), links, hosts)
    ring = [f"h{t}-{h}" for h in range(10) for t in range(2)]
    plan = plan_paths(fabric, ring_demands("j", [ring]))
    assert [link.edges for link in plan.links] == [2, 8, 2, 8, 2, 8, 2, 8]
    assert plan.optimal


def test_bound_knows_that_heavy_edges_cannot_be_cut() -> None:
    fabric = leaf_spine(2, 2, 5)
    light = [Demand(EdgeKey("a", 0, i), f"h{i}", f"h{5 + i}") for i in range(2)]
    heavy = [Demand(EdgeKey("b", 0, i), f"h{2 + i}", f"h{7 + i}", 3) for i in range(3)]
    old = plan_paths(fabric, light)
    plan = extend_plan(fabric, light + heavy, old.edges)
    assert plan.max_relative == plan.bound == 7


# --- determinism -------------------------------------------------------------------------------


def test_same_demands_get_the_same_plan() -> None:
    fabric = multi_pod(3, 3, 3, 2, 3).without([Endpoint("pod0-tor1", 5)])
    demands = ring_demands("j", random_rings(random.Random(3), fabric, 4))
    assert plan_paths(fabric, demands) == plan_paths(replace(fabric), tuple(demands))


def test_plan_does_not_depend_on_the_hash_seed_of_the_process() -> None:
    script = (
        "import random\n"
        "from ringstep.fabric.pathgraph import leaf_spine\n"
        "from ringstep.fabric.planner import plan_paths, ring_demands\n"
        "from ringstep.fabric.model import Endpoint\n"
        "f = leaf_spine(5, 3, 4).without([Endpoint('tor0', 5), Endpoint('tor1', 6)])\n"
        "r = [random.Random(i).sample(list(f.attachments), 20) for i in range(3)]\n"
        "d = ring_demands('a', r) + ring_demands('b', r[:1], 3)\n"
        "print([e.hops for e in plan_paths(f, d).edges.values()])\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_order_of_links_does_not_matter() -> None:
    fabric = leaf_spine(4, 3, 4)
    demands = ring_demands("j", random_rings(random.Random(4), fabric, 2))
    backwards = replace(fabric, links=tuple(reversed(fabric.links)))
    assert plan_paths(backwards, demands).edges == plan_paths(fabric, demands).edges


# --- several jobs over time --------------------------------------------------------------------


def test_a_new_job_moves_nobody_else() -> None:
    fabric = leaf_spine(8, 4, 8)
    rng = random.Random(5)
    demands = ring_demands("a", random_rings(rng, fabric, 3, 40))
    plan = plan_paths(fabric, demands)
    for job in "bcd":
        more = ring_demands(job, random_rings(rng, fabric, 2, 30))
        grown = extend_plan(fabric, demands + more, plan.edges)
        check_plan(grown, demands + more)
        assert grown.changed == {demand.key for demand in more}
        assert all(grown.edges[key].hops == edge.hops for key, edge in plan.edges.items())
        assert grown.optimal
        demands, plan = demands + more, grown


def test_a_released_job_leaves_the_others_in_place() -> None:
    fabric = leaf_spine(4, 4, 8)
    rng = random.Random(6)
    stays = ring_demands("a", random_rings(rng, fabric, 1, 20))
    goes = ring_demands("b", random_rings(rng, fabric, 1, 20))
    both = plan_paths(fabric, stays + goes)
    left = extend_plan(fabric, stays, both.edges)
    assert list(left.edges) == [demand.key for demand in stays]
    assert not left.changed
    check_plan(left, stays)


def test_ideal_bound_tells_what_planning_anew_could_reach() -> None:
    fabric = leaf_spine(2, 2, 4)
    demands = [Demand(EdgeKey("j", 0, i), f"h{i}", f"h{4 + i}") for i in range(4)]
    full = plan_paths(fabric, demands)
    # Keep only the two edges that share a spine.
    top = full.edges[demands[0].key].hops[0]
    kept = {key: edge for key, edge in full.edges.items() if edge.hops[0] == top}
    assert len(kept) == 2
    wanted = [edge.demand for edge in kept.values()]
    plan = extend_plan(fabric, wanted, kept)
    assert (plan.max_relative, plan.bound, plan.ideal_bound) == (2, 2, 1)
    assert plan_paths(fabric, wanted).max_relative == 1


def test_an_edge_whose_hosts_changed_is_planned_again() -> None:
    fabric = leaf_spine(3, 2, 2)
    old = plan_paths(fabric, [Demand(EdgeKey("j", 0, 0), "h0", "h2")])
    demand = Demand(EdgeKey("j", 0, 0), "h0", "h4")
    plan = extend_plan(fabric, [demand], old.edges)
    check_plan(plan, [demand])
    assert plan.changed == {demand.key}


# --- failures ----------------------------------------------------------------------------------


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=30)
def test_a_failed_link_moves_only_the_edges_that_used_it(seed: int) -> None:
    rng = random.Random(seed)
    fabric = leaf_spine(5, 4, 5, parallel=rng.randint(1, 2))
    demands = ring_demands("j", random_rings(rng, fabric, 3))
    plan = plan_paths(fabric, demands)
    link = rng.choice(fabric.links)
    broken = fabric.without([rng.choice([link.a, link.b])])
    after = extend_plan(broken, demands, plan.edges)
    check_plan(after, demands)
    used = {
        key
        for key, edge in plan.edges.items()
        if {Endpoint(h.switch, h.port) for h in edge.fabric_hops} & {link.a, link.b}
    }
    assert after.changed == used


def test_a_failed_spine_spreads_its_edges_over_the_others() -> None:
    fabric = leaf_spine(8, 4, 8)
    demands = ring_demands("j", random_rings(random.Random(7), fabric, 4))
    plan = plan_paths(fabric, demands)
    broken = fabric.without(down_switches=["spine2"])
    after = extend_plan(broken, demands, plan.edges)
    check_plan(after, demands)
    assert_ceil_bound(after, 3)
    assert after.changed == {k for k, e in plan.edges.items() if "spine2" in e.switches}


def test_a_repaired_link_moves_nothing_by_itself() -> None:
    fabric = leaf_spine(3, 2, 3)
    demands = ring_demands("j", random_rings(random.Random(8), fabric, 2))
    broken = fabric.without(down_switches=["spine0"])
    during = plan_paths(broken, demands)
    after = extend_plan(fabric, demands, during.edges)
    assert not after.changed
    assert after.ideal_bound < after.bound


def test_a_detour_is_left_when_a_shorter_path_comes_back() -> None:
    # tor0 and tor1 share no spine any more: the way leads over tor2.
    fabric = leaf_spine(3, 2, 1)
    cut = fabric.without([Endpoint("tor0", 2), Endpoint("tor1", 3)])
    demands = [Demand(EdgeKey("j", 0, 0), "h0", "h1")]
    detour = plan_paths(cut, demands)
    check_plan(detour, demands)
    assert detour.edges[demands[0].key].switches == ("tor0", "spine1", "tor2", "spine0", "tor1")
    after = extend_plan(fabric, demands, detour.edges)
    assert len(after.edges[demands[0].key].fabric_hops) == 2


def test_unreachable_hosts_are_reported_with_the_links_that_are_down() -> None:
    fabric = leaf_spine(2, 1, 1).without([Endpoint("tor1", 2)])
    message = (
        r"^no path from 'h0' to 'h1': switch tor0 does not reach tor1 "
        r"\(down next to them: tor1:2 - spine0:2; bring one up, or leave a host out of the ring\)$"
    )
    with pytest.raises(Unreachable, match=message) as caught:
        plan_paths(fabric, ring_demands("j", [["h0", "h1"]]))
    assert (caught.value.src, caught.value.dst) == ("h0", "h1")


def test_a_host_without_a_link_is_reported() -> None:
    fabric = leaf_spine(2, 1, 1).without([Endpoint("tor1", 1)])
    with pytest.raises(Unreachable, match="every link of 'h1' is down"):
        plan_paths(fabric, ring_demands("j", [["h0", "h1"]]))


def test_islands_are_reported() -> None:
    fabric = Fabric(
        ("tor0", "tor1"), (), {"h0": (Endpoint("tor0", 1),), "h1": (Endpoint("tor1", 1),)}
    )
    with pytest.raises(Unreachable, match=r"no links join them; add the missing \[\[link\]\]"):
        plan_paths(fabric, ring_demands("j", [["h0", "h1"]]))


# --- pods --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggs", "cores", "rings"), [(4, 2, 1), (4, 4, 4), (3, 2, 4), (5, 3, 2), (2, 1, 3)]
)
def test_pods_meet_the_bounds_of_racks_and_of_pods(aggs: int, cores: int, rings: int) -> None:
    fabric = multi_pod(4, 4, aggs, cores, 4)
    demands = ring_demands("j", random_rings(random.Random(9), fabric, rings))
    plan = plan_paths(fabric, demands)
    check_plan(plan, demands)
    assert_every_cut_is_even(plan)


def assert_every_cut_is_even(plan: Plan) -> None:
    crossing: dict[tuple[tuple[str, ...], str], Fraction] = {}
    for cut in plan.cuts:
        inside = set(cut.place)
        for link in plan.links:
            here, there = (
                (link.src.node, link.dst.node)
                if cut.direction == "out"
                else (link.dst.node, link.src.node)
            )
            if here in inside and there not in inside:
                key = cut.place, cut.direction
                level = link.relative(plan.reference_bps)
                crossing[key] = max(crossing.get(key, level), level)
        assert crossing[cut.place, cut.direction] == cut.bound, cut


def test_oversubscribed_pods_are_bounded_by_their_core_links() -> None:
    fabric = multi_pod(2, 4, 2, 1, 4, rate_bps=100 * G, core_rate_bps=50 * G)
    names = list(fabric.attachments)
    ring = [name for pair in zip(names[:16], names[16:], strict=True) for name in pair]
    plan = plan_paths(fabric, ring_demands("j", [ring]))
    assert plan.max_relative == plan.bound == 16
    assert plan.cuts[0].place[0].startswith("pod")
    assert plan.cuts[0].links == 2


def test_fully_meshed_core_is_balanced() -> None:
    # Every aggregation switch joins every core: one plane with two switches per pod.
    base = multi_pod(3, 3, 2, 1, 3)
    links = [link for link in base.links if "core" not in link.b.node]
    for pod in range(3):
        for agg in range(2):
            for core in range(3):
                links.append(
                    FabricLink(
                        Endpoint(f"pod{pod}-agg{agg}", 100 + core),
                        Endpoint(f"core{core}", 1 + 2 * pod + agg),
                        100 * G,
                    )
                )
    switches = (*(s for s in base.switches if "core" not in s), "core0", "core1", "core2")
    fabric = replace(base, switches=switches, links=tuple(links))
    demands = ring_demands("j", random_rings(random.Random(10), fabric, 4))
    plan = plan_paths(fabric, demands)
    check_plan(plan, demands)
    assert plan.optimal


def test_failure_in_a_pod_moves_only_the_edges_that_used_it() -> None:
    fabric = multi_pod(3, 3, 3, 2, 3)
    demands = ring_demands("j", random_rings(random.Random(11), fabric, 3))
    plan = plan_paths(fabric, demands)
    broken = fabric.without(down_switches=["core1-0"])
    after = extend_plan(broken, demands, plan.edges)
    check_plan(after, demands)
    assert after.changed == {k for k, e in plan.edges.items() if "core1-0" in e.switches}
    assert after.optimal


# --- demands and bad input ---------------------------------------------------------------------


def test_ring_demands_keep_channels_apart_and_pair_demands_join_them() -> None:
    rings = [["a", "b", "c"], ["a", "b"]]
    apart = ring_demands("j", rings, sports=[0xC001, 0xC002])
    assert [(str(d.key), d.src, d.dst, d.sport) for d in apart] == [
        ("j/0/0", "a", "b", 0xC001),
        ("j/0/1", "b", "c", 0xC001),
        ("j/0/2", "c", "a", 0xC001),
        ("j/1/0", "a", "b", 0xC002),
        ("j/1/1", "b", "a", 0xC002),
    ]
    joined = pair_demands("j", rings, weight=3)
    assert [(str(d.key), d.src, d.dst, d.weight) for d in joined] == [
        ("j/0/0", "a", "b", 6),
        ("j/0/1", "b", "c", 3),
        ("j/0/2", "c", "a", 3),
        ("j/0/3", "b", "a", 3),
    ]


def test_edges_within_a_rack_have_one_hop_and_load_no_uplink(two_tier: Topology) -> None:
    plan = plan_paths(two_tier, ring_demands("j", [["h1", "h2"]]))
    hops = [[str(hop) for hop in edge.hops] for edge in plan.edges.values()]
    assert hops == [["tor1:2"], ["tor1:1"]]
    assert plan.max_edges == 0
    assert (plan.max_relative, plan.bound) == (0, 0)
    assert plan.optimal


def test_topology_is_planned_as_it_stands(two_tier: Topology) -> None:
    demands = ring_demands("j", [["h1", "h3", "h2", "h4"]])
    plan = plan_paths(two_tier, demands)
    check_plan(plan, demands)
    assert plan.max_edges == 1
    by_spine = plan_paths(Fabric.of(two_tier, down_switches=["spine1"]), demands)
    assert {edge.switches[1] for edge in by_spine.edges.values()} == {"spine2"}
    by_link = plan_paths(Fabric.of(two_tier, [Endpoint("spine1", 1)]), demands)
    assert {edge.switches[1] for edge in by_link.edges.values()} == {"spine2"}


def test_no_demands_make_an_empty_plan() -> None:
    plan = plan_paths(leaf_spine(2, 2, 1), [])
    assert not plan.edges
    assert plan.optimal


@pytest.mark.parametrize(
    ("demands", "message"),
    [
        ([("h0", "h1"), ("h0", "h1")], "edge j/0/0 is given twice; a key names one edge"),
        ([("h0", "h9")], "host 'h9' is not in the fabric; known: h0, h1"),
        ([("h0", "h0")], "host 'h0' would send to itself; an edge joins two hosts"),
    ],
)
def test_demands_without_sense_are_refused(demands: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(PlanError, match=f"^{message}$"):
        plan_paths(
            leaf_spine(2, 1, 1), [Demand(EdgeKey("j", 0, 0), src, dst) for src, dst in demands]
        )


def test_weight_below_one_is_refused() -> None:
    with pytest.raises(PlanError, match="edge j/0/0 has weight 0; a weight is a whole number"):
        Demand(EdgeKey("j", 0, 0), "a", "b", 0)


def test_failures_that_name_nothing_are_refused() -> None:
    fabric = leaf_spine(2, 1, 1)
    with pytest.raises(PlanError, match=r"^tor0:77 is no end of a link"):
        fabric.without([Endpoint("tor0", 77)])
    with pytest.raises(PlanError, match=r"^'spine7' is no switch of the fabric; known: spine0"):
        fabric.without(down_switches=["spine7"])


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (FabricLink(Endpoint("a", 1), Endpoint("b", 1), 0), "has no rate"),
        (FabricLink(Endpoint("a", 1), Endpoint("a", 2), G), "joins a switch to itself"),
        (FabricLink(Endpoint("a", 1), Endpoint("c", 1), G), "ends at unknown switch 'c'"),
    ],
)
def test_fabrics_without_sense_are_refused(link: FabricLink, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Fabric(("a", "b"), (link,), {})


def test_port_with_two_links_is_refused() -> None:
    link = FabricLink(Endpoint("a", 1), Endpoint("b", 1), G)
    with pytest.raises(PlanError, match="port a:1 has two links"):
        Fabric(("a", "b"), (link, replace(link, b=Endpoint("b", 2))), {})


def test_fabric_builders_refuse_what_no_switch_has() -> None:
    with pytest.raises(PlanError, match="at least one of everything"):
        leaf_spine(0, 1, 1)
    with pytest.raises(PlanError, match="a switch would need 516 ports; it has 509"):
        leaf_spine(2, 4, 512)


def test_tor_that_is_none_of_the_switches_is_refused() -> None:
    with pytest.raises(PlanError, match="ToR 'c' is no switch"):
        Fabric(("a", "b"), (), {}, tors=("c",))


def test_a_host_at_a_spine_leaves_the_racks_their_share() -> None:
    base = leaf_spine(4, 3, 4)
    fabric = replace(base, attachments={**base.attachments, "monitor": (Endpoint("spine1", 400),)})
    rings = random_rings(random.Random(12), base, 2)
    demands = ring_demands("j", rings) + ring_demands("m", [["monitor", "h0", "h5"]])
    plan = plan_paths(fabric, demands)
    check_plan(plan, demands)
    assert plan.optimal
    assert plan.max_relative == plan_paths(base, ring_demands("j", rings)).max_relative


def test_host_with_two_racks_is_reached_at_the_nearer_one() -> None:
    base = leaf_spine(3, 2, 1)
    both = (Endpoint("tor0", 50), Endpoint("tor1", 50))
    fabric = replace(base, attachments={**base.attachments, "dual": both})
    demands = [
        Demand(EdgeKey("j", 0, 0), "h1", "dual"),
        Demand(EdgeKey("j", 0, 1), "dual", "h2"),
        Demand(EdgeKey("j", 0, 2), "h2", "dual"),
    ]
    near, out, into = plan_paths(fabric, demands).edges.values()
    assert [str(hop) for hop in near.hops] == ["tor1:50"]
    assert out.switches[0] == "tor0"
    assert into.switches[-1] == "tor0"
    one_left = fabric.without([Endpoint("tor0", 50)])
    assert {e.switches[-1] for e in list(plan_paths(one_left, demands).edges.values())[::2]} == {
        "tor1"
    }
