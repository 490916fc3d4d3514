"""The selector's last layers move to a cluster, where that helps."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="adapting needs PyTorch: pip install 'ringstep[train]'")

from typer.testing import CliRunner

from ringstep.hostlib.cli import app
from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.dynamic.selector import Selector
from ringstep.hostlib.dynamic.weights import SHAPES, Kind, Weights, load, rounded, save
from ringstep.hostlib.evaluate.calibration import adapt
from ringstep.hostlib.evaluate.environment import FluidEnvironment
from ringstep.hostlib.evaluate.record import sweep
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces.fluid import CLEAN, FluidParams, Load
from ringstep.hostlib.traces.generate import Job
from ringstep.hostlib.traces.noise import NoiseParams
from ringstep.hostlib.traces.sweep import Sweep, save_sweeps

with contextlib.suppress(ImportError):
    import torch

    torch.set_num_threads(1)


def random_weights(kind: Kind, seed: int = 0) -> Weights:
    rng = np.random.default_rng(seed)
    tensors = {
        n: (0.05 * rng.standard_normal(s)).astype(np.float32) for n, s in SHAPES[kind].items()
    }
    return Weights(kind, tensors, "", {})


def swept(*loads: Load) -> list[Sweep]:
    size = 16 << 20
    key = Key.of(8, 4, Collective.ALL_REDUCE, size)
    job = Job(FluidParams(), key, size, NoiseParams())
    return [sweep(FluidEnvironment(job, "cluster"), [CLEAN, *loads], 5)]


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapt, "EPOCHS", 15)
    monkeypatch.setattr(adapt, "BATCH", 8)
    monkeypatch.setattr(adapt, "CALLS", 32)


@pytest.mark.parametrize("source", ["sweeps", "model"])
def test_a_selector_adapts_to_a_cluster(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    before = random_weights("selector")
    sweeps = swept(Load(0.5, 4.0), Load(0.9, 4.0)) if source == "sweeps" else []
    found, about = adapt.adapt_selector(
        before, random_weights("detector"), sweeps, FluidParams(), traces=30
    )
    assert about["kept"] == "adapted"
    assert about["after"]["regret_mean"] < about["before"]["regret_mean"]
    stored = rounded(before.tensors)
    moved = {name for name in stored if not (stored[name] == found.tensors[name]).all()}
    assert moved == {"value.1.weight", "value.1.bias", "advantage.1.weight", "advantage.1.bias"}
    Selector(found)


def test_what_does_not_help_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    monkeypatch.setattr(adapt, "_regret", lambda weights, data: {"regret_mean": 0.0})
    before = random_weights("selector")
    found, about = adapt.adapt_selector(
        before, random_weights("detector"), swept(Load(0.7, 4.0)), None, traces=12
    )
    assert found is before
    assert "did not help" in about["kept"]


def test_nothing_to_adapt_to_is_said() -> None:
    with pytest.raises(ValueError, match="neither"):
        adapt.traces_of([], None, 5, 0)


def test_the_command_writes_an_adapted_selector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    monkeypatch.setattr(adapt, "TRACES", 24)
    weights = tmp_path / "weights"
    weights.mkdir()
    kinds: tuple[Kind, ...] = ("detector", "selector")
    for kind in kinds:
        save(weights / f"{kind}.safetensors", random_weights(kind))
    save_sweeps(tmp_path / "s.json", swept(Load(0.8, 4.0)))
    arguments = ["calibrate", "--sweep", str(tmp_path / "s.json"), "--weights", str(weights)]
    found = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "a"), "--json"])
    assert found.exit_code == 0, found.output
    about = json.loads(found.stdout)["selector"]
    assert (about["kept"], about["from"]) == ("adapted", "sweeps")
    assert load(tmp_path / "a/selector.safetensors", "selector").tensors.keys()
    found = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "b"), "--no-adapt"])
    assert found.exit_code == 0, found.output
    same = (weights / "selector.safetensors").read_bytes()
    assert (tmp_path / "b/selector.safetensors").read_bytes() == same
    assert (tmp_path / "a/selector.safetensors").read_bytes() != same
