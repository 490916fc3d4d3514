"""Entry point of ``ringstep``: the parts' commands under one name."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final

import typer

import ringstep

app = typer.Typer(
    name="ringstep",
    help="Keep ring collectives of distributed training in step.",
    epilog="Start with: ringstep demo",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_GROUPS: Final = (
    ("softswitch", "ringstep.softswitch.cli", "app"),
    ("controller", "ringstep.controller.cli", "controller_app"),
    ("switch", "ringstep.controller.cli", "switch_app"),
    ("job", "ringstep.controller.cli", "job_app"),
    ("tuner", "ringstep.hostlib.cli", "app"),
    ("lab", "ringstep.lab.lab_cli", "app"),
)
"""Name of the command group, module and Typer object that a part exports."""

_COMMANDS: Final = (
    ("demo", "ringstep.lab.cli"),
    ("run", "ringstep.cli.run"),
    ("top", "ringstep.controller.top"),
)
"""Name of a command, which is the function's too, and its module.

``CONTEXT_SETTINGS`` of the module, where there are any, are click's for the command.
"""

INTERRUPTED: Final = 130
"""Exit status after ctrl-C, as shells expect it (128 + SIGINT)."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ringstep {ringstep.__version__}")
        raise typer.Exit


@app.callback()
def ringstep_command(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version)
    ] = False,
) -> None:
    """Keep ring collectives of distributed training in step."""


def compose(only: str | None = None) -> typer.Typer:
    """Return the whole command, or of it what ``only`` names, which takes a part of the time."""
    for name, module, attribute in _GROUPS:
        if only in {None, name}:
            app.add_typer(getattr(import_module(module), attribute), name=name)
    for name, module in _COMMANDS:
        if only in {None, name}:
            found = import_module(module)
            options = getattr(found, "CONTEXT_SETTINGS", None)
            app.command(name, context_settings=options)(getattr(found, name))
    if only in {None, "sim"}:
        _add_simulator()
    return app


def _named(arguments: Sequence[str]) -> str | None:
    """Return the command that a command line names; None where all have to be there."""
    if arguments == ["--version"]:
        return ""
    if any(name.endswith("_COMPLETE") for name in os.environ):
        # Typer's scripts for bash, and for the other shells, hand over the line up to the cursor.
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
        # The last word is still being written.
        arguments = f"{line}|".split()[1:-1]
    names = {name for name, *_ in (*_GROUPS, *_COMMANDS)} | {"sim"}
    first = arguments[0] if arguments else ""
    return first if first in names else None


def _add_simulator() -> None:
    """Add ``sim`` from the distribution of its own that holds it, or say how to get it."""
    try:
        app.add_typer(import_module("ringstep_ns3.cli").app, name="sim")
    except ImportError as error:
        reason = str(error)

        @app.command("sim", context_settings={"ignore_unknown_options": True})
        def sim(
            _arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
        ) -> None:
            """Simulate ring collectives at packet level (not installed; see make sim)."""
            typer.echo(
                f"the simulator is not installed ({reason}); `pip install ./ns3-model` in the "
                "repository, or `make sim`",
                err=True,
            )
            raise typer.Exit(2)


def main() -> None:
    """Run the command; ctrl-C ends it with status 130 and without a traceback."""
    # gRPC's own log lines say again, less clearly, what every command says itself.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    signal.signal(signal.SIGTERM, _as_interrupt)
    if sys.argv[1:2] == ["run"]:
        import_module("ringstep.cli.launcher.early").start(sys.argv[2:])
    try:
        compose(_named(sys.argv[1:]))()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise SystemExit(INTERRUPTED) from None


def _as_interrupt(signum: int, _frame: object) -> None:
    # Once is enough: `timeout` sends it twice, and the second one would hit what cleans up.
    signal.signal(signum, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
