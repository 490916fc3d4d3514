from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.dynamic import policy as module
from ringstep.hostlib.dynamic.actions import Config, Key, encode
from ringstep.hostlib.dynamic.baseline import Baselines
from ringstep.hostlib.dynamic.policy import WARM_UP, DynamicPolicy, PolicyParams
from ringstep.hostlib.dynamic.sample import GpuStats, Sample
from ringstep.hostlib.dynamic.sprt import State
from ringstep.hostlib.dynamic.weights import Weights, save
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

KEY = Key.of(8, 4, Collective.ALL_REDUCE, 1 << 24)
USUAL = Config(Algo.RING, Proto.SIMPLE, 2)
BETTER = Config(Algo.RING, Proto.SIMPLE, 8)

Call = Callable[..., Sample]
Make = Callable[..., DynamicPolicy]


@pytest.fixture
def make(slow: Any, wants: Any) -> Callable[..., DynamicPolicy]:
    def really(**more: Any) -> DynamicPolicy:
        return DynamicPolicy(slow, wants(BETTER), PolicyParams(proposals=1), **more)

    return really


def run(
    policy: DynamicPolicy, call: Call, times: Callable[[Config | None], float], n: int
) -> list[Config | None]:
    ran = []
    for _ in range(n):
        config = policy.process(KEY)
        policy.observe(call(times(config), config))
        ran.append(config)
    return ran


def clean(config: Config | None) -> float:
    return 100.0


def contended(config: Config | None) -> float:
    return 300.0 if config is None else 180.0


def test_a_clean_network_is_left_alone(make: Make, call: Call) -> None:
    policy = make()
    assert run(policy, call, clean, 200) == [None] * 200
    assert policy.state(KEY) is State.STEADY


def test_sustained_contention_is_answered_in_the_fourth_call(make: Make, call: Call) -> None:
    policy = make()
    run(policy, call, clean, 20)
    assert run(policy, call, contended, 5) == [None] * 4 + [BETTER]
    assert policy.state(KEY) is State.SUSTAINED


def test_what_proves_better_is_kept_and_left_when_contention_ends(make: Make, call: Call) -> None:
    policy = make()
    run(policy, call, clean, 20)
    run(policy, call, contended, 100)
    assert policy.kept(KEY)
    after = run(policy, call, lambda config: 100.0 if config is None else 105.0, 100)
    assert after[-20:] == [None] * 20
    assert policy.state(KEY) is State.STEADY


def test_what_proves_no_better_is_rolled_back_and_not_tried_again(make: Make, call: Call) -> None:
    policy = make()
    run(policy, call, clean, 20)
    ran = run(policy, call, lambda config: 300.0, 400)
    assert ran[-300:] == [None] * 300
    assert policy.status(KEY)["trials"] == 1
    assert policy.status(KEY)["rollbacks"] == 1


def test_spikes_of_three_calls_are_left_alone(make: Make, call: Call) -> None:
    policy = make()
    run(policy, call, clean, 20)
    for _ in range(6):
        assert run(policy, call, contended, 3) == [None] * 3
        assert policy.state(KEY) is State.SPIKE
        assert run(policy, call, clean, 10) == [None] * 10


def test_nothing_is_decided_while_it_warms_up(make: Make, call: Call) -> None:
    policy = make(baselines=Baselines({KEY: 100.0}))
    assert run(policy, call, contended, WARM_UP) == [None] * WARM_UP
    assert policy.state(KEY) is State.STEADY
    assert BETTER in run(policy, call, contended, 6)


def test_the_cold_first_call_is_not_part_of_the_baseline(make: Make, call: Call) -> None:
    policy = make()
    policy.observe(call(5000.0))
    run(policy, call, clean, 20)
    assert policy.status(KEY)["baseline_us"] == 100.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -5.0, 1e13])
def test_latencies_that_are_no_times_are_left_out(make: Make, call: Call, bad: float) -> None:
    policy = make()
    run(policy, call, clean, 20)
    for _ in range(50):
        policy.observe(call(bad))
    assert policy.state(KEY) is State.STEADY
    assert policy.status(KEY)["refused_samples"] == 50
    assert policy.status(KEY)["baseline_us"] == 100.0


def test_a_clock_that_is_set_back_costs_one_sample(make: Make, call: Call) -> None:
    policy = make()
    run(policy, call, clean, 20)
    policy.observe(call(100.0, time_ns=5))
    policy.observe(call(100.0))
    assert policy.status(KEY)["refused_samples"] == 1
    assert policy.status(KEY)["calls"] == 21


def test_a_collective_never_seen_is_left_to_nccl(make: Make, call: Call) -> None:
    policy = make()
    other = Key(8, 4, 9, 20)  # type: ignore[arg-type]
    policy.observe(call(key=other))
    assert policy.process(other) is None
    assert policy.status(other)["calls"] == 0


def test_a_key_that_is_forgotten_starts_anew(make: Make, call: Call) -> None:
    policy = make()
    run(policy, call, clean, 20)
    run(policy, call, contended, 10)
    policy.forget(KEY)
    assert policy.process(KEY) is None
    assert policy.status(KEY) == {"calls": 0, "state": "steady"}


def test_a_decision_that_is_never_applied_is_given_up(
    make: Make, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NOT_APPLIED", 16)
    policy = make()
    run(policy, call, clean, 20)
    asked = []
    for _ in range(100):
        asked.append(policy.process(KEY))
        policy.observe(call(300.0))  # whatever was asked for, NCCL's choice runs
    assert BETTER in asked
    assert asked[-20:] == [None] * 20


def test_pairs_that_a_rank_lacks_are_not_asked_for(make: Make, call: Call) -> None:
    policy = make()
    policy.usable[KEY] = {(Algo.RING, Proto.LL)}
    run(policy, call, clean, 20)
    ran = run(policy, call, contended, 30)
    assert BETTER not in ran


def test_without_networks_nccl_decides_always(call: Call) -> None:
    policy = DynamicPolicy(None, None)
    assert run(policy, call, contended, 50) == [None] * 50


def test_damaged_weights_are_an_error_at_load_and_a_bypass_at_run_time(
    tmp_path: Path, detector_weights: Weights, selector_weights: Weights, call: Call,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    save(tmp_path / module.DETECTOR_FILE, detector_weights)
    (tmp_path / module.SELECTOR_FILE).write_bytes(b"garbage")
    with pytest.raises(ValueError, match="damaged"):
        DynamicPolicy.load(tmp_path)
    policy = DynamicPolicy.load_or_bypass(tmp_path)
    assert "leaves NCCL alone" in caplog.text
    assert run(policy, call, contended, 30) == [None] * 30
    save(tmp_path / module.SELECTOR_FILE, selector_weights)
    DynamicPolicy.load(tmp_path)


def test_real_networks_take_gpu_figures_and_stay_finite(
    detector_weights: Weights, selector_weights: Weights, call: Call
) -> None:
    policy = DynamicPolicy(module.Detector(detector_weights), module.Selector(selector_weights))
    for i in range(60):
        sample = call(100.0 if i < 30 else 400.0, policy.process(KEY))
        policy.observe(
            Sample(
                sample.key,
                sample.n_bytes,
                sample.latency_us,
                sample.time_ns,
                sample.config,
                sample.decided,
                GpuStats(0.9, 0.5, 0.8),
            )
        )
    assert math.isfinite(policy.status(KEY)["probability"])


def test_after_a_long_silence_what_was_remembered_is_of_another_time(
    make: Make, call: Call
) -> None:
    policy = make()
    run(policy, call, clean, 20)
    run(policy, call, contended, 3)  # one more would decide
    later = call(300.0)
    policy.observe(
        Sample(KEY, later.n_bytes, 300.0, later.time_ns + 2 * module.GAP_NS, later.config, False)
    )
    assert policy.state(KEY) is State.SPIKE
    assert policy.status(KEY)["baseline_us"] == 100.0


def test_the_rule_fits_what_the_detector_was_trained_to_say(detector_weights: Weights) -> None:
    for contended, rule in ((1.0, "sequence"), (0.0, "wald")):
        params = {**detector_weights.params, "contended": contended}
        detector = module.Detector(Weights("detector", detector_weights.tensors, "", params))
        assert detector.rule == rule


def test_a_wide_ring_is_tried_where_the_selector_errs(slow: Any, wants: Any, call: Call) -> None:
    wrong = Config(Algo.TREE, Proto.LL, 2)

    def times(config: Config | None) -> float:
        return {None: 300.0, BETTER: 150.0}.get(config, 320.0)

    class Unsure(wants):  # type: ignore[misc]
        def values(self, hidden: Any, scalars: Any) -> Any:
            q = super().values(hidden, scalars)
            q[0, encode(BETTER)] = 0.5
            return q

    policy = DynamicPolicy(slow, Unsure(wrong), PolicyParams(proposals=1))
    run(policy, call, clean, 20)
    ran = run(policy, call, times, 60)
    assert ran[4:6] == [wrong, wrong]
    assert ran[-1] == BETTER
    alone = DynamicPolicy(slow, wants(wrong), PolicyParams(proposals=1, hedge=False))
    run(alone, call, clean, 20)
    assert BETTER not in run(alone, call, times, 60)
