from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ringstep.hostlib.coordinator.autoccl import AutoCcl
from ringstep.hostlib.dynamic.actions import LEGAL, Config, Key, decode
from ringstep.hostlib.dynamic.safety import SafetyParams
from ringstep.hostlib.dynamic.sample import Sample
from ringstep.hostlib.dynamic.sprt import State
from ringstep.hostlib.rivals import (
    Coordinated,
    CusumRule,
    Fixed,
    LeaveNccl,
    ThresholdRule,
    UcbBandit,
)
from ringstep.hostlib.rivals.threshold import CONTENDED
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

KEY = Key.of(8, 4, Collective.ALL_REDUCE, 1 << 24)
USUAL = Config(Algo.RING, Proto.SIMPLE, 2)
Times = Callable[[Config | None], float]


class Run:
    """Feeds a policy, with a clock that goes on."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.now = policy, 10**9

    def __call__(self, times: Times, calls: int) -> list[Config | None]:
        ran = []
        for _ in range(calls):
            self.now += 10**7
            config = self.policy.process(KEY)
            self.policy.observe(
                Sample(KEY, 1 << 24, times(config), self.now, config or USUAL, config is not None)
            )
            ran.append(config)
        return ran


def clean(config: Config | None) -> float:
    return 100.0


def contended(config: Config | None) -> float:
    return 300.0 if config is None else 150.0


@pytest.mark.parametrize("rule", [ThresholdRule, CusumRule])
def test_rules_switch_after_four_contended_calls_and_back(rule: Any) -> None:
    run = Run(rule())
    run(clean, 20)
    assert run(contended, 5) == [None] * 4 + [CONTENDED]
    assert run(clean, 30)[-1] is None


@pytest.mark.parametrize("rule", [ThresholdRule, CusumRule])
def test_rules_leave_spikes_alone(rule: Any) -> None:
    run = Run(rule())
    run(clean, 20)
    for _ in range(6):
        assert run(contended, 2) == [None] * 2
        assert run(clean, 10) == [None] * 10
    assert run.policy.state(KEY) is State.STEADY


@pytest.mark.parametrize("rule", [ThresholdRule, CusumRule])
def test_with_a_trial_what_is_worse_is_rolled_back(rule: Any) -> None:
    run = Run(rule(safety=SafetyParams()))
    run(clean, 20)
    ran = run(lambda config: 300.0 if config is None else 400.0, 200)
    assert CONTENDED in ran
    assert ran[-100:] == [None] * 100


@pytest.mark.parametrize("bad", [math.nan, -1.0, 0.0])
@pytest.mark.parametrize("policy", [ThresholdRule, CusumRule, UcbBandit])
def test_impossible_latencies_are_left_out(policy: Any, bad: float) -> None:
    one, two = Run(policy()), Run(policy())
    assert one(clean, 20) == two(clean, 20)
    one(lambda config: bad, 5)
    assert one(clean, 20) == two(clean, 20)


def test_the_bandit_finds_the_best_and_follows_when_it_moves() -> None:
    legal = [decode(int(a)).plain for a in np.flatnonzero(LEGAL[KEY.collective])]
    first, second = legal[5], legal[20]
    run = Run(UcbBandit(fade=0.98))
    ran = run(lambda c: 100.0 if c == first else 200.0, 400)
    assert ran[-50:].count(first) > 30
    ran = run(lambda c: 100.0 if c == second else 200.0, 800)
    assert ran[-50:].count(second) > 30


def test_the_bandit_knows_legal_configurations_only() -> None:
    key = KEY._replace(collective=Collective.BROADCAST)
    bandit, now = UcbBandit(), 10**9
    for _ in range(60):
        config = bandit.process(key)
        assert config is None or config.algo is Algo.RING
        now += 10**7
        bandit.observe(Sample(key, 1 << 24, 100.0, now, config or USUAL, config is not None))


def test_a_fixed_table_and_nccl_do_not_change_their_minds() -> None:
    assert Run(Fixed({KEY: CONTENDED}))(contended, 20) == [CONTENDED] * 20
    assert Run(Fixed({}))(contended, 20) == [None] * 20
    assert Run(LeaveNccl())(contended, 20) == [None] * 20


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThresholdRule(ratio=1.0, over=1.2),
        lambda: ThresholdRule(calls=0),
        lambda: CusumRule(height=0.0),
        lambda: UcbBandit(fade=0.0),
    ],
)
def test_parameters_that_make_no_sense_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"above 0|calls >= 1"):
        make()


def test_policies_of_the_coordinator_can_be_driven_too() -> None:
    run = Run(Coordinated(AutoCcl()))
    assert run(clean, 8) == [None] * 8  # its baseline
    ran = run(lambda c: 300.0 / (c.n_channels if c else 2), 600)
    assert len({c for c in ran if c}) > 3
    last = ran[-1]
    assert last is not None
    assert last.n_channels >= 6
