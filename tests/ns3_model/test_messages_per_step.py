"""A ring step as several messages on one connection (NCCL's slices), and what ends a step then."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep_ns3 import Scenario, ScenarioError, prepare, run

SENDERS = {
    "qp_per_step": {},
    "persistent": {"job.sender": "persistent", "job.port": "sticky"},
    "qp_pool": {"job.sender": "qp_pool"},
}


def sliced(ring: str, messages: int, **settings: Any) -> Scenario:
    return Scenario.parse(ring).setting({"job.messages_per_step": messages, **settings})


@pytest.mark.parametrize("dependency", ["count", "in_order", "per_chunk"])
@pytest.mark.parametrize("sender", SENDERS)
def test_every_step_arrives_in_so_many_messages(ring: str, sender: str, dependency: str) -> None:
    settings = {"job.dependency": dependency, "job.passes": 2, **SENDERS[sender]}
    whole = run(sliced(ring, 1, **settings))
    parts = run(sliced(ring, 4, **settings))
    assert parts.complete
    assert parts.flows.num_rows == 4 * whole.flows.num_rows
    assert sum(parts.flows["bytes"].to_pylist()) == sum(whole.flows["bytes"].to_pylist())
    assert parts.steps.num_rows == whole.steps.num_rows
    messages = [count * 4 for count in whole.steps["messages"].to_pylist()]
    assert parts.steps["messages"].to_pylist() == messages
    assert None not in parts.steps["end_ns"].to_pylist()


def test_one_message_is_what_there_was(ring: str) -> None:
    plain, one = run(Scenario.parse(ring)), run(sliced(ring, 1))
    for name in ("flows", "steps", "links"):
        assert one.table(name).equals(plain.table(name)), name


def test_the_messages_of_a_step_share_a_queue_pair(ring: str) -> None:
    flows = run(sliced(ring, 4)).flows
    first = min(zip(*(flows[c].to_pylist() for c in ("src", "step", "qp")), strict=True))
    same = [
        qp
        for src, step, qp in zip(
            *(flows[c].to_pylist() for c in ("src", "step", "qp")), strict=True
        )
        if (src, step) == first[:2]
    ]
    assert same == [first[2]] * 4


def test_messages_do_not_wait_for_the_rest_of_their_step(ring: str) -> None:
    # Long links: with one message a host is idle while a step travels, with several it is not.
    far = Scenario.parse(ring).setting(
        {
            "fabric.delay": "10us",
            "fabric.spines": 4,
            "cc.kind": "fixed",
            "switch.lb": "planned",
            **SENDERS["persistent"],
        }
    )
    times = {n: run(far.setting({"job.messages_per_step": n})).cct_ns.max() for n in (1, 2, 8)}
    bound = run(far).collectives["bound_ns"].to_pylist()[0]
    assert times[1] > 1.4 * bound
    assert times[2] < 0.8 * times[1]
    assert bound < times[8] < 1.2 * bound


def advances(scenario: Scenario) -> int:
    return sum(run(scenario).table("markers")["advances"].to_pylist())


@pytest.mark.parametrize("sender", SENDERS)
def test_auto_packets_per_step_tells_the_last_message_of_a_step(ring: str, sender: str) -> None:
    settings = {"switch.marking": "marker", **SENDERS[sender]}
    whole = advances(sliced(ring, 1, **settings))
    every_last = advances(sliced(ring, 4, **settings))
    auto = advances(sliced(ring, 4, **settings, **{"marker.packets_per_step": "auto"}))
    assert every_last > 1.5 * whole
    assert auto < 1.2 * whole


def test_auto_counts_the_packets_of_a_step(ring: str) -> None:
    # 64 KiB in 4 messages of 16384 B: 17 packets each.
    scenario = sliced(ring, 4, **{"switch.marking": "marker", "marker.packets_per_step": "auto"})
    (params,) = prepare(scenario).markers
    assert params is not None
    assert params.packets_per_step == 68
    (one,) = prepare(scenario.setting({"job.messages_per_step": 1})).markers
    assert one is not None
    assert one.packets_per_step == 0


def test_a_2d_ring_in_several_messages(leaf_spine: str) -> None:
    text = leaf_spine + (
        '[[job]]\nalgorithm = "ring_2d"\ndims = [4, 2]\nsize = "256KiB"\nmessages_per_step = 4\n'
    )
    assert run(Scenario.parse(text)).complete
    marked = Scenario.parse(text).setting(
        {"switch.marking": "marker", "marker.packets_per_step": "auto"}
    )
    with pytest.raises(ScenarioError) as caught:
        prepare(marked)
    (problem,) = caught.value.problems
    assert problem == (
        '--set marker.packets_per_step="auto": marker.packets_per_step: "auto" tells the end of a '
        "step by its packets, but steps of job 'job1' differ too much: the shortest has 36, and "
        "all but the last message of another have 51; write a number"
    )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"job.messages_per_step": 0}, "0 is not a count"),
        ({"job.messages_per_step": 257}, "257 is not usable"),
        (
            {"job.messages_per_step": 2, "job.algorithm": "double_binary_tree", "job.size": 4096},
            "cuts steps of rings, and the job has none; take it out",
        ),
        ({"marker.packets_per_step": "all"}, "'all' is no number of packets; write a whole number"),
        ({"marker.packets_per_step": -1}, "-1 is no number of packets"),
    ],
)
def test_what_makes_no_sense_is_refused(
    leaf_spine: str, settings: dict[str, Any], text: str
) -> None:
    size = "" if "job.size" in settings else 'chunk = "64KiB"\n'
    with pytest.raises(ScenarioError) as caught:
        prepare(Scenario.parse(leaf_spine + "[[job]]\n" + size).setting(settings))
    assert text in caught.value.problems[0]
