"""Entry point of ``ringstep``: the parts' commands under one name."""

from __future__ import annotations

import os
import signal
import sys
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
    ("lab", "ringstep.lab.lab_cli", "app"),
)
"""Name of the command group, module and Typer object that a part exports."""

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


def compose() -> typer.Typer:
    """Return the whole command."""
    for name, module, attribute in _GROUPS:
        app.add_typer(getattr(import_module(module), attribute), name=name)
    _add_simulator()
    lab = import_module("ringstep.lab.cli")
    app.command("demo")(lab.demo)
    return app


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
    try:
        compose()()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise SystemExit(INTERRUPTED) from None


def _as_interrupt(_signum: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
