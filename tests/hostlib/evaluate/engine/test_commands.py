"""Sweeps and episodes of the engine by ``ringstep tuner traces``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.evaluate.engine import source
from ringstep.hostlib.evaluate.record_cli import record_command
from ringstep.hostlib.evaluate.sweep_cli import sweep_command
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.fluid import CLEAN, Load
from ringstep.hostlib.traces.format import load
from ringstep.hostlib.traces.mixed import oracle_of
from ringstep.hostlib.traces.sweep import Sweep, load_sweeps, save_sweeps

runner = CliRunner()
app = typer.Typer()
app.command("sweep")(sweep_command)
app.command("record")(record_command)

SMALL = [
    "sweep", "--source", "engine", "--bytes", "64K", "--bytes", "32K", "--nodes", "2", "--levels",
    "0,0.5", "--repeats", "1", "--max-channels", "1", "--queue-ms", "20", "--rivals", "reno",
    "--ranks", "cubic", "--backlog", "16K",
]  # fmt: skip


@pytest.mark.root
def test_a_sweep_of_several_keys_is_what_episodes_are_recorded_with(
    links: None, tmp_path: Path
) -> None:
    swept, out = tmp_path / "sweep.json", tmp_path / "traces.npz"
    work = ["--work", str(tmp_path / "work")]
    made = runner.invoke(app, [*SMALL, *work, "--out", str(swept), "--json"])
    assert made.exit_code == 0, made.output
    sweeps = load_sweeps(swept)
    assert [sweep.n_bytes for sweep in sweeps] == [64 << 10, 32 << 10]
    assert sweeps[0].key == Key.of(2, 2, Collective.ALL_REDUCE, 64 << 10)
    assert all(
        "queues of 20 ms" in sweep.env and "cubic against reno, rivals hold 16 KiB" in sweep.env
        for sweep in sweeps
    )
    assert len(sweeps[0].calls_us) == 4
    before = swept.read_bytes()
    again = runner.invoke(app, [*SMALL, *work, "--out", str(swept)])
    assert again.exit_code == 0, again.output
    assert swept.read_bytes() == before  # what was kept was not measured again

    links_of = ["--queue-ms", "20", "--rivals", "reno", "--ranks", "cubic", "--backlog", "16K"]
    run = ["record", "--source", "engine", "--sweep", str(swept), "--out", str(out)]
    made = runner.invoke(app, [*run, *links_of, "--episodes", "3", "--calls", "24", "--json"])
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["calls"] == 72
    traces = load(out)
    assert np.unique(traces.columns["bytes"][24:48]).tolist() == [32 << 10]
    assert np.unique(traces.columns["bytes"][48:]).tolist() == [64 << 10]
    assert oracle_of(traces) is not None

    wrong = runner.invoke(app, [*run, "--episodes", "1"])
    assert wrong.exit_code == 2
    assert "this would be" in wrong.output


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    def of(nodes: int) -> Sweep:
        key, rows = Key.of(nodes, nodes, Collective.ALL_REDUCE, 4096), ((10.0,), (20.0,))
        ring = Config(Algo.RING, Proto.LL, 1)
        return Sweep("by hand", key, 4096, (CLEAN, Load(0.8)), ring, rows, {ring: rows})

    save_sweeps(tmp_path / "by-hand.json", [of(2), of(4)])
    return tmp_path / "by-hand.json"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (["--collective", "reduce"], "the engine has no reduce"),
        (["--bytes", "4"], "8 or more for 2 ranks"),
        (["--rate", "100k"], "rate_bps"),
        (["--rivals", "pigeon"], "this kernel has"),
        (["--nodes", "65"], "nodes = 65"),
        (["--source", "simulator"], "for --source engine"),
    ],
)
def test_a_sweep_asked_for_wrongly_ends_with_2(tmp_path: Path, wrong: list[str], why: str) -> None:
    out = tmp_path / "sweep.json"
    found = runner.invoke(app, [*SMALL, "--out", str(out), *wrong])
    assert found.exit_code == 2, found.output
    assert why in found.output
    assert not out.exists()


def test_episodes_asked_for_wrongly_end_with_2(tmp_path: Path, swept: Path) -> None:
    out = tmp_path / "traces.npz"
    good = ["record", "--source", "engine", "--sweep", str(swept), "--out", str(out)]
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for wrong, why in (
        ([], "record one at a time"),
        (["--source", "moon"], "--source moon"),
        (["--rate", "fast"], "--rate"),
        (["--sweep", str(tmp_path / "none.json")], "No such file"),
        (["--sweep", str(broken)], "not JSON"),
        (["--out", str(tmp_path / "none/t.npz")], "no such folder"),
        (["--calls", "5"], "--calls"),
    ):
        found = runner.invoke(app, [*good, *wrong])
        assert found.exit_code == 2, found.output
        assert why in found.output
        assert not out.exists()


def test_where_hosts_cannot_be_made_it_says_how_they_could(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "missing", lambda: "needs root; run it with sudo")
    found = runner.invoke(app, [*SMALL, "--out", str(tmp_path / "sweep.json")])
    assert found.exit_code == 2
    assert "the engine's links: needs root; run it with sudo" in found.output


@pytest.mark.root
def test_ctrl_c_ends_a_sweep_and_leaves_no_file(links: None, tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    with subprocess.Popen(
        [sys.executable, "-m", "ringstep.cli.main", "tuner", "traces", *SMALL, "--out", str(out),
         "--repeats", "1000"],
        stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        while b"evaluate.engine.worker" not in _below(program.pid):
            assert program.poll() is None
            time.sleep(0.02)
        program.send_signal(signal.SIGINT)
        assert program.wait(timeout=60) == 130
        assert program.stderr is not None
        assert "Traceback" not in program.stderr.read()
    assert list(tmp_path.iterdir()) == []


def _below(pid: int) -> bytes:
    found = b""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with suppress(OSError):  # it has ended
                found += Path(f"/proc/{child}/cmdline").read_bytes()
    return found
