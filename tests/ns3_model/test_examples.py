"""Every example, and every scenario in docs/simulator.md, runs as documented (made smaller)."""

import re
from pathlib import Path

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep_ns3 import Scenario, Sweep, prepare, run, run_sweep

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "sim"
PAGE = ROOT / "docs" / "simulator.md"
SMALLER = {
    "background": {"job[1].chunk": "32KiB", "background.stop": "2ms"},
    "failure": {"job[1].chunk": "256KiB"},
    "jobs": {"job.chunk": "64KiB"},
    "links": {"job[1].size": "256KiB"},
    "marker": {"job[1].chunk": "64KiB", "job[1].passes": 2},
    "program": {"job[1].op[3].size": "256KiB", "job[1].op[5].size": "256KiB"},
    "workload": {"job[1].workload.options.communication_scale": 0.005},
}  # fmt: skip
SCENARIOS = sorted(path.stem for path in EXAMPLES.glob("*.toml") if path.stem != "sweep")
BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_example_runs_to_its_end(name: str) -> None:
    scenario = Scenario.load(EXAMPLES / f"{name}.toml")
    results = run(scenario.setting(SMALLER.get(name, {"job[1].chunk": "32KiB"})))
    assert results.complete
    assert (results.times("jobs", "jct_ns") > 0).all()


def test_the_sweep_of_the_examples_runs(tmp_path: Path) -> None:
    sweep, points = Sweep.load(EXAMPLES / "sweep.toml")
    small = [
        point.__class__(point.index, point.labels, point.scenario.setting({"job.chunk": "8KiB"}))
        for point in points
    ]
    outcome = run_sweep(sweep.model_copy(update={"seeds": (1,)}), small, tmp_path / "out")
    assert outcome.complete
    assert outcome.summary["runs"] == 6


def test_the_list_of_examples_is_whole() -> None:
    listed = set(re.findall(r"^\| `([a-z-]+\.toml)`", (EXAMPLES / "README.md").read_text(), re.M))
    assert listed == {path.name for path in EXAMPLES.glob("*.toml")}


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_scenario_of_the_page_makes_sense(block: str, tmp_path: Path) -> None:
    text = block
    if text.startswith("scenario ="):
        (tmp_path / "marker.toml").write_text((EXAMPLES / "marker.toml").read_text())
        (tmp_path / "sweep.toml").write_text(text)
        sweep, points = Sweep.load(tmp_path / "sweep.toml")
        assert len(sweep.seeds) * len(points) == (60 if sweep.study else 120)
        return
    if "[fabric]" not in text and "extends" not in text:
        text = 'extends = "symphony"\n' + text
    prepare(Scenario.parse(text, "simulator.md", EXAMPLES))


def test_the_python_of_the_page_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    text = (EXAMPLES / "ring.toml").read_text()
    (tmp_path / "ring.toml").write_text(text.replace("1MiB", "16KiB"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert (tmp_path / "results" / "summary.json").is_file()
    assert int(capsys.readouterr().out.splitlines()[-1]) > 0
