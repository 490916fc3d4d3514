"""The commands ``ringstep lab up|down|status|run``. Mininet is imported only where it is used."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ringstep.lab.leafspine import Engine, LeafSpine
from ringstep.lab.mininet_env import LabUnavailable
from ringstep.lab.priority import Scheduling
from ringstep.lab.processes import ChildFailed
from ringstep.lab.results import write_atomically

if TYPE_CHECKING:
    from ringstep.lab.mininet_lab import MininetLab, RunningLab
    from ringstep.lab.ring_results import RingExperiment, RingRun
    from ringstep.lab.ringlab import Planned, RingParams

BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 130
_WATCH_S = 0.5
_T = TypeVar("_T")

app = typer.Typer(
    help="A whole fabric on one machine: Mininet, switches, controller, software RNICs (root).",
    no_args_is_help=True,
)


class Shape(StrEnum):
    """Fabrics that the lab knows."""

    LEAF_SPINE = "leaf-spine"


class Collective(StrEnum):
    """Experiments that the lab knows."""

    RING_ALLREDUCE = "ring-allreduce"


class OnOff(StrEnum):
    """With it, or without."""

    ON = "on"
    OFF = "off"


def _fail(text: str, status: int) -> NoReturn:
    print(f"error: {text}", file=sys.stderr)
    raise typer.Exit(status)


def _bad(option: str, parse: Callable[[], _T]) -> _T:
    try:
        return parse()
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}" if option else str(error)) from None


Hosts = Annotated[int, typer.Option("--hosts", help="Hosts of the ring, spread over the leaves.")]
Leaves = Annotated[int, typer.Option("--leaves", help="Leaf switches.")]
Spines = Annotated[int, typer.Option("--spines", help="Spine switches, each linked to every leaf.")]
Rate = Annotated[str, typer.Option("--rate", metavar="RATE", help="Of a host's link, such as 50M.")]
Oversubscription = Annotated[
    float,
    typer.Option(
        "--oversubscription",
        help="What a leaf's hosts can send over what its uplinks carry; sets the uplinks' rate.",
    ),
]
EngineOption = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="softswitch, or bmv2: simple_switch_grpc on the PATH or in "
        "$RINGSTEP_SIMPLE_SWITCH_GRPC.",
    ),
]
Payload = Annotated[
    int, typer.Option("--payload", help="Bytes that a full packet carries, at most 8192.")
]
SchedulingOption = Annotated[
    Scheduling,
    typer.Option(
        "--scheduling",
        help="realtime: switches and NICs get a CPU at once (SCHED_RR). normal: they wait in turn.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]


def _fabric(
    hosts: int,
    leaves: int,
    spines: int,
    rate: str,
    oversubscription: float,
    engine: Engine,
    payload: int,
    *,
    spaced: bool = True,
) -> LeafSpine:
    from ringstep.fabric.units import parse_rate_bps

    rate_bps = _bad("--rate", lambda: float(parse_rate_bps(rate)))
    return _bad(
        "",
        lambda: LeafSpine(
            hosts=hosts,
            leaves=leaves,
            spines=spines,
            rate_bps=rate_bps,
            oversubscription=oversubscription,
            engine=engine,
            payload=payload,
            spaced=spaced,
        ),
    )


class _Terminated(BaseException):
    """The lab was asked to end; Mininet's command line catches KeyboardInterrupt for itself."""


@contextlib.contextmanager
def _signals_raise(kind: type[BaseException], *numbers: signal.Signals) -> Iterator[None]:
    """Have signals raise an exception in the main thread for the length of the block."""

    def interrupt(_number: int, _frame: object) -> None:
        raise kind

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _failures_told() -> Iterator[None]:
    """Turn what may go wrong into a message and an exit status."""
    from ringstep.lab.allreduce import CollectiveFailed
    from ringstep.lab.mininet_lab import LabFailed
    from ringstep.lab.steering import NoPortFound

    try:
        # A closed terminal ends the lab as ctrl-C does.
        with _signals_raise(KeyboardInterrupt, signal.SIGHUP):
            yield
    except LabUnavailable as error:
        _fail(str(error), BAD_INPUT)
    except (LabFailed, ChildFailed, CollectiveFailed, NoPortFound) as error:
        _fail(f"lab failed: {error}", FAILED)


@app.command(
    epilog="Examples: ringstep lab up leaf-spine --hosts 8 | "
    "ringstep lab up leaf-spine --engine bmv2 --hosts 4 --leaves 2 --rate 10M --cli"
)
def up(
    shape: Annotated[Shape, typer.Argument(help="The fabric's shape.")],
    hosts: Hosts = 8,
    leaves: Leaves = 4,
    spines: Spines = 2,
    rate: Rate = "50M",
    oversubscription: Oversubscription = 2.0,
    engine: EngineOption = Engine.SOFTSWITCH,
    payload: Payload = 8192,
    scheduling: SchedulingOption = Scheduling.REALTIME,
    spacing: Annotated[
        OnOff,
        typer.Option("--spacing", help="Space marks on packets of jobs at each port, or not."),
    ] = OnOff.ON,
    cli: Annotated[
        bool, typer.Option("--cli", help="Mininet's command line instead of waiting for ctrl-C.")
    ] = False,
    as_json: AsJson = False,
    ready_file: Annotated[
        Path | None,
        typer.Option("--ready-file", help="Gets one line of JSON once the lab is up."),
    ] = None,
) -> None:
    """Bring a fabric up and keep it until ctrl-C: switches, hosts, links, controller.

    Another terminal can then run collectives in it, or any command of an operator against its
    controller.
    """
    del shape
    fabric = _fabric(
        hosts, leaves, spines, rate, oversubscription, engine, payload,
        spaced=spacing is OnOff.ON,
    )  # fmt: skip
    if ready_file is not None and not ready_file.parent.is_dir():
        raise typer.BadParameter(f"--ready-file: there is no folder {str(ready_file.parent)!r}")
    console = Console(emoji=False, stderr=as_json)
    is_up = False
    try:
        with _failures_told(), _brought_up(fabric, scheduling, console) as lab:
            is_up = True
            where = lab.where
            if as_json:
                print(json.dumps(where.to_json(), indent=2), flush=True)
            else:
                console.print(_parts_table(where))
                console.print(_what_next(where), highlight=False, soft_wrap=True)
            if ready_file is not None:
                write_atomically(ready_file, json.dumps(where.to_json()) + "\n")
            _keep(lab, cli)
    except _Terminated:
        pass
    except KeyboardInterrupt:
        if not is_up:
            raise
    console.print("the lab is down")


@contextlib.contextmanager
def _brought_up(
    fabric: LeafSpine, scheduling: Scheduling, console: Console
) -> Iterator[MininetLab]:
    from ringstep.lab.mininet_lab import mininet_lab

    with (
        console.status("bringing up the lab") as spinner,
        mininet_lab(fabric, scheduling) as lab,
    ):
        spinner.stop()
        yield lab
        spinner.update("taking down the lab")
        spinner.start()


def _keep(lab: MininetLab, cli: bool) -> None:
    if cli:
        from mininet.cli import CLI
        from mininet.log import setLogLevel

        setLogLevel("output")
        # There ctrl-C interrupts a command of a host, so it cannot be what ends the lab.
        with _signals_raise(_Terminated, signal.SIGTERM, signal.SIGHUP):
            CLI(lab.net)
        lab.check()
        return
    while True:
        lab.check()
        time.sleep(_WATCH_S)


def _parts_table(where: RunningLab) -> Table:
    out = Table(title="What runs where", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("name", "what", "pid", "where", "links"):
        out.add_column(name, no_wrap=name != "links")
    fabric = where.fabric
    sites = fabric.switch_sites
    for part in where.parts:
        links = ""
        if part.name in sites:
            rates = sites[part.name].port_rates_bps.values()
            links = ", ".join(
                f"{sum(r == rate for r in rates)} x {rate / 1e6:g}M"
                for rate in dict.fromkeys(rates)
            )
        address = f"P4Runtime {part.address}" if part.name in sites else f"gRPC {part.address}"
        note = f" ({part.note})" if part.note else ""
        out.add_row(part.name, part.what + note, str(part.pid), address, links)
    for name, place in where.hosts.items():
        site = place.site
        out.add_row(
            name,
            "background host" if name.startswith("b") else "host",
            str(place.pid),
            f"{site.ip} {site.interface}",
            f"{site.leaf}:{site.port} {fabric.rate_bps / 1e6:g}M",
        )
    return out


def _what_next(where: RunningLab) -> str:
    return (
        f"Controller: export RINGSTEP_CONTROLLER={where.controller}; ringstep switch list\n"
        "In another terminal: ringstep lab run ring-allreduce --seeds 1..3\n"
        "End it with ctrl-C, or `ringstep lab down` from anywhere."
    )


@app.command(epilog="Example: ringstep lab down")
def down() -> None:
    """End a running lab, and clean up what a killed one left: processes, interfaces, namespaces.

    Only what carries a lab's mark is touched.
    """
    from ringstep.lab.leftovers import remove_leftovers, remove_state, stop_owner

    if os.geteuid() != 0:
        _fail("`ringstep lab down` needs root, as the lab did; use sudo", BAD_INPUT)
    owner = stop_owner()
    processes, interfaces = remove_leftovers()
    remove_state()
    if owner is not None:
        typer.echo(f"lab of process {owner} ended")
    if processes or interfaces:
        typer.echo(f"left behind and removed: {processes} processes, {interfaces} interfaces")
    elif owner is None:
        typer.echo("no lab is up, and none left anything behind")


@app.command(epilog="Example: ringstep lab status --json")
def status(as_json: AsJson = False) -> None:
    """Show the lab that runs on this machine; exit status 1 where none does."""
    from ringstep.lab.mininet_lab import running_lab

    where = running_lab()
    if where is None:
        _fail("no lab is up; start one with `ringstep lab up leaf-spine`", FAILED)
    if as_json:
        print(json.dumps(where.to_json(), indent=2))
    else:
        Console(emoji=False).print(_parts_table(where))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of ``1..5`` or ``1,2,7``, or of both mixed.

    Raises:
        ValueError: it is neither.
    """
    seeds: list[int] = []
    for piece in text.split(","):
        first, dots, last = piece.partition("..")
        if not first.strip().isdecimal() or (dots and not last.strip().isdecimal()):
            raise ValueError(f"{text!r} is not a list of seeds; write for example 1..5 or 1,2,7")
        low, high = int(first), int(last) if dots else int(first)
        if high < low or high - low >= 10_000:
            raise ValueError(f"{piece.strip()!r}: count upwards, over at most 10000 seeds")
        seeds += range(low, high + 1)
    return tuple(seeds)


def _choices(text: str, kind: type[_T]) -> tuple[_T, ...]:
    found = []
    for piece in text.split(","):
        try:
            found.append(kind(piece.strip()))  # type: ignore[call-arg]
        except ValueError:
            known = ", ".join(str(value) for value in kind)  # type: ignore[attr-defined]
            raise ValueError(f"{piece.strip()!r} is none of {known}") from None
    return tuple(found)


@app.command(
    epilog="Examples: ringstep lab run ring-allreduce --seeds 1..5 --out out/lab | "
    "ringstep lab run ring-allreduce --hosts 4 --leaves 2 --size 1MiB --seeds 1 "
    "--marking off,ringstep --background off --json"
)
def run(
    collective: Annotated[Collective, typer.Argument(help="What to run.")],
    hosts: Hosts = 8,
    leaves: Leaves = 4,
    spines: Spines = 2,
    rate: Rate = "50M",
    oversubscription: Oversubscription = 2.0,
    engine: EngineOption = Engine.SOFTSWITCH,
    payload: Payload = 8192,
    scheduling: SchedulingOption = Scheduling.REALTIME,
    size: Annotated[
        str, typer.Option("--size", metavar="SIZE", help="Bytes that every rank brings along.")
    ] = "2MiB",
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="1..N", help="One run of each variant per seed.")
    ] = "1..5",
    paths: Annotated[
        str,
        typer.Option(
            "--paths",
            help="ecmp, planned (an edge keeps its path), turning (the plan turns with the step).",
        ),
    ] = "ecmp,planned",
    marking: Annotated[
        str,
        typer.Option(
            "--marking",
            help="off (plain RED), paper (its marker), spaced (RED's marks spaced), "
            "ringstep (ours, spaced).",
        ),
    ] = "off,paper,spaced,ringstep",
    background: Annotated[
        str, typer.Option("--background", help="on, off, or both: on,off.")
    ] = "on",
    background_share: Annotated[
        float,
        typer.Option("--background-share", help="Rate of the background flow over an uplink's."),
    ] = 0.25,
    preset: Annotated[
        str, typer.Option("--preset", help="DCQCN: connectx, hpcc_run, hpcc_config, ...")
    ] = "connectx",
    k: Annotated[float, typer.Option("--k", help="Gain of the marking probability.")] = 0.01,
    jitter: Annotated[
        float,
        typer.Option("--jitter", help="Ranks start within this share of a step of one another."),
    ] = 0.1,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for result.json and overlap.png.")
    ] = Path("out/lab"),
    as_json: AsJson = False,
) -> None:
    """Run a ring AllReduce over the lab's hosts and measure it, variant by variant.

    Real data travels between software RNICs, and every sum is checked. Where a lab is up, its
    fabric is used; otherwise one is brought up for the length of the run.
    """
    del collective
    from ringstep.fabric.units import parse_size_bytes
    from ringstep.lab.ringlab import Marking, RingParams
    from ringstep.lab.steering import Paths

    fabric = _fabric(hosts, leaves, spines, rate, oversubscription, engine, payload)
    params = _bad(
        "",
        lambda: RingParams(
            size=parse_size_bytes(size),
            seeds=parse_seeds(seeds),
            paths=_choices(paths, Paths),
            markings=_choices(marking, Marking),
            background=tuple(value is OnOff.ON for value in _choices(background, OnOff)),
            background_share=background_share,
            preset=preset,
            k=k,
            jitter=jitter,
        ),
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"--out {out}: {error.strerror}") from None
    console = Console(emoji=False, stderr=as_json)
    with _failures_told():
        experiment = _experiment(fabric, params, scheduling, console)
    _report(experiment, out, as_json, console)
    if experiment.interrupted:
        raise typer.Exit(INTERRUPTED)


def _experiment(
    fabric: LeafSpine, params: RingParams, scheduling: Scheduling, console: Console
) -> RingExperiment:
    from ringstep.lab.mininet_env import require_lab
    from ringstep.lab.ringlab import fabrics_needed

    require_lab()
    found: RingExperiment | None = None
    for needed in fabrics_needed(fabric, params):
        try:
            with _lab_to_use(needed, scheduling, console) as (where, check):
                found = _measured(where, params, check, console, found)
        except KeyboardInterrupt:
            if found is None:
                raise
            found.interrupted = True
        if found is not None and found.interrupted:
            break
    assert found is not None
    return found


@contextlib.contextmanager
def _lab_to_use(
    fabric: LeafSpine, scheduling: Scheduling, console: Console
) -> Iterator[tuple[RunningLab, Callable[[], None]]]:
    """Yield the lab that is up, or one brought up for this block, and what checks that it lives."""
    from ringstep.lab.mininet_lab import running_lab

    where = running_lab()
    if where is not None:
        if where.fabric != fabric:
            raise LabUnavailable(
                "the lab that is up has another fabric; give the same options as to `ringstep lab "
                "up` (see `ringstep lab status --json`), or stop it with `ringstep lab down`. "
                "Marking off and paper need --spacing off, spaced and ringstep need it on"
            )
        yield where, _check_running
        return
    with _brought_up(fabric, scheduling, console) as lab:
        yield lab.where, lab.check


def _check_running() -> None:
    from ringstep.lab.mininet_lab import LabFailed, running_lab

    if running_lab() is None:
        raise LabFailed("the lab went down")


def _measured(
    where: RunningLab,
    params: RingParams,
    check: Callable[[], None],
    console: Console,
    experiment: RingExperiment | None,
) -> RingExperiment:
    from ringstep.lab.ringlab import RingRig, expected_s, measure, new_experiment, plan_runs

    runs = plan_runs(params, spaced=where.fabric.spaced)
    done = 0
    with (
        RingRig(where, params, check) as rig,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            transient=True,
            # A thread of its own would hold up the one that moves packets.
            auto_refresh=False,
        ) as progress,
    ):
        fabric = rig.fabric
        task = progress.add_task("first run", total=expected_s(params, fabric, runs))
        progress.refresh()

        def on_run(planned: Planned, run: RingRun) -> None:
            nonlocal done
            done += 1
            progress.update(
                task,
                completed=expected_s(params, fabric, runs[:done]),
                description=f"run {done}/{len(runs)}: seed {planned.seed}, {planned.paths}, "
                f"marker {planned.marking}: {run.cct_ms:.0f} ms",
            )
            progress.refresh()

        if experiment is None:
            experiment = new_experiment(rig)
        measure(rig, experiment, on_run)
        return experiment


def _report(experiment: RingExperiment, out: Path, as_json: bool, console: Console) -> None:
    from ringstep.lab.ring_results import table, write_json

    if not experiment.runs:
        return
    write_json(experiment, out / "result.json")
    drawn = _draw(experiment, out / "overlap.png")
    if as_json:
        sys.stdout.write(json.dumps(experiment.to_json(), indent=1) + "\n")
    else:
        console.print(table(experiment))
        console.print(_explanation(experiment), highlight=False)
        console.print(f"written: {out / 'result.json'}{drawn}", highlight=False)
    astray = sum(run.ways_confirmed is False for run in experiment.runs)
    if astray:
        Console(emoji=False, stderr=True).print(
            f"[yellow]Ways not confirmed[/] in {astray} runs: switches or ports counted something "
            "else than the pinned and hashed paths say.",
            highlight=False,
        )
    lost = [run for run in experiment.runs if not run.pace.kept]
    if lost:
        Console(emoji=False, stderr=True).print(
            f"[yellow]This machine lost pace[/] in {len(lost)} of {len(experiment.runs)} runs "
            f"(load {max(run.pace.load for run in lost):.1f}): wires were slower than they should "
            "be, so these runs say more about the machine than about the fabric.",
            highlight=False,
        )


def _draw(experiment: RingExperiment, path: Path) -> str:
    from ringstep.lab.ring_results import draw

    try:
        draw(experiment, path)
    except ModuleNotFoundError:
        return " (no plot: pip install 'ringstep[report]')"
    return f", {path}"


def _explanation(experiment: RingExperiment) -> str:
    from ringstep.lab.ring_results import marker_lines

    fabric = experiment.parameters["fabric"]
    slowest = min(run.pace.single_flow for run in experiment.runs)
    lag = max(run.pace.lag_p99_ms for run in experiment.runs)
    marker = marker_lines(experiment)
    ordinary = experiment.parameters["scheduling"] == Scheduling.NORMAL
    compared = ["Marking against plain RED on the same paths, seed by seed (95 %):", *marker]
    return "\n".join(
        [
            *(compared if marker else []),
            f"{fabric['hosts']} hosts at {fabric['rate_bps'] / 1e6:g} Mb/s, uplinks "
            f"{fabric['uplink_bps'] / 1e6:g}; time runs {fabric['time_factor']:g} times slower "
            "than at 10 Gb/s.",
            "change: median over seeds, against the first row with that background.",
            "marks/RED/CNP: by the marker, by RED, all switches; CNPs that senders got.",
            "steps: the most under way at once.",
            f"pace: a single flow reached {100 * slowest:.0f} % of its rate or more; NICs were",
            f"polled up to {lag:.1f} ms late (99 % of the polls, worst run).",
            *(
                ["Switches and NICs waited for CPUs in turn: no real-time policy."]
                if ordinary
                else []
            ),
        ]
    )
