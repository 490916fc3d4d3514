"""Plans a path for every ring edge, so that no link carries more than its share.

On a leaf-spine fabric whose links are up and alike, no uplink or downlink of a ToR carries more
than ceil(edges of that ToR and direction / uplinks of the ToR). Everything is deterministic.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from ringstep.fabric.balance import Balancer, Flow, Path, Scale, colored_paths
from ringstep.fabric.model import Endpoint, Topology
from ringstep.fabric.pathgraph import DirectedLink, Fabric, PathGraph, PlanError, Unreachable
from ringstep.fabric.rings import Edge, ring_edges

__all__ = [
    "Cut",
    "Demand",
    "EdgeKey",
    "LinkLoad",
    "PathHop",
    "Plan",
    "PlanError",
    "PlannedEdge",
    "Unreachable",
    "extend_plan",
    "pair_demands",
    "plan_paths",
    "ring_demands",
    "search_anew",
    "search_beside",
]


@dataclass(frozen=True, slots=True, order=True)
class EdgeKey:
    """Which edge: job, ring (channel) of the job, position of the sender in the ring."""

    job: str
    channel: int
    index: int

    def __str__(self) -> str:
        return f"{self.job}/{self.channel}/{self.index}"


@dataclass(frozen=True, slots=True)
class Demand:
    """One directed host pair to be planned.

    Attributes:
        key: identity over re-plans.
        src: sending host.
        dst: receiving host.
        weight: load on a link, in a unit of the caller's choice, the same for all jobs.
        sport: UDP source port, if known: with it ECMP's choice is computed, not estimated.
    """

    key: EdgeKey
    src: str
    dst: str
    weight: int = 1
    sport: int | None = None

    def __post_init__(self) -> None:
        if self.weight < 1:
            raise PlanError(
                f"edge {self.key} has weight {self.weight}; a weight is a whole number above 0"
            )


def ring_demands(
    job: str, rings: Iterable[Sequence[str]], weight: int = 1, sports: Sequence[int] = ()
) -> tuple[Demand, ...]:
    """Return a demand per edge of every ring; ring c uses source port ``sports[c mod len]``.

    Each channel keeps edges of its own, also where two channels join the same hosts. Use it where
    the switch can tell a job's connections apart (by destination QP).

    Raises:
        ValueError: a ring has fewer than two hosts, or a host twice.
    """
    demands = []
    for channel, ring in enumerate(rings):
        sport = sports[channel % len(sports)] if sports else None
        for index, edge in enumerate(ring_edges([ring])):
            key = EdgeKey(job, channel, index)
            demands.append(Demand(key, edge.src, edge.dst, weight, sport))
    return tuple(demands)


def pair_demands(job: str, rings: Iterable[Sequence[str]], weight: int = 1) -> tuple[Demand, ...]:
    """Return one demand per host pair, as heavy as the channels that it serves.

    Use it where the switch finds a job by its address pair, so that all channels between two hosts
    must share a path. The key's channel is 0 and its index counts pairs in order of appearance.

    Raises:
        ValueError: a ring has fewer than two hosts, or a host twice.
    """
    pairs: Counter[Edge] = Counter()
    for ring in rings:
        pairs.update(ring_edges([ring]))
    return tuple(
        Demand(EdgeKey(job, 0, index), edge.src, edge.dst, weight * channels)
        for index, (edge, channels) in enumerate(pairs.items())
    )


class PathHop(NamedTuple):
    """A switch and the port a planned packet leaves it by."""

    switch: str
    port: int

    def __str__(self) -> str:
        return f"{self.switch}:{self.port}"


@dataclass(frozen=True, slots=True)
class PlannedEdge:
    """A demand with its path: every switch in order, the last one delivering to the host."""

    demand: Demand
    hops: tuple[PathHop, ...]

    @property
    def fabric_hops(self) -> tuple[PathHop, ...]:
        """The hops between switches: what a plan decides. Empty within a rack."""
        return self.hops[:-1]

    @property
    def switches(self) -> tuple[str, ...]:
        """The switches on the path in order."""
        return tuple(hop.switch for hop in self.hops)


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """What one direction of a link between switches carries."""

    src: Endpoint
    dst: Endpoint
    rate_bps: int
    edges: int
    load: int

    def relative(self, reference_bps: int) -> Fraction:
        """Return the load as it would weigh on a link of ``reference_bps``."""
        return Fraction(self.load * reference_bps, self.rate_bps)


@dataclass(frozen=True, slots=True)
class Cut:
    """What must leave or enter a switch or pod, and the least its fullest link can carry.

    Attributes:
        place: switch, or the switches of a pod.
        direction: ``out`` or ``in``.
        edges: ring edges that cross.
        load: their weight.
        links: links up that they can cross by.
        bound: relative load (see :attr:`Plan.reference_bps`) no assignment can go below, given
            what is pinned.
        ideal: the same, were nothing pinned.
    """

    place: tuple[str, ...]
    direction: str
    edges: int
    load: int
    links: int
    bound: Fraction
    ideal: Fraction


@dataclass(frozen=True)
class Plan:
    """Paths of all edges, and what they load every link with.

    Attributes:
        fabric: what was planned for, failures included.
        edges: planned edges by key, in the order of the demands.
        links: every direction of every inter-switch link that is up.
        cuts: the bounds, tightest first.
        changed: keys whose path is new or another than in the plan this one extends.
    """

    fabric: Fabric
    edges: Mapping[EdgeKey, PlannedEdge]
    links: tuple[LinkLoad, ...]
    cuts: tuple[Cut, ...]
    changed: frozenset[EdgeKey] = field(default=frozenset())

    @cached_property
    def reference_bps(self) -> int:
        """Rate that relative loads refer to: the fastest inter-switch link that is up."""
        return max((link.rate_bps for link in self.links), default=1)

    @cached_property
    def max_relative(self) -> Fraction:
        """Relative load of the fullest link: the job's slowest link, in weights per reference."""
        return max((link.relative(self.reference_bps) for link in self.links), default=Fraction(0))

    @property
    def max_edges(self) -> int:
        """The most edges on one link."""
        return max((link.edges for link in self.links), default=0)

    @property
    def bound(self) -> Fraction:
        """Relative load that the fullest link cannot go below, given what is pinned."""
        return max((cut.bound for cut in self.cuts), default=Fraction(0))

    @property
    def ideal_bound(self) -> Fraction:
        """The same bound, were no edge pinned: what planning anew might reach."""
        return max((cut.ideal for cut in self.cuts), default=Fraction(0))

    @property
    def optimal(self) -> bool:
        """Whether the fullest link carries exactly the bound: then no plan can do better."""
        return self.max_relative == self.bound


def plan_paths(fabric: Fabric | Topology, demands: Iterable[Demand]) -> Plan:
    """Plan all edges from nothing, every one of them free to take any shortest path.

    Raises:
        PlanError: two demands share a key, or name a host that is not there.
        Unreachable: no path joins two hosts.
    """
    return _plan(_as_fabric(fabric), tuple(demands), {})


def extend_plan(
    fabric: Fabric | Topology,
    demands: Iterable[Demand],
    existing: Mapping[EdgeKey, PlannedEdge],
) -> Plan:
    """Plan what ``existing`` lacks or holds no longer validly; every other edge stays in place.

    ``existing`` is :attr:`Plan.edges` of the plan in force. ``demands`` is everything that is
    wanted now: an edge that is missing is released, a new one is planned around the others, and
    one whose hosts changed, whose path has a link down, or is longer than it now has to be, is
    planned again. To move edges for balance, use :func:`plan_paths` instead;
    :attr:`Plan.ideal_bound` tells what that could reach.

    Raises:
        PlanError: two demands share a key, or name a host that is not there.
        Unreachable: no path joins two hosts.
    """
    return _plan(_as_fabric(fabric), tuple(demands), existing)


def _as_fabric(fabric: Fabric | Topology) -> Fabric:
    return Fabric.of(fabric) if isinstance(fabric, Topology) else fabric


def _plan(
    fabric: Fabric, demands: tuple[Demand, ...], existing: Mapping[EdgeKey, PlannedEdge]
) -> Plan:
    twice = [key for key, n in Counter(demand.key for demand in demands).items() if n > 1]
    if twice:
        raise PlanError(f"edge {twice[0]} is given twice; a key names one edge")
    graph = fabric.graph
    ends = _ends(graph, demands)
    flows = [
        Flow(graph.number[start.node], graph.number[into.node], demand.weight)
        for demand, (start, into) in zip(demands, ends, strict=True)
    ]
    pinned = _Pinned.of(graph, flows, demands, ends, existing)
    scale = Scale(graph, math.gcd(*(flow.weight for flow in flows)) or 1)
    cuts = _cuts(graph, flows, pinned, scale)
    paths = _choose_paths(graph, flows, pinned, scale, _limits(graph, cuts))
    links = _choose_links(graph, flows, paths, pinned, scale)
    return _result(fabric, graph, demands, ends, flows, links, cuts, scale, existing)


def search_beside(
    graph: PathGraph, flows: Sequence[Flow], load: Sequence[int], scale: Scale
) -> list[tuple[DirectedLink, ...]]:
    """Return the links of every flow, planned beside ``load`` per directed link, which stays.

    It is the search of :func:`extend_plan`, for those who know the loads and not who makes them.
    """
    pinned = _Pinned.beside(graph, len(flows), load)
    limits = _limits(graph, _cuts(graph, flows, pinned, scale))
    paths = _choose_paths(graph, flows, pinned, scale, limits)
    return _choose_links(graph, flows, paths, pinned, scale)


def search_anew(
    graph: PathGraph,
    flows: Sequence[Flow],
    current: Sequence[tuple[DirectedLink, ...] | None],
    scale: Scale,
) -> list[tuple[DirectedLink, ...]]:
    """Return the links of every flow where all may move, as few of them as repair needs.

    ``current`` holds the links that a flow takes now, a shortest path, or None for a new one.
    Where moving some flows does not bring the fullest link down to its bound, the search of
    :func:`plan_paths` is tried, which moves nearly all, and taken if it does better.
    """
    none = _Pinned.beside(graph, len(flows), [0] * sum(len(links) for links in graph.links))
    limits = _limits(graph, _cuts(graph, flows, none, scale))
    trunk_of = [trunk for trunk, links in enumerate(graph.links) for _ in links]
    start = [
        None if links is None else tuple(trunk_of[link.number] for link in links)
        for links in current
    ]
    balancer = Balancer(graph, flows, start, [False] * len(flows), scale, limits)
    balancer.fill()
    balancer.repair()
    kept = _Pinned.beside(graph, len(flows), none.load)
    for i, (links, before, after) in enumerate(zip(current, start, balancer.paths, strict=True)):
        if links is not None and before == after:
            kept.paths[i], kept.links[i] = before, links
            for link in links:
                kept.load[link.number] += flows[i].weight
    paths = [path or () for path in balancer.paths]
    found = _choose_links(graph, flows, paths, kept, scale)
    fullest = _fullest(graph, flows, found, scale)
    if fullest > max(limits, default=0):
        for other in (paths, _choose_paths(graph, flows, none, scale, limits)):
            chosen = _choose_links(graph, flows, other, none, scale)
            if (level := _fullest(graph, flows, chosen, scale)) < fullest:
                found, fullest = chosen, level
    return found


def _fullest(
    graph: PathGraph,
    flows: Sequence[Flow],
    links: Sequence[tuple[DirectedLink, ...]],
    scale: Scale,
) -> int:
    every = [link for of_trunk in graph.links for link in of_trunk]
    load = [0] * len(every)
    for flow, taken in zip(flows, links, strict=True):
        for link in taken:
            load[link.number] += flow.weight
    return max((scale.of_link(load[link.number], link.rate_bps) for link in every), default=0)


def _ends(graph: PathGraph, demands: Sequence[Demand]) -> list[tuple[Endpoint, Endpoint]]:
    return [graph.ends(demand.src, demand.dst) for demand in demands]


@dataclass(frozen=True, slots=True)
class _Pinned:
    """What stays: edges with their trunks and links, and what the links carry.

    Attributes:
        paths: trunks per flow, None where the flow is to be planned.
        links: the links of those trunks per flow.
        load: weight per directed link.
        others: weight per trunk that is no flow's; empty: none.
    """

    paths: list[Path | None]
    links: list[tuple[DirectedLink, ...]]
    load: list[int]
    others: Sequence[int] = ()

    @staticmethod
    def beside(graph: PathGraph, flows: int, load: Sequence[int]) -> _Pinned:
        """No flow of ``flows`` is pinned; the links carry ``load`` that is none of theirs."""
        others = [sum(load[link.number] for link in links) for links in graph.links]
        return _Pinned([None] * flows, [()] * flows, list(load), others)

    @staticmethod
    def of(
        graph: PathGraph,
        flows: Sequence[Flow],
        demands: Sequence[Demand],
        ends: Sequence[tuple[Endpoint, Endpoint]],
        existing: Mapping[EdgeKey, PlannedEdge],
    ) -> _Pinned:
        """Pin the flows whose edge has a valid path in ``existing``."""
        pinned = _Pinned.beside(graph, len(flows), [0] * sum(len(links) for links in graph.links))
        if not existing:
            return pinned
        by_port = {
            link.src: (trunk, link) for trunk, links in enumerate(graph.links) for link in links
        }
        for i, demand in enumerate(demands):
            old = existing.get(demand.key)
            if old is None or (old.demand.src, old.demand.dst) != (demand.src, demand.dst):
                continue
            steps = [by_port.get(Endpoint(hop.switch, hop.port)) for hop in old.fabric_hops]
            live = [step for step in steps if step is not None]
            if len(live) != len(steps) or not _leads(graph, flows[i], [t for t, _ in live]):
                continue
            if old.hops[-1].switch != ends[i][1].node:
                continue
            pinned.paths[i] = tuple(trunk for trunk, _ in live)
            pinned.links[i] = tuple(link for _, link in live)
            for _, link in live:
                pinned.load[link.number] += demand.weight
        return pinned

    @property
    def fixed(self) -> list[bool]:
        return [path is not None for path in self.paths]


def _leads(graph: PathGraph, flow: Flow, trunks: Sequence[int]) -> bool:
    """Whether trunks are a shortest path of a flow as the fabric now is."""
    here = flow.source
    for trunk in trunks:
        if trunk not in graph.steps(here, flow.target):
            return False
        here = graph.trunks[trunk][1]
    return here == flow.target


@dataclass(frozen=True, slots=True)
class _NumberedCut:
    switches: tuple[int, ...]
    direction: str
    trunks: tuple[int, ...]
    edges: int
    load: int
    bound: int
    ideal: int


def _cuts(
    graph: PathGraph, flows: Sequence[Flow], pinned: _Pinned, scale: Scale
) -> list[_NumberedCut]:
    """Bounds of every ToR, and of every pod that does not hold the whole fabric."""
    cuts: list[_NumberedCut] = []
    parts = [list(range(len(graph.names)))]
    parts += [graph.parts(0, tier) for tier in range(1, max(graph.tier, default=0))]
    for level, part in enumerate(parts):
        out: dict[int, list[int]] = {}
        into: dict[int, list[int]] = {}
        for i, flow in enumerate(flows):
            if part[flow.source] != part[flow.target]:
                out.setdefault(part[flow.source], []).append(i)
                into.setdefault(part[flow.target], []).append(i)
        for direction, groups in (("out", out), ("in", into)):
            here = 0 if direction == "out" else 1
            crossing: dict[int, list[int]] = {}
            for trunk, pair in enumerate(graph.trunks):
                if part[pair[0]] != part[pair[1]] and part[pair[here]] in groups:
                    crossing.setdefault(part[pair[here]], []).append(trunk)
            for place, members in sorted(groups.items()):
                trunks = crossing.get(place, [])
                if level == 0:
                    trunks = _useful(graph, flows, members, trunks, direction)
                switches = tuple(s for s, number in enumerate(part) if number == place)
                cuts.append(_cut(graph, flows, members, trunks, pinned, scale, switches, direction))
    return cuts


def _useful(
    graph: PathGraph,
    flows: Sequence[Flow],
    members: Sequence[int],
    trunks: Sequence[int],
    direction: str,
) -> list[int]:
    """The trunks of a switch that lie on a shortest path of one of its flows."""
    pairs = {(flows[i].source, flows[i].target) for i in members}
    useful: set[int] = set()
    for source, target in sorted(pairs):
        if direction == "out":
            useful.update(graph.steps(source, target))
        else:
            # Links are full duplex: the last step towards the target is the first one back.
            useful.update(
                graph.trunk_number[b, a]
                for a, b in (graph.trunks[trunk] for trunk in graph.steps(target, source))
            )
        if len(useful) == len(trunks):
            break
    return sorted(useful)


def _cut(
    graph: PathGraph,
    flows: Sequence[Flow],
    members: Sequence[int],
    trunks: Sequence[int],
    pinned: _Pinned,
    scale: Scale,
    switches: tuple[int, ...],
    direction: str,
) -> _NumberedCut:
    links = [link for trunk in trunks for link in graph.links[trunk]]
    shares = [scale.of_link(1, link.rate_bps) for link in links]
    held = [pinned.load[link.number] for link in links]
    weights = [flows[i].weight for i in members]
    ideal = _least(scale, shares, [0] * len(links), weights)
    bound = _least(
        scale, shares, held, [flows[i].weight for i in members if pinned.paths[i] is None]
    )
    return _NumberedCut(
        switches, direction, tuple(trunks), len(members), sum(weights), bound, min(ideal, bound)
    )


def _least(scale: Scale, shares: Sequence[int], held: Sequence[int], weights: Sequence[int]) -> int:
    """The least relative load of the fullest link once flows of some weights are added."""
    spread = scale.least(shares, held, sum(weights), math.gcd(*weights))
    if not weights:
        return spread
    heaviest = max(weights)
    return max(spread, min(s * (h + heaviest) for s, h in zip(shares, held, strict=True)))


def _limits(graph: PathGraph, cuts: Sequence[_NumberedCut]) -> list[int]:
    """Per trunk, the largest bound of the cuts it belongs to; elsewhere that of the fabric."""
    limits = [-1] * len(graph.trunks)
    for cut in cuts:
        for trunk in cut.trunks:
            limits[trunk] = max(limits[trunk], cut.bound)
    overall = max((cut.bound for cut in cuts), default=0)
    return [overall if limit < 0 else limit for limit in limits]


def _choose_paths(
    graph: PathGraph,
    flows: Sequence[Flow],
    pinned: _Pinned,
    scale: Scale,
    limits: Sequence[int],
) -> list[Path]:
    free = [i for i, path in enumerate(pinned.paths) if path is None]
    colored = colored_paths(graph, [flows[i] for i in free])
    start = list(pinned.paths)
    for i, path in zip(free, colored, strict=True):
        start[i] = path
    best: tuple[tuple[int, int], list[Path]] | None = None
    # Colouring knows nothing of what is pinned; where it stays above the bound, placing one flow
    # after the other on the emptiest path may do better.
    for paths in (start, pinned.paths):
        balancer = Balancer(graph, flows, paths, pinned.fixed, scale, limits, pinned.others)
        balancer.fill()
        balancer.repair()
        worst = balancer.worst()
        if best is None or worst < best[0]:
            best = worst, [path or () for path in balancer.paths]
        if worst[0] <= max(limits, default=0):
            break
    assert best is not None
    return best[1]


def _choose_links(
    graph: PathGraph,
    flows: Sequence[Flow],
    paths: Sequence[Path],
    pinned: _Pinned,
    scale: Scale,
) -> list[tuple[DirectedLink, ...]]:
    """Give every flow a link of each of its trunks: heavy ones first, to the emptiest link."""
    load = list(pinned.load)
    chosen: list[tuple[DirectedLink, ...]] = list(pinned.links)
    for i in sorted(range(len(flows)), key=lambda i: (-flows[i].weight, i)):
        if pinned.paths[i] is not None:
            continue
        weight = flows[i].weight
        links = []
        for trunk in paths[i]:
            of_trunk = graph.links[trunk]
            link = of_trunk[0]
            if len(of_trunk) > 1:
                link = min(
                    of_trunk,
                    key=lambda each: scale.of_link(load[each.number] + weight, each.rate_bps),
                )
            load[link.number] += weight
            links.append(link)
        chosen[i] = tuple(links)
    return chosen


def _result(
    fabric: Fabric,
    graph: PathGraph,
    demands: Sequence[Demand],
    ends: Sequence[tuple[Endpoint, Endpoint]],
    flows: Sequence[Flow],
    links: Sequence[tuple[DirectedLink, ...]],
    cuts: Sequence[_NumberedCut],
    scale: Scale,
    existing: Mapping[EdgeKey, PlannedEdge],
) -> Plan:
    every = [link for of_trunk in graph.links for link in of_trunk]
    hop_by = [PathHop(link.src.node, link.src.port) for link in every]
    load = [0] * len(every)
    count = [0] * len(every)
    edges: dict[EdgeKey, PlannedEdge] = {}
    changed = set()
    for i, demand in enumerate(demands):
        into = ends[i][1]
        for link in links[i]:
            load[link.number] += flows[i].weight
            count[link.number] += 1
        hops = (*[hop_by[link.number] for link in links[i]], PathHop(into.node, into.port))
        edges[demand.key] = PlannedEdge(demand, hops)
        old = existing.get(demand.key)
        if old is None or old.hops != hops:
            changed.add(demand.key)
    loads = tuple(
        LinkLoad(link.src, link.dst, link.rate_bps, count[link.number], load[link.number])
        for link in sorted(every, key=lambda link: link.src)
    )
    reference = max((link.rate_bps for link in loads), default=1)
    named = [
        Cut(
            place=tuple(graph.names[s] for s in cut.switches),
            direction=cut.direction,
            edges=cut.edges,
            load=cut.load,
            links=sum(len(graph.links[trunk]) for trunk in cut.trunks),
            bound=Fraction(cut.bound * reference, scale.unit_rate_bps),
            ideal=Fraction(cut.ideal * reference, scale.unit_rate_bps),
        )
        for cut in cuts
    ]
    named.sort(key=lambda cut: (-cut.bound, len(cut.place), cut.place, cut.direction))
    return Plan(fabric, edges, loads, tuple(named), frozenset(changed))
