from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs PyTorch: pip install 'ringstep[train]'")

from ringstep.hostlib.dynamic.detector import Detector
from ringstep.hostlib.dynamic.weights import load
from ringstep.hostlib.learn.checkpoint import CheckpointError
from ringstep.hostlib.learn.data import sequences, transitions
from ringstep.hostlib.learn.detector import DetectorParams, train_detector
from ringstep.hostlib.learn.selector import SelectorParams, regret, train_selector
from ringstep.hostlib.traces.format import Traces
from ringstep.hostlib.traces.generate import FluidOracle, generate
from ringstep.hostlib.traces.scenarios import Label

QUICK = DetectorParams("contended", epochs=2, batch=16, piece=16)


def same(a: Path, b: Path) -> bool:
    return a.read_bytes() == b.read_bytes()


def test_a_detector_learns_and_training_is_deterministic(tmp_path: Path, traces: Traces) -> None:
    one = train_detector(traces, tmp_path / "one", replace(QUICK, epochs=6))
    assert one.metrics["auc"] > 0.85
    assert one.metrics["curve"][-1][1] < one.metrics["curve"][0][1]
    train_detector(traces, tmp_path / "two", replace(QUICK, epochs=6))
    assert same(tmp_path / "one/detector.safetensors", tmp_path / "two/detector.safetensors")
    train_detector(traces, tmp_path / "three", replace(QUICK, epochs=6, seed=1))
    assert not same(tmp_path / "one/detector.safetensors", tmp_path / "three/detector.safetensors")


def test_training_that_is_resumed_ends_as_one_that_was_not(tmp_path: Path, traces: Traces) -> None:
    train_detector(traces, tmp_path / "whole", QUICK)
    train_detector(traces, tmp_path / "parts", replace(QUICK, epochs=1))
    train_detector(traces, tmp_path / "parts", QUICK, resume=True)
    assert same(tmp_path / "whole/detector.safetensors", tmp_path / "parts/detector.safetensors")
    found = load(tmp_path / "parts/detector.safetensors", "detector")
    assert found.data == traces.digest


def test_resuming_something_else_is_refused(tmp_path: Path, traces: Traces) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        train_detector(traces, tmp_path, QUICK, resume=True)
    train_detector(traces, tmp_path, replace(QUICK, epochs=1))
    with pytest.raises(CheckpointError, match="seed was 0, now it is 3"):
        train_detector(traces, tmp_path, replace(QUICK, seed=3), resume=True)
    (tmp_path / "detector.ckpt").write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match="damaged"):
        train_detector(traces, tmp_path, QUICK, resume=True)


def test_traces_without_labels_teach_nothing(tmp_path: Path, traces: Traces) -> None:
    columns = {**traces.columns, "label": np.full_like(traces.columns["label"], -1)}
    with pytest.raises(ValueError, match="labels"):
        train_detector(Traces(columns, {}), tmp_path, QUICK)


def test_classes_weigh_alike_and_slow_hosts_nothing(traces: Traces) -> None:
    s = sequences(traces, "contended", 0)
    weights = [s.weight[s.label == c].sum() for c in (Label.STEADY, Label.SPIKE, Label.SUSTAINED)]
    assert weights == pytest.approx([weights[0]] * 3, rel=1e-3)
    assert not s.weight[s.label == Label.SLOW_HOST].any()
    assert not s.weight[s.label == -1].any()


def test_targets_differ_in_spikes_only(traces: Traces) -> None:
    a, b = (sequences(traces, target, 0) for target in ("contended", "sustained"))  # type: ignore[arg-type]
    assert (a.label[a.target != b.target] == Label.SPIKE).all()


def test_a_selector_learns_from_all_actions(tmp_path: Path, traces: Traces) -> None:
    detector = train_detector(traces, tmp_path, QUICK).weights
    params = SelectorParams(epochs=6, batch=32, reward="log")
    found = train_selector(traces, detector, tmp_path, FluidOracle(traces), params)
    assert set(found.metrics) >= {"regret_mean", "gain_share", "worse_than_nccl"}
    assert found.metrics["curve"][-1][0] < found.metrics["curve"][0][0]
    again = train_selector(
        traces, detector, tmp_path / "again", FluidOracle(traces), replace(params, epochs=3)
    )
    train_selector(traces, detector, tmp_path / "again", FluidOracle(traces), params, resume=True)
    assert same(tmp_path / "selector.safetensors", tmp_path / "again/selector.safetensors")
    assert again.weights.data == traces.digest


def test_without_an_oracle_only_what_ran_is_known(tmp_path: Path, traces: Traces) -> None:
    detector = Detector(train_detector(traces, tmp_path, QUICK).weights)
    found = transitions(traces, detector, None, 0)
    assert (~np.isnan(found.reward)).sum(axis=1).max() == 1
    whole = transitions(traces, detector, FluidOracle(traces), 0)
    assert (~np.isnan(whole.reward[whole.mask])).all()
    assert (whole.reward[whole.mask] <= 1e-6).all()


def test_regret_of_the_best_is_none(tmp_path: Path, traces: Traces) -> None:
    detector = Detector(train_detector(traces, tmp_path, QUICK).weights)
    data = transitions(traces, detector, FluidOracle(traces), 0)
    found = regret(np.nan_to_num(data.reward, nan=-99.0), data)
    assert found["regret_mean"] == pytest.approx(0.0)
    assert found["worse_than_nccl"] == 0.0


def test_adapting_moves_the_last_layers_only(tmp_path: Path, traces: Traces) -> None:
    first = train_detector(traces, tmp_path / "a", QUICK).weights
    other = generate(22, 40, 32)
    again = train_detector(other, tmp_path / "b", QUICK, start=first).weights
    moved = {n for n, t in again.tensors.items() if not np.array_equal(t, first.tensors[n])}
    assert moved == {"head.2.weight", "head.2.bias"}
    params = SelectorParams(epochs=2, batch=32)
    oracle = FluidOracle(traces)
    one = train_selector(traces, first, tmp_path / "a", oracle, params).weights
    two = train_selector(
        other, first, tmp_path / "b", FluidOracle(other), params, start=one
    ).weights
    moved = {n for n, t in two.tensors.items() if not np.array_equal(t, one.tensors[n])}
    assert moved == {f"{h}.1.{w}" for h in ("value", "advantage") for w in ("weight", "bias")}
    with pytest.raises(ValueError, match="other network"):
        train_detector(other, tmp_path / "c", QUICK, start=one)
