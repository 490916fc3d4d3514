"""A controller on loopback and its client, for the tests of the API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import pytest

from ringstep.controller.client import ControllerClient, ControllerError
from ringstep.controller.config import ControllerConfig
from ringstep.controller.serve import running


@asynccontextmanager
async def controller(config: ControllerConfig, **options: Any) -> AsyncIterator[ControllerClient]:
    """Run a controller and yield a client of it."""
    async with running(config) as address, ControllerClient(address, **options) as client:
        yield client


@contextmanager
def refused(code: grpc.StatusCode, text: str, reason: str = "") -> Iterator[None]:
    """Expect a call to be refused with a status code, a text and a reason for programs."""
    with pytest.raises(ControllerError) as caught:
        yield
    assert (caught.value.code, caught.value.text) == (code, caught.value.text)
    assert text in caught.value.text
    if reason:
        assert caught.value.reason == reason
