"""Planned paths as the controller serves them: pinned, kept, and led around what fails."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from api import controller, refused
from fake_switch import FakeSwitch
from finsy import P4TableEntry
from finsy.p4entity import decode_entity

from ringstep.controller.client import ControllerClient, job_spec
from ringstep.controller.config import ControllerConfig, MetricsConfig
from ringstep.controller.jobs import Followers, PathsChoice, QueuePair, Traffic
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.v1 import jobs_pb2
from ringstep.protocol.inband import StateReply

NewSwitch = Callable[..., Awaitable[FakeSwitch]]
SPINES = {"spine1": 11, "spine2": 12}
"""The port of either ToR that leads to a spine."""


def via(job: jobs_pb2.Job) -> dict[str, str]:
    """Return edge -> spine of the planned paths."""
    return {
        f"{path.src}->{path.dst}": next(hop.switch for hop in path.hops if hop.switch in SPINES)
        for path in job.paths
    }


def pinned(switch: FakeSwitch, pipeline: Pipeline) -> list[int]:
    """Return the path ids of the job rules that a switch holds, ascending."""
    found = []
    for entity in switch.entities.values():
        entry = decode_entity(entity, pipeline.schema)
        if isinstance(entry, P4TableEntry) and entry.table_id.startswith("job_by"):
            found.append(int(entry.action.args["path_id"]))  # type: ignore[union-attr]
    return sorted(found)


def paths_held(switch: FakeSwitch, pipeline: Pipeline) -> set[int]:
    """Return the path ids that a switch has a way out for."""
    entries = (decode_entity(entity, pipeline.schema) for entity in switch.entities.values())
    return {
        int(entry.match["path_id"])  # type: ignore[index,arg-type]
        for entry in entries
        if isinstance(entry, P4TableEntry) and entry.table_id == "planned_path"
    }


async def fabric(client: ControllerClient, new_switch: NewSwitch) -> dict[str, FakeSwitch]:
    switches = {name: await new_switch() for name in ("tor1", "tor2", "spine1", "spine2")}
    for name, switch in switches.items():
        await client.add_switch(name, switch.address)
    await client.wait_switches()
    return switches


async def test_edges_between_racks_are_pinned_and_share_no_uplink(
    config: ControllerConfig, new_switch: NewSwitch, pipeline: Pipeline
) -> None:
    async with controller(config) as client:
        switches = await fabric(client, new_switch)
        # h1 and h2 stand in one rack, h3 and h4 in the other: every edge leaves its rack.
        job = await client.register(job_spec("a", rings=[["h1", "h3", "h2", "h4"]]))
        assert job.paths_choice == jobs_pb2.PATHS_CHOICE_PLANNED
        spines = via(job)
        assert set(spines) == {"h1->h3", "h3->h2", "h2->h4", "h4->h1"}
        assert {spines["h1->h3"], spines["h2->h4"]} == set(SPINES)
        assert {spines["h3->h2"], spines["h4->h1"]} == set(SPINES)
        await client.wait_programmed("a")
        # Deliveries to hosts need no pin.
        assert set(pinned(switches["tor1"], pipeline)) == {0, 11, 12}
        assert paths_held(switches["tor1"], pipeline) == {11, 12}


async def test_new_job_moves_nobody_and_takes_what_is_free(config: ControllerConfig) -> None:
    async with controller(config) as client:
        first = await client.register(
            job_spec("a", queue_pairs=[QueuePair("h1", "h3", 1)], paths=PathsChoice.PLANNED)
        )
        second = await client.register(job_spec("b", queue_pairs=[QueuePair("h2", "h4", 2)]))
        assert {*via(first).values(), *via(second).values()} == set(SPINES)
        assert via(await client.get("a")) == via(first)


async def test_restart_keeps_every_path(config: ControllerConfig) -> None:
    async with controller(config) as client:
        names = [f"j{number}" for number in range(6)]
        for number, name in enumerate(names):
            pair = QueuePair("h1", "h3", 1 + number)
            await client.register(job_spec(name, queue_pairs=[pair]))
        await client.release("j1")
        await client.release("j4")
        before = [via(job) for job in await client.jobs()]
    async with controller(config) as client:
        assert [via(job) for job in await client.jobs()] == before


@pytest.mark.parametrize(
    "spec",
    [
        job_spec("a", rings=[["h1", "h3"]], paths=PathsChoice.ECMP),
        job_spec("a", rings=[["h1", "h3"]], traffic=Traffic(sender="qp_per_step")),
    ],
    ids=["asked for", "queue pair per step"],
)
async def test_job_by_ecmp_is_pinned_nowhere(
    config: ControllerConfig, spec: jobs_pb2.JobSpec
) -> None:
    async with controller(config) as client:
        job = await client.register(spec)
        assert job.paths_choice == jobs_pb2.PATHS_CHOICE_ECMP
        assert not job.paths
        assert len(job.programming) == 4


async def test_failed_link_falls_back_at_once_and_its_jobs_are_planned_again(
    config: ControllerConfig, new_switch: NewSwitch, pipeline: Pipeline
) -> None:
    async with controller(config) as client:
        switches = await fabric(client, new_switch)
        job = await client.register(job_spec("a", queue_pairs=[QueuePair("h1", "h3", 1)]))
        (spine,) = via(job).values()
        (other,) = set(SPINES) - {spine}
        await client.wait_programmed("a")
        assert await client.set_link("tor1", SPINES[spine], up=False) == ["a"]
        await client.wait_switches()
        moved = await client.wait_programmed("a")
        assert via(moved) == {"h1->h3": other}
        assert (moved.id, moved.generation) == (job.id, job.generation)
        assert paths_held(switches["tor1"], pipeline) == {SPINES[other]}
        shown = {switch.name: switch for switch in await client.switches()}
        assert list(shown["tor1"].down_ports) == [SPINES[spine]]
        assert list(shown[spine].down_ports) == [1]
    async with controller(config) as client:
        assert via(await client.get("a")) == {"h1->h3": other}, "a restart knows of the link"
        assert await client.set_link("tor1", SPINES[spine], up=True) == []
        assert via(await client.get("a")) == {"h1->h3": other}, "a link that is back moves nobody"


async def test_moves_and_transactions_are_counted_for_prometheus(
    config: ControllerConfig, new_switch: NewSwitch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ringstep")
    metrics = MetricsConfig(listen="127.0.0.1:0")
    async with controller(config.model_copy(update={"metrics": metrics})) as client:
        await fabric(client, new_switch)
        job = await client.register(job_spec("a", queue_pairs=[QueuePair("h1", "h3", 1)]))
        (spine,) = via(job).values()
        await client.set_link("tor1", SPINES[spine], up=False)
        (url,) = re.findall(r"http://\S+/metrics", caplog.text)
        text = (await asyncio.to_thread(lambda: urlopen(url, timeout=30).read())).decode()
    assert 'ringstep_job_moves_total{reason="link"} 1.0' in text
    stored = re.search(r"^ringstep_store_batch_changes_sum (\S+)", text, re.MULTILINE)
    assert stored is not None
    assert float(stored[1]) >= 2, "the job came, and moved"


async def test_link_that_is_no_link_is_refused(config: ControllerConfig) -> None:
    async with controller(config) as client:
        with refused(grpc.StatusCode.NOT_FOUND, "no link between switches at tor1:1;"):
            await client.set_link("tor1", 1, up=False)
        with refused(grpc.StatusCode.NOT_FOUND, "known switches"):
            await client.set_link("tor9", 1, up=False)


async def test_drained_switch_is_left_out_until_it_is_back(config: ControllerConfig) -> None:
    async with controller(config) as client:
        await client.register(job_spec("a", rings=[["h1", "h3", "h2", "h4"]]))
        drained = await client.drain("spine1")
        assert (list(drained.moved_jobs), drained.switch.drained) == (["a"], True)
        assert set(via(await client.get("a")).values()) == {"spine2"}
        assert list((await client.drain("spine1")).moved_jobs) == [], "twice is no news"
        late = await client.register(job_spec("b", queue_pairs=[QueuePair("h1", "h3", 5)]))
        assert set(via(late).values()) == {"spine2"}
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "would cut off hosts", "CUT_OFF"):
            await client.drain("spine2")
        back = await client.drain("spine1", drained=False)
        assert not back.switch.drained
        moved = await client.rebalance()
        assert "a" in moved.moved_jobs
        assert moved.max_load_after < moved.max_load_before
        assert set(via(await client.get("a")).values()) == set(SPINES)


async def test_dry_run_of_a_rebalance_moves_nothing(config: ControllerConfig) -> None:
    async with controller(config) as client:
        await client.drain("spine1")
        await client.register(job_spec("a", rings=[["h1", "h3", "h2", "h4"]]))
        await client.drain("spine1", drained=False)
        before = via(await client.get("a"))
        planned = await client.rebalance(dry_run=True)
        assert list(planned.moved_jobs) == ["a"]
        assert via(await client.get("a")) == before


async def test_new_job_that_asks_to_rebalance_moves_others(config: ControllerConfig) -> None:
    async with controller(config) as client:
        await client.drain("spine1")
        await client.register(job_spec("a", rings=[["h1", "h3", "h2", "h4"]]))
        await client.drain("spine1", drained=False)
        spec = job_spec("b", queue_pairs=[QueuePair("h1", "h3", 5)])
        await client.register(spec, rebalance=True)
        assert set(via(await client.get("a")).values()) == set(SPINES)


async def test_plan_explains_and_changes_nothing(config: ControllerConfig) -> None:
    async with controller(config) as client:
        spec = job_spec("a", rings=[["h1", "h3", "h2", "h4"]])
        plan = await client.plan(spec)
        assert await client.jobs() == []
        assert (plan.inter_rack_edges, plan.intra_rack_edges) == (4, 0)
        assert {(link.edges_before, link.edges_after) for link in plan.links} == {(0, 1)}
        assert plan.gain > 1
        assert plan.max_load == plan.bound
        registered = await client.register(spec)
        assert via(registered) == {
            f"{path.src}->{path.dst}": path.hops[1].switch for path in plan.paths
        }
        again = await client.plan("a")
        assert [link.edges_after for link in again.links] == [1] * len(again.links)
        ecmp = await client.plan(job_spec("b", rings=[["h1", "h3"]], paths=PathsChoice.ECMP))
        assert ecmp.reason
        assert not ecmp.paths


async def test_moved_host_takes_its_jobs_along(
    config: ControllerConfig, new_switch: NewSwitch, fabric_text: str
) -> None:
    async with controller(config) as client:
        await fabric(client, new_switch)
        job = await client.register(job_spec("a", queue_pairs=[QueuePair("h1", "h4", 1)]))
        assert set(via(job)) == {"h1->h4"}
        await client.wait_programmed("a")
        config.topology.write_text(fabric_text.replace('a = "tor2:2"', 'a = "tor1:3"'))
        followed = await client.reload_topology()
        assert (list(followed.moved_jobs), list(followed.broken_jobs)) == (["a"], [])
        moved = await client.wait_programmed("a")
        assert not moved.paths, "both ends stand in one rack now"
        assert [item.switch for item in moved.programming] == ["tor1"]
        assert (moved.id, moved.generation) == (job.id, job.generation)


async def test_topology_that_cannot_be_used_changes_nothing(
    config: ControllerConfig, fabric_text: str
) -> None:
    async with controller(config) as client:
        before = await client.register(job_spec("a", rings=[["h1", "h3"]]))
        config.topology.write_text(fabric_text.replace('b = "h4"', 'b = "h9"'))
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "h9"):
            await client.reload_topology()
        assert await client.get("a") == before


async def test_job_whose_host_left_says_so_and_recovers(
    config: ControllerConfig, fabric_text: str
) -> None:
    without_h4 = fabric_text.replace(
        '[[host]]\nname = "h4"\nip = "10.0.2.4"\nmac = "02:00:00:01:00:04"\n', ""
    ).replace('[[link]]\na = "tor2:2"\nb = "h4"\nrate = "10G"\n', "")
    async with controller(config) as client:
        await client.register(job_spec("a", rings=[["h1", "h4"]]))
        config.topology.write_text(without_h4)
        followed = await client.reload_topology()
        assert list(followed.broken_jobs) == ["a"]
        assert "host 'h4' is not in the topology" in (await client.get("a")).problem
        config.topology.write_text(fabric_text)
        await client.reload_topology()
        assert (await client.get("a")).problem == ""


class RunningRing(dict[int, StateReply]):
    """State blocks of a ring that makes progress within its step; a test says when it ends."""

    step = 3
    packets = 0

    def get(self, block: int, default: object = None) -> StateReply:  # type: ignore[override]
        self.packets += 1
        return StateReply(
            request_id=0, job=1, block=block, generation=1, step_min=self.step,
            psn_rec=self.packets, alpha=1, cnt_total=1, cnt_op=0, win_start=0, now=1,
            anchors=((0, 0, 0),) * 4,
        )  # fmt: skip


async def test_running_job_moves_when_its_step_ends(
    config: ControllerConfig, new_switch: NewSwitch, pipeline: Pipeline, eventually: Any
) -> None:
    """The rule turns only after the ring was seen to go on to its next step."""
    switches: dict[str, FakeSwitch] = {}
    async with controller(config) as client:
        switches = await fabric(client, new_switch)
        job = await client.register(job_spec("a", queue_pairs=[QueuePair("h1", "h3", 1)]))
        (spine,) = via(job).values()
        await client.wait_programmed("a")
        tor1 = switches["tor1"]
        ring = tor1.states = RunningRing()
        moving = asyncio.create_task(client.drain(spine))
        await eventually(lambda: len(tor1.state_requests) >= 5)
        assert set(pinned(tor1, pipeline)) == {SPINES[spine]}, "the step has not ended yet"
        ring.step = 4
        await moving
        (other,) = set(SPINES) - {spine}
        await eventually(lambda: set(pinned(tor1, pipeline)) == {SPINES[other]})
        async with asyncio.timeout(30):
            while (await client.get("a")).moving:
                await asyncio.sleep(0.01)


async def test_tor_only_followers_leave_spines_without_blocks(
    config: ControllerConfig, new_switch: NewSwitch, pipeline: Pipeline
) -> None:
    async with controller(config) as client:
        switches = await fabric(client, new_switch)
        await client.register(job_spec("a", rings=[["h1", "h3"]], followers=Followers.TOR))
        await client.wait_programmed("a")
        for name, switch in switches.items():
            tables = {
                decode_entity(entity, pipeline.schema).table_id  # type: ignore[union-attr]
                for entity in switch.entities.values()
                if entity.HasField("table_entry")
            }
            assert ("job_params" in tables) == name.startswith("tor")


def test_this_file_uses_the_fabric_it_says(config: ControllerConfig) -> None:
    text = Path(config.topology).read_text()
    assert 'a = "tor1:11"\nb = "spine1:1"' in text
    assert 'a = "tor1:12"\nb = "spine2:1"' in text
