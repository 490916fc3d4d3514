"""Commands for jobs: ``ringstep job ...``."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Annotated

import typer
from rich.text import Text

from ringstep.controller.advice import job_recommend
from ringstep.controller.cli_plan import job_plan, job_rebalance
from ringstep.controller.client import ControllerClient, marker_overrides
from ringstep.controller.completion import JobName, complete_job
from ringstep.controller.jobenv import EnvFormat, environment_text, job_environment
from ringstep.controller.options import (
    WHOLE_NUMBERS,
    AlphaOption,
    Connection,
    GateOption,
    KOption,
    PacketsOption,
    SampleOption,
    TauOption,
    WarmupOption,
    WindowOption,
    connected,
    gate_option,
    lease_option,
    seconds_option,
    tau_option,
    with_spec,
)
from ringstep.controller.render import (
    counter_table,
    event_dict,
    event_lines,
    job_dict,
    job_notes,
    job_table,
    marking_line,
    parameter_table,
    path_table,
    seconds_text,
    state_dict,
    state_notes,
    state_table,
)
from ringstep.controller.renewal import keep_renewing
from ringstep.controller.talk import BAD_INPUT, ask, fail, job_ref, show, show_line, waiting
from ringstep.controller.v1 import jobs_pb2

job_app = typer.Typer(
    help="Training jobs: recommend, plan, register, watch, renew, release.", no_args_is_help=True
)
job_app.command("recommend")(job_recommend)
job_app.command("plan")(job_plan)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
AsLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Generation = Annotated[
    int,
    typer.Option(
        "--generation",
        min=0,
        max=255,
        help="Only if the job has this generation, so that no later job of its name is meant.",
    ),
]
_LEAST_EVERY_S = 1.0
_LEAST_STATE_S = 0.1


@job_app.command("register")
@connected
@with_spec
def job_register(
    name: Annotated[str, typer.Option("--name", help="Unique among live jobs.")],
    spec: jobs_pb2.JobSpec,
    connection: Connection,
    rebalance: Annotated[
        bool,
        typer.Option("--rebalance", help="Plan all live jobs anew for this one; else none moves."),
    ] = False,
    request_id: Annotated[
        str | None,
        typer.Option(
            "--request-id",
            help="Makes a repeated command harmless. Default: one of its own for each command.",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when all its switches are in sync.")
    ] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="For --wait, seconds.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Register a job: it gets a Job_ID, and the switches of its paths get its rules.

    Example: ringstep job register --name resnet --ring h1,h2,h3,h4 --profile ringstep --wait
    """
    spec.name = name

    async def question(client: ControllerClient) -> object:
        job = await client.register(spec, request_id, rebalance=rebalance)
        if wait:
            way_out = f"'ringstep job release {name}' ends it"
            with waiting(f"job {name!r} stays registered as {job.id}; {way_out}"):
                job = await client.wait_programmed(job.id, timeout)
        show(as_json, job_dict(job), job_table([job]), marking_line(job), *job_notes([job]))
        return None

    ask(connection, question)


@job_app.command("renew")
@connected
def job_renew(
    job: JobName,
    connection: Connection,
    lease: Annotated[
        str | None,
        typer.Option("--lease", metavar="TIME", help="New lease, such as 10m; else as before."),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="TIME",
            help="Renew again and again, until the job is gone or SIGTERM comes; both are status "
            "0. A controller that does not answer is asked again.",
        ),
    ] = None,
    generation: Generation = 0,
    as_json: AsJson = False,
) -> None:
    """Start a job's lease anew.

    With --every and --json each renewal prints one line of JSON.

    Example: ringstep job renew resnet --every 60s
    """
    lease_s = lease_option(lease)
    ref = job_ref(job)
    if every is None:
        renewed = ask(connection, lambda client: client.renew(ref, lease_s, generation=generation))
        show(as_json, job_dict(renewed), _renewed_text(renewed))
        return
    every_s = seconds_option("--every", every, least=_LEAST_EVERY_S)

    async def question(client: ControllerClient) -> None:
        stop = asyncio.Event()
        # Whoever started this ends it with SIGTERM, which is no failure.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        alive = await keep_renewing(
            client,
            ref,
            lease_s,
            every_s,
            generation=generation,
            stop=stop,
            renewed=(lambda job: show_line(job_dict(job))) if as_json else lambda _: None,
            missed=lambda text: print(f"not renewed: {text}", file=sys.stderr, flush=True),
        )
        if not alive:
            print(f"job {job} is gone; no more to renew", file=sys.stderr)

    ask(connection, question)


def _renewed_text(job: jobs_pb2.Job) -> Text:
    if not job.lease_s:
        return Text(f"job {job.spec.name} ({job.id}) has no lease: it stays until it is released")
    left = seconds_text(job.lease_remaining_ms / 1000)
    return Text(f"job {job.spec.name} ({job.id}) is renewed: {left} left")


@job_app.command("update")
@connected
def job_update(
    job: JobName,
    connection: Connection,
    k: KOption = None,
    tau: TauOption = None,
    t_win_us: WindowOption = None,
    n_sample: SampleOption = None,
    n_warmup: WarmupOption = None,
    alpha_max: AlphaOption = None,
    q_gate: GateOption = None,
    packets_per_step: PacketsOption = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--paused", help="Whether its packets are marked.")
    ] = None,
    generation: Generation = 0,
    as_json: AsJson = False,
) -> None:
    """Change marker parameters of a live job; its state on the switches stays.

    Example: ringstep job update resnet --k 0.005 --enabled
    """
    try:
        changes = marker_overrides(
            k=k,
            tau=tau_option(tau),
            t_win_us=t_win_us,
            n_sample=n_sample,
            n_warmup=n_warmup,
            alpha_max=alpha_max,
            q_gate=gate_option(q_gate),
            packets_per_step=packets_per_step,
            enabled=enabled,
        )
    except ValueError as error:
        fail(f"{error}; {WHOLE_NUMBERS}", BAD_INPUT)
    if changes == jobs_pb2.MarkerOverrides():
        fail("nothing to change; give for example --k 0.005, or --paused", BAD_INPUT)
    changed = ask(
        connection, lambda client: client.update(job_ref(job), changes, generation=generation)
    )
    show(as_json, job_dict(changed), parameter_table(changed), *job_notes([changed]))


@job_app.command("list")
@connected
def job_list(
    connection: Connection,
    tenant: Annotated[str, typer.Option("--tenant", help="Only jobs of this tenant.")] = "",
    as_json: AsJson = False,
) -> None:
    """List live jobs.

    Example: ringstep job list --json
    """
    jobs = ask(connection, lambda client: client.jobs(tenant))
    show(as_json, [job_dict(job) for job in jobs], job_table(jobs), *job_notes(jobs))


@job_app.command("show")
@connected
def job_show(job: JobName, connection: Connection, as_json: AsJson = False) -> None:
    """Show a job and read its live state from the switches, through the data plane.

    Example: ringstep job show resnet
    """
    state = ask(connection, lambda client: client.state(job_ref(job)))
    show(
        as_json,
        {"job": job_dict(state.job), "state": state_dict(state)},
        parameter_table(state.job),
        *path_table(state.job),
        state_table(state),
        counter_table(state),
        *job_notes([state.job]),
        *state_notes(state),
    )


@job_app.command("watch")
@connected
def job_watch(
    connection: Connection,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|ID]...",
            help="Live jobs. Default: all, also those to come.",
            autocompletion=complete_job,
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", metavar="TIME", help="Read their state from the switches this often."
        ),
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", help="Only jobs of this tenant.")] = "",
    as_lines: AsLines = False,
) -> None:
    """Print live jobs, and then what happens to them, until ctrl-C.

    Example: ringstep job watch resnet --state 1s
    """
    interval_s = seconds_option("--state", state, least=_LEAST_STATE_S)

    async def question(client: ControllerClient) -> None:
        refs = [job_ref(name) for name in names or []]
        async for event in client.watch(
            refs, state_interval_ms=round(interval_s * 1000), tenant=tenant
        ):
            if as_lines:
                show_line(event_dict(event))
                continue
            for line in event_lines(event):
                print(line, flush=True)

    ask(connection, question)


# Here, so that `ringstep job --help` lists it beside the others that change something.
job_app.command("rebalance")(job_rebalance)


@job_app.command("release")
@connected
def job_release(
    job: JobName,
    connection: Connection,
    generation: Generation = 0,
    as_json: AsJson = False,
) -> None:
    """Release a job: its rules leave the switches, its Job_ID joins the queue for reuse.

    Example: ringstep job release resnet
    """
    released = ask(connection, lambda client: client.release(job_ref(job), generation=generation))
    if as_json:
        show(True, job_dict(released))
    else:
        print(f"released job {released.id} {released.spec.name}")


@job_app.command("env")
@connected
def job_env(
    job: JobName,
    connection: Connection,
    form: Annotated[
        EnvFormat,
        typer.Option("--format", help="shell: export lines; dotenv: NAME=value, unquoted."),
    ] = EnvFormat.SHELL,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
) -> None:
    """Print the environment variables that tell a job's processes their Job_ID and tags.

    Example: ringstep job env resnet --format dotenv
    """
    found = ask(connection, lambda client: client.get(job_ref(job)))
    variables = job_environment(found, connection.targets)
    print(environment_text(variables, EnvFormat.JSON if as_json else form), end="")
