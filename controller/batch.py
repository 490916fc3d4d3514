"""What a batch of changes comes to, and the statements that write it.

A batch is written as a few statements with many rows each, whatever order the changes came in.
That keeps their meaning because changes of one job are first put together: a job that came and
went within the batch is written as what it is at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import String, Table, bindparam, delete, insert, text, update
from sqlalchemy.engine import Connection

from ringstep.controller.database import BLOCKS, HAS_REQUEST_ID, JOB_IDS, JOBS, LIVE
from ringstep.controller.facts import Change, Ended, Registered, StoredJob

Row = dict[str, Any]

# Conditions in the words of the partial indexes, so that both databases see that those serve.
_THE_JOB = (JOBS.c.job_id == bindparam("of_job_id")) & text(LIVE)
_REMOVE = delete(JOBS).where(_THE_JOB)
_FORGET = delete(JOBS).where(
    JOBS.c.request_id == bindparam("of_request_id"), text(HAS_REQUEST_ID), text(f"NOT {LIVE}")
)
_RETIRE = update(JOBS).where(_THE_JOB)
_UPDATE = update(JOBS).where(_THE_JOB)
_INSERT = insert(JOBS)
_RETIRED: Row = {"live": False, "spec": b"", "params": b"", "paths": "", "blocks": "{}"}
"""What is left of a released job: its request id and its name, and when it was released."""


class Batch:
    """The rows that some changes come to."""

    def __init__(self, changes: Iterable[Change]) -> None:
        self._new: dict[tuple[int, int], Row] = {}
        self._updated: dict[tuple[int, int], Row] = {}
        self._retired: list[Row] = []
        self._removed: list[Row] = []
        self._forgotten: list[Row] = []
        # By primary key, in the order of the table's columns: the last word counts.
        self._job_ids: dict[int, tuple[int, int, int, int]] = {}
        self._blocks: dict[tuple[str, int], tuple[str, int, int, int]] = {}
        for change in changes:
            key = (change.job.job_id, change.job.generation)
            if isinstance(change, Registered):
                self._new[key] = _job_row(change.job)
            elif isinstance(change, Ended):
                self._end(key, change)
            else:
                self._update(key, change.job)
                self._free(change.freed, change.job.generation, change.turn)

    def _update(self, key: tuple[int, int], job: StoredJob) -> None:
        if (new := self._new.get(key)) is not None:
            new.update(_mutable(job))
        else:
            self._updated[key] = {"of_job_id": job.job_id} | _mutable(job)

    def _end(self, key: tuple[int, int], change: Ended) -> None:
        job = change.job
        self._updated.pop(key, None)
        new = self._new.pop(key, None)
        if not job.request_id:
            if new is None:
                self._removed.append({"of_job_id": job.job_id})
        elif new is None:
            self._retired.append({"of_job_id": job.job_id, "turn": change.turn} | _RETIRED)
        else:
            self._new[key] = new | _RETIRED | {"turn": change.turn}
        self._forgotten += ({"of_request_id": request_id} for request_id in change.forgotten)
        self._job_ids[job.job_id] = (
            job.job_id,
            job.generation,
            change.released_unix_ms,
            change.turn,
        )
        held = ((switch, block) for switch, ids in job.blocks.items() for block in ids.values())
        self._free(held, job.generation, change.turn)

    def _free(self, blocks: Iterable[tuple[str, int]], generation: int, turn: int) -> None:
        for switch, block in blocks:
            self._blocks[switch, block] = (switch, block, generation, turn)

    def write(self, connection: Connection) -> None:
        """Write it all within the connection's transaction."""
        # What ends makes room for what is new: a name, a Job_ID.
        for statement, rows in (
            (_REMOVE, self._removed),
            (_RETIRE, self._retired),
            (_UPDATE, list(self._updated.values())),
            (_INSERT, list(self._new.values())),
            (_FORGET, self._forgotten),
        ):
            if rows:
                connection.execute(statement, rows)
        if self._job_ids:
            _PUT_JOB_IDS.write(connection, list(self._job_ids.values()))
        if self._blocks:
            _PUT_BLOCKS.write(connection, list(self._blocks.values()))


def _job_row(job: StoredJob) -> Row:
    return {
        "live": True,
        "job_id": job.job_id,
        "generation": job.generation,
        "name": job.name,
        "tenant": job.tenant,
        "owner": job.owner,
        "request_id": job.request_id,
        "spec": job.spec,
        "created_unix_ms": job.created_unix_ms,
        "turn": 0,
    } | _mutable(job)


def _mutable(job: StoredJob) -> Row:
    return {
        "params": job.params,
        "paths": job.paths,
        "lease_s": job.lease_s,
        "blocks": json.dumps(job.blocks, separators=(",", ":")),
    }


def read_blocks(stored: str) -> Mapping[str, Mapping[int, int]]:
    """Return the blocks of a job from what is stored of them."""
    return {
        switch: {int(key): block for key, block in ids.items()}
        for switch, ids in json.loads(stored).items()
    }


class _Put:
    """Inserts rows of a table, or replaces those with the same key.

    Written by hand, because it has by far the most rows: PostgreSQL gets a statement with a list
    per column, SQLite a statement that it runs for each row.
    """

    def __init__(self, table: Table) -> None:
        names = [column.name for column in table.columns]
        keys = [column.name for column in table.primary_key]
        rest = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys)
        into = f"INSERT INTO {table.name} ({', '.join(names)})"
        conflict = f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {rest}"
        lists = ", ".join(
            f"%s::{'text' if isinstance(column.type, String) else 'bigint'}[]"
            for column in table.columns
        )
        self._sqlite = f"{into} VALUES ({', '.join('?' * len(names))}) {conflict}"
        self._postgres = f"{into} SELECT * FROM unnest({lists}) {conflict}"

    def write(self, connection: Connection, rows: list[tuple[Any, ...]]) -> None:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(self._sqlite, rows)
        else:
            lists = tuple(list(column) for column in zip(*rows, strict=True))
            connection.exec_driver_sql(self._postgres, lists)


_PUT_JOB_IDS = _Put(JOB_IDS)
_PUT_BLOCKS = _Put(BLOCKS)
