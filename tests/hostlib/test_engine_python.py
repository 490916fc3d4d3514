"""The engine from Python: collectives on arrays against numpy, groups, and errors as exceptions."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringstep.hostlib.engine import (
    Aborted,
    BadArgument,
    Comm,
    Engine,
    EngineError,
    Mismatch,
    Op,
    PeerLost,
    Result,
    SystemFailed,
    TimedOut,
    TunerFailed,
    Type,
)
from ringstep.hostlib.native.build import SOURCES, missing_tools
from ringstep.hostlib.shm_layout import Collective

HEADER = SOURCES / "engine" / "ringstep_engine.h"


@pytest.fixture(scope="module")
def engine() -> Engine:
    missing = missing_tools("C++")
    if missing is not None:
        pytest.skip(missing)
    return Engine()


def on_ranks(engine: Engine, size: int, call: Callable[[Comm], Any], **options: Any) -> list[Any]:
    """Run a call on each rank, all in this process; return what each returned or raised."""
    unique_id = engine.unique_id()
    found: list[Any] = [None] * size

    def one(rank: int) -> None:
        try:
            with Comm(engine, unique_id, size, rank, no_plugins=True, **options) as comm:
                found[rank] = call(comm)
        except EngineError as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8"])
def test_collectives_give_what_numpy_gives(engine: Engine, dtype: str) -> None:
    size, count = 3, 100
    sent = [(np.arange(size * count) % 5 + rank).astype(dtype) for rank in range(size)]
    total = np.sum(sent, axis=0).astype(dtype)

    def call(comm: Comm) -> list[np.ndarray[Any, Any]]:
        mine = sent[comm.rank]
        return [
            comm.all_reduce(mine, np.empty_like(mine)),
            comm.all_reduce(mine.copy(), op=Op.MAX),
            comm.all_gather(mine, np.empty(size * len(mine), dtype)),
            comm.reduce_scatter(mine, np.empty(count, dtype)),
            comm.broadcast(mine.copy(), root=1),
        ]

    for rank, found in enumerate(on_ranks(engine, size, call)):
        assert isinstance(found, list), found
        assert (found[0] == total).all()
        assert (found[1] == np.max(sent, axis=0)).all()
        assert (found[2] == np.concatenate(sent)).all()
        assert (found[3] == total[rank * count : (rank + 1) * count]).all()
        assert (found[4] == sent[1]).all()


def test_bfloat16_is_passed_by_its_bits(engine: Engine) -> None:
    one_and_a_half = np.full(4, 0x3FC0, np.uint16)

    def call(comm: Comm) -> np.ndarray[Any, Any]:
        return comm.all_reduce(one_and_a_half.copy(), type=Type.BFLOAT16)

    for found in on_ranks(engine, 2, call):
        assert (found == 0x4040).all()  # 3.0


def test_a_group_runs_its_calls_at_its_end(engine: Engine) -> None:
    def call(comm: Comm) -> list[float]:
        small, large = np.ones(3), np.ones(5000)
        with engine.group():
            comm.all_reduce(small)
            with engine.group():
                comm.all_reduce(large)
            assert small[0] == large[0] == 1
        return [small.sum(), large.sum()]

    assert on_ranks(engine, 2, call) == [[6, 10000]] * 2


def test_a_group_that_fails_aborts_what_it_used(engine: Engine) -> None:
    """Else the peers would wait for calls that never come."""

    def half_a_group(comm: Comm) -> None:
        with engine.group():
            comm.all_reduce(np.ones(3))
            comm.all_reduce(np.ones(3, complex))

    def call(comm: Comm) -> Any:
        if comm.rank:
            return comm.all_reduce(np.ones(3))
        with pytest.raises(BadArgument):
            half_a_group(comm)
        return comm.all_reduce(np.ones(3))

    first, second = on_ranks(engine, 2, call)
    assert isinstance(first, Aborted), first
    assert isinstance(second, EngineError), second


def test_what_ran_is_told(engine: Engine) -> None:
    def call(comm: Comm) -> Any:
        comm.all_gather(np.ones(8, np.int32), np.empty(16, np.int32))
        return comm.last_run(), comm.n_ranks, comm.n_nodes, comm.id

    first, second = on_ranks(engine, 2, call)
    run = first[0]
    assert (run.collective, run.bytes, run.decided) == (Collective.ALL_GATHER, 64, False)
    assert run.duration_ns > 0
    assert first[1:] == second[1:]
    assert first[1:3] == (2, 1)


def bad_calls() -> dict[str, tuple[Callable[[Comm], Any], str]]:
    two, three = np.ones(2), np.ones(3)
    fixed = np.ones(2)
    fixed.flags.writeable = False
    return {
        "lengths": (lambda c: c.all_reduce(two, three), "ratio has to be 1 : 1"),
        "gathered": (lambda c: c.all_gather(two, three), "ratio has to be 1 : 1"),
        "types": (lambda c: c.all_reduce(two, np.ones(2, np.int32)), "send holds float64"),
        "unknown type": (lambda c: c.all_reduce(np.ones(2, complex)), "complex128: not among"),
        "other byte order": (lambda c: c.all_reduce(np.ones(2, ">f4")), "native byte order"),
        "strided": (lambda c: c.all_reduce(np.ones((4, 2))[:, 0]), "not contiguous"),
        "read-only": (lambda c: c.all_reduce(fixed), "read-only"),
        "wrong size": (lambda c: c.all_reduce(two, type=Type.BFLOAT16), "BFLOAT16 2"),
        "root": (lambda c: c.broadcast(two, root=9), "root"),
    }


@pytest.mark.parametrize("which", bad_calls())
def test_bad_arguments_are_named_and_do_no_harm(engine: Engine, which: str) -> None:
    call, text = bad_calls()[which]

    def both(comm: Comm) -> float:
        with pytest.raises(BadArgument, match=text):
            call(comm)
        return float(comm.all_reduce(np.ones(1))[0])

    assert on_ranks(engine, 1, both) == [1.0]


def test_a_closed_communicator_says_so(engine: Engine) -> None:
    comm = Comm(engine, engine.unique_id(), 1, 0, no_plugins=True)
    comm.close()
    comm.close()
    comm.abort()
    with pytest.raises(BadArgument, match="closed"):
        comm.all_reduce(np.ones(1))


@pytest.mark.parametrize(
    ("n_ranks", "rank", "unique_id"), [(2, 2, None), (0, 0, None), (1, 0, b"short"), (1, -1, None)]
)
def test_communicators_that_cannot_be(
    engine: Engine, n_ranks: int, rank: int, unique_id: bytes | None
) -> None:
    with pytest.raises(BadArgument):
        Comm(engine, unique_id or engine.unique_id(), n_ranks, rank, no_plugins=True)


def test_addresses_that_cannot_be(engine: Engine) -> None:
    for address in ("no such host.invalid", "127.0.0.1:notaport", "a\0b"):
        with pytest.raises(EngineError):
            engine.unique_id(address)


def test_abort_from_another_thread_ends_a_call(engine: Engine) -> None:
    def call(comm: Comm) -> Any:
        if comm.rank:
            time.sleep(0.2)
            return "left without a word"
        timer = threading.Timer(0.05, comm.abort)
        timer.start()
        return comm.all_reduce(np.ones(1))

    first, _ = on_ranks(engine, 2, call)
    assert isinstance(first, Aborted)


def test_a_peer_that_leaves_is_an_error_not_a_hang(engine: Engine) -> None:
    def call(comm: Comm) -> Any:
        return None if comm.rank else comm.all_reduce(np.ones(1))

    first, _ = on_ranks(engine, 2, call)
    assert isinstance(first, PeerLost)
    assert isinstance(first, ConnectionError)


def test_a_peer_that_is_silent_is_an_error_after_the_timeout(engine: Engine) -> None:
    done = threading.Event()

    def call(comm: Comm) -> Any:
        if comm.rank:
            done.wait(30)
            return None
        try:
            return comm.all_reduce(np.ones(1))
        finally:
            done.set()

    first, _ = on_ranks(engine, 2, call, timeout_s=0.3)
    assert isinstance(first, TimedOut)
    assert isinstance(first, TimeoutError)


def test_each_code_has_its_exception() -> None:
    kinds = (BadArgument, PeerLost, TimedOut, Aborted, SystemFailed, Mismatch, TunerFailed)
    assert {kind.code for kind in kinds} == set(Result) - {Result.OK}


@pytest.mark.parametrize("kind", [Result, Type, Op])
def test_the_numbers_are_those_of_the_header(kind: type[IntEnum]) -> None:
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    found = re.search(rf"typedef enum {{([^}}]*)}} re_{kind.__name__.lower()};", text)
    assert found is not None
    pairs = (item.split("=") for item in found[1].split(","))
    assert {name.strip()[3:]: int(number) for name, number in pairs} == {
        member.name: member.value for member in kind
    }


@pytest.mark.parametrize("late", [0, 1])
def test_communicators_of_a_group_wait_for_no_other_to_connect(engine: Engine, late: int) -> None:
    """Rank 0 has one with each of two peers, of which one comes only when the other is done."""
    ids = [engine.unique_id(), engine.unique_id()]
    done = threading.Event()
    failed: list[BaseException] = []

    def reduce(rank: int, which: list[int]) -> None:
        comms = [Comm(engine, ids[i], 2, rank, no_plugins=True, timeout_s=20) for i in which]
        if which == [late]:
            assert done.wait(30)
        with engine.group():
            for comm in comms:
                comm.all_reduce(np.ones(10))
        if which == [1 - late]:
            done.set()
        for comm in comms:
            comm.close()

    def guarded(rank: int, which: list[int]) -> None:
        try:
            reduce(rank, which)
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=guarded, args=arguments)
        for arguments in ((0, [0, 1]), (1, [0]), (1, [1]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failed, failed


def test_a_library_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "engine.so").write_bytes(b"\x7fELF and no more")
    with pytest.raises(OSError, match=r"engine\.so"):
        Engine(tmp_path / "engine.so")
