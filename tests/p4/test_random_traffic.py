"""Random traffic of several jobs: the committed program against the reference, packet for packet.

The golden vectors are scenes that somebody thought of; this is what nobody thought of.
"""

from __future__ import annotations

import random

import pytest
from committed_program import JOB_COUNTERS, Bench, host
from random_jobs import PORTS, Job, next_packet, random_params
from sample_frames import frame

from ringstep.protocol.marker import (
    LATENESS_US,
    JobCounters,
    Marker,
    MarkerParams,
    ProgressMode,
    Scope,
)
from ringstep.protocol.rocev2 import build, is_last, parse

PACKETS = 600


def install(bench: Bench, job: Job, v6: bool) -> None:
    bench.job_params(job.number, job.marker.params)
    for port in PORTS:
        bench.job_by_dst_qp(host(port, v6), job.number, job.number)
        bench.block_map(job.number, port, job.block(port))


@pytest.mark.parametrize("v6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("seed", range(6))
def test_three_jobs_agree_with_three_references(seed: int, v6: bool) -> None:
    source = random.Random(seed * 2 + v6)
    bench = Bench()
    bench.hosts(*PORTS)
    jobs = [
        Job(
            number,
            Marker(random_params(source), source.choice(list(Scope))),
            source.getrandbits(14),
            source.getrandbits(24) if number > 1 else 0,
        )
        for number in (1, 2, 16383)
    ]
    # One job that certainly has something to mark.
    jobs[0].marker.update(
        k=40_000, t_win=2000, n_warmup=1, q_gate=None, enabled=True, mode=ProgressMode.PER_STEP
    )
    for job in jobs:
        install(bench, job, v6)
    now = source.getrandbits(48)
    marked = 0
    for turn in range(PACKETS):
        now += source.choice([1, 1, 3, 40, 500])
        job = source.choice(jobs)
        if source.random() < 0.02:
            changed = random_params(source)
            job.marker.update(
                k=changed.k or 1,
                alpha_max=changed.alpha_max,
                enabled=changed.enabled or job is jobs[0],
            )
            if source.random() < 0.3:
                job.marker.update(generation=changed.generation)
            install(bench, job, v6)
        opcode, step, psn = next_packet(job, source)
        port, ecn = source.choice(PORTS), source.choice([0, 1, 2, 2, 2, 3])
        bench.draw.value = source.choice([0, source.getrandbits(16), source.getrandbits(12)])
        sport = job.marker.params.layout.sport(step)
        data = build(
            frame(
                opcode, v6=v6, dst_ip=host(port, v6), sport=sport, psn=psn,
                dest_qp=job.number, ecn=ecn,
            )
        )  # fmt: skip
        ((_, left),) = bench.send(data, now)
        decision = job.marker.on_packet(
            now & (1 << 48) - 1, step & job.marker.params.layout.step_mask, psn, is_last(opcode),
            ecn in (1, 2), bench.draw.value, port=port,
        )  # fmt: skip
        marked += decision.ce
        assert parse(left).ecn == (3 if decision.ce else ecn), turn
        for other in jobs:
            for at in PORTS:
                key = at if other.marker.scope is Scope.PORT else 0
                if key in other.marker.blocks:
                    expected = other.marker.block(at).as_dict()
                    assert bench.block(other.block(at)) == expected, (turn, other.number, at)
            for slot, anchor in enumerate(other.marker.anchors):
                found = bench.anchor(other.number, slot)
                assert found == (anchor.generation, anchor.step, anchor.base), (turn, slot)
    assert marked
    for job in jobs:
        counted = {f: bench.counter(alias, job.number) for f, alias in JOB_COUNTERS.items()}
        assert JobCounters(**counted) == job.marker.counters


@pytest.mark.parametrize("late", [1, 50, LATENESS_US, LATENESS_US + 1, 1 << 40])
def test_a_time_from_before_the_window_ends_it_where_the_reference_says(late: int) -> None:
    bench, marker = Bench(), Marker(MarkerParams(t_win=50), Scope.SWITCH)
    bench.hosts(1, 2)
    bench.job_params(1, marker.params)
    for port, now in ((1, 1 << 41), (2, (1 << 41) - late), (2, (1 << 41) - late + 49)):
        bench.job_by_dst_qp(host(port), 1, 1)
        bench.block_map(1, port, 4)
        bench.send(build(frame(dst_ip=host(port), sport=0xC003, psn=9, dest_qp=1)), now)
        marker.on_packet(now, 3, 9, False, True, 0, port=port)
        assert bench.block(4) == marker.block(port).as_dict()
