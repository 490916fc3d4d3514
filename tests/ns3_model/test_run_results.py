"""What a run returns and writes: tables, derived metrics, summary."""

import json

import numpy as np
import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep_ns3 import (
    Interrupted,
    OutputError,
    Results,
    ResultsError,
    Scenario,
    ScenarioError,
    run,
)
from ringstep_ns3.tables import SCHEMAS


@pytest.fixture(scope="module")
def results() -> Results:
    text = """
[fabric]
kind = "leaf_spine"
leaves = 2
spines = 2
hosts_per_leaf = 4
rate = "10G"
[switch]
marking = "marker"
[output]
sample = "50us"
alpha = "50us"
rates = [["h0", "h4"]]
[[job]]
name = "ring"
chunk = "64KiB"
placement = "striped"
[[background]]
kind = "periodic"
src = ["h0"]
dst = ["h7"]
size = "64KiB"
interval = "100us"
stop = "1ms"
"""
    return run(Scenario.parse(text), seed=5)


def test_every_table_has_its_columns_and_types(results: Results) -> None:
    assert set(results.tables) == set(SCHEMAS)
    for name, columns in SCHEMAS.items():
        table = results.table(name)
        assert dict(zip(table.column_names, table.schema.types, strict=True)) == dict(columns)
    for name in ("alpha_trace", "rate_trace", "queue_histogram", "overlap", "step_rate"):
        assert results.table(name).num_rows > 0, name


def test_an_unknown_table_is_named(results: Results) -> None:
    with pytest.raises(KeyError, match="'flow' is no table; there are nodes, jobs"):
        results.table("flow")


def test_a_collective_is_not_faster_than_its_bound(results: Results) -> None:
    row = results.collectives.to_pylist()[0]
    # 14 steps of 65,536 B in 66 packets with 48 B of headers at 10 Gbit/s.
    assert row["bound_ns"] == int(14 * (65_536 + 66 * 48) * 0.8)
    assert row["cct_ns"] > row["bound_ns"]
    assert (row["kind"], row["algorithm"], row["name"]) == ("all_reduce", "ring", "all_reduce")


def test_every_byte_of_every_step_is_accounted_for(results: Results) -> None:
    flows = results.flows.to_pydict()
    mine = [i for i, job in enumerate(flows["job"]) if job == 1]
    assert len(mine) == 14 * 8
    assert sum(flows["bytes"][i] for i in mine) == 14 * 8 * 65_536
    assert results.jobs["bytes"].to_pylist() == [14 * 8 * 65_536]
    # A run ends with the last byte in, so the ACKs of the last messages may be missing.
    known = [i for i in mine if flows["end_ns"][i] is not None]
    assert len(known) >= 13 * 8
    assert all(flows["fct_ns"][i] == flows["end_ns"][i] - flows["start_ns"][i] for i in known)
    assert results.steps.num_rows == 14
    assert results.steps["messages"].to_pylist() == [8] * 14


def test_throughput_adds_up_to_what_was_delivered(results: Results) -> None:
    job = results.column("throughput", "job")
    bps = results.column("throughput", "bps")
    for each, payload in ((1, 14 * 8 * 65_536), (0, 10 * 65_536)):
        assert bps[job == each].sum() * 50e-6 / 8 == pytest.approx(payload, rel=1e-6)


def test_step_rates_follow_from_the_ends_of_steps(results: Results) -> None:
    ends = np.sort(results.times("steps", "end_ns"))
    intervals = results.times("step_rate", "interval_ns")
    assert (intervals == np.diff(ends)).all()
    rates = results.column("step_rate", "rate")[1:]
    ideal = (65_536 + 66 * 48) * 0.8
    assert np.allclose(rates[intervals > 0], ideal / intervals[intervals > 0])


def test_overlap_is_that_of_the_link_series(results: Results) -> None:
    series = results.table("link_series").to_pydict()
    most: dict[int, int] = {}
    for time, job, steps in zip(series["time_ns"], series["job"], series["steps"], strict=True):
        if job == 1:
            most[time] = max(most.get(time, 0), steps)
    table = results.table("overlap").to_pydict()
    assert dict(zip(table["time_ns"], table["max_steps"], strict=True)) == most
    assert results.summary["jobs"][0]["max_overlap"] == max(most.values())


def test_the_summary_names_the_choices_and_what_happened_per_port(results: Results) -> None:
    summary = results.summary
    assert summary["model"]["sender"] == ["qp_per_step"]
    assert summary["model"]["dependency"] == ["in_order"]
    assert summary["model"]["cc"] == "hpcc_run"
    assert summary["seed"] == 5
    assert summary["complete"] is True
    assert summary["jobs"][0]["last_step_span_ns"] > 0
    marks = results.links["marks_red"].to_pylist()
    assert sum(marks) == summary["totals"]["marks_red"]
    port = summary["ports"][0]
    assert {"link", "marks_red", "marks_marker", "drops_buffer", "pauses_received"} <= set(port)
    assert port["marks_red"] + port["marks_marker"] > 0


def test_a_result_folder_reads_back_as_it_was(results: Results, tmp_path) -> None:
    results.write(tmp_path / "r")
    again = Results.read(tmp_path / "r")
    assert again.summary == json.loads(json.dumps(results.summary))
    assert again.effective == results.effective
    for name in SCHEMAS:
        assert again.table(name).equals(results.table(name)), name
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r"]


def test_the_effective_configuration_gives_the_same_run(results: Results) -> None:
    again = run(Scenario.parse(results.effective), seed=5)
    assert again.summary["hash"] == results.summary["hash"]
    assert again.jobs.equals(results.jobs)
    assert "t_alpha_us = 1.0" in results.effective


def test_a_folder_without_results_is_named(tmp_path) -> None:
    with pytest.raises(ResultsError, match="no results here"):
        Results.read(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(results: Results, tmp_path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        results.write(tmp_path / "none" / "r")


def test_an_interrupted_run_keeps_what_is_done(ring: str) -> None:
    calls = []

    def stop(progress) -> None:
        calls.append(progress)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        run(Scenario.parse(ring, settings=["job.chunk=1MiB"]), on_progress=stop)
    partial = caught.value.results
    assert partial.summary["stopped"] == "interrupted"
    assert not partial.complete
    assert 0 < calls[0].fraction < calls[1].fraction < 1
    assert partial.jobs["jct_ns"].to_pylist() == [None]
    assert any(end is not None for end in partial.steps["end_ns"].to_pylist())


def test_a_run_can_stop_at_a_time(ring: str) -> None:
    results = run(Scenario.parse(ring, settings=["until=100us"]))
    assert results.summary["stopped"] == "until"
    assert results.summary["sim_time_ns"] <= 100_000
    assert results.jobs["end_ns"].to_pylist() == [None]


def test_a_lost_tail_without_a_timeout_is_said_to_have_stalled(ring: str) -> None:
    text = ring + '[transport]\nrto = "off"\n[[drop]]\nwhich = "last"\nsrc = "h0"\nstep = 2\n'
    results = run(Scenario.parse(text))
    assert results.summary["stopped"] == "stalled"
    assert not results.complete


def test_a_lost_tail_with_a_timeout_is_counted(ring: str) -> None:
    text = ring + '[transport]\nrto = "1ms"\n[[drop]]\nwhich = "last"\nsrc = "h0"\nstep = 2\n'
    results = run(Scenario.parse(text))
    assert results.complete
    assert results.summary["totals"]["drops_wire"] == 1
    assert results.summary["totals"]["timeouts"] >= 1


def test_drops_that_match_nothing_are_warnings(ring: str) -> None:
    idle = '[[drop]]\nsrc = "h0"\nstep = 999\n[[drop]]\nwhich = "nth"\nn = 1000000\n'
    text = ring + '[transport]\nrto = "1ms"\n[[drop]]\nsrc = "h0"\nstep = 2\n' + idle
    results = run(Scenario.parse(text))
    assert results.summary["totals"]["drops_wire"] == 1
    assert results.summary["warnings"] == [
        "drop[2]: nothing was lost by it, for no packet matched; look at kind, src, dst, step and "
        "link",
        "drop[3]: nothing was lost by it, for fewer than n = 1000000 packets matched; look at "
        "kind, src, dst, step and link",
    ]


@pytest.mark.parametrize("size", [1, 7, 8, 1001, 12_345])
def test_sizes_that_divide_by_nothing_end(leaf_spine: str, size: int) -> None:
    results = run(Scenario.parse(leaf_spine + f"[[job]]\nsize = {size}\n"))
    assert results.complete
    flows = results.flows.to_pydict()
    assert sum(flows["bytes"]) == 14 * size


def test_a_program_overlaps_computation_and_communication(leaf_spine: str) -> None:
    ops = (
        '[[job.op]]\nname = "a"\nkind = "compute"\ntime = "1ms"\n'
        '[[job.op]]\nname = "b"\nkind = "all_reduce"\nsize = "512KiB"\nafter = ["a"]\n'
        '[[job.op]]\nname = "c"\nkind = "compute"\ntime = "2ms"\nafter = ["a"]\n'
    )
    results = run(Scenario.parse(leaf_spine + "[[job]]\niterations = 2\n" + ops))
    rows = {row["name"]: row for row in results.collectives.to_pylist()}
    assert list(rows) == ["1/a", "1/b", "1/c", "2/a", "2/b", "2/c"]
    assert rows["1/b"]["start_ns"] == rows["1/c"]["start_ns"] == 1_000_000
    assert rows["2/a"]["start_ns"] >= max(rows["1/b"]["end_ns"], rows["1/c"]["end_ns"])
    assert results.jobs["jct_ns"].to_pylist()[0] >= 6_000_000
    # Computations are no collectives.
    assert results.summary["jobs"][0]["cct_ns"]["count"] == 2


def test_a_function_marks_in_place_of_a_switch(ring: str) -> None:
    scenario = Scenario.parse(ring).setting({"switch.marking": "marker", "job.chunk": "32KiB"})
    seen: list[tuple[int, int]] = []

    def policy(packet) -> bool:
        seen.append((packet.switch, packet.step))
        return packet.qdepth_packets > 5

    results = run(scenario, policies={"tor0": policy})
    assert results.complete
    assert results.summary["model"]["policies"] == ["tor0"]
    nodes = results.table("nodes").to_pydict()
    assert {switch for switch, _ in seen} == {nodes["node"][nodes["name"].index("tor0")]}
    assert {step for _, step in seen} == set(range(14))
    assert results.summary["totals"]["marks_marker"] > 0
    assert "policies" not in run(scenario).summary["model"]


def test_a_function_for_a_switch_that_is_not_there_is_refused(ring: str) -> None:
    with pytest.raises(ScenarioError, match="policies: 'tor9' is no switch; did you mean 'tor"):
        run(Scenario.parse(ring), policies={"tor9": lambda _packet: False})
