"""Paths of all jobs: new ones go around the others, loads are exact, failures move few."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from leafspine import leaf_spine, ring_job

from ringstep.controller.fabricview import FabricView, fabric_view
from ringstep.controller.jobs import JobSpec, MatchKind, PathsChoice, QueuePair, Tag, Traffic
from ringstep.controller.paths import (
    JobPaths,
    PathBook,
    PathKey,
    dump_paths,
    load_paths,
    wanted_edges,
)
from ringstep.fabric.pathgraph import PlanError, Unreachable
from ringstep.fabric.planner import (
    Demand,
    EdgeKey,
    PathHop,
    PlannedEdge,
    extend_plan,
    pair_demands,
    plan_paths,
)
from ringstep.protocol.tag import JobCarrier


@pytest.fixture
def fabric() -> FabricView:
    """Four ToRs with four hosts each, three spines."""
    return fabric_view(leaf_spine(4, 3, 4))


def across(a: int, b: int, first: int = 1) -> list[str]:
    """A ring of four hosts over two racks, two edges between them."""
    return [f"h{a}-{first}", f"h{a}-{first + 1}", f"h{b}-{first}", f"h{b}-{first + 1}"]


def counted(book: PathBook, *jobs: tuple[JobSpec, JobPaths]) -> bool:
    load: Counter[tuple[str, int]] = Counter()
    for spec, paths in jobs:
        for key, hops in paths.items():
            for hop in hops[:-1]:
                load[hop.switch, hop.port] += wanted_edges(spec)[key]
    return {end: weight for end, weight in book.load().items() if weight} == dict(load)


def test_only_edges_between_racks_have_a_path(fabric: FabricView) -> None:
    paths = PathBook(fabric).plan(ring_job("a", across(1, 2)))
    assert set(paths) == {PathKey("h1-2", "h2-1"), PathKey("h2-2", "h1-1")}
    for key, hops in paths.items():
        assert [hop.switch[:3] for hop in hops] == ["tor", "spi", "tor"]
        last = fabric.topology.attachments(key.dst)[0]
        assert hops[-1] == PathHop(last.node, last.port)


def test_paths_come_back_from_text(fabric: FabricView) -> None:
    paths = PathBook(fabric).plan(ring_job("a", ["h1-1", "h2-1", "h3-1"]))
    text = dump_paths(paths)
    assert load_paths(text) == paths
    assert dump_paths(dict(reversed(paths.items()))) == text
    assert dump_paths({PathKey("a", "b", 7): (PathHop("t", 1), PathHop("s", 2))}) == (
        '[["a","b",7,"t",1,"s",2]]'
    )
    assert load_paths("") == load_paths("[]") == {}


@pytest.mark.parametrize("text", ["{", "3", '[["a","b",0]]', '[["a","b",0,"t"]]', "[1]"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no paths of a job"):
        load_paths(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"paths": PathsChoice.ECMP},
        {"traffic": Traffic(sender="qp_per_step")},
        {"match": MatchKind.TAG, "tag": Tag(JobCarrier.DSCP, 3)},
        {"match": MatchKind.UEC, "uec_job_ids": (3,)},
    ],
)
def test_jobs_that_are_not_planned_have_no_paths(
    fabric: FabricView, changes: dict[str, object]
) -> None:
    book, spec = PathBook(fabric), replace(ring_job("a", across(1, 2)), **changes)  # type: ignore[arg-type]
    assert book.plan(spec) == {}
    assert book.valid(spec, {})
    assert book.replan(spec, PathBook(fabric).plan(ring_job("a", across(1, 2)))) == {}
    assert book.explain(spec, {}).reason


def test_weight_is_the_channels_that_share_a_pair() -> None:
    spec = ring_job("a", ["x", "y", "z"], ["y", "x"], ["z", "y", "x"], channels=(2, 3))
    assert wanted_edges(spec) == {
        PathKey("z", "x"): 2,
        PathKey("x", "y"): 5,
        PathKey("y", "z"): 2,
        PathKey("y", "x"): 4,
        PathKey("x", "z"): 1,
        PathKey("z", "y"): 1,
    }
    pairs = (QueuePair("x", "w", 1), QueuePair("x", "w", 2), QueuePair("x", "y", 3))
    with_pairs = wanted_edges(replace(spec, queue_pairs=pairs))
    assert with_pairs[PathKey("x", "w")] == 2
    assert with_pairs[PathKey("x", "y")] == 5


def test_weights_are_those_of_the_planner() -> None:
    rings = (("x", "y", "z"), ("z", "y", "x"), ("x", "y"))
    demands = pair_demands("a", rings)
    assert wanted_edges(ring_job("a", *rings)) == {
        PathKey(demand.src, demand.dst): demand.weight for demand in demands
    }


def test_each_connection_has_a_path_of_its_own(fabric: FabricView) -> None:
    pairs = tuple(QueuePair("h1-1", "h2-1", number) for number in (5, 6, 7))
    spec = ring_job("a", match=MatchKind.DST_QP, queue_pairs=pairs)
    paths = PathBook(fabric).plan(spec)
    assert list(paths) == [PathKey("h1-1", "h2-1", number) for number in (5, 6, 7)]
    assert len({hops[0].port for hops in paths.values()}) == 3


def test_new_jobs_go_around_the_others_and_loads_stay_exact(fabric: FabricView) -> None:
    rng, book = random.Random(1), PathBook(fabric)
    hosts = list(fabric.topology.hosts)
    live: dict[int, tuple[JobSpec, JobPaths]] = {}
    for job_id in range(1, 80):
        ring = rng.sample(hosts, rng.randint(2, 8))
        spec = ring_job(f"j{job_id}", ring, channels=(rng.randint(1, 3),))
        before = {number: dict(paths) for number, (_, paths) in live.items()}
        paths = book.plan(spec)
        assert counted(book, *live.values())
        book.hold(job_id, spec.name, spec, paths)
        live[job_id] = spec, paths
        assert {n: dict(p) for n, (_, p) in live.items() if n != job_id} == before
        assert counted(book, *live.values())
        if rng.random() < 0.4:
            gone = rng.choice(list(live))
            book.drop(gone)
            del live[gone]
            assert counted(book, *live.values())
    book.drop(999)
    for job_id in list(live):
        book.drop(job_id)
    assert not any(book.load().values())


def test_result_is_as_good_as_the_planners_with_the_others_pinned(fabric: FabricView) -> None:
    rng, book = random.Random(2), PathBook(fabric)
    hosts = list(fabric.topology.hosts)
    demands: list[Demand] = []
    pinned: dict[EdgeKey, PlannedEdge] = {}
    for job_id in range(1, 25):
        spec = ring_job(f"j{job_id}", rng.sample(hosts, rng.randint(2, 6)))
        paths = book.plan(spec)
        more = pair_demands(spec.name, spec.rings)
        theirs = extend_plan(fabric.planner, (*demands, *more), pinned)
        book.hold(job_id, spec.name, spec, paths)
        assert max(book.load().values()) <= theirs.max_relative
        demands += more
        pinned |= {
            demand.key: PlannedEdge(demand, paths[key])
            for demand in more
            if (key := PathKey(demand.src, demand.dst)) in paths
        }


def test_holding_again_replaces(fabric: FabricView) -> None:
    book, spec = PathBook(fabric), ring_job("a", across(1, 2))
    paths = book.plan(spec)
    book.hold(1, "a", spec, paths)
    book.hold(1, "a", spec, paths)
    assert counted(book, (spec, paths))


def test_failure_moves_only_what_crossed_the_link(fabric: FabricView) -> None:
    book = PathBook(fabric)
    jobs = {n: ring_job(f"j{n}", across(1 + n % 3, 2 + n % 3, 1 + n % 3)) for n in range(1, 13)}
    paths = {}
    for job_id, spec in jobs.items():
        paths[job_id] = book.plan(spec)
        book.hold(job_id, spec.name, spec, paths[job_id])
    broken = fabric_view(fabric.topology, {("tor2", 102)})
    book.rebase(broken)
    stale = book.stale()
    gone = {PathHop("tor2", 102), PathHop("spine2", 2)}
    assert stale == [n for n in jobs if any(gone & {*hops[:-1]} for hops in paths[n].values())]
    assert stale
    for job_id in stale:
        assert not book.valid(jobs[job_id], paths[job_id])
        new = book.replan(jobs[job_id], paths[job_id])
        for key, hops in paths[job_id].items():
            assert (new[key] != hops) is bool(gone & {*hops[:-1]})
        book.hold(job_id, jobs[job_id].name, jobs[job_id], new)
        paths[job_id] = new
    assert not book.stale()
    assert counted(book, *((jobs[n], paths[n]) for n in jobs))
    # The link works again: nobody moves until somebody asks.
    book.rebase(fabric)
    assert not book.stale()
    moved, _ = book.rebalance()
    for job_id, new in moved.items():
        book.hold(job_id, jobs[job_id].name, jobs[job_id], new)
    demands = [d for n in jobs for d in pair_demands(f"j{n}", jobs[n].rings)]
    assert max(book.load().values()) == plan_paths(fabric.planner, demands).max_relative


def test_moved_host_is_planned_again(fabric: FabricView) -> None:
    book, spec = PathBook(fabric), ring_job("a", ["h1-1", "h2-1", "h3-1"])
    paths = book.plan(spec)
    book.hold(1, "a", spec, paths)
    topology = fabric.topology
    ends = {"h2-1": "h4-1", "h4-1": "h2-1"}
    links = tuple(
        replace(link, b=replace(link.b, node=ends.get(link.b.node, link.b.node)))
        for link in topology.links
    )
    book.rebase(fabric_view(replace(topology, links=links)))
    assert book.stale() == [1]
    new = book.replan(spec, paths)
    assert new[PathKey("h1-1", "h2-1")][-1].switch == "tor4"
    assert new[PathKey("h3-1", "h1-1")] == paths[PathKey("h3-1", "h1-1")]


def test_what_no_path_reaches_is_stale_and_refused(fabric: FabricView) -> None:
    book, spec = PathBook(fabric), ring_job("a", ["h1-1", "h2-1"])
    paths = book.plan(spec)
    book.hold(1, "a", spec, paths)
    book.rebase(fabric_view(fabric.topology, {("tor1", port) for port in (101, 102, 103)}))
    assert book.stale() == [1]
    with pytest.raises(Unreachable, match="tor1"):
        book.replan(spec, paths)
    with pytest.raises(Unreachable):
        book.plan(ring_job("b", ["h1-1", "h3-1"]))
    with pytest.raises(PlanError, match="'nobody' is not in the fabric"):
        book.plan(ring_job("b", ["h1-1", "nobody"]))
    assert book.rebalance() == ({}, {})


def test_replanning_does_not_count_the_jobs_own_load(fabric: FabricView) -> None:
    book, spec = PathBook(fabric), ring_job("a", ["h1-1", "h2-1"], channels=(9,))
    paths = book.plan(spec)
    book.hold(1, "a", spec, paths)
    assert book.replan(spec, {}) == paths
    assert book.replan(spec, paths) == paths


def test_rebalancing_moves_what_stands_too_high_and_nobody_else(fabric: FabricView) -> None:
    book = PathBook(fabric)
    way = (PathHop("tor1", 101), PathHop("spine1", 2), PathHop("tor2", 1))
    back = (PathHop("tor2", 102), PathHop("spine2", 1), PathHop("tor1", 1))
    jobs = {n: ring_job(f"j{n}", [f"h1-{n}", f"h2-{n}"]) for n in range(1, 4)}
    for n, spec in jobs.items():
        last = [PathHop("tor2", n), PathHop("tor1", n)]
        paths = {
            PathKey(f"h1-{n}", f"h2-{n}"): (*way[:2], last[0]),
            PathKey(f"h2-{n}", f"h1-{n}"): (*back[:2], last[1]),
        }
        book.hold(n, spec.name, spec, paths)
    extra = ring_job("new", ["h1-4", "h3-4"])
    before = book.max_load()
    moved, mine = book.rebalance(extra)
    assert book.max_load() == before == 3
    assert len(moved) == 2
    assert book.valid(extra, mine)
    after = book.copy()
    for job_id, new in moved.items():
        after.hold(job_id, jobs[job_id].name, jobs[job_id], new)
    after.hold(9, "new", extra, mine)
    assert after.max_load() == 2
    assert after.rebalance() == ({}, {})
    assert book.max_load() == 3


def test_explanation_tells_links_bound_and_gain(fabric: FabricView) -> None:
    book = PathBook(fabric)
    first = ring_job("a", ["h1-1", "h2-1"], channels=(2,))
    book.hold(1, "a", first, book.plan(first))
    spec = ring_job("b", ["h1-2", "h2-2", "h1-3", "h2-3", "h1-4", "h1-1"])
    paths = book.plan(spec)
    report = book.explain(spec, paths)
    assert (report.inter_rack_edges, report.intra_rack_edges) == (4, 2)
    assert report.reason == ""
    # In units of the heaviest edge, of weight 2: 1 per edge is 0.5.
    assert report.max_load == report.bound == 0.5
    assert report.ecmp_max_load > 0.5
    assert report.gain == report.ecmp_max_load / 0.5
    assert sum(link.edges_after - link.edges_before for link in report.links) == 8
    assert sum(link.edges_ecmp - link.edges_before for link in report.links) == pytest.approx(8)
    uplink = next(link for link in report.links if link.src == "tor1:101")
    assert uplink.dst == "spine1:1"
    assert uplink.rate_bps == 10**10
    book.hold(2, "b", spec, paths)
    assert book.explain(spec, paths, without=2) == report


def test_explanation_says_why_there_is_no_plan(fabric: FabricView) -> None:
    book = PathBook(fabric)
    ecmp = ring_job("a", across(1, 2), paths=PathsChoice.ECMP)
    report = book.explain(ecmp, {})
    assert report.reason == "ECMP was asked for"
    assert (report.gain, report.max_load) == (1.0, report.ecmp_max_load)
    assert (
        "qp_per_step"
        in book.explain(
            ring_job("a", across(1, 2), traffic=Traffic(sender="qp_per_step")), {}
        ).reason
    )
    tag = ring_job("a", across(1, 2), match=MatchKind.TAG, tag=Tag(JobCarrier.DSCP, 3))
    assert "match by PAIR or DST_QP" in book.explain(tag, {}).reason
    local = book.explain(ring_job("a", ["h1-1", "h1-2"]), {})
    assert local.reason == "no edge leaves its rack: there is no path to choose"
    assert (local.links, local.gain, local.max_load, local.bound) == ((), 1.0, 0.0, 0.0)
