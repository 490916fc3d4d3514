from __future__ import annotations

import pytest

from ringstep.hostlib.dynamic.actions import Config
from ringstep.hostlib.evaluate.engine.calls import Call, joined
from ringstep.hostlib.evaluate.engine.training import Switch, TrainingRun, switches
from ringstep.hostlib.evaluate.engine.training_table import TrainingParams, compare, rows
from ringstep.hostlib.shm import Record
from ringstep.hostlib.shm_layout import Algo, Collective, Proto, RecordFlag


def run(policy: str, seed: int, contended_ms: float, **more: object) -> TrainingRun:
    steps = [100.0] * 5 + [contended_ms] * 5
    begins = [1_000 * i for i in range(10)]
    return TrainingRun(
        policy, 0.8, 5, 4, 200e6, seed, 1_000, steps, begins, [4.0, *[1.0 + 1e-6 * seed] * 9],
        5_000, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def record(index: int, rank: int, *, epoch: int = 0, duration_ns: int = 1_000) -> Record:
    return Record(
        0, rank, Collective.ALL_REDUCE, Algo.RING, Proto.SIMPLE, 2, 1 << 20, index, index, epoch,
        10 * index + rank, duration_ns, 0, RecordFlag.DECIDED if epoch else RecordFlag(0),
    )  # fmt: skip


def call(index: int, epoch: int, start_ns: int) -> Call:
    config = Config(Algo.RING, Proto.SIMPLE, 2)
    return Call(index, Collective.ALL_REDUCE, 1 << 20, config, epoch > 0, epoch, start_ns, 1.0,
                1.0, alike=True)  # fmt: skip


def test_policies_are_paired_with_nccl_by_seed() -> None:
    switch = Switch(3, 4_000, 6_000, 7)
    found = rows(
        {
            "nccl": [run("nccl", 0, 400.0), run("nccl", 1, 800.0)],
            "dynamic:some": [
                run("dynamic:some", 0, 200.0, switches=[switch]),
                run("dynamic:some", 1, 400.0, switches=[switch]),
            ],
        }
    )
    nccl, dynamic = found
    assert nccl["step_ms"]["value"] == 600.0
    assert nccl["gain_pct"] is None
    assert dynamic["gain_pct"]["value"] == pytest.approx(50.0)
    assert dynamic["clean_step_ms"]["value"] == 100.0
    assert (dynamic["policy"], dynamic["argument"]) == ("dynamic", "some")
    assert dynamic["reconfigurations"] == dynamic["false_reconfigurations"] == 1
    assert dynamic["calls_late"] == 7
    assert dynamic["loss_distance"] == 0.0


def test_a_call_counts_once_every_rank_told_of_it() -> None:
    told = [record(1, 0), record(1, 1, duration_ns=5_000), record(2, 0)]
    (found,) = joined(told, 2)
    assert found.index == 1
    assert (found.latency_us, found.fastest_us) == (5.0, 1.0)
    assert found.alike
    (found,) = joined([record(4, 0, epoch=1), record(4, 1, epoch=2)], 2)
    assert not found.alike


def test_a_switch_is_late_by_the_calls_that_began_before_it_was_in_force() -> None:
    events = [
        (100, {"event": "offer", "node": "n0", "epoch": 1}),
        (101, {"event": "offer", "node": "n1", "epoch": 1}),
        (400, {"event": "applied", "node": "n0", "epoch": 1}),
        (500, {"event": "applied", "node": "n1", "epoch": 1}),
        (600, {"event": "offer", "node": "n0", "epoch": 2}),
    ]
    calls = [call(1, 0, 50), call(2, 0, 150), call(3, 0, 250), call(4, 1, 350), call(5, 1, 700)]
    assert switches(events, calls, 2) == [Switch(1, 100, 500, 2), Switch(2, 600, None, None)]
    assert Switch(1, 100, 500, 2).apply_ms == pytest.approx(4e-4)


def test_senseless_comparisons_are_refused() -> None:
    with pytest.raises(ValueError, match="each once"):
        compare(["nccl", "nccl"], 1)
    with pytest.raises(ValueError, match="seeds = 0"):
        compare(["nccl"], 0)
    with pytest.raises(ValueError, match="onset = 119: 3 to 118"):
        TrainingParams(onset=119)
    with pytest.raises(ValueError, match="level = 0"):
        TrainingParams(level=0)
