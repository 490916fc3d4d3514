"""The compliance matrix of docs/ names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MATRIX = ROOT / "docs" / "softswitch-p4runtime.md"


def rows() -> list[str]:
    lines = MATRIX.read_text().splitlines()
    return [
        line
        for line in lines
        if line.startswith("| ") and not re.match(r"\| (requirement|what) \|", line)
    ]


@pytest.mark.parametrize("row", rows())
def test_every_row_names_an_existing_test(row: str) -> None:
    ids = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
    assert ids
    for file, function in ids:
        source = (Path(__file__).parent / file).read_text()
        assert re.search(rf"^(async )?def {function}\(", source, re.MULTILINE), function
