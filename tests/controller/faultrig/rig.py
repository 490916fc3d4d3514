"""Switches, store and controllers of one run, started, and ended whatever happens."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from faultrig import clock as clock_rig
from faultrig.clients import Endpoint
from faultrig.clock import SteppedClock
from faultrig.database import PostgresServer
from faultrig.disk import SmallDisk
from faultrig.fabric import LeafSpine
from faultrig.past import write_past
from faultrig.processes import (
    START_S,
    ControllerProcess,
    RigError,
    SwitchProcess,
    start_switches,
)
from faultrig.reading import Contents, Names, program_names, read_switch
from ringstep.controller.v1 import switches_pb2

_CANDIDATE_S = 20.0
IN_SYNC = switches_pb2.SWITCH_PHASE_IN_SYNC
QUICK_P4RUNTIME = """
[p4runtime]
connect_s = 2
heartbeat_s = 0.5
audit_s = 2
retry_max_s = 0.5
"""
"""Intervals that let a short run see many of them."""


@dataclass(frozen=True)
class RigPlan:
    """What a rig consists of.

    ``store``: "sqlite" or "postgresql"; several ``candidates`` need the latter. ``settings``: put
    at the end of every controller.toml. ``small_disk_mib``: SQLite's file lies on a disk of this
    size; 0: on the folder's own. ``switch_nice``: niceness of the switches, which are other
    machines in production. ``past``: seed of a past that the store has, see
    :mod:`faultrig.past`. ``forked``: see :class:`faultrig.processes.Child`.
    """

    fabric: LeafSpine = field(default_factory=LeafSpine)
    store: str = "sqlite"
    candidates: int = 1
    settings: str = QUICK_P4RUNTIME
    small_disk_mib: int = 0
    stepped_clocks: bool = False
    fsync: bool = True
    switch_nice: int = 0
    past: int | None = None
    forked: bool = False


class Rig:
    """An async context manager; processes are killed and mounts taken away at its end.

    Raises:
        RigError: a part cannot be started.
    """

    def __init__(self, plan: RigPlan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.names: Names = program_names()
        self.switches: dict[str, SwitchProcess] = {}
        self.controllers: list[ControllerProcess] = []
        self.clocks: list[SteppedClock] = []
        self.database: PostgresServer | None = None
        self.disk: SmallDisk | None = None
        self.used: dict[int, int] = {}
        """Job_IDs that were used before the rig started, with their last generation."""
        self.locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One per target, so that two faults do not pull at one process."""
        self._closers: list[Callable[[], None]] = []

    async def __aenter__(self) -> Self:
        starting = asyncio.create_task(asyncio.to_thread(self._start))
        try:
            await asyncio.shield(starting)
        except BaseException:
            # A thread cannot be cancelled: it ends once what it waits for is killed, and what it
            # started in between is ended after it.
            self.close()
            await asyncio.gather(starting, return_exceptions=True)
            self.close()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes, and take mounts and databases away; may be called again."""
        for closer in reversed(list(self._closers)):
            closer()

    def _start(self) -> None:
        fabric = self.plan.fabric
        for name in fabric.switches:
            switch = SwitchProcess(
                name,
                fabric.device_id(name),
                self.folder,
                nice=self.plan.switch_nice,
                forked=self.plan.forked,
            )
            self.switches[name] = switch
            self._closers.append(switch.close)
        start_switches(list(self.switches.values()))
        topology = self.folder / "fabric.toml"
        topology.write_text(
            fabric.toml({name: switch.address for name, switch in self.switches.items()})
        )
        store = self._store()
        if self.plan.past is not None:
            self.used = write_past(store, fabric.switches, self.plan.past)
        for index in range(self.plan.candidates):
            name = f"controller{index + 1}"
            env: dict[str, str] = {}
            if self.plan.stepped_clocks and not clock_rig.why_not():
                clock = SteppedClock(self.folder, name)
                self.clocks.append(clock)
                self._closers.append(clock.close)
                env = clock.env
            controller = ControllerProcess(
                name,
                self.folder,
                topology,
                store,
                settings=self.plan.settings,
                env=env,
                forked=self.plan.forked,
            )
            self.controllers.append(controller)
            self._closers.append(controller.close)
            controller.start()
        for controller in self.controllers:
            self.wait_up(controller)

    def wait_up(self, controller: ControllerProcess) -> None:
        """Block until a controller listens; one of several may also wait for its turn without.

        Raises:
            RigError: it ended, or does not listen.
        """
        alone = self.plan.candidates == 1
        try:
            controller.wait_listening(START_S if alone else _CANDIDATE_S)
        except RigError:
            if alone or not controller.alive:
                raise

    def _store(self) -> str:
        if self.plan.store == "postgresql":
            self.database = PostgresServer(self.folder, fsync=self.plan.fsync)
            self._closers.append(self.database.close)
            self.database.start()
            return self.database.url
        folder = self.folder
        if self.plan.small_disk_mib:
            folder = self.folder / "disk"
            self.disk = SmallDisk(folder, self.plan.small_disk_mib)
            self._closers.append(self.disk.close)
        return f"sqlite:///{folder / 'store.db'}"

    def endpoint(self, timeout_s: float = 3.0, wander: float = 0.0, seed: int = 0) -> Endpoint:
        """Return a client's view of the controllers; close it."""
        return Endpoint([one.address for one in self.controllers], timeout_s, wander, seed)

    def read(self, name: str) -> Contents:
        """Read a switch as somebody else. Raises ReadError."""
        switch = self.switches[name]
        return read_switch(switch.address, switch.device_id, self.names)

    async def read_all(self) -> dict[str, Contents]:
        """Read all switches. Raises ReadError."""
        return {name: await asyncio.to_thread(self.read, name) for name in self.switches}

    def store_bytes(self) -> int:
        """Return the size of the store, with all that SQLite keeps beside its file."""
        if self.database is not None:
            return self.database.size_bytes()
        folder = self.folder / "disk" if self.disk else self.folder
        return sum(path.stat().st_size for path in folder.glob("store.db*"))


async def in_sync(endpoint: Endpoint, switches: list[str], index: int | None = None) -> list[str]:
    """Return the switches that are not in sync, each with its reason."""
    found = await endpoint.switches(index)
    if found is None:
        return ["no controller answers"]
    known = {one.name: one.status for one in found}
    return [
        f"{name}: {switches_pb2.SwitchPhase.Name(known[name].phase)} {known[name].detail}"
        for name in switches
        if known[name].phase != IN_SYNC
    ]


async def wait_in_sync(endpoint: Endpoint, switches: list[str], patience_s: float = 120.0) -> None:
    """Wait until all switches are in sync.

    Raises:
        TimeoutError: some are not; the text names them.
    """
    late: list[str] = []
    try:
        async with asyncio.timeout(patience_s):
            while late := await in_sync(endpoint, switches):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TimeoutError("; ".join(late) or "no controller answers") from None
