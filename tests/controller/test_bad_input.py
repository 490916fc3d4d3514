"""Requests that make no sense: each is a clear error, and nothing changes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from api import controller, refused

from ringstep.controller.client import ControllerClient, ControllerError, job_spec
from ringstep.controller.config import ControllerConfig, JobsConfig, TenantConfig
from ringstep.controller.jobs import QueuePair
from ringstep.controller.v1 import jobs_pb2

RING = [["h1", "h2"]]
CODES = grpc.StatusCode


async def test_unknown_tenant_is_refused_and_the_known_ones_named(config: ControllerConfig) -> None:
    some = config.model_copy(update={"tenants": {"research": TenantConfig()}})
    async with controller(some) as client:
        with refused(CODES.INVALID_ARGUMENT, "research", "UNKNOWN_TENANT"):
            await client.register(job_spec("a", rings=RING, tenant="finance"))
        assert await client.jobs() == []
        assert (await client.register(job_spec("a", rings=RING, tenant="research"))).id == 1


async def test_queue_pair_with_two_senders_is_refused(config: ControllerConfig) -> None:
    spec = job_spec("a", queue_pairs=[QueuePair("h1", "h3", 7), QueuePair("h2", "h3", 7)])
    async with controller(config) as client:
        with refused(CODES.INVALID_ARGUMENT, "a connection has one sender", "BAD_FIELD"):
            await client.register(spec)
        assert await client.jobs() == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"t_win_us": 0}, "t_win_us"),
        ({"k": -1.0}, "k"),
        ({"k": float("nan")}, "k"),
        ({"n_sample": 4_000_000_000}, "n_sample"),
        ({"alpha_max": 4_000_000_000}, "alpha_max"),
        ({"tau": jobs_pb2.Fraction(num=1, den=0)}, "tau"),
    ],
)
async def test_zero_and_absurd_parameters_are_refused_by_register_and_update(
    config: ControllerConfig, changes: dict[str, object], text: str
) -> None:
    overrides = jobs_pb2.MarkerOverrides(**changes)  # type: ignore[arg-type]
    async with controller(config) as client:
        kept = await client.register(job_spec("kept", rings=[["h3", "h4"]]))
        spec = job_spec("a", rings=RING)
        spec.overrides.CopyFrom(overrides)
        with refused(CODES.INVALID_ARGUMENT, text, "BAD_FIELD"):
            await client.register(spec)
        with refused(CODES.INVALID_ARGUMENT, text, "BAD_FIELD"):
            await client._calls.call(
                lambda at: at.jobs.UpdateParameters,
                jobs_pb2.UpdateParametersRequest(
                    job=jobs_pb2.JobRef(name="kept"), changes=overrides
                ),
                repeatable=False,
            )
        assert await client.jobs() == [kept]


async def test_lease_is_not_renewed_after_its_end(config: ControllerConfig) -> None:
    short = config.model_copy(update={"jobs": JobsConfig(lease=timedelta(seconds=1))})
    async with controller(short) as client:
        job = await client.register(job_spec("a", rings=RING))
        await _gone(client)
        with refused(CODES.NOT_FOUND, "lease ran out", "NO_SUCH_JOB"):
            await client.renew("a")
        with refused(CODES.NOT_FOUND, "no live job", "NO_SUCH_JOB"):
            await client.renew(job.id, generation=job.generation)
        assert await client.jobs() == []


async def _gone(client: ControllerClient) -> None:
    async for event in client.watch():
        if event.kind == jobs_pb2.JOB_EVENT_KIND_EXPIRED:
            return


@pytest.mark.parametrize("call", ["renew", "release"])
async def test_stale_generation_is_refused(config: ControllerConfig, call: str) -> None:
    async with controller(config) as client:
        job = await client.register(job_spec("a", rings=RING))
        with refused(CODES.FAILED_PRECONDITION, "has generation", "STALE_GENERATION"):
            await getattr(client, call)("a", generation=job.generation + 1)
        assert [one.id for one in await client.jobs()] == [job.id]


async def test_oversized_requests_leave_the_controller_as_it_was(config: ControllerConfig) -> None:
    async with controller(config) as client:
        kept = await client.register(job_spec("kept", rings=RING))
        with pytest.raises(ControllerError) as caught:
            await client.register(job_spec("a", rings=[["h1" * 1000] * 5000]))
        assert caught.value.code is CODES.RESOURCE_EXHAUSTED
        with refused(CODES.INVALID_ARGUMENT, "more than 65536 edges; split the job"):
            await client.register(job_spec("a", rings=[[f"h{n}" for n in range(70_000)]]))
        assert await client.jobs() == [kept]


async def test_two_hosts_with_one_address_are_refused_and_the_old_fabric_stays(
    config: ControllerConfig, fabric_text: str
) -> None:
    async with controller(config) as client:
        kept = await client.register(job_spec("kept", rings=RING))
        config.topology.write_text(fabric_text.replace('"10.0.1.2"', '"10.0.1.1"'))
        with refused(CODES.INVALID_ARGUMENT, "already the address of", "TOPOLOGY_INVALID"):
            await client.reload_topology()
        assert await client.jobs() == [kept]


async def test_request_id_that_a_database_cannot_hold_costs_nobody_else(
    config: ControllerConfig, tmp_path: Path
) -> None:
    async with controller(config) as client:
        for text in ("a\0b", "a\nb", "\u2028"):
            with refused(CODES.INVALID_ARGUMENT, "cannot be printed", "BAD_FIELD"):
                await client.register(job_spec("a", rings=RING), text)
        assert (await client.register(job_spec("a", rings=RING), "ä-1")).id == 1


async def test_request_of_another_tenant_is_not_answered_with_this_ones_job(
    config: ControllerConfig,
) -> None:
    async with controller(config) as client:
        await client.register(job_spec("a", rings=RING, tenant="research"), "id")
        with refused(CODES.ALREADY_EXISTS, "another spec", "REQUEST_ID_REUSED"):
            await client.register(job_spec("a", rings=RING, tenant="finance"), "id")
