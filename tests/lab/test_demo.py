"""``ringstep demo``, end to end: switch, P4 program, controller, RNICs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ringstep.lab.cli import demo

RINGSTEP = [sys.executable, "-m", "ringstep.cli"]


# Half the packets of the default; enough for every effect that is asserted.
MEMORY = ("--wire", "memory", "--rate", "25", "--repeat", "1")


def run_demo(out: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [*RINGSTEP, "demo", "--json", "--out", str(out), *options],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((out / "result.json").read_text()) == printed
    return printed


def descendants_of(session: int) -> list[str]:
    """Commands of living processes that were started with this environment mark."""
    mark = f"RINGSTEP_TEST_MARK={session}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_marker_lets_the_laggard_finish_sooner_and_runs_repeat_to_the_byte(tmp_path: Path) -> None:
    options = (*MEMORY, "--delays", "500,1000", "--seed", "7")
    first = run_demo(tmp_path / "1", *options)
    second = run_demo(tmp_path / "2", *options)
    assert first == second

    for comparison in first["comparison"]:
        assert comparison["a_change_percent"] < -8
        assert comparison["b_change_percent"] < 6
        assert comparison["overlap_change_percent"] < -8
    modes = {(r["delay_ms"], r["mode"]): r for r in first["results"]}
    assert len(modes) == 6
    for (_, mode), record in modes.items():
        (run,) = record["runs"]
        packets = first["parameters"]["packets_per_flow"]
        assert run["marked"]["data"] == 2 * packets
        assert (run["marked"]["marks"] > 0) == (mode == "marker")
        for flow in (run["a"], run["b"]):
            assert flow["packets"] == packets + flow["retransmissions"]
            assert flow["completion_ms"] >= first["alone_ms"] - 1
        received = run["a"]["ce_received"] + run["b"]["ce_received"]
        marked = run["marked"]["marks"] + run["marked"]["red_marks"]
        # A packet that both marked counts twice at the switch and once at the host.
        assert received <= marked <= 2 * received
    if (tmp_path / "1" / "timelines.png").exists():
        assert (tmp_path / "1" / "timelines.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("option", [("--preset", "hpcc_run"), ("--profile", "ringstep"),
                                    ("--geometry", "late")])  # fmt: skip
def test_other_presets_profiles_and_geometries_run(tmp_path: Path, option: tuple[str, str]) -> None:
    result = run_demo(tmp_path, *MEMORY, "--delays", "500", *option)
    (comparison,) = result["comparison"]
    assert comparison["a_change_percent"] < 0


@pytest.mark.slow
def test_short_demo_on_real_wires(tmp_path: Path) -> None:
    result = run_demo(tmp_path, "--delays", "1000", "--repeat", "1")
    assert result["parameters"]["wire"] == "udp"
    assert {r["mode"] for r in result["results"]} == {"ideal", "dcqcn", "marker"}
    marker = next(r for r in result["results"] if r["mode"] == "marker")
    assert marker["runs"][0]["marked"]["marks"] > 0
    # Every packet of both flows was counted to the job, retransmitted ones included.
    run = marker["runs"][0]
    assert run["marked"]["data"] >= 2 * result["parameters"]["packets_per_flow"]


@pytest.mark.slow
def test_interrupt_leaves_no_process_behind(tmp_path: Path) -> None:
    mark = os.getpid() * 1000 + time.monotonic_ns() % 1000
    process = subprocess.Popen(
        [*RINGSTEP, "demo", "--out", str(tmp_path / "out"), "--repeat", "50"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "RINGSTEP_TEST_MARK": str(mark)},
    )  # fmt: skip
    try:
        interrupt_and_watch(process, mark)
    finally:
        process.kill()
        process.wait()


def interrupt_and_watch(process: subprocess.Popen[str], mark: int) -> None:
    deadline = time.monotonic() + 60
    while len(descendants_of(mark)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    started = descendants_of(mark)
    assert len(started) >= 3, started
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    deadline = time.monotonic() + 10
    while descendants_of(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert descendants_of(mark) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--delays", "soon"), "250,500"),
        (("--delays", "1500"), "0..1000"),
        (("--repeat", "0"), "at least 1"),
        (("--preset", "nonsense"), "connectx"),
        (("--profile", "nonsense"), "ringstep"),
        (("--k", "2"), "0..1"),
        (("--rate", "0.1"), "1e6..1e9"),
        (("--time-factor", "0.5"), "1..200"),
        (("--out", "/dev/null/demo"), "/dev/null/demo"),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, options: tuple[str, str], said: str) -> None:
    app = typer.Typer()
    app.command()(demo)
    done = CliRunner().invoke(
        app, ["--out", str(tmp_path / "out"), *options], env={"COLUMNS": "200"}
    )
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "out" / "result.json").exists()
