"""``ringstep run``: a training command with the fabric told of it and NCCL's tuner in place."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Annotated, Final

import typer

from ringstep.cli.launcher.environment import default_folder
from ringstep.cli.launcher.place import Place, find_place
from ringstep.cli.launcher.plan import (
    COORDINATOR_PORT,
    Part,
    Plan,
    Registration,
    Tuner,
    check_policy,
    check_spec,
    checked_name,
    find_program,
    parse_hex,
    parse_options,
    parse_required,
    read_rings,
    request_id,
    run_token,
    shm_token,
    split_hosts,
)
from ringstep.cli.launcher.preview import preview, show
from ringstep.cli.launcher.say import LaunchError, Say
from ringstep.cli.launcher.session import MakeCoordinator, Session, make_coordinator
from ringstep.cli.launcher.signals import Signals
from ringstep.controller.client import DEFAULT_TARGET
from ringstep.controller.options import Connection, connected, with_spec
from ringstep.controller.v1 import jobs_pb2
from ringstep.fabric.topology import parse_target

CONTEXT_SETTINGS: Final = {"allow_interspersed_args": False}
"""The first word that is no option starts the command; its options are its own."""
_DEFAULT_LEASE_S: Final = 60


@connected
@with_spec
def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND", help="What to run, such as torchrun … train.py."),
    ] = None,
    job: Annotated[str, typer.Option("--job", envvar="RINGSTEP_JOB", help="The job's name.")] = "",
    hosts: Annotated[
        str,
        typer.Option(
            "--hosts",
            metavar="H1,H2,...",
            help="Hosts of the job's one ring, in the order of the nodes' ranks. Several rings: "
            "--ring H1,H2,... each, or --ring FILE with one ring in a line.",
        ),
    ] = "",
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=1,
            help="Nodes of the job. Default: torchrun's --nnodes, Slurm's or MPI's, else the "
            "number of hosts.",
        ),
    ] = None,
    node_rank: Annotated[
        int | None,
        typer.Option(
            "--node-rank",
            min=0,
            help="Which node this is; node 0 registers the job. Default: torchrun's --node-rank, "
            "SLURM_NODEID, MPI's rank, or this machine's place among the hosts.",
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            envvar="RINGSTEP_POLICY",
            metavar="POLICY",
            help="Who decides for NCCL: nccl (itself), fixed:FILE, autoccl, dynamic, or "
            "module:factory.",
        ),
    ] = "nccl",
    coordinator: Annotated[
        str,
        typer.Option(
            "--coordinator",
            envvar="RINGSTEP_COORDINATOR",
            metavar="HOST:PORT",
            help="Where the coordinators of several nodes meet: an address of node 0. Default: "
            f"torchrun's master or rendezvous host, MASTER_ADDR, or the first host; port "
            f"{COORDINATOR_PORT}.",
        ),
    ] = "",
    coordinator_options: Annotated[
        str,
        typer.Option(
            "--coordinator-options",
            metavar="TEXT",
            help="More options of `ringstep tuner coordinator`, such as '--fences --warm-up 4'.",
        ),
    ] = "",
    static_digest: Annotated[
        str,
        typer.Option(
            "--static-digest",
            metavar="HEX",
            help="Your word that every node has the table of fixed:FILE with this digest, as "
            "--dry-run shows it. One node needs none.",
        ),
    ] = "",
    shm: Annotated[
        Path | None,
        typer.Option(
            "--shm",
            envvar="RINGSTEP_SHM_DIR",
            metavar="DIR",
            help="Folder of the shared-memory file. Default: /dev/shm/ringstep-UID.",
        ),
    ] = None,
    token: Annotated[
        str,
        typer.Option(
            "--run-token",
            envvar="RINGSTEP_RUN_TOKEN",
            metavar="TEXT",
            help="Names this run: launchers with the same job and token are one. Default: Slurm's "
            "job, step and restart, else one of its own.",
        ),
    ] = "",
    no_controller: Annotated[
        bool, typer.Option("--no-controller", help="Leave the fabric alone.")
    ] = False,
    no_tuner: Annotated[
        bool, typer.Option("--no-tuner", help="Leave NCCL alone: no plugin, no coordinator.")
    ] = False,
    require: Annotated[
        str,
        typer.Option(
            "--require",
            metavar="PARTS",
            help="controller, tuner, or both with a comma: start nothing if that is missing.",
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show environment and steps, and do nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="--dry-run on stdout, and the summary on stderr, as JSON."),
    ] = False,
    *,
    connection: Connection,
    spec: jobs_pb2.JobSpec,
) -> None:
    """Run a training command, with the fabric told of it and NCCL's tuner in place.

    Node 0 registers the job, renews its lease while the command runs, and
    releases it. Every node starts a coordinator and tells NCCL of the plugin.
    The command keeps its terminal and standard streams; signals are passed on,
    and its exit status is this command's. Whatever is missing is said once, and
    training runs without it, unless --require names it.

    Example: ringstep run --job resnet --hosts h1,h2 -- torchrun --nnodes 2 --node-rank 0 train.py
    """
    say = Say(quiet=quiet)
    try:
        with Signals() as signals:
            plan = make_plan(
                spec, connection, command or [], job=job, hosts=hosts, nodes=nodes,
                node_rank=node_rank, policy=policy, coordinator=coordinator,
                coordinator_options=coordinator_options, static_digest=static_digest, shm=shm,
                token=token, controller=not no_controller, tuner=not no_tuner, require=require,
            )  # fmt: skip
            if dry_run:
                shown = preview(plan, os.environ)
                if as_json:
                    print(json.dumps(shown, indent=2))
                else:
                    show(shown)
                return
            status = start(plan, say, signals, quiet=quiet, as_json=as_json)
    except LaunchError as error:
        say.line(f"error: {error}")
        status = error.status
    raise typer.Exit(status)


def start(
    plan: Plan,
    say: Say,
    signals: Signals,
    *,
    quiet: bool = False,
    as_json: bool = False,
    coordinator: MakeCoordinator = make_coordinator,
) -> int:
    """Carry out a plan and return the exit status.

    Raises:
        LaunchError: the command was not started.
    """
    session = Session(plan, os.environ, say, signals, coordinator)
    status = asyncio.run(session.run())
    if not quiet:
        summary = session.summary
        say.line(json.dumps(summary.data()) if as_json else summary.text())
    return status


def make_plan(
    spec: jobs_pb2.JobSpec,
    connection: Connection,
    command: list[str],
    *,
    job: str,
    hosts: str,
    nodes: int | None,
    node_rank: int | None,
    policy: str,
    coordinator: str,
    coordinator_options: str,
    static_digest: str,
    shm: Path | None,
    token: str,
    controller: bool,
    tuner: bool,
    require: str,
) -> Plan:
    """Return the checked plan of the options.

    Raises:
        LaunchError: bad input; the text says what would be right.
    """
    if not job:
        raise LaunchError("--job NAME is missing (or RINGSTEP_JOB)")
    checked_name(job, at_controller=controller)
    required = parse_required(require)
    for part, wanted in ((Part.CONTROLLER, controller), (Part.TUNER, tuner)):
        if part in required and not wanted:
            raise LaunchError(f"--require {part}, but --no-{part} leaves it out; give one of them")
    digest = check_policy(policy) if tuner else 0
    spec.name = job
    spec.lease_s = spec.lease_s or _DEFAULT_LEASE_S
    _fill_rings(spec, hosts)
    ring = list(spec.rings[0].hosts) if spec.rings else []
    place = find_place(nodes, node_rank, ring, command, os.environ)
    token = run_token(token, os.environ)
    meeting = _meeting(coordinator, place)
    program = find_program(command, os.environ)
    return Plan(
        job=job,
        place=place,
        program=program,
        command=tuple(command),
        registration=_registration(spec, connection, place, token, required)
        if controller
        else None,
        tuner=Tuner(
            policy=policy,
            folder=(shm or default_folder()).absolute(),
            token=shm_token(job, token, meeting if place.nodes > 1 else "", os.environ),
            meeting=meeting,
            digest=digest,
            vouched=_vouched(digest, static_digest, place, policy),
            coordinates=place.local_rank == 0,
            options=parse_options(coordinator_options),
        )
        if tuner
        else None,
        required=required,
    )


def _fill_rings(spec: jobs_pb2.JobSpec, hosts: str) -> None:
    """Put --hosts in, and the rings of files, which the options take for rings of one host."""
    if hosts:
        if spec.rings:
            raise LaunchError("--hosts and --ring: give one of them")
        spec.rings.add(hosts=split_hosts("--hosts", hosts))
        return
    filled: list[jobs_pb2.Ring] = []
    for ring in spec.rings:
        for found in read_rings([",".join(ring.hosts)]):
            filled.append(jobs_pb2.Ring(hosts=found, channels=ring.channels, rail=ring.rail))
    del spec.rings[:]
    spec.rings.extend(filled)


def _registration(
    spec: jobs_pb2.JobSpec,
    connection: Connection,
    place: Place,
    token: str,
    required: frozenset[Part],
) -> Registration | None:
    described = bool(spec.rings or spec.queue_pairs)
    if described:
        check_spec(spec)
    elif place.nodes == 1 and not _asked_for(connection) and Part.CONTROLLER not in required:
        return None  # One node has no ring in the fabric.
    return Registration(
        connection=connection,
        name=spec.name,
        request_id=request_id(spec.name, token),
        lease_s=spec.lease_s,
        spec=spec if described and place.registers else None,
        others_register=not place.registers,
    )


def _asked_for(connection: Connection) -> bool:
    return connection.targets != (DEFAULT_TARGET,) or "RINGSTEP_CONTROLLER" in os.environ


def _meeting(given: str, place: Place) -> str:
    """Return HOST:PORT of the coordinators of several nodes; empty for one, or if nobody knows."""
    if given:
        try:
            return parse_target(given)
        except ValueError as error:
            raise LaunchError(f"--coordinator {given!r}: {error}") from None
    if place.nodes == 1 or not place.master:
        return ""
    host = f"[{place.master}]" if ":" in place.master.strip("[]") else place.master
    return f"{host}:{COORDINATOR_PORT}"


def _vouched(digest: int, given: str, place: Place, policy: str) -> int:
    """Return the digest of the static table that is known to be the same on all nodes, else 0."""
    if not given:
        return digest if place.nodes == 1 else 0
    wanted = parse_hex("--static-digest", given)
    if not policy.startswith("fixed:"):
        raise LaunchError(f"--static-digest goes with --policy fixed:FILE, not {policy!r}")
    if wanted != digest:
        raise LaunchError(
            f"--static-digest {wanted:x}: the table of {policy.partition(':')[2]} has {digest:x} "
            "on this node; give every node the same file"
        )
    return wanted
