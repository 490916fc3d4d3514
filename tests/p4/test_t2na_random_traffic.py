"""Random traffic of three jobs: the source of the Tofino 2 program against the reference."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from committed_program import JOB_COUNTERS, host
from random_jobs import PORTS, Job, next_packet, random_params
from sample_frames import frame
from t2na_program import WORD, Bench

from ringstep.protocol.marker import Marker, ProgressMode, Scope
from ringstep.protocol.p4tables import MARK_ERROR
from ringstep.protocol.rocev2 import build, is_last, parse

PACKETS = 400
US, TICKS = 32, 125
"""A microsecond is 32 us here: 125 ticks, so that window ends are not rounded."""


def install(bench: Bench, job: Job) -> None:
    params = job.marker.params.to_table()
    params["t_win"] *= US
    bench.set_params(job.number, params)
    for port in PORTS:
        bench.job_by_dst_qp(host(port), job.number, job.number)
        bench.block_map(job.number, port, job.block(port))


@pytest.mark.parametrize("seed", range(6))
def test_three_jobs_agree_with_three_references(seed: int) -> None:
    source = random.Random(seed)
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
        install(bench, job)
    now = source.getrandbits(48)
    marked = dict.fromkeys((1, 2, 16383), 0)
    for turn in range(PACKETS):
        now += source.choice([1, 1, 3, 40, 500])
        job = source.choice(jobs)
        if source.random() < 0.02:
            changed = random_params(source)
            job.marker.update(k=changed.k or 1, alpha_max=changed.alpha_max)
            if source.random() < 0.3:
                job.marker.update(generation=changed.generation)
            install(bench, job)
        opcode, step, psn = next_packet(job, source)
        port, ecn = source.choice(PORTS), source.choice([0, 1, 2, 2, 2, 3])
        bench.draw = source.choice([0, source.getrandbits(16), source.getrandbits(12)])
        layout = job.marker.params.layout
        data = build(
            frame(
                opcode, dst_ip=host(port), sport=layout.sport(step), psn=psn,
                dest_qp=job.number, ecn=ecn,
            )
        )  # fmt: skip
        out = bench.send(data, now_ns=now * US * 1000)
        decision = job.marker.on_packet(
            now & (1 << 48) - 1, step & layout.step_mask, psn, is_last(opcode),
            ecn in (1, 2), bench.draw, port=port,
        )  # fmt: skip
        block = job.marker.block(port)
        if bench.mark != decision.mark:
            left = bench.draw * block.psn_rec
            right = job.marker.params.k * block.alpha * decision.progress
            assert abs(Fraction(left, right) - 1) <= MARK_ERROR, turn
        assert out is not None
        assert parse(out[1]).ecn == (3 if bench.mark and ecn in (1, 2) else ecn), turn
        marked[job.number] += bench.mark and ecn in (1, 2)
        expected = block.as_dict()
        ticks = now - ((now - block.win_start) & (1 << 48) - 1)
        expected["win_start"] = ticks * TICKS & WORD
        assert bench.block(job.block(port), layout.step_bits) == expected, turn
    assert marked[1]
    for job in jobs:
        counted = {f: bench.counter(alias, job.number) for f, alias in JOB_COUNTERS.items()}
        reference = {f: getattr(job.marker.counters, f) for f in JOB_COUNTERS}
        assert counted == reference | {"marks": marked[job.number]}
        for slot, anchor in enumerate(job.marker.anchors):
            found = bench.anchor(job.number, slot)
            assert found == (anchor.generation, anchor.step, anchor.base)
