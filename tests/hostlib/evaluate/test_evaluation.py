from __future__ import annotations

from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.evaluate.environment import FluidEnvironment
from ringstep.hostlib.evaluate.evaluation import DYNAMIC, evaluate, evaluate_live, steps_of
from ringstep.hostlib.evaluate.experiments import Maker
from ringstep.hostlib.rivals import ThresholdRule
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces.fluid import FluidParams
from ringstep.hostlib.traces.generate import Job
from ringstep.hostlib.traces.noise import NoiseParams


def env(size: int) -> FluidEnvironment:
    key = Key.of(4, 4, Collective.ALL_REDUCE, size)
    return FluidEnvironment(Job(FluidParams(), key, size, NoiseParams()))


def test_where_calls_take_their_time_one_set_of_episodes_gives_several_figures() -> None:
    policies: dict[str, Maker] = {
        DYNAMIC: lambda env: ThresholdRule(),
        "threshold": lambda env: ThresholdRule(),
    }
    found = evaluate_live(policies, [env(1 << 20), env(64 << 20)], 2, 3, clean_calls=60)
    assert list(found["gains"][DYNAMIC]) == ["0", "0.5", "0.7", "0.8", "0.9"]
    assert found["detection"]["threshold"]["0.8"]["episodes"] == 6
    assert found["detection"]["threshold"]["0.5"]["episodes"] == 4
    assert set(found["sizes"]["oracle"]) == {"1 MiB", "64 MiB"}
    assert found["sizes"][DYNAMIC]["64 MiB"]["0.8"]["n"] == 3
    assert found["safety"]["losses"]["threshold"]["0"]["worst"] == 0.0
    # The same rule under two names has the same gains.
    assert found["gains"][DYNAMIC] == found["gains"]["threshold"]


def test_progress_is_told_as_often_as_it_was_said() -> None:
    policies: dict[str, Maker] = {
        DYNAMIC: lambda env: ThresholdRule(),
        "autoccl": lambda env: ThresholdRule(),
        "nccl": lambda env: ThresholdRule(),
    }
    told: list[str] = []
    evaluate_live(policies, [env(1 << 20)], 1, 1, clean_calls=20, progress=told.append)
    assert len(told) == steps_of(policies, live=True, tables=False, rules=False)
    told.clear()
    evaluate(policies, [env(1 << 20)], range(1), clean_calls=20, progress=told.append)
    assert len(told) == steps_of(policies, live=False, tables=False, rules=False)
