from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from ringstep.hostlib.dynamic.weights import SHAPES, Weights, save
from ringstep.hostlib.evaluate.cli import evaluate_command

runner = CliRunner()
app = typer.Typer()
app.command()(evaluate_command)


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


def test_bad_input_ends_with_2_and_writes_nothing(tmp_path: Path, weights: Path) -> None:
    out = tmp_path / "found.json"
    good = ["--json", str(out), "--weights", str(weights)]
    for arguments, why in (
        (["--json", str(out), "--weights", str(tmp_path)], "no such file"),
        ([*good, "--environment", "moon"], "--environment"),
        ([*good, "--rule", "guess"], "--rule"),
        ([*good, "--only", "nobody"], "--only nobody"),
        (["--json", str(tmp_path / "none/f.json"), "--weights", str(weights)], "no such folder"),
    ):
        found = runner.invoke(app, arguments)
        assert found.exit_code == 2, found.output
        assert why in found.stderr
    assert not out.exists()
