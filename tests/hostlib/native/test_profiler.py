"""What the profiler part makes of NCCL's events, the orderly and the other ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from ctypes import c_void_p
from typing import Any

import pytest

from ringstep.hostlib.native.caller import Event, Rank
from ringstep.hostlib.shm import (
    Decision,
    DecisionTable,
    Record,
    RingReader,
    ShmFile,
    Stalls,
)
from ringstep.hostlib.shm_layout import Algo, Clock, Collective, Proto, Reason, RecordFlag

AR = Collective.ALL_REDUCE
MakeRank = Callable[..., Rank]
PROFILERS = pytest.mark.parametrize("profiler", [4, 5, 6])


def ring(shm: ShmFile) -> RingReader:
    (reader,) = [r for r in shm.rings() if r.pid == os.getpid()]
    return reader


def only(items: list[Record | Stalls]) -> Record:
    (record,) = items
    assert isinstance(record, Record)
    return record


@PROFILERS
def test_a_collective_becomes_one_record(shm: ShmFile, make_rank: MakeRank, profiler: int) -> None:
    rank = make_rank(7, 4, 2, profiler=profiler)
    handle = rank.launch(Collective.REDUCE_SCATTER, 1000, b"ncclBfloat16", Algo.PAT, Proto.LL128, 3)
    assert ring(shm).poll() == []
    rank.run_kernels(handle, 3, 1000, 9000)
    record = only(ring(shm).poll())
    assert record.func is Collective.REDUCE_SCATTER
    assert (record.algo, record.proto, record.n_channels) == (Algo.PAT, Proto.LL128, 3)
    assert record.bytes == 1000 * 2 * 4  # the larger side, as getCollInfo counts
    assert (record.rank, record.coll_seq, record.index) == (2, 0, 0)
    assert record.duration_ns == 8002  # first start to last stop on the GPU's clock
    assert record.flags == RecordFlag.GPU_TIMER


@pytest.mark.parametrize(
    ("datatype", "size"),
    [(b"ncclInt8", 1), (b"ncclFloat8e4m3", 1), (b"ncclFloat16", 2), (b"ncclUint32", 4),
     (b"ncclFloat64", 8), (b"Unknown", 1), (None, 1)],
)  # fmt: skip
def test_bytes_by_datatype(
    shm: ShmFile, make_rank: MakeRank, datatype: bytes | None, size: int
) -> None:
    rank = make_rank(7, 1, 0)
    rank.run_kernels(rank.launch(AR, 100, datatype), 2)  # type: ignore[arg-type]
    assert only(ring(shm).poll()).bytes == 100 * size


def test_waits_for_kernels_and_proxy_operations(shm: ShmFile, make_rank: MakeRank) -> None:
    rank = make_rank(7, 2, 0)
    reader = ring(shm)
    handle = rank.launch(n_channels=2)
    op = rank.proxy_op(handle, 0)
    rank.run_kernels(handle, 2)
    assert reader.poll() == []
    rank.stop(op)
    assert only(reader.poll()).flags == RecordFlag.GPU_TIMER


def test_stalls_are_attempts_without_a_request(shm: ShmFile, make_rank: MakeRank) -> None:
    """SendPeerWait is recorded at every attempt to send; SendWait follows the one that succeeds."""
    rank = make_rank(7, 2, 0)
    reader = ring(shm)
    handle = rank.launch(n_channels=2)
    ops = {channel: rank.proxy_op(handle, channel) for channel in (0, 1, 20)}
    receiving = rank.proxy_op(handle, 1, send=False)
    for channel, stalls in ((0, 3), (1, 0), (20, 70000)):
        for step in range(2):
            handle_of_step = rank.proxy_step(ops[channel], step)
            for _ in range(stalls if step else 0):
                rank.record(handle_of_step, Event.SEND_PEER_WAIT)
            rank.record(handle_of_step, Event.SEND_PEER_WAIT)
            rank.record(handle_of_step, Event.SEND_WAIT)
            rank.stop(handle_of_step)
    for _ in range(5):  # not a send: no stall
        rank.record(rank.proxy_step(receiving, 0), Event.SEND_PEER_WAIT)
    for op in (*ops.values(), receiving):
        rank.stop(op)
    rank.run_kernels(handle, 2)
    found = reader.poll()
    assert isinstance(found[0], Record)
    assert found[0].stalls == 70003
    assert [s.by_channel for s in found[1:] if isinstance(s, Stalls)] == [{0: 3}, {20: 65535}]


@PROFILERS
def test_events_of_any_other_kind_pass(shm: ShmFile, make_rank: MakeRank, profiler: int) -> None:
    """NCCL starts parents that nobody asked for, and newer versions have more kinds."""
    rank = make_rank(7, 1, 0, profiler=profiler)
    for bit in range(8 if profiler == 4 else 40):
        if 1 << bit in (Event.COLL, Event.COLL_API, Event.P2P_API):
            continue
        handle = rank.start(rank.descr(1 << bit))
        assert handle is None
        rank.record(handle, bit)
        rank.stop(handle)
    assert ring(shm).poll() == []


def test_late_and_duplicate_calls(shm: ShmFile, make_rank: MakeRank) -> None:
    """nccl #1992, #1658, #1586: recorded after stop, stopped twice, never started."""
    rank = make_rank(7, 1, 0)
    reader = ring(shm)
    handle = rank.launch(n_channels=1)
    op = rank.proxy_op(handle, 0)
    step = rank.proxy_step(op, 0)
    rank.stop(op)
    rank.stop(op)
    rank.stop(handle)
    rank.run_kernels(handle, 1)
    assert only(reader.poll()).flags == RecordFlag.GPU_TIMER
    rank.record(step, Event.SEND_PEER_WAIT)
    rank.stop(step)
    rank.run_kernels(handle, 1)
    rank.stop(handle)
    assert rank.proxy_op(handle, 0) is None
    assert reader.poll() == []
    assert reader.events_odd >= 4


def test_foreign_handles_and_contexts(shm: ShmFile, make_rank: MakeRank) -> None:
    """nccl #2112: with PXN contexts and parents come from another process."""
    rank = make_rank(7, 1, 0)
    reader = ring(shm)
    mine = rank.launch(n_channels=1)
    assert mine is not None
    for wrong in (None, 1, 0xDEADBEEF, (1 << 64) - 1, mine ^ (0x5A << 48), mine + 12345,
                  id(object())):  # fmt: skip
        rank.stop(wrong)
        rank.record(wrong, Event.SEND_PEER_WAIT)
        rank.record(wrong, Event.KERNEL_CH_STOP)
        assert rank.proxy_step(wrong, 0) is None
        descr = rank.descr(Event.COLL)
        assert rank.start(descr, c_void_p(wrong)) is None
    assert rank.proxy_op(mine, 0, pid=os.getpid() + 1) is None
    assert reader.poll() == []
    rank.run_kernels(mine, 1)
    assert only(reader.poll()).duration_ns == 4000


@pytest.mark.parametrize("channel", [0, 31, 32, 63, 64, 127, 255])
def test_channels_beyond_the_bounds(shm: ShmFile, make_rank: MakeRank, channel: int) -> None:
    """rccl #1986: an array of 32 channels overflowed."""
    rank = make_rank(7, 1, 0)
    handle = rank.launch(n_channels=1)
    op = rank.proxy_op(handle, channel)
    rank.record(rank.proxy_step(op, 0), Event.SEND_PEER_WAIT)
    rank.stop(op)
    rank.run_kernels(handle, 1)
    found = ring(shm).poll()
    stalls = [s.by_channel for s in found if isinstance(s, Stalls)]
    assert stalls == ([{channel: 1}] if channel < 64 else [])


def test_what_never_ends_is_closed_at_finalize(shm: ShmFile, make_rank: MakeRank) -> None:
    rank = make_rank(7, 1, 0)
    reader = ring(shm)
    rank.launch()
    rank.finalize()
    assert RecordFlag.PARTIAL in only(reader.poll()).flags


def test_a_pool_that_is_too_small_loses_no_count(shm: ShmFile, make_rank: MakeRank) -> None:
    rank = make_rank(7, 1, 0)
    reader = ring(shm)
    handles = [rank.launch() for _ in range(2500)]
    partial = [r for r in reader.poll() if isinstance(r, Record)]
    assert len(partial) == 2500 - 2048
    assert all(RecordFlag.PARTIAL in r.flags for r in partial)
    rank.run_kernels(handles[0], 2)  # late: its place has another collective
    assert reader.poll() == []
    rank.run_kernels(handles[-1], 2)
    assert only(reader.poll()).coll_seq == 2499
    assert next(shm.comms()).ranks[0].index == 2500


def test_light_profile_asks_for_launches_alone(
    shm: ShmFile, make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGSTEP_PROFILE", "light")
    rank = make_rank(7, 1, 0)
    assert rank.mask == Event.COLL | Event.COLL_API | Event.P2P_API
    rank.launch()
    assert only(ring(shm).poll()).flags == RecordFlag.HOST_TIMER
    monkeypatch.delenv("RINGSTEP_PROFILE")
    full = make_rank(8, 1, 0)
    assert full.mask & (Event.PROXY_STEP | Event.KERNEL_CH)


def test_record_says_that_a_decision_was_applied(shm: ShmFile, make_rank: MakeRank) -> None:
    table = DecisionTable()
    table.set(AR, 20, Decision(Algo.RING, Proto.LL))
    shm.write_static(table)
    rank = make_rank(7, 1, 0)
    reader = ring(shm)
    for size, decided in ((1 << 20, True), (1 << 10, False)):
        rank.collective(AR, size)
        assert (RecordFlag.DECIDED in only(reader.poll()).flags) == decided


def test_replays_of_graphs_do_not_move_the_clock(shm: ShmFile, make_rank: MakeRank) -> None:
    """They are launched by CUDA's own thread; NCCL does not count them either."""
    rank = make_rank(7, 1, 0)
    reader = ring(shm)
    rank.collective()
    api = rank.api_call(captured=True)
    rank.get_coll_info()
    view = next(shm.comms())
    assert view.frontier is None
    assert view.ranks[0].clock is Clock.FROZEN
    assert view.ranks[0].reasons == {Reason.CAPTURED}
    for _ in range(3):
        rank.run_kernels(rank.launch(api=api, persistent=True), 2)
    assert next(shm.comms()).ranks[0].index == 1
    flags = [r.flags for r in reader.poll() if isinstance(r, Record)]
    assert [RecordFlag.CAPTURED in f for f in flags] == [False, True, True, True]


@pytest.mark.parametrize(
    ("profiler", "environment", "clock"),
    [(4, {}, Clock.NONE), (4, {"RINGSTEP_NO_GRAPHS": "1"}, Clock.TRUSTED), (5, {}, Clock.TRUSTED),
     (6, {"CUDA_LAUNCH_BLOCKING": "1"}, Clock.NONE),
     (6, {"CUDA_LAUNCH_BLOCKING": "0"}, Clock.TRUSTED)],
)  # fmt: skip
def test_when_the_clock_is_trusted(
    shm: ShmFile, make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, profiler: int,
    environment: dict[str, str], clock: Clock, log: Any,
) -> None:  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    make_rank(7, 1, 0, profiler=profiler, log=log)
    assert next(shm.comms()).ranks[0].clock is clock
    assert (Reason.NO_CLOCK in log.reasons) == (clock is Clock.NONE)
