"""A model really trained under contention: short, on two hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch; `pip install ringstep[train]`")

from ringstep.hostlib.evaluate.engine.job import TrainingError
from ringstep.hostlib.evaluate.engine.training import (
    TrainingRun,
    distance,
    train_under_contention,
)
from ringstep.hostlib.native.build import missing_tools
from ringstep.hostlib.nethosts import NetHostsError, missing
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

Train = Callable[..., TrainingRun]
SMALL = {"width": 64, "layers": 1, "batch": 2, "bucket_mb": 0.05}


@pytest.fixture
def train() -> Train:
    if (why := missing_tools("C++") or missing_tools()) is not None:
        pytest.skip(why)

    def call(policy: str, steps: int = 14, onset: int = 7, **more: float) -> TrainingRun:
        try:
            return train_under_contention(
                policy,
                0.8,
                steps,
                onset,
                nodes=2,
                **SMALL,
                **more,  # type: ignore[arg-type]
            )
        except NetHostsError as error:
            pytest.skip(f"no namespaces here: {error}")

    return call


def test_a_decision_reaches_all_ranks_and_changes_nothing_of_what_is_learned(
    train: Train, tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("collective,bytes,algorithm,protocol,channels\nallreduce,4KiB..,tree,ll,2\n")
    plain, fixed = train("none"), train(f"fixed:{table}")
    assert plain.calls == []
    assert plain.switches == []
    assert plain.loss[-1] < plain.loss[0]
    assert distance(fixed, plain) < 1e-3
    assert fixed.problems == []
    assert fixed.fault is None
    (switch,) = fixed.switches
    assert switch.applied_ns is not None
    assert switch.calls_late is not None
    decided = [call for call in fixed.calls if call.decided]
    assert all(call.alike for call in fixed.calls)
    assert {(c.config.algo, c.config.proto, c.config.n_channels) for c in decided} == {
        (Algo.TREE, Proto.LL, 2)
    }
    assert {call.epoch for call in decided} == {switch.epoch}
    gradients = [c for c in fixed.calls if c.collective is Collective.ALL_REDUCE]
    assert len(gradients) > 14


def test_contention_begins_with_the_step_that_was_asked_for(train: Train) -> None:
    seen: list[int] = []
    run = train("nccl", steps=8, onset=4, progress=seen.append)
    assert seen == list(range(1, 9))
    assert len(run.step_ms) == len(run.loss) == 8
    assert run.onset_ns is not None
    assert run.step_ns[3] < run.onset_ns
    assert 3 <= len(run.contended_ms) <= 4
    assert run.switches == []
    assert run.parameters > 10_000


def test_a_coordinator_that_does_not_start_is_named(train: Train) -> None:
    with pytest.raises(TrainingError, match=r"coordinator 0 ended.*nothing-known"):
        train("nothing-known")


def test_arguments_that_make_no_sense_are_refused(train: Train) -> None:
    with pytest.raises(ValueError, match="steps = 0"):
        train("nccl", steps=0)
    with pytest.raises(ValueError, match="level = 2: 0 to 1"):
        train_under_contention("nccl", 2, 4, 2)
