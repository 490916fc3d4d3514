import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringstep.hostlib.traces.cli import app
from ringstep.hostlib.traces.format import load

runner = CliRunner()
SMALL = ["--traces", "3", "--calls", "20", "--seed", "5"]


def test_traces_are_made_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    made = runner.invoke(app, ["generate", "--out", str(path), *SMALL, "--json"])
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["digest"] == load(path).digest
    checked = runner.invoke(app, ["check", str(path), "--json"])
    about = json.loads(checked.stdout)
    assert (about["calls"], about["traces"], about["source"]) == (60, 3, "fluid")
    assert sum(about["labels"].values()) == 60
    assert "labels" in runner.invoke(app, ["check", str(path)]).stdout


def test_a_calibrated_cluster_is_kept_near(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.json"
    cluster.write_text('{"link_rate": 777}')
    path = tmp_path / "t.npz"
    made = runner.invoke(app, ["generate", "--out", str(path), *SMALL, "--cluster", str(cluster)])
    assert made.exit_code == 0, made.output
    assert load(path).header["around"]["link_rate"] == 777.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "not parameters"),
        ("{", "not parameters"),
        ('{"speed": 1}', "not parameters"),
        ('{"link_rate": -1}', "link_rate"),
    ],
)
def test_a_bad_cluster_is_refused(tmp_path: Path, text: str, why: str) -> None:
    cluster = tmp_path / "cluster.json"
    cluster.write_text(text)
    out = tmp_path / "t.npz"
    found = runner.invoke(app, ["generate", "--out", str(out), "--cluster", str(cluster)])
    assert found.exit_code == 2
    assert why in found.stderr
    assert not out.exists()


def test_bad_input_ends_with_2_and_leaves_nothing(tmp_path: Path) -> None:
    nowhere = tmp_path / "none" / "t.npz"
    found = runner.invoke(app, ["generate", "--out", str(nowhere), *SMALL])
    assert found.exit_code == 2
    assert "No such file" in found.stderr
    found = runner.invoke(app, ["generate", "--out", str(tmp_path / "t"), "--source", "moon"])
    assert found.exit_code == 2
    found = runner.invoke(app, ["check", str(tmp_path / "none.npz")])
    assert found.exit_code == 2
    assert "no such file" in found.stderr
    assert not list(tmp_path.iterdir())
