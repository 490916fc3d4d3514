"""Traffic outside the jobs: Poisson arrivals, periodic messages, bursts, long flows."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ringstep.fabric.tomlfile import Location
from ringstep_ns3.scenario import (
    BackgroundFlows,
    LongFlows,
    OnOffFlows,
    PeriodicFlows,
    PoissonFlows,
    Scenario,
)
from ringstep_ns3.streams import Stream
from ringstep_ns3.tomldoc import Findings
from ringstep_ns3.topology import Graph, nearest

Cdf = tuple[tuple[int, float], ...]
"""Points (bytes, share of messages up to that size), ascending; linear in between."""

MAX_FLOWS: Final = 20_000_000

SIZES: Final[Mapping[str, Cdf]] = {
    "web_search": (
        (0, 0.0),
        (10_000, 0.15),
        (20_000, 0.2),
        (30_000, 0.3),
        (50_000, 0.4),
        (80_000, 0.53),
        (200_000, 0.6),
        (1_000_000, 0.7),
        (2_000_000, 0.8),
        (5_000_000, 0.9),
        (10_000_000, 0.97),
        (30_000_000, 1.0),
    ),
    "fb_hadoop": (
        (0, 0.0),
        (100, 0.01),
        (200, 0.02),
        (300, 0.05),
        (350, 0.15),
        (400, 0.2),
        (500, 0.3),
        (600, 0.4),
        (700, 0.5),
        (1_000, 0.6),
        (2_000, 0.67),
        (7_000, 0.7),
        (30_000, 0.72),
        (50_000, 0.82),
        (80_000, 0.87),
        (120_000, 0.9),
        (300_000, 0.95),
        (1_000_000, 0.975),
        (2_000_000, 0.99),
        (10_000_000, 1.0),
    ),
}
"""Message sizes of a web search cluster and of Facebook's Hadoop, as HPCC (SIGCOMM'19) has them."""


@dataclass(slots=True)
class FlowList:
    """Messages of one ``[[background]]`` table, by node number; times in ns."""

    index: int
    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)

    def add(self, src: int, dst: int, size: int, start_ns: int) -> None:
        """Append one message."""
        self.src.append(src)
        self.dst.append(dst)
        self.size.append(size)
        self.start_ns.append(start_ns)


def mean_size(cdf: Cdf) -> float:
    """Return the mean of a size distribution in bytes."""
    return sum((b[0] + a[0]) / 2 * (b[1] - a[1]) for a, b in itertools.pairwise(cdf))


def draw_size(cdf: Cdf, uniform: float) -> int:
    """Return the size at a quantile, at least 1 byte."""
    shares = [share for _, share in cdf]
    i = max(1, bisect_left(shares, uniform))
    (low, share_low), (high, share_high) = cdf[i - 1], cdf[i]
    width = share_high - share_low
    return max(1, round(low + (high - low) * ((uniform - share_low) / width if width else 1)))


def make_flows(
    scenario: Scenario, graph: Graph, seed: int, findings: Findings
) -> tuple[FlowList, ...]:
    """Return the messages of every ``[[background]]``; what is wrong goes to ``findings``."""
    return tuple(
        _flows(table, i, graph, seed, findings) for i, table in enumerate(scenario.background)
    )


def _flows(
    table: BackgroundFlows, index: int, graph: Graph, seed: int, findings: Findings
) -> FlowList:
    where: Location = ("background", index)
    flows = FlowList(index)
    ends = []
    for key, names in (("src", table.src), ("dst", table.dst)):
        hosts, unknown = graph.hosts_of(names)
        if unknown:
            findings.add(
                (*where, key),
                f"{unknown[0]!r} is neither a host nor a switch; "
                f"{nearest(unknown[0], (*graph.hosts, *graph.switches))}",
            )
        ends.append(hosts)
    cdf = _cdf(table, where, findings) if isinstance(table, PoissonFlows) else ()
    if not all(ends) or cdf is None:
        return flows
    sources, targets = ends
    pairs = _Pairs(graph, targets)
    for src in sources:
        if pairs.count(src) < 1:
            findings.add(
                (*where, "dst"),
                f"{src!r} can reach none of these; name a host that a path leads to",
            )
            return flows
    if not isinstance(table, LongFlows) and table.stop <= table.start:
        findings.add((*where, "stop"), "is not after 'start'; nothing would be sent")
        return flows
    if _expected(table, cdf, sources, graph) > MAX_FLOWS:
        findings.add(
            where, f"makes more than {MAX_FLOWS} messages; take a lower load, or stop earlier"
        )
        return flows
    for src in sources:
        stream = Stream(seed, f"background:{index}:{src}")
        rate = graph.access_bps[src]
        if isinstance(table, PoissonFlows):
            _poisson(table, flows, graph, src, pairs, cdf, rate, stream)
        elif isinstance(table, PeriodicFlows):
            for start in range(table.start, table.stop, table.interval):
                flows.add(graph.number[src], pairs.draw(src, stream), table.size, start)
        elif isinstance(table, OnOffFlows):
            _on_off(table, flows, graph, src, pairs, rate, stream)
        else:
            flows.add(graph.number[src], pairs.draw(src, stream), table.size, table.start)
    order = sorted(range(len(flows.src)), key=lambda i: (flows.start_ns[i], i))
    return FlowList(
        index,
        [flows.src[i] for i in order],
        [flows.dst[i] for i in order],
        [flows.size[i] for i in order],
        [flows.start_ns[i] for i in order],
    )


class _Pairs:
    """Whom a host may send to."""

    def __init__(self, graph: Graph, targets: Sequence[str]) -> None:
        self._graph = graph
        self._reachable: dict[int, list[str]] = {}
        for dst in targets:
            self._reachable.setdefault(graph.parts[dst], []).append(dst)
        self._place = {
            dst: i for reachable in self._reachable.values() for i, dst in enumerate(reachable)
        }

    def count(self, src: str) -> int:
        """Return how many hosts ``src`` may send to."""
        return len(self._reachable.get(self._graph.parts[src], ())) - (src in self._place)

    def draw(self, src: str, stream: Stream) -> int:
        """Return the node number of one of them, each as likely as the others."""
        choice = stream.below(self.count(src))
        if choice >= self._place.get(src, choice + 1):
            choice += 1
        return self._graph.number[self._reachable[self._graph.parts[src]][choice]]


def _cdf(table: PoissonFlows, where: Location, findings: Findings) -> Cdf | None:
    if table.sizes == "fixed":
        if table.size is None:
            findings.add(where, 'sizes = "fixed" needs \'size\'; write for example size = "1MiB"')
            return None
        return ((table.size, 0.0), (table.size, 1.0))
    if table.sizes == "custom":
        points = tuple((point.size, point.share) for point in table.cdf)
        if len(points) < 2 or list(points) != sorted(points) or points[-1][1] != 1:
            findings.add(
                (*where, "cdf") if points else where,
                'sizes = "custom" needs at least two points in ascending order, the last with '
                'share 1, such as cdf = [{size = "1KB", share = 0}, {size = "1MB", share = 1}]',
            )
            return None
        if points[0][1] > 0:
            points = ((points[0][0], 0.0), *points)
        if [p[1] for p in points] != sorted(p[1] for p in points):
            findings.add((*where, "cdf"), "shares fall; they must rise with the size")
            return None
        return points
    return SIZES[table.sizes]


def _expected(table: BackgroundFlows, cdf: Cdf, sources: Sequence[str], graph: Graph) -> float:
    if isinstance(table, LongFlows):
        return len(sources)
    span = table.stop - table.start
    if isinstance(table, PeriodicFlows):
        return len(sources) * span / table.interval
    size = mean_size(cdf) if isinstance(table, PoissonFlows) else float(table.size)
    return sum(table.load * graph.access_bps[s] / 8e9 * span / max(size, 1) for s in sources)


def _poisson(
    table: PoissonFlows,
    flows: FlowList,
    graph: Graph,
    src: str,
    pairs: _Pairs,
    cdf: Cdf,
    rate_bps: int,
    stream: Stream,
) -> None:
    if table.load == 0:
        return
    mean_ns = mean_size(cdf) * 8e9 / (table.load * rate_bps)
    time = float(table.start)
    while (time := time + stream.exponential(mean_ns)) < table.stop:
        size = draw_size(cdf, stream.uniform())
        flows.add(graph.number[src], pairs.draw(src, stream), size, int(time))


def _on_off(
    table: OnOffFlows,
    flows: FlowList,
    graph: Graph,
    src: str,
    pairs: _Pairs,
    rate_bps: int,
    stream: Stream,
) -> None:
    if table.load == 0:
        return
    gap_ns = table.size * 8e9 / (table.load * rate_bps)
    # Sources would otherwise burst all at once.
    time = table.start + stream.uniform() * (table.on + table.off)
    while time < table.stop:
        exponential = table.durations == "exponential"
        on = stream.exponential(table.on) if exponential else float(table.on)
        off = stream.exponential(table.off) if exponential else float(table.off)
        dst = pairs.draw(src, stream)
        sent = time
        while sent < min(time + on, table.stop):
            flows.add(graph.number[src], dst, table.size, int(sent))
            sent += gap_ns
        time += on + off
