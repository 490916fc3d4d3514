"""At most one controller leads; the next one takes over whatever became of the last."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from ledgers import ledger, register
from postgres import PostgresServer
from sqlalchemy import text

from ringstep.controller.leader import current_leader, leading
from ringstep.controller.store import DeposedError, Store

POLL_S = 0.05
END_WHO_LOCKS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database d "
    "ON d.oid = database AND datname = current_database() WHERE locktype = 'advisory'"
)
PROCESS = """
import asyncio, sys
from ringstep.controller.leader import leading
from ringstep.controller.store import Store

async def main():
    async with leading(Store(sys.argv[1]), "child", poll_s=0.05) as term:
        print(term.epoch, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def stores(store_url: str) -> Iterator[tuple[Store, Store]]:
    """Two stores on one database stand for two controllers."""
    opened = (Store(store_url), Store(store_url))
    yield opened
    for store in opened:
        store.close()


async def test_first_leads_and_is_known(stores: tuple[Store, Store]) -> None:
    first, second = stores
    assert current_leader(first) is None
    async with leading(first, "one:1", poll_s=POLL_S) as term:
        assert (term.epoch, term.address, term.lost.is_set()) == (1, "one:1", False)
        leader = current_leader(second)
        assert leader is not None
        assert (leader.epoch, leader.address) == (1, "one:1")
    assert current_leader(second) is None


async def test_second_waits_says_for_whom_and_follows(
    stores: tuple[Store, Store], eventually: Any
) -> None:
    said: list[str] = []
    async with AsyncExitStack() as follower:
        async with leading(stores[0], "one:1", poll_s=POLL_S):
            candidate = leading(stores[1], "two:1", poll_s=POLL_S, on_wait=said.append)
            task = asyncio.create_task(follower.enter_async_context(candidate))
            await eventually(lambda: said)
            await asyncio.sleep(3 * POLL_S)
            assert len(said) == 1
            assert "waits to lead: the controller at one:1 leads store" in said[0]
            assert "(term 1)" in said[0]
            assert not task.done()
        assert (await task).epoch == 2
        job, change = register(ledger(), "a")
        with pytest.raises(DeposedError):
            stores[0].commit(1, [change])
        stores[1].commit(2, [change])
        assert stores[0].load().jobs == (job,)


async def test_candidate_that_gives_up_leaves_the_lock_alone(
    stores: tuple[Store, Store], eventually: Any
) -> None:
    said: list[str] = []

    async def stand() -> None:
        async with leading(stores[1], "two:1", poll_s=60, on_wait=said.append):
            pass

    async with leading(stores[0], "one:1", poll_s=POLL_S) as term:
        task = asyncio.create_task(stand())
        await eventually(lambda: said)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert not term.lost.is_set()
    async with leading(stores[1], "two:1", poll_s=POLL_S) as term:
        assert term.epoch == 2


async def test_error_within_gives_the_lock_back(stores: tuple[Store, Store]) -> None:
    with pytest.raises(ZeroDivisionError):
        async with leading(stores[0], "one:1", poll_s=60):
            raise ZeroDivisionError
    async with leading(stores[1], "two:1", poll_s=60) as term:
        assert term.epoch == 2


async def test_killed_leader_is_followed_by_another(store_url: str) -> None:
    store = Store(store_url)
    child = subprocess.Popen([sys.executable, "-c", PROCESS, store_url], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert await asyncio.to_thread(child.stdout.readline) == b"1\n"
        candidate = leading(store, "heir", poll_s=POLL_S)
        waiting = asyncio.create_task(candidate.__aenter__())
        await asyncio.sleep(5 * POLL_S)
        assert not waiting.done()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
    assert (await waiting).epoch == 2
    await candidate.__aexit__(None, None, None)
    store.close()


async def test_leader_whose_epoch_is_anothers_notices(stores: tuple[Store, Store]) -> None:
    async with leading(stores[0], "one:1", poll_s=POLL_S) as term:
        stores[1].take_over("usurper")
        async with asyncio.timeout(30):
            await term.lost.wait()
    leader = current_leader(stores[0])
    assert leader is not None
    assert leader.address == "usurper"


async def test_removed_lock_file_ends_the_term(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    async with leading(store, "one:1", poll_s=POLL_S) as term:
        (tmp_path / "store.db.lock").unlink()
        async with asyncio.timeout(30):
            await term.lost.wait()
    store.close()


async def test_lock_file_that_cannot_be_used_is_said(tmp_path: Path, eventually: Any) -> None:
    (tmp_path / "store.db.lock").mkdir()
    store, said = Store(f"sqlite:///{tmp_path / 'store.db'}"), list[str]()
    task = asyncio.create_task(
        leading(store, "one:1", poll_s=POLL_S, on_wait=said.append).__aenter__()
    )
    await eventually(lambda: said)
    assert "store.db.lock cannot be used (Is a directory)" in said[0]
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    store.close()


async def test_store_in_memory_needs_no_lock() -> None:
    store = Store("sqlite://")
    async with leading(store, "one:1") as term:
        store.commit(term.epoch, [register(ledger(), "a")[1]])
    store.close()


async def test_lost_connection_ends_the_term(postgres_url: str) -> None:
    store = Store(postgres_url)
    async with leading(store, "one:1", poll_s=POLL_S) as term:
        with store.database.transaction() as connection:
            connection.execute(END_WHO_LOCKS)
        async with asyncio.timeout(30):
            await term.lost.wait()
    async with leading(store, "one:1", poll_s=POLL_S) as term:
        assert term.epoch == 2
    store.close()


async def test_end_of_the_connection_that_holds_the_lock_is_noticed_before_the_next_look(
    postgres_url: str,
) -> None:
    store = Store(postgres_url)
    async with leading(store, "one:1", poll_s=3600) as term:
        assert await term.holds()
        with store.database.transaction() as connection:
            connection.execute(END_WHO_LOCKS)
        async with asyncio.timeout(30):
            await term.lost.wait()
    store.close()


async def test_who_asks_whether_the_term_holds_hears_of_a_new_look(
    stores: tuple[Store, Store],
) -> None:
    async with leading(stores[0], "one:1", poll_s=3600) as term:
        looks = term.confirmed_at
        assert await term.holds()
        assert term.confirmed_at > looks
        stores[1].take_over("two:1")
        assert not term.lost.is_set()
        async with asyncio.timeout(30):
            assert await asyncio.gather(*(term.holds() for _ in range(50))) == [False] * 50
        assert term.lost.is_set()


async def test_who_asks_at_the_end_of_a_term_is_not_kept_waiting(
    stores: tuple[Store, Store],
) -> None:
    async with leading(stores[0], "one:1", poll_s=3600) as term:
        asked = asyncio.create_task(term.holds())
    async with asyncio.timeout(30):
        await asked
        assert not await term.holds()


async def test_server_that_says_nothing_any_more_ends_the_term(
    own_postgres: Callable[[], PostgresServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes packets but answers none: keepalives see nothing wrong."""
    monkeypatch.setattr("ringstep.controller.leader._MIN_PROBE_TIMEOUT_S", 0.3)
    monkeypatch.setattr("ringstep.controller.leader._CLOSE_TIMEOUT_S", 0.3)
    server = own_postgres()
    store = Store(server.new_database())
    async with leading(store, "one:1", poll_s=POLL_S) as term:
        server.signal(signal.SIGSTOP)
        async with asyncio.timeout(30):
            await term.lost.wait()
        server.signal(signal.SIGCONT)
    async with leading(store, "one:1", poll_s=POLL_S) as term:
        assert term.epoch == 2
    store.close()


async def test_candidate_waits_for_a_server_that_is_down(
    own_postgres: Callable[[], PostgresServer], eventually: Any
) -> None:
    server, said = own_postgres(), list[str]()
    store = Store(server.new_database())
    server.kill()
    candidate = leading(store, "one:1", poll_s=POLL_S, on_wait=said.append)
    waiting = asyncio.create_task(candidate.__aenter__())
    await eventually(lambda: said)
    assert "see that the server runs" in said[0]
    await asyncio.to_thread(server.start)
    assert (await waiting).epoch == 1
    await candidate.__aexit__(None, None, None)
    store.close()
