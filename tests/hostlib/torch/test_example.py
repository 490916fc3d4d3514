"""The training example: the same losses on every backend, and its command line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "train" / "ddp.py"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch; `pip install torch`"
)


def run(*arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RINGSTEP_", "NCCL_"))}
    return subprocess.run(
        [sys.executable, *launcher, str(EXAMPLE), *arguments],
        capture_output=True, text=True, timeout=240, env={**env, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def trained(backend: str, *arguments: str) -> dict[str, Any]:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    small = ("--width", "32", "--layers", "1", "--length", "8", "--steps", "20", "--json")
    done = run("--backend", backend, *small, *arguments, launcher=launcher)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["10/20", "20/20"]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


@pytest.mark.slow
def test_losses_are_the_same_on_gloo_and_on_the_engine(engine_built: Path) -> None:
    gloo, engine = trained("gloo"), trained("ringstep", "--fence-every", "5")
    assert gloo["last_loss"] < 0.9 * gloo["first_loss"]
    assert engine["last_loss"] == pytest.approx(gloo["last_loss"], rel=1e-3)
    assert engine["collectives"] == gloo["collectives"] > 0
    assert engine["cct_p50_ms"] > 0


def test_it_says_how_it_is_started() -> None:
    done = run()
    assert done.returncode == 2
    assert "torchrun --nproc-per-node 2" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--width", "30"), "--width 30: a multiple of 4"),
        (("--steps", "0"), "a whole number above 0"),
    ],
)
def test_bad_options_are_refused(arguments: tuple[str, ...], text: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert text in done.stderr
