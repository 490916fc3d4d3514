"""Clients keep what they were promised while controller, switches, store, disk and clock fail.

The long form of the same run is ``bench/controller_faults.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from faultrig.faults import FAULTS
from faultrig.processes import RigError
from faultrun import FaultPlan, Report, run, why_not

pytestmark = pytest.mark.slow

SEED = 5
"""Switches are drained and links lost while a controller leads and can store: not in vain."""
DURATION_S, EVERY_S = 15.0, 1.25
"""Room for every kind of fault, and little more."""


async def _run(plan: FaultPlan, folder: Path) -> Report:
    if reason := why_not(plan):
        pytest.skip(reason)
    try:
        return await run(plan, folder, print)
    except RigError as error:
        if "postgresql is not supported" in str(error):
            pytest.skip("this controller keeps its store on SQLite only")
        raise


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_nothing_promised_is_lost_and_switches_end_as_desired(
    store: str, tmp_path: Path
) -> None:
    plan = FaultPlan(seed=SEED, store=store, duration_s=DURATION_S, every_s=EVERY_S, forked=True)
    report = await _run(plan, tmp_path)
    print(json.dumps({"jobs": report.jobs, "calls": report.calls, "not_done": report.not_done}))
    assert not report.wrong, "\n".join(report.wrong)
    # A run in which nothing happened would prove nothing.
    assert report.jobs["acknowledged"] > 10
    assert report.jobs["released"] > 0
    assert report.jobs["job_ids_used_again"] > 10
    done = {fault["kind"] for fault in report.faults}
    assert done == set(FAULTS) - report.not_done.keys()
    assert {
        "kill_controller",
        "kill_switch",
        "stop_controller",
        "foreign_writes",
        "drain_switch",
        "lose_link",
    } <= done


def test_schedule_follows_from_the_seed_and_has_every_kind() -> None:
    from faultrun import schedule

    plan = FaultPlan(seed=7, duration_s=20, every_s=2)
    kinds = [f"kind{number}" for number in range(10)]
    assert schedule(plan, kinds) == schedule(plan, kinds)
    assert {kind for _, kind, _ in schedule(plan, kinds)} == set(kinds)
    assert schedule(plan, kinds) != schedule(FaultPlan(seed=8, duration_s=20, every_s=2), kinds)
