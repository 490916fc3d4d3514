"""What can be told and changed while a run is under way: operations, paths, the marker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ringstep_ns3 import _core as core


def program(
    build: Any,
    fabric: Any,
    count: int,
    size: int = 64_000,
    rings: list[list[int]] | None = None,
    **job: Any,
) -> Any:
    """A ring over all hosts, every hop across a spine, ``count`` times one after the other."""
    ops = [
        core.Op(kind="all_reduce", bytes_=size, rings=rings or [], after=[i - 1] if i else [])
        for i in range(count)
    ]
    return core.JobSpec(job_id=7, hosts=build.interleaved(fabric), ops=ops, **job)


def pin_to_first_spine(fabric: Any, hosts: list[int]) -> None:
    net = fabric.net
    ends = [net.link_ends(link) for link in range(2 * net.cables)]
    number = {pair: link for link, pair in enumerate(ends)}
    tor_of = {a: b for a, b in ends if a in fabric.hosts}
    spine = fabric.spines[0]
    for src, dst in zip(hosts, hosts[1:] + hosts[:1], strict=True):
        a, b = tor_of[src], tor_of[dst]
        path = [number[src, a], number[a, spine], number[spine, b], number[b, dst]]
        net.set_planned_path(src, dst, 0, path, job=7)


def up_packets(sim: Any, fabric: Any) -> np.ndarray[Any, Any]:
    """Data packets from ToRs to each spine."""
    links = sim.links()
    up = np.isin(links["src"], fabric.tors)
    return np.array(
        [links["data_packets"][up & (links["dst"] == spine)].sum() for spine in fabric.spines]
    )


def test_the_end_of_an_operation_is_told_when_its_last_rank_is_done(build: Any) -> None:
    fabric = build.leaf_spine(hosts_per_tor=2, tors=2, spines=2)
    sim = core.Simulation(fabric.net, build.transport())
    sim.add_job(program(build, fabric, 4, rank_delay_ns=[0, 0, 9_000, 0]))
    told: list[tuple[int, int, int]] = []
    sim.on_operation(lambda *what: told.append(what))
    sim.run()
    ends = sim.collectives()["end_ns"].tolist()
    assert told == [(7, op, end) for op, end in enumerate(ends)]


def test_nobody_listening_changes_nothing(build: Any) -> None:
    times = []
    for listen in (False, True):
        fabric = build.leaf_spine(hosts_per_tor=2, tors=2, spines=2)
        sim = core.Simulation(fabric.net, build.transport("hpcc_run"))
        sim.add_job(program(build, fabric, 3))
        sim.on_operation((lambda *_: None) if listen else None)
        sim.run()
        times.append(sim.flows()["end_ns"].tolist())
    assert times[0] == times[1]


@pytest.mark.parametrize("sender", ["qp_per_step", "persistent"])
def test_planned_paths_are_left_and_taken_at_an_operation(build: Any, sender: str) -> None:
    fabric = build.leaf_spine(hosts_per_tor=2, tors=2, spines=2)
    pin_to_first_spine(fabric, build.interleaved(fabric))
    sim = core.Simulation(fabric.net, build.transport(rto_ns=1_000_000))
    sim.add_job(program(build, fabric, 3, sender=sender))
    a, b = build.interleaved(fabric)[:2]
    assert sim.path(a, b, 0xC001, job=7) == sim.path(a, b, 0xC000, job=7)
    seen = [up_packets(sim, fabric)]

    def switch(_job: int, op: int, _time_ns: int) -> None:
        seen.append(up_packets(sim, fabric))
        sim.set_planned(7, op == 1)

    sim.on_operation(switch)
    sim.run()
    first, second, third = np.diff(seen, axis=0)
    assert first[1] == 0
    assert second[1] > 0
    # Ranks that were ahead may have sent a little of the next operation before.
    assert third[1] < second[1] / 4


def test_a_marker_that_is_switched_off_still_follows(build: Any) -> None:
    fabric = build.leaf_spine(
        hosts_per_tor=4, tors=2, spines=1, marking="marker", red=[build.red()]
    )
    on = core.MarkerParams(k=65_536, n_warmup=0, n_sample=0, q_gate_packets=None)
    off = core.MarkerParams(k=65_536, n_warmup=0, n_sample=0, q_gate_packets=None, enabled=False)
    sim = core.Simulation(fabric.net, build.transport("hpcc_run"))
    # Two rings over the same links, one slower than the other.
    rings = [[0, 3, 4, 7], [1, 2, 5, 6]]
    late = [100_000 * (rank in rings[1]) for rank in range(8)]
    sim.add_job(program(build, fabric, 4, 800_000, rings, marker=off, step_delay_ns=late))
    seen: list[tuple[int, int]] = []

    def switch(_job: int, op: int, _time_ns: int) -> None:
        markers = sim.markers()
        seen.append((int(markers["marks"].sum()), int(markers["data"].sum())))
        sim.set_marker(7, on if op == 1 else off)

    sim.on_operation(switch)
    sim.run()
    marks, data = np.array(seen).T
    assert marks[0] == marks[1] == 0
    assert marks[2] > 0
    assert marks[3] - marks[2] < marks[2] / 4
    assert (np.diff(data) > 0).all()


def test_an_exception_of_the_listener_ends_the_run_and_comes_out(build: Any) -> None:
    fabric = build.star(4)
    sim = core.Simulation(fabric.net, build.transport())
    sim.add_job(program(build, build.leaf_spine(hosts_per_tor=2, tors=2), 1))

    def broken(*_what: int) -> None:
        raise RuntimeError("broken")

    sim.on_operation(broken)
    with pytest.raises(RuntimeError, match="broken"):
        sim.run()
    assert sim.stats().stopped == "callback"
    assert sim.collectives()["op"].tolist() == [0]


def test_what_is_not_there_cannot_be_switched(build: Any) -> None:
    fabric = build.star(4)
    sim = core.Simulation(fabric.net, build.transport())
    sim.add_job(build.ring(fabric.hosts, 1000))
    with pytest.raises(ValueError, match="job = 2: no such job"):
        sim.set_planned(2, True)
    with pytest.raises(ValueError, match="job = 2: no such job"):
        sim.set_marker(2, core.MarkerParams())
    with pytest.raises(ValueError, match="job = 1: was added without a marker"):
        sim.set_marker(1, core.MarkerParams())
    marked = core.Simulation(fabric.net, build.transport())
    marked.add_job(build.ring(fabric.hosts, 1000, marker=core.MarkerParams()))
    with pytest.raises(ValueError, match="k = 65537"):
        marked.set_marker(1, core.MarkerParams(k=65_537))
