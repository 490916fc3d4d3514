"""The protocol of docs/agreement.md, exhaustively: spin runs the Promela model."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ringstep.hostlib.native.build import SOURCES

MODEL = SOURCES / "model" / "agreement.pml"


def verify(folder: Path, *options: str, optimize: str = "-O0") -> tuple[int, int]:
    """Return how many errors spin found, and how many states it looked at.

    Compiling costs more than most searches do, so it is done with care for long ones only.
    """
    if shutil.which("spin") is None:
        pytest.skip("needs spin; `apt-get install spin`")
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler; `apt-get install gcc`")
    subprocess.run(
        ["spin", "-a", *(f"-D{o}" for o in options), str(MODEL)],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    subprocess.run(
        ["cc", "-w", optimize, "-DSAFETY", "-DNOCLAIM", "-DSFH", "-DMEMLIM=2000", "-o", "pan",
         "pan.c"], cwd=folder, check=True,
    )  # fmt: skip
    out = subprocess.run(
        ["./pan", "-E", "-m20000", "-w22"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
    assert "error: max search depth too small" not in out
    assert "pan: reached -DMEMLIM" not in out
    words = out.split()
    errors = int(words[words.index("errors:") + 1])
    return errors, int(words[words.index("states,") - 1])


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("CAPTURE",), ("RANKS=3", "EPOCHS=1")])
def test_no_two_ranks_differ_at_an_index(tmp_path: Path, options: tuple[str, ...]) -> None:
    """One node: any messages in any order, a stub and ranks that die anywhere, extra calls."""
    errors, states = verify(tmp_path, *options, optimize="-O1")
    assert errors == 0
    assert states > 100_000


def test_no_two_ranks_differ_after_a_fence(tmp_path: Path) -> None:
    """Several nodes: each told anything, even other contents under one epoch."""
    errors, states = verify(tmp_path, "FENCED")
    assert errors == 0
    assert states > 1_000


@pytest.mark.parametrize(
    "options",
    [("BUG_NO_ACKS",), ("BUG_FIRST_LOW",), ("BUG_RAW_CALLS",), ("CAPTURE", "BUG_NO_FREEZE"),
     ("FENCED", "BUG_NO_HOLD"), ("FENCED", "BUG_EPOCH_ONLY"), ("FENCED", "BUG_STALE_ACK")],
    ids=" ".join,
)  # fmt: skip
def test_a_planted_bug_is_found(tmp_path: Path, options: tuple[str, ...]) -> None:
    errors, _ = verify(tmp_path, *options)
    assert errors == 1
