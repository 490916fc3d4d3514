from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ringstep.hostlib.dynamic.actions import Config
from ringstep.hostlib.evaluate import sweep_cli
from ringstep.hostlib.evaluate.sources import Progress, SourceError, SweepOptions
from ringstep.hostlib.shm_layout import Algo, Proto
from ringstep.hostlib.traces.fluid import Load
from ringstep.hostlib.traces.sweep import Sweep, load_sweeps

runner = CliRunner()
app = typer.Typer()
app.command()(sweep_cli.sweep_command)

FEW, MANY = (Config(Algo.RING, Proto.SIMPLE, n) for n in (2, 8))


def measured(asked: SweepOptions, progress: Progress) -> Sweep:
    progress(1, 1)
    few = tuple((100.0 / (1 - load.level), 100.0) for load in asked.loads)
    many = tuple((110.0, 100.0) for _ in asked.loads)
    return Sweep("made up", asked.key, asked.n_bytes, asked.loads, FEW, few, {FEW: few, MANY: many})


def broken(asked: SweepOptions, progress: Progress) -> Sweep:
    raise SourceError("no cable")


@pytest.fixture(autouse=True)
def sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_cli, "SOURCES", {"made-up": measured, "broken": broken})


def test_sweeps_of_all_sizes_go_into_one_file(tmp_path: Path) -> None:
    out = tmp_path / "sweeps.json"
    found = runner.invoke(
        app,
        ["--source", "made-up", "--bytes", "1M,4M", "--nodes", "4", "--rate", "25G", "--levels",
         "0,0.5", "--flows", "6", "--out", str(out), "--json"],
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    sweeps = load_sweeps(out)
    assert [sweep.n_bytes for sweep in sweeps] == [1 << 20, 4 << 20]
    assert sweeps[0].key.n_nodes == 4
    assert sweeps[0].loads == (Load(), Load(0.5, 6.0))
    clean, loaded = json.loads(found.stdout)["sweeps"][0]["levels"]
    assert (clean["best"], clean["gain"]) == (str(FEW), 0)
    assert (loaded["usual_us"], loaded["best"], loaded["best_us"]) == (150.0, str(MANY), 105.0)
    assert loaded["gain"] == pytest.approx(0.3)


def test_what_is_best_is_shown(tmp_path: Path) -> None:
    found = runner.invoke(app, ["--source", "made-up", "--out", str(tmp_path / "sweep.json")])
    assert found.exit_code == 0, found.output
    assert "all_reduce 4194304 B" in found.stdout
    assert str(MANY) in found.stdout


def test_bad_input_ends_with_2_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    good = ["--source", "made-up", "--out", str(out)]
    for arguments, why in (
        (["--source", "moon", "--out", str(out)], "--source moon: made-up"),
        (["--source", "broken", "--out", str(out)], "no cable"),
        ([*good, "--collective", "gossip"], "--collective gossip"),
        ([*good, "--bytes", "many"], "--bytes 'many'"),
        ([*good, "--rate", "fast"], "--rate 'fast'"),
        ([*good, "--levels", "0.5"], "--levels 0.5"),
        (["--source", "made-up", "--out", str(tmp_path / "none/f.json")], "no such folder"),
        (["--source", "made-up", "--out", str(tmp_path)], "is a folder"),
    ):
        found = runner.invoke(app, arguments)
        assert found.exit_code == 2, found.output
        assert why in found.output
        assert not out.exists()
