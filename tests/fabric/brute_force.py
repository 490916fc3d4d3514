"""The best that any plan could do, by trying all; and what a plan must satisfy in any case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from ringstep.fabric.model import Endpoint
from ringstep.fabric.pathgraph import Fabric
from ringstep.fabric.planner import Demand, EdgeKey, Plan, PlannedEdge

Link = tuple[Endpoint, Endpoint, int]


def live_links(fabric: Fabric) -> dict[str, list[Link]]:
    """Ways out of every switch."""
    links: dict[str, list[Link]] = {name: [] for name in fabric.switches}
    for link in fabric.links:
        if link.up:
            links[link.a.node].append((link.a, link.b, link.rate_bps))
            links[link.b.node].append((link.b, link.a, link.rate_bps))
    return links


def shortest_paths(fabric: Fabric, source: str, target: str) -> list[tuple[Link, ...]]:
    """All shortest paths, parallel links told apart, found by lengthening all walks."""
    out = live_links(fabric)
    walks: list[tuple[Link, ...]] = [()]
    for _ in fabric.switches:
        arrived = [w for w in walks if (w[-1][1].node if w else source) == target]
        if arrived:
            return arrived
        walks = [(*w, link) for w in walks for link in out[w[-1][1].node if w else source]]
    return []


def least_max_relative(
    fabric: Fabric,
    demands: Sequence[Demand],
    reference_bps: int,
    pinned: Mapping[EdgeKey, PlannedEdge] | None = None,
) -> Fraction:
    """The lowest relative load of the fullest link over all assignments (small fabrics only)."""
    pinned = pinned or {}
    rate = {src: rate for of_switch in live_links(fabric).values() for src, _, rate in of_switch}
    load: Counter[Endpoint] = Counter()
    for demand in demands:
        if demand.key in pinned:
            for hop in pinned[demand.key].fabric_hops:
                load[Endpoint(hop.switch, hop.port)] += demand.weight
    start = max((Fraction(n * reference_bps, rate[end]) for end, n in load.items()), default=None)
    choices = []
    for demand in demands:
        source = fabric.attachments[demand.src][0].node
        target = fabric.attachments[demand.dst][0].node
        if demand.key not in pinned and source != target:
            choices.append((shortest_paths(fabric, source, target), demand.weight))
    choices.sort(key=lambda choice: (-choice[1], len(choice[0])))
    best: Fraction | None = None

    def search(depth: int, highest: Fraction) -> None:
        nonlocal best
        if best is not None and highest >= best:
            return
        if depth == len(choices):
            best = highest
            return
        paths, weight = choices[depth]
        ways = []
        for path in paths:
            levels = [Fraction((load[src] + weight) * reference_bps, rate) for src, _, rate in path]
            ways.append((max([highest, *levels]), path))
        for level, path in sorted(ways, key=lambda way: way[0]):
            for src, _, _ in path:
                load[src] += weight
            search(depth + 1, level)
            for src, _, _ in path:
                load[src] -= weight

    search(0, start or Fraction(0))
    assert best is not None
    return best


def check_plan(plan: Plan, demands: Sequence[Demand]) -> None:
    """Every edge has a path of links that are up, of least length, and the loads add up."""
    fabric = plan.fabric
    far = {src: dst for links in live_links(fabric).values() for src, dst, _ in links}
    length: dict[tuple[str, str], int] = {}
    load: Counter[Endpoint] = Counter()
    edges: Counter[Endpoint] = Counter()
    assert list(plan.edges) == [demand.key for demand in demands]
    for demand in demands:
        edge = plan.edges[demand.key]
        assert edge.demand == demand
        assert edge.hops[0].switch in {end.node for end in fabric.attachments[demand.src]}
        for hop, following in zip(edge.hops, edge.hops[1:], strict=False):
            end = Endpoint(hop.switch, hop.port)
            assert far[end].node == following.switch
            load[end] += demand.weight
            edges[end] += 1
        last = edge.hops[-1]
        assert Endpoint(last.switch, last.port) in fabric.attachments[demand.dst]
        ends = edge.hops[0].switch, last.switch
        if ends not in length:
            length[ends] = len(shortest_paths(fabric, *ends)[0])
        assert len(edge.fabric_hops) == length[ends]
    assert {link.src: link.load for link in plan.links} == {end: load[end] for end in far}
    assert {link.src: link.edges for link in plan.links} == {end: edges[end] for end in far}
    assert plan.max_relative >= plan.bound >= plan.ideal_bound
