#!/usr/bin/env python3
"""Real NCCL on one GPU: are decisions applied on every rank, at the same collective?

Called by bench/one_gpu_nccl.sh, which says what it is for. Keys of --json:

`get_coll_info_p50_ns`, `_p99_ns`: of the slowest rank, as NCCL called it (a plugin in between
takes the time; the clock's own is in it). `switches`: epochs committed. `collectives`: audited, on
all ranks. `disagreements`: collectives for which two ranks ran, or had in force, different things.
`not_applied`: collectives under a decision that ran as something else. `wrong_results`: of the
collectives themselves. `log_disagrees`: lines of NCCL's log that contradict (null where this
NCCL's log has no such lines). `apply_ms`: from an announcement to its commit, the median.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringstep.hostlib.native.build import SOURCES, build, missing_tools
from ringstep.hostlib.shm import (
    Commit,
    Decision,
    DecisionTable,
    Record,
    ShmError,
    ShmFile,
    default_path,
)
from ringstep.hostlib.shm_layout import Algo, Collective, CommState, Proto, RecordFlag

SKIPPED = 77
AR = Collective.ALL_REDUCE
SIZES = (1 << 12, 1 << 20, 4 << 20)  # bytes of the collectives that are decided about
FLAG_BYTES = 4  # of the one that tells the ranks to stop: its size class is left to NCCL
DECISIONS = (
    Decision(Algo.RING, Proto.SIMPLE, 1),
    Decision(Algo.TREE, Proto.SIMPLE, 2),
    Decision(Algo.RING, Proto.LL, 2),
)
TIMER = Path(__file__).with_name("native") / "tuner_timer.c"


def missing(backend: str = "nccl") -> str | None:
    """Return why this cannot run here and what would help, None where it can."""
    tools = missing_tools()
    if tools is not None:
        return tools
    if shutil.which("cc") is None:
        return "needs cc; `apt-get install gcc`"
    devices = ("/dev/nvidiactl", "/dev/dxg")
    if backend == "nccl" and not any(Path(device).exists() for device in devices):
        return f"needs a GPU and its driver; there is none of {', '.join(devices)}"
    if importlib.util.find_spec("torch") is None:
        return "needs PyTorch; `pip install torch`"
    if backend != "nccl":
        return None
    import torch

    if not torch.cuda.is_available():
        return "needs a GPU that PyTorch can use (torch.cuda.is_available() is false)"
    if not torch.distributed.is_nccl_available():
        return "needs a PyTorch that has NCCL"
    if tuple(torch.cuda.nccl.version()) < (2, 28):
        return f"needs NCCL 2.28 (decisions while it runs), this is {torch.cuda.nccl.version()}"
    return None


# --- the audit ---


@dataclass
class Audit:
    """What the telemetry of all ranks says, compared."""

    collectives: int = 0
    disagreements: int = 0
    not_applied: int = 0
    decided: int = 0
    examples: list[str] = field(default_factory=list)

    def complain(self, what: str) -> None:
        """Keep the first few complaints."""
        if len(self.examples) < 5:
            self.examples.append(what)


def audit(records: Iterable[Record], n_ranks: int, tables: dict[int, DecisionTable]) -> Audit:
    """Compare what every rank ran at every index, with the others and with what was decided.

    Args:
        records: of one communicator, all ranks.
        n_ranks: an index that fewer ranks reported is not judged.
        tables: that were in force, by epoch.
    """
    by_index: dict[int, dict[int, Record]] = {}
    for record in records:
        if RecordFlag.PARTIAL not in record.flags:
            by_index.setdefault(record.index, {})[record.rank] = record
    found = Audit()
    for index, by_rank in sorted(by_index.items()):
        if len(by_rank) != n_ranks:
            continue
        found.collectives += 1
        ran = {(r.func, r.bytes, r.algo, r.proto, r.n_channels, r.epoch) for r in by_rank.values()}
        if len(ran) != 1:
            found.disagreements += 1
            found.complain(f"index {index}: ranks differ: {sorted(map(str, ran))}")
            continue
        one = next(iter(by_rank.values()))
        table = tables.get(one.epoch)
        wanted = None
        if table is not None and one.func is not None:
            wanted = table.get(one.func, max(one.bytes.bit_length() - 1, 0))
        flags = {RecordFlag.DECIDED in r.flags for r in by_rank.values()}
        if wanted is None:
            if flags != {False}:
                found.not_applied += 1
                found.complain(f"index {index}: decided, but nothing was decided about it")
            continue
        found.decided += 1
        # NCCL uses no more channels than the data and the topology have room for.
        as_wanted = (one.algo, one.proto) == (wanted.algo, wanted.proto) and (
            wanted.n_channels == 0 or one.n_channels <= wanted.n_channels
        )
        if not as_wanted or flags != {True}:
            found.not_applied += 1
            found.complain(f"index {index}: wanted {wanted}, ran {one}")
    return found


_RAN = re.compile(
    r"(?P<func>AllReduce|Broadcast|AllGather|ReduceScatter|Reduce): (?P<bytes>\d+) Bytes -> "
    r"Algo (?P<algo>\w+) proto (?P<proto>\w+)"
)


def log_choices(text: str) -> list[tuple[int, str, str]]:
    """Return (bytes, algorithm, protocol) of each AllReduce in NCCL's log, in words or numbers."""
    return [
        (int(m["bytes"]), m["algo"].upper(), m["proto"].upper())
        for m in _RAN.finditer(text)
        if m["func"] == "AllReduce"
    ]


def log_disagrees(logs: Sequence[str]) -> int | None:
    """Return how many lines of the ranks' logs differ, None where there are none to compare."""
    choices = [log_choices(text) for text in logs]
    if not all(choices):
        return None
    shortest = min(map(len, choices))
    return sum(len({c[i] for c in choices}) > 1 for i in range(shortest))


# --- a rank ---


def rank_main(arguments: argparse.Namespace) -> int:
    """One rank: collectives of several sizes until told to stop; prints how many were wrong."""
    import torch
    import torch.distributed as dist

    rank, n_ranks = arguments.rank, arguments.ranks
    device = torch.device("cuda:0" if arguments.backend == "nccl" else "cpu")
    if arguments.backend == "ringstep":
        import ringstep.hostlib.torch_backend  # noqa: F401 (registers itself)

        torch.set_num_threads(1)  # the ranks share the machine
    store = f"file://{arguments.folder}/rendezvous"
    dist.init_process_group(arguments.backend, init_method=store, rank=rank, world_size=n_ranks)
    stop = Path(arguments.folder) / "stop"
    wrong = count = 0
    buffers = [torch.empty(size // 4, dtype=torch.float32, device=device) for size in SIZES]
    flag = torch.zeros(1, dtype=torch.float32, device=device)
    while True:
        for buffer in buffers:
            buffer.fill_(rank + 1 + count % 7)
            dist.all_reduce(buffer)
            expected = n_ranks * (n_ranks + 1) / 2 + n_ranks * (count % 7)
            wrong += int(not bool((buffer == expected).all()))
            count += 1
        flag.fill_(float(stop.exists()))
        dist.all_reduce(flag)  # all ranks see it in the same round
        count += 1
        if flag.item() > 0:
            break
    dist.destroy_process_group()
    print(json.dumps({"rank": rank, "collectives": count, "wrong": wrong}))
    return 0


# --- the run ---


def build_timer(folder: Path) -> Path:
    """Compile the plugin that takes getCollInfo's time."""
    library = folder / "libnccl-tuner-timed.so"
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-I", str(SOURCES / "include"),
         "-o", str(library), str(TIMER), "-ldl"], check=True,
    )  # fmt: skip
    return library


def rank_environment(folder: Path, rank: int, plugin: Path, timer: Path) -> dict[str, str]:
    """What makes one process of this machine a node of its own to NCCL."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
        "NCCL_HOSTID": f"ringstep-{rank}",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
        "NCCL_DEBUG_FILE": str(folder / f"nccl-{rank}.log"),
        "NCCL_TUNER_PLUGIN": str(timer),
        "NCCL_PROFILER_PLUGIN": str(plugin),
        "RINGSTEP_TIMED_PLUGIN": str(plugin),
        "RINGSTEP_TIMED_OUT": str(folder / f"timed-{rank}.json"),
        "RINGSTEP_SHM_DIR": str(folder),
    }


def table_of(decision: Decision) -> DecisionTable:
    table = DecisionTable()
    for size in SIZES:
        table.set(AR, size.bit_length() - 1, decision)
    return table


class Failed(RuntimeError):
    """The ranks did not do what they had to; the message ends with what they said."""


@dataclass
class Job:
    """The ranks under way, and what their telemetry said so far."""

    shm: ShmFile
    processes: list[subprocess.Popen[str]]
    records: list[Record] = field(default_factory=list)
    readers: dict[int, Any] = field(default_factory=dict)

    def look(self) -> None:
        """Read telemetry; complain where a rank is gone."""
        for reader in self.shm.rings():
            known = self.readers.setdefault(reader.pid, reader)
            self.records += [r for r in known.poll() if isinstance(r, Record)]
        for rank, process in enumerate(self.processes):
            if process.poll() not in (None, 0):
                raise Failed(f"rank {rank} ended with {process.returncode}")

    def the_communicator(self, n_ranks: int, until: float) -> int:
        """Wait for the communicator of all ranks; return its block."""
        while time.monotonic() < until:
            self.look()
            for view in self.shm.comms():
                asked = [r for r in view.ranks if r.usable]
                if view.state is CommState.FULL and len(asked) == n_ranks == view.n_ranks:
                    return view.index
            time.sleep(0.01)
        raise Failed("no communicator of all ranks was seen: were both plugins loaded?")


def switch(job: Job, comm: int, table: DecisionTable, until: float) -> tuple[int, float]:
    """Put a table in force; return its epoch and the time from offer to commit in ms."""
    epoch = job.shm.last_epoch + 1
    begin = time.monotonic()
    job.shm.announce(comm, epoch, table)
    while time.monotonic() < until:
        outcome = job.shm.commit(comm, epoch)
        if outcome is Commit.DONE:
            return epoch, (time.monotonic() - begin) * 1e3
        if outcome is not Commit.NOT_ACKNOWLEDGED:
            raise Failed(f"epoch {epoch} cannot be committed: {outcome.value}")
        job.look()
        time.sleep(0.0005)
    reasons = {r.rank: sorted(x.name for x in r.reasons) for r in job.shm.comm(comm).ranks}
    raise Failed(f"epoch {epoch} was not acknowledged by every rank; reasons: {reasons}")


def run(n_ranks: int, seconds: float, backend: str, folder: Path) -> dict[str, Any]:
    """Run the ranks, switch decisions meanwhile, and compare; returns the keys of --json.

    Raises:
        Failed: a rank died, or the plugins were not there.
    """
    plugin, timer = build().plugin, build_timer(folder)
    processes: list[subprocess.Popen[str]] = []
    tables: dict[int, DecisionTable] = {}
    took_ms: list[float] = []
    with contextlib.ExitStack() as stack:
        shm = stack.enter_context(ShmFile.create(default_path(directory=folder)))
        for rank in range(n_ranks):
            command = [sys.executable, __file__, "--rank", str(rank), "--ranks", str(n_ranks),
                       "--backend", backend, "--folder", str(folder)]  # fmt: skip
            error = stack.enter_context((folder / f"rank-{rank}.err").open("w"))
            process = subprocess.Popen(
                command, env=rank_environment(folder, rank, plugin, timer),
                stdout=subprocess.PIPE, stderr=error, text=True,
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        job = Job(shm, processes)
        try:
            patience = time.monotonic() + 120
            comm = job.the_communicator(n_ranks, patience)
            end = time.monotonic() + seconds
            turn = 0
            while time.monotonic() < end or turn < len(DECISIONS):
                table = table_of(DECISIONS[turn % len(DECISIONS)])
                epoch, ms = switch(job, comm, table, time.monotonic() + 60)
                tables[epoch] = table
                took_ms.append(ms)
                turn += 1
                pause = time.monotonic() + min(1.0, seconds / 10)
                while time.monotonic() < pause:
                    job.look()
                    time.sleep(0.02)
            (folder / "stop").touch()
            said = [json.loads(p.communicate(timeout=120)[0].splitlines()[-1]) for p in processes]
            job.look()
        except (Failed, ShmError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
            tails = [
                f"rank {r}: {(folder / f'rank-{r}.err').read_text()[-800:]}" for r in range(n_ranks)
            ]
            raise Failed("\n".join([str(error), *tails])) from error
        block = shm.comm(comm).index
    found = audit((r for r in job.records if r.comm == block), n_ranks, tables)
    timed = [json.loads(p.read_text().splitlines()[-1]) for p in folder.glob("timed-*.json")]
    logs = [p.read_text(errors="replace") for p in sorted(folder.glob("nccl-*.log"))]
    return {
        "ranks": n_ranks,
        "backend": backend,
        "get_coll_info_p50_ns": max((t["p50_ns"] for t in timed), default=None),
        "get_coll_info_p99_ns": max((t["p99_ns"] for t in timed), default=None),
        "get_coll_info_calls": sum(t["calls"] for t in timed),
        "switches": len(tables),
        "apply_ms": statistics.median(took_ms),
        "collectives": found.collectives,
        "decided": found.decided,
        "disagreements": found.disagreements,
        "not_applied": found.not_applied,
        "wrong_results": sum(s["wrong"] for s in said),
        "log_disagrees": log_disagrees(logs) if len(logs) == n_ranks else None,
        "examples": found.examples,
    }


def passed(result: dict[str, Any]) -> bool:
    """Return whether every rank ran what was decided, and it was tried at all."""
    bad = ("disagreements", "not_applied", "wrong_results")
    return (
        not any(result[key] for key in bad)
        and not result["log_disagrees"]
        and (result["decided"] > 0 and result["switches"] >= len(DECISIONS))
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: bench/one_gpu_nccl.sh --ranks 3 --json",
    )  # fmt: skip
    parser.add_argument("--ranks", type=int, default=2, help="2 to 8 (default 2)")
    parser.add_argument("--seconds", type=float, default=20.0, help="to switch decisions for")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder for logs, kept (default: none are)")
    parser.add_argument(
        "--backend", choices=("nccl", "ringstep"), default="nccl",
        help="ringstep: the CPU collective engine instead of NCCL, to try the rest without a GPU",
    )  # fmt: skip
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return rank_main(arguments)
    if not 2 <= arguments.ranks <= 8 or not 0 < arguments.seconds < 86400:
        parser.error("--ranks 2 to 8, --seconds above 0")
    reason = missing(arguments.backend)
    if reason is not None:
        print(json.dumps({"skipped": reason}) if arguments.json else f"skipped: {reason}")
        return SKIPPED
    try:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
            where = Path(folder)
            if arguments.keep is not None:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                stack.callback(shutil.copytree, where, arguments.keep, dirs_exist_ok=True)
            result = run(arguments.ranks, arguments.seconds, arguments.backend, where)
    except Failed as error:
        print(f"one_gpu_nccl: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:24} {value}")
    return 0 if passed(result) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
