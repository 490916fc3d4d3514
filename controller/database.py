"""Tables of the store, and the two databases that can hold them: SQLite and PostgreSQL.

Everything that differs between the two is in this module.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import RLock
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import URL, Connection, Engine, RootTransaction, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from ringstep.controller.facts import StoreError

SCHEMA_VERSION: Final = 2
_BUSY_TIMEOUT_S = 5.0
"""How long to wait for another process's transaction. Shorter than clients wait for an answer, so
that a caller who is told of a failure can rely on it that nothing happened."""
_CONNECT_TIMEOUT_S = 5
_SCHEMA_LOCK = 0x72696E67
"""Advisory lock of PostgreSQL that keeps two controllers from creating the tables at once."""
_POSTGRES_SETTINGS = (
    f"SET lock_timeout = '{_BUSY_TIMEOUT_S:g}s'",
    "SET statement_timeout = '10s'",
    # A controller that is gone without a word must not hold locks for long.
    "SET idle_in_transaction_session_timeout = '10s'",
    "SET tcp_keepalives_idle = 5",
    "SET tcp_keepalives_interval = 2",
    "SET tcp_keepalives_count = 3",
)

METADATA = MetaData()

META = Table(
    "meta",
    METADATA,
    Column("key", String(32), primary_key=True),
    Column("value", String(64), nullable=False),
)
LEADER = Table(
    "leader",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("address", Text, nullable=False),
)
"""One row: who leads, or led last. ``epoch`` only ever grows."""
SWITCHES = Table(
    "switches",
    METADATA,
    Column("name", String(63), primary_key=True),
    # P4Runtime device ids have 64 bits without a sign, SQL integers have one.
    Column("device_id", String(20), nullable=False),
    Column("address", Text, nullable=False),
    Column("from_file", Boolean, nullable=False),
)
REMOVED_SWITCHES = Table("removed_switches", METADATA, Column("name", String(63), primary_key=True))
"""Switches of the topology file that an operator took out; a restart keeps them out."""
DRAINED_SWITCHES = Table("drained_switches", METADATA, Column("name", String(63), primary_key=True))
DOWN_LINKS = Table(
    "down_links",
    METADATA,
    Column("switch", String(63), primary_key=True),
    Column("port", Integer, primary_key=True, autoincrement=False),
)
JOBS = Table(
    "jobs",
    METADATA,
    Column("key", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("live", Boolean, nullable=False),
    Column("job_id", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("name", String(63), nullable=False),
    Column("tenant", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("request_id", String(128), nullable=False),
    Column("spec", LargeBinary, nullable=False),
    Column("params", LargeBinary, nullable=False),
    Column("paths", Text, nullable=False),
    Column("lease_s", BigInteger, nullable=False),
    Column("created_unix_ms", BigInteger, nullable=False),
    Column("blocks", Text, nullable=False),
    Column("turn", BigInteger, nullable=False),
)
"""Live jobs, and of released ones that had a request id the request id and the name.

``turn`` of a released job is its place in the order of releases.
"""
LIVE: Final = "live"
HAS_REQUEST_ID: Final = "request_id <> ''"
for _name, _column, _where in (
    ("uq_jobs_live_job_id", "job_id", LIVE),
    ("uq_jobs_live_name", "name", LIVE),
    ("uq_jobs_request_id", "request_id", HAS_REQUEST_ID),
):
    Index(
        _name,
        JOBS.c[_column],
        unique=True,
        sqlite_where=text(_where),
        postgresql_where=text(_where),
    )
JOB_IDS = Table(
    "job_ids",
    METADATA,
    Column("job_id", Integer, primary_key=True, autoincrement=False),
    Column("generation", Integer, nullable=False),
    Column("released_unix_ms", BigInteger, nullable=False),
    Column("turn", BigInteger, nullable=False),
)
"""Job_IDs that were given back, as of the last time; a live job's may be among them."""
BLOCKS = Table(
    "blocks",
    METADATA,
    Column("switch", String(63), primary_key=True),
    Column("block", Integer, primary_key=True, autoincrement=False),
    Column("generation", Integer, nullable=False),
    Column("turn", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""State blocks that were given back, as of the last time; a live job's may be among them."""


class Database:
    """A database with the tables of the store.

    ``label`` names it in messages, without a password; ``path`` is the file of a SQLite database.

    Raises:
        StoreError: the URL is of another kind, nothing can be reached there, or it holds another
            schema.
    """

    def __init__(self, url: str) -> None:
        parsed = _parsed(url)
        self.is_postgres = parsed.get_backend_name() == "postgresql"
        self.label = _label(parsed)
        self._password = parsed.password or str(parsed.query.get("password", ""))
        in_memory = parsed.database in {None, "", ":memory:"}
        self.path = None if self.is_postgres or in_memory else parsed.database
        self._turns = RLock() if in_memory else nullcontext()
        self._in_use: set[Connection] = set()
        self.engine = self._engine(parsed, in_memory)
        try:
            self._create_tables()
        except BaseException:
            self.engine.dispose()
            raise

    def _engine(self, url: URL, in_memory: bool) -> Engine:
        if self.is_postgres:
            engine = _postgres_engine(url, self.label)
            event.listen(engine, "connect", _on_postgres_connect)
            return engine
        arguments: dict[str, Any] = {"connect_args": {"timeout": _BUSY_TIMEOUT_S}}
        if in_memory:
            # One connection for all threads, who take turns: a second one would see another,
            # empty database.
            arguments = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
        engine = create_engine(url, **arguments)
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
        return engine

    def _create_tables(self) -> None:
        with self.transaction("opened") as connection:
            if self.is_postgres:
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})"))
            if inspect(connection).has_table(META.name):
                version = connection.scalar(select(META.c.value).where(META.c.key == "schema"))
                if version == str(SCHEMA_VERSION):
                    return
                if version is not None:
                    raise StoreError(
                        f"store {self.label}: written with schema {version}, this controller "
                        f"reads schema {SCHEMA_VERSION}; release its jobs with the controller that "
                        "wrote it and start with another, empty store"
                    )
            METADATA.create_all(connection)
            connection.execute(insert(META).values(key="schema", value=str(SCHEMA_VERSION)))
            connection.execute(insert(LEADER).values(id=1, epoch=0, address=""))

    # -- transactions ------------------------------------------------------------------------

    @contextmanager
    def transaction(self, what: str = "written") -> Iterator[Connection]:
        """Run the body in one transaction that writes; ``what`` did not happen if it fails.

        Raises:
            StoreError: the database failed.
        """
        committing = False
        try:
            with self._turns, self.engine.connect() as connection:
                self._in_use.add(connection)
                try:
                    transaction = self._begin(connection, "SELECT 1")
                    yield connection
                    committing = True
                    transaction.commit()
                finally:
                    self._in_use.discard(connection)
                    if connection.in_transaction():
                        # What went wrong is on its way up; that this fails too tells nothing new.
                        with suppress(SQLAlchemyError):
                            connection.rollback()
        except SQLAlchemyError as error:
            raise self.failure(error, what, committing=committing) from None

    def _begin(self, connection: Connection, first: str) -> RootTransaction:
        """Begin a transaction, on PostgreSQL with a first statement.

        A connection that broke while nobody used it shows that here, where another one can be
        taken: it costs no change.
        """
        transaction = connection.begin()
        if self.is_postgres:
            try:
                connection.exec_driver_sql(first)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                transaction.rollback()
                transaction = connection.begin()
                connection.exec_driver_sql(first)
        return transaction

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Run the body on one consistent state of the database, without locks.

        Raises:
            StoreError: the database failed.
        """
        try:
            with self._turns, self.engine.connect() as connection:
                connection = connection.execution_options(ringstep_begin="BEGIN")
                self._in_use.add(connection)
                try:
                    with self._begin(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"):
                        yield connection
                finally:
                    self._in_use.discard(connection)
        except SQLAlchemyError as error:
            raise self.failure(error, "read") from None

    def failure(self, error: SQLAlchemyError, what: str, *, committing: bool = False) -> StoreError:
        """Return an error of the database as one for a person, without a password."""
        cause = getattr(error, "orig", None) or error
        reason = " ".join(str(cause).split()) or type(cause).__name__
        if self._password:
            reason = reason.replace(self._password, "***")
        unknown = committing and _may_have_committed(error)
        outcome = (
            "whether the last change is stored is not known"
            if unknown
            else "it was not opened"
            if what == "opened"
            else "nothing was changed"
        )
        return StoreError(
            f"store {self.label}: {reason}; {outcome}; {self._advice(error, reason)}",
            outcome_unknown=unknown,
        )

    def _advice(self, error: SQLAlchemyError, reason: str) -> str:
        if self.is_postgres:
            state = getattr(getattr(error, "orig", None), "sqlstate", None) or ""
            for prefix, advice in _POSTGRES_ADVICE.items():
                if state.startswith(prefix):
                    return advice
            if "FATAL: database" in reason and "does not exist" in reason:
                return _POSTGRES_ADVICE["3D"]
            return _POSTGRES_LOST if not state else "look at the server's log"
        return next(
            (advice for word, advice in _SQLITE_ADVICE.items() if word in reason.lower()),
            "look at its disk and at its permissions",
        )

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def interrupt(self) -> None:
        """Cut the connections that a server is asked on, from another thread."""
        for connection in self._in_use.copy() if self.is_postgres else ():
            self.abandon(connection)

    def abandon(self, connection: Connection) -> None:
        """Cut a connection to a server from another thread; what waits for it there fails."""
        descriptor = self.descriptor(connection)
        if descriptor is not None:
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as wire:
                wire.shutdown(socket.SHUT_RDWR)

    def descriptor(self, connection: Connection) -> int | None:
        """Return the socket of a connection to a server; None where it is closed."""
        with suppress(Exception):
            # Asked for the connection below, one that was lost would make a new one.
            if not (connection.closed or connection.invalidated):
                raw = connection.connection.driver_connection
                return None if raw is None else int(raw.fileno())
        return None


_SQLITE_ADVICE: Final = {
    "locked": "another process holds it: end that one, or give another file",
    "full": "make room on its disk and try again",
    "readonly": "give this user write access to the file and its folder, or give another file",
    "read-only": "give this user write access to the file and its folder, or give another file",
    "unable to open": "give the path of a database that this user may write, such as "
    "sqlite:///ringstep.db",
    "not a database": "give the path of a database that this user may write, such as "
    "sqlite:///ringstep.db",
    "malformed": "the file is damaged: restore it from a backup, or start with another file",
    "i/o error": "look at the disk it is on",
}
_POSTGRES_LOST: Final = (
    "see that the server runs, and that host, port, user and password of the store are right"
)
_POSTGRES_ADVICE: Final = {
    "08": _POSTGRES_LOST,
    "57": _POSTGRES_LOST,
    "28": "correct the user or the password of the store, or the server's pg_hba.conf",
    "3D": "create the database ('createdb'), or name another one",
    "42501": "let the store's user create and write tables (GRANT CREATE ON SCHEMA)",
    "53100": "make room on the server's disk and try again",
    "53": "the server has no connections or no memory left: look at what else uses it",
    "55P03": "another process holds a lock on the tables: end it, and try again",
    "25006": "the server is a read-only standby: name the primary in the store's URL",
    "23": "another process wrote to these tables: end it, and restart the controller",
}


def _may_have_committed(error: SQLAlchemyError) -> bool:
    cause = getattr(error, "orig", None)
    if (name := getattr(cause, "sqlite_errorname", None)) is not None:
        return str(name).startswith("SQLITE_IOERR")
    state = getattr(cause, "sqlstate", None)
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    return lost or state is None or state[:2] in {"08", "57"}


def _parsed(url: str) -> URL:
    shown = "of this controller" if "@" in url or "password" in url else repr(url)
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise StoreError(
            f"store {shown} is not a database URL; write for example sqlite:///ringstep.db"
        ) from None
    if parsed.drivername in {"postgresql", "postgres", "postgresql+psycopg"}:
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in {"sqlite", "sqlite+pysqlite"}:
        raise StoreError(
            f"store {_label(parsed)}: {parsed.drivername if backend == 'postgresql' else backend} "
            "is not supported; use sqlite:///PATH or postgresql://USER@HOST/DATABASE"
        )
    if parsed.query or parsed.host:
        raise StoreError(f"store {shown}: takes no host and no options; use sqlite:///PATH")
    return parsed


def _label(url: URL) -> str:
    """Return a URL without password and options; a host that is an option stays."""
    host = url.host or url.query.get("host")
    options = {"host": host} if not url.host and host else {}
    return url.set(
        drivername=url.get_backend_name(), password=None, query=options
    ).render_as_string()


def _postgres_engine(url: URL, label: str) -> Engine:
    settings = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
        "application_name": "ringstep-controller",
    }
    settings = {name: value for name, value in settings.items() if name not in url.query}
    try:
        return create_engine(url, connect_args=settings)
    except ModuleNotFoundError:
        raise StoreError(
            f"store {label}: PostgreSQL needs the package psycopg, which is not installed; run "
            "pip install 'ringstep[postgres]'"
        ) from None


def _on_postgres_connect(connection: Any, _record: object) -> None:
    connection.autocommit = True
    with connection.cursor() as cursor:
        for setting in _POSTGRES_SETTINGS:
            cursor.execute(setting)
    connection.autocommit = False


def _on_sqlite_connect(connection: Any, _record: object) -> None:
    # SQLAlchemy starts transactions itself (_on_sqlite_begin); the driver must not.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _on_sqlite_begin(connection: Connection) -> None:
    # The write lock before the first read: what was read stays true until the commit.
    connection.exec_driver_sql(
        connection.get_execution_options().get("ringstep_begin", "BEGIN IMMEDIATE")
    )
