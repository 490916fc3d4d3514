"""A controller in memory that keeps its promises, or breaks one of them when told to.

It shows that the clients of the fault run ask for the right things, and that their record convicts
a controller that forgets. It programs no switches.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from ringstep.controller.v1 import errors_pb2, jobs_pb2, jobs_pb2_grpc

BUGS = (
    "id_twice", "forgets_a_job", "release_undone", "generation_kept", "request_id_ignored",
    "lease_ends_early", "lease_never_ends", "update_lost",
)  # fmt: skip
Context = grpc.aio.ServicerContext[Any, Any]


class ModelJobs(jobs_pb2_grpc.JobsServicer):
    """``bug``: one of :data:`BUGS`. ``loses``: this share of answers is lost after the fact.

    ``leads`` False: refuses orders as a candidate does.
    """

    def __init__(self, bug: str = "", loses: float = 0.0, ids: int = 40) -> None:
        self.bug = bug
        self.loses = loses
        self.leads = True
        self._random = random.Random(1)
        self._free = list(range(1, ids + 1))
        self._generation: dict[int, int] = {}
        self._jobs: dict[str, jobs_pb2.Job] = {}
        self._ends: dict[str, float] = {}
        self._requests: dict[str, jobs_pb2.Job] = {}
        self._watchers: set[asyncio.Queue[jobs_pb2.JobEvent]] = set()
        self.count = 0

    def _tell(self, kind: jobs_pb2.JobEventKind, job: jobs_pb2.Job) -> None:
        for queue in self._watchers:
            queue.put_nowait(jobs_pb2.JobEvent(kind=kind, job=job))

    async def _may_lose(self, context: Context) -> None:
        if self._random.random() < self.loses:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost on the way")

    async def _order(self, context: Context) -> None:
        if not self.leads:
            problem = errors_pb2.Problem(reason="NOT_LEADER", text="another one leads")
            context.set_trailing_metadata((("ringstep-problem-bin", problem.SerializeToString()),))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "does not lead")
        for name, end in list(self._ends.items()):
            early = 1.5 if self.bug == "lease_ends_early" else 0.0
            if time.monotonic() > end - early and self.bug != "lease_never_ends":
                self._end(self._jobs[name], jobs_pb2.JOB_EVENT_KIND_EXPIRED)

    def _end(self, job: jobs_pb2.Job, kind: jobs_pb2.JobEventKind) -> None:
        self._ends.pop(job.spec.name, None)
        del self._jobs[job.spec.name]
        # First released, first used again: soon, so that the run sees it.
        self._free.append(job.id)
        self._tell(kind, job)

    async def _find(self, ref: jobs_pb2.JobRef, context: Context) -> jobs_pb2.Job:
        await self._order(context)
        by_id = {job.id: job for job in self._jobs.values()}
        job = self._jobs.get(ref.name) if ref.WhichOneof("by") == "name" else by_id.get(ref.id)
        if job is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such job")
        assert job is not None
        if ref.generation not in (0, job.generation):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another generation")
        return job

    async def Register(self, request: jobs_pb2.RegisterRequest, context: Context) -> Any:
        await self._order(context)
        known = self._requests.get(request.request_id)
        if known is not None and self.bug != "request_id_ignored":
            await self._may_lose(context)
            return jobs_pb2.RegisterResponse(job=known)
        if not self._free:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no Job_ID is free")
        self.count += 1
        job_id = self._free[0]
        if self.bug != "id_twice" or self.count % 5:
            del self._free[0]
        if self.bug != "generation_kept" or job_id not in self._generation:
            self._generation[job_id] = self._generation.get(job_id, 0) % 255 + 1
        job = jobs_pb2.Job(
            id=job_id, generation=self._generation[job_id], spec=request.spec,
            request_id=request.request_id, lease_s=request.spec.lease_s,
        )  # fmt: skip
        self._requests[request.request_id] = job
        if self.bug != "forgets_a_job" or self.count % 5:
            self._jobs[job.spec.name] = job
            self._tell(jobs_pb2.JOB_EVENT_KIND_REGISTERED, job)
            if job.lease_s:
                self._ends[job.spec.name] = time.monotonic() + job.lease_s
        await self._may_lose(context)
        return jobs_pb2.RegisterResponse(job=job)

    async def Release(self, request: jobs_pb2.ReleaseRequest, context: Context) -> Any:
        job = await self._find(request.job, context)
        if self.bug != "release_undone" or job.id % 5:
            self._end(job, jobs_pb2.JOB_EVENT_KIND_RELEASED)
        await self._may_lose(context)
        return jobs_pb2.ReleaseResponse(job=job)

    async def Renew(self, request: jobs_pb2.RenewRequest, context: Context) -> Any:
        job = await self._find(request.job, context)
        self._ends[job.spec.name] = time.monotonic() + job.lease_s
        await self._may_lose(context)
        return jobs_pb2.RenewResponse(job=job)

    async def UpdateParameters(
        self, request: jobs_pb2.UpdateParametersRequest, context: Context
    ) -> Any:
        job = await self._find(request.job, context)
        if self.bug != "update_lost":
            job.parameters.k = request.changes.k
            self._tell(jobs_pb2.JOB_EVENT_KIND_UPDATED, job)
        await self._may_lose(context)
        return jobs_pb2.UpdateParametersResponse(job=job)

    async def Get(self, request: jobs_pb2.GetRequest, context: Context) -> Any:
        return jobs_pb2.GetResponse(job=await self._find(request.job, context))

    async def State(self, request: jobs_pb2.StateRequest, context: Context) -> Any:
        return jobs_pb2.StateResponse(job=await self._find(request.job, context))

    async def List(self, request: jobs_pb2.ListRequest, context: Context) -> Any:
        await self._order(context)
        jobs = sorted(self._jobs.values(), key=lambda job: job.id)
        return jobs_pb2.ListResponse(jobs=jobs)

    async def Watch(
        self, request: jobs_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[jobs_pb2.JobEvent]:
        queue: asyncio.Queue[jobs_pb2.JobEvent] = asyncio.Queue()
        for job in self._jobs.values():
            queue.put_nowait(jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_SNAPSHOT, job=job))
        queue.put_nowait(jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_SYNCED))
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)


async def serve_model(model: ModelJobs) -> tuple[grpc.aio.Server, str]:
    """Serve a model on loopback; return the server and its address."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    jobs_pb2_grpc.add_JobsServicer_to_server(model, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"
