"""The job at the controller, for as long as the command runs."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final

from ringstep.cli.launcher.plan import Registration
from ringstep.cli.launcher.say import Say
from ringstep.controller.client import ControllerClient, ControllerError
from ringstep.controller.jobenv import job_environment
from ringstep.controller.v1 import jobs_pb2

_CALL_S: Final = 5.0
"""A controller that takes longer is one that does not answer: training is waiting."""
_LOOK_S: Final = 0.25
_OTHERS_S: Final = 10.0
"""For the node that registers, which may start later than this one."""
_RETRY_S: Final = (1.0, 10.0)
"""Pause after the first failure, and the longest one."""
_LEAST_RENEWAL_S: Final = 0.3
_AGAIN_S: Final = 2.0
"""After a renewal that failed: leases outlive a controller that restarts."""
_RELEASE_S: Final = 2.0
_USED: Final = "REQUEST_ID_REUSED"
_PASSING: Final = frozenset({
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "ALREADY_EXISTS",
    "FAILED_PRECONDITION",
    "ABORTED",
})  # fmt: skip
"""What may be otherwise later; anything else is for good."""
_GONE: Final = frozenset({"NOT_FOUND", "FAILED_PRECONDITION"})


class JobKeeper:
    """Registers a job and renews its lease, or asks for the one that another launcher registers.

    Raises:
        ValueError: the credentials do not go with an address.
    """

    def __init__(self, registration: Registration, say: Say) -> None:
        self._wanted = registration
        self._say = say
        self._client = ControllerClient(
            registration.connection.targets,
            credentials=registration.connection.credentials,
            timeout_s=_CALL_S,
        )
        self._job: jobs_pb2.Job | None = None
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Future[jobs_pb2.Job] | None = None
        self._first: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._request = registration.request_id

    @property
    def job(self) -> jobs_pb2.Job | None:
        """The live job; None where there is none."""
        return self._job

    async def begin(self) -> str:
        """Start, and return once there is a job or it is known that there is none yet.

        Returns:
            "", or why there is no job; it is then tried again in the background where that helps.
        """
        work = self._ask() if self._wanted.spec is None else self._keep(self._wanted.spec)
        self._task = task = asyncio.create_task(work)
        either: set[asyncio.Future[Any]] = {task, self._first}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._first.done():
            # Training is not held up by what nobody thought of.
            self._tell(f"{task.exception()!r}")
        return self._first.result()

    def environment(self) -> dict[str, str]:
        """Return the job's variables for the command; none where there is no job."""
        if self._job is None:
            return {}
        return job_environment(self._job, self._client.targets)

    async def end(self) -> None:
        """Release the job, where it is ours, and stop."""
        try:
            if self._task is not None:
                await self._stop(self._task)
            if self._job is not None and self._wanted.spec is not None:
                await self._release(self._job)
        finally:
            await self._client.__aexit__(None, None, None)

    async def _stop(self, task: asyncio.Task[None]) -> None:
        if self._asking is not None:
            # Cancelled halfway, the job might be registered and nobody would know.
            asking = self._asking
            await asyncio.wait({asking}, timeout=_CALL_S / 2)
            if asking.done() and not asking.cancelled() and asking.exception() is None:
                self._job = asking.result()
        task.cancel()
        await asyncio.wait({task})

    async def _release(self, job: jobs_pb2.Job) -> None:
        deadline = asyncio.get_running_loop().time() + _RELEASE_S
        while True:
            try:
                await self._client.release(job.id, generation=job.generation)
                return
            except ControllerError as error:
                if error.code.name in _GONE:
                    return
                late = asyncio.get_running_loop().time() >= deadline
                if error.code.name != "UNAVAILABLE" or late:
                    self._say.warn(
                        f"controller: job {job.spec.name} ({job.id}) is not released "
                        f"({error.text}); its lease ends it within {job.lease_s} s"
                    )
                    return
            # A connection to a controller that was started anew comes back after a while.
            await asyncio.sleep(_LOOK_S)

    def _tell(self, text: str) -> None:
        if not self._first.done():
            self._first.set_result(text)

    # -- a job of another launcher's, or of a scheduler's hook -----------------------------------

    async def _ask(self) -> None:
        deadline = asyncio.get_running_loop().time() + _OTHERS_S
        while True:
            try:
                self._job = await self._client.get(self._wanted.name)
                self._tell("")
                return
            except ControllerError as error:
                late = asyncio.get_running_loop().time() >= deadline
                if error.code.name != "NOT_FOUND":
                    self._tell(error.text)
                    return
                if not self._wanted.others_register:
                    self._tell(f"{error.text}, and without --hosts or --ring it is not registered")
                    return
                if late:
                    self._tell(f"{error.text}; node 0 has not registered it")
                    return
            await asyncio.sleep(_LOOK_S)

    # -- a job of our own ------------------------------------------------------------------------

    async def _keep(self, spec: jobs_pb2.JobSpec) -> None:
        pause_s, longest_s = _RETRY_S
        while True:
            try:
                self._job = await self._registered(spec)
            except ControllerError as error:
                self._tell(error.text)
                if error.code.name not in _PASSING:
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)
                continue
            pause_s = _RETRY_S[0]
            late = self._first.done()
            self._tell("")
            if late:
                self._say.note(
                    f"job {spec.name} is registered now, as Job_ID {self._job.id}; processes that "
                    "run already do not know that number"
                )
            await self._renew(self._job)
            self._job = None

    async def _registered(self, spec: jobs_pb2.JobSpec) -> jobs_pb2.Job:
        try:
            return await self._register(spec)
        except ControllerError as error:
            if error.reason != _USED:
                raise
        # The id was that of a job that is gone, or of this one with other options; which of the
        # two, the name tells.
        self._request = f"{self._wanted.request_id}-{secrets.token_hex(4)}"
        return await self._register(spec)

    async def _register(self, spec: jobs_pb2.JobSpec) -> jobs_pb2.Job:
        self._asking = asyncio.ensure_future(self._client.register(spec, self._request))
        try:
            return await asyncio.shield(self._asking)
        finally:
            self._asking = None

    async def _renew(self, job: jobs_pb2.Job) -> None:
        """Renew until the job is gone."""
        every_s = max(job.lease_s / 3, _LEAST_RENEWAL_S)
        pause_s = every_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = every_s
            try:
                await self._client.renew(job.id, generation=job.generation)
            except ControllerError as error:
                if error.code.name in _GONE:
                    self._say.warn(
                        f"controller: job {job.spec.name} ({job.id}) is gone: {error.text}; it is "
                        "registered anew"
                    )
                    return
                self._say.warn(f"controller: the lease is not renewed: {error.text}; tried again")
                pause_s = min(every_s, _AGAIN_S)
