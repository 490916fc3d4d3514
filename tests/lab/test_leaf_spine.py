"""The lab's fabric as data: shape, rates, scale, and the topology file the controller reads."""

from collections.abc import Mapping

import pytest

from ringstep.fabric.topology import parse_topology
from ringstep.lab.leafspine import Engine, LeafSpine
from ringstep.lab.mininet_lab import HostPlace, PartPlace, RunningLab
from ringstep.lab.priority import Scheduling


def test_two_to_one_oversubscription_halves_the_uplinks() -> None:
    fabric = LeafSpine()
    assert fabric.hosts_per_leaf == 2
    assert fabric.uplink_bps == 25e6
    assert fabric.time_factor == 200
    assert LeafSpine(oversubscription=1).uplink_bps == 50e6


@pytest.mark.parametrize("shape", [(8, 4, 2), (4, 2, 2), (6, 2, 3), (12, 3, 1), (64, 32, 4)])
def test_topology_file_is_what_the_controller_takes(shape: tuple[int, int, int]) -> None:
    hosts, leaves, spines = shape
    fabric = LeafSpine(hosts=hosts, leaves=leaves, spines=spines, oversubscription=1)
    addresses = {name: f"127.0.0.1:{9000 + n}" for n, name in enumerate(fabric.switch_sites)}
    topology = parse_topology(fabric.topology_toml(addresses), "lab")
    assert len(topology.switches) == leaves + spines
    assert len(topology.hosts) == hosts + 2
    for name, site in fabric.host_sites.items():
        assert topology.hosts[name].mac == site.mac
        (end,) = topology.attachments(name)
        assert (end.node, end.port) == (site.leaf, site.port)
        assert fabric.gateway_mac(name) == topology.switches[site.leaf].mac
    for name, switch in topology.switches.items():
        assert switch.p4runtime == addresses[name]
        rates = fabric.switch_sites[name].port_rates_bps
        links = topology.ports(name)
        assert set(links) == set(rates)
        for port, (_, link) in links.items():
            assert link.rate_bps == pytest.approx(rates[port], rel=1e-5)
            assert link.red is not None
            assert (link.red.q_min, link.red.q_max) == (6, 12)
            assert link.red.mark_gap == 4000


def test_every_hop_of_a_striped_ring_leaves_its_leaf() -> None:
    for fabric in (LeafSpine(), LeafSpine(hosts=6, leaves=2), LeafSpine(hosts=3, leaves=3)):
        ring = fabric.striped_ring()
        assert sorted(ring) == sorted(fabric.ring_hosts)
        leaves = [fabric.host_sites[name].leaf for name in ring]
        assert all(a != b for a, b in zip(leaves, leaves[1:] + leaves[:1], strict=True))


def test_thresholds_in_packets_shrink_with_the_payload_and_times_stretch_with_the_rate() -> None:
    fabric = LeafSpine(payload=1024, rate_bps=10e6)
    paper, ours = fabric.marker("paper"), fabric.marker("ringstep")
    assert (paper.n_sample, paper.n_warmup, paper.q_gate) == (8, 8, None)
    assert (ours.q_gate, ours.t_win_us) == (10, 100_000)
    assert LeafSpine().marker("ringstep").q_gate == 1
    assert fabric.dcqcn("connectx").t_rp_us == 300_000


def test_marks_are_spaced_in_the_labs_time_or_not_at_all() -> None:
    plain = LeafSpine(spaced=False)
    red = parse_topology(plain.topology_toml({}), "lab").links[0].red
    assert red is not None
    assert red.mark_gap == plain.mark_gap_us == 0
    # A table holds no more.
    assert LeafSpine(rate_bps=4e6).mark_gap_us == 50_000
    assert LeafSpine(rate_bps=2e6).mark_gap_us == 65_535


BAD: list[tuple[Mapping[str, object], str]] = [
    ({"hosts": 7}, "multiple of the 4 leaves"),
    ({"hosts": 2}, "hosts 2"),
    ({"hosts": 128}, "4..64"),
    ({"leaves": 1}, "leaves 1"),
    ({"spines": 0}, "spines 0"),
    ({"rate_bps": 1e3}, "1M..1G"),
    ({"rate_bps": 1e6}, "uplinks"),
    ({"oversubscription": 0}, "oversubscription"),
    ({"payload": 9000}, "256..8192"),
    ({"payload": 1023}, "multiple of 4"),
    ({"queue_packets": 1}, "8..4096"),
]


@pytest.mark.parametrize(("options", "said"), BAD)
def test_a_fabric_that_cannot_be_is_refused(options: Mapping[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LeafSpine(**options)  # type: ignore[arg-type]


def test_a_running_lab_survives_its_state_file() -> None:
    fabric = LeafSpine(engine=Engine.BMV2, hosts=4, leaves=2)
    lab = RunningLab(
        fabric=fabric,
        controller="127.0.0.1:1",
        topology_toml=fabric.topology_toml({}),
        hosts={name: HostPlace(site, 17) for name, site in fabric.host_sites.items()},
        parts=(PartPlace("leaf1", "bmv2", 18, "127.0.0.1:2", "paced by the kernel alone"),),
        scheduling=Scheduling.NORMAL,
    )
    assert RunningLab.from_json(lab.to_json()) == lab
