#!/usr/bin/env python3
"""The fault run, long: clients keep what they were promised while everything around them fails.

    python bench/controller_faults.py --minutes 30 --store sqlite --store postgresql --json

Real processes on this machine: one controller on SQLite, two candidates on PostgreSQL (a server of
its own, on loopback), software switches, and concurrent clients that register, renew, change and
release jobs with request ids. Meanwhile, by a schedule that follows from --seed: kill -9 of
controller, switch and database, SIGSTOP of switch and controller, a full disk under SQLite (a
small tmpfs; root only), steps of the controller's wall clock (a library compiled with cc),
foreign P4Runtime writes, another pipeline, clients that hang up in the middle of a call, and
Watch streams that nobody reads.

At the end: no two live jobs ever had one Job_ID, no acknowledged registration is lost, every
acknowledged release is gone, every reuse changed the generation, and each switch, read by a
client of its own, holds exactly what follows from the list of live jobs. Exit status 1 where that
does not hold.

The run is cut into rounds of about --round minutes, each with a seed of its own (--seed + round)
and a fresh store, so that what a round found can be had again alone. The same seed means the same
faults at the same times; what they meet depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # for free_ports
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "controller"))

from faultrig.clients import Behaviour
from faultrig.fabric import LeafSpine
from faultrig.faults import FAULTS
from faultrig.processes import RigError
from faultrig.rig import QUICK_P4RUNTIME
from faultrun import FaultPlan, Report, run, why_not


def plans(options: argparse.Namespace) -> list[FaultPlan]:
    """One plan per round and store, in turns."""
    settings = Path(options.settings).read_text() if options.settings else QUICK_P4RUNTIME
    minutes = options.minutes / len(options.store)
    rounds = max(1, round(minutes / options.round))
    # Start, end and the look after a restart take their part of a round.
    duration = max(10.0, minutes / rounds * 60 - 30)
    return [
        FaultPlan(
            seed=options.seed + number,
            store=store,
            duration_s=duration,
            every_s=options.every,
            settle_s=options.settle,
            candidates=options.candidates if store == "postgresql" else 1,
            fabric=LeafSpine(options.tors, options.spines, options.hosts),
            clients=options.clients,
            kinds=tuple(options.kind or FAULTS),
            settings=settings,
            behaviour=Behaviour(live_jobs=options.live_jobs, think_s=options.think),
        )
        for number in range(rounds)
        for store in options.store
    ]


async def one(plan: FaultPlan, keep: bool) -> Report:
    """Run a plan in a folder that stays where something was wrong."""
    folder = Path(tempfile.mkdtemp(prefix="ringstep-faults-"))
    print(f"seed {plan.seed} on {plan.store}: logs in {folder}", file=sys.stderr)
    good = False
    try:
        report = await run(plan, folder, lambda text: print(f"  {text}", file=sys.stderr))
        good = not report.wrong
        return report
    finally:
        if good and not keep:
            shutil.rmtree(folder, ignore_errors=True)


async def all_of(options: argparse.Namespace) -> list[Report]:
    """Run all plans; ctrl-C ends the round that runs, and its processes."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    reports: list[Report] = []
    todo = plans(options)
    started = time.monotonic()
    try:
        for index, plan in enumerate(todo):
            if index:
                left = (time.monotonic() - started) / index * (len(todo) - index)
                print(f"round {index + 1} of {len(todo)}, about {left / 60:.0f} min left",
                      file=sys.stderr)  # fmt: skip
            reports.append(await one(plan, options.keep))
            for text in reports[-1].wrong:
                print(f"  WRONG: {text}", file=sys.stderr)
    except asyncio.CancelledError:
        print("interrupted; what was found so far follows", file=sys.stderr)
    return reports


def summary(reports: list[Report]) -> dict[str, Any]:
    """All rounds in one: what was done, and what was wrong."""
    faults: dict[str, int] = {}
    jobs: dict[str, int] = {}
    for report in reports:
        for fault in report.faults:
            faults[fault["kind"]] = faults.get(fault["kind"], 0) + 1
        for key, value in report.jobs.items():
            jobs[key] = jobs.get(key, 0) + value
    return {
        "bench": "controller_faults",
        "rounds": len(reports),
        "wrong": sum(len(report.wrong) for report in reports),
        "faults": faults,
        "jobs": jobs,
        "settle_s_max": max((report.settle_s for report in reports), default=None),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "reports": [dataclasses.asdict(report) for report in reports],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of all stores together")
    parser.add_argument("--round", type=float, default=3.0, help="minutes of one round")
    parser.add_argument("--quick", action="store_true", help="one short round per store")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", action="append", choices=["sqlite", "postgresql"])
    parser.add_argument("--candidates", type=int, default=2, help="controllers on PostgreSQL")
    parser.add_argument("--every", type=float, default=2.5, help="seconds between faults, about")
    parser.add_argument("--settle", type=float, default=90.0, help="seconds until all is right")
    parser.add_argument("--kind", action="append", choices=sorted(FAULTS), help="only these faults")
    parser.add_argument("--tors", type=int, default=3)
    parser.add_argument("--spines", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=16, help="per ToR")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--live-jobs", type=int, default=20, help="per client, about")
    parser.add_argument(
        "--think", type=float, default=0.04, help="seconds between calls of a client"
    )
    parser.add_argument("--settings", help="file put at the end of controller.toml")
    parser.add_argument("--keep", action="store_true", help="keep logs of good rounds too")
    parser.add_argument("--json", action="store_true", help="print JSON to standard output")
    options = parser.parse_args()
    options.store = options.store or ["sqlite", "postgresql"]
    if options.quick:
        options.minutes, options.round = 0.6 * len(options.store), 0.6
    if min(options.minutes, options.round, options.every, options.think) <= 0:
        parser.error("--minutes, --round, --every and --think must be above 0")
    for store in options.store:
        if reason := why_not(FaultPlan(store=store)):
            parser.error(f"--store {store}: {reason}")
    try:
        reports = asyncio.run(all_of(options))
    except RigError as error:
        print(f"error: the run could not be set up: {error}", file=sys.stderr)
        return 2
    found = summary(reports)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for key in ("rounds", "faults", "jobs", "settle_s_max", "wrong"):
            print(f"{key}: {found[key]}")
    return 1 if found["wrong"] or not reports else 0


if __name__ == "__main__":
    sys.exit(main())
