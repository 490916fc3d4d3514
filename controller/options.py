"""Options that commands share: where the controller is, and what a job looks like.

A command takes one parameter for a whole group of options, and :func:`expands` replaces it by the
options themselves, so that each group is written down once.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from ringstep.controller.client import DEFAULT_TARGET, Q_GATE_OFF, job_spec, parse_targets
from ringstep.controller.credentials import ClientCredentials, load_credentials
from ringstep.controller.jobs import (
    Followers,
    Marking,
    MatchKind,
    PathsChoice,
    QueuePair,
    Tag,
    Traffic,
    parse_tau,
)
from ringstep.controller.talk import BAD_INPUT, fail
from ringstep.controller.v1 import jobs_pb2
from ringstep.fabric.units import parse_delay_ns, parse_size_bytes
from ringstep.protocol.marker import PROFILES, ProgressMode, Scope
from ringstep.protocol.tag import JobCarrier

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|min|m|s)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


# What both `job register` and `job update` take of the marker.
KOption = Annotated[float | None, typer.Option("--k", help="k of P = k alpha psn / psn_rec.")]
TauOption = Annotated[
    str | None, typer.Option("--tau", metavar="A/B", help="Outpacing share that raises alpha.")
]
WindowOption = Annotated[int | None, typer.Option("--t-win-us", help="Length of a window, µs.")]
SampleOption = Annotated[
    int | None,
    typer.Option("--n-sample", help="A window of no more packets than this is not judged."),
]
WarmupOption = Annotated[
    int | None,
    typer.Option("--n-warmup", help="Mark only once the laggard has sent more packets."),
]
AlphaOption = Annotated[int | None, typer.Option("--alpha-max", help="Highest alpha, 1..255.")]
GateOption = Annotated[
    str | None, typer.Option("--q-gate", metavar="N|off", help="Mark only above N packets.")
]
PacketsOption = Annotated[
    int | None, typer.Option("--packets-per-step", help="Of one QP; 0: every LAST ends a step.")
]


def expands(name: str, build: Callable[..., Any]) -> Callable[[_Command], _Command]:
    """Replace a command's parameter ``name`` by the parameters of ``build``, which makes it."""
    added = inspect.signature(build, eval_str=True).parameters.values()

    def decorate(command: _Command) -> _Command:
        signature = inspect.signature(command, eval_str=True)
        group = [parameter.name for parameter in added]

        @functools.wraps(command)
        def expanded(**values: Any) -> Any:
            values[name] = build(**{key: values.pop(key) for key in group})
            return command(**values)

        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            parameters += added if parameter.name == name else [parameter]
        # Typer reads options from the signature; all are given by keyword, so order is free.
        parameters = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in parameters]
        expanded.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=parameters
        )
        expanded.__annotations__ = {item.name: item.annotation for item in parameters}
        return cast("_Command", expanded)

    return decorate


def parse_seconds(text: str) -> float:
    """Return seconds from ``90s``, ``10m``, ``1h30m``, ``500ms`` or a number of seconds.

    Raises:
        ValueError: not a duration.
    """
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return float(text)
    if not text or _DURATION.sub("", text):
        raise ValueError(
            f"{text!r} is not a duration; write a number with s, m, h or d, such as 90s or 1h30m"
        )
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


def seconds_option(option: str, text: str | None, *, least: float = 0.0) -> float:
    """Return the seconds of an option; 0 where it was not given.

    Raises:
        typer.BadParameter: not a duration, or below ``least`` seconds.
    """
    if text is None:
        return 0.0
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    if seconds < least:
        raise typer.BadParameter(f"{text}: use at least {least:g} s", param_hint=option)
    return seconds


def lease_option(text: str | None) -> int:
    """Return a lease in whole seconds; 0 where none was asked for."""
    seconds = seconds_option("--lease", text)
    if text is not None and (seconds < 1 or seconds != int(seconds)):
        raise typer.BadParameter(
            f"{text}: a lease has whole seconds, at least one, such as 10m", param_hint="--lease"
        )
    return int(seconds)


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the controllers are, and who asks."""

    targets: tuple[str, ...]
    credentials: ClientCredentials


def _checked_targets(values: list[str]) -> list[str]:
    try:
        return list(parse_targets(",".join(values)))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def build_connection(
    controller: Annotated[
        list[str],
        typer.Option(
            "--controller",
            envvar="RINGSTEP_CONTROLLER",
            metavar="HOST:PORT",
            help="Where the controller listens; several: give it again, or HOST:PORT,HOST:PORT.",
            callback=_checked_targets,
        ),
    ] = [DEFAULT_TARGET],  # noqa: B006 - Typer copies it
    tls: Annotated[
        bool,
        typer.Option("--tls", envvar="RINGSTEP_TLS", help="TLS, with the system's authorities."),
    ] = False,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            envvar="RINGSTEP_CA",
            help="PEM file of the authority to trust; switches TLS on.",
        ),
    ] = None,
    cert: Annotated[
        Path | None,
        typer.Option("--cert", envvar="RINGSTEP_CERT", help="PEM file of our own certificate."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", envvar="RINGSTEP_KEY", help="PEM file of its key.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            envvar="RINGSTEP_TOKEN_FILE",
            help="File with our token; or the token itself in $RINGSTEP_TOKEN.",
        ),
    ] = None,
    server_name: Annotated[
        str,
        typer.Option(
            "--server-name",
            envvar="RINGSTEP_SERVER_NAME",
            help="Name in the controller's certificate, where it is not the host of its address.",
        ),
    ] = "",
) -> Connection:
    """Return where to connect to.

    Raises:
        typer.Exit: credentials that cannot be used; said on stderr.
    """
    try:
        credentials = load_credentials(ca, cert, key, token_file, server_name, os.environ, tls=tls)
    except (ValueError, OSError) as error:
        fail(str(error), BAD_INPUT)
    return Connection(tuple(controller), credentials)


connected = expands("connection", build_connection)
"""Gives a command with a parameter ``connection`` the options that say where the controller is."""


# -- a job -----------------------------------------------------------------------------------


def parse_queue_pair(text: str) -> QueuePair:
    """Return the connection of ``SRC:DST:QP``."""
    parts = text.split(":")
    try:
        src, dst, qp = parts
        return QueuePair(src, dst, int(qp, 0))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not SRC:DST:QP; write for example h1:h2:17", param_hint="--qp"
        ) from None


def parse_tag(text: str) -> Tag:
    """Return the tag of ``CARRIER:VALUE``."""
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


def tau_option(text: str | None) -> Fraction | None:
    """Return tau of ``A/B``; None where it was not given."""
    try:
        return None if text is None else parse_tau(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--tau") from None


def gate_option(text: str | None) -> int | None:
    """Return the queue gate in packets of ``N`` or ``off``; None where it was not given."""
    if text is None:
        return None
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


def build_spec(
    ring: Annotated[
        list[str] | None,
        typer.Option("--ring", metavar="H1,H2,...", help="Hosts in ring order; once per ring."),
    ] = None,
    channels: Annotated[
        list[int] | None,
        typer.Option(
            "--channels",
            metavar="N",
            min=1,
            help="Channels that go around a ring; once per ring, in their order. [1]",
        ),
    ] = None,
    rail: Annotated[
        list[str] | None,
        typer.Option(
            "--rail", metavar="NAME", help="Rail of a ring; once per ring, in their order."
        ),
    ] = None,
    qp: Annotated[
        list[str] | None,
        typer.Option("--qp", metavar="SRC:DST:QP", help="A connection; once for each."),
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
    paths: Annotated[
        PathsChoice,
        typer.Option(
            "--paths",
            help="planned: every edge between racks is pinned to a path; auto: where that helps.",
        ),
    ] = PathsChoice.AUTO,
    followers: Annotated[
        Followers,
        typer.Option("--followers", help="Which switches of its paths follow the job."),
    ] = Followers.EVERYWHERE,
    tenant: Annotated[
        str, typer.Option("--tenant", help="Who the job counts for. Default: by the token.")
    ] = "",
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease",
            metavar="TIME",
            help="Release the job unless it is renewed within this time, such as 10m. "
            "Default: what the controller gives.",
        ),
    ] = None,
    profile: Annotated[
        str, typer.Option("--profile", help=f"One of {', '.join(PROFILES)}.")
    ] = "ringstep",
    k: KOption = None,
    tau: TauOption = None,
    t_win_us: WindowOption = None,
    n_sample: SampleOption = None,
    n_warmup: WarmupOption = None,
    alpha_max: AlphaOption = None,
    q_gate: GateOption = None,
    step_bits: Annotated[int | None, typer.Option("--step-bits", help="S of the tag.")] = None,
    job_bits: Annotated[int | None, typer.Option("--job-bits", help="J of the tag.")] = None,
    mode: Annotated[
        ProgressMode | None, typer.Option("--mode", help="How PSN becomes progress.")
    ] = None,
    packets_per_step: PacketsOption = None,
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
) -> jobs_pb2.JobSpec:
    """Return the job that the options describe, without its name.

    Raises:
        typer.BadParameter: an option that makes no sense.
        typer.Exit: a number that does not fit; said on stderr.
    """
    rings = [[host.strip() for host in hosts.split(",")] for hosts in ring or []]
    for option, values in (("--channels", channels), ("--rail", rail)):
        if values and len(values) != len(rings):
            raise typer.BadParameter(
                f"given {len(values)} times for {len(rings)} rings; give it once per --ring, in "
                "their order",
                param_hint=option,
            )
    try:
        return job_spec(
            "",
            rings=rings,
            channels=channels or [],
            rails=rail or [],
            queue_pairs=[parse_queue_pair(text) for text in qp or []],
            match=match,
            tag=None if tag is None else parse_tag(tag),
            uec_job_ids=[_uec_job_id(text) for text in uec_job_id or []],
            profile=profile,
            k=k,
            tau=tau_option(tau),
            t_win_us=t_win_us,
            n_sample=n_sample,
            n_warmup=n_warmup,
            alpha_max=alpha_max,
            q_gate=gate_option(q_gate),
            step_bits=step_bits,
            job_bits=job_bits,
            mode=mode,
            packets_per_step=packets_per_step,
            marking=_choice(marking, enabled),
            traffic=_traffic(sender, preset, chunk, rtt, mtu, tenants=tenants),
            scope=scope,
            tenant=tenant,
            # What is the default is left unsaid, so that a repeated request stays the same one.
            paths=None if paths is PathsChoice.AUTO else paths,
            followers=None if followers is Followers.EVERYWHERE else followers,
            lease_s=lease_option(lease),
        )
    except ValueError as error:
        fail(f"{error}; {WHOLE_NUMBERS}", BAD_INPUT)


WHOLE_NUMBERS = "numbers are whole, not negative, and below 2**32"
with_spec = expands("spec", build_spec)
"""Gives a command with a parameter ``spec`` the options that describe a job, but for its name."""
