"""bench/guidance.py: from the runs of a sweep to the table that `ringstep job recommend` reads."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep.fabric.guidance import GuidanceTable, parse_table
from ringstep.protocol.marker import PROFILES
from ringstep_ns3 import Sweep, run_sweep

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "guidance.py"
STUDIES = ROOT / "ns3-model" / "ringstep_ns3" / "paper" / "studies"

SCENARIO = """
[fabric]
kind = "leaf_spine"
leaves = 2
spines = 2
hosts_per_leaf = 4
rate = "25G"
delay = "2us"

[[job]]
chunk = "64KiB"
ring_size = 4
placement = "striped"
"""
SWEEP = """
scenario = "ring.toml"
seeds = 5

[[axis]]
name = "where"
keys = ["fabric.spines"]
values = [[2], [4]]
labels = ["2:1", "1:1"]

[[axis]]
name = "variant"
keys = ["switch.lb", "switch.marking", "marker"]
values = [
    ["ecmp", "none", {}],
    ["ecmp", "marker", { profile = "ringstep" }],
    ["planned", "none", {}],
    ["planned", "marker", { profile = "ringstep" }],
    ["planned", "marker", { profile = "ringstep", k = 0.5, tau = "1/8", q_gate = "off" }],
]
labels = ["baseline", "gated", "planned", "ours", "strong"]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "ring.toml").write_text(SCENARIO)
    (folder / "sweep.toml").write_text(SWEEP)
    sweep, points = Sweep.load(folder / "sweep.toml")
    run_sweep(sweep, points, folder / "out")
    return folder / "out"


def reduce(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True
    )


def table_of(results: Path) -> dict[str, Any]:
    done = reduce(results)
    assert done.returncode == 0, done.stderr
    table: dict[str, Any] = json.loads(done.stdout)
    return table


@pytest.fixture(scope="module")
def table(results: Path) -> GuidanceTable:
    return parse_table(json.dumps(table_of(results)))


def test_sites_and_variants_come_from_the_effective_configuration(table: GuidanceTable) -> None:
    assert [c.site.oversubscription for c in table.cells] == [2.0, 1.0]
    site = table.cells[0].site
    assert (site.rate_bps, site.rtt_ns, site.step_bytes, site.mtu, site.ring) == (
        25 * 10**9, 16_000, 65_536, 1000, 4,
    )  # fmt: skip
    assert site.red_k_min == 125_000 // 1048
    default, strong = table.variants["ours"].params, table.variants["strong"].params
    assert default == PROFILES["ringstep"].params
    assert strong is not None
    assert (strong.k, strong.tau_den, strong.q_gate) == (1 << 15, 8, None)
    assert table.variants["planned"].params is None
    assert table.made["seeds"] == 5
    assert table.made["runs"] == 50


def test_changes_are_of_means_paired_by_seed(results: Path, table: GuidanceTable) -> None:
    cell = table.cells[0]
    rows = pq.read_table(results / "runs.parquet").to_pylist()

    def mean(variant: str) -> float:
        return float(
            np.mean(
                [r["cct_median_ns"] for r in rows if (r["where"], r["variant"]) == ("2:1", variant)]
            )
        )

    assert cell.baseline_ms == pytest.approx(mean("baseline") / 1e6, abs=0.001)
    for name, change in cell.changes.items():
        assert change.mean == pytest.approx(100 * (mean(name) / mean("baseline") - 1), abs=0.051)
        assert change.low <= change.mean <= change.high
    assert cell.best.variant == min(("ours", "strong"), key=mean)
    assert set(cell.harm) == {"gated", "ours", "strong"}
    assert cell.harm["gated"] == cell.changes["gated"].high


def test_cells_without_five_seeds_are_left_out_and_counted(results: Path, tmp_path: Path) -> None:
    rows = pq.read_table(results / "runs.parquet")
    keep = [not (r["where"] == "1:1" and r["seed"] == 3) for r in rows.to_pylist()]
    pq.write_table(rows.filter(keep), tmp_path / "runs.parquet")
    for name in ("sweep.json", "runs"):
        (tmp_path / name).symlink_to(results / name)
    table = table_of(tmp_path)
    assert [cell["site"] for cell in table["cells"]] == ["2:1"]
    assert table["made"]["unfinished_cells"] == 1


def test_markdown_has_a_row_per_cell(results: Path, tmp_path: Path) -> None:
    done = reduce(results, "--out", tmp_path / "table.json", "--markdown")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n| 25G") == 2
    assert "| no marking |" in done.stdout
    assert parse_table((tmp_path / "table.json").read_text()).cells


@pytest.mark.parametrize("arguments", [(), ("/nowhere",)])
def test_a_folder_that_is_none_ends_with_status_2(arguments: tuple[str, ...]) -> None:
    done = reduce(*arguments)
    assert done.returncode == 2
    assert "sweep" in done.stderr


def test_both_studies_have_the_variants_that_are_reduced() -> None:
    _, points = Sweep.load(STUDIES / "operators.small.toml")
    assert len(points) == 48
    small, full = (
        tomllib.loads((STUDIES / f"operators{size}.toml").read_text()) for size in (".small", "")
    )
    for study in (small, full):
        where, *_, variant = study["axis"]
        assert len(where["labels"]) == len(where["values"])
        assert variant["labels"][:4] == ["baseline", "gated", "planned", "ours"]
        assert study["seeds"] >= 5
    variants = full["axis"][-1]
    assert all(each in variants["values"] for each in small["axis"][-1]["values"])
