"""What the coordinator keeps of a job's calls, to calibrate from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ringstep.hostlib.cli import app
from ringstep.hostlib.coordinator import calls
from ringstep.hostlib.coordinator.calls import CallLog
from ringstep.hostlib.coordinator.join import Joined
from ringstep.hostlib.evaluate.calibration.sources import of_job
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

Make = Callable[..., Any]


def joined(seq: int, n_bytes: int = 1 << 20, missing: frozenset[int] = frozenset()) -> Joined:
    return Joined(
        Collective.ALL_REDUCE, seq, n_bytes, seq, 0, seq * 10, Algo.RING, Proto.SIMPLE, 4,
        (1, 2, 4, 0), False, 0.0, {0: 2000, 1: 3000 + seq}, missing=missing,
    )  # fmt: skip


def test_the_newest_calls_are_kept_and_older_ones_counted() -> None:
    log = CallLog()
    for seq in range(calls.KEPT + 5):
        log.add("c", 4, 2, joined(seq, missing=frozenset({3}) if seq == 7 else frozenset()))
    (kind,) = log.to_dict()["kinds"]
    assert (kind["seen"], len(kind["calls"])) == (calls.KEPT + 5, calls.KEPT)
    assert (kind["ranks"], kind["nodes"], kind["bytes"]) == (4, 2, 1 << 20)
    assert kind["calls"][0] == {
        "start_ns": 50, "us": 3.005, "decided": False, "ran": ["ring", "simple", 4], "missing": [],
    }  # fmt: skip
    assert kind["calls"][2]["missing"] == [3]


def test_kinds_are_bounded_and_the_quiet_ones_go() -> None:
    log = CallLog()
    for n_bytes in range(1, calls.KINDS + 11):
        log.add("c", 2, 1, joined(0, n_bytes))
        log.add("c", 2, 1, joined(0, 1))
    sizes = [kind["bytes"] for kind in log.to_dict()["kinds"]]
    assert len(sizes) == calls.KINDS
    assert {1, calls.KINDS + 10} <= set(sizes)
    assert 5 not in sizes


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        CallLog().save(tmp_path / "none" / "calls.json")
    target = tmp_path / "calls.json"
    target.mkdir()
    with pytest.raises(OSError, match="directory"):
        CallLog().save(target)
    assert [p.name for p in tmp_path.iterdir()] == ["calls.json"]


def test_a_running_job_is_calibrated_and_its_log_after_it(
    start: Make, make_ranks: Make, until: Make, shm_dir: Path
) -> None:
    path = shm_dir / "calls.json"
    running = start(call_log=path)
    ranks = make_ranks()

    def enough() -> bool:
        ranks.step()
        found = running.ask(do="calls")["kinds"]
        return bool(found) and len(found[0]["calls"]) >= 30

    until(enough)
    told = running.ask(do="calls")
    (series,) = of_job(told, "job", 64).series
    assert series.key.n_ranks == 2
    assert series.key.collective is Collective.ALL_REDUCE
    assert all(time > 0 for time in series.latency_us)
    running.stop()
    assert len(json.loads(path.read_text())["kinds"][0]["calls"]) >= 30


def test_a_call_log_is_for_the_skeleton_and_into_a_folder(tmp_path: Path) -> None:
    for arguments, why in (
        (["--call-log", str(tmp_path / "no" / "f")], "no such folder"),
        (["--call-log", str(tmp_path / "f"), "--skeleton", "h:1"], "skeleton"),
    ):
        found = CliRunner().invoke(app, ["coordinator", *arguments])
        assert found.exit_code == 2
        assert why in found.stderr
