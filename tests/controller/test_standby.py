"""A controller that stands by: what it answers, and with what it takes over."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import grpc
import pytest

from ringstep.controller import serve
from ringstep.controller.client import ControllerClient, ControllerError, job_spec
from ringstep.controller.config import ControllerConfig
from ringstep.controller.fleet import Fleet
from ringstep.controller.leader import Term, leading
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.problems import NotLeaderError, problem_of
from ringstep.controller.serve import running
from ringstep.controller.stage import Stage
from ringstep.controller.store import Store, StoreError
from ringstep.controller.v1 import jobs_pb2, jobs_pb2_grpc
from ringstep.fabric.model import Topology

RING = [["h1", "h2"]]


async def until_it_answers(client: ControllerClient) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await client.jobs()
            except ControllerError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_second_controller_leads_clients_to_the_first(config: ControllerConfig) -> None:
    async with running(config) as first, running(config) as second:
        async with ControllerClient(first) as client:
            job = await client.register(job_spec("a", rings=RING))
        async with ControllerClient(second, timeout_s=5) as other:
            assert (await other.get("a")).id == job.id
            assert first in other.targets


async def test_controller_that_takes_over_reads_the_topology_again(
    config: ControllerConfig, fabric_text: str
) -> None:
    first = running(config)
    address = await first.__aenter__()
    async with ControllerClient(address) as client:
        await client.register(job_spec("a", rings=RING))
    async with running(config) as second, ControllerClient(second) as client:
        config.topology.write_text(fabric_text.replace('"h1"', '"h9"'))
        await first.__aexit__(None, None, None)
        await until_it_answers(client)
        assert "host 'h1' is not in the topology" in (await client.get("a")).problem


async def test_topology_that_is_broken_by_then_does_not_keep_anybody_from_leading(
    config: ControllerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    first = running(config)
    address = await first.__aenter__()
    async with ControllerClient(address) as client:
        await client.register(job_spec("a", rings=RING))
    async with running(config) as second, ControllerClient(second) as client:
        config.topology.write_text("[[switch")
        await first.__aexit__(None, None, None)
        await until_it_answers(client)
        assert (await client.get("a")).problem == ""
    assert "the old one stays in force" in caplog.text


async def test_controller_that_was_stopped_does_not_answer_before_it_has_looked(
    topology: Topology, store: Store, pipeline: Pipeline
) -> None:
    stage, term = Stage(), Term(1, "127.0.0.1:1")
    stage.enter(Fleet(topology, store, pipeline), term)
    assert stage.leads
    term.confirmed_at = time.monotonic() - 60
    assert not stage.leads
    with pytest.raises(NotLeaderError):
        _ = stage.fleet
    term.confirmed_at = time.monotonic()
    assert stage.leads
    term.lost.set()
    assert not stage.leads


async def test_refusal_that_rests_on_what_is_known_needs_a_look(
    config: ControllerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one leads, and this one has not noticed: the job may well be there by now."""
    # No look by itself while this runs.
    monkeypatch.setattr(serve, "leading", partial(leading, poll_s=3600))
    request = jobs_pb2.UpdateParametersRequest(
        job=jobs_pb2.JobRef(name="b"), changes=jobs_pb2.MarkerOverrides(k=0.01)
    )
    store = Store(config.store)
    async with running(config) as address, grpc.aio.insecure_channel(address) as channel:
        jobs = jobs_pb2_grpc.JobsStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="no live job has name 'b'"):
            await jobs.UpdateParameters(request, timeout=10)
        store.take_over("two:1")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await jobs.UpdateParameters(request, timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        problem = problem_of(caught.value)
        assert problem is not None
        assert problem.reason == "NOT_LEADER"
    store.close()


async def test_store_that_fails_while_it_is_read_is_tried_again(
    config: ControllerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails in the middle of a take-over: the controller was up before, and stays."""
    first = running(config)
    await first.__aenter__()
    failures = []
    real = Store.load

    def flaky(store: Store) -> object:
        if len(failures) < 2:
            failures.append(1)
            raise StoreError("broken while it was read")
        return real(store)

    monkeypatch.setattr(serve, "_RETRY_S", 0.05)
    async with running(config) as second, ControllerClient(second) as client:
        monkeypatch.setattr(Store, "load", flaky)
        await first.__aexit__(None, None, None)
        await until_it_answers(client)
    assert len(failures) == 2


async def test_store_that_cannot_be_read_at_the_very_start_is_the_end(
    config: ControllerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_store: Store) -> object:
        raise StoreError("broken while it was read")

    monkeypatch.setattr(Store, "load", broken)
    with pytest.raises(StoreError, match="broken while it was read"):
        async with running(config):
            pass
