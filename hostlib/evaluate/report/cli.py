"""``ringstep tuner report``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ringstep.hostlib.cli_options import fail
from ringstep.hostlib.evaluate.report import html, markdown
from ringstep.hostlib.evaluate.report.build import build
from ringstep.hostlib.evaluate.report.read import ReportError, read


def report_command(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULT.json", help="Of `tuner evaluate --json`; one for each "
                       "environment, shown side by side."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Written: the HTML page.")],
    markdown_out: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Written: its words and tables."),
    ] = None,
) -> None:  # fmt: skip
    """Set every figure of an evaluation beside the paper's numbers and the goals.

    The page needs no other file and no network; the same results give the same bytes.

    Example: ringstep tuner report fluid.json engine.json --out report.html --markdown report.md
    """
    try:
        document = build(read(results))
        pages = {out: html.render(document)}
        if markdown_out is not None:
            if markdown_out.resolve() == out.resolve():
                raise ReportError(f"--markdown {markdown_out}: that is --out already")
            pages[markdown_out] = markdown.render(document)
        for path in pages:
            if path.resolve() in {r.resolve() for r in results}:
                raise ReportError(f"{path}: that is a result, which would be overwritten")
        write(pages)
    except ReportError as error:
        fail(str(error))
    for path in pages:
        typer.echo(str(path))


def write(pages: dict[Path, str]) -> None:
    """Write all files or none.

    Raises:
        ReportError: one of them cannot be written.
    """
    parts: list[Path] = []
    try:
        for path, text in pages.items():
            if path.is_dir():
                raise ReportError(f"{path}: a folder")
            part = path.with_name(f".{path.name}.{os.getpid()}")
            parts.append(part)
            part.write_text(text, encoding="utf-8")
        for part, path in zip(parts, pages, strict=True):
            part.replace(path)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or error}") from None
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
