"""A switch that stops answering without closing anything is noticed, and said once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_switch import FakeSwitch
from programming import RED, job, programming, red
from softswitches import SoftSwitch

from ringstep.controller.channels import open_channel
from ringstep.controller.entries import SwitchTables
from ringstep.controller.p4rt import Timing
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.programmer import Phase

NewSwitch = Callable[..., Awaitable[FakeSwitch]]
Eventually = Callable[[Callable[[], object]], Awaitable[None]]


async def test_stopped_process_is_connecting_again_and_the_log_stays_short(
    tmp_path: Path,
    pipeline: Pipeline,
    timing: Timing,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """grpc/grpc#16974: the kernel keeps the connection of a stopped process open for ever."""
    desired = SwitchTables(entries={red(1): RED})
    impatient = replace(timing, connect_s=1.0)
    with SoftSwitch(tmp_path, 1) as switch:
        async with programming(switch, pipeline, desired, impatient) as programmer:  # type: ignore[arg-type]
            await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
            caplog.clear()
            os.kill(switch.process.pid, signal.SIGSTOP)
            await eventually(lambda: programmer.status.phase is Phase.CONNECTING)
            assert programmer.unsettled([red(1)])
            # Several attempts fail in the same way.
            await asyncio.sleep(3 * impatient.connect_s)
            assert programmer.status.phase is Phase.CONNECTING
            failures = [r for r in caplog.records if r.name.startswith("ringstep")]
            assert len(failures) <= 3
            os.kill(switch.process.pid, signal.SIGCONT)
            await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
            assert not programmer.unsettled([red(1)])


async def test_switch_that_falls_silent_in_the_middle_of_a_write_is_given_up(
    new_switch: NewSwitch, pipeline: Pipeline, timing: Timing, eventually: Eventually
) -> None:
    switch = await new_switch()
    desired = SwitchTables()
    impatient = replace(timing, connect_s=0.3, rpc_s=0.3)
    async with programming(switch, pipeline, desired, impatient) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        switch.silent.set()
        desired.entries.update(job(5))
        programmer.changed(job(5))
        await eventually(lambda: programmer.status.phase is Phase.CONNECTING)
        assert "did not answer in time" in programmer.status.detail
        switch.resume()
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
        assert len(switch.entities) == 3


async def test_failures_that_alternate_are_logged_once_each(
    new_switch: NewSwitch,
    pipeline: Pipeline,
    timing: Timing,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    switch = await new_switch(refuse_pipeline="one")
    async with programming(switch, pipeline, SwitchTables(), timing) as programmer:
        for reason in ("two", "one", "two", "one"):
            await eventually(
                lambda r=reason: f"({switch.refuse_pipeline})" in programmer.status.detail
            )
            switch.refuse_pipeline = reason
        await eventually(lambda: "(one)" in programmer.status.detail)
    assert caplog.text.count("INVALID_ARGUMENT (one)") == 1
    assert caplog.text.count("INVALID_ARGUMENT (two)") == 1


async def test_channels_to_switches_watch_for_dead_connections(
    monkeypatch: pytest.MonkeyPatch,
    new_switch: NewSwitch,
    pipeline: Pipeline,
    timing: Timing,
    eventually: Eventually,
) -> None:
    """gRPC ends connections that ping too often: never more often than every ten seconds."""
    asked: list[float | None] = []

    def spy(*args: object, keepalive_s: float | None = None, **options: object) -> object:
        asked.append(keepalive_s)
        return open_channel(*args, keepalive_s=keepalive_s, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("ringstep.controller.p4rt.open_channel", spy)
    switch = await new_switch()
    async with programming(switch, pipeline, SwitchTables(), timing) as programmer:
        await eventually(lambda: programmer.status.phase is Phase.IN_SYNC)
    assert asked == [10.0]
