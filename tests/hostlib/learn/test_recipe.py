"""The shipped weights' recipe, in small."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="training needs PyTorch: pip install 'ringstep[train]'")

from ringstep.hostlib.cli import app
from ringstep.hostlib.dynamic.plug import WEIGHTS
from ringstep.hostlib.dynamic.policy import DynamicPolicy
from ringstep.hostlib.dynamic.weights import load

ROOT = Path(__file__).parents[3]


def in_process(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python -m ringstep.cli.main ...`` here, where torch is loaded already."""
    program, arguments = list(command[:3]), list(command[3:])
    assert program == [sys.executable, "-m", "ringstep.cli.main"]
    assert arguments[0] == "tuner"
    found = CliRunner().invoke(app, arguments[1:])
    assert found.exit_code == 0, found.output
    return subprocess.CompletedProcess(command, found.exit_code)


@pytest.mark.slow
def test_weights_come_from_the_programs_own_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, card = tmp_path / "weights", tmp_path / "card.md"
    spec = importlib.util.spec_from_file_location("weights", ROOT / "bench" / "tuner_weights.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "weights", recipe)  # its dataclasses look there
    spec.loader.exec_module(recipe)
    monkeypatch.setattr(recipe.subprocess, "run", in_process)
    assert recipe.main(["--out", str(out), "--tiny", "--json", "--card", str(card)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert len(made["commands"]) == 6
    assert sum(made["bytes"].values()) < 1 << 20
    DynamicPolicy.load(out)
    text = card.read_text()
    assert "fluid model" in text
    assert "ringstep tuner train selector" in text
    assert str(tmp_path) not in text


def test_the_package_has_weights_of_this_version() -> None:
    sizes = [(WEIGHTS / f"{name}.safetensors").stat().st_size for name in ("detector", "selector")]
    assert sum(sizes) <= 1 << 20
    for name in ("detector", "selector"):
        weights = load(WEIGHTS / f"{name}.safetensors", name)  # type: ignore[arg-type]
        card = json.loads((WEIGHTS / f"{name}.json").read_text())
        assert card["data"]["digest"] == weights.data
        assert card["metrics"]
