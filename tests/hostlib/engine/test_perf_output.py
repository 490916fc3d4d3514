"""ringstep-perf: a table that parsers of nccl-tests read, and the same as JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

import pytest
from free_ports import free_port

from ringstep.hostlib.native.build import BuiltEngine

NUMBER = r"\s+(\d+(?:\.\d+)?)"
ROW = re.compile(
    r"^\s*(?P<size>\d+)\s+(?P<count>\d+)\s+(?P<type>\w+)\s+(?P<redop>\w+)\s+(?P<root>-?\d+)"
    rf"{NUMBER * 3}\s+(?P<wrong>\d+|N/A){NUMBER * 3}\s+(?P<wrong_in>\d+|N/A)\s+(?P<ran>\S+)$"
)


def perf(engine: BuiltEngine, *arguments: str, **environment: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")}
    done = subprocess.run(
        [str(engine.perf), *arguments],
        env=env | environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def rows(text: str) -> list[dict[str, str]]:
    found = [ROW.match(line) for line in text.splitlines() if not line.startswith("#")]
    assert all(found), text
    return [match.groupdict() for match in found if match]


def as_json(engine: BuiltEngine, *arguments: str, **environment: str) -> dict[str, Any]:
    return dict(json.loads(perf(engine, *arguments, "--json", **environment)))


def test_the_table_reads_as_nccl_tests_does(engine: BuiltEngine) -> None:
    text = perf(engine, "all_reduce", "-N", "3", "-b", "64", "-e", "64K", "-f", "4", "-n", "2")
    found = rows(text)
    assert [int(row["size"]) for row in found] == [64 * 4**i for i in range(6)]
    assert {(row["type"], row["redop"], row["root"]) for row in found} == {("float", "sum", "-1")}
    assert all(int(row["count"]) * 4 == int(row["size"]) for row in found)
    assert all(re.fullmatch(r"(RING|TREE)/(LL|SIMPLE)/[1-8]", row["ran"]) for row in found)
    assert re.search(r"^# Out of bounds values : 0 OK$", text, re.M)
    assert re.search(r"^# Avg bus bandwidth    : \d+(\.\d+)?(e-\d+)?$", text, re.M)
    assert "out-of-place" in text
    assert "in-place" in text


@pytest.mark.parametrize(
    ("collective", "share"),
    [("all_reduce", 4 / 3), ("all_gather", 2 / 3), ("reduce_scatter", 2 / 3), ("broadcast", 1)],
)
def test_bandwidths_are_nccl_tests_formulas(
    engine: BuiltEngine, collective: str, share: float
) -> None:
    found = as_json(engine, collective, "-N", "3", "--sizes", "300K", "-n", "2")
    for row in found["rows"]:
        assert row["size"] == 300 << 10
        for place in ("out_of_place", "in_place"):
            timing = row[place]
            assert timing["algbw_gbps"] == pytest.approx(
                row["size"] / timing["time_us"] / 1e3, rel=1e-2
            )
            assert timing["busbw_gbps"] == pytest.approx(timing["algbw_gbps"] * share, rel=1e-2)
            assert timing["wrong"] == 0


@pytest.mark.parametrize("proto", ["ll", "simple"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_every_type_and_operation_is_checked(
    engine: BuiltEngine, collective: str, proto: str
) -> None:
    found = as_json(
        engine, collective, "-N", "3", "-t", "all", "-o", "all", "--sizes", "24,9000", "-n", "1",
        "-w", "0", "--proto", proto, "--root-rank", "2",
    )  # fmt: skip
    has_op = collective in ("all_reduce", "reduce_scatter")
    assert len(found["rows"]) == 10 * (5 if has_op else 1) * 2
    assert len({row["type"] for row in found["rows"]}) == 10
    assert {row["redop"] for row in found["rows"]} == (
        {"sum", "prod", "max", "min", "avg"} if has_op else {"none"}
    )
    assert {row["root"] for row in found["rows"]} == {2 if collective == "broadcast" else -1}
    assert found["wrong"] == 0


@pytest.mark.parametrize("algo", ["ring", "tree"])
def test_options_choose_what_runs(engine: BuiltEngine, algo: str) -> None:
    found = as_json(engine, "all_reduce", "-N", "2", "--sizes", "100K", "-n", "3", "--algo", algo,
                    "--proto", "simple", "--channels", "3")  # fmt: skip
    (row,) = found["rows"]
    assert row["ran"] | {"algo": algo, "proto": "simple", "channels": 3} == row["ran"]
    assert row["runs"] == {f"{algo.upper()}/SIMPLE/3": 6}


def test_steps_and_lists_of_sizes(engine: BuiltEngine) -> None:
    stepped = rows(perf(engine, "all_reduce", "-b", "1K", "-e", "3K", "-i", "1K", "-n", "1"))
    assert [row["size"] for row in stepped] == ["1024", "2048", "3072"]
    listed = rows(perf(engine, "all_reduce", "--sizes=8,1M,12", "-n", "1"))
    assert [row["size"] for row in listed] == ["8", "1048576", "12"]


def test_a_size_without_an_element_for_each_rank_runs_nothing(engine: BuiltEngine) -> None:
    (row,) = rows(perf(engine, "all_gather", "-N", "3", "--sizes", "8", "-n", "1"))
    assert (row["size"], row["count"], row["ran"]) == ("0", "0", "-")


def test_unchecked_results_are_not_called_right(engine: BuiltEngine) -> None:
    (row,) = rows(perf(engine, "all_reduce", "--sizes", "64", "-n", "1", "-c", "0"))
    assert (row["wrong"], row["wrong_in"]) == ("N/A", "N/A")
    assert as_json(engine, "all_reduce", "--sizes", "64", "-n", "1", "-c", "0")["wrong"] is None


def test_times_of_each_iteration_on_request(engine: BuiltEngine) -> None:
    found = as_json(engine, "all_reduce", "--sizes", "4K", "-n", "11", "--per-iteration")
    timing = found["rows"][0]["out_of_place"]
    assert len(timing["times_us"]) == 11
    assert sorted(timing["times_us"])[5] == timing["median_us"]
    assert timing["median_us"] <= timing["p99_us"] <= max(timing["times_us"])
    plain = as_json(engine, "all_reduce", "--sizes", "4K", "-n", "2")
    assert "times_us" not in plain["rows"][0]["out_of_place"]


def test_several_communicators_and_tasks_in_one_group(engine: BuiltEngine) -> None:
    found = as_json(engine, "all_reduce", "-N", "3", "--sizes", "4000,40000", "-n", "2", "--comms",
                    "2", "--group", "3")  # fmt: skip
    assert found["wrong"] == 0
    assert (found["comms"], found["group"]) == (2, 3)


def test_one_rank_alone_copies(engine: BuiltEngine) -> None:
    found = as_json(engine, "all_reduce", "-N", "1", "--sizes", "64,4K", "-n", "1", "-o", "all")
    assert found["wrong"] == 0
    assert {row["ran"] for row in found["rows"]} == {None}


def test_a_run_goes_on_for_a_duration(engine: BuiltEngine) -> None:
    found = as_json(engine, "all_reduce", "--sizes", "64", "-n", "1", "--duration", "0.2",
                    "--per-iteration")  # fmt: skip
    assert len(found["rows"][0]["out_of_place"]["times_us"]) > 1


@pytest.mark.parametrize("kind", ["torchrun", "mpi", "options"])
def test_ranks_started_one_by_one(engine: BuiltEngine, kind: str) -> None:
    port = free_port()
    processes = []
    for rank in range(3):
        options, env = [], {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")}
        if kind == "torchrun":
            env |= {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port)}  # fmt: skip
        elif kind == "mpi":
            env |= {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "3"}
            options = ["--root", f"127.0.0.1:{port}"]
        else:
            options = ["--rank", str(rank), "--ranks", "3", "--root", f"127.0.0.1:{port}", "--bind",
                       "127.0.0.1"]  # fmt: skip
        command = [str(engine.perf), "all_reduce", "--sizes", "4K", "-n", "2", *options]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    texts = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(rows(texts[0])) == 1
    assert texts[1:] == ["", ""]
