"""The switches of the fabric: what each should hold, and the task that sees to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ringstep.controller.channels import ChannelTls
from ringstep.controller.entries import EntryKey, EntryValue, SwitchTables
from ringstep.controller.fabricview import FabricView
from ringstep.controller.facts import StoredSwitch
from ringstep.controller.live import LiveJob
from ringstep.controller.p4rt import Timing, election_id_in
from ringstep.controller.pace import Pace
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.programmer import ForeignPolicy, Phase, Programmer, ProgrammerStatus


class UnknownSwitchError(LookupError):
    """No switch of that name in the topology, or it is not kept programmed."""


class SwitchAddressError(ValueError):
    """The address and device id belong to another switch."""


@dataclass(frozen=True, slots=True)
class SwitchView:
    """One switch of the topology with its P4Runtime address and state."""

    name: str
    role: str
    device_id: int
    address: str
    status: ProgrammerStatus
    drained: bool = False
    down_ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How sessions are held; what ``tls`` and ``foreign`` do not name takes the default.

    ``election_id``: the higher one wins among controllers of different stores; those of one store
    outrank each other by who led last.
    """

    election_id: int = 1
    timing: Timing = field(default_factory=Timing)
    tls: Mapping[str, ChannelTls | None] | None = None
    default_tls: ChannelTls | None = None
    foreign: Mapping[str, ForeignPolicy] | None = None
    default_foreign: ForeignPolicy = ForeignPolicy.REMOVE


class Switchboard:
    """Runs one :class:`Programmer` per kept switch.

    ``epoch`` is the term of the controller. ``on_change`` hears the name of a switch that changed,
    ``on_settled`` which entries a switch holds now as it should.

    Raises:
        ValueError: an ECMP group of the topology is larger than the program takes, or a pipeline
            is for no switch of the topology.
    """

    def __init__(
        self,
        view: FabricView,
        pipeline: Pipeline,
        others: Mapping[str, Pipeline],
        settings: SessionSettings,
        epoch: int,
        on_change: Callable[[str], None],
        on_settled: Callable[[str, Collection[EntryKey]], None],
        pace: Pace | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._others = dict(others)
        self._settings = settings
        self.epoch = epoch
        self._on_change = on_change
        self._on_settled = on_settled
        self._pace = pace or Pace()
        self.pipelines = self.checked(view)
        self._view = view
        self._desired = {name: tables.copy() for name, tables in view.base.items()}
        self.programmers: dict[str, Programmer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def checked(self, view: FabricView) -> dict[str, Pipeline]:
        """Return the program of every switch of a view.

        Raises:
            ValueError: as the class.
        """
        for name in self._others.keys() - view.topology.switches.keys():
            raise ValueError(
                f"pipeline.switch.{name}: not in the topology {view.topology.source}; known "
                f"switches: {', '.join(view.topology.switches)}"
            )
        pipelines = dict.fromkeys(view.topology.switches, self._pipeline) | self._others
        for switch, tables in view.base.items():
            limit = pipelines[switch].max_group_size
            for key, members in tables.groups.items():
                if 0 < limit < len(members):
                    raise ValueError(
                        f"switch {switch!r} has {len(members)} equal-cost next hops in group "
                        f"{key.id}, the program takes {limit}; use fewer parallel links, or "
                        "compile the program with larger groups"
                    )
        return pipelines

    def follow(self, view: FabricView) -> None:
        """Go over to another view: what switches hold without jobs changes at once.

        Raises:
            ValueError: as the class; nothing has changed then.
        """
        self.pipelines = self.checked(view)
        before, self._view = self._view, view
        for name in view.topology.switches:
            old, new = before.base.get(name), view.base[name]
            if old is None:
                self._desired[name] = new.copy()
            elif old != new:
                self._desired[name] = _rebased(self._desired[name], old, new)
                if (programmer := self.programmers.get(name)) is not None:
                    programmer.set_desired(self._desired[name])
            self._on_change(name)
        for name in self._desired.keys() - view.topology.switches.keys():
            del self._desired[name]

    # -- switches ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[SwitchView]:
        return (self[name] for name in self._view.topology.switches)

    def __contains__(self, name: str) -> bool:
        return name in self._view.topology.switches

    def __getitem__(self, name: str) -> SwitchView:
        """Return one switch.

        Raises:
            UnknownSwitchError: no such switch in the topology.
        """
        topology = self._view.topology
        switch = topology.switches.get(name)
        if switch is None:
            raise UnknownSwitchError(
                f"switch {name!r} is not in the topology {topology.source}; known switches: "
                f"{', '.join(topology.switches)}"
            )
        programmer = self.programmers.get(name)
        down = tuple(sorted(port for owner, port in self._view.down if owner == name))
        drained = name in self._view.drained
        if programmer is None:
            status = ProgrammerStatus(
                Phase.UNMANAGED,
                "has no P4Runtime address; add it with 'ringstep switch add'",
                desired_entries=len(self._desired[name]),
            )
            return SwitchView(name, switch.role, switch.device_id, "", status, drained, down)
        return SwitchView(
            name,
            switch.role,
            programmer.device_id,
            programmer.address,
            programmer.status,
            drained,
            down,
        )

    def phase(self, name: str) -> Phase:
        """Return what is being done with a switch."""
        programmer = self.programmers.get(name)
        return Phase.UNMANAGED if programmer is None else programmer.status.phase

    def address_of(self, name: str) -> tuple[str, int] | None:
        """Return address and device id of a kept switch."""
        programmer = self.programmers.get(name)
        return None if programmer is None else (programmer.address, programmer.device_id)

    def check_address(self, name: str, address: str, device_id: int) -> None:
        """Check that no other kept switch has an address and device id.

        Raises:
            SwitchAddressError: one has.
        """
        for other in self.programmers:
            if other != name and self.address_of(other) == (address, device_id):
                raise SwitchAddressError(
                    f"device {device_id} at {address} is already switch {other!r}; give another "
                    "address or device id"
                )

    def start(self, kept: StoredSwitch) -> None:
        """Keep a switch programmed."""
        settings = self._settings
        name = kept.name
        programmer = Programmer(
            name,
            kept.address,
            kept.device_id,
            self.pipelines[name],
            self._desired[name],
            election_id=election_id_in(self.epoch, settings.election_id),
            timing=settings.timing,
            tls=(settings.tls or {}).get(name, settings.default_tls),
            foreign=(settings.foreign or {}).get(name, settings.default_foreign),
            on_change=self._on_change,
            on_settled=self._on_settled,
            pace=self._pace,
        )
        self.programmers[name] = programmer
        self._tasks[name] = asyncio.create_task(programmer.run(), name=f"programmer:{name}")
        self._on_change(name)

    async def stop(self, names: Iterable[str] | None = None) -> None:
        """Keep switches programmed no more (None: all); what they hold stays."""
        stopped = list(self.programmers) if names is None else list(names)
        tasks = []
        for name in stopped:
            self.programmers.pop(name, None)
            if (task := self._tasks.pop(name, None)) is not None:
                task.cancel()
                tasks.append(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in stopped:
            self._on_change(name)

    # -- entries of jobs ---------------------------------------------------------------------

    def hold(self, job: LiveJob, entries: Mapping[str, Mapping[EntryKey, EntryValue]]) -> None:
        """Tell the switches to hold exactly these entries for a job."""
        for switch in {*job.held, *entries}:
            tables = self._desired.get(switch)
            if tables is None:
                continue
            changed = _exchange(tables.entries, job.held.get(switch, {}), entries.get(switch, {}))
            if changed:
                job.late.add(switch)
                if (programmer := self.programmers.get(switch)) is not None:
                    programmer.changed(changed)
        job.held = {switch: dict(held) for switch, held in entries.items()}

    def holds(self, job: LiveJob, switch: str) -> bool:
        """Say whether a switch is known to hold all that it was told to hold for a job."""
        programmer = self.programmers.get(switch)
        return programmer is not None and not programmer.unsettled(job.held.get(switch, {}).keys())

    def late(self, job: LiveJob) -> list[str]:
        """Return the kept switches that do not hold yet what they were told to hold for a job."""
        return [name for name in job.held if name in self.programmers and not self.holds(job, name)]


def _exchange(
    entries: dict[EntryKey, EntryValue],
    before: Mapping[EntryKey, EntryValue],
    after: Mapping[EntryKey, EntryValue],
) -> list[EntryKey]:
    """Put ``after`` in the place of ``before``; return the keys that changed."""
    changed = []
    for key, value in before.items():
        # Another job may own the key by now.
        if key not in after and entries.get(key) == value:
            del entries[key]
            changed.append(key)
    for key, value in after.items():
        if entries.get(key) != value:
            entries[key] = value
            changed.append(key)
    return changed


def _rebased(tables: SwitchTables, old: SwitchTables, new: SwitchTables) -> SwitchTables:
    """Return ``tables`` with the part that belongs to no job exchanged."""
    entries = {key: value for key, value in tables.entries.items() if key not in old.entries}
    return SwitchTables(
        dict(new.defaults), dict(new.members), dict(new.groups), {**new.entries, **entries}
    )
