"""The fabric of a scenario as a graph: hosts, switches and cables, by name and by number.

Hosts are numbered first, then switches, in the order in which they are named; ports of a switch
count from 1 in the order of its cables. The simulator's core counts the same way.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from ipaddress import IPv4Address

from ringstep.fabric.model import Endpoint
from ringstep.fabric.pathgraph import Fabric as PlannerFabric
from ringstep.fabric.pathgraph import FabricLink, PlanError, multi_pod
from ringstep.fabric.tomlfile import FileError, Location
from ringstep.fabric.topology import load_topology
from ringstep.fabric.units import format_rate
from ringstep_ns3.scenario import LeafSpine, Links, MultiPod, Scenario, TopologyFile
from ringstep_ns3.tomldoc import Findings

MAX_NODES = 1 << 20


@dataclass(frozen=True, slots=True)
class Cable:
    """A full-duplex link; times in ns. ``nominal_bps`` is the rate that RED thresholds go by."""

    a: str
    b: str
    rate_bps: int
    delay_ns: int
    rate_back_bps: int
    delay_back_ns: int
    loss: float
    name: str
    nominal_bps: int
    nominal_back_bps: int


@dataclass(frozen=True)
class Graph:
    """A checked fabric. Node numbers: hosts, then switches; directed links: 2 x cable, + 1 back."""

    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    tiers: tuple[int, ...]
    """Tier per switch: 0 has hosts."""
    cables: tuple[Cable, ...]

    @cached_property
    def number(self) -> dict[str, int]:
        """Node number by name."""
        return {name: i for i, name in enumerate((*self.hosts, *self.switches))}

    @cached_property
    def cable_number(self) -> dict[str, int]:
        """Cable number by name, in both orders of its ends."""
        numbers: dict[str, int] = {}
        for i, cable in enumerate(self.cables):
            suffix = cable.name.removeprefix(f"{cable.a}-{cable.b}")
            numbers.setdefault(cable.name, i)
            numbers.setdefault(f"{cable.b}-{cable.a}{suffix}", i)
        return numbers

    @cached_property
    def link_number(self) -> dict[str, int]:
        """Directed link number by name, ``tor0->spine1``."""
        numbers: dict[str, int] = {}
        for i, cable in enumerate(self.cables):
            suffix = cable.name.removeprefix(f"{cable.a}-{cable.b}")
            numbers[f"{cable.a}->{cable.b}{suffix}"] = 2 * i
            numbers[f"{cable.b}->{cable.a}{suffix}"] = 2 * i + 1
        return numbers

    @cached_property
    def link_names(self) -> tuple[str, ...]:
        """Name of each directed link."""
        names = {number: name for name, number in self.link_number.items()}
        return tuple(names[i] for i in range(2 * len(self.cables)))

    @cached_property
    def ports(self) -> tuple[tuple[int, int], ...]:
        """Port at either end of each cable; 0 at a host."""
        used = dict.fromkeys(self.switches, 0)
        ports = []
        for cable in self.cables:
            ends = []
            for name in (cable.a, cable.b):
                if name in used:
                    used[name] += 1
                ends.append(used.get(name, 0))
            ports.append((ends[0], ends[1]))
        return tuple(ports)

    @cached_property
    def egress(self) -> dict[tuple[str, int], int]:
        """Directed link that leaves a switch by a port."""
        found: dict[tuple[str, int], int] = {}
        for i, (cable, (port_a, port_b)) in enumerate(zip(self.cables, self.ports, strict=True)):
            found[cable.a, port_a] = 2 * i
            found[cable.b, port_b] = 2 * i + 1
        return found

    @cached_property
    def tor_of(self) -> dict[str, str]:
        """The switch each host hangs off; hosts cabled to hosts are absent."""
        switches = set(self.switches)
        found: dict[str, str] = {}
        for cable in self.cables:
            for host, other in ((cable.a, cable.b), (cable.b, cable.a)):
                if host not in switches and other in switches:
                    found[host] = other
        return found

    @cached_property
    def access_bps(self) -> dict[str, int]:
        """Rate from each host into the fabric."""
        switches = set(self.switches)
        found: dict[str, int] = {}
        for cable in self.cables:
            if cable.a not in switches:
                found[cable.a] = cable.rate_bps
            if cable.b not in switches:
                found[cable.b] = cable.rate_back_bps
        return found

    @cached_property
    def parts(self) -> dict[str, int]:
        """Number of the connected part that each node is in; hosts do not forward."""
        switches = set(self.switches)
        near: dict[str, list[str]] = {name: [] for name in self.number}
        for cable in self.cables:
            near[cable.a].append(cable.b)
            near[cable.b].append(cable.a)
        part: dict[str, int] = {}
        for start in (*self.switches, *self.hosts):
            if start in part:
                continue
            part[start] = label = len(set(part.values()))
            queue = deque([start])
            while queue:
                here = queue.popleft()
                if here not in switches and here != start:
                    continue
                for there in near[here]:
                    if there not in part:
                        part[there] = label
                        queue.append(there)
        return part

    def planner_fabric(self) -> PlannerFabric:
        """Return the fabric as :mod:`ringstep.fabric.planner` sees it."""
        switches = set(self.switches)
        links = []
        attachments: dict[str, tuple[Endpoint, ...]] = dict.fromkeys(self.hosts, ())
        for cable, (port_a, port_b) in zip(self.cables, self.ports, strict=True):
            if cable.a in switches and cable.b in switches:
                rate = min(cable.rate_bps, cable.rate_back_bps)
                links.append(FabricLink(Endpoint(cable.a, port_a), Endpoint(cable.b, port_b), rate))
            elif cable.a in switches:
                attachments[cable.b] = (*attachments[cable.b], Endpoint(cable.a, port_a))
            elif cable.b in switches:
                attachments[cable.a] = (*attachments[cable.a], Endpoint(cable.b, port_b))
        return PlannerFabric(
            switches=self.switches,
            links=tuple(links),
            attachments=attachments,
            addresses={h: IPv4Address(0x0A000001 + i) for i, h in enumerate(self.hosts)},
        )

    def hosts_of(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the hosts that names mean (``all``, a switch's, hosts), and unknown names."""
        found: dict[str, None] = {}
        unknown = []
        hosts, switches = set(self.hosts), set(self.switches)
        for name in names:
            if name == "all":
                found.update(dict.fromkeys(self.hosts))
            elif name in hosts:
                found[name] = None
            elif name in switches:
                of_switch = [h for h in self.hosts if self.tor_of.get(h) == name]
                found.update(dict.fromkeys(of_switch))
            else:
                unknown.append(name)
        return list(found), unknown


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a hint that names what is close to ``name``, and some of what there is."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    shown = ", ".join(known[:8]) + (f" ... ({len(known)} in all)" if len(known) > 8 else "")
    return f"{hint}known: {shown or 'none'}"


def make_graph(scenario: Scenario, findings: Findings) -> Graph | None:
    """Return the fabric of a scenario; None where ``findings`` got something."""
    fabric = scenario.fabric
    if isinstance(fabric, LeafSpine):
        graph = _leaf_spine(fabric, findings)
    elif isinstance(fabric, MultiPod):
        graph = _multi_pod(fabric, findings)
    elif isinstance(fabric, TopologyFile):
        graph = _from_file(fabric, scenario, findings)
    else:
        graph = _from_links(fabric, findings)
    if graph is None or findings:
        return None
    return _with_imbalance(graph, scenario, findings)


def _leaf_spine(table: LeafSpine, findings: Findings) -> Graph | None:
    uplink = table.uplink_rate or table.rate
    return _clos(
        findings,
        (1, table.leaves, table.spines, 0, table.hosts_per_leaf, table.parallel),
        (table.rate, uplink, uplink),
        (table.delay, _or(table.uplink_delay, table.delay), 0),
        table.loss,
    )


def _multi_pod(table: MultiPod, findings: Findings) -> Graph | None:
    uplink = table.uplink_rate or table.rate
    planned = _cores(table, uplink, findings)
    if planned is None:
        return None
    cores, core_rate = planned
    uplink_delay = _or(table.uplink_delay, table.delay)
    return _clos(
        findings,
        (table.pods, table.leaves, table.spines, cores, table.hosts_per_leaf, table.parallel),
        (table.rate, uplink, core_rate),
        (table.delay, uplink_delay, _or(table.core_delay, uplink_delay)),
        table.loss,
    )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _cores(table: MultiPod, uplink: int, findings: Findings) -> tuple[int, int] | None:
    """Cores per spine and their rate, from what the table gives of three."""
    if table.oversubscription_of == "hosts":
        below = table.leaves * table.hosts_per_leaf * table.rate
    else:
        below = table.leaves * table.spines * table.parallel * uplink
    wanted = table.oversubscription
    if wanted is None:
        if table.cores_per_spine is None:
            findings.add(
                ("fabric",),
                "neither 'cores_per_spine' nor 'oversubscription' is given; write for example "
                'oversubscription = "1:4"',
            )
            return None
        return table.cores_per_spine, table.core_rate or uplink
    out = Fraction(below) / wanted
    if table.cores_per_spine is not None:
        rate = out / (table.spines * table.cores_per_spine)
        if table.core_rate is not None and table.core_rate != rate:
            findings.add(
                ("fabric", "oversubscription"),
                f"does not agree with cores_per_spine = {table.cores_per_spine} and core_rate = "
                f'"{format_rate(table.core_rate)}"; leave one of the three out',
            )
            return None
        if rate.denominator != 1:
            findings.add(
                ("fabric", "oversubscription"),
                f"asks for core links of {float(rate):.3f} bit/s; a rate is a whole number",
            )
            return None
        return table.cores_per_spine, int(rate)
    rate_bps = table.core_rate or uplink
    cores = out / (table.spines * rate_bps)
    if cores.denominator != 1:
        findings.add(
            ("fabric", "oversubscription"),
            f"asks for {float(cores):g} cores per spine at {format_rate(rate_bps)}; give "
            "'cores_per_spine' too (then the core rate follows), or another 'core_rate'",
        )
        return None
    return int(cores), rate_bps


def _clos(
    findings: Findings,
    counts: tuple[int, int, int, int, int, int],
    rates: tuple[int, int, int],
    delays: tuple[int, int, int],
    loss: float,
) -> Graph | None:
    pods, leaves, spines, cores, hosts_per_leaf, parallel = counts
    if pods * leaves * (hosts_per_leaf + spines * parallel) > MAX_NODES:
        findings.add(("fabric",), f"has more than {MAX_NODES} hosts and links; make it smaller")
        return None
    try:
        shape = multi_pod(pods, leaves, spines, cores, hosts_per_leaf, rates[1], rates[2], parallel)
    except PlanError as error:
        findings.add(("fabric",), str(error))
        return None
    cables = [(host, ends[0].node, rates[0], delays[0]) for host, ends in shape.attachments.items()]
    for link in shape.links:
        core = link.b.node.startswith("core")
        cables.append((link.a.node, link.b.node, link.rate_bps, delays[2 if core else 1]))
    return _graph(
        tuple(shape.attachments),
        shape.switches,
        [(a, b, rate, delay, rate, delay, loss) for a, b, rate, delay in cables],
        {},
    )


def _from_file(table: TopologyFile, scenario: Scenario, findings: Findings) -> Graph | None:
    path = scenario.folder / table.path
    try:
        topology = load_topology(path)
    except FileError as error:
        for problem in error.problems:
            findings.add(("fabric", "path"), problem)
        return None
    for host in topology.hosts:
        ends = topology.attachments(host)
        if len(ends) != 1:
            findings.add(
                ("fabric", "path"),
                f"{path}: host {host!r} has {len(ends)} links; the simulator's hosts have one NIC: "
                "make each interface a host of its own",
            )
    cables = []
    for link in topology.links:
        delay = link.delay_ns or table.delay
        a, b = link.a.node, link.b.node
        cables.append((a, b, link.rate_bps, delay, link.rate_bps, delay, 0.0))
    tiers = {s.name: 0 if s.role == "tor" else 1 for s in topology.switches.values()}
    return _graph(tuple(topology.hosts), tuple(topology.switches), cables, tiers)


def _from_links(table: Links, findings: Findings) -> Graph | None:
    named = [(("fabric", "hosts"), name) for name in table.hosts]
    named += [(("fabric", "switches"), name) for name in table.switches]
    switch_rows = [(("fabric", "switch", i, "name"), s.name) for i, s in enumerate(table.switch)]
    seen: set[str] = set()
    for location, name in (*named, *switch_rows):
        if name in seen:
            findings.add(location, f"{name!r} stands twice; every node needs a name of its own")
        seen.add(name)
    hosts = set(table.hosts)
    cabled: dict[str, int] = {}
    cables = []
    for i, link in enumerate(table.link):
        where: Location = ("fabric", "link", i)
        for key, name in (("a", link.a), ("b", link.b)):
            if name not in seen:
                findings.add(
                    (*where, key),
                    f"{name!r} is neither a host nor a switch; {nearest(name, sorted(seen))}",
                )
            elif name in hosts and (link.count > 1 or name in cabled):
                other = f", link[{cabled[name] + 1}] too" if name in cabled else ""
                findings.add(
                    (*where, key),
                    f"host {name!r} gets more than one cable{other}; a host has one NIC: put a "
                    "switch in between, or make each NIC a host",
                )
            cabled.setdefault(name, i)
        if link.a == link.b:
            findings.add(where, f"joins {link.a!r} to itself; the ends must differ")
        back = link.rate_back or link.rate
        delay_back = _or(link.delay_back, link.delay)
        cables += [
            (link.a, link.b, link.rate, link.delay, back, delay_back, link.loss)
        ] * link.count
    for location, name in (*named, *switch_rows):
        if name not in cabled:
            findings.add(
                location,
                f'{name!r} has no link; add [[fabric.link]] with a = "{name}", or take it out',
            )
    if findings:
        return None
    switches = (*table.switches, *(entry.name for entry in table.switch))
    tiers = {entry.name: entry.tier for entry in table.switch if entry.tier is not None}
    return _graph(table.hosts, switches, cables, tiers)


def _graph(
    hosts: tuple[str, ...],
    switches: tuple[str, ...],
    rows: Sequence[tuple[str, str, int, int, int, int, float]],
    tiers: dict[str, int],
) -> Graph:
    seen: dict[frozenset[str], int] = {}
    cables = []
    for a, b, rate, delay, back, delay_back, loss in rows:
        pair = frozenset((a, b))
        seen[pair] = seen.get(pair, 0) + 1
        suffix = f"#{seen[pair]}" if seen[pair] > 1 else ""
        name = f"{a}-{b}{suffix}"
        cables.append(Cable(a, b, rate, delay, back, delay_back, loss, name, rate, back))
    counted = _tiers(hosts, switches, cables)
    return Graph(
        hosts, switches, tuple(tiers.get(name, counted[name]) for name in switches), tuple(cables)
    )


def _tiers(
    hosts: tuple[str, ...], switches: tuple[str, ...], cables: Sequence[Cable]
) -> dict[str, int]:
    near: dict[str, set[str]] = {name: set() for name in (*hosts, *switches)}
    for cable in cables:
        near[cable.a].add(cable.b)
        near[cable.b].add(cable.a)
    known = set(switches)
    tier = {s: 0 for s in switches if not near[s] <= known}
    queue = deque(tier)
    while queue:
        here = queue.popleft()
        for there in sorted(near[here] & known - set(tier)):
            tier[there] = tier[here] + 1
            queue.append(there)
    return {s: tier.get(s, 0) for s in switches}


def _with_imbalance(graph: Graph, scenario: Scenario, findings: Findings) -> Graph | None:
    cables = list(graph.cables)
    for i, entry in enumerate(scenario.imbalance):
        number = graph.cable_number.get(entry.link)
        if number is None:
            findings.add(
                ("imbalance", i, "link"),
                f"{entry.link!r} is no link; {nearest(entry.link, sorted(graph.cable_number))}",
            )
            continue
        cable = cables[number]
        forward = entry.link.startswith(f"{cable.a}-{cable.b}")
        rates = [cable.rate_bps, cable.rate_back_bps]
        for side, named in enumerate(("forward", "back") if forward else ("back", "forward")):
            if entry.direction in ("both", named):
                rates[side] = round(rates[side] / entry.factor)
        if min(rates) < 1:
            findings.add(("imbalance", i, "factor"), f"{entry.factor:g} leaves no rate; take less")
            continue
        cables[number] = Cable(
            cable.a,
            cable.b,
            rates[0],
            cable.delay_ns,
            rates[1],
            cable.delay_back_ns,
            cable.loss,
            cable.name,
            cable.nominal_bps,
            cable.nominal_back_bps,
        )
    return None if findings else Graph(graph.hosts, graph.switches, graph.tiers, tuple(cables))
