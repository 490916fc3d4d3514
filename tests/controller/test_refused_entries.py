"""One entry that a switch refuses holds up nothing but what depends on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from fake_switch import FakeSwitch
from finsy.proto import p4r
from programming import RED, job, params, programming, red, rule

from ringstep.controller.entries import Exact, SwitchTables, action, entry_key
from ringstep.controller.p4rt import Timing
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.programmer import Phase

NewSwitch = Callable[..., Awaitable[FakeSwitch]]
Eventually = Callable[[Callable[[], object]], Awaitable[None]]
Refuse = Callable[[p4r.Update], bool]


@pytest.fixture
def table_is(pipeline: Pipeline) -> Callable[[str, bytes], Refuse]:
    """Pick updates of a table whose first match value is this one."""

    def make(name: str, value: bytes) -> Refuse:
        number = pipeline.schema.tables[name].id

        def refuse(update: p4r.Update) -> bool:
            entry = update.entity.table_entry
            if entry.table_id != number or not entry.match:
                return False
            field = entry.match[0]
            return value in (field.exact.value, field.ternary.value)

        return refuse

    return make


async def test_one_bad_entry_of_a_thousand_is_named_and_the_others_take_effect(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    timing: Timing,
    eventually: Eventually,
    table_is: Callable[[str, bytes], Refuse],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """p4lang/p4runtime#219, p4lang/PI#178: a thousand statuses do not fit gRPC's 8 KiB."""
    pairs = {
        entry_key("job_by_pair", src_addr=Exact(n), dst_addr=Exact(9)): action(
            "set_job", {"job": 1, "path_id": 0}
        )
        for n in range(1000, 1999)
    }
    bad = entry_key("job_by_pair", src_addr=Exact(7), dst_addr=Exact(9))
    desired = SwitchTables(entries={**pairs, bad: action("set_job", {"job": 1, "path_id": 0})})
    refuse = table_is("job_by_pair", b"\x07")
    # The fields of a match come sorted by name: the source address is the second.
    switch = await new_switch(
        refuse=lambda u: u.entity.table_entry.match[1].exact.value == b"\x07" or refuse(u)
    )
    slow = replace(timing, retry_min_s=0.2, retry_max_s=0.2)
    async with programming(switch, pipeline, desired, slow) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.ERROR)
        status = programmer.status
        assert status.detail.startswith(
            "1 of 1000 updates refused: INSERT job_by_pair dst_addr=9 src_addr=7 -> "
            "set_job(job=1, path_id=0): RESOURCE_EXHAUSTED (table is full)"
        )
        assert status.refused_count == 1
        assert status.refused[0].startswith("INSERT job_by_pair dst_addr=9 src_addr=7 -> ")
        assert len(switch.entities) == 999
        assert not programmer.unsettled(pairs)
        assert programmer.unsettled([bad])
        assert status.pending == 1
        switch.refuse = lambda update: False
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert programmer.status.refused == ()
        assert not programmer.unsettled([bad])
    assert caplog.text.count("updates refused") == 1


async def test_rule_is_not_written_without_its_parameters(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    timing: Timing,
    eventually: Eventually,
    table_is: Callable[[str, bytes], Refuse],
) -> None:
    switch = await new_switch(refuse=table_is("job_params", b"\x05"))
    desired = SwitchTables(entries={**job(5), **job(6)})
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.ERROR)
        assert programmer.status.refused_count == 2
        assert "it needs what was refused: INSERT job_params job=5" in programmer.status.refused[1]
        assert not programmer.unsettled(job(6))
        assert programmer.unsettled([rule(5)])
        assert len(switch.entities) == 4
        switch.refuse = lambda update: False
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert len(switch.entities) == 6


async def test_parameters_are_not_deleted_while_a_rule_leads_to_them(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    timing: Timing,
    eventually: Eventually,
    table_is: Callable[[str, bytes], Refuse],
) -> None:
    switch = await new_switch()
    desired = SwitchTables(entries=job(5))
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        switch.refuse = table_is("job_by_tag", b"\x05")
        desired.entries.clear()
        programmer.changed(job(5))
        await eventually(lambda: programmer.status.phase is Phase.ERROR)
        assert "still needs it and could not be changed" in " ".join(programmer.status.refused)
        assert len(switch.entities) == 2
        switch.refuse = lambda update: False
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert switch.entities == {}


async def test_refused_entry_is_not_tried_with_every_other_change(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    timing: Timing,
    eventually: Eventually,
    table_is: Callable[[str, bytes], Refuse],
) -> None:
    refuse, tries = table_is("red", b"\x07"), 0

    def counted(update: p4r.Update) -> bool:
        nonlocal tries
        tries += refuse(update)
        return refuse(update)

    switch = await new_switch(refuse=counted)
    slow = replace(timing, retry_min_s=600, retry_max_s=600, audit_s=600)
    desired = SwitchTables(entries={red(7): RED})
    async with programming(switch, pipeline, desired, slow) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.ERROR)
        for port in range(20, 25):
            desired.entries[red(port)] = RED
            programmer.changed([red(port)])
            await eventually(lambda port=port: not programmer.unsettled([red(port)]))
        assert tries == 1
        assert programmer.status.phase is Phase.ERROR
        # Another value may be taken: that is tried at once.
        desired.entries[red(7)] = action("set_red", {**dict(RED.args), "gap": 0})
        programmer.changed([red(7)])
        await eventually(lambda: tries == 2)
        del desired.entries[red(7)]
        programmer.changed([red(7)])
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)


async def test_entry_that_cannot_be_encoded_is_refused_like_any_other(
    new_switch: NewSwitch, pipeline: Pipeline, timing: Timing, eventually: Eventually
) -> None:
    switch = await new_switch()
    desired = SwitchTables(entries={red(9999): RED, red(1): RED, params(5): action("set_block")})
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.ERROR)
        assert programmer.status.refused_count == 2
        text = " ".join(programmer.status.refused)
        assert "not sent (egress_port: 0x270f does not fit in 9 bits)" in text
        assert "table job_params has no action set_block" in text
        assert len(switch.entities) == 1
        assert programmer.status.sessions == 1


async def test_at_most_twenty_refused_updates_are_listed(
    new_switch: NewSwitch, pipeline: Pipeline, timing: Timing, eventually: Eventually
) -> None:
    switch = await new_switch(refuse=lambda update: True)
    desired = SwitchTables(entries={red(port): RED for port in range(1, 31)})
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.ERROR)
        assert programmer.status.refused_count == 30
        assert len(programmer.status.refused) == 20
        assert "and 25 more" in programmer.status.detail
