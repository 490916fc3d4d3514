"""The paper's figures: small forms run, stand beside its numbers, and bad input is refused."""

import functools
import json
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from typer.testing import CliRunner, Result

from ringstep_ns3 import Scenario, ScenarioError, Sweep, prepare, run
from ringstep_ns3.cli import app
from ringstep_ns3.paper import CHOICES, FIGURES, PaperError
from ringstep_ns3.paper import report as reports
from ringstep_ns3.paper.bounds import fabric_bound_ns, host_bound_ns
from ringstep_ns3.paper.choices import settings
from ringstep_ns3.paper.figures import FOLDER, METRICS, published
from ringstep_ns3.paper.report import load_figure
from ringstep_ns3.sweep import Point

TINY = ("--set", "job.chunk=16KiB", "--set", "job.passes=2")
FORMS = ("", "1d", "2d")
TINY_2D = ("--set", "job.size=256KiB")


def symphony(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["paper", "symphony", "-q", "-j", "1", *arguments])


@functools.cache
def loaded(path: Path) -> tuple[Sweep, list[Point]]:
    """A sweep as its file says, whose points take a while to be checked."""
    return Sweep.load(path)


@pytest.fixture(scope="module")
def figure_2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with figure 2, small and with one seed."""
    out = tmp_path_factory.mktemp("figure-2") / "out"
    done = symphony("--figure", "2", "--seeds", "1", "--out", str(out), *TINY)
    assert done.exit_code == 0, done.output
    return out


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where matplotlib is missing; other tests look at plots."""
    monkeypatch.setattr(reports, "draw", lambda _report: None)


@pytest.mark.parametrize("key", FIGURES)
def test_small_form_gives_table_json_and_plot(key: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = symphony("--figure", key, "--seeds", "1", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert FIGURES[key].heading in done.stdout
    name = FIGURES[key].name
    report = json.loads((out / f"{name}.json").read_text())
    assert report["complete"]
    assert report["choices"] == {name: choice.default for name, choice in CHOICES.items()}
    seen = {row["metric"] for row in report["rows"]}
    assert seen == set(FIGURES[key].metrics)
    variants = {row["variant"] for row in report["rows"]}
    assert "baseline" in variants
    assert len(variants) >= 3
    table = (out / f"{name}.md").read_text()
    assert all(METRICS[metric] in table for metric in seen)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert not (out / f"{name}.png").exists()
    else:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("key", "rings", "tiny"), [("2", "2d", TINY_2D), ("4", "2d", TINY_2D), ("5", "short", TINY)]
)
def test_other_form_of_rings_runs(
    key: str, rings: str, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = symphony("--figure", key, "--rings", rings, "--seeds", "1", "--out", str(out), *tiny)
    assert done.exit_code == 0, done.output
    report = json.loads((out / f"{FIGURES[key].name}.json").read_text())
    assert report["complete"]
    assert report["choices"]["rings"] == rings
    assert {row["metric"] for row in report["rows"]} == set(FIGURES[key].metrics)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.small.toml")), ids=lambda path: path.name)
def test_every_sweep_has_both_scales_and_makes_sense(path: Path) -> None:
    large = path.with_name(path.name.replace(".small.", ".paper."))
    for each in (path, large):
        sweep, points = loaded(each)
        assert "variant" in [axis.column for axis in sweep.axis]
        assert points
    assert path in {figure.sweep("small", form) for figure in FIGURES.values() for form in FORMS}


@pytest.mark.parametrize("key", dict.fromkeys(number.figure for number in published()))
def test_published_numbers_belong_to_rows_of_the_papers_scale(key: str) -> None:
    figure = FIGURES[key]
    sweep, points = loaded(figure.sweep("paper"))
    where = [axis.column for axis in sweep.axis].index("variant")
    groups = {"/".join((*p.labels[:where], *p.labels[where + 1 :])) for p in points}
    if figure.split:
        groups = {job.name.partition(".")[0] for job in points[0].scenario.job}
    variants = {point.labels[where] for point in points}
    for number in published():
        if number.figure == key:
            assert number.metric in figure.metrics
            assert number.place
            assert number.group in groups
            assert number.variant in variants


@pytest.mark.usefixtures("no_plots")
def test_json_holds_single_runs_intervals_and_the_papers_numbers(tmp_path: Path) -> None:
    tiny = ("--set", "job.size=64KiB")
    done = symphony("--figure", "5", "--seeds", "6", "--json", "--out", str(tmp_path / "o"), *tiny)
    assert done.exit_code == 0, done.output
    (figure,) = json.loads(done.stdout)["figures"]
    assert figure["settings"] == {"job.size": "64KiB"}
    rows = {(row["variant"], row["metric"]): row for row in figure["rows"]}
    reduction = rows["paper", "reduction_pct"]
    assert reduction["paper"] == 22
    assert "4.3" in reduction["place"]
    assert reduction["low"] <= reduction["value"] <= reduction["high"]
    assert rows["paper", "cct_ms"]["paper"] is None
    samples = {sample["variant"]: sample for sample in figure["samples"]}
    base, other = (samples[name]["seeds"]["cct_ms"] for name in ("baseline", "paper"))
    assert sorted(base) == ["1", "2", "3", "4", "5", "6"]
    single = [100 * (1 - other[seed] / base[seed]) for seed in base]
    assert reduction["least"] == pytest.approx(min(single))
    assert reduction["most"] == pytest.approx(max(single))
    assert samples["baseline"]["bounds_ms"]["bound"] > 0


@pytest.mark.usefixtures("no_plots")
def test_what_is_done_is_not_done_again(figure_2: Path, tmp_path: Path) -> None:
    out = shutil.copytree(figure_2, tmp_path / "out")  # times too
    first = {path.name: path.stat().st_mtime_ns for path in (out / "fig2-runs" / "runs").iterdir()}
    assert len(first) == 4
    assert symphony("--figure", "2", "--out", str(out), *TINY, "--seeds", "2").exit_code == 0
    again = {path.name: path.stat().st_mtime_ns for path in (out / "fig2-runs" / "runs").iterdir()}
    assert len(again) == 8
    assert first.items() <= again.items()


def test_curves_over_time_stand_in_the_json(figure_2: Path) -> None:
    curves = json.loads((figure_2 / "fig2.json").read_text())["curves"]
    for variant in ("baseline", "imbalance", "congestion"):
        overlap, rate = curves["overlap"][variant], curves["rate"][variant]
        assert len(overlap["time_ms"]) == len(overlap["max_steps"]) > 0
        assert max(overlap["max_steps"]) >= 1
        assert all(0 < value <= 100.5 for value in rate["rate_pct"])


def test_bound_of_the_fabric_counts_what_the_tors_let_through(leaf_spine: str) -> None:
    job = '[[job]]\nchunk = "1000B"\n'
    crossing = prepare(Scenario.parse(leaf_spine + job + 'placement = "striped"\n'))
    # 4 hosts share 2 uplinks: a step takes twice as long as on the hosts' links.
    assert host_bound_ns(crossing) == pytest.approx(14 * 1048 * 0.8, abs=1)
    assert fabric_bound_ns(crossing) == pytest.approx(2 * 14 * 1048 * 0.8, abs=1)
    inside = prepare(Scenario.parse(leaf_spine + job + 'placement = "packed"\n'))
    assert fabric_bound_ns(inside) == host_bound_ns(inside)
    two = prepare(
        Scenario.parse(
            leaf_spine + '[[job]]\nsize = "8000B"\nalgorithm = "ring_2d"\ndims = [4, 2]\n'
        )
    )
    # 6 steps of 2 packets inside the ToRs, 2 of 1 packet across, 4 of them on 2 uplinks.
    assert host_bound_ns(two) == pytest.approx((6 * 2 + 2) * 1048 * 0.8, abs=1)
    assert fabric_bound_ns(two) == pytest.approx((6 * 2 + 2 * 2) * 1048 * 0.8, abs=1)
    tree = prepare(Scenario.parse(leaf_spine + '[[job]]\nsize = "8KiB"\ncollective = "all_to_all"\n'
                                  'algorithm = "direct"\n'))  # fmt: skip
    assert fabric_bound_ns(tree) is None


def test_a_marker_that_starts_late_is_off_before_and_on_after(ring: str) -> None:
    text = ring.replace("64KiB", "128KiB").replace("[[job]]", '[switch]\nmarking = "marker"\n'
                        '[marker]\nprofile = "paper"\nk = 0.1\n[[job]]')  # fmt: skip
    scenario = Scenario.parse(text)

    def totals(**values: object) -> tuple[int, int]:
        named = {key.replace("__", "."): value for key, value in values.items()}
        summary = run(scenario.setting(named) if named else scenario, 1).summary
        return summary["jobs"][0]["jct_ns"], summary["totals"]["marks_marker"]

    on, off = totals(), totals(switch__marking="none")
    assert on[1] > 0
    assert totals(marker__start="0ns") == on
    assert totals(marker__start="1ns") == on
    assert totals(marker__start="10s") == off
    late = totals(marker__start=f"{on[0] // 2}ns")
    assert 0 < late[1] < on[1]


def test_a_late_start_of_another_marking_is_refused(ring: str) -> None:
    text = ring.replace("[[job]]", '[switch]\nmarking = "priority"\n[marker]\nstart = "1ms"\n'
                        '[[job]]')  # fmt: skip
    with pytest.raises(ScenarioError, match=r"marker\.start"):
        prepare(Scenario.parse(text))


@pytest.mark.parametrize(("name", "value"), [(c.name, v) for c in CHOICES.values()
                                             for v in c.values])  # fmt: skip
def test_every_choice_makes_a_scenario(name: str, value: str) -> None:
    _, points = load_figure("5", "small", {name: value}, {}, ())
    assert len(points) == 6


def test_long_rings_keep_the_bytes_per_node() -> None:
    _, points = load_figure("5", "paper", {"rings": "long"}, {}, ())
    job = points[0].scenario.job[0]
    assert (job.ring_size, job.passes, job.placement) == (None, 1, "striped")
    short = load_figure("5", "paper", {"rings": "short"}, {}, ())[1][0].scenario.job[0]
    assert (short.ring_size, short.passes) == (4, 6)


def test_an_unknown_choice_is_refused_with_those_there_are() -> None:
    scenario = load_figure("5", "small", {}, {}, ())[1][0].scenario
    with pytest.raises(PaperError, match="in_order"):
        settings(scenario, {"dependency": "never"})
    with pytest.raises(PaperError, match="known: dependency"):
        settings(scenario, {"dependance": "count"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--figure", "9"), "no such figure"),
        (("--figure", "5", "--dependency", "never"), "--dependency never: write count"),
        (("--figure", "5", "--preset", "fast"), "--preset fast: write hpcc_run"),
        (("--figure", "5", "--set", "job.chunks_of=1"), "chunks_of"),
        (("--figure", "5", "--set", "nonsense"), "write key=value"),
        (("--figure", "5", "--set", "switch.lb=planned"), "varies it"),
        (("--figure", "5", "--scale", "huge"), "huge"),
        (("--figure", "5", "--seeds", "-1"), "greater than or equal to 0"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = symphony("--out", str(out), *arguments)
    assert done.exit_code == 2
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.output)
    assert message in plain
    assert not out.exists()


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = symphony("--figure", "5", "--out", str(tmp_path))
    assert done.exit_code == 2
    assert "holds something that is no result" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
