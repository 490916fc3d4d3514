"""Shortest-path routes of every switch towards every host, with all equal-cost next hops."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_network

from ringstep.fabric.model import Host, IPNetwork, Topology


@dataclass(frozen=True, slots=True, order=True)
class Hop:
    """One next hop: the egress port, and the MAC address at its far end."""

    port: int
    dst_mac: int


@dataclass(frozen=True)
class RouteTable:
    """Routes of one switch: prefix -> equal-cost next hops, in ascending port order."""

    switch: str
    routes: Mapping[IPNetwork, tuple[Hop, ...]]

    @cached_property
    def _longest_first(self) -> tuple[IPNetwork, ...]:
        return tuple(sorted(self.routes, key=lambda net: -net.prefixlen))

    def towards(self, host: Host) -> tuple[Hop, ...]:
        """Return the next hops to a host by longest prefix; empty where it cannot be reached."""
        for network in self._longest_first:
            if any(ip in network for ip in host.ips):
                return self.routes[network]
        return ()


def route_tables(topology: Topology) -> dict[str, RouteTable]:
    """Return the route table of every switch.

    A host gets a /32 and a /128 route, except where a switch declares subnets that cover the
    address: other switches then hold one route per subnet. Hosts never forward. The result
    depends on the topology alone: prefixes are sorted, next hops ascend by port.
    """
    routes: dict[str, dict[IPNetwork, tuple[Hop, ...]]] = {name: {} for name in topology.switches}
    covered = {
        switch.name: switch.subnets for switch in topology.switches.values() if switch.subnets
    }
    for host in topology.hosts.values():
        homes = {end.node for end in topology.attachments(host.name)}
        distance = _distances(topology, homes)
        for switch in topology.switches:
            hops = _hops(topology, switch, distance, host)
            if not hops:
                continue
            for ip in host.ips:
                aggregated = switch not in homes and any(
                    ip in network for home in homes for network in covered.get(home, ())
                )
                if not aggregated:
                    routes[switch][ip_network(ip)] = hops
    for home, subnets in covered.items():
        distance = _distances(topology, {home})
        for switch in topology.switches:
            hops = _hops(topology, switch, distance, None)
            if hops:
                routes[switch].update(dict.fromkeys(subnets, hops))
    return {
        switch: RouteTable(switch, dict(sorted(table.items(), key=_prefix_order)))
        for switch, table in routes.items()
    }


def _prefix_order(item: tuple[IPNetwork, tuple[Hop, ...]]) -> tuple[int, int, int]:
    network = item[0]
    return network.version, int(network.network_address), network.prefixlen


def _distances(topology: Topology, homes: set[str]) -> dict[str, int]:
    """Hops between each reachable switch and the nearest of ``homes``."""
    distance = {home: 0 for home in homes if home in topology.switches}
    queue = deque(sorted(distance))
    while queue:
        here = queue.popleft()
        for _, neighbour in topology.switch_neighbours(here):
            if neighbour not in distance:
                distance[neighbour] = distance[here] + 1
                queue.append(neighbour)
    return distance


def _hops(
    topology: Topology, switch: str, distance: Mapping[str, int], host: Host | None
) -> tuple[Hop, ...]:
    if switch not in distance:
        return ()
    if distance[switch] == 0:
        return tuple(
            Hop(port, host.mac)
            for port, (far, _) in topology.ports(switch).items()
            if host is not None and far.node == host.name
        )
    return tuple(
        Hop(port, topology.switches[neighbour].mac)
        for port, neighbour in topology.switch_neighbours(switch)
        if distance.get(neighbour, -1) == distance[switch] - 1
    )
