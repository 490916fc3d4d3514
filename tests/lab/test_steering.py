"""Source ports that lead over the wanted links, by the switches' own hash."""

from collections import Counter

import pytest

from ringstep.fabric.topology import parse_topology
from ringstep.fabric.turns import turned
from ringstep.lab.leafspine import LeafSpine
from ringstep.lab.steering import LAYOUT, NoPortFound, Paths, Steering


def steering(fabric: LeafSpine) -> Steering:
    return Steering(parse_topology(fabric.topology_toml({}), "lab"), fabric.striped_ring())


def test_planned_paths_leave_the_ports_alone() -> None:
    lab = steering(LeafSpine())
    assert Paths.PLANNED.pinned
    for step in (0, 1, 13, 255, 300):
        sport = lab.sport(Paths.PLANNED, 0, step, tag=5)
        assert LAYOUT.step_of(sport) == step % 256
        assert sport == lab.sport(Paths.ECMP, 3, step, tag=5)


def test_turning_ports_take_the_next_way_with_each_step() -> None:
    lab = steering(LeafSpine())
    for rank in range(8):
        (planned,) = [e for key, e in lab.plan.edges.items() if key.index == rank]
        for step in (0, 1, 2, 13, 255, 300):
            sport = lab.sport(Paths.TURNING, rank, step, tag=0)
            assert LAYOUT.step_of(sport) == step % 256
            assert lab.route(*lab.edge(rank), sport) == turned(lab.plan, planned, step)


def test_no_uplink_carries_more_than_its_share_of_turning_edges() -> None:
    lab = steering(LeafSpine())
    for step in range(14):
        uplinks = Counter(
            lab.route(*lab.edge(rank), lab.sport(Paths.TURNING, rank, step, tag=9))[0]
            for rank in range(8)
        )
        assert set(uplinks.values()) == {1}


def test_ecmp_hashes_each_step_anew_and_collides() -> None:
    lab = steering(LeafSpine())
    ways = {lab.route(*lab.edge(0), lab.sport(Paths.ECMP, 0, s, tag=3)) for s in range(32)}
    assert len(ways) == 2
    most = [
        max(
            Counter(
                lab.route(*lab.edge(rank), lab.sport(Paths.ECMP, rank, step, tag=3))[0]
                for rank in range(8)
            ).values()
        )
        for step in range(14)
    ]
    assert max(most) == 2


def test_too_many_spines_for_the_ports_are_told() -> None:
    lab = steering(LeafSpine(hosts=4, leaves=2, spines=32, oversubscription=0.1))

    def search() -> None:
        for step in range(200):
            lab.sport(Paths.TURNING, 0, step, tag=0)

    with pytest.raises(NoPortFound, match="fewer spines"):
        search()
