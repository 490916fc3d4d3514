"""A leaf-spine fabric, as a topology file and as what follows from it.

What follows is worked out here once more, by the shape of the fabric alone.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import cached_property

_UPLINK = 200
"""Ports of a ToR from here on lead to spines, those below to hosts."""
RED = {"q_min": 40, "q_max": 160}


@dataclass(frozen=True)
class LeafSpine:
    """``tors`` racks with ``hosts`` hosts each; every ToR has one link to each of ``spines``."""

    tors: int = 2
    spines: int = 2
    hosts: int = 8

    def __post_init__(self) -> None:
        if not (1 <= self.tors <= 199 and 0 <= self.spines <= 200 and 2 <= self.hosts < _UPLINK):
            raise ValueError(f"{self}: at most 199 ToRs, 200 spines, 2 to 199 hosts per rack")
        if self.tors > 1 and not self.spines:
            raise ValueError(f"{self}: racks without a spine are not connected")

    @property
    def tor_names(self) -> list[str]:
        return [f"tor{number}" for number in range(1, self.tors + 1)]

    @property
    def spine_names(self) -> list[str]:
        return [f"spine{number}" for number in range(1, self.spines + 1)]

    @property
    def switches(self) -> list[str]:
        return self.tor_names + self.spine_names

    @cached_property
    def host_names(self) -> list[str]:
        return [host for tor in self.tor_names for host in self.rack(tor)]

    def rack(self, tor: str) -> list[str]:
        """Hosts of a ToR."""
        return [f"h{tor[3:]}x{number}" for number in range(1, self.hosts + 1)]

    def tor_of(self, host: str) -> str:
        return f"tor{host[1:].partition('x')[0]}"

    def device_id(self, switch: str) -> int:
        return self.switches.index(switch) + 1

    def seed(self, switch: str) -> int:
        """``ecmp_seed`` of a switch."""
        return 1000 + self.device_id(switch)

    def address(self, host: str) -> int:
        """IPv4 address of a host, as a number."""
        rack, _, number = host[1:].partition("x")
        return int(ipaddress.IPv4Address(f"10.0.{rack}.{number}"))

    def mapped(self, host: str) -> int:
        """Address of a host as rules write it: 128 bits, IPv4 mapped into IPv6."""
        return 0xFFFF << 32 | self.address(host)

    def ports_towards(self, switch: str, host: str) -> set[int]:
        """Ports by which packets for ``host`` leave ``switch``."""
        home = self.tor_of(host)
        if switch == home:
            return {int(host.partition("x")[2])}
        if switch.startswith("tor"):
            return {_UPLINK + number for number in range(1, self.spines + 1)}
        return {int(home[3:])}

    def crossed(self, src: str, dst: str) -> list[str]:
        """Switches that packets of an edge may cross."""
        first, last = self.tor_of(src), self.tor_of(dst)
        return [first] if first == last else [first, *self.spine_names, last]

    def peer(self, switch: str, port: int) -> str:
        """The switch or host at the other end of a port."""
        if switch.startswith("spine"):
            return f"tor{port}"
        return f"spine{port - _UPLINK}" if port > _UPLINK else f"h{switch[3:]}x{port}"

    def ports(self, switch: str) -> set[int]:
        """All ports of a switch that have a link."""
        if switch.startswith("spine"):
            return set(range(1, self.tors + 1))
        uplinks = range(_UPLINK + 1, _UPLINK + self.spines + 1)
        return set(range(1, self.hosts + 1)) | set(uplinks)

    def toml(self, addresses: dict[str, str] | None = None) -> str:
        """Return the topology file; ``addresses`` gives P4Runtime addresses by switch."""
        known = addresses or {}
        lines = [
            f"[red]\nq_min = {RED['q_min']}\nq_max = {RED['q_max']}\np_max = 0.2\n",
        ]
        for name in self.switches:
            number = self.device_id(name)
            lines.append(
                f'[[switch]]\nname = "{name}"\ndevice_id = {number}\n'
                f'mac = "02:00:00:01:{number >> 8:02x}:{number & 255:02x}"\n'
                f'role = "{"tor" if name.startswith("tor") else "spine"}"\n'
                f"ecmp_seed = {self.seed(name)}\n"
                + (f'p4runtime = "{known[name]}"\n' if name in known else "")
            )
        for host in self.host_names:
            address = self.address(host)
            lines.append(
                f'[[host]]\nname = "{host}"\nip = "{ipaddress.IPv4Address(address)}"\n'
                f'mac = "02:01:{address >> 24 & 255:02x}:{address >> 16 & 255:02x}:'
                f'{address >> 8 & 255:02x}:{address & 255:02x}"\n'
            )
        for tor in self.tor_names:
            ends = {port: self.peer(tor, port) for port in sorted(self.ports(tor))}
            for port, peer in ends.items():
                end = f"{peer}:{tor[3:]}" if peer.startswith("spine") else peer
                lines.append(f'[[link]]\na = "{tor}:{port}"\nb = "{end}"\nrate = "100G"\n')
        return "\n".join(lines)
