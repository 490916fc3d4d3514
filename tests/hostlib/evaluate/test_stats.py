import numpy as np
import pytest

from ringstep.hostlib.evaluate.stats import bootstrap, sign_flip


def mean(values: list[float]) -> float:
    return float(np.mean(values))


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for i in range(200):
        found = bootstrap(rng.normal(3.0, 1.0, 40).tolist(), mean, seed=i, rounds=300)
        held += found.low <= 3.0 <= found.high
    assert 0.88 <= held / 200 <= 0.99


def test_a_single_unit_has_no_width() -> None:
    found = bootstrap([2.0], mean)
    assert (found.value, found.low, found.high, found.n) == (2.0, 2.0, 2.0, 1)


def test_intervals_are_the_same_each_time() -> None:
    values = [1.0, 2.0, 5.0]
    assert bootstrap(values, mean, seed=1) == bootstrap(values, mean, seed=1)


def test_infinite_figures_do_not_break_an_interval() -> None:
    found = bootstrap([1.0, float("inf"), float("inf")], lambda v: float(np.median(v)))
    assert found.value == float("inf")
    assert np.isfinite(found.low)


def test_no_difference_is_seldom_significant() -> None:
    rng = np.random.default_rng(1)
    p = [sign_flip(rng.normal(0, 1, 10).tolist()) for _ in range(300)]
    assert 0.02 <= np.mean(np.array(p) < 0.05) <= 0.09


@pytest.mark.parametrize("n", [8, 40])
def test_a_clear_difference_is_significant(n: int) -> None:
    rng = np.random.default_rng(2)
    assert sign_flip((1.0 + 0.2 * rng.normal(0, 1, n)).tolist()) < 0.01


def test_few_pairs_cannot_be_significant() -> None:
    assert sign_flip([1.0, 1.0, 1.0]) == 0.25


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        sign_flip([])
    with pytest.raises(ValueError, match="nothing"):
        bootstrap([], mean)
