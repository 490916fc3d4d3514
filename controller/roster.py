"""The live jobs in memory: who has a name, a request id, a rule, a port; and whose lease ends when.

Jobs are in here from the moment they are decided, before the store has them, so that two calls
never decide the same thing; :meth:`Roster.get` and :meth:`Roster.listed` show what is stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

from ringstep.controller.desired import overlap
from ringstep.controller.entries import EntryKey, Exact
from ringstep.controller.facts import NoSuchJobError, StaleGenerationError
from ringstep.controller.jobs import JobSpec
from ringstep.controller.live import LiveJob

_K = TypeVar("_K")
_EXPIRED_REMEMBERED: Final = 1000
_NEIGHBOURS_TOLD: Final = 20


class Roster:
    """Indices of the live jobs. ``monotonic`` (s) measures leases."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._jobs: dict[int, LiveJob] = {}
        self._by_name: dict[str, LiveJob] = {}
        self._by_request: dict[str, LiveJob] = {}
        self._rule_owner: dict[EntryKey, LiveJob] = {}
        self._tagged: dict[int, LiveJob] = {}
        self._on_port: dict[tuple[str, int], dict[int, LiveJob]] = {}
        self._on_switch: dict[str, dict[int, LiveJob]] = {}
        self._deadlines: dict[int, float] = {}
        self._expired: deque[str] = deque(maxlen=_EXPIRED_REMEMBERED)

    def __iter__(self) -> Iterator[LiveJob]:
        return iter(list(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: LiveJob) -> bool:
        return self._jobs.get(job.id) is job

    def by_id(self, job_id: int) -> LiveJob | None:
        """Return the job with a Job_ID, stored or not."""
        return self._jobs.get(job_id)

    def by_name(self, name: str) -> LiveJob | None:
        """Return the job of a name, stored or not."""
        return self._by_name.get(name)

    def by_request(self, request_id: str) -> LiveJob | None:
        """Return the job that a request registered, stored or not."""
        return self._by_request.get(request_id) if request_id else None

    def get(self, ref: str | int, generation: int = 0) -> LiveJob:
        """Return a stored live job by name or Job_ID.

        Raises:
            NoSuchJobError: no such live job.
            StaleGenerationError: the job has another generation than ``generation``, if not 0.
        """
        job = self._by_name.get(ref) if isinstance(ref, str) else self._jobs.get(ref)
        if job is None or not job.is_durable:
            what = f"Job_ID {ref}" if isinstance(ref, int) else f"name {ref!r}"
            if ref in self._expired:
                raise NoSuchJobError(
                    f"no live job has {what}: its lease ran out without being renewed; register "
                    "the job again"
                )
            raise NoSuchJobError(f"no live job has {what}; 'ringstep job list' shows the live jobs")
        if generation not in {0, job.stored.generation}:
            raise StaleGenerationError(
                f"job {job.name!r} ({job.id}) has generation {job.stored.generation}, the call "
                f"means {generation}: that job has ended"
            )
        return job

    def listed(self, after: int = 0, limit: int | None = None) -> list[LiveJob]:
        """Return stored live jobs with a Job_ID above ``after``, ascending, at most ``limit``."""
        ids = sorted(job.id for job in self._jobs.values() if job.id > after and job.is_durable)
        return [self._jobs[job_id] for job_id in ids[:limit]]

    # -- what follows from a job's rules and ports -------------------------------------------

    def conflict(self, spec: JobSpec, rules: frozenset[EntryKey]) -> str | None:
        """Say which live job has rules for the same packets, and which, if there is one."""
        owner = next((self._rule_owner[key] for key in rules if key in self._rule_owner), None)
        if owner is None and spec.tag is not None:
            owner = next((j for j in self._tagged.values() if overlap(rules, j.rules)), None)
        if owner is None:
            return None
        clash = overlap(rules, owner.rules)
        return f"job {owner.name!r} ({owner.id}) already owns packets that match {clash}"

    def neighbours(self, ports: Mapping[str, frozenset[int]]) -> list[str]:
        """Return names of jobs whose packets may leave by these ports, as many as are told."""
        found: dict[str, None] = {}
        for switch, numbers in ports.items():
            for port in numbers:
                for job in self._on_port.get((switch, port), {}).values():
                    found[job.name] = None
                    if len(found) >= _NEIGHBOURS_TOLD:
                        return list(found)
        return list(found)

    def on_switch(self, switch: str) -> list[LiveJob]:
        """Return the jobs whose paths cross a switch."""
        return list(self._on_switch.get(switch, {}).values())

    def owner(self, key: EntryKey) -> LiveJob | None:
        """Return the job that an entry of a switch belongs to, if it belongs to one."""
        if key.table in {"job_params", "block_map"}:
            value = next((value for name, value in key.match if name == "job"), None)
            return self._jobs.get(value.value) if isinstance(value, Exact) else None
        return self._rule_owner.get(key)

    # -- in and out --------------------------------------------------------------------------

    def admit(self, job: LiveJob) -> None:
        """Take a job in."""
        self._jobs[job.id] = job
        self._by_name[job.name] = job
        if job.stored.request_id:
            self._by_request[job.stored.request_id] = job
        self.index(job)

    def forget(self, job: LiveJob) -> None:
        """Take a job out; one that is not in is no error."""
        if job in self:
            del self._jobs[job.id]
            self._deadlines.pop(job.id, None)
        if self._by_name.get(job.name) is job:
            del self._by_name[job.name]
        if self._by_request.get(job.stored.request_id) is job:
            del self._by_request[job.stored.request_id]
        self.unindex(job)

    def index(self, job: LiveJob) -> None:
        """Note the rules and ports that a job has now."""
        self._rule_owner.update(dict.fromkeys(job.rules, job))
        if job.spec.tag is not None and job.rules:
            self._tagged[job.id] = job
        for switch, ports in job.ports.items():
            self._on_switch.setdefault(switch, {})[job.id] = job
            for port in ports:
                self._on_port.setdefault((switch, port), {})[job.id] = job

    def unindex(self, job: LiveJob) -> None:
        """Forget a job's rules and ports; call it before they change."""
        for key in job.rules:
            if self._rule_owner.get(key) is job:
                del self._rule_owner[key]
        if self._tagged.get(job.id) is job:
            del self._tagged[job.id]
        for switch, ports in job.ports.items():
            _take_out(self._on_switch, switch, job)
            for port in ports:
                _take_out(self._on_port, (switch, port), job)

    # -- leases ------------------------------------------------------------------------------

    @property
    def leased(self) -> int:
        """How many jobs have a lease."""
        return len(self._deadlines)

    def start_lease(self, job: LiveJob) -> None:
        """Let a job's lease run from now on, if it has one."""
        if job.stored.lease_s and job in self:
            self._deadlines[job.id] = self._monotonic() + job.stored.lease_s

    def lease_remaining_s(self, job: LiveJob) -> float:
        """Return the seconds until a job's lease ends; 0 where it has none."""
        deadline = self._deadlines.get(job.id)
        return 0.0 if deadline is None else max(0.0, deadline - self._monotonic())

    def take_expired(self) -> list[LiveJob]:
        """Return the jobs whose lease has run out, each once, and remember their names."""
        now = self._monotonic()
        ids = [job_id for job_id, deadline in self._deadlines.items() if deadline <= now]
        jobs = [self._jobs[job_id] for job_id in ids if self._deadlines.pop(job_id)]
        self._expired.extend(job.name for job in jobs)
        return jobs


def _take_out(index: dict[_K, dict[int, LiveJob]], key: _K, job: LiveJob) -> None:
    there = index.get(key, {})
    if there.get(job.id) is job:
        del there[job.id]
        if not there:
            del index[key]
