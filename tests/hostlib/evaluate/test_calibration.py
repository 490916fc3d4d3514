from __future__ import annotations

from typing import Any

import pytest

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.evaluate.calibration import NotClean, measure
from ringstep.hostlib.evaluate.environment import FluidEnvironment, Ran
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces import scenarios as sc
from ringstep.hostlib.traces.fluid import CLEAN, FluidParams
from ringstep.hostlib.traces.generate import Job
from ringstep.hostlib.traces.noise import NoiseParams
from ringstep.hostlib.traces.scenarios import Schedule

SIZE = 64 << 20
KEY = Key.of(4, 4, Collective.ALL_REDUCE, SIZE)


class Disturbed(FluidEnvironment):
    """Has another schedule than it is asked for."""

    def __init__(self, schedule: Schedule | None, noise: NoiseParams | None = None) -> None:
        super().__init__(Job(FluidParams(), KEY, SIZE, noise or NoiseParams()), "cluster")
        self._other = schedule

    def start(self, schedule: Schedule, seed: int) -> None:
        super().start(self._other or schedule, seed)

    def run(self, config: Config | None) -> Ran:
        return super().run(config)


def test_a_clean_network_gives_its_baseline() -> None:
    env = Disturbed(None)
    found = measure([env])
    assert found.baselines[KEY] == pytest.approx(env.expected_us(None, CLEAN), rel=0.05)
    assert found.spread[KEY] < 0.05


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (sc.sustained(40, 0.7, 20), "load came or went"),
        (sc.spikes(40, dict.fromkeys(range(5, 40, 5), 0.7), 1), "spikes"),
        (sc.spikes(40, dict.fromkeys(range(3, 40, 4), 0.8), 2), "differ|load|spikes"),
    ],
)  # fmt: skip
def test_a_contended_network_is_refused(schedule: Schedule, why: str) -> None:
    with pytest.raises(NotClean, match=why):
        measure([Disturbed(schedule)])


def test_contention_that_never_changes_shows_against_what_is_expected() -> None:
    env = Disturbed(sc.sustained(40, 0.7, 0))
    measure([env])  # nothing else can tell
    with pytest.raises(NotClean, match="expected"):
        measure([env], expected_us=lambda e: Disturbed(None).expected_us(None, CLEAN))


def test_a_detector_is_asked_too(slow_detector: Any) -> None:
    with pytest.raises(NotClean, match="detector"):
        measure([Disturbed(None)], detector=slow_detector)


@pytest.fixture
def slow_detector() -> Any:
    class Always:
        prior, temper, rule = 0.5, 1.0, "sequence"

        def step(self, scalars: Any, collective: Any, memory: Any) -> float:
            return 10.0

    return Always()


def test_too_few_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="or more"):
        measure([Disturbed(None)], calls=5)
