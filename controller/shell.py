"""``ringstep switch shell``: p4runtime-shell at a switch, as a reader beside the controller.

p4runtime-shell pins a protobuf that this environment cannot share, so it runs on a Python of its
own. It joins without an election id, which makes it a backup for good (P4Runtime 1.3, 5.3): it
reads, and the controller stays the one that writes. With an id of its own, however low, it would
collide with a controller's or become primary while that is away.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

import ringstep
from ringstep.controller.completion import SwitchName
from ringstep.controller.options import Connection, connected
from ringstep.controller.talk import BAD_INPUT, ask, fail
from ringstep.fabric.topology import parse_target

VARIABLE: Final = "RINGSTEP_P4RUNTIME_SHELL"
"""Names a Python that has p4runtime-shell."""
ENVIRONMENT: Final = ".venv-p4runtime-shell"
REQUIREMENT: Final = "p4runtime-shell==0.0.6"
_START: Final = """\
import ast, os, sys, traceback
import p4runtime_sh.shell as shell

def as_backup(handshake):
    def joined(self):
        put = self.stream_out_q.put
        def bare(request):
            if request is not None and request.HasField("arbitration"):
                request.arbitration.ClearField("election_id")
            put(request)
        self.stream_out_q.put = bare
        try:
            handshake(self)
        finally:
            self.stream_out_q.put = put
    return joined

def run(user_ns, **_):
    status = 0
    source = sys.stdin.read() if COMMAND is None else COMMAND
    try:
        for node in ast.parse(source).body:
            # As at the prompt: the value of an expression is shown.
            kind = "single" if isinstance(node, ast.Expr) else "exec"
            tree = ast.Interactive([node]) if kind == "single" else ast.Module([node], [])
            exec(compile(tree, "<script>", kind), user_ns)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    # Its threads would wait for the switch for ever.
    os._exit(status)

if BACKUP:
    shell.P4RuntimeClient.handshake = as_backup(shell.P4RuntimeClient.handshake)
if SCRIPT:
    shell.start_ipython = run
shell.main()
"""
"""What runs on that Python. p4runtime-shell's own command has no option for either of the two."""


class ShellError(Exception):
    """No p4runtime-shell to start; the text says how to get one."""


@dataclass(frozen=True, slots=True)
class SwitchTls:
    """PEM files of a connection to a switch; all None: without TLS."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def arguments(self) -> list[str]:
        """Return p4runtime-shell's options."""
        files = (("--cacert", self.ca), ("--cert", self.cert), ("--private-key", self.key))
        given = [text for option, path in files if path is not None for text in (option, str(path))]
        return ["--ssl", *given] if given else []


def find_python(env: Mapping[str, str], folders: tuple[Path, ...]) -> Path:
    """Return the Python that has p4runtime-shell.

    Raises:
        ShellError: there is none.
    """
    named = env.get(VARIABLE)
    if named:
        path = Path(named)
        if not os.access(path, os.X_OK) or path.is_dir():
            raise ShellError(
                f"${VARIABLE} is {named}, which is no program; name the Python of an environment "
                f"that has {REQUIREMENT}"
            )
        return path
    for folder in folders:
        path = folder / ENVIRONMENT / "bin" / "python"
        if path.exists():
            return path
    where = folders[0] / ENVIRONMENT
    raise ShellError(
        "p4runtime-shell needs an environment of its own, because it pins an older protobuf. Make "
        f"one:\n  python3 -m venv {where}\n  {where}/bin/pip install {REQUIREMENT}\n"
        f"('make clients' does the same in a checkout), or name its Python in ${VARIABLE}"
    )


def shell_argv(
    python: Path,
    address: str,
    device_id: int,
    election_id: str | None,
    tls: SwitchTls,
    command: str | None,
    *,
    script: bool,
) -> list[str]:
    """Return the command line.

    ``election_id``: None joins as a backup for good. ``script``: read ``command``, or else stdin,
    instead of a prompt.
    """
    settings = f"COMMAND, BACKUP, SCRIPT = {command!r}, {election_id is None}, {script}\n"
    options = ["--grpc-addr", address, "--device-id", str(device_id), *tls.arguments()]
    if election_id is not None:
        options += ["--election-id", election_id]
    return [str(python), "-c", settings + _START, *options]


def folders() -> tuple[Path, ...]:
    """Return where environments may lie: the working folder, then the checkout."""
    return (Path.cwd(), Path(ringstep.__file__).resolve().parents[1])


def _checked_address(value: str | None) -> str | None:
    try:
        return None if value is None else parse_target(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _checked_election(value: str | None) -> str | None:
    if value is None:
        return None
    high, comma, low = value.partition(",")
    if not comma or not high.isdecimal() or not low.isdecimal() or int(high) + int(low) == 0:
        raise typer.BadParameter(f"{value!r} is not HIGH,LOW above 0,0; write for example 0,1")
    return value


@connected
def switch_shell(
    name: SwitchName,
    connection: Connection,
    command: Annotated[
        str | None,
        typer.Option("--command", "-c", metavar="PYTHON", help="Run this instead of a prompt."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="Its P4Runtime server; with --device-id no controller is asked.",
            callback=_checked_address,
        ),
    ] = None,
    device_id: Annotated[
        int | None, typer.Option("--device-id", min=1, help="Its P4Runtime device id.")
    ] = None,
    election_id: Annotated[
        str | None,
        typer.Option(
            "--election-id",
            metavar="HIGH,LOW",
            help="To write, where the controller is away; above its own it takes the switch from "
            "it. Default: none, a reader for good.",
            callback=_checked_election,
        ),
    ] = None,
    switch_ca: Annotated[
        Path | None, typer.Option("--switch-ca", help="PEM file of the switch's authority.")
    ] = None,
    switch_cert: Annotated[
        Path | None, typer.Option("--switch-cert", help="PEM file of our certificate for it.")
    ] = None,
    switch_key: Annotated[
        Path | None, typer.Option("--switch-key", help="PEM file of that one's key.")
    ] = None,
) -> None:
    """Open p4runtime-shell at a switch, to look into its tables and counters.

    With --command, or a script on stdin, it runs that and ends; values are shown as at the prompt.
    It runs on a Python of its own: $RINGSTEP_P4RUNTIME_SHELL, or .venv-p4runtime-shell here.

    Example: ringstep switch shell tor1 -c 'for e in table_entry["job_by_pair"].read(): print(e)'
    """
    try:
        python = find_python(os.environ, folders())
    except ShellError as error:
        fail(str(error), BAD_INPUT)
    if address is None or device_id is None:
        found_address, found_id = _ask_controller(connection, name)
        address, device_id = address or found_address, device_id or found_id
    tls = SwitchTls(switch_ca, switch_cert, switch_key)
    script = command is not None or not sys.stdin.isatty()
    argv = shell_argv(python, address, device_id, election_id, tls, command, script=script)
    how = "as a reader: the controller stays primary"
    if election_id is not None:
        how = f"with election id {election_id}: the controller mends what others change"
    print(f"note: {name} at {address}, device {device_id}, {how}", file=sys.stderr, flush=True)
    raise typer.Exit(_run(argv))


def _ask_controller(connection: Connection, name: str) -> tuple[str, int]:
    switch = ask(connection, lambda client: client.switch(name))
    if not switch.address:
        fail(
            f"switch {name!r} has no P4Runtime address; add it with 'ringstep switch add', or give "
            "--address"
        )
    return switch.address, switch.device_id


def _run(argv: list[str]) -> int:
    # Its generated code is older than any protobuf with a compiled core that loads it.
    env = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    # Ctrl-C is the shell's own; whoever waits for it must not die of it.
    try:
        process = subprocess.Popen(argv, env=env)
    except OSError as error:
        fail(f"{shlex.quote(argv[0])}: {error.strerror}; see ${VARIABLE}", BAD_INPUT)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
