"""The benchmark of the plugin's path: its keys and its proof, never its times."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.native.build import Built

BENCH = Path(__file__).resolve().parents[3] / "bench" / "tuner_path.py"


CALLS = {
    "get_coll_info_p50_ns", "get_coll_info_p99_ns", "telemetry_write_p99_ns",
    "quiet_get_coll_info_p50_ns", "quiet_get_coll_info_p99_ns", "quiet_telemetry_write_p99_ns",
    "switches", "system_calls",
}  # fmt: skip


def run(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--json", "--quick", *arguments],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_prints_its_keys_and_claims_no_others(built: Built) -> None:
    found = run("--part", "calls")
    assert set(found) == CALLS
    assert found["system_calls"] in (0, None)


def test_decisions_reach_all_ranks(built: Built) -> None:
    found = run("--part", "apply")
    assert set(found) == {
        "apply_all_ranks_ms", "apply_all_ranks_p90_ms", "wakeup_late_p90_ms",
    }  # fmt: skip
    assert 0 < found["apply_all_ranks_ms"] <= found["apply_all_ranks_p90_ms"]


@pytest.mark.root
def test_overhead_comes_with_its_interval(built: Built) -> None:
    found = run("--part", "overhead")
    if found["clean_overhead_pct"] is None:
        pytest.skip(found["clean_overhead_skipped"])
    low, high = found["clean_overhead_interval"]
    assert low <= found["clean_overhead_pct"] <= high
    assert set(found["clean_overhead_by_size"]) == {"65536"}


@pytest.mark.root
def test_engine_and_mpich_share_the_links(built: Built) -> None:
    """Each by TCP: what a rank receives shows that nothing went through shared memory."""
    found = run("--part", "mpich")
    if found["engine_vs_mpich"] is None:
        pytest.skip(found["engine_vs_mpich_skipped"])
    (row,) = found["engine_vs_mpich_by_size"]
    assert row["wire_engine"] > 0.9  # a tree brings a rank its data once
    assert row["wire_mpich"] > 0.9
    low, high = row["ratio_quartiles"]
    assert low <= row["ratio"] <= high


def test_senseless_arguments_are_refused() -> None:
    for wrong in (["--part", "all"], ["--calls", "0"]):
        done = subprocess.run([sys.executable, str(BENCH), *wrong], capture_output=True, text=True)
        assert done.returncode == 2
