"""The benchmark of a decision's way to all ranks: its keys, never its times."""

import json
import subprocess
import sys
from pathlib import Path

from ringstep.hostlib.native.build import Built

BENCH = Path(__file__).resolve().parents[3] / "bench" / "apply_time.py"


def test_prints_its_keys(built: Built) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--json", "--ranks", "4", "--switches", "3",
         "--period-us", "2000"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert set(found) == {
        "apply_all_ranks_ms", "apply_all_ranks_p90_ms", "apply_all_ranks_max_ms", "own_p50_ms",
        "ranks", "processes", "switches", "period_us", "cpu_idle_pct", "cpu_busy_pct",
        "wakeup_late_p50_ms", "wakeup_late_p90_ms",
    }  # fmt: skip
    assert (found["ranks"], found["switches"]) == (4, 3)
    assert found["apply_all_ranks_ms"] > 0
