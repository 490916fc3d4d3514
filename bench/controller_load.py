"""Load on a controller, from a process of its own: ``bench/controller.py`` starts it.

Reads one JSON object of settings from standard input, loads the controller with Register and
Release over several channels, and writes what it measured as one JSON object to standard output.

Open loop: requests have times of their own, whatever the answers do; at most ``in_flight`` are
under way at once, and one that must wait for that counts from its time. Closed loop (``rate`` 0):
``in_flight`` callers, each with its next request as soon as it has an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from ringstep.controller.v1 import jobs_pb2, jobs_pb2_grpc, switches_pb2

OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
]
_IN_SYNC = switches_pb2.SWITCH_PHASE_IN_SYNC


@dataclass(frozen=True)
class Settings:
    """What to do; times in seconds.

    A job is a ring of ``ring`` hosts in ``racks`` racks, with ``channels_per_edge`` connections
    from each host to the next, found by destination QP. ``hosts`` are names by rack. ``cycle``:
    release each job as soon as it is registered. ``programmed``: "watch", "poll", "auto" or "no";
    one job in ``sample`` is followed until all its switches are in sync.
    """

    target: str
    hosts: list[list[str]]
    rate: float = 0.0
    seconds: float = 10.0
    count: int = 0
    """Registrations at most; 0: as many as fit into ``seconds``."""
    in_flight: int = 256
    channels: int = 4
    ring: int = 4
    racks: int = 2
    channels_per_edge: int = 1
    cycle: bool = False
    programmed: str = "no"
    sample: int = 10
    settle_s: float = 120.0
    first: int = 0
    """Number of the first job: names and QPs of one store must not repeat."""
    seed: int = 1
    timeout_s: float = 30.0


@dataclass
class Measured:
    """Times in seconds; those of answers and rules count from a request's own time."""

    stored: list[float] = field(default_factory=list)
    released: list[float] = field(default_factory=list)
    programmed: list[float] = field(default_factory=list)
    sent: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    started: float = 0.0
    ended: float = 0.0
    """When the last answer to Register came."""
    generations_kept: int = 0
    """Times that a Job_ID came again with the generation that it had before; must be 0."""
    not_programmed: int = 0
    programmed_by: str = "no"
    cpu_s: float = 0.0


class Load:
    """One run."""

    def __init__(self, settings: Settings) -> None:
        self._how = settings
        self._random = random.Random(settings.seed)
        self._stubs: list[Any] = []
        self._numbers = itertools.count(settings.first)
        self._followed: dict[int, float] = {}
        self._generation: dict[int, int] = {}
        self._found = Measured()

    async def run(self) -> Measured:
        """Load the controller, follow the sampled jobs to their end, and return the figures."""
        # Channels belong to the event loop that they are opened on.
        channels = [
            grpc.aio.insecure_channel(self._how.target, options=OPTIONS)
            for _ in range(self._how.channels)
        ]
        self._stubs = [jobs_pb2_grpc.JobsStub(channel) for channel in channels]
        follower = await self._start_follower()
        try:
            cpu = time.process_time()
            self._found.started = time.monotonic()
            if self._how.rate:
                await self._open_loop()
            else:
                await self._closed_loop()
            self._found.cpu_s = time.process_time() - cpu
            if follower is not None:
                await self._wait_followed(follower)
        finally:
            if follower is not None:
                follower.cancel()
                await asyncio.gather(follower, return_exceptions=True)
            for channel in channels:
                await channel.close(None)
        return self._found

    # -- load --------------------------------------------------------------------------------

    async def _open_loop(self) -> None:
        gate = asyncio.Semaphore(self._how.in_flight)
        total = self._how.count or int(self._how.rate * self._how.seconds)
        start = self._found.started
        async with asyncio.TaskGroup() as tasks:
            for index in range(total):
                due = start + index / self._how.rate
                if (early := due - time.monotonic()) > 0:
                    await asyncio.sleep(early)
                await gate.acquire()
                task = tasks.create_task(self._one(due))
                task.add_done_callback(lambda _: gate.release())

    async def _closed_loop(self) -> None:
        end = self._found.started + self._how.seconds
        left = itertools.count()
        limit = self._how.count or sys.maxsize

        async def caller() -> None:
            while time.monotonic() < end and next(left) < limit:
                await self._one(time.monotonic())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._how.in_flight):
                tasks.create_task(caller())

    async def _one(self, due: float) -> None:
        number = next(self._numbers)
        stub = self._stubs[number % len(self._stubs)]
        request = self._request(number)
        self._found.sent += 1
        try:
            reply = await stub.Register(request, timeout=self._how.timeout_s)
        except grpc.aio.AioRpcError as error:
            self._error("Register", error)
            return
        now = time.monotonic()
        self._found.stored.append(now - due)
        self._found.ended = max(self._found.ended, now)
        job = reply.job
        if self._generation.get(job.id) == job.generation:
            self._found.generations_kept += 1
        self._generation[job.id] = job.generation
        if self._found.programmed_by != "no" and number % self._how.sample == 0:
            self._followed[job.id] = due
            self._see(job)
        if self._how.cycle:
            due = time.monotonic()
            try:
                await stub.Release(
                    jobs_pb2.ReleaseRequest(
                        job=jobs_pb2.JobRef(id=job.id, generation=job.generation)
                    ),
                    timeout=self._how.timeout_s,
                )
                self._found.released.append(time.monotonic() - due)
            except grpc.aio.AioRpcError as error:
                self._error("Release", error)

    def _error(self, call: str, error: grpc.aio.AioRpcError) -> None:
        what = f"{call} {error.code().name}: {(error.details() or '')[:120]}"
        self._found.errors[what] = self._found.errors.get(what, 0) + 1

    def _request(self, number: int) -> jobs_pb2.RegisterRequest:
        how = self._how
        racks = self._random.sample(how.hosts, how.racks)
        ring = [
            host
            for index, rack in enumerate(racks)
            for host in self._random.sample(
                rack, how.ring // how.racks + (index < how.ring % how.racks)
            )
        ]
        spec = jobs_pb2.JobSpec(
            name=f"load-{number}",
            match=jobs_pb2.MATCH_KIND_DST_QP,
            marking=jobs_pb2.MARKING_CHOICE_ON,
        )
        spec.rings.add(hosts=ring)
        connections = len(ring) * how.channels_per_edge
        for index in range(connections):
            src = index % len(ring)
            spec.queue_pairs.add(
                src=ring[src],
                dst=ring[(src + 1) % len(ring)],
                # 24 bits; the numbers of one job lie next to each other.
                dest_qp=1 + (number * connections + index) % ((1 << 24) - 1),
            )
        return jobs_pb2.RegisterRequest(request_id=f"load-{number}", spec=spec)

    # -- rules -------------------------------------------------------------------------------

    async def _start_follower(self) -> asyncio.Task[None] | None:
        if self._how.programmed == "no":
            return None
        by = self._how.programmed
        if by in {"watch", "auto"}:
            by = "watch" if await self._can_watch() else "poll"
            if self._how.programmed == "watch" and by == "poll":
                raise SystemExit("the controller does not answer Jobs.Watch")
        self._found.programmed_by = by
        return asyncio.create_task(self._watch() if by == "watch" else self._poll())

    async def _can_watch(self) -> bool:
        call = self._stubs[0].Watch(jobs_pb2.WatchRequest(), timeout=self._how.timeout_s)
        try:
            async for event in call:
                if event.kind == jobs_pb2.JOB_EVENT_KIND_SYNCED:
                    return True
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
        finally:
            call.cancel()
        return False

    def _see(self, job: jobs_pb2.Job) -> None:
        due = self._followed.get(job.id)
        if due is None:
            return
        phases = [one.phase for one in job.programming if not one.cannot]
        if phases and all(phase == _IN_SYNC for phase in phases):
            del self._followed[job.id]
            self._found.programmed.append(time.monotonic() - due)

    async def _watch(self) -> None:
        # A channel of its own, so that events do not wait behind answers.
        async with grpc.aio.insecure_channel(self._how.target, options=OPTIONS) as channel:
            async for event in jobs_pb2_grpc.JobsStub(channel).Watch(jobs_pb2.WatchRequest()):
                if event.HasField("job"):
                    self._see(event.job)

    async def _poll(self) -> None:
        while True:
            # Oldest first: their rules come first.
            for job_id in list(self._followed)[:20]:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    request = jobs_pb2.GetRequest(job=jobs_pb2.JobRef(id=job_id))
                    reply = await self._stubs[0].Get(request, timeout=self._how.timeout_s)
                    self._see(reply.job)
            await asyncio.sleep(0.02)

    async def _wait_followed(self, follower: asyncio.Task[None]) -> None:
        end = time.monotonic() + self._how.settle_s
        while self._followed and time.monotonic() < end and not follower.done():
            await asyncio.sleep(0.02)
        self._found.not_programmed = len(self._followed)


def main() -> None:
    settings = Settings(**json.load(sys.stdin))
    found: Any = asyncio.run(Load(settings).run())
    json.dump(vars(found), sys.stdout)


if __name__ == "__main__":
    main()
