"""ringstep-perf with wrong options, dying ranks, and an impatient user."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from free_ports import free_port

from ringstep.hostlib.native.build import BuiltEngine

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(engine: BuiltEngine) -> Iterator[Start]:
    made: list[subprocess.Popen[str]] = []
    skipped = ("NCCL_", "RANK", "WORLD_SIZE", "MASTER_", "OMPI_", "PMI")

    def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith(skipped)}
        made.append(
            subprocess.Popen(
                [str(engine.perf), *arguments],
                env=env | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return made[-1]

    yield run
    for process in made:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "which collective? all_reduce, all_gather, reduce_scatter, broadcast"),
        ("all_to_all", "collective all_to_all: all_reduce, all_gather"),
        ("all_reduce --fast", "--fast: no such option; see --help"),
        ("all_reduce -b", "-b: a value has to follow"),
        ("all_reduce -b 8Q", "-b 8Q: a size such as 8, 64K"),
        ("all_reduce -b -8", "-b -8: a size such as 8, 64K"),
        ("all_reduce -e 99999999999999999999", "a size such as"),
        ("all_reduce -e 2000G", "at most 1024G"),
        ("all_reduce -b 1M -e 1K", "-b is above -e"),
        ("all_reduce -f 1", "-f 1: a factor above 1"),
        ("all_reduce -i 0", "-i 0: at least 1"),
        ("all_reduce -b 8 -e 1G -i 8", "more than 100000 sizes"),
        ("all_reduce --sizes 8,,16", "--sizes : a size such as"),
        ("all_reduce -t complex", "-t complex: int8, uint8"),
        ("all_reduce -o mean", "-o mean: sum, prod, max, min, avg, or all"),
        ("all_reduce -n 0", "-n 0: a whole number from 1 to 1000000"),
        ("all_reduce -n 1.5", "-n 1.5: a whole number"),
        ("all_reduce -c 2", "-c 2: a whole number from 0 to 1"),
        ("all_reduce -N 0", "-N 0: a whole number from 1 to 64"),
        ("all_reduce -N 4 --rank 1", "-N forks all ranks"),
        ("all_reduce --rank 1", "one rank needs --rank, --ranks and --root"),
        ("all_reduce --rank 4 --ranks 4 --root a:1", "--rank 4: 0 to 3"),
        ("all_reduce --rank 0 --ranks 4 --root a", "--root a: HOST:PORT"),
        ("all_reduce --rank 0 --ranks 4 --root a:0", "--root's port 0"),
        ("broadcast -N 2 --root-rank 2", "--root-rank 2: 0 to 1"),
        ("all_reduce --algo pat", "--algo pat: ring or tree"),
        ("all_reduce --proto ll128", "--proto ll128: ll or simple"),
        ("all_reduce --channels 9", "--channels 9: a whole number from 1 to 8"),
        ("all_reduce --duration 0", "--duration 0: seconds above zero"),
        ("all_reduce --timeout nan", "--timeout nan: seconds above zero"),
        ("all_reduce --json=yes", "--json takes no value"),
    ],
)
def test_wrong_options_say_what_would_be_right(start: Start, arguments: str, said: str) -> None:
    process = start(*arguments.split())
    out, error = process.communicate(timeout=30)
    assert process.returncode == 2
    assert out == ""
    assert said in error
    assert error.count("\n") == 1


def test_help_has_an_example(start: Start) -> None:
    process = start("all_reduce", "--help")
    out, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (0, "")
    assert "example: ringstep-perf all_reduce" in out


def test_tree_for_all_gather_fails_with_the_reason(start: Start) -> None:
    process = start("all_gather", "--sizes", "1K", "-n", "1", "--algo", "tree")
    _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "no algorithm and protocol left for AllGather" in error
    assert "RING" in error


def children(process: subprocess.Popen[str], wanted: int) -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while True:
        found = [int(pid) for pid in listed.read_text().split()]
        if len(found) == wanted:
            return found
        assert process.poll() is None
        time.sleep(0.01)


def running(start: Start, ranks: int) -> tuple[subprocess.Popen[str], list[int]]:
    """A long run whose first row was printed, so that all ranks are at work."""
    process = start("all_reduce", "-N", str(ranks), "--sizes", "64,64K", "-n", "20", "--duration",
                    "0.1", "--sizes", ",".join(["64K"] * 500))  # fmt: skip
    pids = children(process, ranks)
    assert process.stdout is not None
    for line in process.stdout:
        if not line.startswith("#"):
            break
    return process, pids


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_is_killed_ends_all_and_is_named(start: Start, victim: int) -> None:
    process, pids = running(start, 3)
    os.kill(pids[victim], signal.SIGKILL)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert (
        error == f"ringstep-perf: rank {victim} was killed by signal 9 (Killed); all ranks ended\n"
    )
    assert gone(pids)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_ranks(start: Start, which: signal.Signals) -> None:
    process, pids = running(start, 3)
    process.send_signal(which)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 128 + which
    assert error == "ringstep-perf: interrupted; all ranks ended\n"
    assert gone(pids)


def test_no_rank_outlives_a_killed_parent(start: Start) -> None:
    process, pids = running(start, 3)
    process.kill()
    process.communicate(timeout=30)
    while not gone(pids):
        time.sleep(0.01)


def test_a_missing_bridge_is_a_failure_with_its_path(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "rnic.sock"
    process = start(
        "all_reduce", "-N", "2", "--sizes", "1K", "--bridge", str(path), "--timeout", "5"
    )
    _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert str(path) in error


def test_ranks_that_never_come_are_waited_for_so_long(start: Start) -> None:
    root = f"127.0.0.1:{free_port()}"
    process = start("all_reduce", "--rank", "0", "--ranks", "2", "--root", root, "--timeout", "0.5")
    _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert error.startswith("ringstep-perf: re_comm_init: ")
