"""One layout for C and Python: numbers compared, bytes read both ways."""

from __future__ import annotations

import ctypes
import subprocess
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.native.build import SOURCES, Built
from ringstep.hostlib.shm import (
    Decision,
    DecisionTable,
    Record,
    RingReader,
    ShmFile,
    Stalls,
    default_path,
    size_class,
)
from ringstep.hostlib.shm_layout import Algo, Collective, EntryState, Proto, RecordFlag

TYPES = {
    "rs_entry": lay.ENTRY,
    "rs_bank": lay.BANK,
    "rs_rank_slot": lay.RANK_SLOT,
    "rs_comm": lay.COMM,
    "rs_record": lay.RECORD,
    "rs_proc": lay.PROC,
    "rs_header": lay.HEADER,
    "rs_file": lay.FILE,
}
CONSTANTS = {
    "RS_SHM_MAGIC": lay.MAGIC, "RS_SHM_LAYOUT": lay.LAYOUT, "RS_COLLECTIVES": lay.COLLECTIVES,
    "RS_SIZE_CLASSES": lay.SIZE_CLASSES, "RS_MAX_COMMS": lay.MAX_COMMS,
    "RS_MAX_RANKS": lay.MAX_RANKS, "RS_MAX_PROCS": lay.MAX_PROCS, "RS_RING_SLOTS": lay.RING_SLOTS,
    "RS_STALL_CHANNELS": lay.STALL_CHANNELS, "RS_INDEX_BITS": lay.INDEX_BITS,
    "RS_INDEX_MASK": lay.INDEX_MASK, "RS_EPOCH_MAX": lay.EPOCH_MAX,
    "RS_FENCE_HOLD": lay.FENCE_HOLD, "RS_RANK_UNKNOWN": lay.RANK_UNKNOWN,
    "RS_ENTRY_VALID": lay.ENTRY_VALID, "RS_WHY_COUNT": len(lay.Reason),
}  # fmt: skip
ENUMS: dict[str, type[IntEnum]] = {
    "RS_COLL_": lay.Collective, "RS_ALGO_": lay.Algo, "RS_PROTO_": lay.Proto,
    "RS_STATE_": lay.EntryState, "RS_COMM_": lay.CommState, "RS_SLOT_": lay.SlotState,
    "RS_SCOPE_": lay.Scope, "RS_CLOCK_": lay.Clock, "RS_ONCE_": lay.Once, "RS_WHY_": lay.Reason,
}  # fmt: skip
IN_UNION = {"bytes", "start_ns", "duration_ns", "stalls", "index"}


def c_numbers(expressions: list[str], tmp_path: Path) -> list[int]:
    """Compile the header and evaluate expressions in C."""
    lines = "\n".join(f'printf("%llu\\n", (unsigned long long)({e}));' for e in expressions)
    source = tmp_path / "numbers.c"
    source.write_text(
        f'#include <stdio.h>\n#include "ringstep_shm.h"\nint main(void) {{\n{lines}\n}}\n'
    )
    program = tmp_path / "numbers"
    subprocess.run(
        ["cc", "-std=c17", f"-I{SOURCES / 'include'}", "-o", str(program), str(source)], check=True
    )
    out = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    return [int(line) for line in out.split()]


def test_python_names_the_numbers_of_the_header(built: Built, tmp_path: Path) -> None:
    expected: dict[str, int] = dict(CONSTANTS)
    expected |= {
        prefix + member.name: member.value for prefix, kind in ENUMS.items() for member in kind
    }
    expected |= {f"RS_REC_{flag.name}": flag.value for flag in lay.RecordFlag}
    expected |= {"RS_RECORD_COLLECTIVE": 1, "RS_RECORD_STALLS": 2}
    for name, kind in TYPES.items():
        expected[f"sizeof({name})"] = kind.itemsize
        assert kind.fields is not None
        for field, (_, offset, *_) in kind.fields.items():
            inside = f"coll.{field}" if name == "rs_record" and field in IN_UNION else field
            expected[f"offsetof({name}, {inside})"] = offset
    assert lay.STALL_RECORD.itemsize == lay.RECORD.itemsize
    assert lay.STALL_RECORD.fields is not None
    for field in ("first_channel", "stalls"):
        expected[f"offsetof(rs_record, stall.{field})"] = lay.STALL_RECORD.fields[field][1]
    found = dict(zip(expected, c_numbers(list(expected), tmp_path), strict=True))
    assert found == expected


def test_header_is_plain_c_and_cpp(built: Built, tmp_path: Path) -> None:
    source = tmp_path / "all.c"
    names = sorted(p.name for p in (SOURCES / "include").glob("*.h"))
    source.write_text("".join(f'#include "{name}"\n' for name in names))
    for language in (["-std=c17", "-xc"], ["-std=c++20", "-xc++"]):
        subprocess.run(
            ["cc", *language, "-Wall", "-Werror", "-fsyntax-only", f"-I{SOURCES / 'include'}",
             str(source)], check=True,
        )  # fmt: skip


def example_table() -> DecisionTable:
    table = DecisionTable()
    table.set(
        Collective.ALL_REDUCE, range(10, 25),
        Decision(Algo.TREE, Proto.LL128, 7, 65536, 512, EntryState.EXPLORE, 1234),
    )  # fmt: skip
    table.set(Collective.BROADCAST, 63, Decision(Algo.RING, Proto.SIMPLE))
    return table


def test_digest_is_the_same_in_c(built: Built) -> None:
    host = ctypes.CDLL(str(built.host))
    host.rs_host_digest.restype = ctypes.c_uint64
    bank = np.zeros(1, lay.BANK)
    bank["epoch"] = 9
    bank["entries"] = example_table().entries
    assert host.rs_host_digest(ctypes.c_void_p(bank.ctypes.data)) == example_table().digest(9)


def test_what_c_announces_python_reads(shm: ShmFile, make_rank: object) -> None:
    make_rank(5, 1, 0)  # type: ignore[operator]
    shm.announce(0, 3, example_table())
    view = shm.comm(0)
    assert view.announced == shm.last_epoch == 3
    assert view.table == example_table()
    got = view.table.get(Collective.ALL_REDUCE, 12)
    assert got == Decision(Algo.TREE, Proto.LL128, 7, 65536, 512, EntryState.EXPLORE, 1234)


def test_what_c_writes_into_the_ring_python_reads(built: Built) -> None:
    host = ctypes.CDLL(str(built.host))
    proc = np.zeros(1, lay.PROC)
    one = np.zeros(1, lay.RECORD)
    one["kind"], one["func"], one["algo"], one["proto"] = 1, 4, 1, 2
    one["n_channels"], one["flags"], one["comm"], one["rank"] = 8, 1 | 16, 3, 5
    one["epoch"], one["coll_seq"], one["bytes"] = 2, 77, 1 << 33
    one["start_ns"], one["duration_ns"], one["stalls"], one["index"] = 123, 456, 9, 80
    address = ctypes.c_void_p(proc.ctypes.data)
    host.rs_host_ring_write(address, ctypes.c_void_p(one.ctypes.data))
    stall = np.zeros(1, lay.STALL_RECORD)
    stall["kind"], stall["func"], stall["first_channel"], stall["coll_seq"] = 2, 4, 14, 77
    stall["stalls"][0, 1] = 65535
    host.rs_host_ring_write(address, ctypes.c_void_p(stall.ctypes.data))
    reader = RingReader(proc[0])
    assert reader.poll() == [
        Record(
            comm=3, rank=5, func=Collective.ALL_REDUCE, algo=Algo.RING, proto=Proto.SIMPLE,
            n_channels=8, bytes=1 << 33, coll_seq=77, index=80, epoch=2, start_ns=123,
            duration_ns=456, stalls=9, flags=RecordFlag.GPU_TIMER | RecordFlag.DECIDED,
        ),
        Stalls(comm=0, rank=0, func=Collective.ALL_REDUCE, coll_seq=77, by_channel={15: 65535}),
    ]  # fmt: skip
    assert reader.poll() == []


def test_ring_says_what_was_overwritten(built: Built) -> None:
    host = ctypes.CDLL(str(built.host))
    proc = np.zeros(1, lay.PROC)
    one = np.zeros(1, lay.RECORD)
    one["kind"] = 1
    reader = RingReader(proc[0])
    for number in range(lay.RING_SLOTS + 100):
        one["coll_seq"] = number
        host.rs_host_ring_write(ctypes.c_void_p(proc.ctypes.data), ctypes.c_void_p(one.ctypes.data))
    records = reader.poll()
    assert [r.coll_seq for r in records] == list(range(100, lay.RING_SLOTS + 100))
    assert reader.lost == 100


def test_a_record_whose_writer_died_is_skipped(built: Built) -> None:
    host = ctypes.CDLL(str(built.host))
    proc = np.zeros(1, lay.PROC)
    one = np.zeros(1, lay.RECORD)
    one["kind"] = 1
    proc["head"] = 1
    proc["slots"]["seq"][0, 0] = 1  # odd: begun, never ended
    host.rs_host_ring_write(ctypes.c_void_p(proc.ctypes.data), ctypes.c_void_p(one.ctypes.data))
    reader = RingReader(proc[0])
    assert len(reader.poll()) == 1
    assert reader.lost == 1


@pytest.mark.parametrize(
    ("n_bytes", "expected"),
    [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (1 << 20, 20), ((1 << 32) - 1, 31), (1 << 32, 32),
     ((1 << 64) - 1, 63)],
)  # fmt: skip
def test_size_classes_are_powers_of_two(
    n_bytes: int, expected: int, shm: ShmFile, make_rank: object
) -> None:
    """C is asked through the plugin: it applies the entry of exactly this class."""
    assert size_class(n_bytes) == expected
    table = DecisionTable()
    table.set(Collective.ALL_REDUCE, expected, Decision(Algo.TREE, Proto.LL, 3))
    shm.write_static(table)
    rank = make_rank(5, 1, 0)  # type: ignore[operator]
    costs, channels = rank.get_coll_info(Collective.ALL_REDUCE, n_bytes)
    assert (costs.chosen(), channels) == ((Algo.TREE, Proto.LL), 3)
    assert default_path().exists()


def test_the_page_gives_the_offsets_of_the_header() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "hostlib-shm.md").read_text()
    for name, kind in TYPES.items():
        if name == "rs_file":
            continue
        section = page.split(f"\n## `{name}`\n")[1].split("\n## ")[0].split("`kind` 2")[0]
        rows = [
            line.split("|")[1:4] for line in section.splitlines() if "`" in line and "|" in line
        ]
        found = {field.strip(" `"): (int(offset), int(size)) for offset, size, field in rows}
        assert kind.fields is not None
        expected = {
            field: (offset, inner.itemsize)
            for field, (inner, offset, *_) in kind.fields.items()
            if not field.startswith("reserved")
        }
        assert found == expected
    assert f"{lay.FILE.itemsize:,}" in page
