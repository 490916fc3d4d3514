"""``ringstep tuner calibrate``: a cluster's clean latencies, and a selector adapted to it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from ringstep.hostlib.cli_options import JsonOption, ShmOption, fail, path_of, progress_bar
from ringstep.hostlib.coordinator.control import ControlError, ask, socket_path
from ringstep.hostlib.dynamic.baseline import CalibrationError, load_calibration, save_calibration
from ringstep.hostlib.dynamic.detector import Detector
from ringstep.hostlib.dynamic.plug import CALIBRATION_FILE
from ringstep.hostlib.dynamic.plug import WEIGHTS as PACKAGED
from ringstep.hostlib.dynamic.policy import DETECTOR_FILE, SELECTOR_FILE
from ringstep.hostlib.dynamic.weights import Weights, WeightsError, load, save
from ringstep.hostlib.evaluate.calibration import sources
from ringstep.hostlib.evaluate.calibration.clean import LEAST, NotClean, Series
from ringstep.hostlib.evaluate.calibration.engine import on_engine
from ringstep.hostlib.evaluate.calibration.folder import (
    CARD_FILE,
    CLUSTER_FILE,
    FolderError,
    check_target,
    expected_file,
    written_whole,
)
from ringstep.hostlib.evaluate.calibration.learned import (
    FITS,
    KINDS,
    Learned,
    card,
    fit,
    has_contention,
    learn,
)
from ringstep.hostlib.evaluate.calibration.live import COLD
from ringstep.hostlib.traces.calibrate import ErrorReport
from ringstep.hostlib.traces.fluid import FluidParams
from ringstep.hostlib.traces.format import TraceError
from ringstep.hostlib.traces.format import load as load_traces
from ringstep.hostlib.traces.sweep import Sweep, SweepError, load_sweeps

STOPPED: Final = 130
FEWEST: Final = LEAST + COLD


@dataclass(frozen=True)
class _Pair:
    """The weights that a calibration goes with; None where there are none."""

    folder: Path
    detector: Weights
    selector: Weights


def calibrate_command(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for what was learned.")
    ],
    job: Annotated[
        str | None, typer.Option("--job", help="Take the calls of this running job.")
    ] = None,
    shm: ShmOption = None,
    call_log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take those of a job that has ended (coordinator "
                     "--call-log FILE)."),
    ] = None,
    traces: Annotated[
        list[Path] | None,
        typer.Option("--traces", metavar="FILE", help="Take recorded traces (.npz); repeatable."),
    ] = None,
    sweep: Annotated[
        list[Path] | None,
        typer.Option("--sweep", metavar="FILE",
                     help="Take sweeps of the cluster (.json); repeatable. They adapt the selector "
                     "too."),
    ] = None,
    engine: Annotated[
        bool, typer.Option("--engine", help="Measure the engine on this machine's namespaces "
                           "(root): a demonstration.")
    ] = False,
    collective: Annotated[
        list[str] | None,
        typer.Option(help="For --engine: all_reduce, all_gather, reduce_scatter, broadcast; "
                     "repeatable."),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option("--bytes", metavar="N", help="For --engine: sizes such as 1M; repeatable."),
    ] = None,
    nodes: Annotated[int, typer.Option(help="For --engine.", min=2, max=64)] = 4,
    rate: Annotated[
        float, typer.Option(help="For --engine: Mb/s of every link.", min=1)
    ] = 200.0,
    calls: Annotated[
        int, typer.Option(help="Of each collective and size.", min=FEWEST, max=256)
    ] = 64,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for a running job's calls.", min=0)
    ] = 300.0,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Weights that the folder gets (default: the package's)."),
    ] = None,
    adapt: Annotated[
        bool | None,
        typer.Option("--adapt/--no-adapt",
                     help="Adapt the selector's last layers (default: where there are sweeps)."),
    ] = None,
    expected: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An earlier calibration (file or folder): what takes "
                     "1.25 times as long is refused."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of an earlier calibration.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of what is drawn for adapting.", min=0)] = 0,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Measure a cluster while nothing else uses it; a contended network is refused (status 2).

    Writes clean latencies, and weights with a selector adapted to the cluster, for
    `ringstep tuner coordinator --policy dynamic:DIR`.

    Example: ringstep tuner calibrate --job train-7 --out calibration

    Example: ringstep tuner calibrate --sweep sweeps.json --expected last-month --out calibration
    """
    console = Console(stderr=True, highlight=False)
    try:
        check_target(out, replace)
        if not (job or call_log or traces or sweep or engine):
            fail("nothing to measure: --job, --call-log, --traces, --sweep or --engine")
        if (collective or sizes) and not engine:
            fail("--collective and --bytes are for --engine")
        pair = _weights(weights)
        known = None if expected is None else load_calibration(expected_file(expected))
        if adapt:
            _can_adapt(pair)
        swept = [one for path in sweep or () for one in load_sweeps(path)]
        collected: list[sources.Collected] = []
        with _bar() as step:
            if job:
                socket = socket_path(path_of(shm, job))
                where = f"job {job}"
                told = sources.wait_for_calls(
                    lambda: ask(socket, {"do": "calls"}), where, calls, wait,
                    lambda done, of: step(f"{where}: calls of its kinds", done, of),
                )  # fmt: skip
                collected.append(sources.of_job(told, where, calls))
            if call_log:
                told = sources.read_call_log(call_log)
                collected.append(sources.of_job(told, str(call_log), calls))
            for path in traces or ():
                collected.append(sources.of_traces(load_traces(path), str(path), calls))
            if engine:
                found = on_engine(collective or ["all_reduce"], sizes or ["1M"], nodes,
                                  rate * 1e6, calls, step)  # fmt: skip
                collected.append(sources.Collected(found))
        series: list[Series] = [one for each in collected for one in each.series]
        detector = None if pair is None else Detector(pair.detector)
        learned = learn(series, swept, detector, known)
        learned.notes += [f"left out: {what}" for each in collected for what in each.left_out]
        with console.status("fitting the fluid model"):
            fitted = fit(learned)
        told_of = {
            "job": job, "call_log": _text(call_log), "traces": [str(p) for p in traces or ()],
            "sweeps": [str(p) for p in sweep or ()],
            "engine": {"nodes": nodes, "rate_mbps": rate} if engine else None,
        }  # fmt: skip
        about = card(learned, told_of, fitted[1] if fitted else None, _text(expected))
        with _bar() as step:
            selector, about["selector"] = _selector(pair, learned, fitted, adapt, seed, step)
        with written_whole(out) as folder:
            save_calibration(folder / CALIBRATION_FILE, learned.baselines)
            if fitted is not None:
                cluster = json.dumps(asdict(fitted[0]), indent=1)
                (folder / CLUSTER_FILE).write_text(cluster + "\n")
            if pair is not None and selector is not None:
                save(folder / DETECTOR_FILE, pair.detector)
                save(folder / SELECTOR_FILE, selector)
            (folder / CARD_FILE).write_text(json.dumps(about, indent=1) + "\n")
    except NotClean as error:
        fail(f"not calibrated, nothing was written: {error}")
    except (
        CalibrationError, ControlError, FolderError, SweepError, TraceError, WeightsError,
        sources.SourceError,
    ) as error:  # fmt: skip
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or out}: {error.strerror}")
    except KeyboardInterrupt:
        typer.echo("stopped, nothing was written", err=True)
        raise typer.Exit(STOPPED) from None
    if as_json:
        typer.echo(json.dumps({"folder": str(out), **about}))
    else:
        _print(out, about)


# --- weights ---


def _weights(folder: Path | None) -> _Pair | None:
    """Return the weights to go with the calibration; the package may have none yet."""
    place = folder or PACKAGED
    if folder is None and not (place / DETECTOR_FILE).exists():
        return None
    return _Pair(
        place, load(place / DETECTOR_FILE, "detector"), load(place / SELECTOR_FILE, "selector")
    )


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _can_adapt(pair: _Pair | None) -> None:
    if pair is None:
        fail("--adapt: no weights to begin with: --weights DIR")
    if not _has_torch():
        fail("--adapt needs PyTorch: pip install 'ringstep[train]'")


def _selector(
    pair: _Pair | None, learned: Learned,
    fitted: tuple[FluidParams, ErrorReport] | None, wanted: bool | None, seed: int, step: Any,
) -> tuple[Weights | None, dict[str, Any]]:  # fmt: skip
    """Return the selector's weights that the folder gets, and what is said of them."""
    if pair is None:
        return None, {"kept": "none: no weights are there; baselines only"}
    as_it_was = {"weights": str(pair.folder)}
    if wanted is False or (wanted is None and not learned.sweeps):
        return pair.selector, {**as_it_was, "kept": "as it was: adapting was not asked for"}
    if not _has_torch():
        return pair.selector, {
            **as_it_was,
            "kept": "as it was: adapting needs PyTorch (pip install 'ringstep[train]'); baselines "
            "only",
        }
    contended: list[Sweep] = learned.sweeps if has_contention(learned.sweeps) else []
    why = None
    if not contended and fitted is None:
        why = f"fewer than {KINDS} kinds of calls, from which no model can be fitted"
    elif not contended and fitted is not None and fitted[1].fitted_p50 > FITS:
        why = f"the fluid model is off by {fitted[1].fitted_p50:.0%} here (at most {FITS:.0%})"
    if why is not None:
        if wanted:
            raise NotClean(f"--adapt: {why}: sweep the cluster with loads (tuner traces sweep)")
        return pair.selector, {**as_it_was, "kept": f"as it was: {why}"}
    from ringstep.hostlib.evaluate.calibration.adapt import adapt_selector

    found, metrics = adapt_selector(
        pair.selector, pair.detector, contended, None if fitted is None else fitted[0], seed,
        progress=lambda what, done, of, note: step(f"adapting: {note}", done, of),
    )  # fmt: skip
    return found, {**as_it_was, **metrics}


# --- for people ---


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


@contextmanager
def _bar() -> Iterator[Any]:
    with progress_bar() as bar:
        task = bar.add_task("", total=None, visible=False)

        def step(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of, visible=True)

        yield step


def _print(out: Path, about: dict[str, Any]) -> None:
    console = Console(highlight=False, emoji=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in ("collective", "bytes", "ranks", "nodes", "clean µs", "spread", "calls"):
        table.add_column(name, justify="left" if name == "collective" else "right")
    for row in about["measured"]:
        table.add_row(
            row["collective"], str(row["bytes"]), str(row["ranks"]), str(row["nodes"]),
            f"{row['latency_us']:.1f}", f"{row['spread']:.1%}", str(row["calls"]),
        )  # fmt: skip
    console.print(table)
    model = about["fluid_model"]
    if model is not None:
        held = model["held_out_p50"]
        aside = "" if held is None else f", {held:.0%} on kinds it was not fitted to"
        console.print(f"fluid model: median error {model['fitted_p50']:.0%}{aside}", markup=False)
    console.print(f"selector: {about['selector']['kept']}", markup=False)
    for note in about["notes"]:
        console.print(f"note: {note}", markup=False)
    if "weights" in about["selector"]:
        console.print(f"{out}: use it with --policy dynamic:{out}", markup=False)
    else:
        console.print(f"{out}: put {CALIBRATION_FILE} beside your weights", markup=False)
