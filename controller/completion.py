"""What shells offer at TAB: names of live jobs and of switches, as the controller knows them.

A shell waits for the answer with the user in front of it, so a controller that does not answer at
once completes to nothing, and nothing is ever printed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from ringstep.controller.client import DEFAULT_TARGET, ControllerClient, parse_targets
from ringstep.controller.credentials import load_credentials

PATIENCE_S = 0.5


def complete_job(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return names of live jobs, each with its Job_ID and tenant."""

    async def jobs(client: ControllerClient) -> list[tuple[str, str]]:
        return [
            (job.spec.name, f"job {job.id} {job.spec.tenant}".rstrip())
            for job in await client.jobs()
        ]

    return _starting(incomplete, _asked(ctx, jobs))


def complete_switch(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return names of the topology's switches, each with its role."""

    async def switches(client: ControllerClient) -> list[tuple[str, str]]:
        return [(switch.name, switch.role) for switch in await client.switches()]

    return _starting(incomplete, _asked(ctx, switches))


def _starting(incomplete: str, names: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, about) for name, about in names if name.startswith(incomplete)]


def _asked(
    ctx: typer.Context, question: Callable[[ControllerClient], Awaitable[list[tuple[str, str]]]]
) -> list[tuple[str, str]]:
    async def conversation() -> list[tuple[str, str]]:
        async with asyncio.timeout(PATIENCE_S), _client(ctx) as client:
            return await question(client)

    try:
        return asyncio.run(conversation())
    except Exception:
        # Whatever it is, a traceback in the middle of a command line helps nobody.
        return []


def _client(ctx: typer.Context) -> ControllerClient:
    given = ctx.params.get("controller")
    text = ",".join(given) if given else os.environ.get("RINGSTEP_CONTROLLER", DEFAULT_TARGET)

    def path(option: str, variable: str) -> Path | None:
        value = ctx.params.get(option) or os.environ.get(variable)
        return Path(value) if value else None

    credentials = load_credentials(
        path("ca", "RINGSTEP_CA"),
        path("cert", "RINGSTEP_CERT"),
        path("key", "RINGSTEP_KEY"),
        path("token_file", "RINGSTEP_TOKEN_FILE"),
        str(ctx.params.get("server_name") or os.environ.get("RINGSTEP_SERVER_NAME", "")),
        os.environ,
        tls=bool(ctx.params.get("tls") or os.environ.get("RINGSTEP_TLS")),
    )
    return ControllerClient(parse_targets(text), credentials=credentials, timeout_s=PATIENCE_S)


JobName = Annotated[
    str,
    typer.Argument(
        metavar="NAME|ID", help="Name or Job_ID of a live job.", autocompletion=complete_job
    ),
]
SwitchName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of a switch of the topology.", autocompletion=complete_switch
    ),
]
