"""What the controller must not forget: switches, jobs, Job_IDs, generations, state blocks.

Every public method is one transaction. On SQLite a transaction takes the write lock before it
reads, so two registrations, in two threads or two processes, never see the same free id.

Reuse. A Job_ID that was never used comes first, lowest first; then the one released longest ago.
Blocks likewise. Each hand-out of a Job_ID takes a generation that neither the Job_ID nor any of
the job's blocks had the last time, which is what makes the data plane clear what is left in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    create_engine,
    event,
    func,
    select,
    text,
)
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import StaticPool

from ringstep.protocol.limits import GENERATION_BITS, MAX_BLOCKS, MAX_JOBS

MAX_GENERATION: Final = (1 << GENERATION_BITS) - 1
SCHEMA_VERSION: Final = 1
_BUSY_TIMEOUT_S = 5.0
"""How long to wait for another process's transaction. Shorter than clients wait for an answer, so
that a caller who is told of a failure can rely on it that nothing happened."""


class StoreError(Exception):
    """The store cannot be used: wrong URL, no access, or another schema."""


class NameTakenError(Exception):
    """A live job has the name already."""


class RequestIdReusedError(Exception):
    """The request id was used before, for something else."""


class NoSuchJobError(LookupError):
    """No live job of that name or id."""


class ExhaustedError(Exception):
    """No Job_ID, block or generation is free; the text says which, and what to do."""


@dataclass(frozen=True, slots=True)
class StoredSwitch:
    """A switch that is kept programmed. ``from_file``: its address follows the topology file."""

    name: str
    device_id: int
    address: str
    from_file: bool


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job with its Job_ID, and its block ids by switch and block key."""

    job_id: int
    generation: int
    name: str
    request_id: str
    spec: str
    params: str
    created_unix_ms: int
    live: bool
    blocks: Mapping[str, Mapping[int, int]]


class _Base(DeclarativeBase):
    metadata = MetaData(naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s"})


class _Meta(_Base):
    __tablename__ = "meta"
    key: Mapped[str] = mapped_column(String(32), primary_key=True)
    value: Mapped[str] = mapped_column(String(64))


class _Switch(_Base):
    __tablename__ = "switches"
    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    # P4Runtime device ids have 64 bits without a sign, SQL integers have one.
    device_id: Mapped[str] = mapped_column(String(20))
    address: Mapped[str] = mapped_column(String(255))
    from_file: Mapped[bool]


class _RemovedSwitch(_Base):
    """Switches of the topology file that an operator took out; a restart keeps them out."""

    __tablename__ = "removed_switches"
    name: Mapped[str] = mapped_column(String(63), primary_key=True)


class _Job(_Base):
    __tablename__ = "jobs"
    __table_args__ = (
        Index("uq_jobs_live_name", "name", unique=True, sqlite_where=text("live")),
        Index("uq_jobs_live_job_id", "job_id", unique=True, sqlite_where=text("live")),
        Index("uq_jobs_request_id", "request_id", unique=True, sqlite_where=text("request_id<>''")),
    )
    key: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[int]
    generation: Mapped[int]
    name: Mapped[str] = mapped_column(String(63))
    request_id: Mapped[str] = mapped_column(String(128))
    spec: Mapped[str] = mapped_column(Text)
    params: Mapped[str] = mapped_column(Text)
    created_unix_ms: Mapped[int] = mapped_column(BigInteger)
    live: Mapped[bool]


class _JobId(_Base):
    """A Job_ID that was handed out at least once. ``released``: its turn in the queue for reuse."""

    __tablename__ = "job_ids"
    __table_args__ = (Index(None, "released"),)
    job_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    generation: Mapped[int]
    released: Mapped[int | None] = mapped_column(BigInteger)


class _Block(_Base):
    """A state block of a switch that was used at least once."""

    __tablename__ = "blocks"
    __table_args__ = (
        Index(None, "switch", "released"),
        Index(None, "job_key"),
        Index("uq_blocks_job_port", "switch", "job_key", "block_key", unique=True),
    )
    switch: Mapped[str] = mapped_column(String(63), primary_key=True)
    block: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    generation: Mapped[int]
    job_key: Mapped[int | None] = mapped_column(ForeignKey("jobs.key"))
    block_key: Mapped[int | None]
    released: Mapped[int | None] = mapped_column(BigInteger)


class Store:
    """The controller's memory, on SQLite.

    Raises:
        StoreError: the URL is not ``sqlite:///PATH``, the file cannot be opened, or it holds
            another schema.
    """

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        try:
            _Base.metadata.create_all(self._engine)
            with Session(self._engine) as session, session.begin():
                _check_schema(session, url)
        except DatabaseError as error:
            self._engine.dispose()
            advice = (
                "another process holds it: end that one, or give another file"
                if "locked" in str(error.orig)
                else "give the path of a database that this user may write, such as "
                "sqlite:///ringstep.db"
            )
            raise StoreError(f"store {url}: {error.orig}; {advice}") from None

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    # -- switches ----------------------------------------------------------------------------

    def sync_switches_from_file(self, switches: Iterable[StoredSwitch]) -> list[StoredSwitch]:
        """Take the switches of a topology file in and return all switches that are kept.

        A switch that an operator added or moved keeps the operator's address, one that was
        removed stays out, and one that left the file is forgotten.
        """
        wanted = {switch.name: switch for switch in switches}
        with Session(self._engine) as session, session.begin():
            removed = set(session.scalars(select(_RemovedSwitch.name)))
            rows = {row.name: row for row in session.scalars(select(_Switch))}
            for name, row in rows.items():
                if row.from_file and name not in wanted:
                    session.delete(row)
            for name, switch in wanted.items():
                known = rows.get(name)
                if name in removed or (known is not None and not known.from_file):
                    continue
                session.merge(_switch_row(switch))
            session.flush()
            return [
                _stored_switch(row) for row in session.scalars(select(_Switch).order_by("name"))
            ]

    def put_switch(self, switch: StoredSwitch) -> None:
        """Keep a switch, or change the address of one that is kept."""
        with Session(self._engine) as session, session.begin():
            session.merge(_switch_row(switch))
            if (row := session.get(_RemovedSwitch, switch.name)) is not None:
                session.delete(row)

    def remove_switch(self, name: str) -> bool:
        """Stop to keep a switch; return whether it was kept."""
        with Session(self._engine) as session, session.begin():
            row = session.get(_Switch, name)
            if row is None:
                return False
            session.delete(row)
            session.merge(_RemovedSwitch(name=name))
            return True

    # -- jobs --------------------------------------------------------------------------------

    def register(
        self,
        *,
        name: str,
        request_id: str,
        spec: str,
        params: str,
        blocks: Mapping[str, Sequence[int]],
        now_unix_ms: int,
    ) -> tuple[StoredJob, bool]:
        """Give a job a Job_ID, a generation and its blocks; return it and whether it is new.

        ``blocks`` holds the block keys that the job needs on each switch. A request id that was
        used for the same spec and is still live returns that job.

        Raises:
            NameTakenError: a live job has this name.
            RequestIdReusedError: the request id belongs to another spec or to a released job.
            ExhaustedError: no Job_ID, block or generation is free.
        """
        with Session(self._engine) as session, session.begin():
            if request_id and (known := _by_request_id(session, request_id)) is not None:
                if not known.live:
                    raise RequestIdReusedError(
                        f"request_id {request_id!r} registered job {known.name!r}, which has been "
                        "released; use a new request_id for a new job"
                    )
                if known.spec != spec:
                    raise RequestIdReusedError(
                        f"request_id {request_id!r} was used to register job {known.name!r} with "
                        "another spec; use a new request_id, or repeat the same spec"
                    )
                return _stored_job(session, known), False
            taken = session.scalar(select(_Job).where(_Job.name == name, _Job.live))
            if taken is not None:
                raise NameTakenError(
                    f"job {name!r} is already registered as job {taken.job_id}; release it, or "
                    "take another name"
                )
            identity = _take_job_id(session)
            taken_blocks = [
                row
                for switch, keys in sorted(blocks.items())
                for row in _take_blocks(session, switch, keys, avoid_generation=None)
            ]
            generation = _next_generation(identity, taken_blocks)
            identity.generation, identity.released = generation, None
            job = _Job(
                job_id=identity.job_id,
                generation=generation,
                name=name,
                request_id=request_id,
                spec=spec,
                params=params,
                created_unix_ms=now_unix_ms,
                live=True,
            )
            session.add(job)
            session.flush()
            for row in taken_blocks:
                row.job_key, row.generation = job.key, generation
            session.flush()
            return _stored_job(session, job), True

    def place(self, job_id: int, blocks: Mapping[str, Sequence[int]]) -> StoredJob:
        """Give a live job exactly the blocks it needs now: keep, add and free as necessary.

        Raises:
            NoSuchJobError: no live job has this id.
            ExhaustedError: no block is free.
        """
        with Session(self._engine) as session, session.begin():
            job = _live_job(session, job_id)
            wanted = {(switch, key) for switch, keys in blocks.items() for key in keys}
            kept: set[tuple[str, int | None]] = set()
            turn = _next_turn(session, _Block)
            for row in session.scalars(select(_Block).where(_Block.job_key == job.key)):
                if (row.switch, row.block_key) in wanted:
                    kept.add((row.switch, row.block_key))
                else:
                    _free_block(row, turn)
            session.flush()
            for switch, keys in sorted(blocks.items()):
                missing = [key for key in keys if (switch, key) not in kept]
                for row in _take_blocks(session, switch, missing, job.generation):
                    row.job_key, row.generation = job.key, job.generation
            session.flush()
            return _stored_job(session, job)

    def release(self, ref: str | int) -> StoredJob:
        """End a job, by name or Job_ID; its Job_ID and blocks join the queue for reuse.

        Raises:
            NoSuchJobError: no such live job.
        """
        with Session(self._engine) as session, session.begin():
            job = _live_job(session, ref)
            stored = _stored_job(session, job)
            job.live = False
            identity = session.get_one(_JobId, job.job_id)
            identity.released = _next_turn(session, _JobId)
            turn = _next_turn(session, _Block)
            for row in session.scalars(select(_Block).where(_Block.job_key == job.key)):
                _free_block(row, turn)
            return stored

    def get(self, ref: str | int) -> StoredJob:
        """Return a live job by name or Job_ID.

        Raises:
            NoSuchJobError: no such live job.
        """
        with Session(self._engine) as session, session.begin():
            return _stored_job(session, _live_job(session, ref))

    def live_jobs(self, after: int = 0, limit: int | None = None) -> list[StoredJob]:
        """Return live jobs with a Job_ID above ``after`` in ascending order, at most ``limit``."""
        query = select(_Job).where(_Job.live, _Job.job_id > after).order_by(_Job.job_id)
        with Session(self._engine) as session, session.begin():
            jobs = list(session.scalars(query.limit(limit)))
            return [_stored_job(session, job) for job in jobs]


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite":
            raise StoreError(
                f"store {parsed.render_as_string()}: {parsed.get_backend_name()} is not "
                "supported; use sqlite:///PATH"
            )
        if parsed.query or parsed.host:
            raise StoreError(f"store {url!r}: takes no host and no options; use sqlite:///PATH")
        engine = create_engine(parsed, **_pool_arguments(parsed))
    except (ArgumentError, NoSuchModuleError):
        raise StoreError(
            f"store {url!r} is not a database URL; write for example sqlite:///ringstep.db"
        ) from None
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _pool_arguments(url: URL) -> dict[str, Any]:
    if url.database in {None, "", ":memory:"}:
        # One connection for all threads: a second one would see another, empty database.
        return {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    return {"connect_args": {"timeout": _BUSY_TIMEOUT_S}}


def _on_connect(connection: Any, _record: object) -> None:
    # SQLAlchemy starts transactions itself (_on_begin); the driver must not.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _on_begin(connection: Connection) -> None:
    # The write lock before the first read: what was read free stays free until the commit.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _check_schema(session: Session, url: str) -> None:
    row = session.get(_Meta, "schema")
    if row is None:
        session.add(_Meta(key="schema", value=str(SCHEMA_VERSION)))
    elif row.value != str(SCHEMA_VERSION):
        raise StoreError(
            f"store {url}: written with schema {row.value}, this controller reads schema "
            f"{SCHEMA_VERSION}; use the controller that wrote it, or another file"
        )


def _switch_row(switch: StoredSwitch) -> _Switch:
    return _Switch(
        name=switch.name,
        device_id=str(switch.device_id),
        address=switch.address,
        from_file=switch.from_file,
    )


def _stored_switch(row: _Switch) -> StoredSwitch:
    return StoredSwitch(row.name, int(row.device_id), row.address, row.from_file)


def _by_request_id(session: Session, request_id: str) -> _Job | None:
    return session.scalar(select(_Job).where(_Job.request_id == request_id))


def _live_job(session: Session, ref: str | int) -> _Job:
    column = _Job.job_id if isinstance(ref, int) else _Job.name
    job = session.scalar(select(_Job).where(column == ref, _Job.live))
    if job is None:
        what = f"Job_ID {ref}" if isinstance(ref, int) else f"name {ref!r}"
        raise NoSuchJobError(f"no live job has {what}; list the live jobs to see what there is")
    return job


def _stored_job(session: Session, job: _Job) -> StoredJob:
    blocks: dict[str, dict[int, int]] = {}
    rows = select(_Block).where(_Block.job_key == job.key).order_by(_Block.switch, _Block.block_key)
    for row in session.scalars(rows):
        assert row.block_key is not None, "a block in use has a key"
        blocks.setdefault(row.switch, {})[row.block_key] = row.block
    return StoredJob(
        job_id=job.job_id,
        generation=job.generation,
        name=job.name,
        request_id=job.request_id,
        spec=job.spec,
        params=job.params,
        created_unix_ms=job.created_unix_ms,
        live=job.live,
        blocks=blocks,
    )


def _take_job_id(session: Session) -> _JobId:
    highest = session.scalar(select(func.max(_JobId.job_id))) or 0
    if highest < MAX_JOBS:
        row = _JobId(job_id=highest + 1, generation=0, released=None)
        session.add(row)
        return row
    oldest = session.scalar(
        select(_JobId)
        .where(_JobId.released.is_not(None))
        .order_by(_JobId.released, _JobId.job_id)
        .limit(1)
    )
    if oldest is None:
        raise ExhaustedError(f"all {MAX_JOBS} Job_IDs are in use; release a job first")
    return oldest


def _take_blocks(
    session: Session, switch: str, keys: Sequence[int], avoid_generation: int | None
) -> list[_Block]:
    """Return one free block per key; ``avoid_generation`` must not be what a block had last."""
    highest = session.scalar(select(func.max(_Block.block)).where(_Block.switch == switch))
    fresh = 0 if highest is None else highest + 1
    rows: list[_Block] = []
    for key in keys[: MAX_BLOCKS - fresh]:
        row = _Block(switch=switch, block=fresh + len(rows), generation=0, block_key=key)
        session.add(row)
        rows.append(row)
    missing = keys[len(rows) :]
    if missing:
        query = select(_Block).where(_Block.switch == switch, _Block.released.is_not(None))
        if avoid_generation is not None:
            query = query.where(_Block.generation != avoid_generation)
        query = query.order_by(_Block.released, _Block.block).limit(len(missing))
        reused = list(session.scalars(query))
        if len(reused) < len(missing):
            raise ExhaustedError(
                f"switch {switch!r} has no {len(keys)} free state blocks of {MAX_BLOCKS}; release "
                "a job first, or register with scope SWITCH (one block per switch)"
            )
        for row, key in zip(reused, missing, strict=True):
            row.block_key, row.released = key, None
        rows += reused
    return rows


def _free_block(row: _Block, turn: int) -> None:
    row.job_key = row.block_key = None
    row.released = turn


def _next_generation(identity: _JobId, blocks: Iterable[_Block]) -> int:
    stale = {block.generation for block in blocks} | {identity.generation}
    for distance in range(1, MAX_GENERATION + 1):
        candidate = (identity.generation + distance - 1) % MAX_GENERATION + 1
        if candidate not in stale:
            return candidate
    raise ExhaustedError(
        f"the free state blocks carry all {MAX_GENERATION} generations; register with scope SWITCH "
        "(one block per switch)"
    )


def _next_turn(session: Session, table: type[_JobId | _Block]) -> int:
    return (session.scalar(select(func.max(table.released))) or 0) + 1
