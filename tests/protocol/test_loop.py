"""The closed loop: its account under any times, its verdicts under noise, drift and heavy tails."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringstep.protocol.loop import OUTLIER, SPENT, Arm, ClosedLoop, LoopParams

Noise = Callable[[random.Random], float]
Drift = Callable[[int, str], float]
SEEDS = range(6)
SURPRISE = OUTLIER / 0.75 - 1
"""What one epoch is booked with at most: half of the safe epochs are at their median or above, none
counts as less than half of it."""


def quiet(rng: random.Random) -> float:
    return math.exp(rng.gauss(0, 0.05))


def noisy(rng: random.Random) -> float:
    return math.exp(rng.gauss(0, 0.15))


def heavy(rng: random.Random) -> float:
    """One epoch in twenty takes long, without a finite variance."""
    return math.exp(rng.gauss(0, 0.1)) * (rng.paretovariate(1.8) if rng.random() < 0.05 else 1)


SIGMA = {quiet: 0.05, noisy: 0.15, heavy: 0.17}
"""Of an epoch as it is booked."""


def arms(*names: str) -> list[Arm]:
    return [Arm(name) for name in ("safe", *names)]


def live(
    means: dict[str, float],
    epochs: int,
    noise: Noise,
    seed: int,
    start: str = "safe",
    drift: Drift = lambda _epoch, _arm: 1.0,
) -> tuple[ClosedLoop, list[float]]:
    """A loop after so many epochs, and by epoch the true excess over the safe arm, a share.

    The true excess is that of expected times: noise of the epochs themselves is not in it.
    """
    rng = random.Random(seed)
    true = {"safe": 1.0, **means}
    loop = ClosedLoop(arms(*means), "safe", start, seed=seed)
    spent = safe = 0.0
    excess = []
    for epoch in range(epochs):
        arm = loop.next_arm().name
        expected = true[arm] * drift(epoch, arm)
        loop.observe(arm, expected * noise(rng))
        spent += expected
        safe += drift(epoch, "safe")
        excess.append(spent / safe - 1)
    return loop, excess


# --- the account ------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    times=st.lists(
        st.floats(min_value=1e-6, max_value=1e6, allow_nan=False), min_size=1, max_size=150
    ),
    start=st.sampled_from(["safe", "a", "b"]),
    startup=st.integers(70, 200),
    seed=st.integers(0, 1000),
)
def test_no_times_at_all_make_it_book_more_than_the_budget_and_one_surprise(
    times: list[float], start: str, startup: int, seed: int
) -> None:
    loop = ClosedLoop(arms("a", "b"), "safe", start, startup=startup, seed=seed)
    for epoch, time in enumerate(times, start=1):
        loop.observe(loop.next_arm(), time)
        state = loop.state
        assert state.booked <= SPENT * 0.01 * max(epoch, startup) + SURPRISE + 1e-9
        assert -SURPRISE - 1e-9 <= state.account <= loop.params.capacity + 1e-9


@settings(max_examples=100)
@given(
    times=st.lists(st.floats(min_value=0.1, max_value=10), min_size=1, max_size=120),
    seed=st.integers(0, 1000),
)
def test_an_arm_runs_only_where_the_account_covers_it(times: list[float], seed: int) -> None:
    loop = ClosedLoop(arms("a", "b"), "safe", "b", seed=seed)
    for time in times:
        arm = loop.next_arm()
        state = loop.state
        if arm.name != "safe":
            assert state.account >= state.estimates[arm.name].pessimistic
        loop.observe(arm, time)


HARM: dict[str, dict[str, float]] = {
    "alike": {"a": 1.0},
    "a little": {"a": 1.04},
    "harm": {"a": 1.1, "b": 1.05, "c": 1.2},
    "disaster": {"a": 1.5},
    "gain": {"a": 0.95},
}


@pytest.mark.parametrize("start", ["safe", "a"])
@pytest.mark.parametrize("noise", [quiet, noisy, heavy])
@pytest.mark.parametrize("means", HARM.values(), ids=HARM)
def test_the_budget_holds_at_every_horizon(
    means: dict[str, float], noise: Noise, start: str
) -> None:
    runs = [live(means, 500, noise, seed, start)[1] for seed in SEEDS]
    # The stated error: two deviations of the mean of as many epochs.
    for epoch in range(100, 501):
        error = 2 * SIGMA[noise] / math.sqrt(epoch)
        assert max(run[epoch - 1] for run in runs) <= 0.01 + error
        assert fmean(run[epoch - 1] for run in runs) <= 0.01 + error / math.sqrt(len(SEEDS))


DRIFTS: dict[str, tuple[dict[str, float], Drift]] = {
    "a tenant comes and turns a gain into harm": (
        {"a": 0.8},
        lambda t, arm: 1.0 if t < 400 else 1.4 if arm == "safe" else 1.4 * 1.1 / 0.8,
    ),
    "the safe arm alone gets faster": (
        {"a": 0.8},
        lambda t, arm: 0.7 if t >= 400 and arm == "safe" else 1.0,
    ),
    "slower and slower": ({"a": 1.1}, lambda t, _: 1 + t / 1000),
    "faster and faster": ({"a": 1.1}, lambda t, _: 2 - t / 1000),
    "up and down": ({"a": 1.1}, lambda t, _: 1.3 if t // 50 % 2 else 1.0),
    "good and bad in turn": (
        {"a": 1.0},
        lambda t, arm: 1.0 if arm == "safe" else 0.8 if t // 200 % 2 == 0 else 1.2,
    ),
}


@pytest.mark.parametrize("noise", [quiet, noisy])
@pytest.mark.parametrize(("means", "drift"), DRIFTS.values(), ids=DRIFTS)
def test_the_budget_holds_while_things_change(
    means: dict[str, float], drift: Drift, noise: Noise
) -> None:
    runs = [live(means, 800, noise, seed, drift=drift)[1] for seed in SEEDS]
    for epoch in range(100, 801, 10):
        error = 2 * SIGMA[noise] / math.sqrt(epoch)
        assert max(run[epoch - 1] for run in runs) <= 0.01 + error


# --- the verdicts -----------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["safe", "b"])
@pytest.mark.parametrize(
    ("means", "noise", "epochs"),
    [
        ({"b": 0.7}, noisy, 60),
        ({"b": 0.9}, noisy, 700),
        ({"b": 0.95}, quiet, 250),
        ({"b": 0.85}, heavy, 600),
        ({"a": 1.1, "b": 0.8}, quiet, 200),
        ({"a": 0.9, "b": 0.75, "c": 1.02}, quiet, 600),
    ],
)
def test_the_faster_arm_is_kept(
    means: dict[str, float], noise: Noise, epochs: int, start: str
) -> None:
    kept = [live(means, epochs, noise, seed, start)[0].in_force for seed in SEEDS]
    assert kept.count("b") >= len(SEEDS) - 1


def test_five_percent_are_found_under_fifteen_percent_of_noise() -> None:
    kept = [live({"a": 0.95}, 1500, noisy, seed)[0].in_force for seed in SEEDS]
    assert kept.count("a") >= len(SEEDS) - 1


@pytest.mark.parametrize("noise", [quiet, noisy, heavy])
@pytest.mark.parametrize("start", ["safe", "a"])
def test_a_slower_arm_is_never_kept(noise: Noise, start: str) -> None:
    for seed in SEEDS:
        loop, _ = live({"a": 1.05, "b": 1.2}, 600, noise, seed, start)
        assert loop.in_force == "safe"


def test_of_arms_that_are_alike_the_simplest_is_kept() -> None:
    kept = [live({"a": 0.8, "b": 0.8}, 1200, quiet, seed, "b")[0].in_force for seed in SEEDS]
    assert kept.count("a") == len(SEEDS)
    assert all(live({"a": 1.0}, 600, quiet, s, "a")[0].in_force == "safe" for s in SEEDS)


def test_an_arm_in_force_is_dropped_when_it_turns() -> None:
    means, drift = DRIFTS["a tenant comes and turns a gain into harm"]
    for seed in SEEDS:
        before, _ = live(means, 400, quiet, seed, drift=drift)
        after, _ = live(means, 1000, quiet, seed, drift=drift)
        assert (before.in_force, before.state.proven) == ("a", True)
        assert after.in_force == "safe"


def test_an_arm_that_was_slower_is_found_when_it_no_longer_is() -> None:
    for seed in SEEDS:
        loop, _ = live(
            {"a": 1.1}, 2500, quiet, seed, drift=lambda t, arm: 0.7 if t > 300 and arm == "a" else 1
        )
        assert loop.in_force == "a"


def test_with_an_arm_in_force_the_safe_one_is_still_checked() -> None:
    loop, _ = live({"a": 0.7}, 100, quiet, 1)
    before = loop.state.estimates["safe"].epochs
    rng = random.Random(7)
    chosen = []
    for _ in range(240):
        chosen.append(loop.next_arm().name)
        loop.observe(chosen[-1], (0.7 if chosen[-1] == "a" else 1.0) * quiet(rng))
    assert loop.state.estimates["safe"].epochs - before == 20
    # In random order: not every twelfth epoch.
    at = [i for i, name in enumerate(chosen) if name == "safe"]
    assert len({later - sooner for sooner, later in pairwise(at)}) > 3


def test_bounds_hold_the_truth_as_often_as_they_say_whenever_one_looks() -> None:
    missed = 0
    for seed in range(40):
        rng = random.Random(seed)
        loop = ClosedLoop(arms("a"), "safe", seed=seed)
        outside = False
        for epoch in range(150):
            arm = loop.next_arm()
            loop.observe(arm, noisy(rng))
            if epoch % 10 == 9:
                found = loop.state.estimates["a"]
                outside = outside or not found.low <= 0 <= found.high
        missed += outside
    assert missed <= 6  # 5 % of 40 are 2; seven or more have a chance of 1 in 300.


# --- the interface ----------------------------------------------------------------------------


def test_a_start_with_evidence_is_in_force_at_once_and_the_safe_arm_comes_early() -> None:
    loop = ClosedLoop(arms("a"), "safe", "a")
    names = []
    for _ in range(8):
        names.append(loop.next_arm().name)
        loop.observe(names[-1], 0.7 if names[-1] == "a" else 1.0)
    assert names[:4] == ["a", "safe", "safe", "safe"]
    assert names.count("a") == 3
    assert (loop.in_force, loop.state.proven) == ("a", False)


@pytest.mark.parametrize("lean", [1, 5])
def test_a_job_leans_on_an_arm_that_is_not_proven_as_far_as_it_is_told_to(lean: int) -> None:
    loop = ClosedLoop(arms("a"), "safe", "a", lean=lean, confidence=0.999999)
    rng, names = random.Random(3), []
    for _ in range(4 + 10 * (lean + 1)):
        names.append(loop.next_arm().name)
        loop.observe(names[-1], (0.97 if names[-1] == "a" else 1.0) * noisy(rng))
    assert not loop.proven
    assert names[4:].count("safe") == 10


def test_an_arm_that_others_have_proven_is_checked_and_held_back_like_any_other() -> None:
    loop = ClosedLoop(arms("a"), "safe", "a", check=12)
    for _ in range(6):
        loop.observe(loop.next_arm(), 1.0)
    loop.accept()
    assert loop.proven
    names = []
    for _ in range(48):
        names.append(loop.next_arm().name)
        loop.observe(names[-1], 0.8 if names[-1] == "a" else 1.0)
    assert names.count("safe") == 4
    for _ in range(100):
        names.append(loop.next_arm().name)
        loop.observe(names[-1], 1.3 if names[-1] == "a" else 1.0)
    assert names[48:].count("a") < 20


def test_an_unproven_start_that_uses_up_the_account_gives_way() -> None:
    loop = ClosedLoop(arms("a"), "safe", "a")
    for _ in range(30):
        arm = loop.next_arm()
        loop.observe(arm, 1.3 if arm.name == "a" else 1.0)
    assert loop.in_force == "safe"
    assert loop.state.rival == "a"
    assert "safe runs until the account" in loop.state.reason
    assert loop.state.estimates["a"].change == pytest.approx(0.3)


def test_a_full_account_pays_for_the_first_trial() -> None:
    # 0.75 * 0.01 * 60 is a little less than 0.45 in floating point.
    loop = ClosedLoop(arms("a"), "safe", startup=60, worst=0.45)
    names = []
    for _ in range(6):
        names.append(loop.next_arm().name)
        loop.observe(names[-1], 1.0)
    assert "a" in names


def test_an_arm_beyond_the_account_is_left_alone() -> None:
    loop = ClosedLoop(arms("a", "b"), "safe", startup=100)
    for _ in range(250):
        arm = loop.next_arm()
        loop.observe(arm, 10.0 if arm.name == "a" else 1.0)
    assert loop.state.estimates["a"].epochs == 1
    assert loop.state.estimates["b"].epochs > 5


def test_the_next_arm_is_the_same_until_something_is_observed() -> None:
    loop = ClosedLoop(arms("a", "b"), "safe")
    for _ in range(40):
        arm = loop.next_arm()
        before = loop.to_dict()
        assert loop.next_arm() is arm
        assert loop.to_dict() == before
        loop.observe(arm, 1.0)


def test_an_epoch_of_another_arm_than_asked_for_is_booked() -> None:
    loop = ClosedLoop(arms("a"), "safe")
    for _ in range(10):
        loop.observe("safe", 2.0)
    before = loop.state
    assert before.safe_time == 2.0
    loop.observe("a", 3.0)
    loop.observe("a", 3.0)
    assert loop.state.booked == pytest.approx(1.0)
    assert loop.state.account == pytest.approx(before.account - 1.0)
    assert loop.state.time == pytest.approx(26.0)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_any_unit_will_do(unit: float) -> None:
    chosen = []
    for scale in (1.0, unit):
        rng = random.Random(3)
        loop = ClosedLoop(arms("a", "b"), "safe")
        names = []
        for _ in range(200):
            names.append(loop.next_arm().name)
            loop.observe(names[-1], scale * quiet(rng) * (0.9 if names[-1] == "a" else 1.0))
        chosen.append(names)
    assert chosen[0] == chosen[1]


@settings(max_examples=50)
@given(
    before=st.integers(0, 120),
    after=st.integers(1, 60),
    seed=st.integers(0, 100),
    start=st.sampled_from(["safe", "a"]),
)
def test_a_restart_goes_on_as_if_nothing_had_happened(
    before: int, after: int, seed: int, start: str
) -> None:
    rng = random.Random(seed)
    means = {"safe": 1.0, "a": 0.85, "b": 1.1}

    def step(loop: ClosedLoop, noise: float) -> str:
        arm = loop.next_arm()
        loop.observe(arm, means[arm.name] * noise)
        return arm.name

    loop = ClosedLoop(arms("a", "b"), "safe", start, seed=seed)
    for _ in range(before):
        step(loop, noisy(rng))
    again = ClosedLoop.from_dict(json.loads(json.dumps(loop.to_dict())))
    assert again.state == loop.state
    for _ in range(after):
        noise = noisy(rng)
        assert step(loop, noise) == step(again, noise)
    assert again.to_dict() == loop.to_dict()


def test_the_same_seed_gives_the_same_choices_and_another_one_another_order() -> None:
    def order(seed: int) -> list[str]:
        loop = ClosedLoop(arms("a"), "safe", seed=seed)
        names = []
        for _ in range(40):
            names.append(loop.next_arm().name)
            loop.observe(names[-1], 1.0)
        return names

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_settings_come_back_as_they_were_given() -> None:
    given_arms = [Arm("safe"), Arm("a", {"planned": True, "k": 0.01})]
    loop = ClosedLoop.from_dict(ClosedLoop(given_arms, "safe", "a").to_dict())
    assert loop.next_arm() == given_arms[1]


@pytest.mark.parametrize("cct", [math.nan, math.inf, 0.0, -1.0, "1", None, True])
def test_a_time_that_is_none_is_refused_and_changes_nothing(cct: Any) -> None:
    loop = ClosedLoop(arms("a"), "safe")
    arm = loop.next_arm()
    before = loop.to_dict()
    with pytest.raises(ValueError, match=r"cct = .*must be a"):
        loop.observe(arm, cct)
    assert loop.to_dict() == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClosedLoop([Arm("safe")], "safe"), "a loop chooses between two or more"),
        (lambda: ClosedLoop(arms("a", "a"), "safe"), "arms: 'a' stands twice"),
        (lambda: ClosedLoop(arms("a"), "b"), "safe = 'b': is none of the arms: safe, a"),
        (lambda: ClosedLoop(arms("a"), "safe", "c"), "start = 'c': is none of the arms: safe, a"),
        (lambda: ClosedLoop(arms("a"), "safe", budget=0), "budget = 0: must lie between 0 and 1"),
        (lambda: LoopParams(worst=0.9), r"would never pay for a trial; take startup = 120 or more"),
        (lambda: LoopParams(confidence=1.0), "confidence = 1.0: must lie between 0.5 and 1"),
        (lambda: LoopParams(check=2), "check = 2: must be a whole number from 4"),
        (lambda: LoopParams(startup=1.5), r"startup = 1\.5: must be a whole number from 1"),  # type: ignore[arg-type]
        (lambda: LoopParams(worth=math.nan), "worth = nan: must lie between"),
        (lambda: LoopParams(budget="1%"), "budget = '1%': must be a number"),  # type: ignore[arg-type]
        (lambda: ClosedLoop(arms("a"), "safe").observe("b", 1.0), "arm 'b': is none of the arms"),
        (lambda: ClosedLoop.from_dict({}), "not the state of a closed loop of format 1"),
        (
            lambda: ClosedLoop.from_dict(
                {**ClosedLoop(arms("a"), "safe").to_dict(), "plan": ["x"]}
            ),
            "'x' is none of the arms",
        ),
        (
            lambda: ClosedLoop.from_dict({**ClosedLoop(arms("a"), "safe").to_dict(), "tally": 3}),
            "not the state of a closed loop: ",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_estimates_say_what_was_seen() -> None:
    loop, _ = live({"a": 0.8}, 300, quiet, 2)
    found = loop.state.estimates["a"]
    assert found.change is not None
    assert found.low < found.change < found.high < 0
    assert found.change == pytest.approx(-0.2, abs=0.03)
    assert loop.state.safe_time == pytest.approx(1.0, abs=0.05)
    assert "a in force, proven against safe" in loop.state.reason
    assert loop.state.estimates["safe"].epochs + found.epochs == loop.state.epochs == 300
    assert median([found.low, 0.0, found.high]) == found.high
