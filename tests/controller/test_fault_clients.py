"""Clients of the fault run against a model controller: it passes, each planted bug is seen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from faultrig.clients import Behaviour, Client, Endpoint, Watcher
from faultrig.fabric import LeafSpine
from faultrig.model import BUGS, ModelJobs, serve_model
from faultrig.record import Record, judge_record, reused

from ringstep.controller.v1 import jobs_pb2

pytestmark = pytest.mark.slow

FABRIC = LeafSpine(tors=2, spines=1, hosts=8)
HASTY = Behaviour(
    live_jobs=8, think_s=0.02, leased=0.5, lease_s=2, forgotten=0.5, hang_up=0.05, repeat=0.3
)
MANY_CALLS = 400
"""Among so many there are some of every kind, and Job_IDs come round again."""
Eventually = Callable[[Callable[[], object]], Awaitable[None]]
Convicted = dict[str, tuple[str, Record]]


@asynccontextmanager
async def serving(*models: ModelJobs, wander: float = 0.0) -> AsyncIterator[Endpoint]:
    servers, addresses = [], []
    for model in models:
        server, address = await serve_model(model)
        servers.append(server)
        addresses.append(address)
    endpoint = Endpoint(addresses, wander=wander)
    try:
        yield endpoint
    finally:
        await endpoint.close()
        for server in servers:
            await server.stop(None)


async def convict(
    *models: ModelJobs, wander: float = 0.0, lapse_s: float = 0.0
) -> tuple[str, Record]:
    """Let clients work with a model, and return what the judge says, with the record."""
    record = Record()
    async with serving(*models, wander=wander) as endpoint:
        clients = [Client(n, 2, endpoint, FABRIC, record, HASTY, seed=3) for n in range(2)]
        # Leases of 2 s run out meanwhile, and are renewed.
        least = time.monotonic() + 4
        async with asyncio.timeout(120):
            while time.monotonic() < least or sum(record.calls.values()) < MANY_CALLS:
                until = time.monotonic() + 1
                await asyncio.gather(*(client.run(until, until + 20) for client in clients))
        await asyncio.sleep(lapse_s)
        jobs = await endpoint.jobs(0)
    assert jobs is not None
    return "\n".join(judge_record(record, jobs, time.monotonic(), leading_since=0.0)), record


async def _all_of() -> dict[str, tuple[str, Record]]:
    waiting = ModelJobs()
    waiting.leads = False
    cases = {
        "": convict(ModelJobs()),
        "loses answers": convict(ModelJobs(loses=0.3)),
        "does not lead": convict(ModelJobs(), waiting, wander=0.3),
        # Leases of 2 s and the slack of the judge.
        **{
            bug: convict(ModelJobs(bug), lapse_s=5.5 if bug == "lease_never_ends" else 0.0)
            for bug in BUGS
        },
    }
    return dict(zip(cases, await asyncio.gather(*cases.values()), strict=True))


@pytest.fixture(scope="module")
def convicted() -> Convicted:
    """What became of each model, by its bug; side by side, since they wait most of the time."""
    return asyncio.run(_all_of())


def test_controller_that_keeps_its_word_is_not_convicted(convicted: Convicted) -> None:
    wrong, record = convicted[""]
    assert wrong == ""
    assert reused(record) > 0
    assert any(facts.lease_s for facts in record.jobs.values())
    assert record.calls["Renew OK"] > 0


def test_lost_answers_convict_nobody(convicted: Convicted) -> None:
    wrong, record = convicted["loses answers"]
    assert wrong == ""
    assert record.calls["Register UNAVAILABLE"] > 0
    assert any(facts.is_acknowledged and facts.attempts > 1 for facts in record.jobs.values())


async def test_candidate_that_refuses_orders_is_passed_over(convicted: Convicted) -> None:
    wrong, record = convicted["does not lead"]
    assert wrong == ""
    assert record.calls["Register FAILED_PRECONDITION"] > 0
    assert not any(facts.refused for facts in record.jobs.values())
    waiting = ModelJobs()
    waiting.leads = False
    async with serving(waiting, ModelJobs()) as endpoint:
        assert await endpoint.leader() == 1


@pytest.mark.parametrize(
    ("bug", "text"),
    [
        ("id_twice", "two live jobs with one id"),
        ("forgets_a_job", "lost: "),
        ("release_undone", "was released, and is in List"),
        ("generation_kept", "generation did not change"),
        ("request_id_ignored", "repeated: "),
        ("lease_ends_early", "acknowledged and is not in List"),
        ("lease_never_ends", "is over, and it is in List"),
        ("update_lost", "k was set to"),
    ],
)
def test_planted_bug_convicts(convicted: Convicted, bug: str, text: str) -> None:
    wrong, _ = convicted[bug]
    assert text in wrong


def test_every_bug_of_the_model_is_tried() -> None:
    (mark,) = [one for one in test_planted_bug_convicts.pytestmark if one.name == "parametrize"]
    assert {case[0] for case in mark.args[1]} == set(BUGS)


async def test_watcher_at_rest_knows_what_list_says(eventually: Eventually) -> None:
    model = ModelJobs()
    async with serving(model) as endpoint:

        async def register(name: str) -> None:
            request = jobs_pb2.RegisterRequest(request_id=name, spec=jobs_pb2.JobSpec(name=name))
            assert (await endpoint.call("Jobs", "Register", request)).ok

        await register("before")
        watcher = Watcher(endpoint)
        task = asyncio.create_task(watcher.run())
        try:
            await eventually(lambda: watcher.synced)
            assert watcher.view == {"before": (1, 1)}
            await register("after")
            release = jobs_pb2.ReleaseRequest(job=jobs_pb2.JobRef(name="before"))
            assert (await endpoint.call("Jobs", "Release", release)).ok
            await eventually(lambda: watcher.view == {"after": (2, 1)})
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
