"""Plans that turn with the step: every turn as even as the plan, every way taken once."""

from collections import Counter
from itertools import pairwise

import pytest

from ringstep.fabric.model import Endpoint
from ringstep.fabric.pathgraph import Fabric, leaf_spine, multi_pod
from ringstep.fabric.planner import Plan, pair_demands, plan_paths, ring_demands
from ringstep.fabric.turns import turned, turns


def _striped(fabric: Fabric, ranks: int) -> Plan:
    hosts = list(fabric.attachments)
    per_tor = len(hosts) // 4
    rings = [[hosts[tor * per_tor + i] for tor in range(4)] for i in range(ranks)]
    return plan_paths(fabric, pair_demands("job", rings))


def _loads(plan: Plan, turn: int) -> Counter[tuple[str, int]]:
    """Edges per inter-switch link in a turn."""
    return Counter(
        (hop.switch, hop.port)
        for edge in plan.edges.values()
        for hop in turned(plan, edge, turn)[:-1]
    )


def test_turn_zero_is_the_plan() -> None:
    plan = _striped(leaf_spine(4, 4, 8), 8)
    for edge in plan.edges.values():
        assert turned(plan, edge, 0) == edge.hops
        assert turned(plan, edge, turns(plan)) == edge.hops


@pytest.mark.parametrize("spines", [1, 2, 3, 4, 8])
def test_every_turn_loads_the_links_as_the_plan_does(spines: int) -> None:
    plan = _striped(leaf_spine(4, spines, 8), 8)
    assert turns(plan) == spines
    planned = sorted(_loads(plan, 0).values())
    for turn in range(spines):
        assert sorted(_loads(plan, turn).values()) == planned
        assert max(_loads(plan, turn).values()) == plan.max_edges


def test_an_edge_takes_every_uplink_once() -> None:
    plan = _striped(leaf_spine(4, 4, 8), 8)
    for edge in plan.edges.values():
        assert len({turned(plan, edge, turn)[0].port for turn in range(4)}) == 4


def test_paths_of_three_tiers_are_whole_and_even() -> None:
    fabric = multi_pod(2, 2, 2, 2, 4)
    hosts = list(fabric.attachments)
    half = len(hosts) // 2
    rings = [[hosts[i], hosts[half + i]] for i in range(half)]
    plan = plan_paths(fabric, pair_demands("job", rings))
    graph = fabric.graph
    ends = {link.src: link.dst for links in graph.links for link in links}
    for turn in range(turns(plan)):
        assert max(_loads(plan, turn).values()) == plan.max_edges
        for edge in plan.edges.values():
            hops = turned(plan, edge, turn)
            assert hops[-1] == edge.hops[-1]
            for here, there in pairwise(hops):
                assert ends[Endpoint(here.switch, here.port)].node == there.switch


def test_within_a_rack_nothing_turns() -> None:
    fabric = leaf_spine(2, 2, 4)
    plan = plan_paths(fabric, ring_demands("job", [list(fabric.attachments)[:4]]))
    assert turns(plan) == 1
    for edge in plan.edges.values():
        assert turned(plan, edge, 5) == edge.hops
