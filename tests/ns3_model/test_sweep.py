"""Sweeps: points, workers, going on, ctrl-C, and the combined tables."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from typer.testing import CliRunner

from ringstep_ns3 import Results, Sweep, SweepError, run_sweep
from ringstep_ns3.cli import app
from ringstep_ns3.plot import draw
from ringstep_ns3.sweep import MARK

SWEEP = """scenario = "ring.toml"
seeds = [3, 1]
[set]
"job.chunk" = "8KiB"
[[axis]]
name = "scheme"
keys = ["switch.marking", "switch.lb"]
values = [["none", "ecmp"], ["none", "planned"]]
labels = ["ecmp", "planned"]
[[axis]]
key = "cc.preset"
values = ["hpcc_run", "connectx"]
"""


@pytest.fixture
def sweep(ring: str, tmp_path: Path) -> Path:
    (tmp_path / "ring.toml").write_text(ring)
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP)
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "timing.json"
    }


def test_points_are_the_product_of_the_axes(sweep: Path) -> None:
    loaded, points = Sweep.load(sweep)
    assert loaded.seeds == (3, 1)
    assert [point.labels for point in points] == [
        ("ecmp", "hpcc_run"),
        ("ecmp", "connectx"),
        ("planned", "hpcc_run"),
        ("planned", "connectx"),
    ]
    assert points[3].scenario.switch.lb == "planned"
    assert all(point.scenario.job[0].chunk == 8192 for point in points)


def test_seeds_on_the_command_line_go_before_those_of_the_file(sweep: Path, tmp_path: Path) -> None:
    command = ["sweep", str(sweep), "--workers", "1", "-q", "--json", "--out", str(tmp_path / "o")]
    done = CliRunner().invoke(app, [*command, "--seeds", "1"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["seeds"] == [1]


TABLES = """scenario = "ring.toml"
[[axis]]
name = "scheme"
labels = ["ecmp", "planned", "connectx"]
[[axis.values]]
[[axis.values]]
"switch.lb" = "planned"
[[axis.values]]
"cc.preset" = "connectx"
"job.chunk" = "8KiB"
"""


def test_values_that_are_tables_set_keys_of_their_own(sweep: Path) -> None:
    sweep.write_text(TABLES)
    loaded, points = Sweep.load(sweep)
    assert loaded.axis[0].paths == ("switch.lb", "cc.preset", "job.chunk")
    found = [(p.scenario.switch.lb, p.scenario.cc.preset, p.scenario.job[0].chunk) for p in points]
    assert found == [
        ("ecmp", "hpcc_run", 65536),
        ("planned", "hpcc_run", 65536),
        ("ecmp", "connectx", 8192),
    ]


def test_only_wanted_points_are_checked(sweep: Path) -> None:
    sweep.write_text(SWEEP.replace('"connectx"]', '"conectx"]'))
    _, points = Sweep.load(sweep, wanted=lambda labels: labels["preset"] == "hpcc_run")
    assert [(point.index, point.labels) for point in points] == [
        (0, ("ecmp", "hpcc_run")),
        (2, ("planned", "hpcc_run")),
    ]


def test_any_number_of_workers_gives_the_same_bytes(sweep: Path, tmp_path: Path) -> None:
    loaded, points = Sweep.load(sweep)
    outcomes = [
        run_sweep(loaded, points, tmp_path / f"w{workers}", workers=workers) for workers in (1, 2)
    ]
    assert all(outcome.complete for outcome in outcomes)
    first = content(tmp_path / "w1")
    assert first == content(tmp_path / "w2")
    assert len([name for name in first if name.endswith("summary.json")]) == 8
    runs = pq.read_table(tmp_path / "w1" / "runs.parquet").to_pydict()
    assert runs["seed"] == [3, 1] * 4
    assert runs["scheme"] == ["ecmp"] * 4 + ["planned"] * 4
    assert all(time > 0 for time in runs["jct_ns"])
    collectives = pq.read_table(tmp_path / "w1" / "collectives.parquet").to_pydict()
    assert collectives["cct_ns"] == runs["cct_max_ns"]


def test_what_is_done_is_not_done_again(sweep: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    loaded, points = Sweep.load(sweep)
    told = []
    run_sweep(loaded, points[:2], out, on_progress=told.append)
    assert (told[0].done, told[-1].done, told[-1].reused) == (0, 4, 0)
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")}
    told.clear()
    outcome = run_sweep(loaded, points, out, on_progress=told.append)
    assert (told[0].done, told[0].reused, told[-1].done) == (4, 4, 8)
    assert outcome.complete
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


def test_runs_of_another_build_are_not_gone_on_with_unasked(sweep: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    loaded, points = Sweep.load(sweep)
    first = run_sweep(loaded, points[:1], out).summary["builds"]
    path = sorted(out.glob("runs/*/summary.json"))[0]
    summary = json.loads(path.read_text())
    assert "(sources " in summary["versions"]["core"]
    summary["versions"]["core"] = "ringstep-ns3 0.0.9, ns-3.44"
    path.write_text(json.dumps(summary))
    before = content(out)
    with pytest.raises(SweepError) as caught:
        run_sweep(loaded, points, out)
    assert "1 of its runs were made by another build" in str(caught.value)
    assert "ringstep-ns3 0.0.9, ns-3.44" in str(caught.value)
    assert "keep them with --mixed" in str(caught.value)
    assert content(out) == before
    outcome = run_sweep(loaded, points, out, mixed=True)
    assert outcome.complete
    assert outcome.summary["builds"] == sorted(
        [*first, "ringstep-ns3 0.0.9, ns-3.44, Python parts 0.1.0"]
    )


def test_ctrl_c_keeps_what_is_done_and_says_so(sweep: Path, tmp_path: Path) -> None:
    loaded, points = Sweep.load(sweep)

    def stop(progress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    outcome = run_sweep(loaded, points, tmp_path / "out", on_progress=stop)
    assert (outcome.interrupted, outcome.complete) == (True, False)
    summary = json.loads((tmp_path / "out" / MARK).read_text())
    assert (summary["done"], summary["runs"], summary["complete"]) == (3, 8, False)
    assert pq.read_table(tmp_path / "out" / "runs.parquet").num_rows == 3
    assert run_sweep(loaded, points, tmp_path / "out").complete


def test_ctrl_c_stops_the_workers(sweep: Path, tmp_path: Path) -> None:
    loaded, points = Sweep.load(sweep)

    def stop(progress) -> None:
        if progress.done == 1:
            raise KeyboardInterrupt

    outcome = run_sweep(loaded, points, tmp_path / "out", workers=2, on_progress=stop)
    assert outcome.interrupted
    assert outcome.summary["done"] == 1


@pytest.mark.slow
def test_ctrl_c_on_the_terminal_ends_a_sweep_with_130(sweep: Path, tmp_path: Path) -> None:
    (tmp_path / "ring.toml").write_text(
        (tmp_path / "ring.toml").read_text().replace("64KiB", "4MiB")
    )
    sweep.write_text('scenario = "ring.toml"\nseeds = 40\n')
    command = ["sweep", "sweep.toml", "--workers", "2", "--out", "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ringstep_ns3", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for _ in range(1200):
        if any((tmp_path / "out" / "runs").glob("*/summary.json")) or process.poll() is not None:
            break
        time.sleep(0.05)
    # A terminal sends it to the whole group, workers included.
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    summary = json.loads((tmp_path / "out" / MARK).read_text())
    assert 0 < summary["done"] < 40
    assert not summary["complete"]


def test_equal_points_are_run_once(sweep: Path, tmp_path: Path) -> None:
    text = sweep.read_text().replace('["none", "planned"]', '["none", "ecmp"]')
    sweep.write_text(text)
    loaded, points = Sweep.load(sweep)
    outcome = run_sweep(loaded, points, tmp_path / "out")
    assert outcome.complete
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 4
    assert outcome.runs.num_rows == 8


def test_the_command_runs_a_sweep_and_refuses_other_folders(sweep: Path, tmp_path: Path) -> None:
    command = ["sweep", str(sweep), "--workers", "1", "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["complete"]
    single = tmp_path / "out" / "runs"
    refused = CliRunner().invoke(app, ["sweep", str(sweep), "--out", str(single), "-q"])
    assert refused.exit_code == 2
    assert "holds something that is no result" in refused.stderr


def test_figures_are_drawn_from_a_sweep_and_from_results(sweep: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="no matplotlib; pip install 'ringstep-ns3[plot]'")
    loaded, points = Sweep.load(sweep)
    run_sweep(loaded, points, tmp_path / "out")
    figures = tmp_path / "figures"
    drawn = draw([tmp_path / "out"], (), figures, "svg")
    assert [path.name for path in drawn] == [
        "cct.svg", "bars.svg", "overlap.svg", "rate.svg", "throughput.svg",
    ]  # fmt: skip
    first = drawn[0].read_text()
    run = next((tmp_path / "out" / "runs").iterdir())
    assert draw([run], ["rate"], figures)[0].stat().st_size > 1000
    assert "planned" in first
    nowhere = CliRunner().invoke(app, ["plot", str(run), "--out", str(tmp_path / "no" / "figures")])
    assert nowhere.exit_code == 2
    assert "no is not there; make it first" in nowhere.stderr
    missing = CliRunner().invoke(app, ["plot", str(tmp_path), "--out", str(figures)])
    assert missing.exit_code == 2
    assert "neither results nor a sweep" in missing.stderr
    unknown = CliRunner().invoke(app, ["plot", str(run), "--figure", "pie", "--out", str(figures)])
    assert unknown.exit_code == 2
    assert "no such figure; write cct, bars" in unknown.stderr


GOLDEN = {
    "a value that no scenario has": (
        SWEEP.replace('"connectx"]', '"conectx"]'),
        "sweep.toml: point 2 (scheme = ecmp, preset = conectx): --set cc.preset=\"conectx\": "
        "cc.preset: 'conectx' is not one of these; did you mean 'connectx'? write hpcc_run",
    ),
    "a key that no scenario has": (
        SWEEP.replace('"cc.preset"', '"cc.presset"'),
        "cc.presset: unknown key; did you mean 'preset'?",
    ),
    "no key": (
        SWEEP.replace('key = "cc.preset"\n', 'name = "x"\n'),
        "sweep.toml:10: axis[2]: takes either 'key' or 'keys'",
    ),
    "tables without labels": (
        TABLES.replace("labels", "# labels"),
        "sweep.toml:2: axis[1]: values that are tables need a 'name' and 'labels'; add them",
    ),
    "values of another length": (
        SWEEP.replace('["none", "ecmp"], ', '["none"], '),
        "sweep.toml:8: axis[1].values: each value is a list of 2, one per key",
    ),
    "labels of another length": (
        SWEEP.replace('["ecmp", "planned"]', '["ecmp"]'),
        "sweep.toml:9: axis[1].labels: 1 labels for 2 values",
    ),
    "a seed twice": (
        SWEEP.replace("[3, 1]", "[1, 1]"),
        "sweep.toml:2: seeds: a seed stands twice; it would give the same run again",
    ),
    "no scenario": (
        SWEEP.replace('"ring.toml"', '"rang.toml"'),
        "rang.toml is not there; give a path from",
    ),
    "an axis named as a column": (
        SWEEP.replace('name = "scheme"', 'name = "seed"'),
        "sweep.toml:6: axis[1].name: 'seed' is a column of the tables; take another name",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), GOLDEN.values(), ids=GOLDEN)
def test_a_mistake_is_found_before_the_first_run(sweep: Path, text: str, message: str) -> None:
    sweep.write_text(text)
    with pytest.raises(SweepError) as caught:
        Sweep.load(sweep)
    assert message in caught.value.problems[0]


def test_dask_gives_the_same_bytes(sweep: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="no dask; pip install 'ringstep-ns3[dask]'")
    sweep.write_text(SWEEP + '[dask]\ncluster = "local"\n[dask.options]\nprocesses = true\n')
    loaded, points = Sweep.load(sweep)
    run_sweep(loaded, points[:1], tmp_path / "dask", engine="dask")
    run_sweep(loaded, points[:1], tmp_path / "one")
    assert content(tmp_path / "dask") == content(tmp_path / "one")
    assert Results.read(next((tmp_path / "dask" / "runs").iterdir())).complete


def test_without_dask_the_message_says_what_to_install(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dask", None)
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    loaded, points = Sweep.load(sweep)
    with pytest.raises(SweepError, match=r"pip install 'ringstep-ns3\[dask\]'"):
        run_sweep(loaded, points, tmp_path / "out", engine="dask")


def test_runs_that_come_to_a_standstill_are_counted(sweep: Path, tmp_path: Path) -> None:
    drop = '[[drop]]\nwhich = "last"\nsrc = "h0"\nstep = 2\n[transport]\nrto = "off"\n'
    (tmp_path / "ring.toml").write_text((tmp_path / "ring.toml").read_text() + drop)
    sweep.write_text('scenario = "ring.toml"\nseeds = 2\n[set]\n"job.chunk" = "8KiB"\n')
    command = ["sweep", str(sweep), "--workers", "1", "--out", str(tmp_path / "out"), "-q"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert "2 of them came to a standstill" in done.stdout
    summary = json.loads((tmp_path / "out" / MARK).read_text())
    assert (summary["done"], summary["stalled"]) == (2, 2)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ('cluster = "slurm"', "dask.cluster: 'slurm' needs the command 'sbatch'"),
        ('cluster = "local"\n[dask.options]\ncolour = 3', "dask.options: "),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, text: str
) -> None:
    class Distributed:
        @staticmethod
        def LocalCluster(*, n_workers, threads_per_worker, dashboard_address):
            raise AssertionError("options were to be refused")

    for name in ("dask.distributed", "dask_jobqueue"):
        monkeypatch.setitem(sys.modules, name, Distributed)
    monkeypatch.setenv("PATH", "")
    sweep.write_text(SWEEP + f"[dask]\n{table}\n")
    loaded, points = Sweep.load(sweep)
    with pytest.raises(SweepError) as caught:
        run_sweep(loaded, points[:1], tmp_path / "out", engine="dask")
    assert caught.value.problems[0].startswith(text)
