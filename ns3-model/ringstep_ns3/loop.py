"""The closed loop in a run: per job, which arm its epochs take, and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from ringstep.protocol.loop import Arm, ClosedLoop, LoopParams
from ringstep.protocol.marker import MarkerParams

LOOP_KEYS: Final = tuple(f.name for f in fields(LoopParams) if f.name != "seed")
"""Keys of [loop] that are parameters of the algorithm."""


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """What an arm sets for a job; ``marker`` None: the job has none."""

    planned: bool
    marker: MarkerParams | None


@dataclass(frozen=True)
class LoopPlan:
    """What the closed loop of a job chooses from; an epoch is ``epoch_ops`` operations."""

    arms: Mapping[str, ArmPlan]
    safe: str
    start: str
    params: LoopParams
    epoch_ops: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch that is over; times in ns, ``account`` in safe epochs, both after it."""

    job: int
    epoch: int
    arm: str
    in_force: str
    start_ns: int
    end_ns: int
    account: float

    @property
    def cct_ns(self) -> int:
        """What it took, computation included."""
        return self.end_ns - self.start_ns


class JobLoop:
    """The loop of one job while it runs.

    An epoch is over when the last rank is done with all its operations; the next arm holds for what
    is sent from then on. Ranks that are ahead have sent a little of the next epoch by then.
    """

    def __init__(self, job: int, ops: int, start_ns: int, plan: LoopPlan) -> None:
        params = asdict(plan.params)
        self.job = job
        self.plan = plan
        self.loop = ClosedLoop([Arm(name) for name in plan.arms], plan.safe, plan.start, **params)
        self.epochs: list[Epoch] = []
        self.arm = self.loop.next_arm().name
        self._left = [min(plan.epoch_ops, ops - first) for first in range(0, ops, plan.epoch_ops)]
        self._start_ns = start_ns

    def done(self, op: int, time_ns: int) -> bool:
        """Take that an operation is done by all ranks; return whether the arm may have changed."""
        self._left[op // self.plan.epoch_ops] -= 1
        number = len(self.epochs)
        if number == len(self._left) or self._left[number]:
            return False
        # Epochs may overlap; what ended earlier than the one before counts from there.
        end_ns = max(time_ns, self._start_ns + 1)
        self.loop.observe(self.arm, end_ns - self._start_ns)
        self.epochs.append(
            Epoch(
                self.job,
                number + 1,
                self.arm,
                self.loop.in_force,
                self._start_ns,
                end_ns,
                self.loop.account,
            )
        )
        self._start_ns = end_ns
        self.arm = self.loop.next_arm().name
        return True

    @property
    def settings(self) -> ArmPlan:
        """What the arm of the epoch under way sets."""
        return self.plan.arms[self.arm]

    def summary(self) -> dict[str, Any]:
        """Return what came out, as plain data."""
        state = self.loop.state
        safe_ns = state.safe_time
        return {
            "epochs": state.epochs,
            "time_ns": sum(epoch.cct_ns for epoch in self.epochs),
            "in_force": state.in_force,
            "proven": state.proven,
            "booked_epochs": round(state.booked, 6),
            "booked_ns": None if safe_ns is None else round(state.booked * safe_ns),
            "account_epochs": round(state.account, 6),
            "safe_epoch_ns": None if safe_ns is None else round(safe_ns),
            "arms": {
                name: {
                    "epochs": found.epochs,
                    "time_ns": round(found.time),
                    "change": _rounded(found.change),
                    "low": _rounded(found.low),
                    "high": _rounded(found.high),
                }
                for name, found in state.estimates.items()
            },
            "reason": state.reason,
        }


def epoch_columns(loops: Sequence[JobLoop]) -> dict[str, list[object]]:
    """Return the columns of the table ``epochs``."""
    rows = [epoch for loop in loops for epoch in loop.epochs]
    names = (*(f.name for f in fields(Epoch)), "cct_ns")
    return {name: [getattr(epoch, name) for epoch in rows] for name in names}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
