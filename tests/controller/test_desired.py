"""What every switch should hold: read from golden files, one line per entry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ringstep.controller.desired import (
    PlacedJob,
    block_keys,
    crossings,
    desired_tables,
    fabric_tables,
    job_entries,
    match_keys,
    overlap,
)
from ringstep.controller.entries import EntryKey, GroupRef
from ringstep.controller.jobs import JobSpec, MatchKind, QueuePair, Tag
from ringstep.fabric import Topology
from ringstep.fabric.routing import RouteTable
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


def placed(
    topology: Topology, routes: dict[str, RouteTable], spec: JobSpec, job_id: int = 5
) -> PlacedJob:
    """Give a job blocks in ascending order from 100 on each switch."""
    blocks = {
        switch: {key: 100 + index for index, key in enumerate(keys)}
        for switch, keys in block_keys(topology, routes, spec).items()
    }
    return PlacedJob(job_id, 3, spec, blocks)


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
    topology: Topology, routes: dict[str, RouteTable], switch: str
) -> None:
    tables = fabric_tables(topology, routes)[switch]
    check_golden(f"fabric-{switch}.txt", list(tables.lines()))


@pytest.mark.parametrize("switch", ["tor1", "spine1"])
def test_jobs_add_rules_parameters_and_blocks(
    topology: Topology, routes: dict[str, RouteTable], switch: str
) -> None:
    jobs = [
        placed(topology, routes, PAIR_JOB, job_id=5),
        placed(topology, routes, QP_JOB, job_id=6),
    ]
    base = set(fabric_tables(topology, routes)[switch].lines())
    lines = desired_tables(topology, routes, jobs)[switch].lines()
    check_golden(f"jobs-{switch}.txt", [line for line in lines if line not in base])


def test_job_within_one_rack_touches_no_other_switch(
    topology: Topology, routes: dict[str, RouteTable]
) -> None:
    spec = replace(PAIR_JOB, rings=(("h1", "h2"),))
    assert crossings(topology, routes, spec) == {"tor1": frozenset({1, 2})}
    assert list(job_entries(topology, routes, placed(topology, routes, spec))) == ["tor1"]


def test_rules_stand_only_where_their_edge_passes(
    topology: Topology, routes: dict[str, RouteTable]
) -> None:
    entries = job_entries(topology, routes, placed(topology, routes, PAIR_JOB))
    rules = {
        switch: sum(key.table == "job_by_pair" for key in of_switch)
        for switch, of_switch in entries.items()
    }
    # h1->h2 stays at tor1, h3->h4 at tor2; h2->h3 and h4->h1 pass the spines.
    assert rules == {"spine1": 2, "spine2": 2, "tor1": 3, "tor2": 3}


def test_only_ports_on_the_jobs_paths_have_a_block(
    topology: Topology, routes: dict[str, RouteTable]
) -> None:
    spec = replace(QP_JOB, scope=Scope.PORT)
    entries = job_entries(topology, routes, placed(topology, routes, spec))
    ports = {
        switch: sorted(
            dict(key.match)["egress_port"].value  # type: ignore[union-attr]
            for key in of_switch
            if key.table == "block_map"
        )
        for switch, of_switch in entries.items()
    }
    assert ports == {"spine1": [2], "spine2": [2], "tor1": [11, 12], "tor2": [1]}


def test_scope_switch_shares_one_block(topology: Topology, routes: dict[str, RouteTable]) -> None:
    entries = job_entries(topology, routes, placed(topology, routes, QP_JOB))["tor1"]
    blocks = {str(value) for key, value in entries.items() if key.table == "block_map"}
    assert blocks == {"set_block(block=100)"}


def test_both_address_families_get_a_rule(
    topology: Topology, routes: dict[str, RouteTable]
) -> None:
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
    topology: Topology, routes: dict[str, RouteTable]
) -> None:
    keys = block_keys(topology, routes, UEC_JOB, {"spine1", "tor2"})
    assert sorted(keys) == ["spine2", "tor1"]
    blocks = {switch: dict.fromkeys(ports, 9) for switch, ports in keys.items()}
    entries = job_entries(topology, routes, PlacedJob(5, 3, UEC_JOB, blocks))
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
    topology: Topology, routes: dict[str, RouteTable]
) -> None:
    tables = fabric_tables(topology, routes)["tor1"]
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
    topology: Topology, routes: dict[str, RouteTable]
) -> None:
    jobs = [
        placed(topology, routes, PAIR_JOB, job_id=5),
        placed(topology, routes, QP_JOB, job_id=6),
    ]
    forwards = desired_tables(topology, routes, jobs)
    backwards = desired_tables(topology, routes, list(reversed(jobs)))
    assert forwards == backwards
