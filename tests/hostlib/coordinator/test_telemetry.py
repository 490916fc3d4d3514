"""Rings in, samples out: nothing twice, nothing mixed up, whoever dies or is late."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.coordinator.join import GIVEN_UP_AFTER, Joiner
from ringstep.hostlib.coordinator.telemetry import HookWriter, Tails, encode
from ringstep.hostlib.coordinator.thinning import THIN_MAX, Pace, kept, kept_of
from ringstep.hostlib.shm import Record, ShmError, ShmFile, default_path
from ringstep.hostlib.shm_layout import Algo, Clock, Collective, Proto, RecordFlag

Make = Callable[..., Any]
AR = Collective.ALL_REDUCE


def record(rank: int = 0, seq: int = 0, **other: Any) -> Record:
    given: dict[str, Any] = {
        "comm": 0, "rank": rank, "func": AR, "algo": Algo.RING, "proto": Proto.LL,
        "n_channels": 2, "bytes": 1 << 20, "coll_seq": seq, "index": seq, "epoch": 0,
        "start_ns": 1, "duration_ns": 1000 + rank, "stalls": 0, "flags": RecordFlag.HOST_TIMER,
        **other,
    }  # fmt: skip
    return Record(**given)


def slots(*records: Record) -> Any:
    return np.concatenate([encode(r) for r in records])


def stalls(rank: int, seq: int, first: int, counts: list[int]) -> Any:
    slot = np.zeros(1, lay.STALL_RECORD)
    slot["kind"], slot["func"], slot["rank"], slot["coll_seq"] = 2, AR, rank, seq
    slot["first_channel"] = first
    slot["stalls"][0][: len(counts)] = counts
    return slot.view(lay.RECORD)


RANKS = frozenset({0, 1, 2})


# --- joining ---


def test_a_collective_is_given_once_all_ranks_have_told() -> None:
    joiner = Joiner()
    joiner.add(slots(record(0), record(1)), 0.0)
    assert joiner.ready(RANKS, 0.1) == []
    joiner.add(slots(record(2)), 0.2)
    (one,) = joiner.ready(RANKS, 0.2)
    assert one.duration_ns == {0: 1000, 1: 1001, 2: 1002}
    assert (one.missing, one.mixed, one.decided) == (frozenset(), False, False)
    joiner.add(slots(record(2), record(1)), 0.3)
    assert joiner.ready(RANKS, 9.0) == []
    assert joiner.late == 2


def test_a_missing_rank_is_waited_for_and_then_not() -> None:
    joiner = Joiner(wait_s=1.0)
    for seq in range(GIVEN_UP_AFTER):
        joiner.add(slots(record(0, seq), record(1, seq)), 10.0 * seq)
        assert joiner.ready(RANKS, 10.0 * seq + 0.9) == []
        (one,) = joiner.ready(RANKS, 10.0 * seq + 1.0)
        assert one.missing == frozenset({2})
    assert joiner.absent == frozenset({2})
    joiner.add(slots(record(0, 100), record(1, 100)), 1000.0)
    (one,) = joiner.ready(RANKS, 1000.0)
    assert one.missing == frozenset({2})
    joiner.add(slots(record(2, 101)), 1001.0)  # it is back
    assert joiner.absent == frozenset()
    assert joiner.ready(RANKS, 1001.0) == []


def test_stalls_are_put_together_by_channel() -> None:
    joiner = Joiner()
    joiner.add(
        np.concatenate(
            [slots(record(0, stalls=9)), stalls(0, 0, 0, [4, 0, 2]), stalls(0, 0, 14, [3]),
             slots(record(1, stalls=5), record(2))]
        ), 0.0,
    )  # fmt: skip
    assert joiner.ready(RANKS, 0.0) == []  # rank 1's are due
    joiner.add(stalls(1, 0, 0, [5]), 0.1)
    (one,) = joiner.ready(RANKS, 0.1)
    assert one.stalls == {0: 9, 2: 2, 14: 3}
    joiner.add(stalls(1, 0, 0, [5]), 0.2)
    assert joiner.late == 1


def test_what_differs_between_ranks_is_marked() -> None:
    for other in ({"algo": Algo.TREE}, {"epoch": 3}, {"n_channels": 4}, {"proto": Proto.SIMPLE}):
        joiner = Joiner()
        joiner.add(slots(record(0), record(1, **other), record(2)), 0.0)
        (one,) = joiner.ready(RANKS, 0.0)
        assert one.mixed


def test_parts_and_zero_durations_do_not_count_as_measured() -> None:
    joiner = Joiner()
    partial = record(1, flags=RecordFlag.PARTIAL)
    joiner.add(slots(record(0), partial, record(2, duration_ns=0)), 0.0)
    (one,) = joiner.ready(RANKS, 0.0)
    assert one.duration_ns == {0: 1000}
    assert one.told == {0, 1, 2}


def test_unknown_functions_and_kinds_are_counted() -> None:
    joiner = Joiner()
    made = slots(record(0, func=None), record(1))
    made["kind"][1] = 77
    joiner.add(made, 0.0)
    assert joiner.odd == 2
    assert joiner.waiting == 0


def test_what_waits_is_bounded() -> None:
    joiner = Joiner(limit=10)
    for seq in range(100):
        joiner.add(slots(record(0, seq)), 0.0)
    assert len(joiner.ready(RANKS, 0.0)) == 90
    assert joiner.waiting == 10


@settings(max_examples=50)
@given(st.permutations([(rank, seq) for rank in range(3) for seq in range(6)]), st.data())
def test_any_order_and_any_batches_give_each_collective_once(
    order: list[tuple[int, int]], data: st.DataObject
) -> None:
    joiner = Joiner()
    given_on = []
    while order:
        n = data.draw(st.integers(1, len(order)))
        joiner.add(slots(*(record(rank, seq) for rank, seq in order[:n])), 0.0)
        order = order[n:]
        given_on += joiner.ready(RANKS, 0.0)
    assert sorted(one.coll_seq for one in given_on) == list(range(6))
    assert all(set(one.duration_ns) == RANKS for one in given_on)


# --- thinning ---


@given(st.integers(0, 2**64 - 1), st.integers(0, THIN_MAX - 1))
def test_what_is_kept_at_one_level_is_kept_below(seq: int, thin: int) -> None:
    assert not kept(seq, thin + 1) or kept(seq, thin)
    many = np.array([seq], np.uint64)
    assert bool(kept_of(many, thin)[0]) == kept(seq, thin)


@pytest.mark.parametrize("period", [1, 2, 8, 37, 64, 96])
def test_no_regular_pattern_hides(period: int) -> None:
    for thin in (1, 3, 5):
        numbers = np.arange(200_000, dtype=np.uint64)
        places = numbers[kept_of(numbers, thin)] % period
        share = np.bincount(places.astype(int), minlength=period) / (200_000 / period)
        assert share.min() > 0.5 / 2**thin
        assert share.max() < 2.0 / 2**thin


def test_the_pace_follows_the_load() -> None:
    pace = Pace(1000)
    for _ in range(100):
        pace.note(90, 0.1)
    assert pace.thin == 0
    pace.note(900, 0.1)  # a burst
    assert pace.thin <= 1
    for _ in range(100):
        pace.note(1600, 0.1)
    assert pace.thin == 4
    for _ in range(100):
        pace.note(10, 0.1)
    assert pace.thin == 0
    pace.note(50_000, 0.1)  # more than a second's at once
    assert pace.thin == 6
    pace.note(5, 0.0)


def test_a_higher_level_passes_over_what_only_some_ranks_told() -> None:
    joiner = Joiner()
    joiner.add(slots(*(record(0, seq) for seq in range(64))), 0.0)
    joiner.thin = 3
    joiner.add(slots(*(record(r, seq) for seq in range(64) for r in (1, 2) if kept(seq, 3))), 0.0)
    found = joiner.ready(RANKS, 100.0)
    assert [one.coll_seq for one in found] == [seq for seq in range(64) if kept(seq, 3)]
    assert joiner.absent == frozenset()
    assert joiner.waiting == 0


# --- rings ---


@pytest.fixture
def shm(shm_dir: Any) -> Any:
    with ShmFile.create(default_path()) as file:
        yield file


def test_tails_give_each_record_once_and_count_the_lost(shm: ShmFile) -> None:
    tails = Tails(shm)
    assert tails.read() is None
    with HookWriter(shm.path) as writer:
        for seq in range(10):
            writer.write(record(seq=seq))
        found = tails.read()
        assert found is not None
        assert found["coll_seq"].tolist() == list(range(10))
        assert tails.read() is None
        for seq in range(10, 2000):
            writer.write(record(seq=seq))
        found = tails.read()
        assert found is not None
        assert found["coll_seq"].tolist() == list(range(2000 - lay.RING_SLOTS, 2000))
        assert tails.lost == 2000 - 10 - lay.RING_SLOTS


def test_a_reader_begins_with_what_comes(shm: ShmFile) -> None:
    with HookWriter(shm.path) as writer:
        writer.write(record(seq=1))
        tails = Tails(shm)
        writer.write(record(seq=2))
        found = tails.read()
        assert found is not None
        assert found["coll_seq"].tolist() == [2]


def test_a_record_whose_writer_died_is_waited_for_once(shm: ShmFile) -> None:
    tails = Tails(shm)
    with HookWriter(shm.path) as writer:
        for seq in range(5):
            writer.write(record(seq=seq))
        slot = shm.raw["procs"][0][0]["slots"][2:3]
        slot["seq"] = 5  # 2 * 2 + 1: being written
        found = tails.read()
        assert found is not None
        assert found["coll_seq"].tolist() == [0, 1]
        slot["seq"] = 6
        found = tails.read()
        assert found is not None
        assert found["coll_seq"].tolist() == [2, 3, 4]
        writer.write(record(seq=5))
        writer.write(record(seq=6))
        shm.raw["procs"][0][0]["slots"][5:6]["seq"] = 11
        assert tails.read() is None
        found = tails.read()
        assert found is not None
        assert found["coll_seq"].tolist() == [6]
        assert tails.lost == 1


# --- processes without a plugin ---


def test_a_hook_has_a_ring_and_communicators(shm: ShmFile) -> None:
    with HookWriter(shm.path) as writer:
        comm = writer.join(0xFACE, 1, 0)
        view = shm.comm(comm)
        assert (view.comm_id, view.n_ranks) == (0xFACE, 1)
        (rank,) = view.ranks
        assert (rank.rank, rank.pid, rank.clock) == (0, os.getpid(), Clock.NONE)
        with pytest.raises(ValueError, match=r"rank 3 of 2: 0 to 1"):
            writer.join(1, 2, 3)
        other = writer.join(0xFACE, 1, 0)  # the same id again is another communicator
        assert other != comm
    assert [c.state.name for c in shm.comms()] == []


def test_a_file_that_is_full_is_said(shm: ShmFile) -> None:
    procs = shm.raw["procs"][0]
    start = int(shm.raw["header"][0]["pid_start"])
    procs["state"], procs["pid"], procs["pid_start"] = 1, os.getpid(), start + 1
    procs["pid"] = 1  # alive, and not we
    procs["pid_start"] = 0
    with pytest.raises(ShmError, match="all 64 places for processes are taken"):
        HookWriter(shm.path)
    with pytest.raises(ShmError, match="No such file"):
        HookWriter(shm.path.with_name("none.shm"))


def test_hooks_of_two_processes_are_joined_and_nothing_is_decided(
    start: Make, shm_dir: Any, until: Make
) -> None:
    table = shm_dir / "t.csv"
    table.write_text("collective,bytes,algorithm,protocol\nallreduce,..,ring,ll\n")
    running = start(f"fixed:{table}")
    script = f"""
import sys, time
from ringstep.hostlib.coordinator.telemetry import HookWriter
from ringstep.hostlib.shm import Record, default_path
from ringstep.hostlib.shm_layout import Collective, RecordFlag
rank = int(sys.argv[1])
with HookWriter(default_path()) as writer:
    comm = writer.join({0xFACE}, 2, rank)
    print("joined", flush=True)
    sys.stdin.readline()
    for seq in range(30):
        writer.write(Record(
            comm=comm, rank=rank, func=Collective.ALL_REDUCE, algo=None, proto=None, n_channels=0,
            bytes=4096, coll_seq=seq, index=seq, epoch=0, start_ns=time.monotonic_ns(),
            duration_ns=1000 * (rank + 1), stalls=0, flags=RecordFlag.HOST_TIMER))
    sys.stdin.readline()
"""
    members = [
        subprocess.Popen([sys.executable, "-c", script, str(rank)], text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for rank in range(2)
    ]  # fmt: skip
    try:
        for member in members:
            assert member.stdout is not None
            assert member.stdout.readline() == "joined\n"
        until(lambda: running.status()["communicators"])
        for member in members:
            assert member.stdin is not None
            member.stdin.write("\n")
            member.stdin.flush()
        until(lambda: running.status()["samples_learned"] == 30)
        comm = running.comm()
        assert comm["keys"][0]["seen"] == 30
        assert comm["obstacle"] == "collectives cannot be counted alike on all ranks"
        assert comm["epoch"] == 0
    finally:
        for member in members:
            member.communicate("\n", timeout=10)
    assert [m.returncode for m in members] == [0, 0]
    until(lambda: running.status()["communicators"] == [])


def test_records_of_the_block_s_last_communicator_are_not_the_new_one_s(
    start: Make, make_ranks: Make, until: Make
) -> None:
    running = start()
    first = make_ranks(2, 1)
    for _ in range(5):
        first.step()
    until(lambda: running.comm()["keys"])
    for rank in first.ranks:
        rank.finalize()
    until(lambda: running.status()["communicators"] == [])
    second = make_ranks(2, 2)
    time.sleep(0.2)
    for _ in range(3):
        second.step()
    (key,) = until(lambda: running.comm()["keys"])
    assert until(lambda: running.comm()["keys"][0]["seen"] >= 3)
    assert key["seen"] <= 3
