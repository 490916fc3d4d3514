"""Assignment of flows to shortest paths so that the most loaded link carries as little as can be.

Three steps: colour (:func:`colored_paths`, exact on regular fabrics), fill in what colouring
could not place, and repair what stands above its bound by chains of moves (:class:`Balancer`).
Loads are compared relative to link rates, in whole numbers: load x (common multiple / rate).
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringstep.fabric.coloring import equitable_coloring
from ringstep.fabric.pathgraph import PathGraph

Path = tuple[int, ...]
"""Trunks from the first switch to the last; empty where both ends hang off one switch."""

_MOST_COLORS = 64
_CHAIN_BUDGET = 5_000
_REPAIR_BUDGET = 100_000
_EVENING_BUDGET = 20_000
"""Paths looked at: per chain, in all, and in all once the fullest trunk of the fabric is as good
as can be and only others stand above limits of their own."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A demand in numbers: first and last switch, and how much it loads a link."""

    source: int
    target: int
    weight: int


class Scale:
    """Relative loads of links and trunks as whole numbers, comparable across rates.

    The load of a trunk counts as the load of its fullest link once its flows are spread over its
    links as evenly as pieces of ``unit`` allow, the greatest common divisor of all weights.
    """

    def __init__(self, graph: PathGraph, unit: int) -> None:
        rates = {link.rate_bps for links in graph.links for link in links}
        divisor = math.gcd(*rates) if rates else 1
        self.multiple = math.lcm(*(rate // divisor for rate in rates)) if rates else 1
        self.unit_rate_bps = self.multiple * divisor
        """A load of 1 on a link of this rate has the relative load 1."""
        self._unit = unit
        self._shares = [
            tuple(sorted(self.multiple * divisor // link.rate_bps for link in links))
            for links in graph.links
        ]
        self._cache: dict[tuple[tuple[int, ...], int], int] = {}

    def of_link(self, load: int, rate_bps: int) -> int:
        """Return the relative load of one link."""
        return load * (self.unit_rate_bps // rate_bps)

    def of_trunk(self, trunk: int, load: int) -> int:
        """Return the relative load of the fullest link of a trunk that carries ``load``."""
        shares = self._shares[trunk]
        if len(shares) == 1:
            return load * shares[0]
        known = self._cache.get((shares, load))
        if known is None:
            known = self.least(shares, [0] * len(shares), load, self._unit)
            self._cache[shares, load] = known
        return known

    def shares(self, trunk: int) -> tuple[int, ...]:
        """Return, per link of a trunk, the relative load that a load of 1 makes."""
        return self._shares[trunk]

    @staticmethod
    def least(shares: Sequence[int], taken: Sequence[int], load: int, unit: int) -> int:
        """Return the least possible relative load of the fullest of some links.

        Args:
            shares: per link, the relative load that a load of 1 makes.
            taken: per link, the load that is on it already and stays.
            load: load to be spread over the links.
            unit: what all pieces of that load are multiples of. If they differ in size, the
                result is a lower bound.
        """
        full = max(
            (share * held for share, held in zip(shares, taken, strict=True)),
            default=0,
        )
        if load == 0:
            return full
        pieces = -(-load // unit)

        def room(level: int) -> int:
            return sum(
                max(level // share - held, 0) // unit
                for share, held in zip(shares, taken, strict=True)
            )

        low, high = full, full + max(shares) * unit * pieces
        while low < high:
            middle = (low + high) // 2
            if room(middle) >= pieces:
                high = middle
            else:
                low = middle + 1
        return low


def colored_paths(graph: PathGraph, flows: Sequence[Flow]) -> list[Path | None]:
    """Assign paths tier by tier by equitable edge colouring; None where a flow found none.

    At every tier, colours are the neighbours one tier up, by their position in the pod, and as
    often as their rate is a multiple of the slowest one's. A flow climbs on both sides to
    neighbours of its colour until the sides meet. On a fabric whose links are all up and alike,
    no link of a lowest-tier switch with s uplinks then carries more than ceil(degree / s) flows.
    """
    up: list[list[int]] = [[] for _ in flows]
    down: list[list[int]] = [[] for _ in flows]
    here = [flow.source for flow in flows]
    there = [flow.target for flow in flows]
    failed = [False] * len(flows)
    rank = {name: i for i, name in enumerate(sorted(graph.names, key=natural))}
    for tier in range(max(graph.tier, default=0)):
        climbing = [
            i
            for i in range(len(flows))
            if not failed[i] and here[i] != there[i] and graph.tier[here[i]] == tier
        ]
        if not climbing:
            break
        labels = _labels(graph, tier, rank)
        planes = graph.parts(tier, max(graph.tier))
        pods = graph.parts(0, tier)
        # Neighbouring numbers share out remainders together: so do, here, the switches of a pod.
        order = {
            switch: position
            for position, switch in enumerate(
                sorted(range(len(graph.names)), key=lambda s: (pods[s], rank[graph.names[s]]))
            )
        }
        groups: dict[int, list[int]] = {}
        for i in climbing:
            groups.setdefault(planes[here[i]], []).append(i)
        for _, group in sorted(groups.items()):
            palette = _palette(graph, labels, {here[i] for i in group} | {there[i] for i in group})
            if not palette:
                for i in group:
                    failed[i] = True
                continue
            # Heavy flows first, so that flows of one round of colours weigh about the same; then
            # those that go furthest, so that they share out evenly for themselves as well.
            group.sort(key=lambda i: (-flows[i].weight, -graph.distances(there[i])[here[i]], i))
            colors = equitable_coloring(
                [(order[here[i]], order[there[i]]) for i in group], len(palette)
            )
            for i, color in zip(group, colors, strict=True):
                label = palette[color]
                left = labels[here[i]].get(label, -1)
                right = labels[there[i]].get(label, -1)
                rise = graph.trunk_number.get((here[i], left))
                fall = graph.trunk_number.get((right, there[i]))
                if rise is None or fall is None:
                    failed[i] = True
                    continue
                up[i].append(rise)
                down[i].append(fall)
                here[i], there[i] = left, right
    paths: list[Path | None] = []
    for i, flow in enumerate(flows):
        path = (*up[i], *reversed(down[i]))
        shortest = graph.distances(flow.target)[flow.source]
        good = not failed[i] and here[i] == there[i] and len(path) == shortest
        paths.append(path if good else None)
    return paths


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that puts ``tor2`` before ``tor10``; different names never tie."""
    pieces = [
        (int(piece), "") if piece.isdecimal() else (-1, piece)
        for piece in re.split(r"([0-9]+)", name)
        if piece
    ]
    return (*pieces, (-2, name))


def _labels(graph: PathGraph, tier: int, rank: dict[str, int]) -> list[dict[tuple[int, int], int]]:
    """Per switch of a tier: label -> neighbour one tier up, the same label for like positions.

    A label is the plane (what is still connected from that tier upwards) and the position among
    the switches of that plane in the pod.
    """
    planes = graph.parts(tier + 1, max(graph.tier))
    pods = graph.parts(0, tier + 1)
    names = graph.names
    first: dict[int, int] = {}
    for switch in sorted(range(len(names)), key=lambda s: rank[names[s]]):
        if planes[switch] >= 0 and graph.tier[switch] == tier + 1:
            first.setdefault(planes[switch], len(first))
    members: Counter[tuple[int, int]] = Counter()
    label: dict[int, tuple[int, int]] = {}
    for switch in sorted(range(len(names)), key=lambda s: rank[names[s]]):
        if graph.tier[switch] == tier + 1:
            where = (pods[switch], planes[switch])
            label[switch] = (first[planes[switch]], members[where])
            members[where] += 1
    return [
        {label[there]: there for there in graph.wired(switch) if there in label}
        if graph.tier[switch] == tier
        else {}
        for switch in range(len(names))
    ]


def _palette(
    graph: PathGraph, labels: list[dict[tuple[int, int], int]], switches: set[int]
) -> list[tuple[int, int]]:
    """Labels as colours, each as often as its usual rate asks for; slow ones interleaved."""
    rates: dict[tuple[int, int], Counter[int]] = {}
    for switch in sorted(switches):
        for label, neighbour in labels[switch].items():
            trunk = graph.trunk_number.get((switch, neighbour))
            if trunk is not None:
                rate = sum(link.rate_bps for link in graph.links[trunk])
                rates.setdefault(label, Counter())[rate] += 1
    if not rates:
        return []
    usual = {
        label: max(count.items(), key=lambda item: (item[1], item[0]))[0]
        for label, count in rates.items()
    }
    divisor = math.gcd(*usual.values())
    times = {label: rate // divisor for label, rate in usual.items()}
    if sum(times.values()) > max(_MOST_COLORS, len(times)):
        scale = max(_MOST_COLORS, len(times)) / sum(usual.values())
        times = {label: max(1, round(rate * scale)) for label, rate in usual.items()}
    slots = [
        ((2 * copy + 1) / (2 * count), label)
        for label, count in times.items()
        for copy in range(count)
    ]
    return [label for _, label in sorted(slots)]


class Balancer:
    """Paths of flows, the loads they make, and the moves that even these out.

    Args:
        graph: the fabric.
        flows: what is to be carried.
        paths: a path per flow, or None for flows still without one.
        fixed: which flows must stay on the path they have.
        scale: how loads compare.
        limits: relative load per trunk that no plan can be expected to go below.
        load: load per trunk that is none of the flows', and stays.
    """

    def __init__(
        self,
        graph: PathGraph,
        flows: Sequence[Flow],
        paths: Sequence[Path | None],
        fixed: Sequence[bool],
        scale: Scale,
        limits: Sequence[int],
        load: Sequence[int] = (),
    ) -> None:
        self._graph = graph
        self._flows = flows
        self._fixed = fixed
        self._scale = scale
        self._limits = limits
        self._budget = 0
        self._load = list(load) or [0] * len(graph.trunks)
        self._movable: list[set[int]] = [set() for _ in graph.trunks]
        self.paths: list[Path | None] = [None] * len(flows)
        for i, path in enumerate(paths):
            if path is not None:
                self._put(i, path)

    def worst(self) -> tuple[int, int]:
        """Return the highest relative load of a trunk, and the sum of the squares of all.

        A trunk that carries nothing but what stays does not count as the highest.
        """
        levels = [self._scale.of_trunk(t, load) for t, load in enumerate(self._load)]
        highest = max((levels[t] for t, flows in enumerate(self._movable) if flows), default=0)
        return highest, sum(level * level for level in levels)

    def fill(self) -> None:
        """Give every flow without a path the one whose fullest trunk ends up least full."""
        for i, path in enumerate(self.paths):
            if path is None:
                self._put(i, self._least_loaded(self._flows[i]))

    def repair(self) -> None:
        """Move flows until no trunk stands above its limit, or no chain of moves helps.

        The trunk that stands highest comes first. A chain never lifts another trunk to where this
        one stood, so the loads above their limits, sorted, fall with each chain: this ends.
        """
        self._budget = _REPAIR_BUDGET
        evening = False
        highest = max(self._limits, default=0)
        stuck: set[int] = set()
        over = {t for t, flows in enumerate(self._movable) if flows}
        over = {t for t in over if self._level(t) > self._limits[t]}
        while self._budget > 0:
            candidates = [t for t in over if t not in stuck]
            if not candidates:
                return
            trunk = max(candidates, key=lambda t: (self._level(t), -t))
            level = self._level(trunk)
            limits = self._limits
            if level <= limits[trunk]:
                over.discard(trunk)
                continue
            if level <= highest and not evening:
                evening = True
                self._budget = min(self._budget, _EVENING_BUDGET)
            touched = self._relieve(trunk, 0)
            if touched is None:
                touched = self._relieve(trunk, level - 1)
            if touched is None:
                stuck.add(trunk)
                continue
            over |= {t for t in touched if self._level(t) > limits[t]}
            stuck -= touched

    def _level(self, trunk: int) -> int:
        return self._scale.of_trunk(trunk, self._load[trunk])

    def _put(self, i: int, path: Path) -> None:
        weight = self._flows[i].weight
        for trunk in path:
            self._load[trunk] += weight
            if not self._fixed[i]:
                self._movable[trunk].add(i)
        self.paths[i] = path

    def _take(self, i: int) -> Path:
        path = self.paths[i]
        assert path is not None
        weight = self._flows[i].weight
        for trunk in path:
            self._load[trunk] -= weight
            self._movable[trunk].discard(i)
        self.paths[i] = None
        return path

    def _least_loaded(self, flow: Flow) -> Path:
        graph, of_trunk, load = self._graph, self._scale.of_trunk, self._load
        weight, target = flow.weight, flow.target
        best: dict[int, tuple[int, int, Path]] = {target: (0, 0, ())}

        def from_switch(switch: int) -> tuple[int, int, Path]:
            known = best.get(switch)
            if known is None:
                choices = []
                for trunk in graph.steps(switch, target):
                    level = of_trunk(trunk, load[trunk] + weight)
                    high, total, path = from_switch(graph.trunks[trunk][1])
                    choices.append((max(high, level), total + level, (trunk, *path)))
                known = min(choices)
                best[switch] = known
            return known

        return from_switch(flow.source)[2]

    def _relieve(self, start: int, ceiling: int) -> set[int] | None:
        """Take one flow off ``start`` by a shortest chain of moves; return the trunks touched.

        Breadth first over trunks that would hold one flow too many: each gives one up to a path
        that has room, or to one on which a single further trunk has not. A trunk has room up to
        its limit, or up to ``ceiling`` where that is higher. None if there is no such chain.
        """
        arrival: dict[int, tuple[int, int, Path] | None] = {start: None}
        queue = deque([start])
        budget = min(_CHAIN_BUDGET, self._budget)
        while queue and budget > 0:
            trunk = queue.popleft()
            chain = self._chain(arrival, trunk)
            moved = {i for _, i, _ in chain}
            relief: dict[int, int] = {}
            if chain:
                _, last, new = chain[-1]
                for t in self.paths[last] or ():
                    if t not in new:
                        relief[t] = self._flows[last].weight
            alike: set[tuple[int, int, int, Path]] = set()
            for i in sorted(self._movable[trunk] - moved):
                flow, path = self._flows[i], self.paths[i]
                assert path is not None
                kind = (flow.source, flow.target, flow.weight, path)
                if kind in alike:
                    continue
                alike.add(kind)
                for other, over in self._ways(flow, path, trunk, relief, ceiling):
                    budget -= 1
                    self._budget -= 1
                    if over < 0:
                        touched = self._apply([*chain, (trunk, i, other)], start, ceiling)
                        if touched is not None:
                            return touched
                    elif over not in arrival:
                        arrival[over] = (trunk, i, other)
                        queue.append(over)
                if budget <= 0:
                    break
        return None

    @staticmethod
    def _chain(
        arrival: dict[int, tuple[int, int, Path] | None], trunk: int
    ) -> list[tuple[int, int, Path]]:
        chain = []
        move = arrival[trunk]
        while move is not None:
            chain.append(move)
            move = arrival[move[0]]
        return chain[::-1]

    def _ways(
        self,
        flow: Flow,
        current: Path,
        avoid: int,
        relief: dict[int, int],
        ceiling: int,
    ) -> Iterator[tuple[Path, int]]:
        """Yield other shortest paths and the one trunk on each without room, or -1."""
        graph, of_trunk, load = self._graph, self._scale.of_trunk, self._load
        pending: list[tuple[int, Path, int]] = [(flow.source, (), -1)]
        while pending:
            switch, path, over = pending.pop()
            if switch == flow.target:
                yield path, over
                continue
            for trunk in reversed(graph.steps(switch, flow.target)):
                if trunk == avoid:
                    continue
                now_over = over
                if trunk not in current:
                    after = load[trunk] + flow.weight - relief.get(trunk, 0)
                    if of_trunk(trunk, after) > max(self._limits[trunk], ceiling):
                        if over >= 0:
                            continue
                        now_over = trunk
                pending.append((graph.trunks[trunk][1], (*path, trunk), now_over))

    def _apply(
        self,
        chain: list[tuple[int, int, Path]],
        start: int,
        ceiling: int,
    ) -> set[int] | None:
        """Make the moves of a chain, or none if they would lift a trunk above what is allowed."""
        touched = {start}
        for _, i, path in chain:
            touched |= {*path, *(self.paths[i] or ())}
        before = {t: self._level(t) for t in touched}
        old = [(i, self._take(i)) for _, i, _ in chain]
        for _, i, path in chain:
            self._put(i, path)
        good = self._level(start) < before[start] and all(
            self._level(t) <= max(self._limits[t], ceiling, before[t]) for t in touched
        )
        if good:
            return touched
        for i, _ in old:
            self._take(i)
        for i, path in old:
            self._put(i, path)
        return None
