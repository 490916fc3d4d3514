"""Medians, result.json, table and picture."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from ringstep.lab.results import Experiment, FlowRun, Run, draw, table, write_json
from ringstep.lab.scenario import Geometry, Mode


def flow(start: float, completion: float) -> FlowRun:
    return FlowRun(start, completion, packets=10, retransmissions=0, ce_received=1, cnps_received=1)


def experiment() -> Experiment:
    result = Experiment({"k": 0.01}, Geometry.PAPER, 1000.0, (500.0, 1000.0))
    completions = {
        Mode.IDEAL: [(900, 910), (905, 915), (895, 905)],
        Mode.DCQCN: [(1400, 1380), (1350, 1400), (1390, 1390)],
        Mode.MARKER: [(1150, 1400), (1160, 1410), (1155, 1450)],
    }
    for mode, runs in completions.items():
        for seed, (a, b) in enumerate(runs):
            marked = {"data": 20, "marks": 5 if mode is Mode.MARKER else 0, "red_marks": 7}
            run = Run(seed, flow(0, a), flow(500, b), overlap_ms=a - 500, marked=marked)
            result.cell(500.0, mode).runs.append(run)
    return result


def test_json_holds_a_record_per_delay_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "result.json"
    write_json(experiment(), path)
    written = json.loads(path.read_text())
    assert [r["mode"] for r in written["results"]] == ["ideal", "dcqcn", "marker"]
    marker = written["results"][2]
    assert marker["delay_ms"] == 500
    assert (marker["a_ms"], marker["b_ms"], marker["overlap_ms"]) == (1155, 1410, 655)
    assert marker["a_spread_ms"] == [1150, 1160]
    assert len(marker["runs"]) == 3
    assert marker["runs"][0]["marked"]["marks"] == 5
    assert written["parameters"] == {"k": 0.01}
    assert list(tmp_path.rglob(".*")) == []


def test_comparison_states_change_paper_and_bound() -> None:
    comparison = experiment().comparison(500.0)
    assert comparison["a_change_percent"] == pytest.approx(100 * (1155 - 1390) / 1390, abs=0.01)
    assert comparison["paper"]["a_change_percent"] == pytest.approx(-12.45, abs=0.01)
    assert comparison["paper"]["b_change_percent"] == pytest.approx(2.43, abs=0.01)
    assert comparison["bound"]["a_ms"] == 905
    assert comparison["bound"]["b_ms"] == 2 * 905 - 500


def test_no_paper_numbers_for_other_delays_or_geometries() -> None:
    assert experiment().comparison(500.0)["paper"] is not None
    other = experiment()
    other.geometry = Geometry.LATE
    assert other.comparison(500.0)["paper"] is None


def test_table_fits_a_terminal_and_leaves_out_what_was_not_measured() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(table(experiment()))
    text = console.export_text()
    assert "1155 ±5" in text
    assert "-16.9 %" in text
    assert "15/21" not in text
    assert "5/7" in text
    assert "1000" not in text
    assert "…" not in text


def test_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'ringstep[report]'")
    path = tmp_path / "timelines.png"
    draw(experiment(), path)
    assert path.read_bytes().startswith(b"\x89PNG")
