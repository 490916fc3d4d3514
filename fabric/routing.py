"""Shortest-path routes of every switch towards every host, with all equal-cost next hops."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from ipaddress import ip_network

from ringstep.fabric.model import Host, IPAddress, IPNetwork, Topology


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
    def _by_length(self) -> tuple[tuple[int, int, dict[int, tuple[Hop, ...]]], ...]:
        """(IP version, host bits, network >> host bits -> hops), the longest prefixes first."""
        tables: dict[tuple[int, int, int], dict[int, tuple[Hop, ...]]] = {}
        for network, hops in self.routes.items():
            bits = network.max_prefixlen - network.prefixlen
            of_length = tables.setdefault((-network.prefixlen, network.version, bits), {})
            of_length[int(network.network_address) >> bits] = hops
        return tuple(
            (version, bits, tables[length, version, bits])
            for length, version, bits in sorted(tables)
        )

    def towards(self, host: Host) -> tuple[Hop, ...]:
        """Return the next hops to a host by longest prefix; empty where it cannot be reached."""
        for version, bits, table in self._by_length:
            for ip in host.ips:
                if ip.version == version and (hops := table.get(int(ip) >> bits)) is not None:
                    return hops
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
    distances: dict[frozenset[str], dict[str, int]] = {}
    between: dict[tuple[frozenset[str], str], tuple[Hop, ...]] = {}
    for host in topology.hosts.values():
        homes = frozenset(end.node for end in topology.attachments(host.name))
        distance = distances.get(homes)
        if distance is None:
            distance = distances[homes] = _distances(topology, homes)
            # Beyond its homes, hosts that hang off the same switches have the same next hops.
            for switch in distance.keys() - homes:
                between[homes, switch] = _hops(topology, switch, distance, None)
        prefixes = [(ip, _network(ip)) for ip in host.ips]
        apart = [
            network
            for ip, network in prefixes
            if not any(ip in subnet for home in homes for subnet in covered.get(home, ()))
        ]
        everywhere = [network for _, network in prefixes]
        for switch in topology.switches:
            if switch in homes:
                hops, wanted = _hops(topology, switch, distance, host), everywhere
            else:
                hops, wanted = between.get((homes, switch), ()), apart
            if hops:
                routes[switch].update(dict.fromkeys(wanted, hops))
    for home, subnets in covered.items():
        distance = _distances(topology, {home})
        for switch in topology.switches:
            hops = _hops(topology, switch, distance, None)
            if hops:
                routes[switch].update(dict.fromkeys(subnets, hops))
    # The tables share their prefixes, of which each is put in order once.
    every = {id(network): network for table in routes.values() for network in table}
    rank = {
        id(network): position
        for position, network in enumerate(sorted(every.values(), key=_prefix_order))
    }
    return {
        switch: RouteTable(switch, dict(sorted(table.items(), key=lambda item: rank[id(item[0])])))
        for switch, table in routes.items()
    }


@lru_cache(maxsize=1 << 16)
def _network(ip: IPAddress) -> IPNetwork:
    return ip_network(ip)


def _prefix_order(network: IPNetwork) -> tuple[int, int, int]:
    return network.version, int(network.network_address), network.prefixlen


def _distances(topology: Topology, homes: Set[str]) -> dict[str, int]:
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
