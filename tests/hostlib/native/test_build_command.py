"""``python -m ringstep.hostlib.native.build``: what it takes, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringstep.hostlib.native.build import missing_tools


def build(*words: str, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringstep.hostlib.native.build", *words],
        env={**os.environ, "RINGSTEP_NATIVE_DIR": str(cache), "COLUMNS": "200"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_help_has_an_example_and_builds_nothing(tmp_path: Path) -> None:
    told = build("--help", cache=tmp_path)
    assert told.returncode == 0
    assert "example: plugin=$(" in told.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("engines",), ("engine", "tagger"), ("--nope",)])
def test_a_part_that_is_none_is_refused_and_nothing_built(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    told = build(*words, cache=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert words[-1] in told.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    cache = tmp_path / "file"
    cache.write_text("")
    told = build(cache=cache)
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.splitlines() == [
        f"error: cannot build in {cache}: File exists; set RINGSTEP_NATIVE_DIR to a folder of "
        "your own"
    ]
