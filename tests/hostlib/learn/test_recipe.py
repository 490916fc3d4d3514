"""The shipped weights' recipe, in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs PyTorch: pip install 'ringstep[train]'")

from ringstep.hostlib.dynamic.plug import WEIGHTS
from ringstep.hostlib.dynamic.policy import DynamicPolicy
from ringstep.hostlib.dynamic.weights import load

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_weights_come_from_the_programs_own_commands(tmp_path: Path) -> None:
    out, card = tmp_path / "weights", tmp_path / "card.md"
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "tuner_weights.py"), "--out", str(out), "--tiny",
         "--json", "--card", str(card)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    made = json.loads(done.stdout)
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
