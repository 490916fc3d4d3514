from __future__ import annotations

import subprocess
from collections.abc import Iterator
from statistics import median

import pytest

from ringstep.hostlib.dynamic.actions import Config
from ringstep.hostlib.evaluate.engine.environment import EngineEnvironment, EngineError
from ringstep.hostlib.evaluate.engine.fabric import Fabric, FabricError, missing
from ringstep.hostlib.evaluate.environment import Environment
from ringstep.hostlib.native.build import missing_tools
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces import scenarios as sc

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


@pytest.fixture
def env() -> Iterator[EngineEnvironment]:
    if (why := missing_tools("C++")) is not None:
        pytest.skip(why)
    try:
        with EngineEnvironment(Collective.ALL_REDUCE, 1 << 20, 2, 200e6, settle_s=0.1) as made:
            yield made
    except FabricError as error:
        pytest.skip(f"no namespaces here: {error}")


def namespaces() -> str:
    return subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


def test_what_is_asked_for_runs_and_rival_flows_slow_it_down(env: EngineEnvironment) -> None:
    plain: Environment = env
    schedule = sc.sustained(12, 0.8, 6)
    plain.start(schedule, 0)
    wanted = Config(Algo.TREE, Proto.LL, 3)
    ran = [plain.run(wanted if i in (2, 8) else None) for i in range(12)]
    assert [r.decided for r in ran] == [i in (2, 8) for i in range(12)]
    assert ran[2].config == ran[8].config == wanted
    assert ran[0].config.n_channels >= 1
    times = [r.time_ns for r in ran]
    assert times == sorted(times)
    clean = median(r.latency_us for r in ran[1:6])
    assert median(r.latency_us for r in ran[6:]) > 1.2 * clean
    with pytest.raises(IndexError, match="12 calls"):
        plain.run(None)


def test_a_rank_that_dies_is_named(env: EngineEnvironment) -> None:
    env.start(sc.clean(3), 0)
    env.run(None)
    env._ranks[1].kill()
    env._ranks[1].wait()
    with pytest.raises(EngineError):
        env.run(None)


def test_nothing_is_left_of_a_fabric() -> None:
    try:
        with Fabric(2, 100e6) as fabric:
            name = fabric.inside(0, [])[3]
            assert name in namespaces()
    except FabricError as error:
        pytest.skip(f"no namespaces here: {error}")
    assert name not in namespaces()


@pytest.mark.parametrize(("nodes", "rate"), [(1, 1e8), (65, 1e8), (4, 1e5)])
def test_fabrics_that_make_no_sense_are_refused(nodes: int, rate: float) -> None:
    with pytest.raises(ValueError, match=r"nodes|rate_bps"):
        Fabric(nodes, rate)
