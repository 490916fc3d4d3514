"""The fabric as it is now, and what every switch holds of it before any job comes.

A view leaves out links that are down, and the links between switches of those that are drained.
Of two views of one topology, what did not change has the same table entries: a failed link costs
a few writes, never a renumbered switch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Final, TypeVar, cast

from ringstep.controller.entries import (
    EntryKey,
    Exact,
    GroupRef,
    Lpm,
    ProfileKey,
    SwitchTables,
    action,
    entry_key,
)
from ringstep.fabric.memo import Same
from ringstep.fabric.model import MAX_PORT, Endpoint, Topology
from ringstep.fabric.pathgraph import Fabric
from ringstep.fabric.rings import Edge, egress_ports
from ringstep.fabric.routing import Hop, RouteTable, route_tables

T = TypeVar("T")
ECMP_PROFILE: Final = "ecmp"
PLANNED_PATH: Final = "planned_path"
"""The table that says which way a path id leads. On every switch a path id is an egress port."""
_FIRST_SHARED_GROUP: Final = MAX_PORT + 1
_FIRST_SPARE_GROUP: Final = 1 << 15
_SPARE_GROUPS: Final = 1 << 15
"""Groups of ports that only a failure brings together. A nexthop id has 16 bits."""
_MOST_KNOWN: Final = 1 << 17
"""Bound on what a view remembers per pair of hosts."""


class CutOffError(ValueError):
    """Draining would leave hosts without a way to others; ``hosts`` names them."""

    def __init__(self, drained: Iterable[str], hosts: Iterable[str]) -> None:
        self.hosts = tuple(hosts)
        shown = ", ".join(self.hosts[:8])
        more = f" and {len(self.hosts) - 8} more" if len(self.hosts) > 8 else ""
        super().__init__(
            f"draining {', '.join(sorted(drained))} would cut off hosts {shown}{more}; release "
            "their jobs, or bring up another link of theirs first"
        )


@dataclass(frozen=True)
class FabricView:
    """A topology with its failures and drained switches, and what follows from them.

    Attributes:
        topology: the whole file.
        usable: without links that are down and without inter-switch links of drained switches.
        routes: of ``usable``, per switch. A drained switch keeps the routes that it has when only
            the links that are down are left out, for packets under way.
        base: what each switch holds without jobs.
        planner: the usable links, for the path planner.
        down: switch ports, both ends of a link, whose link is down.
        drained: switches that get no traffic between racks.
    """

    topology: Topology
    usable: Topology
    routes: Mapping[str, RouteTable]
    base: Mapping[str, SwitchTables]
    planner: Fabric
    down: frozenset[tuple[str, int]] = frozenset()
    drained: frozenset[str] = frozenset()
    _memory: dict[Hashable, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _onward: dict[tuple[str, str], tuple[int, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _ecmp: dict[tuple[str, str], Mapping[str, frozenset[int]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def remembered(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return what ``find`` gave for this key the first time; keys of one kind find one type."""
        found = self._memory.get(key)
        if found is None:
            if len(self._memory) >= _MOST_KNOWN:
                self._memory.clear()
            found = self._memory[key] = find()
        return cast(T, found)

    def ports_towards(self, switch: str, host: str) -> tuple[int, ...]:
        """Return the ports by which ECMP sends from a switch to a host; empty: no route.

        Raises:
            KeyError: no such switch or host.
        """
        known = self._onward.get((switch, host))
        if known is None:
            target = self.topology.hosts[host]
            known = tuple(hop.port for hop in self.routes[switch].towards(target))
            self._onward[switch, host] = known
        return known

    def has_choice(self, switch: str, host: str) -> bool:
        """Return whether ECMP has several ports to a host while all is well.

        Raises:
            KeyError: no such switch or host.
        """
        target = self.topology.hosts[host]
        whole = _routes_of(Same(self.topology))
        return self.remembered(
            ("has choice", switch, host), lambda: len(whole[switch].towards(target)) > 1
        )

    def ecmp_ports(self, src: str, dst: str) -> Mapping[str, frozenset[int]]:
        """Return switch -> ports that a flow may leave by, as :func:`egress_ports` has it.

        Raises:
            KeyError: no such host.
        """
        known = self._ecmp.get((src, dst))
        if known is None:
            if len(self._ecmp) >= _MOST_KNOWN:
                self._ecmp.clear()
            known = self._ecmp[src, dst] = egress_ports(self.usable, self.routes, Edge(src, dst))
        return known


def fabric_view(
    topology: Topology,
    down: Iterable[tuple[str, int]] = frozenset(),
    drained: Iterable[str] = frozenset(),
    *,
    must_reach: Iterable[Edge] | None = None,
) -> FabricView:
    """Return a topology as it is with links down and switches drained.

    A link that is down is named by the switch and port of either end. Ports without a link and
    unknown switches are left out: facts of a store may be older than the topology.

    Args:
        topology: the fabric when all is well.
        down: (switch, port) of links that are down.
        drained: switches to be left without traffic between racks.
        must_reach: edges that draining must not cut; None: those of every host to every other
            that the links which are up allow; empty: draining is not refused.

    Raises:
        CutOffError: draining would cut off hosts. What a link that is down cuts off is no error.
    """
    known = {end for link in topology.links for end in (link.a, link.b)}
    ends = frozenset(
        other
        for switch, port in down
        if Endpoint(switch, port) in known and switch in topology.switches
        for other in _both_ends(topology, Endpoint(switch, port))
        if other.node in topology.switches
    )
    out = frozenset(switch for switch in drained if switch in topology.switches)
    lit = _without(topology, ends) if ends else topology
    unused = frozenset(
        Endpoint(switch, port) for switch in out for port, _ in lit.switch_neighbours(switch)
    )
    usable = _without(lit, unused) if unused else lit
    if out:
        cut_off = _cut_off(lit, usable, must_reach)
        if cut_off:
            raise CutOffError(out, cut_off)
    full = _routes_of(Same(topology))
    routes = full if usable is topology else route_tables(usable)
    if out:
        with_drained = full if lit is topology else route_tables(lit)
        routes = {name: (with_drained if name in out else routes)[name] for name in routes}
    prefix_keys: dict[int, EntryKey] = {}
    return FabricView(
        topology=topology,
        usable=usable,
        routes=routes,
        base={
            name: _switch_tables(topology, full[name], routes[name], lit, out, prefix_keys)
            for name in topology.switches
        },
        planner=Fabric.of(topology, ends | unused),
        down=frozenset((end.node, end.port) for end in ends),
        drained=out,
    )


def _both_ends(topology: Topology, end: Endpoint) -> tuple[Endpoint, Endpoint]:
    far, _ = topology.ports(end.node)[end.port]
    return end, far


def _without(topology: Topology, ends: Collection[Endpoint]) -> Topology:
    """The topology without the links that the switch ports of ``ends`` have."""
    links = tuple(link for link in topology.links if link.a not in ends and link.b not in ends)
    return replace(topology, links=links)


@lru_cache(maxsize=8)
def _routes_of(topology: Same[Topology]) -> dict[str, RouteTable]:
    return route_tables(topology.value)


def _cut_off(lit: Topology, usable: Topology, must_reach: Iterable[Edge] | None) -> list[str]:
    """Hosts that lose the way to another by what ``usable`` leaves out."""
    before, after = _parts(lit), _parts(usable)

    def joined(parts: Mapping[str, int], src: str, dst: str) -> bool:
        return bool(
            {parts[end.node] for end in lit.attachments(src)}
            & {parts[end.node] for end in lit.attachments(dst)}
        )

    if must_reach is not None:
        lost = {
            host
            for edge in must_reach
            if joined(before, edge.src, edge.dst) and not joined(after, edge.src, edge.dst)
            for host in (edge.src, edge.dst)
        }
        return [host for host in lit.hosts if host in lost]
    hosts = {
        host: frozenset(after[end.node] for end in lit.attachments(host))
        for host in lit.hosts
        if lit.attachments(host)
    }
    size: dict[int, int] = {}
    for parts in hosts.values():
        for part in parts:
            size[part] = size.get(part, 0) + 1
    # What was one part before: most of its hosts are in one part still, the others are cut off.
    largest: dict[int, int] = {}
    for host, parts in hosts.items():
        for end in lit.attachments(host):
            whole = before[end.node]
            for part in parts:
                if whole not in largest or size[part] > size[largest[whole]]:
                    largest[whole] = part
    return [
        host
        for host, parts in hosts.items()
        if not any(largest[before[end.node]] in parts for end in lit.attachments(host))
    ]


def _parts(topology: Topology) -> dict[str, int]:
    """Switch -> number of the connected part that it is in, hosts not counted as links."""
    part: dict[str, int] = {}
    for number, start in enumerate(topology.switches):
        pending = [start]
        while pending:
            here = pending.pop()
            if here not in part:
                part[here] = number
                pending += (neighbour for _, neighbour in topology.switch_neighbours(here))
    return part


def _switch_tables(
    topology: Topology,
    full: RouteTable,
    routes: RouteTable,
    lit: Topology,
    drained: frozenset[str],
    prefix_keys: dict[int, EntryKey],
) -> SwitchTables:
    """What a switch holds without jobs; ``prefix_keys`` remembers keys by the prefix's identity.

    Member ids are port numbers, and so are path ids; next hop ids are group ids. Ports that are
    equal when all is well have a group whose number depends on the topology alone: that of the
    port for one, above all ports in the order of first use for several. A port whose link is down,
    or whose neighbour is drained, only leaves the groups it was in. Destinations that a failure
    elsewhere parts from the others of their group move to another, numbered by its ports.
    """
    switch = topology.switches[routes.switch]
    result = SwitchTables()
    result.defaults["switch_config"] = action("set_switch", {"ecmp_seed": switch.ecmp_seed})
    result.defaults["route_v4"] = action("drop")
    result.defaults["route_v6"] = action("drop")
    inside = {
        port: neighbour
        for port, neighbour in lit.switch_neighbours(switch.name)
        if neighbour not in drained or switch.name in drained
    }
    hosts = {port for port, (far, _) in lit.ports(switch.name).items() if far.node in lit.hosts}
    groups = _Groups(full, hosts | inside.keys(), routes)
    set_nexthop = {
        group_id: action("set_nexthop", {"nexthop_id": group_id}) for group_id in groups.members
    }
    for network, group_id in zip(routes.routes, groups.of_routes, strict=True):
        key = prefix_keys.get(id(network))
        if key is None:
            prefix = Lpm(int(network.network_address), network.prefixlen)
            key = entry_key(f"route_v{network.version}", dst_addr=prefix)
            prefix_keys[id(network)] = key
        result.entries[key] = set_nexthop[group_id]
    for group_id, hops in groups.members.items():
        for hop in hops:
            result.members[ProfileKey(ECMP_PROFILE, hop.port)] = action(
                "forward", {"port": hop.port, "src_mac": switch.mac, "dst_mac": hop.dst_mac}
            )
        result.groups[ProfileKey(ECMP_PROFILE, group_id)] = tuple((hop.port, 1) for hop in hops)
        result.entries[entry_key("nexthop", nexthop_id=Exact(group_id))] = GroupRef(group_id)
    for port, neighbour in inside.items():
        result.entries[entry_key(PLANNED_PATH, path_id=Exact(port))] = action(
            "forward",
            {
                "port": port,
                "src_mac": switch.mac,
                "dst_mac": topology.switches[neighbour].mac,
            },
        )
    for port, (_, link) in topology.ports(switch.name).items():
        if link.red is not None:
            result.entries[entry_key("red", egress_port=Exact(port))] = action(
                "set_red", link.red.params.to_table()
            )
    return result


class _Groups:
    """The ECMP groups of one switch: members by group id, and the group of each route in order."""

    def __init__(self, full: RouteTable, lit: Set[int], now: RouteTable) -> None:
        # Many routes share one tuple of hops: what follows from it is worked out once.
        sets = {id(hops): hops for table in (full, now) for hops in table.routes.values()}
        ports_of = {number: tuple(hop.port for hop in hops) for number, hops in sets.items()}
        usual: dict[tuple[int, ...], int] = {}
        for hops in full.routes.values():
            ports = ports_of[id(hops)]
            if len(ports) > 1 and ports not in usual:
                usual[ports] = _FIRST_SHARED_GROUP + len(usual)
        # What failures next to this switch leave of each usual group.
        left = {ports: tuple(port for port in ports if port in lit) for ports in reversed(usual)}
        shared = {rest: usual[ports] for ports, rest in left.items()}
        spare: dict[tuple[int, ...], int] = {}
        for ports in sorted({ports_of[id(hops)] for hops in now.routes.values()}):
            if len(ports) > 1 and ports not in shared:
                spare[ports] = _spare_number(ports, spare.values())
        self.members: dict[int, tuple[Hop, ...]] = {}
        self.of_routes: list[int] = []
        found: dict[tuple[int, int], int] = {}
        for (network, hops), (other, before) in zip_longest(
            now.routes.items(), full.routes.items(), fillvalue=(None, ())
        ):
            if network is None:
                break
            if other is not network:
                before = full.routes.get(network, ())
            number = found.get((id(before), id(hops)))
            if number is None:
                ports, all_ports = ports_of[id(hops)], ports_of.get(id(before), ())
                if all_ports in usual and ports == left[all_ports]:
                    number = usual[all_ports]
                elif len(ports) == 1:
                    number = ports[0]
                else:
                    number = shared.get(ports) or spare[ports]
                found[id(before), id(hops)] = number
                self.members[number] = hops
            self.of_routes.append(number)


def _spare_number(ports: tuple[int, ...], taken: Collection[int]) -> int:
    at = zlib.crc32(repr(ports).encode()) % _SPARE_GROUPS
    while _FIRST_SPARE_GROUP + at in taken:
        at = (at + 1) % _SPARE_GROUPS
    return _FIRST_SPARE_GROUP + at
