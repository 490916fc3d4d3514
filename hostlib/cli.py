"""``ringstep tuner``: what the NCCL plugin decides, and what it sees. No GPU needed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.cli_later import group_with
from ringstep.hostlib.cli_options import JobOption, JsonOption, fail
from ringstep.hostlib.coordinator.cli import register as add_coordinator
from ringstep.hostlib.native.build import BuildError, build
from ringstep.hostlib.shm import (
    CommView,
    Decision,
    DecisionTable,
    Record,
    ShmError,
    ShmFile,
    Stalls,
    default_path,
)
from ringstep.hostlib.shm_layout import Clock, Collective, CommState, Once, RecordFlag, Scope


def _bridge(app: typer.Typer) -> None:
    from ringstep.hostlib.bridge.command import bridge

    app.command("bridge")(bridge)


def _probe_nic(app: typer.Typer) -> None:
    from ringstep.hostlib.tagger import probe_nic

    app.command("probe-nic")(probe_nic)


def _calibrate(app: typer.Typer) -> None:
    from ringstep.hostlib.evaluate.calibration.cli import calibrate_command

    app.command("calibrate", no_args_is_help=True)(calibrate_command)


def _evaluate(app: typer.Typer) -> None:
    from ringstep.hostlib.evaluate.cli import evaluate_command

    app.command("evaluate", no_args_is_help=True)(evaluate_command)


def _report(app: typer.Typer) -> None:
    from ringstep.hostlib.evaluate.report.cli import report_command

    app.command("report", no_args_is_help=True)(report_command)


def _train(app: typer.Typer) -> None:
    from ringstep.hostlib.learn.cli import app as train_app

    app.add_typer(train_app, name="train")


def _traces(app: typer.Typer) -> None:
    from ringstep.hostlib.evaluate.record_cli import record_command
    from ringstep.hostlib.evaluate.sweep_cli import sweep_command
    from ringstep.hostlib.traces.cli import app as traces_app

    measured = typer.Typer()
    measured.command("sweep", no_args_is_help=True)(sweep_command)
    measured.command("record", no_args_is_help=True)(record_command)
    traces = typer.Typer(help=traces_app.info.help, no_args_is_help=True)
    traces.add_typer(traces_app)
    traces.add_typer(measured)
    app.add_typer(traces, name="traces")


app = typer.Typer(
    help="Decide for the NCCL plugin, and look at it.",
    no_args_is_help=True,
    cls=group_with(
        {
            "bridge": _bridge,
            "probe-nic": _probe_nic,
            "calibrate": _calibrate,
            "evaluate": _evaluate,
            "report": _report,
            "train": _train,
            "traces": _traces,
        }
    ),
)
add_coordinator(app)

_Shm = Annotated[
    Path | None,
    typer.Option(
        "--shm",
        metavar="DIR|FILE",
        help="The job's shared-memory file, or the folder with it "
        "(by default $RINGSTEP_SHM_DIR, else /dev/shm/ringstep-UID).",
    ),
]


def _open(shm: Path | None, job: str) -> ShmFile:
    try:
        path = shm if shm is not None and shm.is_file() else default_path(job, shm)
        return ShmFile.open(path)
    except ShmError as error:
        fail(str(error))


def _size(n_bytes: int) -> str:
    """Return a power of two in words: 64 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if n_bytes < 1024:
            return f"{n_bytes} {unit}"
        n_bytes //= 1024
    raise AssertionError


def _sizes(first: int, last: int) -> str:
    low = "0" if first == 0 else _size(1 << first)
    return f"{low} and more" if last == lay.SIZE_CLASSES - 1 else f"{low} to < {_size(2 << last)}"


def _runs(table: DecisionTable, collective: Collective) -> Iterator[tuple[int, int, Decision]]:
    """Yield runs of size classes with the same decision: first, last, decision."""
    start = 0
    for which in range(1, lay.SIZE_CLASSES + 1):
        before = table.get(collective, start)
        if which < lay.SIZE_CLASSES and table.get(collective, which) == before:
            continue
        if before is not None:
            yield start, which - 1, before
        start = which


def _decisions(table: DecisionTable) -> list[dict[str, Any]]:
    return [
        {
            "collective": collective.name.lower(),
            "min_bytes": 0 if first == 0 else 1 << first,
            "max_bytes": (2 << last) - 1,
            "algorithm": decision.algo.name.lower(),
            "protocol": decision.proto.name.lower(),
            "channels": decision.n_channels or None,
            "chunk_bytes": decision.chunk_bytes or None,
            "threads_wanted": decision.n_threads or None,
            "state": decision.state.name.lower(),
            "measured_us": decision.measured_us or None,
        }
        for collective in Collective
        for first, last, decision in _runs(table, collective)
    ]


def _comm(view: CommView) -> dict[str, Any]:
    return {
        "block": view.index,
        "communicator": f"{view.comm_id:016x}",
        "ranks": view.n_ranks,
        "state": view.state.name.lower(),
        "switches_at": "fences" if view.scope is Scope.FENCED else "collectives",
        "epoch": view.epoch,
        "first_index": view.first_index,
        "on_offer": view.announced if view.announced != view.epoch else None,
        "frozen": view.frontier is None,
        "static_table": {Once.OPEN: None, Once.ON: True, Once.OFF: False}[view.once],
        "decisions": _decisions(view.table),
        "rank_states": [
            {
                "rank": r.rank,
                "pid": r.pid,
                "in_force": r.in_force,
                "acknowledged": r.ack_epoch,
                "refused": r.refused_epoch or None,
                "index": r.index,
                "clock": r.clock.name.lower(),
                "applied": r.applied,
                "bypassed": r.bypassed,
                "reasons": sorted(reason.name.lower() for reason in r.reasons),
            }
            for r in view.ranks
        ],
    }


def _decision_table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("collective", "size", "algorithm", "protocol", "channels", "chunk", "state", "µs"):
        table.add_column(name, justify="right" if name in ("channels", "chunk", "µs") else "left")
    for row in rows:
        first = max(row["min_bytes"].bit_length() - 1, 0)
        last = row["max_bytes"].bit_length() - 1
        table.add_row(
            row["collective"], _sizes(first, last), row["algorithm"], row["protocol"],
            str(row["channels"] or "NCCL's"),
            _size(row["chunk_bytes"]) if row["chunk_bytes"] else "NCCL's",
            "" if row["state"] == "none" else row["state"], str(row["measured_us"] or ""),
        )  # fmt: skip
    return table


def _state_line(view: CommView) -> str:
    if view.frontier is None:
        return "frozen: CUDA graphs were captured, no further switches"
    if view.announced and view.announced != view.epoch:
        waiting = [r.rank for r in view.ranks if r.ack_epoch != view.announced]
        return f"epoch {view.announced} on offer, not acknowledged by ranks {waiting}"
    return "nothing on offer"


@app.command("show-decisions")
def show_decisions(
    shm: _Shm = None, job: JobOption = "default", as_json: JsonOption = False
) -> None:
    """Show what is decided, by communicator, collective and size, and how far each rank is.

    Example: ringstep tuner show-decisions --job train-7
    """
    with _open(shm, job) as file:
        static = file.static_table()
        comms = [c for c in file.comms() if c.state is not CommState.FREE]
        if as_json:
            answer = {
                "file": str(file.path),
                "static": None if static is None else _decisions(static),
                "communicators": [_comm(c) for c in comms],
            }
            typer.echo(json.dumps(answer, indent=2))
            return
        console = Console(emoji=False, highlight=False)
        if static is not None:
            console.print(_decision_table("static table, from the first collective on",
                                          _decisions(static)))  # fmt: skip
        for view in comms:
            console.print(
                f"\ncommunicator {view.comm_id:016x}  {view.n_ranks} ranks  epoch {view.epoch} "
                f"from collective {view.first_index}  {_state_line(view)}",
                soft_wrap=True,
            )
            rows = _decisions(view.table)
            offered = view.announced and view.announced != view.epoch
            title = f"epoch {view.table_epoch}" + (", on offer" if offered else "")
            if rows:
                console.print(_decision_table(title, rows))
            for r in view.ranks:
                reasons = ", ".join(sorted(reason.name.lower() for reason in r.reasons))
                clock = "" if r.clock is Clock.TRUSTED else f"  clock {r.clock.name.lower()}"
                console.print(
                    f"  rank {'?' if r.rank is None else r.rank}: epoch {r.in_force}, "
                    f"{r.applied} applied, {r.bypassed} left to NCCL{clock}"
                    + (f"  [{reasons}]" if reasons else ""),
                    markup=False, soft_wrap=True,
                )  # fmt: skip
        if static is None and not comms:
            console.print("no decisions and no communicators yet: NCCL is left alone")


def _line(pid: int, item: Record | Stalls) -> str:
    func = item.func.name.lower() if item.func is not None else "other"
    head = f"{pid} rank {item.rank} {func} #{item.coll_seq}"
    if isinstance(item, Stalls):
        where = ", ".join(f"{c}: {n}" for c, n in item.by_channel.items())
        return f"{head} stalls by channel {where}"
    algo = item.algo.name.lower() if item.algo is not None else "?"
    proto = item.proto.name.lower() if item.proto is not None else "?"
    notes = "".join(
        f" {name}"
        for flag, name in (
            (RecordFlag.DECIDED, "decided"),
            (RecordFlag.PARTIAL, "partial"),
            (RecordFlag.CAPTURED, "graph"),
        )
        if flag in item.flags
    )
    return (
        f"{head} {item.bytes} B {algo}/{proto} {item.n_channels} ch "
        f"{item.duration_ns / 1000:.1f} µs {item.stalls} stalls epoch {item.epoch}{notes}"
    )


def _object(pid: int, item: Record | Stalls) -> dict[str, Any]:
    found: dict[str, Any] = {"pid": pid, "kind": type(item).__name__.lower()}
    for name, value in vars(item).items():
        if name == "flags":
            found[name] = [f.name.lower() for f in RecordFlag if f in value and f.name]
        else:
            found[name] = value.name.lower() if hasattr(value, "name") else value
    return found


@app.command("watch")
def watch(
    shm: _Shm = None,
    job: JobOption = "default",
    as_json: JsonOption = False,
    once: Annotated[bool, typer.Option("--once", help="Print what is there and stop.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between looks.", min=0.01)] = 0.5,
) -> None:
    """Print collectives as ranks report them: what NCCL ran, how long, where sends stalled.

    Example: ringstep tuner watch --job train-7 --json
    """
    with _open(shm, job) as file:
        readers = {reader.slot: reader for reader in file.rings()}
        lost = 0
        while True:
            for reader in file.rings():
                readers.setdefault(reader.slot, reader)
            for reader in readers.values():
                for item in reader.poll():
                    pid = reader.pid
                    typer.echo(
                        json.dumps(_object(pid, item), ensure_ascii=False)
                        if as_json
                        else _line(pid, item)
                    )
            now_lost = sum(reader.lost for reader in readers.values())
            if now_lost != lost:
                typer.echo(f"{now_lost - lost} records were overwritten unread", err=True)
                lost = now_lost
            sys.stdout.flush()
            if once:
                return
            time.sleep(interval)


@app.command("build")
def build_command() -> None:
    """Build the plugin where it is missing and print its path, for NCCL_TUNER_PLUGIN."""
    try:
        typer.echo(build().plugin)
    except BuildError as error:
        fail(str(error))
