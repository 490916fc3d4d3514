from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ringstep.hostlib.evaluate.report.cli import report_command

runner = CliRunner()
app = typer.Typer()
app.command()(report_command)
Save = Callable[..., Path]


def test_page_and_markdown_are_written_the_same_each_time(
    result: dict[str, Any], save: Save, tmp_path: Path
) -> None:
    path = save(result)
    for name in ("a", "b"):
        found = runner.invoke(app, [str(path), "--out", str(tmp_path / f"{name}.html"),
                                    "--markdown", str(tmp_path / f"{name}.md")])  # fmt: skip
        assert found.exit_code == 0, found.output
        assert str(tmp_path / f"{name}.html") in found.stdout
    for kind in ("html", "md"):
        one, two = ((tmp_path / f"{n}.{kind}").read_bytes() for n in ("a", "b"))
        assert one == two
        assert len(one) > 10_000
    assert len(list(tmp_path.iterdir())) == 5


def change(result: dict[str, Any], where: str, value: Any) -> str:
    *keys, last = where.split("/")
    at: Any = result
    for key in keys:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[last] = value
    return json.dumps(result)


@pytest.mark.parametrize(
    ("where", "value", "why"),
    [
        ("gains", 5, "gains: an object expected, found 5"),
        ("gains/dynamic/0.8/gain_vs_nccl", {"value": 1.0}, "gains.dynamic.0.8.gain_vs_nccl.low: "
         "missing"),
        ("gains/dynamic/0.8/gain_vs_nccl/value", "much", "gains.dynamic.0.8.gain_vs_nccl.value: "),
        ("detection/dynamic/0.5/false_alarms", 1.5, "detection.dynamic.0.5.false_alarms: a whole "
         "number expected, found 1.5"),
        ("detection_traces/1/ratio", [1.0, None], "detection_traces[1].ratio[1]: a number "
         "expected, found null"),
        ("inference_ms/combined/p50", {"value": 1.0}, "inference_ms.combined.p50.low: missing"),
        ("about/commands", "ringstep", "about.commands: a list expected"),
        ("gains/dynamic/much", {}, "gains.dynamic.much.gain_vs_nccl: missing"),
        ("sizes/dynamic/256 MiB/high", {"value": 1.0, "low": 1.0, "high": 1.0},
         "sizes.dynamic.256 MiB.high: a level, such as 0.8, expected"),
        ("detection_traces/0/found", 60, "detection_traces[0].found: 60 is no call of 60"),
        ("detection_traces/0/ratio", [], "detection_traces[0]: 0 ratios and 60 probabilities"),
        ("training/detector/metrics/curve", [[0.1]], "training.detector.metrics.curve[0]: 2 "
         "numbers expected, found 1"),
        ("distributions/policies/nccl/p25", 99.0, "distributions.policies.nccl: percentiles"),
        ("seeds", True, "seeds: a whole number expected, found true"),
    ],
)  # fmt: skip
def test_what_is_not_as_evaluate_writes_it_is_named(
    result: dict[str, Any], save: Save, tmp_path: Path, where: str, value: Any, why: str
) -> None:
    path, out = save(change(result, where, value)), tmp_path / "report.html"
    found = runner.invoke(app, [str(path), "--out", str(out)])
    assert found.exit_code == 2
    assert why in found.stderr
    assert str(path) in found.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [("{", "not JSON"), ("[1]", "nothing in it that"), ('{"x": 1}', "nothing in it that"),
     ('{"seeds": 2}', "nothing in it that"), ("\x00", "not JSON")],
)  # fmt: skip
def test_other_files_are_refused(save: Save, tmp_path: Path, content: str, why: str) -> None:
    out = tmp_path / "report.html"
    found = runner.invoke(app, [str(save(content)), "--out", str(out)])
    assert found.exit_code == 2
    assert why in found.stderr
    assert not out.exists()


def test_what_cannot_be_read_or_written_ends_with_2(
    result: dict[str, Any], save: Save, tmp_path: Path
) -> None:
    path = str(save(result))
    before = Path(path).read_bytes()
    out = str(tmp_path / "report.html")
    folder = tmp_path / "folder"
    folder.mkdir()
    for arguments, why in (
        ([str(tmp_path / "none.json"), "--out", out], "none.json: No such file"),
        ([str(folder), "--out", out], "Is a directory"),
        ([path, "--out", str(tmp_path / "no/report.html")], "No such file"),
        ([path, "--out", str(folder)], "folder: a folder"),
        ([path, "--out", path], "would be overwritten"),
        ([path, "--out", out, "--markdown", out], "that is --out already"),
        ([path, "--out", out, "--markdown", str(tmp_path / "no/report.md")], "No such file"),
        ([path, "--out", out, "--markdown", str(folder)], "folder: a folder"),
    ):
        found = runner.invoke(app, arguments)
        assert found.exit_code == 2, found.output
        assert why in found.stderr
    assert Path(path).read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fluid.json", "folder"]


def test_a_report_stays_where_its_successor_fails(
    result: dict[str, Any], save: Save, tmp_path: Path
) -> None:
    path, out = save(result), tmp_path / "report.html"
    out.write_text("the old one")
    found = runner.invoke(app, [str(path), "--out", str(out), "--markdown",
                                os.fspath(tmp_path / "no/report.md")])  # fmt: skip
    assert found.exit_code == 2
    assert out.read_text() == "the old one"


def test_nan_and_infinities_are_read_as_missing(
    result: dict[str, Any], save: Save, tmp_path: Path
) -> None:
    result["gains"]["dynamic"]["0.5"]["p_value"] = float("nan")
    text = json.dumps(result).replace("NaN", "1e999", 0)
    result["gains"]["dynamic"]["0.5"]["share_of_oracle"] = {
        "value": float("nan"), "low": float("-inf"), "high": float("inf")}  # fmt: skip
    text = json.dumps(result).replace("-Infinity", "-1e999")
    out = tmp_path / "report.html"
    found = runner.invoke(app, [str(save(text)), "--out", str(out)])
    assert found.exit_code == 0, found.output
    assert "nothing to gain" in out.read_text()


def containers(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of all dictionaries and lists, one of each kind of siblings."""
    found = [path] if path else []
    children = data.items() if isinstance(data, dict) else enumerate(data)
    seen: set[str] = set()
    for key, value in children:
        if isinstance(value, (dict, list)):
            kind = str(sorted(value)) if isinstance(value, dict) else "list"
            if path and kind in seen:
                continue
            seen.add(kind)
            found += containers(value, (*path, key))
    return found


@pytest.mark.slow
def test_whatever_is_empty_gives_a_page_or_a_reason(
    result: dict[str, Any], save: Save, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    paths = containers(result)
    assert len(paths) > 50
    for path in paths:
        data = json.loads(json.dumps(result))
        at = data
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = type(at[path[-1]])()
        found = runner.invoke(app, [str(save(data)), "--out", str(out)])
        assert found.exit_code in (0, 2), (path, found.exception)
        assert found.exit_code == 0 or f"{path[0]}" in found.stderr, path
