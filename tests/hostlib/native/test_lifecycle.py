"""Loading, unloading, forking, dying: nothing leaks, nothing is left half done."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringstep.hostlib.native.build import Built
from ringstep.hostlib.native.caller import Plugin, Rank
from ringstep.hostlib.shm import (
    Commit,
    Decision,
    DecisionTable,
    Record,
    ShmFile,
    SlotState,
    default_path,
)
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

AR = Collective.ALL_REDUCE
MakeRank = Callable[..., Rank]


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A program that is dead afterwards, whatever the test found."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def driver(built: Built, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(built.driver), *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("with_file", [True, False])
def test_a_hundred_loads_leak_nothing(built: Built, shm_dir: Path, with_file: bool) -> None:
    """nccl PR #2261, aws-ofi-nccl #932: dlopen, init, finalize, dlclose, again and again."""
    with ShmFile.create(default_path()) if with_file else contextlib.nullcontext():
        done = driver(built, "cycles", str(built.plugin), "100")
    assert done.returncode == 0, done.stderr
    left = json.loads(done.stdout)
    assert left["loaded"] == 0  # it really went away each time
    assert {k: left[k] for k in ("fds", "threads", "mappings")} == dict.fromkeys(
        ("fds", "threads", "mappings"), 0
    )
    assert left["heap"] <= 4096


@pytest.mark.parametrize("events", [0, 1])
def test_no_system_call_while_collectives_run(built: Built, shm: ShmFile, events: int) -> None:
    """Under a filter that kills at any call: getCollInfo alone, then with profiler events."""
    table = DecisionTable()
    table.set(AR, range(64), Decision(Algo.RING, Proto.LL, 2))
    shm.write_static(table)
    done = driver(built, "seccomp", str(built.plugin), str(events))
    if done.returncode == 77:
        pytest.skip("needs seccomp filters; a kernel with CONFIG_SECCOMP_FILTER has them")
    assert done.returncode == 0
    assert next(shm.comms()).ranks[0].applied == 1001
    records = [r for r in shm.rings()[0].poll() if isinstance(r, Record)]
    assert len(records) == 1000 * events
    assert driver(built, "seccomp", str(built.plugin), "2").returncode == -signal.SIGSYS


def test_a_child_leaves_its_parents_slots_alone(built: Built, shm: ShmFile) -> None:
    table = DecisionTable()
    table.set(AR, range(64), Decision(Algo.RING, Proto.LL, 2))
    shm.write_static(table)
    with running(str(built.driver), "fork", str(built.plugin)) as process:
        status = int(line_of(process))
        assert os.waitstatus_to_exitcode(status) == 0  # the child saw bypass
        (view,) = [c for c in shm.comms() if c.comm_id == 1]
        (slot,) = view.ranks
        assert (slot.pid, slot.state) == (process.pid, SlotState.ATTACHED)
        assert slot.applied == 2
        by_pid = {r.pid: r.poll() for r in shm.rings()}
        assert len(by_pid.pop(process.pid)) == 2
        assert [len(records) for records in by_pid.values()] == [1]  # the child's own
        tell(process)
        assert process.wait() == 0


def test_no_descriptor_stays_open(shm: ShmFile, make_rank: MakeRank) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    make_rank(1, 1, 0).collective()
    assert set(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize("round_", range(3))
def test_a_rank_killed_in_the_middle(built: Built, shm: ShmFile, round_: int) -> None:
    """The ring stays readable, and another process gets the places."""
    with running(str(built.driver), "hammer", str(built.plugin)) as process:
        assert line_of(process) == "busy\n"
        (reader,) = [r for r in shm.rings() if r.pid == process.pid]
        reader.poll()  # while it is being written
        process.send_signal(signal.SIGKILL)
        process.wait()
    records = [r for r in reader.poll() if isinstance(r, Record)]
    assert records
    seqs = [r.coll_seq for r in records]
    assert seqs == sorted(set(seqs))
    assert all(r.duration_ns == 2000 and r.bytes == 4 * (r.coll_seq & 0xFFFF) for r in records)
    assert driver(built, "cycles", str(built.plugin), "3").returncode == 0
    assert [c.comm_id for c in shm.comms()] == [1]  # the dead one's, until the place is needed


def test_places_of_the_dead_are_taken_back(built: Built, shm: ShmFile, make_rank: MakeRank) -> None:
    for index in range(64):
        block = shm.raw["comms"][0][index]
        block["state"], block["n_ranks"], block["members"] = 2, 2, 2
        block["comm_id"] = 900 + index
        block["ranks"]["state"][:2], block["ranks"]["pid"][:2] = 1, (os.getpid(), 2**22 + 9)
    make_rank(1, 1, 0)
    assert {c.comm_id for c in shm.comms()} == set(range(900, 964))  # one of two is alive
    shm.raw["comms"]["ranks"]["pid"][0, 7, :2] = 2**22 + 9
    make_rank(2, 1, 0)
    assert [c.index for c in shm.comms() if c.comm_id == 2] == [7]


def test_a_coordinator_killed_while_it_writes(
    shm_dir: Path, make_rank: MakeRank, tmp_path: Path
) -> None:
    """The one that follows goes on with what the file holds, and epochs never come twice."""
    script = """
import sys
from ringstep.hostlib.shm import *
from ringstep.hostlib.shm_layout import *
f = ShmFile.create(default_path())
print("ready", flush=True); sys.stdin.readline()
t = DecisionTable(); t.set(Collective.ALL_REDUCE, range(64), Decision(Algo.RING, Proto.LL, 2))
print("go", flush=True)
epoch = 0
while True:
    epoch += 1
    f.announce(0, epoch, t)
"""
    with running(sys.executable, "-c", script) as process:
        assert line_of(process) == "ready\n"
        ranks = [make_rank(3, 2, i) for i in range(2)]
        tell(process)
        assert line_of(process) == "go\n"
        for _ in range(200):
            for rank in ranks:
                assert rank.collective()[1] == 0  # nothing was committed
        process.send_signal(signal.SIGKILL)
        process.wait()
    with ShmFile.reopen(default_path()) as shm:
        epoch = shm.last_epoch + 1
        assert epoch > 1
        table = DecisionTable()
        table.set(AR, range(64), Decision(Algo.TREE, Proto.LL, 6))
        shm.announce(0, epoch, table)
        for rank in ranks:
            rank.collective()
        assert shm.commit(0, epoch) is Commit.DONE
        assert [rank.collective()[1] for rank in ranks] == [6, 6]


def test_getcollinfo_does_not_wait_for_a_communicator_that_is_being_made(
    shm: ShmFile, make_rank: MakeRank
) -> None:
    """Whoever holds the file's lock delays init alone, and that for a bounded time."""
    table = DecisionTable()
    table.set(AR, range(64), Decision(Algo.RING, Proto.LL, 2))
    shm.write_static(table)
    running_one = make_rank(1, 1, 0)
    running_one.collective()
    for _ in range(20):
        made: list[Rank] = []
        with shm.path.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            thread = threading.Thread(target=lambda made=made: made.append(make_rank(2, 1, 0)))
            thread.start()
            answers = [running_one.collective()[1] for _ in range(100)]
            was_waiting = thread.is_alive()
            thread.join()  # gives up by itself: the lock is still held
        assert answers == [2] * 100
        assert made[0].collective()[1] == 0  # without a place: bypass
        made[0].finalize()
        if was_waiting:
            return
    pytest.fail("init never waited for the lock")


def test_many_communicators_from_many_threads(shm: ShmFile, plugin: Plugin) -> None:
    """aws-ofi-nccl #318: contexts of threads that interleave do not mix."""
    table = DecisionTable()
    table.set(AR, range(64), Decision(Algo.RING, Proto.LL, 2))
    shm.write_static(table)
    failures: list[str] = []

    def work(number: int) -> None:
        for _ in range(5):
            rank = Rank(plugin, 50 + number, 1, 0)
            for _ in range(20):
                if rank.collective()[1] != 2:
                    failures.append(f"thread {number}")
            rank.finalize()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list(shm.comms()) == []
