"""Commands for switches: ``ringstep switch ...``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from ringstep.controller.client import ControllerClient
from ringstep.controller.completion import SwitchName, complete_switch
from ringstep.controller.options import Connection, connected
from ringstep.controller.render import (
    refused_notes,
    switch_details,
    switch_dict,
    switch_line,
    switch_notes,
    switch_table,
)
from ringstep.controller.shell import switch_shell
from ringstep.controller.talk import BAD_INPUT, ask, fail, show, show_line, waiting
from ringstep.fabric.topology import parse_target

switch_app = typer.Typer(
    help="Switches that the controller keeps programmed.", no_args_is_help=True
)
switch_app.command("shell")(switch_shell)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]
AsLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def _checked_target(value: str) -> str:
    try:
        return parse_target(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@switch_app.command("add")
@connected
def switch_add(
    name: SwitchName,
    address: Annotated[
        str,
        typer.Argument(metavar="HOST:PORT", help="Its P4Runtime server.", callback=_checked_target),
    ],
    connection: Connection,
    device_id: Annotated[
        int, typer.Option("--device-id", min=0, help="0: the topology's device id.")
    ] = 0,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is in sync.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="For --wait, seconds.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Keep a switch of the topology programmed, or move it to another address.

    Example: ringstep switch add tor1 127.0.0.1:9559 --wait
    """

    async def question(client: ControllerClient) -> object:
        switch = await client.add_switch(name, address, device_id)
        if wait:
            with waiting(f"switch {name} stays added; 'ringstep switch list' shows how far it is"):
                (switch,) = await client.wait_switches([name], timeout)
        show(as_json, switch_dict(switch), switch_table([switch]), *switch_notes([switch]))
        return None

    ask(connection, question)


@switch_app.command("list")
@connected
def switch_list(connection: Connection, as_json: AsJson = False) -> None:
    """List the switches of the topology and how far each is.

    "drift" is what the last full read found otherwise than it should be, and was then mended:
    -N entries missing, ~N changed, +N put there by others.

    Example: ringstep switch list --json
    """
    switches = ask(connection, lambda client: client.switches())
    show(
        as_json,
        [switch_dict(switch) for switch in switches],
        switch_table(switches),
        *switch_notes(switches),
    )


@switch_app.command("show")
@connected
def switch_show(name: SwitchName, connection: Connection, as_json: AsJson = False) -> None:
    """Show all that the controller knows of a switch, with the updates that it refuses.

    Example: ringstep switch show tor1
    """
    switch = ask(connection, lambda client: client.switch(name))
    show(
        as_json,
        switch_dict(switch),
        switch_details(switch),
        *switch_notes([switch]),
        *refused_notes(switch),
    )


@switch_app.command("remove")
@connected
def switch_remove(name: SwitchName, connection: Connection, as_json: AsJson = False) -> None:
    """Stop to keep a switch programmed; what it holds stays.

    Example: ringstep switch remove tor1
    """
    ask(connection, lambda client: client.remove_switch(name))
    if as_json:
        show(True, {"name": name})


@switch_app.command("drain")
@connected
def switch_drain(
    name: SwitchName,
    connection: Connection,
    undo: Annotated[bool, typer.Option("--undo", help="Use the switch again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Lead traffic around a switch, for work on it; jobs move at a step boundary.

    Refused where hosts would be cut off. The switch stays programmed.

    Example: ringstep switch drain spine1
    """
    reply = ask(connection, lambda client: client.drain(name, drained=not undo))
    moved = list(reply.moved_jobs)
    what = "is used again" if undo else "is drained"
    show(
        as_json,
        {"switch": switch_dict(reply.switch), "moved_jobs": moved},
        Text(f"{name} {what}; jobs that move: {', '.join(moved) or 'none'}"),
    )


@switch_app.command("link")
@connected
def switch_link(
    end: Annotated[
        str,
        typer.Argument(
            metavar="NAME:PORT", help="Either end of a link.", autocompletion=complete_switch
        ),
    ],
    connection: Connection,
    up: Annotated[bool | None, typer.Option("--up/--down", help="Whether the link works.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say that a link between switches failed, or works again; paths follow at once.

    Example: ringstep switch link tor1:11 --down
    """
    name, colon, port = end.rpartition(":")
    if not colon or not name or not port.isdecimal():
        fail(f"{end!r} is not NAME:PORT; write for example tor1:11", BAD_INPUT)
    if up is None:
        fail(f"does {end} work? give --up or --down", BAD_INPUT)
    moved = ask(connection, lambda client: client.set_link(name, int(port), up=up))
    show(
        as_json,
        {"switch": name, "port": int(port), "up": up, "moved_jobs": moved},
        Text(f"{end} is {'up' if up else 'down'}; jobs that move: {', '.join(moved) or 'none'}"),
    )


@switch_app.command("watch")
@connected
def switch_watch(connection: Connection, as_lines: AsLines = False) -> None:
    """Print every switch, and then each one that changes, until ctrl-C.

    Example: ringstep switch watch
    """

    async def question(client: ControllerClient) -> None:
        async for event in client.watch_switches():
            if not event.HasField("switch"):
                continue
            if as_lines:
                show_line(switch_dict(event.switch))
            else:
                print(switch_line(event.switch), flush=True)

    ask(connection, question)
