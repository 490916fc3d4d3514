"""A typed client of the controller's API, for the CLI, the lab and anybody's scripts.

async with ControllerClient("127.0.0.1:9560") as controller:
    job = await controller.register(job_spec("resnet", rings=[["h1", "h2", "h3"]]))
    await controller.wait_programmed(job.id)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from fractions import Fraction
from types import TracebackType
from typing import Final, Self, TypeVar

import grpc
import grpc.aio

from ringstep.controller.channels import open_channel
from ringstep.controller.defaults import DEFAULT_LISTEN
from ringstep.controller.jobs import Marking, MatchKind, QueuePair, Tag, Traffic
from ringstep.controller.v1 import jobs_pb2, jobs_pb2_grpc, switches_pb2, switches_pb2_grpc
from ringstep.protocol.marker import ProgressMode, Scope
from ringstep.protocol.tag import JobCarrier

DEFAULT_TARGET: Final = DEFAULT_LISTEN
DEFAULT_TIMEOUT_S: Final = 10.0
Q_GATE_OFF: Final = -1
"""Value of ``q_gate`` that switches the queue gate off."""
_POLL_S = 0.05
_T = TypeVar("_T")

_MATCH = {
    MatchKind.DST_QP: jobs_pb2.MATCH_KIND_DST_QP,
    MatchKind.PAIR: jobs_pb2.MATCH_KIND_PAIR,
    MatchKind.TAG: jobs_pb2.MATCH_KIND_TAG,
    MatchKind.UEC: jobs_pb2.MATCH_KIND_UEC,
}
_MARKING = {
    Marking.AUTO: jobs_pb2.MARKING_CHOICE_AUTO,
    Marking.ON: jobs_pb2.MARKING_CHOICE_ON,
    Marking.OFF: jobs_pb2.MARKING_CHOICE_OFF,
}
_CARRIER = {
    JobCarrier.SPORT: jobs_pb2.TAG_CARRIER_SPORT,
    JobCarrier.RESV6A: jobs_pb2.TAG_CARRIER_RESV6A,
    JobCarrier.DSCP: jobs_pb2.TAG_CARRIER_DSCP,
}
_MODE = {
    ProgressMode.PER_STEP: jobs_pb2.PROGRESS_MODE_PER_STEP,
    ProgressMode.ANCHORED: jobs_pb2.PROGRESS_MODE_ANCHORED,
}
_SCOPE = {Scope.SWITCH: jobs_pb2.SCOPE_SWITCH, Scope.PORT: jobs_pb2.SCOPE_PORT}


class ControllerError(Exception):
    """A call that the controller refused, or that did not reach it; ``code`` is gRPC's."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(text)


class NotProgrammedError(Exception):
    """Switches did not come in sync in time; the text names them and their reasons."""


def job_spec(
    name: str,
    *,
    rings: Iterable[Sequence[str]] = (),
    queue_pairs: Iterable[QueuePair] = (),
    match: MatchKind | None = None,
    tag: Tag | None = None,
    uec_job_ids: Iterable[int] = (),
    profile: str = "",
    k: float | None = None,
    tau: Fraction | None = None,
    t_win_us: int | None = None,
    n_sample: int | None = None,
    n_warmup: int | None = None,
    alpha_max: int | None = None,
    q_gate: int | None = None,
    step_bits: int | None = None,
    job_bits: int | None = None,
    mode: ProgressMode | None = None,
    packets_per_step: int | None = None,
    marking: Marking | None = None,
    traffic: Traffic | None = None,
    scope: Scope | None = None,
) -> jobs_pb2.JobSpec:
    """Return the message that registers a job; what is None keeps the profile's value.

    Without ``marking`` the controller decides, by ``traffic`` and its fabric.

    Raises:
        ValueError: a number does not fit its protobuf field.
    """
    spec = jobs_pb2.JobSpec(
        name=name,
        rings=[jobs_pb2.Ring(hosts=ring) for ring in rings],
        queue_pairs=[
            jobs_pb2.QueuePair(src=pair.src, dst=pair.dst, dest_qp=pair.dest_qp)
            for pair in queue_pairs
        ],
        uec_job_ids=uec_job_ids,
        profile=profile,
        overrides=jobs_pb2.MarkerOverrides(
            k=k,
            t_win_us=t_win_us,
            n_sample=n_sample,
            n_warmup=n_warmup,
            alpha_max=alpha_max,
            q_gate=q_gate,
            step_bits=step_bits,
            job_bits=job_bits,
            packets_per_step=packets_per_step,
        ),
    )
    if match is not None:
        spec.match = _MATCH[match]
    if tag is not None:
        spec.tag.CopyFrom(jobs_pb2.Tag(carrier=_CARRIER[tag.carrier], value=tag.value))
    if tau is not None:
        spec.overrides.tau.CopyFrom(jobs_pb2.Fraction(num=tau.numerator, den=tau.denominator))
    if marking is not None:
        spec.marking = _MARKING[marking]
    if traffic is not None:
        spec.traffic.CopyFrom(
            jobs_pb2.Traffic(
                sender=traffic.sender,
                preset=traffic.preset,
                step_bytes=traffic.step_bytes,
                rtt_ns=traffic.rtt_ns,
                mtu=traffic.mtu,
                tenants=traffic.tenants,
            )
        )
    if mode is not None:
        spec.overrides.mode = _MODE[mode]
    if scope is not None:
        spec.overrides.scope = _SCOPE[scope]
    return spec


class ControllerClient:
    """Calls of one controller; an async context manager. ``timeout_s`` bounds every call.

    Raises:
        ControllerError: from every method, where the controller refuses or does not answer.
    """

    def __init__(
        self, target: str = DEFAULT_TARGET, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        self.target = target
        self._timeout_s = timeout_s
        self._channel = open_channel(target)
        self._jobs = jobs_pb2_grpc.JobsStub(self._channel)
        self._switches = switches_pb2_grpc.SwitchesStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._channel.close(None)

    async def _call(self, call: Awaitable[_T]) -> _T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or ""
            if code is grpc.StatusCode.UNAVAILABLE:
                details = (
                    f"no controller answers at {self.target} ({details}); start one with "
                    "'ringstep controller serve', or give --controller HOST:PORT"
                )
            elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
                details = f"{self.target} did not answer within {self._timeout_s:g} s"
            raise ControllerError(code, details) from None

    async def register(self, spec: jobs_pb2.JobSpec, request_id: str = "") -> jobs_pb2.Job:
        """Register a job; the same ``request_id`` and spec again return the same job."""
        request = jobs_pb2.RegisterRequest(request_id=request_id, spec=spec)
        reply = await self._call(self._jobs.Register(request, timeout=self._timeout_s))
        return reply.job

    async def release(self, ref: str | int) -> jobs_pb2.Job:
        """Release a job by name or Job_ID, and return what it was."""
        request = jobs_pb2.ReleaseRequest(job=_ref(ref))
        return (await self._call(self._jobs.Release(request, timeout=self._timeout_s))).job

    async def get(self, ref: str | int) -> jobs_pb2.Job:
        """Return a live job by name or Job_ID."""
        request = jobs_pb2.GetRequest(job=_ref(ref))
        return (await self._call(self._jobs.Get(request, timeout=self._timeout_s))).job

    async def jobs(self) -> list[jobs_pb2.Job]:
        """Return all live jobs in ascending Job_ID."""
        jobs: list[jobs_pb2.Job] = []
        token = ""
        while True:
            request = jobs_pb2.ListRequest(page_token=token)
            reply = await self._call(self._jobs.List(request, timeout=self._timeout_s))
            jobs += reply.jobs
            token = reply.next_page_token
            if not token:
                return jobs

    async def state(self, ref: str | int) -> jobs_pb2.StateResponse:
        """Read a job's state blocks and counters from its switches, now."""
        request = jobs_pb2.StateRequest(job=_ref(ref))
        return await self._call(self._jobs.State(request, timeout=self._timeout_s))

    async def add_switch(self, name: str, address: str, device_id: int = 0) -> switches_pb2.Switch:
        """Keep a switch of the topology programmed at ``HOST:PORT``."""
        request = switches_pb2.AddSwitchRequest(name=name, address=address, device_id=device_id)
        return (await self._call(self._switches.Add(request, timeout=self._timeout_s))).switch

    async def remove_switch(self, name: str) -> None:
        """Stop to keep a switch programmed."""
        request = switches_pb2.RemoveSwitchRequest(name=name)
        await self._call(self._switches.Remove(request, timeout=self._timeout_s))

    async def switches(self) -> list[switches_pb2.Switch]:
        """Return all switches of the topology with their state."""
        request = switches_pb2.ListSwitchesRequest()
        reply = await self._call(self._switches.List(request, timeout=self._timeout_s))
        return list(reply.switches)

    async def wait_programmed(self, ref: str | int, timeout_s: float = 30.0) -> jobs_pb2.Job:
        """Return the job once every switch of its paths is in sync.

        Raises:
            NotProgrammedError: not within ``timeout_s``, or a switch cannot hold the job's rules.
        """
        job = await self.get(ref)
        try:
            async with asyncio.timeout(timeout_s):
                while not _in_sync(_able_phases(job)) or job.problem:
                    await asyncio.sleep(_POLL_S)
                    job = await self.get(ref)
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

    async def wait_switches(
        self, names: Iterable[str] | None = None, timeout_s: float = 30.0
    ) -> list[switches_pb2.Switch]:
        """Return the switches once those named (all, without names) are in sync.

        Raises:
            NotProgrammedError: not within ``timeout_s``.
        """
        wanted = None if names is None else set(names)
        switches: list[switches_pb2.Switch] = []
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    switches = [
                        switch
                        for switch in await self.switches()
                        if wanted is None or switch.name in wanted
                    ]
                    if _in_sync(switch.status.phase for switch in switches):
                        return switches
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            late = "; ".join(
                f"{switch.name} is {phase_text(switch.status.phase)}: "
                f"{switch.status.detail or 'no reason given'}"
                for switch in switches
                if switch.status.phase != switches_pb2.SWITCH_PHASE_IN_SYNC
            )
            raise NotProgrammedError(f"not in sync after {timeout_s:g} s: {late}") from None


def _ref(ref: str | int) -> jobs_pb2.JobRef:
    return jobs_pb2.JobRef(id=ref) if isinstance(ref, int) else jobs_pb2.JobRef(name=ref)


def _in_sync(phases: Iterable[switches_pb2.SwitchPhase]) -> bool:
    return all(phase == switches_pb2.SWITCH_PHASE_IN_SYNC for phase in phases)


def _able_phases(job: jobs_pb2.Job) -> list[switches_pb2.SwitchPhase]:
    return [item.phase for item in job.programming if not item.cannot]


def phase_text(phase: switches_pb2.SwitchPhase) -> str:
    """Return a phase as people and scripts read it, such as ``in sync``."""
    name = switches_pb2.SwitchPhase.Name(phase)
    return name.removeprefix("SWITCH_PHASE_").lower().replace("_", " ")
