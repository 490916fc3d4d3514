"""The gRPC services ``ringstep.v1.Jobs`` and ``ringstep.v1.Switches`` on top of a fleet.

What every call promises stands in the .proto files.
"""

# ruff: noqa: N802, D102

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc.aio

from ringstep.controller.fleet import Fleet, JobNews
from ringstep.controller.jobs import SpecError, request_id_from, spec_from_proto
from ringstep.controller.live import LiveJob
from ringstep.controller.paths import JobPaths
from ringstep.controller.problems import answering
from ringstep.controller.programmer import Phase
from ringstep.controller.security import current_caller
from ringstep.controller.stage import Stage
from ringstep.controller.states import SwitchReading
from ringstep.controller.switchboard import SwitchView
from ringstep.controller.v1 import (
    jobs_pb2,
    jobs_pb2_grpc,
    switches_pb2,
    switches_pb2_grpc,
)
from ringstep.fabric.topology import parse_target
from ringstep.protocol.limits import MAX_JOBS

LOGGER = logging.getLogger(__name__)
_PAGE: Final = 1000
_MIN_STATE_INTERVAL_MS: Final = 100
_STATES_AT_ONCE: Final = 16
_PHASES = {
    Phase.UNMANAGED: switches_pb2.SWITCH_PHASE_UNMANAGED,
    Phase.CONNECTING: switches_pb2.SWITCH_PHASE_CONNECTING,
    Phase.PUSHING_PIPELINE: switches_pb2.SWITCH_PHASE_PUSHING_PIPELINE,
    Phase.PROGRAMMING: switches_pb2.SWITCH_PHASE_PROGRAMMING,
    Phase.IN_SYNC: switches_pb2.SWITCH_PHASE_IN_SYNC,
    Phase.ERROR: switches_pb2.SWITCH_PHASE_ERROR,
}
_NEWS = {
    JobNews.REGISTERED: jobs_pb2.JOB_EVENT_KIND_REGISTERED,
    JobNews.UPDATED: jobs_pb2.JOB_EVENT_KIND_UPDATED,
    JobNews.PROGRAMMING: jobs_pb2.JOB_EVENT_KIND_PROGRAMMING,
    JobNews.RELEASED: jobs_pb2.JOB_EVENT_KIND_RELEASED,
    JobNews.EXPIRED: jobs_pb2.JOB_EVENT_KIND_EXPIRED,
}
Context = grpc.aio.ServicerContext[Any, Any]


class JobsService(jobs_pb2_grpc.JobsServicer):
    """``ringstep.v1.Jobs``."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def Register(
        self, request: jobs_pb2.RegisterRequest, context: Context
    ) -> jobs_pb2.RegisterResponse:
        async with answering(context, self._stage.deposed):
            request_id = request_id_from(request.request_id)
            fleet = self._stage.fleet
            job = await fleet.register(
                request.spec,
                request_id,
                caller=current_caller(),
                rebalance=request.rebalance,
            )
            return jobs_pb2.RegisterResponse(job=job_message(fleet, job))
        raise AssertionError("abort raises")

    async def Renew(
        self, request: jobs_pb2.RenewRequest, context: Context
    ) -> jobs_pb2.RenewResponse:
        async with answering(context, self._stage.deposed):
            fleet = self._stage.fleet
            ref, generation = _ref(request.job)
            job = await fleet.renew(ref, request.lease_s, generation, caller=current_caller())
            return jobs_pb2.RenewResponse(job=job_message(fleet, job))
        raise AssertionError("abort raises")

    async def Release(
        self, request: jobs_pb2.ReleaseRequest, context: Context
    ) -> jobs_pb2.ReleaseResponse:
        async with answering(context, self._stage.deposed):
            fleet = self._stage.fleet
            ref, generation = _ref(request.job)
            job = await fleet.release(ref, generation, caller=current_caller())
            return jobs_pb2.ReleaseResponse(job=job_message(fleet, job))
        raise AssertionError("abort raises")

    async def Get(self, request: jobs_pb2.GetRequest, context: Context) -> jobs_pb2.GetResponse:
        async with answering(context, self._stage.deposed):
            fleet = self._stage.fleet
            return jobs_pb2.GetResponse(
                job=job_message(fleet, fleet.roster.get(*_ref(request.job)))
            )
        raise AssertionError("abort raises")

    async def List(self, request: jobs_pb2.ListRequest, context: Context) -> jobs_pb2.ListResponse:
        async with answering(context, self._stage.deposed):
            fleet = self._stage.fleet
            after = _page_start(request.page_token)
            size = min(request.page_size or _PAGE, _PAGE)
            jobs = fleet.roster.listed(after, size + 1)
            more = len(jobs) > size
            return jobs_pb2.ListResponse(
                jobs=[job_message(fleet, job) for job in jobs[:size]],
                next_page_token=str(jobs[size - 1].id) if more else "",
            )
        raise AssertionError("abort raises")

    async def Watch(
        self, request: jobs_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[jobs_pb2.JobEvent]:
        async with answering(context, self._stage.deposed):
            fleet = self._stage.fleet
            asked = [fleet.roster.get(*_ref(ref)) for ref in request.jobs]
            interval_ms = request.state_interval_ms
            if 0 < interval_ms < _MIN_STATE_INTERVAL_MS:
                raise SpecError(
                    "state_interval_ms",
                    f"{interval_ms}: must be at least {_MIN_STATE_INTERVAL_MS}, or 0 for no states",
                )
            ids = {(job.id, job.stored.generation) for job in asked}

            def wanted(job: LiveJob) -> bool:
                if request.tenant and job.stored.tenant != request.tenant:
                    return False
                return not ids or (job.id, job.stored.generation) in ids

            with fleet.job_news.follow() as follower:
                for job in fleet.roster.listed():
                    if wanted(job):
                        yield jobs_pb2.JobEvent(
                            kind=jobs_pb2.JOB_EVENT_KIND_SNAPSHOT, job=job_message(fleet, job)
                        )
                yield jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_SYNCED)
                next_state = time.monotonic()
                reading = asyncio.ensure_future(follower.read())
                try:
                    while True:
                        timeout_s = None
                        if interval_ms:
                            timeout_s = max(0.0, next_state - time.monotonic())
                        await asyncio.wait({reading}, timeout=timeout_s)
                        if reading.done():
                            for _, (news, job) in reading.result():
                                if wanted(job):
                                    yield jobs_pb2.JobEvent(
                                        kind=_NEWS[news], job=job_message(fleet, job)
                                    )
                            reading = asyncio.ensure_future(follower.read())
                        if interval_ms and time.monotonic() >= next_state:
                            next_state = time.monotonic() + interval_ms / 1000
                            async for event in self._states(fleet, wanted):
                                yield event
                finally:
                    reading.cancel()

    @staticmethod
    async def _states(fleet: Fleet, wanted: Any) -> AsyncIterator[jobs_pb2.JobEvent]:
        jobs = [job for job in fleet.roster.listed() if wanted(job)]
        for start in range(0, len(jobs), _STATES_AT_ONCE):
            some = jobs[start : start + _STATES_AT_ONCE]
            for job, readings in zip(
                some, await asyncio.gather(*(fleet.state(job) for job in some)), strict=True
            ):
                yield jobs_pb2.JobEvent(
                    kind=jobs_pb2.JOB_EVENT_KIND_STATE, state=_state(fleet, job, readings)
                )

    async def UpdateParameters(
        self, request: jobs_pb2.UpdateParametersRequest, context: Context
    ) -> jobs_pb2.UpdateParametersResponse:
        async with answering(context, self._stage.deposed):
            fleet = self._stage.fleet
            ref, generation = _ref(request.job)
            job = await fleet.update(ref, request.changes, generation, caller=current_caller())
            return jobs_pb2.UpdateParametersResponse(job=job_message(fleet, job))
        raise AssertionError("abort raises")

    async def State(
        self, request: jobs_pb2.StateRequest, context: Context
    ) -> jobs_pb2.StateResponse:
        async with answering(context, self._stage.deposed):
            fleet = self._stage.fleet
            job = fleet.roster.get(*_ref(request.job))
            return _state(fleet, job, await fleet.state(job))
        raise AssertionError("abort raises")

    async def Plan(self, request: jobs_pb2.PlanRequest, context: Context) -> jobs_pb2.PlanResponse:
        async with answering(context, self._stage.deposed):
            fleet = self._stage.fleet
            job = None
            match request.WhichOneof("what"):
                case "spec":
                    spec = spec_from_proto(request.spec)
                case "job":
                    job = fleet.roster.get(*_ref(request.job))
                    spec = job.spec
                case _:
                    raise SpecError(
                        "spec", "empty; give the job to plan, or the name of a live one"
                    )
            report, paths, moved = await fleet.explain(spec, job, rebalance=request.rebalance)
            return jobs_pb2.PlanResponse(
                paths=_paths(paths),
                links=[
                    jobs_pb2.PlanLink(
                        src=link.src,
                        dst=link.dst,
                        rate_bps=link.rate_bps,
                        edges_before=link.edges_before,
                        edges_after=link.edges_after,
                        edges_ecmp=link.edges_ecmp,
                        load_after=link.load_after,
                        load_ecmp=link.load_ecmp,
                    )
                    for link in report.links
                ],
                inter_rack_edges=report.inter_rack_edges,
                intra_rack_edges=report.intra_rack_edges,
                max_load=report.max_load,
                bound=report.bound,
                ecmp_max_load=report.ecmp_max_load,
                gain=report.gain,
                moved_jobs=moved,
                reason=report.reason,
            )
        raise AssertionError("abort raises")

    async def Rebalance(
        self, request: jobs_pb2.RebalanceRequest, context: Context
    ) -> jobs_pb2.RebalanceResponse:
        async with answering(context, self._stage.deposed):
            moved, before, after = await self._stage.fleet.rebalance(dry_run=request.dry_run)
            return jobs_pb2.RebalanceResponse(
                moved_jobs=moved, max_load_before=before, max_load_after=after
            )
        raise AssertionError("abort raises")


def _ref(ref: jobs_pb2.JobRef) -> tuple[str | int, int]:
    match ref.WhichOneof("by"):
        case "name" if ref.name:
            return ref.name, ref.generation
        case "id" if 0 < ref.id <= MAX_JOBS:
            return ref.id, ref.generation
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


def job_message(fleet: Fleet, job: LiveJob) -> jobs_pb2.Job:
    """Return a job as it travels."""
    stored = job.stored
    message = jobs_pb2.Job(
        id=stored.job_id,
        generation=stored.generation,
        spec=job.message,
        parameters=job.parameters,
        created_unix_ms=stored.created_unix_ms,
        problem=job.problem,
        request_id=stored.request_id,
        lease_s=stored.lease_s,
        lease_remaining_ms=round(fleet.roster.lease_remaining_s(job) * 1000),
        paths=_paths(job.paths),
        paths_choice=(
            jobs_pb2.PATHS_CHOICE_PLANNED if job.spec.planned else jobs_pb2.PATHS_CHOICE_ECMP
        ),
        owner=stored.owner,
        moving=job.moving,
    )
    message.spec.tenant = stored.tenant
    for view, holds in fleet.programming(job):
        message.programming.append(_programming(job, view, holds))
    return message


def _programming(job: LiveJob, view: SwitchView, holds: bool) -> jobs_pb2.SwitchProgramming:
    reason = job.cannot.get(view.name)
    if reason is not None:
        return jobs_pb2.SwitchProgramming(
            switch=view.name, phase=_PHASES[view.status.phase], detail=reason, cannot=True
        )
    phase, detail = view.status.phase, view.status.detail
    if holds:
        # The switch may be busy with other jobs, or refuse what is not this one's.
        phase, detail = Phase.IN_SYNC, ""
    elif phase is Phase.IN_SYNC:
        phase = Phase.PROGRAMMING
    return jobs_pb2.SwitchProgramming(switch=view.name, phase=_PHASES[phase], detail=detail)


def _paths(paths: JobPaths) -> list[jobs_pb2.PlannedPath]:
    return [
        jobs_pb2.PlannedPath(
            src=key.src,
            dst=key.dst,
            dest_qp=key.dest_qp,
            hops=[jobs_pb2.PathHop(switch=hop.switch, port=hop.port) for hop in hops],
        )
        for key, hops in sorted(paths.items())
    ]


def _state(fleet: Fleet, job: LiveJob, readings: Sequence[SwitchReading]) -> jobs_pb2.StateResponse:
    return jobs_pb2.StateResponse(
        job=job_message(fleet, job), switches=[_reading(reading) for reading in readings]
    )


def _reading(reading: SwitchReading) -> jobs_pb2.SwitchJobState:
    state = jobs_pb2.SwitchJobState(
        switch=reading.switch, error=reading.error, read_unix_ms=reading.read_unix_ms
    )
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
    """``ringstep.v1.Switches``."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def Add(
        self, request: switches_pb2.AddSwitchRequest, context: Context
    ) -> switches_pb2.AddSwitchResponse:
        async with answering(context, self._stage.deposed):
            try:
                parse_target(request.address)
            except ValueError as error:
                raise SpecError("address", str(error)) from None
            fleet = self._stage.fleet
            view = await fleet.add_switch(request.name, request.address, request.device_id)
            return switches_pb2.AddSwitchResponse(switch=switch_message(view))
        raise AssertionError("abort raises")

    async def Remove(
        self, request: switches_pb2.RemoveSwitchRequest, context: Context
    ) -> switches_pb2.RemoveSwitchResponse:
        async with answering(context, self._stage.deposed):
            await self._stage.fleet.remove_switch(request.name)
            return switches_pb2.RemoveSwitchResponse()
        raise AssertionError("abort raises")

    async def List(
        self, request: switches_pb2.ListSwitchesRequest, context: Context
    ) -> switches_pb2.ListSwitchesResponse:
        async with answering(context, self._stage.deposed):
            return switches_pb2.ListSwitchesResponse(
                switches=[switch_message(view) for view in self._stage.fleet.switchboard]
            )
        raise AssertionError("abort raises")

    async def Drain(
        self, request: switches_pb2.DrainRequest, context: Context
    ) -> switches_pb2.DrainResponse:
        async with answering(context, self._stage.deposed):
            fleet = self._stage.fleet
            followed = await fleet.drain(request.name, request.drained)
            return switches_pb2.DrainResponse(
                switch=switch_message(fleet.switchboard[request.name]), moved_jobs=followed.moved
            )
        raise AssertionError("abort raises")

    async def SetLink(
        self, request: switches_pb2.SetLinkRequest, context: Context
    ) -> switches_pb2.SetLinkResponse:
        async with answering(context, self._stage.deposed):
            fleet = self._stage.fleet
            followed = await fleet.set_link(request.switch, request.port, request.up)
            return switches_pb2.SetLinkResponse(moved_jobs=followed.moved)
        raise AssertionError("abort raises")

    async def ReloadTopology(
        self, request: switches_pb2.ReloadTopologyRequest, context: Context
    ) -> switches_pb2.ReloadTopologyResponse:
        async with answering(context, self._stage.deposed):
            followed = await self._stage.fleet.reload_topology()
            return switches_pb2.ReloadTopologyResponse(
                moved_jobs=followed.moved, broken_jobs=followed.broken
            )
        raise AssertionError("abort raises")

    async def Watch(
        self, request: switches_pb2.WatchSwitchesRequest, context: Context
    ) -> AsyncIterator[switches_pb2.SwitchEvent]:
        async with answering(context, self._stage.deposed):
            fleet = self._stage.fleet
            with fleet.switch_news.follow() as follower:
                for view in fleet.switchboard:
                    yield switches_pb2.SwitchEvent(switch=switch_message(view))
                yield switches_pb2.SwitchEvent(synced=True)
                while True:
                    for name, _ in await follower.read():
                        if name in fleet.switchboard:
                            view = fleet.switchboard[name]
                            yield switches_pb2.SwitchEvent(switch=switch_message(view))


def switch_message(view: SwitchView) -> switches_pb2.Switch:
    """Return a switch as it travels."""
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
            pending=status.pending,
            drift_missing=status.drift_missing,
            drift_changed=status.drift_changed,
            drift_foreign=status.drift_foreign,
            audited_unix_ms=status.audited_unix_ms,
            foreign_kept=status.foreign_kept,
            refused=status.refused,
            refused_count=status.refused_count,
            drifts=status.drifts,
        ),
        drained=view.drained,
        down_ports=view.down_ports,
    )
