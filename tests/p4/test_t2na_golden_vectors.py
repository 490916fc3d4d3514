"""Every golden vector through the source of the Tofino 2 program, packet for packet.

All state but alpha must be what the reference says, in every row. Alpha must be what the balance
says (below), and that must be what the reference says wherever tau stays as it is. A mark may
differ from the reference's only where the two sides of ``r * psn_rec < K * alpha * psn`` are closer
than the error of the logarithms.

A microsecond of the vectors is 32 us here: 125 ticks, so that window ends are not rounded.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import marker_vectors
import pytest
from committed_program import JOB_COUNTERS, host
from marker_reference import ReferenceJobs, params_of
from marker_vectors import Packet, Settings
from sample_frames import frame
from t2na_program import Bench

from ringstep.protocol.p4tables import MARK_ERROR
from ringstep.protocol.rocev2 import Opcode, build, parse

VECTORS = {vector.name: vector for vector in marker_vectors.load_all()}
US = 32
TICKS = 125
CELLS = 8
UNREGISTERED_QP = 0x99
TAU_CHANGES = {"tau_zero_and_one", "parameters_change_while_running"}


def qp_of(job: int) -> int:
    return 0x10000 + job if job else UNREGISTERED_QP


class Balance:
    """Alpha of one block as the pipeline means to follow it: tau counts packet by packet."""

    def __init__(self) -> None:
        self.alpha = self.total = self.balance = 0
        self.window: tuple[int, int] = (-1, -1)

    def take(self, row: Packet, job: dict[str, str], before: int) -> int:
        """Return alpha after a row; ``before`` is cnt_op before it."""
        state = row.state
        num, den = int(job["tau_num"]), int(job["tau_den"])
        window = state["generation"], state["win_start"]
        begins = window != self.window
        ahead = state["cnt_op"] - (0 if begins else before)
        gain = den - num if ahead else -num
        if window[0] != self.window[0]:
            self.alpha = 1
        elif begins and self.total > int(job["n_sample"]):
            if self.balance >= 0:
                self.alpha = min(self.alpha + 1, int(job["alpha_max"]))
            else:
                self.alpha = max(self.alpha - 1, 1)
        self.total = 1 if begins else self.total + 1
        self.balance = gain if begins else self.balance + gain
        self.window = window
        return self.alpha


class Replay:
    """Sends the rows of a vector through the pipe and knows what the registers must hold."""

    def __init__(self, name: str, v6: bool) -> None:
        self.v6 = v6
        self.bench = Bench()
        self.ports = sorted({packet.port for packet in VECTORS[name].packets})
        self.bench.hosts(*self.ports)
        self.turns = 0
        self.last_now = 0
        self.blocks: dict[int, dict[str, int]] = {}
        self.balances: dict[int, Balance] = {}

    def configure(self, settings: Settings, jobs: set[int]) -> None:
        for job in jobs:
            params = params_of(settings.jobs[job]).to_table()
            params["t_win"] = min(params["t_win"] * US, (1 << 32) - 1)
            self.bench.set_params(job, params)
            for port in self.ports:
                self.bench.job_by_dst_qp(host(port, self.v6), qp_of(job), job)
        for (job, port), block in settings.blocks.items():
            self.bench.block_map(job, port, block)
        if settings.red_above is not None:
            for port in self.ports:
                self.bench.red(port, settings.red_above, settings.red_above, 0)

    def send(self, row: Packet) -> bytes:
        if row.now_us < self.last_now:
            self.turns += 1
        self.last_now = row.now_us
        self.bench.draw = row.r
        data = build(
            frame(
                Opcode[row.opcode],
                v6=self.v6,
                dst_ip=host(row.port, self.v6),
                sport=row.sport,
                psn=row.psn,
                dest_qp=qp_of(row.job),
                ecn=row.ecn,
            )
        )
        now = (row.now_us + (self.turns << 48)) * US
        out = self.bench.send(data, now_ns=now * 1000, qdepth_cells=row.qdepth * CELLS)
        assert out is not None
        assert out[0] == row.port
        return out[1]

    def expect(self, row: Packet, job: dict[str, str]) -> dict[str, int]:
        """Return what the block must hold after a row."""
        assert row.block is not None
        state = row.state
        turns = self.turns - (state["win_start"] > row.now_us)
        balance = self.balances.setdefault(row.block, Balance())
        before = self.blocks.get(row.block, {}).get("cnt_op", 0)
        wanted = state | {
            "win_start": (state["win_start"] + (turns << 48)) * TICKS % (1 << 32),
            "alpha": balance.take(row, job, before),
        }
        self.blocks[row.block] = wanted
        return wanted


def is_close(row: Packet, job: dict[str, str], alpha: int) -> bool:
    """Say whether the two sides of the comparison differ by less than the logarithms may."""
    assert row.progress is not None
    left = row.r * row.state["psn_rec"]
    right = int(job["k"]) * alpha * row.progress
    return right > 0 and abs(Fraction(left, right) - 1) <= Fraction(MARK_ERROR).limit_denominator()


@pytest.mark.parametrize("v6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("name", VECTORS)
def test_program_agrees_in_every_row(name: str, v6: bool) -> None:
    replay = Replay(name, v6)
    bench = replay.bench
    reference = ReferenceJobs()
    anchors: dict[tuple[int, int], Any] = {}
    marks: dict[int, int] = {}
    close = []
    for settings, changed, row in VECTORS[name].replay():
        where = f"{name}.txt, line {row.line}"
        if changed:
            replay.configure(settings, {job for job, _ in changed})
        reference.take(settings, changed)
        reference.packet(settings, row)
        before = bench.state()
        left = parse(replay.send(row))
        if row.block is None:
            assert left.ecn == row.ecn_out, where
            assert bench.state() == before, where
            continue
        job = settings.jobs[row.job]
        wanted = replay.expect(row, job)
        got = bench.block(row.block, int(job["step_bits"]))
        assert got == wanted, where
        if name not in TAU_CHANGES:
            assert wanted["alpha"] == row.state["alpha"], where
        if job["mode"] == "anchored":
            assert row.step is not None
            anchors[row.job, row.step % 4] = row.state["generation"], row.step, row.base
        mark, ect = bench.mark, row.ecn in (1, 2)
        if mark != row.mark:
            close.append(row.line)
            same_alpha = wanted["alpha"] == row.state["alpha"]
            assert not same_alpha or is_close(row, job, wanted["alpha"]), where
        assert left.ecn == (3 if ect and (mark or row.red) else row.ecn), where
        marks[row.job] = marks.get(row.job, 0) + (mark and ect)
    for (job_id, slot), anchor in anchors.items():
        assert bench.anchor(job_id, slot) == anchor
    for job_id, marker in reference.markers.items():
        counted = {field: bench.counter(alias, job_id) for field, alias in JOB_COUNTERS.items()}
        expected = {field: getattr(marker.counters, field) for field in JOB_COUNTERS}
        expected["marks"] = marks.get(job_id, 0)
        assert counted == expected, f"{name}, counters of job {job_id}"
    assert len(close) == CLOSE.get(name, 0), (name, close)


CLOSE = {"exact_threshold": 5, "k_one": 1, "late_start": 1, "psn_wrap_per_step": 1}
"""Rows whose mark differs: the vectors put the two sides next to one another on purpose."""


def test_the_vectors_leave_their_mark() -> None:
    # A comparison that is never decided would prove nothing.
    decided = [
        row.mark
        for name, vector in VECTORS.items()
        for row in vector.packets
        if row.block is not None and name not in CLOSE
    ]
    assert sum(decided) > 100
    assert len(decided) - sum(decided) > 100
