"""One task per switch: connect, load the program, read, diff, write, read back, and stay.

Whatever happened to the switch (restarted empty, another program, entries changed by others), the
task starts from what the switch says it holds and ends where it holds what it should.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from ringstep.controller.entries import SwitchTables
from ringstep.controller.p4rt import (
    Session,
    SessionError,
    Timing,
    WriteRefusedError,
    missing_after_write,
    stop_task,
)
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.plan import (
    EntryUpdate,
    GroupUpdate,
    MemberUpdate,
    Op,
    Update,
    apply_update,
    jobs_new_to,
    plan_updates,
)
from ringstep.protocol.inband import StateReply
from ringstep.protocol.limits import CPU_PORT

LOGGER = logging.getLogger(__name__)


class Phase(StrEnum):
    """What the controller is doing with a switch."""

    UNMANAGED = "unmanaged"
    CONNECTING = "connecting"
    PUSHING_PIPELINE = "pushing pipeline"
    PROGRAMMING = "programming"
    IN_SYNC = "in sync"
    ERROR = "error"


@dataclass(slots=True)
class ProgrammerStatus:
    """How far a switch is, and what was done to it since the controller started."""

    phase: Phase = Phase.CONNECTING
    detail: str = ""
    desired_entries: int = 0
    updates_written: int = 0
    foreign_removed: int = 0
    sessions: int = 0


class _ProgrammingError(Exception):
    """The switch does not hold what was written; a full read follows."""


class Programmer:
    """Keeps one switch as it should be. :meth:`run` is the task; the rest may be called any time.

    ``on_change`` is called after every change of :attr:`status`.
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
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.device_id = device_id
        self.status = ProgrammerStatus(desired_entries=len(desired))
        self._pipeline = pipeline
        self._desired = desired
        self._election_id = election_id
        self._timing = timing or Timing()
        self._on_change = on_change or (lambda: None)
        self._changed = asyncio.Event()
        self._session: Session | None = None
        self._reached_sync = False

    def set_desired(self, desired: SwitchTables) -> None:
        """Change what the switch should hold; the switch is not in sync until it does."""
        self._desired = desired
        self.status.desired_entries = len(desired)
        self._changed.set()
        if self.status.phase is Phase.IN_SYNC:
            self._enter(Phase.PROGRAMMING)

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
            self._session = None
            await stop_task(work)

    async def _keep_in_sync(self, session: Session) -> None:
        delay = self._timing.retry_min_s
        known = SwitchTables()
        while True:
            try:
                pushed = await self._load_pipeline(session)
                self._session = session
                actual = await session.read_tables()
                self._note_foreign(actual, known)
                known = actual
                await self._audit_period(session, actual, counters_are_zero=pushed)
                delay = self._timing.retry_min_s
            except (WriteRefusedError, _ProgrammingError) as error:
                self._enter(Phase.ERROR, f"{error}; trying again")
                await self._wait_for_change(delay)
                delay = min(delay * 2, self._timing.retry_max_s)

    async def _load_pipeline(self, session: Session) -> bool:
        """Load the program unless it runs already; return whether it was loaded."""
        if await session.runs_our_pipeline():
            return False
        self._session = None
        self._work(Phase.PUSHING_PIPELINE)
        await session.push_pipeline()
        return True

    async def _audit_period(
        self, session: Session, actual: SwitchTables, *, counters_are_zero: bool
    ) -> None:
        """Follow changes of the desired state until a full read is due or the program is gone."""
        loop = asyncio.get_running_loop()
        audit_at = loop.time() + self._timing.audit_s
        while True:
            self._changed.clear()
            desired = self._desired
            phases = plan_updates(actual, desired)
            if phases:
                self._work(Phase.PROGRAMMING)
                # Before its rules, so that a job's counters hold its own packets and all of them.
                if not counters_are_zero and (new := jobs_new_to(actual, desired)):
                    await session.reset_job_counters(new)
                await self._write(session, actual, phases)
            counters_are_zero = False
            if self._changed.is_set():
                continue
            self._enter(Phase.IN_SYNC)
            self._reached_sync = True
            remaining = audit_at - loop.time()
            if remaining <= 0:
                return
            await self._wait_for_change(min(remaining, self._timing.heartbeat_s))
            if not self._changed.is_set() and not await session.runs_our_pipeline():
                LOGGER.warning("switch %s: runs another program now", self.name)
                return

    def _note_foreign(self, actual: SwitchTables, known: SwitchTables) -> None:
        """Count and log what the next plan removes although this task did not write it."""
        for phase in plan_updates(actual, self._desired):
            for update in phase:
                if update.op is Op.DELETE and not _holds(known, update):
                    self.status.foreign_removed += 1
                    LOGGER.warning(
                        "switch %s: removing what nobody here wants: %s", self.name, update
                    )

    async def _write(
        self, session: Session, actual: SwitchTables, phases: list[list[Update]]
    ) -> None:
        def on_written(update: Update) -> None:
            apply_update(actual, update)
            self.status.updates_written += 1

        for phase in phases:
            await session.write(phase, on_written)
        written = [update for phase in phases for update in phase if update.op is not Op.DELETE]
        missing = missing_after_write(written, await session.read_back(written))
        if missing:
            raise _ProgrammingError(
                f"{len(missing)} of {len(written)} updates were accepted but read back "
                f"otherwise, first: {missing[0]}"
            )

    async def _wait_for_change(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def _work(self, phase: Phase) -> None:
        """Show what is being done, unless the last attempt at it failed: then show that.

        Otherwise a failure that repeats would flicker in every listing and fill the log.
        """
        if self.status.phase is not Phase.ERROR:
            self._enter(phase)

    def _enter(self, phase: Phase, detail: str = "") -> None:
        if (self.status.phase, self.status.detail) == (phase, detail):
            return
        if phase is Phase.ERROR or detail:
            LOGGER.warning("switch %s: %s: %s", self.name, phase, detail)
        else:
            LOGGER.info("switch %s: %s", self.name, phase)
        self.status.phase, self.status.detail = phase, detail
        self._on_change()


def _holds(tables: SwitchTables, update: Update) -> bool:
    match update:
        case EntryUpdate():
            return update.key in tables.entries
        case MemberUpdate():
            return update.key in tables.members
        case GroupUpdate():
            return update.key in tables.groups
        case _:
            return True
