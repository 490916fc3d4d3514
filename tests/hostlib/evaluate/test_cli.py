from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.dynamic.weights import SHAPES, Weights, save
from ringstep.hostlib.evaluate import cli, evaluation
from ringstep.hostlib.evaluate.cli import evaluate_command
from ringstep.hostlib.evaluate.inference import inference_ms
from ringstep.hostlib.evaluate.report.read import read
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.fluid import CLEAN, Load
from ringstep.hostlib.traces.sweep import Sweep, save_sweeps

runner = CliRunner()
app = typer.Typer()
app.command()(evaluate_command)


def made_sweep() -> Sweep:
    def calls(*medians: float) -> tuple[tuple[float, ...], ...]:
        return tuple((0.98 * m, m, 1.03 * m) for m in medians)

    usual, wide = (Config(Algo.RING, Proto.SIMPLE, n) for n in (2, 8))
    return Sweep(
        "bench", Key.of(4, 4, Collective.ALL_REDUCE, 1 << 20), 1 << 20,
        (CLEAN, Load(0.5), Load(0.8), Load(0.9)), usual, calls(100, 200, 400, 500),
        {usual: calls(100, 200, 400, 500), wide: calls(110, 150, 200, 250)},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of which nothing but their presence is asserted here come from few samples."""
    monkeypatch.setattr(evaluation, "STATES", 40)
    monkeypatch.setattr(cli, "inference_ms", functools.partial(inference_ms, repeat=100))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "weights"
    folder.mkdir()
    for kind, shapes in SHAPES.items():
        tensors = {n: (0.1 * rng.standard_normal(s)).astype(np.float32) for n, s in shapes.items()}
        save(folder / f"{kind}.safetensors", Weights(kind, tensors, "", {}))
    return folder


def test_every_figure_is_written(tmp_path: Path, weights: Path) -> None:
    out = tmp_path / "found.json"
    found = runner.invoke(
        app,
        ["--json", str(out), "--weights", str(weights), "--jobs", "1", "--seeds", "1",
         "--clean-calls", "60", "--only", "dynamic", "--only", "threshold"],
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    data = json.loads(out.read_text())
    for key in (
        "inference_ms", "clean_overhead_pct", "detect_calls", "false_reconfigurations",
        "gain_vs_nccl", "share_of_oracle", "transitions", "onsets",
    ):  # fmt: skip
        assert key in data
    assert set(data["gain_vs_nccl"]["dynamic"]) == {"0.5", "0.7", "0.8", "0.9"}
    assert {"value", "low", "high"} <= set(data["gain_vs_nccl"]["dynamic"]["0.8"])
    assert "threshold" in found.stdout


def test_sweeps_are_evaluated_by_drawing_their_calls_again(tmp_path: Path, weights: Path) -> None:
    out, file = tmp_path / "found.json", tmp_path / "sweep.json"
    save_sweeps(file, [made_sweep()])
    found = runner.invoke(
        app,
        ["--json", str(out), "--weights", str(weights), "--environment", "recorded", "--sweep",
         str(file), "--seeds", "2", "--clean-calls", "60", "--only", "threshold"],
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    data = json.loads(out.read_text())
    assert data["about"]["environment"] == "recorded"
    assert data["sizes"]["oracle"]["1 MiB"]["0.8"]["value"] == pytest.approx(0.5, abs=0.02)
    assert data["gain_vs_nccl"]["threshold"]["0.8"]["value"] > 0.3
    read([out])


def test_bad_input_ends_with_2_and_writes_nothing(tmp_path: Path, weights: Path) -> None:
    out = tmp_path / "found.json"
    good = ["--json", str(out), "--weights", str(weights)]
    for arguments, why in (
        (["--json", str(out), "--weights", str(tmp_path)], "no such file"),
        ([*good, "--environment", "moon"], "--environment"),
        ([*good, "--rule", "guess"], "--rule"),
        ([*good, "--environment", "engine"], "--sweep"),
        ([*good, "--sweep", str(tmp_path)], "--sweep"),
        ([*good, "--environment", "recorded", "--sweep", str(tmp_path / "no")], "No such file"),
        ([*good, "--contended", str(tmp_path / "no")], "no such file"),
        ([*good, "--only", "nobody"], "--only nobody"),
        (["--json", str(tmp_path / "none/f.json"), "--weights", str(weights)], "no such folder"),
    ):
        found = runner.invoke(app, arguments)
        assert found.exit_code == 2, found.output
        assert why in found.stderr
    assert not out.exists()
