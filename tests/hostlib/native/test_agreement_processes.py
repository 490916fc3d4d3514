"""Ranks as processes that run at their own pace, while tables change and somebody dies."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from ringstep.hostlib.native.build import Built
from ringstep.hostlib.shm import Commit, Decision, DecisionTable, ShmError, ShmFile, default_path
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

RANKS, CALLS = 4, 4000


def table(channels: int) -> DecisionTable:
    made = DecisionTable()
    made.set(Collective.ALL_REDUCE, range(64), Decision(Algo.RING, Proto.LL, channels))
    return made


def by_index(lines: list[str]) -> dict[int, int]:
    """Channels at every index that a rank got to, from the changes that it printed."""
    changes = [line.split() for line in lines]
    found: dict[int, int] = {}
    for (start, value), (end, _) in pairwise(changes):
        found |= dict.fromkeys(range(int(start), int(end)), int(value))
    return found


@pytest.mark.parametrize("dies", ["nobody", "rank", "coordinator"])
def test_free_running_processes_agree(built: Built, shm_dir: Path, dies: str) -> None:
    shm = ShmFile.create(default_path())
    members: list[subprocess.Popen[str]] = []
    printed: list[list[str]] = [[] for _ in range(RANKS)]
    switches = 0
    with contextlib.ExitStack() as stack:
        for rank in range(RANKS):
            members.append(
                stack.enter_context(
                    subprocess.Popen(
                        [str(built.driver), "member", str(built.plugin), str(rank), str(RANKS),
                         str(CALLS)],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    )
                )
            )  # fmt: skip
        stack.callback(lambda: [m.kill() for m in members])  # first of all on the way out
        for member in members:
            assert member.stdout is not None
            assert member.stdout.readline() == "joined\n"

        def follow(rank: int) -> None:
            out = members[rank].stdout
            assert out is not None
            for line in out:
                printed[rank].append(line)
                if line.endswith("end\n"):
                    return

        threads = [threading.Thread(target=follow, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for member in members:
            assert member.stdin is not None
            member.stdin.write("\n")
            member.stdin.flush()
        epoch = 0
        while any(t.is_alive() for t in threads):
            epoch += 1
            with contextlib.suppress(ShmError):
                shm.announce(0, epoch, table(epoch % 60 + 1))
                for _ in range(20000):
                    if shm.commit(0, epoch) is Commit.DONE:
                        switches += 1
                        break
                    if not any(t.is_alive() for t in threads):
                        break
            if switches == 1 and dies == "coordinator":
                shm.close()  # what is left of it is the file
                shm = ShmFile.reopen(default_path())
            if switches == 1 and dies == "rank":
                members[2].kill()
        for thread in threads:
            thread.join()
    shm.close()
    found = [by_index(lines) for lines in printed]
    assert switches >= 1
    for rank, mine in enumerate(found):
        assert dies == "rank" or len(mine) == CALLS
        for other in found[:rank]:
            assert all(other[i] == mine[i] for i in mine.keys() & other.keys())
    assert len({v for mine in found for v in mine.values()}) >= 2
