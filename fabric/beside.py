"""Planning of a few edges beside what the links carry already, without looking at who loads them.

The result is as good as :func:`ringstep.fabric.planner.extend_plan`'s with the same edges pinned,
at a cost that grows with the new edges only. Nobody else moves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from ringstep.fabric.balance import Flow, Scale
from ringstep.fabric.model import Endpoint, Topology
from ringstep.fabric.pathgraph import DirectedLink, Fabric, PlanError, Unreachable
from ringstep.fabric.planner import Demand, EdgeKey, PathHop, PlannedEdge, search_beside

_MOST_WAYS = 64
"""Shortest paths between two switches that are looked at one by one; beyond, trunk by trunk."""
_MOST_TRIALS = 300
"""Combinations of paths of flows that meet, up to which all are tried."""
_MOST_KNOWN = 1 << 16

Way = tuple[int, ...]
"""Numbers of directed links, from the first switch to the last."""


class LoadedFabric:
    """Finds paths on one fabric, given the load of every directed link.

    Attributes:
        links: every direction of every inter-switch link that is up, by number.
        hops: the same as hops.
        numbers: the way back, by switch and port.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.graph = fabric.graph
        self.links: list[DirectedLink] = [
            link for of_trunk in self.graph.links for link in of_trunk
        ]
        self.hops = [PathHop(link.src.node, link.src.port) for link in self.links]
        self.numbers = {(link.src.node, link.src.port): link.number for link in self.links}
        self._scales: dict[int, Scale] = {}
        self.reference_bps = max((link.rate_bps for link in self.links), default=1)
        unit = self.scale(1).unit_rate_bps
        self.share = [unit // link.rate_bps for link in self.links]
        """Relative load that a load of 1 makes, per link."""
        self._ways: dict[tuple[int, int], tuple[Way, ...]] = {}
        self._ends: dict[tuple[str, str], tuple[int, int, PathHop]] = {}
        self._single: dict[str, tuple[int, PathHop]] = {
            host: (self.graph.number[ends[0].node], PathHop(ends[0].node, ends[0].port))
            for host, ends in fabric.attachments.items()
            if len(ends) == 1
        }

    def scale(self, unit: int) -> Scale:
        """Return how loads compare where all weights are multiples of ``unit``."""
        known = self._scales.get(unit)
        if known is None:
            known = self._scales[unit] = Scale(self.graph, unit)
        return known

    def relative(self, number: int, load: float) -> float:
        """Return a load of one link as it would weigh on the fastest link."""
        return load * self.reference_bps / self.links[number].rate_bps

    def ends(self, src: str, dst: str) -> tuple[int, int, PathHop]:
        """Return first switch, last switch, and the hop from there to ``dst``.

        Raises:
            PlanError, Unreachable: as :meth:`PathGraph.ends`.
        """
        first, last = self._single.get(src), self._single.get(dst)
        if first is not None and last is not None and src != dst:
            source, target = first[0], last[0]
            if source == target or self._ways.get((source, target)):
                return source, target, last[1]
        known = self._ends.get((src, dst))
        if known is None:
            start, into = self.graph.ends(src, dst)
            number = self.graph.number
            known = (number[start.node], number[into.node], PathHop(into.node, into.port))
            if len(self._ends) >= _MOST_KNOWN:
                self._ends.clear()
            self._ends[src, dst] = known
        return known

    def leads(self, source: int, target: int, hops: Sequence[PathHop]) -> bool:
        """Tell whether hops are a shortest path between two switches over links that are up."""
        graph, here = self.graph, source
        for hop in hops:
            number = self.numbers.get((hop.switch, hop.port))
            if number is None:
                return False
            link = self.links[number]
            there = graph.number[link.dst.node]
            if graph.number[hop.switch] != here:
                return False
            if graph.trunk_number[here, there] not in graph.steps(here, target):
                return False
            here = there
        return here == target

    def place(self, flows: Sequence[Flow], load: Sequence[int]) -> list[Way]:
        """Return a shortest path for every flow, so that the fullest link that they use is least.

        Args:
            flows: what is to be carried; flows within a switch get an empty path.
            load: what every link carries already.

        Raises:
            PlanError: no path joins the two switches of a flow.
        """
        crossing = [i for i, flow in enumerate(flows) if flow.source != flow.target]
        ways: list[Way] = [()] * len(flows)
        if not crossing:
            return ways
        chosen = [flows[i] for i in crossing]
        found, good = self._one_by_one(chosen, load)
        if not good:
            weights = [flow.weight for flow in chosen]
            unit = math.gcd(*weights, *load)
            searched = [
                tuple(link.number for link in links)
                for links in search_beside(self.graph, chosen, load, self.scale(unit))
            ]
            if self._worst(chosen, searched, load) < self._worst(chosen, found, load):
                found = searched
        for i, way in zip(crossing, found, strict=True):
            ways[i] = way
        return ways

    def bound(self, flows: Sequence[Flow], load: Sequence[int]) -> float:
        """Return the load, on the fastest link, that the fullest link in use cannot go below.

        It is that of the switches where flows start or end: what must leave, or enter, one has to
        share the links there that lead its way.
        """
        least = 0
        for (end, _), members in _cuts(f for f in flows if f.source != f.target).items():
            links = self._useful(end, {(flow.source, flow.target) for flow in members})
            weights = [flow.weight for flow in members]
            shares, held = [self.share[n] for n in links], [load[n] for n in links]
            heaviest = max(weights)
            least = max(
                least,
                min(s * (h + heaviest) for s, h in zip(shares, held, strict=True)),
                _least_in_use(shares, held, sum(weights), math.gcd(*weights)),
            )
        return least * self.reference_bps / self.scale(1).unit_rate_bps

    def _worst(
        self, flows: Sequence[Flow], ways: Sequence[Way], load: Sequence[int]
    ) -> tuple[int, int]:
        """Highest relative load of a link in use, and the sum of squares of all."""
        after = list(load)
        for flow, way in zip(flows, ways, strict=True):
            for number in way:
                after[number] += flow.weight
        levels = [each * share for each, share in zip(after, self.share, strict=True)]
        used = {number for way in ways for number in way}
        return max(levels[n] for n in used), sum(level * level for level in levels)

    def _one_by_one(self, flows: Sequence[Flow], load: Sequence[int]) -> tuple[list[Way], bool]:
        """Put flow after flow, heavy ones first, on the path whose fullest link is least full.

        Returns the paths, and whether no others could do better.
        """
        share = self.share
        after = list(load)
        ways: list[Way] = [()] * len(flows)
        order: Iterable[int] = range(len(flows))
        weight = flows[0].weight
        if any(flow.weight != weight for flow in flows):
            order = sorted(order, key=lambda i: -flows[i].weight)
        for i in order:
            flow = flows[i]
            weight = flow.weight
            choices = self._ways.get((flow.source, flow.target))
            if choices is None:
                choices = self._find_ways(flow.source, flow.target)
            if not choices:
                choices = (self._least_loaded(flow, after),)
            best: Way = choices[0]
            if len(choices) > 1:
                best_high = best_total = -1
                for way in choices:
                    high = total = 0
                    for number in way:
                        level = (after[number] + weight) * share[number]
                        total += level
                        if level > high:
                            high = level
                    if (
                        best_high < 0
                        or high < best_high
                        or (high == best_high and total < best_total)
                    ):
                        best_high, best_total, best = high, total, way
            for number in best:
                after[number] += weight
            ways[i] = best
        doubtful = self._doubtful_cuts(flows, ways, load, after)
        return ways, not doubtful or self._settle(flows, ways, after, doubtful)

    def _find_ways(self, source: int, target: int) -> tuple[Way, ...]:
        """All shortest paths of two switches; none where they are too many.

        Raises:
            PlanError: no path joins them.
        """
        graph = self.graph
        if graph.distances(target)[source] < 0:
            raise PlanError(
                f"no path from switch {graph.names[source]!r} to {graph.names[target]!r}"
            )
        walks: list[tuple[int, Way]] = [(source, ())]
        for _ in range(graph.distances(target)[source]):
            walks = [
                (graph.trunks[trunk][1], (*way, link.number))
                for here, way in walks
                for trunk in graph.steps(here, target)
                for link in graph.links[trunk]
            ]
            if len(walks) > _MOST_WAYS:
                walks = []
                break
        known = self._ways[source, target] = tuple(way for _, way in walks)
        return known

    def _least_loaded(self, flow: Flow, load: Sequence[int]) -> Way:
        graph, share, weight, target = self.graph, self.share, flow.weight, flow.target
        best: dict[int, tuple[int, int, Way]] = {target: (0, 0, ())}

        def from_switch(switch: int) -> tuple[int, int, Way]:
            known = best.get(switch)
            if known is None:
                choices = []
                for trunk in graph.steps(switch, target):
                    high, total, way = from_switch(graph.trunks[trunk][1])
                    for link in graph.links[trunk]:
                        level = (load[link.number] + weight) * share[link.number]
                        choices.append((max(high, level), total + level, (link.number, *way)))
                known = best[switch] = min(choices)
            return known

        return from_switch(flow.source)[2]

    def _doubtful_cuts(
        self,
        flows: Sequence[Flow],
        ways: Sequence[Way],
        before: Sequence[int],
        after: Sequence[int],
    ) -> list[tuple[int, int]]:
        """Return the switches where flows start or end and other paths might do better.

        None, where every link in use is within a bound of the planner: what leaves, or enters, a
        switch must share the links that lead its way. Links between such ones only must not stand
        higher.
        """
        share = self.share
        levels: dict[tuple[int, int], int] = {}
        for flow, way in zip(flows, ways, strict=True):
            for cut, number in (((0, flow.source), way[0]), ((-1, flow.target), way[-1])):
                level = after[number] * share[number]
                if level > levels.get(cut, 0):
                    levels[cut] = level
        doubtful = []
        for cut, members in _cuts(flows).items():
            level = levels[cut]
            links = self._useful(cut[0], {(flow.source, flow.target) for flow in members})
            weights = [flow.weight for flow in members]
            heaviest = max(weights)
            if level <= min([share[n] * (before[n] + heaviest) for n in links]):
                continue
            if level <= max([share[n] * before[n] for n in links]):
                continue
            spread = Scale.least(
                [share[n] for n in links],
                [before[n] for n in links],
                sum(weights),
                math.gcd(*weights),
            )
            if level > spread:
                doubtful.append(cut)
        highest = max((level for cut, level in levels.items() if cut not in doubtful), default=0)
        for flow, way in zip(flows, ways, strict=True):
            if any(after[number] * share[number] > highest for number in way[1:-1]):
                doubtful += [(0, flow.source), (-1, flow.target)]
        return doubtful

    def _settle(
        self,
        flows: Sequence[Flow],
        ways: list[Way],
        after: list[int],
        doubtful: Sequence[tuple[int, int]],
    ) -> bool:
        """Try all paths of the few flows that meet at a doubtful switch; improve ``ways``.

        Returns whether that settled all of them: no other paths do better then.
        """
        if any(len(way) > 2 for way in ways):
            return False
        # Over two links, flows meet only where they start or end at one switch.
        group = list(range(len(flows)))
        first: dict[tuple[int, int], int] = {}
        for i, flow in enumerate(flows):
            for cut in ((0, flow.source), (-1, flow.target)):
                other = group[first.setdefault(cut, i)]
                mine = group[i]
                if other != mine:
                    group = [other if each == mine else each for each in group]
        for number in {group[first[cut]] for cut in doubtful}:
            members = [i for i, each in enumerate(group) if each == number]
            choices = [self._ways.get((flows[i].source, flows[i].target), ()) for i in members]
            if len(members) == 1 and choices[0]:
                continue
            if not 0 < math.prod(map(len, choices)) <= _MOST_TRIALS:
                return False
            for i in members:
                for link in ways[i]:
                    after[link] -= flows[i].weight
            weights = [flows[i].weight for i in members]
            best = min(
                itertools.product(*choices), key=lambda each: self._level(each, weights, after)
            )
            for i, way in zip(members, best, strict=True):
                ways[i] = way
                for link in way:
                    after[link] += flows[i].weight
        return True

    def _level(
        self, ways: Sequence[Way], weights: Sequence[int], load: Sequence[int]
    ) -> tuple[int, int]:
        """Highest relative load of the links that some flows use, and the sum over these."""
        added: dict[int, int] = {}
        for way, weight in zip(ways, weights, strict=True):
            for number in way:
                added[number] = added.get(number, 0) + weight
        levels = [(load[n] + weight) * self.share[n] for n, weight in added.items()]
        return max(levels), sum(levels)

    def _useful(self, end: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
        """First (``end`` 0) or last (-1) links on the shortest paths of some pairs of switches."""
        graph = self.graph
        found: set[int] = set()
        for source, target in pairs:
            ways = self._ways.get((source, target))
            if ways:
                found.update([way[end] for way in ways])
            elif end == 0:
                for trunk in graph.steps(source, target):
                    found.update(link.number for link in graph.links[trunk])
            else:
                for trunk in graph.steps(target, source):
                    a, b = graph.trunks[trunk]
                    found.update(link.number for link in graph.links[graph.trunk_number[b, a]])
        return sorted(found)


def _cuts(flows: Iterable[Flow]) -> dict[tuple[int, int], list[Flow]]:
    """Flows by where they leave the first switch (0, switch) or enter the last one (-1, switch)."""
    cuts: dict[tuple[int, int], list[Flow]] = {}
    for flow in flows:
        cuts.setdefault((0, flow.source), []).append(flow)
        cuts.setdefault((-1, flow.target), []).append(flow)
    return cuts


def _least_in_use(shares: Sequence[int], held: Sequence[int], load: int, unit: int) -> int:
    """The least relative load of the fullest link that a load of pieces of ``unit`` is put on."""
    pieces = -(-load // unit)

    def room(level: int) -> int:
        return sum(
            max(level // share - h, 0) // unit for share, h in zip(shares, held, strict=True)
        )

    low, high = 0, max(shares) * (max(held) + load)
    while low < high:
        middle = (low + high) // 2
        if room(middle) >= pieces:
            high = middle
        else:
            low = middle + 1
    return low


def plan_beside(
    fabric: Fabric | Topology | LoadedFabric,
    demands: Iterable[Demand],
    loads: Mapping[Endpoint, int],
) -> dict[EdgeKey, PlannedEdge]:
    """Plan edges beside what the links carry already.

    Args:
        fabric: the fabric; a :class:`LoadedFabric` where it is asked more than once.
        demands: the new edges.
        loads: weight per directed link, named by the switch port that it leaves; links that are
            not there, or down, are passed over.

    Raises:
        PlanError: two demands share a key, or name a host that is not there.
        Unreachable: no path joins two hosts.
    """
    if isinstance(fabric, Topology):
        fabric = Fabric.of(fabric)
    loaded = fabric if isinstance(fabric, LoadedFabric) else LoadedFabric(fabric)
    load = [0] * len(loaded.links)
    for end, weight in loads.items():
        number = loaded.numbers.get((end.node, end.port))
        if number is not None:
            load[number] = weight
    wanted = tuple(demands)
    if len({demand.key for demand in wanted}) != len(wanted):
        raise PlanError("an edge is given twice; a key names one edge")
    ends = [loaded.ends(demand.src, demand.dst) for demand in wanted]
    flows = [
        Flow(source, target, demand.weight)
        for demand, (source, target, _) in zip(wanted, ends, strict=True)
    ]
    return {
        demand.key: PlannedEdge(demand, (*[loaded.hops[number] for number in way], last))
        for demand, way, (_, _, last) in zip(wanted, loaded.place(flows, load), ends, strict=True)
    }


__all__ = ["LoadedFabric", "Unreachable", "Way", "plan_beside"]
