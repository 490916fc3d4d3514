"""The report as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

from ringstep.hostlib.evaluate.report.doc import (
    Block,
    Bullets,
    Commands,
    Document,
    Grid,
    Panels,
    Section,
    Text,
)

_STYLE: Final = Path(__file__).with_name("style.css")
_KINDS: Final = (
    ("reached", "yes"),
    ("missed", "no"),
    ("out of reach", "out"),
    ("nothing to gain", "out"),
)


def render(document: Document) -> str:
    """Return the text of a file."""
    title, style = escape(document.title), _STYLE.read_text("utf-8").strip()
    lines = [
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{title}</title>", "<style>", style, "</style>", "</head>",
        "<body>", "<main>", f"<h1>{title}</h1>", '<nav aria-label="Contents">', "<ul>",
    ]  # fmt: skip
    lines += [
        f'<li><a href="#{s.id}">{escape(s.title)}</a>{_where(s)}</li>' for s in document.sections
    ]
    lines += ["</ul>", "</nav>"]
    for section in document.sections:
        lines += [f'<section id="{section.id}">',
                  f"<h2>{escape(section.title)}{_where(section)}</h2>"]  # fmt: skip
        for block in section.blocks:
            lines += _block(block)
        lines.append("</section>")
    return "\n".join([*lines, "</main>", "</body>", "</html>"]) + "\n"


def _where(section: Section) -> str:
    return f' <span class="where">{escape(section.where)}</span>' if section.where else ""


def _block(block: Block) -> Iterator[str]:
    match block:
        case Text(words):
            yield f"<p>{_prose(words)}</p>"
        case Bullets(items):
            yield from ("<ul>", *(f"<li>{_prose(item)}</li>" for item in items), "</ul>")
        case Commands(commands):
            yield "<pre><code>" + escape("\n".join(commands)) + "</code></pre>"
        case Grid(folded=True):
            yield "<details>"
            yield f"<summary>{escape(block.caption)}</summary>"
            yield from _table(block)
            yield "</details>"
        case Grid():
            yield from _table(block)
        case Panels(charts):
            yield '<div class="panels">'
            for chart in charts:
                yield from ("<figure>", chart, "</figure>")
            yield "</div>"


def _prose(words: str) -> str:
    """Return a text in which no line ends between a number and its unit or within an interval."""
    return escape(words).replace(" %", "&nbsp;%").replace(" … ", "&nbsp;…&nbsp;")


def _table(grid: Grid) -> Iterator[str]:
    caption = "" if grid.folded else f"<caption>{escape(grid.caption)}</caption>"
    yield f'<div class="wide"><table>{caption}'
    yield "<thead><tr>" + "".join(
        f'<th scope="col"{_kind(i, "", grid)}>{escape(name)}</th>'
        for i, name in enumerate(grid.head)
    ) + "</tr></thead>"  # fmt: skip
    yield "<tbody>"
    for row in grid.rows:
        cells = [f'<th scope="row">{escape(row[0])}</th>']
        cells += [
            f"<td{_kind(i, cell, grid)}>{escape(cell)}</td>" for i, cell in enumerate(row[1:], 1)
        ]
        yield "<tr>" + "".join(cells) + "</tr>"
    yield "</tbody></table></div>"


def _kind(column: int, cell: str, grid: Grid) -> str:
    kinds = ["w"] if column in grid.words or not column else []
    if grid.head[column].startswith("reached"):
        kinds += [kind for start, kind in _KINDS if cell.startswith(start)][:1]
    return f' class="{" ".join(kinds)}"' if kinds else ""
