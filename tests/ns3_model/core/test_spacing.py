"""The core's spacing of marks is the reference's, and it holds on the wire."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from ringstep_ns3 import _core as core

red = pytest.importorskip(
    "ringstep.protocol.red", reason="needs the package: pip install -e .", exc_type=ImportError
)


@pytest.mark.parametrize("gap", [0, 1, 20, 65535])
def test_the_core_follows_the_reference(gap: int) -> None:
    source = random.Random(gap)
    params = red.RedParams(10, 40, 0, gap)
    ours, reference = core.MarkSpacing(), red.MarkSpacing()
    now, spared = 0, 0
    for _ in range(4000):
        now += source.choice((0, 1, source.randrange(2 * gap + 2)))
        left = source.choice((0, 40, 80, 81, source.randrange(200)))
        stands = ours.stands(now_us=now, gap_us=gap, left=left, red_max=40)
        assert stands == reference.stands(params, now, left)
        spared += not stands
    assert (spared > 500) == (gap > 0)


def two_to_one(build: Any, gap: int, known: bool) -> Any:
    """Two hosts send to a third through one port; the run, and the marks of that port."""
    star = build.star(3, red=[build.red(high=2_000_000, p=1.0)], mark_gap_us=gap)
    sim = core.Simulation(star.net, build.transport("hpcc_run"), seed=1)
    for job, sender in enumerate(star.hosts[:2], start=1):
        op = core.Op(kind="send", bytes_=4_000_000, src=0, dst=1)
        sim.add_job(
            core.JobSpec(
                job_id=job, hosts=[sender, star.hosts[2]], ops=[op], known=known,
                marker=core.MarkerParams() if known else None,
            )
        )  # fmt: skip
    assert sim.run().finished
    return sim


def test_marks_on_jobs_are_fewer_and_no_closer_than_the_gap(build: Any) -> None:
    dense, spaced = (two_to_one(build, gap, True) for gap in (0, 50))
    ns = max(spaced.flows()["end_ns"])
    # Queues of this run stay below twice k_max, so the gap always holds.
    assert max(spaced.links()["max_queue_bytes"]) < 4_000_000
    assert 0 < spaced.stats().marks_red <= ns / 50_000 + 1
    assert spaced.stats().marks_red < dense.stats().marks_red


def test_jobs_that_the_switches_do_not_know_are_marked_as_ever(build: Any) -> None:
    plain, spaced = (two_to_one(build, gap, False) for gap in (0, 200))
    for name, column in plain.links().items():
        np.testing.assert_array_equal(column, spaced.links()[name], err_msg=name)
    np.testing.assert_array_equal(plain.flows()["end_ns"], spaced.flows()["end_ns"])


def test_a_marker_counts_what_it_said_and_the_port_what_it_did(build: Any) -> None:
    def run(gap: int) -> Any:
        fabric = build.leaf_spine(red=[build.red()], mark_gap_us=gap, marking="marker")
        sim = core.Simulation(fabric.net, build.transport("hpcc_run"), seed=3)
        marker = core.MarkerParams(k=65536, n_warmup=0, q_gate_packets=None)
        sim.add_job(build.ring(build.interleaved(fabric), 400_000, passes=3, marker=marker))
        assert sim.run().finished
        return sim

    plain, spaced = run(0), run(500)
    assert sum(plain.markers()["marks"]) == plain.stats().marks_marker
    assert 0 < spaced.stats().marks_marker < sum(spaced.markers()["marks"])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"mark_gap_us": -1}, "mark_gap_us = -1: must lie in 0..65535"),
        ({"mark_gap_us": 65536}, "mark_gap_us = 65536"),
        ({"mark_gap_us": 20, "red": []}, "needs RED, which tells when a queue is too deep"),
    ],
)
def test_gaps_that_make_no_sense_are_refused(build: Any, config: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build.star(2, **({"red": [build.red()]} | config))
