from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="training needs PyTorch: pip install 'ringstep[train]'")

from ringstep.hostlib.dynamic.policy import DynamicPolicy
from ringstep.hostlib.learn.cli import app
from ringstep.hostlib.traces.format import Traces, save

runner = CliRunner()


@pytest.fixture
def data(tmp_path: Path, traces: Traces) -> Path:
    path = tmp_path / "traces.npz"
    save(path, traces)
    return path


def test_from_traces_to_a_policy(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "weights"
    common = ["--data", str(data), "--out", str(out), "--epochs", "1", "--seed", "2", "--json"]
    for network in ("detector", "selector"):
        found = runner.invoke(app, [network, *common])
        assert found.exit_code == 0, found.output
        card = json.loads(found.stdout)
        assert card["network"] == network
        assert card["parameters"]["seed"] == 2
        assert json.loads((out / f"{network}.json").read_text()) == card
    DynamicPolicy.load(out)


def test_bad_input_ends_with_2(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "weights"
    for arguments, why in (
        (["detector", "--data", str(tmp_path / "none.npz"), "--out", str(out)], "no such file"),
        (["detector", "--data", str(data), "--out", str(out), "--target", "x"], "--target"),
        (["detector", "--data", str(data), "--out", str(out), "--resume"], "no checkpoint"),
        (["selector", "--data", str(data), "--out", str(out)], "detector.safetensors"),
        (["selector", "--data", str(data), "--out", str(out), "--reward", "x"], "--reward"),
        (["detector", "--data", str(data), "--out", str(data)], "exists"),
    ):
        found = runner.invoke(app, arguments)
        assert found.exit_code == 2, found.output
        assert why in found.stderr.lower() or why in found.stderr
    assert not list(out.glob("*.safetensors"))
