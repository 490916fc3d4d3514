"""What a plan changes against ECMP: edges per link before and after, and the gain to expect.

Where every edge has a source port, ECMP's choice is computed with the data plane's hash; otherwise
it is drawn at random many times, each connection hashed on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ringstep.fabric.balance import Flow
from ringstep.fabric.ecmp import FlowKey, ecmp_index
from ringstep.fabric.pathgraph import DirectedLink, Fabric, PathGraph
from ringstep.fabric.planner import Cut, Demand, LinkLoad, Plan, PlanError
from ringstep.fabric.units import format_rate
from ringstep.protocol.limits import ROCE_UDP_PORT

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EcmpForecast:
    """What every link carries under ECMP, in the order of :attr:`Plan.links`.

    Attributes:
        edges: edges per link; a mean where ``exact`` is false.
        relative: relative load per link, likewise.
        max_relative: relative load of the fullest link; the mean over ``samples`` draws.
        low: the lowest ``max_relative`` of a draw.
        high: the highest.
        exact: whether the data plane's hash was computed for every edge.
        samples: number of draws; 1 if exact.
    """

    edges: tuple[float, ...]
    relative: tuple[float, ...]
    max_relative: float
    low: float
    high: float
    exact: bool
    samples: int


@dataclass(frozen=True, slots=True)
class LinkChange:
    """One direction of a link, under ECMP and under the plan."""

    link: LinkLoad
    ecmp_edges: float
    ecmp_relative: float
    plan_relative: float


@dataclass(frozen=True)
class Explanation:
    """A plan set against ECMP; relative loads refer to a link of ``reference_bps``.

    Attributes:
        inter_tor_edges: edges that cross a link between switches.
        intra_tor_edges: edges that do not.
        changed_edges: edges on another path than in the plan that this one extends.
        links: every link, before and after.
        plan_max: relative load of the fullest link under the plan.
        bound: what no plan can go below, given what is pinned.
        ideal_bound: the same, were nothing pinned.
        tightest: the cut that makes the bound; None without inter-ToR edges.
        gain: ECMP's fullest link over the plan's; 1 without inter-ToR edges.
    """

    inter_tor_edges: int
    intra_tor_edges: int
    changed_edges: int
    reference_bps: int
    ecmp: EcmpForecast
    links: tuple[LinkChange, ...]
    plan_max: Fraction
    bound: Fraction
    ideal_bound: Fraction
    tightest: Cut | None
    gain: float

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as plain numbers, strings, lists and dicts."""
        return {
            "inter_tor_edges": self.inter_tor_edges,
            "intra_tor_edges": self.intra_tor_edges,
            "changed_edges": self.changed_edges,
            "reference_bps": self.reference_bps,
            "ecmp": {
                "max_relative": self.ecmp.max_relative,
                "low": self.ecmp.low,
                "high": self.ecmp.high,
                "exact": self.ecmp.exact,
                "samples": self.ecmp.samples,
            },
            "plan": {
                "max_relative": float(self.plan_max),
                "bound": float(self.bound),
                "ideal_bound": float(self.ideal_bound),
                "optimal": self.plan_max == self.bound,
            },
            "gain": self.gain,
            "tightest": None
            if self.tightest is None
            else {
                "place": list(self.tightest.place),
                "direction": self.tightest.direction,
                "edges": self.tightest.edges,
                "load": self.tightest.load,
                "links": self.tightest.links,
            },
            "links": [
                {
                    "src": str(row.link.src),
                    "dst": str(row.link.dst),
                    "rate_bps": row.link.rate_bps,
                    "ecmp_edges": row.ecmp_edges,
                    "plan_edges": row.link.edges,
                    "ecmp_relative": row.ecmp_relative,
                    "plan_relative": row.plan_relative,
                }
                for row in self.links
            ],
        }

    def lines(self, most: int = 16) -> list[str]:
        """Return the explanation as text, with the ``most`` links that ECMP loads highest."""
        if not self.inter_tor_edges:
            return [
                f"all {self.intra_tor_edges} edges stay within a rack; there is no path to plan"
            ]
        how = (
            "computed from the source ports"
            if self.ecmp.exact
            else f"mean of {self.ecmp.samples} draws, {self.ecmp.low:.4g} to {self.ecmp.high:.4g}"
        )
        text = [
            f"{self.inter_tor_edges} edges between racks, {self.intra_tor_edges} within; "
            f"{self.changed_edges} on a new path",
            f"load of the fullest link, in edge weights per {format_rate(self.reference_bps)}:",
            f"  ECMP   {self.ecmp.max_relative:8.4g}  ({how})",
            f"  plan   {float(self.plan_max):8.4g}",
            f"  bound  {float(self.bound):8.4g}  ({self._why()})",
            f"the fullest link carries {self.gain:.3g} times less than under ECMP",
        ]
        if self.ideal_bound < self.bound:
            text.append(
                f"were no edge pinned, the bound would be {float(self.ideal_bound):.4g}: "
                "planning all edges anew may pay"
            )
        rows = sorted(self.links, key=lambda row: (-row.ecmp_relative, row.link.src))[:most]
        width = max(len(f"{row.link.src} -> {row.link.dst}") for row in rows)
        text.append(f"{'link':<{width}}  {'rate':>6}  edges: ECMP   plan")
        text += [
            f"{f'{row.link.src} -> {row.link.dst}':<{width}}  {format_rate(row.link.rate_bps):>6}  "
            f"{row.ecmp_edges:11.4g}  {row.link.edges:5d}"
            for row in rows
        ]
        if len(self.links) > len(rows):
            text.append(f"and {len(self.links) - len(rows)} more links")
        return text

    def _why(self) -> str:
        cut = self.tightest
        if cut is None:
            return "nothing to carry"
        place = cut.place[0] if len(cut.place) == 1 else f"the pod of {cut.place[0]}"
        return (
            f"{cut.edges} edges {'out of' if cut.direction == 'out' else 'into'} {place} over "
            f"{cut.links} links; {'reached' if self.plan_max == self.bound else 'not reached'}"
        )


def explain(plan: Plan, samples: int = 32, seed: int = 0) -> Explanation:
    """Set a plan against ECMP on the same fabric.

    Args:
        plan: the plan.
        samples: draws of ECMP's choices where an inter-ToR edge has no source port.
        seed: seed of the draws; the same seed gives the same numbers.

    Raises:
        PlanError: source ports are given, but the fabric lacks addresses or ECMP seeds; or
            ``samples`` is not above 0.
    """
    ecmp = forecast_ecmp(plan, samples, seed)
    crossing = sum(1 for edge in plan.edges.values() if edge.fabric_hops)
    rows = tuple(
        LinkChange(link, edges, relative, float(link.relative(plan.reference_bps)))
        for link, edges, relative in zip(plan.links, ecmp.edges, ecmp.relative, strict=True)
    )
    return Explanation(
        inter_tor_edges=crossing,
        intra_tor_edges=len(plan.edges) - crossing,
        changed_edges=len(plan.changed),
        reference_bps=plan.reference_bps,
        ecmp=ecmp,
        links=rows,
        plan_max=plan.max_relative,
        bound=plan.bound,
        ideal_bound=plan.ideal_bound,
        tightest=plan.cuts[0] if plan.cuts else None,
        gain=ecmp.max_relative / float(plan.max_relative) if plan.max_relative else 1.0,
    )


def forecast_ecmp(plan: Plan, samples: int = 32, seed: int = 0) -> EcmpForecast:
    """Return what the links would carry if ECMP chose the path of every edge of a plan.

    Raises:
        PlanError: as :func:`explain`.
    """
    if samples < 1:
        raise PlanError(f"{samples} draws of ECMP tell nothing; ask for at least one")
    graph = plan.fabric.graph
    demands = [edge.demand for edge in plan.edges.values() if edge.fabric_hops]
    flows = [
        (graph.number[edge.hops[0].switch], graph.number[edge.hops[-1].switch])
        for edge in plan.edges.values()
        if edge.fabric_hops
    ]
    position = {link.src: i for i, link in enumerate(plan.links)}
    every = [link for of_trunk in graph.links for link in of_trunk]
    column = np.array([position[link.src] for link in every], dtype=np.int64)
    rate = np.array([link.rate_bps for link in plan.links], dtype=np.float64)
    share = plan.reference_bps / rate if len(rate) else rate
    exact = all(demand.sport is not None for demand in demands)
    weights = np.array([demand.weight for demand in demands], dtype=np.float64)
    routes = _Routes(graph)
    edges = np.zeros(len(rate))
    relative = np.zeros(len(rate))
    highest: list[float] = []
    rng = np.random.Generator(np.random.PCG64(seed))
    for _ in range(1 if exact else samples):
        steps = _hashed(plan.fabric, routes, demands, flows) if exact else routes.draw(flows, rng)
        count, load = np.zeros(len(rate)), np.zeros(len(rate))
        for flow, link in steps:
            count += np.bincount(column[link], minlength=len(rate))
            load += np.bincount(column[link], weights[flow], minlength=len(rate))
        edges += count
        relative += load * share
        highest.append(float((load * share).max(initial=0.0)))
    return EcmpForecast(
        edges=tuple((edges / len(highest)).tolist()),
        relative=tuple((relative / len(highest)).tolist()),
        max_relative=sum(highest) / len(highest),
        low=min(highest),
        high=max(highest),
        exact=exact,
        samples=len(highest),
    )


@dataclass(frozen=True)
class EcmpBeside:
    """What new flows make of the links under ECMP, beside what these carry; by number of the link.

    Attributes:
        edges: flows per link, a mean.
        load: their weight per link, a mean.
        max_relative: relative load of the fullest link that a flow takes, the others' load
            included; the mean over the draws.
    """

    edges: tuple[float, ...]
    load: tuple[float, ...]
    max_relative: float


def ecmp_beside(
    graph: PathGraph,
    flows: Sequence[Flow],
    load: Sequence[int],
    samples: int = 32,
    seed: int = 0,
) -> EcmpBeside:
    """Return what links carry if ECMP chooses the paths of new flows beside ``load`` per link.

    A flow of weight w is w connections, each hashed on its own; very many are drawn as one.
    """
    every = [link for of_trunk in graph.links for link in of_trunk]
    crossing = [flow for flow in flows if flow.source != flow.target]
    apart = sum(flow.weight for flow in crossing) <= _MOST_CONNECTIONS
    connections = [
        (flow.source, flow.target) for flow in crossing for _ in range(flow.weight if apart else 1)
    ]
    sizes = np.array([flow.weight for flow in crossing], dtype=np.float64)
    times = sizes.astype(np.int64) if apart else np.ones(len(crossing), dtype=np.int64)
    weights, parts = np.repeat(sizes / times, times), np.repeat(1 / times, times)
    rate = np.array([link.rate_bps for link in every], dtype=np.float64)
    share = rate.max(initial=1.0) / rate if len(rate) else rate
    held = np.array(load, dtype=np.float64)
    edges, total = np.zeros(len(every)), np.zeros(len(every))
    highest = []
    routes, rng = _Routes(graph), np.random.Generator(np.random.PCG64(seed))
    for _ in range(samples):
        count, mine = np.zeros(len(every)), np.zeros(len(every))
        for flow, link in routes.draw(connections, rng):
            count += np.bincount(link, parts[flow], minlength=len(every))
            mine += np.bincount(link, weights[flow], minlength=len(every))
        edges += count
        total += mine
        highest.append(float((((mine + held) * share)[mine > 0]).max(initial=0.0)))
    return EcmpBeside(
        tuple((edges / samples).tolist()),
        tuple((total / samples).tolist()),
        sum(highest) / samples,
    )


_MOST_CONNECTIONS = 1 << 18
_Ints = npt.NDArray[np.int64]
_Step = tuple[_Ints, _Ints]
"""Flows that take one more hop, and the link that each takes."""


class _Routes:
    """ECMP groups: the links by which a switch may send towards another, by ascending port."""

    def __init__(self, graph: PathGraph) -> None:
        self._graph = graph
        self._groups: dict[tuple[int, int], tuple[DirectedLink, ...]] = {}

    def group(self, switch: int, target: int) -> tuple[DirectedLink, ...]:
        known = self._groups.get((switch, target))
        if known is None:
            graph = self._graph
            known = tuple(
                sorted(
                    (link for t in graph.steps(switch, target) for link in graph.links[t]),
                    key=lambda link: link.src.port,
                )
            )
            self._groups[switch, target] = known
        return known

    def draw(self, flows: Sequence[tuple[int, int]], rng: np.random.Generator) -> list[_Step]:
        """Let every flow take a random member of the group at every switch."""
        graph = self._graph
        size = len(graph.names)
        far = np.array(
            [graph.number[link.dst.node] for links in graph.links for link in links],
            dtype=np.int64,
        )
        here = np.array([source for source, _ in flows], dtype=np.int64)
        target = np.array([target for _, target in flows], dtype=np.int64)
        going = np.arange(len(flows))
        steps = []
        while len(going):
            state = here[going] * size + target[going]
            states, which = np.unique(state, return_inverse=True)
            groups = [self.group(int(s) // size, int(s) % size) for s in states]
            start = np.cumsum([0] + [len(group) for group in groups])
            members = np.array([link.number for group in groups for link in group], dtype=np.int64)
            width = np.diff(start)[which]
            link = members[start[which] + (rng.random(len(going)) * width).astype(np.int64)]
            steps.append((going, link))
            here[going] = far[link]
            going = going[here[going] != target[going]]
        return steps


def _hashed(
    fabric: Fabric,
    routes: _Routes,
    demands: Sequence[Demand],
    flows: Sequence[tuple[int, int]],
) -> list[_Step]:
    graph = fabric.graph
    taken: list[int] = []
    takers: list[int] = []
    for i, (demand, (here, target)) in enumerate(zip(demands, flows, strict=True)):
        for host in (demand.src, demand.dst):
            if host not in fabric.addresses:
                raise PlanError(
                    f"host {host!r} has no address, so ECMP's hash cannot be computed; give the "
                    "fabric addresses, or the demands no source port"
                )
        assert demand.sport is not None
        flow = FlowKey(
            fabric.addresses[demand.src], fabric.addresses[demand.dst], demand.sport, ROCE_UDP_PORT
        )
        while here != target:
            group = routes.group(here, target)
            seed = fabric.seeds.get(graph.names[here])
            if seed is None:
                raise PlanError(
                    f"switch {graph.names[here]!r} has no ECMP seed, so its hash cannot be "
                    "computed; give the fabric seeds, or the demands no source port"
                )
            link = group[ecmp_index(seed, flow, len(group))]
            takers.append(i)
            taken.append(link.number)
            here = graph.number[link.dst.node]
    return [(np.array(takers, dtype=np.int64), np.array(taken, dtype=np.int64))]
