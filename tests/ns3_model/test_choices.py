"""Every named choice of a scenario runs a ring to its end, and means something."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
import ringstep_ns3
from ringstep_ns3 import Scenario, ScenarioError, prepare, run
from ringstep_ns3.scenario import Cc, Job, MarkerTable, RedTable, SwitchTable, Transport

CHOICES = [
    (f"{table}.{key}", value)
    for table, model, keys in (
        ("transport", Transport, ("window", "recovery", "nic")),
        ("cc", Cc, ("kind", "preset")),
        ("switch", SwitchTable, ("lb", "ecmp_hash", "marking", "scheduler")),
        ("switch.red", RedTable, ("scaling",)),
        ("marker", MarkerTable, ("profile", "progress")),
        ("job", Job, ("placement", "sender", "port", "dependency", "notify")),
    )
    for key in keys
    for value in get_args(model.model_fields[key].annotation)
    if value != "explicit"
]


@pytest.mark.parametrize(("key", "value"), CHOICES)
def test_a_choice_runs_to_its_end(ring: str, key: str, value: str) -> None:
    scenario = Scenario.parse(ring).setting({"job.chunk": "32KiB"})
    if key.startswith("marker"):
        scenario = scenario.setting({"switch.marking": "marker"})
    results = run(scenario.setting({key: value}))
    assert results.complete
    assert results.steps.num_rows == 14


@pytest.mark.parametrize(
    ("keys", "exact"),
    [
        ({}, True),
        ({"job.passes": 3}, True),
        ({"job.collective": "all_gather"}, True),
        ({"job.collective": "reduce_scatter", "job.ring_size": 4}, True),
        ({"job.collective": "broadcast", "job.chunks": 5}, True),
        ({"job.algorithm": "ring_2d", "job.dims": [4, 2], "job.passes": 2}, True),
        ({"job.algorithm": "double_binary_tree", "job.chunks": 3}, False),
        ({"job.algorithm": "halving_doubling"}, False),
        ({"job.collective": "all_to_all"}, False),
        ({"job.collective": "send"}, True),
    ],
)
def test_steps_are_counted_as_the_core_numbers_them(
    leaf_spine: str, keys: dict[str, object], exact: bool
) -> None:
    scenario = Scenario.parse(leaf_spine + "[[job]]\nsize = 8000\n").setting(keys)
    counted = prepare(scenario).jobs[0].steps
    used = max(run(scenario).steps["step"].to_pylist()) + 1
    assert counted == used if exact else counted >= used


@pytest.mark.parametrize("profile", ["hpcc_run", "conweave", "dctcp", "symphony"])
def test_red_profiles_for_any_rate(ring: str, profile: str) -> None:
    scenario = Scenario.parse(ring).setting({"switch.red.profile": profile, "fabric.rate": "40G"})
    assert run(scenario).complete


@pytest.mark.parametrize("interval", [1, 4, 20])
def test_ack_intervals_end_whatever_the_message(ring: str, interval: int) -> None:
    scenario = Scenario.parse(ring).setting(
        {"transport.ack_interval": interval, "job.chunk": 33_333, "cc.kind": "hpcc"}
    )
    assert run(scenario).complete


def test_only_the_switches_named_mark(ring: str) -> None:
    base = Scenario.parse(ring).setting(
        {"switch.marking": "marker", "marker.q_gate": "off", "job.chunk": "256KiB"}
    )
    table = run(base).table("nodes").to_pydict()
    nodes = dict(zip(table["node"], table["name"], strict=True))
    for marked, expected in (
        (["all"], {"tor0", "tor1", "spine0", "spine1"}),
        (["tor"], {"tor0", "tor1"}),
        (["spine1"], {"spine1"}),
    ):
        table = run(base.setting({"switch.marked": marked})).table("markers").to_pydict()
        counted = {
            nodes[switch]
            for switch, data in zip(table["switch"], table["data"], strict=True)
            if data > 0
        }
        assert counted == expected


def test_an_unmarked_job_is_left_alone(ring: str) -> None:
    scenario = Scenario.parse(ring).setting({"switch.marking": "marker", "job.marked": False})
    results = run(scenario)
    assert results.summary["totals"]["marks_marker"] == 0
    assert any("no job is marked" in warning for warning in results.summary["warnings"])


def test_the_marker_follows_a_pool_of_qps_by_the_bits_that_its_port_carries(ring: str) -> None:
    scenario = Scenario.parse(ring).setting(
        {"switch.marking": "marker", "job.sender": "qp_pool", "job.pool": 16}
    )
    params = prepare(scenario).markers[0]
    assert params is not None
    assert (params.layout.step_bits, params.mode.value) == (4, "anchored")
    assert run(scenario.setting({"job.passes": 4})).complete
    sticky = prepare(scenario.setting({"job.port": "sticky"})).markers[0]
    assert sticky is not None
    assert sticky.layout.step_bits == 14


def test_keys_of_a_preset_can_be_replaced(ring: str) -> None:
    scenario = Scenario.parse(ring).setting({"cc.dcqcn.min_rate": "5G", "cc.dcqcn.t_rp": "600us"})
    results = run(scenario)
    assert results.summary["model"]["cc_changed"] == ["min_rate", "t_rp"]
    assert "#   min_rate_bps = 5000000000.0" in results.effective
    assert "#   t_rp_us = 600.0" in results.effective
    assert "#   t_alpha_us = 1.0" in results.effective


def test_headroom_that_can_drop_is_said(ring: str) -> None:
    scenario = Scenario.parse(ring).setting({"switch.pfc.headroom": "hpcc"})
    assert any("headroom" in warning for warning in run(scenario).summary["warnings"])


def test_the_package_imports_of_ringstep_only_protocol_and_fabric() -> None:
    allowed = ("ringstep.protocol", "ringstep.fabric")
    for path in Path(ringstep_ns3.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module]
            for module in modules:
                if module == "ringstep" or module.startswith("ringstep."):
                    assert module.startswith(allowed), f"{path.name} imports {module}"


@pytest.mark.parametrize("which", ["data", "ack"])
@pytest.mark.parametrize("recovery", ["gbn", "selective"])
def test_one_lost_end_of_a_step_costs_a_timeout(ring: str, which: str, recovery: str) -> None:
    text = ring + f'[[drop]]\nkind = "{which}"\nwhich = "last"\nsrc = "{{}}"\nstep = 5\n'
    # The ACK of h0's message comes from the next host of the striped ring.
    scenario = Scenario.parse(text.format("h0" if which == "data" else "h4"))
    scenario = scenario.setting({"transport.rto": "2ms", "transport.recovery": recovery})
    results = run(scenario)
    totals = results.summary["totals"]
    assert results.complete
    assert (totals["drops_wire"], totals["timeouts"], totals["retransmissions"]) == (1, 1, 1)


@pytest.mark.parametrize("mtu", [1000, 9000])
@pytest.mark.parametrize("marking", ["none", "marker"])
def test_a_tiny_lossless_buffer_pauses_and_drops_nothing(
    leaf_spine: str, mtu: int, marking: str
) -> None:
    text = leaf_spine + (
        '[cc]\nkind = "fixed"\n[[background]]\nkind = "long"\nsrc = ["h1", "h2", "h4"]\n'
        'dst = ["h0"]\nsize = "2MB"\n'
    )
    scenario = Scenario.parse(text).setting({"transport.mtu": mtu, "switch.marking": marking})
    with pytest.raises(ScenarioError, match="give it more than") as caught:
        run(scenario.setting({"switch.buffer": 1}))
    least = max(int(n) for n in re.findall(r"more than (\d+)", str(caught.value)))
    for _ in range(4):  # switches are refused one by one
        try:
            results = run(scenario.setting({"switch.buffer": least + 1}))
            break
        except ScenarioError as error:
            least = max(int(n) for n in re.findall(r"more than (\d+)", str(error)))
    totals = results.summary["totals"]
    assert results.complete
    assert totals["pauses"] > 0
    assert (totals["drops_buffer"], totals["retransmissions"]) == (0, 0)


def test_a_2d_ring_over_unequal_delays_ends_split_by_split() -> None:
    text = '[fabric]\nkind = "links"\nhosts = ["a", "b", "c", "d", "e", "f"]\nswitches = ["s"]\n'
    for delay_us, host in zip((1, 50, 2, 400, 7, 1), "abcdef", strict=True):
        text += f'[[fabric.link]]\na = "{host}"\nb = "s"\nrate = "10G"\ndelay = "{delay_us}us"\n'
    text += "[[job]]\n"
    for split in range(4):  # four splits, one active at a time
        text += (
            f'[[job.op]]\nname = "split{split}"\nkind = "all_reduce"\nalgorithm = "ring_2d"\n'
            'dims = [2, 3]\nsize = "100KB"\n'
        )
    results = run(Scenario.parse(text))
    assert results.complete
    ends = results.collectives["end_ns"].to_pylist()
    assert len(ends) == 4
    assert ends == sorted(ends)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"switch.marked": ["tor0"]}, 'switch.marked has no effect while switch.marking = "none"'),
        ({"transport.window_bytes": "20KB"}, "transport.window_bytes has no effect"),
        ({"cc.fixed_rate": "1G"}, "cc.fixed_rate has no effect"),
        ({"cc.kind": "hpcc", "cc.preset": "connectx"}, "cc.preset and cc.dcqcn have no effect"),
    ],
)
def test_a_key_that_others_switch_off_is_said(
    ring: str, settings: dict[str, object], text: str
) -> None:
    base = Scenario.parse(ring).setting({"job.chunk": "8KiB"})
    assert run(base).summary["warnings"] == []
    assert text in run(base.setting(settings)).summary["warnings"][0]


@pytest.mark.parametrize(
    ("keys", "gap"),
    [
        ({}, 0),
        ({"switch.marking": "marker"}, 20),
        ({"switch.marking": "marker", "marker.profile": "paper"}, 0),
        ({"switch.marking": "marker", "switch.red.enabled": False}, 0),
        ({"switch.marking": "marker", "switch.mark_gap": "off"}, 0),
        ({"switch.marking": "priority"}, 0),
        ({"switch.mark_gap": "50us"}, 50),
    ],
    ids=str,
)
def test_marks_are_spaced_with_our_profile_and_where_it_is_said(
    ring: str, keys: dict[str, object], gap: int
) -> None:
    made = Scenario.parse(ring).setting({"job.chunk": "32KiB"} | keys)
    assert prepare(made).mark_gap_us == gap
    assert run(made).summary["model"]["mark_gap_us"] == gap
