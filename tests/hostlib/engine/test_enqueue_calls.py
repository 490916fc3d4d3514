"""What a tuner is asked, when, and what becomes of its answers: a plugin that writes it down."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port

from ringstep.hostlib.native.build import SOURCES, BuiltEngine

HERE = Path(__file__).parent
ALL_REDUCE, TREE, RING, LL, SIMPLE = 4, 0, 1, 0, 2
TUNER_ERROR, BAD_ARGUMENT = 7, 1


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("needs a C compiler; `apt-get install gcc`")
    made = tmp_path_factory.mktemp("recorder") / "recorder.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-I{SOURCES / 'include'}",
               str(HERE / "recorder.c"), "-o", str(made)]  # fmt: skip
    subprocess.run(command, check=True)
    return made


@dataclass(frozen=True)
class Ran:
    answers: list[dict[str, Any]]
    """One per rank."""
    logs: list[list[list[str]]]
    """Per process in no order: calls of the tuner, each split into words."""
    events: list[list[list[str]]]
    """The same of the profiler."""

    def calls(self, kind: str) -> list[list[str]]:
        """The calls of one kind, which all ranks have to agree on."""
        each = [[call[1:] for call in log if call[0] == kind] for log in self.logs]
        assert all(one == each[0] for one in each), each
        return each[0]


Play = Callable[..., Ran]


@pytest.fixture
def play(engine: BuiltEngine, recorder: Path, tmp_path: Path) -> Iterator[Play]:
    processes: list[subprocess.Popen[str]] = []

    def run(scenario: str, ranks: int = 2, **environment: str) -> Ran:
        names = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_PROFILER_PLUGIN", "NCCL_TUNER_PLUGIN")
        env = {k: v for k, v in os.environ.items() if k not in names}
        env |= {"NCCL_TUNER_PLUGIN": str(recorder), "RECORDER_LOG": str(tmp_path / "calls")}
        env |= environment
        where = f"127.0.0.1:{free_port(4)}"
        for rank in range(ranks):
            command = [sys.executable, str(HERE / "scenarios.py"), str(engine.library), scenario,
                       str(rank), str(ranks), where]  # fmt: skip
            processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        answers = [json.loads(p.communicate(timeout=60)[0]) for p in processes]

        def read(pattern: str) -> list[list[list[str]]]:
            texts = [path.read_text() for path in sorted(tmp_path.glob(pattern))]
            return [[line.split() for line in text.splitlines()] for text in texts]

        return Ran(answers, read("calls.*"), read("calls-events.*"))

    yield run
    for process in processes:
        process.kill()
        process.wait()


def test_like_tasks_of_a_group_within_four_times_are_one_question(play: Play) -> None:
    ran = play("group")
    first = ran.calls("init")[0][0]
    of_first = [call[1:4] for call in ran.calls("info") if call[0] == first]
    # Kinds by their largest task; in a kind from the smallest up: 400 B and 1200 B, no 4000 B
    # (not within four times of the smallest), which is with nothing, as is 160000 B.
    assert of_first == [
        ["4", "1600", "1"], ["4", "4000", "1"], ["4", "160000", "1"],
        ["4", "400", "1"], ["4", "400", "1"],
    ]  # fmt: skip
    assert [set(a["codes"]) for a in ran.answers] == [{0}, {0}]


def test_each_communicator_of_a_group_is_asked_for_itself(play: Play) -> None:
    ran = play("group")
    ids = [call[0] for call in ran.calls("init")]
    assert len(set(ids)) == 3
    by_id = {name: [c for c in ran.calls("info") if c[0] == name] for name in ids}
    assert [len(by_id[name]) for name in ids] == [5, 1, 1]
    assert by_id[ids[1]][0][1:3] == ["4", "28"]


def test_all_questions_come_before_anything_is_launched(play: Play) -> None:
    kinds = [call[0] for call in play("group").logs[0] if call[0] != "init"]
    assert kinds == ["info"] * 7 + ["chunk"] * 8 + ["finalize"] * 3


def test_pipe_ops_are_tasks_per_channel(play: Play) -> None:
    ran = play("group", NCCL_MAX_NCHANNELS="2")
    first = ran.calls("init")[0][0]
    asked = [call for call in ran.calls("info") if call[0] == first]
    assert {call[3] for call in asked} == {"3"}  # six tasks that are not empty, two channels


def test_the_table_is_nccls_with_what_the_engine_has(play: Play) -> None:
    call = play("once").calls("info")[0]
    n_algo, n_proto, channels, *usable = map(int, call[4:])
    assert (n_algo, n_proto, channels) == (7, 3, 0)
    there = {divmod(i, n_proto) for i, one in enumerate(usable) if one}
    assert there == {(TREE, LL), (TREE, SIMPLE), (RING, LL), (RING, SIMPLE)}


def test_simulating_asks_and_runs_nothing(play: Play) -> None:
    ran = play("simulate")
    assert len(ran.calls("info")) == 2
    assert len(ran.calls("chunk")) == 1
    for answer in ran.answers:
        assert answer["codes"] == [0, 0, 0, 0]
        assert not answer["ran_in_simulation"]


def test_an_error_of_the_tuner_is_the_collectives(play: Play) -> None:
    for answer in play("once", RECORDER="fails").answers:
        assert answer["code"] == TUNER_ERROR
        assert "recorder" in answer["text"]
        assert "getCollInfo returned 3" in answer["text"]


def test_an_error_of_the_tuners_init_is_the_communicators(play: Play) -> None:
    for answer in play("once", RECORDER="init fails").answers:
        assert answer["init"] == TUNER_ERROR
        assert "init returned 3" in answer["text"]


def test_excluding_everything_fails_the_collective_on_all_ranks(play: Play) -> None:
    for answer in play("once", RECORDER="all ignored").answers:
        assert answer["code"] == TUNER_ERROR
        assert "AllReduce" in answer["text"]


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("negative channels", {"n_channels": 1}),
        ("200 channels", {"n_channels": 8}),
        ("3 channels", {"n_channels": 3, "decided": 1}),
        ("nan", {"algo": RING, "proto": LL}),
        ("equal", {"algo": TREE, "proto": LL}),
        ("absent algorithms", {"decided": 1}),
        ("chunk of 1", {"chunk_bytes": 4096}),
        ("endless chunk", {"decided": 0}),
        ("plain", {"decided": 0}),
    ],
)
def test_nonsense_is_clamped_and_the_result_is_right(
    play: Play, mode: str, wanted: dict[str, int]
) -> None:
    answers = play("once", ranks=3, RECORDER=mode).answers
    for answer in answers:
        assert (answer["code"], answer["right"]) == (0, True), answer
        assert answer["last"] | wanted == answer["last"]
        assert answer["last"]["algo"] in (TREE, RING)
        assert answer["last"]["chunk_bytes"] <= 8 << 20


def test_nccl_algo_is_applied_before_the_tuner(play: Play) -> None:
    ran = play("once", ranks=3, NCCL_ALGO="^tree", NCCL_PROTO="allreduce:simple", RECORDER="equal")
    usable = [int(word) for word in ran.calls("info")[0][7:]]
    assert [divmod(i, 3) for i, one in enumerate(usable) if one] == [(RING, SIMPLE)]
    assert {(a["last"]["algo"], a["last"]["proto"]) for a in ran.answers} == {(RING, SIMPLE)}


def test_leaving_nothing_by_nccl_algo_says_what_would_be_right(play: Play) -> None:
    for answer in play("once", NCCL_ALGO="nvls").answers:
        assert answer["code"] == BAD_ARGUMENT
        assert "NCCL_ALGO" in answer["text"]
        assert "RING" in answer["text"]


def test_an_unknown_word_in_nccl_proto_is_refused(play: Play) -> None:
    for answer in play("once", NCCL_PROTO="fast").answers:
        assert answer["init"] == BAD_ARGUMENT
        assert '"fast"' in answer["text"]
        assert "LL128" in answer["text"]


@pytest.mark.parametrize("plugin", ["none", "/nonexistent/tuner.so", "no-such-name"])
def test_without_a_plugin_the_model_decides(play: Play, plugin: str) -> None:
    ran = play("once", NCCL_TUNER_PLUGIN=plugin, NCCL_PROFILER_PLUGIN=plugin)
    assert ran.logs == []
    for answer in ran.answers:
        assert answer["plugins"] == "no tuner, no profiler"
        assert (answer["code"], answer["last"]["decided"]) == (0, 0)


def test_a_plugin_is_found_by_its_short_name(play: Play, recorder: Path, tmp_path: Path) -> None:
    (tmp_path / "libnccl-tuner-mine.so").symlink_to(recorder)
    ran = play("once", NCCL_TUNER_PLUGIN="mine", LD_LIBRARY_PATH=str(tmp_path))
    assert ran.answers[0]["plugins"] == "tuner recorder v6, no profiler"


def test_an_older_abi_that_the_plugin_has_not_is_no_plugin(play: Play) -> None:
    ran = play("once", RINGSTEP_ENGINE_TUNER_ABI="4")
    assert ran.answers[0]["plugins"] == "no tuner, no profiler"


def test_ranks_with_different_settings_still_choose_alike(
    engine: BuiltEngine, recorder: Path
) -> None:
    where = f"127.0.0.1:{free_port(4)}"
    processes = []
    for rank, settings in enumerate(
        ({"RINGSTEP_ENGINE_ALPHA_US": "1"}, {"RINGSTEP_ENGINE_ALPHA_US": "5000"},
         {"RINGSTEP_ENGINE_BETA_GBPS": "0.001", "NCCL_ALGO": "ring", "NCCL_MIN_NCHANNELS": "2"})
    ):  # fmt: skip
        command = [sys.executable, str(HERE / "scenarios.py"), str(engine.library), "once",
                   str(rank), "3", where]  # fmt: skip
        env = {**os.environ, "NCCL_TUNER_PLUGIN": "none", **settings}
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    answers = [json.loads(p.communicate(timeout=60)[0]) for p in processes]
    assert [a["code"] for a in answers] == [0, 0, 0]
    ran = [(a["last"]["algo"], a["last"]["proto"], a["last"]["n_channels"]) for a in answers]
    assert set(ran) == {(RING, ran[0][1], 2)}


def test_a_wrong_call_spoils_its_group_and_nothing_else(play: Play) -> None:
    ran = play("after_error")
    for answer in ran.answers:
        assert answer["codes"] == [0, 0, BAD_ARGUMENT, BAD_ARGUMENT, 0]
        assert "type is 99" in answer["text"]


GROUP, COLL, PROXY_OP, PROXY_STEP, KERNEL, GROUP_API, COLL_API = 1, 2, 8, 16, 64, 256, 512


@pytest.mark.parametrize(
    ("mask", "types"),
    [
        (0, set()),
        (GROUP_API, {GROUP_API}),
        (COLL_API, {GROUP_API, COLL_API}),
        (COLL, {GROUP_API, COLL_API, GROUP, COLL}),
        (KERNEL, {GROUP_API, COLL_API, GROUP, COLL, KERNEL}),
        (PROXY_OP, {GROUP_API, COLL_API, GROUP, COLL, PROXY_OP}),
        (PROXY_STEP, {GROUP_API, COLL_API, GROUP, COLL, PROXY_OP, PROXY_STEP}),
    ],
)
def test_a_profiler_gets_what_it_asked_for_and_its_parents(
    play: Play, recorder: Path, mask: int, types: set[int]
) -> None:
    ran = play("group", NCCL_PROFILER_PLUGIN=str(recorder), RECORDER_MASK=str(mask))
    assert ran.answers[0]["plugins"] == "tuner recorder v6, profiler recorder v5"
    assert len(ran.events) == 2
    for log in ran.events:
        started = {call[1]: call for call in log if call[0] == "start"}
        stopped = [call[1] for call in log if call[0] == "stop"]
        assert {int(call[2]) for call in started.values()} == types
        assert sorted(stopped) == sorted(started)  # each once
        for number, kind, parent in (call[1:] for call in started.values()):
            if int(kind) not in (GROUP, GROUP_API):
                assert int(parent) < int(number)
                assert parent in started
        for _, number, state, has_arguments in (call for call in log if call[0] == "state"):
            assert int(started[number][2]) in (KERNEL, PROXY_STEP)
            assert int(state) in (8, 9, 20, 22)
            assert has_arguments == "1"
        assert [call[0] for call in log].count("finalize") == 3


def test_a_chunk_that_cannot_be_told_fails_its_group_before_anything_is_launched(
    play: Play, recorder: Path
) -> None:
    """Plugins count launches, also those of the communicators before it."""
    ran = play("group", RECORDER="chunk of 28 bytes fails", NCCL_PROFILER_PLUGIN=str(recorder),
               RECORDER_MASK=str(COLL))  # fmt: skip
    for answer in ran.answers:
        assert answer["codes"][-1] == TUNER_ERROR
    started = {int(call[2]) for log in ran.events for call in log if call[0] == "start"}
    assert started == {GROUP_API, COLL_API}


def test_a_profiler_that_fails_to_start_is_left_out(play: Play, recorder: Path) -> None:
    ran = play("once", NCCL_PROFILER_PLUGIN=str(recorder), RECORDER="profiler fails")
    for answer in ran.answers:
        assert answer["plugins"] == "tuner recorder v6, no profiler"
        assert (answer["code"], answer["right"]) == (0, True)
    assert ran.events == []


def test_the_profiler_starts_before_the_tuner_and_ends_after_it(play: Play, recorder: Path) -> None:
    ran = play("group", NCCL_PROFILER_PLUGIN=str(recorder))
    assert [call[-1] for call in ran.calls("init")] == ["1", "2", "3"]
    assert [call[-1] for call in ran.calls("finalize")] == ["3", "2", "1"]
