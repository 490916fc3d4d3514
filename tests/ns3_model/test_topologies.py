"""Fabrics: how many of what, at which rates, and that traffic uses them."""

import numpy as np
import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep_ns3 import Scenario, prepare, run

JOB = '[[job]]\nchunk = "64KiB"\n'
POD = """[fabric]
kind = "multi_pod"
pods = 2
leaves = 2
spines = 2
hosts_per_leaf = 8
rate = "10G"
"""


def graph_of(text: str):
    return prepare(Scenario.parse(text)).graph


def rate_between(graph, first: str, second: str) -> int:
    return sum(
        cable.rate_bps
        for cable in graph.cables
        if cable.a.startswith(first) and cable.b.startswith(second)
    )


def test_leaf_spine_counts_and_names(leaf_spine: str) -> None:
    graph = graph_of(leaf_spine.replace("spines = 2", "spines = 3\nparallel = 2") + JOB)
    assert graph.hosts == tuple(f"h{i}" for i in range(8))
    assert graph.switches == ("tor0", "tor1", "spine0", "spine1", "spine2")
    assert graph.tiers == (0, 0, 1, 1, 1)
    assert len(graph.cables) == 8 + 2 * 3 * 2
    assert graph.tor_of["h5"] == "tor1"
    assert "tor0-spine1#2" in graph.cable_number


@pytest.mark.parametrize("ratio", ["1:2", "1:4", "1:8"])
def test_oversubscription_of_hosts(ratio: str) -> None:
    graph = graph_of(POD + f'oversubscription = "{ratio}"\ncores_per_spine = 2\n' + JOB)
    up = rate_between(graph, "pod0-spine", "core") or rate_between(graph, "pod0-agg", "core")
    assert 16 * 10**10 // up == int(ratio[2:])


def test_oversubscription_of_leaf_uplinks() -> None:
    text = POD + 'oversubscription = "1:2"\noversubscription_of = "leaf_uplinks"\n' + JOB
    graph = graph_of(text)
    assert rate_between(graph, "pod0-agg", "core") == 2 * 10**10
    assert set(graph.tiers) == {0, 1, 2}


def test_asymmetric_links_differ_by_direction() -> None:
    text = """[fabric]
kind = "links"
hosts = ["a", "b"]
[[fabric.link]]
a = "a"
b = "b"
rate = "10G"
rate_back = "2500M"
[cc]
kind = "fixed"
[[job]]
[[job.op]]
kind = "send"
size = "1MB"
src = %d
dst = %d
"""
    there = run(Scenario.parse(text % (0, 1))).cct_ns[0]
    back = run(Scenario.parse(text % (1, 0))).cct_ns[0]
    wire_bits = 1000 * 1048 * 8
    assert there == pytest.approx(wire_bits / 10 + 1000, rel=0.001)
    assert back == pytest.approx(wire_bits / 2.5 + 1000, rel=0.001)


def test_hosts_joined_without_a_switch_can_form_a_ring() -> None:
    text = '[fabric]\nkind = "links"\nhosts = ["a", "b"]\n[[fabric.link]]\na = "a"\nb = "b"\n'
    results = run(Scenario.parse(text + 'rate = "10G"\n' + JOB))
    assert results.complete
    assert results.jobs["ranks"].to_pylist() == [2]


def test_both_of_two_parallel_links_are_used() -> None:
    text = """[fabric]
kind = "links"
hosts = ["a", "b", "c", "d"]
switches = ["s", "t"]
"""
    for host, switch in (("a", "s"), ("b", "s"), ("c", "t"), ("d", "t")):
        text += f'[[fabric.link]]\na = "{host}"\nb = "{switch}"\nrate = "10G"\n'
    text += '[[fabric.link]]\na = "s"\nb = "t"\nrate = "10G"\ncount = 2\n'
    results = run(Scenario.parse(text + JOB + "passes = 8\n"))
    packets = dict(
        zip(
            results.links["name"].to_pylist(),
            results.links["data_packets"].to_pylist(),
            strict=True,
        )
    )
    assert min(packets["s->t"], packets["s->t#2"]) > 0


def test_a_planned_path_loads_every_uplink_alike(leaf_spine: str) -> None:
    scenario = Scenario.parse(
        leaf_spine + JOB + 'placement = "striped"\n[switch]\nlb = "planned"\n'
    )
    assert len(prepare(scenario).paths) == 16
    results = run(scenario)
    table = results.links.to_pydict()
    uplinks = [
        packets
        for name, packets in zip(table["name"], table["data_packets"], strict=True)
        if name.startswith("tor") and "->spine" in name
    ]
    assert len(set(uplinks)) == 1


def test_a_ring_in_a_rack_needs_no_plan(leaf_spine: str) -> None:
    scenario = Scenario.parse(leaf_spine + JOB + 'ranks = 4\n[switch]\nlb = "planned"\n')
    assert run(scenario).complete


def test_imbalance_slows_one_hop_and_keeps_its_red_thresholds(ring: str) -> None:
    text = ring + '[[imbalance]]\nlink = "spine0-tor0"\nfactor = 1.13\ndirection = "forward"\n'
    prepared = prepare(Scenario.parse(text))
    cable = prepared.graph.cables[prepared.graph.cable_number["tor0-spine0"]]
    assert (cable.rate_bps, cable.rate_back_bps) == (10**10, round(10**10 / 1.13))
    rows = {row.rate_bps: row.k_min for row in prepared.red}
    assert rows == {10**10: 50_000, round(10**10 / 1.13): 50_000}


def test_red_thresholds_grow_with_the_rate(leaf_spine: str) -> None:
    scenario = Scenario.parse(leaf_spine + 'uplink_rate = "40G"\n' + JOB)
    rows = {row.rate_bps: (row.k_min, row.k_max) for row in prepare(scenario).red}
    assert rows == {10**10: (50_000, 100_000), 4 * 10**10: (200_000, 400_000)}


def test_the_controllers_topology_file_is_a_fabric(tmp_path) -> None:
    text = ""
    for i, (name, role) in enumerate((("s1", "tor"), ("s2", "tor"), ("p1", "spine")), start=1):
        text += f'[[switch]]\nname = "{name}"\ndevice_id = {i}\nrole = "{role}"\n'
        text += f'mac = "02:00:00:00:ff:0{i}"\n'
    for i in (1, 2):
        text += f'[[host]]\nname = "h{i}"\nip = "10.0.{i}.1"\nmac = "02:00:00:00:00:0{i}"\n'
        text += f'[[link]]\na = "s{i}:1"\nb = "h{i}"\nrate = "10G"\n'
        text += f'[[link]]\na = "s{i}:2"\nb = "p1:{i}"\nrate = "10G"\ndelay = "3us"\n'
    (tmp_path / "fabric.toml").write_text(text)
    scenario = Scenario.parse(
        '[fabric]\nkind = "file"\npath = "fabric.toml"\n' + JOB, folder=tmp_path
    )
    graph = prepare(scenario).graph
    assert graph.tiers == (0, 0, 1)
    assert {cable.name: cable.delay_ns for cable in graph.cables} == {
        "s1-h1": 1000, "s1-p1": 3000, "s2-h2": 1000, "s2-p1": 3000,
    }  # fmt: skip
    assert run(scenario).complete


def test_ecmp_spreads_over_the_spines(ring: str) -> None:
    results = run(Scenario.parse(ring, settings=["job.passes=8", "job.chunk=8KiB"]))
    table = results.links.to_pydict()
    load = np.array(
        [
            packets
            for name, packets in zip(table["name"], table["data_packets"], strict=True)
            if name.startswith("tor0->spine")
        ]
    )
    # 4 senders x 112 steps, a path each: the share of a spine is 1/2 with sigma 0.024.
    assert abs(load[0] / load.sum() - 0.5) < 0.12


def test_pods_spread_flows_evenly_at_every_tier() -> None:
    # A message per step and port: each hop up draws anew, independent of the hop before.
    text = POD.replace("hosts_per_leaf = 8", "hosts_per_leaf = 1") + (
        'cores_per_spine = 2\n[[job]]\nranks = 4\nchunk = "1000B"\nplacement = "explicit"\n'
        'hosts = ["h0", "h2", "h1", "h3"]\npasses = 100\n'
    )
    results = run(Scenario.parse(text))
    table = results.links.to_pydict()
    up: dict[str, list[int]] = {}
    for name, packets in zip(table["name"], table["data_packets"], strict=True):
        start, _, end = name.partition("->")
        if ("-tor" in start and "-agg" in end) or ("-agg" in start and end.startswith("core")):
            up.setdefault(start, []).append(packets)
    assert len(up) == 4 + 4
    for start, packets in up.items():
        expected = sum(packets) / len(packets)
        chi_square = sum((n - expected) ** 2 / expected for n in packets)
        assert sum(packets) > 200, start
        assert chi_square < 10.9, (start, packets)  # 1 degree of freedom, 0.1 %


def test_parallel_links_of_a_tor_share_alike(leaf_spine: str) -> None:
    text = leaf_spine.replace("spines = 2", "spines = 1\nparallel = 2")
    results = run(
        Scenario.parse(text + '[[job]]\nchunk = "1KiB"\nplacement = "striped"\npasses = 40\n')
    )
    table = results.links.to_pydict()
    packets = dict(zip(table["name"], table["data_packets"], strict=True))
    pair = packets["tor0->spine0"], packets["tor0->spine0#2"]
    assert sum(pair) > 2000
    assert abs(pair[0] - pair[1]) < 0.1 * sum(pair)
