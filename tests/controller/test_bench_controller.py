"""The measurement of the controller counts right, prints its keys, and leaves no process behind."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
TINY = [
    "--quick", "--repeats", "1", "--tors", "1", "--spines", "0", "--racks", "1", "--hosts", "4",
    "--rate", "20", "--seconds", "0.5", "--callers", "2", "--most-jobs", "20",
]  # fmt: skip


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_controller", BENCH / "controller.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that work in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def test_quantiles_are_those_of_the_sorted_values(bench: ModuleType) -> None:
    found = bench.quantiles_ms([number / 1000 for number in range(100, 0, -1)])
    assert found == {"n": 100, "p50": 51.0, "p95": 96.0, "p99": 100.0, "max": 100.0}
    assert bench.quantiles_ms([])["p99"] is None


def test_verdict_is_by_the_median_and_needs_every_value(bench: ModuleType) -> None:
    assert bench.verdict("registrations_per_s", [900.0, 1000.0, 1100.0])["met"] is True
    assert bench.verdict("stored_p99_ms", [49.0, 51.0, 60.0])["met"] is False
    assert bench.verdict("programmed_p99_ms", [5.0])["met"] is None
    assert bench.verdict("stored_p99_ms", [1.0], failed=True)["met"] is False
    failed = bench.verdict("rewrite_16k_s", [1.0, None])
    assert (failed["value"], failed["met"]) == (None, False)


@pytest.mark.slow
def test_quick_run_prints_every_key_of_its_phase(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "controller.py"), *TINY, "--json", "--only", "registration",
         "--only", "rewrite", "--rules", "64"],
        capture_output=True, text=True, check=False, env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for key in ("registrations_per_s", "stored_p99_ms", "programmed_p99_ms", "rewrite_16k_s"):
        assert found[key]["value"] > 0, found
        assert {"reach", "met", "raw"} <= found[key].keys()
    assert found["registrations_per_s"]["errors"] == [{}]
    assert found["rewrite_16k_s"]["rules"] == 64
    assert not list(tmp_path.iterdir())
    assert processes_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("script", ["controller.py", "controller_faults.py"])
def test_interrupt_ends_all_processes(script: str, tmp_path: Path) -> None:
    options = TINY if script == "controller.py" else ["--quick", "--store", "sqlite"]
    with subprocess.Popen(
        [sys.executable, str(BENCH / script), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        while len(processes_of(tmp_path)) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    assert processes_of(tmp_path) == []
