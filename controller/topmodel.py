"""What ``ringstep top`` knows: live jobs, what each switch last said of them, and rates from that.

No terminal here: events go in, rows come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ringstep.controller.client import phase_text
from ringstep.controller.v1 import jobs_pb2

_GONE = frozenset({jobs_pb2.JOB_EVENT_KIND_RELEASED, jobs_pb2.JOB_EVENT_KIND_EXPIRED})
_COUNTERS = ("data", "marks", "red_marks", "corrections", "advances")
Key = tuple[int, int]
"""Job_ID and generation: a job that is registered anew is another one."""


class SortKey(StrEnum):
    """Columns that rows are sorted by: names ascending, numbers the greatest first."""

    JOB = "job"
    SWITCH = "switch"
    STEPS = "steps"
    ALPHA = "alpha"
    MARKS = "marks"
    RED = "red"
    CORRECTIONS = "corrections"
    DATA = "data"
    LEASE = "lease"


@dataclass(frozen=True, slots=True)
class Row:
    """One job at one switch; None: not known (yet).

    ``step_min`` and ``psn_rec`` are those of the port that is furthest behind, ``alpha`` is the
    highest of all ports. ``lease_left_s`` is None without a lease.
    """

    job: str
    job_id: int
    generation: int
    tenant: str
    switch: str
    phase: str
    step_min: int | None = None
    psn_rec: int | None = None
    alpha: int | None = None
    steps_per_s: float | None = None
    marks_per_s: float | None = None
    red_marks_per_s: float | None = None
    corrections_per_s: float | None = None
    data_pps: float | None = None
    lease_left_s: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the row with stable keys."""
        return asdict(self)


@dataclass(slots=True)
class _Seen:
    """The last two readings of a job at a switch."""

    last: jobs_pb2.SwitchJobState
    before: jobs_pb2.SwitchJobState | None = None


@dataclass(slots=True)
class _Live:
    job: jobs_pb2.Job
    at_s: float
    readings: int = 0
    switches: dict[str, _Seen] = field(default_factory=dict)


class TopModel:
    """Follows ``Jobs.Watch``; ``now_s`` is any clock that only goes forward."""

    def __init__(self) -> None:
        self._live: dict[Key, _Live] = {}
        self.synced = False

    def apply(self, event: jobs_pb2.JobEvent, now_s: float) -> None:
        """Take in one event."""
        if event.kind == jobs_pb2.JOB_EVENT_KIND_SYNCED:
            self.synced = True
            return
        job = event.job if event.HasField("job") else event.state.job
        key = (job.id, job.generation)
        if event.kind in _GONE:
            self._live.pop(key, None)
            return
        live = self._live.get(key)
        if event.kind == jobs_pb2.JOB_EVENT_KIND_STATE:
            # A reading on its way when the job was released must not bring it back.
            if live is not None:
                live.readings += 1
                if job.spec.name:
                    live.job, live.at_s = job, now_s
                for switch in event.state.switches:
                    self._read(live, switch)
            return
        if live is None:
            # One name is one live job; an older one of it is gone.
            for other in [k for k, v in self._live.items() if v.job.spec.name == job.spec.name]:
                del self._live[other]
            self._live[key] = _Live(job, now_s)
        else:
            live.job, live.at_s = job, now_s

    @staticmethod
    def _read(live: _Live, switch: jobs_pb2.SwitchJobState) -> None:
        seen = live.switches.get(switch.switch)
        if seen is None:
            live.switches[switch.switch] = _Seen(switch)
        elif switch.read_unix_ms != seen.last.read_unix_ms or switch.error:
            live.switches[switch.switch] = _Seen(switch, seen.last)

    def has_rates(self) -> bool:
        """Say whether every live job was read twice, so that there can be rates."""
        return self.synced and all(live.readings > 1 for live in self._live.values())

    @property
    def jobs(self) -> int:
        """Number of live jobs."""
        return len(self._live)

    def rows(
        self,
        now_s: float,
        sort: SortKey = SortKey.JOB,
        *,
        descending: bool = False,
        only: Iterable[str] = (),
    ) -> list[Row]:
        """Return jobs by switches; ``only``: names or Job_IDs; ``descending`` turns the order."""
        wanted = set(only)
        rows = [
            row
            for live in self._live.values()
            if not wanted or {live.job.spec.name, str(live.job.id)} & wanted
            for row in _job_rows(live, now_s)
        ]
        # Python's sort is stable: rows that are equal stay in the order of jobs and switches.
        rows.sort(key=lambda row: (row.job, row.switch))
        rows.sort(key=_ORDER[sort])
        return rows[::-1] if descending else rows


def _job_rows(live: _Live, now_s: float) -> list[Row]:
    job = live.job
    left_s = None
    if job.lease_s:
        left_s = max(0.0, job.lease_remaining_ms / 1000 - (now_s - live.at_s))
    phases = {item.switch: item for item in job.programming}
    rows = []
    for name in sorted(set(phases) | set(live.switches)):
        item, seen = phases.get(name), live.switches.get(name)
        phase = "unknown" if item is None else phase_text(item.phase)
        if item is not None and item.cannot:
            phase = "cannot"
        note = job.problem or job.moving or ("" if item is None else item.detail)
        facts: dict[str, Any] = {}
        if seen is not None:
            facts = _facts(job, seen)
            note = note or seen.last.error
        rows.append(
            Row(
                job=job.spec.name,
                job_id=job.id,
                generation=job.generation,
                tenant=job.spec.tenant,
                switch=name,
                phase=phase,
                lease_left_s=left_s,
                note=note,
                **facts,
            )
        )
    if not rows:
        rows.append(
            Row(
                job=job.spec.name,
                job_id=job.id,
                generation=job.generation,
                tenant=job.spec.tenant,
                switch="-",
                phase="no rules" if job.problem else "no switch",
                lease_left_s=left_s,
                note=job.problem or job.moving,
            )
        )
    return rows


def _facts(job: jobs_pb2.Job, seen: _Seen) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    blocks = _blocks(job, seen.last)
    bits = job.parameters.step_bits
    if blocks:
        behind = blocks[0]
        for block in blocks[1:]:
            if _distance(block.step_min, behind.step_min, bits) > 0 or (
                block.step_min == behind.step_min and block.psn_rec < behind.psn_rec
            ):
                behind = block
        facts["step_min"], facts["psn_rec"] = behind.step_min, behind.psn_rec
        facts["alpha"] = max(block.alpha for block in blocks)
    if seen.before is None:
        return facts
    seconds = (seen.last.read_unix_ms - seen.before.read_unix_ms) / 1000
    if seconds <= 0:
        return facts  # The controller's clock was set back, or it does not tell the time.
    gained = _gained(seen.before, seen.last)
    if gained is not None:
        facts["data_pps"] = gained["data"] / seconds
        facts["marks_per_s"] = gained["marks"] / seconds
        facts["red_marks_per_s"] = gained["red_marks"] / seconds
        facts["corrections_per_s"] = gained["corrections"] / seconds
    steps = _steps(job, seen.before, seen.last, gained)
    if steps is not None:
        facts["steps_per_s"] = steps / seconds
    return facts


def _blocks(job: jobs_pb2.Job, switch: jobs_pb2.SwitchJobState) -> list[jobs_pb2.BlockState]:
    """The blocks that a packet of this job has cleared already."""
    return [
        block for block in switch.blocks if not block.error and block.generation == job.generation
    ]


def _gained(
    before: jobs_pb2.SwitchJobState, last: jobs_pb2.SwitchJobState
) -> dict[str, int] | None:
    """What counters counted in between; None where one is missing or they began anew."""
    if not before.HasField("counters") or not last.HasField("counters"):
        return None
    gained = {
        name: getattr(last.counters, name) - getattr(before.counters, name) for name in _COUNTERS
    }
    return None if min(gained.values()) < 0 else gained


def _steps(
    job: jobs_pb2.Job,
    before: jobs_pb2.SwitchJobState,
    last: jobs_pb2.SwitchJobState,
    gained: dict[str, int] | None,
) -> float | None:
    """Steps that the ring went on in between.

    By ``step_min`` where it cannot have gone round half of its range meanwhile, else by the
    counter of advances, which counts once per block.
    """
    now = {block.block: block for block in _blocks(job, last)}
    old = {block.block: block for block in _blocks(job, before)}
    both = now.keys() & old.keys()
    if not both:
        return None
    bits = job.parameters.step_bits
    half = 1 << max(bits - 1, 0)
    if gained is not None and gained["advances"] >= half * len(both):
        return gained["advances"] / len(both)
    moved = [_distance(old[block].step_min, now[block].step_min, bits) for block in both]
    return max(0.0, sum(moved) / len(moved))


def _distance(start: int, end: int, bits: int) -> int:
    """Steps from ``start`` to ``end`` in serial order; negative where ``end`` is behind."""
    size = 1 << max(bits, 1)
    ahead = (end - start) % size
    return ahead if ahead < size // 2 else ahead - size


def _falling(value: float | None) -> float:
    return 1.0 if value is None else -value


_ORDER: dict[SortKey, Callable[[Row], Any]] = {
    SortKey.JOB: lambda row: (row.job, row.switch),
    SortKey.SWITCH: lambda row: (row.switch, row.job),
    SortKey.STEPS: lambda row: _falling(row.steps_per_s),
    SortKey.ALPHA: lambda row: _falling(row.alpha),
    SortKey.MARKS: lambda row: _falling(row.marks_per_s),
    SortKey.RED: lambda row: _falling(row.red_marks_per_s),
    SortKey.CORRECTIONS: lambda row: _falling(row.corrections_per_s),
    SortKey.DATA: lambda row: _falling(row.data_pps),
    # Who runs out first comes first.
    SortKey.LEASE: lambda row: float("inf") if row.lease_left_s is None else row.lease_left_s,
}
