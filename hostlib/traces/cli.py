"""``ringstep tuner traces``: make traces of collectives, and look at them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ringstep.hostlib.cli_options import fail
from ringstep.hostlib.traces.fluid import FluidParams
from ringstep.hostlib.traces.format import TraceError, load, save
from ringstep.hostlib.traces.generate import generate
from ringstep.hostlib.traces.scenarios import Label

app = typer.Typer(help="Traces of collectives under contention.", no_args_is_help=True)


def _cluster(path: Path | None) -> FluidParams | None:
    if path is None:
        return None
    try:
        values = json.loads(path.read_text())
        return FluidParams(**{name: float(value) for name, value in values.items()})
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except (ValueError, TypeError, AttributeError) as error:
        fail(f"{path}: not parameters of the fluid model: {error}")


@app.command("generate", no_args_is_help=True)
def generate_command(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Written, as .npz.")],
    source: Annotated[str, typer.Option(help="fluid: the fluid model.")] = "fluid",
    seed: Annotated[int, typer.Option(help="Same seed: same traces.", min=0)] = 0,
    traces: Annotated[int, typer.Option(help="How many.", min=1)] = 2000,
    calls: Annotated[int, typer.Option(help="Of each.", min=18)] = 64,
    reconfigured: Annotated[
        float, typer.Option(help="Share in which other configurations run too.", min=0, max=1)
    ] = 0.4,
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Parameters of a calibrated cluster (JSON) to stay near."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON.")] = False,
) -> None:
    """Make traces with the oracle's labels.

    Example: ringstep tuner traces generate --out traces.npz --seed 1 --traces 6000
    """
    if source != "fluid":
        fail(f"--source {source}: fluid")
    around = _cluster(cluster)
    console = Console(stderr=True)
    with Progress(
        TextColumn("traces"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, disable=not console.is_terminal, transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task("traces", total=traces)
        made = generate(
            seed, traces, calls, around, reconfigured, lambda done: bar.update(task, completed=done)
        )
    try:
        save(out, made)
    except OSError as error:
        fail(f"{out}: {error.strerror}")
    about = {
        "file": str(out),
        "calls": len(made),
        "bytes": out.stat().st_size,
        "digest": made.digest,
    }
    typer.echo(
        json.dumps(about) if as_json else f"{out}: {len(made)} calls, {about['bytes']} bytes"
    )


@app.command("check", no_args_is_help=True)
def check_command(
    file: Annotated[Path, typer.Argument(help="A trace file (.npz).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read a trace file, refuse what no measurement can be, and say what is in it.

    Example: ringstep tuner traces check traces.npz
    """
    try:
        found = load(file)
    except TraceError as error:
        fail(str(error))
    columns = found.columns
    labels = {label.name.lower(): int((columns["label"] == label).sum()) for label in Label}
    about = {
        "file": str(file), "source": found.header.get("source"), "calls": len(found),
        "traces": len(np.unique(columns["trace"])), "labels": labels, "digest": found.digest,
    }  # fmt: skip
    if as_json:
        typer.echo(json.dumps(about))
        return
    for name, value in about.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        typer.echo(f"{name:8} {text}")
