"""bench/softswitch_pps.py: what it prints, and how scaling is worked out. Asserts no speed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).resolve().parents[2] / "bench" / "softswitch_pps.py"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("softswitch_pps", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The processes of the scaling run import it by name.
    monkeypatch.setitem(sys.modules, "softswitch_pps", module)
    monkeypatch.syspath_prepend(str(PATH.parent))
    spec.loader.exec_module(module)
    return module


def test_json_holds_speed_scaling_load_and_why_there_is_no_bmv2(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "find_bmv2", lambda: None)
    assert bench.main(["--packets", "800", "--repeats", "1", "--processes", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "simple_switch is not on PATH" in report["bmv2"]["skipped"]
    assert len(report["load"]) == 2
    (one,) = report["scaling"]
    assert one["processes"] == len(one["cores"]) == 1
    assert one["pps_median"] > 0
    assert 0 < one["cpu_share_min"] <= 1.1


def test_efficiency_is_against_one_process(bench: ModuleType) -> None:
    found = {
        # 1000 packets in 1 s, and the core was free half of the time.
        1: [[bench.Round(0.0, 1.0, 0.5)]],
        # Two at once: 2000 packets from the first start to the last end.
        2: [[bench.Round(5.0, 6.0, 0.5), bench.Round(5.5, 7.0, 0.75)]],
    }
    one, two = bench.scaling_report(found, 1000, [3, 4])
    assert (one["cores"], one["pps_median"], one["pps_per_cpu_second"]) == ([3], 1000, 2000)
    assert "efficiency" not in one
    assert (two["cores"], two["pps_median"], two["pps_per_cpu_second"]) == ([3, 4], 1000, 1600)
    assert (two["efficiency"], two["efficiency_per_cpu_second"]) == (0.5, 0.8)
    assert two["cpu_share_min"] == 0.5


def test_more_processes_than_cores_are_refused(
    bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--processes", "100000"])
    assert "the cores that may be used" in capsys.readouterr().err
