"""Commands about paths: ``ringstep job plan`` and ``ringstep job rebalance``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ringstep.controller.completion import complete_job
from ringstep.controller.options import Connection, build_spec, connected, with_spec
from ringstep.controller.planview import PlotError, plan_dict, plan_view, plot_plan
from ringstep.controller.talk import BAD_INPUT, ask, fail, job_ref, show
from ringstep.controller.v1 import jobs_pb2

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
_PLOTS = (".svg", ".png", ".pdf")


@connected
@with_spec
def job_plan(
    spec: jobs_pb2.JobSpec,
    connection: Connection,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|ID]",
            help="A live job. Else: options that describe one, as for 'job register'.",
            autocompletion=complete_job,
        ),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of a job to come. Default: plan.")] = "",
    rebalance: Annotated[
        bool, typer.Option("--rebalance", help="As if all live jobs were planned anew.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw it too: .svg, .png or .pdf."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain how a job's edges are led through the fabric; nothing is changed.

    Shows edges per link before and after, the least that any plan can reach, and what that gains
    over ECMP.

    Example: ringstep job plan --ring h1,h2,h3,h4 --plot plan.svg
    """
    if job is not None and (name or spec != build_spec()):
        fail(f"both the live job {job!r} and options that describe another; give one", BAD_INPUT)
    if job is None and not (spec.rings or spec.queue_pairs):
        fail("no job; give the name of a live one, or --ring h1,h2,h3", BAD_INPUT)
    if plot is not None and plot.suffix not in _PLOTS:
        fail(f"--plot {plot}: name a file that ends in {', '.join(_PLOTS)}", BAD_INPUT)
    spec.name = name or "plan"
    what = spec if job is None else job_ref(job)
    plan = ask(connection, lambda client: client.plan(what, rebalance=rebalance))
    title = spec.name if job is None else job
    if plot is not None:
        try:
            plot_plan(plan, title, plot)
        except PlotError as error:
            fail(str(error), BAD_INPUT)
    show(as_json, plan_dict(plan), *plan_view(plan, title))


@connected
def job_rebalance(
    connection: Connection,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would move, and move nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan the paths of all live jobs anew, and move what that moves at step boundaries.

    Example: ringstep job rebalance --dry-run
    """
    reply = ask(connection, lambda client: client.rebalance(dry_run=dry_run))
    moved = list(reply.moved_jobs)
    data = {
        "dry_run": dry_run,
        "moved_jobs": moved,
        "max_load_before": reply.max_load_before,
        "max_load_after": reply.max_load_after,
    }
    verb = "would move" if dry_run else "move"
    text = (
        f"jobs that {verb}: {', '.join(moved) or 'none'}; load of the fullest link "
        f"{reply.max_load_before:.4g} -> {reply.max_load_after:.4g}"
    )
    show(as_json, data, Text(text))
