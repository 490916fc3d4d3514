"""What clients were promised, with times, and what a promise that was not kept looks like.

Times are seconds of this process's monotonic clock. A job counts as live, for the judge, from the
answer that gave it to the first attempt to release it: between these two nobody may have its
Job_ID, whatever was lost on the way.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from ringstep.controller.v1 import jobs_pb2

_K_GRAIN = 1 / (1 << 16)
_LEASE_SLACK_S = 3.0
"""Until a lease that ran out must have been noticed."""


@dataclass
class JobFacts:
    """Everything a client knows of one job that it asked for."""

    name: str
    request_id: str
    spec: jobs_pb2.JobSpec
    first_sent: float
    attempts: int = 0
    job_id: int = 0
    """0: never acknowledged."""
    generation: int = 0
    acknowledged: float = math.inf
    refused: bool = False
    release_sent: float = math.inf
    released: float = math.inf
    lease_s: float = 0.0
    """As granted; 0: no lease."""
    renewed_sent: float = -math.inf
    """When the last renewal that was acknowledged was sent; the registration counts as one."""
    is_renewed: bool = False
    k: float | None = None
    """Set by the last acknowledged change of parameters."""
    k_open: bool = False
    """A change was sent and its answer was lost: either value is right."""

    @property
    def is_acknowledged(self) -> bool:
        return self.job_id != 0

    @property
    def lease_end(self) -> float:
        """Until here the lease may hold, and a little longer."""
        return self.renewed_sent + self.lease_s if self.lease_s else math.inf

    @property
    def promised_until(self) -> float:
        """Until here the job has to be there.

        A lease starts with the attempt that took effect: of a registration whose answers were
        lost, that may have been the first one.
        """
        renewed = self.renewed_sent if self.is_renewed else self.first_sent
        return min(self.release_sent, renewed + self.lease_s if self.lease_s else math.inf)

    def __str__(self) -> str:
        return f"{self.name} (Job_ID {self.job_id}, generation {self.generation})"


@dataclass
class Record:
    """All jobs of a run, by name, and what was seen to be wrong while it went on."""

    jobs: dict[str, JobFacts] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Answers by call and status."""
    used: dict[int, int] = field(default_factory=dict)
    """Job_IDs that were used before the run, with their last generation."""

    def open(self, facts: JobFacts) -> None:
        """Write down a job before its first request is sent."""
        self.jobs[facts.name] = facts

    def granted(self, facts: JobFacts, job: jobs_pb2.Job, sent: float, now: float) -> None:
        """Write down an answer to Register, the first or that to a repeated request."""
        if facts.is_acknowledged:
            if (job.id, job.generation) != (facts.job_id, facts.generation):
                self.violations.append(
                    f"request {facts.request_id} repeated: {facts} became Job_ID {job.id}, "
                    f"generation {job.generation}"
                )
            return
        if job.spec.name != facts.name or job.request_id not in ("", facts.request_id):
            self.violations.append(f"Register of {facts.name} answered with {job.spec.name}")
        facts.job_id, facts.generation = job.id, job.generation
        facts.acknowledged = now
        facts.lease_s = float(job.lease_s)
        facts.renewed_sent = sent

    def seen(self, facts: JobFacts, job: jobs_pb2.Job) -> None:
        """Write down an answer to Get on a live job."""
        self.violations += (f"Get: {text}" for text in _differences(facts, job))

    def not_found(self, facts: JobFacts, call: str, now: float) -> None:
        """A call on a live job was answered with NOT_FOUND: that may be once its lease is over."""
        if now < facts.promised_until:
            self.violations.append(f"{call}: {facts} is acknowledged, and was not found")


def judge_record(
    record: Record, listed: Iterable[jobs_pb2.Job], now: float, leading_since: float = math.inf
) -> list[str]:
    """Return which promises do not hold, with the live jobs as List gives them at ``now``.

    ``leading_since``: when the controller that answers started; it gave every lease its full length
    again then. Not known: no lease is said to be over.
    """
    live = {job.spec.name: job for job in listed}
    return [
        *record.violations,
        *_duplicates(record.jobs.values()),
        *_reuse(record.jobs.values(), record.used),
        *(
            text
            for facts in record.jobs.values()
            for text in _kept(facts, live, now, leading_since)
        ),
        *(f"List: {name} was asked for by nobody" for name in live.keys() - record.jobs.keys()),
    ]


def _by_id(jobs: Iterable[JobFacts]) -> dict[int, list[JobFacts]]:
    grouped: dict[int, list[JobFacts]] = defaultdict(list)
    for facts in sorted(jobs, key=lambda one: one.acknowledged):
        if facts.is_acknowledged:
            grouped[facts.job_id].append(facts)
    return grouped


def _duplicates(jobs: Iterable[JobFacts]) -> Iterable[str]:
    for of_id in _by_id(jobs).values():
        latest: JobFacts | None = None
        for facts in of_id:
            if latest is not None and facts.acknowledged < latest.promised_until:
                yield f"two live jobs with one id: {latest} and {facts}"
            if latest is None or facts.promised_until > latest.promised_until:
                latest = facts


def _reuse(jobs: Iterable[JobFacts], used: Mapping[int, int]) -> Iterable[str]:
    for job_id, of_id in _by_id(jobs).items():
        if of_id[0].generation == used.get(job_id):
            yield f"generation did not change on reuse: {of_id[0]} has that of before the run"
        for before, after in pairwise(of_id):
            if before.generation == after.generation:
                yield f"generation did not change on reuse: {before}, then {after}"


def _kept(
    facts: JobFacts, live: dict[str, jobs_pb2.Job], now: float, leading_since: float
) -> Iterable[str]:
    job = live.get(facts.name)
    if facts.is_acknowledged and now < facts.promised_until and job is None:
        yield f"lost: {facts} was acknowledged and is not in List"
    if job is None:
        return
    if facts.released < math.inf:
        yield f"{facts} was released, and is in List"
    if facts.refused:
        yield f"{facts} was refused, and is in List"
    if job.request_id not in ("", facts.request_id):
        yield f"{facts}: List has request id {job.request_id!r}, not {facts.request_id!r}"
    if not facts.is_acknowledged:
        return
    yield from (f"List: {text}" for text in _differences(facts, job))
    if facts.lease_s and now > max(facts.lease_end, leading_since + facts.lease_s) + _LEASE_SLACK_S:
        yield f"{facts}: its lease of {facts.lease_s:g} s is over, and it is in List"


def _differences(facts: JobFacts, job: jobs_pb2.Job) -> Iterable[str]:
    """What the controller says of a live job, against what its client was told."""
    if (job.id, job.generation) != (facts.job_id, facts.generation):
        yield f"{facts} is now Job_ID {job.id}, generation {job.generation}"
    if facts.k is not None and not facts.k_open and abs(job.parameters.k - facts.k) > _K_GRAIN:
        yield f"{facts}: k was set to {facts.k}, and is {job.parameters.k}"


def reused(record: Record) -> int:
    """Return how often a Job_ID was handed out again, as far as answers tell."""
    by_id = _by_id(record.jobs.values())
    return sum(len(of_id) - (job_id not in record.used) for job_id, of_id in by_id.items())
