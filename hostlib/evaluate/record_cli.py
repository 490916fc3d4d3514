"""``ringstep tuner traces record``: real episodes under random contention, into a trace file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn

from ringstep.hostlib.cli_options import JsonOption, fail, progress_bar
from ringstep.hostlib.evaluate.amounts import parse_bytes, parse_rate
from ringstep.hostlib.evaluate.engine.source import RECONFIGURED, record
from ringstep.hostlib.evaluate.sources import SourceError
from ringstep.hostlib.traces.format import TraceError, save
from ringstep.hostlib.traces.sweep import SweepError, load_sweeps


def record_command(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Written, as .npz.")],
    sweep: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Sweeps of the same links; episodes take their keys in turn."
        ),
    ],
    source: Annotated[str, typer.Option(help="engine: the CPU engine on limited links.")],
    episodes: Annotated[int, typer.Option(help="How many.", min=1)] = 12,
    calls: Annotated[int, typer.Option(help="Of each.", min=18)] = 60,
    rate: Annotated[str, typer.Option(help="Of a node's link, bits per second.")] = "200M",
    queue_ms: Annotated[
        float | None, typer.Option(help="Depth of every queue, as time at that rate.", min=0.1)
    ] = None,
    rivals: Annotated[
        str | None,
        typer.Option(help="Congestion control of the rival flows (the kernel's default)."),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Congestion control of the ranks (the kernel's default).")
    ] = None,
    backlog: Annotated[
        str | None,
        typer.Option(help="Unsent bytes that a rival flow holds (as the kernel likes)."),
    ] = None,
    reconfigured: Annotated[
        float, typer.Option(help="Share in which other configurations run too.", min=0, max=1)
    ] = RECONFIGURED,
    seed: Annotated[int, typer.Option(help="Of contention and configurations.", min=0)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run episodes under random contention, and keep every call with the oracle's labels.

    Exit status: 0 done, 2 bad input or links that cannot be made here, 130 ctrl-C.

    Example: ringstep tuner traces record --source engine --sweep sweep.json --out traces.npz
    """
    if source != "engine":
        fail(f"--source {source}: engine")
    try:
        rate_bps = parse_rate(rate)
    except ValueError as error:
        fail(f"--rate {error}")
    held = None
    if backlog is not None:
        try:
            held = parse_bytes(backlog)
        except ValueError as error:
            fail(f"--backlog {error}")
    try:
        sweeps = load_sweeps(sweep)
    except OSError as error:
        fail(f"{sweep}: {error.strerror}")
    except SweepError as error:
        fail(str(error))
    if not out.parent.is_dir():
        fail(f"{out.parent}: no such folder")
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("calls", total=episodes * calls)
        try:
            found = record(
                sweeps, episodes, calls, seed, rate_bps, queue_ms, rivals, ranks, held,
                reconfigured=reconfigured,
                progress=lambda done, of: bar.update(task, completed=done, total=of),
            )  # fmt: skip
        except SourceError as error:
            fail(str(error))
    try:
        save(out, found)
    except (OSError, TraceError) as error:
        fail(f"{out}: {error}")
    about = {
        "file": str(out), "episodes": episodes, "calls": len(found), "bytes": out.stat().st_size,
        "digest": found.digest,
    }  # fmt: skip
    typer.echo(
        json.dumps(about)
        if as_json
        else f"{out}: {episodes} episodes, {len(found)} calls, {about['bytes']} bytes"
    )
