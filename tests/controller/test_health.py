"""Health and reflection of the controller's server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ringstep.controller.channels import open_channel
from ringstep.controller.health import SERVICES, HealthSwitch, add_health_and_reflection

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[HealthSwitch, grpc.aio.Channel]]:
    server = grpc.aio.server()
    switch = await add_health_and_reflection(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield switch, channel
    finally:
        await server.stop(None)


async def status(channel: grpc.aio.Channel, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(reply.status)


async def test_services_serve_only_while_the_controller_leads() -> None:
    async with serving() as (switch, channel):
        assert await status(channel, "") == SERVING
        assert {await status(channel, each) for each in SERVICES} == {NOT_SERVING}
        await switch.set(True)
        assert switch.serving
        assert {await status(channel, each) for each in SERVICES} == {SERVING}
        await switch.set(False)
        assert {await status(channel, each) for each in SERVICES} == {NOT_SERVING}
        assert await status(channel, "") == SERVING


async def test_watchers_are_told_when_leadership_comes_and_the_server_stops() -> None:
    async with serving() as (switch, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICES[0]))
        assert (await watch.read()).status == NOT_SERVING
        await switch.set(True)
        assert (await watch.read()).status == SERVING
        await switch.shut_down()
        assert (await watch.read()).status == NOT_SERVING
        assert await status(channel, "") == NOT_SERVING


async def test_a_watcher_that_leaves_takes_nothing_from_the_others() -> None:
    async with serving() as (switch, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICES[1])
        first, second = stub.Watch(request), stub.Watch(request)
        assert (await first.read()).status == (await second.read()).status == NOT_SERVING
        first.cancel()
        await asyncio.sleep(0.1)
        await switch.set(True)
        assert (await second.read()).status == SERVING


async def test_unknown_services_are_not_found() -> None:
    async with serving() as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await status(channel, "ringstep.v1.Nothing")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_the_services_and_describes_them() -> None:
    async with serving() as (_, channel):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        reply = await call.read()
        names = {each.name for each in reply.list_services_response.service}
        assert names >= {*SERVICES, "grpc.health.v1.Health"}
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICES[0]))
        files = (await call.read()).file_descriptor_response.file_descriptor_proto
        assert any(b"RegisterRequest" in file for file in files)
        call.cancel()
