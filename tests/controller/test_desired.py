"""What every switch should hold: read from golden files, one line per entry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from leafspine import leaf_spine, leaf_spine_text, ring_job

from ringstep.controller.desired import (
    PlacedJob,
    block_keys,
    desired_tables,
    fabric_tables,
    job_entries,
    lay_out,
    match_keys,
    overlap,
)
from ringstep.controller.entries import ActionCall, EntryKey, EntryValue, Exact, GroupRef
from ringstep.controller.fabricview import FabricView, fabric_view
from ringstep.controller.jobs import Followers, JobSpec, MatchKind, QueuePair, Tag
from ringstep.controller.paths import JobPaths, PathBook, PathKey
from ringstep.fabric import Topology, parse_topology
from ringstep.fabric.ecmp import address_128
from ringstep.fabric.planner import PathHop
from ringstep.protocol.marker import MarkerParams, Scope
from ringstep.protocol.tag import JobCarrier, TagLayout

GOLDEN = Path(__file__).parent / "golden"
PARAMS = MarkerParams(
    k=655, tau_num=1, tau_den=4, t_win=100, n_sample=8, n_warmup=16, alpha_max=200, q_gate=10
)

PAIR_JOB = JobSpec(
    name="pairs",
    rings=(("h1", "h2", "h3", "h4"),),
    queue_pairs=(),
    match=MatchKind.PAIR,
    tag=None,
    profile="ringstep",
    scope=Scope.PORT,
    params=PARAMS,
)
QP_JOB = JobSpec(
    name="qps",
    rings=(),
    queue_pairs=(QueuePair("h1", "h3", 0x11), QueuePair("h1", "h3", 0x12)),
    match=MatchKind.DST_QP,
    tag=None,
    profile="paper",
    scope=Scope.SWITCH,
    params=replace(PARAMS, q_gate=None),
)


def tag_job(carrier: JobCarrier, value: int, job_bits: int = 0) -> JobSpec:
    layout = TagLayout(job_bits, 14 - job_bits)
    return replace(
        PAIR_JOB,
        match=MatchKind.TAG,
        tag=Tag(carrier, value),
        params=replace(PARAMS, layout=layout),
    )


NO_PATHS: JobPaths = {}


def placed(
    view: FabricView, spec: JobSpec, job_id: int = 5, paths: JobPaths = NO_PATHS
) -> PlacedJob:
    """Give a job blocks in ascending order from 100 on each switch."""
    blocks = {
        switch: {key: 100 + index for index, key in enumerate(keys)}
        for switch, keys in block_keys(view, spec, lay_out(view, spec, paths)).items()
    }
    return PlacedJob(job_id, 3, spec, blocks, paths)


def check_golden(name: str, lines: list[str]) -> None:
    """Compare with tests/controller/golden; a missing file is written and the test fails."""
    path = GOLDEN / name
    text = "\n".join(lines) + "\n"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        pytest.fail(f"{path} was missing and has been written; read it, then run again")
    assert text == path.read_text()


@pytest.mark.parametrize("switch", ["tor1", "tor2", "spine1"])
def test_switch_without_jobs_holds_routes_groups_and_red(
    topology: Topology, view: FabricView, switch: str
) -> None:
    tables = fabric_tables(topology)[switch]
    check_golden(f"fabric-{switch}.txt", list(tables.lines()))


@pytest.mark.parametrize("switch", ["tor1", "spine1"])
def test_jobs_add_rules_parameters_and_blocks(
    topology: Topology, view: FabricView, switch: str
) -> None:
    jobs = [
        placed(view, PAIR_JOB, job_id=5),
        placed(view, QP_JOB, job_id=6),
    ]
    base = set(fabric_tables(topology)[switch].lines())
    lines = desired_tables(view, jobs)[switch].lines()
    check_golden(f"jobs-{switch}.txt", [line for line in lines if line not in base])


def test_job_within_one_rack_touches_no_other_switch(topology: Topology, view: FabricView) -> None:
    spec = replace(PAIR_JOB, rings=(("h1", "h2"),))
    assert lay_out(view, spec, {}).ports == {"tor1": frozenset({1, 2})}
    assert list(job_entries(view, placed(view, spec))) == ["tor1"]


def test_rules_stand_only_where_their_edge_passes(topology: Topology, view: FabricView) -> None:
    entries = job_entries(view, placed(view, PAIR_JOB))
    rules = {
        switch: sum(key.table == "job_by_pair" for key in of_switch)
        for switch, of_switch in entries.items()
    }
    # h1->h2 stays at tor1, h3->h4 at tor2; h2->h3 and h4->h1 pass the spines.
    assert rules == {"spine1": 2, "spine2": 2, "tor1": 3, "tor2": 3}


def test_only_ports_on_the_jobs_paths_have_a_block(topology: Topology, view: FabricView) -> None:
    spec = replace(QP_JOB, scope=Scope.PORT)
    entries = job_entries(view, placed(view, spec))
    ports = {
        switch: sorted(
            dict(key.match)["egress_port"].value  # type: ignore[union-attr]
            for key in of_switch
            if key.table == "block_map"
        )
        for switch, of_switch in entries.items()
    }
    assert ports == {"spine1": [2], "spine2": [2], "tor1": [11, 12], "tor2": [1]}


def test_scope_switch_shares_one_block(topology: Topology, view: FabricView) -> None:
    entries = job_entries(view, placed(view, QP_JOB))["tor1"]
    blocks = {str(value) for key, value in entries.items() if key.table == "block_map"}
    assert blocks == {"set_block(block=100)"}


def test_both_address_families_get_a_rule(topology: Topology, view: FabricView) -> None:
    keys = match_keys(topology, replace(PAIR_JOB, rings=(("h1", "h3"),)))
    assert sorted(str(key) for key in keys) == [
        "job_by_pair dst_addr=0xfd000001000000000000000000000001 "
        "src_addr=0xfd000002000000000000000000000003",
        "job_by_pair dst_addr=0xfd000002000000000000000000000003 "
        "src_addr=0xfd000001000000000000000000000001",
        "job_by_pair dst_addr=0xffff0a000101 src_addr=0xffff0a000203",
        "job_by_pair dst_addr=0xffff0a000203 src_addr=0xffff0a000101",
    ]


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        (tag_job(JobCarrier.SPORT, 3, 6), "job_by_tag sport=0xc300&&&0xff00 priority=30"),
        (tag_job(JobCarrier.RESV6A, 5), "job_by_tag resv6a=0x5&&&0x3f priority=20"),
        (tag_job(JobCarrier.DSCP, 26), "job_by_tag dscp=0x1a&&&0x3f priority=10"),
    ],
    ids=["sport", "resv6a", "dscp"],
)
def test_tags_become_ternary_rules(topology: Topology, spec: JobSpec, rule: str) -> None:
    assert [str(key) for key in match_keys(topology, spec)] == [rule]


UEC_JOB = replace(PAIR_JOB, match=MatchKind.UEC, uec_job_ids=(7, 0xA00007))


def test_job_ids_of_ultra_ethernet_become_rules(topology: Topology) -> None:
    assert sorted(str(key) for key in match_keys(topology, UEC_JOB)) == [
        "job_by_uec_id uec_job_id=0xa00007",
        "job_by_uec_id uec_job_id=7",
    ]


def test_switches_that_cannot_find_the_jobs_packets_get_nothing_of_it(
    topology: Topology, view: FabricView
) -> None:
    keys = block_keys(view, UEC_JOB, lay_out(view, UEC_JOB, {}), {"spine1", "tor2"})
    assert sorted(keys) == ["spine2", "tor1"]
    blocks = {switch: dict.fromkeys(ports, 9) for switch, ports in keys.items()}
    entries = job_entries(view, PlacedJob(5, 3, UEC_JOB, blocks))
    assert sorted(entries) == ["spine2", "tor1"]
    assert sum(key.table == "job_by_uec_id" for key in entries["tor1"]) == 2


def test_overlapping_rules_of_two_jobs_are_found(topology: Topology) -> None:
    def keys(spec: JobSpec) -> frozenset[EntryKey]:
        return match_keys(topology, spec)

    assert overlap(keys(PAIR_JOB), keys(QP_JOB)) is None
    assert overlap(keys(PAIR_JOB), keys(UEC_JOB)) is None
    assert overlap(keys(UEC_JOB), keys(replace(UEC_JOB, uec_job_ids=(7,)))) is not None
    assert overlap(keys(UEC_JOB), keys(replace(UEC_JOB, uec_job_ids=(8,)))) is None
    assert overlap(keys(PAIR_JOB), keys(replace(PAIR_JOB, rings=(("h3", "h4"),)))) is not None
    assert overlap(keys(PAIR_JOB), keys(replace(PAIR_JOB, rings=(("h1", "h3"),)))) is None
    # Tag 3 of six bits is 0xC300; tag 0 of two bits covers 0xC000..0xCFFF.
    assert overlap(keys(tag_job(JobCarrier.SPORT, 3, 6)), keys(tag_job(JobCarrier.SPORT, 0, 2)))
    assert not overlap(keys(tag_job(JobCarrier.SPORT, 3, 6)), keys(tag_job(JobCarrier.SPORT, 1, 2)))
    assert not overlap(keys(tag_job(JobCarrier.DSCP, 3)), keys(tag_job(JobCarrier.RESV6A, 3)))


def test_equal_paths_share_a_group_and_each_port_is_one_member(
    topology: Topology, view: FabricView
) -> None:
    tables = fabric_tables(topology)["tor1"]
    assert {
        key.id: [member for member, _ in members] for key, members in tables.groups.items()
    } == {
        1: [1],
        2: [2],
        510: [11, 12],
    }
    assert sorted(key.id for key in tables.members) == [1, 2, 11, 12]
    groups = [value for value in tables.entries.values() if isinstance(value, GroupRef)]
    assert len(groups) == 3


def test_desired_state_does_not_depend_on_the_order_of_jobs(
    topology: Topology, view: FabricView
) -> None:
    jobs = [
        placed(view, PAIR_JOB, job_id=5),
        placed(view, QP_JOB, job_id=6),
    ]
    forwards = desired_tables(view, jobs)
    backwards = desired_tables(view, list(reversed(jobs)))
    assert forwards == backwards


# -- planned paths -----------------------------------------------------------------------------

PLANNED = {
    PathKey("h2", "h3"): (PathHop("tor1", 12), PathHop("spine2", 2), PathHop("tor2", 1)),
    PathKey("h4", "h1"): (PathHop("tor2", 11), PathHop("spine1", 1), PathHop("tor1", 1)),
}


def rules(entries: dict[EntryKey, EntryValue]) -> list[str]:
    return sorted(
        f"{dict(key.match)['src_addr'].value & 0xFFFFFFFF:#x} {value}"  # type: ignore[union-attr]
        for key, value in entries.items()
        if key.table == "job_by_pair" and dict(key.match)["src_addr"].value < 1 << 64  # type: ignore[union-attr]
    )


def test_planned_edges_cross_exactly_their_hops(view: FabricView) -> None:
    assert lay_out(view, PAIR_JOB, PLANNED).ports == {
        "spine1": frozenset({1}),
        "spine2": frozenset({2}),
        "tor1": frozenset({1, 2, 12}),
        "tor2": frozenset({1, 2, 11}),
    }
    one = {PathKey("h2", "h3"): PLANNED[PathKey("h2", "h3")]}
    assert lay_out(view, PAIR_JOB, one).ports["spine1"] == {1}
    assert lay_out(view, PAIR_JOB, one).ports["tor2"] == {1, 2, 11, 12}


def test_rules_pin_where_there_is_a_choice(view: FabricView) -> None:
    entries = job_entries(view, placed(view, PAIR_JOB, paths=PLANNED))
    # h1->h2 stays in the rack; h2->h3 leaves by port 12; h4->h1 is delivered.
    assert rules(entries["tor1"]) == [
        "0xa000101 set_job(job=5, path_id=0)",
        "0xa000102 set_job(job=5, path_id=12)",
        "0xa000204 set_job(job=5, path_id=0)",
    ]
    # A spine has one way to each host.
    assert rules(entries["spine2"]) == ["0xa000102 set_job(job=5, path_id=0)"]
    assert rules(entries["spine1"]) == ["0xa000204 set_job(job=5, path_id=0)"]
    ports = {str(key) for key in entries["tor1"] if key.table == "block_map"}
    assert len(ports) == 3


def test_connections_of_one_pair_are_pinned_apart(view: FabricView) -> None:
    paths = {
        PathKey("h1", "h3", qp): (PathHop("tor1", port), PathHop(spine, 2), PathHop("tor2", 1))
        for qp, port, spine in ((0x11, 11, "spine1"), (0x12, 12, "spine2"))
    }
    entries = job_entries(view, placed(view, QP_JOB, paths=paths))
    found = {
        dict(key.match)["dst_qp"].value: str(value)  # type: ignore[union-attr]
        for key, value in entries["tor1"].items()
        if key.table == "job_by_dst_qp"
    }
    assert found == {
        0x11: "set_job(job=5, path_id=11)",
        0x12: "set_job(job=5, path_id=12)",
    }
    assert [str(key.match) for key in entries["spine1"] if key.table == "job_by_dst_qp"] != []
    assert sum(key.table == "job_by_dst_qp" for key in entries["spine1"]) == 2  # both addresses


def test_tors_alone_follow_where_that_is_asked_for(view: FabricView) -> None:
    spec = replace(PAIR_JOB, followers=Followers.TOR)
    assert sorted(block_keys(view, spec, lay_out(view, spec, PLANNED))) == ["tor1", "tor2"]
    entries = job_entries(view, placed(view, spec, paths=PLANNED))
    # Spines have one way to each host: there is nothing to pin.
    assert sorted(entries) == ["tor1", "tor2"]
    assert all(any(k.table == "job_params" for k in e) for e in entries.values())


def test_other_switches_hold_rules_alone_where_they_pin() -> None:
    """Two links from every spine to every ToR: the spine has a choice."""
    text = leaf_spine_text(2, 1, 1)
    for tor in (1, 2):
        text += f'\n[[link]]\na = "tor{tor}:110"\nb = "spine1:{10 + tor}"\nrate = "10G"\n'
    fabric = fabric_view(parse_topology(text))
    spec = replace(PAIR_JOB, rings=(("h1-1", "h2-1"),), followers=Followers.TOR)
    paths = {
        PathKey("h1-1", "h2-1"): (PathHop("tor1", 110), PathHop("spine1", 12), PathHop("tor2", 1))
    }
    entries = job_entries(fabric, placed(fabric, spec, paths=paths))
    assert [str(value) for value in entries["spine1"].values()] == ["set_job(job=5, path_id=12)"]
    assert {key.table for key in entries["spine1"]} == {"job_by_pair"}
    everywhere = replace(spec, followers=Followers.EVERYWHERE)
    tables = job_entries(fabric, placed(fabric, everywhere, paths=paths))["spine1"]
    assert {key.table for key in tables} == {"job_by_pair", "job_params", "block_map"}


def test_sender_with_two_tors_is_known_at_both() -> None:
    fabric = fabric_view(leaf_spine(3, 2, 1, ["h1-1"]))
    spec = replace(PAIR_JOB, rings=(("h1-1", "h3-1"),))
    paths = PathBook(fabric).plan(spec)
    hops = paths[PathKey("h1-1", "h3-1")]
    crossed = lay_out(fabric, spec, paths).ports
    other = "tor2" if hops[0].switch == "tor1" else "tor1"
    entries = job_entries(fabric, placed(fabric, spec, paths=paths))
    sent = {
        switch: line
        for switch in ("tor1", "tor2")
        for line in rules(entries[switch])
        if line.startswith("0xa010001")
    }
    assert sent[hops[0].switch].endswith(f"path_id={hops[0].port})")
    assert sent[other].endswith("path_id=0)")
    assert {101, 102} <= crossed[other]


def test_paths_of_a_planned_job_go_where_its_rules_say() -> None:
    """Rules and planned_path entries are followed by hand, on a fabric with failures."""
    topology = leaf_spine(4, 3, 2)
    fabric = fabric_view(topology, {("tor1", 101), ("spine2", 3)})
    spec = ring_job("a", ["h1-1", "h2-1", "h3-1", "h4-1", "h1-2", "h3-2"])
    paths = PathBook(fabric).plan(spec)
    entries = job_entries(fabric, placed(fabric, spec, paths=paths))
    for key, hops in paths.items():
        (rule,) = match_keys(topology, replace(spec, rings=((key.src, key.dst),))) & {
            each
            for of_switch in entries.values()
            for each in of_switch
            if dict(each.match).get("src_addr")
            == Exact(address_128(topology.hosts[key.src].ips[0]))
            and dict(each.match).get("dst_addr")
            == Exact(address_128(topology.hosts[key.dst].ips[0]))
        }
        switch, taken = topology.attachments(key.src)[0].node, []
        while True:
            call = entries[switch][rule]
            assert isinstance(call, ActionCall)
            path_id = dict(call.args)["path_id"]
            if path_id:
                pinned = fabric.base[switch].entries[
                    EntryKey("planned_path", (("path_id", Exact(path_id)),))
                ]
                assert isinstance(pinned, ActionCall)
                port = dict(pinned.args)["port"]
            else:
                (port,) = fabric.ports_towards(switch, key.dst)
            taken.append(PathHop(switch, port))
            far, _ = topology.ports(switch)[port]
            if far.node == key.dst:
                break
            switch = far.node
        assert tuple(taken) == hops


def test_path_that_is_broken_at_a_switch_is_ecmp_there(topology: Topology) -> None:
    broken = fabric_view(topology, {("tor1", 12)})
    entries = job_entries(broken, placed(broken, PAIR_JOB, paths=PLANNED))
    assert "0xa000102 set_job(job=5, path_id=0)" in rules(entries["tor1"])
    assert lay_out(broken, PAIR_JOB, PLANNED).ports["tor1"] == {1, 2, 11}


def test_paths_of_an_older_topology_do_no_harm(view: FabricView) -> None:
    old = {
        PathKey("h2", "h3"): (PathHop("tor1", 77), PathHop("gone", 2), PathHop("tor2", 1)),
        PathKey("h1", "left"): (PathHop("tor1", 12), PathHop("spine2", 2), PathHop("tor2", 9)),
    }
    assert lay_out(view, PAIR_JOB, old).ports == lay_out(view, PAIR_JOB, {}).ports
