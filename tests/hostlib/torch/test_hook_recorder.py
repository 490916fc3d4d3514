"""Records of a group's collectives, from calls as torch's hooks get them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.shm_layout import Collective, RecordFlag

torch = pytest.importorskip("torch", reason="needs PyTorch; `pip install torch`")


class Kept:
    def __init__(self) -> None:
        self.slots: list[Any] = []

    def write_slots(self, slots: np.ndarray[Any, Any]) -> None:
        assert slots.dtype == lay.RECORD
        self.slots += list(slots)


class OnGpu:
    """As much of a CUDA tensor as the recorder looks at."""

    is_cuda = True

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class GpuWork:
    """NCCL's Work: events that may have passed, and the time between them."""

    def __init__(self, milliseconds: float | None) -> None:
        self.passed = False
        self.milliseconds = milliseconds

    def is_completed(self) -> bool:
        return self.passed

    def _get_duration(self) -> float:
        if self.milliseconds is None:
            raise RuntimeError("getDuration only works if timing was enabled")
        return self.milliseconds


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    from ringstep.hostlib.torch_records import Recorder

    return Recorder(Kept(), rank=3, comm=2)


def issue(recorder: Any, name: str, sent: list[Any], received: list[Any], work: Any) -> None:
    issue.op_id = getattr(issue, "op_id", 0) + 1  # type: ignore[attr-defined]
    call = SimpleNamespace(
        name=SimpleNamespace(name=name), input_tensors=sent, output_tensors=received,
        op_id=issue.op_id, work=work,  # type: ignore[attr-defined]
    )  # fmt: skip
    recorder.before(call)
    recorder.after(call)


def slots(recorder: Any) -> list[Any]:
    recorder.flush()
    return recorder._sink.slots


def test_work_on_the_gpu_is_reported_once_its_events_have_passed(recorder: Any) -> None:
    works = [GpuWork(1.5), GpuWork(None)]
    for work in works:
        issue(recorder, "ALLREDUCE", [OnGpu(4096)], [], work)
    assert not slots(recorder)
    works[0].passed = True
    (first,) = slots(recorder)
    assert first["duration_ns"] == 1_500_000
    assert first["flags"] == RecordFlag.GPU_TIMER
    assert (first["comm"], first["rank"], first["bytes"]) == (2, 3, 4096)
    works[1].passed = True
    _, second = slots(recorder)
    assert (second["flags"], second["duration_ns"]) == (RecordFlag.PARTIAL, 0)
    assert second["coll_seq"] == 1
    assert recorder.untimed == 1


def test_gpu_work_that_never_ends_is_given_up_and_not_kept(recorder: Any) -> None:
    for _ in range(1030):
        issue(recorder, "ALLREDUCE", [OnGpu(4)], [], GpuWork(1.0))
    assert recorder.given_up == 6
    assert not slots(recorder)


def test_captured_collectives_are_left_out(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for an event's state while a graph is captured would break the capture."""
    waiting = GpuWork(1.0)
    issue(recorder, "ALLREDUCE", [OnGpu(4)], [], waiting)
    waiting.passed = True
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    issue(recorder, "ALLREDUCE", [OnGpu(4)], [], GpuWork(1.0))
    assert not slots(recorder)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert [s["index"] for s in slots(recorder)] == [0]


@pytest.mark.parametrize(
    ("name", "func", "n_bytes"),
    [
        ("ALLREDUCE", Collective.ALL_REDUCE, 40),
        ("ALLGATHER", Collective.ALL_GATHER, 120),
        ("REDUCE_SCATTER", Collective.REDUCE_SCATTER, 120),
        ("BROADCAST", Collective.BROADCAST, 40),
        ("REDUCE", Collective.REDUCE, 40),
        ("ALLTOALL", 255, 40),
    ],
)
def test_bytes_are_of_the_larger_side(recorder: Any, name: str, func: int, n_bytes: int) -> None:
    small, large = [torch.zeros(10)], [torch.zeros(10)] * 3
    sent = large if name == "REDUCE_SCATTER" else small
    received = {"ALLGATHER": large, "REDUCE_SCATTER": small, "ALLTOALL": small}.get(name, [])
    issue(recorder, name, sent, received, None)
    (slot,) = slots(recorder)
    assert (slot["func"], slot["bytes"]) == (func, n_bytes)
    assert (slot["algo"], slot["proto"], slot["kind"]) == (255, 255, 1)


@pytest.mark.parametrize("name", ["BARRIER", "SEND", "RECV", "SPLIT", "SOMETHING_NEW"])
def test_other_operations_are_no_collectives(recorder: Any, name: str) -> None:
    issue(recorder, name, [torch.zeros(1)], [], None)
    assert not slots(recorder)


def test_a_failed_collective_has_no_record(recorder: Any) -> None:
    def fail(_future: Any) -> None:
        raise ValueError("peer lost")

    future = torch.futures.Future()
    issue(recorder, "ALLREDUCE", [torch.zeros(1)], [], SimpleNamespace(get_future=lambda: future))
    broken = torch.futures.Future()
    issue(
        recorder, "ALLREDUCE", [torch.zeros(1)], [],
        SimpleNamespace(get_future=lambda: broken.then(fail)),
    )  # fmt: skip
    broken.set_result(None)
    assert not slots(recorder)
    future.set_result([torch.zeros(1)])
    assert [s["coll_seq"] for s in slots(recorder)] == [0]


def test_work_that_cannot_tell_its_end_is_reported_without_a_duration(recorder: Any) -> None:
    def no_future() -> None:
        raise RuntimeError("Work::getFuture not implemented.")

    issue(recorder, "REDUCE_SCATTER", [torch.zeros(2)], [torch.zeros(1)],
          SimpleNamespace(get_future=no_future))  # fmt: skip
    (slot,) = slots(recorder)
    assert slot["flags"] == RecordFlag.PARTIAL
    assert recorder.untimed == 1


def test_what_is_quiet_is_not_recorded(recorder: Any) -> None:
    with recorder.quiet():
        issue(recorder, "ALLREDUCE", [torch.zeros(1)], [], None)
    issue(recorder, "ALLREDUCE", [torch.zeros(1)], [], None)
    assert [s["index"] for s in slots(recorder)] == [0]


def test_records_are_handed_over_in_batches_without_a_flush(recorder: Any) -> None:
    for _ in range(150):
        issue(recorder, "ALLREDUCE", [torch.zeros(1)], [], None)
    assert len(recorder._sink.slots) == 128
    assert len(slots(recorder)) == recorder.written == 150


def test_its_own_failures_do_not_reach_training(
    recorder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    recorder._sink = None
    for _ in range(3):
        issue(recorder, "ALLREDUCE", [torch.zeros(1)], [], None)
        recorder.flush()
    recorder.before(object())
    recorder.after(object())
    assert recorder.failures == 5
    assert [r.message for r in caplog.records] == ["telemetry is incomplete from here on"]
