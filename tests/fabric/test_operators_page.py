"""The tables of docs/operators.md are those of the table that comes with the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operators.md"


def test_measured_tables_are_the_generated_ones() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "guidance.py"), "--markdown"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    (shown,) = re.findall(
        r"<!-- measured: .*? -->\n\n(.*?)\n<!-- end -->", PAGE.read_text(), re.DOTALL
    )
    assert shown == made
