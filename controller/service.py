"""The gRPC services ``ringstep.v1.Jobs`` and ``ringstep.v1.Switches``.

Method names and what they promise are those of the .proto files.
"""

# ruff: noqa: N802, D102

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format

from ringstep.controller.fleet import (
    Fleet,
    LiveJob,
    NoRuleTableError,
    RuleConflictError,
    SwitchAddressError,
    SwitchReading,
    SwitchView,
    UnknownSwitchError,
)
from ringstep.controller.jobs import (
    MAX_REQUEST_ID,
    JobSpec,
    SpecError,
    params_from_proto,
    params_to_proto,
    spec_from_proto,
)
from ringstep.controller.marking import decide
from ringstep.controller.programmer import Phase
from ringstep.controller.store import (
    ExhaustedError,
    NameTakenError,
    NoSuchJobError,
    RequestIdReusedError,
    StoredJob,
    StoreError,
)
from ringstep.controller.v1 import (
    jobs_pb2,
    jobs_pb2_grpc,
    switches_pb2,
    switches_pb2_grpc,
)
from ringstep.fabric.topology import parse_target
from ringstep.protocol.limits import MAX_JOBS

LOGGER = logging.getLogger(__name__)
_PAGE = 1000
_PHASES = {
    Phase.UNMANAGED: switches_pb2.SWITCH_PHASE_UNMANAGED,
    Phase.CONNECTING: switches_pb2.SWITCH_PHASE_CONNECTING,
    Phase.PUSHING_PIPELINE: switches_pb2.SWITCH_PHASE_PUSHING_PIPELINE,
    Phase.PROGRAMMING: switches_pb2.SWITCH_PHASE_PROGRAMMING,
    Phase.IN_SYNC: switches_pb2.SWITCH_PHASE_IN_SYNC,
    Phase.ERROR: switches_pb2.SWITCH_PHASE_ERROR,
}
_CODES: dict[type[Exception], grpc.StatusCode] = {
    SpecError: grpc.StatusCode.INVALID_ARGUMENT,
    SwitchAddressError: grpc.StatusCode.INVALID_ARGUMENT,
    NameTakenError: grpc.StatusCode.ALREADY_EXISTS,
    RequestIdReusedError: grpc.StatusCode.ALREADY_EXISTS,
    RuleConflictError: grpc.StatusCode.FAILED_PRECONDITION,
    NoRuleTableError: grpc.StatusCode.FAILED_PRECONDITION,
    NoSuchJobError: grpc.StatusCode.NOT_FOUND,
    UnknownSwitchError: grpc.StatusCode.NOT_FOUND,
    ExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StoreError: grpc.StatusCode.INTERNAL,
}
Context = grpc.aio.ServicerContext[Any, Any]


@asynccontextmanager
async def _answering(context: Context) -> AsyncIterator[None]:
    """Turn the exceptions of a call into the status codes that the .proto promises."""
    try:
        yield
    except tuple(_CODES) as error:
        code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
        await context.abort(code, str(error))


def spec_text(spec: jobs_pb2.JobSpec) -> str:
    """Return a job's spec as it is stored and compared: canonical JSON."""
    return json_format.MessageToJson(spec, indent=None, sort_keys=True)


def read_stored_spec(stored: StoredJob) -> JobSpec:
    """Return the checked spec of a stored job, with the marker parameters stored with it.

    A profile whose defaults changed since does not change a live job.
    """
    spec = spec_from_proto(json_format.Parse(stored.spec, jobs_pb2.JobSpec()))
    params = json_format.Parse(stored.params, jobs_pb2.MarkerParameters())
    scope, marker = params_from_proto(params, stored.generation)
    return replace(spec, scope=scope, params=marker)


class JobsService(jobs_pb2_grpc.JobsServicer):
    """``ringstep.v1.Jobs``; see the .proto for what every call promises."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def Register(
        self, request: jobs_pb2.RegisterRequest, context: Context
    ) -> jobs_pb2.RegisterResponse:
        async with _answering(context):
            if len(request.request_id) > MAX_REQUEST_ID:
                raise SpecError(
                    "request_id",
                    f"{len(request.request_id)} characters; use at most {MAX_REQUEST_ID}",
                )
            spec = spec_from_proto(request.spec)
            decision = decide(
                spec, request.spec.overrides, self._fleet.topology, self._fleet.neighbours(spec)
            )
            spec = replace(spec, params=decision.params)
            params = params_to_proto(spec.params, spec.scope)
            params.marking.CopyFrom(decision.to_proto())
            job = await self._fleet.register(
                spec,
                spec_text(request.spec),
                json_format.MessageToJson(params, indent=None, sort_keys=True),
                request.request_id,
            )
            return jobs_pb2.RegisterResponse(job=self._job(job))
        raise AssertionError("abort raises")

    async def Release(
        self, request: jobs_pb2.ReleaseRequest, context: Context
    ) -> jobs_pb2.ReleaseResponse:
        async with _answering(context):
            job = await self._fleet.release(_ref(request.job))
            return jobs_pb2.ReleaseResponse(job=self._job(job))
        raise AssertionError("abort raises")

    async def Renew(
        self, request: jobs_pb2.RenewRequest, context: Context
    ) -> jobs_pb2.RenewResponse:
        async with _answering(context):
            return jobs_pb2.RenewResponse(job=self._job(self._fleet.get(_ref(request.job))))
        raise AssertionError("abort raises")

    async def Get(self, request: jobs_pb2.GetRequest, context: Context) -> jobs_pb2.GetResponse:
        async with _answering(context):
            return jobs_pb2.GetResponse(job=self._job(self._fleet.get(_ref(request.job))))
        raise AssertionError("abort raises")

    async def List(self, request: jobs_pb2.ListRequest, context: Context) -> jobs_pb2.ListResponse:
        async with _answering(context):
            after = _page_start(request.page_token)
            size = min(request.page_size or _PAGE, _PAGE)
            jobs = self._fleet.jobs(after, size + 1)
            more = len(jobs) > size
            return jobs_pb2.ListResponse(
                jobs=[self._job(job) for job in jobs[:size]],
                next_page_token=str(jobs[size - 1].stored.job_id) if more else "",
            )
        raise AssertionError("abort raises")

    async def State(
        self, request: jobs_pb2.StateRequest, context: Context
    ) -> jobs_pb2.StateResponse:
        async with _answering(context):
            job = self._fleet.get(_ref(request.job))
            readings = await self._fleet.state(job)
            return jobs_pb2.StateResponse(
                job=self._job(job), switches=[_reading(reading) for reading in readings]
            )
        raise AssertionError("abort raises")

    def _job(self, job: LiveJob) -> jobs_pb2.Job:
        stored = job.stored
        return jobs_pb2.Job(
            id=stored.job_id,
            generation=stored.generation,
            spec=json_format.Parse(stored.spec, jobs_pb2.JobSpec()),
            parameters=json_format.Parse(stored.params, jobs_pb2.MarkerParameters()),
            programming=[self._programming(job, view) for view in self._fleet.programming(job)],
            created_unix_ms=stored.created_unix_ms,
            problem=job.problem,
            request_id=stored.request_id,
        )

    @staticmethod
    def _programming(job: LiveJob, view: SwitchView) -> jobs_pb2.SwitchProgramming:
        reason = job.cannot.get(view.name)
        return jobs_pb2.SwitchProgramming(
            switch=view.name,
            phase=_PHASES[view.status.phase],
            detail=view.status.detail if reason is None else reason,
            cannot=reason is not None,
        )


def _ref(ref: jobs_pb2.JobRef) -> str | int:
    match ref.WhichOneof("by"):
        case "name" if ref.name:
            return ref.name
        case "id" if 0 < ref.id <= MAX_JOBS:
            return ref.id
        case "id":
            raise SpecError("job.id", f"{ref.id}: must be in 1..{MAX_JOBS}")
        case _:
            raise SpecError("job", "empty; give the name or the Job_ID of a live job")


def _page_start(token: str) -> int:
    if not token:
        return 0
    if not token.isdecimal() or len(token) > 5:
        raise SpecError("page_token", f"{token!r} does not come from this service; leave it empty")
    return int(token)


def _reading(reading: SwitchReading) -> jobs_pb2.SwitchJobState:
    state = jobs_pb2.SwitchJobState(switch=reading.switch, error=reading.error)
    for block in reading.blocks:
        message = jobs_pb2.BlockState(
            block=block.block, egress_ports=block.ports, error=block.error
        )
        if (reply := block.state) is not None:
            message.generation = reply.generation
            message.step_min = reply.step_min
            message.psn_rec = reply.psn_rec
            message.alpha = reply.alpha
            message.cnt_total = reply.cnt_total
            message.cnt_op = reply.cnt_op
            message.win_start_us = reply.win_start
            message.now_us = reply.now
        state.blocks.append(message)
    if (counters := reading.counters) is not None:
        state.counters.CopyFrom(
            jobs_pb2.JobCounters(
                data=counters["job_data"],
                marks=counters["job_marks"],
                red_marks=counters["job_red_marks"],
                corrections=counters["job_corrections"],
                advances=counters["job_advances"],
            )
        )
    return state


class SwitchesService(switches_pb2_grpc.SwitchesServicer):
    """``ringstep.v1.Switches``; see the .proto for what every call promises."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def Add(
        self, request: switches_pb2.AddSwitchRequest, context: Context
    ) -> switches_pb2.AddSwitchResponse:
        async with _answering(context):
            try:
                parse_target(request.address)
            except ValueError as error:
                raise SpecError("address", str(error)) from None
            view = await self._fleet.add_switch(request.name, request.address, request.device_id)
            return switches_pb2.AddSwitchResponse(switch=_switch(view))
        raise AssertionError("abort raises")

    async def Remove(
        self, request: switches_pb2.RemoveSwitchRequest, context: Context
    ) -> switches_pb2.RemoveSwitchResponse:
        async with _answering(context):
            await self._fleet.remove_switch(request.name)
            return switches_pb2.RemoveSwitchResponse()
        raise AssertionError("abort raises")

    async def List(
        self, request: switches_pb2.ListSwitchesRequest, context: Context
    ) -> switches_pb2.ListSwitchesResponse:
        return switches_pb2.ListSwitchesResponse(
            switches=[_switch(view) for view in self._fleet.switches()]
        )


def _switch(view: SwitchView) -> switches_pb2.Switch:
    status = view.status
    return switches_pb2.Switch(
        name=view.name,
        device_id=view.device_id,
        address=view.address,
        role=view.role,
        status=switches_pb2.SwitchStatus(
            phase=_PHASES[status.phase],
            detail=status.detail,
            desired_entries=status.desired_entries,
            updates_written=status.updates_written,
            foreign_removed=status.foreign_removed,
            sessions=status.sessions,
        ),
    )
