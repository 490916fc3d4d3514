"""The script for a machine with one GPU: what of it needs none."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ringstep.hostlib.native.build import build, missing_tools
from ringstep.hostlib.native.caller import Plugin, Rank
from ringstep.hostlib.shm import Decision, DecisionTable, Record, ShmFile, default_path
from ringstep.hostlib.shm_layout import Algo, Collective, Proto, RecordFlag

BENCH = Path(__file__).resolve().parents[3] / "bench"
AR = Collective.ALL_REDUCE


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("one_gpu_nccl", BENCH / "one_gpu_nccl.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def table(decision: Decision) -> DecisionTable:
    made = DecisionTable()
    made.set(AR, 20, decision)
    return made


TABLES = {0: DecisionTable(), 1: table(Decision(Algo.TREE, Proto.LL, 2))}
BEFORE = Record(
    comm=0, rank=0, func=AR, algo=Algo.RING, proto=Proto.SIMPLE, n_channels=2, bytes=1 << 20,
    coll_seq=0, index=0, epoch=0, start_ns=0, duration_ns=1, stalls=0, flags=RecordFlag.GPU_TIMER,
)  # fmt: skip
AFTER = replace(
    BEFORE, algo=Algo.TREE, proto=Proto.LL, index=1, epoch=1,
    flags=RecordFlag.GPU_TIMER | RecordFlag.DECIDED,
)  # fmt: skip


def both(record: Record, **other: object) -> list[Record]:
    return [record, replace(record, rank=1, **other)]  # type: ignore[arg-type]


def test_audit_is_content_with_ranks_that_agree(script: ModuleType) -> None:
    found = script.audit(both(BEFORE) + both(AFTER) + [replace(AFTER, index=2)], 2, TABLES)
    assert (found.collectives, found.decided) == (2, 1)
    assert (found.disagreements, found.not_applied) == (0, 0)


@pytest.mark.parametrize(
    "other",
    [{"algo": Algo.RING}, {"proto": Proto.SIMPLE}, {"n_channels": 1}, {"epoch": 0},
     {"bytes": 4096}],
    ids=str,
)  # fmt: skip
def test_audit_sees_a_rank_that_ran_something_else(
    script: ModuleType, other: dict[str, object]
) -> None:
    found = script.audit(both(BEFORE) + both(AFTER, **other), 2, TABLES)
    assert found.disagreements == 1
    assert "index 1" in found.examples[0]


@pytest.mark.parametrize(
    "both_ran",
    [{"algo": Algo.RING}, {"n_channels": 3}, {"flags": RecordFlag.GPU_TIMER}],
    ids=str,
)
def test_audit_sees_a_decision_that_nobody_applied(
    script: ModuleType, both_ran: dict[str, object]
) -> None:
    found = script.audit(both(replace(AFTER, **both_ran)), 2, TABLES)  # type: ignore[arg-type]
    assert (found.disagreements, found.not_applied) == (0, 1)


def test_audit_sees_what_was_decided_without_a_decision(script: ModuleType) -> None:
    flags = BEFORE.flags | RecordFlag.DECIDED
    assert script.audit(both(replace(BEFORE, flags=flags)), 2, TABLES).not_applied == 1


def test_ranks_logs_are_compared_line_by_line(script: ModuleType) -> None:
    line = (
        "h:1:2 [0] NCCL INFO AllReduce: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..1}}\n"
    )
    one = line.format(4096, "TREE", "LL") + line.format(1 << 20, "RING", "SIMPLE")
    two = line.format(4096, "TREE", "LL") + line.format(1 << 20, "TREE", "SIMPLE")
    assert script.log_choices(one) == [(4096, "TREE", "LL"), (1 << 20, "RING", "SIMPLE")]
    assert script.log_disagrees([one, one]) == 0
    assert script.log_disagrees([one, two]) == 1
    assert script.log_disagrees([one, "another NCCL\n"]) is None


def test_result_passes_only_where_something_was_tried(script: ModuleType) -> None:
    good = {"disagreements": 0, "not_applied": 0, "wrong_results": 0, "log_disagrees": None,
            "decided": 9, "switches": 3}  # fmt: skip
    assert script.passed(good)
    for key in ("disagreements", "not_applied", "wrong_results", "log_disagrees"):
        assert not script.passed({**good, key: 1})
    assert not script.passed({**good, "decided": 0})
    assert not script.passed({**good, "switches": 2})


def test_timer_hands_every_call_on_and_notes_its_time(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (missing := missing_tools()) is not None:
        pytest.skip(missing)
    timer = script.build_timer(tmp_path)
    out = tmp_path / "timed.json"
    monkeypatch.setenv("RINGSTEP_SHM_DIR", str(tmp_path))
    monkeypatch.setenv("RINGSTEP_TIMED_PLUGIN", str(build().plugin))
    monkeypatch.setenv("RINGSTEP_TIMED_OUT", str(out))
    with ShmFile.create(default_path()) as shm:
        digest = shm.write_static(table(Decision(Algo.TREE, Proto.LL, 2, 64 << 10)))
        monkeypatch.setenv("RINGSTEP_STATIC_DIGEST", f"{digest:x}")
        for tuner in (4, 5, 6):
            rank = Rank(Plugin(timer), tuner, 1, 0, tuner=tuner, profiler=None)
            costs, channels = rank.get_coll_info(AR)
            assert (costs.chosen(), channels) == ((Algo.TREE, Proto.LL), 2)
            if tuner == 6:
                assert rank.get_chunk_size(AR, 1 << 20, Algo.TREE, Proto.LL, 1) == 64 << 10
            rank.finalize()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["calls"] for line in lines] == [1, 2, 3]
    assert all(0 <= line["p50_ns"] <= line["p99_ns"] <= line["max_ns"] for line in lines)


@pytest.mark.parametrize("json_wanted", [False, True])
def test_script_says_why_it_skips(json_wanted: bool) -> None:
    if Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists():
        pytest.skip("this machine has a GPU: run bench/one_gpu_nccl.sh itself")
    done = subprocess.run(
        [str(BENCH / "one_gpu_nccl.sh"), *(["--json"] if json_wanted else [])],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 77
    said = json.loads(done.stdout)["skipped"] if json_wanted else done.stdout
    assert "GPU" in said


def test_script_refuses_senseless_arguments() -> None:
    for wrong in (["--ranks", "1"], ["--seconds", "0"], ["--backend", "mpi"]):
        done = subprocess.run(
            [str(BENCH / "one_gpu_nccl.sh"), *wrong], capture_output=True, text=True
        )
        assert done.returncode == 2
        assert "error" in done.stderr


@pytest.mark.slow
def test_whole_script_on_the_cpu_engine(tmp_path: Path) -> None:
    """All but NCCL itself: ranks by torch.distributed, switches, audit, times, logs."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch; `pip install torch`")
    if (missing := missing_tools("C++")) is not None:
        pytest.skip(missing)
    done = subprocess.run(
        [str(BENCH / "one_gpu_nccl.sh"), "--backend", "ringstep", "--ranks", "2", "--seconds", "1",
         "--json", "--keep", str(tmp_path / "kept")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["switches"] >= 3
    assert found["decided"] > 0
    assert (found["disagreements"], found["not_applied"], found["wrong_results"]) == (0, 0, 0)
    assert 0 < found["get_coll_info_p50_ns"] <= found["get_coll_info_p99_ns"]
    assert len(list((tmp_path / "kept").glob("timed-*.json"))) == 2
