"""Studies: variants against a baseline over groups, their verdicts, and what is refused."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from typer.testing import CliRunner, Result

from ringstep_ns3 import Sweep
from ringstep_ns3 import sweep as sweeps
from ringstep_ns3.cli import app
from ringstep_ns3.paper import study as studies
from ringstep_ns3.paper.measure import Row
from ringstep_ns3.paper.study import find_study, study_names, verdicts_of

TENANT = """
[[background]]
kind = "long"
size = "50KB"
src = ["h3"]
dst = ["h7"]
"""
STUDY = """scenario = "ring.toml"
seeds = 2

[study]
title = "Tiny rings"
description = "A ring beside a flow."

[set]
"job.ranks" = 6

[[axis]]
name = "tenant"
labels = ["alone", "beside"]
values = [{ background = [] }, {}]

[[axis]]
name = "variant"
labels = ["baseline", "planned", "ours"]
values = [
    { "switch.lb" = "ecmp" },
    { "switch.lb" = "planned" },
    { "switch.lb" = "planned", "switch.marking" = "marker" },
]
"""


@pytest.fixture
def tiny(ring: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one study, ``tiny``, in place of ours; returns its file."""
    folder = tmp_path / "studies"
    folder.mkdir()
    (folder / "ring.toml").write_text(ring.replace("64KiB", "8KiB") + TENANT)
    (folder / "tiny.toml").write_text(STUDY)
    (folder / "tiny.small.toml").write_text(STUDY.replace("seeds = 2", "seeds = 1"))
    monkeypatch.setattr(studies, "FOLDER", folder)
    return folder / "tiny.toml"


def study(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["study", "-q", "-j", "1", *arguments])


def plain(text: str) -> str:
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("name", study_names())
def test_every_study_makes_sense(name: str) -> None:
    found = find_study(name)
    assert found.title
    for scale in found.scales:
        read = Sweep.read(found.sweep(scale))
        first = {axis.column: axis.label(0) for axis in read.axis if axis.column != "variant"}

        def wanted(labels: Any, first: Any = first) -> bool:
            return labels["variant"] == "baseline" or first.items() <= labels.items()

        _, points = Sweep.load(found.sweep(scale), wanted=wanted)
        assert points


def test_a_study_of_ours_runs_in_its_small_form(tmp_path: Path) -> None:
    out = tmp_path / "out"
    group = "short/two_jobs/persistent/hpcc_run"
    done = study("paths", "--scale", "small", "--only", group, "--json", "--out", str(out))
    assert done.exit_code == 0, done.output
    (report,) = json.loads(done.stdout)["studies"]
    assert report["complete"]
    assert report["stalled"] == 0
    rows = {(row["group"], row["variant"], row["metric"]) for row in report["rows"]}
    assert {(group, "baseline", "cct_ms"), (group, "least_loaded", "reduction_pct")} <= rows
    assert len(report["verdicts"]) == 9


def test_studies_are_listed(tiny: Path) -> None:
    table = study()
    assert table.exit_code == 0, table.output
    assert "Tiny rings" in table.stdout
    (listed,) = json.loads(study("--json").stdout)
    assert (listed["name"], listed["groups"], listed["runs"]) == ("tiny", 2, 12)
    assert listed["variants"] == ["baseline", "planned", "ours"]
    assert listed["scales"] == ["full", "small"]


def test_a_study_gives_table_json_markdown_and_plot(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = study("tiny", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "Study tiny: Tiny rings" in done.stdout
    for text in ("beside", "ours", "less than baseline", "surely worse"):
        assert text in done.stdout
    report = json.loads((out / "tiny.json").read_text())
    assert report["study"] == "tiny"
    assert report["done"] == report["runs"] == 12
    seen = {(row["group"], row["metric"]) for row in report["rows"] if row["variant"] == "ours"}
    assert seen == {
        ("alone", "cct_ms"), ("alone", "reduction_pct"), ("beside", "cct_ms"),
        ("beside", "reduction_pct"), ("beside", "background_pct"),
    }  # fmt: skip
    assert all(row["low"] is None and row["seeds"] == 2 for row in report["rows"])
    markdown = (out / "tiny.md").read_text()
    assert "A ring beside a flow." in markdown
    assert "| group | baseline | planned | ours |" in markdown
    assert "Background FCT longer" in markdown
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert not (out / "tiny.png").exists()
    else:
        assert (out / "tiny.png").read_bytes().startswith(b"\x89PNG")
    again = study("tiny", "--out", str(out), "--markdown")
    assert again.stdout.strip() == markdown.strip()


def test_rows_hold_the_statistic_over_seeds_with_its_interval(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = study("tiny", "--seeds", "5", "--only", "beside", "--json", "--out", str(out))
    assert done.exit_code == 0, done.output
    (report,) = json.loads(done.stdout)["studies"]
    samples = {each["variant"]: each["seeds"] for each in report["samples"]}
    rows = {(row["variant"], row["metric"]): row for row in report["rows"]}
    for metric, source, sign in (
        ("reduction_pct", "cct_ms", -1),
        ("background_pct", "background_ms", 1),
    ):
        mine, base = (
            np.array([samples[variant][source][str(seed)] for seed in range(1, 6)])
            for variant in ("planned", "baseline")
        )
        row = rows["planned", metric]
        change = 100 * sign * (np.median(mine) / np.median(base) - 1)
        assert row["value"] == pytest.approx(change, abs=1e-9)
        assert row["low"] <= row["value"] <= row["high"]
        single = 100 * sign * (mine / base - 1)
        assert (row["least"], row["most"]) == pytest.approx((single.min(), single.max()))
        assert row["seeds"] == 5
    assert "paper" not in row
    runs = [json.loads(path.read_text()) for path in out.rglob("summary.json")]
    fct = sorted(run["background"]["fct_ns"]["median"] / 1e6 for run in runs)
    found = [value for each in samples.values() for value in each["background_ms"].values()]
    assert sorted(found) == pytest.approx(fct)


def row(group: str, variant: str, metric: str, value: float, *interval: float) -> Row:
    low, high = interval or (None, None)
    return Row(group, variant, metric, "median", 5, value, low, high, 0, 0, None, None, None, "")


def test_verdicts_count_groups_beyond_one_percent() -> None:
    rows = [
        row("a", "baseline", "cct_ms", 10.0),
        row("a", "ours", "reduction_pct", -1.5, -3.0, -1.1),
        row("b", "ours", "reduction_pct", -2.0, -5.0, 0.5),
        row("c", "ours", "reduction_pct", -0.9, -2.0, 0.2),
        row("d", "ours", "reduction_pct", 20.0, 1.5, 30.0),
        row("e", "ours", "reduction_pct", -40.0),
        row("d", "ours", "background_pct", 5.0, 1.2, 9.0),
        row("e", "ours", "background_pct", 3.0, -1.0, 9.0),
        row("c", "ours", "background_pct", -3.0, -5.0, -1.0),
        row("a", "paper", "reduction_pct", 4.0, 2.0, 5.0),
    ]
    ours, paper = verdicts_of(rows)
    assert (ours.variant, ours.groups, ours.worse, ours.surely_worse) == ("ours", 5, 3, 1)
    assert (ours.surely_better, ours.worst_group, ours.worst_pct) == (1, "e", -40.0)
    assert ours.median_pct == -1.5
    assert (ours.background_groups, ours.harmed, ours.surely_harmed) == (3, 2, 1)
    assert (paper.groups, paper.worse, paper.surely_better, paper.background_groups) == (1, 0, 1, 0)


def test_what_is_done_is_not_done_again(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert study("tiny", "--seeds", "1", "--only", "alone", "--out", str(out)).exit_code == 0
    runs = out / "tiny-runs" / "runs"
    first = {path.name: path.stat().st_mtime_ns for path in runs.iterdir()}
    assert len(first) == 3
    assert study("tiny", "--seeds", "2", "--out", str(out)).exit_code == 0
    again = {path.name: path.stat().st_mtime_ns for path in runs.iterdir()}
    assert len(again) == 12
    assert first.items() <= again.items()


def test_ctrl_c_keeps_what_is_done_and_says_so(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = sweeps._execute

    def interrupted(*given: Any) -> Any:
        for count, done in enumerate(execute(*given)):
            if count == 4:
                raise KeyboardInterrupt
            yield done

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(sweeps, "_execute", interrupted)
        stopped = study("tiny", "--out", str(out))
    assert stopped.exit_code == 130
    assert "4 of 12 runs of Study tiny" in stopped.stderr
    assert not json.loads((out / "tiny.json").read_text())["complete"]
    assert study("tiny", "--out", str(out)).exit_code == 0
    assert json.loads((out / "tiny.json").read_text())["complete"]


def test_keys_are_set_and_groups_chosen(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = study(
        "tiny", "--scale", "small", "--only", "al*", "--only", "nothing", "--out", str(out)
    )
    assert done.exit_code == 2
    assert not out.exists()
    chosen = ("--only", "al*", "--set", "job.passes=2", "--json")
    done = study("tiny", "--scale", "small", *chosen, "--out", str(out))
    assert done.exit_code == 0, done.output
    (report,) = json.loads(done.stdout)["studies"]
    assert report["settings"] == {"job.passes": 2}
    assert report["only"] == ["al*"]
    assert report["runs"] == 3
    assert {each["group"] for each in report["rows"]} == {"alone"}
    effective = next(out.rglob("effective.toml")).read_text()
    assert "passes = 2" in effective


def test_jobs_can_be_the_groups(tiny: Path, tmp_path: Path) -> None:
    job = '[[job]]\nname = "{}"\nranks = 4\nplacement = "striped"\nchunk = "8KiB"\n'
    scenario = (tiny.parent / "ring.toml").read_text().partition("[[job]]")[0]
    (tiny.parent / "ring.toml").write_text(scenario + job.format("A.1") + job.format("B"))
    text = STUDY.replace('title = "Tiny rings"', 'title = "Two"\nsplit = true\ntime = "jct"')
    tiny.write_text(text.replace('"job.ranks" = 6', ""))
    done = study(
        "tiny", "--seeds", "1", "--only", "alone", "--json", "--out", str(tmp_path / "out")
    )
    assert done.exit_code == 0, done.output
    (report,) = json.loads(done.stdout)["studies"]
    assert {each["group"] for each in report["rows"]} == {"alone/A", "alone/B"}
    assert {each["metric"] for each in report["rows"]} == {"jct_ms", "reduction_pct"}


def test_runs_that_come_to_a_standstill_are_counted_and_left_out(
    tiny: Path, tmp_path: Path
) -> None:
    fail = 'event = [{ at = "5us", link = "h0-tor0", action = "fail" }], "transport.rto" = "off"'
    tiny.write_text(STUDY.replace('"switch.marking" = "marker" }', f"{fail} }}"))
    done = study(
        "tiny", "--seeds", "1", "--only", "alone", "--json", "--out", str(tmp_path / "out")
    )
    assert done.exit_code == 0, done.output
    (report,) = json.loads(done.stdout)["studies"]
    assert report["stalled"] == 1
    assert {each["variant"] for each in report["rows"]} == {"baseline", "planned"}
    assert "1 of which came to a standstill" in (tmp_path / "out" / "tiny.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tony",), "'tony' is no study; write tiny"),
        (("tiny", "--only", "else/*"), "no group of study tiny is like this; there are alone, bes"),
        (("tiny", "--set", "switch.lb=ecmp"), "study tiny varies it; leave it out"),
        (("tiny", "--set", "background=[]"), "study tiny varies it"),
        (("tiny", "--set", "job.chunks_of=1"), "chunks_of"),
        (("tiny", "--set", "nonsense"), "write key=value"),
        (("tiny", "--scale", "paper"), "'paper' is not one of"),
        (("tiny", "--seeds", "-1"), "greater than or equal to 0"),
    ],
)
def test_bad_arguments_are_refused(
    tiny: Path, tmp_path: Path, arguments: Sequence[str], message: str
) -> None:
    out = tmp_path / "out"
    done = study("--out", str(out), *arguments)
    assert done.exit_code == 2
    assert message in plain(done.output)
    assert not out.exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('labels = ["baseline"', 'labels = ["base"', "with a value of label 'baseline'"),
        ('name = "variant"', 'name = "scheme"', "needs an axis 'variant'"),
        ('title = "Tiny rings"', 'titel = "Tiny"', "study.titel: unknown key; did you mean 'ti"),
        ('title = "Tiny rings"\n', "", "study: 'title' is missing; write for example title ="),
        ('title = "Tiny rings"', 'title = "T"\ntime = "fct"', "write cct, jct"),
    ],
)
def test_a_sweep_that_is_no_study_is_refused(
    tiny: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in STUDY
    tiny.write_text(STUDY.replace(old, new))
    done = study("tiny", "--out", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert message in plain(done.output)


def test_a_study_without_a_small_form_says_so(tiny: Path, tmp_path: Path) -> None:
    tiny.with_name("tiny.small.toml").unlink()
    done = study("tiny", "--scale", "small", "--out", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert "study tiny has no small form" in done.stderr


def test_a_folder_that_holds_something_else_is_left_alone(tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    done = study("tiny", "--out", str(other))
    assert done.exit_code == 2
    assert "holds something that is no result" in done.output
    assert [path.name for path in other.iterdir()] == ["notes.txt"]
