"""The real plugin in the engine: every ABI, decisions applied on all ranks, telemetry, fences."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port

from ringstep.hostlib.native.build import Built, BuiltEngine, build
from ringstep.hostlib.shm import (
    Commit,
    Decision,
    DecisionTable,
    Record,
    ShmFile,
    Stalls,
    default_path,
)
from ringstep.hostlib.shm_layout import Algo, Collective, Proto, RecordFlag, Scope

EVERY_SIZE = range(64)


@pytest.fixture(scope="session")
def plugin(engine: BuiltEngine) -> Built:
    return build()


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[ShmFile]:
    with ShmFile.create(default_path("job", tmp_path)) as file:
        yield file


Perf = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def perf(engine: BuiltEngine, plugin: Built) -> Iterator[Perf]:
    """Starts ringstep-perf with both plugins and the job's file in a folder."""
    made: list[subprocess.Popen[str]] = []

    def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        names = ("NCCL_", "RINGSTEP_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(names)}
        env |= {"NCCL_TUNER_PLUGIN": str(plugin.plugin), "NCCL_PROFILER_PLUGIN": str(plugin.plugin),
                "RINGSTEP_SHM_DIR": str(folder), "RINGSTEP_JOB": "job"}  # fmt: skip
        made.append(
            subprocess.Popen(
                [str(engine.perf), *arguments, "--json", "--timeout", "30"],
                env=env | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate()


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, error = process.communicate(timeout=90)
    assert process.returncode == 0, error
    return dict(json.loads(out))


def table_of(decision: Decision, *collectives: Collective) -> DecisionTable:
    table = DecisionTable()
    for collective in collectives or (Collective.ALL_REDUCE,):
        table.set(collective, EVERY_SIZE, decision)
    return table


class Telemetry:
    """Everything that the ranks report while a test runs."""

    def __init__(self, file: ShmFile) -> None:
        self.file = file
        self.readers: dict[tuple[int, int], Any] = {}
        self.records: list[Record] = []
        self.stalls: list[Stalls] = []

    def poll(self) -> None:
        for reader in self.file.rings():
            known = self.readers.setdefault((reader.slot, reader.pid), reader)
            for one in known.poll():
                (self.records if isinstance(one, Record) else self.stalls).append(one)  # type: ignore[arg-type]

    def odd(self) -> int:
        return sum(reader.events_odd for reader in self.readers.values())


DECIDED = Decision(Algo.TREE, Proto.SIMPLE, n_channels=3, chunk_bytes=64 << 10)


@pytest.mark.parametrize(("tuner", "profiler"), [(6, 6), (6, 5), (5, 5), (5, 4), (4, 4), (3, 4)])
def test_every_abi_applies_the_static_table_on_all_ranks(
    perf: Perf, shm: ShmFile, tmp_path: Path, tuner: int, profiler: int
) -> None:
    digest = shm.write_static(table_of(DECIDED))
    settings = {"RINGSTEP_ENGINE_TUNER_ABI": str(tuner), "RINGSTEP_NO_GRAPHS": "1",
                "RINGSTEP_ENGINE_PROFILER_ABI": str(profiler)}  # fmt: skip
    if tuner < 5:  # they do not know which communicator it is: the launcher's word
        settings["RINGSTEP_STATIC_DIGEST"] = f"{digest:x}"
    found = result(perf(tmp_path, "all_reduce", "-N", "3", "--sizes", "1000,300K", "-n", "4",
                        "-w", "1", **settings))  # fmt: skip
    assert found["plugins"] == f"tuner ringstep v{tuner}, profiler ringstep v{profiler}"
    assert found["wrong"] == 0
    for row in found["rows"]:
        assert row["ran"]["decided"]
        assert row["runs"] == {"TREE/SIMPLE/3": 8}
        assert row["ran"]["chunk_bytes"] == (64 << 10 if tuner == 6 else 512 << 10)
    seen = Telemetry(shm)
    seen.poll()
    assert len(seen.records) == 3 * 2 * 2 * 6
    assert {r.rank for r in seen.records} == {0, 1, 2}
    for record in seen.records:
        assert (record.algo, record.proto, record.n_channels) == (Algo.TREE, Proto.SIMPLE, 3)
        assert RecordFlag.DECIDED in record.flags
        assert RecordFlag.PARTIAL not in record.flags
        assert record.duration_ns > 0
    assert seen.odd() == 0


def test_sequence_numbers_count_by_function_and_bytes_are_the_larger_sides(
    perf: Perf, shm: ShmFile, tmp_path: Path
) -> None:
    result(perf(tmp_path, "all_gather", "-N", "2", "--sizes", "64K", "-n", "3", "-w", "0"))
    seen = Telemetry(shm)
    seen.poll()
    for rank in (0, 1):
        mine = [r for r in seen.records if r.rank == rank]
        assert [r.coll_seq for r in mine] == list(range(8))
        assert [r.index for r in mine] == list(range(8))
        assert {(r.func, r.bytes) for r in mine} == {(Collective.ALL_GATHER, 64 << 10)}


def test_stalls_are_told_where_a_receiver_is_slow(perf: Perf, shm: ShmFile, tmp_path: Path) -> None:
    where = ("--ranks", "2", "--root", f"127.0.0.1:{free_port(4)}")
    options = ("--sizes", "32M", "-n", "2", "-w", "0", "-c", "0", "--duration", "1",
               "--algo", "ring", "--proto", "simple", "--channels", "2")  # fmt: skip
    fast, slow = (
        perf(tmp_path, "broadcast", "--rank", str(rank), *where, *options) for rank in range(2)
    )
    seen = Telemetry(shm)
    while fast.poll() is None:
        seen.poll()
        if any(record.stalls for record in seen.records):
            break
        slow.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        slow.send_signal(signal.SIGCONT)
        time.sleep(0.05)
    result(fast)
    seen.poll()
    assert sum(record.stalls for record in seen.records if record.rank == 0) > 0
    assert {c for one in seen.stalls for c in one.by_channel} <= {0, 1}


def test_the_light_profile_only_counts(perf: Perf, shm: ShmFile, tmp_path: Path) -> None:
    result(perf(tmp_path, "all_reduce", "-N", "2", "--sizes", "64K", "-n", "3", "-w", "0",
                RINGSTEP_PROFILE="light"))  # fmt: skip
    seen = Telemetry(shm)
    seen.poll()
    assert len(seen.records) == 2 * 8
    assert {record.stalls for record in seen.records} == {0}


def test_nccl_algo_wins_over_the_table(perf: Perf, shm: ShmFile, tmp_path: Path) -> None:
    shm.write_static(table_of(DECIDED))
    found = result(perf(tmp_path, "all_reduce", "-N", "3", "--sizes", "300K", "-n", "2",
                        "--algo", "ring", "--proto", "ll", "--channels", "2"))  # fmt: skip
    assert found["rows"][0]["runs"] == {"RING/LL/2": 4}
    assert not found["rows"][0]["ran"]["decided"]


def switch(file: ShmFile, epoch: int, table: DecisionTable, running: Callable[[], bool]) -> None:
    """Announce and commit as a coordinator does, as soon as the ranks have been seen at work."""
    done = False
    announced = False
    while running() and not done:
        for comm in file.comms():
            if not comm.usable(Collective.ALL_REDUCE):
                continue
            if not announced:
                file.announce(comm.index, epoch, table)
                announced = True
            done = file.commit(comm.index, epoch) is Commit.DONE
        time.sleep(0.002)
    assert done


def test_a_switch_while_running_is_at_one_collective_on_all_ranks(
    perf: Perf, shm: ShmFile, tmp_path: Path
) -> None:
    process = perf(tmp_path, "all_reduce", "-N", "3", "--sizes", "20000", "--duration", "2",
                   "--algo", "ring", "-n", "20")  # fmt: skip
    seen = Telemetry(shm)
    stop = threading.Event()

    def follow() -> None:
        while not stop.is_set():
            seen.poll()
            time.sleep(0.002)

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        first = table_of(Decision(Algo.RING, Proto.SIMPLE, n_channels=2))
        second = table_of(Decision(Algo.RING, Proto.LL, n_channels=4))
        switch(shm, 1, first, lambda: process.poll() is None)
        switch(shm, 2, second, lambda: process.poll() is None)
        found = result(process)
    finally:
        stop.set()
        follower.join()
    seen.poll()
    assert found["wrong"] == 0
    assert {"RING/SIMPLE/2", "RING/LL/4"} <= set(found["rows"][0]["runs"])
    by_index: dict[int, set[tuple[Any, ...]]] = {}
    for r in seen.records:
        what = (r.epoch, r.algo, r.proto, r.n_channels, RecordFlag.DECIDED in r.flags)
        by_index.setdefault(r.index, set()).add(what)
    assert all(len(what) == 1 for what in by_index.values())
    assert {what for one in by_index.values() for what in one if what[0]} == {
        (1, Algo.RING, Proto.SIMPLE, 2, True), (2, Algo.RING, Proto.LL, 4, True),
    }  # fmt: skip


def test_a_fence_switches_two_nodes_together(
    perf: Perf, tmp_path: Path, engine: BuiltEngine
) -> None:
    """Two nodes are two folders with a file each; the ranks' fences bring them together."""
    folders = [tmp_path / "a", tmp_path / "b"]
    with (
        ShmFile.create(default_path("job", folders[0])) as one,
        ShmFile.create(default_path("job", folders[1])) as two,
    ):
        port = free_port(4)
        processes = []
        options = ("--sizes", "20000", "--duration", "3", "-n", "20", "--fence", "5")
        for rank in range(4):
            where = ("--rank", str(rank), "--ranks", "4", "--root", f"127.0.0.1:{port}")
            processes.append(
                perf(folders[rank // 2], "all_reduce", *where, *options, "--algo", "ring")
            )
        table = table_of(Decision(Algo.RING, Proto.SIMPLE, n_channels=5))
        other = table_of(Decision(Algo.RING, Proto.SIMPLE, n_channels=6))
        files = (one, two)
        _fenced(files, processes)
        # The nodes are told different things under one number: it must not be put in force.
        for file, told in zip(files, (table, other), strict=True):
            file.announce(_comm(file), 7, told)
        _wait_for(files, processes, lambda r: r.ack_epoch == 7)
        time.sleep(0.2)
        assert {r.in_force for f in files for r in f.comm(_comm(f)).ranks} == {0}
        for file in files:
            file.announce(_comm(file), 8, table)
        _wait_for(files, processes, lambda r: r.in_force == 8)
        found = result(processes[0])
        assert [p.wait(30) for p in processes] == [0] * 4
    assert found["wrong"] == 0
    runs = set(found["rows"][0]["runs"])
    assert "RING/SIMPLE/5" in runs
    assert "RING/SIMPLE/6" not in runs
    assert found["rows"][0]["ran"]["decided"]


def _comm(file: ShmFile) -> int:
    (comm,) = file.comms()
    return comm.index


def _fenced(files: tuple[ShmFile, ...], processes: list[subprocess.Popen[str]]) -> None:
    deadline = time.monotonic() + 30
    waiting = set(files)
    while waiting:
        assert time.monotonic() < deadline
        for file in list(waiting):
            comms = list(file.comms())
            if comms and len(comms[0].ranks) == 2:
                ready = all(Collective.ALL_REDUCE in r.usable for r in comms[0].ranks)
                if ready:
                    file.set_scope(comms[0].index, Scope.FENCED)
                    waiting.discard(file)
        assert all(p.poll() is None for p in processes), [p.communicate() for p in processes]
        time.sleep(0.005)


def _wait_for(
    files: tuple[ShmFile, ...],
    processes: list[subprocess.Popen[str]],
    wanted: Callable[[Any], bool],
) -> None:
    while not all(wanted(rank) for file in files for rank in file.comm(_comm(file)).ranks):
        assert all(p.poll() is None for p in processes), "the ranks ended before it was so"
        time.sleep(0.005)


def test_without_a_file_a_fence_does_nothing(perf: Perf, tmp_path: Path) -> None:
    found = result(perf(tmp_path, "all_reduce", "-N", "2", "--sizes", "64", "-n", "5", "--fence",
                        "1"))  # fmt: skip
    assert found["wrong"] == 0
    assert not found["rows"][0]["ran"]["decided"]


def test_telemetry_of_a_group_has_all_of_its_collectives(
    perf: Perf, shm: ShmFile, tmp_path: Path
) -> None:
    found = result(perf(tmp_path, "reduce_scatter", "-N", "2", "--sizes", "64K", "-n", "2", "-w",
                        "0", "--comms", "2", "--group", "3"))  # fmt: skip
    assert found["wrong"] == 0
    seen = Telemetry(shm)
    seen.poll()
    assert len(seen.records) == 2 * 2 * 3 * (2 + 1) * 2
    assert {record.comm for record in seen.records} == {0, 1}
    assert seen.odd() == 0
