#!/usr/bin/env python3
"""What the controller sustains: registrations, programming, restarts, memory.

    python bench/controller.py --json
    python bench/controller.py --quick --only registration

Everything runs on this machine and shares its cores: `ringstep controller serve` on SQLite, the
software switches (`ringstep softswitch run`, one process each, no data-plane ports), and the load
generator (bench/controller_load.py, a process of its own with several channels). On few cores
the switches take most of the time while rules are written; a controller with cores of its own does
better. `processes_cpu_s` says who took how much; --switch-nice lets the switches, which are other
machines in production, wait for the controller. A figure with errors has not met its reach.

registration  8 switches (--tors, --spines), connected and in sync with an empty store. Open loop:
              requests have times of their own, --rate a second for --seconds, at most --in-flight
              under way; a latency counts from a request's own time, so waiting counts. Then, with
              a fresh store and fresh switches, closed loop: --callers callers, each with its next
              request as soon as it has an answer. A job is a ring of --ring hosts in --racks
              racks, placed at random, found by destination QP; no job is released.
                registrations_per_s  open loop: requests answered, over --seconds where the last
                                     answer came within a second after that, else over the time
                                     until it
                stored_p99_ms        from a request's own time to the answer of Register
                programmed_p99_ms    from there until all switches of a job's paths are in sync,
                                     of one job in --sample, seen over Jobs.Watch, or by Jobs.Get
                                     where there is no Watch
rewrite       One switch with --rules job rules (jobs of two hosts with 8 connections each way),
              with their parameters and blocks. kill -9, started empty at the same address.
                rewrite_16k_s        from when it listens until the controller says in sync, and
                                     a reader of its own found all that it held before
reconnect     --many switches in sync, --many-jobs jobs. kill -9 of the controller, started again.
                reconnect_64_s       from the start of its process until all are in sync
rss           --cycles times register and release, --callers at once, three switches; Job_IDs rest
              5 s, unless --settings says otherwise.
                rss_growth_mib       resident memory of the controller, at the end against after
                                     the first tenth

Each figure is the median over --repeats (rss: one run), all within this run, with every raw value
beside it, and a verdict {value, reach, met}.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import platform
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # for free_ports
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "controller"))

from controller_load import Settings
from faultrig.clients import Endpoint
from faultrig.fabric import LeafSpine
from faultrig.processes import RigError, rss_mib
from faultrig.reading import Contents
from faultrig.rig import IN_SYNC, Rig, RigPlan, wait_in_sync

import ringstep

HERE = Path(__file__).resolve().parent
REACH = {
    "registrations_per_s": (1000.0, "at least"),
    "stored_p99_ms": (50.0, "at most"),
    "programmed_p99_ms": (None, "reported"),
    "rewrite_16k_s": (10.0, "at most"),
    "reconnect_64_s": (10.0, "at most"),
    "rss_growth_mib": (8.0, "at most"),
}
"""Flat memory is taken as growth below what the allocator itself moves by."""
PACKAGES = ("grpcio", "protobuf", "finsy", "sqlalchemy")
PHASES = ("registration", "rewrite", "reconnect", "rss")
PER_RULE_JOB = 16
"""Rules of one job of the rewrite phase: two edges of 8 connections."""


class Progress:
    """Says on stderr what runs, and about how long it will take."""

    def __init__(self, estimate_s: float) -> None:
        self._start = time.monotonic()
        self._estimate_s = estimate_s

    def say(self, text: str) -> None:
        """Print a line."""
        elapsed = time.monotonic() - self._start
        left = max(0.0, self._estimate_s - elapsed)
        eta = f"about {left:.0f} s left" if left else "longer than estimated"
        print(f"[{elapsed:5.0f} s, {eta}] {text}", file=sys.stderr, flush=True)


def quantiles_ms(seconds: list[float]) -> dict[str, float | int | None]:
    """p50, p95, p99 and max in milliseconds, with their number."""
    if not seconds:
        return {"n": 0, "p50": None, "p95": None, "p99": None, "max": None}
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

    return {
        "n": len(ordered), "p50": at(0.5), "p95": at(0.95), "p99": at(0.99),
        "max": round(1000 * ordered[-1], 2),
    }  # fmt: skip


def verdict(key: str, raw: list[float | None], failed: bool = False, **more: Any) -> dict[str, Any]:
    """Median over repetitions, set against the reach; ``failed``: not met, whatever the value."""
    values = [value for value in raw if value is not None]
    reach, sense = REACH[key]
    value = round(statistics.median(values), 3) if len(values) == len(raw) and raw else None
    met: bool | None = None
    if reach is not None:
        met = (
            not failed
            and value is not None
            and (value >= reach if sense == "at least" else value <= reach)
        )
    spread = {"min": round(min(values), 3), "max": round(max(values), 3)} if values else {}
    return {
        "value": value,
        "reach": reach,
        "sense": sense,
        "met": met,
        **spread,
        "raw": raw,
        **more,
    }


def cpu_s(pid: int) -> float:
    """Processor time of a process, seconds; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


_SHORT_REST = '[jobs]\nquarantine = "5s"\n'
"""With a minute's rest, cycles as fast as these would have all Job_IDs at rest."""


class Bench:
    """All phases with one set of options."""

    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self._how = options
        self._say = progress.say
        self._settings = Path(options.settings).read_text() if options.settings else ""

    async def run(self) -> dict[str, Any]:
        """Run the phases and return the figures by key."""
        found: dict[str, Any] = {}
        phases: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
            "registration": self.registration,
            "rewrite": self.rewrite,
            "reconnect": self.reconnect,
            "rss": self.rss,
        }
        for name in PHASES:
            if not self._how.only or name in self._how.only:
                found.update(await phases[name]())
        return found

    @contextlib.asynccontextmanager
    async def _rig(
        self, fabric: LeafSpine, settings: str = ""
    ) -> AsyncIterator[tuple[Rig, Endpoint]]:
        with tempfile.TemporaryDirectory(prefix="ringstep-bench-") as folder:
            plan = RigPlan(
                fabric=fabric,
                settings=self._settings or settings,
                switch_nice=self._how.switch_nice,
            )
            async with Rig(plan, Path(folder)) as rig:
                endpoint = rig.endpoint(timeout_s=10)
                try:
                    await wait_in_sync(endpoint, fabric.switches, self._how.patience)
                    yield rig, endpoint
                finally:
                    await endpoint.close()

    async def _load(self, rig: Rig, **changes: Any) -> dict[str, Any]:
        """Run the load generator to its end, and return what it measured."""
        fabric = rig.plan.fabric
        settings = Settings(
            target=rig.controllers[0].address,
            hosts=[fabric.rack(tor) for tor in fabric.tor_names],
            **{"channels": self._how.channels, "seed": self._how.seed, **changes},
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(HERE / "controller_load.py"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, _ = await process.communicate(json.dumps(dataclasses.asdict(settings)).encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise RigError("the load generator failed; its message is above")
        found: dict[str, Any] = json.loads(out)
        return found

    # -- registration ------------------------------------------------------------------------

    async def registration(self) -> dict[str, Any]:
        """Rate and latencies of Register, and the time until jobs are programmed."""
        how = self._how
        fabric = LeafSpine(how.tors, how.spines, how.hosts)
        mix = {"ring": how.ring, "racks": how.racks}
        opened: list[dict[str, Any]] = []
        closed: list[dict[str, Any]] = []
        for number in range(how.repeats):
            self._say(f"registration {number + 1}/{how.repeats}: open loop, {how.rate:g}/s")
            opened.append(
                await self._registered(
                    fabric, rate=how.rate, seconds=how.seconds, in_flight=how.in_flight,
                    programmed=how.programmed_by, sample=how.sample, settle_s=how.settle, **mix,
                )
            )  # fmt: skip
            self._say(
                f"registration {number + 1}/{how.repeats}: closed loop, {how.callers} callers"
            )
            closed.append(
                await self._registered(
                    fabric, seconds=how.seconds, in_flight=how.callers, count=how.most_jobs, **mix
                )
            )
        first = opened[0]
        # What was refused or given up has no latency, and must not make the others look better.
        failed = any(one["errors"] for one in opened)
        job_mix = {
            "match": "DST_QP", "ring_hosts": how.ring, "racks_per_job": how.racks,
            "connections": how.ring, "hosts_per_rack": how.hosts, "tors": how.tors,
            "spines": how.spines, "placement": "random", "released": False,
        }  # fmt: skip
        return {
            "registrations_per_s": verdict(
                "registrations_per_s",
                [one["per_s"] for one in opened],
                failed,
                offered_per_s=how.rate,
                seconds=how.seconds,
                in_flight=how.in_flight,
                errors=[one["errors"] for one in opened],
                closed_loop_per_s={
                    "value": round(statistics.median(one["per_s"] for one in closed), 1),
                    "raw": [one["per_s"] for one in closed],
                    "callers": how.callers,
                    "stored_ms": [one["stored_ms"] for one in closed],
                    "errors": [one["errors"] for one in closed],
                },
                job_mix=job_mix,
                processes_cpu_s=[one["cpu_s"] for one in opened],
            ),
            "stored_p99_ms": verdict(
                "stored_p99_ms",
                [one["stored_ms"]["p99"] for one in opened],
                failed,
                all_ms=[one["stored_ms"] for one in opened],
            ),
            "programmed_p99_ms": verdict(
                "programmed_p99_ms",
                [one["programmed_ms"]["p99"] for one in opened],
                all_ms=[one["programmed_ms"] for one in opened],
                seen_by=first["programmed_by"],
                sample=how.sample,
                not_programmed_in_time=[one["not_programmed"] for one in opened],
            ),
        }

    async def _registered(self, fabric: LeafSpine, **changes: Any) -> dict[str, Any]:
        async with self._rig(fabric) as (rig, _):
            pids = {"controller": [rig.controllers[0].pid],
                    "switches": [switch.pid for switch in rig.switches.values()]}  # fmt: skip
            before = {name: sum(map(cpu_s, group)) for name, group in pids.items()}
            found = await self._load(rig, **changes)
            spent = {name: sum(map(cpu_s, group)) - before[name] for name, group in pids.items()}
        span = found["ended"] - found["started"]
        seconds = changes["seconds"]
        if changes.get("rate") and span <= seconds + 1:
            span = seconds
        return {
            "per_s": round(len(found["stored"]) / span, 1) if found["stored"] else 0.0,
            "stored_ms": quantiles_ms(found["stored"]),
            "programmed_ms": quantiles_ms(found["programmed"]),
            "programmed_by": found["programmed_by"],
            "not_programmed": found["not_programmed"],
            "errors": found["errors"],
            "cpu_s": {**spent, "load": found["cpu_s"]},
        }

    # -- restarts ----------------------------------------------------------------------------

    async def rewrite(self) -> dict[str, Any]:
        """Time until a switch that comes back empty is whole."""
        how = self._how
        fabric = LeafSpine(tors=1, spines=0, hosts=32)
        jobs = -(-how.rules // PER_RULE_JOB)
        raw: list[float | None] = []
        early = 0
        async with self._rig(fabric) as (rig, endpoint):
            self._say(f"rewrite: {jobs} jobs with {jobs * PER_RULE_JOB} rules")
            await self._many_jobs(rig, endpoint, jobs, ring=2, racks=1, channels_per_edge=8)
            right = await asyncio.to_thread(rig.read, "tor1")
            rules = len(right.table("job_by_dst_qp"))
            if rules != jobs * PER_RULE_JOB:
                raise RigError(f"the switch holds {rules} rules before it is killed")
            for number in range(how.repeats):
                self._say(f"rewrite {number + 1}/{how.repeats}: kill -9 of the switch")
                took, mistaken = await self._rewritten(rig, endpoint, right)
                raw.append(took)
                early += mistaken
        return {
            "rewrite_16k_s": verdict(
                "rewrite_16k_s",
                raw,
                rules=rules,
                entries=right.size,
                jobs=jobs,
                in_sync_too_early=early,
            )
        }

    async def _many_jobs(
        self, rig: Rig, endpoint: Endpoint, count: int, **mix: Any
    ) -> dict[str, Any]:
        found = await self._load(
            rig, count=count, seconds=self._how.patience, in_flight=self._how.callers, **mix
        )
        if found["errors"] or len(found["stored"]) != count:
            raise RigError(f"{len(found['stored'])} of {count} jobs registered: {found['errors']}")
        await wait_in_sync(endpoint, rig.plan.fabric.switches, self._how.patience)
        return found

    async def _rewritten(
        self, rig: Rig, endpoint: Endpoint, right: Contents
    ) -> tuple[float | None, int]:
        """Kill the switch; return the seconds until it is whole, and wrong claims that it is."""
        switch = rig.switches["tor1"]
        before = await self._sessions(endpoint)
        await asyncio.to_thread(switch.kill)
        switch.start()
        await asyncio.to_thread(switch.wait_ready)
        start = time.monotonic()
        early = 0
        while time.monotonic() < start + self._how.patience:
            (status,) = [one.status for one in await endpoint.switches() or ()] or [None]
            if status is None or status.phase != IN_SYNC or status.sessions <= before:
                await asyncio.sleep(0.02)
                continue
            took = time.monotonic() - start
            if await asyncio.to_thread(rig.read, "tor1") == right:
                return round(took, 3), early
            early += 1
        return None, early

    @staticmethod
    async def _sessions(endpoint: Endpoint) -> int:
        (switch,) = await endpoint.switches() or ()
        return int(switch.status.sessions)

    async def reconnect(self) -> dict[str, Any]:
        """Time until all switches are in sync with a controller that was restarted."""
        how = self._how
        spines = max(1, how.many // 4)
        fabric = LeafSpine(tors=how.many - spines, spines=spines, hosts=4)
        raw: list[float | None] = []
        listening: list[float] = []
        whole: list[bool] = []
        self._say(f"reconnect: starting {how.many} switches")
        async with self._rig(fabric) as (rig, endpoint):
            await self._many_jobs(rig, endpoint, how.many_jobs, ring=how.ring, racks=how.racks)
            right = await rig.read_all()
            controller = rig.controllers[0]
            for number in range(how.repeats):
                self._say(f"reconnect {number + 1}/{how.repeats}: kill -9 of the controller")
                await asyncio.to_thread(controller.kill)
                start = time.monotonic()
                controller.start()
                await asyncio.to_thread(controller.wait_listening)
                listening.append(round(time.monotonic() - start, 3))
                try:
                    await wait_in_sync(endpoint, fabric.switches, how.patience)
                    raw.append(round(time.monotonic() - start, 3))
                except TimeoutError as error:
                    print(f"not in sync: {error}", file=sys.stderr)
                    raw.append(None)
                whole.append(await rig.read_all() == right)
        return {
            "reconnect_64_s": verdict(
                "reconnect_64_s",
                raw,
                switches=how.many,
                jobs=how.many_jobs,
                entries=sum(contents.size for contents in right.values()),
                listening_s=listening,
                held_the_same_after=whole,
            )
        }

    # -- memory ------------------------------------------------------------------------------

    async def rss(self) -> dict[str, Any]:
        """Growth of memory and store over register and release."""
        how = self._how
        warm = max(1, how.cycles // 10)
        fabric = LeafSpine(tors=2, spines=1, hosts=8)
        async with self._rig(fabric, _SHORT_REST) as (rig, _):
            pid = rig.controllers[0].pid
            self._say(f"rss: {warm} cycles to warm up")
            first = await self._cycles(rig, 0, warm)
            # What the last jobs left to write and to free.
            await asyncio.sleep(2)
            begin, bytes_before = rss_mib(pid), rig.store_bytes()
            self._say(f"rss: {how.cycles - warm} cycles")
            samples: list[tuple[float, float]] = []
            start = time.monotonic()
            work = asyncio.create_task(self._cycles(rig, warm, how.cycles - warm))
            try:
                while not work.done():
                    await asyncio.wait({work}, timeout=1.0)
                    samples.append((time.monotonic() - start, rss_mib(pid)))
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            second = work.result()
            await asyncio.sleep(2)
            end, bytes_after = rss_mib(pid), rig.store_bytes()
        span = samples[-1][0] or 1.0
        cycles = len(second["released"])
        points = [(at / span * cycles, rss) for at, rss in samples]
        slope = statistics.linear_regression(*zip(*points, strict=True)).slope if points[2:] else 0
        return {
            "rss_growth_mib": verdict(
                "rss_growth_mib",
                [round(end - begin, 2)],
                cycles=cycles + len(first["released"]),
                rss_mib_after_warm_up=round(begin, 1),
                rss_mib_at_end=round(end, 1),
                rss_mib_max=round(max(rss for _, rss in samples), 1),
                slope_mib_per_10000_cycles=round(slope * 10_000, 3),
                cycles_per_s=round(cycles / span, 1),
                store_growth_mib=round((bytes_after - bytes_before) / (1 << 20), 2),
                store_mib=round(bytes_after / (1 << 20), 2),
                reused_with_the_same_generation=(
                    first["generations_kept"] + second["generations_kept"]
                ),
                errors={**first["errors"], **second["errors"]},
                samples_mib=[round(rss, 1) for _, rss in samples[:: max(1, len(samples) // 60)]],
            )
        }

    async def _cycles(self, rig: Rig, first: int, count: int) -> dict[str, Any]:
        return await self._load(
            rig, first=first, count=count, cycle=True, in_flight=self._how.callers,
            seconds=self._how.patience + count / 20, ring=2, racks=1,
        )  # fmt: skip


def machine() -> dict[str, Any]:
    """What the figures were measured on and with."""
    model = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "machine": platform.machine(),
        "cpu": model,
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "ringstep": ringstep.__version__,
        **{name: version(name) for name in PACKAGES},
    }


def estimate_s(options: argparse.Namespace) -> float:
    """A rough guess at the time of all phases, seconds."""
    of_phase = {
        "registration": options.repeats * 2 * (options.seconds + 20) + options.repeats * 30,
        "rewrite": 40 + options.repeats * options.rules / 1000,
        "reconnect": options.many * 1.5 + options.repeats * 15,
        "rss": 15 + options.cycles / 300,
    }
    return sum(of_phase[name] for name in options.only or PHASES)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", action="store_true", help="print JSON to standard output")
    made.add_argument("--only", action="append", choices=PHASES, help="these phases; repeatable")
    made.add_argument("--quick", action="store_true", help="small: to see that it works")
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--settings", help="file put at the end of controller.toml")
    made.add_argument(
        "--switch-nice", type=int, default=0,
        help="niceness of the switches: above 0 they leave the cores to the controller first",
    )  # fmt: skip
    made.add_argument("--patience", type=float, default=300.0, help="seconds for any one wait")
    one = made.add_argument_group("registration")
    one.add_argument("--rate", type=float, default=1000.0, help="open loop, requests a second")
    one.add_argument("--seconds", type=float, default=10.0, help="of each loop")
    one.add_argument("--in-flight", type=int, default=512, help="open loop, at most")
    one.add_argument("--callers", type=int, default=64, help="closed loop, and other phases")
    one.add_argument("--most-jobs", type=int, default=16_000, help="closed loop, at most")
    one.add_argument("--channels", type=int, default=4)
    one.add_argument("--tors", type=int, default=4)
    one.add_argument("--spines", type=int, default=4)
    one.add_argument("--hosts", type=int, default=16, help="per ToR")
    one.add_argument("--ring", type=int, default=4, help="hosts of a job")
    one.add_argument("--racks", type=int, default=2, help="racks of a job")
    one.add_argument("--programmed-by", default="auto", choices=["auto", "watch", "poll", "no"])
    one.add_argument("--sample", type=int, default=10, help="one job of so many is followed")
    one.add_argument("--settle", type=float, default=240.0, help="seconds for the last rules")
    made.add_argument("--rules", type=int, default=16_000, help="rewrite: rules of the switch")
    made.add_argument("--many", type=int, default=64, help="reconnect: switches")
    made.add_argument("--many-jobs", type=int, default=256, help="reconnect: jobs")
    made.add_argument("--cycles", type=int, default=100_000, help="rss: register and release")
    return made


QUICK = {
    "repeats": 1, "seconds": 2.0, "rate": 100.0, "rules": 1600, "many": 8, "many_jobs": 16,
    "cycles": 2000, "sample": 2, "settle": 60.0,
}  # fmt: skip


async def cancelled_by_signals(work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Await ``work``; SIGINT and SIGTERM cancel it, so that processes and folders go with it."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await work


def main() -> int:
    options = parser().parse_args()
    if options.quick:
        for key, value in QUICK.items():
            if getattr(options, key) == parser().get_default(key):
                setattr(options, key, value)
    if min(options.repeats, options.seconds, options.rate, options.sample, options.cycles) <= 0:
        parser().error("--repeats, --seconds, --rate, --sample and --cycles must be above 0")
    if options.rate * options.seconds > 16_383:
        parser().error("--rate times --seconds is more than the 16,383 Job_IDs that there are")
    if not 1 <= options.racks <= options.tors or options.ring < max(2, options.racks):
        parser().error("--racks must be in 1..tors, and --ring at least 2 and --racks")
    before = os.getloadavg()
    try:
        found = asyncio.run(
            cancelled_by_signals(Bench(options, Progress(estimate_s(options))).run())
        )
    except (RigError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        print("interrupted; all processes are ended", file=sys.stderr)
        return 130
    report = {
        "bench": "controller",
        "quick": options.quick,
        "switch_nice": options.switch_nice,
        "repeats": options.repeats,
        **found,
        "machine": machine(),
        # One-minute load averages, before and after; what else ran makes everything slower.
        "load": [round(before[0], 2), round(os.getloadavg()[0], 2)],
    }
    if options.json:
        print(json.dumps(report, indent=2))
        return 0
    for key, (reach, sense) in REACH.items():
        if key in report:
            one = report[key]
            met = {True: "met", False: "not met", None: ""}[one["met"]]
            wanted = "" if reach is None else f"({sense} {reach:g}) "
            print(f"{key:<22} {one['value']}  {wanted}{met}  raw {one['raw']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
