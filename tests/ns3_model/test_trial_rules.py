"""Rules under trial beside the marker: what each does to a few packets, and to a scenario."""

from __future__ import annotations

import random
import tomllib
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep_ns3 import Scenario, ScenarioError, Sweep, prepare, run
from ringstep_ns3 import _core as core
from ringstep_ns3.results import TIMING
from ringstep_ns3.scenario import TrialTable
from ringstep_ns3.tomldoc import dump

K_MAX = 100_000
"""Of RED, in bytes."""


def parameters(gate: int | None = None) -> Any:
    return core.MarkerParams(k=65536, n_warmup=0, n_sample=0, t_win_us=1000, q_gate_packets=gate)


class Queue:
    """A trial and a marker that marks whatever is ahead, fed with packets at times in us."""

    def __init__(self, scope: str = "port", seed: int = 1, gate: int | None = None, **rules: Any):
        self.marker = core.Marker(parameters(gate), scope)
        self.trial = core.Trial(core.TrialRules(**rules), scope, seed)

    def packet(self, now_us: int, step: int, **more: Any) -> tuple[bool, bool]:
        more.setdefault("psn", 500)
        more.setdefault("red_k_max_bytes", K_MAX)
        return self.trial.on_packet(self.marker, now_ns=1000 * now_us, step=step, **more)

    def mark(self, now_us: int, step: int, **more: Any) -> bool:
        return self.packet(now_us, step, **more)[0]

    def red(self, now_us: int, step: int, depth: int = 80_000, **more: Any) -> bool:
        return self.packet(now_us, step, red=True, qdepth_bytes=depth, **more)[1]

    def laggard(self, now_us: int, step: int = 0, **more: Any) -> None:
        assert not self.mark(now_us, step, **more)


def test_with_all_rules_off_the_marker_decides() -> None:
    draw = random.Random(7)
    queue = Queue(gate=5)
    alone = core.Marker(parameters(gate=5))
    marks = 0
    for now_us in range(2000):
        step, psn, r, depth = (draw.randrange(n) for n in (4, 300, 1 << 16, 20))
        last, ect, red, port = (draw.random() < share for share in (0.02, 0.8, 0.3, 0.5))
        mark, ce, _ = alone.on_packet(now_us, step, psn, last, ect, r, depth, red, int(port))
        said = queue.packet(
            now_us, step, psn=psn, last=last, ect=ect, r=r, qdepth_packets=depth, red=red,
            port=int(port),
        )  # fmt: skip
        assert said == (mark, red)
        assert ce == (ect and (mark or red))
        marks += mark
    assert marks > 100
    assert queue.marker.counters() == alone.counters()
    assert queue.marker.block(1) == alone.block(1)


def test_hold_marks_only_while_the_laggard_was_there_lately() -> None:
    for rules, late in (({}, True), ({"hold_ns": 50_000}, False)):
        queue = Queue(**rules)
        queue.laggard(0)
        assert queue.mark(50, 1)
        assert queue.mark(51, 1) is late
        assert queue.mark(60, 1, port=0) is late
        queue.laggard(70)
        assert queue.mark(71, 1)


def test_hold_knows_the_laggards_of_its_own_block_only() -> None:
    apart, shared = Queue("port", hold_ns=50_000), Queue("switch", hold_ns=50_000)
    for queue in (apart, shared):
        for port in (1, 2):
            queue.laggard(0, port=port)
        queue.laggard(60, port=1)
    assert not apart.mark(61, 1, port=2)
    assert shared.mark(61, 1, port=2)


def test_min_lead_lets_the_next_step_pass_and_counts_across_the_wrap() -> None:
    for base in (0, 16383):
        queue = Queue(min_lead=2)
        queue.laggard(0, base)
        assert not queue.mark(1, (base + 1) % 16384)
        assert queue.mark(2, (base + 2) % 16384)


def test_mark_gap_spaces_the_marks_of_a_block() -> None:
    for scope, other in (("port", True), ("switch", False)):
        queue = Queue(scope, mark_gap_ns=50_000)
        for port in (1, 2):
            queue.laggard(0, port=port)
        marks = [queue.mark(now, 1, port=1) for now in (1, 2, 50, 51, 52, 101)]
        assert marks == [True, False, False, True, False, True]
        assert queue.mark(102, 1, port=2) is other


def test_a_mark_that_cannot_be_given_does_not_count_for_the_gap() -> None:
    queue = Queue(mark_gap_ns=50_000)
    queue.laggard(0)
    queue.mark(1, 1, ect=False)
    assert queue.mark(2, 1)


def test_p_max_caps_the_probability() -> None:
    queue = Queue(p_max=0.5)
    queue.laggard(0)
    assert queue.mark(1, 1, r=32767)
    assert not queue.mark(2, 1, r=32768)
    assert Queue().mark(0, 1, r=65535) is False  # nobody is behind
    whole = Queue()
    whole.laggard(0)
    assert whole.mark(1, 1, r=65535)


def test_relief_spares_laggards_while_others_are_ahead() -> None:
    queue = Queue(relief="while_ahead", hold_ns=50_000)
    queue.laggard(0)
    assert queue.red(1, 0)  # nobody is ahead
    assert queue.red(2, 1)  # never for those ahead
    assert not queue.red(3, 0)
    assert not queue.red(4, 0, depth=K_MAX)
    assert queue.red(5, 0, depth=K_MAX + 1)
    assert not queue.red(52, 0)
    assert queue.red(53, 0)


def test_relief_without_hold_lasts_a_window() -> None:
    queue = Queue(relief="while_ahead")
    queue.laggard(0)
    queue.mark(1, 1)
    assert not queue.red(1001, 0)
    assert queue.red(1002, 0)


def test_relief_always_needs_nobody_ahead() -> None:
    queue = Queue(relief="always")
    assert not queue.red(0, 0)
    assert queue.red(1, 0, depth=K_MAX + 1)


def test_transfer_spends_the_marks_that_were_spared() -> None:
    queue = Queue(relief="always", transfer=2, gate=10)
    queue.laggard(0)
    assert not queue.mark(1, 1, qdepth_packets=20)  # the marker alone would have marked
    for now in (2, 3, 4):
        assert not queue.red(now, 0)
    assert not queue.mark(5, 1, qdepth_packets=10)  # below the gate
    assert queue.packet(6, 1, qdepth_packets=20, red=True, qdepth_bytes=80_000) == (False, True)
    assert [queue.mark(now, 1, qdepth_packets=20) for now in (7, 8, 9)] == [True, True, False]


def test_last_lost_keeps_the_ends_of_steps_from_the_marker() -> None:
    queue = Queue(last_lost=1.0)
    queue.laggard(0)
    assert queue.packet(1, 0, last=True, red=True) == (False, True)
    assert queue.marker.block()["step_min"] == 0
    assert queue.marker.counters()["data"] == 1
    assert queue.mark(2, 1)


def test_last_lost_is_a_share_that_the_seed_decides() -> None:
    def lost(seed: int) -> list[bool]:
        queue = Queue(seed=seed, last_lost=0.3)
        seen = []
        for step in range(400):
            before = queue.marker.counters()["data"]
            queue.packet(step, step, last=True)
            seen.append(queue.marker.counters()["data"] == before)
        return seen

    assert lost(1) == lost(1)
    assert lost(1) != lost(2)
    assert 0.2 < sum(lost(1)) / 400 < 0.4


def test_rules_together_all_have_to_agree() -> None:
    queue = Queue(hold_ns=50_000, min_lead=2, mark_gap_ns=10_000, p_max=0.5)
    queue.laggard(0)
    assert not queue.mark(1, 1)
    assert not queue.mark(1, 2, r=40_000)
    assert queue.mark(1, 2)
    assert not queue.mark(2, 2)
    assert not queue.mark(60, 2)


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ({"hold_ns": -1}, "hold_ns = -1"),
        ({"min_lead": 0}, "min_lead = 0"),
        ({"p_max": 0.0}, "p_max"),
        ({"relief": "often"}, 'relief = "often"'),
        ({"transfer": 3}, "transfer = 3: spends marks that relief spares"),
        ({"transfer": 3, "relief": "always", "p_max": 0.5}, "leave p_max at 1"),
        ({"last_lost": 1.5}, "last_lost"),
    ],
)
def test_the_core_refuses_rules_out_of_range(rules: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        core.Trial(core.TrialRules(**rules))


def test_the_core_takes_rules_with_the_marker_only() -> None:
    switch = core.SwitchConfig(marking="priority", trial=core.TrialRules())
    with pytest.raises(ValueError, match="rules under trial"):
        core.Network().add_switch(switch)


# --- In a scenario ----------------------------------------------------------------------------

CONTENDED = """
[fabric]
kind = "leaf_spine"
leaves = 4
spines = 2
hosts_per_leaf = 4
rate = "10G"
[[job]]
chunk = "128KiB"
ring_size = 4
passes = 2
[switch]
marking = "marker"
mark_gap = "off"
[marker]
k = 0.1
"""


def scenario(text: str = "", **keys: Any) -> Scenario:
    values = {f"marker.trial.{key}": value for key, value in keys.items()}
    return Scenario.parse(CONTENDED + text).setting(values)


def files(what: Scenario, seed: int = 1) -> dict[str, bytes]:
    found = run(what, seed).files()
    found.pop(TIMING)
    return found


def test_a_table_with_everything_off_is_no_table() -> None:
    plain = Scenario.parse(CONTENDED)
    off = scenario(hold="off", min_lead=1, p_max=1, relief="off", last_lost=0)
    assert off == plain
    assert off.content_hash(1) == plain.content_hash(1)
    assert "trial" not in off.to_toml()
    assert files(off) == files(plain)


def test_rules_stand_in_the_results_and_can_be_read_again() -> None:
    some = scenario(hold="10us", relief="while_ahead")
    results = run(some)
    assert results.summary["model"]["marker_trial"] == ["hold", "relief"]
    assert "marker_trial" not in run(Scenario.parse(CONTENDED)).summary["model"]
    assert Scenario.parse(results.effective).marker.trial == some.marker.trial


@pytest.mark.parametrize(
    "keys",
    [
        {"hold": "5us"},
        {"min_lead": 2},
        {"mark_gap": "100us"},
        {"p_max": 0.01},
        {"relief": "while_ahead"},
        {"relief": "always", "transfer": 8},
        {"last_lost": 0.5},
    ],
    ids=lambda keys: "+".join(keys),
)
def test_every_rule_changes_a_run_and_the_counters_agree_with_the_wire(
    keys: dict[str, Any],
) -> None:
    plain, results = run(Scenario.parse(CONTENDED)), run(scenario(**keys))
    assert results.complete
    totals, before = results.summary["totals"], plain.summary["totals"]
    assert totals["marks_marker"] != before["marks_marker"]
    markers = results.table("markers")
    assert sum(markers["marks"].to_pylist()) == totals["marks_marker"]
    if "last_lost" not in keys:  # a packet that the marker does not see is not counted
        assert sum(markers["red_marks"].to_pylist()) == totals["marks_red"]
    if keys.keys() & {"hold", "min_lead", "mark_gap", "p_max"}:
        assert totals["marks_marker"] < before["marks_marker"]


def test_the_seed_decides_which_ends_are_lost() -> None:
    lossy = scenario(last_lost=0.5)
    assert files(lossy, 2) == files(lossy, 2)


def test_rules_leave_switches_without_marking_alone() -> None:
    tor_only = scenario("[output]\nflows = false\n", last_lost=1).setting(
        {"switch.marked": ["tor"]}
    )
    names = run(tor_only).table("markers")["switch"].to_pylist()
    graph = prepare(tor_only).graph
    assert set(names) <= {graph.number[f"tor{i}"] for i in range(4)}


def test_without_a_marker_the_rules_have_no_effect_and_that_is_said() -> None:
    none = scenario(hold="5us").setting({"switch.marking": "none"})
    plain = Scenario.parse(CONTENDED).setting({"switch.marking": "none"})
    results = run(none)
    assert 'marker.trial has no effect while switch.marking = "none"' in results.summary["warnings"]
    assert results.flows.equals(run(plain).flows)


REFUSED = {
    "unknown": ({"holt": "5us"}, "unknown key; did you mean 'hold'?"),
    "no time": (
        {"hold": "0us"},
        'is no duration; write a time above zero, such as "1ms"; or "off"',
    ),
    "no lead": ({"min_lead": 0}, "0 is not a count"),
    "no cap": ({"p_max": 0}, "0 is no cap of a probability; write one above 0, up to 1"),
    "cap above 1": ({"p_max": 1.5}, "1.5 is no cap of a probability"),
    "no relief": ({"relief": "often"}, "write off, while_ahead, always"),
    "no share": ({"last_lost": 2}, "2"),
    "transfer alone": ({"transfer": 8}, "spends the marks that relief spares; write relief ="),
    "transfer with a cap": (
        {"transfer": 8, "relief": "always", "p_max": 0.1},
        "marker.trial.p_max: caps a probability, and transfer has none; take one out",
    ),
    "lead beyond the tag": ({"min_lead": 8192}, "the tag tells at most 8191 ahead from behind"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    keys, text = REFUSED[name]
    with pytest.raises(ScenarioError) as caught:
        prepare(scenario(**keys))
    (problem,) = caught.value.problems
    assert "marker.trial." in problem
    assert text in problem


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"switch.marking": "priority"}, 'marker.trial: goes with switch.marking = "marker" only'),
        ({"switch.red.enabled": False}, "marker.trial.relief: changes RED, which is off"),
        ({"switch.red.profile": "dctcp"}, "RED has nothing between the two"),
    ],
)
def test_rules_that_do_not_fit_the_switch_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ScenarioError, match=text.replace(".", r"\.")):
        prepare(scenario(relief="always").setting(settings))


# --- The sweeps that come with the package ------------------------------------------------------

STUDIES = resources("ringstep_ns3") / "paper" / "studies"


@pytest.mark.parametrize("name", ["ablation", "ablation.small", "ablation-shapes"])
def test_a_study_has_a_baseline_and_names_every_rule_it_tries(name: str, tmp_path: Path) -> None:
    study = tomllib.loads((STUDIES / f"{name}.toml").read_text())
    variants = study["axis"][-1]
    assert variants["name"] == "variant"
    assert variants["labels"][0] == "baseline"
    assert len(set(variants["labels"])) == len(variants["values"])
    # The first of each other axis is enough to see that every variant can be run.
    for axis in study["axis"][:-1]:
        axis["values"], axis["labels"] = axis["values"][:1], axis["labels"][:1]
    study["scenario"] = str(STUDIES / study["scenario"])
    (tmp_path / "study.toml").write_text(dump(study))
    _, points = Sweep.load(tmp_path / "study.toml")
    assert len({point.scenario.content_hash(1) for point in points}) == len(points)
    tried = {
        rule
        for point in points
        if point.scenario.marker.trial is not None
        for rule, off in TrialTable()
        if getattr(point.scenario.marker.trial, rule) != off
    }
    if name == "ablation":
        assert tried == set(TrialTable.model_fields)
