"""Who may write: election ids, backups that wait, and servers of either election scheme."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from fake_switch import FakeSwitch
from programming import RED, programming, red

from ringstep.controller.entries import SwitchTables
from ringstep.controller.p4rt import Timing
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.programmer import Phase

NewSwitch = Callable[..., Awaitable[FakeSwitch]]
Eventually = Callable[[Callable[[], object]], Awaitable[None]]

BIG = (77 << 64) | 5
"""96 bits: the term of the elected controller above the configured id."""


@pytest.fixture
def desired() -> SwitchTables:
    return SwitchTables(entries={red(1): RED})


@pytest.mark.parametrize("modern", [False, True])
async def test_backup_says_who_is_primary_and_takes_over(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    modern: bool,
) -> None:
    """p4lang/PI#553: the old scheme promotes with OK and a lower id, the new one says NOT_FOUND."""
    switch = await new_switch(modern_election=modern)
    other = SwitchTables(entries={red(2): RED})
    async with programming(switch, pipeline, other, timing, election_id=3) as backup:
        async with programming(switch, pipeline, desired, timing, election_id=BIG) as primary:
            await eventually(lambda: primary.status.phase is Phase.IN_SYNC)
            await eventually(lambda: f"election id {BIG}, ours is 3" in backup.status.detail)
            assert backup.status.phase is Phase.ERROR
            assert "another controller" in backup.status.detail
            assert "trying again" in backup.status.detail
            caplog.clear()
            sessions = primary.status.sessions
            await eventually(lambda: backup._logged)
            assert primary.status.sessions == sessions
        await eventually(lambda: backup.status.phase is Phase.IN_SYNC)
        assert backup.status.foreign_removed == 1
        assert len(switch.entities) == 1
    assert caplog.text.count("another controller is primary") <= 1


@pytest.mark.parametrize("modern", [False, True])
async def test_id_that_another_holds_is_named_and_waited_for(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
    modern: bool,
) -> None:
    """stratum/stratum#857: a duplicate id ends that stream and disturbs nobody else."""
    switch = await new_switch(modern_election=modern)
    async with programming(switch, pipeline, desired, timing, election_id=BIG) as first:
        await eventually(lambda: first.status.phase is Phase.IN_SYNC)
        async with programming(switch, pipeline, desired, timing, election_id=BIG) as second:
            await eventually(lambda: second.status.phase is Phase.ERROR)
            assert f"refused election id {BIG}" in second.status.detail
            assert first.status.phase is Phase.IN_SYNC
            assert first.status.sessions == 1
    async with programming(switch, pipeline, desired, timing, election_id=BIG) as again:
        await eventually(lambda: again.status.phase is Phase.IN_SYNC)


async def test_id_below_the_highest_ever_seen_is_raised_to_that_where_nobody_is_primary(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch(modern_election=True)
    switch.highest = BIG
    async with programming(switch, pipeline, desired, timing, election_id=1) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        # Not above it: whoever is elected next has a higher one and takes over.
        assert switch.highest == BIG
        async with programming(switch, pipeline, desired, timing, election_id=BIG + 1) as next_one:
            await eventually(lambda: next_one.status.phase is Phase.IN_SYNC)
            await eventually(lambda: programmer.status.phase is Phase.ERROR)


async def test_write_refused_as_not_primary_leads_to_a_new_session(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch()
    switch.not_primary = 2
    details: list[str] = []
    async with programming(switch, pipeline, desired, timing) as programmer:
        programmer._on_change = lambda _: details.append(programmer.status.detail)
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert programmer.status.sessions == 3
    assert any("takes no writes from us (Not primary)" in detail for detail in details)


async def test_program_that_was_saved_and_not_committed_is_finished_first(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    """p4lang/behavioral-model#869: until then the switch takes no other program."""
    switch = await new_switch(half_swapped=True)
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert (switch.commits, switch.pushes) == (1, 1)
        assert len(switch.entities) == 1


async def test_programs_pushed_by_others_are_replaced_and_nothing_is_assumed_afterwards(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    """p4lang/behavioral-model#410, #434: A, B, A."""
    switch = await new_switch()
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        for pushes in (2, 3):
            assert switch.config is not None
            switch.entities.clear()
            switch.config.cookie.cookie ^= 1
            await eventually(
                lambda n=pushes: switch.pushes == n and not programmer.unsettled([red(1)])
            )
            assert len(switch.entities) == 1
