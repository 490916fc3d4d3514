"""Several controllers on one store, as processes: one leads, and its end costs nobody a job."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from faultrig import database as database_rig
from faultrig.clients import Endpoint
from faultrig.fabric import LeafSpine
from faultrig.judging import judge_switches
from faultrig.rig import Rig, RigPlan, in_sync

from ringstep.controller.client import ControllerClient, ControllerError, job_spec
from ringstep.controller.v1 import jobs_pb2, jobs_pb2_grpc

pytestmark = pytest.mark.slow

FABRIC = LeafSpine(tors=2, spines=1, hosts=4)
PATIENCE_S = 90.0
"""Until a test that waits for something gives up; not what anything should take."""
LEASE_S = 3600


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"never: {what}")


@asynccontextmanager
async def two_controllers(folder: Path) -> AsyncIterator[tuple[Rig, Endpoint, int]]:
    """Yield two controllers on PostgreSQL with switches, and the index of the one that leads."""
    if reason := database_rig.why_not():
        pytest.skip(reason)
    plan = RigPlan(fabric=FABRIC, forked=True, store="postgresql", candidates=2, fsync=False)
    async with Rig(plan, folder) as rig:
        endpoint = rig.endpoint(timeout_s=10)
        try:
            first = await leader(endpoint)
            await until(lambda: synced(endpoint, first), "switches are in sync")
            yield rig, endpoint, first
        finally:
            await endpoint.close()


async def leader(endpoint: Endpoint, but: int | None = None) -> int:
    """Wait until a controller leads, another than ``but``, and return its index."""
    found: list[int] = []

    async def one_leads() -> bool:
        index = await endpoint.leader(timeout_s=2)
        if index is not None and index != but:
            found.append(index)
        return bool(found)

    await until(one_leads, "a controller leads")
    return found[0]


async def synced(endpoint: Endpoint, index: int) -> bool:
    return not await in_sync(endpoint, FABRIC.switches, index)


def client_of(rig: Rig, first: int) -> ControllerClient:
    """Return a client that knows both controllers, the one that leads first."""
    order = [first, 1 - first]
    return ControllerClient([rig.controllers[index].address for index in order], timeout_s=60)


async def hold_what_they_should(rig: Rig, endpoint: Endpoint, index: int) -> bool:
    jobs = await endpoint.jobs(index)
    return jobs is not None and not judge_switches(FABRIC, jobs, await rig.read_all())


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_client_goes_on_with_the_other_controller(tmp_path: Path, end: str) -> None:
    async with two_controllers(tmp_path) as (rig, endpoint, first), client_of(rig, first) as client:
        leased = await client.register(
            job_spec("leased", rings=[["h1x1", "h2x1"]], lease_s=LEASE_S)
        )
        kept = await client.register(job_spec("kept", rings=[["h1x2", "h2x2"]]))
        gone = await client.register(job_spec("gone", rings=[["h1x3", "h2x3"]]))
        await client.release("gone")
        victim = rig.controllers[first]
        if end == "killed":
            await asyncio.to_thread(victim.kill)
        else:
            assert await asyncio.to_thread(victim.terminate) == 0
        second = 1 - first
        # The same client, told of nothing.
        new = await client.register(job_spec("new", rings=[["h1x4", "h2x4"]]))
        assert await leader(endpoint) == second
        jobs = {job.spec.name: job for job in await client.jobs()}
        assert jobs.keys() == {"leased", "kept", "new"}
        for before in (leased, kept):
            after = jobs[before.spec.name]
            assert (after.id, after.generation) == (before.id, before.generation)
        assert new.id not in {leased.id, kept.id, gone.id}
        renewed = await client.renew("leased", generation=leased.generation)
        assert renewed.lease_s == LEASE_S
        await until(lambda: synced(endpoint, second), "switches follow the new leader")
        await until(lambda: hold_what_they_should(rig, endpoint, second), "switches are right")
        # The one that comes back stands by, and says for whom.
        if end == "killed":
            victim.start()
            await asyncio.to_thread(rig.wait_up, victim)

            async def stands_by() -> bool:
                answer = await endpoint.call("Jobs", "List", jobs_pb2.ListRequest(), index=first)
                return answer.reason == "NOT_LEADER" and answer.leader == client.target

            await until(stands_by, "the one that comes back names the one that leads")
            assert client.target == rig.controllers[second].address


async def test_lease_runs_in_full_from_the_change_of_leader(tmp_path: Path) -> None:
    async with two_controllers(tmp_path) as (rig, endpoint, first), client_of(rig, first) as client:
        job = await client.register(job_spec("a", rings=[["h1x1", "h2x1"]], lease_s=LEASE_S))
        await asyncio.sleep(1)
        before = (await client.get("a")).lease_remaining_ms
        await asyncio.to_thread(rig.controllers[first].kill)
        await leader(endpoint, but=first)
        after = await client.get("a")
        assert (after.id, after.lease_s) == (job.id, LEASE_S)
        assert after.lease_remaining_ms > before


async def test_stream_of_a_leader_that_is_deposed_ends_and_names_no_crash(tmp_path: Path) -> None:
    async with two_controllers(tmp_path) as (rig, endpoint, first):
        call = jobs_pb2_grpc.JobsStub(endpoint.channel(first)).Watch(jobs_pb2.WatchRequest())
        assert (await call.read()).kind == jobs_pb2.JOB_EVENT_KIND_SYNCED
        rig.controllers[first].signal(signal.SIGSTOP)
        assert rig.database is not None
        await asyncio.to_thread(rig.database.drop_connections, rig.controllers[first].pid)
        await leader(endpoint, but=first)
        rig.controllers[first].signal(signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_S):
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert "leads no more" in await call.details()
        # It is well, and stands by.
        answer = await endpoint.call("Jobs", "List", jobs_pb2.ListRequest(), index=first)
        assert answer.reason == "NOT_LEADER"


async def test_controller_outlives_a_database_that_is_away(tmp_path: Path) -> None:
    if reason := database_rig.why_not():
        pytest.skip(reason)
    plan = RigPlan(fabric=FABRIC, forked=True, store="postgresql", candidates=2, fsync=False)
    async with Rig(plan, tmp_path) as rig, client_of(rig, 0) as client:
        endpoint = rig.endpoint(timeout_s=10)
        try:
            job = await client.register(job_spec("a", rings=[["h1x1", "h2x1"]]))
            assert rig.database is not None
            await asyncio.to_thread(rig.database.kill)

            async def refused() -> bool:
                return await endpoint.leader(timeout_s=2) is None

            await until(refused, "nobody leads without a database")
            await asyncio.sleep(2)
            assert all(one.alive for one in rig.controllers)
            await asyncio.to_thread(rig.database.start)
            await leader(endpoint)
            assert [one.id for one in await client.jobs()] == [job.id]
        finally:
            await endpoint.close()


async def test_controller_ends_when_told_although_its_database_says_nothing(
    tmp_path: Path,
) -> None:
    if reason := database_rig.why_not():
        pytest.skip(reason)
    plan = RigPlan(fabric=FABRIC, forked=True, store="postgresql", candidates=2, fsync=False)
    async with Rig(plan, tmp_path) as rig, client_of(rig, 0) as client:
        await client.register(job_spec("a", rings=[["h1x1", "h2x1"]]))
        assert rig.database is not None
        with rig.database.hanging():
            # One that leads, with a change under way, and one that waits.
            under_way = asyncio.create_task(
                client.register(job_spec("b", rings=[["h1x2", "h2x2"]]), "")
            )
            await asyncio.sleep(1)
            ended = (asyncio.to_thread(one.terminate, PATIENCE_S) for one in rig.controllers)
            assert await asyncio.gather(*ended) == [0, 0]
        with pytest.raises(ControllerError):
            await under_way
