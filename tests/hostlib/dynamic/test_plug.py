from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.coordinator import policies
from ringstep.hostlib.coordinator.policy import CallKey, Options, Policy, PolicyError, Ran, Sample
from ringstep.hostlib.dynamic import plug
from ringstep.hostlib.dynamic.actions import Config
from ringstep.hostlib.dynamic.baseline import Baselines, save_calibration
from ringstep.hostlib.dynamic.plug import Dynamic, make
from ringstep.hostlib.dynamic.weights import Weights, save
from ringstep.hostlib.shm import Decision
from ringstep.hostlib.shm_layout import Algo, Collective, EntryState, Proto

PAIRS = frozenset({(Algo.RING, Proto.SIMPLE), (Algo.RING, Proto.LL), (Algo.TREE, Proto.SIMPLE)})
KEY = CallKey("comm 1", Collective.ALL_REDUCE, 24, 1 << 24, 4, 2, PAIRS)
BETTER = Config(Algo.RING, Proto.SIMPLE, 8)


def told(at: int, latency_ns: int, decision: Decision | None = None) -> Sample:
    ran = Ran(Algo.RING, Proto.SIMPLE, 2)
    if decision is not None:
        ran = Ran(decision.algo, decision.proto, decision.n_channels)
    return Sample(
        KEY, at, at, 10**9 + at * 10**8, {0: latency_ns - 50, 1: latency_ns}, frozenset(), ran, 1,
        decision, decision is not None, EntryState.NONE,
    )  # fmt: skip


@pytest.fixture
def plugged(slow: Any, wants: Any) -> Dynamic:
    return Dynamic(slow, wants(BETTER), Baselines())


def test_it_is_a_policy_of_the_coordinator(
    tmp_path: Path, detector_weights: Weights, selector_weights: Weights
) -> None:
    save(tmp_path / "detector.safetensors", detector_weights)
    save(tmp_path / "selector.safetensors", selector_weights)
    save_calibration(tmp_path / "calibration.json", {})
    policy = policies.make("dynamic:.", Options(folder=tmp_path))
    assert isinstance(policy, Policy)
    assert policy.name == "dynamic"
    assert not policy.static
    assert policy.process(KEY) is None


def test_version_rises_when_the_answer_changes_and_only_then(plugged: Dynamic) -> None:
    versions = []
    for i in range(40):
        decision = plugged.process(KEY)
        slow = 3_000_000 if decision is None else 1_500_000
        plugged.observe(told(i, 1_000_000 if i < 20 else slow, decision))
        versions.append(plugged.version)
    assert versions[:23] == [1] * 23
    assert versions[23] == 2
    decision = plugged.process(KEY)
    assert decision is None or (decision.algo, decision.n_channels) == (Algo.RING, 8)


def test_samples_that_say_too_little_are_left_out(plugged: Dynamic) -> None:
    for i in range(40):
        sample = told(i, 3_000_000)
        plugged.observe(replace(sample, duration_ns={}))
        plugged.observe(replace(sample, missing=frozenset({3})))
        plugged.observe(replace(sample, ran=Ran(None, None, 0)))
    assert plugged.process(KEY) is None


def test_a_rank_that_stops_telling_ends_what_was_decided(plugged: Dynamic) -> None:
    for i in range(40):
        decision = plugged.process(KEY)
        slow = 3_000_000 if decision is None else 1_500_000
        plugged.observe(told(i, 1_000_000 if i < 20 else slow, decision))
    in_force, version = plugged.process(KEY), plugged.version
    assert in_force is not None
    for i in range(40, 80):
        plugged.observe(replace(told(i, 1_500_000, in_force), missing=frozenset({3})))
    assert plugged.process(KEY) is None
    assert plugged.version > version


def test_a_rank_that_waits_for_a_late_one_is_no_contention(plugged: Dynamic) -> None:
    for i in range(60):
        sample = told(i, 1_000_000)
        early = 1_000_000 if i < 20 else 9_000_000
        plugged.observe(replace(sample, duration_ns={0: early, 1: 1_000_000}))
    assert plugged.process(KEY) is None
    assert plugged.version == 1


def test_where_ranks_end_by_themselves_the_slowest_one_counts(plugged: Dynamic) -> None:
    key = replace(KEY, collective=Collective.BROADCAST)
    for i in range(60):
        sample = replace(told(i, 1_000_000), key=key)
        slowest = 1_000_000 if i < 20 else 9_000_000
        plugged.observe(replace(sample, duration_ns={0: 1_000_000, 1: slowest}))
    assert plugged.version > 1


def test_collectives_of_a_packet_or_two_are_left_to_nccl(plugged: Dynamic) -> None:
    key = replace(KEY, size_class=5, bytes=48)  # as the torch hook's at a fence
    for i in range(60):
        plugged.observe(replace(told(i, 100_000 if i < 20 else 900_000), key=key))
        assert plugged.process(key) is None
    assert plugged.version == 1


def test_the_first_calls_after_a_switch_end_no_trial(plugged: Dynamic) -> None:
    for i in range(30):
        plugged.observe(told(i, 1_000_000 if i < 20 else 3_000_000))
    tried = plugged.process(KEY)
    assert tried is not None
    for i in range(30, 60):  # new connections find their rates
        settling = replace(told(i, 30_000_000, tried), state=EntryState.COOLDOWN)
        plugged.observe(settling)
        assert plugged.process(KEY) == tried
    for i in range(60, 90):
        plugged.observe(told(i, 30_000_000, tried))
    assert plugged.process(KEY) is None


def test_communicators_are_forgotten_in_the_end(
    plugged: Dynamic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plug, "MAX_COMMS", 2)
    for i, comm in enumerate(("a", "b", "a", "c")):
        sample = told(i, 1_000_000)
        plugged.observe(replace(sample, key=replace(KEY, comm=comm)))
    assert set(plugged._by_comm) == {"a", "c"}


def test_communicators_are_apart(plugged: Dynamic) -> None:
    for i in range(30):
        plugged.observe(told(i, 1_000_000 if i < 20 else 3_000_000, None))
    assert plugged.process(KEY) is not None
    assert plugged.process(replace(KEY, comm="comm 2")) is None
    plugged.forget("comm 1")
    assert plugged.process(KEY) is None


def test_only_pairs_that_every_rank_has_are_decided(plugged: Dynamic) -> None:
    for i in range(40):
        sample = told(i, 1_000_000 if i < 20 else 3_000_000)
        plugged.observe(
            replace(sample, key=replace(KEY, usable=frozenset({(Algo.TREE, Proto.LL)})))
        )
        found = plugged.process(KEY)
        assert found is None or (found.algo, found.proto) == (Algo.TREE, Proto.LL)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no such folder"):
        make(Options("nowhere", folder=tmp_path))


def test_unusable_weights_are_an_error(tmp_path: Path, detector_weights: Weights) -> None:
    save(tmp_path / "detector.safetensors", detector_weights)
    with pytest.raises(PolicyError, match=r"selector\.safetensors: no such file"):
        policies.make("dynamic:.", Options(folder=tmp_path))
    (tmp_path / "selector.safetensors").write_bytes(b"garbage")
    with pytest.raises(PolicyError, match="damaged"):
        policies.make("dynamic:.", Options(folder=tmp_path))


def test_a_bad_calibration_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text("{}")
    with pytest.raises(PolicyError, match="not a calibration"):
        make(Options(".", folder=tmp_path))


def test_ranks_of_one_node_have_no_network_to_share(plugged: Dynamic) -> None:
    alone = replace(KEY, n_nodes=1)
    for i in range(40):
        sample = told(i, 1_000_000 if i < 20 else 3_000_000)
        plugged.observe(replace(sample, key=alone))
    assert plugged.version == 1
    assert plugged.process(alone) is None
