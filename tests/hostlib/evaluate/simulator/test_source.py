from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from ringstep.hostlib.dynamic.actions import Config
from ringstep.hostlib.evaluate.simulator import scenario, source
from ringstep.hostlib.evaluate.simulator.scenario import CALLS, Case, Rivals
from ringstep.hostlib.evaluate.simulator.source import nccls_choice, simulate
from ringstep.hostlib.evaluate.sources import SourceError, SweepOptions
from ringstep.hostlib.evaluate.sweep_cli import sweep_command
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.fluid import CLEAN, Load
from ringstep.hostlib.traces.sweep import load_sweeps

SWEEP = [
    sys.executable, "-m", "ringstep.cli", "tuner", "traces", "sweep", "--source", "simulator",
]  # fmt: skip
TINY = ["--bytes", "64K", "--nodes", "2", "--rate", "25G", "--levels", "0,0.8"]

runner = CliRunner()
app = typer.Typer()
app.command()(sweep_command)


def needs_simulator() -> None:
    pytest.importorskip("ringstep_ns3._core", reason="needs the core: pip install ./ns3-model")


def asked(collective: Collective = Collective.ALL_REDUCE, per_node: int = 1) -> SweepOptions:
    return SweepOptions(collective, 65536, 2, per_node, 25e9, (CLEAN,), 2, 0, 1, 1)


def test_a_sweep_is_measured_and_goes_on_from_what_is_there(tmp_path: Path) -> None:
    needs_simulator()
    out, work = tmp_path / "sweep.json", tmp_path / "work"
    command = [
        "--source", "simulator", *TINY, "--repeats", "3", "--max-channels", "1", "--jobs", "1",
        "--out", str(out), "--json", "--work", str(work),
    ]  # fmt: skip
    first = runner.invoke(app, command)
    assert first.exit_code == 0, first.output
    about = json.loads(first.stdout)["sweeps"][0]
    (sweep,) = load_sweeps(out)
    assert [load.level for load in sweep.loads] == [0.0, 0.8]
    assert len(sweep.calls_us) == 4  # Ring and Tree, LL and Simple
    for config, rows in sweep.calls_us.items():
        assert [len(row) for row in rows] == [2 * CALLS, 2 * CALLS]  # whole runs: 3 calls are 4
        # No faster than the bytes at the link's rate; slower where others want most of it.
        copies = 1 if config.proto is Proto.SIMPLE else 2
        assert min(rows[0]) > copies * 65536 * 8 / 25e3
        assert min(rows[1]) > min(rows[0])
    assert sweep.usual in sweep.calls_us
    assert about["usual"] == str(sweep.usual)
    assert [row["level"] for row in about["levels"]] == [0.0, 0.8]
    made = {path: path.stat().st_mtime_ns for path in work.rglob("summary.json")}
    assert runner.invoke(app, command).stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in work.rglob("summary.json")} == made


def test_wire_bytes_of_the_simulator_are_those_of_the_collective() -> None:
    needs_simulator()
    from ringstep_ns3 import Scenario, run

    options = SweepOptions(
        Collective.ALL_REDUCE, 1 << 20, 4, 1, 100e9, (CLEAN,), CALLS, 0, 8, 1
    )  # fmt: skip
    ring_bytes = 2 * 3 * (1 << 20)  # 2 (n - 1) / n of the buffer at each of n nodes
    for algo, proto, factor in (
        (Algo.RING, Proto.SIMPLE, 1),
        (Algo.RING, Proto.LL, 2),
        (Algo.TREE, Proto.SIMPLE, 1),
        (Algo.TREE, Proto.LL, 2),
    ):
        case = Case(Config(algo, proto, 3), CLEAN)
        tables = {
            **scenario.base(options, Rivals.FABRIC),
            **scenario.point(options, case, Rivals.FABRIC, 1),
        }
        summary = run(Scenario.parse(scenario.document(tables)), seed=1).summary
        assert summary["jobs"][0]["bytes"] == CALLS * factor * ring_bytes
        assert summary["jobs"][0]["cct_ns"]["count"] == CALLS


@pytest.mark.parametrize("rivals", Rivals)
def test_rivals_carry_their_level_where_nothing_is_in_their_way(rivals: Rivals) -> None:
    needs_simulator()
    from ringstep_ns3 import Scenario, run

    options = SweepOptions(Collective.ALL_REDUCE, 4096, 3, 1, 100e9, (CLEAN,), CALLS, 0, 8, 1)
    load = Load(0.6)
    case = Case(Config(Algo.RING, Proto.SIMPLE, 1), load)
    until = 40 * scenario.period_ns(options, load)
    tables = {**scenario.base(options, rivals), **scenario.point(options, case, rivals, until)}
    summary = run(Scenario.parse(scenario.document(tables)), seed=1).summary
    assert summary["sim_time_ns"] == until
    carried = sum(job["bytes"] for job in summary["jobs"][1:]) * 8 / 3 / (until * 1e-9)
    assert carried == pytest.approx(0.6 * 100e9, rel=0.05)
    assert summary["totals"]["drops_buffer"] == 0


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    needs_simulator()
    out, temporary = tmp_path / "sweep.json", tmp_path / "tmp"
    temporary.mkdir()
    env = {**os.environ, "TMPDIR": str(temporary)}
    command = [*SWEEP, "--bytes", "8M", "--repeats", "40", "--jobs", "1", "--out", str(out)]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not list(temporary.glob("*/sweep.toml")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert not out.exists()
    assert list(temporary.iterdir()) == []


def test_a_simulator_that_is_not_installed_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = (
        "import sys; sys.modules['ringstep_ns3'] = None; from ringstep.cli.main import main; "
        "sys.argv = ['ringstep', *sys.argv[1:]]; main()"
    )
    monkeypatch.setattr(source, "COMMAND", (sys.executable, "-c", hidden, "sim", "sweep"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    out = tmp_path / "sweep.json"
    found = runner.invoke(app, ["--source", "simulator", *TINY, "--out", str(out)])
    assert found.exit_code == 2
    assert "not installed" in found.output
    assert "pip install ./ns3-model" in found.output
    assert list(tmp_path.iterdir()) == []


def test_what_the_simulator_does_not_have_is_refused() -> None:
    with pytest.raises(SourceError, match=r"reduce: .*all_reduce"):
        simulate(asked(Collective.REDUCE), lambda done, of: None)
    with pytest.raises(SourceError, match="2 ranks per node"):
        simulate(asked(per_node=2), lambda done, of: None)


def test_nccls_choice_is_the_best_pair_at_two_channels_on_a_clean_network() -> None:
    def config(algo: Algo, proto: Proto, channels: int) -> Config:
        return Config(algo, proto, channels)

    clean = {
        config(Algo.RING, Proto.SIMPLE, 8): (1.0, 1.0),
        config(Algo.RING, Proto.SIMPLE, 2): (9.0, 5.0, 5.0),
        config(Algo.TREE, Proto.SIMPLE, 2): (6.0, 6.0, 1.0),
        config(Algo.TREE, Proto.LL, 1): (7.0,),
    }
    assert nccls_choice(clean) == config(Algo.RING, Proto.SIMPLE, 2)
    assert nccls_choice(clean, max_channels=1) == config(Algo.TREE, Proto.LL, 1)


def test_calls_that_never_end_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_still(
        asked: SweepOptions, rivals: Rivals, points: list[dict[str, Any]], seeds: list[int],
        folder: Path, *rest: object,
    ) -> None:  # fmt: skip
        for i, (point, seed) in enumerate((p, s) for p in points for s in seeds):
            run = folder / "results" / "runs" / f"{point['name']}-{i}"
            run.mkdir(parents=True)
            jobs = [{"cct_ns": {"count": 0}}]
            summary = {"stopped": "until", "jobs": jobs, "scenario": point["name"], "seed": seed}
            (run / "summary.json").write_text(json.dumps(summary))

    monkeypatch.setattr(source, "_sweep", stand_still)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SourceError, match=r"tree/ll/1 at 0% load: 2 calls did not end"):
        simulate(asked(), lambda done, of: None)
    assert list(tmp_path.iterdir()) == []
