"""``ringstep tuner calibrate``: what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ringstep.hostlib.cli import app
from ringstep.hostlib.coordinator.policy import Options
from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.dynamic.baseline import load_calibration, save_calibration
from ringstep.hostlib.dynamic.plug import make
from ringstep.hostlib.dynamic.weights import SHAPES, Weights, save
from ringstep.hostlib.evaluate.calibration import cli
from ringstep.hostlib.evaluate.calibration.folder import CARD_FILE, CLUSTER_FILE
from ringstep.hostlib.evaluate.environment import FluidEnvironment
from ringstep.hostlib.evaluate.record import sweep
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces.fluid import CLEAN, FluidParams, Load
from ringstep.hostlib.traces.format import save as save_traces
from ringstep.hostlib.traces.generate import Job, generate
from ringstep.hostlib.traces.noise import NoiseParams
from ringstep.hostlib.traces.recorded import generate_recorded
from ringstep.hostlib.traces.sweep import Sweep, save_sweeps

KEY = Key.of(8, 2, Collective.ALL_REDUCE, 1 << 20)


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])


def kind(
    us: list[float], n_bytes: int = 1 << 20, decided: bool = False, **other: Any
) -> dict[str, Any]:
    calls = [
        {"start_ns": i, "us": t, "decided": decided, "ran": ["ring", "simple", 2], "missing": []}
        for i, t in enumerate(us)
    ]
    return {
        "communicator": "c", "collective": "all_reduce", "bytes": n_bytes, "ranks": 8, "nodes": 2,
        "seen": len(us), "calls": calls, **other,
    }  # fmt: skip


def log(path: Path, *kinds: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"format": "ringstep-calls-1", "kinds": list(kinds)}))
    return path


def steady(middle: float = 200.0, calls: int = 60, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return (middle * np.exp(0.03 * rng.standard_normal(calls))).tolist()


@pytest.fixture(autouse=True)
def no_packaged_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "PACKAGED", tmp_path / "none")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "weights"
    folder.mkdir()
    for name, shapes in SHAPES.items():
        tensors = {n: (0.05 * rng.standard_normal(s)).astype(np.float32) for n, s in shapes.items()}
        save(folder / f"{name}.safetensors", Weights(name, tensors, "", {}))
    return folder


def swept(loads: tuple[Load, ...] = (CLEAN,), sizes: tuple[int, ...] = (1 << 20,)) -> list[Sweep]:
    return [
        sweep(
            FluidEnvironment(
                Job(FluidParams(), Key.of(8, 2, Collective.ALL_REDUCE, size), size, NoiseParams()),
                f"cluster {size}",
            ),
            loads, repeats=5, seed=size,
        )
        for size in sizes
    ]  # fmt: skip


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.startswith((".", "out"))]


def test_the_calls_of_a_job_become_baselines(tmp_path: Path) -> None:
    out = tmp_path / "out"
    calls = log(
        tmp_path / "calls.json", kind([900.0, 400.0, 300.0, *steady()]), kind(steady(calls=5), 8)
    )
    found = run("--call-log", calls, "--out", out, "--json")
    assert found.exit_code == 0, found.output
    assert load_calibration(out / "calibration.json")[KEY] == pytest.approx(200, rel=0.02)
    about = json.loads(found.stdout)
    assert about["selector"]["kept"].startswith("none")
    assert any("left out" in note for note in about["notes"])
    card = json.loads((out / CARD_FILE).read_text())
    assert card["measured"][0]["calls"] == 60
    assert 0 < card["measured"][0]["spread"] < 0.05
    assert (
        "put calibration.json beside" in run("--call-log", calls, "--out", tmp_path / "o2").stdout
    )


def test_the_folder_works_as_a_policy_at_once(tmp_path: Path, weights: Path) -> None:
    calls = log(tmp_path / "calls.json", kind(steady()))
    found = run("--call-log", calls, "--out", tmp_path / "out", "--weights", weights, "--json")
    assert found.exit_code == 0, found.output
    policy = make(Options(argument="out", folder=tmp_path))
    assert policy.name == "dynamic"
    same = (tmp_path / "out/detector.safetensors").read_bytes()
    assert same == (weights / "detector.safetensors").read_bytes()


def test_clean_sweeps_fit_the_model_and_an_expectation_is_met(tmp_path: Path) -> None:
    save_sweeps(tmp_path / "s.json", swept(sizes=(1 << 18, 1 << 22)))
    save_calibration(tmp_path / "old.json", {KEY: 1.0})
    found = run("--sweep", tmp_path / "s.json", "--out", tmp_path / "out", "--json",
                "--expected", tmp_path / "old.json")  # fmt: skip
    assert found.exit_code == 0, found.output
    about = json.loads(found.stdout)
    assert about["baselines"] == 2
    assert about["fluid_model"]["fitted_p50"] < 0.05
    assert "link_rate" in json.loads((tmp_path / "out" / CLUSTER_FILE).read_text())
    assert any("knows none" in note for note in about["notes"])


def test_recorded_traces_are_taken_where_they_were_clean(tmp_path: Path) -> None:
    made = generate_recorded(swept((CLEAN, Load(0.8, 4.0))), 3, 12, 40, reconfigured=0.0)
    save_traces(tmp_path / "t.npz", made)
    found = run("--traces", tmp_path / "t.npz", "--out", tmp_path / "out", "--json")
    assert found.exit_code == 0, found.output
    about = json.loads(found.stdout)
    assert 0 < len(about["measured"]) < 12
    assert len(about["notes"]) + len(about["measured"]) == 12


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ([kind(steady() + steady(320, 30))], "load came or went"),
        ([kind(steady() + steady(320, 64))], "calls before these took"),
        ([kind([t * (1.8 if i % 9 == 4 else 1) for i, t in enumerate(steady())])], "spikes"),
        ([kind(steady()), kind(steady()[:30] + steady(320)[:30], 64)], "of 64 bytes"),
        ([kind(steady(calls=9))], "9 calls|6 calls"),
        ([kind([*steady(), float("nan")])], "no call can"),
        ([kind([*steady(), -4.0])], "no call can"),
        ([kind([*steady(), 1e13])], "the clock stepped"),
        ([kind(steady(), decided=True)], "tuner bypass on"),
        ([kind(steady(), ranks=1, nodes=2)], "2 nodes, 1 ranks"),
        ([kind(steady(), collective="dance")], "DANCE"),
        ([], "let the job run for longer"),
    ],
)
def test_what_is_not_clean_is_refused(tmp_path: Path, calls: list[Any], why: str) -> None:
    found = run("--call-log", log(tmp_path / "c.json", *calls), "--out", tmp_path / "out")
    assert found.exit_code == 2, found.output
    assert any(each in found.stderr for each in why.split("|")), found.stderr
    assert leftovers(tmp_path) == []


def test_a_rank_that_is_missing_is_named(tmp_path: Path) -> None:
    row = kind(steady())
    for call in row["calls"][::3]:
        call["missing"] = [5]
    found = run("--call-log", log(tmp_path / "c.json", row), "--out", tmp_path / "out")
    assert found.exit_code == 2
    assert "rank 5 did not tell of" in found.stderr
    for i, call in enumerate(row["calls"]):
        call["missing"] = [5] if i == 20 else []  # one lost record is no missing rank
    found = run("--call-log", log(tmp_path / "c.json", row), "--out", tmp_path / "out")
    assert found.exit_code == 0, found.output


def test_constant_contention_needs_an_expectation(tmp_path: Path) -> None:
    calls = log(tmp_path / "c.json", kind(steady(400)))
    assert run("--call-log", calls, "--out", tmp_path / "first").exit_code == 0
    save_calibration(tmp_path / "calibration.json", {KEY: 200.0})
    for expected in (tmp_path / "calibration.json", tmp_path):
        found = run("--call-log", calls, "--out", tmp_path / "out", "--expected", expected)
        assert found.exit_code == 2
        assert "where 200 µs are expected" in found.stderr
    assert leftovers(tmp_path) == []


def test_contended_sweeps_are_refused(tmp_path: Path) -> None:
    one = swept()[0]
    rows = {
        config: (tuple(t * (1.6 if i >= 3 else 1) for i, t in enumerate(times[0])),)
        for config, times in one.calls_us.items()
    }
    bad = Sweep(one.env, one.key, one.n_bytes, one.loads, one.usual, one.usual_calls_us, rows)
    save_sweeps(tmp_path / "s.json", [bad])
    found = run("--sweep", tmp_path / "s.json", "--out", tmp_path / "out")
    assert found.exit_code == 2
    assert "load came or went" in found.stderr


def test_bad_input_ends_with_2_and_writes_nothing(tmp_path: Path) -> None:
    calls = log(tmp_path / "c.json", kind(steady()))
    out = ["--out", tmp_path / "out"]
    (tmp_path / "broken.json").write_text("{")
    save_traces(tmp_path / "fluid.npz", generate(1, 2, 20))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("")
    for arguments, why in (
        (out, "nothing to measure"),
        ([*out, "--call-log", tmp_path / "no.json"], "No such file"),
        ([*out, "--call-log", tmp_path / "broken.json"], "not JSON"),
        ([*out, "--sweep", tmp_path / "broken.json"], "not JSON"),
        ([*out, "--traces", tmp_path / "broken.json"], "not a trace file"),
        ([*out, "--traces", tmp_path / "fluid.npz"], "no cluster"),
        ([*out, "--job", "nobody", "--shm", tmp_path], "no coordinator"),
        ([*out, "--job", "../x", "--shm", tmp_path], "letters, digits"),
        ([*out, "--call-log", calls, "--weights", tmp_path], "no such file"),
        ([*out, "--call-log", calls, "--expected", tmp_path / "broken.json"], "not JSON"),
        ([*out, "--call-log", calls, "--adapt"], "no weights to begin with"),
        ([*out, "--call-log", calls, "--bytes", "1MiB"], "are for --engine"),
        (["--out", tmp_path / "no/out", "--call-log", calls], "no such folder"),
        (["--out", tmp_path / "taken", "--call-log", calls], "not a calibration"),
        (["--out", tmp_path / "file", "--call-log", calls], "no folder"),
    ):
        found = run(*arguments)
        assert found.exit_code == 2, found.output
        assert why in found.stderr, found.stderr
    assert leftovers(tmp_path) == []
    assert [p.name for p in (tmp_path / "taken").iterdir()] == ["thesis.txt"]


def test_an_earlier_calibration_is_replaced_only_if_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("--call-log", log(tmp_path / "c.json", kind(steady(200))), "--out", out)
    slower = log(tmp_path / "d.json", kind(steady(300)))
    refused = run("--call-log", slower, "--out", out)
    assert refused.exit_code == 2
    assert "--replace" in refused.stderr
    assert load_calibration(out / "calibration.json")[KEY] == pytest.approx(200, rel=0.02)
    assert run("--call-log", slower, "--out", out, "--replace").exit_code == 0
    assert load_calibration(out / "calibration.json")[KEY] == pytest.approx(300, rel=0.02)
    contended = log(tmp_path / "e.json", kind(steady() + steady(320)))
    assert run("--call-log", contended, "--out", out, "--replace").exit_code == 2
    assert load_calibration(out / "calibration.json")[KEY] == pytest.approx(300, rel=0.02)
    assert leftovers(tmp_path) == ["out"]


def test_ctrl_c_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "save_calibration", stop)
    found = run("--call-log", log(tmp_path / "c.json", kind(steady())), "--out", tmp_path / "out")
    assert found.exit_code == 130
    assert "nothing was written" in found.stderr
    assert leftovers(tmp_path) == []


def test_without_torch_there_are_baselines_and_it_says_so(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_has_torch", lambda: False)
    save_sweeps(tmp_path / "s.json", swept())
    arguments = ["--sweep", tmp_path / "s.json", "--weights", weights, "--out", tmp_path / "out"]
    refused = run(*arguments, "--adapt")
    assert refused.exit_code == 2
    assert "needs PyTorch" in refused.stderr
    found = run(*arguments)
    assert found.exit_code == 0, found.output
    assert "baselines only" in found.stdout.replace("\n", " ")
    assert (tmp_path / "out/selector.safetensors").exists()
