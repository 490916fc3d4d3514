"""Options and manners that the commands of ``ringstep tuner`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from ringstep.hostlib.shm import ShmError, default_path

__all__ = ["JobOption", "JsonOption", "ShmOption", "fail", "path_of", "progress_bar"]

BAD_INPUT: Final = 2

ShmOption = Annotated[
    Path | None,
    typer.Option(
        "--shm",
        metavar="DIR",
        help="Folder of the job's shared-memory file "
        "(default: $RINGSTEP_SHM_DIR, else /dev/shm/ringstep-UID).",
    ),
]
JobOption = Annotated[str, typer.Option("--job", envvar="RINGSTEP_JOB", help="The job's name.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def fail(message: str) -> NoReturn:
    """Say what is wrong and end with the status of bad input."""
    Console(emoji=False, stderr=True, highlight=False, soft_wrap=True).print(
        f"error: {message}", markup=False
    )
    raise typer.Exit(BAD_INPUT)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """Return a bar on standard error with ``columns`` before the time left; none off a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), *columns,
        TimeRemainingColumn(), console=console, disable=not console.is_terminal, transient=True,
    )  # fmt: skip


def path_of(shm: Path | None, job: str) -> Path:
    """Return where the job's shared-memory file is, or end where the job's name is none."""
    try:
        return default_path(job, shm)
    except ShmError as error:
        fail(str(error))
