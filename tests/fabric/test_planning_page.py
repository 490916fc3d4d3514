"""The example of docs/planning.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "planning.md"


def test_example_runs(two_tier_text: str, tmp_path: Path) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(two_tier_text)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"path": path}
    exec(code, names)
    plan = names["plan"]
    assert len(plan.edges) == 10
    assert plan.optimal
    assert not any(hop.port == 11 for e in plan.edges.values() for hop in e.hops[:1])
