"""``ringstep tuner traces sweep``: measure every configuration under every load, into a file."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TaskID
from rich.table import Table

from ringstep.hostlib.cli_options import JsonOption, fail, progress_bar
from ringstep.hostlib.evaluate.amounts import parse_bytes, parse_levels, parse_rate
from ringstep.hostlib.evaluate.engine.source import check, measure
from ringstep.hostlib.evaluate.simulator.source import simulate, with_rivals_on_hosts
from ringstep.hostlib.evaluate.sources import Check, Source, SourceError, SweepOptions
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces.fluid import Load
from ringstep.hostlib.traces.sweep import Sweep, save_sweeps

SOURCES: Final[dict[str, Source]] = {
    "engine": measure,
    "simulator": simulate,
    "simulator-hosts": with_rivals_on_hosts,
}
"""What can measure, by the word for ``--source``."""
CHECKS: Final[dict[str, Check]] = {"engine": check}
"""What refuses a sweep before any is measured, where a source has that."""
_ENGINE: Final = "engine"
"""The source whose queues and rivals can be chosen."""
_USUAL: Final = {_ENGINE: ("1M", 4, "200M")}
_OTHERS_USUAL: Final = ("4M", 8, "100G")
"""Bytes, nodes and rate of a source, where the command does not say."""


def sweep_command(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Written, as JSON.")],
    source: Annotated[str, typer.Option(help=f"What measures: {', '.join(SOURCES)}.")],
    collective: Annotated[str, typer.Option(help="all_reduce, all_gather ...")] = "all_reduce",
    n_bytes: Annotated[
        list[str] | None,
        typer.Option(
            "--bytes",
            help="Larger side (engine: 1M, simulator: 4M); several with commas, or given again: "
            "a sweep of each.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(help="Each with a link of its own (engine: 4, simulator: 8).", min=2),
    ] = None,
    ranks_per_node: Annotated[int, typer.Option(help="That share a link.", min=1)] = 1,
    rate: Annotated[
        str | None,
        typer.Option(help="Of a node's link, bits per second (engine: 200M, simulator: 100G)."),
    ] = None,
    levels: Annotated[
        str, typer.Option(help="Shares of the link that rival flows want; 0: a clean network.")
    ] = "0,0.5,0.7,0.8,0.9",
    flows: Annotated[
        float, typer.Option(help="Rival flows per link; 0: the source's usual number.", min=0)
    ] = 0.0,
    queue_ms: Annotated[
        float | None,
        typer.Option(help="Engine: depth of every queue, as time at the rate (40).", min=0.1),
    ] = None,
    rivals: Annotated[
        str | None,
        typer.Option(help="Engine: congestion control of the rival flows (the kernel's default)."),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(help="Engine: congestion control of the ranks (the kernel's default)."),
    ] = None,
    backlog: Annotated[
        str | None,
        typer.Option(help="Engine: unsent bytes that a rival flow holds (as the kernel likes)."),
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Calls (seeds) of each configuration under each load.", min=1)
    ] = 4,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.", min=0)] = 0,
    max_channels: Annotated[
        int, typer.Option(help="As many as communicators have.", min=1, max=8)
    ] = 8,
    jobs: Annotated[int, typer.Option(help="Processes at once; 0: one per processor.", min=0)] = 0,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keeps what is done, so that the same command goes on from there."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure every legal configuration under every load; what training and evaluation read.

    Exit status: 0 done, 2 bad input or a source that is not there, 130 ctrl-C.

    Example: ringstep tuner traces sweep --source simulator --bytes 4M --nodes 8 --out sweep.json
    """
    measures = SOURCES.get(source)
    if measures is None:
        fail(f"--source {source}: {', '.join(SOURCES)}")
    what = Collective.__members__.get(collective.upper())
    if what is None:
        fail(f"--collective {collective}: {', '.join(c.name.lower() for c in Collective)}")
    own = (queue_ms, rivals, ranks, backlog)
    if source != _ENGINE and any(each is not None for each in own):
        fail(f"--queue-ms, --rivals, --ranks and --backlog: for --source {_ENGINE}")
    held = None
    if backlog is not None:
        try:
            held = parse_bytes(backlog)
        except ValueError as error:
            fail(f"--backlog {error}")
    usual_bytes, usual_nodes, usual_rate = _USUAL.get(source, _OTHERS_USUAL)
    sizes = _sizes(",".join(n_bytes or [usual_bytes]))
    try:
        loads = tuple(Load(level, flows if level else 0.0) for level in parse_levels(levels))
    except ValueError as error:
        fail(f"--levels {error}")
    try:
        rate_bps = parse_rate(rate or usual_rate)
    except ValueError as error:
        fail(f"--rate {error}")
    if not out.parent.is_dir():
        fail(f"{out.parent}: no such folder")
    if out.is_dir():
        fail(f"{out}: is a folder; name a file")
    asked = [
        SweepOptions(
            what, size, nodes or usual_nodes, ranks_per_node, rate_bps, loads, repeats, seed,
            max_channels, jobs or len(os.sched_getaffinity(0)), work, queue_ms, rivals, ranks,
            held,
        )
        for size in sizes
    ]  # fmt: skip
    try:
        if check_one := CHECKS.get(source):
            for each in asked:
                check_one(each)
        with progress_bar(MofNCompleteColumn()) as bar:
            tasks = [bar.add_task(f"{collective} {size} B", total=None) for size in sizes]
            found = [
                measures(each, partial(_tell, bar, task))
                for each, task in zip(asked, tasks, strict=True)
            ]
    except SourceError as error:
        fail(str(error))
    try:
        save_sweeps(out, found)
    except OSError as error:
        fail(f"{out}: {error.strerror}")
    if as_json:
        typer.echo(json.dumps({"file": str(out), "sweeps": [_about(each) for each in found]}))
        return
    for one in found:
        _print(one)


def _tell(bar: Progress, task: TaskID, done: int, of: int) -> None:
    bar.update(task, completed=done, total=of)


def _sizes(text: str) -> list[int]:
    try:
        return [parse_bytes(word) for word in text.split(",")]
    except ValueError as error:
        fail(f"--bytes {error}")


def _about(sweep: Sweep) -> dict[str, Any]:
    rows = []
    for i, (load, usual_us) in enumerate(zip(sweep.loads, sweep.usual_us, strict=True)):
        best = sweep.best(load)
        best_us = median(sweep.calls_us[best][i])
        rows.append(
            {
                "level": load.level, "usual_us": usual_us, "best": str(best), "best_us": best_us,
                "gain": 1 - best_us / usual_us,
            }
        )  # fmt: skip
    return {
        "env": sweep.env, "collective": sweep.key.collective.name.lower(), "bytes": sweep.n_bytes,
        "usual": str(sweep.usual), "calls": len(sweep.samples), "levels": rows,
    }  # fmt: skip


def _print(sweep: Sweep) -> None:
    about = _about(sweep)
    table = Table(box=None, pad_edge=False)
    for name in ("level", "NCCL's µs", "best", "its µs", "gain"):
        table.add_column(name, justify="left" if name == "best" else "right")
    for row in about["levels"]:
        table.add_row(
            f"{row['level']:.0%}", f"{row['usual_us']:.0f}", row["best"], f"{row['best_us']:.0f}",
            f"{row['gain']:.1%}",
        )  # fmt: skip
    console = Console(highlight=False)
    console.print(
        f"{sweep.env}: {about['collective']} {sweep.n_bytes} B, NCCL's choice {sweep.usual}",
        soft_wrap=True,
    )
    console.print(table)
