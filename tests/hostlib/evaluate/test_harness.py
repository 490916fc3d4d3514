from __future__ import annotations

import numpy as np
import pytest

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.dynamic.sample import Sample
from ringstep.hostlib.dynamic.sprt import State
from ringstep.hostlib.evaluate import experiments
from ringstep.hostlib.evaluate.environment import Environment, FluidEnvironment, Lagged
from ringstep.hostlib.evaluate.harness import Episode, run_episode
from ringstep.hostlib.rivals import Fixed, LeaveNccl, ThresholdRule
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces import scenarios as sc
from ringstep.hostlib.traces.fluid import FluidParams, Load
from ringstep.hostlib.traces.generate import Job
from ringstep.hostlib.traces.noise import NoiseParams

SIZE = 256 << 20
KEY = Key.of(4, 4, Collective.ALL_REDUCE, SIZE)
WIDE = Config(Algo.RING, Proto.SIMPLE, 8)


@pytest.fixture
def env() -> FluidEnvironment:
    return FluidEnvironment(Job(FluidParams(), KEY, SIZE, NoiseParams(outlier_rate=0.0)), "test")


def episode(labels: list[int], sustained: list[bool], configs: list[Config | None]) -> Episode:
    s = sc.blank("by hand", len(labels))
    s.label[:] = labels
    return Episode(s, np.ones(len(labels)), configs, np.array(sustained))


def test_calls_to_detection_are_counted_from_the_onset() -> None:
    labels = [0, 0, 2, 2, 2, 2]
    none: list[Config | None] = [None] * 6
    f, t = False, True
    assert episode(labels, [f, f, f, f, t, t], none).detect_calls == 3
    assert episode(labels, [f, f, t, f, f, f], none).detect_calls == 1
    assert episode(labels, [f] * 6, none).detect_calls == float("inf")
    assert episode(labels, [f, t, t, t, t, t], none).detect_calls == 0
    assert np.isnan(episode([0] * 6, [f] * 6, none).detect_calls)
    assert episode([0, 2, 2, 0, 0, 0], [f, f, f, t, t, t], none).detect_calls == float("inf")


def test_false_alarms_are_those_without_contention() -> None:
    found = episode(
        [0, 1, 1, 0, 2, 2], [False, True, True, False, True, True],
        [None, None, WIDE, WIDE, None, WIDE],
    )  # fmt: skip
    assert found.false_alarms == 1
    assert found.false_reconfigurations == 1
    assert found.reconfigurations == 3


def test_the_fluid_model_is_an_environment(env: FluidEnvironment) -> None:
    plain: Environment = env
    plain.start(sc.clean(3), 0)
    first, second = plain.run(None), plain.run(WIDE)
    assert second.time_ns > first.time_ns
    assert second.config == WIDE
    assert first.config == env.job.nccls
    plain.run(None)
    with pytest.raises(IndexError, match="3 calls"):
        plain.run(None)


def test_two_policies_meet_the_same_noise(env: FluidEnvironment) -> None:
    schedule = sc.sustained(60, 0.8, 20)
    one = run_episode(LeaveNccl(), env, schedule, 5)
    two = run_episode(LeaveNccl(), env, schedule, 5)
    np.testing.assert_array_equal(one.latency_us, two.latency_us)
    wide = run_episode(Fixed({KEY: WIDE}), env, schedule, 5)
    ratio = wide.latency_us[20:] / one.latency_us[20:]
    assert ratio.std() < 1e-9


def test_a_lag_delays_what_was_decided(env: FluidEnvironment) -> None:
    schedule = sc.sustained(60, 0.8, 20)
    prompt = run_episode(ThresholdRule(), env, schedule, 1)
    late = run_episode(ThresholdRule(), Lagged(env, 3), schedule, 1)
    first = [next(i for i, c in enumerate(e.configs) if c) for e in (prompt, late)]
    assert first[1] == first[0] + 3
    assert prompt.detect_calls == late.detect_calls == 4


def test_policies_are_told_what_ran(env: FluidEnvironment) -> None:
    seen: list[Sample] = []

    class Watcher:
        def process(self, key: Key) -> Config | None:
            return WIDE if len(seen) % 2 else None

        def observe(self, sample: Sample) -> None:
            seen.append(sample)

        def state(self, key: Key) -> State:
            return State.STEADY

    run_episode(Watcher(), env, sc.clean(6), 0)
    assert [s.decided for s in seen] == [False, True] * 3
    assert {s.config for s in seen if s.decided} == {WIDE}
    assert {s.n_bytes for s in seen} == {SIZE}


def test_experiments_find_what_is_there_to_gain(env: FluidEnvironment) -> None:
    makers: dict[str, experiments.Maker] = {
        "nccl": lambda e: LeaveNccl(),
        "rule": lambda e: ThresholdRule(config=e.oracle(Load(0.8))[KEY]),
    }
    gains = experiments.gains(makers, [env], range(2), levels=(0.0, 0.8), calls=140)
    assert gains["nccl"]["0.8"]["gain_vs_nccl"]["value"] == 0.0
    rule = gains["rule"]["0.8"]
    assert 0.2 < rule["gain_vs_nccl"]["value"] <= rule["oracle_gain"]["value"] + 0.02
    assert 0.9 < rule["share_of_oracle"]["value"] < 1.01
    assert gains["rule"]["0"]["mean_gain"]["value"] == 0.0
    detection = experiments.detection({"rule": makers["rule"]}, [env], range(2), levels=(0.8,))
    assert detection["rule"]["0.8"]["median"]["value"] == 4.0
    wrong = experiments.false_reconfigurations(makers, [env], range(2), clean_calls=400)
    assert wrong["rule"]["clean"] == {
        "calls": 400, "false_alarms": 0, "false_reconfigurations": 0
    }  # fmt: skip
    assert wrong["rule"]["spikes"]["spikes"] == 12
