"""Commands of the simulator: ``ringstep sim run|sweep|plot|validate|presets|paper|study``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from ringstep.fabric.tomlfile import FileError
from ringstep_ns3 import simulate
from ringstep_ns3.build import build
from ringstep_ns3.outfolder import check_folder
from ringstep_ns3.paper import CHOICES, FIGURES, Report, run_figure
from ringstep_ns3.paper.report import HEADINGS, load_figure
from ringstep_ns3.paper.report import MARK as PAPER_MARK
from ringstep_ns3.paper.study import MARK as STUDY_MARK
from ringstep_ns3.paper.study import (
    VERDICT_HEADINGS,
    StudyReport,
    describe,
    find_study,
    load_study,
    run_study,
    study_names,
)
from ringstep_ns3.prepare import prepare
from ringstep_ns3.results import SUMMARY, Results
from ringstep_ns3.scenario import Scenario, preset_names, preset_text
from ringstep_ns3.sweep import MARK, Sweep, SweepProgress, default_workers, run_sweep
from ringstep_ns3.tomldoc import parse_setting

BAD_INPUT: Final = 2
FAILED: Final = 1
INTERRUPTED: Final = 130
_LINE_EVERY_S: Final = 5.0
_PIPE_WIDTH: Final = 200
"""Columns of a study's tables where nobody tells how many there are."""

app = typer.Typer(
    help="Simulate RoCEv2 ring collectives packet by packet.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
paper_app = typer.Typer(
    help="Reproduce a paper's evaluation: figures and tables beside its numbers.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(paper_app, name="paper")

ScenarioFile = Annotated[Path, typer.Argument(help="Scenario file (TOML).", show_default=False)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a key, such as cc.preset=connectx."),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, max=2**32 - 1, help="Seed; default: the scenario's."),
]
Out = Annotated[Path | None, typer.Option("--out", help="Result folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace results that are there.")]
Mixed = Annotated[
    bool,
    typer.Option("--mixed", help="Go on with runs that another build of the simulator made."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def _fail(error: FileError) -> NoReturn:
    for problem in error.problems:
        print(f"error: {problem}", file=sys.stderr)
    raise typer.Exit(BAD_INPUT)


@app.command("run")
def run_command(
    scenario: ScenarioFile,
    seed: Seed = None,
    settings: Settings = None,
    out: Out = None,
    as_json: Json = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Run a scenario; results go to --out, or to out/NAME-seedN.

    Exit status: 0 done, 1 not everything ended, 2 bad input, 130 ctrl-C (what is done is kept).
    """
    try:
        loaded = Scenario.load(scenario, settings or ())
        used = loaded.seed if seed is None else seed
        prepared = prepare(loaded, used)
        folder = out
        if folder is None:
            folder = Path("out") / f"{loaded.name}-seed{used}"
            if not folder.parent.exists():
                folder.parent.mkdir()
        check_folder(folder, SUMMARY, replace=force)
        built = build(prepared)
        for warning in built.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        interrupted = False
        with _RunProgress(f"{loaded.name}, seed {used}", quiet) as progress:
            try:
                results = simulate.simulate(built, progress.update)
            except simulate.Interrupted as stop:
                results, interrupted = stop.results, True
        results.write(folder)
    except FileError as error:
        _fail(error)
    for warning in results.summary["warnings"][len(built.warnings) :]:
        print(f"warning: {warning}", file=sys.stderr)
    if as_json:
        print(json.dumps({**results.summary, "out": str(folder), "timing": results.timing}))
    else:
        _show(results, folder)
    if interrupted:
        print(
            f"interrupted at {_milliseconds(results.summary['sim_time_ns'])} ms of simulated time; "
            f"what was done is in {folder}, marked as not complete",
            file=sys.stderr,
        )
        raise typer.Exit(INTERRUPTED)
    if not results.complete and results.summary["stopped"] != "until":
        print(
            "error: not everything ended and nothing is left to do; a lost packet with "
            'transport.rto = "off", or a failed link without another way, does that',
            file=sys.stderr,
        )
        raise typer.Exit(FAILED)


@app.command("validate")
def validate_command(
    scenario: ScenarioFile,
    settings: Settings = None,
    seed: Seed = None,
    as_json: Json = False,
) -> None:
    """Check a scenario as a whole without running it, and print it with every default."""
    try:
        loaded = Scenario.load(scenario, settings or ())
        prepared = prepare(loaded, seed)
        built = build(prepared)
    except FileError as error:
        _fail(error)
    for warning in built.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if as_json:
        print(json.dumps(loaded.to_dict()))
        return
    print(simulate.effective_toml(prepared), end="")


@app.command("sweep")
def sweep_command(
    sweep: Annotated[Path, typer.Argument(help="Sweep file (TOML).", show_default=False)],
    seeds: Annotated[
        int, typer.Option("--seeds", min=0, help="Runs per point; 0: as the file says.")
    ] = 0,
    workers: Annotated[
        int, typer.Option("--workers", "-j", min=0, help="Processes; 0: one per processor.")
    ] = 0,
    engine: Annotated[
        Literal["processes", "dask"], typer.Option("--engine", help="What runs the runs.")
    ] = "processes",
    mixed: Mixed = False,
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a scenario over axes and seeds; runs that are in the folder already are not repeated.

    Exit status: 0 done, 2 bad input, 130 ctrl-C (what is done is kept; run it again to go on).
    """
    try:
        loaded, points = Sweep.load(sweep, seeds=range(1, seeds + 1))
        folder = out
        if folder is None:
            folder = Path("out") / loaded.name
            if not folder.parent.exists():
                folder.parent.mkdir()
        check_folder(folder, MARK, replace=True)
        with _SweepProgressBar(loaded.name, quiet) as progress:
            outcome = run_sweep(
                loaded,
                points,
                folder,
                workers=workers or default_workers(),
                engine=engine,
                mixed=mixed,
                on_progress=progress.update,
            )
    except FileError as error:
        _fail(error)
    if as_json:
        print(json.dumps({**outcome.summary, "out": str(folder)}))
    else:
        _show_sweep(outcome.summary, folder)
    if outcome.interrupted:
        print(
            f"interrupted: {outcome.summary['done']} of {outcome.summary['runs']} runs are in "
            f"{folder}; the same command goes on from there",
            file=sys.stderr,
        )
        raise typer.Exit(INTERRUPTED)


@app.command("plot")
def plot_command(
    results: Annotated[
        list[Path], typer.Argument(help="Result folders, or one sweep.", show_default=False)
    ],
    figure: Annotated[
        list[str] | None,
        typer.Option("--figure", help="cct, bars, overlap, rate, throughput; default: all."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the figures.")] = Path(),
    file_format: Annotated[
        Literal["png", "pdf", "svg"], typer.Option("--format", help="File format.")
    ] = "png",
) -> None:
    """Draw the standard figures of result folders or of a sweep."""
    from ringstep_ns3.plot import draw

    try:
        for path in draw(results, figure or (), out, file_format):
            print(path)
    except FileError as error:
        _fail(error)


def _choice(name: str) -> Any:
    """An option for what the paper leaves open; its values are checked with the figure."""
    choice = CHOICES[name]
    return typer.Option(f"--{name}", help=f"{choice.question} {', '.join(choice.values)}.")


@paper_app.command("symphony")
def symphony_command(
    figure: Annotated[
        list[str] | None,
        typer.Option("--figure", help=f"One of {', '.join(FIGURES)}; can be repeated. [all]"),
    ] = None,
    scale: Annotated[
        Literal["small", "paper"], typer.Option("--scale", help="The paper's size, or seconds.")
    ] = "small",
    seeds: Annotated[
        int, typer.Option("--seeds", min=0, help="Runs per point; 0: as the figure says.")
    ] = 0,
    workers: Annotated[
        int, typer.Option("--workers", "-j", min=0, help="Processes; 0: one per processor.")
    ] = 0,
    dependency: Annotated[str, _choice("dependency")] = CHOICES["dependency"].default,
    notify: Annotated[str, _choice("notify")] = CHOICES["notify"].default,
    sender: Annotated[str, _choice("sender")] = CHOICES["sender"].default,
    port: Annotated[str, _choice("port")] = CHOICES["port"].default,
    nic: Annotated[str, _choice("nic")] = CHOICES["nic"].default,
    window: Annotated[str, _choice("window")] = CHOICES["window"].default,
    preset: Annotated[str, _choice("preset")] = CHOICES["preset"].default,
    rings: Annotated[str, _choice("rings")] = CHOICES["rings"].default,
    pfc: Annotated[str, _choice("pfc")] = CHOICES["pfc"].default,
    settings: Settings = None,
    mixed: Mixed = False,
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run figures of the Symphony paper (section 4); what is in --out already is not repeated.

    Exit status: 0 done, 2 bad input, 130 ctrl-C (what is done is kept; run it again to go on).
    """
    chosen = {
        "dependency": dependency,
        "notify": notify,
        "sender": sender,
        "port": port,
        "nic": nic,
        "window": window,
        "preset": preset,
        "rings": rings,
        "pfc": pfc,
    }
    reports: list[Report] = []
    folder = out or Path("out") / f"symphony-{scale}"
    keys = list(dict.fromkeys(figure or FIGURES))
    try:
        extra = dict(parse_setting(text) for text in settings or ())
        every = {key: load_figure(key, scale, chosen, extra, range(1, seeds + 1)) for key in keys}
        if out is None and not folder.parent.exists():
            folder.parent.mkdir()
        check_folder(folder, PAPER_MARK, replace=True)
        for key in keys:
            with _SweepProgressBar(FIGURES[key].heading, quiet) as progress:
                report = run_figure(
                    key,
                    folder,
                    scale=scale,
                    choices=chosen,
                    extra=extra,
                    seeds=range(1, seeds + 1),
                    workers=workers or default_workers(),
                    mixed=mixed,
                    on_progress=progress.update,
                    loaded=every[key],
                )
            reports.append(report)
            if not as_json:
                _show_report(report, folder)
            if report.interrupted:
                break
    except FileError as error:
        _fail(error)
    if as_json:
        print(json.dumps({"out": str(folder), "figures": [each.as_dict() for each in reports]}))
    _end_if_interrupted(reports, folder)


def _end_if_interrupted(reports: Sequence[Report], folder: Path) -> None:
    if not reports or not reports[-1].interrupted:
        return
    last = reports[-1]
    print(
        f"interrupted: {last.done} of {last.runs} runs of {last.figure.heading} are in {folder}; "
        "the same command goes on from there",
        file=sys.stderr,
    )
    raise typer.Exit(INTERRUPTED)


@app.command("study")
def study_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Studies; none: list them.", show_default=False),
    ] = None,
    scale: Annotated[
        Literal["small", "full"], typer.Option("--scale", help="Whole, or a form of seconds.")
    ] = "full",
    seeds: Annotated[
        int, typer.Option("--seeds", min=0, help="Runs per point; 0: as the study says.")
    ] = 0,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="GROUP", help="Groups, such as 'none/*'; can be repeated."),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", "-j", min=0, help="Processes; 0: one per processor.")
    ] = 0,
    settings: Settings = None,
    mixed: Mixed = False,
    out: Out = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables as Markdown.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare variants with a baseline over many conditions; what is in --out is not repeated.

    Example: ringstep sim study paths --scale small --seeds 3 --only 'short/*'

    Exit status: 0 done, 2 bad input, 130 ctrl-C (what is done is kept; run it again to go on).
    """
    reports: list[StudyReport] = []
    folder = out or Path("out") / f"study-{scale}"
    try:
        if not names:
            _show_studies([describe(find_study(name)) for name in study_names()], as_json)
            return
        extra = dict(parse_setting(text) for text in settings or ())
        every = [
            load_study(
                name, scale, settings=extra, seeds=range(1, seeds + 1), only=tuple(only or ())
            )
            for name in dict.fromkeys(names)
        ]
        if out is None and not folder.parent.exists():
            folder.parent.mkdir()
        check_folder(folder, STUDY_MARK, replace=True)
        for loaded in every:
            with _SweepProgressBar(loaded.study.heading, quiet) as progress:
                report = run_study(
                    loaded,
                    folder,
                    workers=workers or default_workers(),
                    mixed=mixed,
                    on_progress=progress.update,
                )
            reports.append(report)
            if markdown and not as_json:
                print(report.markdown())
            elif not as_json:
                _show_study(report, folder)
            if report.interrupted:
                break
    except FileError as error:
        _fail(error)
    if as_json:
        print(json.dumps({"out": str(folder), "studies": [each.as_dict() for each in reports]}))
    _end_if_interrupted(reports, folder)


@app.command("presets")
def presets_command(
    name: Annotated[str | None, typer.Argument(help="Show this one.", show_default=False)] = None,
) -> None:
    """List the scenario presets that ``extends`` knows, or print one."""
    if name is None:
        for each in preset_names():
            first = preset_text(each).splitlines()[0].removeprefix("#").strip()
            print(f"{each:<16} {first}")
        return
    try:
        print(preset_text(name), end="")
    except KeyError:
        print(f"error: {name!r} is no preset; known: {', '.join(preset_names())}", file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from None


# --- What people see --------------------------------------------------------------------------


def _milliseconds(time_ns: float | None) -> str:
    return "-" if time_ns is None else f"{time_ns / 1e6:.3f}"


def _show(results: Results, folder: Path) -> None:
    summary = results.summary
    console = Console(emoji=False, soft_wrap=True)
    model = summary["model"]
    console.print(
        f"[bold]{summary['scenario']}[/bold], seed {summary['seed']}: cc {model['cc']}, window "
        f"{model['window']}, lb {model['lb']}, marking {model['marking']}, sender "
        f"{'/'.join(model['sender']) or '-'}, dependency {'/'.join(model['dependency']) or '-'}"
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("job", min_width=6)
    for name in (
        "ranks", "start ms", "JCT ms", "CCT ms", "bound", "Gbit/s", "overlap", "distance",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for job in summary["jobs"][:20]:
        rate = job["throughput_bps"]
        table.add_row(
            job["name"],
            str(job["ranks"]),
            _milliseconds(job["start_ns"]),
            _milliseconds(job["jct_ns"]),
            _milliseconds(job["cct_ns"].get("median")),
            _milliseconds(job.get("bound_ns")),
            "-" if rate is None else f"{rate / 1e9:.2f}",
            str(job["max_overlap"] if job["max_overlap"] is not None else "-"),
            str(job["max_distance"] if job["max_distance"] is not None else "-"),
        )
    if summary["jobs"]:
        console.print(table)
    if len(summary["jobs"]) > 20:
        console.print(f"... {len(summary['jobs']) - 20} more jobs in jobs.parquet")
    for job in summary["jobs"][:20]:
        if loop := job.get("loop"):
            _show_loop(console, job["name"], loop)
    background = summary["background"]
    if background["flows"]:
        fct = background["fct_ns"]
        console.print(
            f"background: {background['flows']} messages, FCT median "
            f"{_milliseconds(fct.get('median'))} ms, p99 {_milliseconds(fct.get('p99'))} ms"
        )
    totals = summary["totals"]
    console.print(
        f"marks: {totals['marks_red']} RED, {totals['marks_marker']} marker; pauses "
        f"{totals['pauses']}; drops: {totals['drops_buffer']} buffer, {totals['drops_wire']} wire; "
        f"retransmissions {totals['retransmissions']}, timeouts {totals['timeouts']}"
    )
    for port in summary["ports"][:3]:
        console.print(
            f"  {port['link']}: {port['marks_red']} RED, {port['marks_marker']} marker, paused "
            f"{_milliseconds(port['paused_ns'])} ms, drops "
            f"{port['drops_buffer'] + port['drops_wire']}, queue up to "
            f"{port['max_queue_bytes'] / 1000:.0f} KB"
        )
    timing = results.timing
    speed = timing.get("hops_per_s")
    console.print(
        f"simulated {_milliseconds(summary['sim_time_ns'])} ms in {timing['wall_s']:.2f} s"
        + (f" ({speed / 1e6:.2f} M hops/s)" if speed else "")
        + f"; results in {folder}"
    )


def _show_loop(console: Console, name: str, loop: dict[str, Any]) -> None:
    """What the closed loop of a job did, in two lines."""
    total = max(loop["time_ns"], 1)
    shares = ", ".join(
        f"{arm} {found['epochs']} ({100 * found['time_ns'] / total:.0f} % of the time)"
        for arm, found in loop["arms"].items()
        if found["epochs"]
    )
    console.print(f"loop of {name}: {loop['epochs']} epochs: {shares}", markup=False)
    console.print(
        f"  {loop['reason']}; booked {loop['booked_epochs']:+.2f} safe epochs", markup=False
    )


def _show_sweep(summary: dict[str, Any] | Any, folder: Path) -> None:
    console = Console(emoji=False)
    axes = [axis["name"] for axis in summary["axes"]]
    table = Table(*axes, "runs", "CCT min ms", "median", "max", "JCT median ms")
    for point in summary["points"]:
        cct, jct = point["cct_ns"], point["jct_ns"]
        table.add_row(
            *(point[axis] for axis in axes),
            str(point["done"]),
            _milliseconds(cct.get("min")),
            _milliseconds(cct.get("median")),
            _milliseconds(cct.get("max")),
            _milliseconds(jct.get("median")),
        )
    console.print(table)
    console.print(f"{summary['done']} of {summary['runs']} runs; tables in {folder}")
    if summary["stalled"]:
        console.print(
            f"{summary['stalled']} of them came to a standstill before everything ended: see "
            "'complete' in runs.parquet"
        )


def _show_report(report: Report, folder: Path) -> None:
    """The table of a figure; without columns that say nothing."""
    console = Console(emoji=False)
    console.print(
        f"[bold]{report.figure.heading}[/bold]: {report.figure.title}; scale {report.scale}, "
        f"{report.seeds} seeds, {report.done} of {report.runs} runs"
    )
    hidden = {"seeds", "place in the paper"}
    if report.seeds == 1:
        hidden.add("seeds from .. to")
    shown = [i for i, name in enumerate(HEADINGS) if name not in hidden]
    cells = report.cells()
    shown = [i for i in shown if any(row[i] not in ("", "-") for row in cells)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for i in shown:
        table.add_column(HEADINGS[i], no_wrap=True, justify="left" if i < 3 else "right")
    for row in cells:
        table.add_row(*(row[i] for i in shown))
    console.print(table)
    _show_files(report, folder, console)


def _show_files(report: Report, folder: Path, console: Console) -> None:
    name = report.figure.name
    drawn = (folder / f"{name}.png").is_file()
    rest = f", {name}.png" if drawn else "; plots need: pip install 'ringstep-ns3[plot]'"
    console.print(f"in {folder}: {name}.json, {name}.md{rest}", markup=False)


def _show_study(report: StudyReport, folder: Path) -> None:
    console = (
        Console(emoji=False) if sys.stdout.isatty() else Console(emoji=False, width=_PIPE_WIDTH)
    )
    console.print(f"[bold]{report.study.heading}[/bold]: {report.study.title}")
    console.print(report.about(), markup=False, soft_wrap=True)
    rows = report.table_cells()
    # A group's name stands once.
    shown = [("" if i and rows[i - 1][0] == row[0] else row[0], *row[1:]) for i, row in
             enumerate(rows)]  # fmt: skip
    for headings, cells, left in (
        (report.table_headings(), shown, 2),
        (VERDICT_HEADINGS, report.verdict_cells(), 1),
    ):
        table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for i, heading in enumerate(headings):
            table.add_column(heading, justify="left" if i < left else "right", overflow="fold")
        for row in cells:
            table.add_row(*row)
        console.print(table)
    _show_files(report, folder, console)


def _show_studies(studies: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(studies))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("study", "what", "groups", "variants", "seeds", "runs", "scales"):
        table.add_column(name, justify="left" if name in ("study", "what", "scales") else "right")
    for each in studies:
        table.add_row(
            each["name"],
            each["title"],
            str(each["groups"]),
            str(len(each["variants"])),
            str(each["seeds"]),
            str(each["runs"]),
            ", ".join(each["scales"]),
        )
    Console(emoji=False).print(table)


class _Reporter:
    """A progress bar on a terminal, a line now and then elsewhere; always on stderr."""

    def __init__(self, title: str, quiet: bool, columns: Sequence[Any]) -> None:
        self._title = title
        self._quiet = quiet
        self._started = self._last = time.monotonic()
        self._bar: Progress | None = None
        if not quiet and sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                *columns,
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(emoji=False, stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(title, total=1.0)

    def __enter__(self) -> Any:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _report(self, done: float, total: float, fraction: float, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
            return
        now = time.monotonic()
        if self._quiet or now - self._last < _LINE_EVERY_S:
            return
        self._last = now
        elapsed = now - self._started
        left = (
            f"{elapsed * (1 - fraction) / fraction:.0f} s left" if fraction > 0 else "time unknown"
        )
        print(f"{self._title}: {text}, {elapsed:.0f} s, {left}", file=sys.stderr, flush=True)


class _RunProgress(_Reporter):
    def __init__(self, title: str, quiet: bool) -> None:
        super().__init__(title, quiet, [TaskProgressColumn()])

    def update(self, progress: simulate.Progress) -> None:
        self._report(
            progress.fraction,
            1.0,
            progress.fraction,
            f"{progress.fraction:.0%}, {progress.sim_time_ns / 1e6:.1f} ms simulated",
        )


class _SweepProgressBar(_Reporter):
    def __init__(self, title: str, quiet: bool) -> None:
        super().__init__(title, quiet, [MofNCompleteColumn()])

    def update(self, progress: SweepProgress) -> None:
        fresh = progress.total - progress.reused
        fraction = (progress.done - progress.reused) / fresh if fresh else 1.0
        self._report(
            progress.done, progress.total, fraction, f"{progress.done} of {progress.total} runs"
        )


Command = Callable[..., None]


def main() -> None:
    """Run the command on its own; ctrl-C ends it with status 130 and without a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise SystemExit(INTERRUPTED) from None
