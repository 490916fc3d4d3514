"""Changes become durable in order, many at once; after a failure nothing is written on top."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from ledgers import ledger, register
from postgres import PostgresServer

from ringstep.controller.facts import Change, DeposedError, StoreError
from ringstep.controller.journal import Journal
from ringstep.controller.store import Store


class Gate:
    """A store whose commits wait until the test lets them go on; keeps what it was given."""

    def __init__(self, store: Store | None = None) -> None:
        self.batches: list[list[str]] = []
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self._store = store

    def commit(self, epoch: int, changes: Sequence[Change]) -> None:
        self.entered.set()
        self.go_on.wait()
        if self.error is not None:
            raise self.error
        self.batches.append([change.job.name for change in changes])
        if self._store is not None:
            self._store.commit(epoch, changes)

    def interrupt(self) -> None:
        self.error = StoreError("interrupted")
        self.go_on.set()


@pytest.fixture
def opened(store_url: str) -> Iterator[Store]:
    store = Store(store_url)
    yield store
    store.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.go_on.set()


def changes(count: int) -> list[Change]:
    book = ledger()
    return [register(book, f"j{number}")[1] for number in range(count)]


async def settled(waiting: Sequence[asyncio.Future[None]]) -> list[Any]:
    return await asyncio.gather(*waiting, return_exceptions=True)


async def test_future_is_done_when_the_change_is_durable(opened: Store) -> None:
    journal = Journal(opened, opened.take_over("x"))
    await asyncio.gather(*(journal.submit(change) for change in changes(20)))
    assert [job.name for job in opened.load().jobs] == [f"j{n}" for n in range(20)]
    await journal.close()


async def test_changes_submitted_together_are_one_transaction(opened: Store) -> None:
    journal = Journal(opened, opened.take_over("x"))
    await asyncio.gather(*(journal.submit(change) for change in changes(30)))
    assert (journal.stats.commits, journal.stats.changes) == (1, 30)
    assert journal.stats.mean_commit_s == journal.stats.last_commit_s > 0
    await journal.close()


async def test_what_comes_during_a_commit_is_the_next_transaction(
    gate: Gate, eventually: Any
) -> None:
    journal = Journal(gate, 1, max_batch=4)
    first, *rest = changes(8)
    waiting = [journal.submit(first)]
    await eventually(gate.entered.is_set)
    waiting += [journal.submit(change) for change in rest]
    assert journal.queue_length == 8
    assert not any(future.done() for future in waiting)
    gate.go_on.set()
    await asyncio.gather(*waiting)
    assert gate.batches == [["j0"], ["j1", "j2", "j3", "j4"], ["j5", "j6", "j7"]]
    assert journal.queue_length == 0
    await journal.close()


async def test_failure_takes_along_all_that_was_decided_on_top(gate: Gate, eventually: Any) -> None:
    journal = Journal(gate, 1, max_batch=2)
    gate.error = StoreError("disk full; make room", outcome_unknown=True)
    waiting = [journal.submit(change) for change in changes(5)]
    await eventually(gate.entered.is_set)
    gate.go_on.set()
    errors = await settled(waiting)
    assert [str(error) for error in errors[:2]] == ["disk full; make room"] * 2
    assert [error.outcome_unknown for error in errors] == [True, True, False, False, False]
    assert all(str(error).startswith("not written, because an earlier") for error in errors[2:])
    assert len({id(error) for error in errors}) == 5
    assert gate.batches == []
    assert journal.stats.failures == 1
    await journal.close()


async def test_observer_hears_of_transactions_and_failures(gate: Gate) -> None:
    heard: list[int] = []

    class Observer:
        def stored(self, batch: int, seconds: float) -> None:
            assert seconds >= 0
            heard.append(batch)

        def store_failed(self) -> None:
            heard.append(-1)

    journal = Journal(gate, 1, observer=Observer())
    gate.go_on.set()
    first, second, third = changes(3)
    await asyncio.gather(journal.submit(first), journal.submit(second))
    gate.error = StoreError("disk full")
    with pytest.raises(StoreError, match="disk full"):
        await journal.submit(third)
    assert heard == [2, -1]
    await journal.close()


async def test_failed_journal_takes_nothing_until_it_is_reset(gate: Gate) -> None:
    journal = Journal(gate, 1)
    gate.go_on.set()
    gate.error = StoreError("disk full")
    first, second, third = changes(3)
    with pytest.raises(StoreError, match="disk full"):
        await journal.submit(first)
    assert journal.failure is not None
    with pytest.raises(StoreError, match="an earlier change was not: disk full"):
        journal.submit(second)
    gate.error = None
    journal.reset()
    assert journal.failure is None
    await journal.submit(third)
    assert gate.batches == [["j2"]]
    await journal.close()


async def test_error_of_the_controller_itself_leaves_nobody_waiting(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(gate, 1)
    gate.go_on.set()
    gate.error = ZeroDivisionError("oops")
    with pytest.raises(StoreError, match="report this with the controller's log"):
        await journal.submit(changes(1)[0])
    assert "ZeroDivisionError" in caplog.text
    await journal.close()


async def test_commit_that_takes_too_long_is_interrupted(gate: Gate) -> None:
    journal = Journal(gate, 1, timeout_s=0.05)
    with pytest.raises(StoreError, match="interrupted"):
        await journal.submit(changes(1)[0])
    await journal.close()


async def test_server_that_says_nothing_any_more_fails_the_commit(
    own_postgres: Callable[[], PostgresServer],
) -> None:
    server = own_postgres()
    store = Store(server.new_database())
    journal = Journal(store, store.take_over("x"), timeout_s=3)
    first, second = changes(2)
    await journal.submit(first)
    server.signal(signal.SIGSTOP)
    with pytest.raises(StoreError, match="see that the server runs"):
        await journal.submit(second)
    server.signal(signal.SIGCONT)
    journal.reset()
    await journal.submit(second)
    assert [job.name for job in store.load().jobs] == ["j0", "j1"]
    await journal.close()
    store.close()


async def test_deposed_controller_is_told_so(opened: Store) -> None:
    journal = Journal(opened, opened.take_over("one"))
    opened.take_over("two")
    errors = await settled([journal.submit(change) for change in changes(3)])
    assert [type(error) for error in errors] == [DeposedError] * 3
    journal.reset(epoch=opened.take_over("one"))
    await journal.submit(changes(1)[0])
    await journal.close()


async def test_caller_that_goes_away_stops_nothing(gate: Gate, eventually: Any) -> None:
    journal = Journal(gate, 1)
    first, second = (journal.submit(change) for change in changes(2))
    await eventually(gate.entered.is_set)
    first.cancel()
    gate.go_on.set()
    await second
    assert gate.batches == [["j0", "j1"]]
    await journal.close()


async def test_close_writes_what_is_queued(opened: Store) -> None:
    journal = Journal(opened, opened.take_over("x"), max_batch=3)
    waiting = [journal.submit(change) for change in changes(10)]
    await journal.close()
    assert all(future.done() for future in waiting)
    assert len(opened.load().jobs) == 10
    with pytest.raises(StoreError, match="is closed"):
        journal.submit(changes(1)[0])
    with pytest.raises(StoreError, match="is closed"):
        await journal.run(opened.drained)


async def test_other_calls_run_between_commits(opened: Store) -> None:
    epoch = opened.take_over("x")
    journal = Journal(opened, epoch)
    await journal.run(lambda: opened.set_drained(epoch, "s1", drained=True))
    assert await journal.run(opened.drained) == {"s1"}
    await journal.close()


async def test_order_of_one_job_is_kept_over_batches(opened: Store) -> None:
    journal = Journal(opened, opened.take_over("x"), max_batch=3)
    book = ledger()
    waiting = []
    for number in range(20):
        waiting.append(journal.submit(register(book, "same", request_id=f"r{number}")[1]))
        waiting.append(journal.submit(book.update(number + 1, lease_s=number)[1]))
        if number < 19:
            waiting.append(journal.submit(book.release("same")[1]))
    await asyncio.gather(*waiting)
    snapshot = opened.load()
    assert snapshot.jobs == (book.get("same"),)
    assert [past.job_id for past in snapshot.job_ids] == list(range(1, 20))
    await journal.close()


async def test_server_that_dies_and_comes_back_loses_nothing_acknowledged(
    own_postgres: Callable[[], PostgresServer], eventually: Any
) -> None:
    server = own_postgres()
    store = Store(server.new_database())
    journal = Journal(store, store.take_over("x"), max_batch=8)
    book, acknowledged, number = ledger(), set(), 0
    for _ in range(2):
        lost: list[BaseException] = []

        async def put(name: str, change: Change, lost: list[BaseException]) -> None:
            try:
                await journal.submit(change)
            except StoreError as error:
                lost.append(error)
            else:
                acknowledged.add(name)

        async with asyncio.TaskGroup() as tasks:
            for turn in range(200):
                number += 1
                job, change = register(book, f"j{number}", blocks={"t": [1]})
                tasks.create_task(put(job.name, change, lost))
                if turn % 10 == 0:
                    await asyncio.sleep(0.001)
                if turn == 100:
                    server.kill()
        assert lost
        assert acknowledged
        server.start()
        snapshot = await journal.run(store.load)
        assert acknowledged <= {job.name for job in snapshot.jobs}
        book = ledger(snapshot)
        journal.reset()
    await journal.close()
    store.close()
