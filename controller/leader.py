"""One leader per store: the lock that decides who it is, and what tells it that it is no more.

A SQLite store is locked by a file next to it, which the kernel unlocks when the process dies; a
PostgreSQL store by an advisory lock, which the server gives up when the connection ends. The lock
only decides who tries to write. That nobody but the last one who took it can write is the store's
work: each term has an *epoch*, and every transaction checks it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from ringstep.controller.facts import StoreError
from ringstep.controller.store import Leader, Store

__all__ = ["Leader", "Term", "current_leader", "leading"]

LOGGER = logging.getLogger(__name__)
T = TypeVar("T")
_LOCK_CLASS: Final = 0x72697374
"""Advisory locks of Ringstep; the second number is the database schema's."""
_MIN_PROBE_TIMEOUT_S: Final = 3.0
"""Time that a probe of the lock has at least, so that a busy server deposes nobody."""

_LOOK_S: Final = 0.02
"""From one look at the lock to the next at least, however many ask for names that nobody has."""
_CERTAIN_S: Final = 10.0
"""More than a look at the lock takes, with the pause before it and a busy machine."""
_CALL_TIMEOUT_S: Final = 10.0
_CLOSE_TIMEOUT_S: Final = 2.0


@dataclass(slots=True)
class Term:
    """A time as leader. ``lost`` is set when it is over, at the latest."""

    epoch: int
    address: str
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    confirmed_at: float = field(default_factory=time.monotonic)
    """Monotonic time at which this controller was known to lead; up to date to a few seconds,
    unless the process was stopped."""
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have it looked at now whether this controller still leads."""
    _looked: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def is_certain(self) -> bool:
        """Whether it was looked at lately whether this controller still leads."""
        return time.monotonic() - self.confirmed_at < _CERTAIN_S and not self.lost.is_set()

    async def holds(self) -> bool:
        """Look whether this controller still leads; false, too, where that cannot be found out.

        Only a look that begins after the call counts; calls that wait share one.
        """
        asked_at = time.monotonic()
        async with self._looked:
            while self.confirmed_at < asked_at and not self.lost.is_set():
                self.wanted.set()
                await self._looked.wait()
        return not self.lost.is_set()

    async def confirmed(self, at: float) -> None:
        """Say that this controller still led at a monotonic time."""
        async with self._looked:
            self.confirmed_at = at
            self._looked.notify_all()

    async def end(self) -> None:
        """Say that this controller leads no more, or does not know."""
        async with self._looked:
            self.lost.set()
            self._looked.notify_all()


class _Lock(Protocol):
    def acquire(self) -> bool:
        """Take the lock if it is free; return whether it is held now."""

    def held(self) -> bool:
        """Return whether the lock is still held."""

    def release(self) -> None:
        """Give the lock back; never fails."""

    def abandon(self) -> None:
        """Make a call that waits in another thread fail."""

    def wire(self) -> int | None:
        """Return the descriptor that becomes readable when the lock is lost, if there is one."""


class _NoLock:
    """For a store that no other process can see."""

    def acquire(self) -> bool:
        return True

    def held(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    def wire(self) -> int | None:
        return None


class _FileLock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    def acquire(self) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._file = descriptor
        if not self.held():
            self.release()
            return False
        return True

    def held(self) -> bool:
        # A file that was removed locks nobody out: another process would make a new one.
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except OSError:
            return False

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def abandon(self) -> None:
        pass

    def wire(self) -> int | None:
        return None


class _AdvisoryLock:
    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._connection: Connection | None = None

    def acquire(self) -> bool:
        if self._connection is None:
            connection = self._database.engine.connect()
            self._connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        statement = text("SELECT pg_try_advisory_lock(:kind, hashtext(current_schema()))")
        return bool(self._connection.scalar(statement, {"kind": _LOCK_CLASS}))

    def held(self) -> bool:
        assert self._connection is not None, "acquired before"
        statement = text(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted "
            "AND classid = :kind AND pid = pg_backend_pid()"
        )
        return bool(self._connection.scalar(statement, {"kind": _LOCK_CLASS}))

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Closed for good, not returned for reuse: that is what gives the lock back.
            with suppress(SQLAlchemyError):
                connection.invalidate()
            with suppress(SQLAlchemyError):
                connection.close()

    def abandon(self) -> None:
        if self._connection is not None:
            self._database.abandon(self._connection)

    def wire(self) -> int | None:
        if self._connection is None:
            return None
        return self._database.descriptor(self._connection)


def current_leader(store: Store) -> Leader | None:
    """Return who leads a store, or led last and ended without saying so; None where nobody does.

    Raises:
        StoreError: the store cannot be read.
    """
    leader = store.leader()
    return leader if leader.address else None


@asynccontextmanager
async def leading(
    store: Store,
    address: str,
    *,
    poll_s: float = 1.0,
    on_wait: Callable[[str], None] | None = None,
    on_leader: Callable[[str], None] | None = None,
) -> AsyncIterator[Term]:
    """Wait until this controller leads, and lead for the length of the context.

    ``address`` is where its API can be reached; others show it. ``on_wait`` is told, each time it
    changes, why this controller still waits. Every ``poll_s`` seconds the lock is tried or looked
    at; ``on_leader`` is told each time who leads instead, "" where that is not known. At a clean
    end the lock is given back at once.
    """
    candidate = _Candidate(store, address)
    try:
        term = await candidate.elected(poll_s, on_wait, on_leader)
        watch = asyncio.create_task(candidate.watch(term, poll_s), name="leader:watch")
        try:
            yield term
        finally:
            watch.cancel()
            deposed = term.lost.is_set()
            try:
                await asyncio.gather(watch, return_exceptions=True)
            finally:
                # Whoever waits for a look: there will be none.
                await term.end()
            if not deposed:
                await candidate.step_down(term)
    finally:
        await candidate.close()


class _Candidate:
    """The lock, and the one thread in which it is used: what hangs there stops nothing else."""

    def __init__(self, store: Store, address: str) -> None:
        self._store = store
        self._address = address
        self._lock: _Lock
        if store.database.is_postgres:
            self._lock = _AdvisoryLock(store)
        elif store.database.path is None:
            self._lock = _NoLock()
        else:
            self._lock = _FileLock(Path(f"{Path(store.database.path).resolve()}.lock"))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ringstep-leader")

    async def _in_thread(self, call: Callable[[], T], timeout_s: float) -> T:
        work = asyncio.get_running_loop().run_in_executor(self._thread, call)
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except asyncio.CancelledError:
            self._lock.abandon()
            raise
        except TimeoutError:
            # Whatever else waits for that server waits in vain as well.
            self._lock.abandon()
            self._store.interrupt()
            raise StoreError(
                f"store {self._store.label}: no answer in {timeout_s:g} s; see that its server "
                "runs and can be reached"
            ) from None

    async def elected(
        self,
        poll_s: float,
        on_wait: Callable[[str], None] | None,
        on_leader: Callable[[str], None] | None,
    ) -> Term:
        said = ""
        while True:
            leader = ""
            try:
                epoch = await self._in_thread(self._try, _CALL_TIMEOUT_S)
                if epoch is not None:
                    return Term(epoch, self._address)
                found = await self._in_thread(self._store.leader, _CALL_TIMEOUT_S)
                why, leader = self._who_leads(found), found.address
            except StoreError as error:
                why = str(error)
            if on_leader is not None:
                # Its own name there is from a term that ended without a word.
                on_leader("" if leader == self._address else leader)
            if why != said and on_wait is not None:
                on_wait(why)
            said = why
            await asyncio.sleep(poll_s)

    def _try(self) -> int | None:
        try:
            if not self._lock.acquire():
                return None
            return self._store.take_over(self._address)
        except OSError as error:
            raise StoreError(
                f"store {self._store.label}: its lock file {error.filename} cannot be used "
                f"({error.strerror}); give this user write access to its folder"
            ) from None
        except SQLAlchemyError as error:
            self._lock.release()
            raise self._store.database.failure(error, "locked") from None
        except StoreError:
            self._lock.release()
            raise

    def _who_leads(self, leader: Leader) -> str:
        who = f"the controller at {leader.address}" if leader.address else "another controller"
        return f"waits to lead: {who} leads store {self._store.label} (term {leader.epoch})"

    async def watch(self, term: Term, poll_s: float) -> None:
        """Look at the lock and at the store's epoch until one of them is another's.

        Every ``poll_s`` seconds, when somebody wants to know, and when the server ends the
        connection that holds the lock: another controller may lead a moment later.
        """
        try:
            while True:
                term.wanted.clear()
                asked_at = time.monotonic()
                if not await self._still_leads(term, max(poll_s, _MIN_PROBE_TIMEOUT_S)):
                    break
                await term.confirmed(asked_at)
                await self._pause(term, poll_s)
                await asyncio.sleep(max(0.0, asked_at + _LOOK_S - time.monotonic()))
        except Exception:
            LOGGER.exception("watching whether this controller still leads failed")
        await term.end()

    async def _pause(self, term: Term, seconds: float) -> None:
        # Between two looks nobody uses the connection: what can be read there is its end.
        loop, wire = asyncio.get_running_loop(), self._lock.wire()
        try:
            if wire is not None:
                loop.add_reader(wire, term.wanted.set)
        except (OSError, ValueError):
            wire = None  # the next look will tell
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await term.wanted.wait()
        finally:
            if wire is not None:
                loop.remove_reader(wire)

    async def _still_leads(self, term: Term, timeout_s: float) -> bool:
        def probe() -> bool:
            return self._lock.held() and self._store.leader().epoch == term.epoch

        try:
            return await self._in_thread(probe, timeout_s)
        except (StoreError, SQLAlchemyError):
            return False
        except Exception:
            # Who does not know whether he leads must not.
            LOGGER.exception("looking whether this controller still leads failed")
            return False

    async def step_down(self, term: Term) -> None:
        with suppress(StoreError, SQLAlchemyError):
            await self._in_thread(lambda: self._store.step_down(term.epoch), _CLOSE_TIMEOUT_S)

    async def close(self) -> None:
        """Give the lock back, if it is held; after what the thread is at, whatever that takes."""
        released = asyncio.get_running_loop().run_in_executor(self._thread, self._lock.release)
        self._thread.shutdown(wait=False)
        await asyncio.wait([released], timeout=_CLOSE_TIMEOUT_S)
