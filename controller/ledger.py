"""Who has which Job_ID, generation and blocks, and who gets which next: in memory, no waiting.

The ledger decides and hands out a :data:`Change` for each decision; the store writes the changes in
the same order. A change that could not be written makes the ledger wrong: build a new one from
what the store holds.

Reuse. A Job_ID that was never used comes first, lowest first; then the one released longest ago
whose quarantine is over. Blocks likewise, without quarantine. Each hand-out of a Job_ID takes a
generation that neither the Job_ID nor any of the job's blocks had the last time, which is what
makes the data plane clear what is left in them.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from ringstep.controller.blocks import BlockPool
from ringstep.controller.facts import (
    Change,
    Ended,
    ExhaustedError,
    NameTakenError,
    NoSuchJobError,
    PastJobId,
    QuotaError,
    Quotas,
    Registered,
    RequestIdReusedError,
    Snapshot,
    StaleGenerationError,
    StoredJob,
    Updated,
)
from ringstep.protocol.limits import GENERATION_BITS, MAX_BLOCKS, MAX_JOBS

MAX_GENERATION: Final = (1 << GENERATION_BITS) - 1
KEPT_REQUESTS: Final = 10_000
"""Of so many released jobs that had a request id it stays known."""
_LIST_HINT = "'ringstep job list' shows the live jobs"

__all__ = [
    "Change",
    "Ended",
    "ExhaustedError",
    "KEPT_REQUESTS",
    "Ledger",
    "MAX_GENERATION",
    "NameTakenError",
    "NoSuchJobError",
    "QuotaError",
    "Quotas",
    "Registered",
    "RequestIdReusedError",
    "Snapshot",
    "StaleGenerationError",
    "StoredJob",
    "Updated",
]


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Ledger:
    """Allocates Job_IDs, generations and blocks. Not thread-safe; a failed call changes nothing.

    ``quarantine_s`` is how long a released Job_ID rests at least. ``monotonic`` (s) measures that;
    ``unix_ms`` stamps what is stored, and after a restart tells how much of a rest is left, which
    is never taken for more than ``quarantine_s``, however the clock stepped.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        quarantine_s: float,
        quotas: Quotas,
        monotonic: Callable[[], float] = time.monotonic,
        unix_ms: Callable[[], int] = _wall_clock_ms,
    ) -> None:
        self._quarantine_s = quarantine_s
        self._quotas = quotas
        self._monotonic = monotonic
        self._unix_ms = unix_ms
        self._turn = snapshot.turn
        # By Job_ID; the generation is the last one that was handed out, 0 before the first.
        self._jobs: list[StoredJob | None] = [None] * (MAX_JOBS + 1)
        self._generation = bytearray(MAX_JOBS + 1)
        self._rested_at = [0.0] * (MAX_JOBS + 1)
        self._by_name: dict[str, StoredJob] = {}
        self._by_request: dict[str, StoredJob] = {}
        self._per_tenant: Counter[str] = Counter()
        for job in snapshot.jobs:
            self._generation[job.job_id] = job.generation
            self._keep(job)
            self._per_tenant[job.tenant] += 1
        self._resting: deque[int] = deque()
        self._rested: deque[int] = deque()
        self._let_rest(snapshot.job_ids)
        self._fresh = deque(n for n in range(1, MAX_JOBS + 1) if not self._generation[n])
        # Request ids of released jobs with the name of the job, the oldest first.
        self._past_requests: dict[str, str] = {p.request_id: p.name for p in snapshot.requests}
        self._pools = _pools(snapshot)

    def _let_rest(self, past: Sequence[PastJobId]) -> None:
        now, now_ms = self._monotonic(), self._unix_ms()
        latest = now
        for job_id, generation, released_unix_ms in past:
            if self._jobs[job_id] is not None:
                continue
            left_s = (released_unix_ms - now_ms) / 1000 + self._quarantine_s
            # One that was released later does not rest shorter, whatever the clock read then.
            latest = max(latest, now + min(max(left_s, 0.0), self._quarantine_s))
            self._generation[job_id] = generation
            self._rested_at[job_id] = latest
            self._resting.append(job_id)

    # -- questions ---------------------------------------------------------------------------

    def get(self, ref: str | int, generation: int = 0) -> StoredJob:
        """Return a live job by name or Job_ID; with ``generation`` only if it is of that one.

        Raises:
            NoSuchJobError: no such live job.
            StaleGenerationError: the live job is of another generation.
        """
        if isinstance(ref, str):
            job = self._by_name.get(ref)
        else:
            job = self._jobs[ref] if 0 < ref <= MAX_JOBS else None
        if job is None:
            raise NoSuchJobError(self._no_such_job(ref))
        if generation and generation != job.generation:
            raise StaleGenerationError(
                f"job {job.name!r} has Job_ID {job.job_id} in generation {job.generation}, not "
                f"{generation}: the job of generation {generation} has ended; name this one with "
                f"generation {job.generation}, or leave the generation out"
            )
        return job

    def _no_such_job(self, ref: str | int) -> str:
        if isinstance(ref, str):
            return f"no live job has name {ref!r}; {_LIST_HINT}"
        if not 0 < ref <= MAX_JOBS:
            return f"no live job has Job_ID {ref}: Job_IDs are 1 to {MAX_JOBS}; {_LIST_HINT}"
        last = self._generation[ref]
        ended = f": the one of generation {last} was released" if last else ""
        return f"no live job has Job_ID {ref}{ended}; {_LIST_HINT}"

    def live(self, after: int = 0) -> Iterator[StoredJob]:
        """Yield the live jobs with a Job_ID above ``after``, in ascending order."""
        return (job for job in islice(self._jobs, max(after, 0) + 1, None) if job is not None)

    def __len__(self) -> int:
        """How many jobs are live."""
        return len(self._by_name)

    @property
    def live_per_tenant(self) -> Mapping[str, int]:
        """How many live jobs each tenant has that has any."""
        return self._per_tenant

    @property
    def free_ids(self) -> int:
        """How many Job_IDs could be handed out now."""
        self._wake()
        return len(self._fresh) + len(self._rested)

    @property
    def quarantined_ids(self) -> int:
        """How many Job_IDs were released too recently to be handed out."""
        self._wake()
        return len(self._resting)

    def free_blocks(self, switch: str) -> int:
        """Return how many state blocks of a switch are free."""
        pool = self._pools.get(switch)
        return MAX_BLOCKS if pool is None else pool.free

    # -- decisions ---------------------------------------------------------------------------

    def register(
        self,
        *,
        name: str,
        tenant: str,
        owner: str,
        request_id: str,
        spec: bytes,
        params: bytes,
        paths: str,
        lease_s: int,
        blocks: Mapping[str, Sequence[int]],
    ) -> tuple[StoredJob, Change | None]:
        """Give a job a Job_ID, a generation and its blocks.

        ``blocks`` holds the block keys that the job needs on each switch. A request id that was
        used for the same spec and is still live returns that job, and no change.

        Raises:
            RequestIdReusedError: the request id belongs to another spec or to a released job.
            NameTakenError: a live job has this name.
            QuotaError: the tenant has all the live jobs it may have.
            ExhaustedError: no Job_ID, block or generation is free.
        """
        if request_id and (known := self._same_request(request_id, spec)) is not None:
            return known, None
        if (taken := self._by_name.get(name)) is not None:
            raise NameTakenError(
                f"job {name!r} is already registered as job {taken.job_id}; release it, or take "
                "another name"
            )
        self._check_quota(tenant)
        job_id = self._next_job_id()
        wanted = [
            (switch, self._pool(switch), tuple(dict.fromkeys(keys)))
            for switch, keys in sorted(blocks.items())
            if keys
        ]
        generation, avoided = self._next_generation(job_id, wanted)
        (self._fresh or self._rested).popleft()
        self._generation[job_id] = generation
        job = StoredJob(
            job_id,
            generation,
            name,
            tenant,
            owner,
            request_id,
            spec,
            params,
            paths,
            lease_s,
            self._unix_ms(),
            {
                switch: dict(zip(keys, pool.take(len(keys), avoided), strict=True))
                for switch, pool, keys in wanted
            },
        )
        self._keep(job)
        self._per_tenant[tenant] += 1
        return job, Registered(job)

    def place(
        self, job_id: int, blocks: Mapping[str, Sequence[int]], paths: str | None = None
    ) -> tuple[StoredJob, Change]:
        """Give a live job exactly the blocks it needs now: keep, add and free as necessary.

        ``paths`` replaces what is stored of the job's paths; None leaves it.

        Raises:
            NoSuchJobError: no live job has this id.
            ExhaustedError: not enough blocks are free.
        """
        job = self.get(job_id)
        missing: dict[str, tuple[int, ...]] = {}
        for switch, keys in sorted(blocks.items()):
            have = job.blocks.get(switch, {})
            needed = tuple(key for key in dict.fromkeys(keys) if key not in have)
            if needed:
                missing[switch] = needed
                if self._pool(switch).free_without(job.generation) < len(needed):
                    raise ExhaustedError(_no_blocks(switch, len(needed)))
        placed: dict[str, dict[int, int]] = {}
        for switch, keys in sorted(blocks.items()):
            have, new = job.blocks.get(switch, {}), missing.get(switch, ())
            ids = {key: have[key] for key in keys if key in have}
            if new:
                ids |= zip(new, self._pool(switch).take(len(new), job.generation), strict=True)
            if ids:
                placed[switch] = dict(sorted(ids.items()))
        freed = tuple(
            (switch, block)
            for switch, ids in sorted(job.blocks.items())
            for block in sorted(ids[key] for key in ids.keys() - placed.get(switch, {}).keys())
        )
        return self._update(
            replace(job, blocks=placed, paths=job.paths if paths is None else paths), freed
        )

    def update(
        self,
        job_id: int,
        *,
        params: bytes | None = None,
        lease_s: int | None = None,
        paths: str | None = None,
    ) -> tuple[StoredJob, Change]:
        """Change what is stored of a live job; None leaves it.

        Raises:
            NoSuchJobError: no live job has this id.
        """
        job = self.get(job_id)
        changed = replace(
            job,
            params=job.params if params is None else params,
            lease_s=job.lease_s if lease_s is None else lease_s,
            paths=job.paths if paths is None else paths,
        )
        return self._update(changed, ())

    def release(self, ref: str | int, generation: int = 0) -> tuple[StoredJob, Change]:
        """End a job, by name or Job_ID; its blocks are free at once, its Job_ID rests first.

        Raises:
            NoSuchJobError: no such live job.
            StaleGenerationError: the live job is of another generation than ``generation``.
        """
        job = self.get(ref, generation)
        self._jobs[job.job_id] = None
        del self._by_name[job.name]
        self._per_tenant[job.tenant] -= 1
        if not self._per_tenant[job.tenant]:
            del self._per_tenant[job.tenant]
        self._rested_at[job.job_id] = self._monotonic() + self._quarantine_s
        self._resting.append(job.job_id)
        self._turn += 1
        for switch, ids in sorted(job.blocks.items()):
            for block in sorted(ids.values()):
                self._pools[switch].give_back(block, job.generation)
        forgotten = self._retire_request(job)
        return job, Ended(job, self._unix_ms(), self._turn, forgotten)

    # -- parts of decisions ------------------------------------------------------------------

    def _keep(self, job: StoredJob) -> None:
        self._jobs[job.job_id] = job
        self._by_name[job.name] = job
        if job.request_id:
            self._by_request[job.request_id] = job

    def _update(
        self, job: StoredJob, freed: tuple[tuple[str, int], ...]
    ) -> tuple[StoredJob, Change]:
        if freed:
            self._turn += 1
            for switch, block in freed:
                self._pools[switch].give_back(block, job.generation)
        self._keep(job)
        return job, Updated(job, freed, self._turn)

    def _same_request(self, request_id: str, spec: bytes) -> StoredJob | None:
        known = self._by_request.get(request_id)
        if known is None:
            if (name := self._past_requests.get(request_id)) is None:
                return None
            raise RequestIdReusedError(
                f"request_id {request_id!r} registered job {name!r}, which has been released; use "
                "a new request_id for a new job"
            )
        if known.spec != spec:
            raise RequestIdReusedError(
                f"request_id {request_id!r} was used to register job {known.name!r} with another "
                "spec; use a new request_id, or repeat the same spec"
            )
        return known

    def _retire_request(self, job: StoredJob) -> tuple[str, ...]:
        if not job.request_id:
            return ()
        del self._by_request[job.request_id]
        self._past_requests[job.request_id] = job.name
        surplus = len(self._past_requests) - KEPT_REQUESTS
        forgotten = tuple(islice(self._past_requests, surplus)) if surplus > 0 else ()
        for request_id in forgotten:
            del self._past_requests[request_id]
        return forgotten

    def _check_quota(self, tenant: str) -> None:
        limit = self._quotas.limit(tenant)
        # Not indexed: a Counter would be asked about tenants for ever.
        if limit is not None and self._per_tenant.get(tenant, 0) >= limit:
            raise QuotaError(
                f"tenant {tenant!r} has {self._per_tenant.get(tenant, 0)} live jobs and may have "
                f"{limit}; release one of them, or have the operator raise the tenant's quota"
            )

    def _wake(self) -> None:
        now = self._monotonic()
        while self._resting and self._rested_at[self._resting[0]] <= now:
            self._rested.append(self._resting.popleft())

    def _next_job_id(self) -> int:
        self._wake()
        if self._fresh:
            return self._fresh[0]
        if self._rested:
            return self._rested[0]
        if not self._resting:
            raise ExhaustedError(f"all {MAX_JOBS} Job_IDs are in use; release a job first")
        wait_s = max(self._rested_at[self._resting[0]] - self._monotonic(), 0.0)
        raise ExhaustedError(
            f"all {MAX_JOBS} Job_IDs are in use ({len(self)}) or rest after a release "
            f"({len(self._resting)}); the next one is free in {wait_s:.1f} s, try again then",
            retry_after_s=wait_s,
        )

    def _next_generation(
        self, job_id: int, wanted: Sequence[tuple[str, BlockPool, tuple[int, ...]]]
    ) -> tuple[int, int]:
        """Return a generation, and which generation the blocks must not have had (0: any)."""
        last = self._generation[job_id]
        stale = {last}
        for switch, pool, keys in wanted:
            if pool.free < len(keys):
                raise ExhaustedError(_no_blocks(switch, len(keys)))
            stale |= pool.next_generations(len(keys))
        for candidate in _generations_after(last):
            if candidate not in stale:
                return candidate, 0
        # The next blocks had all generations; leave those of one generation aside.
        for candidate in _generations_after(last):
            if candidate != last and all(
                pool.free_without(candidate) >= len(keys) for _, pool, keys in wanted
            ):
                return candidate, candidate
        raise ExhaustedError(
            f"the free state blocks carry all {MAX_GENERATION} generations; release a job first, "
            "or register with scope SWITCH (one block per switch)"
        )

    def _pool(self, switch: str) -> BlockPool:
        pool = self._pools.get(switch)
        if pool is None:
            pool = self._pools[switch] = BlockPool()
        return pool


def _generations_after(last: int) -> Iterator[int]:
    return ((last + distance - 1) % MAX_GENERATION + 1 for distance in range(1, MAX_GENERATION + 1))


def _pools(snapshot: Snapshot) -> dict[str, BlockPool]:
    past: dict[str, dict[int, int]] = {}
    held: dict[str, list[int]] = {}
    for switch, block, generation in snapshot.blocks:
        past.setdefault(switch, {})[block] = generation
    for job in snapshot.jobs:
        for switch, ids in job.blocks.items():
            held.setdefault(switch, []).extend(ids.values())
    return {
        switch: BlockPool(past.get(switch, {}).items(), held.get(switch, ()))
        for switch in past.keys() | held.keys()
    }


def _no_blocks(switch: str, count: int) -> str:
    return (
        f"switch {switch!r} has no {count} free state blocks of {MAX_BLOCKS}; release a job first, "
        "or register with scope SWITCH (one block per switch)"
    )
