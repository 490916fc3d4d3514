"""The lab's fabric as pure data: names, ports, addresses, rates, scale, and the topology file.

A leaf-spine fabric of software switches is some hundred times slower than the links that DCQCN, RED
and the marker are stated for. The lab stretches time by that factor and changes nothing else: every
timer runs ``time_factor`` times slower, every rate is ``time_factor`` times lower, and what is
counted in bytes stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from ipaddress import IPv4Address
from typing import Any, Final

from ringstep.fabric.units import format_mac
from ringstep.hostlib.dcqcn import DcqcnParams, preset
from ringstep.protocol.marker import PROFILES
from ringstep.protocol.red import MARK_GAP, MARK_GAP_MAX

REFERENCE_RATE_BPS: Final = 10e9
"""Link rate for which DCQCN presets, RED and the marker's window are stated."""
REFERENCE_PACKET_BYTES: Final = 1024
"""Packet in which RED and the marker's thresholds are stated."""
RED_MIN_PACKETS: Final = 50
RED_MAX_PACKETS: Final = 100
RED_P_MAX: Final = 0.2
"""RED as in arXiv:2604.16880, 4.1, for packets of 1 KB."""
HEADER_BYTES: Final = 14 + 20 + 8 + 12 + 4
"""Ethernet, IPv4, UDP, BTH and ICRC around a WRITE's payload."""
MIN_RATE_BPS: Final = 1e6
MAX_RATE_BPS: Final = 1e9
MAX_HOSTS: Final = 64
MAX_SWITCHES: Final = 32
LINK_MARGIN: Final = 1.05
"""The kernel limits a link to its rate times this, so that queues form in the switch, not behind
it, where RED and the marker would not see them."""
_LEAF_MAC: Final = 0x02_00_00_00_10_00
_SPINE_MAC: Final = 0x02_00_00_00_20_00
_HOST_MAC: Final = 0x02_00_00_00_01_00


class Engine(StrEnum):
    """What executes the compiled P4 program."""

    SOFTSWITCH = "softswitch"
    BMV2 = "bmv2"


@dataclass(frozen=True, slots=True)
class HostSite:
    """A host and where it is attached."""

    name: str
    ip: IPv4Address
    mac: int
    leaf: str
    port: int

    @property
    def interface(self) -> str:
        """Name of its interface, inside its namespace."""
        return f"{self.name}-eth0"


@dataclass(frozen=True, slots=True)
class SwitchSite:
    """A switch: its ports and the rate of each link."""

    name: str
    device_id: int
    mac: int
    role: str
    port_rates_bps: dict[int, float]

    def interface(self, port: int) -> str:
        """Name of a port's interface, in the root namespace."""
        return f"{self.name}-eth{port}"


@dataclass(frozen=True, slots=True)
class Cable:
    """A link between two switches, or between a switch and a host (``b_port`` 0)."""

    a: str
    a_port: int
    b: str
    b_port: int
    rate_bps: float


def _need(ok: bool, text: str) -> None:
    if not ok:
        raise ValueError(text)


@dataclass(frozen=True)
class LeafSpine:
    """A leaf-spine fabric: ``hosts`` spread evenly over ``leaves``, each leaf linked to each spine.

    Two further hosts, ``b1`` and ``b2`` on the first and the second leaf, carry background traffic.

    Raises:
        ValueError: a parameter is outside its range; the text names it and what would be right.
    """

    hosts: int = 8
    leaves: int = 4
    spines: int = 2
    rate_bps: float = 50e6
    """Rate of a host's link."""
    oversubscription: float = 2.0
    """What a leaf's hosts send at most over what its uplinks carry."""
    engine: Engine = Engine.SOFTSWITCH
    payload: int = 8192
    """Payload of a full packet, bytes."""
    queue_packets: int = 256
    """Depth of every egress queue."""
    spaced: bool = True
    """Whether marks on packets of jobs are spaced (``ringstep.protocol.red``), as by default."""

    def __post_init__(self) -> None:
        _need(2 <= self.leaves <= MAX_SWITCHES, f"leaves {self.leaves}: must be in 2..32")
        _need(1 <= self.spines <= MAX_SWITCHES, f"spines {self.spines}: must be in 1..32")
        _need(
            self.leaves <= self.hosts <= MAX_HOSTS,
            f"hosts {self.hosts}: must be in {self.leaves}..{MAX_HOSTS}, at least one per leaf",
        )
        _need(
            self.hosts % self.leaves == 0,
            f"hosts {self.hosts}: must be a multiple of the {self.leaves} leaves, so that every "
            f"leaf has as many; {self.hosts - self.hosts % self.leaves} would do",
        )
        _need(
            MIN_RATE_BPS <= self.rate_bps <= MAX_RATE_BPS,
            f"rate {self.rate_bps:g} bit/s: must be in 1M..1G",
        )
        _need(
            0.1 <= self.oversubscription <= 100,
            f"oversubscription {self.oversubscription:g}: must be in 0.1..100",
        )
        _need(
            MIN_RATE_BPS <= self.uplink_bps <= MAX_RATE_BPS,
            f"oversubscription {self.oversubscription:g} makes uplinks of {self.uplink_bps:g} "
            "bit/s; they must be in 1M..1G",
        )
        _need(
            256 <= self.payload <= 8192 and self.payload % 4 == 0,
            f"payload {self.payload}: must be a multiple of 4 in 256..8192 bytes",
        )
        _need(
            8 <= self.queue_packets <= 4096,
            f"queue of {self.queue_packets} packets: must be in 8..4096",
        )

    @property
    def hosts_per_leaf(self) -> int:
        """Hosts of the ring on every leaf."""
        return self.hosts // self.leaves

    @property
    def uplink_bps(self) -> float:
        """Rate of a link between leaf and spine."""
        return self.hosts_per_leaf * self.rate_bps / (self.spines * self.oversubscription)

    @property
    def time_factor(self) -> float:
        """How many times slower than on 10 Gb/s links every timer runs."""
        return REFERENCE_RATE_BPS / self.rate_bps

    @property
    def mark_gap_us(self) -> int:
        """Time between marks on packets of jobs, in the lab's time."""
        return min(round(MARK_GAP * self.time_factor), MARK_GAP_MAX) if self.spaced else 0

    @property
    def frame_bytes(self) -> int:
        """Size of a full packet's frame without what only the first packet of a message carries."""
        return HEADER_BYTES + self.payload

    def packets(self, reference: float) -> int:
        """Return a number of 1 KB packets as a number of this lab's packets, at least 1."""
        return max(1, round(reference * REFERENCE_PACKET_BYTES / self.payload))

    @cached_property
    def host_sites(self) -> dict[str, HostSite]:
        """Hosts by name: those of the ring, leaf by leaf, then the two of the background."""
        sites = {}
        for index in range(self.hosts):
            leaf, place = divmod(index, self.hosts_per_leaf)
            site = _host(f"h{index + 1}", index + 1, leaf + 1, place + 1)
            sites[site.name] = site
        for number in (1, 2):
            site = _host(f"b{number}", 200 + number, number, self.hosts_per_leaf + 1)
            sites[site.name] = site
        return sites

    @property
    def ring_hosts(self) -> tuple[str, ...]:
        """Hosts of the ring, leaf by leaf."""
        return tuple(name for name in self.host_sites if name.startswith("h"))

    def striped_ring(self) -> tuple[str, ...]:
        """Return the ring order in which every hop leaves its leaf."""
        names = self.ring_hosts
        return tuple(
            names[leaf * self.hosts_per_leaf + place]
            for place in range(self.hosts_per_leaf)
            for leaf in range(self.leaves)
        )

    def uplink_port(self, spine: int) -> int:
        """Return a leaf's port to a spine (1..)."""
        return self.hosts_per_leaf + 1 + spine

    @cached_property
    def cables(self) -> tuple[Cable, ...]:
        """All links."""
        cables = [
            Cable(site.leaf, site.port, site.name, 0, self.rate_bps)
            for site in self.host_sites.values()
        ]
        cables += [
            Cable(f"leaf{leaf}", self.uplink_port(spine), f"spine{spine}", leaf, self.uplink_bps)
            for leaf in range(1, self.leaves + 1)
            for spine in range(1, self.spines + 1)
        ]
        return tuple(cables)

    @cached_property
    def switch_sites(self) -> dict[str, SwitchSite]:
        """Switches by name: leaves, then spines."""
        leaves = range(1, self.leaves + 1)
        spines = range(1, self.spines + 1)
        found = [SwitchSite(f"leaf{n}", n, _LEAF_MAC | n, "tor", {}) for n in leaves]
        found += [SwitchSite(f"spine{n}", 100 + n, _SPINE_MAC | n, "spine", {}) for n in spines]
        sites = {site.name: site for site in found}
        for cable in self.cables:
            sites[cable.a].port_rates_bps[cable.a_port] = cable.rate_bps
            if cable.b in sites:
                sites[cable.b].port_rates_bps[cable.b_port] = cable.rate_bps
        return sites

    @property
    def root_interfaces(self) -> tuple[str, ...]:
        """Names of the interfaces in the root namespace: the switches' ports."""
        return tuple(
            switch.interface(port)
            for switch in self.switch_sites.values()
            for port in switch.port_rates_bps
        )

    def gateway_mac(self, host: str) -> int:
        """Return the MAC address that a host sends to: its leaf's."""
        return self.switch_sites[self.host_sites[host].leaf].mac

    def topology_toml(self, p4runtime: dict[str, str]) -> str:
        """Return the topology file; ``p4runtime`` holds the switches' addresses by name."""
        return "\n".join(self._toml(p4runtime)) + "\n"

    def _toml(self, p4runtime: dict[str, str]) -> Iterator[str]:
        yield "[red]"
        yield f"q_min = {self.packets(RED_MIN_PACKETS)}"
        yield f"q_max = {self.packets(RED_MAX_PACKETS)}"
        yield f"p_max = {RED_P_MAX}"
        yield f'mark_gap = "{self.mark_gap_us}us"' if self.spaced else 'mark_gap = "off"'
        for switch in self.switch_sites.values():
            yield from ("", "[[switch]]", f'name = "{switch.name}"')
            yield f"device_id = {switch.device_id}"
            yield f'mac = "{format_mac(switch.mac)}"'
            yield f'role = "{switch.role}"'
            if switch.name in p4runtime:
                yield f'p4runtime = "{p4runtime[switch.name]}"'
        for host in self.host_sites.values():
            yield from ("", "[[host]]", f'name = "{host.name}"', f'ip = "{host.ip}"')
            yield f'mac = "{format_mac(host.mac)}"'
        for cable in self.cables:
            b = f"{cable.b}:{cable.b_port}" if cable.b_port else cable.b
            yield from ("", "[[link]]", f'a = "{cable.a}:{cable.a_port}"', f'b = "{b}"')
            yield f'rate = "{cable.rate_bps / 1e6:g}M"'

    def dcqcn(self, name: str) -> DcqcnParams:
        """Return a DCQCN preset in the lab's time.

        Raises:
            ValueError: no such preset; the text names those there are.
        """
        return preset(name, REFERENCE_RATE_BPS).scaled(self.time_factor, 1 / self.time_factor)

    def marker(self, profile: str) -> MarkerSetting:
        """Return a profile's parameters in the lab's time and packets."""
        base = PROFILES[profile].params
        return MarkerSetting(
            profile=profile,
            t_win_us=round(base.t_win * self.time_factor),
            n_sample=self.packets(base.n_sample),
            n_warmup=self.packets(base.n_warmup),
            q_gate=None if base.q_gate is None else self.packets(base.q_gate),
        )

    def to_json(self) -> dict[str, Any]:
        """Return every parameter, derived ones included."""
        shown = asdict(self)
        shown["engine"] = str(self.engine)
        shown["uplink_bps"] = self.uplink_bps
        shown["time_factor"] = self.time_factor
        shown["red_packets"] = [self.packets(RED_MIN_PACKETS), self.packets(RED_MAX_PACKETS)]
        shown["red_p_max"] = RED_P_MAX
        shown["mark_gap_us"] = self.mark_gap_us
        return shown


@dataclass(frozen=True, slots=True)
class MarkerSetting:
    """The marker's parameters in the lab's time and packets."""

    profile: str
    t_win_us: int
    n_sample: int
    n_warmup: int
    q_gate: int | None


def _host(name: str, number: int, leaf: int, port: int) -> HostSite:
    address = IPv4Address(f"10.0.{leaf}.{number}")
    return HostSite(name, address, _HOST_MAC | number, f"leaf{leaf}", port)
