"""The controller's durable memory: jobs, Job_IDs, generations, state blocks, switches, links.

The store decides nothing about jobs: the :mod:`ledger <ringstep.controller.ledger>` does, and the
store writes its changes, many in one transaction. Every transaction that writes first looks
whether the caller still leads: of several controllers on one store only the one whose *epoch* is
the store's can change anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.engine import Connection

from ringstep.controller.batch import Batch, read_blocks
from ringstep.controller.database import (
    BLOCKS,
    DOWN_LINKS,
    DRAINED_SWITCHES,
    JOB_IDS,
    JOBS,
    LEADER,
    LIVE,
    REMOVED_SWITCHES,
    SCHEMA_VERSION,
    SWITCHES,
    Database,
)
from ringstep.controller.facts import (
    Change,
    DeposedError,
    ExhaustedError,
    NameTakenError,
    NoSuchJobError,
    PastBlock,
    PastJobId,
    PastRequest,
    QuotaError,
    RequestIdReusedError,
    Snapshot,
    StaleGenerationError,
    StoredJob,
    StoredSwitch,
    StoreError,
)
from ringstep.controller.journal import Journal

__all__ = [
    "Change",
    "DeposedError",
    "ExhaustedError",
    "Journal",
    "Leader",
    "NameTakenError",
    "NoSuchJobError",
    "QuotaError",
    "RequestIdReusedError",
    "SCHEMA_VERSION",
    "Snapshot",
    "StaleGenerationError",
    "Store",
    "StoreError",
    "StoredJob",
    "StoredSwitch",
]


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, or led last: the address of its API."""

    epoch: int
    address: str


class Store:
    """The controller's memory, on SQLite or PostgreSQL; its methods may be called in any thread.

    Raises:
        StoreError: the URL is neither ``sqlite:///PATH`` nor ``postgresql://USER@HOST/DATABASE``,
            the database cannot be opened, or it holds another schema. Every other method raises it
            too where the database fails.
    """

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self._fence = select(LEADER.c.epoch, LEADER.c.address)
        if self.database.is_postgres:
            # Until this transaction ends, no other controller can take over.
            self._fence = self._fence.with_for_update(read=True)

    @property
    def label(self) -> str:
        """The store's name for messages: its URL without password."""
        return self.database.label

    def close(self) -> None:
        """Close all connections."""
        self.database.close()

    def interrupt(self) -> None:
        """Make what waits for the database's server fail, from another thread.

        A SQLite store has none to wait for: nothing happens.
        """
        self.database.interrupt()

    # -- leadership --------------------------------------------------------------------------

    def take_over(self, address: str) -> int:
        """Become the one who may write, and return the new epoch.

        What the earlier leader is just writing is waited for; what it writes later fails.
        """
        with self.database.transaction() as connection:
            connection.execute(update(LEADER).values(epoch=LEADER.c.epoch + 1, address=address))
            return int(connection.execute(select(LEADER.c.epoch)).scalar_one())

    def step_down(self, epoch: int) -> None:
        """Say that nobody leads any more, unless another controller has taken over."""
        with self.database.transaction() as connection:
            connection.execute(update(LEADER).where(LEADER.c.epoch == epoch).values(address=""))

    def settle(self, epoch: int) -> None:
        """Return when nothing that this term began to write can still take effect.

        Raises:
            DeposedError: another controller has taken over since ``epoch``.
        """
        with self._leading(epoch) as connection:
            # Waits for every transaction that has looked at the row and not ended. It writes, so
            # that a store that can only be read does not pass for one that works.
            connection.execute(update(LEADER).values(epoch=LEADER.c.epoch))

    def leader(self) -> Leader:
        """Return who leads, or led last; the address is empty where nobody does."""
        with self.database.reading() as connection:
            return Leader(*connection.execute(select(LEADER.c.epoch, LEADER.c.address)).one())

    @contextmanager
    def _leading(self, epoch: int) -> Iterator[Connection]:
        with self.database.transaction() as connection:
            current, address = connection.execute(self._fence).one()
            if current != epoch:
                raise DeposedError(
                    f"store {self.label}: another controller leads now"
                    f"{f' ({address})' if address else ''}, in term {current} after this one's "
                    f"{epoch}; nothing was changed, ask that one"
                )
            yield connection

    # -- jobs --------------------------------------------------------------------------------

    def load(self) -> Snapshot:
        """Return all that is known of jobs."""
        with self.database.reading() as connection:
            jobs = connection.execute(select(JOBS).where(text(LIVE)).order_by(JOBS.c.job_id))
            return Snapshot(
                jobs=tuple(self._stored_job(row) for row in jobs),
                job_ids=tuple(PastJobId(*row) for row in connection.execute(_PAST_JOB_IDS)),
                blocks=tuple(PastBlock(*row) for row in connection.execute(_PAST_BLOCKS)),
                requests=tuple(PastRequest(*row) for row in connection.execute(_PAST_REQUESTS)),
                turn=max(
                    connection.scalar(select(func.max(table.c.turn))) or 0
                    for table in (JOBS, JOB_IDS, BLOCKS)
                ),
            )

    def _stored_job(self, row: Any) -> StoredJob:
        try:
            blocks = read_blocks(row.blocks)
        except (ValueError, AttributeError):
            raise StoreError(
                f"store {self.label}: the blocks of job {row.name!r} ({row.job_id}) are damaged; "
                "restore the store from a backup, or delete the row and register the job again"
            ) from None
        return StoredJob(
            job_id=row.job_id,
            generation=row.generation,
            name=row.name,
            tenant=row.tenant,
            owner=row.owner,
            request_id=row.request_id,
            spec=bytes(row.spec),
            params=bytes(row.params),
            paths=row.paths,
            lease_s=row.lease_s,
            created_unix_ms=row.created_unix_ms,
            blocks=blocks,
        )

    def commit(self, epoch: int, changes: Sequence[Change]) -> None:
        """Write changes in one transaction: all of them, or none.

        Raises:
            DeposedError: another controller has taken over since ``epoch``.
        """
        batch = Batch(changes)
        with self._leading(epoch) as connection:
            batch.write(connection)

    # -- switches and links ------------------------------------------------------------------

    def sync_switches_from_file(
        self, epoch: int, switches: Iterable[StoredSwitch]
    ) -> list[StoredSwitch]:
        """Take the switches of a topology file in and return all switches that are kept, by name.

        A switch that an operator added or moved keeps the operator's address, one that was
        removed stays out, and one that left the file is forgotten.

        Raises:
            DeposedError: another controller has taken over since ``epoch``.
        """
        wanted = {switch.name: switch for switch in switches}
        with self._leading(epoch) as connection:
            removed = set(connection.scalars(select(REMOVED_SWITCHES.c.name)))
            kept = {row.name: _stored_switch(row) for row in connection.execute(select(SWITCHES))}
            for name, known in kept.copy().items():
                if known.from_file and wanted.get(name) != known:
                    connection.execute(delete(SWITCHES).where(SWITCHES.c.name == name))
                    del kept[name]
            for name in wanted.keys() - kept.keys() - removed:
                connection.execute(insert(SWITCHES), _switch_row(wanted[name]))
                kept[name] = wanted[name]
        return [kept[name] for name in sorted(kept)]

    def put_switch(self, epoch: int, switch: StoredSwitch) -> None:
        """Keep a switch, or change the address of one that is kept.

        Raises:
            DeposedError: another controller has taken over since ``epoch``.
        """
        with self._leading(epoch) as connection:
            for table in (SWITCHES, REMOVED_SWITCHES):
                connection.execute(delete(table).where(table.c.name == switch.name))
            connection.execute(insert(SWITCHES), _switch_row(switch))

    def remove_switch(self, epoch: int, name: str) -> bool:
        """Stop to keep a switch; return whether it was kept.

        Raises:
            DeposedError: another controller has taken over since ``epoch``.
        """
        with self._leading(epoch) as connection:
            if not connection.execute(delete(SWITCHES).where(SWITCHES.c.name == name)).rowcount:
                return False
            connection.execute(insert(REMOVED_SWITCHES), {"name": name})
            return True

    def set_drained(self, epoch: int, name: str, drained: bool) -> None:
        """Keep whether new paths shall go round a switch.

        Raises:
            DeposedError: another controller has taken over since ``epoch``.
        """
        with self._leading(epoch) as connection:
            _put_or_remove(connection, DRAINED_SWITCHES, {"name": name}, drained)

    def drained(self) -> frozenset[str]:
        """Return the names of the drained switches."""
        with self.database.reading() as connection:
            return frozenset(connection.scalars(select(DRAINED_SWITCHES.c.name)))

    def set_link(self, epoch: int, switch: str, port: int, up: bool) -> None:
        """Keep whether the link at a switch's port is up.

        Raises:
            DeposedError: another controller has taken over since ``epoch``.
        """
        with self._leading(epoch) as connection:
            _put_or_remove(connection, DOWN_LINKS, {"switch": switch, "port": port}, not up)

    def down_links(self) -> frozenset[tuple[str, int]]:
        """Return (switch, port) of the links that are down."""
        with self.database.reading() as connection:
            rows = connection.execute(select(DOWN_LINKS.c.switch, DOWN_LINKS.c.port))
            return frozenset((row.switch, row.port) for row in rows)


_PAST_JOB_IDS = select(JOB_IDS.c.job_id, JOB_IDS.c.generation, JOB_IDS.c.released_unix_ms).order_by(
    JOB_IDS.c.turn
)
_PAST_BLOCKS = select(BLOCKS.c.switch, BLOCKS.c.block, BLOCKS.c.generation).order_by(
    BLOCKS.c.turn, BLOCKS.c.switch, BLOCKS.c.block
)
_PAST_REQUESTS = (
    select(JOBS.c.request_id, JOBS.c.name).where(text(f"NOT {LIVE}")).order_by(JOBS.c.turn)
)


def _put_or_remove(connection: Connection, table: Any, row: dict[str, Any], put: bool) -> None:
    same = [table.c[column] == value for column, value in row.items()]
    connection.execute(delete(table).where(*same))
    if put:
        connection.execute(insert(table), row)


def _switch_row(switch: StoredSwitch) -> dict[str, Any]:
    return {
        "name": switch.name,
        "device_id": str(switch.device_id),
        "address": switch.address,
        "from_file": switch.from_file,
    }


def _stored_switch(row: Any) -> StoredSwitch:
    return StoredSwitch(row.name, int(row.device_id), row.address, row.from_file)
