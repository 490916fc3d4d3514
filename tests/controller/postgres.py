"""A private PostgreSQL server for tests: on a socket in a folder of its own, gone afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from faultrig.database import copy_cluster

SUPERUSER = "ringstep"
PATIENCE_S = 60.0
HOW = "install it (Debian: apt-get install postgresql; pip install 'ringstep[postgres]')"


def _binary(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = str(found[-1]) if found else shutil.which(name)
    if path is None:
        pytest.skip(f"PostgreSQL's {name} is not installed; {HOW}")
    return path


def _identity() -> dict[str, Any]:
    """Return who runs the server: not root, which it refuses."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody'")


class PostgresServer:
    """One server; a context manager. ``durable`` keeps what was committed over a power loss."""

    def __init__(self, *, durable: bool = False) -> None:
        pytest.importorskip("psycopg", reason=f"psycopg is not installed; {HOW}")
        _binary("initdb")
        self._postgres = _binary("postgres")
        self._durable = durable
        self._databases = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        # Not pytest's folder: only root may look into that, and sockets have short names.
        self.folder = Path(tempfile.mkdtemp(prefix="ringstep-pg-"))
        identity = self._identity = _identity()
        if identity:
            os.chown(self.folder, identity["user"], identity["group"])
        try:
            copy_cluster(self.folder / "data")
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server and wait until it takes connections; after a kill too."""
        deadline = time.monotonic() + PATIENCE_S
        options = [
            "listen_addresses=", f"unix_socket_directories={self.folder}", "shared_buffers=16MB",
            "max_connections=60", f"fsync={'on' if self._durable else 'off'}",
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            while not self._answers():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"PostgreSQL did not start:\n{self.log()}")
                if self._process is None or self._process.poll() is not None:
                    self._process = subprocess.Popen(
                        [self._postgres, "-D", str(self.folder / "data"),
                         *(part for option in options for part in ("-c", option))],
                        stdout=log, stderr=log, cwd=self.folder, **self._identity,
                    )  # fmt: skip
                time.sleep(0.02)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return False
        try:
            self.execute("SELECT 1")
        except Exception:
            return False
        return True

    def processes(self) -> list[int]:
        """Return the process ids of the server and of its children."""
        if self._process is None:
            return []
        found = [self._process.pid]
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError, IndexError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == self._process.pid:
                    found.append(int(stat.parent.name))
        return found

    def signal(self, number: int) -> None:
        """Send a signal to the server and all its children."""
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def kill(self) -> None:
        """End the server like a power loss does: no process of it says goodbye."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(
            host=str(self.folder), user=SUPERUSER, dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(statement.encode())

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        self._databases += 1
        name = f"store{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        return f"postgresql://{SUPERUSER}@/{name}?host={self.folder}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server that all tests of a worker share, each with a database of its own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of an empty database on PostgreSQL."""
    return postgres_server.new_database()


@pytest.fixture
def own_postgres() -> Iterator[Callable[[], PostgresServer]]:
    """Start a durable server that the test may kill."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(PostgresServer(durable=True))


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store, on each kind of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url
