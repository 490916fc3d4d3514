"""Writes the ledger's changes behind the event loop: in order, many in one transaction."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from ringstep.controller.facts import Change, DeposedError, StoreError

LOGGER = logging.getLogger(__name__)
T = TypeVar("T")
MAX_BATCH: Final = 512
"""Changes in one transaction at most: what a failure takes along, and a commit's length."""

COMMIT_TIMEOUT_S: Final = 15.0
"""Until a commit to a server that does not answer is given up. The database's own limits, on
waiting for a lock and on a statement, are shorter."""


class Committer(Protocol):
    """Where changes are written to; a :class:`~ringstep.controller.store.Store`."""

    def commit(self, epoch: int, changes: Sequence[Change]) -> None:
        """Write changes in one transaction: all of them, or none."""

    def interrupt(self) -> None:
        """Make a commit that waits for its server fail; called in another thread."""


class Observer(Protocol):
    """Hears what became of transactions; :class:`~ringstep.controller.metrics.Metrics`."""

    def stored(self, batch: int, seconds: float) -> None:
        """A transaction with this many changes took this long."""

    def store_failed(self) -> None:
        """A transaction failed."""


@dataclass(slots=True)
class JournalStats:
    """What was written so far."""

    commits: int = 0
    changes: int = 0
    failures: int = 0
    last_commit_s: float = 0.0
    total_commit_s: float = 0.0

    @property
    def mean_commit_s(self) -> float:
        """Mean time of a commit, in seconds."""
        return self.total_commit_s / self.commits if self.commits else 0.0


class Journal:
    """Makes changes durable in the order in which they were submitted; for one event loop.

    A single thread writes. While it writes, more changes queue up; they are its next transaction,
    so that the cost of a commit is shared by all who wait for it.

    A commit that takes longer than ``timeout_s`` is broken off and fails.

    After a failure the journal takes nothing more until :meth:`reset`: what was decided on top of
    a lost change must not be written.
    """

    def __init__(
        self,
        store: Committer,
        epoch: int,
        *,
        max_batch: int = MAX_BATCH,
        timeout_s: float = COMMIT_TIMEOUT_S,
        observer: Observer | None = None,
    ) -> None:
        self.epoch = epoch
        self.stats = JournalStats()
        self._store = store
        self._max_batch = max_batch
        self._timeout_s = timeout_s
        self._observer = observer
        self._queue: deque[tuple[Change, asyncio.Future[None]]] = deque()
        self._writing = 0
        self._scheduled = False
        self._closed = False
        self._failure: StoreError | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ringstep-store")

    @property
    def failure(self) -> StoreError | None:
        """Why the journal takes nothing; None while it does."""
        return self._failure

    @property
    def queue_length(self) -> int:
        """How many changes are not durable yet, those being written included."""
        return len(self._queue) + self._writing

    def submit(self, change: Change) -> asyncio.Future[None]:
        """Queue a change; the future is done when it is durable.

        The future fails with a :class:`StoreError` if this or an earlier change was not written.
        Nothing is lost when nobody waits for it any more.

        Raises:
            StoreError: an earlier change failed, or the journal is closed; nothing was queued.
        """
        self._check_usable()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._queue.append((change, future))
        self._idle.clear()
        if not self._writing and not self._scheduled:
            # Not at once: others who submit in this turn of the loop come along.
            self._scheduled = True
            loop.call_soon(self._write_next)
        return future

    async def run(self, call: Callable[[], T]) -> T:
        """Run another call of the store in the journal's thread, after what is being written.

        Raises:
            StoreError: the journal is closed, or the call raised it.
        """
        if self._closed:
            raise StoreError("the store's journal is closed; the controller is about to end")
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def reset(self, epoch: int | None = None) -> None:
        """Take changes again after a failure; they rest on what the store holds now.

        ``epoch`` replaces the journal's where the controller leads for a new term.
        """
        self._failure = None
        if epoch is not None:
            self.epoch = epoch

    async def close(self) -> None:
        """Write what is queued, then take nothing more."""
        self._closed = True
        await self._idle.wait()
        self._thread.shutdown(wait=False)

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError("the store's journal is closed; the controller is about to end")
        if self._failure is not None:
            raise StoreError(f"not written, because an earlier change was not: {self._failure}")

    def _write_next(self) -> None:
        self._scheduled = False
        if not self._queue:
            self._idle.set()
            return
        count = min(len(self._queue), self._max_batch)
        batch = [self._queue.popleft() for _ in range(count)]
        self._writing = count
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._thread, self._commit, [change for change, _ in batch])
        deadline = loop.call_later(self._timeout_s, self._store.interrupt)
        work.add_done_callback(lambda done: self._written(batch, done, deadline))

    def _commit(self, changes: list[Change]) -> float:
        started = time.perf_counter()
        self._store.commit(self.epoch, changes)
        return time.perf_counter() - started

    def _written(
        self,
        batch: list[tuple[Change, asyncio.Future[None]]],
        done: asyncio.Future[float],
        deadline: asyncio.TimerHandle,
    ) -> None:
        deadline.cancel()
        self._writing = 0
        if (error := done.exception()) is not None:
            self._fail(batch, error)
        else:
            self.stats.commits += 1
            self.stats.changes += len(batch)
            self.stats.last_commit_s = done.result()
            self.stats.total_commit_s += done.result()
            if self._observer is not None:
                self._observer.stored(len(batch), done.result())
            for _, future in batch:
                if not future.done():
                    future.set_result(None)
        self._write_next()

    def _fail(self, batch: list[tuple[Change, asyncio.Future[None]]], error: BaseException) -> None:
        if not isinstance(error, StoreError):
            LOGGER.error("writing to the store failed", exc_info=error)
            error = StoreError(
                f"writing to the store failed in the controller itself ({error!r}); nothing was "
                "changed; report this with the controller's log"
            )
        self.stats.failures += 1
        if self._observer is not None:
            self._observer.store_failed()
        self._failure = error
        behind = list(self._queue)
        self._queue.clear()
        for _, future in batch:
            _set_error(future, _copy(error, str(error), error.outcome_unknown))
        for _, future in behind:
            text = f"not written, because an earlier change was not: {error}"
            _set_error(future, _copy(error, text, outcome_unknown=False))


def _copy(error: StoreError, text: str, outcome_unknown: bool) -> StoreError:
    # One for each who waits: raising adds to an exception's traceback.
    kind = DeposedError if isinstance(error, DeposedError) else StoreError
    return kind(text, outcome_unknown=outcome_unknown)


def _set_error(future: asyncio.Future[None], error: StoreError) -> None:
    if not future.done():
        future.set_exception(error)
        # Looked at, so that a failure that nobody waits for is not reported as lost.
        future.exception()
