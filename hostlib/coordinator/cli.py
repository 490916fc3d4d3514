"""``ringstep tuner coordinator`` and what talks to it."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from ringstep.hostlib.cli_options import (
    JobOption,
    JsonOption,
    ShmOption,
    fail,
    path_of,
)
from ringstep.hostlib.coordinator.cli_tables import check_table, save_table
from ringstep.hostlib.coordinator.control import ControlError, ask, socket_path
from ringstep.hostlib.coordinator.files import Ending
from ringstep.hostlib.coordinator.files import die_with_parent as watch_parent
from ringstep.hostlib.coordinator.gpu import GpuSampler
from ringstep.hostlib.coordinator.links import LinkError, Links, Uplink
from ringstep.hostlib.coordinator.loop import Loop
from ringstep.hostlib.coordinator.mpi import MpiLinks, MpiUplink, node_name, world
from ringstep.hostlib.coordinator.policy import Options, PolicyError
from ringstep.hostlib.coordinator.service import Config, Coordinator
from ringstep.hostlib.coordinator.skeleton import Settings
from ringstep.hostlib.coordinator.tcp import TcpLinks, TcpUplink
from ringstep.hostlib.native.build import BuildError
from ringstep.hostlib.shm import ShmError

__all__ = ["register"]

SWITCH_S: Final = 0.0005
_TOKEN: Final = re.compile(r"(0x)?[0-9a-fA-F]{1,16}")


def _token() -> int:
    text = os.environ.get("RINGSTEP_SHM_TOKEN", "")
    if not text:
        return 0
    token = int(text, 16) if _TOKEN.fullmatch(text) else 0
    if token == 0:
        fail(f"RINGSTEP_SHM_TOKEN {text!r}: 1 to 16 hexadecimal digits, not 0")
    return token


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    handler: logging.Handler
    if sys.stderr.isatty():
        console = Console(emoji=False, stderr=True, highlight=False)
        handler = RichHandler(console=console, show_path=False, rich_tracebacks=False)
    else:  # one line each, however long: something reads them
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("ringstep.coordinator")
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


@contextmanager
def _quick_switches() -> Iterator[None]:
    """Have a policy that computes let go of the interpreter sooner: an offer may be waiting."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def coordinator(
    job: JobOption = "default",
    shm: ShmOption = None,
    policy: Annotated[
        str,
        typer.Option(
            help="What decides: nccl (leave NCCL alone), fixed:FILE (a table), autoccl (search "
            "while the job runs), dynamic (models), or module:factory.",
            metavar="NAME[:ARGUMENT]",
        ),
    ] = "nccl",
    listen: Annotated[
        str | None,
        typer.Option(
            help="Be the skeleton of several nodes; stubs connect here.", metavar="HOST:PORT"
        ),
    ] = None,
    skeleton: Annotated[
        str | None,
        typer.Option(help="Be the stub of a skeleton that listens there.", metavar="HOST:PORT"),
    ] = None,
    mpi: Annotated[
        bool, typer.Option("--mpi", help="One process by node under mpiexec; rank 0 is skeleton.")
    ] = False,
    nodes: Annotated[
        int,
        typer.Option(
            help="Nodes that have to be there before anything is decided; a stub passes over it.",
            min=1,
        ),
    ] = 1,
    node: Annotated[
        str, typer.Option(help="This node's name, unique in the job (default: the host's).")
    ] = "",
    warm_up: Annotated[
        int, typer.Option(help="Collectives of a kind and size before their first decision.", min=0)
    ] = 8,
    cooldown: Annotated[
        int, typer.Option(help="Collectives of a kind and size after each change.", min=0)
    ] = 3,
    explore_share: Annotated[
        float,
        typer.Option(
            help="Share of collectives that may try something else than the best known.",
            min=0.01,
            max=1.0,
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of random choices of the policy.")] = 0,
    fences: Annotated[
        bool,
        typer.Option("--fences", help="Switch at the job's fences on one node too (CUDA graphs)."),
    ] = False,
    static: Annotated[
        bool,
        typer.Option(
            "--static",
            help="With fixed:FILE: also make it the static table, in force from the first "
            "collective on; --ready-fd tells its digest.",
        ),
    ] = False,
    gpu: Annotated[bool, typer.Option("--gpu/--no-gpu", help="Read GPU figures by NVML.")] = True,
    ready_fd: Annotated[
        int | None,
        typer.Option(help="Write one JSON line there once ranks may start, and close it.", min=3),
    ] = None,
    for_s: Annotated[
        float | None, typer.Option("--for", help="End after so many seconds.", min=0)
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, print the status, end.")] = False,
    die_with_parent: Annotated[
        bool, typer.Option("--die-with-parent", help="End when the process that started it ends.")
    ] = False,
    keep_file: Annotated[
        bool, typer.Option("--keep-file", help="Leave the file behind when ending.")
    ] = False,
    call_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="When ending, write there what the newest collectives of each kind took, for "
            "`ringstep tuner calibrate --call-log`.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each thing that happens.")
    ] = False,
) -> None:
    """Decide for the ranks on this node: own the job's file, read telemetry, switch tables.

    Start it before the ranks, with the RINGSTEP_SHM_TOKEN that they get. Ends on SIGTERM, Ctrl-C
    and `ringstep tuner stop`; training goes on with what is in force.

    Example: ringstep tuner coordinator --job train-7 --policy autoccl
    """
    if sum((listen is not None, skeleton is not None, mpi)) > 1:
        fail("--listen, --skeleton and --mpi: choose one")
    if static and not policy.startswith("fixed:"):
        fail(f"--static needs --policy fixed:FILE, not {policy}")
    if nodes > 1 and listen is None and skeleton is None and not mpi:
        fail(f"--nodes {nodes} needs --listen HOST:PORT, where the stubs connect, or --mpi")
    if call_log is not None and not call_log.absolute().parent.is_dir():
        fail(f"--call-log {call_log}: {call_log.absolute().parent}: no such folder")
    if call_log is not None and skeleton is not None:
        fail("--call-log: a stub knows its own ranks only; give it to the skeleton")
    if ready_fd is not None:
        try:
            os.fstat(ready_fd)
        except OSError as error:
            fail(f"--ready-fd {ready_fd}: {error.strerror}; open it first, as 3>ready does")
    token = _token()
    node = node or socket.gethostname()
    links: Callable[[Loop, Config], Links] | None = None
    uplink: Callable[[Loop, Config], Uplink] | None = None
    if listen is not None:
        links = lambda loop, config: TcpLinks(listen, token, config.node, loop)  # noqa: E731
    elif skeleton is not None:
        uplink = lambda loop, config: TcpUplink(skeleton, token, config.node, loop)  # noqa: E731
    elif mpi:
        try:
            comm = world()
        except LinkError as error:
            fail(str(error))
        node = node_name(comm.Get_rank())
        nodes = comm.Get_size()
        if comm.Get_rank() == 0:
            links = lambda loop, config: MpiLinks(comm, token)  # noqa: E731
        else:
            uplink = lambda loop, config: MpiUplink(comm, token)  # noqa: E731
    config = Config(
        path=path_of(shm, job), token=token, policy=policy,
        options=Options(explore_share=explore_share, seed=seed, folder=Path.cwd()),
        settings=Settings(warm_up=warm_up, cooldown=cooldown, nodes=nodes),
        fences=fences, node=node, ready_fd=ready_fd, for_s=for_s,
        keep_file=keep_file, static=static, call_log=call_log,
    )  # fmt: skip

    telling = as_json and not once

    def tell(what: dict[str, Any]) -> None:
        nonlocal telling
        if not telling:
            return
        try:
            sys.stdout.write(json.dumps(what) + "\n")
            sys.stdout.flush()
        except OSError as error:  # who reads may go away; the job goes on
            telling = False
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            logging.getLogger("ringstep.coordinator").warning(
                "--json: %s; nothing more is told there", error.strerror
            )

    ending = Ending()
    sampler = GpuSampler() if gpu else None
    figures = sampler.mean if sampler else None
    try:
        with _log_to_stderr(), _quick_switches(), ending.by_signals():
            if die_with_parent:
                watch_parent()
            running = Coordinator(
                config, links=links, uplink=uplink, gpu=figures, tell=tell, ending=ending
            )
            if once:
                running.turn()
                found = running.status()
                running.close()
                _show_status(found, as_json=as_json)
            else:
                running.run()
    except (PolicyError, ShmError, ControlError, LinkError, BuildError) as error:
        fail(str(error))
    finally:
        if sampler is not None:
            sampler.close()


def _ask(shm: Path | None, job: str, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return ask(socket_path(path_of(shm, job)), request)
    except ControlError as error:
        fail(str(error))


def status(job: JobOption = "default", shm: ShmOption = None, as_json: JsonOption = False) -> None:
    """Show what the coordinator does: policy, epochs, communicators, keys.

    Example: ringstep tuner status --job train-7
    """
    _show_status(_ask(shm, job, {"do": "status"}), as_json=as_json)


def _show_status(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        found.pop("ok", None)
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console(emoji=False, highlight=False)
    console.print(f"{found['role']} on {found['node']}, process {found['pid']}",
                  soft_wrap=True, markup=False)  # fmt: skip
    if found["role"] == "stub":
        link = "linked to" if found["linked"] else "no link to"
        console.print(f"{link} the skeleton {found['address']}", soft_wrap=True, markup=False)
        return
    state = "NCCL is left alone" if found["bypass"] else "in use"
    fault = f" ({found['fault']})" if found["fault"] else ""
    console.print(f"policy {found['policy']}: {state}{fault}, epoch {found['epoch']}",
                  soft_wrap=True, markup=False)  # fmt: skip
    for refusal in found["refusals"]:
        console.print(f"refused: {refusal}", soft_wrap=True, markup=False)
    for group in found["communicators"]:
        offer = ""
        if group["on_offer"]:
            offer = f", {group['on_offer']} on offer: {group['offer']}"
        hindered = f", {group['obstacle']}" if group["obstacle"] else ""
        console.print(
            f"\ncommunicator {group['communicator']}: {group['ranks']} ranks, switches at "
            f"{group['switches_at']}, epoch {group['epoch']}{offer}{hindered}",
            soft_wrap=True, markup=False,
        )  # fmt: skip
        table = Table(box=None, pad_edge=False)
        for name in ("collective", "from bytes", "seen", "state", "in force", ""):
            table.add_column(name)
        for key in group["keys"]:
            table.add_row(key["collective"], str(key["min_bytes"]), str(key["seen"]), key["state"],
                          _setting(key["in_force"]), key["note"] or "")  # fmt: skip
        if group["keys"]:
            console.print(table)


def _setting(found: dict[str, Any] | None) -> str:
    if found is None:
        return "NCCL's"
    channels = f", {found['channels']} channels" if found["channels"] else ""
    chunk = f", {found['chunk_bytes']} B chunks" if found["chunk_bytes"] else ""
    return f"{found['algorithm']}/{found['protocol']}{channels}{chunk}"


def policy(
    name: Annotated[str, typer.Argument(help="As --policy of the coordinator.")],
    job: JobOption = "default",
    shm: ShmOption = None,
    as_json: JsonOption = False,
) -> None:
    """Switch the policy while the job runs.

    Example: ringstep tuner policy fixed:table.csv --job train-7
    """
    kind, _, argument = name.partition(":")
    if kind == "fixed" and argument:
        name = f"fixed:{Path(argument).resolve()}"
    answer = _ask(shm, job, {"do": "policy", "name": name})
    typer.echo(json.dumps(answer) if as_json else f"policy {answer['policy']}")


def bypass(
    wanted: Annotated[str, typer.Argument(help="on or off", metavar="on|off")],
    job: JobOption = "default",
    shm: ShmOption = None,
    as_json: JsonOption = False,
) -> None:
    """Leave NCCL alone, or go on; `off` also resumes a policy that failed.

    Example: ringstep tuner bypass on --job train-7
    """
    if wanted not in ("on", "off"):
        fail(f"{wanted!r}: on or off")
    answer = _ask(shm, job, {"do": "bypass", "on": wanted == "on"})
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        typer.echo("NCCL is left alone" if answer["bypass"] else "the policy decides")


def stop(job: JobOption = "default", shm: ShmOption = None) -> None:
    """End the coordinator; training goes on with what is in force.

    Example: ringstep tuner stop --job train-7
    """
    _ask(shm, job, {"do": "stop"})
    typer.echo("ending")


def register(app: typer.Typer) -> None:
    """Add the coordinator's commands to ``ringstep tuner``."""
    for command in (coordinator, status, policy, bypass, stop):
        app.command()(command)
    app.command("check-table")(check_table)
    app.command("save-table")(save_table)
