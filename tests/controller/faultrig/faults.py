"""What is done to a running rig. Every fault heals what it broke before it returns."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from finsy.proto import p4r

from faultrig import clock as clock_rig
from faultrig import disk as disk_rig
from faultrig.clients import Endpoint
from faultrig.disk import SmallDisk
from faultrig.fabric import LeafSpine
from faultrig.processes import ControllerProcess, RigError
from faultrig.reading import Intruder, ReadError
from faultrig.rig import Rig, RigPlan
from ringstep.controller.v1 import switches_pb2

Do = Callable[[Rig, Endpoint, random.Random], Awaitable[str]]


@dataclass(frozen=True)
class Fault:
    """One kind of fault. ``needs`` says why a rig cannot have it, or nothing."""

    do: Do
    needs: Callable[[RigPlan], str] = lambda _plan: ""


async def _leader(rig: Rig, endpoint: Endpoint, rng: random.Random) -> ControllerProcess:
    index = await endpoint.leader()
    return rig.controllers[rng.randrange(len(rig.controllers)) if index is None else index]


async def _start(rig: Rig, controller: ControllerProcess) -> None:
    controller.start()
    # It may end again, because of another fault: then it is started again, see the run.
    with contextlib.suppress(RigError):
        await asyncio.to_thread(rig.wait_up, controller)


async def kill_controller(rig: Rig, endpoint: Endpoint, rng: random.Random) -> str:
    """kill -9 of the controller that leads; it is started again after a while."""
    pause = rng.uniform(0.0, 1.0)
    controller = await _leader(rig, endpoint, rng)
    async with rig.locks[controller.name]:
        await asyncio.to_thread(controller.kill)
        await asyncio.sleep(pause)
        await _start(rig, controller)
    return f"{controller.name}, away {pause:.1f} s"


async def kill_candidate(rig: Rig, endpoint: Endpoint, rng: random.Random) -> str:
    """kill -9 of a controller that only waits."""
    leader = await _leader(rig, endpoint, rng)
    waiting = rng.choice([one for one in rig.controllers if one is not leader])
    async with rig.locks[waiting.name]:
        await asyncio.to_thread(waiting.kill)
        await _start(rig, waiting)
    return waiting.name


async def stop_controller(rig: Rig, endpoint: Endpoint, rng: random.Random) -> str:
    """SIGSTOP of the controller that leads; when it wakes up another one leads.

    A process that hangs keeps its lock in the database until that gives its connections up, after
    minutes; here at once.
    """
    pause = rng.uniform(1.0, 2.0) if len(rig.controllers) == 1 else rng.uniform(3.0, 8.0)
    controller = await _leader(rig, endpoint, rng)
    async with rig.locks[controller.name]:
        controller.signal(signal.SIGSTOP)
        try:
            if rig.database is not None and len(rig.controllers) > 1:
                await asyncio.to_thread(drop_connections, rig, controller)
            await asyncio.sleep(pause)
        finally:
            controller.signal(signal.SIGCONT)
    return f"{controller.name}, stopped {pause:.1f} s"


def drop_connections(rig: Rig, controller: ControllerProcess) -> None:
    """Have the database give up the connections of a controller, if it runs just now."""
    assert rig.database is not None, "this rig has a database server"
    with contextlib.suppress(Exception):
        rig.database.drop_connections(controller.pid)


async def kill_switch(rig: Rig, _endpoint: Endpoint, rng: random.Random) -> str:
    """kill -9 of a switch; it comes back empty."""
    name, pause = rng.choice(list(rig.switches)), rng.uniform(0.0, 1.0)
    async with rig.locks[name]:
        switch = rig.switches[name]
        await asyncio.to_thread(switch.kill)
        await asyncio.sleep(pause)
        switch.start()
        await asyncio.to_thread(switch.wait_ready)
    return f"{name}, away {pause:.1f} s"


async def stop_switch(rig: Rig, _endpoint: Endpoint, rng: random.Random) -> str:
    """SIGSTOP of a switch: its connections stay open, and nobody answers."""
    name, pause = rng.choice(list(rig.switches)), rng.uniform(1.0, 4.0)
    async with rig.locks[name]:
        rig.switches[name].signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(pause)
        finally:
            rig.switches[name].signal(signal.SIGCONT)
    return f"{name}, stopped {pause:.1f} s"


async def kill_database(rig: Rig, _endpoint: Endpoint, rng: random.Random) -> str:
    """kill -9 of the database server; it recovers from its log."""
    assert rig.database is not None, "this rig has a database server"
    pause = rng.uniform(0.0, 1.5)
    async with rig.locks["database"]:
        await asyncio.to_thread(rig.database.kill)
        await asyncio.sleep(pause)
        await asyncio.to_thread(rig.database.start)
    return f"away {pause:.1f} s"


async def stop_database(rig: Rig, _endpoint: Endpoint, rng: random.Random) -> str:
    """SIGSTOP of the database server: its connections stay open, and it says nothing."""
    assert rig.database is not None, "this rig has a database server"
    pause = rng.uniform(1.0, 6.0)
    async with rig.locks["database"]:
        with rig.database.hanging():
            await asyncio.sleep(pause)
    return f"stopped {pause:.1f} s"


async def fill_disk(rig: Rig, _endpoint: Endpoint, rng: random.Random) -> str:
    """Not a byte is left on the disk that SQLite's file lies on."""
    assert rig.disk is not None, "this rig has a small disk"
    pause = rng.uniform(2.0, 3.5)
    async with rig.locks["disk"]:
        await asyncio.to_thread(_fill, rig.disk)
        try:
            await asyncio.sleep(pause)
        finally:
            rig.disk.free()
    return f"full for {pause:.1f} s"


def _fill(disk: SmallDisk) -> None:
    # SQLite writes over what its log holds already, however full the disk is: give that back.
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(disk.path / "store.db", timeout=1.0)) as connection,
    ):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    disk.fill()


async def step_clock(rig: Rig, _endpoint: Endpoint, rng: random.Random) -> str:
    """The wall clock of a controller jumps, by minutes to days, back or ahead."""
    index = rng.randrange(len(rig.clocks))
    seconds = rng.choice([-1, 1]) * rng.choice([60, 3600, 86400, 40 * 86400])
    rig.clocks[index].step(seconds)
    return f"controller{index + 1} by {seconds} s"


async def foreign_writes(rig: Rig, _endpoint: Endpoint, rng: random.Random) -> str:
    """Somebody else becomes primary, adds entries, deletes and changes ours, and goes."""
    name = rng.choice(list(rig.switches))
    async with rig.locks[name]:
        return f"{name}: {await asyncio.to_thread(_write_as_intruder, rig, name, rng)}"


def _write_as_intruder(rig: Rig, name: str, rng: random.Random) -> str:
    switch, names = rig.switches[name], rig.names
    updates = [
        (
            p4r.Update.INSERT,
            names.entry(
                "job_by_dst_qp",
                {"dst_addr": rng.getrandbits(32), "dst_qp": rng.getrandbits(24)},
                "set_job",
                job=rng.randint(1, 16383),
                path_id=0,
            ),
        )
        for _ in range(3)
    ]
    try:
        with Intruder(switch.address, switch.device_id, names) as intruder:
            default = p4r.TableEntry(
                table_id=names.table_ids["switch_config"], is_default_action=True
            )
            default.action.CopyFrom(
                names.entry("switch_config", {}, "set_switch", ecmp_seed=rng.getrandbits(32)).action
            )
            updates.append((p4r.Update.MODIFY, default))
            for table in ("route_v4", "job_params", "block_map", "job_by_dst_qp", "job_by_pair"):
                entries = intruder.entries(table)
                for entry in rng.sample(entries, min(2, len(entries))):
                    updates.append((p4r.Update.DELETE, entry))
            for entry in intruder.entries("red")[:1]:
                params = entry.action.action.params
                params[0].value = b"\x07"
                updates.append((p4r.Update.MODIFY, entry))
            intruder.write(updates)
    except ReadError as error:
        return f"not written ({error})"
    return f"{len(updates)} updates"


async def wipe_pipeline(rig: Rig, _endpoint: Endpoint, rng: random.Random) -> str:
    """Somebody else loads a program under another cookie, which empties the switch."""
    name = rng.choice(list(rig.switches))
    switch = rig.switches[name]

    def wipe() -> str:
        try:
            with Intruder(switch.address, switch.device_id, rig.names) as intruder:
                intruder.load_program(rng.getrandbits(63))
        except ReadError as error:
            return f"not wiped ({error})"
        return "wiped"

    async with rig.locks[name]:
        return f"{name}: {await asyncio.to_thread(wipe)}"


async def drain_switch(rig: Rig, endpoint: Endpoint, rng: random.Random) -> str:
    """A spine is drained, and comes back; jobs are led around it meanwhile."""
    name, pause = rng.choice(rig.plan.fabric.spine_names), rng.uniform(0.5, 3.0)

    def order(drained: bool) -> switches_pb2.DrainRequest:
        return switches_pb2.DrainRequest(name=name, drained=drained)

    # Two at once might leave racks without any way.
    async with rig.locks["paths"]:
        try:
            said = await _ordered(endpoint, "Drain", order(True), tries=3)
            await asyncio.sleep(pause)
        finally:
            await _ordered(endpoint, "Drain", order(False))
    return f"{name} for {pause:.1f} s{said}"


async def lose_link(rig: Rig, endpoint: Endpoint, rng: random.Random) -> str:
    """A link between ToR and spine is said to be down, and up again."""
    fabric, pause = rig.plan.fabric, rng.uniform(0.5, 3.0)
    tor = rng.choice(fabric.tor_names)
    port = rng.choice(sorted(fabric.ports_towards(tor, fabric.rack(_other(fabric, tor))[0])))

    def order(up: bool) -> switches_pb2.SetLinkRequest:
        return switches_pb2.SetLinkRequest(switch=tor, port=port, up=up)

    async with rig.locks["paths"]:
        try:
            said = await _ordered(endpoint, "SetLink", order(False), tries=3)
            await asyncio.sleep(pause)
        finally:
            await _ordered(endpoint, "SetLink", order(True))
    return f"{tor}:{port} for {pause:.1f} s{said}"


def _other(fabric: LeafSpine, tor: str) -> str:
    return next(name for name in fabric.tor_names if name != tor)


async def _ordered(endpoint: Endpoint, method: str, request: Any, tries: int = 200) -> str:
    """Repeat an order until a controller carries it out; return what it said where none did."""
    answer = await endpoint.call("Switches", method, request, timeout_s=10)
    while not answer.ok and (tries := tries - 1):
        await asyncio.sleep(0.3)
        answer = await endpoint.call("Switches", method, request, timeout_s=10)
    return "" if answer.ok else f" ({answer.code.name} {answer.text})"


def _needs_two_ways(plan: RigPlan) -> str:
    wide = plan.fabric.tors > 1 and plan.fabric.spines > 1
    return "" if wide else "the fabric has one way between racks"


FAULTS: dict[str, Fault] = {
    "kill_controller": Fault(kill_controller),
    "kill_candidate": Fault(
        kill_candidate, lambda plan: "" if plan.candidates > 1 else "there is one controller"
    ),
    "stop_controller": Fault(stop_controller),
    "kill_switch": Fault(kill_switch),
    "stop_switch": Fault(stop_switch),
    "kill_database": Fault(
        kill_database, lambda plan: "" if plan.store == "postgresql" else "SQLite has no server"
    ),
    "stop_database": Fault(
        stop_database, lambda plan: "" if plan.store == "postgresql" else "SQLite has no server"
    ),
    "fill_disk": Fault(
        fill_disk,
        lambda plan: (
            disk_rig.why_not()
            if plan.store == "sqlite" and plan.small_disk_mib
            else "the store lies on no small disk"
        ),
    ),
    "step_clock": Fault(
        step_clock, lambda plan: clock_rig.why_not() if plan.stepped_clocks else "clocks are real"
    ),
    "foreign_writes": Fault(foreign_writes),
    "wipe_pipeline": Fault(wipe_pipeline),
    "drain_switch": Fault(drain_switch, _needs_two_ways),
    "lose_link": Fault(lose_link, _needs_two_ways),
}
