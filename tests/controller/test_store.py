"""Job_IDs, generations and blocks: never shared, never mistaken for an earlier job's."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from ringstep.controller.store import (
    MAX_GENERATION,
    ExhaustedError,
    NameTakenError,
    NoSuchJobError,
    RequestIdReusedError,
    Store,
    StoredJob,
    StoredSwitch,
    StoreError,
)
from ringstep.protocol.limits import MAX_BLOCKS, MAX_JOBS


def register(store: Store, name: str, **changes: Any) -> StoredJob:
    arguments: dict[str, Any] = {
        "name": name,
        "request_id": "",
        "spec": "{}",
        "params": "{}",
        "blocks": {"tor1": [1, 11]},
        "now_unix_ms": 1,
    }
    job, _ = store.register(**(arguments | changes))
    return job


def mark_used(store: Store, statement: str, **values: int) -> None:
    """Put the store into a state that would take long to reach over its methods."""
    with store._engine.begin() as connection:
        connection.execute(text(statement), values)


def test_ids_and_blocks_are_handed_out_from_the_lowest(store: Store) -> None:
    first, second = register(store, "a"), register(store, "b", blocks={"tor1": [2], "s1": [0]})
    assert (first.job_id, first.generation, first.blocks) == (1, 1, {"tor1": {1: 0, 11: 1}})
    assert (second.job_id, second.generation) == (2, 1)
    assert second.blocks == {"tor1": {2: 2}, "s1": {0: 0}}


def test_jobs_survive_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    before = Store(url)
    job = register(before, "a", spec='{"x":1}', request_id="r1")
    before.close()
    after = Store(url)
    assert after.live_jobs() == [job]
    assert after.get("a") == after.get(1) == job


def test_released_id_comes_last_and_with_another_generation(store: Store) -> None:
    register(store, "a")
    register(store, "b")
    store.release("a")
    store.release("b")
    assert register(store, "c").job_id == 3
    mark_used(store, "INSERT INTO job_ids VALUES (:id, 5, NULL)", id=MAX_JOBS)
    again = register(store, "d")
    assert (again.job_id, again.generation) == (1, 2)
    assert register(store, "e").job_id == 2
    with pytest.raises(ExhaustedError, match="all 16383 Job_IDs are in use; release a job first"):
        register(store, "f")


def test_reused_block_never_keeps_the_generation_it_had(store: Store) -> None:
    """Another job's old block with an equal generation would not be cleared by the data plane."""
    register(store, "old", blocks={"tor1": [1]})
    store.release("old")
    mark_used(
        store,
        "INSERT INTO blocks VALUES ('tor1', :block, 7, NULL, NULL, NULL)",
        block=MAX_BLOCKS - 1,
    )
    fresh = register(store, "new", blocks={"tor1": [1]})
    assert fresh.blocks == {"tor1": {1: 0}}
    assert (fresh.job_id, fresh.generation) == (2, 2)


def test_generation_wraps_past_zero(store: Store) -> None:
    mark_used(store, "INSERT INTO job_ids VALUES (:id, 255, 1)", id=MAX_JOBS)
    job = register(store, "a", blocks={})
    assert (job.job_id, job.generation) == (MAX_JOBS, 1)
    assert MAX_GENERATION == 255


def test_added_block_has_had_another_generation(store: Store) -> None:
    job = register(store, "a", blocks={"tor1": [1]})
    register(store, "b", blocks={"tor1": [1]})
    store.release("b")
    mark_used(
        store,
        "INSERT INTO blocks VALUES ('tor1', :block, 9, NULL, NULL, 99)",
        block=MAX_BLOCKS - 1,
    )
    assert job.generation == 1
    # Block 1 was b's, of generation 1 like a's; the last block was of generation 9.
    assert store.place(1, {"tor1": [1, 2]}).blocks == {"tor1": {1: 0, 2: MAX_BLOCKS - 1}}


def test_placing_keeps_adds_and_frees_blocks(store: Store) -> None:
    register(store, "a", blocks={"tor1": [1, 2], "tor2": [1]})
    placed = store.place(1, {"tor1": [2, 3]})
    assert placed.blocks == {"tor1": {2: 1, 3: 2}}
    assert store.get("a") == placed
    with pytest.raises(NoSuchJobError):
        store.place(2, {})


def test_no_block_left_is_said_with_a_way_out(store: Store) -> None:
    mark_used(
        store,
        "INSERT INTO blocks VALUES ('tor1', :block, 1, NULL, NULL, NULL)",
        block=MAX_BLOCKS - 1,
    )
    with pytest.raises(ExhaustedError, match="register with scope SWITCH"):
        register(store, "a", blocks={"tor1": [1]})
    assert store.live_jobs() == []
    assert register(store, "b", blocks={"tor2": [1]}).job_id == 1


def test_repeated_request_returns_the_same_job(store: Store) -> None:
    first = register(store, "a", request_id="r1", spec='{"k":1}')
    job, created = store.register(
        name="a",
        request_id="r1",
        spec='{"k":1}',
        params="{}",
        blocks={"tor1": [1, 11]},
        now_unix_ms=99,
    )
    assert (job, created) == (first, False)


def test_request_id_of_another_spec_is_refused(store: Store) -> None:
    register(store, "a", request_id="r1", spec='{"k":1}')
    with pytest.raises(RequestIdReusedError, match="with another spec"):
        register(store, "b", request_id="r1", spec='{"k":2}')


def test_request_id_of_a_released_job_is_refused(store: Store) -> None:
    register(store, "a", request_id="r1")
    store.release("a")
    with pytest.raises(RequestIdReusedError, match="has been released"):
        register(store, "a", request_id="r1")


def test_name_is_free_again_after_release(store: Store) -> None:
    register(store, "a")
    with pytest.raises(NameTakenError, match="job 'a' is already registered as job 1"):
        register(store, "a")
    store.release(1)
    with pytest.raises(NoSuchJobError, match="no live job has name 'a'"):
        store.release("a")
    assert register(store, "a").job_id == 2


def test_concurrent_registrations_of_two_processes_never_share_an_id(tmp_path: Path) -> None:
    """Two stores on one file stand for two processes; each has its own connections."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    stores = [Store(url), Store(url)]

    def churn(worker: int) -> list[tuple[int, int, int]]:
        taken = []
        for turn in range(12):
            job = register(stores[worker % 2], f"w{worker}-{turn}", blocks={"tor1": [1]})
            taken.append((job.job_id, job.generation, job.blocks["tor1"][1]))
            if turn % 3 == 0:
                stores[worker % 2].release(job.job_id)
        return taken

    with ThreadPoolExecutor(4) as pool:
        handed_out = [item for taken in pool.map(churn, range(4)) for item in taken]
    assert len(handed_out) == 48
    assert len({job_id for job_id, _, _ in handed_out}) == 48
    assert len({block for _, _, block in handed_out}) == 48
    assert len(stores[0].live_jobs()) == 32


def test_failed_registration_leaves_nothing_behind(store: Store) -> None:
    register(store, "a")
    with pytest.raises(NameTakenError):
        register(store, "a")
    assert register(store, "b").job_id == 2


def test_jobs_are_listed_in_pages(store: Store) -> None:
    for name in "abcde":
        register(store, name)
    assert [job.name for job in store.live_jobs(after=2, limit=2)] == ["c", "d"]


FILE_SWITCHES = [
    StoredSwitch("tor1", 1, "127.0.0.1:1", from_file=True),
    StoredSwitch("tor2", 2**64 - 1, "127.0.0.1:2", from_file=True),
]


def test_switches_follow_the_file_unless_an_operator_said_otherwise(store: Store) -> None:
    assert store.sync_switches_from_file(FILE_SWITCHES) == FILE_SWITCHES
    moved = StoredSwitch("tor1", 1, "127.0.0.1:7", from_file=False)
    store.put_switch(moved)
    assert store.sync_switches_from_file(FILE_SWITCHES) == [moved, FILE_SWITCHES[1]]
    assert store.remove_switch("tor2")
    assert not store.remove_switch("tor2")
    assert store.sync_switches_from_file(FILE_SWITCHES) == [moved]
    store.put_switch(FILE_SWITCHES[1])
    assert store.sync_switches_from_file(FILE_SWITCHES) == [moved, FILE_SWITCHES[1]]
    assert store.sync_switches_from_file([]) == [moved]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ringstep.db", "is not a database URL; write for example sqlite:///ringstep.db"),
        ("postgresql://host/db", "postgresql is not supported; use sqlite:///PATH"),
        ("nosuch://host/db", "nosuch is not supported"),
        ("sqlite:///x.db?mode=ro", "takes no host and no options; use sqlite:///PATH"),
        ("sqlite:////nonexistent/folder/x.db", "unable to open database file; give the path of"),
    ],
)
def test_unusable_store_is_refused_with_a_remedy(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        Store(url)


def test_database_that_another_process_holds_is_refused_with_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringstep.controller.store._BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "store.db"
    Store(f"sqlite:///{path}").close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="database is locked; another process holds it"):
        Store(f"sqlite:///{path}")
    holder.close()


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be mistaken for a header of one\n" * 9)
    with pytest.raises(StoreError, match="file is not a database"):
        Store(f"sqlite:///{path}")


def test_store_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    Store(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '9'")
    connection.close()
    with pytest.raises(StoreError, match="written with schema 9, this controller reads schema 1"):
        Store(f"sqlite:///{path}")
