"""``ringstep tuner traces``: make traces of collectives, and look at them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import MofNCompleteColumn

from ringstep.hostlib.cli_options import fail, progress_bar
from ringstep.hostlib.traces.calibrate import calibrate
from ringstep.hostlib.traces.fluid import FluidParams
from ringstep.hostlib.traces.format import TraceError, load, save
from ringstep.hostlib.traces.generate import generate
from ringstep.hostlib.traces.recorded import generate_recorded
from ringstep.hostlib.traces.scenarios import Label
from ringstep.hostlib.traces.sweep import Sweep, SweepError, load_sweeps

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


def read_sweeps(paths: list[Path]) -> list[Sweep]:
    """Return the sweeps of files; says what is wrong and exits with 2 where there are none."""
    found = []
    for path in paths:
        try:
            found += load_sweeps(path)
        except OSError as error:
            fail(f"{path}: {error.strerror}")
        except SweepError as error:
            fail(str(error))
    return found


@app.command("generate", no_args_is_help=True)
def generate_command(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Written, as .npz.")],
    sweeps: Annotated[
        list[Path] | None,
        typer.Option(
            "--sweep",
            metavar="FILE",
            help="Draw times from measured sweeps, not from the fluid model; may be given again.",
        ),
    ] = None,
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

    Example: ringstep tuner traces generate --sweep engine.json --out engine.npz --traces 3000
    """
    if sweeps and cluster is not None:
        fail("--cluster is for the fluid model, --sweep for measured times: one of them")
    around, measured = _cluster(cluster), read_sweeps(sweeps or [])
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("traces", total=traces)

        def step(done: int) -> None:
            bar.update(task, completed=done)

        if measured:
            made = generate_recorded(measured, seed, traces, calls, reconfigured, step)
        else:
            made = generate(seed, traces, calls, around, reconfigured, step)
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


@app.command("fit", no_args_is_help=True)
def fit_command(
    sweeps: Annotated[
        list[Path],
        typer.Option("--sweep", metavar="FILE", help="Sweeps of one cluster; may be given again."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Written: parameters, for --cluster."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit the fluid model to sweeps of one cluster, and say how far off it stays.

    Example: ringstep tuner traces fit --sweep engine.json --out cluster.json
    """
    measured = read_sweeps(sweeps)
    samples = [sample for sweep in measured for sample in sweep.samples]
    clean = max(2.0 * sweep.n_bytes / sweep.clean_us for sweep in measured)
    try:
        params, report = calibrate(samples, FluidParams(link_rate=clean))
    except ValueError as error:
        fail(str(error))
    if out is not None:
        try:
            out.write_text(json.dumps(asdict(params), indent=1) + "\n")
        except OSError as error:
            fail(f"{out}: {error.strerror}")
    about = {**asdict(report), "sweeps": [sweep.env for sweep in measured]}
    if as_json:
        typer.echo(json.dumps(about))
        return
    for name, value in about.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        if name not in ("parameters", "sweeps"):
            typer.echo(f"{name:14} {shown}")
    for name, value in report.parameters.items():
        typer.echo(f"  {name:12} {value:.4g}")


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
