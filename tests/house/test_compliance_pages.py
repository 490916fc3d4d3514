"""Every test that a page of promises names exists and is not expected to fail."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_NAMED = re.compile(r"`([\w/]*test_\w+\.py)::(test_\w+)`")


def rows(part: str) -> list[tuple[int, list[str]]]:
    """(line number, cells) of all rows of a page's tables that have a column ``test``."""
    page = ROOT / "docs" / f"{part}-compliance.md"
    found: list[tuple[int, list[str]]] = []
    header: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not header:
            header = cells
        elif header[-1] == "test" and set(line) - set("|-"):
            found.append((number, cells))
    return found


@cache
def expected_failures(path: Path) -> dict[str, bool]:
    """Test -> whether it is marked as expected to fail, from the text of a file."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = " ".join(ast.unparse(mark) for mark in node.decorator_list)
            found[node.name] = "mark.xfail" in marks
    return found


@pytest.mark.parametrize("part", ["controller", "hostlib"])
def test_every_row_names_tests_that_exist_and_should_pass(part: str) -> None:
    wrong = []
    for number, cells in rows(part):
        named = _NAMED.findall(cells[-1])
        if not named:
            wrong.append(f"line {number}: names no test")
        for file, test in named:
            path = ROOT / "tests" / part / file
            known = expected_failures(path) if path.exists() else {}
            if test not in known:
                wrong.append(f"line {number}: {file} has no {test}")
            elif known[test]:
                wrong.append(f"line {number}: {test} is expected to fail")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("part", "least"), [("controller", 30), ("hostlib", 60)])
def test_page_has_the_rows_that_it_is_there_for(part: str, least: int) -> None:
    assert len(rows(part)) > least


def test_page_of_the_host_library_has_the_public_issues() -> None:
    issues = " ".join(cells[0] for _, cells in rows("hostlib"))
    for issue in (1136, 1184, 1661, 1974, 2261, 982, 318, 1985, 1992, 1978):
        assert f"#{issue}" in issues
