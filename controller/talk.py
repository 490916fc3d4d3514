"""How every command talks to the controller and to its user."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

import grpc
import typer
from rich.console import Console, RenderableType
from rich.text import Text

from ringstep.controller.client import ControllerClient, ControllerError, NotProgrammedError

if TYPE_CHECKING:
    from ringstep.controller.options import Connection

_T = TypeVar("_T")
BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 130


def fail(text: str, status: int = FAILED) -> NoReturn:
    """End the command with one line on stderr."""
    print(f"error: {text}", file=sys.stderr)
    raise typer.Exit(status)


def ask(connection: Connection, question: Callable[[ControllerClient], Awaitable[_T]]) -> _T:
    """Run one conversation with the controller; failures end the command with their status."""

    async def conversation() -> _T:
        async with _client(connection) as client:
            return await question(client)

    # The command ends outside the handlers: an exception that is still held keeps the channel until
    # the interpreter shuts down, where gRPC may print a traceback of its own.
    try:
        return asyncio.run(conversation())
    except ControllerError as error:
        bad = error.code is grpc.StatusCode.INVALID_ARGUMENT
        text, status = error.text, BAD_INPUT if bad else FAILED
    except NotProgrammedError as error:
        text, status = str(error), FAILED
    except KeyboardInterrupt:
        text, status = "interrupted", INTERRUPTED
    fail(text, status)


def _client(connection: Connection) -> ControllerClient:
    try:
        return ControllerClient(connection.targets, credentials=connection.credentials)
    except (ValueError, OSError) as error:
        fail(str(error), BAD_INPUT)


@contextmanager
def waiting(stays: str) -> Iterator[None]:
    """Say on ctrl-C what was done before the wait, and stays done."""
    try:
        yield
    except asyncio.CancelledError:
        print(stays, file=sys.stderr)
        raise


def show(as_json: bool, data: object, *shown: RenderableType) -> None:
    """Print ``data`` for scripts, or the tables and lines for people."""
    if as_json:
        print(json.dumps(data, indent=2))
        return
    console = Console(emoji=False)
    for item in shown:
        # A reason is one line, however long: terminals wrap it, and scripts find it.
        console.print(item, soft_wrap=isinstance(item, Text))


def show_line(data: object) -> None:
    """Print one JSON line of a stream, at once."""
    print(json.dumps(data), flush=True)


def job_ref(text: str) -> str | int:
    """Return what names a job: a Job_ID where it is a number."""
    return int(text) if text.isdecimal() else text
