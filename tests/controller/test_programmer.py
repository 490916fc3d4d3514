"""A switch ends up holding what it should, whatever it held and whatever happens to it.

These tests run against a server that does as it is told (fake_switch.py); the same end states
against the software switch are in test_end_to_end.py.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from fake_switch import FakeSwitch
from finsy.proto import p4r
from programming import expected, programming, put

from ringstep.controller.desired import fabric_tables
from ringstep.controller.entries import Exact, SwitchTables, Ternary, action, entry_key
from ringstep.controller.p4rt import Session, SessionError, Timing, WriteRefusedError
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.plan import DefaultUpdate, EntryUpdate, Op, Update
from ringstep.controller.programmer import Phase
from ringstep.fabric import Topology
from ringstep.protocol.inband import StateReply
from ringstep.protocol.marker import MarkerParams

NewSwitch = Callable[..., Awaitable[FakeSwitch]]
Eventually = Callable[[Callable[[], object]], Awaitable[None]]

FOREIGN_RED = entry_key("red", egress_port=Exact(77))
FOREIGN_TAG = entry_key("job_by_tag", priority=9, dscp=Ternary(1, 0x3F))


@pytest.fixture
def desired(topology: Topology) -> SwitchTables:
    return fabric_tables(topology)["tor1"]


async def test_empty_switch_gets_program_and_entries(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch()
    phases: list[Phase] = []
    async with programming(switch, pipeline, desired, timing) as programmer:
        programmer._on_change = lambda _: phases.append(programmer.status.phase)
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
    assert list(dict.fromkeys(phases)) == [Phase.PUSHING_PIPELINE, Phase.PROGRAMMING, Phase.IN_SYNC]
    assert switch.config is not None
    assert switch.config.cookie.cookie == pipeline.cookie
    assert set(switch.lines()) >= expected(desired, pipeline)
    assert len(switch.entities) == len(desired)


async def test_second_controller_run_writes_and_pushes_nothing(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch()
    for _ in range(2):
        written = len(switch.writes)
        async with programming(switch, pipeline, desired, timing) as programmer:
            await eventually(lambda p=programmer: p.status.phase is Phase.IN_SYNC)
    assert len(switch.writes) == written
    assert switch.pushes == 1


async def test_server_that_pads_byte_strings_is_in_sync_too(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch(pad=True)
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        written = len(switch.writes)
        audits = programmer.status.updates_written
        await asyncio.sleep(2 * timing.audit_s)
        assert programmer.status.updates_written == audits
    assert len(switch.writes) == written


async def test_foreign_entries_are_removed_and_changed_ones_put_right(
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
        right = set(switch.lines())
        own = entry_key("red", egress_port=Exact(1))
        red = {"q_min": 1, "q_max": 2, "p_max": 3, "gap": 4}
        put(
            switch,
            pipeline,
            EntryUpdate(Op.INSERT, FOREIGN_RED, action("set_red", red)),
            EntryUpdate(Op.INSERT, FOREIGN_TAG, action("set_job", {"job": 1, "path_id": 0})),
            EntryUpdate(Op.MODIFY, own, action("set_red", red)),
            EntryUpdate(Op.DELETE, entry_key("red", egress_port=Exact(2))),
        )
        assert set(switch.lines()) != right
        await eventually(lambda: set(switch.lines()) == right)
        await eventually(lambda: programmer.status.foreign_removed == 2)
    assert "removing what nobody here wants: red egress_port=77 -> set_red(" in caplog.text


async def test_changed_default_action_is_put_right(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch()
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        right = set(switch.lines())
        put(
            switch,
            pipeline,
            DefaultUpdate("switch_config", action("set_switch", {"ecmp_seed": 9})),
            DefaultUpdate("route_v4", action("set_nexthop", {"nexthop_id": 1})),
        )
        assert set(switch.lines()) != right
        await eventually(lambda: set(switch.lines()) == right)


async def test_switch_that_lost_its_program_is_loaded_again(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch()
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        right = set(switch.lines())
        switch.wipe()
        await eventually(lambda: switch.pushes == 2 and set(switch.lines()) == right)


async def test_switch_restarted_empty_on_the_same_port_is_programmed_again(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    first = await new_switch()
    async with programming(first, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        await first.stop()
        await eventually(lambda: programmer.status.phase is Phase.CONNECTING)
        assert "cannot be reached" in programmer.status.detail
        second = await new_switch(port=first.port)
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert set(second.lines()) == set(first.lines())
        assert programmer.status.sessions == 2


async def test_switch_that_falls_silent_is_not_in_sync(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch()
    impatient = replace(timing, connect_s=0.3)
    async with programming(switch, pipeline, desired, impatient) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        switch.silent.set()
        await eventually(lambda: programmer.status.phase is Phase.CONNECTING)
        assert "did not answer in time" in programmer.status.detail
        switch.silent.clear()
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)


async def test_desired_state_may_change_at_any_time(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch()
    async with programming(switch, pipeline, desired, timing) as programmer:
        for port in range(20, 30):
            changed = desired.copy()
            changed.entries[entry_key("red", egress_port=Exact(port))] = action(
                "set_red", {"q_min": 1, "q_max": 2, "p_max": 3, "gap": 4}
            )
            programmer.set_desired(changed)
            assert programmer.status.phase is not Phase.IN_SYNC
            await asyncio.sleep(0)
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert set(switch.lines()) >= expected(changed, pipeline)
        assert len(switch.entities) == len(changed)


async def test_one_bad_update_in_a_batch_is_named_and_the_others_take_effect(
    new_switch: NewSwitch, pipeline: Pipeline, timing: Timing
) -> None:
    table = pipeline.schema.tables["job_params"].id

    def refuse(update: p4r.Update) -> bool:
        entry = update.entity.table_entry
        return entry.table_id == table and entry.match[0].exact.value == b"\x01\x2c"

    switch = await new_switch(refuse=refuse)
    block = {"block": 1}
    updates = [
        EntryUpdate(
            Op.INSERT,
            entry_key("block_map", job=Exact(job), egress_port=Exact(1)),
            action("set_block", block),
        )
        for job in range(1, 250)
    ]
    bad = EntryUpdate(
        Op.INSERT,
        entry_key("job_params", job=Exact(300)),
        action("set_params", MarkerParams().to_table()),
    )
    done: list[Update] = []
    async with Session(switch.address, 1, pipeline, timing=timing) as session:
        await session.push_pipeline()
        with pytest.raises(WriteRefusedError) as caught:
            await session.write([*updates[:100], bad, *updates[100:]], done.append)
    assert done == updates
    (refusal,) = caught.value.refusals
    assert refusal.update == bad
    assert str(caught.value).startswith(
        "1 of 250 updates refused: INSERT job_params job=300 -> set_params("
    )
    assert str(caught.value).endswith("): RESOURCE_EXHAUSTED (table is full)")


async def test_refused_entry_is_reported_and_tried_again(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    table = pipeline.schema.tables["red"].id
    switch = await new_switch(refuse=lambda update: update.entity.table_entry.table_id == table)
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.ERROR)
        assert re.match(
            r"4 of \d+ updates refused: INSERT red egress_port=1 -> set_red\(",
            programmer.status.detail,
        )
        switch.refuse = lambda update: False
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)


async def test_update_accepted_but_not_kept_is_noticed(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    table = pipeline.schema.tables["red"].id
    switch = await new_switch(lose=lambda update: update.entity.table_entry.table_id == table)
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.ERROR)
        assert "updates were accepted but read back otherwise" in programmer.status.detail
        switch.lose = lambda update: False
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)


async def test_refused_program_is_reported_once_with_the_switchs_words(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    switch = await new_switch(refuse_pipeline="P4Info does not match the JSON")
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.ERROR)
        assert "refuses the program" in programmer.status.detail
        assert "P4Info does not match the JSON" in programmer.status.detail
        assert switch.writes == []
        await eventually(lambda: programmer.status.sessions >= 4)
        assert programmer.status.phase is Phase.ERROR
        assert caplog.text.count("refuses the program") == 1
        switch.refuse_pipeline = ""
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)


async def test_nothing_listens_is_said_and_tried_again(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch()
    await switch.stop()
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: "is a P4Runtime server running there?" in programmer.status.detail)
        assert programmer.status.phase is Phase.CONNECTING
        await new_switch(port=switch.port)
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)


async def test_second_controller_with_the_same_election_id_changes_nothing(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch()
    async with programming(switch, pipeline, desired, timing) as first:
        await eventually(lambda: first.status.phase is Phase.IN_SYNC)
        held = switch.lines()
        async with programming(switch, pipeline, SwitchTables(), timing) as second:
            await eventually(lambda: second.status.phase is Phase.ERROR)
            assert "refused election id 1" in second.status.detail
            assert "set another p4runtime.election_id" in second.status.detail
        assert switch.lines() == held
        assert first.status.phase is Phase.IN_SYNC


async def test_higher_election_id_takes_over(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    switch = await new_switch()
    async with programming(switch, pipeline, desired, timing) as first:
        await eventually(lambda: first.status.phase is Phase.IN_SYNC)
        async with programming(switch, pipeline, desired, timing, election_id=9) as second:
            await eventually(lambda: second.status.phase is Phase.IN_SYNC)
            await eventually(lambda: first.status.phase is Phase.ERROR)
            assert "another controller" in first.status.detail
            assert "election id 9, ours is 1" in first.status.detail
        await eventually(lambda: first.status.phase is Phase.IN_SYNC)


STATE = StateReply(0, 0, 0, 5000, 1, 7, 99, 3, 40, 10, 4900, ((1, 7, 5),) * 4)


async def test_state_is_read_through_the_data_plane(
    new_switch: NewSwitch, pipeline: Pipeline, timing: Timing
) -> None:
    switch = await new_switch(states={12: STATE, 13: replace(STATE, step_min=8)})
    async with Session(switch.address, 1, pipeline, timing=timing) as session:
        await session.push_pipeline()
        replies = await asyncio.gather(*(session.read_state(5, block) for block in (12, 13, 12)))
    assert [(reply.block, reply.step_min) for reply in replies] == [(12, 7), (13, 8), (12, 7)]
    assert {request.job for request in switch.state_requests} == {5}
    assert len({request.request_id for request in switch.state_requests}) == 3


async def test_state_that_does_not_come_is_asked_again_and_then_reported(
    new_switch: NewSwitch, pipeline: Pipeline, timing: Timing
) -> None:
    switch = await new_switch()
    async with Session(
        switch.address, 1, pipeline, timing=replace(timing, state_s=0.05)
    ) as session:
        await session.push_pipeline()
        with pytest.raises(SessionError, match="did not answer 3 reads of block 4"):
            await session.read_state(5, 4)
    assert len(switch.state_requests) == 3


async def test_state_that_is_awaited_when_the_session_ends_is_an_error(
    new_switch: NewSwitch, pipeline: Pipeline, timing: Timing, eventually: Eventually
) -> None:
    switch = await new_switch()
    patient = replace(timing, state_s=60)
    async with Session(switch.address, 1, pipeline, timing=patient) as session:
        await session.push_pipeline()
        reading = asyncio.create_task(session.read_state(5, 4))
        await eventually(lambda: switch.state_requests)
    with pytest.raises(SessionError, match="the session has ended"):
        await reading


async def test_counters_of_one_job_are_read(
    new_switch: NewSwitch, pipeline: Pipeline, timing: Timing
) -> None:
    switch = await new_switch()
    switch.counters = {
        (pipeline.schema.counters["job_data"].id, 5): 100,
        (pipeline.schema.counters["job_marks"].id, 5): 10,
        (pipeline.schema.counters["job_marks"].id, 6): 11,
    }
    async with Session(switch.address, 1, pipeline, timing=timing) as session:
        assert await session.read_job_counters(5) == {
            "job_data": 100,
            "job_marks": 10,
            "job_red_marks": 0,
            "job_corrections": 0,
            "job_advances": 0,
        }


def with_job(desired: SwitchTables, job: int, generation: int) -> SwitchTables:
    """The fabric's part and the parameters of one job."""
    tables = desired.copy()
    params = MarkerParams(generation=generation)
    tables.entries[entry_key("job_params", job=Exact(job))] = action(
        "set_params", params.to_table()
    )
    return tables


async def test_counters_of_a_job_id_start_at_zero_whenever_it_is_handed_out(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
) -> None:
    data = pipeline.schema.counters["job_data"].id
    switch = await new_switch()
    async with programming(switch, pipeline, desired, timing) as programmer:
        # The first job with this Job_ID since the program was loaded: its counters are zero.
        programmer.set_desired(with_job(desired, 5, 9))
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert switch.counters == {}
        for generation in (1, 2):
            switch.counters = {(data, 5): 100, (data, 6): 7}
            programmer.set_desired(with_job(desired, 5, generation))
            await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
            assert switch.counters[data, 5] == 0
            assert switch.counters[data, 6] == 7
        switch.counters[data, 5] = 3
        kinds = [update.entity.WhichOneof("entity") for update in switch.writes[-6:]]
        assert kinds == ["counter_entry"] * 5 + ["table_entry"]
    async with programming(switch, pipeline, with_job(desired, 5, 2), timing) as again:
        await eventually(lambda: again.status.phase is Phase.IN_SYNC)
    assert switch.counters[data, 5] == 3


async def test_switch_that_keeps_its_counters_gets_its_rules_all_the_same(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    switch = await new_switch(refuse=lambda update: update.entity.HasField("counter_entry"))
    async with programming(switch, pipeline, desired, timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        for generation in (1, 2):
            programmer.set_desired(with_job(desired, 5, generation))
            await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert len(switch.entities) == len(desired) + 1
    assert "5 counters were not set to zero" in caplog.text


async def test_proxy_of_the_environment_is_not_asked_for_loopback(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    timing: Timing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    switch = await new_switch()
    async with Session(switch.address, 1, pipeline, timing=timing) as session:
        assert not await session.runs_our_pipeline()


async def test_nothing_is_left_running(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    desired: SwitchTables,
    timing: Timing,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    switch = await new_switch()
    before = asyncio.all_tasks()
    with caplog.at_level(logging.ERROR):
        async with programming(switch, pipeline, desired, timing) as programmer:
            await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        await eventually(lambda: not switch._streams)
    assert {
        task for task in asyncio.all_tasks() - before if "programmer" in task.get_name()
    } == set()
    # gRPC has one poller per process, which may still speak to the closed loop of another test.
    ours = [r for r in caplog.records if "PollerCompletionQueue" not in r.getMessage()]
    assert ours == []
