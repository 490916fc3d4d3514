"""Commands of the controller: ``ringstep controller``, ``ringstep switch``, ``ringstep job``."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import grpc
import typer
from rich.console import Console, RenderableType
from rich.text import Text

from ringstep.controller.advice import job_recommend
from ringstep.controller.client import (
    DEFAULT_TARGET,
    Q_GATE_OFF,
    ControllerClient,
    ControllerError,
    NotProgrammedError,
    job_spec,
)
from ringstep.controller.defaults import DEFAULT_STORE, parse_listen
from ringstep.controller.jobs import Marking, MatchKind, QueuePair, Tag, Traffic, parse_tau
from ringstep.controller.render import (
    counter_table,
    job_dict,
    job_notes,
    job_table,
    marking_line,
    parameter_table,
    state_dict,
    state_notes,
    state_table,
    switch_dict,
    switch_notes,
    switch_table,
)
from ringstep.fabric.tomlfile import FileError
from ringstep.fabric.topology import parse_target
from ringstep.fabric.units import parse_delay_ns, parse_size_bytes
from ringstep.protocol.marker import PROFILES, ProgressMode, Scope
from ringstep.protocol.tag import JobCarrier

if TYPE_CHECKING:
    from ringstep.controller.config import ControllerConfig

_T = TypeVar("_T")
BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 130

controller_app = typer.Typer(
    help="Run the controller: Job_IDs, switch programming, live state.", no_args_is_help=True
)
switch_app = typer.Typer(
    help="Switches that the controller keeps programmed.", no_args_is_help=True
)
job_app = typer.Typer(
    help="Training jobs: recommend, register, watch, release.", no_args_is_help=True
)
app = typer.Typer(help="Controller, switches and jobs.", no_args_is_help=True)
app.add_typer(controller_app, name="controller")
app.add_typer(switch_app, name="switch")
app.add_typer(job_app, name="job")
job_app.command("recommend")(job_recommend)


def _fail(text: str, status: int) -> NoReturn:
    print(f"error: {text}", file=sys.stderr)
    raise typer.Exit(status)


def _checked_target(value: str) -> str:
    try:
        return parse_target(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _checked_listen(value: str | None) -> str | None:
    try:
        return None if value is None else parse_listen(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Controller = Annotated[
    str,
    typer.Option(
        "--controller",
        envvar="RINGSTEP_CONTROLLER",
        metavar="HOST:PORT",
        help="Where the controller listens.",
        callback=_checked_target,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
JobName = Annotated[str, typer.Argument(metavar="NAME|ID", help="Name or Job_ID of a live job.")]


def _ask(target: str, question: Callable[[ControllerClient], Awaitable[_T]]) -> _T:
    """Run one conversation with the controller; failures end the command with their status."""

    async def conversation() -> _T:
        async with ControllerClient(target) as client:
            return await question(client)

    try:
        return asyncio.run(conversation())
    except ControllerError as error:
        bad = error.code is grpc.StatusCode.INVALID_ARGUMENT
        _fail(error.text, BAD_INPUT if bad else FAILED)
    except NotProgrammedError as error:
        _fail(str(error), FAILED)
    except KeyboardInterrupt:
        _fail("interrupted", INTERRUPTED)


@contextmanager
def _waiting(stays: str) -> Iterator[None]:
    """Say on ctrl-C what was done before the wait, and stays done."""
    try:
        yield
    except asyncio.CancelledError:
        print(stays, file=sys.stderr)
        raise


def _print(as_json: bool, data: object, *shown: RenderableType) -> None:
    if as_json:
        print(json.dumps(data, indent=2))
        return
    console = Console()
    for item in shown:
        # A reason is one line, however long: terminals wrap it, and scripts find it.
        console.print(item, soft_wrap=isinstance(item, Text))


def _ref(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


# -- controller ------------------------------------------------------------------------------


@controller_app.command("serve")
def serve_command(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="controller.toml; the options below override it."),
    ] = None,
    topology: Annotated[
        Path | None, typer.Option("--topology", help="Topology file of the fabric.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--db", metavar="URL", help=f"Store. Default: {DEFAULT_STORE}"),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help=f"Where to serve; port 0 takes a free one. Default: {DEFAULT_TARGET}",
            callback=_checked_listen,
        ),
    ] = None,
    uec: Annotated[
        bool,
        typer.Option(
            "--uec", help="Load the program that finds the jobs of Ultra Ethernet packets too."
        ),
    ] = False,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            "--ready-file", help='Gets one JSON line {"listen": ..., "pid": ...} once it serves.'
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every step.")] = False,
) -> None:
    """Run the controller until ctrl-C.

    Example: ringstep controller serve --topology fabric.toml --db sqlite:///ringstep.db
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("ringstep").setLevel(logging.DEBUG if verbose else logging.INFO)
    # Only this command needs P4Runtime and the store; importing them here keeps the others quick.
    from ringstep.controller.pipeline import PipelineError
    from ringstep.controller.serve import ListenError, serve
    from ringstep.controller.store import StoreError

    try:
        asyncio.run(serve(_configuration(config, topology, store, listen, uec=uec), ready_file))
    except (FileError, PipelineError, StoreError, ListenError, ValueError) as error:
        _fail(str(error), BAD_INPUT)
    except OSError as error:
        _fail(f"{ready_file}: {error.strerror}; give a path that can be written", BAD_INPUT)


def _configuration(
    config: Path | None,
    topology: Path | None,
    store: str | None,
    listen: str | None,
    *,
    uec: bool,
) -> ControllerConfig:
    from ringstep.controller.config import ControllerConfig, PipelineConfig, load_config

    changes: dict[str, object] = {
        key: value
        for key, value in (("topology", topology), ("store", store), ("listen", listen))
        if value is not None
    }
    if config is not None:
        loaded = load_config(config).model_copy(update=changes)
        if not uec:
            return loaded
        if loaded.pipeline.p4info or loaded.pipeline.json_:
            _fail(f"--uec, but {config} names another program under [pipeline]", BAD_INPUT)
        pipeline = loaded.pipeline.model_copy(update={"uec": True})
        return loaded.model_copy(update={"pipeline": pipeline})
    if topology is None:
        _fail("no topology; give --topology fabric.toml, or --config controller.toml", BAD_INPUT)
    return ControllerConfig.model_validate({**changes, "pipeline": PipelineConfig(uec=uec)})


# -- switches --------------------------------------------------------------------------------


@switch_app.command("add")
def switch_add(
    name: Annotated[str, typer.Argument(help="Name of a switch of the topology.")],
    address: Annotated[
        str,
        typer.Argument(metavar="HOST:PORT", help="Its P4Runtime server.", callback=_checked_target),
    ],
    device_id: Annotated[
        int, typer.Option("--device-id", min=0, help="0: the topology's device id.")
    ] = 0,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is in sync.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="For --wait, seconds.")] = 30,
    controller: Controller = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Keep a switch of the topology programmed, or move it to another address.

    Example: ringstep switch add tor1 127.0.0.1:9559 --wait
    """

    async def question(client: ControllerClient) -> object:
        switch = await client.add_switch(name, address, device_id)
        if wait:
            with _waiting(f"switch {name} stays added; 'ringstep switch list' shows how far it is"):
                (switch,) = await client.wait_switches([name], timeout)
        _print(as_json, switch_dict(switch), switch_table([switch]), *switch_notes([switch]))
        return None

    _ask(controller, question)


@switch_app.command("list")
def switch_list(controller: Controller = DEFAULT_TARGET, as_json: AsJson = False) -> None:
    """List the switches of the topology and how far each is.

    Example: ringstep switch list --json
    """
    switches = _ask(controller, lambda client: client.switches())
    _print(
        as_json,
        [switch_dict(switch) for switch in switches],
        switch_table(switches),
        *switch_notes(switches),
    )


@switch_app.command("remove")
def switch_remove(
    name: Annotated[str, typer.Argument(help="Name of a switch of the topology.")],
    controller: Controller = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Stop to keep a switch programmed; what it holds stays.

    Example: ringstep switch remove tor1
    """
    _ask(controller, lambda client: client.remove_switch(name))
    if as_json:
        _print(True, {"name": name})


# -- jobs ------------------------------------------------------------------------------------


def _queue_pair(text: str) -> QueuePair:
    parts = text.split(":")
    try:
        src, dst, qp = parts
        return QueuePair(src, dst, int(qp, 0))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not SRC:DST:QP; write for example h1:h2:17", param_hint="--qp"
        ) from None


def _tag(text: str) -> Tag:
    carrier, _, value = text.partition(":")
    try:
        chosen = JobCarrier(carrier)
        if chosen is JobCarrier.RULE:
            raise ValueError
        return Tag(chosen, int(value, 0))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not CARRIER:VALUE; write sport:3, resv6a:3 or dscp:3", param_hint="--tag"
        ) from None


def _uec_job_id(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a number; write for example 0xA00007", param_hint="--uec-job-id"
        ) from None


def _tau(text: str) -> Fraction:
    try:
        return parse_tau(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--tau") from None


def _gate(text: str) -> int:
    if text == "off":
        return Q_GATE_OFF
    if text.isdecimal():
        return int(text)
    raise typer.BadParameter(
        f"{text!r} is not a queue depth; write a number of packets, or off", param_hint="--q-gate"
    )


def _choice(marking: Marking | None, enabled: bool | None) -> Marking | None:
    if enabled is None:
        # What is the default is left unsaid, so that a request stays the same one if told again.
        return None if marking is Marking.AUTO else marking
    asked = Marking.ON if enabled else Marking.OFF
    if marking not in {None, asked}:
        raise typer.BadParameter(
            f"{marking}, but --{'enabled' if enabled else 'paused'} says {asked}; give one of them",
            param_hint="--marking",
        )
    return asked


def _traffic(
    sender: str, preset: str, chunk: str | None, rtt: str | None, mtu: int | None, *, tenants: bool
) -> Traffic | None:
    found = Traffic(
        sender=sender,
        preset=preset,
        step_bytes=_parsed("--chunk", parse_size_bytes, chunk),
        rtt_ns=_parsed("--rtt", parse_delay_ns, rtt),
        mtu=mtu or 0,
        tenants=tenants,
    )
    return None if found == Traffic() else found


def _parsed(option: str, parse: Callable[[object], int], text: str | None) -> int:
    if text is None:
        return 0
    try:
        return parse(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


@job_app.command("register")
def job_register(
    name: Annotated[str, typer.Option("--name", help="Unique among live jobs.")],
    ring: Annotated[
        list[str] | None,
        typer.Option("--ring", metavar="H1,H2,...", help="Hosts in ring order; once per channel."),
    ] = None,
    qp: Annotated[
        list[str] | None,
        typer.Option("--qp", metavar="SRC:DST:QP", help="A connection and its destination QP."),
    ] = None,
    match: Annotated[
        MatchKind | None,
        typer.Option(
            "--match",
            help="Default: tag if --tag, uec if --uec-job-id, dst_qp if there are --qp, else pair.",
        ),
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option("--tag", metavar="CARRIER:VALUE", help="sport:N, resv6a:N or dscp:N."),
    ] = None,
    uec_job_id: Annotated[
        list[str] | None,
        typer.Option(
            "--uec-job-id",
            metavar="N",
            help="JobID of the job's Ultra Ethernet packets, 24 bits; may be given several times.",
        ),
    ] = None,
    profile: Annotated[
        str, typer.Option("--profile", help=f"One of {', '.join(PROFILES)}.")
    ] = "ringstep",
    k: Annotated[float | None, typer.Option("--k", help="k of P = k alpha psn / psn_rec.")] = None,
    tau: Annotated[
        str | None, typer.Option("--tau", metavar="A/B", help="Outpacing share that raises alpha.")
    ] = None,
    t_win_us: Annotated[int | None, typer.Option("--t-win-us", help="Window, µs.")] = None,
    n_sample: Annotated[int | None, typer.Option("--n-sample", help="Packets.")] = None,
    n_warmup: Annotated[int | None, typer.Option("--n-warmup", help="Packets.")] = None,
    alpha_max: Annotated[int | None, typer.Option("--alpha-max", help="1..255.")] = None,
    q_gate: Annotated[
        str | None, typer.Option("--q-gate", metavar="N|off", help="Mark only above N packets.")
    ] = None,
    step_bits: Annotated[int | None, typer.Option("--step-bits", help="S of the tag.")] = None,
    job_bits: Annotated[int | None, typer.Option("--job-bits", help="J of the tag.")] = None,
    mode: Annotated[
        ProgressMode | None, typer.Option("--mode", help="How PSN becomes progress.")
    ] = None,
    packets_per_step: Annotated[
        int | None, typer.Option("--packets-per-step", help="0: every LAST ends a step.")
    ] = None,
    scope: Annotated[
        Scope | None, typer.Option("--scope", help="State per switch or per port.")
    ] = None,
    marking: Annotated[
        Marking | None,
        typer.Option(
            "--marking",
            help="Whether to mark from the start. Default: auto, what 'ringstep job recommend' "
            "knows of this fabric and traffic; where that is too little, off. The ring is "
            "followed in any case.",
        ),
    ] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--paused", help="Same as --marking on and off.")
    ] = None,
    sender: Annotated[
        str,
        typer.Option(
            "--sender",
            help="For auto: persistent (NCCL; makes --mode anchored) or qp_per_step.",
        ),
    ] = "",
    preset: Annotated[
        str, typer.Option("--preset", help="For auto: DCQCN parameters, such as connectx.")
    ] = "",
    chunk: Annotated[
        str | None,
        typer.Option(
            "--chunk", metavar="SIZE", help="For auto: bytes that a rank sends per ring step."
        ),
    ] = None,
    rtt: Annotated[
        str | None,
        typer.Option(
            "--rtt", metavar="TIME", help="For auto: empty RTT; by default the topology's delays."
        ),
    ] = None,
    mtu: Annotated[
        int | None, typer.Option("--mtu", help="For auto: payload of a packet, bytes. [4096]")
    ] = None,
    tenants: Annotated[
        bool, typer.Option("--tenants", help="For auto: others use the fabric too.")
    ] = False,
    request_id: Annotated[
        str, typer.Option("--request-id", help="Makes a repeated call harmless.")
    ] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when all its switches are in sync.")
    ] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="For --wait, seconds.")] = 30,
    controller: Controller = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Register a job: it gets a Job_ID, and the switches of its paths get its rules.

    Example: ringstep job register --name resnet --ring h1,h2,h3,h4 --profile ringstep --wait
    """
    try:
        spec = job_spec(
            name,
            rings=[[host.strip() for host in hosts.split(",")] for hosts in ring or []],
            queue_pairs=[_queue_pair(text) for text in qp or []],
            match=match,
            tag=None if tag is None else _tag(tag),
            uec_job_ids=[_uec_job_id(text) for text in uec_job_id or []],
            profile=profile,
            k=k,
            tau=None if tau is None else _tau(tau),
            t_win_us=t_win_us,
            n_sample=n_sample,
            n_warmup=n_warmup,
            alpha_max=alpha_max,
            q_gate=None if q_gate is None else _gate(q_gate),
            step_bits=step_bits,
            job_bits=job_bits,
            mode=mode,
            packets_per_step=packets_per_step,
            marking=_choice(marking, enabled),
            traffic=_traffic(sender, preset, chunk, rtt, mtu, tenants=tenants),
            scope=scope,
        )
    except ValueError as error:
        _fail(f"{error}; numbers are whole, not negative, and below 2**32", BAD_INPUT)

    async def question(client: ControllerClient) -> object:
        job = await client.register(spec, request_id)
        if wait:
            way_out = f"'ringstep job release {name}' ends it"
            with _waiting(f"job {name!r} stays registered as {job.id}; {way_out}"):
                job = await client.wait_programmed(job.id, timeout)
        _print(as_json, job_dict(job), job_table([job]), marking_line(job), *job_notes([job]))
        return None

    _ask(controller, question)


@job_app.command("list")
def job_list(controller: Controller = DEFAULT_TARGET, as_json: AsJson = False) -> None:
    """List live jobs.

    Example: ringstep job list --json
    """
    jobs = _ask(controller, lambda client: client.jobs())
    _print(as_json, [job_dict(job) for job in jobs], job_table(jobs), *job_notes(jobs))


@job_app.command("show")
def job_show(
    job: JobName, controller: Controller = DEFAULT_TARGET, as_json: AsJson = False
) -> None:
    """Show a job and read its live state from the switches, through the data plane.

    Example: ringstep job show resnet
    """
    state = _ask(controller, lambda client: client.state(_ref(job)))
    _print(
        as_json,
        {"job": job_dict(state.job), "state": state_dict(state)},
        parameter_table(state.job),
        state_table(state),
        counter_table(state),
        *job_notes([state.job]),
        *state_notes(state),
    )


@job_app.command("release")
def job_release(
    job: JobName, controller: Controller = DEFAULT_TARGET, as_json: AsJson = False
) -> None:
    """Release a job: its rules leave the switches, its Job_ID joins the queue for reuse.

    Example: ringstep job release resnet
    """
    released = _ask(controller, lambda client: client.release(_ref(job)))
    if as_json:
        _print(True, job_dict(released))
    else:
        print(f"released job {released.id} {released.spec.name}")
