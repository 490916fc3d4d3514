"""The benchmark of wrong refusals and wrong acceptances: its keys, never its rates."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench" / "tuner_calibration.py"


def test_prints_its_keys() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--json", "--jobs", "2", "--calls", "30"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert {"fluid", "recorded+expected", "sweep"} <= set(found)
    assert set(found["fluid"]) == {
        "clean", "single_spike", "spikes", "bursty", "sustained", "steps", "constant",
    }  # fmt: skip
    assert set(found["fluid"]["clean"]["quiet"]) == {"accepted", "harmful", "refused", "bias_p95"}
