#!/usr/bin/env python3
"""Times what the NCCL plugin adds to a collective, with the coordinator writing all the while.

Example: python bench/tuner_path.py --json

`get_coll_info_*_ns` is one getCollInfo, the clock's own time taken off; `telemetry_write_p99_ns`
one record into the ring, sixteen measured at a time. `quiet_*` is the same without the writer, so
that a busy machine is told from a slow plugin. `system_calls` is proven, not counted: under a
filter that kills at any call, 1,000 calls survive (null where the kernel has no such filter).
`switches` counts the epochs that the measured rank took over meanwhile.

`apply_all_ranks_ms`: from the coordinator's decision until all of 64 ranks on its node apply it
(apply_time.py, which says more). `clean_overhead_pct`: what plugin, coordinator and telemetry cost
the CPU engine's AllReduce where nothing is to be gained, with its interval; `engine_vs_mpich`: the
engine's AllReduce of 1 to 64 MB against MPICH's, each at its best, the worst of all sizes and
links (engine_paths.py). These two need root and say why where they are null.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from apply_time import apply_all_ranks
from engine_paths import clean_overhead, engine_vs_mpich

from ringstep.hostlib.native.build import Built, build
from ringstep.hostlib.shm import Commit, Decision, DecisionTable, ShmError, ShmFile, default_path
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

PARTS = ("calls", "apply", "overhead", "mpich")
DRIVER = Path(__file__).resolve().parents[1] / "tests" / "hostlib" / "native" / "driver.c"


def table_of(channels: int) -> DecisionTable:
    table = DecisionTable()
    table.set(Collective.ALL_REDUCE, range(64), Decision(Algo.RING, Proto.SIMPLE, channels))
    return table


def keep_writing(folder: str, ready: Event, stop: Event, switches: Any) -> None:
    """The coordinator at its busiest: new tables offered, committed, telemetry read."""
    os.environ["RINGSTEP_SHM_DIR"] = folder
    with ShmFile.create(default_path()) as file:
        file.write_static(table_of(2))
        ready.set()
        readers: dict[int, Any] = {}
        epoch = 0
        tables = [table_of(channels) for channels in range(1, 33)]
        while not stop.is_set():
            try:
                file.announce(0, epoch + 1, tables[epoch % 32])
                epoch += 1
                for _ in range(1000):
                    if file.commit(0, epoch) is Commit.DONE:
                        switches.value += 1
                        break
            except ShmError:  # the communicator is not there yet, or not any more
                continue
            for reader in file.rings():
                readers.setdefault(reader.slot, reader).poll()


def measure(built: Built, folder: str, calls: int, writer: bool) -> dict[str, float]:
    environment = {**os.environ, "RINGSTEP_SHM_DIR": folder}
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    switches = context.Value("l", 0)
    owner = None
    if writer:
        owner = context.Process(target=keep_writing, args=(folder, ready, stop, switches))
        owner.start()
        ready.wait()
    else:
        os.environ["RINGSTEP_SHM_DIR"] = folder
        file = ShmFile.create(default_path())
        file.write_static(table_of(2))
    try:
        out = subprocess.run(
            [str(built.driver), "latency", str(built.plugin), str(calls), str(built.host)],
            check=True, capture_output=True, text=True, env=environment,
        ).stdout  # fmt: skip
    finally:
        if owner is not None:
            stop.set()
            owner.join()
        else:
            file.close()
    found: dict[str, float] = json.loads(out)
    found["switches"] = switches.value
    return found


def system_calls(built: Built, folder: str) -> int | None:
    environment = {**os.environ, "RINGSTEP_SHM_DIR": folder}
    os.environ["RINGSTEP_SHM_DIR"] = folder
    with ShmFile.create(default_path()) as file:
        file.write_static(table_of(2))
        done = subprocess.run(
            [str(built.driver), "seccomp", str(built.plugin), "0"], check=False, env=environment
        )
    if done.returncode == 77:
        return None
    return 0 if done.returncode == 0 else 1


def calls(built: Built, quick: bool, count: int) -> dict[str, Any]:
    """The plugin's functions, one by one."""
    count = 20_000 if quick else count
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        busy = measure(built, folder, count, writer=True)
        quiet = measure(built, folder, count, writer=False)
        return {
            "get_coll_info_p50_ns": busy["get_coll_info_p50_ns"],
            "get_coll_info_p99_ns": busy["get_coll_info_p99_ns"],
            "telemetry_write_p99_ns": busy["telemetry_write_p99_ns"],
            "quiet_get_coll_info_p50_ns": quiet["get_coll_info_p50_ns"],
            "quiet_get_coll_info_p99_ns": quiet["get_coll_info_p99_ns"],
            "quiet_telemetry_write_p99_ns": quiet["telemetry_write_p99_ns"],
            "switches": busy["switches"],
            "system_calls": system_calls(built, folder),
        }


def apply(quick: bool) -> dict[str, Any]:
    """From a decision to all ranks."""
    found = apply_all_ranks(switches=3) if quick else apply_all_ranks(switches=200)
    kept = ("apply_all_ranks_ms", "apply_all_ranks_p90_ms", "wakeup_late_p90_ms")
    return {key: found[key] for key in kept}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1_000_000, help="of getCollInfo")
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="this one only; may be given again"
    )
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes: to see that it runs"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.calls < 1000:
        parser.error(f"--calls {arguments.calls}: 1000 or more")
    built = build(driver=DRIVER)
    quick = arguments.quick
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "calls": lambda: calls(built, quick, arguments.calls),
        "apply": lambda: apply(quick),
        "overhead": lambda: clean_overhead(quick=quick),
        "mpich": lambda: engine_vs_mpich(quick=quick),
    }
    result: dict[str, Any] = {}
    for part in arguments.part or PARTS:
        print(f"measuring: {part} …", file=sys.stderr)
        result |= parts[part]()
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:32} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
