"""The jobs and switches of one fabric, held together: ledger, paths, desired state, programmers.

The store is the truth about jobs. This module keeps the live ones in memory, derives what every
switch should hold, and hands it to the switches' tasks. Everything runs on one event loop, and
what a call decides it decides without a pause in between; what is awaited is that the store has it.
A change reaches the switches, and those who watch, once it is durable and not before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, Self, TypeVar

from ringstep.controller.cancelling import being_cancelled
from ringstep.controller.config import DEFAULT_TENANT
from ringstep.controller.desired import (
    RULE_TABLES,
    Layout,
    PlacedJob,
    block_keys,
    job_entries,
    lay_out,
    match_keys,
)
from ringstep.controller.entries import EntryKey
from ringstep.controller.fabricview import FabricView, fabric_view
from ringstep.controller.facts import (
    Change,
    DeposedError,
    ExhaustedError,
    NameTakenError,
    Quotas,
    Snapshot,
    StoredJob,
    StoredSwitch,
    StoreError,
)
from ringstep.controller.jobs import (
    JobSpec,
    MatchKind,
    SpecError,
    changed_params,
    check_hosts,
    lease_from,
    params_to_proto,
    spec_from_proto,
)
from ringstep.controller.journal import Journal
from ringstep.controller.ledger import Ledger
from ringstep.controller.live import LiveJob, parsed
from ringstep.controller.marking import decide
from ringstep.controller.metrics import LinkFacts, Metrics
from ringstep.controller.moving import Mover
from ringstep.controller.pace import Pace
from ringstep.controller.paths import JobPaths, PathBook, PlanReport, dump_paths, load_paths
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.programmer import Phase
from ringstep.controller.roster import Roster
from ringstep.controller.security import UnknownTenantError, refuse_other_tenant, tenant_for
from ringstep.controller.states import Reader, SwitchReading
from ringstep.controller.store import Store
from ringstep.controller.switchboard import (
    SessionSettings,
    Switchboard,
    SwitchView,
    UnknownSwitchError,
)
from ringstep.controller.tokens import LOCAL, Caller
from ringstep.controller.v1 import jobs_pb2
from ringstep.controller.watching import Feed
from ringstep.fabric.model import Topology
from ringstep.fabric.pathgraph import PlanError

LOGGER = logging.getLogger(__name__)
_T = TypeVar("_T")
_LEASE_TICK_S: Final = 0.25
_RELOAD_RETRY_S: Final = 1.0
_LAST_CALL_S: Final = 2.0
_CLOSED: Final = "this controller leads no more; ask the one that does, and see what came of it"
_RESTORED_AT_ONCE: Final = 25
"""Jobs that are restored before others get their turn on the event loop."""


async def _always() -> bool:
    """Leads for as long as nobody says otherwise."""
    return True


class RuleConflictError(Exception):
    """A packet of the job would also match the rules of another live job."""


class NoRuleTableError(Exception):
    """No switch of the job's paths runs a program that can find the job's packets."""


class UnknownLinkError(LookupError):
    """No link between switches at that port."""


class JobNews(StrEnum):
    """What is new about a job."""

    REGISTERED = "registered"
    UPDATED = "updated"
    PROGRAMMING = "programming"
    RELEASED = "released"
    EXPIRED = "expired"


def _later_news(
    earlier: tuple[JobNews, LiveJob], later: tuple[JobNews, LiveJob]
) -> tuple[JobNews, LiveJob]:
    """A reader who missed that a job came learns of that first, whatever happened to it since."""
    ended = later[0] in {JobNews.RELEASED, JobNews.EXPIRED}
    if earlier[0] is JobNews.REGISTERED and not ended:
        return JobNews.REGISTERED, later[1]
    if earlier[0] is JobNews.UPDATED and later[0] is JobNews.PROGRAMMING:
        return JobNews.UPDATED, later[1]
    return later


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How jobs and sessions are kept.

    Attributes:
        sessions: with switches.
        lease_s: of jobs that ask for none; 0: none.
        max_lease_s: the longest lease that is given.
        quarantine_s: from a Job_ID's release until it may be handed out again.
        quotas: the most live jobs per tenant.
        tenants: those there are; None: any.
        boundary_s: how long a move waits for a step to end.
        settle_s: how long a move waits for switches to hold what comes first.
    """

    sessions: SessionSettings = field(default_factory=SessionSettings)
    lease_s: int = 0
    max_lease_s: int = 86_400
    quarantine_s: float = 60.0
    quotas: Quotas = field(default_factory=Quotas)
    tenants: frozenset[str] | None = None
    boundary_s: float = 2.0
    settle_s: float = 10.0


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the store holds: jobs, (switch, port) of links that are down, drained switches."""

    jobs: Snapshot
    down: frozenset[tuple[str, int]]
    drained: frozenset[str]


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What followed from a change of the fabric: names of jobs."""

    moved: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


class Fleet:
    """Runs one :class:`Programmer` per kept switch; an async context manager.

    ``epoch`` is the term in which this controller leads (:mod:`ringstep.controller.leader`).
    ``other_pipelines`` holds the programs of switches that do not run ``pipeline``, by name.
    ``reload`` reads the topology file again.

    Raises:
        ValueError: an ECMP group of the topology is larger than the program takes, or another
            pipeline is for no switch of the topology.
        StoreError: on entry, when the store cannot be read.
        DeposedError: on entry, when another controller leads by now.
    """

    def __init__(
        self,
        topology: Topology,
        store: Store,
        pipeline: Pipeline,
        *,
        epoch: int = 0,
        settings: FleetSettings | None = None,
        other_pipelines: Mapping[str, Pipeline] | None = None,
        reload: Callable[[], Topology] | None = None,
        metrics: Metrics | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epoch = epoch
        self.deposed = asyncio.Event()
        self.job_news: Feed[tuple[int, int], tuple[JobNews, LiveJob]] = Feed(_later_news)
        self.switch_news: Feed[str, None] = Feed(lambda _earlier, later: later)
        self.ledger: Ledger
        self._settings = settings = settings or FleetSettings()
        self._store = store
        self._reload = reload or (lambda: topology)
        self._metrics = metrics or Metrics()
        self._monotonic = monotonic
        self._view = fabric_view(topology)
        self._book = PathBook(self._view)
        self._pace = Pace()
        self.roster = Roster(monotonic)
        self.switchboard = Switchboard(
            self._view,
            pipeline,
            other_pipelines or {},
            settings.sessions,
            epoch,
            on_change=self._switch_changed,
            on_settled=self._settled,
            pace=self._pace,
        )
        self._mover = Mover(
            self.switchboard,
            lambda job: self._tell(JobNews.PROGRAMMING, job),
            boundary_s=settings.boundary_s,
            settle_s=settings.settle_s,
        )
        self._journal: Journal
        self._broken: StoreError | None = None
        self._ending: dict[LiveJob, JobNews] = {}
        self._view_followed = True
        self._closing = False
        self._holds: Callable[[], Awaitable[bool]] = _always
        self._changing = asyncio.Lock()
        self._background: set[asyncio.Task[Any]] = set()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ringstep-store")

    def lead_in(self, epoch: int, holds: Callable[[], Awaitable[bool]]) -> None:
        """Say in which term this fleet will lead, and what looks whether it still does.

        Call it before the fleet is entered.
        """
        self.epoch = epoch
        self.switchboard.epoch = epoch
        self._holds = holds

    @property
    def topology(self) -> Topology:
        """The fabric of the topology file."""
        return self._view.topology

    # -- life --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._journal = Journal(self._store, self.epoch, observer=self._metrics)
        try:
            stored = await self._in_store(self._read_store)
            self.ledger = self._new_ledger(stored.jobs)
            if stored.down or stored.drained:
                self._set_view(
                    fabric_view(self.topology, stored.down, stored.drained, must_reach=())
                )
            await self._restore_all()
            self._view_followed = True
            for kept in await self._kept_switches(self.topology):
                self.switchboard.start(kept)
        except BaseException:
            await self._close()
            raise
        self._in_background(self._run_leases())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._close()

    async def _close(self) -> None:
        self._closing = True
        self.job_news.end()
        self.switch_news.end()
        tasks = set(self._background)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._mover.close()
        await self.switchboard.stop()
        await self._journal.close()
        last = asyncio.get_running_loop().run_in_executor(self._executor, lambda: None)
        await asyncio.wait([last], timeout=_LAST_CALL_S)
        if not last.done():
            # A database that does not answer must not hold up the end.
            self._store.interrupt()
        self._executor.shutdown(wait=False)

    def _read_store(self) -> _Stored:
        """Read all that is stored, once nothing that this term began to write is under way.

        A commit whose answer was lost may still take effect; what is read before that would soon
        be wrong.
        """
        self._store.settle(self.epoch)
        return _Stored(self._store.load(), self._store.down_links(), self._store.drained())

    def _new_ledger(self, snapshot: Snapshot) -> Ledger:
        return Ledger(
            snapshot,
            quarantine_s=self._settings.quarantine_s,
            quotas=self._settings.quotas,
            monotonic=self._monotonic,
        )

    async def _in_store(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def _in_background(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_ended)
        return task

    def _background_ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, DeposedError):
                self.deposed.set()
            else:
                LOGGER.error("background work failed: %s", error, exc_info=error)

    async def _to_the_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Finish ``work`` even if the caller goes away half-way.

        Raises:
            StoreError: nothing can be changed now.
            DeposedError: the fleet was closed first.
        """
        try:
            # At once, and not when whoever reads the store again is done with that.
            self._check_usable()
        except StoreError:
            work.close()
            raise
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._looked_at)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled() or being_cancelled():
                raise
            # It is the work that was cancelled and not the caller, who is owed an answer.
            raise DeposedError(_CLOSED) from None

    def _looked_at(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            # Looked at, so that a failure that nobody waits for is not reported as lost.
            task.exception()

    # -- durable changes ---------------------------------------------------------------------

    def _check_usable(self) -> None:
        """Refuse what would change something while the ledger and the store may differ."""
        if self._closing:
            raise DeposedError(_CLOSED)
        if (failure := self._broken or self._journal.failure) is not None:
            # A copy for each who is refused: raising adds to an exception's traceback.
            kind = DeposedError if isinstance(failure, DeposedError) else StoreError
            raise kind(str(failure))

    async def _write(self, call: Callable[[], _T]) -> _T:
        """Let the store write something that is no job's.

        Raises:
            StoreError: it failed. Whether it was written is found out by reading it all again.
        """
        self._check_usable()
        try:
            return await self._in_store(call)
        except StoreError as error:
            self._store_failed(error)
            raise

    def _make_durable(self, change: Change, then: Callable[[], None]) -> asyncio.Future[None]:
        """Hand a change of the ledger to the store, and do ``then`` once it is there.

        Callbacks run in the order of the changes, and whether or not the caller still waits: a
        client that hangs up must not leave a job in the store that the switches never hear of.
        """
        future = self._journal.submit(change)
        future.add_done_callback(partial(self._stored, then=then))
        return future

    def _stored(self, future: asyncio.Future[None], then: Callable[[], None]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, StoreError):
            self._store_failed(error)
            return
        try:
            then()
        except Exception:
            LOGGER.exception("what follows from a change that is stored failed")

    def _store_failed(self, error: StoreError) -> None:
        if isinstance(error, DeposedError):
            self._broken = error
            self.deposed.set()
        elif self._broken is None and not self._closing:
            self._broken = error
            LOGGER.error("%s; reading the store again", error)
            self._in_background(self._recover())

    async def _recover(self) -> None:
        """Go back to what the store holds, after it failed with changes under way."""
        async with self._changing:
            while True:
                try:
                    await self._go_back_to(await self._in_store(self._read_store))
                    if not await self._holds():
                        # The failure may have cost the lock as well, and another one leads already.
                        raise DeposedError(_CLOSED)
                    # The last thing: nothing may fail unseen between this and the end.
                    if self._journal.failure is None:
                        self._broken = None
                        break
                except DeposedError as error:
                    self._broken = error
                    raise
                except StoreError as error:
                    # Calls are still told of the failure before, which this one goes on with.
                    LOGGER.debug("not yet: %s", error)
                except Exception:
                    LOGGER.exception("going back to what the store holds failed; trying again")
                await asyncio.sleep(_RELOAD_RETRY_S)
        LOGGER.warning("the store works again; %d live jobs", len(self.roster))

    async def _go_back_to(self, stored: _Stored) -> None:
        """Make what is in memory, and what switches are told, agree with what was just read.

        Nothing is decided meanwhile: calls that change something are refused.

        Raises:
            StoreError: the store failed again.
        """
        self.ledger = self._new_ledger(stored.jobs)
        self._journal.reset()
        if (self._view.down, self._view.drained) != (stored.down, stored.drained):
            self._set_view(fabric_view(self.topology, stored.down, stored.drained, must_reach=()))
        known = {(job.id, job.stored.generation): job for job in [*self.roster, *self._ending]}
        lives = {(each.job_id, each.generation): each for each in self.ledger.live()}
        # First those that are gone, so that others find their names, rules and blocks free.
        for key in known.keys() - lives.keys():
            self._lost(known[key])
        for count, (key, each) in enumerate(lives.items()):
            if count % _RESTORED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if (job := known.get(key)) is None:
                self._tell(JobNews.REGISTERED, self._restored(each))
            else:
                self._found_again(job, each)
        if not self._view_followed:
            await self._follow_view(
                "store", "the store failed while paths were changed", at_boundary=False
            )

    def _lost(self, job: LiveJob) -> None:
        """Drop a job that is not stored: never registered, or its end was stored after all."""
        self._forget(job)
        self.switchboard.hold(job, {})
        if (news := self._ending.pop(job, None)) is not None:
            self._tell(news, job)

    def _found_again(self, job: LiveJob, stored: StoredJob) -> None:
        """Go on with a job as it is stored, whatever was decided about it and got lost."""
        was_durable, change = job.is_durable, None
        was_ending = job in self._ending
        if was_ending or job.stored != stored:
            self._mover.stop(job)
            self.roster.forget(job)
            as_stored = parsed(stored)
            job.stored, job.message = as_stored.stored, as_stored.message
            job.spec, job.parameters = as_stored.spec, as_stored.parameters
            job.unreadable = as_stored.unreadable
            change = self._restore(job)
            self.roster.admit(job)
            self._ending.pop(job, None)
        job.durable = None
        # Nobody could renew it while the store failed.
        self.roster.start_lease(job)
        if change is not None:
            self._make_durable(change, lambda: None)
        if job.move is None:
            job.moving = ""
            self.switchboard.hold(job, job.entries)
        if not was_durable:
            self._tell(JobNews.REGISTERED, job)

    # -- view of the fabric ------------------------------------------------------------------

    def _set_view(self, view: FabricView) -> None:
        """Take another view of the fabric: what switches hold without jobs changes at once.

        Raises:
            ValueError: the topology does not fit the program; nothing has changed then.
        """
        self.switchboard.follow(view)
        self._view = view
        self._view_followed = False
        self._book.rebase(view)

    async def _follow_view(self, cause: str, why: str, *, at_boundary: bool) -> Reloaded:
        """Bring every job to the view that is in force now; return which moved or broke.

        ``cause`` is why in a word, for metrics; ``why`` is for people.
        """
        moved, broken = [], []
        stored: list[asyncio.Future[None]] = []
        self._view_followed = False
        # The planned ones first: what they were pinned to may be gone.
        jobs = sorted(self.roster, key=lambda job: not job.paths)
        for count, job in enumerate(jobs):
            if count % _RESTORED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if job not in self.roster:
                continue
            had_problem, paths, ports = job.problem, job.paths, job.ports
            change = self._restore(job)
            if job.problem and not had_problem:
                broken.append(job.name)
            elif job.paths != paths or job.ports != ports:
                moved.append(job.name)
            if change is not None:
                # From now on, so that nobody takes the switches for being where the job is shown.
                job.moving = why
                start = partial(self._start_move, job, why, at_boundary=at_boundary)
                stored.append(self._make_durable(change, start))
            elif job.entries != job.held:
                self._start_move(job, why, at_boundary=at_boundary)
        # Who is told that jobs moved can rely on it; where the store fails, they move all the same
        # once it was read again.
        await asyncio.gather(*map(asyncio.shield, stored), return_exceptions=True)
        self._view_followed = True
        if moved:
            self._metrics.moved(cause, len(moved))
        return Reloaded(tuple(moved), tuple(broken))

    # -- switches ----------------------------------------------------------------------------

    async def add_switch(self, name: str, address: str, device_id: int = 0) -> SwitchView:
        """Keep a switch programmed at an address; ``device_id`` 0 takes the topology's.

        Raises:
            UnknownSwitchError: no such switch in the topology.
            SwitchAddressError: another kept switch has this address and device id.
            StoreError: the store failed.
        """
        self.switchboard[name]
        device_id = device_id or self.topology.switches[name].device_id
        await self._to_the_end(self._add_switch(name, address, device_id))
        return self.switchboard[name]

    async def _add_switch(self, name: str, address: str, device_id: int) -> None:
        async with self._changing:
            self.switchboard.check_address(name, address, device_id)
            if self.switchboard.address_of(name) != (address, device_id):
                kept = StoredSwitch(name, device_id, address, from_file=False)
                await self._write(partial(self._store.put_switch, self.epoch, kept))
                await self.switchboard.stop([name])
                self.switchboard.start(kept)

    async def remove_switch(self, name: str) -> None:
        """Stop to keep a switch programmed; what it holds stays.

        Raises:
            UnknownSwitchError: the switch is not kept.
            StoreError: the store failed.
        """
        await self._to_the_end(self._remove_switch(name))

    async def _remove_switch(self, name: str) -> None:
        async with self._changing:
            removed = partial(self._store.remove_switch, self.epoch, name)
            if not await self._write(removed):
                raise UnknownSwitchError(f"switch {name!r} is not kept programmed; nothing to do")
            await self.switchboard.stop([name])

    async def drain(self, name: str, drained: bool) -> Reloaded:
        """Lead traffic around a switch, or end that.

        Raises:
            UnknownSwitchError: no such switch in the topology.
            CutOffError: hosts, or ends of live jobs, would be cut off.
            StoreError: the store failed.
        """
        self.switchboard[name]
        return await self._to_the_end(self._drain(name, drained))

    async def _drain(self, name: str, drained: bool) -> Reloaded:
        async with self._changing:
            self._check_usable()
            if (name in self._view.drained) == drained:
                return Reloaded()
            wanted = self._view.drained | {name} if drained else self._view.drained - {name}
            # Asked before it is stored: a drain that cuts hosts off is refused.
            must_reach = None if drained else ()
            view = fabric_view(self.topology, self._view.down, wanted, must_reach=must_reach)
            await self._write(partial(self._store.set_drained, self.epoch, name, drained))
            self._set_view(view)
            why = f"switch {name} is being drained" if drained else f"switch {name} is back"
            return await self._follow_view("drain", why, at_boundary=True)

    async def set_link(self, switch: str, port: int, up: bool) -> Reloaded:
        """Take a link between switches out of use, or back into use.

        Raises:
            UnknownSwitchError: no such switch.
            UnknownLinkError: no link to another switch at the port.
            StoreError: the store failed.
        """
        self.switchboard[switch]
        return await self._to_the_end(self._set_link(switch, port, up))

    async def _set_link(self, switch: str, port: int, up: bool) -> Reloaded:
        async with self._changing:
            self._check_usable()
            far, _ = self.topology.ports(switch).get(port, (None, None))
            if far is None or far.node not in self.topology.switches:
                uplinks = [str(each) for each, _ in self.topology.switch_neighbours(switch)]
                raise UnknownLinkError(
                    f"no link between switches at {switch}:{port}; ports of {switch} with one: "
                    f"{', '.join(uplinks) or 'none'}"
                )
            ends = {(switch, port), (far.node, far.port)}
            down = self._view.down - ends if up else self._view.down | ends
            if down == self._view.down:
                return Reloaded()
            for owner, number in sorted(ends):
                await self._write(partial(self._store.set_link, self.epoch, owner, number, up))
            view = fabric_view(self.topology, down, self._view.drained, must_reach=())
            self._set_view(view)
            state = "is back" if up else "is down"
            # A step over a link that is down does not end before its packets go elsewhere.
            why = f"link {switch}:{port} {state}"
            return await self._follow_view("link", why, at_boundary=up)

    async def reload_topology(self) -> Reloaded:
        """Read the topology file again and follow it.

        Raises:
            FileError: it cannot be used; everything stays as it was.
            ValueError: it does not fit the program or the configuration; likewise.
            StoreError: the store failed.
        """
        return await self._to_the_end(self._reload_topology())

    async def _reload_topology(self) -> Reloaded:
        async with self._changing:
            self._check_usable()
            topology = await asyncio.get_running_loop().run_in_executor(None, self._reload)
            before = self._view
            view = fabric_view(topology, before.down, before.drained, must_reach=())
            self.switchboard.checked(view)
            kept = {each.name: each for each in await self._kept_switches(topology)}
            self._set_view(view)
            moved = [
                name
                for name in self.switchboard.programmers
                if name not in kept
                or self.switchboard.address_of(name) != (kept[name].address, kept[name].device_id)
            ]
            await self.switchboard.stop(moved)
            for name, each in kept.items():
                if self.switchboard.address_of(name) is None:
                    self.switchboard.start(each)
            return await self._follow_view("topology", "the topology changed", at_boundary=True)

    async def _kept_switches(self, topology: Topology) -> list[StoredSwitch]:
        from_file = [
            StoredSwitch(switch.name, switch.device_id, switch.p4runtime, from_file=True)
            for switch in topology.switches.values()
            if switch.p4runtime is not None
        ]
        sync = partial(self._store.sync_switches_from_file, self.epoch, from_file)
        kept = []
        for each in await self._write(sync):
            if each.name in topology.switches:
                kept.append(each)
            else:
                LOGGER.warning("switch %s: not in the topology, left alone", each.name)
        return kept

    # -- jobs: register and release ----------------------------------------------------------

    async def register(
        self,
        message: jobs_pb2.JobSpec,
        request_id: str = "",
        *,
        caller: Caller = LOCAL,
        rebalance: bool = False,
    ) -> LiveJob:
        """Give a job its Job_ID, store it, and hand its rules to the switches.

        Raises:
            SpecError: a field is wrong, a host is unknown, or cannot be reached.
            RuleConflictError: another live job has an overlapping rule.
            NoRuleTableError: no switch can find the job's packets.
            UnknownTenantError, OtherTenantError: the tenant is unknown, or not the caller's.
            NameTakenError, RequestIdReusedError, QuotaError, ExhaustedError: as
                :meth:`Ledger.register`.
            StoreError: the store failed.
        """
        self._check_usable()
        planned: tuple[Mapping[int, JobPaths], JobPaths] | None = None
        if rebalance:
            spec = spec_from_proto(message)
            check_hosts(spec, self.topology)
            self._check_reachable(spec)
            planned = await self._planned_anew(spec)
            self._check_usable()
        job = self._begin(message, request_id, caller, planned)
        if job.durable is not None:
            await asyncio.shield(job.durable)
        return job

    def _begin(
        self,
        message: jobs_pb2.JobSpec,
        request_id: str,
        caller: Caller,
        planned: tuple[Mapping[int, JobPaths], JobPaths] | None,
    ) -> LiveJob:
        asked_at = self._monotonic()
        self._pace.called()
        spec = spec_from_proto(message)
        tenant = self._tenant(spec.tenant, caller)
        text = message.SerializeToString(deterministic=True)
        known = self.roster.by_request(request_id)
        if known is not None and known.stored.spec == text:
            refuse_other_tenant(caller, known.stored.tenant)
            return known
        check_hosts(spec, self.topology)
        self._check_reachable(spec)
        moved, paths = planned or ({}, self._book.plan(spec))
        layout = lay_out(self._view, spec, paths)
        rules = layout.rules
        if known is None:
            self._check_free(spec, rules)
        lease_s = self._lease(spec.lease_s, "spec.lease_s") or self._settings.lease_s
        decision = decide(
            spec, message.overrides, self._view.usable, self.roster.neighbours(layout.ports)
        )
        parameters = params_to_proto(decision.params, spec.scope)
        parameters.marking.CopyFrom(decision.to_proto())
        cannot = self._cannot(spec, layout.ports)
        stored, change = self.ledger.register(
            name=spec.name,
            tenant=tenant,
            owner=caller.name,
            request_id=request_id,
            spec=text,
            params=parameters.SerializeToString(deterministic=True),
            paths=dump_paths(paths),
            lease_s=lease_s,
            blocks=block_keys(self._view, spec, layout, cannot),
        )
        assert change is not None, "a request that is known and live was answered above"
        spec = replace(spec, params=replace(decision.params, generation=stored.generation))
        job = LiveJob(stored, message, spec, parameters, rules, paths=paths)
        self._place(job, layout, cannot)
        self.roster.admit(job)
        self._book.hold(job.id, job.name, spec, paths)
        job.durable = self._make_durable(change, partial(self._publish, job, asked_at))
        self._move_jobs(moved, f"job {job.name} came and asked to rebalance")
        return job

    def _publish(self, job: LiveJob, asked_at: float) -> None:
        self._metrics.registered(self._monotonic() - asked_at)
        job.asked_at = asked_at
        if job in self.roster:
            self.roster.start_lease(job)
            self.switchboard.hold(job, job.entries)
        self._tell(JobNews.REGISTERED, job)

    def _tenant(self, asked: str, caller: Caller) -> str:
        tenant = tenant_for(caller, asked, DEFAULT_TENANT)
        known = self._settings.tenants
        if known is not None and tenant not in known:
            raise UnknownTenantError(tenant, known)
        return tenant

    def _lease(self, seconds: int, name: str) -> int:
        if seconds > self._settings.max_lease_s:
            raise SpecError(
                name,
                f"{seconds} s: this controller gives at most {self._settings.max_lease_s} s "
                "(jobs.max_lease)",
            )
        return lease_from(seconds, name)

    def _check_free(self, spec: JobSpec, rules: frozenset[EntryKey]) -> None:
        if (taken := self.roster.by_name(spec.name)) is not None:
            raise NameTakenError(
                f"job {spec.name!r} is already registered as job {taken.id}; release it, or take "
                "another name"
            )
        if (conflict := self.roster.conflict(spec, rules)) is not None:
            way_out = (
                "give this job's packets another JobID"
                if spec.match is MatchKind.UEC
                else "tell the jobs apart by destination QP (match DST_QP) or by tag"
            )
            raise RuleConflictError(f"{conflict}; release it, or {way_out}")

    def _check_reachable(self, spec: JobSpec) -> None:
        for edge in spec.edges:
            if not self._view.ecmp_ports(edge.src, edge.dst):
                raise SpecError(
                    "spec.rings", f"{edge}: no path in the topology; link the two parts"
                )

    def _cannot(self, spec: JobSpec, ports: Mapping[str, frozenset[int]]) -> dict[str, str]:
        """Return switch -> why it cannot find the job's packets, of the switches of its paths.

        Raises:
            NoRuleTableError: none of them can.
        """
        table = RULE_TABLES[spec.match]
        cannot = [switch for switch in ports if not self.switchboard.pipelines[switch].has(table)]
        if not cannot:
            return {}
        reason = (
            f"its program has no table {table}; give it one compiled with -DRINGSTEP_UEC, such as "
            "that of 'ringstep controller serve --uec', or uec = true in controller.toml"
        )
        if len(cannot) == len(ports):
            raise NoRuleTableError(
                f"no switch of the job's paths can find its packets: {', '.join(cannot)}; "
                f"{reason.replace('its program has', 'their program has').replace('it one', 'one')}"
            )
        return dict.fromkeys(cannot, reason)

    async def release(
        self, ref: str | int, generation: int = 0, *, caller: Caller = LOCAL
    ) -> LiveJob:
        """End a job and take its rules off the switches.

        Raises:
            NoSuchJobError: no such live job.
            StaleGenerationError: the job has another generation.
            OtherTenantError: the job is another tenant's.
            StoreError: the store failed.
        """
        self._check_usable()
        job = self.roster.get(ref, generation)
        refuse_other_tenant(caller, job.stored.tenant)
        await asyncio.shield(self._end(job, JobNews.RELEASED))
        return job

    def _end(self, job: LiveJob, news: JobNews) -> asyncio.Future[None]:
        _, change = self.ledger.release(job.id)
        self._forget(job)
        self._ending[job] = news
        return self._make_durable(change, partial(self._ended, job, news))

    def _ended(self, job: LiveJob, news: JobNews) -> None:
        self._ending.pop(job, None)
        self._metrics.released(news.value)
        self.switchboard.hold(job, {})
        self._tell(news, job)

    # -- jobs: renew and change --------------------------------------------------------------

    async def renew(
        self,
        ref: str | int,
        lease_s: int = 0,
        generation: int = 0,
        *,
        caller: Caller = LOCAL,
    ) -> LiveJob:
        """Start a job's lease anew; ``lease_s`` 0 keeps its length.

        Raises:
            SpecError: a longer lease than is given.
            Others as :meth:`release`.
        """
        self._check_usable()
        job = self.roster.get(ref, generation)
        refuse_other_tenant(caller, job.stored.tenant)
        lease_s = self._lease(lease_s, "lease_s") or job.stored.lease_s
        if lease_s != job.stored.lease_s:
            job.stored, change = self.ledger.update(job.id, lease_s=lease_s)
            await asyncio.shield(self._make_durable(change, lambda: None))
        self.roster.start_lease(job)
        self._metrics.renewed()
        return job

    async def _run_leases(self) -> None:
        while True:
            await asyncio.sleep(_LEASE_TICK_S)
            if self._broken is not None or self._journal.failure is not None:
                continue
            for job in self.roster.take_expired():
                LOGGER.warning("job %s (%d): lease ran out, released", job.name, job.id)
                try:
                    # Awaited by nobody: a failure is seen where the journal's is.
                    self._end(job, JobNews.EXPIRED)
                except Exception:
                    LOGGER.exception("job %s (%d): was not released", job.name, job.id)
                    self.roster.start_lease(job)

    async def update(
        self,
        ref: str | int,
        changes: jobs_pb2.MarkerOverrides,
        generation: int = 0,
        *,
        caller: Caller = LOCAL,
    ) -> LiveJob:
        """Change marker parameters of a live job; the switches' state of it stays.

        Raises:
            SpecError: a value is out of range, or a field cannot change while the job lives.
            Others as :meth:`release`.
        """
        self._check_usable()
        job = self.roster.get(ref, generation)
        refuse_other_tenant(caller, job.stored.tenant)
        spec = changed_params(job.spec, changes)
        parameters = params_to_proto(spec.params, spec.scope)
        parameters.marking.CopyFrom(job.parameters.marking)
        if changes.HasField("enabled"):
            choice = jobs_pb2.MARKING_CHOICE_ON if changes.enabled else jobs_pb2.MARKING_CHOICE_OFF
            parameters.marking.CopyFrom(
                jobs_pb2.MarkingDecision(choice=choice, reason="as asked, while the job ran")
            )
        stored, change = self.ledger.update(
            job.id, params=parameters.SerializeToString(deterministic=True)
        )
        job.stored, job.parameters, job.spec = stored, parameters, spec
        if not job.problem:
            self._place(job, lay_out(self._view, spec, job.paths), job.cannot)

        def publish() -> None:
            if job in self.roster and not job.moving:
                self.switchboard.hold(job, job.entries)
            self._tell(JobNews.UPDATED, job)

        await asyncio.shield(self._make_durable(change, publish))
        return job

    @property
    def store_queue(self) -> int:
        """How many changes wait to be stored."""
        return self._journal.queue_length

    def link_facts(self) -> list[LinkFacts]:
        """Return what every direction of a link between switches carries by plan."""
        return [
            LinkFacts(str(link.src), str(link.dst), edges, load)
            for link, edges, load in self._book.carried()
        ]

    # -- plans -------------------------------------------------------------------------------

    async def _planned_anew(
        self, extra: JobSpec | None = None
    ) -> tuple[Mapping[int, JobPaths], JobPaths]:
        """Plan all jobs anew, and ``extra`` beside them; return who moves, and its paths.

        That takes a second or more with many jobs, and is done beside the event loop.

        Raises:
            PlanError: ``extra`` cannot be planned.
        """
        view, book = self._view, self._book.copy()
        moved, paths = await asyncio.get_running_loop().run_in_executor(None, book.rebalance, extra)
        if view is not self._view:
            return await self._planned_anew(extra)
        return {
            job_id: new
            for job_id, new in moved.items()
            if (job := self.roster.by_id(job_id)) is not None and not job.problem
        }, paths

    async def explain(
        self, spec: JobSpec, job: LiveJob | None = None, *, rebalance: bool = False
    ) -> tuple[PlanReport, JobPaths, tuple[str, ...]]:
        """Return what the plan of a job does to the links, its paths, and who would move.

        Raises:
            SpecError: a host is unknown, or cannot be reached.
        """
        check_hosts(spec, self.topology)
        self._check_reachable(spec)
        moved: Mapping[int, JobPaths] = {}
        if rebalance:
            moved, paths = await self._planned_anew(None if job else spec)
            if job is not None:
                paths = moved.get(job.id, job.paths)
        else:
            paths = job.paths if job is not None else self._book.plan(spec)
        book = self._book
        if moved:
            book = book.copy()
            for job_id, new in moved.items():
                if (other := self.roster.by_id(job_id)) is not None:
                    book.hold(job_id, other.name, other.spec, new)
        report = book.explain(spec, paths, without=None if job is None else job.id)
        return report, paths, self._names(moved)

    async def rebalance(self, *, dry_run: bool = False) -> tuple[tuple[str, ...], float, float]:
        """Plan all jobs anew; return who moves, and the fullest link's load before and after.

        Raises:
            StoreError: the store failed.
        """
        self._check_usable()
        async with self._changing:
            self._check_usable()
            moved, _ = await self._planned_anew()
            names, before = self._names(moved), self._book.max_load()
            after = self._book.copy()
            for job_id, paths in moved.items():
                if (job := self.roster.by_id(job_id)) is not None:
                    after.hold(job_id, job.name, job.spec, paths)
            if not dry_run:
                self._check_usable()
                changes = self._move_jobs(moved, "an operator asked to rebalance")
                await asyncio.gather(*map(asyncio.shield, changes))
            return names, before, after.max_load()

    def _names(self, job_ids: Iterable[int]) -> tuple[str, ...]:
        jobs = (self.roster.by_id(job_id) for job_id in job_ids)
        return tuple(sorted(job.name for job in jobs if job is not None))

    def _move_jobs(self, moved: Mapping[int, JobPaths], why: str) -> list[asyncio.Future[None]]:
        futures = []
        for job_id, paths in moved.items():
            job = self.roster.by_id(job_id)
            if job is None:
                continue
            layout = lay_out(self._view, job.spec, paths)
            try:
                cannot = self._cannot(job.spec, layout.ports)
                wanted = block_keys(self._view, job.spec, layout, cannot)
                job.stored, change = self.ledger.place(job.id, wanted, dump_paths(paths))
            except (NoRuleTableError, ExhaustedError) as error:
                # It stays where it is, which is right as well; who asked is owed the rest.
                LOGGER.warning("job %s (%d) does not move: %s", job.name, job.id, error)
                continue
            self.roster.unindex(job)
            job.paths = paths
            self._place(job, layout, cannot)
            self.roster.index(job)
            self._book.hold(job.id, job.name, job.spec, paths)
            job.moving = why
            start = partial(self._start_move, job, why, at_boundary=True)
            futures.append(self._make_durable(change, start))
        if futures:
            self._metrics.moved("rebalance", len(futures))
        return futures

    def _start_move(self, job: LiveJob, why: str, *, at_boundary: bool) -> None:
        if job in self.roster:
            self._mover.start(job, why, at_boundary=at_boundary)
            self._tell(JobNews.UPDATED, job)

    # -- reading -----------------------------------------------------------------------------

    def programming(self, job: LiveJob) -> list[tuple[SwitchView, bool]]:
        """Return the switches that hold entries of the job, and whether each holds all of them."""
        return [
            (self.switchboard[name], self.switchboard.holds(job, name))
            for name in sorted({*job.entries, *job.cannot})
            if name in self.switchboard
        ]

    async def state(self, job: LiveJob) -> list[SwitchReading]:
        """Read the job's blocks and counters from all its switches at once."""
        reader = Reader(job, self.switchboard.programmers, self.switchboard.pipelines)
        return await reader.read()

    # -- what is in memory -------------------------------------------------------------------

    async def _restore_all(self) -> None:
        for count, stored in enumerate(list(self.ledger.live())):
            if count % _RESTORED_AT_ONCE == 0:
                await asyncio.sleep(0)
            self._restored(stored)

    def _restored(self, stored: StoredJob) -> LiveJob:
        """Take a stored job in, with what follows from it on today's fabric."""
        job = parsed(stored)
        change = self._restore(job)
        self.roster.admit(job)
        self.roster.start_lease(job)
        if change is not None:
            self._make_durable(change, lambda: None)
        self.switchboard.hold(job, job.entries)
        return job

    def _restore(self, job: LiveJob) -> Change | None:
        """Bring a job to the view in force; return what the store has to learn about it.

        Where that cannot be, the job has no rules, and ``problem`` says why.
        """
        self.roster.unindex(job)
        job.problem, job.rules, job.entries, job.ports, job.cannot = "", frozenset(), {}, {}, {}
        job.paths = {}
        change = None
        try:
            if job.unreadable:
                raise SpecError("spec", job.unreadable)
            had = load_paths(job.stored.paths)
            check_hosts(job.spec, self.topology)
            rules = match_keys(self.topology, job.spec)
            # Two jobs whose rules clash can both be live where the topology changed in between:
            # one of them had no rules when the other came.
            if (conflict := self.roster.conflict(job.spec, rules)) is not None:
                raise SpecError(
                    "spec", f"{conflict}; release one of the two, then reload the topology"
                )
            self._check_reachable(job.spec)
            paths = self._book.replan(job.spec, had)
            layout = lay_out(self._view, job.spec, paths)
            cannot = self._cannot(job.spec, layout.ports)
            wanted = block_keys(self._view, job.spec, layout, cannot)
            have = {switch: tuple(sorted(blocks)) for switch, blocks in job.stored.blocks.items()}
            if have != wanted or paths != had:
                job.stored, change = self.ledger.place(job.id, wanted, dump_paths(paths))
        except (ValueError, NoRuleTableError, PlanError, ExhaustedError) as error:
            LOGGER.warning("job %s (%d): %s", job.name, job.id, error)
            job.problem = str(error)
            self._book.drop(job.id)
            return None
        job.rules, job.paths = rules, paths
        self._book.hold(job.id, job.name, job.spec, paths)
        self._place(job, layout, cannot)
        if job in self.roster:
            self.roster.index(job)
        return change

    def _place(self, job: LiveJob, layout: Layout, cannot: Mapping[str, str]) -> None:
        stored = job.stored
        placed = PlacedJob(stored.job_id, stored.generation, job.spec, stored.blocks, job.paths)
        job.ports, job.cannot = layout.ports, cannot
        job.entries = job_entries(self._view, placed, layout)
        for switch in cannot:
            job.entries.pop(switch, None)

    def _forget(self, job: LiveJob) -> None:
        self._mover.stop(job)
        self.roster.forget(job)
        self._book.drop(job.id)

    def _switch_changed(self, name: str) -> None:
        """Hear that a switch entered another phase; jobs may have lost or regained it."""
        self.switch_news.tell(name, None)
        match self.switchboard.phase(name):
            case Phase.IN_SYNC | Phase.ERROR:
                for job in self.roster.on_switch(name):
                    self._check_complete(job, name)
            case Phase.CONNECTING | Phase.PUSHING_PIPELINE:
                for job in self.roster.on_switch(name):
                    if name in job.held and name not in job.late:
                        job.late.add(name)
                        self._tell(JobNews.PROGRAMMING, job)
            case _:
                pass

    def _settled(self, switch: str, keys: Collection[EntryKey]) -> None:
        """Hear that a switch holds entries; tell who watches of jobs that are complete now."""
        for job in {job for key in keys if (job := self.roster.owner(key)) is not None}:
            self._check_complete(job, switch)

    def _check_complete(self, job: LiveJob, switch: str) -> None:
        if switch not in job.late or not self.switchboard.holds(job, switch):
            return
        job.late.discard(switch)
        if not job.late:
            if job.asked_at:
                self._metrics.programmed(self._monotonic() - job.asked_at)
                job.asked_at = 0.0
            self._tell(JobNews.PROGRAMMING, job)

    def _tell(self, news: JobNews, job: LiveJob) -> None:
        if self.job_news and job.is_durable:
            self.job_news.tell((job.id, job.stored.generation), (news, job))
