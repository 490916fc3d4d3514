"""Parameters of a live job change without touching the running state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc
import pytest
from api import controller, refused
from fake_switch import FakeSwitch
from finsy import P4TableEntry
from finsy.p4entity import decode_entity

from ringstep.controller.client import job_spec
from ringstep.controller.config import ControllerConfig
from ringstep.controller.jobs import Marking
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.v1 import jobs_pb2

NewSwitch = Callable[..., Awaitable[FakeSwitch]]
RING = [["h1", "h2"]]


def held_params(switch: FakeSwitch, pipeline: Pipeline) -> dict[str, int]:
    for entity in switch.entities.values():
        entry = decode_entity(entity, pipeline.schema)
        if isinstance(entry, P4TableEntry) and entry.table_id == "job_params":
            assert entry.action is not None
            return dict(entry.action.args)  # type: ignore[union-attr]
    return {}


async def test_changed_parameters_reach_the_switch_and_the_generation_stays(
    config: ControllerConfig, new_switch: NewSwitch, pipeline: Pipeline
) -> None:
    switch = await new_switch()
    async with controller(config) as client:
        await client.add_switch("tor1", switch.address)
        before = await client.register(job_spec("a", rings=RING, marking=Marking.OFF))
        await client.wait_programmed("a")
        old = held_params(switch, pipeline)
        writes = len(switch.writes)
        changes = jobs_pb2.MarkerOverrides(k=0.5, packets_per_step=64, enabled=True)
        after = await client.update("a", changes)
        assert (after.generation, after.id) == (before.generation, before.id)
        assert (after.parameters.k, after.parameters.packets_per_step) == (0.5, 64)
        assert after.parameters.enabled
        assert after.parameters.marking.choice == jobs_pb2.MARKING_CHOICE_ON
        await client.wait_programmed("a")
        new = held_params(switch, pipeline)
        assert new["generation"] == old["generation"]
        assert new["k"] != old["k"]
        assert len(switch.writes) == writes + 1, "only the parameters are written"
    async with controller(config) as client:
        assert (await client.get("a")).parameters == after.parameters


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (jobs_pb2.MarkerOverrides(), "changes: empty"),
        (jobs_pb2.MarkerOverrides(k=7), "changes.k:"),
        (jobs_pb2.MarkerOverrides(scope=jobs_pb2.SCOPE_SWITCH), "changes.scope: state blocks"),
        (jobs_pb2.MarkerOverrides(step_bits=8), "changes.step_bits: the tag layout"),
        (jobs_pb2.MarkerOverrides(alpha_max=0), "changes.alpha_max:"),
    ],
)
async def test_change_that_cannot_be_is_refused_and_nothing_changes(
    config: ControllerConfig, changes: jobs_pb2.MarkerOverrides, text: str
) -> None:
    async with controller(config) as client:
        before = await client.register(job_spec("a", rings=RING))
        with refused(grpc.StatusCode.INVALID_ARGUMENT, text):
            await client.update("a", changes)
        assert await client.get("a") == before


async def test_change_of_a_job_that_is_not_there_is_refused(config: ControllerConfig) -> None:
    async with controller(config) as client:
        with refused(grpc.StatusCode.NOT_FOUND, "no live job"):
            await client.update("a", jobs_pb2.MarkerOverrides(k=0.5))
