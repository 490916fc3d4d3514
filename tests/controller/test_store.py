"""What the store writes is there after a restart; what it could not write, it says."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ledgers import Clock, ledger, register
from postgres import PostgresServer
from sqlalchemy import text

from ringstep.controller.ledger import KEPT_REQUESTS, Change, Ended, Registered
from ringstep.controller.store import (
    DeposedError,
    Store,
    StoredSwitch,
    StoreError,
)


@pytest.fixture
def opened(store_url: str) -> Iterator[Store]:
    store = Store(store_url)
    yield store
    store.close()


def test_registered_job_survives_a_restart(store_url: str) -> None:
    before = Store(store_url)
    job, change = register(ledger(), "a", request_id="r1", lease_s=60, tenant="t")
    before.commit(before.take_over("x"), [change])
    before.close()
    after = Store(store_url)
    assert after.load().jobs == (job,)
    assert ledger(after.load()).get("a") == job
    after.close()


def test_updated_job_is_stored_with_its_new_facts(opened: Store) -> None:
    epoch, book = opened.take_over("x"), ledger()
    opened.commit(epoch, [register(book, "a")[1]])
    changes = [
        book.update(1, params=b"other", lease_s=30, paths='{"a":1}')[1],
        book.place(1, {"tor1": [11], "s1": [0]})[1],
    ]
    opened.commit(epoch, changes)
    snapshot = opened.load()
    assert snapshot.jobs == (book.get(1),)
    assert [tuple(past) for past in snapshot.blocks] == [("tor1", 0, 1)]


def test_batch_means_the_same_as_its_changes_one_by_one(opened: Store) -> None:
    """Jobs that come and go within a batch, and a name and a Job_ID that change hands."""
    epoch, book = opened.take_over("x"), ledger()
    opened.commit(epoch, [register(book, "old", request_id="r0")[1], register(book, "keep")[1]])
    changes: list[Change] = [
        book.release("old")[1],
        register(book, "old", request_id="r1")[1],
        book.release("old")[1],
        register(book, "brief")[1],
        book.update(4, params=b"never seen")[1],
        book.release("brief")[1],
        register(book, "old", request_id="r2")[1],
        book.update(2, lease_s=9)[1],
        book.place(5, {"tor2": [1]})[1],
    ]
    opened.commit(epoch, changes)
    snapshot = opened.load()
    assert snapshot.jobs == tuple(book.live())
    assert [past.job_id for past in snapshot.job_ids] == [1, 3, 4]
    assert [past.request_id for past in snapshot.requests] == ["r0", "r1"]
    for name in ("c", "d"):
        assert register(ledger(snapshot), name)[0].job_id == 6


def test_job_id_given_out_twice_in_one_batch_is_stored_as_it_ends(
    opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringstep.controller.ledger.MAX_JOBS", 1)
    epoch, book, changes = opened.take_over("x"), ledger(), []
    for turn in range(3):
        changes += [register(book, f"j{turn}")[1], book.release(1)[1]]
    last, change = register(book, "last")
    opened.commit(epoch, [*changes, change])
    assert opened.load().jobs == (last,)
    assert last.generation == 4
    assert [past.generation for past in opened.load().job_ids] == [3]


def test_failed_batch_leaves_nothing_behind(opened: Store) -> None:
    epoch = opened.take_over("x")
    job, change = register(ledger(), "a")
    other, same_name = register(ledger(), "a")
    assert job == other
    opened.commit(epoch, [change])
    _, fine = register(ledger(opened.load()), "b")
    with pytest.raises(StoreError, match="nothing was changed") as caught:
        opened.commit(epoch, [fine, same_name])
    assert not caught.value.outcome_unknown
    assert opened.load().jobs == (job,)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "b"},
        {"job_id": 2},
        {"job_id": 2, "name": "b", "request_id": "r1"},
    ],
)
def test_database_itself_refuses_a_second_owner(opened: Store, changes: dict[str, Any]) -> None:
    epoch = opened.take_over("x")
    job, change = register(ledger(), "a", request_id="r1")
    opened.commit(epoch, [change])
    facts = {"request_id": "r2"} | changes
    with pytest.raises(StoreError, match=r"another process wrote|UNIQUE constraint"):
        opened.commit(epoch, [Registered(replace(job, **facts))])
    assert opened.load().jobs == (job,)


def test_old_request_ids_are_forgotten_in_the_database_too(
    opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringstep.controller.ledger.KEPT_REQUESTS", 3)
    assert KEPT_REQUESTS == 10_000
    epoch, book = opened.take_over("x"), ledger()
    for turn in range(6):
        changes = [register(book, "a", request_id=f"r{turn}")[1], book.release("a")[1]]
        opened.commit(epoch, changes)
    opened.commit(epoch, [register(book, "a")[1], book.release("a")[1]])
    with opened.database.reading() as connection:
        rows = connection.execute(text("SELECT request_id FROM jobs ORDER BY turn")).all()
    assert [row.request_id for row in rows] == ["r3", "r4", "r5"]
    assert register(ledger(opened.load()), "b", request_id="r0")[0].name == "b"


def test_deposed_controller_can_change_nothing(store_url: str) -> None:
    first, second = Store(store_url), Store(store_url)
    epoch = first.take_over("one")
    job, change = register(ledger(), "a")
    first.commit(epoch, [change])
    assert second.take_over("two") == epoch + 1
    switch = StoredSwitch("tor1", 1, "127.0.0.1:1", from_file=False)
    for write in (
        lambda: first.commit(epoch, [register(ledger(first.load()), "b")[1]]),
        lambda: first.put_switch(epoch, switch),
        lambda: first.remove_switch(epoch, "tor1"),
        lambda: first.sync_switches_from_file(epoch, [switch]),
        lambda: first.set_drained(epoch, "tor1", drained=True),
        lambda: first.set_link(epoch, "tor1", 1, up=False),
    ):
        with pytest.raises(DeposedError, match=r"another controller leads now \(two\)"):
            write()
    first.step_down(epoch)
    assert second.leader().address == "two"
    assert second.load().jobs == (job,)
    assert second.drained() == second.down_links() == frozenset()
    first.close()
    second.close()


def test_epoch_only_grows(store_url: str) -> None:
    epochs = []
    for _ in range(3):
        store = Store(store_url)
        epochs.append(store.take_over("x"))
        store.step_down(epochs[-1])
        store.close()
    assert epochs == [1, 2, 3]


def test_take_over_waits_for_what_is_just_being_written(postgres_url: str) -> None:
    first, second = Store(postgres_url), Store(postgres_url)
    epoch = first.take_over("one")
    with first._leading(epoch):
        taking_over = threading.Thread(target=second.take_over, args=["two"])
        taking_over.start()
        taking_over.join(0.3)
        assert first.leader().epoch == epoch
    taking_over.join()
    assert first.leader().epoch == epoch + 1


FILE_SWITCHES = [
    StoredSwitch("tor1", 1, "127.0.0.1:1", from_file=True),
    StoredSwitch("tor2", 2**64 - 1, "127.0.0.1:2", from_file=True),
]


def test_switches_follow_the_file_unless_an_operator_said_otherwise(opened: Store) -> None:
    epoch = opened.take_over("x")
    assert opened.sync_switches_from_file(epoch, FILE_SWITCHES) == FILE_SWITCHES
    moved = StoredSwitch("tor1", 1, "127.0.0.1:7", from_file=False)
    opened.put_switch(epoch, moved)
    assert opened.sync_switches_from_file(epoch, FILE_SWITCHES) == [moved, FILE_SWITCHES[1]]
    assert opened.remove_switch(epoch, "tor2")
    assert not opened.remove_switch(epoch, "tor2")
    assert opened.sync_switches_from_file(epoch, FILE_SWITCHES) == [moved]
    opened.put_switch(epoch, FILE_SWITCHES[1])
    assert opened.sync_switches_from_file(epoch, FILE_SWITCHES) == [moved, FILE_SWITCHES[1]]
    elsewhere = StoredSwitch("tor2", 5, "127.0.0.1:9", from_file=True)
    assert opened.sync_switches_from_file(epoch, [elsewhere]) == [moved, elsewhere]
    assert opened.sync_switches_from_file(epoch, []) == [moved]


def test_drained_switches_and_down_links_are_remembered(store_url: str) -> None:
    store = Store(store_url)
    epoch = store.take_over("x")
    for _ in range(2):
        store.set_drained(epoch, "s1", drained=True)
        store.set_link(epoch, "tor1", 3, up=False)
    store.set_drained(epoch, "s2", drained=True)
    store.set_drained(epoch, "s2", drained=False)
    store.set_link(epoch, "tor1", 4, up=False)
    store.set_link(epoch, "tor1", 4, up=True)
    store.close()
    after = Store(store_url)
    assert after.drained() == {"s1"}
    assert after.down_links() == {("tor1", 3)}
    after.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ringstep.db", "'ringstep.db' is not a database URL; write for example sqlite:///ring"),
        ("mysql://host/db", "mysql is not supported; use sqlite:///PATH or postgresql://USER@"),
        ("postgresql+psycopg2://h/db", r"postgresql\+psycopg2 is not supported; use"),
        ("nosuch://host/db", "nosuch is not supported"),
        ("sqlite:///x.db?mode=ro", "takes no host and no options; use sqlite:///PATH"),
        ("sqlite:////nonexistent/folder/x.db", "unable to open database file; it was not opened"),
        ("postgresql://u@127.0.0.1:1/db", "see that the server runs, and that host, port, user"),
    ],
)
def test_unusable_store_is_refused_with_a_remedy(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        Store(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@127.0.0.1:1/db",
        "postgresql://u@127.0.0.1:1/db?password=hunter2",
        "postgresql//u:hunter2@127.0.0.1:1/db",
        "postgresql://u:hunter2@127.0.0.1:port/db",
        "mysql://u:hunter2@127.0.0.1:1/db",
        "sqlite://u:hunter2@127.0.0.1/db",
    ],
)
def test_password_is_in_no_message(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        Store(url)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert "hunter2" not in repr(chain)
        chain = None if chain.__suppress_context__ else chain.__context__


def test_missing_driver_is_said_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'ringstep\[postgres\]'"):
        Store("postgresql://u@h/db")


def test_missing_database_is_said_with_the_way_to_make_it(postgres_url: str) -> None:
    with pytest.raises(StoreError, match=r"does not exist; it was not opened; .*'createdb'"):
        Store(postgres_url.replace("store", "nosuch"))


def test_database_that_another_process_holds_is_refused_with_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringstep.controller.database._BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "store.db"
    store = Store(f"sqlite:///{path}")
    epoch = store.take_over("x")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="is locked; it was not opened; another process holds it"):
        Store(f"sqlite:///{path}")
    with pytest.raises(StoreError, match="is locked; nothing was changed; another process holds"):
        store.commit(epoch, [register(ledger(), "a")[1]])
    assert store.load().jobs == ()
    holder.close()


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be mistaken for a header of one\n" * 9)
    with pytest.raises(StoreError, match="file is not a database"):
        Store(f"sqlite:///{path}")


@pytest.mark.parametrize("version", ["1", "9"])
def test_store_of_another_schema_is_refused(store_url: str, version: str) -> None:
    store = Store(store_url)
    with store.database.transaction() as connection:
        connection.execute(text(f"UPDATE meta SET value = '{version}'"))
    store.close()
    with pytest.raises(StoreError, match=f"written with schema {version}, this controller reads"):
        Store(store_url)


def test_damaged_row_is_named(opened: Store) -> None:
    opened.commit(opened.take_over("x"), [register(ledger(), "a")[1]])
    with opened.database.transaction() as connection:
        connection.execute(text("UPDATE jobs SET blocks = 'oops'"))
    with pytest.raises(StoreError, match=r"blocks of job 'a' \(1\) are damaged"):
        opened.load()


def test_full_disk_is_said_and_changes_nothing(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    epoch = store.take_over("x")
    book = ledger()
    kept, change = register(book, "kept")
    store.commit(epoch, [change])
    with store.database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="disk is full; nothing was changed; make room") as caught:
        store.commit(epoch, [register(book, "big", spec=bytes(100_000))[1]])
    assert not caught.value.outcome_unknown
    assert store.load().jobs == (kept,)
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    small, change = register(ledger(store.load()), "small")
    store.commit(epoch, [change])
    assert store.load().jobs == (kept, small)
    store.close()


def test_read_only_file_is_said(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    epoch = store.take_over("x")
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = 1")
    with pytest.raises(StoreError, match="readonly database; nothing was changed; give this user"):
        store.commit(epoch, [register(ledger(), "a")[1]])


def test_store_in_memory_serves_several_threads() -> None:
    store = Store("sqlite://")
    epoch, book = store.take_over("x"), ledger()
    changes = [register(book, f"j{n}", blocks={})[1] for n in range(40)]
    threads = [threading.Thread(target=store.commit, args=[epoch, [change]]) for change in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.load().jobs) == 40
    store.close()


def test_server_killed_while_it_writes_loses_nothing_acknowledged(
    own_postgres: Callable[[], PostgresServer],
) -> None:
    server = own_postgres()
    store = Store(server.new_database())
    epoch, book, stored = store.take_over("x"), ledger(), 0
    failures: list[StoreError] = []
    enough = threading.Event()

    def write() -> None:
        nonlocal stored
        for number in range(100_000):
            try:
                store.commit(epoch, [register(book, f"j{number}", blocks={"t": [1]})[1]])
            except StoreError as error:
                failures.append(error)
                return
            stored = number + 1
            if stored == 50:
                enough.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert enough.wait(60)
    server.kill()
    writer.join(60)
    assert "see that the server runs" in str(failures[0])
    with pytest.raises(StoreError, match="nothing was changed; see that the server runs"):
        store.commit(epoch, [])
    server.start()
    names = [job.name for job in store.load().jobs]
    # The one that was under way when the server died may be there; none before it is missing.
    assert names[:stored] == [f"j{n}" for n in range(stored)]
    assert len(names) - stored in {0, 1}
    again, change = register(ledger(store.load()), "again")
    store.commit(epoch, [change])
    assert again.job_id == len(names) + 1
    store.close()


def test_commit_that_breaks_off_says_that_its_outcome_is_not_known(
    own_postgres: Callable[[], PostgresServer],
) -> None:
    """The server stops before it answers to COMMIT, then is killed."""
    server = own_postgres()
    store = Store(server.new_database())
    killer = threading.Timer(0.2, server.kill)

    def write() -> None:
        with store.database.transaction() as connection:
            connection.execute(text("UPDATE leader SET address = 'x'"))
            server.signal(signal.SIGSTOP)
            killer.start()

    with pytest.raises(
        StoreError, match="whether the last change is stored is not known"
    ) as caught:
        write()
    killer.join()
    assert caught.value.outcome_unknown


def test_sqlite_survives_a_writer_that_is_killed(tmp_path: Path) -> None:
    """The process dies at once after its first answers; those are there."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        store = Store(url)
        epoch, book = store.take_over("x"), ledger()
        for number in range(100_000):
            store.commit(epoch, [register(book, f"j{number}", blocks={"t": [1]})[1]])
            os.write(writer, b".")
    os.close(writer)
    acknowledged = len(os.read(reader, 1))
    while acknowledged < 20:
        acknowledged += len(os.read(reader, 4096))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while left := os.read(reader, 4096):
        acknowledged += len(left)
    os.close(reader)
    store = Store(url)
    names = [job.name for job in store.load().jobs]
    assert names[:acknowledged] == [f"j{n}" for n in range(acknowledged)]
    assert len(names) - acknowledged in {0, 1}
    store.close()


def test_quarantine_goes_on_after_a_restart(opened: Store) -> None:
    clock, epoch = Clock(), opened.take_over("x")
    book = ledger(clock=clock, quarantine_s=60)
    changes = [register(book, "a")[1], book.release("a")[1]]
    assert isinstance(changes[1], Ended)
    opened.commit(epoch, changes)
    clock.advance(59)
    after = ledger(opened.load(), clock=clock, quarantine_s=60)
    assert after.quarantined_ids == 1
    clock.advance(1)
    assert after.quarantined_ids == 0


def test_blocks_are_stored_as_json(opened: Store) -> None:
    opened.commit(opened.take_over("x"), [register(ledger(), "a")[1]])
    with opened.database.reading() as connection:
        stored = connection.execute(text("SELECT blocks FROM jobs")).scalar_one()
    assert json.loads(stored) == {"tor1": {"1": 0, "11": 1}}
