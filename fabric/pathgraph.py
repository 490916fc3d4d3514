"""A fabric as the path planner sees it: switches, the links between them, and who hangs where.

Parallel links between two switches form a *trunk*. Tier 0 are the ToRs, tier 1 their other
neighbours, and so on; a *pod* of tier t is a connected part of the tiers up to t. Paths are
shortest paths over links that are up, as in routing.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import IPv4Address

from ringstep.fabric.model import MAX_PORT, Endpoint, IPAddress, Topology


class PlanError(ValueError):
    """A demand that cannot be planned on this fabric; the text says why and what would help."""


class Unreachable(PlanError):
    """No path of links that are up joins the two hosts of a demand."""

    def __init__(self, src: str, dst: str, why: str) -> None:
        self.src = src
        self.dst = dst
        super().__init__(f"no path from {src!r} to {dst!r}: {why}")


@dataclass(frozen=True, slots=True)
class FabricLink:
    """A full-duplex link between two switches; ``up`` is false while it carries nothing."""

    a: Endpoint
    b: Endpoint
    rate_bps: int
    up: bool = True


@dataclass(frozen=True)
class Fabric:
    """Switches, the links between them, and the switch ports of each host.

    ``tors`` are the switches of the lowest tier; empty means those that have hosts.
    ``addresses`` and ``seeds`` are needed only to predict what ECMP does.
    """

    switches: tuple[str, ...]
    links: tuple[FabricLink, ...]
    attachments: Mapping[str, tuple[Endpoint, ...]]
    seeds: Mapping[str, int] = field(default_factory=dict)
    addresses: Mapping[str, IPAddress] = field(default_factory=dict)
    tors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = set(self.switches)
        used: set[Endpoint] = set()
        for link in self.links:
            if link.rate_bps <= 0:
                raise PlanError(f"link {link.a} - {link.b} has no rate; give bit/s above 0")
            if link.a.node == link.b.node:
                raise PlanError(f"link {link.a} - {link.b} joins a switch to itself")
            for end in (link.a, link.b):
                if end.node not in known:
                    raise PlanError(f"link {link.a} - {link.b} ends at unknown switch {end.node!r}")
                if end in used:
                    raise PlanError(f"port {end} has two links; a port takes one link")
                used.add(end)
        for tor in self.tors:
            if tor not in known:
                raise PlanError(f"ToR {tor!r} is no switch of the fabric")
        for host, ends in self.attachments.items():
            for end in ends:
                if end.node not in known:
                    raise PlanError(f"host {host!r} hangs off unknown switch {end.node!r}")

    @staticmethod
    def of(
        topology: Topology,
        down_links: Iterable[Endpoint] = (),
        down_switches: Iterable[str] = (),
    ) -> Fabric:
        """Return the planner's view of a topology; a link is named by either of its ends.

        Raises:
            PlanError: a name that is no link end or switch of the topology.
        """
        fabric = Fabric(
            switches=tuple(topology.switches),
            links=tuple(
                FabricLink(link.a, link.b, link.rate_bps)
                for link in topology.links
                if link.a.node in topology.switches and link.b.node in topology.switches
            ),
            attachments={host: topology.attachments(host) for host in topology.hosts},
            seeds={switch.name: switch.ecmp_seed for switch in topology.switches.values()},
            addresses={
                host.name: host.ipv4 or host.ips[0] for host in topology.hosts.values() if host.ips
            },
            tors=tuple(s.name for s in topology.switches.values() if s.role == "tor"),
        )
        return fabric.without(down_links, down_switches)

    def without(
        self, down_links: Iterable[Endpoint] = (), down_switches: Iterable[str] = ()
    ) -> Fabric:
        """Return the fabric with more links and switches down; a link is named by either end.

        Raises:
            PlanError: a name that is no link end or switch of the fabric.
        """
        ends = set(down_links)
        dead = set(down_switches)
        known = {end for link in self.links for end in (link.a, link.b)}
        known |= {end for of_host in self.attachments.values() for end in of_host}
        for end in sorted(ends - known):
            raise PlanError(f"{end} is no end of a link; name a switch port that has a link")
        for switch in sorted(dead - set(self.switches)):
            raise PlanError(
                f"{switch!r} is no switch of the fabric; known: {_some(sorted(self.switches))}"
            )
        return replace(
            self,
            links=tuple(
                replace(
                    link,
                    up=link.up
                    and not ends & {link.a, link.b}
                    and not dead & {link.a.node, link.b.node},
                )
                for link in self.links
            ),
            attachments={
                host: tuple(e for e in of_host if e not in ends and e.node not in dead)
                for host, of_host in self.attachments.items()
            },
        )

    @cached_property
    def graph(self) -> PathGraph:
        """The same fabric with numbers for names, and its trunks."""
        return PathGraph(self)


def leaf_spine(
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    rate_bps: int = 100_000_000_000,
    parallel: int = 1,
) -> Fabric:
    """Return a leaf-spine fabric: hosts ``h0..``, ToRs ``tor0..``, spines ``spine0..``.

    Host h sits at ToR h // hosts_per_leaf. ToR ports 1.. are hosts, the next ones uplinks.

    Raises:
        PlanError: a count below one, or more ports than a switch has.
    """
    return multi_pod(1, leaves, spines, 0, hosts_per_leaf, rate_bps, rate_bps, parallel)


def multi_pod(
    pods: int,
    leaves: int,
    aggs: int,
    cores_per_agg: int,
    hosts_per_leaf: int,
    rate_bps: int = 100_000_000_000,
    core_rate_bps: int = 100_000_000_000,
    parallel: int = 1,
) -> Fabric:
    """Return a three-tier Clos: aggregation switch i of every pod joins the cores of plane i.

    Switches are ``pod0-tor0``, ``pod0-agg0``, ``core0-0`` (plane, number); with ``pods`` 1 and
    ``cores_per_agg`` 0 it is a leaf-spine fabric, with ``tor0`` and ``spine0``. Hosts are ``h0..``.

    Raises:
        PlanError: a count below one, or more ports than a switch has.
    """
    flat = pods == 1 and cores_per_agg == 0
    if min(pods, leaves, aggs, hosts_per_leaf, parallel) < 1 or (cores_per_agg < 1 and not flat):
        raise PlanError("a fabric needs at least one of everything that it is counted by")
    widest = max(
        hosts_per_leaf + aggs * parallel, leaves * parallel + cores_per_agg, pods if not flat else 0
    )
    if widest > MAX_PORT:
        raise PlanError(f"a switch would need {widest} ports; it has {MAX_PORT}")
    tors = [[f"tor{t}" if flat else f"pod{p}-tor{t}" for t in range(leaves)] for p in range(pods)]
    tops = [[f"spine{a}" if flat else f"pod{p}-agg{a}" for a in range(aggs)] for p in range(pods)]
    cores = [[f"core{a}-{c}" for c in range(cores_per_agg)] for a in range(aggs)]
    links = []
    attachments: dict[str, tuple[Endpoint, ...]] = {}
    for pod in range(pods):
        for t, tor in enumerate(tors[pod]):
            for port in range(hosts_per_leaf):
                attachments[f"h{len(attachments)}"] = (Endpoint(tor, port + 1),)
            for a, agg in enumerate(tops[pod]):
                for j in range(parallel):
                    up = Endpoint(tor, hosts_per_leaf + a * parallel + j + 1)
                    links.append(FabricLink(up, Endpoint(agg, t * parallel + j + 1), rate_bps))
        for a, agg in enumerate(tops[pod]):
            for c in range(cores_per_agg):
                up = Endpoint(agg, leaves * parallel + c + 1)
                links.append(FabricLink(up, Endpoint(cores[a][c], pod + 1), core_rate_bps))
    switches = [name for group in (*tors, *tops, *cores) for name in group]
    return Fabric(
        switches=tuple(switches),
        links=tuple(links),
        attachments=attachments,
        seeds={name: 0x9E3779B1 * (i + 1) & 0xFFFFFFFF for i, name in enumerate(switches)},
        addresses={host: IPv4Address(0x0A000001 + i) for i, host in enumerate(attachments)},
        tors=tuple(name for of_pod in tors for name in of_pod),
    )


@dataclass(frozen=True, slots=True)
class DirectedLink:
    """One direction of an inter-switch link that is up; numbered from 0 in a graph."""

    number: int
    src: Endpoint
    dst: Endpoint
    rate_bps: int


class PathGraph:
    """Numbers for names: switches 0.., trunks 0.. (one per direction), their links and tiers.

    Attributes:
        names: switch names; :attr:`number` is the way back.
        trunks: (from, to) per trunk; only trunks with a link that is up.
        links: the links of each trunk that are up, by egress port.
        out: the trunks that leave each switch.
        tier: tier of each switch, links that are down included; -1 if no ToR is connected to it.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self.names = fabric.switches
        self.number = {name: i for i, name in enumerate(fabric.switches)}
        by_pair: dict[tuple[int, int], list[tuple[Endpoint, Endpoint, int]]] = {}
        self._wired: list[set[int]] = [set() for _ in self.names]
        for link in fabric.links:
            a, b = self.number[link.a.node], self.number[link.b.node]
            self._wired[a].add(b)
            self._wired[b].add(a)
            if link.up:
                by_pair.setdefault((a, b), []).append((link.a, link.b, link.rate_bps))
                by_pair.setdefault((b, a), []).append((link.b, link.a, link.rate_bps))
        self.trunks = sorted(by_pair)
        number = itertools.count()
        self.links = [
            [DirectedLink(next(number), *link) for link in sorted(by_pair[pair])]
            for pair in self.trunks
        ]
        self.trunk_number = {pair: i for i, pair in enumerate(self.trunks)}
        self.out: list[list[int]] = [[] for _ in self.names]
        for trunk, (a, _) in enumerate(self.trunks):
            self.out[a].append(trunk)
        self.tier = self._tiers()
        self._distances: dict[int, list[int]] = {}
        self._steps: dict[tuple[int, int], tuple[int, ...]] = {}

    def _tiers(self) -> list[int]:
        tier = [-1] * len(self.names)
        queue: deque[int] = deque()
        lowest = self._fabric.tors or tuple(
            dict.fromkeys(end.node for ends in self._fabric.attachments.values() for end in ends)
        )
        for name in lowest:
            tier[self.number[name]] = 0
            queue.append(self.number[name])
        while queue:
            here = queue.popleft()
            for there in sorted(self._wired[here]):
                if tier[there] < 0:
                    tier[there] = tier[here] + 1
                    queue.append(there)
        return tier

    def parts(self, low: int, high: int) -> list[int]:
        """Return, per switch, its connected part among tiers low..high; -1 outside them.

        Links that are down count, so that a failure does not renumber the fabric.
        """
        part = [-1] * len(self.names)
        number = 0
        for start in range(len(self.names)):
            if part[start] >= 0 or not low <= self.tier[start] <= high:
                continue
            part[start] = number
            queue = [start]
            while queue:
                here = queue.pop()
                for there in self._wired[here]:
                    if part[there] < 0 and low <= self.tier[there] <= high:
                        part[there] = number
                        queue.append(there)
            number += 1
        return part

    def wired(self, switch: int) -> Iterable[int]:
        """Return the neighbours of a switch in ascending order, over links up or down."""
        return sorted(self._wired[switch])

    def distances(self, target: int) -> list[int]:
        """Return the trunks on a shortest path from each switch to ``target``; -1 for no path."""
        known = self._distances.get(target)
        if known is not None:
            return known
        distance = [-1] * len(self.names)
        distance[target] = 0
        queue = deque([target])
        # Links are full duplex, so ways out of the target are ways into it.
        while queue:
            here = queue.popleft()
            for trunk in self.out[here]:
                there = self.trunks[trunk][1]
                if distance[there] < 0:
                    distance[there] = distance[here] + 1
                    queue.append(there)
        self._distances[target] = distance
        return distance

    def steps(self, switch: int, target: int) -> tuple[int, ...]:
        """Return the trunks that bring a packet at ``switch`` one step nearer to ``target``."""
        known = self._steps.get((switch, target))
        if known is None:
            distance = self.distances(target)
            nearer = distance[switch] - 1
            known = tuple(t for t in self.out[switch] if distance[self.trunks[t][1]] == nearer)
            self._steps[switch, target] = known
        return known

    def ends(self, src: str, dst: str) -> tuple[Endpoint, Endpoint]:
        """Return the switch ports between which a flow of two hosts is planned.

        Hosts with several links use the pair of ports that is nearest, then first by name.

        Raises:
            PlanError: a host that the fabric does not know, or the same host twice.
            Unreachable: a host without a link that is up, or no path.
        """
        if src == dst:
            raise PlanError(f"host {src!r} would send to itself; an edge joins two hosts")
        for host in (src, dst):
            if host not in self._fabric.attachments:
                raise PlanError(
                    f"host {host!r} is not in the fabric; known: "
                    f"{_some(sorted(self._fabric.attachments))}"
                )
            if not self._fabric.attachments[host]:
                raise Unreachable(
                    src,
                    dst,
                    f"every link of {host!r} is down; bring one up, or leave the host out of "
                    "the ring",
                )
        best: tuple[int, Endpoint, Endpoint] | None = None
        for into in self._fabric.attachments[dst]:
            distance = self.distances(self.number[into.node])
            for start in self._fabric.attachments[src]:
                hops = distance[self.number[start.node]]
                if hops >= 0 and (best is None or (hops, start, into) < best):
                    best = (hops, start, into)
        if best is None:
            raise Unreachable(src, dst, self._why_apart(src, dst))
        return best[1], best[2]

    def _why_apart(self, src: str, dst: str) -> str:
        lefts = sorted({end.node for end in self._fabric.attachments[src]})
        rights = sorted({end.node for end in self._fabric.attachments[dst]})
        down = [
            f"{link.a} - {link.b}"
            for link in self._fabric.links
            if not link.up and {link.a.node, link.b.node} & {*lefts, *rights}
        ]
        cause = (
            f"down next to them: {_some(down)}; bring one up, or leave a host out of the ring"
            if down
            else "no links join them; add the missing [[link]] to the topology"
        )
        return f"switch {'/'.join(lefts)} does not reach {'/'.join(rights)} ({cause})"


def _some(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "none"
