"""A fault run: clients work while their controller, switches, store, disk and clock fail.

At the end nothing that was promised may be missing, and every switch must hold exactly what the
live jobs ask for. :func:`run` is the engine of the tests beside it and of
``bench/controller_faults.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from faultrig import clock as clock_rig
from faultrig import database as database_rig
from faultrig import disk as disk_rig
from faultrig.clients import Behaviour, Client, Endpoint, Watcher, stalled_watcher
from faultrig.fabric import LeafSpine
from faultrig.faults import FAULTS
from faultrig.judging import judge_list, judge_switches
from faultrig.processes import RigError
from faultrig.reading import ReadError
from faultrig.record import Record, judge_record, reused
from faultrig.rig import QUICK_P4RUNTIME, Rig, RigPlan, in_sync, wait_in_sync

from ringstep.controller.v1 import jobs_pb2

Say = Callable[[str], None]


@dataclass(frozen=True)
class FaultPlan:
    """A run. The same seed gives the same schedule and the same wishes of the clients; what they
    meet is up to the machine.

    Times in seconds. ``kinds``: names of :data:`faultrig.faults.FAULTS`; each that the rig can have
    happens at least once where ``duration_s`` has room for it, one about every ``every_s``.
    ``settings``: end of controller.toml. ``restarts``: restart the controller at the end and look
    again. ``past``: all Job_IDs and blocks were used before the run, so that each hand-out is a
    reuse. ``forked``: see :class:`faultrig.processes.Child`.
    """

    seed: int = 1
    duration_s: float = 25.0
    every_s: float = 2.0
    settle_s: float = 60.0
    store: str = "sqlite"
    candidates: int = 0
    """0: two on PostgreSQL, one on SQLite."""
    fabric: LeafSpine = field(default_factory=lambda: LeafSpine(tors=2, spines=2, hosts=12))
    clients: int = 4
    stalled_watchers: int = 2
    kinds: tuple[str, ...] = tuple(FAULTS)
    settings: str = QUICK_P4RUNTIME
    behaviour: Behaviour = field(default_factory=Behaviour)
    restarts: bool = True
    past: bool = True
    forked: bool = False

    def rig_plan(self) -> RigPlan:
        """Return the rig that the run needs here."""
        sqlite = self.store == "sqlite"
        return RigPlan(
            fabric=self.fabric,
            store=self.store,
            candidates=self.candidates or (1 if sqlite else 2),
            settings=self.settings,
            small_disk_mib=24 if sqlite and not disk_rig.why_not() else 0,
            stepped_clocks=not clock_rig.why_not(),
            # A process that is killed takes nothing from the system's cache with it.
            fsync=False,
            past=self.seed if self.past else None,
            forked=self.forked,
        )


@dataclass
class Report:
    """What a run did and found; ``wrong`` is empty where every promise was kept."""

    seed: int
    store: str
    candidates: int
    wrong: list[str] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    not_done: dict[str, str] = field(default_factory=dict)
    """Kinds of faults that this rig cannot have, and why."""
    calls: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    exits: list[str] = field(default_factory=list)
    """Controllers that ended by themselves, with what they said last; they were started again."""
    entries: dict[str, int] = field(default_factory=dict)
    """Entries per switch at the end."""
    settle_s: float = 0.0
    """From the end of the last fault until all was right."""
    wall_s: float = 0.0


def schedule(plan: FaultPlan, kinds: list[str]) -> list[tuple[float, str, int]]:
    """Return (seconds from the start, kind, seed of its own) in order of time."""
    rng = random.Random(f"{plan.seed}:schedule")
    count = max(1, int(plan.duration_s / plan.every_s))
    chosen: list[str] = []
    while len(chosen) < count:
        chosen += rng.sample(kinds, len(kinds))
    # One per slot, so that they meet each other without all coming at once.
    slot = 0.9 * plan.duration_s / count
    return [
        ((number + rng.random()) * slot, kind, rng.getrandbits(32))
        for number, kind in enumerate(chosen[:count])
    ]


def why_not(plan: FaultPlan) -> str:
    """Return why a plan cannot be run on this machine; empty where it can."""
    return database_rig.why_not() if plan.store == "postgresql" else ""


async def run(plan: FaultPlan, folder: Path, say: Say = lambda _text: None) -> Report:
    """Run a plan in a folder of its own.

    Raises:
        RigError: the rig cannot be set up, which says nothing about the controller.
    """
    started = time.monotonic()
    rig_plan = plan.rig_plan()
    report = Report(plan.seed, plan.store, rig_plan.candidates)
    kinds = []
    for kind in plan.kinds:
        if reason := FAULTS[kind].needs(rig_plan):
            report.not_done[kind] = reason
        else:
            kinds.append(kind)
    record = Record()
    async with Rig(rig_plan, folder) as rig:
        record.used = rig.used
        endpoint = rig.endpoint(wander=0.1, seed=plan.seed)
        try:
            try:
                await wait_in_sync(endpoint, plan.fabric.switches)
            except TimeoutError as error:
                raise RigError(f"never in sync: {error}\n{rig.controllers[0].tail()}") from None
            say(f"{len(rig.switches)} switches in sync, {len(kinds)} kinds of faults")
            watcher = Watcher(endpoint)
            aside = [
                asyncio.create_task(_supervise(rig, report, say)),
                asyncio.create_task(watcher.run()),
            ]
            look = partial(_look, plan, rig, endpoint, record, report, watcher)
            try:
                await _turmoil(plan, rig, endpoint, record, report, kinds, say)
                say("settling")
                report.settle_s = await _settle(plan, report, look)
                if plan.restarts and not report.wrong:
                    say("restarting the controller and looking again")
                    await _restart_all(rig)
                    await _settle(plan, report, look)
            finally:
                for task in aside:
                    task.cancel()
                await asyncio.gather(*aside, return_exceptions=True)
                if not watcher.implemented:
                    report.not_done["watch"] = "the controller has no Jobs.Watch"
        finally:
            await endpoint.close()
            report.calls = dict(sorted(record.calls.items()))
            report.jobs = _counts(record)
    report.wall_s = round(time.monotonic() - started, 1)
    return report


async def _turmoil(
    plan: FaultPlan, rig: Rig, endpoint: Endpoint, record: Record, report: Report,
    kinds: list[str], say: Say,
) -> None:  # fmt: skip
    start = time.monotonic()
    until = start + plan.duration_s
    give_up = until + plan.settle_s

    async def fault(at: float, kind: str, seed: int) -> None:
        await asyncio.sleep(max(0.0, start + at - time.monotonic()))
        begun = time.monotonic()
        detail = await FAULTS[kind].do(rig, endpoint, random.Random(seed))
        entry = {
            "at_s": round(begun - start, 2),
            "healed_s": round(time.monotonic() - start, 2),
            "kind": kind,
            "detail": detail,
        }
        report.faults.append(entry)
        say(f"{entry['at_s']:7.2f} s  {kind}: {detail}")

    async with asyncio.TaskGroup() as tasks:
        for number in range(plan.clients):
            client = Client(
                number, plan.clients, endpoint, plan.fabric, record, plan.behaviour, plan.seed
            )
            tasks.create_task(client.run(until, give_up))
        for _ in range(plan.stalled_watchers):
            tasks.create_task(stalled_watcher(endpoint, until))
        if kinds:
            for at, kind, seed in schedule(plan, kinds):
                tasks.create_task(fault(at, kind, seed))


async def _supervise(rig: Rig, report: Report, say: Say) -> None:
    """Start controllers that ended by themselves again, as a service manager does."""
    while True:
        for controller in rig.controllers:
            lock = rig.locks[controller.name]
            if controller.alive or lock.locked():
                continue
            async with lock:
                last = controller.tail(3)
                report.exits.append(f"{controller.name}: {last}")
                say(f"{controller.name} ended by itself: {last}")
                controller.start()
        await asyncio.sleep(1.0)


async def _restart_all(rig: Rig) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for controller in rig.controllers:
            await stack.enter_async_context(rig.locks[controller.name])
        for controller in rig.controllers:
            await asyncio.to_thread(controller.kill)
        for controller in rig.controllers:
            controller.start()
        for controller in rig.controllers:
            await asyncio.to_thread(rig.wait_up, controller)


async def _settle(
    plan: FaultPlan, report: Report, look: Callable[[float], Awaitable[list[str]]]
) -> float:
    """Look until nothing is wrong any more, or the patience ends; return the seconds it took."""
    start = time.monotonic()
    while True:
        wrong = await look(start)
        took = time.monotonic() - start
        if not wrong or took > plan.settle_s:
            report.wrong += wrong
            return round(took, 2)
        await asyncio.sleep(0.3)


async def _look(
    plan: FaultPlan, rig: Rig, endpoint: Endpoint, record: Record, report: Report,
    watcher: Watcher, since: float,
) -> list[str]:  # fmt: skip
    leader = await endpoint.leader(timeout_s=5.0)
    if leader is None:
        return ["no controller takes orders"]
    late = await in_sync(endpoint, plan.fabric.switches, leader)
    jobs = await endpoint.jobs(leader)
    if late or jobs is None:
        return [*(late or ["List is not answered"]), *record.violations]
    try:
        held = await rig.read_all()
    except ReadError as error:
        return [str(error)]
    report.entries = {name: contents.size for name, contents in held.items()}
    again = await endpoint.jobs(leader)
    if again is None or _identity(again) != _identity(jobs):
        return ["the list of jobs is still changing"]
    return [
        *judge_record(record, jobs, time.monotonic(), since),
        *judge_list(plan.fabric, jobs),
        *judge_switches(plan.fabric, jobs, held),
        *await _other_controllers(endpoint, leader, jobs),
        *_watched(watcher, jobs),
    ]


def _watched(watcher: Watcher, jobs: list[jobs_pb2.Job]) -> list[str]:
    """Who watched all the time knows what List says now."""
    if not watcher.implemented:
        return []
    if not watcher.synced:
        return ["Watch: no snapshot yet"]
    listed = {job.spec.name: (job.id, job.generation) for job in jobs}
    return [
        f"Watch: {name} is {watcher.view.get(name)}, List says {listed.get(name)}"
        for name in watcher.view.keys() | listed.keys()
        if watcher.view.get(name) != listed.get(name)
    ]


def _identity(jobs: list[jobs_pb2.Job]) -> list[tuple[int, int, str]]:
    return [(job.id, job.generation, job.spec.name) for job in jobs]


async def _other_controllers(
    endpoint: Endpoint, leader: int, jobs: list[jobs_pb2.Job]
) -> list[str]:
    """A controller that does not lead may refuse to answer, but not answer something else."""
    wrong = []
    for index in range(len(endpoint.addresses)):
        if index != leader:
            other = await endpoint.jobs(index)
            if other is not None and _identity(other) != _identity(jobs):
                wrong.append(f"controllers {leader + 1} and {index + 1} list different jobs")
    return wrong


def _counts(record: Record) -> dict[str, int]:
    facts = record.jobs.values()
    infinity = float("inf")
    return {
        "asked_for": len(facts),
        "acknowledged": sum(one.is_acknowledged for one in facts),
        "refused": sum(one.refused for one in facts),
        "released": sum(one.released < infinity for one in facts),
        "leased": sum(bool(one.lease_s) for one in facts),
        "registered_in_several_attempts": sum(
            one.is_acknowledged and one.attempts > 1 for one in facts
        ),
        "job_ids_used_again": reused(record),
    }
