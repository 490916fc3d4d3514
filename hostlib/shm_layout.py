"""The shared-memory layout of :file:`native/include/ringstep_shm.h`, as numpy sees it.

The header is the source. These types name its fields and repeat its numbers so that Python needs
no compiler; ``tests/hostlib/native/test_shm_layout.py`` compiles the header and compares every
size, offset and constant.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

import numpy as np

MAGIC: Final = 0x4D48535453524E52
LAYOUT: Final = 1
COLLECTIVES: Final = 5
SIZE_CLASSES: Final = 64
MAX_COMMS: Final = 64
MAX_RANKS: Final = 64
MAX_PROCS: Final = 64
RING_SLOTS: Final = 1024
STALL_CHANNELS: Final = 14
INDEX_BITS: Final = 40
INDEX_MASK: Final = (1 << INDEX_BITS) - 1
EPOCH_MAX: Final = (1 << (64 - INDEX_BITS)) - 1
FENCE_HOLD: Final = 1 << 63
RANK_UNKNOWN: Final = 0xFFFFFFFF
ENTRY_VALID: Final = 1


class Collective(IntEnum):
    """ncclFunc_t, as far as decisions go."""

    BROADCAST = 0
    REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_REDUCE = 4


class Algo(IntEnum):
    """NCCL's algorithms."""

    TREE = 0
    RING = 1
    COLLNET_DIRECT = 2
    COLLNET_CHAIN = 3
    NVLS = 4
    NVLS_TREE = 5
    PAT = 6


class Proto(IntEnum):
    """NCCL's protocols."""

    LL = 0
    LL128 = 1
    SIMPLE = 2


class EntryState(IntEnum):
    """What the policy is doing with an entry; for people, the plugin does not look at it."""

    NONE = 0
    WARMUP = 1
    EXPLORE = 2
    COOLDOWN = 3
    CONVERGED = 4
    FIXED = 5


class CommState(IntEnum):
    """Life of a communicator's block."""

    FREE = 0
    FILLING = 1
    FULL = 2
    CLOSING = 3


class SlotState(IntEnum):
    """Life of a rank's or process's slot."""

    FREE = 0
    ATTACHED = 1
    LEFT = 2


class Scope(IntEnum):
    """How a communicator switches epochs (docs/agreement.md)."""

    NODE = 0
    FENCED = 1


class Clock(IntEnum):
    """Whether a rank's count of collectives can be trusted."""

    NONE = 0
    TRUSTED = 1
    FROZEN = 2


class Once(IntEnum):
    """Whether a communicator uses the static table."""

    OPEN = 0
    ON = 1
    OFF = 2


class RecordKind(IntEnum):
    """Kinds of telemetry slots."""

    COLLECTIVE = 1
    STALLS = 2


class RecordFlag(IntFlag):
    """Flags of a collective's record."""

    GPU_TIMER = 1
    HOST_TIMER = 2
    PARTIAL = 4
    CAPTURED = 8
    DECIDED = 16


class Reason(IntEnum):
    """Why a decision was not applied, or not as written: bit numbers of ``reasons``."""

    NO_FILE = 0
    BAD_FILE = 1
    STALE_FILE = 2
    NO_ROOM = 3
    NO_RANK = 4
    NO_CLOCK = 5
    CAPTURED = 6
    NULL_ARGUMENT = 7
    UNKNOWN_COLLECTIVE = 8
    BAD_ENTRY = 9
    NOT_FOR_COLLECTIVE = 10
    OUT_OF_TABLE = 11
    ENTRY_IGNORED = 12
    NOT_USABLE_EVERYWHERE = 13
    BAD_DIGEST = 14
    UNKNOWN_EPOCH = 15
    STATIC_DIFFERS = 16
    CHANNELS_CLAMPED = 17
    CHUNK_CLAMPED = 18
    THREADS_NOT_SET = 19
    BUSY = 20


ENTRY: Final = np.dtype(
    [
        ("algo", "i1"),
        ("proto", "i1"),
        ("n_channels", "u1"),
        ("flags", "u1"),
        ("chunk_bytes", "u4"),
        ("n_threads", "u2"),
        ("state", "u1"),
        ("reserved", "u1"),
        ("measured_us", "u4"),
    ]
)

BANK: Final = np.dtype(
    [
        ("version", "u8"),
        ("epoch", "u4"),
        ("reserved0", "u4"),
        ("digest", "u8"),
        ("reserved1", "u8", (5,)),
        ("entries", ENTRY, (COLLECTIVES, SIZE_CLASSES)),
    ]
)

RANK_SLOT: Final = np.dtype(
    [
        ("pid", "u4"),
        ("state", "u4"),
        ("pid_start", "u8"),
        ("ack_epoch", "u8"),
        ("ack_digest", "u8"),
        ("index", "u8"),
        ("fence", "u8"),
        ("in_force", "u4"),
        ("clock", "u4"),
        ("reasons", "u8"),
        ("applied", "u8"),
        ("bypassed", "u8"),
        ("usable", "u4", (COLLECTIVES,)),
        ("seen", "u4"),
        ("refused_epoch", "u8"),
        ("rank", "u4"),
        ("reserved0", "u4"),
        ("reserved1", "u8"),
    ]
)

COMM: Final = np.dtype(
    [
        ("comm_id", "u8"),
        ("n_ranks", "u4"),
        ("state", "u4"),
        ("generation", "u4"),
        ("scope", "u4"),
        ("attached", "u4"),
        ("tuners", "u4"),
        ("static_digest", "u8"),
        ("once", "u4"),
        ("n_nodes", "u4"),
        ("members", "u4"),
        ("reserved0", "u4", (3,)),
        ("gate", "u8"),
        ("first_index", "u8"),
        ("reserved1", "u8", (6,)),
        ("announced", "u8"),
        ("reserved2", "u8", (15,)),
        ("bank", BANK),
        ("ranks", RANK_SLOT, (MAX_RANKS,)),
        ("reserved3", "u1", (2752,)),
    ]
)

RECORD: Final = np.dtype(
    [
        ("seq", "u8"),
        ("kind", "u1"),
        ("func", "u1"),
        ("algo", "u1"),
        ("proto", "u1"),
        ("n_channels", "u1"),
        ("flags", "u1"),
        ("comm", "u2"),
        ("rank", "u4"),
        ("epoch", "u4"),
        ("coll_seq", "u8"),
        ("bytes", "u8"),
        ("start_ns", "u8"),
        ("duration_ns", "u8"),
        ("stalls", "u4"),
        ("index", "u4"),
    ]
)
"""A slot as a collective's record."""

STALL_RECORD: Final = np.dtype(
    [
        ("seq", "u8"),
        ("kind", "u1"),
        ("func", "u1"),
        ("algo", "u1"),
        ("proto", "u1"),
        ("n_channels", "u1"),
        ("flags", "u1"),
        ("comm", "u2"),
        ("rank", "u4"),
        ("epoch", "u4"),
        ("coll_seq", "u8"),
        ("first_channel", "u1"),
        ("reserved", "u1", (3,)),
        ("stalls", "u2", (STALL_CHANNELS,)),
    ]
)
"""The same slot as a record of stalls per channel."""

PROC: Final = np.dtype(
    [
        ("pid", "u4"),
        ("state", "u4"),
        ("pid_start", "u8"),
        ("head", "u8"),
        ("events_lost", "u8"),
        ("events_odd", "u8"),
        ("generation", "u4"),
        ("reserved0", "u4"),
        ("reserved1", "u8", (2,)),
        ("slots", RECORD, (RING_SLOTS,)),
    ]
)

HEADER: Final = np.dtype(
    [
        ("magic", "u8"),
        ("layout", "u4"),
        ("header_size", "u4"),
        ("file_size", "u8"),
        ("pid", "u4"),
        ("ready", "u4"),
        ("pid_start", "u8"),
        ("created_ns", "u8"),
        ("job_token", "u8"),
        ("epoch", "u8"),
        ("comm_size", "u4"),
        ("rank_size", "u4"),
        ("proc_size", "u4"),
        ("record_size", "u4"),
        ("max_comms", "u4"),
        ("max_ranks", "u4"),
        ("max_procs", "u4"),
        ("ring_slots", "u4"),
        ("collectives", "u4"),
        ("size_classes", "u4"),
        ("entry_size", "u4"),
        ("bank_size", "u4"),
        ("file_id", "u8"),
        ("reserved", "u8", (497,)),
    ]
)

FILE: Final = np.dtype(
    [
        ("header", HEADER),
        ("static_bank", BANK),
        ("reserved", "u1", (8192 - BANK.itemsize,)),
        ("comms", COMM, (MAX_COMMS,)),
        ("procs", PROC, (MAX_PROCS,)),
    ]
)

SIZES: Final = {
    "header_size": HEADER.itemsize,
    "file_size": FILE.itemsize,
    "comm_size": COMM.itemsize,
    "rank_size": RANK_SLOT.itemsize,
    "proc_size": PROC.itemsize,
    "record_size": RECORD.itemsize,
    "max_comms": MAX_COMMS,
    "max_ranks": MAX_RANKS,
    "max_procs": MAX_PROCS,
    "ring_slots": RING_SLOTS,
    "collectives": COLLECTIVES,
    "size_classes": SIZE_CLASSES,
    "entry_size": ENTRY.itemsize,
    "bank_size": BANK.itemsize,
}
"""What the header says about the rest; another value is another layout."""
