"""The jobs and switches of one fabric, held together: store, desired state, programmers.

The store is the truth about jobs; this module keeps the live ones in memory, derives what every
switch should hold, and hands it to the switches' tasks. All methods run on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from ringstep.controller.desired import (
    ALL_PORTS,
    RULE_TABLES,
    JobEntries,
    PlacedJob,
    block_keys,
    crossings,
    fabric_tables,
    job_entries,
    match_keys,
    overlap,
)
from ringstep.controller.entries import EntryKey, SwitchTables, merged
from ringstep.controller.jobs import JobSpec, MatchKind, SpecError, check_hosts
from ringstep.controller.p4rt import SessionError, Timing
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.programmer import Phase, Programmer, ProgrammerStatus
from ringstep.controller.store import (
    NameTakenError,
    NoSuchJobError,
    Store,
    StoredJob,
    StoredSwitch,
    StoreError,
)
from ringstep.fabric.model import Topology
from ringstep.fabric.routing import route_tables
from ringstep.protocol.inband import StateReply

LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")
_STATE_READS_AT_ONCE = 8


class RuleConflictError(Exception):
    """A packet of the job would also match the rules of another live job."""


class NoRuleTableError(Exception):
    """No switch of the job's paths runs a program that can find the job's packets."""


class UnknownSwitchError(LookupError):
    """No switch of that name in the topology, or it is not kept programmed."""


class SwitchAddressError(ValueError):
    """The address and device id belong to another switch."""


@dataclass(slots=True)
class LiveJob:
    """A registered job and what follows from it. ``problem`` says why it has no rules.

    ``cannot`` says, by switch, why some switches of its paths have none.
    """

    stored: StoredJob
    spec: JobSpec
    rules: frozenset[EntryKey] = frozenset()
    entries: JobEntries = field(default_factory=dict)
    ports: Mapping[str, frozenset[int]] = field(default_factory=dict)
    problem: str = ""
    cannot: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SwitchView:
    """One switch of the topology with its P4Runtime address and state."""

    name: str
    role: str
    device_id: int
    address: str
    status: ProgrammerStatus


@dataclass(frozen=True, slots=True)
class BlockReading:
    """One block as read from a switch; ``error`` instead of ``state`` where that failed.

    On a switch with several pipes a block that serves ports of several is read from each: they are
    as many states.
    """

    block: int
    ports: tuple[int, ...]
    state: StateReply | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class SwitchReading:
    """What one switch says about a job; ``error`` where it could not be asked at all."""

    switch: str
    blocks: tuple[BlockReading, ...]
    counters: Mapping[str, int] | None
    error: str = ""


class Fleet:
    """Runs one :class:`Programmer` per kept switch; an async context manager.

    ``read_spec`` turns a stored job back into a checked spec. ``other_pipelines`` holds the
    programs of switches that do not run ``pipeline``, by name.

    Raises:
        ValueError: an ECMP group of the topology is larger than the program takes, or another
            pipeline is for no switch of the topology.
    """

    def __init__(
        self,
        topology: Topology,
        store: Store,
        pipeline: Pipeline,
        read_spec: Callable[[StoredJob], JobSpec],
        *,
        election_id: int = 1,
        timing: Timing | None = None,
        other_pipelines: Mapping[str, Pipeline] | None = None,
    ) -> None:
        self.topology = topology
        self._store = store
        self._pipelines = dict.fromkeys(topology.switches, pipeline) | dict(other_pipelines or {})
        self._check_names()
        self._read_spec = read_spec
        self._election_id = election_id
        self._timing = timing or Timing()
        self._routes = route_tables(topology)
        self._base = fabric_tables(topology, self._routes)
        self._check_group_sizes()
        self._desired: dict[str, SwitchTables] = dict(self._base)
        self._programmers: dict[str, Programmer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._jobs: dict[int, LiveJob] = {}
        self._by_name: dict[str, int] = {}
        self._by_request: dict[str, int] = {}
        self._rule_owner: dict[EntryKey, int] = {}
        self._lock = asyncio.Lock()
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ringstep-store")

    def _check_names(self) -> None:
        for name in self._pipelines.keys() - self.topology.switches.keys():
            raise ValueError(
                f"pipeline.switch.{name}: not in the topology {self.topology.source}; known "
                f"switches: {', '.join(self.topology.switches)}"
            )

    def _check_group_sizes(self) -> None:
        for switch, tables in self._base.items():
            limit = self._pipelines[switch].max_group_size
            for key, members in tables.groups.items():
                if 0 < limit < len(members):
                    raise ValueError(
                        f"switch {switch!r} has {len(members)} equal-cost next hops in group "
                        f"{key.id}, the program takes {limit}; use fewer parallel links, or "
                        "compile the program with larger groups"
                    )

    async def __aenter__(self) -> Self:
        for stored in await self._in_store(self._store.live_jobs):
            self._admit(await self._restore(stored))
        from_file = [
            StoredSwitch(switch.name, switch.device_id, switch.p4runtime, from_file=True)
            for switch in self.topology.switches.values()
            if switch.p4runtime is not None
        ]
        self._recompute(self.topology.switches)
        for kept in await self._in_store(partial(self._store.sync_switches_from_file, from_file)):
            if kept.name in self.topology.switches:
                self._start(kept)
            else:
                LOGGER.warning("switch %s: not in the topology, left alone", kept.name)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._unfinished:
            await asyncio.wait(set(self._unfinished))
        await self._cancel(self._tasks.values())
        self._tasks.clear()
        self._programmers.clear()
        self._executor.shutdown()

    async def _in_store(self, call: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        except SQLAlchemyError as error:
            reason = getattr(error, "orig", None) or error
            raise StoreError(
                f"the store failed ({reason}); nothing was changed; look at its disk, and at what "
                "else may hold it, and try again"
            ) from error

    async def _to_the_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Finish ``work`` even if the caller goes away half-way.

        A client that hangs up must not leave a job in the store that the switches never hear of.
        """
        task = asyncio.create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            # Looked at, so that a failure that nobody waits for is not reported as lost.
            task.exception()

    # -- switches ----------------------------------------------------------------------------

    def switches(self) -> list[SwitchView]:
        """Return all switches of the topology, in the order of the file."""
        return [self._view(name) for name in self.topology.switches]

    def _view(self, name: str) -> SwitchView:
        switch = self.topology.switches[name]
        programmer = self._programmers.get(name)
        if programmer is None:
            status = ProgrammerStatus(
                Phase.UNMANAGED,
                "has no P4Runtime address; add it with 'ringstep switch add'",
                desired_entries=len(self._desired[name]),
            )
            return SwitchView(name, switch.role, switch.device_id, "", status)
        return SwitchView(
            name, switch.role, programmer.device_id, programmer.address, programmer.status
        )

    async def add_switch(self, name: str, address: str, device_id: int = 0) -> SwitchView:
        """Keep a switch programmed at an address; ``device_id`` 0 takes the topology's.

        Raises:
            UnknownSwitchError: no such switch in the topology.
            SwitchAddressError: another kept switch has this address and device id.
        """
        if name not in self.topology.switches:
            raise UnknownSwitchError(
                f"switch {name!r} is not in the topology {self.topology.source}; known switches: "
                f"{', '.join(self.topology.switches)}"
            )
        device_id = device_id or self.topology.switches[name].device_id
        await self._to_the_end(self._add_switch(name, address, device_id))
        return self._view(name)

    async def _add_switch(self, name: str, address: str, device_id: int) -> None:
        async with self._lock:
            for other in self._programmers.values():
                if other.name != name and (other.address, other.device_id) == (address, device_id):
                    raise SwitchAddressError(
                        f"device {device_id} at {address} is already switch {other.name!r}; give "
                        "another address or device id"
                    )
            current = self._programmers.get(name)
            if current is None or (current.address, current.device_id) != (address, device_id):
                kept = StoredSwitch(name, device_id, address, from_file=False)
                await self._in_store(partial(self._store.put_switch, kept))
                await self._stop(name)
                self._start(kept)

    async def remove_switch(self, name: str) -> None:
        """Stop to keep a switch programmed; what it holds stays.

        Raises:
            UnknownSwitchError: the switch is not kept.
        """
        await self._to_the_end(self._remove_switch(name))

    async def _remove_switch(self, name: str) -> None:
        async with self._lock:
            if not await self._in_store(partial(self._store.remove_switch, name)):
                raise UnknownSwitchError(f"switch {name!r} is not kept programmed; nothing to do")
            await self._stop(name)

    def _start(self, kept: StoredSwitch) -> None:
        programmer = Programmer(
            kept.name,
            kept.address,
            kept.device_id,
            self._pipelines[kept.name],
            self._desired[kept.name],
            election_id=self._election_id,
            timing=self._timing,
        )
        self._programmers[kept.name] = programmer
        self._tasks[kept.name] = asyncio.create_task(
            programmer.run(), name=f"programmer:{kept.name}"
        )

    async def _stop(self, name: str) -> None:
        self._programmers.pop(name, None)
        task = self._tasks.pop(name, None)
        if task is not None:
            await self._cancel([task])

    @staticmethod
    async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
        tasks = list(tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- jobs --------------------------------------------------------------------------------

    async def register(
        self, spec: JobSpec, spec_text: str, params: str, request_id: str
    ) -> LiveJob:
        """Give a job its Job_ID, store it, and hand its rules to the switches.

        Raises:
            SpecError: a host is unknown, or cannot be reached.
            RuleConflictError: another live job has an overlapping rule.
            NoRuleTableError: no switch can find the job's packets.
            NameTakenError, RequestIdReusedError, ExhaustedError: as :meth:`Store.register`.
            StoreError: the store failed.
        """
        check_hosts(spec, self.topology)
        return await self._to_the_end(self._register(spec, spec_text, params, request_id))

    async def _register(
        self, spec: JobSpec, spec_text: str, params: str, request_id: str
    ) -> LiveJob:
        async with self._lock:
            known = self._by_request.get(request_id) if request_id else None
            if known is not None and self._jobs[known].stored.spec == spec_text:
                return self._jobs[known]
            rules = match_keys(self.topology, spec)
            if known is None:
                self._check_free(spec, rules)
            self._check_reachable(spec)
            cannot = self._cannot(spec)
            stored, _ = await self._in_store(
                partial(
                    self._store.register,
                    name=spec.name,
                    request_id=request_id,
                    spec=spec_text,
                    params=params,
                    blocks=block_keys(self.topology, self._routes, spec, cannot),
                    now_unix_ms=time.time_ns() // 1_000_000,
                )
            )
            job = self._placed(stored, spec, cannot)
            self._admit(job)
            self._add_entries(job)
            return job

    def _check_free(self, spec: JobSpec, rules: frozenset[EntryKey]) -> None:
        if (taken := self._by_name.get(spec.name)) is not None:
            raise NameTakenError(
                f"job {spec.name!r} is already registered as job {taken}; release it, or take "
                "another name"
            )
        if (conflict := self._conflict(spec, rules)) is not None:
            way_out = (
                "give this job's packets another JobID"
                if spec.match is MatchKind.UEC
                else "tell the jobs apart by destination QP (match DST_QP) or by tag"
            )
            raise RuleConflictError(f"{conflict}; release it, or {way_out}")

    def _conflict(self, spec: JobSpec, rules: frozenset[EntryKey]) -> str | None:
        """Say which live job has rules for the same packets, and which, if there is one."""
        owner = next((self._rule_owner[key] for key in rules if key in self._rule_owner), None)
        if owner is None:
            tags = (job for job in self._jobs.values() if job.spec.tag and spec.tag)
            owner = next((j.stored.job_id for j in tags if overlap(rules, j.rules)), None)
        if owner is None:
            return None
        other = self._jobs[owner]
        clash = overlap(rules, other.rules)
        return f"job {other.spec.name!r} ({owner}) already owns packets that match {clash}"

    def _check_reachable(self, spec: JobSpec) -> None:
        for edge in spec.edges:
            target = self.topology.hosts[edge.dst]
            homes = {end.node for end in self.topology.attachments(edge.src)}
            if not any(self._routes[home].towards(target) for home in homes):
                raise SpecError(
                    "spec.rings", f"{edge}: no path in the topology; link the two parts"
                )

    def neighbours(self, spec: JobSpec) -> list[str]:
        """Return the names of live jobs whose packets may leave by ports that this one's may.

        Raises:
            SpecError: a host is unknown.
        """
        check_hosts(spec, self.topology)
        mine = crossings(self.topology, self._routes, spec)
        return [
            job.spec.name
            for job in self._jobs.values()
            if job.spec.name != spec.name
            and any(ports & job.ports.get(switch, frozenset()) for switch, ports in mine.items())
        ]

    def _cannot(self, spec: JobSpec) -> dict[str, str]:
        """Return switch -> why it cannot find the job's packets, of the switches of its paths.

        Raises:
            NoRuleTableError: none of them can.
        """
        table = RULE_TABLES[spec.match]
        if all(pipeline.has(table) for pipeline in self._pipelines.values()):
            return {}
        crossed = crossings(self.topology, self._routes, spec)
        cannot = [switch for switch in crossed if not self._pipelines[switch].has(table)]
        reason = (
            f"its program has no table {table}; give it one compiled with -DRINGSTEP_UEC, such as "
            "that of 'ringstep controller serve --uec', or uec = true in controller.toml"
        )
        if cannot and len(cannot) == len(crossed):
            raise NoRuleTableError(
                f"no switch of the job's paths can find its packets: {', '.join(cannot)}; "
                f"{reason.replace('its program has', 'their program has').replace('it one', 'one')}"
            )
        return dict.fromkeys(cannot, reason)

    async def release(self, ref: str | int) -> LiveJob:
        """End a job and take its rules off the switches.

        Raises:
            NoSuchJobError: no such live job.
        """
        return await self._to_the_end(self._release(ref))

    async def _release(self, ref: str | int) -> LiveJob:
        async with self._lock:
            job = self.get(ref)
            await self._in_store(partial(self._store.release, job.stored.job_id))
            del self._jobs[job.stored.job_id]
            del self._by_name[job.spec.name]
            self._by_request.pop(job.stored.request_id, None)
            for key in job.rules:
                self._rule_owner.pop(key, None)
            self._remove_entries(job)
            return job

    def get(self, ref: str | int) -> LiveJob:
        """Return a live job by name or Job_ID.

        Raises:
            NoSuchJobError: no such live job.
        """
        job_id = self._by_name.get(ref) if isinstance(ref, str) else ref
        job = self._jobs.get(job_id) if job_id is not None else None
        if job is None:
            what = f"Job_ID {ref}" if isinstance(ref, int) else f"name {ref!r}"
            raise NoSuchJobError(f"no live job has {what}; 'ringstep job list' shows the live jobs")
        return job

    def jobs(self, after: int = 0, limit: int | None = None) -> list[LiveJob]:
        """Return live jobs with a Job_ID above ``after``, ascending, at most ``limit``."""
        ids = sorted(job_id for job_id in self._jobs if job_id > after)
        return [self._jobs[job_id] for job_id in ids[:limit]]

    def programming(self, job: LiveJob) -> list[SwitchView]:
        """Return the switches that a path of the job may cross, by name, with their state."""
        return [self._view(switch) for switch in sorted({*job.entries, *job.cannot})]

    async def state(self, job: LiveJob) -> list[SwitchReading]:
        """Read the job's blocks and counters from all its switches at once."""
        readings = await asyncio.gather(*(self._read_switch(job, switch) for switch in job.entries))
        unable = (SwitchReading(switch, (), None, why) for switch, why in job.cannot.items())
        return sorted([*readings, *unable], key=lambda reading: reading.switch)

    async def _read_switch(self, job: LiveJob, switch: str) -> SwitchReading:
        view, programmer = self._view(switch), self._programmers.get(switch)
        if programmer is None:
            return SwitchReading(switch, (), None, view.status.detail)
        job_id = job.stored.job_id
        try:
            counters = await programmer.read_job_counters(job_id)
        except SessionError as error:
            return SwitchReading(switch, (), None, str(error))
        gate = asyncio.Semaphore(_STATE_READS_AT_ONCE)

        async def read(block: int, ports: tuple[int, ...], port: int) -> BlockReading:
            try:
                async with gate:
                    state = await programmer.read_state(job_id, block, port)
                    return BlockReading(block, ports, state)
            except SessionError as error:
                return BlockReading(block, ports, None, str(error))

        reads: list[Awaitable[BlockReading]] = []
        for key, block in sorted(job.stored.blocks[switch].items()):
            of_pipe: dict[int, list[int]] = {}
            for egress_port in sorted(job.ports[switch]) if key == ALL_PORTS else (key,):
                asked = self._pipelines[switch].state_port(egress_port)
                of_pipe.setdefault(asked, []).append(egress_port)
            reads += [read(block, tuple(ports), port) for port, ports in of_pipe.items()]
        return SwitchReading(switch, tuple(await asyncio.gather(*reads)), counters)

    async def _restore(self, stored: StoredJob) -> LiveJob:
        """Bring a stored job back on today's topology, which may differ from when it came."""
        spec = self._read_spec(stored)
        try:
            check_hosts(spec, self.topology)
            # Two jobs whose rules clash can both be live where the topology changed in between:
            # one of them had no rules when the other came.
            if (conflict := self._conflict(spec, match_keys(self.topology, spec))) is not None:
                raise SpecError(
                    "spec", f"{conflict}; release one of the two, then restart the controller"
                )
            cannot = self._cannot(spec)
            wanted = block_keys(self.topology, self._routes, spec, cannot)
            have = {switch: tuple(sorted(blocks)) for switch, blocks in stored.blocks.items()}
            if have != wanted:
                stored = await self._in_store(partial(self._store.place, stored.job_id, wanted))
            return self._placed(stored, spec, cannot)
        except (SpecError, NoRuleTableError) as error:
            LOGGER.warning("job %s (%d): %s", spec.name, stored.job_id, error)
            return LiveJob(stored, spec, problem=str(error))

    def _placed(self, stored: StoredJob, spec: JobSpec, cannot: Mapping[str, str]) -> LiveJob:
        placed = PlacedJob(stored.job_id, stored.generation, spec, stored.blocks)
        return LiveJob(
            stored,
            spec,
            rules=match_keys(self.topology, spec),
            entries=job_entries(self.topology, self._routes, placed),
            ports=crossings(self.topology, self._routes, spec),
            cannot=cannot,
        )

    def _admit(self, job: LiveJob) -> None:
        job_id = job.stored.job_id
        self._jobs[job_id] = job
        self._by_name[job.spec.name] = job_id
        if job.stored.request_id:
            self._by_request[job.stored.request_id] = job_id
        self._rule_owner.update(dict.fromkeys(job.rules, job_id))

    # -- desired state -----------------------------------------------------------------------

    def _recompute(self, switches: Iterable[str]) -> None:
        for switch in switches:
            self._desired[switch] = merged(
                self._base[switch],
                (job.entries[switch] for job in self._jobs.values() if switch in job.entries),
            )

    def _add_entries(self, job: LiveJob) -> None:
        for switch, entries in job.entries.items():
            self._hand_over(switch, merged(self._desired[switch], [entries]))

    def _remove_entries(self, job: LiveJob) -> None:
        for switch, entries in job.entries.items():
            tables = self._desired[switch].copy()
            for key in entries:
                tables.entries.pop(key, None)
            self._hand_over(switch, tables)

    def _hand_over(self, switch: str, tables: SwitchTables) -> None:
        self._desired[switch] = tables
        if (programmer := self._programmers.get(switch)) is not None:
            programmer.set_desired(tables)
