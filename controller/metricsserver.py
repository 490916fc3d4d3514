"""The HTTP server that Prometheus and probes ask: ``/metrics`` and ``/healthz``."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

from ringstep.controller.metrics import Metrics

LOGGER = logging.getLogger(__name__)
_REQUEST_S: Final = 5.0
_MAX_HEAD: Final = 16 << 10


class MetricsListenError(Exception):
    """The address for metrics cannot be listened on."""


@asynccontextmanager
async def serving_metrics(
    metrics: Metrics,
    listen: str,
    health: Callable[[], str] = lambda: "",
    state: Callable[[], Mapping[str, object]] = dict,
) -> AsyncIterator[str]:
    """Serve inside the context; yields the ``HOST:PORT`` that is listened on (port 0: a free one).

    ``health`` says what is wrong with this controller, "" where nothing is: ``/healthz`` answers
    503 then. ``state``: further facts for ``/healthz``, such as whether it leads.

    Raises:
        MetricsListenError: the address is taken or not of this machine.
    """
    host, _, port = listen.rpartition(":")
    answers = _Answers(metrics, health, state)
    try:
        server = await asyncio.start_server(
            answers.connection, host.strip("[]"), int(port), limit=_MAX_HEAD
        )
    except OSError as error:
        raise MetricsListenError(
            f"metrics.listen: cannot listen on {listen} ({error.strerror}); stop what does, or "
            "give another HOST:PORT (port 0 takes a free one)"
        ) from None
    try:
        yield f"{host}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await answers.close()
        await server.wait_closed()


class _Answers:
    def __init__(
        self,
        metrics: Metrics,
        health: Callable[[], str],
        state: Callable[[], Mapping[str, object]],
    ) -> None:
        self._metrics = metrics
        self._health = health
        self._state = state
        self._open: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Cut what is still connected."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head.decode("latin-1")))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # Whoever asked is gone, or speaks no HTTP.
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, head: str) -> bytes:
        line, *fields = head.split("\r\n")
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"GET or HEAD\n", "text/plain", method)
        if path == "/metrics":
            headers = {key.lower(): value.strip() for key, _, value in
                       (each.partition(":") for each in fields)}  # fmt: skip
            self._metrics.take_snapshot()
            # Writing many switches' lines takes a while; the loop has jobs to answer.
            body, kind = await asyncio.to_thread(self._metrics.render, headers.get("accept", ""))
            return _response(HTTPStatus.OK, body, kind, method)
        if path == "/healthz":
            problem = self._health()
            status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
            data = {"status": problem or "ok", **self._state()}
            return _response(status, (json.dumps(data) + "\n").encode(), "application/json", method)
        return _response(HTTPStatus.NOT_FOUND, b"/metrics or /healthz\n", "text/plain", method)


def _response(status: HTTPStatus, body: bytes, kind: str, method: str) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (b"" if method == "HEAD" else body)
