"""Look at a store without changing it: can a controller work with it, and does one already?"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from ringstep.controller.findings import Finding, ok, problem, warning
from ringstep.controller.redact import HIDDEN, safe_url
from ringstep.controller.store import SCHEMA_VERSION

PART: Final = "store"
CLOCK_SKEW_S: Final = 5.0
_TABLES: Final = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
    "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()",
}


@dataclass(frozen=True, slots=True)
class StoreReport:
    """Findings, and the switches that the store keeps: name -> (address, device id).

    ``term``: the last one in which a controller led; 0: none did.
    """

    findings: tuple[Finding, ...]
    switches: Mapping[str, tuple[str, int]]
    removed: frozenset[str] = frozenset()
    term: int = 0


def _only(*findings: Finding) -> StoreReport:
    return StoreReport(findings, {})


def check_store(url: str, timeout_s: float, now_s: float) -> StoreReport:
    """Look at a store; never raises for what is wrong with it.

    ``now_s``: Unix time of this machine, which a database server's clock is compared with.
    """
    shown = safe_url(url)
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):
        return _only(problem(PART, f"{shown} is not a database URL; write sqlite:///PATH"))
    if backend == "sqlite":
        path = parsed.database
        if not path or path == ":memory:":
            return _only(
                warning(PART, "is in memory: all jobs are forgotten when the controller ends")
            )
        if not Path(path).exists():
            return _only(_new_file(Path(path)))
        arguments: dict[str, Any] = {"timeout": timeout_s}
    elif backend == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
        arguments = {"connect_timeout": max(1, round(timeout_s))}
    else:
        return _only(problem(PART, f"{shown}: {backend} is not supported; use SQLite, PostgreSQL"))
    try:
        engine = create_engine(parsed, connect_args=arguments)
    except ModuleNotFoundError:
        return _only(problem(PART, f"{shown} needs psycopg; run pip install 'ringstep[postgres]'"))
    try:
        with engine.connect() as connection:
            return _look(connection, backend, shown, now_s)
    except SQLAlchemyError as error:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        if parsed.password:
            reason = reason.replace(str(parsed.password), HIDDEN)
        return _only(problem(PART, f"{shown}: {reason}; {_advice(backend, error)}"))
    finally:
        engine.dispose()


def _new_file(path: Path) -> Finding:
    folder = path.parent
    if not folder.is_dir():
        return problem(PART, f"{path}: its folder does not exist; make it, or give another path")
    if not os.access(folder, os.W_OK | os.X_OK):
        return problem(PART, f"{path}: its folder cannot be written by this user; chown {folder}")
    return ok(PART, f"{path} does not exist yet, and will be made at the first start")


def _advice(backend: str, error: SQLAlchemyError) -> str:
    if backend == "sqlite":
        return "give a file that this user can read and write, on a disk with room"
    # A connection that is refused has no SQLSTATE: the driver gives the server's text alone.
    reason = str(getattr(error, "orig", None) or error)
    if "authentication" in reason or "pg_hba" in reason or "role" in reason:
        return "mend its user or password, or the server's pg_hba.conf"
    if "does not exist" in reason:
        return "create the database ('createdb'), or name another one"
    return "does the server run there, and may this machine and user connect?"


def _look(connection: Connection, backend: str, shown: str, now_s: float) -> StoreReport:
    tables = set(connection.scalars(text(_TABLES[backend])))
    findings = [_schema(connection, tables, shown), *_writable(connection, backend, tables, shown)]
    if backend == "postgresql":
        findings += _server_clock(connection, now_s)
    leader, term = _leader(connection, tables)
    findings.append(leader)
    switches, removed = _switches(connection, tables)
    return StoreReport(tuple(findings), switches, removed, term)


def _schema(connection: Connection, tables: set[str], shown: str) -> Finding:
    if "meta" not in tables:
        if tables & {"jobs", "switches"}:
            return problem(PART, f"{shown}: holds tables of something else; give an empty store")
        return ok(PART, f"{shown} is empty, and will be filled at the first start")
    version = connection.scalar(text("SELECT value FROM meta WHERE key = 'schema'"))
    if version != str(SCHEMA_VERSION):
        return problem(
            PART,
            f"{shown}: written with schema {version}, this controller reads {SCHEMA_VERSION}; "
            "release its jobs with the controller that wrote it, and give another store",
        )
    live = (
        connection.scalar(text("SELECT count(*) FROM jobs WHERE live")) if "jobs" in tables else 0
    )
    return ok(PART, f"{shown}: schema {version}, {live} live jobs")


def _writable(
    connection: Connection, backend: str, tables: set[str], shown: str
) -> Sequence[Finding]:
    connection.rollback()
    if backend == "sqlite":
        try:
            # Takes the write lock and gives it back: no byte of the file changes.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            connection.exec_driver_sql("ROLLBACK")
        except DBAPIError as error:
            return [
                problem(PART, f"{shown}: cannot be written ({error.orig}); mend its permissions")
            ]
        return []
    if connection.scalar(text("SELECT pg_is_in_recovery()")):
        return [problem(PART, f"{shown}: is a read-only standby; name the primary server")]
    if not tables and not connection.scalar(
        text("SELECT has_schema_privilege(current_schema(), 'CREATE')")
    ):
        return [problem(PART, f"{shown}: its user may not make tables; GRANT CREATE ON SCHEMA")]
    refused = [
        table
        for table in sorted(tables & {"meta", "jobs", "switches"})
        if not connection.scalar(
            text("SELECT has_table_privilege(:table, 'INSERT, UPDATE, DELETE')"), {"table": table}
        )
    ]
    if refused:
        names = ", ".join(refused)
        return [problem(PART, f"{shown}: its user may not write {names}; GRANT ALL ON {names}")]
    return []


def _server_clock(connection: Connection, now_s: float) -> Sequence[Finding]:
    theirs = float(connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or 0)
    if abs(theirs - now_s) <= CLOCK_SKEW_S:
        return []
    return [
        warning(
            "clock",
            f"the database server's clock is {theirs - now_s:+.0f} s from this machine's; set both "
            "by NTP",
        )
    ]


def _leader(connection: Connection, tables: set[str]) -> tuple[Finding, int]:
    row = (
        connection.execute(text("SELECT epoch, address FROM leader")).first()
        if "leader" in tables
        else None
    )
    if row is None or not row.address:
        return ok("leader", "no controller leads now; this one will"), row.epoch if row else 0
    return ok(
        "leader",
        f"{row.address} leads, or led last (term {row.epoch}); while it does, this one stands by",
    ), row.epoch


def _switches(
    connection: Connection, tables: set[str]
) -> tuple[Mapping[str, tuple[str, int]], frozenset[str]]:
    kept: dict[str, tuple[str, int]] = {}
    if "switches" in tables:
        for row in connection.execute(text("SELECT name, address, device_id FROM switches")):
            kept[row.name] = (row.address, int(row.device_id))
    removed = (
        frozenset(connection.scalars(text("SELECT name FROM removed_switches")))
        if "removed_switches" in tables
        else frozenset()
    )
    return kept, removed
