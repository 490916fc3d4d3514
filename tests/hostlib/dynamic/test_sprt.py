import math

import numpy as np
import pytest

from ringstep.hostlib.dynamic.sprt import RuleName, Sprt, State, TestParams, paper_name

STRONG, SLOW = 8.0, 1.0


def run(rule: RuleName, logits: list[float], rhos: list[float] | None = None) -> list[State]:
    test = Sprt(rule)
    return [test.update(x, y) for x, y in zip(logits, rhos or [0.0] * len(logits), strict=True)]


def test_bounds_are_walds() -> None:
    p = TestParams(alpha=0.001, beta=0.02)
    assert p.upper == pytest.approx(math.log(0.98 / 0.001))
    assert p.lower == pytest.approx(math.log(0.02 / 0.999))


def test_three_calls_of_any_strength_are_a_spike_and_the_fourth_decides() -> None:
    states = run("sequence", [-8.0] * 5 + [20.0] * 4, [0.0] * 5 + [2.0] * 4)
    assert states == [State.STEADY] * 5 + [State.SPIKE] * 3 + [State.SUSTAINED]


def test_weak_evidence_takes_longer() -> None:
    states = run("sequence", [1.5] * 20, [0.3] * 20)
    assert 8 <= states.index(State.SUSTAINED) < 12


def test_clean_calls_after_a_spike_reset_the_evidence() -> None:
    states = run("sequence", ([20.0] * 3 + [-20.0] * 3) * 50, ([1.0] * 3 + [0.0] * 3) * 50)
    assert State.SUSTAINED not in states


def test_sustained_ends_only_when_that_is_shown() -> None:
    test = Sprt()
    for _ in range(4):
        test.update(STRONG, SLOW)
    assert test.state is State.SUSTAINED
    assert test.update(-STRONG, 0.0) is State.SUSTAINED
    for _ in range(3):
        test.update(-STRONG, 0.0)
    assert test.state is State.STEADY


def test_the_papers_rule_has_thresholds_on_the_posterior() -> None:
    def logit(p: float) -> float:
        return math.log(p / (1 - p))

    states = run("paper", [logit(p) for p in (0.94, 0.96, 0.5, 0.04)], [0.5, 0.5, 0.5, 0.0])
    assert states == [State.SPIKE, State.SUSTAINED, State.SUSTAINED, State.STEADY]


def test_walds_bounds_on_the_posterior_ask_for_more_than_the_paper() -> None:
    assert run("wald", [3.5])[-1] is State.STEADY
    assert run("paper", [3.5])[-1] is State.SUSTAINED
    assert run("wald", [5.0])[-1] is State.SUSTAINED


def test_calls_far_slower_than_any_drift_need_less_evidence() -> None:
    odds, far = [3.5] * 4, [1.5] * 4
    assert run("wald", odds, far)[-1] is State.SUSTAINED
    assert run("wald", odds[:3], far[:3])[-1] is State.SPIKE
    assert run("wald", odds, [1.5, 1.5, 1.0, 1.5])[-1] is State.SPIKE
    assert run("wald", [2.9] * 4, far)[-1] is State.SPIKE


def test_far_slower_calls_before_a_restart_do_not_count() -> None:
    test = Sprt("wald")
    for _ in range(3):
        test.update(3.5, 1.5)
    test.restart()
    assert test.update(3.5, 1.5) is State.SPIKE


def test_walds_posterior_is_left_only_at_the_opposite_bound() -> None:
    test = Sprt("wald")
    states = [test.update(x, 0.0) for x in (5.0, 1.0, -4.0, -5.0)]
    assert states == [State.SUSTAINED] * 3 + [State.STEADY]


@pytest.mark.parametrize("rule", ["sequence", "wald", "paper"])
def test_nan_is_no_evidence(rule: RuleName) -> None:
    assert run(rule, [math.nan] * 50) == [State.STEADY] * 50


def test_independent_evidence_raises_false_alarms_as_seldom_as_promised() -> None:
    """Log likelihood ratios of N(-m/2, m) sum to a test whose error Wald bounds by alpha."""
    rng = np.random.default_rng(4)
    params, alarms, tests = TestParams(alpha=0.05, beta=0.05, least_calls=1), 0, 2000
    for _ in range(tests):
        test, llr = Sprt("sequence", params), 0.0
        while params.lower < llr < params.upper:
            step = float(rng.normal(-0.25, math.sqrt(0.5)))
            llr = llr + step
            test.update(step, 0.0)
        alarms += test.state is State.SUSTAINED
    assert alarms / tests < 0.065


@pytest.mark.parametrize(
    ("p", "algorithm", "equation"),
    [
        (0.99, "SUSTAINED", "SUSTAINED"),
        (0.5, "WAIT", "STEADY-STATE"),
        (0.01, "SPIKE", "TRANSIENT-SPIKE"),
    ],
)
def test_the_papers_names(p: float, algorithm: str, equation: str) -> None:
    assert paper_name(p) == algorithm
    assert paper_name(p, algorithm_2=False) == equation


@pytest.mark.parametrize("bad", [{"alpha": 0.0}, {"beta": 0.5}, {"least_calls": 0}])
def test_bounds_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        TestParams(**bad)  # type: ignore[arg-type]


def test_unknown_rules_and_priors_are_refused() -> None:
    with pytest.raises(ValueError, match="rule"):
        Sprt("guess")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prior"):
        Sprt(prior=1.0)
