"""The lab on Mininet, small: collectives end with right sums, and nothing is left behind.

No test here judges a time: the machine may be busy.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringstep.lab.leafspine import LeafSpine
from ringstep.lab.leftovers import (
    STATE_ENV,
    marked_interfaces,
    marked_processes,
    present_interfaces,
)
from ringstep.lab.mininet_env import LabUnavailable, find_bmv2, why_not
from ringstep.lab.mininet_lab import running_lab

RINGSTEP = [sys.executable, "-m", "ringstep.cli"]
SMALL = ["--hosts", "4", "--leaves", "2", "--rate", "20M"]
PATIENCE_S = 240

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture(autouse=True)
def machine(only_lab: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that can run a lab, and runs none, before the test and after it."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    if marked_interfaces():
        pytest.skip("a lab is up on this machine; stop it with `ringstep lab down`")
    monkeypatch.setenv(STATE_ENV, str(tmp_path / "state.json"))
    try:
        yield
    finally:
        subprocess.run([*RINGSTEP, "lab", "down"], capture_output=True, check=False)
    assert_clean()


def assert_clean() -> None:
    names = LeafSpine(hosts=4, leaves=2).root_interfaces

    def left() -> tuple[list[str], list[str], list[int]]:
        return marked_interfaces(), present_interfaces(names), marked_processes()

    assert wait_for(lambda: not any(left())), left()


def wait_for(condition: Callable[[], bool], patience_s: float = 60) -> bool:
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def ringstep(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RINGSTEP, *arguments],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


@contextlib.contextmanager
def lab_up(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A lab of a process of its own, and what it says about itself."""
    ready = tmp_path / "ready.json"
    process = subprocess.Popen(
        [*RINGSTEP, "lab", "up", "leaf-spine", *SMALL, "--ready-file", str(ready)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        up = wait_for(lambda: ready.exists() or process.poll() is not None, PATIENCE_S)
        assert up
        assert process.poll() is None, process.communicate()[0]
        yield process, json.loads(ready.read_text())
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


@pytest.mark.parametrize("engine", ["softswitch", "bmv2"])
def test_collectives_run_right_and_marks_appear_where_marking_is_on(
    tmp_path: Path, engine: str
) -> None:
    if engine == "bmv2":
        try:
            find_bmv2()
        except LabUnavailable as reason:
            pytest.skip(str(reason))
    done = ringstep(
        "lab", "run", "ring-allreduce", *SMALL, "--engine", engine, "--size", "256KiB",
        "--seeds", "1",
        "--marking", "off,paper", "--paths", "ecmp,planned",
        # Ranks that start steps apart, and a marker that marks whatever is ahead.
        "--jitter", "3", "--k", "1", "--out", str(tmp_path / "out"), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == result
    assert len(result["runs"]) == 4
    packets = result["parameters"]["packets_per_step"] * result["parameters"]["steps"] * 4
    for run in result["runs"]:
        # The run ended without an error, so every rank's sum was right.
        assert run["cct_ms"] > 0
        assert run["traffic"]["packets"] == packets + run["traffic"]["retransmissions"]
        # Every edge crosses three switches, and each counts each packet to the job.
        assert run["counted"]["data"] >= 3 * packets
        assert (run["marks"] == 0) == (run["marking"] == "off")
        assert run["traffic"]["ce"] <= run["marks"] + run["red_marks"]
        # Every switch saw the packets that the model of ECMP's hash sends there, and no others.
        assert run["ways_confirmed"] is (None if run["traffic"]["retransmissions"] else True)
        assert len(run["steps"]) == result["parameters"]["steps"] * 4
        assert run["pace"]["single_flow"] > 0
        assert run["background_bytes"] > 0
    planned = [run for run in result["runs"] if run["paths"] == "planned"]
    for run in planned:
        ways = {(row["rank"], row["way"]) for row in run["steps"]}
        assert len(ways) == 4, "a planned edge keeps its way"
    plot = tmp_path / "out" / "overlap.png"
    if plot.exists():
        assert plot.read_bytes().startswith(b"\x89PNG")
    assert_clean()


def test_a_lab_that_is_up_is_used_and_a_second_one_refused(tmp_path: Path) -> None:
    with lab_up(tmp_path) as (process, where):
        assert {part[0] for part in where["parts"]} == {
            "leaf1", "leaf2", "spine1", "spine2", "controller",
        }  # fmt: skip
        listed = ringstep("switch", "list", "--json", "--controller", where["controller"])
        assert listed.returncode == 0, listed.stderr
        assert {s["phase"] for s in json.loads(listed.stdout)} == {"in sync"}
        done = ringstep(
            "lab", "run", "ring-allreduce", *SMALL, "--size", "64KiB", "--seeds", "1",
            "--marking", "ringstep", "--paths", "turning", "--background", "off",
            "--out", str(tmp_path / "out"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "turning" in done.stdout
        second = ringstep("lab", "up", "leaf-spine", *SMALL)
        assert (second.returncode, "already" in second.stderr) == (2, True), second.stderr
        other = ringstep("lab", "run", "ring-allreduce", "--hosts", "8", "--out", str(tmp_path))
        assert (other.returncode, "another fabric" in other.stderr) == (2, True), other.stderr
        assert ringstep("lab", "status").returncode == 0
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, output
        assert "Traceback" not in output
        assert_clean()


def test_the_end_of_a_switch_is_told_and_takes_the_lab_down(tmp_path: Path) -> None:
    with lab_up(tmp_path) as (process, where):
        pids = {part[0]: part[2] for part in where["parts"]}
        os.kill(pids["spine2"], signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1, output
        assert "spine2 ended" in output
        assert "Traceback" not in output
        assert_clean()


def test_the_end_of_a_switch_ends_a_run_and_is_told(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*RINGSTEP, "lab", "run", "ring-allreduce", *SMALL, "--size", "64MiB", "--seeds", "1",
         "--out", str(tmp_path / "out")],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    try:
        up = wait_for(lambda: running_lab() is not None or process.poll() is not None, PATIENCE_S)
        assert up
        where = running_lab()
        assert where is not None, process.communicate()[0]
        (spine,) = [part.pid for part in where.parts if part.name == "spine1"]
        # Somewhere within the minutes that this size takes.
        time.sleep(3)
        os.kill(spine, signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1, output
    assert "spine1 ended" in output
    assert "Traceback" not in output
    assert_clean()


def test_down_cleans_up_after_a_lab_that_was_killed(tmp_path: Path) -> None:
    with lab_up(tmp_path) as (process, _):
        process.kill()
        process.communicate()
        assert marked_interfaces()
        refused = ringstep("lab", "up", "leaf-spine", *SMALL)
        assert (refused.returncode, "lab down" in refused.stderr) == (2, True), refused.stderr
        done = ringstep("lab", "down")
        assert done.returncode == 0, done.stderr
        assert "removed" in done.stdout
        assert_clean()
        again = ringstep("lab", "down")
        assert (again.returncode, "none left" in again.stdout) == (0, True)


def test_command_line_of_mininet_reaches_hosts_and_gives_way_to_down(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*RINGSTEP, "lab", "up", "leaf-spine", *SMALL, "--cli"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write("h1 ip route show default\n")
        process.stdin.flush()
        said = ""
        while "default via" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        assert "h1-eth0" in said
        done = ringstep("lab", "down")
        assert done.returncode == 0, done.stderr
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, output
        assert "Traceback" not in output
        assert "the lab is down" in output
    finally:
        process.kill()
        process.wait()
    assert_clean()


@pytest.mark.parametrize("seen", [1, 6], ids=["first interface", "more of them"])
def test_interrupt_half_way_up_leaves_nothing(seen: int) -> None:
    process = subprocess.Popen(
        [*RINGSTEP, "lab", "up", "leaf-spine", *SMALL],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        started = wait_for(
            lambda: len(marked_interfaces()) >= seen or process.poll() is not None, PATIENCE_S
        )
        assert started
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert_clean()
