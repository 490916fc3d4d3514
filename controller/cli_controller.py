"""Commands of the controller itself: ``ringstep controller ...``."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ringstep.controller.checkcli import controller_check
from ringstep.controller.client import DEFAULT_TARGET
from ringstep.controller.defaults import DEFAULT_STORE, parse_listen
from ringstep.controller.options import Connection, connected
from ringstep.controller.talk import BAD_INPUT, ask, fail, show
from ringstep.controller.tokens import Role, generate_token, token_digest, token_entry

if TYPE_CHECKING:
    from ringstep.controller.config import ControllerConfig

controller_app = typer.Typer(
    help="The controller: check its configuration, run it, make tokens.", no_args_is_help=True
)
token_app = typer.Typer(help="Tokens of those who may ask the controller.", no_args_is_help=True)
controller_app.add_typer(token_app, name="token")
controller_app.command("check")(controller_check)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]


def _checked_listen(value: str | None) -> str | None:
    try:
        return None if value is None else parse_listen(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


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
        typer.Option(
            "--db",
            metavar="URL",
            help=f"Store, sqlite:///PATH or postgresql://USER@HOST/DATABASE. "
            f"Default: {DEFAULT_STORE}",
        ),
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
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Where Prometheus reads /metrics. Default: nowhere.",
            callback=_checked_listen,
        ),
    ] = None,
    insecure_listen: Annotated[
        bool,
        typer.Option(
            "--insecure-listen",
            help="Serve beyond loopback although there is no TLS, or nobody is asked who he is.",
        ),
    ] = False,
    uec: Annotated[
        bool,
        typer.Option(
            "--uec", help="Load the program that finds the jobs of Ultra Ethernet packets too."
        ),
    ] = False,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            "--ready-file",
            help='Gets one JSON line {"listen": ..., "pid": ..., "leading": ...} once it serves.',
        ),
    ] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option("--log-format", help="Of log lines. Default: text.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every step.")] = False,
) -> None:
    """Run the controller until ctrl-C; SIGHUP reads topology, tokens and certificates again.

    Example: ringstep controller serve --topology fabric.toml --db sqlite:///ringstep.db
    """
    # Only this command needs P4Runtime and the store; importing them here keeps the others quick.
    from ringstep.controller.logs import configure
    from ringstep.controller.metricsserver import MetricsListenError
    from ringstep.controller.pipeline import PipelineError
    from ringstep.controller.serve import ListenError, serve
    from ringstep.controller.store import StoreError

    configure(log_format.value if log_format else "text", "debug" if verbose else "info")
    try:
        loaded = _configuration(config, topology, store, listen, metrics, insecure_listen, uec=uec)
        configure(
            log_format.value if log_format else loaded.log.format,
            "debug" if verbose else loaded.log.level,
        )
        asyncio.run(serve(loaded, ready_file))
    except (PipelineError, StoreError, ListenError, MetricsListenError, ValueError) as error:
        fail(str(error), BAD_INPUT)
    except OSError as error:
        fail(f"{ready_file}: {error.strerror}; give a path that can be written", BAD_INPUT)


def _configuration(
    config: Path | None,
    topology: Path | None,
    store: str | None,
    listen: str | None,
    metrics: str | None,
    insecure_listen: bool,
    *,
    uec: bool,
) -> ControllerConfig:
    """Return the configuration of the file, changed by the options.

    Raises:
        ConfigError: it cannot be used.
    """
    from ringstep.controller.config import (
        ControllerConfig,
        MetricsConfig,
        PipelineConfig,
        load_config,
    )

    changes: dict[str, object] = {
        key: value
        for key, value in (("topology", topology), ("store", store), ("listen", listen))
        if value is not None
    }
    if insecure_listen:
        changes["insecure_listen"] = True
    if metrics is not None:
        changes["metrics"] = MetricsConfig(listen=metrics)
    if config is not None:
        loaded = load_config(config, changes)
        if not uec:
            return loaded
        if loaded.pipeline.p4info or loaded.pipeline.json_:
            fail(f"--uec, but {config} names another program under [pipeline]", BAD_INPUT)
        pipeline = loaded.pipeline.model_copy(update={"uec": True})
        return loaded.model_copy(update={"pipeline": pipeline})
    if topology is None:
        fail("no topology; give --topology fabric.toml, or --config controller.toml", BAD_INPUT)
    return ControllerConfig.model_validate({**changes, "pipeline": PipelineConfig(uec=uec)})


@controller_app.command("reload")
@connected
def reload_command(connection: Connection, as_json: AsJson = False) -> None:
    """Let the controller read its topology file again, and follow it.

    Exit status: 0, 1 where jobs have no rules any more, 2 for a file that cannot be used.

    Example: ringstep controller reload
    """
    reply = ask(connection, lambda client: client.reload_topology())
    moved, broken = list(reply.moved_jobs), list(reply.broken_jobs)
    lines = [Text(f"the topology is read; jobs that move: {', '.join(moved) or 'none'}")]
    if broken:
        lines.append(Text(f"without rules now: {', '.join(broken)}; 'ringstep job list' says why"))
    show(as_json, {"moved_jobs": moved, "broken_jobs": broken}, *lines)
    if broken:
        raise typer.Exit(1)


@token_app.command("new")
def token_new(
    name: Annotated[str, typer.Option("--name", help="Whose token it is; logs show it.")],
    role: Annotated[Role, typer.Option("--role", help="What its holder may do.")],
    tenant: Annotated[
        str, typer.Option("--tenant", help="A scheduler's: it may register for this tenant only.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Make a token: it is printed this once, with the entry for the controller's tokens file.

    The entry holds only the token's SHA-256. No controller is asked.

    Example: ringstep controller token new --name slurm --role scheduler --tenant research
    """
    if role is Role.OPERATOR and tenant:
        fail(f"--tenant {tenant}: an operator commands the whole fabric; leave it out", BAD_INPUT)
    token = generate_token()
    try:
        entry = token_entry(name, role, tenant, token)
    except ValueError as error:
        fail(str(error), BAD_INPUT)
    data = {
        "name": name,
        "role": role.value,
        "tenant": tenant,
        "token": token,
        "sha256": token_digest(token),
        "entry": entry,
    }
    if as_json:
        show(True, data)
        return
    print("# Give this to the holder, for a file that --token-file names; it is not shown again.")
    print(token)
    print("# Add this to tokens.toml.")
    print(entry, end="")
