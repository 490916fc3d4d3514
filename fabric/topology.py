"""The topology file: TOML in, a checked :class:`~ringstep.fabric.model.Topology` out.

Every problem is reported at once, each with file, line, key and what would be right.
"""

from __future__ import annotations

import difflib
import re
import zlib
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ringstep.fabric.model import (
    MAX_PORT,
    MIN_PORT,
    Endpoint,
    Host,
    IPAddress,
    IPNetwork,
    Link,
    Red,
    Switch,
    Topology,
)
from ringstep.fabric.tomlfile import (
    FileError,
    Location,
    Problems,
    TomlTable,
    parse_toml,
    path_text,
    read_text,
)
from ringstep.fabric.units import format_mac, parse_delay_ns, parse_mac, parse_rate_bps
from ringstep.protocol.red import MARK_GAP, MARK_GAP_MAX

_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_.-]{0,62}$")
_TARGET = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})$")
_MAX_DEVICE_ID = (1 << 64) - 1


class TopologyError(FileError):
    """A topology file that cannot be used; ``problems`` holds one line per mistake."""


def _parse_name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.match(value):
        raise ValueError(
            f"{value!r} is not a name; start with a letter, then letters, digits, '_', '-' or '.', "
            'at most 63 characters, such as "tor1"'
        )
    return value


def parse_target(value: object) -> str:
    """Return a gRPC target ``HOST:PORT`` unchanged if it is one.

    Raises:
        ValueError: no host, no port, or a port outside 1..65535.
    """
    match = _TARGET.match(value) if isinstance(value, str) else None
    if match is None or not 1 <= int(match.group(2)) <= 65535:
        raise ValueError(
            f'{value!r} is not HOST:PORT; write for example "127.0.0.1:9559" or "[::1]:9559"'
        )
    return match.group(0)


def _parse_endpoint(value: object) -> Endpoint:
    node, colon, port = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not node:
        raise ValueError(f'{value!r} is not an end of a link; write "tor1:1" or "h1"')
    _parse_name(node)
    if not colon:
        return Endpoint(node)
    if not port.isdecimal() or not MIN_PORT <= int(port) <= MAX_PORT:
        raise ValueError(
            f"{value!r} names port {port!r}; a switch port is a number {MIN_PORT}..{MAX_PORT}"
        )
    return Endpoint(node, int(port))


def _parse_ips(value: object) -> tuple[IPAddress, ...]:
    items = value if isinstance(value, list) else [value]
    ips: list[IPAddress] = []
    for item in items:
        try:
            ip = ip_address(item if isinstance(item, str) else "")
        except ValueError:
            raise ValueError(
                f'{item!r} is not an IP address; write "10.0.1.1" or ["10.0.1.1", "fd00::1"]'
            ) from None
        if ip.is_multicast or ip.is_unspecified or ip.is_loopback:
            raise ValueError(f"{item!r} cannot be a host's address; give a unicast address")
        if ip.version == 6 and ip.ipv4_mapped is not None:
            raise ValueError(f'{item!r} is an IPv4 address in disguise; write "{ip.ipv4_mapped}"')
        ips.append(ip)
    if not ips:
        raise ValueError('a host needs at least one address, such as "10.0.1.1"')
    if len({ip.version for ip in ips}) != len(ips):
        raise ValueError(
            "a host has at most one IPv4 and one IPv6 address; make a second interface a host "
            "of its own"
        )
    return tuple(ips)


def _parse_networks(value: object) -> tuple[IPNetwork, ...]:
    items = value if isinstance(value, list) else [value]
    networks: list[IPNetwork] = []
    for item in items:
        try:
            if not isinstance(item, str) or "/" not in item:
                raise ValueError("write an address and a prefix length")
            networks.append(ip_network(item))
        except ValueError as error:
            raise ValueError(f'{item!r} is not a subnet ({error}); write "10.0.1.0/24"') from None
    return tuple(networks)


Name = Annotated[str, BeforeValidator(_parse_name)]


def _parse_mark_gap(item: object) -> int:
    """Return microseconds; 0: marks on packets of jobs are not spaced."""
    if item == "off":
        return 0
    ns = parse_delay_ns(item)
    if ns % 1000 or not 0 < ns // 1000 <= MARK_GAP_MAX:
        raise ValueError(
            f'{item!r} is no gap; write whole microseconds up to "{MARK_GAP_MAX}us", or "off"'
        )
    return ns // 1000


class _RedTable(TomlTable):
    enabled: Annotated[bool, Field(strict=True)] = True
    q_min: Annotated[int, Field(strict=True, ge=0, lt=1 << 19)] = 40
    q_max: Annotated[int, Field(strict=True, gt=0, lt=1 << 19)] = 160
    p_max: Annotated[float, Field(gt=0, le=1)] = 0.2
    mark_gap: Annotated[int, BeforeValidator(_parse_mark_gap)] = MARK_GAP


class _FabricTable(TomlTable):
    name: Name = "fabric"


class _SwitchTable(TomlTable):
    name: Name
    device_id: Annotated[int, Field(strict=True, ge=1, le=_MAX_DEVICE_ID)]
    mac: Annotated[int, BeforeValidator(parse_mac)]
    role: Literal["tor", "spine"]
    p4runtime: Annotated[str, BeforeValidator(parse_target)] | None = None
    ecmp_seed: Annotated[int, Field(strict=True, ge=0, lt=1 << 32)] | None = None
    subnets: Annotated[tuple[IPNetwork, ...], BeforeValidator(_parse_networks)] = ()


class _HostTable(TomlTable):
    name: Name
    ip: Annotated[tuple[IPAddress, ...], BeforeValidator(_parse_ips)]
    mac: Annotated[int, BeforeValidator(parse_mac)]


class _LinkTable(TomlTable):
    a: Annotated[Endpoint, BeforeValidator(_parse_endpoint)]
    b: Annotated[Endpoint, BeforeValidator(_parse_endpoint)]
    rate: Annotated[int, BeforeValidator(parse_rate_bps)]
    delay: Annotated[int, BeforeValidator(parse_delay_ns)] = 0
    red: _RedTable | None = None


class _File(TomlTable):
    fabric: _FabricTable = _FabricTable()
    red: _RedTable = _RedTable()
    switch: Annotated[list[_SwitchTable], Field(min_length=1)]
    host: tuple[_HostTable, ...] = ()
    link: tuple[_LinkTable, ...] = ()


_EXAMPLES = {
    "name": 'name = "tor1"',
    "device_id": "device_id = 1",
    "mac": 'mac = "02:00:00:00:00:01"',
    "role": 'role = "tor"',
    "ip": 'ip = "10.0.1.1"',
    "a": 'a = "tor1:1"',
    "b": 'b = "h1"',
    "rate": 'rate = "10G"',
    "switch": "at least one [[switch]] table",
}


def load_topology(path: Path) -> Topology:
    """Read and check a topology file.

    Raises:
        TopologyError: the file cannot be read, is not TOML, or describes no usable fabric.
    """
    return parse_topology(read_text(path, "a topology file", TopologyError), source=str(path))


def parse_topology(text: str, source: str = "<topology>") -> Topology:
    """Check TOML text and build the fabric it describes; ``source`` names it in messages.

    Raises:
        TopologyError: not TOML, or no usable fabric; all problems found are listed.
    """
    file = parse_toml(text, source, _File, _EXAMPLES, TopologyError)
    problems = Problems(text, source, TopologyError)
    _check_red(file, problems)
    _check_nodes(file, problems)
    _check_links(file, problems)
    problems.raise_if_any()
    topology = _build(file, source)
    _check_subnets(file, topology, problems)
    problems.raise_if_any()
    return topology


def _check_red(file: _File, problems: Problems) -> None:
    tables: list[tuple[Location, _RedTable]] = [(("red",), file.red)]
    tables += [
        (("link", index, "red"), _merged_red(file.red, link.red))
        for index, link in enumerate(file.link)
        if link.red is not None
    ]
    for location, red in tables:
        if red.q_min >= red.q_max:
            problems.add(
                location,
                f"q_min {red.q_min} is not below q_max {red.q_max}; RED marks from q_min packets "
                "on and marks all above q_max",
            )


def _check_nodes(file: _File, problems: Problems) -> None:
    names: dict[str, Location] = {}
    device_ids: dict[tuple[str, int], str] = {}
    macs: dict[int, str] = {}
    ips: dict[IPAddress, str] = {}
    nodes: list[tuple[Location, _SwitchTable | _HostTable]] = [
        (("switch", index), switch) for index, switch in enumerate(file.switch)
    ]
    nodes += [(("host", index), host) for index, host in enumerate(file.host)]
    for location, node in nodes:
        if node.name in names:
            problems.add(
                (*location, "name"),
                f"{node.name!r} is already the name of {path_text(names[node.name])}; every switch "
                "and host needs a name of its own",
            )
        names.setdefault(node.name, location)
        if node.mac in macs:
            problems.add(
                (*location, "mac"),
                f"{format_mac(node.mac)} is already the MAC address of {macs[node.mac]!r}; give "
                f"{node.name!r} its own",
            )
        macs.setdefault(node.mac, node.name)
        if isinstance(node, _SwitchTable):
            if node.p4runtime is None:
                continue
            identity = (node.p4runtime, node.device_id)
            if identity in device_ids:
                problems.add(
                    (*location, "device_id"),
                    f"{node.device_id} at {node.p4runtime} is already {device_ids[identity]!r}; "
                    "two switches behind one address need different device ids",
                )
            device_ids.setdefault(identity, node.name)
            continue
        for ip in node.ip:
            if ip in ips:
                problems.add(
                    (*location, "ip"),
                    f"{ip} is already the address of {ips[ip]!r}; give {node.name!r} its own",
                )
            ips.setdefault(ip, node.name)


def _check_links(file: _File, problems: Problems) -> None:
    switches = {switch.name for switch in file.switch}
    hosts = {host.name for host in file.host}
    known = sorted(switches | hosts)
    used: dict[Endpoint, int] = {}
    linked: set[str] = set()
    for index, link in enumerate(file.link):
        for key, end in (("a", link.a), ("b", link.b)):
            location: Location = ("link", index, key)
            if end.node in switches:
                if not end.port:
                    problems.add(
                        location,
                        f"switch {end.node!r} without a port; write for example "
                        f'{key} = "{end.node}:1"',
                    )
                elif end in used:
                    problems.add(
                        location,
                        f"port {end} is already used by link[{used[end] + 1}]; a port takes one "
                        "link",
                    )
                else:
                    used[end] = index
            elif end.node in hosts:
                if end.port:
                    problems.add(
                        location,
                        f"host {end.node!r} with a port; hosts have one interface, write "
                        f'{key} = "{end.node}"',
                    )
                linked.add(end.node)
            else:
                close = difflib.get_close_matches(end.node, known, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                problems.add(
                    location,
                    f"{end.node!r} is neither a switch nor a host of this file; {hint}"
                    f"known names: {', '.join(known) or 'none'}",
                )
        if link.a.node in hosts and link.b.node in hosts:
            problems.add(
                ("link", index),
                f"joins two hosts, {link.a.node!r} and {link.b.node!r}; one end must be a switch "
                "port",
            )
        if link.a.node == link.b.node and link.a.node in switches:
            problems.add(
                ("link", index),
                f"joins {link.a.node!r} to itself; the ends must be different nodes",
            )
    for index, host in enumerate(file.host):
        if host.name not in linked:
            problems.add(
                ("host", index),
                f"{host.name!r} has no link; add a [[link]] from a switch port, such as "
                f'a = "{file.switch[0].name}:1", b = "{host.name}"',
            )


def _check_subnets(file: _File, topology: Topology, problems: Problems) -> None:
    """A subnet stands for its switch in everybody's routes, so its hosts must be there."""
    declared = list(_declared_subnets(file))
    for position, (location, network, switch) in enumerate(declared):
        for _, other, owner in declared[:position]:
            if network.version == other.version and network.overlaps(other):
                problems.add(
                    location,
                    f"{network} overlaps {other} of {owner!r}; switches' subnets must be disjoint",
                )
        for index, host in enumerate(file.host):
            inside = [ip for ip in host.ip if ip in network]
            homes = {end.node for end in topology.attachments(host.name)}
            if inside and homes != {switch}:
                problems.add(
                    ("host", index, "ip"),
                    f"{inside[0]} lies in {network} of {switch!r}, but {host.name!r} is linked to "
                    f"{', '.join(sorted(homes))}; move the link, or take an address outside it",
                )


def _declared_subnets(file: _File) -> Iterator[tuple[Location, IPNetwork, str]]:
    for index, switch in enumerate(file.switch):
        for network in switch.subnets:
            yield ("switch", index, "subnets"), network, switch.name


def _build(file: _File, source: str) -> Topology:
    switches = {
        table.name: Switch(
            name=table.name,
            device_id=table.device_id,
            mac=table.mac,
            role=table.role,
            p4runtime=table.p4runtime,
            # Different seeds keep one hash from steering a flow alike at every tier.
            ecmp_seed=(
                zlib.crc32(table.name.encode()) if table.ecmp_seed is None else table.ecmp_seed
            ),
            subnets=table.subnets,
        )
        for table in file.switch
    }
    hosts = {table.name: Host(table.name, table.mac, table.ip) for table in file.host}
    links = tuple(
        Link(table.a, table.b, table.rate, table.delay, _red(_merged_red(file.red, table.red)))
        for table in file.link
    )
    return Topology(file.fabric.name, switches, hosts, links, source)


def _merged_red(default: _RedTable, own: _RedTable | None) -> _RedTable:
    """A link's RED keys win; what it leaves out comes from [red]."""
    if own is None:
        return default
    return default.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})


def _red(table: _RedTable) -> Red | None:
    if not table.enabled:
        return None
    return Red(table.q_min, table.q_max, table.p_max, table.mark_gap)
