"""Clients that register, renew, release and change jobs, whatever happens, and write it down.

A call whose answer was lost is repeated with the same request id until somebody answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from faultrig.fabric import LeafSpine
from faultrig.record import JobFacts, Record
from ringstep.controller.v1 import (
    errors_pb2,
    jobs_pb2,
    jobs_pb2_grpc,
    switches_pb2,
    switches_pb2_grpc,
)

_LOST = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
}
"""Whether the call took effect is not known."""
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
]


@dataclass(frozen=True)
class Answer:
    """What became of a call: ``code`` with ``reply``, or with the reason that came with it."""

    code: grpc.StatusCode
    reply: Any = None
    reason: str = ""
    text: str = ""
    leader: str = ""
    """Who leads, as the controller that was asked says."""

    @property
    def ok(self) -> bool:
        return self.code is grpc.StatusCode.OK

    @property
    def not_leader(self) -> bool:
        """Refused by a candidate that does not lead: nothing happened."""
        return "LEADER" in self.reason or (
            self.code in {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE}
            and "leader" in self.text
        )

    @property
    def lost(self) -> bool:
        return self.code in _LOST or self.not_leader


class Endpoint:
    """Controllers behind one store; calls go to the one that answered last.

    ``wander``: this share goes to any of them, so that one that leads no more is asked as well.
    """

    def __init__(
        self, addresses: list[str], timeout_s: float = 3.0, wander: float = 0.0, seed: int = 0
    ) -> None:
        self.addresses = addresses
        self.timeout_s = timeout_s
        self._wander = wander
        self._random = random.Random(f"{seed}:endpoint")
        self._channels = [grpc.aio.insecure_channel(one, options=_OPTIONS) for one in addresses]
        self._current = 0

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)

    def channel(self, index: int | None = None) -> grpc.aio.Channel:
        return self._channels[self._current if index is None else index]

    async def call(
        self, service: str, method: str, request: Any, *, index: int | None = None,
        timeout_s: float | None = None,
    ) -> Answer:  # fmt: skip
        """Call ``Jobs`` or ``Switches``; after a failure the next call goes elsewhere."""
        asked = self._current if index is None else index
        if index is None and self._random.random() < self._wander:
            asked = self._random.randrange(len(self.addresses))
        stubs: Any = jobs_pb2_grpc.JobsStub if service == "Jobs" else switches_pb2_grpc.SwitchesStub
        stub = stubs(self._channels[asked])
        try:
            reply = await getattr(stub, method)(request, timeout=timeout_s or self.timeout_s)
            return Answer(grpc.StatusCode.OK, reply)
        except grpc.aio.AioRpcError as error:
            problem = _problem(error)
            answer = Answer(
                error.code(),
                None,
                problem.reason,
                error.details() or "",
                problem.metadata.get("leader", ""),
            )
            if answer.lost and index is None and asked == self._current:
                self._current = (asked + 1) % len(self._channels)
            return answer

    async def leader(self, timeout_s: float = 1.0) -> int | None:
        """Return the index of a controller that takes orders, or None."""
        # An order that changes nothing: who does not lead refuses it for another reason.
        request = jobs_pb2.ReleaseRequest(job=jobs_pb2.JobRef(name="nobody"))
        for index in range(len(self.addresses)):
            answer = await self.call("Jobs", "Release", request, index=index, timeout_s=timeout_s)
            if answer.code is grpc.StatusCode.NOT_FOUND and not answer.not_leader:
                return index
        return None

    async def jobs(self, index: int | None = None) -> list[jobs_pb2.Job] | None:
        """Return all live jobs, or None where nobody answers."""
        jobs: list[jobs_pb2.Job] = []
        token = ""
        while True:
            request = jobs_pb2.ListRequest(page_token=token, page_size=500)
            answer = await self.call("Jobs", "List", request, index=index, timeout_s=10)
            if not answer.ok:
                return None
            jobs += answer.reply.jobs
            token = answer.reply.next_page_token
            if not token:
                return jobs

    async def switches(self, index: int | None = None) -> list[switches_pb2.Switch] | None:
        """Return all switches, or None where nobody answers."""
        request = switches_pb2.ListSwitchesRequest()
        answer = await self.call("Switches", "List", request, index=index)
        return list(answer.reply.switches) if answer.ok else None


def _problem(error: grpc.aio.AioRpcError) -> errors_pb2.Problem:
    for key, value in error.trailing_metadata() or ():
        if key == "ringstep-problem-bin":
            with contextlib.suppress(Exception):
                return errors_pb2.Problem.FromString(value)  # type: ignore[arg-type]
    return errors_pb2.Problem()


@dataclass(frozen=True)
class Behaviour:
    """What clients do. Times in seconds; shares are of 1."""

    live_jobs: int = 12
    """Per client, about."""
    think_s: float = 0.04
    """Between two calls, on average."""
    by_pair: float = 0.4
    """Jobs found by address pair; the others by destination QP."""
    leased: float = 0.3
    lease_s: int = 5
    forgotten: float = 0.2
    """Of the leased jobs: nobody renews them."""
    hang_up: float = 0.05
    """Of the registrations: the client goes away in the middle of the call."""
    repeat: float = 0.1
    """Of the answered registrations and releases: sent once more."""


class Client:
    """One client with jobs of its own."""

    def __init__(
        self, number: int, clients: int, endpoint: Endpoint, fabric: LeafSpine, record: Record,
        behaviour: Behaviour, seed: int,
    ) -> None:  # fmt: skip
        self._number = number
        self._endpoint = endpoint
        self._fabric = fabric
        self._record = record
        self._how = behaviour
        self._random = random.Random(f"{seed}:client:{number}")
        self._count = 0
        self._live: list[JobFacts] = []
        self._forgotten: set[str] = set()
        # Rules by address pair belong to one job: hosts are shared out, so that few collide.
        own = fabric.host_names[number::clients]
        self._hosts = own if len(own) >= 2 else fabric.host_names
        self._without: set[str] = set()
        self._give_up = float("inf")

    async def run(self, until: float, give_up: float) -> None:
        """Work until ``until``, finish what was begun, and stop trying at ``give_up``."""
        self._give_up = give_up
        while time.monotonic() < until:
            await self._step()
            await asyncio.sleep(self._random.expovariate(1 / self._how.think_s))

    async def _step(self) -> None:
        now = time.monotonic()
        # Nobody renews these; they end by themselves.
        self._live = [
            one for one in self._live if one.name not in self._forgotten or now < one.lease_end
        ]
        due = self._due_for_renewal()
        if due is not None:
            await self._renew(due)
            return
        full = len(self._live) >= self._how.live_jobs
        steps: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (0.2 if full else 1.0, self._register),
            (0.8 if full else 0.2, self._release),
            (0.2, self._get),
            (0.2, self._update),
            (0.03, self._state),
        ]
        weights = [weight for weight, _ in steps]
        (step,) = self._random.choices([step for _, step in steps], weights)
        await step()

    def _due_for_renewal(self) -> JobFacts | None:
        now = time.monotonic()
        for facts in self._live:
            due = facts.renewed_sent + facts.lease_s / 3
            if facts.lease_s and facts.name not in self._forgotten and now > due:
                return facts
        return None

    async def _call(self, method: str, request: Any) -> Answer:
        answer = await self._endpoint.call("Jobs", method, request)
        self._record.calls[f"{method} {answer.code.name}"] += 1
        return answer

    async def _until_answered(
        self, method: str, request: Any, on_attempt: Callable[[], None] = lambda: None
    ) -> tuple[Answer, int, float]:
        """Repeat a call until its answer is not lost; return it, attempts, and when it was sent."""
        attempts = 0
        while True:
            sent = time.monotonic()
            on_attempt()
            attempts += 1
            answer = await self._call(method, request)
            if not answer.lost or sent > self._give_up:
                return answer, attempts, sent
            await asyncio.sleep(self._random.uniform(0.05, 0.3))

    # -- registering -------------------------------------------------------------------------

    def _spec(self) -> jobs_pb2.JobSpec:
        name = f"c{self._number}-{self._count}"
        spec = jobs_pb2.JobSpec(name=name, marking=jobs_pb2.MARKING_CHOICE_ON)
        if self._random.random() < self._how.leased:
            spec.lease_s = self._how.lease_s
            if self._random.random() < self._how.forgotten:
                self._forgotten.add(name)
        if self._random.random() < self._how.by_pair:
            size = self._random.randint(2, min(4, len(self._hosts)))
            spec.rings.add(hosts=self._random.sample(self._hosts, size))
            spec.match = jobs_pb2.MATCH_KIND_PAIR
            return spec
        ring = self._random.sample(self._fabric.host_names, self._random.randint(2, 4))
        spec.rings.add(hosts=ring)
        spec.match = jobs_pb2.MATCH_KIND_DST_QP
        for index, src in enumerate(ring):
            # 24 bits: client, job, edge; every connection of the run has another one.
            qp = 1 + (self._number << 16 | (self._count << 2 & 0xFFFC) | index)
            spec.queue_pairs.add(src=src, dst=ring[(index + 1) % len(ring)], dest_qp=qp)
        return spec

    async def _register(self) -> None:
        self._count += 1
        spec = self._spec()
        facts = JobFacts(spec.name, f"request-{self._number}-{self._count}", spec, time.monotonic())
        self._record.open(facts)
        request = jobs_pb2.RegisterRequest(request_id=facts.request_id, spec=spec)
        if self._random.random() < self._how.hang_up:
            await self._hang_up(request, facts)
            if self._random.random() < 0.5:
                return

        def count() -> None:
            facts.attempts += 1

        answer, _, sent = await self._until_answered("Register", request, count)
        if answer.ok:
            self._record.granted(facts, answer.reply.job, sent, time.monotonic())
            self._live.append(facts)
            if not facts.lease_s:
                self._forgotten.discard(facts.name)
            if self._random.random() < self._how.repeat:
                await self._register_again(request, facts)
        elif not answer.lost and facts.attempts == 1:
            # After a lost answer a refusal says little: an earlier attempt may still be under way.
            facts.refused = True

    async def _register_again(self, request: jobs_pb2.RegisterRequest, facts: JobFacts) -> None:
        answer, _, sent = await self._until_answered("Register", request)
        if answer.ok:
            self._record.granted(facts, answer.reply.job, sent, time.monotonic())
        elif not answer.lost and time.monotonic() < facts.promised_until:
            self._record.violations.append(
                f"request {facts.request_id} of {facts} repeated: {answer.code.name} "
                f"({answer.text})"
            )

    async def _hang_up(self, request: jobs_pb2.RegisterRequest, facts: JobFacts) -> None:
        facts.attempts += 1
        call = asyncio.create_task(self._endpoint.call("Jobs", "Register", request))
        await asyncio.sleep(self._random.uniform(0, 0.02))
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        self._record.calls["Register HUNG_UP"] += 1

    # -- living jobs -------------------------------------------------------------------------

    def _any_live(self) -> JobFacts | None:
        candidates = [one for one in self._live if one.name not in self._forgotten]
        return self._random.choice(candidates) if candidates else None

    def _ref(self, facts: JobFacts) -> jobs_pb2.JobRef:
        if self._random.random() < 0.5:
            return jobs_pb2.JobRef(name=facts.name, generation=facts.generation)
        return jobs_pb2.JobRef(id=facts.job_id, generation=facts.generation)

    def _gone(self, facts: JobFacts, call: str) -> None:
        self._record.not_found(facts, call, time.monotonic())
        self._live.remove(facts)

    async def _release(self) -> None:
        facts = self._any_live()
        if facts is None:
            return
        if facts.lease_s and self._random.random() < 0.7:
            # These live longer, or hardly any would need to be renewed.
            await self._renew(facts)
            return
        request = jobs_pb2.ReleaseRequest(job=self._ref(facts))
        promised = facts.promised_until
        facts.release_sent = min(facts.release_sent, time.monotonic())
        answer, attempts, sent = await self._until_answered("Release", request)
        if answer.lost:
            return
        self._live.remove(facts)
        gone = answer.code in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION}
        if answer.ok or (gone and (attempts > 1 or sent >= promised)):
            facts.released = time.monotonic()
        else:
            self._record.violations.append(
                f"Release: {facts} is acknowledged, answer {answer.code.name} ({answer.text})"
            )
        if answer.ok and self._random.random() < self._how.repeat:
            again, attempts, _ = await self._until_answered("Release", request)
            if again.ok and attempts == 1:
                self._record.violations.append(f"Release: {facts} was released twice")

    async def _renew(self, facts: JobFacts) -> None:
        request = jobs_pb2.RenewRequest(job=self._ref(facts))
        answer, _, sent = await self._until_answered("Renew", request)
        if answer.ok:
            facts.renewed_sent, facts.is_renewed = sent, True
            facts.lease_s = float(answer.reply.job.lease_s)
        elif not answer.lost:
            self._gone(facts, "Renew")

    async def _get(self) -> None:
        facts = self._any_live()
        if facts is None:
            return
        answer = await self._call("Get", jobs_pb2.GetRequest(job=self._ref(facts)))
        if answer.code is grpc.StatusCode.NOT_FOUND and not answer.not_leader:
            self._gone(facts, "Get")
        elif answer.ok:
            self._record.seen(facts, answer.reply.job)

    async def _update(self) -> None:
        facts = self._any_live()
        if facts is None or "UpdateParameters" in self._without:
            return
        k = self._random.randrange(1, 4096) / 65536
        request = jobs_pb2.UpdateParametersRequest(
            job=self._ref(facts), changes=jobs_pb2.MarkerOverrides(k=k)
        )
        facts.k_open = True
        answer, _, _ = await self._until_answered("UpdateParameters", request)
        if answer.code is grpc.StatusCode.UNIMPLEMENTED:
            self._without.add("UpdateParameters")
            facts.k_open = False
        elif answer.ok:
            facts.k, facts.k_open = k, False
        elif answer.code is grpc.StatusCode.NOT_FOUND and not answer.lost:
            self._gone(facts, "UpdateParameters")

    async def _state(self) -> None:
        facts = self._any_live()
        if facts is not None:
            await self._call("State", jobs_pb2.StateRequest(job=self._ref(facts)))


class Watcher:
    """Follows Jobs.Watch, and opens it anew when it breaks; ``view`` is what it then knows.

    A reader may miss states in between, never the last one: at rest ``view`` is what List says.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.view: dict[str, tuple[int, int]] = {}
        """Job_ID and generation by name."""
        self.synced = False
        """Whether the stream is open and its snapshot complete."""
        self.implemented = True

    async def run(self) -> None:
        """Follow until cancelled, or until the controller says that it has no Watch."""
        index = 0
        while self.implemented:
            stub = jobs_pb2_grpc.JobsStub(self._endpoint.channel(index))
            call = stub.Watch(jobs_pb2.WatchRequest())
            try:
                await self._follow(call)
            except grpc.aio.AioRpcError as error:
                self.implemented = error.code() is not grpc.StatusCode.UNIMPLEMENTED
                # Of several controllers only the one that leads lets itself be watched.
                index = (index + 1) % len(self._endpoint.addresses)
            finally:
                self.synced = False
                call.cancel()
            await asyncio.sleep(0.2)

    async def _follow(self, call: Any) -> None:
        self.view = {}
        while (event := await call.read()) is not grpc.aio.EOF:
            name = event.job.spec.name
            match event.kind:
                case jobs_pb2.JOB_EVENT_KIND_SYNCED:
                    self.synced = True
                case jobs_pb2.JOB_EVENT_KIND_RELEASED | jobs_pb2.JOB_EVENT_KIND_EXPIRED:
                    self.view.pop(name, None)
                case _:
                    self.view[name] = (event.job.id, event.job.generation)


async def stalled_watcher(endpoint: Endpoint, until: float) -> None:
    """Open a Watch stream and never read it; open another one when it breaks."""
    while time.monotonic() < until:
        call = jobs_pb2_grpc.JobsStub(endpoint.channel()).Watch(jobs_pb2.WatchRequest())
        try:
            done = asyncio.create_task(call.code())
            await asyncio.wait({done}, timeout=max(0.0, until - time.monotonic()))
            if done.done() and done.result() is grpc.StatusCode.UNIMPLEMENTED:
                return
            done.cancel()
        finally:
            call.cancel()
        await asyncio.sleep(0.5)
