"""``ringstep tuner check-table`` and ``save-table``: tables as files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from ringstep.hostlib.cli_options import (
    JobOption,
    JsonOption,
    ShmOption,
    fail,
    path_of,
)
from ringstep.hostlib.coordinator.fixed import by_place, format_table, read_table
from ringstep.hostlib.coordinator.policy import PolicyError
from ringstep.hostlib.shm import Decision, ShmError, ShmFile
from ringstep.hostlib.shm_layout import Collective, EntryState

__all__ = ["check_table", "save_table"]


def check_table(
    file: Annotated[Path, typer.Argument(help="A table for --policy fixed:FILE.")],
    as_json: JsonOption = False,
) -> None:
    """Read a table as the coordinator would, and show what it decides.

    Example: ringstep tuner check-table table.csv
    """
    try:
        rules = read_table(file)
    except PolicyError as error:
        fail(str(error))
    if as_json:
        rows = [
            {
                "collective": r.collective.name.lower(),
                "min_bytes": 0 if r.classes.start == 0 else 1 << r.classes.start,
                "max_bytes": (1 << r.classes.stop) - 1,
                "algorithm": r.decision.algo.name.lower(),
                "protocol": r.decision.proto.name.lower(),
                "channels": r.decision.n_channels or None,
                "chunk_bytes": r.decision.chunk_bytes or None,
                "line": r.line,
            }
            for r in rules
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    typer.echo(format_table(by_place(rules)), nl=False)


def save_table(
    file: Annotated[Path, typer.Argument(help="Where to write it; an older one is replaced.")],
    job: JobOption = "default",
    shm: ShmOption = None,
    communicator: Annotated[
        str | None,
        typer.Option(help="Its id, where communicators differ (see show-decisions)."),
    ] = None,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Also what the search has not settled on yet.")
    ] = False,
) -> None:
    """Write what is in force as a table for --policy fixed:FILE.

    Example: ringstep tuner save-table table.csv --job train-7
    """
    decisions: dict[tuple[Collective, int], Decision] = {}
    settled = {EntryState.CONVERGED, EntryState.FIXED, EntryState.NONE}
    try:
        with ShmFile.open(path_of(shm, job)) as shm_file:
            views = [v for v in shm_file.comms() if v.epoch or any(r.in_force for r in v.ranks)]
    except ShmError as error:
        fail(str(error))
    if communicator is not None:
        views = [v for v in views if f"{v.comm_id:016x}" == communicator.lower().zfill(16)]
    for view in views:
        if any(r.in_force != view.table_epoch for r in view.ranks):
            continue  # a newer table is on offer; what is in force is not in the file any more
        for collective in Collective:
            for which in range(64):
                decision = view.table.get(collective, which)
                if decision is None or not (unfinished or decision.state in settled):
                    continue
                place = (collective, which)
                before = decisions.get(place)
                plain = Decision(
                    decision.algo, decision.proto, decision.n_channels, decision.chunk_bytes
                )
                if before not in (None, plain):
                    fail(
                        f"communicators differ for {collective.name.lower()} of {1 << which} "
                        "bytes; name one with --communicator"
                    )
                decisions[place] = plain
    if not decisions:
        fail("nothing settled is in force yet; see `ringstep tuner status`, or --unfinished")
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(format_table(decisions))
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        fail(f"{file}: {error.strerror}")
    typer.echo(f"{file}: {len(decisions)} sizes")
