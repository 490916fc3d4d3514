"""Moves of running jobs: additions first, flips in between, removals last."""

from __future__ import annotations

from dataclasses import replace

import pytest
from leafspine import leaf_spine, ring_job

from ringstep.controller.desired import JobEntries, PlacedJob, block_keys, job_entries, lay_out
from ringstep.controller.fabricview import FabricView, fabric_view
from ringstep.controller.moves import plan_move
from ringstep.controller.paths import JobPaths, PathKey
from ringstep.fabric.planner import PathHop

SPEC = ring_job("a", ["h1-1", "h2-1"])


@pytest.fixture
def fabric() -> FabricView:
    return fabric_view(leaf_spine(2, 3, 1))


def by(spine: int) -> JobPaths:
    return {
        PathKey("h1-1", "h2-1"): (
            PathHop("tor1", 100 + spine), PathHop(f"spine{spine}", 2), PathHop("tor2", 1)
        ),
        PathKey("h2-1", "h1-1"): (
            PathHop("tor2", 103), PathHop("spine3", 1), PathHop("tor1", 1)
        ),
    }  # fmt: skip


def entries(fabric: FabricView, paths: JobPaths) -> JobEntries:
    blocks = {
        switch: {key: 100 + key for key in keys}
        for switch, keys in block_keys(fabric, SPEC, lay_out(fabric, SPEC, paths)).items()
    }
    return job_entries(fabric, PlacedJob(5, 3, SPEC, blocks, paths))


def test_move_to_another_spine_has_three_phases(fabric: FabricView) -> None:
    old, new = entries(fabric, by(1)), entries(fabric, by(2))
    move = plan_move(old, new)
    assert {switch: sorted(k.table for k in e) for switch, e in move.adds.items()} == {
        "spine2": ["block_map", "job_by_pair", "job_params"],
        "tor1": ["block_map"],
    }
    assert {s: [str(v) for v in e.values()] for s, e in move.flips.items()} == {
        "tor1": ["set_job(job=5, path_id=102)"]
    }
    assert {switch: sorted(k.table for k in e) for switch, e in move.removals.items()} == {
        "spine1": ["block_map", "job_by_pair", "job_params"],
        "tor1": ["block_map"],
    }


def test_phases_together_are_the_whole_way(fabric: FabricView) -> None:
    states = [entries(fabric, paths) for paths in (by(1), by(2), {})]
    for old in states:
        for new in states:
            move = plan_move(old, new)
            assert bool(move) is (old != new)
            here = {switch: dict(of_switch) for switch, of_switch in old.items()}
            for phase in (move.adds, move.flips):
                for switch, written in phase.items():
                    here.setdefault(switch, {}).update(written)
            for switch, gone in move.removals.items():
                for key, value in gone.items():
                    assert here[switch].pop(key) == value
            assert {s: e for s, e in here.items() if e} == new


def test_changed_parameters_and_blocks_come_before_the_flips(fabric: FabricView) -> None:
    old = entries(fabric, by(1))
    other = replace(SPEC, params=replace(SPEC.params, k=7))
    blocks = {
        s: {k: 900 + k for k in keys}
        for s, keys in block_keys(fabric, SPEC, lay_out(fabric, SPEC, by(1))).items()
    }
    new = job_entries(fabric, PlacedJob(5, 3, other, blocks, by(1)))
    move = plan_move(old, new)
    assert not move.flips
    assert not move.removals
    assert {key.table for e in move.adds.values() for key in e} == {"block_map", "job_params"}
