"""A PostgreSQL server of one's own: on loopback, in a folder, killed and started at will."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from free_ports import free_port

from faultrig.processes import START_S, RigError

_BINARIES = "/usr/lib/postgresql"
_USERS = ("postgres", "nobody")
"""initdb refuses to run as root; one of these runs it then."""


def binaries() -> Path | None:
    """Return the folder of initdb and postgres, newest version first, or None."""
    found = sorted(
        Path(_BINARIES).glob("*/bin"),
        key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))],
    )
    if found:
        return found[-1]
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb and shutil.which("postgres") else None


def why_not() -> str:
    """Return why no server can be run here, and what would help; empty where one can."""
    if binaries() is None:
        return "PostgreSQL is not installed (apt-get install postgresql)"
    if os.geteuid() == 0 and _user() is None:
        return f"root may not run PostgreSQL, and there is no user {' or '.join(_USERS)}"
    return ""


def _user() -> pwd.struct_passwd | None:
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


@functools.cache
def _cluster() -> Path:
    """Make a cluster of its own for no server, which those of all servers are copies of."""
    home = Path("/tmp") / f"ringstep-pg-{os.getpid()}-{time.monotonic_ns()}"
    home.mkdir(mode=0o700)
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    user = _user() if os.geteuid() == 0 else None
    if user:
        os.chown(home, user.pw_uid, user.pw_gid)
    initdb = binaries() / "initdb"  # type: ignore[operator]
    _run(
        [*_as(user), str(initdb), "-D", str(home / "data"), "-U", "ringstep", "-A", "trust",
         "-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=1"]
    )  # fmt: skip
    return home / "data"


def copy_cluster(to: Path) -> None:
    """Make a cluster whose superuser is ``ringstep``, trusted, of the user that runs servers here.

    Raises:
        RigError: it cannot be made.
    """
    _run(["cp", "-a", str(_cluster()), str(to)])


def _as(user: pwd.struct_passwd | None) -> list[str]:
    if user is None:
        return []
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        raise RigError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


class PostgresServer:
    """Listens on 127.0.0.1 and a socket in its folder; ``url`` is for SQLAlchemy with psycopg."""

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        if reason := why_not():
            raise RigError(reason)
        # Parents of pytest's folders are closed to other users.
        self._home = Path("/tmp") / f"ringstep-pg-{os.getpid()}-{time.monotonic_ns()}"
        self._home.mkdir(mode=0o700)
        self._data = self._home / "data"
        self._log = folder / "postgres.log"
        self._log.touch()
        self._bin = binaries()
        self._user = _user() if os.geteuid() == 0 else None
        if self._user:
            os.chown(self._home, self._user.pw_uid, self._user.pw_gid)
        self.port = free_port()
        self.url = f"postgresql+psycopg://ringstep@127.0.0.1:{self.port}/ringstep"
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None
        copy_cluster(self._data)

    def start(self) -> None:
        """Start it, or start it again after :meth:`kill`, and wait until it takes connections.

        Raises:
            RigError: it ended, or takes no connection in time.
        """
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._home),
            "fsync": "on" if self._fsync else "off",
            "max_connections": "60",
        }
        command = [
            *_as(self._user), str(self._bin / "postgres"), "-D", str(self._data),  # type: ignore[operator]
            "-p", str(self.port), *(f"-c{key}={value}" for key, value in options.items()),
        ]  # fmt: skip
        deadline = time.monotonic() + START_S
        while self._process is None or not self._create_database():
            if time.monotonic() > deadline:
                raise RigError(f"PostgreSQL did not start; see {self._log}")
            # Ends at once while a process of the server that was killed is still going away.
            if self._process is None or self._process.poll() is not None:
                with self._log.open("ab") as log:
                    self._process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd="/",
                        start_new_session=True,
                    )
            time.sleep(0.02)

    def _create_database(self) -> bool:
        import psycopg

        try:
            with self._connect("postgres") as connection:
                known = connection.execute("SELECT 1 FROM pg_database WHERE datname = 'ringstep'")
                if known.fetchone() is None:
                    connection.execute("CREATE DATABASE ringstep")
            return True
        except psycopg.Error:
            return False

    def kill(self) -> None:
        """kill -9 all its processes, as a machine that loses power would."""
        if self._process is None:
            return
        pids = _family(self._process.pid)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Let the server say nothing inside the context, with all its connections open."""
        assert self._process is not None, "the server runs"
        pids = _family(self._process.pid)
        try:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def drop_connections(self, pid: int) -> int:
        """End all connections of one client process, and return how many there were.

        What the server does by itself once keepalives of a client that hangs are not answered.
        """
        with self._connect("postgres") as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE client_port = ANY(%s) AND pid <> pg_backend_pid()",
                [_local_ports(pid)],
            ).fetchall()
        return len(ended)

    def _connect(self, database: str) -> Any:
        import psycopg

        return psycopg.connect(
            f"host=127.0.0.1 port={self.port} user=ringstep dbname={database}",
            autocommit=True,
            connect_timeout=2,
        )

    def close(self) -> None:
        """Kill it and remove its folder."""
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def size_bytes(self) -> int:
        """Bytes of the database ``ringstep``."""
        with self._connect("ringstep") as connection:
            row = connection.execute("SELECT pg_database_size('ringstep')").fetchone()
        return int(row[0]) if row else 0


def _local_ports(pid: int) -> list[int]:
    """Return the local ports of a process's TCP connections over IPv4."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(link.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    ports = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] in inodes:
            ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


def _family(leader: int) -> list[int]:
    """Return ``leader`` and its children."""
    found = [leader]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # Fields after the name: state, parent. Backends leave the session, so only that tells.
        if int(fields[1]) == leader:
            found.append(int(path.parent.name))
    return found
