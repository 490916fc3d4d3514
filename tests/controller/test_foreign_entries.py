"""What others write to a switch is removed or kept by policy, never silently."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from fake_switch import FakeSwitch
from programming import RED, expected, job, programming, put, red

from ringstep.controller.entries import ProfileKey, SwitchTables, action
from ringstep.controller.p4rt import Timing
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.plan import (
    DefaultUpdate,
    EntryUpdate,
    GroupUpdate,
    MemberUpdate,
    Op,
    Update,
)
from ringstep.controller.programmer import ForeignPolicy, Phase

NewSwitch = Callable[..., Awaitable[FakeSwitch]]
Eventually = Callable[[Callable[[], object]], Awaitable[None]]

OTHER = action("set_red", {"q_min": 9, "q_max": 9, "p_max": 9, "gap": 9})
CONFIG = action("set_switch", {"ecmp_seed": 1})
MEMBER = MemberUpdate(
    Op.INSERT, ProfileKey("ecmp", 50), action("forward", {"port": 5, "src_mac": 1, "dst_mac": 2})
)
GROUP = GroupUpdate(Op.INSERT, ProfileKey("ecmp", 60), ((50, 1),))


def insert(*ports: int) -> list[Update]:
    return [EntryUpdate(Op.INSERT, red(port), OTHER) for port in ports]


@pytest.fixture
def desired() -> SwitchTables:
    return SwitchTables(defaults={"switch_config": CONFIG}, entries={red(1): RED, **job(5)})


async def test_kept_entries_stay_and_are_counted_and_named_once(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    switch = await new_switch()
    async with programming(
        switch, pipeline, desired, timing, foreign=ForeignPolicy.KEEP
    ) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        put(switch, pipeline, MEMBER, GROUP, *insert(77))
        await eventually(lambda: programmer.status.foreign_kept == 3)
        assert programmer.status.phase is Phase.IN_SYNC
        assert programmer.status.drift_foreign == 3
        audited = programmer.status.audited_unix_ms
        await eventually(lambda: programmer.status.audited_unix_ms > audited)
        held = SwitchTables(entries={red(77): OTHER})
        assert expected(held, pipeline) <= set(switch.lines())
        assert programmer.status.foreign_removed == 0
    named = [r for r in caplog.messages if "keeping what nobody here wants" in r]
    assert len(named) == 3
    assert any("red egress_port=77" in line for line in named)


async def test_what_was_ours_is_deleted_also_where_foreign_entries_are_kept(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch()
    async with programming(
        switch, pipeline, desired, timing, foreign=ForeignPolicy.KEEP
    ) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        put(switch, pipeline, *insert(77))
        await eventually(lambda: programmer.status.foreign_kept == 1)
        for key in job(5):
            del desired.entries[key]
        programmer.changed(job(5))
        await eventually(lambda: len(switch.entities) == 2)
        programmer.set_desired(SwitchTables(defaults=dict(desired.defaults)))
        await eventually(lambda: len(switch.entities) == 1)


async def test_what_was_dropped_while_the_switch_was_away_is_deleted_where_foreign_ones_are_kept(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    first = await new_switch()
    async with programming(
        first, pipeline, desired, timing, foreign=ForeignPolicy.KEEP
    ) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        put(first, pipeline, *insert(77))
        await first.stop()
        await eventually(lambda: programmer.status.phase is Phase.CONNECTING)
        for key in job(5):
            del desired.entries[key]
        programmer.changed(job(5))
        second = await new_switch(port=first.port)
        second.config, second.entities, second.defaults = (
            first.config,
            first.entities,
            first.defaults,
        )
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert len(second.entities) == 2
        assert programmer.status.foreign_kept == 1


async def test_foreign_value_under_a_key_of_ours_is_overwritten_under_either_policy(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    for policy in ForeignPolicy:
        switch = await new_switch()
        async with programming(switch, pipeline, desired, timing, foreign=policy) as programmer:
            await eventually(lambda p=programmer: p.status.phase is Phase.IN_SYNC)
            right = set(switch.lines())
            put(switch, pipeline, EntryUpdate(Op.MODIFY, red(1), OTHER))
            await eventually(lambda s=switch, r=right: set(s.lines()) == r)
            status = programmer.status
            assert (status.drift_missing, status.drift_changed, status.drift_foreign) == (0, 1, 0)
            assert status.drifts == 1


async def test_changed_default_action_is_drift_and_restored(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    """p4lang/p4runtime#160: a wildcard read leaves it out, so it is asked for by itself."""
    switch = await new_switch()
    async with programming(
        switch, pipeline, desired, timing, foreign=ForeignPolicy.KEEP
    ) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        right = set(switch.lines())
        put(
            switch, pipeline, DefaultUpdate("switch_config", action("set_switch", {"ecmp_seed": 9}))
        )
        await eventually(lambda: set(switch.lines()) == right)
        assert programmer.status.drift_changed == 1


async def test_missing_entries_are_drift_of_the_audit_that_found_them(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch()
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert programmer.status.drifts == 0
        put(switch, pipeline, *(EntryUpdate(Op.DELETE, key) for key in job(5)))
        await eventually(lambda: programmer.status.drift_missing == 3)
        await eventually(lambda: programmer.status.drift_missing == 0)
        assert programmer.status.drifts == 1
        assert len(switch.entities) == len(desired)


async def test_many_foreign_entries_do_not_fill_the_log(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    switch = await new_switch()
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        put(switch, pipeline, *insert(*range(100, 150)))
        await eventually(lambda: programmer.status.foreign_removed == 50)
    named = [line for line in caplog.messages if "removing what nobody here wants" in line]
    assert len(named) == 21
    assert "and 30 more" in named[-1]
