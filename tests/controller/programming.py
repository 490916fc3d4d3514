"""A programmer at work on a switch, and what tests write behind its back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fake_switch import FakeSwitch

from ringstep.controller.codec import encode_update
from ringstep.controller.entries import (
    EntryKey,
    EntryValue,
    Exact,
    SwitchTables,
    Ternary,
    action,
    entry_key,
)
from ringstep.controller.p4rt import Timing
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.plan import Update, plan_updates
from ringstep.controller.programmer import Programmer
from ringstep.protocol.marker import MarkerParams

RED = action("set_red", {"q_min": 1, "q_max": 2, "p_max": 3, "gap": 4})


@asynccontextmanager
async def programming(
    switch: FakeSwitch, pipeline: Pipeline, desired: SwitchTables, timing: Timing, **options: Any
) -> AsyncIterator[Programmer]:
    programmer = Programmer("tor1", switch.address, 1, pipeline, desired, timing=timing, **options)
    task = asyncio.create_task(programmer.run())
    try:
        yield programmer
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def expected(desired: SwitchTables, pipeline: Pipeline) -> set[str]:
    """What the fake switch holds when it holds ``desired``."""
    switch = FakeSwitch()
    for phase in plan_updates(SwitchTables(), desired):
        for update in phase:
            switch._update(encode_update(update, pipeline.schema))
    return set(switch.lines())


def put(switch: FakeSwitch, pipeline: Pipeline, *updates: Update) -> None:
    """Write behind the controller's back."""
    for update in updates:
        error = switch._update(encode_update(update, pipeline.schema))
        assert error.canonical_code == 0


def red(port: int) -> EntryKey:
    """The key of a port's RED thresholds."""
    return entry_key("red", egress_port=Exact(port))


def job(number: int, generation: int = 1) -> dict[EntryKey, EntryValue]:
    """Parameters, block and rule of a job."""
    return {
        params(number): action("set_params", MarkerParams(generation=generation).to_table()),
        entry_key("block_map", job=Exact(number), egress_port=Exact(1)): action(
            "set_block", {"block": number}
        ),
        rule(number): action("set_job", {"job": number, "path_id": 0}),
    }


def params(number: int) -> EntryKey:
    """The key of a job's parameters."""
    return entry_key("job_params", job=Exact(number))


def rule(number: int) -> EntryKey:
    """The key of a job's rule."""
    return entry_key("job_by_tag", 9, sport=Ternary(number, 0xFFFF))
