"""`ringstep tuner coordinator` as a process: started, killed, started again, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ringstep.hostlib.cli import app
from ringstep.hostlib.native.build import build
from ringstep.hostlib.shm import default_path
from ringstep.hostlib.shm_layout import Algo, Proto

Make = Callable[..., Any]
NCCLS = ((Algo.TREE, Proto.LL), 0)
DRIVER = Path(__file__).parents[1] / "native" / "driver.c"
run = CliRunner().invoke


def table(folder: Path, channels: int, name: str = "t.csv") -> str:
    path = folder / name
    path.write_text(
        f"collective,bytes,algorithm,protocol,channels\nallreduce,..,ring,simple,{channels}\n"
    )
    return f"fixed:{path}"


def simple(channels: int) -> tuple[Any, int]:
    return (Algo.RING, Proto.SIMPLE), channels


def test_begins_and_ends_cleanly(start_process: Make, shm_dir: Path) -> None:
    one = start_process()
    ready = one.event("ready")
    assert Path(ready["shm"]) == default_path()
    assert Path(ready["control"]).stat().st_mode & 0o777 == 0o600
    assert ready["role"] == "skeleton"
    assert sorted(p.name for p in shm_dir.iterdir()) == [
        "default.ctl", "default.shm", "default.shm.owner",
    ]  # fmt: skip
    assert one.end() == 0
    assert one.told[-1] == {"event": "end"}
    assert list(shm_dir.iterdir()) == []


@pytest.mark.parametrize("how", ["interrupt", "stop", "for"])
def test_ends_when_told(start_process: Make, shm_dir: Path, how: str) -> None:
    one = start_process(*(["--for", "0.2"] if how == "for" else []))
    one.event("ready")
    if how == "interrupt":
        one.process.send_signal(signal.SIGINT)
    elif how == "stop":
        assert run(app, ["stop"]).exit_code == 0
    one.event("end")
    assert one.process.wait(60) == 0
    assert list(shm_dir.iterdir()) == []


def test_tells_by_descriptor_when_ranks_may_start(shm_dir: Path, built: Any) -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "ringstep.cli.main", "tuner", "coordinator"]
    with subprocess.Popen(
        [*command, "--ready-fd", str(writing), "--job", "seven"], pass_fds=[writing]
    ) as process:
        os.close(writing)
        with os.fdopen(reading) as pipe:
            ready = json.loads(pipe.read())  # to the end: it closes the descriptor
        assert ready["event"] == "ready"
        assert Path(ready["shm"]).name == "seven.shm"
        process.terminate()
        assert process.wait(60) == 0


def test_goes_on_when_nobody_reads_what_it_tells(shm_dir: Path, built: Any, until: Make) -> None:
    command = [sys.executable, "-m", "ringstep.cli.main", "tuner", "coordinator", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        until(lambda: default_path().with_suffix(".ctl").exists())
        assert run(app, ["policy", "nccl"]).exit_code == 0
        assert run(app, ["stop"]).exit_code == 0
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert b"--json: Broken pipe" in errors
    assert list(shm_dir.iterdir()) == []


def test_ends_with_the_process_that_started_it(shm_dir: Path, built: Any, until: Make) -> None:
    command = [sys.executable, "-m", "ringstep.cli.main", "tuner", "coordinator",
               "--die-with-parent"]  # fmt: skip
    script = f"import subprocess, time; subprocess.Popen({command!r}); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", script]) as parent:
        until(lambda: default_path().with_suffix(".ctl").exists())
        parent.kill()
    until(lambda: not list(shm_dir.iterdir()))


def test_a_second_coordinator_is_refused(start_process: Make) -> None:
    one = start_process()
    one.event("ready")
    two = start_process()
    assert two.process.wait(60) == 2
    two.end()
    assert "another coordinator owns it; stop that one first" in two.errors
    assert one.process.poll() is None


@pytest.mark.parametrize("token", ["", "5eed"])
def test_killed_and_started_again_epochs_go_on(
    start_process: Make, make_ranks: Make, shm_dir: Path, token: str,
    monkeypatch: pytest.MonkeyPatch, until: Make,
) -> None:  # fmt: skip
    if token:
        monkeypatch.setenv("RINGSTEP_SHM_TOKEN", token)
    one = start_process("--policy", table(shm_dir, 5))
    one.event("ready")
    ranks = make_ranks(3)
    ranks.run_until(simple(5))
    one.process.kill()
    one.process.wait()
    for _ in range(100):
        assert ranks.step() == [simple(5)] * 3
    two = start_process("--policy", table(shm_dir, 6))
    assert two.event("ready")["taken_over"] is True
    ranks.run_until(simple(6))
    assert two.event("applied")["epoch"] == 2
    assert run(app, ["policy", "nccl"]).exit_code == 0
    ranks.run_until(NCCLS)


def test_killed_in_the_middle_of_an_offer(
    start_process: Make, make_ranks: Make, shm_dir: Path, until: Make
) -> None:
    one = start_process("--policy", table(shm_dir, 5))
    one.event("ready")
    ranks = make_ranks(2)
    ranks.step()
    one.event("offer")
    ranks.ranks[0].collective()  # one rank has acknowledged
    one.process.kill()
    one.process.wait()
    ranks.ranks[1].collective()
    assert ranks.step() == [NCCLS] * 2
    two = start_process("--policy", table(shm_dir, 6))
    two.event("ready")
    ranks.run_until(simple(6))
    assert two.event("applied")["epoch"] == 2


def test_a_file_left_by_another_run_is_replaced(
    start_process: Make, make_ranks: Make, monkeypatch: pytest.MonkeyPatch, shm_dir: Path
) -> None:
    monkeypatch.setenv("RINGSTEP_SHM_TOKEN", "1")
    one = start_process("--keep-file")
    one.event("ready")
    inode = default_path().stat().st_ino
    one.end()
    assert default_path().exists()
    monkeypatch.setenv("RINGSTEP_SHM_TOKEN", "2")
    two = start_process("--policy", table(shm_dir, 5))
    assert two.event("ready")["taken_over"] is False
    assert default_path().stat().st_ino != inode
    make_ranks(2).run_until(simple(5))


def test_ranks_as_processes_agree_while_the_coordinator_dies_and_a_rank_too(
    start_process: Make, shm_dir: Path, until: Make
) -> None:
    n, calls = 4, 10_000_000  # more than it takes: they are ended
    native = build(driver=DRIVER)
    tables = [table(shm_dir, c, f"{c}.csv") for c in range(1, 5)]
    coordinator = start_process("--policy", tables[0])
    coordinator.event("ready")
    members = [
        subprocess.Popen(
            [str(native.driver), "member", str(native.plugin), str(rank), str(n), str(calls)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(n)
    ]  # fmt: skip
    printed: list[list[str]] = [[] for _ in range(n)]

    def follow(rank: int) -> None:
        out = members[rank].stdout
        assert out is not None
        for line in out:
            printed[rank].append(line)
            if line.endswith("end\n"):
                return

    try:
        for member in members:
            assert member.stdout is not None
            assert member.stdout.readline() == "joined\n"
        threads = [threading.Thread(target=follow, args=(rank,)) for rank in range(n)]
        for thread in threads:
            thread.start()
        for member in members:
            assert member.stdin is not None
            member.stdin.write("\n")
            member.stdin.flush()

        def applied() -> int:
            return sum(event["event"] == "applied" for event in coordinator.told)

        def switch(to: int) -> None:
            before = applied()
            assert run(app, ["policy", tables[to]]).exit_code == 0
            until(lambda: applied() > before)

        until(lambda: applied() == 1)
        switch(2)
        coordinator.process.kill()
        coordinator.process.wait()
        coordinator = start_process("--policy", tables[1])
        until(lambda: applied() == 1)
        switch(3)
        members[2].kill()
        for to in (0, 1, 2):
            assert run(app, ["policy", tables[to]]).exit_code == 0
        for member in members:
            member.kill()
        for thread in threads:
            thread.join()
    finally:
        for member in members:
            member.kill()
            member.wait()
            for pipe in (member.stdin, member.stdout):
                if pipe is not None:
                    pipe.close()

    found = []
    for lines in printed:
        mine: dict[int, int] = {}
        changes = [(int(begin), int(value)) for begin, value in map(str.split, lines)]
        last = changes[-1][0]
        for (begin, value), (end, _) in pairwise([*changes, (last + 1, 0)]):
            mine |= dict.fromkeys(range(begin, end), value)
        found.append(mine)
    for rank, mine in enumerate(found):
        for other in found[:rank]:
            assert all(mine[i] == other[i] for i in mine.keys() & other.keys())
    assert {value for mine in found for value in mine.values()} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "fast"], "choose nccl, fixed, autoccl, dynamic"),
        (["--policy", "dynamic:/none"], "no such folder: /none"),
        (["--policy", "fixed:/none.csv"], "/none.csv: No such file"),
        (["--job", "../x"], "letters, digits"),
        (["--nodes", "2"], "needs --listen HOST:PORT"),
        (["--listen", "127.0.0.1:0", "--mpi"], "choose one"),
        (["--listen", "127.0.0.1:0"], "RINGSTEP_SHM_TOKEN is not set"),
        (["--shm", "/proc/none"], "/proc/none"),
        (["--ready-fd", "1000"], "--ready-fd 1000: Bad file descriptor"),
    ],
)
def test_bad_input_is_said_and_leaves_nothing(
    shm_dir: Path, built: Any, arguments: list[str], said: str
) -> None:
    found = run(app, ["coordinator", "--no-gpu", "--for", "0", *arguments])
    assert found.exit_code == 2, found.output
    assert said in " ".join(found.stderr.split())
    assert [p for p in shm_dir.iterdir() if p.suffix in (".ctl", ".shm")] == []


@pytest.mark.parametrize("token", ["xyz", "0", "1" * 17, "-1"])
def test_tokens_that_are_none(shm_dir: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("RINGSTEP_SHM_TOKEN", token)
    found = run(app, ["coordinator", "--for", "0"])
    assert found.exit_code == 2
    assert "1 to 16 hexadecimal digits" in found.stderr
