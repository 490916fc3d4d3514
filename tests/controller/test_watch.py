"""Jobs.Watch and Switches.Watch: what is there, then what changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
from api import controller, refused
from fake_switch import FakeSwitch

from ringstep.controller.client import job_spec
from ringstep.controller.config import ControllerConfig
from ringstep.controller.v1 import jobs_pb2, switches_pb2
from ringstep.protocol.inband import StateReply

NewSwitch = Callable[..., Awaitable[FakeSwitch]]
SNAPSHOT, SYNCED = jobs_pb2.JOB_EVENT_KIND_SNAPSHOT, jobs_pb2.JOB_EVENT_KIND_SYNCED


async def until(events: AsyncIterator[jobs_pb2.JobEvent], kind: int) -> jobs_pb2.JobEvent:
    async with asyncio.timeout(20):
        async for event in events:
            if event.kind == kind:
                return event
    raise AssertionError("the stream ended")


async def test_watcher_sees_what_is_there_and_then_what_comes_and_goes(
    config: ControllerConfig,
) -> None:
    async with controller(config) as client:
        first = await client.register(job_spec("a", rings=[["h1", "h2"]]))
        events = client.watch()
        assert (await anext(events)).job == first
        assert (await anext(events)).kind == SYNCED
        second = await client.register(job_spec("b", rings=[["h3", "h4"]]))
        came = await until(events, jobs_pb2.JOB_EVENT_KIND_REGISTERED)
        assert (came.job.id, came.job.spec.name) == (second.id, "b")
        changes = jobs_pb2.MarkerOverrides(k=0.25)
        await client.update("b", changes)
        assert (await until(events, jobs_pb2.JOB_EVENT_KIND_UPDATED)).job.parameters.k == 0.25
        await client.release("a")
        assert (await until(events, jobs_pb2.JOB_EVENT_KIND_RELEASED)).job.id == first.id
        await events.aclose()


async def test_watcher_hears_when_switches_hold_a_job(
    config: ControllerConfig, new_switch: NewSwitch
) -> None:
    async with controller(config) as client:
        await client.add_switch("tor1", (await new_switch()).address)
        await client.wait_switches(["tor1"])
        events = client.watch()
        await until(events, SYNCED)
        await client.register(job_spec("a", rings=[["h1", "h2"]]))
        event = await until(events, jobs_pb2.JOB_EVENT_KIND_PROGRAMMING)
        assert [item.phase for item in event.job.programming] == [switches_pb2.SWITCH_PHASE_IN_SYNC]
        await events.aclose()


async def test_only_jobs_that_were_asked_for_are_told(config: ControllerConfig) -> None:
    async with controller(config) as client:
        await client.register(job_spec("a", rings=[["h1", "h2"]], tenant="red"))
        await client.register(job_spec("b", rings=[["h3", "h4"]], tenant="blue"))
        by_name, by_tenant = client.watch(["b"]), client.watch(tenant="red")
        assert (await anext(by_name)).job.spec.name == "b"
        assert (await anext(by_name)).kind == SYNCED
        assert (await anext(by_tenant)).job.spec.name == "a"
        assert (await anext(by_tenant)).kind == SYNCED
        await client.release("b")
        await client.release("a")
        assert (await anext(by_name)).job.spec.name == "b"
        assert (await anext(by_tenant)).job.spec.name == "a"
        await by_name.aclose()
        await by_tenant.aclose()


async def test_watcher_gets_states_as_often_as_asked(
    config: ControllerConfig, new_switch: NewSwitch
) -> None:
    reply = StateReply(
        request_id=0, job=1, block=0, generation=1, step_min=7, psn_rec=9, alpha=2,
        cnt_total=5, cnt_op=1, win_start=10, now=20, anchors=((0, 0, 0),) * 4,
    )  # fmt: skip
    switch = await new_switch(states={0: reply, 1: reply})
    async with controller(config) as client:
        await client.add_switch("tor1", switch.address)
        await client.register(job_spec("a", rings=[["h1", "h2"]]))
        await client.wait_programmed("a")
        events = client.watch(state_interval_ms=100)
        seen = [await until(events, jobs_pb2.JOB_EVENT_KIND_STATE) for _ in range(3)]
        await events.aclose()
        (tor1,) = seen[-1].state.switches
        assert {block.step_min for block in tor1.blocks} == {7}
        assert tor1.read_unix_ms > 0


async def test_states_more_often_than_switches_can_bear_are_refused(
    config: ControllerConfig,
) -> None:
    async with controller(config) as client:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "must be at least 100"):
            await anext(client.watch(state_interval_ms=5))


async def test_watching_a_job_that_is_not_there_is_refused(config: ControllerConfig) -> None:
    async with controller(config) as client:
        with refused(grpc.StatusCode.NOT_FOUND, "no live job has name 'nobody'"):
            await anext(client.watch(["nobody"]))


async def test_switches_are_watched_through_their_phases(
    config: ControllerConfig, new_switch: NewSwitch
) -> None:
    async with controller(config) as client:
        events = client.watch_switches()
        names = [(await anext(events)).switch.name for _ in range(4)]
        assert names == ["tor1", "tor2", "spine1", "spine2"]
        assert (await anext(events)).synced
        await client.add_switch("tor1", (await new_switch()).address)
        async with asyncio.timeout(20):
            async for event in events:
                if event.switch.status.phase == switches_pb2.SWITCH_PHASE_IN_SYNC:
                    assert event.switch.name == "tor1"
                    break
        await events.aclose()
