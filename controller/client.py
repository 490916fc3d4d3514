"""A typed client of the controller's API, for the CLI, the lab and anybody's scripts.

async with ControllerClient("127.0.0.1:9560") as controller:
    job = await controller.register(job_spec("resnet", rings=[["h1", "h2", "h3"]]))
    await controller.wait_programmed(job.id)
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Final, Self

import grpc

from ringstep.controller.calls import Caller
from ringstep.controller.calls import ControllerError as ControllerError
from ringstep.controller.credentials import ClientCredentials
from ringstep.controller.defaults import DEFAULT_LISTEN
from ringstep.controller.jobmessage import Q_GATE_OFF as Q_GATE_OFF
from ringstep.controller.jobmessage import job_spec as job_spec
from ringstep.controller.jobmessage import marker_overrides as marker_overrides
from ringstep.controller.v1 import jobs_pb2, switches_pb2
from ringstep.fabric.topology import parse_target

DEFAULT_TARGET: Final = DEFAULT_LISTEN
DEFAULT_TIMEOUT_S: Final = 10.0
_POLL_S = 0.05
_GONE = frozenset({jobs_pb2.JOB_EVENT_KIND_RELEASED, jobs_pb2.JOB_EVENT_KIND_EXPIRED})
Ref = str | int
"""A live job, by name or by Job_ID."""


class NotProgrammedError(Exception):
    """Switches did not come in sync in time; the text names them and their reasons."""


def parse_targets(text: str) -> tuple[str, ...]:
    """Return the controllers of ``HOST:PORT[,HOST:PORT...]``, each once, in order.

    Raises:
        ValueError: one is not HOST:PORT, or there is none.
    """
    targets = dict.fromkeys(parse_target(part.strip()) for part in text.split(",") if part.strip())
    if not targets:
        parse_target(text)
    return tuple(targets)


class ControllerClient:
    """Calls of the controllers of one fabric; an async context manager.

    ``target`` names one or several (``a:9560,b:9560``): calls go to the one that leads, wherever
    that is told, and to the next one where one is gone. A call whose answer was lost is repeated
    only where that is harmless. ``timeout_s`` bounds every call, with all its attempts.

    Raises:
        ValueError: ``target`` is not HOST:PORT, or the credentials do not go with it.
        ControllerError: from every method, where the controller refuses or does not answer.
    """

    def __init__(
        self,
        target: str | Sequence[str] = DEFAULT_TARGET,
        *,
        credentials: ClientCredentials | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        targets = parse_targets(target if isinstance(target, str) else ",".join(target))
        self._calls = Caller(targets, credentials or ClientCredentials(), timeout_s)

    @property
    def target(self) -> str:
        """HOST:PORT of the controller that is asked next."""
        return self._calls.current.target

    @property
    def targets(self) -> tuple[str, ...]:
        """All controllers that are known: those given, and those that others named."""
        return self._calls.targets

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._calls.close()

    # -- jobs --------------------------------------------------------------------------------

    async def register(
        self, spec: jobs_pb2.JobSpec, request_id: str | None = None, *, rebalance: bool = False
    ) -> jobs_pb2.Job:
        """Register a job; the same ``request_id`` and spec again return the same job.

        Without ``request_id`` one is made up for this call, so that the call may be repeated
        within it; an empty one makes no promise, and the call is not repeated. ``rebalance``:
        plan the paths of all live jobs anew for this one.
        """
        if request_id is None:
            request_id = str(uuid.uuid4())
        request = jobs_pb2.RegisterRequest(request_id=request_id, spec=spec, rebalance=rebalance)
        reply = await self._calls.call(
            lambda at: at.jobs.Register, request, repeatable=bool(request_id)
        )
        return reply.job

    async def renew(self, ref: Ref, lease_s: int = 0, *, generation: int = 0) -> jobs_pb2.Job:
        """Start a job's lease anew, for ``lease_s`` seconds; 0: as long as before."""
        request = jobs_pb2.RenewRequest(job=_ref(ref, generation), lease_s=lease_s)
        reply = await self._calls.call(lambda at: at.jobs.Renew, request, repeatable=True)
        return reply.job

    async def release(self, ref: Ref, *, generation: int = 0) -> jobs_pb2.Job:
        """Release a job by name or Job_ID, and return what it was.

        With ``generation`` only a job of that generation; the call may then be repeated.
        """
        request = jobs_pb2.ReleaseRequest(job=_ref(ref, generation))
        reply = await self._calls.call(
            lambda at: at.jobs.Release, request, repeatable=generation != 0
        )
        return reply.job

    async def get(self, ref: Ref) -> jobs_pb2.Job:
        """Return a live job by name or Job_ID."""
        request = jobs_pb2.GetRequest(job=_ref(ref))
        return (await self._calls.call(lambda at: at.jobs.Get, request, repeatable=True)).job

    async def jobs(self, tenant: str = "") -> list[jobs_pb2.Job]:
        """Return all live jobs (of ``tenant``, where given) in ascending Job_ID."""
        jobs: list[jobs_pb2.Job] = []
        token = ""
        while True:
            request = jobs_pb2.ListRequest(page_token=token)
            reply = await self._calls.call(lambda at: at.jobs.List, request, repeatable=True)
            jobs += [job for job in reply.jobs if tenant in ("", job.spec.tenant)]
            token = reply.next_page_token
            if not token:
                return jobs

    async def watch(
        self, refs: Iterable[Ref] = (), *, state_interval_ms: int = 0, tenant: str = ""
    ) -> AsyncIterator[jobs_pb2.JobEvent]:
        """Yield every live job (of ``refs``, where given), SYNCED, and then what changes.

        Where the stream is lost another one is opened, also at another controller: snapshots and
        SYNCED then come again, before it RELEASED for each job that is gone meanwhile.
        ``state_interval_ms``: read the jobs' state from the switches this often; 0: not.
        """
        request = jobs_pb2.WatchRequest(
            jobs=[_ref(ref) for ref in refs], state_interval_ms=state_interval_ms, tenant=tenant
        )
        live: dict[tuple[int, int], jobs_pb2.Job] = {}
        before: dict[tuple[int, int], jobs_pb2.Job] = {}
        async for event in self._calls.stream(lambda at: at.jobs.Watch, request):
            if event is None:
                before, live = before | live, {}
                continue
            if event.kind == jobs_pb2.JOB_EVENT_KIND_SYNCED:
                for key, job in before.items():
                    if key not in live:
                        yield jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_RELEASED, job=job)
                before = {}
            elif event.kind in _GONE:
                live.pop((event.job.id, event.job.generation), None)
            elif event.HasField("job"):
                live[event.job.id, event.job.generation] = event.job
            yield event

    async def update(
        self, ref: Ref, changes: jobs_pb2.MarkerOverrides, *, generation: int = 0
    ) -> jobs_pb2.Job:
        """Change marker parameters of a live job (see :func:`marker_overrides`)."""
        request = jobs_pb2.UpdateParametersRequest(job=_ref(ref, generation), changes=changes)
        reply = await self._calls.call(
            lambda at: at.jobs.UpdateParameters, request, repeatable=True
        )
        return reply.job

    async def state(self, ref: Ref) -> jobs_pb2.StateResponse:
        """Read a job's state blocks and counters from its switches, now."""
        request = jobs_pb2.StateRequest(job=_ref(ref))
        return await self._calls.call(lambda at: at.jobs.State, request, repeatable=True)

    async def plan(
        self, what: jobs_pb2.JobSpec | Ref, *, rebalance: bool = False
    ) -> jobs_pb2.PlanResponse:
        """Return what the planner would do for a job, or did for a live one; changes nothing."""
        request = jobs_pb2.PlanRequest(rebalance=rebalance)
        if isinstance(what, jobs_pb2.JobSpec):
            request.spec.CopyFrom(what)
        else:
            request.job.CopyFrom(_ref(what))
        return await self._calls.call(lambda at: at.jobs.Plan, request, repeatable=True)

    async def rebalance(self, *, dry_run: bool = False) -> jobs_pb2.RebalanceResponse:
        """Plan the paths of all live jobs anew, and move what that moves unless ``dry_run``."""
        request = jobs_pb2.RebalanceRequest(dry_run=dry_run)
        return await self._calls.call(lambda at: at.jobs.Rebalance, request, repeatable=dry_run)

    # -- switches ----------------------------------------------------------------------------

    async def add_switch(self, name: str, address: str, device_id: int = 0) -> switches_pb2.Switch:
        """Keep a switch of the topology programmed at ``HOST:PORT``."""
        request = switches_pb2.AddSwitchRequest(name=name, address=address, device_id=device_id)
        reply = await self._calls.call(lambda at: at.switches.Add, request, repeatable=True)
        return reply.switch

    async def remove_switch(self, name: str) -> None:
        """Stop to keep a switch programmed."""
        request = switches_pb2.RemoveSwitchRequest(name=name)
        await self._calls.call(lambda at: at.switches.Remove, request, repeatable=False)

    async def switches(self) -> list[switches_pb2.Switch]:
        """Return all switches of the topology with their state."""
        request = switches_pb2.ListSwitchesRequest()
        reply = await self._calls.call(lambda at: at.switches.List, request, repeatable=True)
        return list(reply.switches)

    async def switch(self, name: str) -> switches_pb2.Switch:
        """Return a switch of the topology; NOT_FOUND, with the known names, where it is none."""
        switches = {switch.name: switch for switch in await self.switches()}
        found = switches.get(name)
        if found is None:
            raise ControllerError(
                grpc.StatusCode.NOT_FOUND,
                f"no switch of the topology has name {name!r}; known switches: "
                f"{', '.join(switches) or 'none'}",
            )
        return found

    async def drain(self, name: str, *, drained: bool = True) -> switches_pb2.DrainResponse:
        """Lead traffic around a switch, or end that; returns the switch and what moved."""
        request = switches_pb2.DrainRequest(name=name, drained=drained)
        return await self._calls.call(lambda at: at.switches.Drain, request, repeatable=True)

    async def set_link(self, switch: str, port: int, *, up: bool) -> list[str]:
        """Say that the link at a switch's port failed or works again; returns who moved."""
        request = switches_pb2.SetLinkRequest(switch=switch, port=port, up=up)
        reply = await self._calls.call(lambda at: at.switches.SetLink, request, repeatable=True)
        return list(reply.moved_jobs)

    async def reload_topology(self) -> switches_pb2.ReloadTopologyResponse:
        """Let the controller read its topology file again, and follow it."""
        request = switches_pb2.ReloadTopologyRequest()
        return await self._calls.call(
            lambda at: at.switches.ReloadTopology, request, repeatable=False
        )

    async def watch_switches(self) -> AsyncIterator[switches_pb2.SwitchEvent]:
        """Yield every switch, ``synced``, and then each one that changes.

        Where the stream is lost another one is opened, and all switches come again.
        """
        request = switches_pb2.WatchSwitchesRequest()
        async for event in self._calls.stream(lambda at: at.switches.Watch, request):
            if event is not None:
                yield event

    # -- waiting -----------------------------------------------------------------------------

    async def wait_programmed(self, ref: Ref, timeout_s: float = 30.0) -> jobs_pb2.Job:
        """Return the job once every switch of its paths is in sync.

        Raises:
            NotProgrammedError: not within ``timeout_s``, or a switch cannot hold the job's rules.
        """
        job = await self.get(ref)
        try:
            async with asyncio.timeout(timeout_s):
                if not _programmed(job):
                    async for state in self._states(job):
                        job = state
                        if _programmed(job):
                            break
        except TimeoutError:
            reasons = [job.problem] if job.problem else []
            reasons += [
                f"{item.switch} is {phase_text(item.phase)}: {item.detail or 'no reason given'}"
                for item in job.programming
                if item.phase != switches_pb2.SWITCH_PHASE_IN_SYNC and not item.cannot
            ]
            raise NotProgrammedError(
                f"job {job.spec.name!r} is registered as {job.id}, but not programmed everywhere "
                f"after {timeout_s:g} s: {'; '.join(reasons)}"
            ) from None
        if any(item.cannot for item in job.programming):
            reasons = [f"{item.switch}: {item.detail}" for item in job.programming if item.cannot]
            raise NotProgrammedError(
                f"job {job.spec.name!r} is registered as {job.id}, and followed by all its "
                f"switches but {'; '.join(reasons)}"
            )
        return job

    async def _states(self, job: jobs_pb2.Job) -> AsyncIterator[jobs_pb2.Job]:
        """Yield a job whenever it changes; by polling, where the controller cannot stream."""
        try:
            async for event in self.watch([job.id]):
                if event.kind in _GONE:
                    raise ControllerError(
                        grpc.StatusCode.NOT_FOUND,
                        f"job {job.spec.name!r} ({job.id}) was released meanwhile",
                    )
                if event.HasField("job"):
                    yield event.job
        except ControllerError as error:
            if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                raise
        while True:
            yield await self.get(job.id)
            await asyncio.sleep(_POLL_S)

    async def wait_switches(
        self, names: Iterable[str] | None = None, timeout_s: float = 30.0
    ) -> list[switches_pb2.Switch]:
        """Return the switches once those named (all, without names) are in sync.

        Raises:
            NotProgrammedError: not within ``timeout_s``.
        """
        wanted = None if names is None else set(names)
        seen: dict[str, switches_pb2.Switch] = {}
        try:
            async with asyncio.timeout(timeout_s):
                async for switches in self._fleets():
                    seen = {
                        switch.name: switch
                        for switch in switches
                        if wanted is None or switch.name in wanted
                    }
                    if _in_sync(switch.status.phase for switch in seen.values()):
                        break
        except TimeoutError:
            late = "; ".join(
                f"{switch.name} is {phase_text(switch.status.phase)}: "
                f"{switch.status.detail or 'no reason given'}"
                for switch in seen.values()
                if switch.status.phase != switches_pb2.SWITCH_PHASE_IN_SYNC
            )
            raise NotProgrammedError(f"not in sync after {timeout_s:g} s: {late}") from None
        return list(seen.values())

    async def _fleets(self) -> AsyncIterator[list[switches_pb2.Switch]]:
        """Yield all switches, again whenever one changes; by polling where that is all there is."""
        seen: dict[str, switches_pb2.Switch] = {}
        synced = False
        try:
            async for event in self.watch_switches():
                synced |= event.synced
                if event.HasField("switch"):
                    seen[event.switch.name] = event.switch
                if synced:
                    yield list(seen.values())
        except ControllerError as error:
            if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                raise
        while True:
            yield await self.switches()
            await asyncio.sleep(_POLL_S)


def _ref(ref: Ref, generation: int = 0) -> jobs_pb2.JobRef:
    if isinstance(ref, int):
        return jobs_pb2.JobRef(id=ref, generation=generation)
    return jobs_pb2.JobRef(name=ref, generation=generation)


def _in_sync(phases: Iterable[switches_pb2.SwitchPhase]) -> bool:
    return all(phase == switches_pb2.SWITCH_PHASE_IN_SYNC for phase in phases)


def _programmed(job: jobs_pb2.Job) -> bool:
    return not job.problem and _in_sync(item.phase for item in job.programming if not item.cannot)


def phase_text(phase: switches_pb2.SwitchPhase) -> str:
    """Return a phase as people and scripts read it, such as ``in sync``."""
    name = switches_pb2.SwitchPhase.Name(phase)
    return name.removeprefix("SWITCH_PHASE_").lower().replace("_", " ")
