from pathlib import Path

import pytest

from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.dynamic.baseline import (
    FIRST_CALLS,
    WINDOW,
    Baseline,
    Baselines,
    CalibrationError,
    load_calibration,
    save_calibration,
)
from ringstep.hostlib.shm_layout import Collective

KEY = Key.of(4, 4, Collective.ALL_REDUCE, 1 << 20)


def feed(baseline: Baseline, value: float, times: int) -> None:
    for _ in range(times):
        baseline.add(value)


def test_it_is_the_median_of_the_first_calls() -> None:
    baseline = Baseline()
    assert baseline.value is None
    for value in (100.0, 101.0, 99.0, 900.0, 100.0, 98.0, 102.0):
        baseline.add(value)
    assert baseline.value == 100.0
    assert baseline.trusted


def test_contention_that_comes_later_does_not_move_it() -> None:
    baseline = Baseline()
    feed(baseline, 100.0, FIRST_CALLS)
    feed(baseline, 300.0, 10_000)
    assert baseline.value == 100.0


def test_contention_from_the_start_is_forgotten_when_it_ends() -> None:
    baseline = Baseline()
    feed(baseline, 250.0, 50)
    assert baseline.value == 250.0
    feed(baseline, 100.0, WINDOW)
    assert baseline.value == 100.0


def test_one_fast_call_does_not_lower_it() -> None:
    baseline = Baseline()
    feed(baseline, 100.0, 30)
    feed(baseline, 10.0, 3)
    feed(baseline, 100.0, 30)
    assert baseline.value == 100.0


def test_first_calls_that_disagree_are_not_trusted() -> None:
    baseline = Baseline()
    for value in (100.0, 300.0, 120.0, 280.0, 110.0, 310.0, 200.0):
        baseline.add(value)
    assert not baseline.trusted


def test_a_calibration_counts_from_the_first_call_on() -> None:
    baselines = Baselines({KEY: 80.0})
    assert baselines.of(KEY).value == 80.0
    assert baselines.of(KEY).trusted
    feed(baselines.of(KEY), 240.0, 100)
    assert baselines.of(KEY).value == 80.0


def test_a_key_that_is_forgotten_starts_anew() -> None:
    baselines = Baselines()
    feed(baselines.of(KEY), 100.0, 20)
    baselines.forget(KEY)
    assert baselines.of(KEY).value is None


def test_calibration_files_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    values = {KEY: 80.5, Key(8, 2, Collective.BROADCAST, 10): 3.25}
    save_calibration(path, values)
    assert load_calibration(path) == values


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "not a calibration"),
        ('{"format": "other"}', "not a calibration"),
        ('{"format": "ringstep-baselines-1", "baselines": [{"ranks": 4}]}', r"baselines\[0\]"),
        (
            '{"format": "ringstep-baselines-1", "baselines": [{"ranks": 4, "nodes": 2,'
            ' "collective": "all_reduce", "size_class": 20, "latency_us": -1}]}',
            "above 0",
        ),
    ],
)
def test_a_bad_calibration_says_what_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(CalibrationError, match=why):
        load_calibration(path)


def test_a_first_median_that_was_off_is_refined_by_calls_near_it() -> None:
    baseline = Baseline()
    feed(baseline, 92.0, FIRST_CALLS)
    feed(baseline, 100.0, 24)
    assert baseline.value == 100.0


def test_contention_in_the_first_calls_does_not_refine_it() -> None:
    baseline = Baseline()
    feed(baseline, 100.0, FIRST_CALLS)
    feed(baseline, 150.0, 200)
    assert baseline.value == 100.0
