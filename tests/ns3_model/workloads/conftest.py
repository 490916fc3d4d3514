"""A tiny clock for programs: every operation takes a given time and starts when it may."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ringstep_ns3.workloads import ProgramOp

Clock = Callable[[Sequence[ProgramOp], Callable[[ProgramOp], int]], list[int]]


@pytest.fixture
def finish_times() -> Clock:
    """When each operation of a program ends, all ranks in step."""

    def run(
        operations: Sequence[ProgramOp], collective_ns: Callable[[ProgramOp], int]
    ) -> list[int]:
        ends: list[int] = []
        for operation in operations:
            start = max((ends[other] for other in operation.after), default=0)
            compute = operation.kind == "compute"
            ends.append(
                start + (max(operation.compute_ns) if compute else collective_ns(operation))
            )
        return ends

    return run
