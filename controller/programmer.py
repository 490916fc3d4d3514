"""One task per switch: connect, load the program, read, diff, write, read back, and stay.

Whatever happened to the switch (restarted empty, another program, entries changed by others), the
task starts from what the switch says it holds and ends where it holds what it should. From then on
a change costs as much as it changes; everything is read again only to find what others did.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from ringstep.controller.channels import ChannelTls
from ringstep.controller.entries import EntryKey, SwitchTables
from ringstep.controller.p4rt import Session, SessionError, Timing, stop_task
from ringstep.controller.pace import Pace
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.plan import EntryUpdate, Op, Target, Update, phase_of, target_of
from ringstep.controller.refusals import Refusal, WriteRefusedError
from ringstep.controller.worklist import STEP, Drift, Worklist
from ringstep.protocol.inband import StateReply
from ringstep.protocol.limits import CPU_PORT

LOGGER = logging.getLogger(__name__)

MAX_LISTED: Final = 20
"""Refused updates in the status, and foreign entries in the log of one full read."""
_MAX_REMEMBERED: Final = 16
"""Failures that are logged once each until the switch is in sync again."""
_STALE: Final = frozenset(
    {(Op.INSERT, "ALREADY_EXISTS"), (Op.MODIFY, "NOT_FOUND"), (Op.DELETE, "NOT_FOUND")}
)
"""Refusals that only say that somebody else changed the switch meanwhile."""


class Phase(StrEnum):
    """What the controller is doing with a switch."""

    UNMANAGED = "unmanaged"
    CONNECTING = "connecting"
    PUSHING_PIPELINE = "pushing pipeline"
    PROGRAMMING = "programming"
    IN_SYNC = "in sync"
    ERROR = "error"


class ForeignPolicy(StrEnum):
    """What is done with entries that nobody here wants and that were not written from here."""

    REMOVE = "remove"
    KEEP = "keep"


@dataclass(slots=True)
class ProgrammerStatus:
    """How far a switch is, and what was done to it since the controller started.

    The fields are those of ``SwitchStatus`` in switches.proto, which says what they mean.
    """

    phase: Phase = Phase.CONNECTING
    detail: str = ""
    desired_entries: int = 0
    updates_written: int = 0
    foreign_removed: int = 0
    foreign_kept: int = 0
    sessions: int = 0
    pending: int = 0
    drift_missing: int = 0
    drift_changed: int = 0
    drift_foreign: int = 0
    drifts: int = 0
    audited_unix_ms: int = 0
    refused: tuple[str, ...] = ()
    refused_count: int = 0


class Programmer:
    """Keeps one switch as it should be. :meth:`run` is the task; the rest may be called any time.

    ``desired`` belongs to the caller, who changes it on the event loop and then calls
    :meth:`changed`. ``on_change`` is called with the switch's name after every change of
    :attr:`status`; ``on_settled`` with its name and keys that are now known to be on the switch as
    they are desired. Neither may raise.
    """

    def __init__(
        self,
        name: str,
        address: str,
        device_id: int,
        pipeline: Pipeline,
        desired: SwitchTables,
        *,
        election_id: int = 1,
        timing: Timing | None = None,
        tls: ChannelTls | None = None,
        foreign: ForeignPolicy = ForeignPolicy.REMOVE,
        on_change: Callable[[str], None] | None = None,
        on_settled: Callable[[str, Collection[EntryKey]], None] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.device_id = device_id
        self.status = ProgrammerStatus(desired_entries=len(desired))
        self._pipeline = pipeline
        self._election_id = election_id
        self._timing = timing or Timing()
        self._tls = tls
        self._pace = pace or Pace()
        self._counted: set[int] | None = None
        """Job_IDs whose counters may not be zero; None: any, for the program was there already."""
        self._foreign = foreign
        self._on_change = on_change or (lambda name: None)
        self._on_settled = on_settled or (lambda name, keys: None)
        self._work = Worklist(desired, keep_foreign=foreign is ForeignPolicy.KEEP)
        self._compare_due = False
        self._changed = asyncio.Event()
        self._session: Session | None = None
        self._reached_sync = False
        self._logged: set[str] = set()
        self._told = False
        self._retry_at: float | None = None
        self._retry_s = self._timing.retry_min_s
        self._refusal_text = ""

    # -- what the caller wants ---------------------------------------------------------------

    def changed(self, keys: Iterable[EntryKey]) -> None:
        """Note that entries of ``desired`` were put, changed or dropped. Costs O(keys)."""
        # Without a session everything is compared at the start of the next one.
        if self._session is not None:
            self._work.changed(keys)
        self._wake()

    def set_desired(self, tables: SwitchTables) -> None:
        """Change what the switch should hold, or say that any of it may have changed.

        Costs a comparison of everything, also where ``tables`` is the object of before.
        """
        self._work.desired = tables
        self._work.known = False
        self._compare_due = True
        self._wake()

    def unsettled(self, keys: Collection[EntryKey]) -> bool:
        """Say whether one of these entries is not known to be on the switch as desired.

        A key that is not desired is settled when it is not on the switch. Without a session
        nothing is known.
        """
        return self._session is None or self._work.unsettled(keys)

    def _wake(self) -> None:
        self.status.desired_entries = len(self._work.desired)
        self.status.pending = self._work.pending
        self._changed.set()
        if self.status.phase is Phase.IN_SYNC:
            self._enter(Phase.PROGRAMMING)

    # -- the task ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the switch programmed until cancelled; failures are reported and tried again."""
        delay = self._timing.retry_min_s
        while True:
            try:
                if self.status.phase not in {Phase.ERROR, Phase.CONNECTING}:
                    self._enter(Phase.CONNECTING)
                async with Session(
                    self.address,
                    self.device_id,
                    self._pipeline,
                    election_id=self._election_id,
                    timing=self._timing,
                    tls=self._tls,
                    pace=self._pace,
                ) as session:
                    self.status.sessions += 1
                    await self._serve(session)
            except SessionError as error:
                self._enter(
                    Phase.CONNECTING if error.unreachable else Phase.ERROR,
                    f"{error}; trying again",
                )
            except Exception as error:  # One switch must not stop the others.
                LOGGER.exception("switch %s: unexpected failure", self.name)
                self._enter(Phase.ERROR, f"unexpected failure: {error!r}; trying again")
            if self._reached_sync:
                delay = self._timing.retry_min_s
                self._reached_sync = False
            await asyncio.sleep(delay)
            delay = min(delay * 2, self._timing.retry_max_s)

    async def read_state(self, job_id: int, block: int, port: int = CPU_PORT) -> StateReply:
        """Read one state block from the data plane, by :meth:`Session.read_state`.

        Raises:
            SessionError: there is no session, or the data plane does not answer.
        """
        return await self._open_session().read_state(job_id, block, port)

    async def read_job_counters(self, job_id: int) -> dict[str, int]:
        """Return the packet counters of a job.

        Raises:
            SessionError: there is no session, or the switch does not answer.
        """
        return await self._open_session().read_job_counters(job_id)

    def _open_session(self) -> Session:
        if self._session is None:
            detail = f": {self.status.detail}" if self.status.detail else ""
            raise SessionError(f"no session with {self.address} ({self.status.phase}){detail}")
        return self._session

    # -- one session -------------------------------------------------------------------------

    async def _serve(self, session: Session) -> None:
        work = asyncio.create_task(self._keep_in_sync(session))
        try:
            await asyncio.wait({work, session.reader}, return_when=asyncio.FIRST_COMPLETED)
            if session.reader.done():
                # The stream's end explains what the failed request cannot.
                await session.reader
            await work
        finally:
            await stop_task(work)
            self._forget()

    def _forget(self) -> None:
        """Assume nothing about the switch any more."""
        self._session = None
        self._work.forget()
        self._retry_at = None
        self._note_refusals()

    async def _keep_in_sync(self, session: Session) -> None:
        # Another controller may have been at it since the last session.
        self._counted = None
        while True:
            pushed = await self._load_pipeline(session)
            self._session = session
            actual = await session.read_tables()
            self.status.audited_unix_ms = time.time_ns() // 1_000_000
            await self._compare(actual, expected_empty=pushed)
            await self._follow(session)

    async def _load_pipeline(self, session: Session) -> bool:
        """Load the program unless it runs already; return whether it was loaded."""
        if await session.runs_our_pipeline():
            return False
        self._forget()
        self._work_on(Phase.PUSHING_PIPELINE)
        await session.push_pipeline()
        self._work.emptied()
        self._counted = set()
        return True

    async def _follow(self, session: Session) -> None:
        """Follow changes of the desired state until a full read is due or the program is gone."""
        now = asyncio.get_running_loop().time
        audit_at = now() + self._timing.audit_s
        probe_at = now() + self._timing.heartbeat_s
        while True:
            self._changed.clear()
            if self._compare_due:
                await self._compare(self._work.actual)
            if self._retry_at is not None and now() >= self._retry_at:
                self._retry_at = None
                self._work.retry()
            if self._work.has_work:
                await self._round(session)
            if now() >= audit_at:
                return
            if now() >= probe_at:
                if not await session.runs_our_pipeline():
                    LOGGER.warning("switch %s: runs another program now", self.name)
                    return
                probe_at = now() + self._timing.heartbeat_s
            if self._changed.is_set() or self._work.has_work:
                continue
            self._show_result()
            until = min(audit_at, probe_at, self._retry_at or audit_at)
            await self._wait_for_change(until - now())

    def _show_result(self) -> None:
        self.status.pending = self._work.pending
        if self._refusal_text:
            self._enter(Phase.ERROR, f"{self._refusal_text}; trying again")
        else:
            self._enter(Phase.IN_SYNC)
            self._reached_sync = True

    async def _wait_for_change(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    # -- comparing everything ----------------------------------------------------------------

    async def _compare(self, actual: SwitchTables, *, expected_empty: bool = False) -> None:
        """Find what differs from ``actual``; it is drift where that was just read.

        ``expected_empty``: the program was just loaded, so that everything is missing.
        """
        was_read = actual is not self._work.actual
        self._compare_due = False
        drift = Drift()
        for step in self._work.compare(actual):
            drift = step
            await asyncio.sleep(0)
        self._report_foreign(drift)
        if self._compare_due:
            return  # The caller changed its mind meanwhile.
        status = self.status
        status.foreign_kept = drift.kept
        if was_read:
            if expected_empty:
                drift = Drift()
            status.drift_missing, status.drift_changed = drift.missing, drift.changed
            status.drift_foreign = drift.foreign
            status.drifts += bool(drift)
        self._on_change(self.name)
        if not self._work.known:
            self._work.known = True
            for keys in self._work.settled_keys():
                self._on_settled(self.name, keys)
                await asyncio.sleep(0)

    def _report_foreign(self, drift: Drift) -> None:
        """Name foreign entries in the log, once each."""
        doing = "keeping" if self._foreign is ForeignPolicy.KEEP else "removing"
        for target, value in drift.strange[:MAX_LISTED]:
            LOGGER.warning(
                "switch %s: %s what nobody here wants: %s -> %s", self.name, doing, target, value
            )
        if len(drift.strange) > MAX_LISTED:
            LOGGER.warning(
                "switch %s: %s what nobody here wants: and %d more",
                self.name,
                doing,
                len(drift.strange) - MAX_LISTED,
            )

    # -- one round ---------------------------------------------------------------------------

    async def _round(self, session: Session) -> None:
        """Plan what is dirty, write it, read it back. What is refused waits for its next try."""
        work = self._work
        phases: dict[int, list[Update]] = {}
        new_jobs: list[int] = []
        tried = 0
        await self._pace.turn()
        for updates, right in work.take():
            for update in updates:
                phases.setdefault(phase_of(update), []).append(update)
            new_jobs += work.jobs_new_in(updates)
            tried += len(updates)
            self._settle(right)
            await asyncio.sleep(0)
        if tried:
            self._work_on(Phase.PROGRAMMING)
            work.total_tried = tried
            # Before its rules, so that a job's counters hold its own packets and all of them.
            if stale := [job for job in new_jobs if self._counted is None or job in self._counted]:
                await session.reset_job_counters(stale)
            if self._counted is not None:
                self._counted.update(new_jobs)
            ordered = [phases[number] for number in sorted(phases)]
            await self._write(session, ordered)
            for phase in ordered:
                async for part in _in_steps(phase):
                    self._settle([target_of(update) for update in part])
        self._note_refusals()
        if work.refused and self._retry_at is None:
            self._retry_at = asyncio.get_running_loop().time() + self._retry_s
            self._retry_s = min(self._retry_s * 2, self._timing.retry_max_s)
        elif not work.refused:
            self._retry_at, self._retry_s = None, self._timing.retry_min_s

    async def _write(self, session: Session, phases: Iterable[Sequence[Update]]) -> None:
        written: list[Update] = []
        stale: list[Refusal] = []
        asked: Counter[str] = Counter()

        def on_written(update: Update) -> None:
            if update.op is not Op.DELETE:
                written.append(update)
                if isinstance(update, EntryUpdate):
                    asked[update.key.table] += 1
            elif self._work.is_foreign(target_of(update)):
                self.status.foreign_removed += 1
            self._work.written(update)
            self.status.updates_written += 1

        for phase in phases:
            admitted: list[Update] = []
            async for part in _in_steps(phase):
                some = self._work.admit(part)
                self._work.writing(some)
                admitted += some
            try:
                await session.write(admitted, on_written)
            except WriteRefusedError as error:
                for refusal in error.refusals:
                    if (refusal.update.op, refusal.code) in _STALE:
                        stale.append(refusal)
                    else:
                        self._work.refused[target_of(refusal.update)] = refusal
            self._on_change(self.name)
        if written or stale:
            back = [*written, *(refusal.update for refusal in stale)]
            found = await session.read_back(back, self._work.whole_tables(asked))
            async for part in _in_steps(written):
                self._work.check(part, found)
            self._work.resolve(stale, found)

    def _settle(self, targets: Iterable[Target]) -> None:
        keys = self._work.settle(targets)
        self.status.pending = self._work.pending
        if keys and self._work.known:
            self._on_settled(self.name, keys)

    def _note_refusals(self) -> None:
        refused = self._work.refused
        listed = tuple(str(one) for one in islice(refused.values(), MAX_LISTED))
        if not refused:
            self._refusal_text = ""
        elif (listed, len(refused)) != (self.status.refused, self.status.refused_count):
            self._refusal_text = self._work.refusal_text()
        if (listed, len(refused)) != (self.status.refused, self.status.refused_count):
            self.status.refused, self.status.refused_count = listed, len(refused)
            self._on_change(self.name)

    # -- status ------------------------------------------------------------------------------

    def _work_on(self, phase: Phase) -> None:
        """Show what is being done, unless the last attempt at it failed: then show that.

        Otherwise a failure that repeats would flicker in every listing and fill the log.
        """
        if self.status.phase is not Phase.ERROR:
            self._enter(phase)

    def _enter(self, phase: Phase, detail: str = "") -> None:
        if (self.status.phase, self.status.detail) == (phase, detail):
            return
        self._log(phase, detail)
        self.status.phase, self.status.detail = phase, detail
        self._on_change(self.name)

    def _log(self, phase: Phase, detail: str) -> None:
        """Log a change, a failure once until the switch is in sync again, whatever else fails."""
        if detail or phase is Phase.ERROR:
            if detail not in self._logged and len(self._logged) < _MAX_REMEMBERED:
                LOGGER.warning("switch %s: %s: %s", self.name, phase, detail)
                self._logged.add(detail)
            return
        # Between these two it goes with every change of a job.
        routine = {Phase.PROGRAMMING, Phase.IN_SYNC}
        level = (
            logging.DEBUG if {phase, self.status.phase} <= routine and self._told else logging.INFO
        )
        LOGGER.log(level, "switch %s: %s", self.name, phase)
        if phase is Phase.IN_SYNC:
            self._logged.clear()
            self._told = True
        elif phase not in routine:
            self._told = False


async def _in_steps(updates: Sequence[Update]) -> AsyncIterator[Sequence[Update]]:
    """Yield parts small enough that the event loop is not held up by any of them."""
    for start in range(0, len(updates), STEP):
        yield updates[start : start + STEP]
        await asyncio.sleep(0)
