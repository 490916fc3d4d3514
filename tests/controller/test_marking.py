"""Whether a job is marked at its start: what the measurements say for the controller's fabric."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringstep.controller.client import ControllerClient, job_spec
from ringstep.controller.config import ControllerConfig
from ringstep.controller.jobs import Marking, PathsChoice, QueuePair, Traffic, spec_from_proto
from ringstep.controller.marking import Decision, decide
from ringstep.controller.serve import running
from ringstep.controller.v1 import jobs_pb2
from ringstep.fabric import Topology, parse_topology
from ringstep.fabric.facts import JobFacts, fabric_facts
from ringstep.fabric.guidance import load_table
from ringstep.fabric.recommend import Confidence, recommend
from ringstep.protocol.marker import PROFILES

RING = ("h1", "h3", "h2", "h4")
NCCL = Traffic(sender="persistent", preset="connectx", step_bytes=262_144)


@pytest.fixture
def fabric(fabric_text: str) -> Topology:
    """The fabric of the other tests, with delays."""
    text = fabric_text.replace('rate = "10G"', 'rate = "10G"\ndelay = "1us"')
    return parse_topology(text, "fabric.toml")


def decided(topology: Topology, *neighbours: str, **arguments: Any) -> Decision:
    message = job_spec("a", **({"rings": [RING]} | arguments))
    return decide(spec_from_proto(message), message.overrides, topology, neighbours)


@pytest.mark.parametrize("marking", [Marking.ON, Marking.OFF])
def test_what_is_asked_for_is_done(fabric: Topology, marking: Marking) -> None:
    found = decided(fabric, marking=marking, traffic=NCCL)
    assert found.params.enabled is (marking is Marking.ON)
    assert (found.choice, found.reason, found.confidence) == (marking, "as asked", None)
    assert found.params.k == PROFILES["ringstep"].params.k


@pytest.mark.parametrize("sender", ["persistent", "qp_per_step"])
@pytest.mark.parametrize("preset", load_table().presets)
@pytest.mark.parametrize("paths", [PathsChoice.AUTO, PathsChoice.ECMP])
def test_auto_is_what_the_advice_says_for_the_paths_that_the_job_gets(
    fabric: Topology, sender: str, preset: str, paths: PathsChoice
) -> None:
    traffic = replace(NCCL, sender=sender, preset=preset)
    planned = sender == "persistent" and paths is PathsChoice.AUTO
    facts = JobFacts(
        traffic.step_bytes, len(RING), sender, preset, plannable=planned, pinned=planned
    )
    advice = recommend(fabric_facts(fabric, RING), facts, load_table())
    message = job_spec("a", rings=[RING], traffic=traffic)
    spec = replace(spec_from_proto(message), paths=paths)
    found = decide(spec, message.overrides, fabric)
    assert spec.planned is planned
    assert advice.paths == ("planned" if planned else "ecmp")
    assert (found.params.enabled, found.closed_loop) == (advice.marking, advice.closed_loop)
    assert (found.reason, found.confidence) == (advice.marking_reason, advice.confidence)
    assert found.confidence is not Confidence.NONE
    for name in ("k", "tau_num", "tau_den", "t_win", "n_sample", "n_warmup", "q_gate"):
        assert getattr(found.params, name) == getattr(advice.params, name)


def test_auto_marks_where_that_was_measured_to_be_safe(fabric_text: str) -> None:
    text = fabric_text.replace('rate = "10G"', 'rate = "10G"\ndelay = "1us"')
    for end in ("spine1:1", "spine1:2", "spine2:1", "spine2:2"):
        text = text.replace(f'b = "{end}"\nrate = "10G"', f'b = "{end}"\nrate = "5G"')
    two_to_one = parse_topology(text, "fabric.toml")
    paper = replace(NCCL, preset="dcqcn_paper", mtu=1000)
    found = decided(two_to_one, traffic=paper)
    assert found.params.enabled
    assert found.confidence is Confidence.MEASURED
    assert found.reason.startswith("marking starts: on planned paths it alone may cost ")
    message = job_spec("a", rings=[RING], traffic=paper)
    by_ecmp = replace(spec_from_proto(message), paths=PathsChoice.ECMP)
    found = decide(by_ecmp, message.overrides, two_to_one)
    assert found.reason.startswith("marking starts: on ECMP paths it alone may cost ")
    assert not decide(by_ecmp, message.overrides, two_to_one, ["b"]).params.enabled
    other = replace(by_ecmp, traffic=replace(paper, preset="connectx"))
    assert not decide(other, message.overrides, two_to_one).params.enabled


def test_a_plan_that_does_not_turn_with_the_step_is_no_evidence(fabric: Topology) -> None:
    message = job_spec("a", rings=[RING], traffic=replace(NCCL, sender="qp_per_step"))
    spec = replace(spec_from_proto(message), paths=PathsChoice.PLANNED)
    found = decide(spec, message.overrides, fabric)
    assert not found.params.enabled
    assert found.reason.startswith("for qp_per_step senders only paths that turn with the step")


def test_jobs_that_differ_by_their_hosts_alone_share_one_answer(fabric: Topology) -> None:
    first = decided(fabric, traffic=NCCL)
    again = decided(fabric, traffic=NCCL, rings=[("h2", "h4", "h1", "h3")])
    assert replace(again, params=first.params) == first
    assert decided(fabric, traffic=replace(NCCL, preset="")) != first


def test_parameters_that_are_given_stay(fabric: Topology) -> None:
    given = decided(fabric, traffic=NCCL, k=0.5, t_win_us=77, q_gate=3, n_sample=1, n_warmup=2)
    params = given.params
    assert (params.k, params.t_win, params.q_gate) == (32768, 77, 3)
    assert (params.n_sample, params.n_warmup) == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "the bytes per ring step are not known (--chunk)"),
        ({"traffic": replace(NCCL, step_bytes=0)}, "the bytes per ring step are not known"),
        ({"traffic": replace(NCCL, sender="")}, "sender 'unknown' was not measured; known: "),
        ({"traffic": replace(NCCL, preset="")}, "DCQCN preset 'unknown' was not measured; known: "),
        ({"traffic": NCCL, "profile": "paper"}, "only the profile ringstep was measured"),
        (
            {"traffic": NCCL, "rings": [], "queue_pairs": [QueuePair("h1", "h3", 1)]},
            "the ring is not known (--ring, beside --qp)",
        ),
        ({"traffic": replace(NCCL, mtu=1)}, "MTU 1 makes no sense"),
    ],
)
def test_what_is_not_known_does_not_start(
    fabric: Topology, arguments: dict[str, Any], reason: str
) -> None:
    found = decided(fabric, **arguments)
    assert found.reason.startswith(reason)
    assert found.reason.endswith(
        "; marking does not start without evidence; the closed loop may try it"
    )
    assert not found.params.enabled
    assert (found.confidence, found.closed_loop) == (Confidence.NONE, True)


def test_fabric_without_delays_needs_the_rtt(topology: Topology) -> None:
    found = decided(topology, traffic=NCCL)
    assert found.reason.startswith("fabric.toml gives no delays; add delay to its links, or give")
    told = decided(topology, traffic=replace(NCCL, rtt_ns=8000))
    assert told.confidence is not Confidence.NONE


def test_job_within_a_rack_has_nothing_to_mark(topology: Topology) -> None:
    found = decided(topology, rings=[["h1", "h2"]])
    assert found.reason.startswith("no ring edge leaves its rack")
    assert not found.closed_loop
    assert found.params == replace(PROFILES["ringstep"].params, enabled=False)


def test_jobs_that_share_ports_are_tenants(fabric: Topology) -> None:
    beside = decided(fabric, "b", "c", traffic=NCCL)
    assert beside.reason.startswith("job 'b' and 1 more may share its ports; ")
    told = decided(fabric, traffic=replace(NCCL, tenants=True))
    assert beside == replace(told, reason=beside.reason)


async def test_decision_is_stored_with_the_job_and_told(tmp_path: Path, fabric_text: str) -> None:
    topology = tmp_path / "fabric.toml"
    topology.write_text(fabric_text)
    config = ControllerConfig(
        topology=topology, listen="127.0.0.1:0", store=f"sqlite:///{tmp_path / 'store.db'}"
    )
    spec = job_spec("a", queue_pairs=[QueuePair("h1", "h3", 1)], rings=[RING], traffic=NCCL)
    async with running(config) as address, ControllerClient(address) as client:
        first = await client.register(spec, "r")
        assert first.parameters.marking.choice == jobs_pb2.MARKING_CHOICE_AUTO
        assert "gives no delays" in first.parameters.marking.reason
        assert first.spec.traffic.preset == "connectx"
        assert await client.register(spec, "r") == first
        local = await client.register(job_spec("b", rings=[["h1", "h2"]]))
        assert not local.parameters.marking.closed_loop
        other = job_spec("c", queue_pairs=[QueuePair("h2", "h3", 2)], rings=[RING],
                         traffic=replace(NCCL, rtt_ns=8000))  # fmt: skip
        told = (await client.register(other)).parameters.marking
        assert told.reason.startswith("job 'a' may share its ports; ")
    async with running(config) as address, ControllerClient(address) as client:
        assert await client.get("a") == first
