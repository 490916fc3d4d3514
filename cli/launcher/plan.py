"""What is to be done, checked before anything is started."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from ringstep.cli.launcher.fixedtable import digest
from ringstep.cli.launcher.place import Place
from ringstep.cli.launcher.say import LaunchError
from ringstep.controller.jobs import NAME, SpecError, spec_from_proto
from ringstep.controller.options import Connection
from ringstep.controller.v1 import jobs_pb2

POLICIES: Final = ("nccl", "fixed", "autoccl", "dynamic")
COORDINATOR_PORT: Final = 9571
NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
_SHM_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}")
_FACTORY: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LOCAL_RANKS: Final = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_HEX: Final = re.compile(r"(?:0x)?([0-9A-Fa-f]{1,16})")


class Part(StrEnum):
    """What training can do without."""

    CONTROLLER = "controller"
    TUNER = "tuner"


@dataclass(frozen=True, slots=True)
class Registration:
    """How to talk to the controller of the job.

    ``spec`` None: the job is only asked for, by its name. ``others_register``: another launcher
    registers it, perhaps later than this one asks.
    """

    connection: Connection
    name: str
    request_id: str
    lease_s: int
    spec: jobs_pb2.JobSpec | None
    others_register: bool = False


@dataclass(frozen=True, slots=True)
class Tuner:
    """What the coordinator of this node is told.

    ``meeting``: HOST:PORT where node 0 listens and the others connect; empty with one node.
    ``digest``: of the static table; 0 for none. ``vouched``: that, where every node is known to
    have it; else 0.
    ``coordinates``: False where another launcher of this node starts the coordinator. ``options``:
    more of its options.
    """

    policy: str
    folder: Path
    token: int
    meeting: str
    digest: int
    vouched: int
    coordinates: bool
    options: tuple[str, ...] = ()

    def file(self, job: str) -> Path:
        """Return the job's shared-memory file."""
        return self.folder / f"{job}.shm"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a launch needs to know; a part that is None is not wanted."""

    job: str
    place: Place
    program: str
    command: tuple[str, ...]
    registration: Registration | None
    tuner: Tuner | None
    required: frozenset[Part]


def checked_name(job: str, *, at_controller: bool) -> str:
    """Return a job's name that the shared-memory file, and the controller, can have.

    Raises:
        LaunchError: it is none.
    """
    if not _SHM_NAME.fullmatch(job) or (at_controller and not NAME.match(job)):
        raise LaunchError(
            f"--job {job!r}: start with a letter, then letters, digits, '_', '-' or '.', at most "
            "63 characters"
        )
    return job


def find_program(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the path of the program that a command names.

    Raises:
        LaunchError: no command, or none that can be run; the status is that of a shell.
    """
    if not command or not command[0]:
        raise LaunchError(
            "no command; write it after --, such as: ringstep run --job a -- torchrun …"
        )
    name = command[0]
    found = shutil.which(name, path=env.get("PATH", os.defpath))
    if found is not None:
        return found
    if os.sep in name and Path(name).exists():
        why = "is a folder" if Path(name).is_dir() else "is not executable"
        raise LaunchError(f"{name}: {why}", NOT_EXECUTABLE)
    where = "no such file" if os.sep in name else "not found in $PATH"
    raise LaunchError(f"{name}: {where}", NOT_FOUND)


def split_hosts(option: str, text: str) -> list[str]:
    """Return the hosts of ``H1,H2,...``.

    Raises:
        LaunchError: a name between the commas is missing.
    """
    hosts = [host.strip() for host in text.split(",")]
    if not all(hosts):
        raise LaunchError(f"{option} {text!r}: a name is missing; write H1,H2,...")
    return hosts


def read_rings(texts: Sequence[str]) -> list[list[str]]:
    """Return rings from ``H1,H2,...`` each, or files with one ring per line.

    A ring has two hosts at least, so a text without a comma names a file.

    Raises:
        LaunchError: a file that cannot be read, or a line that is no ring.
    """
    rings: list[list[str]] = []
    for text in texts:
        if "," in text:
            rings.append(split_hosts("--ring", text))
            continue
        try:
            lines = Path(text).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise LaunchError(
                f"--ring {text}: neither H1,H2,... nor a file that can be read ({reason})"
            ) from None
        before = len(rings)
        for number, line in enumerate(lines, start=1):
            hosts = line.partition("#")[0].replace(",", " ").split()
            if len(hosts) == 1:
                raise LaunchError(
                    f"{text}:{number}: one host; a line holds all hosts of a ring, in its order"
                )
            if hosts:
                rings.append(hosts)
        if len(rings) == before:
            raise LaunchError(f"{text}: no ring in it; write the hosts of one in a line")
    return rings


def check_spec(spec: jobs_pb2.JobSpec) -> None:
    """Refuse a job that no controller would take, before anything is started.

    Raises:
        LaunchError: a field is missing or out of range.
    """
    try:
        spec_from_proto(spec)
    except SpecError as error:
        raise LaunchError(f"the job cannot be registered: {error}") from None


def check_policy(wanted: str) -> int:
    """Check a policy and the file that it names; return the digest of its static table, 0 for none.

    Raises:
        LaunchError: no such policy, or a file that cannot be used.
    """
    name, colon, argument = wanted.partition(":")
    if name not in POLICIES:
        if _FACTORY.fullmatch(wanted):
            return 0  # A module of the user's own: the coordinator finds out.
        raise LaunchError(
            f"--policy {wanted!r}: choose {', '.join(POLICIES)} (fixed:FILE), or module:factory"
        )
    if name == "fixed":
        if not argument:
            raise LaunchError("--policy fixed: name the table, fixed:FILE")
        return digest(Path(argument))
    if name == "autoccl" and argument:
        digest(Path(argument))  # A table to start from; it is not the static one.
    if name == "nccl" and colon:
        raise LaunchError(f"--policy {wanted!r}: nccl takes nothing after a colon")
    return 0


def parse_required(text: str) -> frozenset[Part]:
    """Return the parts of ``controller,tuner``.

    Raises:
        LaunchError: a word that is none.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in set(Part)]
    if unknown:
        raise LaunchError(
            f"--require {unknown[0]!r}: write controller, tuner, or both with a comma"
        )
    return frozenset(map(Part, words))


def parse_options(text: str) -> tuple[str, ...]:
    """Return the words of a text, quoted as for a shell.

    Raises:
        LaunchError: a quote that has no end.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise LaunchError(f"--coordinator-options {text!r}: {error}") from None


def parse_hex(what: str, text: str) -> int:
    """Return a number of 64 bits that is not zero.

    Raises:
        LaunchError: it is none.
    """
    found = _HEX.fullmatch(text)
    if found is None or int(found[1], 16) == 0:
        raise LaunchError(f"{what} {text!r}: 1 to 16 hexadecimal digits, not all zero")
    return int(found[1], 16)


def run_token(given: str, env: Mapping[str, str]) -> str:
    """Return what names this run, the same for all its launchers; empty where nothing does."""
    if given:
        return given
    if "SLURM_STEP_ID" in env and "SLURM_JOB_ID" in env:
        restart = env.get("SLURM_RESTART_COUNT", "0")
        return f"slurm-{env['SLURM_JOB_ID']}.{env['SLURM_STEP_ID']}-{restart}"
    return ""


def request_id(job: str, token: str) -> str:
    """Return the request id of a registration: without a token one of its own.

    A token may be a secret among launchers, and ids are in the controller's log.
    """
    named = hashlib.sha256(token.encode()).hexdigest()[:16] if token else secrets.token_hex(8)
    return f"run-{job}-{named}"


def shm_token(job: str, token: str, meeting: str, env: Mapping[str, str]) -> int:
    """Return what tells this run's shared-memory file, and its coordinators, from another's.

    Coordinators of several nodes know one another by it, so it has to be the same on all of them:
    without a run token it follows from where they meet. Several nodes in a network that others are
    in need a run token that those cannot guess.

    Raises:
        LaunchError: RINGSTEP_SHM_TOKEN is set to something else than a token.
    """
    own = env.get("RINGSTEP_SHM_TOKEN", "")
    if own:
        return parse_hex("RINGSTEP_SHM_TOKEN", own)
    token = token or meeting
    if not token and any(name in env for name in _LOCAL_RANKS):
        # Launchers side by side have one parent, and have to find the same file.
        parent = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8", errors="replace")
        token = f"{os.getppid()}-{parent.rpartition(')')[2].split()[19]}"
    if not token:
        return secrets.randbits(63) | 1
    named = hashlib.sha256(f"{job}\0{token}".encode()).digest()
    return int.from_bytes(named[:8], "big") >> 1 | 1
