"""Health (grpc.health.v1) and reflection of the controller's server.

The health service of grpcio-health-checking forgets all who watch a service when one of them
leaves; this one does not.
"""

# ruff: noqa: N802

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ringstep.controller.v1 import jobs_pb2, switches_pb2

SERVICES: Final = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in ((jobs_pb2, "Jobs"), (switches_pb2, "Switches"))
)
"""Services that only the controller that leads answers for."""
_Response = health_pb2.HealthCheckResponse
_SERVING: Final = _Response.SERVING
_NOT_SERVING: Final = _Response.NOT_SERVING


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    def __init__(self) -> None:
        self.statuses = {"": _SERVING, **dict.fromkeys(SERVICES, _NOT_SERVING)}
        self.changed = asyncio.Condition()

    async def Check(self, request: Any, context: Any) -> Any:
        status = self.statuses.get(request.service)
        if status is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"no service {request.service!r} here; there are {', '.join(SERVICES)}",
            )
        return _Response(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        sent = None
        while True:
            async with self.changed:
                while (status := self._of(request.service)) == sent:
                    await self.changed.wait()
            sent = status
            yield _Response(status=status)

    def _of(self, service: str) -> Any:
        return self.statuses.get(service, _Response.SERVICE_UNKNOWN)

    async def set(self, services: tuple[str, ...], status: Any) -> None:
        async with self.changed:
            self.statuses.update(dict.fromkeys(services, status))
            self.changed.notify_all()


class HealthSwitch:
    """Says of the services whether this controller answers for them.

    The server as a whole (service "") is SERVING while it runs: a controller that stands by is
    healthy, and must not be restarted for it.
    """

    def __init__(self, servicer: _Health) -> None:
        self._servicer = servicer
        self._ended = False

    @property
    def serving(self) -> bool:
        """Whether the services are said to be SERVING."""
        return bool(self._servicer.statuses[SERVICES[0]] == _SERVING)

    async def set(self, serving: bool) -> None:
        """Say SERVING for the services, or NOT_SERVING; who watches is told."""
        if not self._ended:
            await self._servicer.set(SERVICES, _SERVING if serving else _NOT_SERVING)

    async def shut_down(self) -> None:
        """Say NOT_SERVING for everything, for good: the server is about to stop."""
        self._ended = True
        await self._servicer.set(("", *SERVICES), _NOT_SERVING)


async def add_health_and_reflection(server: grpc.aio.Server) -> HealthSwitch:
    """Add both to a server that has not started; its services are NOT_SERVING until told."""
    servicer = _Health()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection(
        (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    return HealthSwitch(servicer)
