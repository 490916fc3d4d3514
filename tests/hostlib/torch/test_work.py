"""What is issued while a group is being shut down fails, and lets nobody wait."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

SOON = timedelta(seconds=20)


class Silent:
    """A communicator that is never used for a collective."""

    def abort(self) -> None:
        """Nothing runs."""

    def close(self) -> None:
        """Nothing is open."""


def test_what_is_submitted_after_the_end_was_asked_for_is_refused() -> None:
    """Also while what was submitted before still runs."""
    from ringstep.hostlib.torch_work import EngineWork, Step, Worker

    go_on = threading.Event()

    def connect() -> Any:
        return Silent()

    def run(_comm: Any) -> None:
        go_on.wait(30)

    engine: Any = None
    worker = Worker("group", engine, connect)
    before, after = EngineWork("before", 1, []), EngineWork("after", 2, [])
    worker.submit(before, [Step(run)])
    worker.stop(timeout_s=0.0)
    with pytest.raises(dist.DistBackendError, match="after: the process group was shut down"):
        worker.submit(after, [Step(run)])
    go_on.set()
    assert before.wait(SOON)


@pytest.mark.usefixtures("engine_built")
def test_a_coalescing_block_that_cannot_be_issued_ends_its_parts() -> None:
    from ringstep.hostlib.torch_backend import Options, RingstepProcessGroup

    group = RingstepProcessGroup(dist.HashStore(), 0, 1, 30.0, Options())
    group.start_coalescing()
    part = group.allreduce([torch.ones(2)])
    group.shutdown()
    with pytest.raises(dist.DistBackendError, match="shut down"):
        group.end_coalescing()
    with pytest.raises(dist.DistBackendError, match="shut down"):
        part.wait(SOON)
