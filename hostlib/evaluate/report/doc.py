"""The report before it is HTML or Markdown: sections of paragraphs, tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ringstep.hostlib.evaluate.report.measures import MEASURES, Measure
from ringstep.hostlib.evaluate.report.read import Measured
from ringstep.hostlib.evaluate.report.words import NOT_MEASURED


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    words: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Commands:
    """Lines for a shell."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table.

    Attributes:
        caption: what it shows.
        head: names of the columns.
        rows: cells; the first one of a row is its name.
        folded: shown on demand, being long.
        words: columns of words, by index, that are set to the left.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: bool = False
    words: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Panels:
    """A figure: a chart for each environment that has it."""

    charts: Sequence[str]


Block = Text | Bullets | Commands | Grid | Panels


@dataclass(slots=True)
class Section:
    """A heading and what is under it.

    Attributes:
        id: for links.
        title: the heading.
        where: of the paper.
        blocks: in order.
    """

    id: str
    title: str
    where: str = ""
    blocks: list[Block] = field(default_factory=list)


@dataclass(slots=True)
class Document:
    """The report."""

    title: str
    sections: list[Section] = field(default_factory=list)


def comparison(
    caption: str, measured: Sequence[Measured], measures: Sequence[Measure]
) -> Grid:  # fmt: skip
    """Return measures beside the paper's numbers and the goals, a column for each environment."""
    goals = any(m.goal for m in measures)
    many = len(measured) > 1
    head = ["what", *(e.name if many else "ours" for e in measured), "paper", "where"]
    if goals:
        head += ["goal", *(f"reached, {e.name}" if many else "reached" for e in measured)]
    rows = []
    for m in measures:
        paper = m.paper
        row = [m.what, *(m.ours(e) for e in measured)]
        row += [paper.says if paper else "no number", paper.where if paper else ""]
        if goals:
            row += [m.goal.words if m.goal else "none", *(m.verdict(e) for e in measured)]
        rows.append(row)
    first = 1 + len(measured)
    return Grid(caption, head, rows, words=frozenset(range(first, len(head))))


def of(*sections: str) -> list[Measure]:
    """Return the measures of parts of the report, by the beginning of their ids."""
    return [
        m for m in MEASURES
        if any(m.id == s or m.id.startswith(f"{s}/") for s in sections)
    ]  # fmt: skip


def here(measured: Sequence[Measured], key: str) -> list[Measured]:
    """Return the environments that have a key."""
    return [e for e in measured if e.data.get(key)]


def missing(measured: Sequence[Measured], key: str) -> list[Block]:
    """Return the note on environments that lack a key, if there are any."""
    names = [e.name for e in measured if not e.data.get(key)]
    if not names:
        return []
    return [Text(f"{NOT_MEASURED}{'s' * (len(names) > 1)}: {', '.join(names)}.")]


def charts(
    measured: Sequence[Measured], key: str, draw: Callable[[Measured, str], str | None]
) -> list[Block]:
    """Return a figure with a chart for each environment that has a key; nothing if none has.

    ``draw`` gets the environment and what to append to a title, its name where there are several.
    """
    found = [
        chart for e in here(measured, key)
        if (chart := draw(e, f" ({e.name})" if len(measured) > 1 else "")) is not None
    ]  # fmt: skip
    return [Panels(found)] if found else []


def panels(
    measured: Sequence[Measured], key: str, draw: Callable[[Measured, str], str | None]
) -> list[Block]:
    """Return the same, and a note on environments that lack the key."""
    return [*charts(measured, key, draw), *missing(measured, key)]


def grids(
    measured: Sequence[Measured], key: str, make: Callable[[Measured, str], Grid | None]
) -> list[Block]:
    """Return a table for each environment that has a key."""
    found = [
        make(e, f" ({e.name})" if len(measured) > 1 else "") for e in here(measured, key)
    ]  # fmt: skip
    return [g for g in found if g is not None]
