"""Ring collectives on a fabric: the directed edges of a ring and the ports they may cross."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ringstep.fabric.model import Topology
from ringstep.fabric.routing import RouteTable


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """One direction of traffic of a ring: from a host to its successor."""

    src: str
    dst: str

    def __str__(self) -> str:
        return f"{self.src}->{self.dst}"


def ring_edges(rings: Iterable[Sequence[str]]) -> tuple[Edge, ...]:
    """Return the directed edges of one or several rings (channels), each edge once.

    A ring of N hosts has N edges; every host sends to the next, the last to the first.

    Raises:
        ValueError: a ring has fewer than two hosts, or a host twice.
    """
    edges: dict[Edge, None] = {}
    for ring in rings:
        if len(ring) < 2:
            raise ValueError(f"a ring of {len(ring)} hosts has no edges; name at least two hosts")
        seen: set[str] = set()
        for host in ring:
            if host in seen:
                raise ValueError(f"host {host!r} stands twice in one ring; name every host once")
            seen.add(host)
        for position, host in enumerate(ring):
            edges[Edge(host, ring[(position + 1) % len(ring)])] = None
    return tuple(edges)


def egress_ports(
    topology: Topology, tables: Mapping[str, RouteTable], edge: Edge
) -> dict[str, frozenset[int]]:
    """Return switch -> egress ports that a flow of ``edge`` may leave by, over all ECMP paths.

    Switches that no equal-cost path crosses are absent; the result is empty where the
    destination cannot be reached.

    Raises:
        KeyError: an end of the edge is not a host of the topology.
    """
    destination = topology.hosts[edge.dst]
    ports: dict[str, frozenset[int]] = {}
    pending = [end.node for end in topology.attachments(edge.src)]
    while pending:
        switch = pending.pop()
        if switch in ports:
            continue
        hops = tables[switch].towards(destination)
        if not hops:
            continue
        ports[switch] = frozenset(hop.port for hop in hops)
        for hop in hops:
            far, _ = topology.ports(switch)[hop.port]
            if far.node in topology.switches:
                pending.append(far.node)
    return dict(sorted(ports.items()))
