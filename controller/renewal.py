"""Renewing a lease again and again, until the job is gone: what ``job renew --every`` does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from ringstep.controller.client import ControllerClient, ControllerError, Ref
from ringstep.controller.v1 import jobs_pb2

_RETRY_S = 5.0
_GONE = frozenset({grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION})
_PASSING = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


async def keep_renewing(
    client: ControllerClient,
    ref: Ref,
    lease_s: int,
    every_s: float,
    *,
    generation: int,
    stop: asyncio.Event,
    renewed: Callable[[jobs_pb2.Job], None],
    missed: Callable[[str], None],
) -> bool:
    """Renew every ``every_s`` seconds until ``stop``; returns False where the job is gone.

    The generation of the first renewal is held on to, so that a later job of the same name is not
    kept alive. A controller that does not answer is asked again sooner: leases outlive that.

    Raises:
        ControllerError: the first renewal was refused, or a later one for good.
    """
    first = True
    while not stop.is_set():
        pause_s = every_s
        try:
            job = await client.renew(ref, lease_s, generation=generation)
            first, generation = False, job.generation
            renewed(job)
        except ControllerError as error:
            if not first and error.code in _GONE:
                missed(error.text)
                return False
            if error.code not in _PASSING:
                raise
            missed(error.text)
            pause_s = min(every_s, _RETRY_S)
        try:
            async with asyncio.timeout(pause_s):
                await stop.wait()
        except TimeoutError:
            continue
    return True
