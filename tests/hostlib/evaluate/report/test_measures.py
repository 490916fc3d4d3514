from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.evaluate.attribution import GROUPS
from ringstep.hostlib.evaluate.report.measures import MEASURES, Goal, Measure, Seen, counted
from ringstep.hostlib.evaluate.report.paper import NUMBERS
from ringstep.hostlib.evaluate.report.read import Measured
from ringstep.hostlib.evaluate.report.shape import Estimate, quantiles


def judged(goal: Goal, estimate: Estimate, **more: Any) -> str:
    measure = Measure("x", "x", lambda _: Seen(estimate, **more), none="never", goal=goal)
    return measure.verdict(Measured("e", Path("e"), {}))


def interval(low: float, value: float, high: float) -> Estimate:
    return {"low": low, "value": value, "high": high, "n": 9}


def test_a_goal_is_held_to_the_interval_too() -> None:
    least = Goal("at least 36 %", 0.36)
    assert judged(least, interval(0.37, 0.4, 0.5)) == "reached"
    assert judged(least, interval(0.3, 0.4, 0.5)) == "reached; the interval reaches beyond the goal"
    assert judged(least, interval(0.3, 0.35, 0.5)) == "missed; the goal is within the interval"
    assert judged(least, interval(0.3, 0.32, 0.35)) == "missed"
    most = Goal("at most 4", 4, at_most=True)
    assert judged(most, interval(3, 4, 4)) == "reached"
    assert judged(most, interval(3, 4, 5)) == "reached; the interval reaches beyond the goal"
    assert judged(most, interval(4, 5, 6)) == "missed; the goal is within the interval"
    assert judged(most, interval(5, 6, 7)) == "missed"
    assert judged(most, {"value": None, "low": None, "high": None}) == "missed"


def test_what_is_not_there_to_gain_is_no_miss() -> None:
    goal = Goal("at least 36 %", 0.36)
    low = interval(0.1, 0.2, 0.3)
    assert judged(goal, low, there=0.24) == "out of reach: the oracle gains 24.0 %"
    assert judged(goal, low, there=0.5) == "missed"
    assert judged(goal, interval(0.37, 0.4, 0.5), there=0.24) == "reached"


def test_counts_have_exact_intervals() -> None:
    assert counted(0)["low"] == 0
    assert counted(0)["high"] == pytest.approx(3.689, abs=1e-3)
    assert counted(3)["low"] == pytest.approx(0.619, abs=1e-3)
    assert counted(3)["high"] == pytest.approx(8.767, abs=1e-3)
    assert judged(Goal("0", 0, True), counted(0), exact=True) == "reached"
    assert judged(Goal("0", 0, True), counted(1), exact=True) == "missed"


def test_too_few_calls_show_nothing(result: dict[str, Any]) -> None:
    measure = next(m for m in MEASURES if m.id == "false/clean")
    clean = result["false_reconfigurations"]["dynamic"]["clean"]
    e = Measured("fluid", Path("fluid.json"), result)  # type: ignore[arg-type]
    assert measure.verdict(e) == "reached"
    clean["calls"] = 2000
    assert measure.verdict(e) == "not shown: fewer than 10,000 calls"
    clean["false_reconfigurations"] = 1
    assert measure.verdict(e) == "missed"


def test_every_measure_finds_its_figure(result: dict[str, Any]) -> None:
    e = Measured("fluid", Path("fluid.json"), result)  # type: ignore[arg-type]
    assert [m.id for m in MEASURES if m.get(e) is None] == []
    empty = Measured("none", Path("none.json"), {})
    assert [m.id for m in MEASURES if m.get(empty) is not None] == []
    assert len({m.id for m in MEASURES}) == len(MEASURES)


def test_every_number_of_the_paper_is_shown_somewhere() -> None:
    assert set(NUMBERS) - {m.id for m in MEASURES} == set()


def test_every_goal_of_the_issue_is_there() -> None:
    assert {m.id for m in MEASURES if m.goal} == {
        "inference/combined", "overhead", "detect/0.5", "detect/0.8", "false/spikes",
        "false/clean", "gain/0.8",
        *(f"{what}/{lv}" for what in ("fair", "share") for lv in ("0.5", "0.7", "0.8", "0.9")),
    }  # fmt: skip


def test_tables_are_summed_up(result: dict[str, Any]) -> None:
    e = Measured("fluid", Path("fluid.json"), result)  # type: ignore[arg-type]
    cells = {m.id: m.ours(e) for m in MEASURES}
    ours = result["sizes"]["dynamic"].values()
    heavy = [row[lv]["value"] for row in ours for lv in ("0.7", "0.8", "0.9")]
    assert cells["sizes/least"] == f"{100 * min(heavy):.1f} %"
    assert cells["sizes/most"] == f"{100 * max(heavy):.1f} %"
    means = [row["0.8"]["value"] for row in result["workloads"]["dynamic"].values()]
    assert cells["workloads/mean/0.8"] == f"{100 * sum(means) / 6:.1f} %"


def test_the_historys_share_is_of_squared_gradients(result: dict[str, Any]) -> None:
    e = Measured("fluid", Path("fluid.json"), result)  # type: ignore[arg-type]
    power = {n: result["attribution"][n]["gradient"] ** 2 * len(g) for n, g in GROUPS.items()}
    measure = next(m for m in MEASURES if m.id == "attribution/share/history")
    seen = measure.get(e)
    assert seen is not None
    assert seen.estimate["value"] == pytest.approx(power["history"] / sum(power.values()))


def test_another_policy_may_be_the_one_reported_on(result: dict[str, Any]) -> None:
    result["about"]["policy"] = "threshold+trial"
    e = Measured("fluid", Path("fluid.json"), result)  # type: ignore[arg-type]
    cells = {m.id: m.ours(e) for m in MEASURES}
    value = result["gains"]["threshold+trial"]["0.8"]["gain_vs_nccl"]["value"]
    assert cells["gain/0.8"].startswith(f"{100 * value:.1f} %")


def test_latencies_are_summarized() -> None:
    found = quantiles([float(i) for i in range(101)])
    assert (found["p05"], found["p50"], found["p95"]) == (5.0, 50.0, 95.0)
    assert (found["mean"], found["n"]) == (50.0, 101)
    with pytest.raises(ValueError, match="no latencies"):
        quantiles([])
