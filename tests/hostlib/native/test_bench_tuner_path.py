"""The benchmark of the plugin's path: its keys and its proof, never its times."""

import json
import subprocess
import sys
from pathlib import Path

from ringstep.hostlib.native.build import Built

BENCH = Path(__file__).resolve().parents[3] / "bench" / "tuner_path.py"


def test_prints_its_keys_and_claims_no_others(built: Built) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--json", "--calls", "20000"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert set(found) == {
        "get_coll_info_p50_ns", "get_coll_info_p99_ns", "telemetry_write_p99_ns",
        "quiet_get_coll_info_p50_ns", "quiet_get_coll_info_p99_ns", "quiet_telemetry_write_p99_ns",
        "switches", "system_calls",
    }  # fmt: skip
    assert found["system_calls"] in (0, None)
