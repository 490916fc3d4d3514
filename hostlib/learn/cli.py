"""``ringstep tuner train``: detector and selector, from traces to weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import TextColumn

from ringstep.hostlib.cli_options import fail, progress_bar
from ringstep.hostlib.dynamic.weights import WeightsError, load
from ringstep.hostlib.traces.format import TraceError, Traces
from ringstep.hostlib.traces.format import load as load_traces
from ringstep.hostlib.traces.mixed import merged

if TYPE_CHECKING:
    from ringstep.hostlib.learn.detector import Trained

app = typer.Typer(
    help="Train the detector, then the selector on top of it (needs PyTorch).",
    no_args_is_help=True,
)

STOPPED = 130

_Data = Annotated[
    list[Path],
    typer.Option("--data", metavar="FILE", help="Traces (.npz) with labels; may be given again."),
]
_Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for weights, checkpoint and card.")
]
_Seed = Annotated[int, typer.Option(help="Of everything that is drawn.", min=0)]
_Resume = Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out.")]
_Adapt = Annotated[
    Path | None,
    typer.Option(
        "--adapt", metavar="FILE", help="Begin with these weights; move the last layers only."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print figures as JSON.")]


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        fail("training needs PyTorch: pip install 'ringstep[train]'")


@contextlib.contextmanager
def _bar() -> Iterator[Any]:
    with progress_bar(TextColumn("{task.fields[note]}")) as bar:
        tasks: dict[str, Any] = {}

        def step(what: str, done: int, of: int, note: str) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of, note=note)
            bar.update(tasks[what], completed=done, total=of, note=note)

        yield step


@contextlib.contextmanager
def _errors(out: Path) -> Iterator[None]:
    from ringstep.hostlib.learn.checkpoint import CheckpointError

    try:
        yield
    except (TraceError, WeightsError, CheckpointError, ValueError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or out}: {error.strerror}")
    except KeyboardInterrupt:
        typer.echo(f"stopped; go on with --resume --out {out}", err=True)
        raise typer.Exit(STOPPED) from None


def _about(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return a header for the model card: names of sweeps instead of their calls."""
    found = {name: value for name, value in header.items() if name not in ("sweeps", "sweep_of")}
    if "sweeps" in header:
        found["sweeps"] = [sweep["env"] for sweep in header["sweeps"]]
    if "parts" in header:
        found["parts"] = [_about(part) for part in header["parts"]]
    return found


def _finish(
    name: str, out: Path, trained: Trained, traces: Traces, params: Any, as_json: bool
) -> None:
    """Write the model card and print what came out."""
    card = {
        "network": name,
        "weights": f"{name}.safetensors",
        "bytes": (out / f"{name}.safetensors").stat().st_size,
        "data": {"digest": traces.digest, "calls": len(traces), "header": _about(traces.header)},
        "parameters": asdict(params),
        "metrics": trained.metrics,
    }
    (out / f"{name}.json").write_text(json.dumps(card, indent=1) + "\n")
    if as_json:
        typer.echo(json.dumps(card))
        return
    console = Console(highlight=False)
    console.print(f"{out / name}.safetensors  {card['bytes']} bytes")
    for key, value in trained.metrics.items():
        if isinstance(value, (int, float)):
            console.print(f"  {key:18} {value:.4g}")


@app.command("detector", no_args_is_help=True)
def detector(
    data: _Data,
    out: _Out,
    seed: _Seed = 0,
    epochs: Annotated[int, typer.Option(help="At most.", min=1)] = 12,
    target: Annotated[
        str,
        typer.Option(help="contended: is this call slowed down (rule sequence); sustained: will it "
                          "last, the paper's labels (rules wald, paper)."),
    ] = "sustained",
    adapt: _Adapt = None,
    resume: _Resume = False,
    as_json: _Json = False,
) -> None:  # fmt: skip
    """Train the detector.

    Example: ringstep tuner train detector --data traces.npz --out weights --seed 1
    """
    _need_torch()
    from ringstep.hostlib.learn.data import TARGETS
    from ringstep.hostlib.learn.detector import DetectorParams, train_detector

    chosen = next((t for t in TARGETS if t == target), None)
    if chosen is None:
        fail(f"--target {target}: {' or '.join(TARGETS)}")
    params = DetectorParams(target=chosen, seed=seed, epochs=epochs)
    with _errors(out), _bar() as bar:
        traces = merged([load_traces(file) for file in data])
        start = None if adapt is None else load(adapt, "detector")
        trained = train_detector(traces, out, params, resume, bar, start)
        _finish("detector", out, trained, traces, params, as_json)


@app.command("selector", no_args_is_help=True)
def selector(
    data: _Data,
    out: _Out,
    detector_weights: Annotated[
        Path | None,
        typer.Option("--detector", metavar="FILE",
                     help="The detector's weights, by default detector.safetensors in --out."),
    ] = None,
    seed: _Seed = 0,
    epochs: Annotated[int, typer.Option(help="At most.", min=1)] = 40,
    reward: Annotated[str, typer.Option(help="paper: equation 3; log: of its ratio.")] = "log",
    adapt: _Adapt = None,
    resume: _Resume = False,
    as_json: _Json = False,
) -> None:  # fmt: skip
    """Train the selector; generated traces, and those with a sweep, tell it of all actions.

    Example: ringstep tuner train selector --data traces.npz --out weights --seed 1
    """
    _need_torch()
    from ringstep.hostlib.learn.selector import REWARDS, SelectorParams, train_selector
    from ringstep.hostlib.traces.mixed import oracle_of

    chosen = next((r for r in REWARDS if r == reward), None)
    if chosen is None:
        fail(f"--reward {reward}: {' or '.join(REWARDS)}")
    params = SelectorParams(seed=seed, epochs=epochs, reward=chosen)
    with _errors(out), _bar() as bar:
        weights = load(detector_weights or out / "detector.safetensors", "detector")
        traces = merged([load_traces(file) for file in data])
        start = None if adapt is None else load(adapt, "selector")
        trained = train_selector(
            traces, weights, out, oracle_of(traces), params, resume, bar, start
        )
        _finish("selector", out, trained, traces, params, as_json)
