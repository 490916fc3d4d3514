"""The CPU engine over real links: against MPICH, and with plugin, coordinator and telemetry.

Four hosts in network namespaces of this machine (ringstep.hostlib.nethosts) run engine_ranks.py;
for tuner_path.py, which prints what comes out. Everything that is compared is measured in one run,
in turn, on the same links.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ringstep.hostlib.native.build import build, build_engine, missing_tools
from ringstep.hostlib.nethosts import NetHosts, missing

HOSTS: Final = 4
RANK: Final = Path(__file__).with_name("engine_ranks.py")
_LINKS: Final = {"unlimited": None, "1 Gb/s": 1e9}
_PATIENCE_S: Final = 3600


@dataclass(frozen=True)
class Mpich:
    """Where MPICH lies."""

    mpiexec: Path
    library: Path


class RanksFailed(RuntimeError):
    """A rank ended with an error; the message ends with what it said."""


def mpich() -> Mpich | str:
    """Find MPICH's wheel, or say what is missing."""
    need = "needs MPICH 5 and mpi4py; `pip install mpich mpi4py`"
    try:
        found = importlib.metadata.distribution("mpich")
        importlib.metadata.distribution("mpi4py")
    except importlib.metadata.PackageNotFoundError:
        return need
    own = Path(str(found.locate_file(f"mpich-{found.version}.dist-info")))
    packages = own.resolve().parent  # the environment may be made of links
    places = {Path(str(f)).name: (packages / str(f)).resolve() for f in found.files or ()}
    try:
        where = Mpich(places["mpiexec.hydra"], places["libmpi.so.12"])
    except KeyError:
        return need
    return where if where.mpiexec.exists() and where.library.exists() else need


def missing_links() -> str | None:
    """Return why ranks cannot have links of their own here, None where they can."""
    return missing() or missing_tools("C++") or missing_tools()


def output_of(process: subprocess.Popen[str], what: str) -> dict[str, Any]:
    """Wait for the process that prints the result."""
    out, err = process.communicate(timeout=_PATIENCE_S)
    if process.returncode != 0:
        raise RanksFailed(f"{what} ended with {process.returncode}:\n{err[-3000:]}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def engine_vs_mpich(*, quick: bool = False) -> dict[str, Any]:
    """Compare AllReduce of 1 to 64 MB, by link and size.

    Returns:
        ``engine_vs_mpich``: the largest of all sizes' and links' median ratios of the engine's
        time to MPICH's, each with its best algorithm; ``engine_default_vs_mpich``: the same for
        what the engine chooses itself; ``…_by_size``: all of them. Null, with ``…_skipped``, where
        it cannot be measured.

    Raises:
        RanksFailed: a rank did.
    """
    where = mpich()
    reason = missing_links() or (where if isinstance(where, str) else None)
    if reason is not None:
        return {"engine_vs_mpich": None, "engine_vs_mpich_skipped": reason}
    assert isinstance(where, Mpich)
    settings: dict[str, Any] = {
        "ranks": HOSTS, "port": 29600, "channels": [1, 2, 4, 8], "tries": 3, "keep": 2,
        "sizes": [1 << 20, 4 << 20, 16 << 20, 64 << 20], "block_s": 0.2, "turns": 12,
    }  # fmt: skip
    if quick:
        settings |= {"channels": [2], "tries": 1, "keep": 1, "sizes": [1 << 20],
                     "block_s": 0.01, "turns": 2}  # fmt: skip
    rows: list[dict[str, Any]] = []
    build_engine()  # once, before ranks would all at once
    for link, rate in _LINKS.items():
        if quick and rate is None:
            continue
        with NetHosts(HOSTS, rate_bps=rate) as hosts, tempfile.TemporaryDirectory() as folder:
            environment = {
                **os.environ,
                "MPI4PY_LIBMPI": str(where.library),
                # TCP and nothing else: ranks of one machine would find shared memory.
                "MPIR_CVAR_CH4_NETMOD": "ofi",
                "FI_PROVIDER": "tcp",
                "MPIR_CVAR_NOLOCAL": "1",
                "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE": "0",
            }
            given = json.dumps({**settings, "root": hosts.address(0)})
            script = Path(folder) / "rank.sh"  # hydra's words pass through a shell
            script.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{RANK}' mpich '{given}'\n")
            script.chmod(0o700)
            process = subprocess.Popen(
                [*hosts.mpiexec(Path(folder), str(where.mpiexec)), "-genvall", str(script)],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            with process:
                try:
                    found = output_of(process, "a rank under mpiexec")
                except BaseException:
                    process.kill()
                    raise
        rows += [{"link": link, **row} for row in found["rows"]]
    return {
        "engine_vs_mpich": max(row["ratio"] for row in rows),
        "engine_default_vs_mpich": max(row["ratio_of_own_choice"] for row in rows),
        "engine_vs_mpich_by_size": rows,
    }


@contextlib.contextmanager
def coordinator(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the job's coordinator, ready, and end it."""
    reading, writing = os.pipe()
    command = [
        sys.executable, "-c", "from ringstep.cli.main import main; main()", "tuner", "coordinator",
        "--shm", str(folder), "--ready-fd", str(writing), "--die-with-parent", *options,
    ]  # fmt: skip
    process = subprocess.Popen(
        command, pass_fds=(writing,), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writing)
    try:
        with open(reading, encoding="utf-8") as ready:  # noqa: PTH123 (a descriptor)
            if not ready.readline():
                raise RanksFailed(f"the coordinator did not start:\n{process.communicate()[1]}")
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def interval(values: list[float], *, level: float = 0.95, draws: int = 4000) -> tuple[float, float]:
    """Return the bootstrap interval of the median, from a fixed seed."""
    source = random.Random(1)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(draws))
    tail = (1 - level) / 2
    return medians[math.floor(tail * draws)], medians[math.ceil((1 - tail) * draws) - 1]


def clean_overhead(*, quick: bool = False) -> dict[str, Any]:
    """Compare the engine with plugin, coordinator and telemetry to the engine alone.

    Policy ``nccl``: the same algorithms on both sides, so that what is left is the overhead.

    Returns:
        ``clean_overhead_pct``: the median over pairs of blocks, in percent of the time without;
        ``…_interval``: its 95 % bootstrap interval; ``…_by_size``: medians. Null, with
        ``…_skipped``, where it cannot be measured.

    Raises:
        RanksFailed: a rank, or the coordinator, did.
    """
    reason = missing_links()
    if reason is not None:
        return {"clean_overhead_pct": None, "clean_overhead_skipped": reason}
    settings: dict[str, Any] = {
        "ranks": HOSTS, "port": 29500, "sizes": [64 << 10, 1 << 20, 16 << 20], "settle": 30,
        "block_s": 0.25, "turns": 60,
    }  # fmt: skip
    if quick:
        settings |= {"sizes": [1 << 16], "settle": 2, "block_s": 0.01, "turns": 4}
    plugin = str(build().plugin)
    build_engine()  # once, before ranks would all at once
    with (
        NetHosts(HOSTS, rate_bps=1e9) as hosts,
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        coordinator(Path(folder), "--policy", "nccl"),
    ):
        environment = {
            **os.environ,
            "NCCL_TUNER_PLUGIN": plugin,
            "NCCL_PROFILER_PLUGIN": plugin,
            "RINGSTEP_SHM_DIR": folder,
        }
        ranks = []
        for rank in range(HOSTS):
            given = json.dumps({**settings, "root": hosts.address(0), "rank": rank})
            ranks.append(
                hosts.start(
                    rank, [sys.executable, str(RANK), "overhead", given], env=environment,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )
            )  # fmt: skip
        deadline = time.monotonic() + _PATIENCE_S
        while all(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
            time.sleep(0.05)
        for number, rank in enumerate(ranks[1:], start=1):
            if rank.poll() not in (None, 0):
                output_of(rank, f"rank {number}")
        found = output_of(ranks[0], "rank 0")
    by_size = {size: (statistics.median(r) - 1) * 100 for size, r in found["ratios"].items()}
    ratios = [ratio for of_size in found["ratios"].values() for ratio in of_size]
    low, high = interval(ratios)
    return {
        "clean_overhead_pct": (statistics.median(ratios) - 1) * 100,
        "clean_overhead_interval": [(low - 1) * 100, (high - 1) * 100],
        "clean_overhead_by_size": by_size,
    }
