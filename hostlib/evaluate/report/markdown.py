"""The report as Markdown: words and tables; the figures are in the HTML only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ringstep.hostlib.evaluate.report.doc import (
    Block,
    Bullets,
    Commands,
    Document,
    Grid,
    Panels,
    Text,
)


def render(document: Document) -> str:
    """Return the text of a file."""
    lines = [f"# {document.title}", ""]
    for section in document.sections:
        where = f" ({section.where})" if section.where else ""
        lines += [f"## {section.title}{where}", ""]
        for block in section.blocks:
            lines += [*_block(block)]
    return "\n".join(lines).rstrip() + "\n"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Text(words):
            yield from (_plain(words), "")
        case Bullets(items):
            yield from (f"- {_plain(item)}" for item in items)
            yield ""
        case Commands(commands):
            yield from ("```sh", *commands, "```", "")
        case Grid(folded=True):
            yield from ("<details>", f"<summary>{escape(block.caption)}</summary>", "")
            yield from _table(block)
            yield from ("</details>", "")
        case Grid():
            yield from (f"**{_plain(block.caption)}**", "")
            yield from _table(block)
        case Panels():
            pass


def _table(grid: Grid) -> Iterator[str]:
    yield _row(grid.head)
    left = {0, *grid.words}
    yield "|" + "|".join("---" if i in left else "---:" for i in range(len(grid.head))) + "|"
    yield from (_row(row) for row in grid.rows)
    yield ""


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(c).replace("|", "\\|") for c in cells) + " |"


def _plain(text: str) -> str:
    """Keep marks of Markdown and HTML from being read as such."""
    for mark in ("\\", "`", "*", "_", "<", "["):
        text = text.replace(mark, f"\\{mark}")
    return text.replace("\n", " ")
