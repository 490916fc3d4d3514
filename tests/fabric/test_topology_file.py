"""What a topology file may say, and what is said about one that is wrong."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from ringstep.fabric import Endpoint, Red, Topology, TopologyError, load_topology, parse_topology
from ringstep.fabric.model import MAX_PORT
from ringstep.fabric.units import format_mac, format_rate, parse_delay_ns, parse_rate_bps
from ringstep.protocol.limits import CPU_PORT
from ringstep.protocol.red import RedParams


def problems(text: str) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        parse_topology(text, "f.toml")
    return list(caught.value.problems)


def test_front_panel_ports_end_below_the_cpu_port() -> None:
    assert MAX_PORT == CPU_PORT - 1


def test_switches_hosts_and_links_are_found_by_name_port_and_address(two_tier: Topology) -> None:
    assert list(two_tier.switches) == ["tor1", "tor2", "spine1", "spine2"]
    assert two_tier.switches["tor1"].mac == 0x020000000100
    assert two_tier.switches["tor2"].p4runtime is None
    assert two_tier.attachments("h4") == (Endpoint("tor2", 2),)
    assert [host.name for host in two_tier.attached_hosts("tor1")] == ["h1", "h2"]
    assert list(two_tier.switch_neighbours("spine1")) == [(1, "tor1"), (2, "tor2")]
    owner = two_tier.host_by_ip(ip_address("fd00:2::3"))
    assert owner is not None
    assert owner.name == "h3"
    assert two_tier.host_by_ip(ip_address("10.9.9.9")) is None
    far, link = two_tier.ports("tor1")[1]
    assert (str(far), link.rate_bps, link.delay_ns) == ("h1", 10_000_000_000, 1000)


def test_a_links_red_keys_win_over_the_fabrics(two_tier: Topology) -> None:
    assert two_tier.ports("tor1")[1][1].red == Red()
    assert two_tier.ports("tor1")[11][1].red == Red(100, 400, 0.2)
    assert two_tier.ports("tor1")[12][1].red is None


@pytest.mark.parametrize(("gap", "us"), [('"off"', 0), ('"50us"', 50), ("65535000", 65535)])
def test_marks_may_be_further_apart_or_not_spaced(gap: str, us: int) -> None:
    link = f'[[link]]\na = "s1:1"\nb = "h1"\nrate = "10G"\nred = {{ mark_gap = {gap} }}\n'
    red = parse_topology(SWITCH + HOST + link).ports("s1")[1][1].red
    assert red is not None
    assert red.params == RedParams(gap=us)


@pytest.mark.parametrize("gap", ['"0us"', '"1500ns"', '"66ms"', '"soon"', "true"])
def test_a_gap_that_no_table_holds_is_refused(gap: str) -> None:
    with pytest.raises(
        TopologyError, match=r"f\.toml:7: red\.mark_gap: .*(write whole micro|delay)"
    ):
        parse_topology(f"{SWITCH}[red]\nmark_gap = {gap}\n", "f.toml")


def test_every_switch_has_another_ecmp_seed_unless_told(two_tier_text: str) -> None:
    topology = parse_topology(two_tier_text)
    assert len({switch.ecmp_seed for switch in topology.switches.values()}) == 4
    text = two_tier_text.replace("device_id = 1\n", "device_id = 1\necmp_seed = 7\n", 1)
    assert parse_topology(text).switches["tor1"].ecmp_seed == 7


@pytest.mark.parametrize(
    ("text", "bps"),
    [("10G", 10**10), ("40 Mbps", 4 * 10**7), ("1.5G", 15 * 10**8), (1000, 1000), ("9600", 9600)],
)
def test_rates(text: object, bps: int) -> None:
    assert parse_rate_bps(text) == bps


@pytest.mark.parametrize(
    ("text", "ns"), [("1us", 1000), ("500ns", 500), ("0.5ms", 500_000), ("1s", 10**9), (7, 7)]
)
def test_delays(text: object, ns: int) -> None:
    assert parse_delay_ns(text) == ns


def test_short_forms_of_rates_and_addresses() -> None:
    assert format_rate(10**10) == "10G"
    assert format_rate(25 * 10**8) == "2.5G"
    assert format_mac(0x0200000000FF) == "02:00:00:00:00:ff"


SWITCH = '[[switch]]\nname = "s1"\ndevice_id = 1\nrole = "tor"\nmac = "02:00:00:00:00:01"\n'
HOST = '[[host]]\nname = "h1"\nip = "10.0.0.1"\nmac = "02:00:00:00:00:11"\n'
LINK = '[[link]]\na = "s1:1"\nb = "h1"\nrate = "10G"\n'


def test_every_mistake_of_the_shape_is_reported_with_line_and_remedy() -> None:
    text = (
        '[[switch]]\nname = "s1"\ndevice_id = 0\nrole = "leaf"\nmac = "2"\ncolour = "red"\n'
        '[[host]]\nname = "1h"\nip = "10.0.0.300"\n'
        '[[link]]\na = "s1:510"\nb = "h1"\nrate = "0G"\ndelay = "soon"\nred = { q_mim = 1 }\n'
        "[fabrics]\n"
    )
    assert problems(text) == [
        "f.toml:3: switch[1].device_id: 0 is not usable: input should be greater than or equal "
        "to 1",
        "f.toml:4: switch[1].role: 'leaf' is not one of 'tor' or 'spine'",
        "f.toml:5: switch[1].mac: '2' is not a MAC address; write six pairs of hexadecimal "
        'digits, such as "02:00:00:00:00:01"',
        "f.toml:6: switch[1].colour: unknown key; known keys here: name, device_id, mac, role, "
        "p4runtime, ecmp_seed, subnets",
        "f.toml:7: host[1]: 'mac' is missing; write for example mac = \"02:00:00:00:00:01\"",
        "f.toml:8: host[1].name: '1h' is not a name; start with a letter, then letters, digits, "
        "'_', '-' or '.', at most 63 characters, such as \"tor1\"",
        "f.toml:9: host[1].ip: '10.0.0.300' is not an IP address; write \"10.0.1.1\" or "
        '["10.0.1.1", "fd00::1"]',
        "f.toml:11: link[1].a: 's1:510' names port '510'; a switch port is a number 1..509",
        "f.toml:13: link[1].rate: '0G' is not above zero; a link needs a rate, such as \"10G\"",
        "f.toml:14: link[1].delay: 'soon' is not a delay; write a number with ns, us, ms or s, "
        'such as "1us", or a whole number of nanoseconds',
        "f.toml:15: link[1].red.q_mim: unknown key; did you mean 'q_min'? known keys here: "
        "enabled, q_min, q_max, p_max, mark_gap",
        "f.toml:16: fabrics: unknown key; did you mean 'fabric'? known keys here: fabric, red, "
        "switch, host, link",
    ]


CASES = {
    "not TOML": (
        '[[switch]]\nname = "a\n',
        "f.toml:2:10: not TOML: Illegal character '\\n'",
    ),
    "no switch": (
        "[fabric]\n",
        "f.toml: 'switch' is missing; write for example at least one [[switch]] table",
    ),
    "one name twice": (
        SWITCH + HOST.replace('"h1"', '"s1"') + LINK.replace('"h1"', '"s1"'),
        "f.toml:7: host[1].name: 's1' is already the name of switch[1]; every switch and host "
        "needs a name of its own",
    ),
    "one address twice": (
        SWITCH + HOST + HOST.replace("h1", "h2").replace(":11", ":12") + LINK
        + LINK.replace("s1:1", "s1:2").replace("h1", "h2"),
        "f.toml:12: host[2].ip: 10.0.0.1 is already the address of 'h1'; give 'h2' its own",
    ),
    "one MAC twice": (
        SWITCH + HOST.replace("00:11", "00:01") + LINK,
        "f.toml:9: host[1].mac: 02:00:00:00:00:01 is already the MAC address of 's1'; give 'h1' "
        "its own",
    ),
    "dangling link": (
        SWITCH + HOST + LINK + LINK.replace("s1:1", "s2:1"),
        "f.toml:15: link[2].a: 's2' is neither a switch nor a host of this file; "
        "known names: h1, s1",
    ),
    "port used twice": (
        SWITCH + HOST + HOST.replace("h1", "h2").replace(":11", ":12").replace("0.1", "0.2")
        + LINK + LINK.replace("h1", "h2"),
        "f.toml:19: link[2].a: port s1:1 is already used by link[1]; a port takes one link",
    ),
    "host without link": (
        SWITCH + HOST,
        "f.toml:6: host[1]: 'h1' has no link; add a [[link]] from a switch port, such as "
        'a = "s1:1", b = "h1"',
    ),
    "two hosts linked": (
        SWITCH + HOST + LINK + HOST.replace("h1", "h2").replace(":11", ":12").replace("0.1", "0.2")
        + LINK.replace("s1:1", "h2"),
        "f.toml:18: link[2]: joins two hosts, 'h2' and 'h1'; one end must be a switch port",
    ),
    "switch without port": (
        SWITCH + HOST + LINK.replace("s1:1", "s1"),
        "f.toml:11: link[1].a: switch 's1' without a port; write for example a = \"s1:1\"",
    ),
    "host with port": (
        SWITCH + HOST + LINK.replace('"h1"', '"h1:3"'),
        "f.toml:12: link[1].b: host 'h1' with a port; hosts have one interface, write b = \"h1\"",
    ),
    "switch linked to itself": (
        SWITCH + '[[link]]\na = "s1:1"\nb = "s1:2"\nrate = "1G"\n',
        "f.toml:6: link[1]: joins 's1' to itself; the ends must be different nodes",
    ),
    "RED upside down": (
        SWITCH + "[red]\nq_min = 200\n",
        "f.toml:6: red: q_min 200 is not below q_max 160; RED marks from q_min packets on and "
        "marks all above q_max",
    ),
    "bad P4Runtime address": (
        SWITCH + 'p4runtime = "localhost"\n',
        "f.toml:6: switch[1].p4runtime: 'localhost' is not HOST:PORT; write for example "
        '"127.0.0.1:9559" or "[::1]:9559"',
    ),
    "one device twice": (
        SWITCH + 'p4runtime = "127.0.0.1:1"\n'
        + SWITCH.replace('"s1"', '"s2"').replace(":01", ":02") + 'p4runtime = "127.0.0.1:1"\n',
        "f.toml:9: switch[2].device_id: 1 at 127.0.0.1:1 is already 's1'; two switches behind one "
        "address need different device ids",
    ),
    "subnet with host bits": (
        SWITCH + 'subnets = ["10.0.0.1/24"]\n',
        "f.toml:6: switch[1].subnets: '10.0.0.1/24' is not a subnet (10.0.0.1/24 has host bits "
        'set); write "10.0.1.0/24"',
    ),
    "host outside its subnet's switch": (
        SWITCH + SWITCH.replace('"s1"', '"s2"').replace(":01", ":02")
        + 'subnets = ["10.0.0.0/24"]\n' + HOST + LINK,
        "f.toml:14: host[1].ip: 10.0.0.1 lies in 10.0.0.0/24 of 's2', but 'h1' is linked to s1; "
        "move the link, or take an address outside it",
    ),
    "IPv4-mapped address": (
        SWITCH + HOST.replace("10.0.0.1", "::ffff:10.0.0.1") + LINK,
        "f.toml:8: host[1].ip: '::ffff:10.0.0.1' is an IPv4 address in disguise; write "
        '"10.0.0.1"',
    ),
    "two IPv4 addresses": (
        SWITCH + HOST.replace('"10.0.0.1"', '["10.0.0.1", "10.0.0.2"]') + LINK,
        "f.toml:8: host[1].ip: a host has at most one IPv4 and one IPv6 address; make a second "
        "interface a host of its own",
    ),
    "group MAC address": (
        SWITCH + HOST.replace('"02:', '"01:') + LINK,
        "f.toml:9: host[1].mac: '01:00:00:00:00:11' is not a unicast address; the first octet must "
        'be even and the address not all zero, such as "02:00:00:00:00:01"',
    ),
    "table written as a value": (
        'switch = "s1"\n',
        "f.toml:1: switch: 's1' is not a table; write it as [[switch]]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(CASES))
def test_mistakes_that_need_the_whole_file(case: str) -> None:
    text, expected = CASES[case]
    assert expected in problems(text)


def test_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    with pytest.raises(TopologyError) as caught:
        load_topology(path)
    assert str(caught.value) == (
        f"{path}: cannot be read (No such file or directory); give the path of a topology file"
    )


def test_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b'[fabric]\nname = "\xe9"\n')
    with pytest.raises(TopologyError, match="not UTF-8 at byte 17"):
        load_topology(path)
