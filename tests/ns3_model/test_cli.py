"""``ringstep sim``: exit statuses, messages, and that nothing is written over."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from typer.testing import CliRunner

from ringstep_ns3 import Results
from ringstep_ns3.cli import app

RINGSTEP_SIM = [sys.executable, "-m", "ringstep_ns3"]


def call(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def scenario(ring: str, tmp_path: Path) -> Path:
    path = tmp_path / "ring.toml"
    path.write_text(ring)
    return path


def test_run_writes_a_result_folder(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call("run", scenario, "--seed", 3, "--out", out, "-q")
    assert done.exit_code == 0, done.output
    assert "CCT ms" in done.stdout
    assert "marks:" in done.stdout
    results = Results.read(out)
    assert (results.seed, results.name, results.complete) == (3, "ring", True)


def test_run_prints_json(scenario: Path, tmp_path: Path) -> None:
    done = call("run", scenario, "--json", "-q", "--out", tmp_path / "out")
    summary = json.loads(done.stdout)
    assert summary["scenario"] == "ring"
    assert summary["out"] == str(tmp_path / "out")
    assert summary["timing"]["hops_per_s"] > 0


def test_run_makes_its_own_folder_where_none_is_named(scenario: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*RINGSTEP_SIM, "run", "ring.toml", "-q"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert Results.read(tmp_path / "out" / "ring-seed1").complete


def test_set_goes_before_the_file(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--set", "cc.preset=connectx", "--set", "job.passes=2"]
    assert call("run", scenario, *options, "--out", out, "-q").exit_code == 0
    results = Results.read(out)
    assert results.summary["model"]["cc"] == "connectx"
    assert results.steps.num_rows == 28


def test_results_are_not_written_over_unless_asked(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert call("run", scenario, "--out", out, "-q").exit_code == 0
    before = (out / "summary.json").read_bytes()
    again = call("run", scenario, "--out", out, "--seed", 2, "-q")
    assert again.exit_code == 2
    assert "holds results already; name another folder, or add --force" in again.stderr
    assert (out / "summary.json").read_bytes() == before
    assert call("run", scenario, "--out", out, "--seed", 2, "--force", "-q").exit_code == 0
    assert Results.read(out).seed == 2


def test_a_folder_that_holds_something_else_is_left_alone(scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    done = call("run", scenario, "--out", tmp_path / "home", "--force", "-q")
    assert done.exit_code == 2
    assert "holds something that is no result" in done.stderr
    assert (tmp_path / "home" / "thesis.tex").read_text() == "x"


@pytest.mark.parametrize(
    ("out", "text"),
    [
        ("none/out", "none is not there; make it first"),
        ("ring.toml/out", "ring.toml is no folder; make it first"),
        ("ring.toml", "is a file; name a folder"),
        ("/proc/ringstep-out", "cannot be written to"),
    ],
)
def test_a_missing_or_unwritable_folder_is_refused_before_the_run(
    scenario: Path, tmp_path: Path, out: str, text: str
) -> None:
    done = call("run", scenario, "--out", tmp_path / out, "-q")
    assert done.exit_code == 2
    assert text in done.stderr
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["ring.toml"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ('[cc]\npresset = "x"\n', "ring.toml:14: cc.presset: unknown key; did you mean 'preset'?"),
        ('[[job]]\nname = "two"\nranks = 1\nsize = 8\n', "job[2].ranks: a ring over one node"),
        ('[[event]]\nat = "1ms"\nlink = "x"\naction = "fail"\n', "event[1].link: 'x' is no link"),
        ('[switch.red]\nprofile = "astra"\n', "has no thresholds for 10G"),
        ("[switch]\nbuffer = 10000\n", "ring.toml:13: switch: "),
    ],
)  # fmt: skip
def test_bad_input_is_status_2_without_a_traceback(
    scenario: Path, tmp_path: Path, change: str, text: str
) -> None:
    with scenario.open("a") as file:
        file.write(change)
    for command in (["run", scenario, "--out", tmp_path / "out", "-q"], ["validate", scenario]):
        done = call(*command)
        assert done.exit_code == 2, done.output
        assert text in done.stderr
        assert "Traceback" not in done.output
    assert not (tmp_path / "out").exists()


def test_validate_prints_every_default(scenario: Path) -> None:
    done = call("validate", scenario)
    assert done.exit_code == 0
    assert 'dependency = "in_order"' in done.stdout
    assert "k_min 50000 B" in done.stdout
    scenario.write_text(done.stdout)
    assert call("validate", scenario).stdout == done.stdout


def test_presets_are_listed_and_shown() -> None:
    assert "symphony" in call("presets").stdout
    assert "[fabric]" in call("presets", "nccl").stdout
    assert call("presets", "ncl").exit_code == 2


def test_a_stalled_run_is_status_1_and_kept(scenario: Path, tmp_path: Path) -> None:
    with scenario.open("a") as file:
        file.write('[transport]\nrto = "off"\n[[drop]]\nwhich = "last"\nsrc = "h0"\nstep = 1\n')
    done = call("run", scenario, "--out", tmp_path / "out", "-q")
    assert done.exit_code == 1
    assert "not everything ended" in done.stderr
    assert not Results.read(tmp_path / "out").complete


def test_a_drop_that_matches_nothing_is_said_on_stderr(scenario: Path, tmp_path: Path) -> None:
    with scenario.open("a") as file:
        file.write('[[drop]]\nkind = "cnp"\nstep = 999\n')
    done = call("run", scenario, "--out", tmp_path / "out", "-q")
    assert done.exit_code == 0
    assert "warning: drop[1]: nothing was lost by it" in done.stderr


def interrupt(process: subprocess.Popen[str], ready: Path) -> tuple[str, str]:
    """Send ctrl-C once ``ready`` is there; return what the process said."""
    for _ in range(600):
        if ready.exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=60)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT")
def test_ctrl_c_keeps_what_is_done(scenario: Path, tmp_path: Path) -> None:
    # The run would take minutes; the script says when it is under way.
    script = (
        "import pathlib, sys\n"
        "from ringstep_ns3 import cli, simulate\n"
        "update = cli._RunProgress.update\n"
        "def first(self, progress):\n"
        "    pathlib.Path('ready').touch()\n"
        "    update(self, progress)\n"
        "cli._RunProgress.update = first\n"
        "sys.argv = ['sim', 'run', 'ring.toml', '--set', 'job.chunk=64MiB', '--out', 'out']\n"
        "cli.main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, errors = interrupt(process, tmp_path / "ready")
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "marked as not complete" in errors
    results = Results.read(tmp_path / "out")
    assert results.summary["stopped"] == "interrupted"
    assert results.flows.num_rows > 0


def test_progress_is_told_where_there_is_no_terminal(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringstep_ns3.cli._LINE_EVERY_S", 0.0)
    done = call("run", scenario, "--set", "job.chunk=1MiB", "--out", tmp_path / "out")
    lines = [line for line in done.stderr.splitlines() if "simulated" in line]
    assert lines
    assert all("s left" in line and "%" in line for line in lines)
