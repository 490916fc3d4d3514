"""The command ``ringstep demo``."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ringstep.lab.scenario import Geometry

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ringstep.lab.experiment import DemoParams
    from ringstep.lab.results import Experiment
    from ringstep.lab.rigs import Rig

INTERRUPTED = 130
"""Exit status after ctrl-C: 128 + SIGINT."""


BUSY_FACTOR = 1.05
"""A flow alone that takes so much longer than the link needs says that time was lost elsewhere."""


class WireKind(StrEnum):
    """Where the demo's frames travel."""

    UDP = "udp"
    MEMORY = "memory"


def _delays(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(piece) for piece in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a list of milliseconds; write for example 250,500"
        ) from None


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for result.json and the PNG.")] = Path(
        "out/demo"
    ),
    delays: Annotated[
        str, typer.Option("--delays", metavar="MS,MS,...", help="How late flow A starts.")
    ] = "250,500,750,1000",
    repeat: Annotated[int, typer.Option("--repeat", help="Runs per delay and mode.")] = 3,
    seed: Annotated[
        int, typer.Option("--seed", help="Of the switch's random source (memory wire).")
    ] = 1,
    wire: Annotated[
        WireKind,
        typer.Option(
            "--wire",
            help="udp: loopback wires in real time. memory: virtual time, same seed same bytes.",
        ),
    ] = WireKind.UDP,
    geometry: Annotated[
        Geometry,
        typer.Option(
            "--geometry",
            help="paper: A starts period - delay before B (Fig. 9). late: A starts delay after B.",
        ),
    ] = Geometry.PAPER,
    profile: Annotated[str, typer.Option("--profile", help="Marker: paper or ringstep.")] = "paper",
    k: Annotated[float, typer.Option("--k", help="Gain of the marking probability.")] = 0.01,
    preset: Annotated[
        str,
        typer.Option("--preset", help="DCQCN: connectx, hpcc_run, hpcc_config, dcqcn_paper, ..."),
    ] = "connectx",
    rate: Annotated[
        float, typer.Option("--rate", metavar="MBPS", help="Rate of every link, Mb/s.")
    ] = 50.0,
    time_factor: Annotated[
        float, typer.Option("--time-factor", help="How many times slower than at 10 Gb/s.")
    ] = 10.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json to standard output.")
    ] = False,
) -> None:
    """Replay the paper's two-flow experiment on a software switch, with and without the marker.

    Brings up the software switch with the compiled P4 program, a controller that loads it over
    P4Runtime, and three software RNICs; registers the job; and sends two tagged RDMA flows
    through one port, for each delay: in an ideal schedule, with DCQCN only, and with the marker.

    Example: ringstep demo --delays 500,1000 --repeat 5 --out out/demo
    """
    from ringstep.lab.experiment import DemoParams, Planned, expected_s, measure, plan
    from ringstep.lab.processes import ChildFailed
    from ringstep.lab.results import Run, table, write_json
    from ringstep.lab.twoflow import FlowFailed

    console = Console(emoji=False, stderr=as_json)
    try:
        params = DemoParams(
            delays_ms=_delays(delays),
            repeat=repeat,
            seed=seed,
            geometry=geometry,
            profile=profile,
            k=k,
            preset=preset,
            rate_bps=rate * 1e6,
            time_factor=time_factor,
        )
        out.mkdir(parents=True, exist_ok=True)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except OSError as error:
        raise typer.BadParameter(f"--out {out}: {error.strerror}") from None

    planned = plan(params)
    total_s = expected_s(params, planned)
    done_s = 0.0
    with _progress(console) as progress:
        task = progress.add_task("bringing up switch and controller", total=total_s)

        given_up: list[str] = []

        def on_run(run: Planned, result: Run) -> None:
            nonlocal done_s
            given_up.extend(result.given_up)
            done_s += expected_s(params, [run])
            progress.update(
                task,
                completed=done_s,
                description=f"run {run.repetition + 1}/{params.repeat}, "
                f"A {run.delay_ms:g} ms late, {run.mode}",
            )

        try:
            with _rig(wire, params) as rig:
                experiment = measure(params, rig, on_run)
        except (ChildFailed, FlowFailed) as error:
            progress.stop()
            said = escape(str(error))
            Console(emoji=False, stderr=True).print(f"[red]demo failed:[/] {said}", highlight=False)
            raise typer.Exit(1) from None

    for reason in given_up:
        Console(emoji=False, stderr=True).print(
            f"[yellow]A run was repeated:[/] {escape(reason)}", highlight=False
        )
    if any(experiment.complete(delay) for delay in params.delays_ms):
        write_json(experiment, out / "result.json")
        drawn = _draw(experiment, out / "timelines.png")
        if as_json:
            sys.stdout.write(json.dumps(experiment.to_json(), indent=2) + "\n")
        else:
            console.print(table(experiment))
            console.print(_explanation(params.period_ms, experiment.alone_ms))
            console.print(f"written: {out / 'result.json'}{drawn}")
        if experiment.alone_ms > BUSY_FACTOR * params.flow_ms:
            Console(emoji=False, stderr=True).print(
                f"[yellow]This machine was busy:[/] a flow alone took {experiment.alone_ms:.0f} ms "
                f"instead of {params.flow_ms:.0f}, so the wires did not keep their pace and the "
                "numbers mean little. Try again, or --wire memory, which no load can disturb."
            )
    if experiment.interrupted:
        raise typer.Exit(INTERRUPTED)


def _draw(experiment: Experiment, path: Path) -> str:
    from ringstep.lab.results import draw

    try:
        draw(experiment, path)
    except ModuleNotFoundError:
        return " (no timelines: pip install 'ringstep[report]')"
    return f", {path}"


def _explanation(period_ms: float, alone_ms: float) -> str:
    return (
        f"A flow alone takes {alone_ms:.0f} ms. Completion times count from a flow's own start; "
        f"in step, A starts {period_ms:.0f} ms before B. ± is half of what the runs span.\n"
        "marks/RED: packets marked by the marker and by RED on the queue.\n"
        "bound: what no schedule beats that keeps the link busy and lets A go first.\n"
        "paper: the change that the prototype's figures show (arXiv:2604.16880, Fig. 9)."
    )


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        transient=True,
    ) as progress:
        yield progress


def _rig(wire: WireKind, params: DemoParams) -> AbstractContextManager[Rig]:
    from ringstep.lab.rigs import memory_rig, udp_rig

    bring_up = udp_rig if wire is WireKind.UDP else memory_rig
    return bring_up(params.host_params(), params.link(), params.job())
