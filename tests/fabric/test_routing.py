"""Routes: all equal-cost next hops, host routes or subnets, the same every time."""

from __future__ import annotations

from ipaddress import ip_network

from ringstep.fabric import Topology, parse_topology
from ringstep.fabric.routing import Hop, route_tables


def ports(topology: Topology, switch: str, prefix: str) -> list[int]:
    table = route_tables(topology)[switch].routes
    return [hop.port for hop in table[ip_network(prefix)]]


def test_remote_hosts_are_reached_over_all_spines(two_tier: Topology) -> None:
    tables = route_tables(two_tier)
    assert tables["tor1"].routes[ip_network("10.0.2.3/32")] == (
        Hop(11, 0x020000001100),
        Hop(12, 0x020000001200),
    )
    assert tables["tor1"].routes[ip_network("fd00:2::3/128")] == (
        Hop(11, 0x020000001100),
        Hop(12, 0x020000001200),
    )


def test_local_hosts_are_reached_at_their_own_address(two_tier: Topology) -> None:
    tables = route_tables(two_tier)
    assert tables["tor2"].routes[ip_network("10.0.2.4/32")] == (Hop(2, 0x020000010004),)
    assert tables["spine1"].routes[ip_network("10.0.1.1/32")] == (Hop(1, 0x020000000100),)


def test_every_switch_has_every_address_and_no_other(two_tier: Topology) -> None:
    for table in route_tables(two_tier).values():
        assert [str(network) for network in table.routes] == [
            "10.0.1.1/32",
            "10.0.1.2/32",
            "10.0.2.3/32",
            "10.0.2.4/32",
            "fd00:1::1/128",
            "fd00:1::2/128",
            "fd00:2::3/128",
        ]


def test_order_of_links_in_the_file_does_not_matter(two_tier_text: str) -> None:
    head, *links = two_tier_text.split("[[link]]")
    backwards = "[[link]]".join([head, *reversed(links)])
    expected = route_tables(parse_topology(two_tier_text))
    assert route_tables(parse_topology(backwards)) == expected


def test_declared_subnets_replace_host_routes_elsewhere(two_tier_text: str) -> None:
    text = two_tier_text.replace(
        "device_id = 2\n", 'device_id = 2\nsubnets = ["10.0.2.0/24", "fd00:2::/64"]\n'
    )
    topology = parse_topology(text)
    tables = route_tables(topology)
    assert [str(network) for network in tables["tor1"].routes] == [
        "10.0.1.1/32",
        "10.0.1.2/32",
        "10.0.2.0/24",
        "fd00:1::1/128",
        "fd00:1::2/128",
        "fd00:2::/64",
    ]
    assert ports(topology, "tor1", "10.0.2.0/24") == [11, 12]
    assert ip_network("10.0.2.3/32") in tables["tor2"].routes
    assert ip_network("10.0.2.0/24") not in tables["tor2"].routes
    h3 = topology.hosts["h3"]
    assert [hop.port for hop in tables["tor1"].towards(h3)] == [11, 12]


def test_host_of_another_island_has_no_route(two_tier_text: str) -> None:
    island = (
        '[[switch]]\nname = "lone"\ndevice_id = 9\nrole = "tor"\nmac = "02:00:00:00:09:00"\n'
        '[[host]]\nname = "h9"\nip = "10.0.9.9"\nmac = "02:00:00:01:00:09"\n'
        '[[link]]\na = "lone:1"\nb = "h9"\nrate = "1G"\n'
    )
    topology = parse_topology(two_tier_text + island)
    tables = route_tables(topology)
    assert tables["tor1"].towards(topology.hosts["h9"]) == ()
    assert [str(network) for network in tables["lone"].routes] == ["10.0.9.9/32"]


def test_host_with_two_links_is_reached_over_both(two_tier_text: str) -> None:
    second = '[[link]]\na = "tor2:3"\nb = "h1"\nrate = "10G"\n'
    topology = parse_topology(two_tier_text + second)
    assert ports(topology, "spine1", "10.0.1.1/32") == [1, 2]
    assert ports(topology, "tor2", "10.0.1.1/32") == [3]
