"""A change costs what it changes; everything is compared only when it has to be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

import pytest
from fake_switch import FakeSwitch
from programming import RED, job, programming, put, red

from ringstep.controller.entries import EntryKey, SwitchTables, action
from ringstep.controller.p4rt import Timing
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.plan import EntryUpdate, Op
from ringstep.controller.programmer import Phase

NewSwitch = Callable[..., Awaitable[FakeSwitch]]
Eventually = Callable[[Callable[[], object]], Awaitable[None]]


class Settled:
    """What a programmer said is settled."""

    def __init__(self) -> None:
        self.keys: list[EntryKey] = []
        self.names: set[str] = set()

    def __call__(self, name: str, keys: Collection[EntryKey]) -> None:
        self.names.add(name)
        self.keys += keys


@pytest.fixture
def patient(timing: Timing) -> Timing:
    """No audit and no probe gets in between."""
    return replace(timing, audit_s=600, heartbeat_s=600)


async def test_change_reads_and_writes_its_own_entries_only(
    new_switch: NewSwitch, pipeline: Pipeline, patient: Timing, eventually: Eventually
) -> None:
    switch = await new_switch()
    desired = SwitchTables(entries={red(port): RED for port in range(1, 300)})
    settled = Settled()
    async with programming(switch, pipeline, desired, patient, on_settled=settled) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert set(settled.keys) == set(desired.entries)
        assert len(settled.keys) == len(desired.entries)
        assert settled.names == {"tor1"}
        written, read = len(switch.writes), len(switch.reads)
        settled.keys.clear()

        desired.entries[red(300)] = RED
        desired.entries[red(1)] = action("set_red", {**dict(RED.args), "q_min": 0})
        del desired.entries[red(2)]
        changed = [red(300), red(1), red(2)]
        programmer.changed(changed)
        assert programmer.status.phase is Phase.PROGRAMMING
        assert programmer.unsettled([red(300)])
        assert not programmer.unsettled([red(3), red(4)])
        assert programmer.status.pending == 3
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert sorted(map(str, settled.keys)) == sorted(map(str, changed))
        assert not programmer.unsettled(changed)
        assert programmer.status.pending == 0
        assert len(switch.writes) - written == 3
        assert len(switch.reads) - read == 2
        assert programmer.status.desired_entries == len(desired) == len(switch.entities)


async def test_changes_during_a_write_are_one_round(
    new_switch: NewSwitch, pipeline: Pipeline, patient: Timing, eventually: Eventually
) -> None:
    switch = await new_switch()
    desired = SwitchTables()
    async with programming(switch, pipeline, desired, patient) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        switch.silent.set()
        desired.entries[red(1)] = RED
        programmer.changed([red(1)])
        await eventually(lambda: programmer._work._open and not programmer._work._dirty)
        for port in range(2, 60):
            desired.entries[red(port)] = RED
            programmer.changed([red(port)])
        del desired.entries[red(7)]
        programmer.changed([red(7)])
        reads = len(switch.reads)
        switch.resume()
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert len(switch.writes) == len(switch.entities) == 58
        # One look-up of the first round's entry, one whole table for the second round.
        assert len(switch.reads) - reads == 2


async def test_desired_tables_changed_in_any_way_are_followed_after_set_desired(
    new_switch: NewSwitch, pipeline: Pipeline, patient: Timing, eventually: Eventually
) -> None:
    switch = await new_switch()
    desired = SwitchTables(entries={red(1): RED, red(2): RED})
    async with programming(switch, pipeline, desired, patient) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        del desired.entries[red(1)]
        desired.defaults["route_v4"] = action("set_nexthop", {"nexthop_id": 3})
        reads = len(switch.reads)
        programmer.set_desired(desired)
        assert programmer.unsettled([red(2)])
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert not programmer.unsettled([red(1), red(2)])
        assert len(switch.entities) == 1
        # Only what was written is read: the default action.
        assert len(switch.reads) - reads == 1


async def test_nothing_is_settled_without_a_session(
    new_switch: NewSwitch, pipeline: Pipeline, patient: Timing, eventually: Eventually
) -> None:
    first = await new_switch()
    desired = SwitchTables(entries={red(1): RED})
    settled = Settled()
    async with programming(first, pipeline, desired, patient, on_settled=settled) as programmer:
        assert programmer.unsettled([red(1)])
        await eventually(lambda: not programmer.unsettled([red(1)]))
        await first.stop()
        await eventually(lambda: programmer.unsettled([red(1)]))
        desired.entries.update(job(5))
        programmer.changed(job(5))
        settled.keys.clear()
        second = await new_switch(port=first.port)
        await eventually(lambda: not programmer.unsettled(list(desired.entries)))
        assert set(settled.keys) == set(desired.entries)
        assert len(second.entities) == 4


async def test_rule_comes_after_its_parameters_and_goes_before_them(
    new_switch: NewSwitch, pipeline: Pipeline, patient: Timing, eventually: Eventually
) -> None:
    switch = await new_switch()
    desired = SwitchTables()
    order = ["block_map", "job_params", "job_by_tag"]
    ids = {pipeline.schema.tables[name].id: name for name in order}
    async with programming(switch, pipeline, desired, patient) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        desired.entries.update(job(5))
        programmer.changed(reversed(job(5)))
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        desired.entries.clear()
        programmer.changed(job(5))
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
    written = [ids[u.entity.table_entry.table_id] for u in switch.writes]
    assert written == [*order, *reversed(order)]


async def test_counters_are_set_to_zero_where_the_job_id_was_used_since_the_program_was_loaded(
    new_switch: NewSwitch, pipeline: Pipeline, patient: Timing, eventually: Eventually
) -> None:
    switch = await new_switch()
    desired = SwitchTables(entries=job(5))
    async with programming(switch, pipeline, desired, patient) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert switch.counters == {}
        for number, generation in ((6, 1), (5, 2)):
            desired.entries.update(job(number, generation))
            programmer.changed(job(number))
            await eventually(lambda: not programmer.unsettled([*job(5), *job(6)]))
        assert {index for _, index in switch.counters} == {5}
    async with programming(switch, pipeline, desired, patient) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        desired.entries.update(job(7))
        programmer.changed(job(7))
        await eventually(lambda: not programmer.unsettled([*job(7)]))
        assert {index for _, index in switch.counters} == {5, 7}, "who knows what was before"


async def test_entry_written_by_somebody_else_meanwhile_is_overwritten(
    new_switch: NewSwitch, pipeline: Pipeline, patient: Timing, eventually: Eventually
) -> None:
    """p4lang/PI#298: an entry that exists is refused; it is then changed instead."""
    switch = await new_switch()
    desired = SwitchTables(entries={red(2): RED})
    async with programming(switch, pipeline, desired, patient) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        other = action("set_red", {"q_min": 9, "q_max": 9, "p_max": 9, "gap": 9})
        put(
            switch,
            pipeline,
            EntryUpdate(Op.INSERT, red(1), other),
            EntryUpdate(Op.DELETE, red(2)),
        )
        desired.entries[red(1)] = RED
        desired.entries[red(2)] = other
        programmer.changed([red(1), red(2)])
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert programmer.status.refused_count == 0
        right = FakeSwitch()
        put(
            right,
            pipeline,
            EntryUpdate(Op.INSERT, red(1), RED),
            EntryUpdate(Op.INSERT, red(2), other),
        )
        assert set(right.lines()) <= set(switch.lines())


async def test_event_loop_is_not_held_up_by_a_large_table(
    new_switch: NewSwitch, pipeline: Pipeline, patient: Timing, eventually: Eventually
) -> None:
    """Between any two of its steps others get their turn: more turns than batches."""
    switch = await new_switch()
    desired = SwitchTables()
    for number in range(1, 1001):
        desired.entries.update(job(number))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with programming(switch, pipeline, desired, patient) as programmer:
        counter = asyncio.create_task(count())
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        counter.cancel()
    assert len(switch.entities) == 3000
    assert turns > 100
