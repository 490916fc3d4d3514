"""`ringstep tuner`: the decision table and the telemetry without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringstep.hostlib.cli import app
from ringstep.hostlib.native.build import Built
from ringstep.hostlib.native.caller import Rank
from ringstep.hostlib.shm import Commit, Decision, DecisionTable, ShmFile
from ringstep.hostlib.shm_layout import Algo, Collective, EntryState, Proto

AR = Collective.ALL_REDUCE
MakeRank = Callable[..., Rank]
run = CliRunner().invoke


@pytest.fixture
def busy(shm: ShmFile, make_rank: MakeRank) -> ShmFile:
    """A static table, and two ranks with epoch 1 in force and 2 on offer."""
    static = DecisionTable()
    static.set(Collective.BROADCAST, range(64), Decision(Algo.RING, Proto.SIMPLE))
    shm.write_static(static)
    ranks = [make_rank(0xABC, 2, r) for r in range(2)]
    table = DecisionTable()
    table.set(AR, range(16), Decision(Algo.TREE, Proto.LL, 2, state=EntryState.CONVERGED))
    table.set(AR, range(16, 28), Decision(Algo.RING, Proto.SIMPLE, 8, 1 << 19,
                                          state=EntryState.EXPLORE, measured_us=950))  # fmt: skip
    shm.announce(0, 1, table)
    for rank in ranks:
        rank.collective()
    assert shm.commit(0, 1) is Commit.DONE
    for rank in ranks:
        rank.collective()
    shm.announce(0, 2, table)
    ranks[0].collective()
    return shm


def test_show_decisions_by_collective_size_and_state(busy: ShmFile) -> None:
    shown = run(app, ["show-decisions", "--shm", str(busy.path.parent)], env={"COLUMNS": "160"})
    assert shown.exit_code == 0
    words = [" ".join(line.split()) for line in shown.output.splitlines()]
    assert "broadcast 0 and more ring simple NCCL's NCCL's" in words
    assert "all_reduce 0 to < 64 KiB tree ll 2 NCCL's converged" in words
    assert "all_reduce 64 KiB to < 256 MiB ring simple 8 512 KiB explore 950" in words
    assert "rank 0: epoch 1, 2 applied, 1 left to NCCL" in words
    assert "epoch 2 on offer, not acknowledged by ranks [1]" in shown.output


def test_show_decisions_as_json(busy: ShmFile) -> None:
    shown = run(app, ["show-decisions", "--shm", str(busy.path), "--json"])
    found = json.loads(shown.output)
    (comm,) = found["communicators"]
    assert (comm["communicator"], comm["epoch"], comm["on_offer"]) == (f"{0xABC:016x}", 1, 2)
    assert comm["decisions"][1] == {
        "collective": "all_reduce", "min_bytes": 1 << 16, "max_bytes": (1 << 28) - 1,
        "algorithm": "ring", "protocol": "simple", "channels": 8, "chunk_bytes": 1 << 19,
        "threads_wanted": None, "state": "explore", "measured_us": 950,
    }  # fmt: skip
    assert [r["applied"] for r in comm["rank_states"]] == [2, 1]
    assert found["static"][0]["max_bytes"] == (1 << 64) - 1


def test_show_decisions_of_an_empty_file(shm: ShmFile) -> None:
    shown = run(app, ["show-decisions", "--shm", str(shm.path.parent)])
    assert "NCCL is left alone" in shown.output


def test_watch_prints_what_ran(busy: ShmFile) -> None:
    shown = run(app, ["watch", "--once", "--shm", str(busy.path.parent)])
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert len(lines) == 5
    assert "rank 0 all_reduce #2 1048576 B ring/simple 2 ch 4.0 µs 0 stalls epoch 1 decided" in (
        lines[-1] if "rank 0" in lines[-1] else lines[-2]
    )
    as_json = run(app, ["watch", "--once", "--json", "--shm", str(busy.path.parent)])
    records = [json.loads(line) for line in as_json.output.splitlines()]
    assert records[-1]["func"] == "all_reduce"
    assert records[-1]["flags"] == ["gpu_timer", "decided"]


@pytest.mark.parametrize("command", ["show-decisions", "watch"])
def test_a_missing_or_wrong_file_is_said(tmp_path: Path, command: str) -> None:
    missing = run(app, [command, "--shm", str(tmp_path)])
    assert missing.exit_code == 2
    assert "No such file" in missing.stderr
    wrong = tmp_path / "x.shm"
    wrong.write_bytes(b"x")
    refused = run(app, [command, "--shm", str(wrong)])
    assert refused.exit_code == 2
    assert "1 bytes, layout 1 has" in refused.stderr
    assert run(app, [command, "--shm", str(tmp_path), "--job", "a/b"]).exit_code == 2


def test_build_prints_the_plugins_path(built: Built) -> None:
    shown = run(app, ["build"])
    assert shown.exit_code == 0
    assert Path(shown.output.strip()).is_file()


def test_words_between_colons_are_printed_as_they_are(tmp_path: Path) -> None:
    table = tmp_path / "passwd"
    table.write_text("root:x:0\n")
    shown = run(app, ["check-table", str(table)])
    assert shown.exit_code == 2
    assert "column 'root:x:0'" in shown.stderr
