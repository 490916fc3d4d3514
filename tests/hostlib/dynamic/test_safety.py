import numpy as np
import pytest

from ringstep.hostlib.dynamic.actions import Config
from ringstep.hostlib.dynamic.safety import Guard, SafetyParams, Verdict
from ringstep.hostlib.shm_layout import Algo, Proto

BETTER = Config(Algo.RING, Proto.SIMPLE, 8)
OTHER = Config(Algo.TREE, Proto.SIMPLE, 4)


def drive(
    guard: Guard, times: dict[Config | None, float], calls: int, seed: int = 0, noise: float = 0.03
) -> tuple[list[Config | None], float]:
    """Run calls as the guard wants them; return them and what they took."""
    rng = np.random.default_rng(seed)
    ran, took = [], 0.0
    for _ in range(calls):
        config = guard.config()
        latency = times[config] * float(np.exp(rng.normal(0, noise)))
        guard.observe(config, latency)
        ran.append(config)
        took += latency
    return ran, took


def warmed(guard: Guard, latency: float = 100.0) -> Guard:
    for _ in range(8):
        guard.observe(None, latency)
    return guard


def test_without_a_trial_nccl_decides() -> None:
    guard = Guard()
    assert guard.config() is None
    assert drive(guard, {None: 100.0}, 50)[0] == [None] * 50


def test_a_trial_begins_with_the_proposal() -> None:
    guard = warmed(Guard())
    assert guard.begin([BETTER])
    assert guard.config() == BETTER


def test_what_is_better_is_kept_with_few_calls_of_the_other() -> None:
    guard = warmed(Guard())
    guard.begin([BETTER])
    ran, _ = drive(guard, {None: 100.0, BETTER: 60.0}, 300)
    assert guard.in_force == BETTER
    assert guard.proven
    assert ran[:40].count(BETTER) >= 20
    assert ran[100:].count(None) <= 30


@pytest.mark.parametrize("worse", [100.0, 105.0, 130.0, 190.0, 1000.0])
def test_what_is_not_better_is_rolled_back(worse: float) -> None:
    guard = warmed(Guard())
    guard.begin([BETTER])
    drive(guard, {None: 100.0, BETTER: worse}, 300)
    assert not guard.open
    assert guard.rollbacks == 1
    assert guard.config() is None


def test_what_is_undecided_has_most_calls_until_ranks_decide() -> None:
    """Where single calls take long at random, the loop's bets alone need a hundred calls."""
    rng = np.random.default_rng(4)

    def call(config: Config | None) -> float:
        return float(rng.choice([60.0, 60.0, 120.0] if config == BETTER else [100.0, 100.0, 200.0]))

    guard = Guard()
    for _ in range(8):
        guard.observe(None, call(None))
    guard.begin([BETTER])
    ran = []
    while not guard.proven and len(ran) < 60:
        ran.append(guard.config())
        guard.observe(ran[-1], call(ran[-1]))
    assert guard.proven
    assert guard.in_force == BETTER
    assert ran.count(None) <= len(ran) // 4


def test_what_is_kept_and_turns_out_far_too_slow_costs_two_calls() -> None:
    guard = warmed(Guard())
    guard.begin([BETTER])
    drive(guard, {None: 100.0, BETTER: 80.0}, 40)
    assert guard.proven
    ran, _ = drive(guard, {None: 100.0, BETTER: 2000.0}, 100)
    assert ran.count(BETTER) == 2
    assert guard.rollbacks == 1
    assert guard.account == pytest.approx(2.25 - 2 * 19, abs=2)


def test_a_single_call_that_takes_far_too_long_is_chance() -> None:
    guard = warmed(Guard())
    guard.begin([BETTER])
    drive(guard, {None: 100.0, BETTER: 80.0}, 40)
    guard.observe(BETTER, 500.0)
    assert guard.config() is None  # NCCL's choice is asked
    guard.observe(None, 100.0)
    drive(guard, {None: 100.0, BETTER: 80.0}, 100)
    assert guard.proven


def test_what_the_account_no_longer_covers_makes_room_for_others() -> None:
    """An undecided proposal that waits for money would keep all others from being tried."""
    rolled_back = 0
    for seed in range(30):
        guard = warmed(Guard(seed=seed))
        guard.begin([BETTER])
        ran, _ = drive(guard, {None: 100.0, BETTER: 103.0}, 120, seed, noise=0.25)
        rolled_back += not guard.open
        waits = 0
        for config in reversed(ran):
            if config is not None:
                break
            waits += 1
        assert waits < 20 or not guard.open
    assert rolled_back >= 15


def test_what_is_undecided_and_looks_no_better_goes_soon() -> None:
    guard = warmed(Guard(), 100.0)
    guard.begin([BETTER])
    rng, ran = np.random.default_rng(0), 0
    first = [80.0, 120.0] * 6  # looks better in the mean of its row only by chance
    while guard.open and ran < 80:
        config = guard.config()
        by_chance = first[ran] * 0.9 if ran < len(first) else 100.0
        latency = by_chance if config == BETTER else 100.0 * float(np.exp(rng.normal(0, 0.02)))
        guard.observe(config, latency)
        ran += 1
    assert not guard.open
    assert ran < 60


@pytest.mark.parametrize("worse", [110.0, 150.0, 195.0])
@pytest.mark.parametrize("seed", range(3))
def test_trial_after_trial_never_costs_more_than_the_budget(worse: float, seed: int) -> None:
    params = SafetyParams()
    guard = warmed(Guard(params, seed))
    took, calls = 0.0, 0
    for _ in range(60):
        guard.begin([BETTER])
        took += drive(guard, {None: 100.0, BETTER: worse}, 50, seed + calls, noise=0.0)[1]
        calls += 50
    allowed = params.budget * max(calls, params.startup) + (worse / 100.0 - 1)
    assert took / 100.0 - calls <= allowed


def test_a_trial_that_the_account_cannot_pay_does_not_begin() -> None:
    guard = warmed(Guard())
    while guard.can_open():
        guard.begin([BETTER])
        drive(guard, {None: 100.0, BETTER: 190.0}, 60)
        if guard.trials > 20:
            break
    assert guard.trials <= 5
    assert not guard.begin([BETTER])


def test_the_second_proposal_has_its_turn() -> None:
    guard = warmed(Guard(SafetyParams(startup=400)))
    guard.begin([OTHER, BETTER])
    drive(guard, {None: 100.0, OTHER: 85.0, BETTER: 60.0}, 400)
    assert guard.in_force == BETTER


def test_what_stops_being_better_is_rolled_back() -> None:
    guard = warmed(Guard())
    guard.begin([BETTER])
    drive(guard, {None: 100.0, BETTER: 60.0}, 100)
    assert guard.in_force == BETTER
    drive(guard, {None: 50.0, BETTER: 60.0}, 800)
    assert guard.in_force is None


def test_a_jump_of_what_is_in_force_asks_nccls_choice_again() -> None:
    guard = warmed(Guard())
    guard.begin([BETTER])
    drive(guard, {None: 100.0, BETTER: 60.0}, 100)
    ran, _ = drive(guard, {None: 45.0, BETTER: 40.0}, 12)
    assert ran.count(None) >= 4


def test_a_verdict_is_told() -> None:
    guard = warmed(Guard())
    assert guard.observe(None, 100.0) is None
    guard.begin([BETTER])
    verdicts = []
    for _ in range(60):
        config = guard.config()
        verdicts.append(guard.observe(config, 60.0 if config else 100.0))
    assert verdicts[0] is Verdict.OPEN
    assert verdicts[-1] is Verdict.KEPT


def test_parameters_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="account"):
        Guard(SafetyParams(budget=0.001))


def test_calls_that_come_late_are_paid_for_too() -> None:
    guard = warmed(Guard())
    full = guard.account
    guard.begin([BETTER])
    while guard.open:
        guard.observe(guard.config(), 130.0)
    left = guard.account
    assert left < full
    for _ in range(3):  # ranks had not agreed on going back yet
        guard.observe(BETTER, 130.0)
    assert guard.account == pytest.approx(left - 0.9)
    guard.observe(None, 100.0)
    assert guard.account == pytest.approx(left - 0.9)


def test_calls_while_connections_settle_are_paid_for_and_judge_nothing() -> None:
    guard = warmed(Guard())
    guard.begin([BETTER])
    before = guard.account
    for _ in range(4):
        guard.charge(BETTER, 110.0)
    assert guard.account == pytest.approx(before - 0.4)
    drive(guard, {None: 100.0, BETTER: 60.0}, 20)
    assert guard.proven
