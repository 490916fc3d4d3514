#!/usr/bin/env python3
"""Times a decision's way to all ranks: 64 ranks on this machine, one coordinator.

Example: python bench/apply_time.py --json

From the policy's answer in the coordinator to the moment when it sees every rank apply the new
table, over a number of switches. A rank takes a table over in its next collective and applies it in
the one after, so `period_us`, the time between a rank's collectives, is part of it twice at most;
`own_p50_ms` is what is left of the median without them. The ranks are spread over as many processes
as this machine has processors (`processes`): more would measure its scheduler. `cpu_idle_pct` is
the coordinator's share of a core while no collective runs and nothing is on offer, `cpu_busy_pct`
while the ranks run. `wakeup_late_*_ms` is how late a sleep of a millisecond ended meanwhile, in a
process that does nothing else: a switch needs half a dozen wake-ups one after the other, so that a
busy machine is told from a slow coordinator.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ringstep.hostlib.coordinator.control import ask, socket_path
from ringstep.hostlib.native.build import build
from ringstep.hostlib.shm import default_path

DRIVER = Path(__file__).resolve().parents[1] / "tests" / "hostlib" / "native" / "driver.c"
PATIENCE_S = 30.0


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def coordinator(environment: dict[str, str]) -> Iterator[int]:
    command = [sys.executable, "-m", "ringstep.cli.main", "tuner", "coordinator", "--no-gpu"]
    reading, writing = os.pipe()
    with subprocess.Popen(
        [*command, "--ready-fd", str(writing)], env=environment, pass_fds=[writing]
    ) as process:
        os.close(writing)
        try:
            with os.fdopen(reading) as pipe:
                pipe.read()
            yield process.pid
        finally:
            process.terminate()


@contextmanager
def lateness() -> Iterator[list[float]]:
    """Collect how late sleeps of a millisecond end, in milliseconds."""
    code = (
        "import sys, threading, time\n"
        "ended = []\n"
        "def end(): sys.stdin.read(); ended.append(1)\n"
        "threading.Thread(target=end, daemon=True).start()\n"
        "while not ended:\n"
        "    before = time.perf_counter(); time.sleep(0.001)\n"
        "    print((time.perf_counter() - before) * 1e3 - 1)\n"
    )
    found: list[float] = []
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        reader = threading.Thread(target=lambda: found.extend(map(float, process.stdout or ())))
        reader.start()
        try:
            yield found
        finally:
            assert process.stdin is not None
            process.stdin.close()
            reader.join()


def load(pid: int, seconds: float) -> float:
    before = cpu_s(pid)
    time.sleep(seconds)
    return 100 * (cpu_s(pid) - before) / seconds


def apply_all_ranks(
    *, ranks: int = 64, switches: int = 40, period_us: int = 500, processes: int = 0
) -> dict[str, Any]:
    """Measure; returns the keys of the JSON output, times in milliseconds."""
    built = build(driver=DRIVER)
    processes = processes or min(os.cpu_count() or 1, ranks)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        environment = {**os.environ, "RINGSTEP_SHM_DIR": folder}
        environment.pop("RINGSTEP_SHM_TOKEN", None)
        control = socket_path(default_path("default", Path(folder)))
        tables = []
        for channels in (3, 5):
            path = Path(folder) / f"{channels}.csv"
            path.write_text(
                "collective,bytes,algorithm,protocol,channels\n"
                f"allreduce,..,ring,simple,{channels}\n"
            )
            tables.append(f"fixed:{path}")
        with coordinator(environment) as pid:
            idle = load(pid, 2.0)
            fleet = subprocess.Popen(
                [str(built.driver), "fleet", str(built.plugin), str(ranks), str(period_us),
                 str(processes)],
                stdin=subprocess.PIPE, env=environment,
            )  # fmt: skip
            try:
                with lateness() as late:
                    took = [switched(control, tables[i % 2], i + 1) for i in range(switches)]
                busy = load(pid, 1.0)
            finally:
                assert fleet.stdin is not None
                fleet.stdin.close()
                fleet.wait()
    took.sort()
    late.sort()
    median = statistics.median(took)
    return {
        "apply_all_ranks_ms": median,
        "apply_all_ranks_p90_ms": took[int(0.9 * len(took))],
        "apply_all_ranks_max_ms": took[-1],
        "own_p50_ms": max(median - 2 * period_us / 1000, 0.0),
        "ranks": ranks,
        "processes": processes,
        "switches": len(took),
        "period_us": period_us,
        "cpu_idle_pct": idle,
        "cpu_busy_pct": busy,
        "wakeup_late_p50_ms": statistics.median(late),
        "wakeup_late_p90_ms": late[int(0.9 * len(late))],
    }


def switched(control: Path, table: str, epoch: int) -> float:
    """Switch, and return how long that took."""
    ask(control, {"do": "policy", "name": table})
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        time.sleep(0.05)
        found = ask(control, {"do": "status"})["communicators"]
        if found and found[0]["epoch"] >= epoch and found[0]["on_offer"] is None:
            return float(found[0]["apply_ms"])
    raise RuntimeError(f"epoch {epoch} was not applied within {PATIENCE_S:g} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--switches", type=int, default=40)
    parser.add_argument("--period-us", type=int, default=500)
    parser.add_argument("--processes", type=int, default=0, help="0: one by processor")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = apply_all_ranks(
        ranks=arguments.ranks,
        switches=arguments.switches,
        period_us=arguments.period_us,
        processes=arguments.processes,
    )
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
