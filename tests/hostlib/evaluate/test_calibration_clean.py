"""Which calls count as those of a clean network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.evaluate.calibration import NotClean, Series, observe
from ringstep.hostlib.evaluate.calibration.clean import judge, judge_repeats
from ringstep.hostlib.evaluate.environment import (
    Environment,
    FluidEnvironment,
    RecordedEnvironment,
)
from ringstep.hostlib.evaluate.record import sweep
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces import scenarios as sc
from ringstep.hostlib.traces.fluid import CLEAN, FluidParams, Load
from ringstep.hostlib.traces.generate import Job
from ringstep.hostlib.traces.noise import NoiseParams
from ringstep.hostlib.traces.scenarios import Schedule

SIZE, CALLS = 64 << 20, 64
KEY = Key.of(4, 4, Collective.ALL_REDUCE, SIZE)
QUIET = NoiseParams()
NOISY = NoiseParams(jitter=0.05, drift=0.02)


def fluid(noise: NoiseParams) -> Environment:
    return FluidEnvironment(Job(FluidParams(), KEY, SIZE, noise), "cluster")


def recorded(noise: NoiseParams) -> Environment:
    loads = [CLEAN, *(Load(level) for level in (0.5, 0.9))]
    return RecordedEnvironment(sweep(fluid(noise), loads, repeats=15, max_channels=1))


def seen(env: Environment, schedule: Schedule, seed: int = 0) -> Series:
    """What a measurement sees while the network does as the schedule says."""

    class Disturbed:
        name, key, n_bytes, run = env.name, env.key, env.n_bytes, staticmethod(env.run)
        oracle = staticmethod(env.oracle)

        def start(self, wanted: Schedule, seed: int) -> None:
            env.start(schedule, seed)

    return observe(Disturbed(), len(schedule), seed)


@pytest.mark.parametrize("make", [fluid, recorded])
@pytest.mark.parametrize("noise", [QUIET, NOISY])
def test_clean_networks_pass(
    make: Callable[[NoiseParams], Environment], noise: NoiseParams
) -> None:
    env = make(noise)
    truth = fluid(noise)
    assert isinstance(truth, FluidEnvironment)
    for seed in range(20):
        judged = judge(seen(env, sc.clean(CALLS), seed))
        assert judged.latency_us == pytest.approx(truth.expected_us(None, CLEAN), rel=0.1)
        assert judged.calls == CALLS - 3


CONTENDED = {
    "comes": sc.sustained(CALLS, 0.6, 30),
    "goes": sc.sustained(CALLS, 0.6, 0, 25),
    "nearly all of the time": sc.sustained(CALLS, 0.8, 0, CALLS - 5),
    "in between": sc.sustained(CALLS, 0.6, 20, 32),
    "changes": sc.steps(CALLS, {0: 0.5, 20: 0.8, 45: 0.6}),
    "spikes": sc.spikes(CALLS, dict.fromkeys((7, 20, 40), 0.5), 2),
    "bursty": sc.spikes(CALLS, dict.fromkeys(range(4, CALLS, 6), 0.7), 2),
    "every other call": sc.spikes(CALLS, dict.fromkeys(range(4, CALLS, 2), 0.7), 1),
}


@pytest.mark.parametrize("make", [fluid, recorded])
@pytest.mark.parametrize("noise", [QUIET, NOISY])
@pytest.mark.parametrize("what", CONTENDED)
def test_contention_is_refused(
    make: Callable[[NoiseParams], Environment], noise: NoiseParams, what: str
) -> None:
    env = make(noise)
    for seed in range(5):
        with pytest.raises(NotClean, match=r"load|spikes|differ.*measure again"):
            judge(seen(env, CONTENDED[what], seed))


def test_constant_contention_shows_against_an_expectation_alone() -> None:
    found = seen(fluid(NOISY), sc.sustained(CALLS, 0.6, 0))
    clean = judge(seen(fluid(NOISY), sc.clean(CALLS))).latency_us
    judge(found)
    with pytest.raises(NotClean, match="expected of a clean network"):
        judge(found, expected_us=clean)
    judge(seen(fluid(NOISY), sc.clean(CALLS), 5), expected_us=clean)


def of(times: Sequence[float], **other: object) -> Series:
    config = Config(Algo.RING, Proto.SIMPLE, 2)
    return Series("cluster", KEY, SIZE, config, times, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("series", "why"),
    [
        (of([100.0] * 15), "15 calls"),
        (of([]), "0 calls"),
        (of([100.0] * 20 + [math.nan]), "call 20 took nan"),
        (of([100.0] * 20 + [math.inf]), "which no call can"),
        (of([100.0] * 20 + [-1.0]), "call 20 took -1"),
        (of([100.0] * 20 + [0.0]), "call 20 took 0"),
        (of([100.0] * 20 + [4e9]), "clock stepped"),
        (of([100.0] * 20, time_ns=[*range(100, 110), *range(50, 60)]), "back before call 10"),
        (of([100.0] * 20, missed={3: 5}), "rank 3 did not tell of 5 of 25"),
        (of([200.0] * 20, before_us=[100.0] * 9), "before these took 100"),
    ],
)
def test_calls_that_say_nothing_are_refused(series: Series, why: str) -> None:
    with pytest.raises(NotClean, match=why):
        judge(series)


def test_what_a_clean_network_may_do() -> None:
    steady = [100.0] * 40
    assert judge(of([*steady, 190.0])).latency_us == 100.0  # one slow call
    judge(of(steady, missed={1: 1}))  # a record that was overwritten
    judge(of(steady, before_us=[30.0] * 3 + [300.0] * 30))  # slower before, or hardly measured


def test_repeats_of_many_configurations_tell_too() -> None:
    rng = np.random.default_rng(1)
    rows = [(m * np.exp(0.04 * rng.standard_normal(5))).tolist() for m in range(100, 900, 25)]
    assert judge_repeats("sweep", rows) == pytest.approx(0.04, rel=0.5)
    with pytest.raises(NotClean, match="came or went"):
        judge_repeats("sweep", [[*row[:3], *(1.3 * t for t in row[3:])] for row in rows])
    with pytest.raises(NotClean, match="spikes"):
        judge_repeats("sweep", [[2 * row[0], *row[1:]] if i % 3 else row for i, row in
                                enumerate(rows)])  # fmt: skip
    with pytest.raises(NotClean, match="expected"):
        judge_repeats("sweep", rows, 50.0)
    with pytest.raises(NotClean, match="more repeats"):
        judge_repeats("sweep", [row[:2] for row in rows])
