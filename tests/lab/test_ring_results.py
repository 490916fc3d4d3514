"""What the lab makes of its runs: overlap, intervals, table, plot."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from ringstep.lab.allreduce import Traffic
from ringstep.lab.pace import CpuMeter, Pace, flow_time_us
from ringstep.lab.ring_results import (
    Overlap,
    RingExperiment,
    RingRun,
    StepRow,
    bootstrap,
    draw,
    links_of,
    marker_lines,
    shared_share,
    table,
    write_json,
)

SEEDS = range(1, 6)
KEPT = Pace(0.99, 0.2, 3.0, 2.6, 0.01, 0.3, 1.0)
LOST = Pace(0.80, 9.0, 30.0, 2.6, 0.5, 0.3, 9.0)


def row(rank: int, step: int, begin: float, end: float, way: str = "leaf1>spine1>leaf2") -> StepRow:
    return StepRow(rank, step, way, begin, begin, end)


def a_run(seed: int, paths: str, marking: str, cct_ms: float, pace: Pace = KEPT) -> RingRun:
    half = cct_ms / 2
    return RingRun(
        seed=seed,
        paths=paths,
        marking=marking,
        background=True,
        cct_ms=cct_ms,
        counted={"data": 9, "marks": 3 if marking != "off" else 0, "red_marks": 5},
        ways_confirmed=None,
        traffic=Traffic(12, 11, 1, 0, 6, 4),
        background_bytes=10_000,
        steps=[row(0, 0, 0, half), row(1, 0, 5, half), row(0, 1, half - 10, cct_ms)],
        pace=pace,
    )


def experiment() -> RingExperiment:
    runs = [
        a_run(seed, paths, marking, base + 10 * seed)
        for seed in SEEDS
        for paths, base in (("ecmp", 1000.0), ("planned", 500.0))
        for marking in ("off", "paper", "ringstep")
    ]
    return RingExperiment(parameters={"steps": 2}, bound_ms=400.0, runs=runs)


def test_overlap_counts_different_steps_not_flows() -> None:
    overlap = Overlap.of([row(0, 0, 0, 10), row(1, 0, 2, 12), row(0, 1, 10, 20), row(1, 2, 11, 13)])
    assert overlap.most == 3
    assert overlap.counts[0] == 1
    assert overlap.counts[-1] == 0
    assert overlap.mean == pytest.approx((10 * 1 + 1 * 2 + 1 * 3 + 1 * 2 + 7 * 1) / 20)


def test_a_step_that_ends_as_the_next_begins_does_not_overlap_it() -> None:
    assert Overlap.of([row(0, 0, 0, 10), row(0, 1, 10, 20)]).most == 1


def test_time_that_flows_share_a_link_between_switches() -> None:
    assert links_of("leaf1>spine1>leaf2") == ("leaf1>spine1", "spine1>leaf2")
    alone = [row(0, 0, 0, 10), row(1, 0, 0, 10, "leaf1>spine2>leaf2")]
    assert shared_share(alone) == 0
    # The second flow meets the first on its way down only, for half of both flows' time.
    met = [row(0, 0, 0, 10), row(1, 0, 5, 15, "leaf3>spine1>leaf2")]
    assert shared_share(met) == pytest.approx(0.5)


def test_intervals_hold_the_median_and_repeat() -> None:
    values = [3.0, 1.0, 4.0, 1.5, 9.0]
    low, high = bootstrap(values)
    assert low <= 3.0 <= high
    assert (low, high) == bootstrap(values)
    # Few values say nothing about their spread.
    assert bootstrap(values[:4]) is None


def test_changes_are_taken_seed_by_seed_against_the_first_variant() -> None:
    record = experiment().to_json()
    by_name = {(s["paths"], s["marking"]): s for s in record["summary"]}
    assert by_name["ecmp", "off"]["change_percent"] == 0
    planned = by_name["planned", "off"]
    assert planned["cct_ms"] == 530
    assert planned["of_bound"] == 1.325
    assert planned["change_percent"] == pytest.approx(100 * (530 / 1030 - 1), abs=0.01)
    low, high = planned["change_interval_percent"]
    assert low <= planned["change_percent"] <= high
    assert planned["dropped"] == 5


def test_the_marker_is_compared_with_red_alone_on_the_same_paths() -> None:
    found = experiment()
    found.runs += [a_run(seed, "planned", "best", 600.0 + 11 * seed) for seed in SEEDS]
    lines = marker_lines(found)
    assert len(lines) == 5
    assert lines[0].split()[:5] == ["ecmp", "+bg", "paper", "+0.0", "%"]
    assert lines[-1].split() == ["planned", "+bg", "best", "+19.4", "%", "(+19.1", "to", "+19.8)"]
    record = found.to_json()["summary"][-1]
    assert (record["marking"], record["marker_change_percent"]) == ("best", 19.43)


def test_variants_of_two_fabrics_stand_together() -> None:
    runs = [a_run(1, paths, marking, 500.0) for marking in ("off", "spaced", "paper")
            for paths in ("ecmp", "planned")]  # fmt: skip
    found = RingExperiment(parameters={"steps": 2}, bound_ms=400.0, runs=runs)
    assert [s.variant[:2] for s in found.summaries()] == [
        ("ecmp", "off"), ("ecmp", "spaced"), ("ecmp", "paper"),
        ("planned", "off"), ("planned", "spaced"), ("planned", "paper"),
    ]  # fmt: skip
    assert RingExperiment(parameters={}, bound_ms=1.0).summaries() == []


def test_a_run_that_lost_pace_is_flagged() -> None:
    found = experiment()
    found.runs.append(a_run(9, "ecmp", "off", 1500.0, LOST))
    record = found.to_json()
    assert record["lost_pace"] == 1
    assert record["summary"][0]["lost_pace"] == 1
    assert not record["runs"][-1]["pace"]["kept"]


def test_the_table_fits_80_columns_and_cuts_nothing_off() -> None:
    out = io.StringIO()
    found = experiment()
    found.runs.append(a_run(9, "planned", "off", 123_456.0, LOST))
    Console(file=out, width=80, force_terminal=False).print(table(found))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in out.getvalue()
    assert any("planned +bg" in line and "lost 1" in line for line in lines)


def test_result_file_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'ringstep[report]'")
    found = experiment()
    write_json(found, tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text()) == json.loads(
        json.dumps(found.to_json())
    )
    draw(found, tmp_path / "overlap.png")
    assert (tmp_path / "overlap.png").read_bytes().startswith(b"\x89PNG")


def test_time_of_a_flow_over_store_and_forward_links() -> None:
    # 1000 bytes: 80 us at 100 Mb/s, 160 us at 50; 9 more packets follow at the slowest link's pace.
    assert flow_time_us(10, 1000, (100e6, 50e6, 100e6)) == pytest.approx(80 + 160 + 80 + 9 * 160)


def test_cpu_shares_of_a_process_that_is_gone_are_zero() -> None:
    meter = CpuMeter([2**22 + 1])
    busy, waited = meter.shares()
    assert busy >= 0
    assert waited >= 0
