"""The fabric as a graph: switches, hosts, links, and what hangs off which port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal

from ringstep.protocol.red import MARK_GAP, RedParams

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network
Role = Literal["tor", "spine"]

MIN_PORT = 1
MAX_PORT = 509
"""Highest front-panel port: 510 is the CPU port and 511 means drop (DESIGN section 4)."""


@dataclass(frozen=True, slots=True)
class Red:
    """RED thresholds of one egress queue, in packets; marking probability at ``q_max``."""

    q_min: int = 40
    q_max: int = 160
    p_max: float = 0.2
    mark_gap: int = MARK_GAP
    """Microseconds between marks on packets of jobs (ringstep.protocol.red); 0: not spaced."""

    @property
    def params(self) -> RedParams:
        """What the data plane's table holds."""
        p_max = min(round(self.p_max * 65536), 65535)
        return RedParams(self.q_min, self.q_max, p_max, self.mark_gap)


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch: its P4Runtime identity, its role, and the address it sends from."""

    name: str
    device_id: int
    mac: int
    role: Role
    p4runtime: str | None = None
    ecmp_seed: int = 0
    subnets: tuple[IPNetwork, ...] = ()


@dataclass(frozen=True, slots=True)
class Host:
    """One host interface: at most one IPv4 and one IPv6 address, one MAC address."""

    name: str
    mac: int
    ips: tuple[IPAddress, ...]

    @property
    def ipv4(self) -> IPv4Address | None:
        """The host's IPv4 address, if it has one."""
        return next((ip for ip in self.ips if isinstance(ip, IPv4Address)), None)

    @property
    def ipv6(self) -> IPv6Address | None:
        """The host's IPv6 address, if it has one."""
        return next((ip for ip in self.ips if isinstance(ip, IPv6Address)), None)


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """One end of a link: a switch with its port, or a host (``port`` 0)."""

    node: str
    port: int = 0

    def __str__(self) -> str:
        return f"{self.node}:{self.port}" if self.port else self.node


@dataclass(frozen=True, slots=True)
class Link:
    """A full-duplex link; ``red`` is what the switch ports at its ends use, None for no RED."""

    a: Endpoint
    b: Endpoint
    rate_bps: int
    delay_ns: int = 0
    red: Red | None = None

    def other(self, node: str) -> Endpoint:
        """Return the end that is not ``node``."""
        return self.b if self.a.node == node else self.a


@dataclass(frozen=True)
class Topology:
    """A checked fabric; look-ups by name, by port and by address.

    Build it with :func:`ringstep.fabric.topology.load_topology`, which refuses a fabric whose
    names, ports or addresses do not fit together. The order of the file is kept.
    """

    name: str
    switches: Mapping[str, Switch]
    hosts: Mapping[str, Host]
    links: tuple[Link, ...]
    source: str = field(default="", compare=False)

    @cached_property
    def _ports(self) -> dict[str, dict[int, tuple[Endpoint, Link]]]:
        ports: dict[str, dict[int, tuple[Endpoint, Link]]] = {name: {} for name in self.switches}
        for link in self.links:
            for here, there in ((link.a, link.b), (link.b, link.a)):
                if here.node in self.switches:
                    ports[here.node][here.port] = (there, link)
        return {name: dict(sorted(of_switch.items())) for name, of_switch in ports.items()}

    @cached_property
    def _attachments(self) -> dict[str, tuple[Endpoint, ...]]:
        ends: dict[str, list[Endpoint]] = {name: [] for name in self.hosts}
        for link in self.links:
            for here, there in ((link.a, link.b), (link.b, link.a)):
                if here.node in self.hosts:
                    ends[here.node].append(there)
        return {name: tuple(sorted(of_host)) for name, of_host in ends.items()}

    @cached_property
    def _by_ip(self) -> dict[IPAddress, Host]:
        return {ip: host for host in self.hosts.values() for ip in host.ips}

    def ports(self, switch: str) -> Mapping[int, tuple[Endpoint, Link]]:
        """Return the used ports of a switch in ascending order: port -> (far end, link).

        Raises:
            KeyError: no such switch.
        """
        return self._ports[switch]

    def attachments(self, host: str) -> tuple[Endpoint, ...]:
        """Return the switch ports a host is plugged into, sorted.

        Raises:
            KeyError: no such host.
        """
        return self._attachments[host]

    def attached_hosts(self, switch: str) -> tuple[Host, ...]:
        """Return the hosts plugged into a switch, in port order."""
        return tuple(
            self.hosts[far.node] for far, _ in self._ports[switch].values() if far.port == 0
        )

    def switch_neighbours(self, switch: str) -> Iterator[tuple[int, str]]:
        """Yield (port, neighbour switch) for every inter-switch link, in port order."""
        for port, (far, _) in self._ports[switch].items():
            if far.node in self.switches:
                yield port, far.node

    def host_by_ip(self, ip: IPAddress) -> Host | None:
        """Return the host that owns an address, or None."""
        return self._by_ip.get(ip)
