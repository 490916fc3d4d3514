from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import pytest

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.evaluate.engine.cluster import (
    EngineCluster,
    EngineError,
    congestion_controls,
)
from ringstep.hostlib.evaluate.engine.environment import (
    EngineEnvironment,
    EngineWorkload,
    scaled,
)
from ringstep.hostlib.evaluate.environment import Environment
from ringstep.hostlib.evaluate.workloads import Workload, workload
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces import scenarios as sc
from ringstep.hostlib.traces.fluid import CLEAN, Load
from ringstep.hostlib.traces.sweep import Sweep

TREE = Config(Algo.TREE, Proto.LL, 3)
RING = Config(Algo.RING, Proto.SIMPLE, 2)
MIXED = Workload(
    "mixed",
    [
        (Collective.ALL_REDUCE, 16 << 10),
        (Collective.ALL_GATHER, 300_001),
        (Collective.ALL_REDUCE, 16 << 10),
    ],
)


@pytest.fixture
def env(links: None) -> Iterator[EngineEnvironment]:
    with EngineEnvironment(Collective.ALL_REDUCE, 1 << 20, 2, 200e6, settle_s=0.1) as made:
        yield made


@pytest.mark.root
@pytest.mark.slow
def test_what_is_asked_for_runs_and_rival_flows_slow_it_down(env: EngineEnvironment) -> None:
    plain: Environment = env
    schedule = sc.sustained(12, 0.8, 6)
    plain.start(schedule, 0)
    ran = [plain.run(TREE if i in (2, 8) else None) for i in range(12)]
    assert [r.decided for r in ran] == [i in (2, 8) for i in range(12)]
    assert ran[2].config == ran[8].config == TREE
    assert ran[0].config.n_channels >= 1
    times = [r.time_ns for r in ran]
    assert times == sorted(times)
    clean = median(r.latency_us for r in ran[1:6])
    assert median(r.latency_us for r in ran[6:]) > 1.2 * clean
    with pytest.raises(IndexError, match="12 calls"):
        plain.run(None)


@pytest.mark.root
def test_a_slow_host_is_late_by_its_share(env: EngineEnvironment) -> None:
    usual = median(env.call(None, CLEAN).latency_us for _ in range(4))
    assert env.call(None, Load(slow_host=4.0)).latency_us > 2.5 * usual


@pytest.mark.root
def test_a_rank_that_dies_is_named(env: EngineEnvironment) -> None:
    env.start(sc.clean(3), 0)
    env.run(None)
    rank = env.cluster._ranks[1]
    rank.kill()
    rank.wait()
    with pytest.raises(EngineError, match=rf"{rank.pid}|0|1"):
        env.run(None)


@pytest.mark.root
def test_keys_and_ranks_of_a_node_share_processes_and_links(links: None) -> None:
    with EngineCluster(2, 200e6, ranks_per_node=2, settle_s=0.05, rivals="reno") as cluster:
        env = EngineWorkload(MIXED, cluster)
        assert "2 nodes of 2 ranks" in env.name
        assert env.name.endswith("against reno")
        env.start(sc.sustained(6, 0.5, 3), 0)
        small = Key.of(4, 2, Collective.ALL_REDUCE, 16 << 10)
        large = Key.of(4, 2, Collective.ALL_GATHER, 300_000)
        keys, sizes, ran = [], [], []
        for i in range(6):
            keys.append(env.key)
            sizes.append(env.n_bytes)
            ran.append(env.run(RING if i == 1 else None))
        assert keys == [small, large, small] * 2
        assert sizes == [16 << 10, 300_000, 16 << 10] * 2
        assert [r.decided for r in ran] == [False, True, *[False] * 4]
        assert ran[1].config == RING
        assert all(r.latency_us > 0 for r in ran)
        with pytest.raises(IndexError, match="6 calls"):
            env.run(None)


def found(key: Key, n_bytes: int, best: Config) -> Sweep:
    rows = ((10.0,), (20.0,))
    return Sweep(
        f"by hand, {n_bytes}", key, n_bytes, (CLEAN, Load(0.8)), RING, rows,
        {RING: rows, TREE: rows, best: ((10.0,), (5.0,))},
    )  # fmt: skip


def test_the_oracle_of_each_key_comes_from_the_sweep_nearest_in_bytes() -> None:
    cluster = EngineCluster(2)
    env = EngineWorkload(MIXED, cluster)
    small = cluster.key(Collective.ALL_REDUCE, 16 << 10)
    large = cluster.key(Collective.ALL_GATHER, 300_000)
    near = found(small, 16 << 10, TREE)
    assert env.oracle(Load(0.8)) == {}
    assert env.learn([found(small, 20_000, RING), near]) == [large]
    assert env.oracle(Load(0.8)) == {small: TREE}
    assert env.learn([near, found(large, 1 << 18, RING)]) == []
    assert env.oracle(Load(0.8)) == {small: TREE, large: RING}
    with pytest.raises(ValueError, match="a sweep of"):
        env.environments[0].learn(replace(near, key=large))


def test_a_scaled_workload_has_as_many_calls() -> None:
    whole, less = workload("BERT"), scaled(workload("BERT"), 64)
    assert [64 * n for _, n in less.calls] == pytest.approx([n for _, n in whole.calls], abs=64)
    assert "bytes / 64" in less.name
    with pytest.raises(ValueError, match="by = 0"):
        scaled(whole, 0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"nodes": 1}, "nodes = 1"),
        ({"nodes": 65}, "nodes = 65"),
        ({"rate_bps": 1e5}, "rate_bps"),
        ({"rate_bps": float("nan")}, "rate_bps"),
        ({"queue_ms": 0.0}, "queue_ms"),
        ({"ranks_per_node": 0}, "ranks_per_node"),
        ({"rivals": "carrier pigeon"}, "this kernel has"),
    ],
)
def test_clusters_that_make_no_sense_are_refused(options: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        EngineCluster(**options)  # type: ignore[arg-type]
    assert congestion_controls()


def test_too_few_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="16 or more for 4 ranks"):
        EngineEnvironment(Collective.ALL_REDUCE, 15)


def test_a_cluster_that_was_not_entered_says_so() -> None:
    with pytest.raises(EngineError, match="with"):
        EngineEnvironment(Collective.ALL_REDUCE, 1 << 20).call(None, CLEAN)
