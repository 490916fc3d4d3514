"""The job's shared-memory file on one node: decisions out, telemetry in (docs/hostlib-shm.md).

The coordinator or the launcher creates the file before the ranks start; the NCCL plugin in every
rank maps it. Reading and writing bytes is Python's; what needs a compare-and-swap (announcing and
committing an epoch) goes through ``libringstep-host.so``, which
:mod:`ringstep.hostlib.native.build` builds on first use.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import numpy as np

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.native.build import build
from ringstep.hostlib.shm_layout import (
    Algo,
    Clock,
    Collective,
    CommState,
    EntryState,
    Once,
    Proto,
    Reason,
    RecordFlag,
    RecordKind,
    Scope,
    SlotState,
)

__all__ = [
    "CommView",
    "Commit",
    "Decision",
    "DecisionTable",
    "FenceMember",
    "RankView",
    "Record",
    "RingReader",
    "ShmError",
    "ShmFile",
    "Stalls",
    "alive",
    "default_path",
    "size_class",
]

_JOB: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_MASK: Final = (1 << 64) - 1
_Known = TypeVar("_Known", Collective, Algo, Proto)


class ShmError(RuntimeError):
    """The file is missing, of another kind, or in use; the message says what would be right."""


def default_path(job: str = "default", directory: Path | None = None) -> Path:
    """Return where the plugin looks for the job's file.

    Args:
        job: as RINGSTEP_JOB: letters, digits, ``._-``, at most 64, not starting with a dot.
        directory: as RINGSTEP_SHM_DIR; by default that variable, else the user's in /dev/shm.

    Raises:
        ShmError: the job's name is none.
    """
    if not _JOB.fullmatch(job):
        raise ShmError(f"job {job!r}: letters, digits, '.', '_', '-' only, at most 64 of them")
    if directory is None:
        named = os.environ.get("RINGSTEP_SHM_DIR")
        directory = Path(named) if named else Path(f"/dev/shm/ringstep-{os.geteuid()}")
    return directory / f"{job}.shm"


def size_class(n_bytes: int) -> int:
    """Return the class of a collective's size: floor(log2), 0 for nothing and for one byte."""
    return max(n_bytes.bit_length() - 1, 0)


@dataclass(frozen=True)
class Decision:
    """What to do for one collective and size class.

    ``n_channels`` and ``chunk_bytes`` of 0 keep NCCL's choice. ``n_threads`` is for the record: no
    tuner can set it. ``measured_us`` is what the policy expects, 0 where it does not know.
    """

    algo: Algo
    proto: Proto
    n_channels: int = 0
    chunk_bytes: int = 0
    n_threads: int = 0
    state: EntryState = EntryState.NONE
    measured_us: int = 0


class DecisionTable:
    """Decisions by collective and size class; what is not set leaves NCCL alone."""

    def __init__(self, entries: np.ndarray[Any, Any] | None = None) -> None:
        shape = (lay.COLLECTIVES, lay.SIZE_CLASSES)
        self.entries = np.zeros(shape, lay.ENTRY) if entries is None else entries

    def set(self, collective: Collective, classes: range | int, decision: Decision) -> None:
        """Decide for the size classes given.

        Raises:
            ValueError: a value that no NCCL takes, or Tree for anything but AllReduce.
        """
        if decision.algo is Algo.TREE and collective is not Collective.ALL_REDUCE:
            raise ValueError(f"TREE for {collective.name}: NCCL has it for ALL_REDUCE only")
        if not 0 <= decision.n_channels <= 64:
            raise ValueError(f"n_channels {decision.n_channels}: 0 (NCCL's choice) to 64")
        for which in (classes,) if isinstance(classes, int) else classes:
            if not 0 <= which < lay.SIZE_CLASSES:
                raise ValueError(f"size class {which}: 0 to {lay.SIZE_CLASSES - 1}")
            self.entries[collective, which] = (
                decision.algo, decision.proto, decision.n_channels, lay.ENTRY_VALID,
                decision.chunk_bytes, decision.n_threads, decision.state, 0, decision.measured_us,
            )  # fmt: skip

    def get(self, collective: Collective, which: int) -> Decision | None:
        """Return the decision for a size class, None where NCCL is left alone or it is garbage."""
        entry = self.entries[collective, which]
        if entry["flags"] != lay.ENTRY_VALID:
            return None
        try:
            return Decision(
                Algo(int(entry["algo"])), Proto(int(entry["proto"])), int(entry["n_channels"]),
                int(entry["chunk_bytes"]), int(entry["n_threads"]),
                EntryState(int(entry["state"])), int(entry["measured_us"]),
            )  # fmt: skip
        except ValueError:
            return None

    def digest(self, epoch: int) -> int:
        """Return the digest over epoch and entries that the plugin checks (never 0)."""
        found = _mix(0x52494E4753544550, epoch)
        for word in self.entries.reshape(-1).view("u8").tolist():
            found = _mix(found, word)
        return found or 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecisionTable) and bool((self.entries == other.entries).all())

    __hash__ = None  # type: ignore[assignment]


def _mix(found: int, word: int) -> int:
    found ^= word
    found = (found << 29 | found >> 35) & _MASK
    return found * 0x9E3779B97F4A7C15 & _MASK


class Commit(Enum):
    """What became of a wish to commit."""

    DONE = "done"
    NOT_ACKNOWLEDGED = "not acknowledged by every rank yet"
    NOT_ANNOUNCED = "not on offer"
    FROZEN = "the communicator takes over nothing new: CUDA graphs were captured"
    FENCED = "the communicator switches at fences"


@dataclass(frozen=True)
class RankView:
    """One rank's slot at one moment. ``rank`` is None where no profiler told it."""

    slot: int
    rank: int | None
    pid: int
    state: SlotState
    ack_epoch: int
    ack_digest: int
    refused_epoch: int
    in_force: int
    index: int
    clock: Clock
    reasons: frozenset[Reason]
    applied: int
    bypassed: int
    usable: dict[Collective, frozenset[tuple[Algo, Proto]]]
    """Pairs that every call so far offered; collectives not seen are absent."""


@dataclass(frozen=True)
class CommView:
    """One communicator's block at one moment."""

    index: int
    comm_id: int
    n_ranks: int
    n_nodes: int
    state: CommState
    generation: int
    scope: Scope
    once: Once
    epoch: int
    """In force from ``first_index`` on."""
    first_index: int
    frontier: int | None
    """The lowest collective index that no rank has decided yet; None once frozen."""
    announced: int
    table: DecisionTable
    """The newest that was announced, whether in force, on offer or abandoned."""
    table_epoch: int
    ranks: tuple[RankView, ...]

    def usable(self, collective: Collective) -> frozenset[tuple[Algo, Proto]]:
        """Return what all ranks can use: only this may stand in a table for the communicator."""
        sets = [r.usable.get(collective, frozenset()) for r in self.ranks]
        known = [r for r in self.ranks if r.rank is not None]
        if not sets or len(known) != len(self.ranks):
            return frozenset()
        return frozenset.intersection(*sets)


@dataclass(frozen=True)
class Record:
    """One collective as NCCL ran it, on one rank."""

    comm: int | None
    rank: int
    func: Collective | None
    algo: Algo | None
    proto: Proto | None
    n_channels: int
    bytes: int
    coll_seq: int
    index: int
    epoch: int
    start_ns: int
    duration_ns: int
    stalls: int
    flags: RecordFlag


@dataclass(frozen=True)
class Stalls:
    """Send stalls of one collective by channel (sixteen bits each, saturating)."""

    comm: int | None
    rank: int
    func: Collective | None
    coll_seq: int
    by_channel: dict[int, int]


class RingReader:
    """Reads one process's telemetry; several readers do not disturb one another."""

    def __init__(self, proc: np.ndarray[Any, Any], slot: int = 0) -> None:
        self.slot = slot
        """Place in the file."""
        self._proc = proc
        self._slots = proc["slots"]
        self._next = 0
        self.lost = 0
        """Records that were overwritten before they were read."""

    @property
    def pid(self) -> int:
        """Process that writes, or wrote, the ring; 0 where none did."""
        return int(self._proc["pid"])

    @property
    def events_odd(self) -> int:
        """Late, duplicate or foreign profiler handles that the plugin has let pass."""
        return int(self._proc["events_odd"])

    def poll(self) -> list[Record | Stalls]:
        """Return what was written since the last call, oldest first."""
        head = int(self._proc["head"])
        if self._next > head:
            self._next = 0  # Another file or process: from the oldest.
        self._skip_to(head - lay.RING_SLOTS)
        found: list[Record | Stalls] = []
        while self._next < head:
            raw = self._read(self._next)
            now = int(self._proc["head"])
            if raw is not None:
                record = _decode(raw)
                if record is not None:
                    found.append(record)
                self._next += 1
            elif now - self._next >= lay.RING_SLOTS:
                # The writer is faster: go on half a ring ahead of it.
                self._skip_to(min(now - lay.RING_SLOTS // 2, head))
            elif self._abandoned(self._next, now):
                self._skip_to(self._next + 1)  # Its writer died in the middle.
            else:
                break  # Still being written.
        return found

    def _skip_to(self, number: int) -> None:
        if number > self._next:
            self.lost += number - self._next
            self._next = number

    def _read(self, number: int) -> bytes | None:
        slot = self._slots[number % lay.RING_SLOTS : number % lay.RING_SLOTS + 1]
        complete = 2 * number + 2
        if int(slot["seq"][0]) != complete:
            return None
        raw = slot.tobytes()
        return raw if int(slot["seq"][0]) == complete else None

    def _abandoned(self, number: int, head: int) -> bool:
        """Whether a later record stands while this one never came to its end."""
        later = range(number + 1, head)
        return any(
            int(self._slots[n % lay.RING_SLOTS]["seq"]) >= 2 * n + 2 for n in later
        ) or not alive(self.pid)


def alive(pid: int, start: int = 0) -> bool:
    """Whether the process that had this number at its start still runs, by the plugin's rule.

    Args:
        pid: its number.
        start: when it started, clock ticks after boot; 0 where that is not known.
    """
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    try:
        return start == 0 or _pid_start(pid) == start
    except OSError:
        return True  # It may not be looked at.


def _known(kind: type[_Known], value: int) -> _Known | None:
    try:
        return kind(value)
    except ValueError:
        return None


def _decode(raw: bytes) -> Record | Stalls | None:
    one = np.frombuffer(raw, lay.RECORD)[0]
    comm = None if one["comm"] == 0xFFFF else int(one["comm"])
    func = _known(Collective, int(one["func"]))
    if one["kind"] == RecordKind.COLLECTIVE:
        return Record(
            comm=comm, rank=int(one["rank"]), func=func, algo=_known(Algo, int(one["algo"])),
            proto=_known(Proto, int(one["proto"])), n_channels=int(one["n_channels"]),
            bytes=int(one["bytes"]), coll_seq=int(one["coll_seq"]), index=int(one["index"]),
            epoch=int(one["epoch"]), start_ns=int(one["start_ns"]),
            duration_ns=int(one["duration_ns"]), stalls=int(one["stalls"]),
            flags=RecordFlag(int(one["flags"])),
        )  # fmt: skip
    if one["kind"] == RecordKind.STALLS:
        stalls = np.frombuffer(raw, lay.STALL_RECORD)[0]
        first = int(stalls["first_channel"])
        counts = {first + i: int(n) for i, n in enumerate(stalls["stalls"]) if n}
        return Stalls(comm, int(one["rank"]), func, int(one["coll_seq"]), counts)
    return None


class HostLibrary:
    """``libringstep-host.so``, loaded once."""

    _library: ctypes.CDLL | None = None

    @classmethod
    def get(cls) -> ctypes.CDLL:
        if cls._library is None:
            library = ctypes.CDLL(str(build().host))
            pointer, word = ctypes.c_void_p, ctypes.c_uint32
            library.rs_host_announce.argtypes = [pointer, word, word, pointer]
            library.rs_host_commit.argtypes = [pointer, word, word]
            library.rs_host_abandon.argtypes = [pointer, word, word]
            library.rs_host_freeze.argtypes = [pointer, word]
            library.rs_host_claim_proc.argtypes = [pointer]
            library.rs_host_attach.argtypes = [pointer, ctypes.c_uint64, word, word, word]
            library.rs_host_detach.argtypes = [pointer, word, word]
            library.rs_host_ring_write.argtypes = [pointer, pointer]
            library.rs_host_ring_write.restype = None
            cls._library = library
        return cls._library


def _pid_start(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[19])


class ShmFile:
    """The mapped file. Use :meth:`create` or :meth:`open`; close it, or use it in ``with``."""

    def __init__(self, path: Path, mapped: mmap.mmap, writable: bool) -> None:
        self.path = path
        self.writable = writable
        self._mapped = mapped
        self._all = np.frombuffer(mapped, lay.FILE, count=1)
        self._lock_fd: int | None = None

    # --- life ---

    @classmethod
    def create(cls, path: Path, *, token: int = 0) -> Self:
        """Create the file anew and own it.

        The folder is made with mode 0700. An older file of the same name is unlinked, never
        shortened: whoever has it mapped keeps it.

        Args:
            path: see :func:`default_path`.
            token: of this run, as RINGSTEP_SHM_TOKEN (hexadecimal) tells the ranks; 0 = none.

        Raises:
            ShmError: another live owner has the file, or there is no storage for it.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = cls._own(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            fd = os.open(
                temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                try:
                    os.posix_fallocate(fd, 0, lay.FILE.itemsize)
                except OSError as error:
                    raise ShmError(
                        f"{path}: no storage for {lay.FILE.itemsize} bytes ({error.strerror}); "
                        "free some, or set RINGSTEP_SHM_DIR to another folder"
                    ) from error
                mapped = mmap.mmap(fd, lay.FILE.itemsize)
            finally:
                os.close(fd)
            file = cls(path, mapped, writable=True)
            header = file._all["header"][0]
            for name, value in lay.SIZES.items():
                header[name] = value
            header["layout"] = lay.LAYOUT
            header["pid"] = os.getpid()
            header["pid_start"] = _pid_start(os.getpid())
            header["created_ns"] = time.time_ns()
            header["job_token"] = token
            header["file_id"] = secrets.randbits(63) | 1
            header["magic"] = lay.MAGIC
            header["ready"] = 1
            temporary.rename(path)
        except BaseException:
            for left in (temporary, cls._owner_file(path)):
                with contextlib.suppress(OSError):
                    left.unlink()
            os.close(lock)
            raise
        file._lock_fd = lock
        return file

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> Self:
        """Map an existing file, to look or (the test's and engine's way) to write.

        Raises:
            ShmError: missing, truncated, or of another layout.
        """
        # As the plugin opens it: a pipe of that name must not hold anybody up, and what is written
        # must not go to where a link leads.
        flags = (os.O_RDWR | os.O_NOFOLLOW) if writable else os.O_RDONLY
        try:
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise ShmError(
                f"{path}: {error.strerror}; the coordinator or `ringstep run` makes it"
            ) from error
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or info.st_size != lay.FILE.itemsize:
                raise ShmError(
                    f"{path}: {info.st_size} bytes, layout {lay.LAYOUT} has {lay.FILE.itemsize}; "
                    "remove it and start the coordinator of this version"
                )
            if info.st_blocks * 512 < lay.FILE.itemsize:
                # Touched where there is no storage left, a hole would end the process.
                raise ShmError(f"{path}: it has holes; remove it and start the coordinator anew")
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            mapped = mmap.mmap(fd, lay.FILE.itemsize, prot=protection)
        finally:
            os.close(fd)
        file = cls(path, mapped, writable)
        problem = file._problem()
        if problem is not None:
            file.close()
            raise ShmError(f"{path}: {problem}")
        return file

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Take over the file of a coordinator that is gone, keeping what is in it.

        Raises:
            ShmError: as :meth:`open`, or its owner is alive.
        """
        lock = cls._own(path)
        try:
            file = cls.open(path, writable=True)
        except BaseException:
            os.close(lock)
            raise
        header = file._all["header"][0]
        header["pid_start"] = _pid_start(os.getpid())
        header["pid"] = os.getpid()
        file._lock_fd = lock
        return file

    @staticmethod
    def _owner_file(path: Path) -> Path:
        return path.with_name(f"{path.name}.owner")

    @classmethod
    def _own(cls, path: Path) -> int:
        name = cls._owner_file(path)
        while True:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(lock)
                raise ShmError(
                    f"{path}: another coordinator owns it; stop that one first"
                ) from error
            # Its last owner may have removed it after we opened it: then the lock is on nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(lock).st_ino == name.stat().st_ino:
                    return lock
            os.close(lock)

    def remove(self) -> None:
        """Remove the owned file and give it up; who has it mapped keeps it."""
        for name in (self.path, self._owner_file(self.path)):
            with contextlib.suppress(OSError):
                name.unlink()
        self.close()

    def _problem(self) -> str | None:
        header = self._all["header"][0]
        if int(header["magic"]) != lay.MAGIC:
            return "not a Ringstep file, or of a machine with another byte order"
        if int(header["layout"]) != lay.LAYOUT:
            return f"layout {int(header['layout'])}, this version reads {lay.LAYOUT}"
        for name, value in lay.SIZES.items():
            if int(header[name]) != value:
                return f"{name} is {int(header[name])}, layout {lay.LAYOUT} has {value}"
        return None if int(header["ready"]) == 1 else "not finished by its owner"

    def close(self) -> None:
        """Unmap and give up ownership; the file stays."""
        self._all = np.empty(0, lay.FILE)
        with contextlib.suppress(BufferError):  # Views handed out keep the mapping.
            self._mapped.close()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- the owner's side ---

    @property
    def raw(self) -> np.ndarray[Any, Any]:
        """The file's bytes as :data:`shm_layout.FILE`, one element."""
        return self._all

    @property
    def token(self) -> int:
        """The run's token, 0 for none."""
        return int(self._all["header"][0]["job_token"])

    @property
    def last_epoch(self) -> int:
        """The highest epoch ever announced; the next one has to be above."""
        return int(self._all["header"][0]["epoch"])

    def _address(self) -> int:
        return int(self._all.ctypes.data)

    def write_static(self, table: DecisionTable) -> int:
        """Write the table that holds from a communicator's first collective on.

        To be done before any rank starts, and not changed while one runs.

        Returns:
            Its digest, for RINGSTEP_STATIC_DIGEST (hexadecimal).
        """
        bank = self._all["static_bank"][0]
        version = int(bank["version"]) | 1
        bank["version"] = version
        bank["epoch"] = 0
        bank["entries"] = table.entries
        digest = table.digest(0)
        bank["digest"] = digest
        bank["version"] = version + 1
        return digest

    def static_table(self) -> DecisionTable | None:
        """Return the static table, None where there is none."""
        bank = self._all["static_bank"][0]
        return _table_of(bank) if int(bank["digest"]) else None

    def announce(self, comm: int, epoch: int, table: DecisionTable) -> None:
        """Put a table on offer to a communicator; one on offer before is abandoned.

        Raises:
            ShmError: no such communicator, or an epoch not above :attr:`last_epoch`.
        """
        entries = np.ascontiguousarray(table.entries)
        code = HostLibrary.get().rs_host_announce(self._address(), comm, epoch, entries.ctypes.data)
        if code == -errno.EINVAL:
            raise ShmError(
                f"epoch {epoch}: must be above {self.last_epoch} and at most {lay.EPOCH_MAX}"
            )
        if code != 0:
            raise ShmError(f"communicator {comm} of {self.path} is not in use")

    def commit(self, comm: int, epoch: int) -> Commit:
        """Put an announced epoch in force from the first collective that no rank has decided.

        Raises:
            ShmError: the communicator is gone.
        """
        code = HostLibrary.get().rs_host_commit(self._address(), comm, epoch)
        outcome = {
            0: Commit.DONE,
            -errno.EAGAIN: Commit.NOT_ACKNOWLEDGED,
            -errno.ENOENT: Commit.NOT_ANNOUNCED,
            -errno.EBUSY: Commit.FROZEN,
            -errno.EPERM: Commit.FENCED,
        }[code]
        if outcome is Commit.NOT_ANNOUNCED and self._state(comm) not in (
            CommState.FILLING,
            CommState.FULL,
        ):
            raise ShmError(f"communicator {comm} of {self.path} is not in use")
        return outcome

    def abandon(self, comm: int, epoch: int) -> bool:
        """Withdraw an offer; False where it is committed already."""
        code = HostLibrary.get().rs_host_abandon(self._address(), comm, epoch)
        return int(code) != -errno.EALREADY

    def set_scope(self, comm: int, scope: Scope) -> None:
        """Choose how a communicator switches, before its first epoch.

        Raises:
            ShmError: an epoch was announced already.
        """
        block = self._all["comms"][0][comm]
        if int(block["announced"]) or int(block["gate"]) >> lay.INDEX_BITS:
            raise ShmError(f"communicator {comm}: its scope is fixed by its first epoch")
        block["scope"] = scope

    def _state(self, comm: int) -> CommState:
        return CommState(int(self._all["comms"][0][comm]["state"]))

    # --- looking ---

    def comms(self) -> Iterator[CommView]:
        """Yield the communicators in use."""
        for index in range(lay.MAX_COMMS):
            if int(self._all["comms"][0][index]["state"]) != CommState.FREE:
                yield self.comm(index)

    def comm(self, index: int) -> CommView:
        """Return one communicator's block as it is now."""
        block = self._all["comms"][0][index]
        gate = int(block["gate"])
        frontier = gate & lay.INDEX_MASK
        return CommView(
            index=index,
            comm_id=int(block["comm_id"]),
            n_ranks=int(block["n_ranks"]),
            n_nodes=int(block["n_nodes"]),
            state=CommState(int(block["state"])),
            generation=int(block["generation"]),
            scope=Scope(int(block["scope"])),
            once=Once(int(block["once"])),
            epoch=gate >> lay.INDEX_BITS,
            first_index=int(block["first_index"]),
            frontier=None if frontier == lay.INDEX_MASK else frontier,
            announced=int(block["announced"]),
            table=_table_of(block["bank"]),
            table_epoch=int(block["bank"]["epoch"]),
            ranks=tuple(
                _rank_of(i, block["ranks"][i])
                for i in range(lay.MAX_RANKS)
                if int(block["ranks"][i]["state"]) != SlotState.FREE
            ),
        )

    def rings(self) -> list[RingReader]:
        """Return a reader for every process that has, or had, a telemetry ring."""
        procs = self._all["procs"][0]
        return [RingReader(procs[i], i) for i in range(lay.MAX_PROCS) if int(procs[i]["pid"])]

    def fence_member(self, comm: int, rank: int) -> FenceMember:
        """Return what a rank's own application thread needs to agree at a fence.

        Raises:
            ShmError: the rank is not attached, or not by this process.
        """
        block = self._all["comms"][0][comm]
        for slot in block["ranks"]:
            if int(slot["state"]) == SlotState.ATTACHED and int(slot["rank"]) == rank:
                if int(slot["pid"]) != os.getpid():
                    raise ShmError(
                        f"rank {rank} of communicator {comm} belongs to process "
                        f"{int(slot['pid'])}: a fence is for the rank itself"
                    )
                return FenceMember(slot)
        raise ShmError(f"rank {rank} of communicator {comm} is not attached")


class FenceMember:
    """One rank at a fence: a point of the program that all ranks pass between the same collectives.

    Every rank calls :meth:`propose`, the ranks exchange the pairs by a collective of their own
    (minimum and maximum), and every rank calls :meth:`settle` with whether all were equal. If the
    exchange fails, the job fails, as with any other collective.
    """

    def __init__(self, slot: np.ndarray[Any, Any]) -> None:
        self._slot = slot

    def propose(self) -> tuple[int, int]:
        """Return epoch and digest of the newest table that this rank holds, and hold on to it."""
        self._slot["fence"] = int(self._slot["fence"]) | lay.FENCE_HOLD
        return int(self._slot["ack_epoch"]), int(self._slot["ack_digest"])

    def settle(self, agreed: bool) -> None:
        """Put the proposal in force from the next collective on, or drop it."""
        epoch = int(self._slot["ack_epoch"]) if agreed else 0
        before = int(self._slot["fence"]) & ~lay.FENCE_HOLD
        self._slot["fence"] = epoch or before


def _table_of(bank: np.ndarray[Any, Any]) -> DecisionTable:
    for _ in range(100):
        version = int(bank["version"])
        table = DecisionTable(bank["entries"].copy())
        if version % 2 == 0 and int(bank["version"]) == version:
            break
    return table


def _rank_of(index: int, slot: np.ndarray[Any, Any]) -> RankView:
    bits = int(slot["reasons"])
    seen = int(slot["seen"])
    rank = int(slot["rank"])
    return RankView(
        slot=index,
        rank=None if rank == lay.RANK_UNKNOWN else rank,
        pid=int(slot["pid"]),
        state=SlotState(int(slot["state"])),
        ack_epoch=int(slot["ack_epoch"]),
        ack_digest=int(slot["ack_digest"]),
        refused_epoch=int(slot["refused_epoch"]),
        in_force=int(slot["in_force"]),
        index=int(slot["index"]),
        clock=Clock(int(slot["clock"])),
        reasons=frozenset(r for r in Reason if bits >> r & 1),
        applied=int(slot["applied"]),
        bypassed=int(slot["bypassed"]),
        usable={
            c: frozenset(
                (a, p) for a in Algo for p in Proto if int(slot["usable"][c]) >> (4 * a + p) & 1
            )
            for c in Collective
            if seen >> c & 1
        },
    )
