"""Leases: a job that nobody renews is released, and its Job_ID rests before it is used again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import grpc
import pytest
from api import controller, refused

from ringstep.controller.client import job_spec
from ringstep.controller.config import ControllerConfig, JobsConfig
from ringstep.controller.v1 import jobs_pb2

RING = [["h1", "h2"]]


def with_jobs(config: ControllerConfig, **jobs: Any) -> ControllerConfig:
    return config.model_copy(update={"jobs": JobsConfig(**jobs)})


async def test_job_without_a_lease_lives_on(config: ControllerConfig) -> None:
    async with controller(config) as client:
        job = await client.register(job_spec("a", rings=RING))
        assert (job.lease_s, job.lease_remaining_ms) == (0, 0)


async def test_lease_counts_down_and_renewing_starts_it_anew(config: ControllerConfig) -> None:
    async with controller(config) as client:
        job = await client.register(job_spec("a", rings=RING, lease_s=60))
        assert job.lease_s == 60
        assert 0 < job.lease_remaining_ms <= 60_000
        longer = await client.renew("a", 600)
        assert longer.lease_s == 600
        assert 60_000 < longer.lease_remaining_ms <= 600_000
        assert (await client.renew("a")).lease_s == 600


async def test_job_whose_lease_runs_out_is_released_and_says_so(config: ControllerConfig) -> None:
    async with controller(config) as client:
        job = await client.register(job_spec("a", rings=RING, lease_s=1))
        kinds = []
        async for event in client.watch():
            kinds.append(event.kind)
            if event.kind == jobs_pb2.JOB_EVENT_KIND_EXPIRED:
                assert (event.job.id, event.job.generation) == (job.id, job.generation)
                break
        assert kinds[0] == jobs_pb2.JOB_EVENT_KIND_SNAPSHOT
        assert await client.jobs() == []
        with refused(grpc.StatusCode.NOT_FOUND, "its lease ran out without being renewed"):
            await client.renew("a")
        # Its rules are free for others at once, its Job_ID is not.
        assert (await client.register(job_spec("a", rings=RING))).id != job.id


async def test_renewed_job_outlives_its_first_lease(config: ControllerConfig) -> None:
    async with controller(config) as client:
        await client.register(job_spec("a", rings=RING, lease_s=1))
        for _ in range(6):
            await asyncio.sleep(0.25)
            await client.renew("a")
        assert [job.spec.name for job in await client.jobs()] == ["a"]


async def test_controller_that_starts_gives_every_lease_its_full_length(
    config: ControllerConfig,
) -> None:
    async with controller(config) as client:
        await client.register(job_spec("a", rings=RING, lease_s=1000))
        await client.renew("a", 2000)
    async with controller(config) as client:
        job = await client.get("a")
        assert job.lease_s == 2000
        assert job.lease_remaining_ms > 1_900_000


async def test_lease_of_jobs_that_ask_for_none_is_the_controllers(
    config: ControllerConfig,
) -> None:
    async with controller(with_jobs(config, lease=timedelta(minutes=5))) as client:
        assert (await client.register(job_spec("a", rings=RING))).lease_s == 300


@pytest.mark.parametrize("call", ["register", "renew"])
async def test_lease_longer_than_the_controller_gives_is_refused(
    config: ControllerConfig, call: str
) -> None:
    short = with_jobs(config, max_lease=timedelta(minutes=1))
    async with controller(short) as client:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "gives at most 60 s"):
            if call == "register":
                await client.register(job_spec("a", rings=RING, lease_s=61))
            else:
                await client.register(job_spec("a", rings=RING, lease_s=10))
                await client.renew("a", 61)


async def test_job_id_rests_before_it_is_handed_out_again(
    config: ControllerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringstep.controller.ledger.MAX_JOBS", 1)
    quick = with_jobs(config, quarantine=timedelta(seconds=1))
    async with controller(quick) as client:
        first = await client.register(job_spec("a", rings=RING))
        await client.release("a")
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "Job_ID"):
            await client.register(job_spec("b", rings=RING))
        await asyncio.sleep(1.1)
        second = await client.register(job_spec("b", rings=RING))
        assert second.id == first.id
        assert second.generation != first.generation


async def test_call_for_an_earlier_job_does_not_hit_a_later_one(
    config: ControllerConfig, eventually: Callable[..., Any]
) -> None:
    async with controller(config) as client:
        first = await client.register(job_spec("a", rings=RING))
        await client.release("a", generation=first.generation)
        second = await client.register(job_spec("a", rings=RING, k=0.5))
        stale = second.generation + 1
        for call in (client.release, client.renew):
            with refused(grpc.StatusCode.FAILED_PRECONDITION, "that job has ended"):
                await call("a", generation=stale)
        assert [job.id for job in await client.jobs()] == [second.id]


async def test_second_release_is_told_that_there_is_no_such_job(config: ControllerConfig) -> None:
    async with controller(config) as client:
        await client.register(job_spec("a", rings=RING))
        await client.release("a")
        with refused(grpc.StatusCode.NOT_FOUND, "no live job has name 'a'"):
            await client.release("a")
