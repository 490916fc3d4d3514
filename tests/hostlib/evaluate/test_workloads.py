from __future__ import annotations

import pytest

from ringstep.hostlib.evaluate import experiments
from ringstep.hostlib.evaluate.environment import Environment
from ringstep.hostlib.evaluate.harness import run_episode
from ringstep.hostlib.evaluate.workloads import PARAMETERS, FluidWorkload, buckets, workload
from ringstep.hostlib.rivals import LeaveNccl, ThresholdRule
from ringstep.hostlib.traces import scenarios as sc
from ringstep.hostlib.traces.fluid import Load


@pytest.mark.parametrize("name", PARAMETERS)
def test_all_gradients_are_in_buckets(name: str) -> None:
    sizes = buckets(PARAMETERS[name])
    assert sum(sizes) == int(4 * PARAMETERS[name])
    assert max(sizes) <= 25 << 20
    assert [n for _, n in workload(name).calls] == sizes


def test_a_workload_runs_its_keys_in_turn() -> None:
    env: Environment = FluidWorkload(workload("ResNet-50"), 4, 4)
    env.start(sc.clean(20), 0)
    seen = []
    for _ in range(10):
        seen.append(env.n_bytes)
        env.run(None)
    sizes = buckets(PARAMETERS["ResNet-50"])
    assert seen == (sizes * 3)[:10]
    assert len(env.oracle(Load(0.8))) == len({n.bit_length() for n in sizes})


def test_a_policy_learns_every_key_of_a_workload() -> None:
    env = FluidWorkload(workload("ResNet-50"), 4, 4)
    found = experiments.table(
        {"rule": lambda e: ThresholdRule(), "nccl": lambda e: LeaveNccl()},
        {"ResNet-50": env}, range(2), levels=(0.8,), calls=400,
    )  # fmt: skip
    assert found["nccl"]["ResNet-50"]["0.8"]["value"] == 0.0
    rule, oracle = (found[n]["ResNet-50"]["0.8"]["value"] for n in ("rule", "oracle"))
    assert 0.5 * oracle < rule <= oracle + 0.01


def test_episodes_of_workloads_are_repeatable() -> None:
    env = FluidWorkload(workload("DLRM"), 8, 4)
    one, two = (run_episode(LeaveNccl(), env, sc.clean(30), 3).latency_us for _ in range(2))
    assert one.tolist() == two.tolist()


def test_unknown_workloads_are_refused() -> None:
    with pytest.raises(ValueError, match="ViT-Large"):
        workload("AlexNet")
