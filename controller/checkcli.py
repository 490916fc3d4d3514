"""The command ``ringstep controller check``."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from ringstep.controller.findings import Finding

FAILED = 1
BAD_INPUT = 2
_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "red")}


def controller_check(
    config: Annotated[
        Path, typer.Option("--config", help="controller.toml of the controller to check.")
    ] = Path("controller.toml"),
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="For each switch and the store, seconds.")
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Check a configuration and all that it names; change nothing.

    Exit status: 0 all is well (warnings may be listed), 1 something is not, 2 the configuration
    cannot be read.

    Example: ringstep controller check --config controller.toml
    """
    # P4Runtime and the store take a while to import, and only this command needs them.
    from ringstep.controller.check import run_checks
    from ringstep.controller.config import load_config
    from ringstep.fabric.tomlfile import FileError

    try:
        loaded = load_config(config)
    except FileError as error:
        if as_json:
            print(json.dumps({"ok": False, "error": error.problems, "findings": []}, indent=2))
        print("\n".join(f"error: {line}" for line in error.problems), file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from None
    console = Console(emoji=False, stderr=True)
    with console.status("looking") if console.is_terminal else nullcontext() as status:

        def progress(done: int, total: int) -> None:
            if status is not None:
                status.update(f"switches: {done} of {total}")

        findings = asyncio.run(run_checks(loaded, timeout_s=timeout, progress=progress))
    problems = sum(finding.verdict == "problem" for finding in findings)
    if as_json:
        data = {"ok": not problems, "findings": [finding.to_dict() for finding in findings]}
        print(json.dumps(data, indent=2))
    else:
        _show(findings, problems)
    if problems:
        raise typer.Exit(FAILED)


def _show(findings: list[Finding], problems: int) -> None:
    console = Console(emoji=False)
    for finding in findings:
        mark, colour = _MARKS[finding.verdict.value]
        line = Text.assemble((mark, colour), f" {finding.part}: {finding.text}")
        console.print(line, soft_wrap=True)
    warnings = sum(finding.verdict == "warning" for finding in findings)
    console.print(Text(f"{len(findings)} checked, {problems} problems, {warnings} warnings"))
