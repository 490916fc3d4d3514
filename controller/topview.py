"""How ``ringstep top`` looks: one screen of rows, whatever the size of the terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ringstep.controller.render import seconds_text
from ringstep.controller.topmodel import Row, SortKey

_CHROME = 4
"""Lines of a screen that are not rows: the summary, the headings, the keys, one to spare."""
_PHASE_STYLE = {"in sync": "green", "error": "red", "cannot": "red", "no rules": "red"}
KEYS = "q quit   s sort by next column   r reverse   p pause"


@dataclass(frozen=True, slots=True)
class Frame:
    """What one screen shows; ``height``: lines of the terminal, None: as many as it takes."""

    rows: Sequence[Row]
    jobs: int
    source: str
    sort: SortKey
    interval_s: float
    height: int | None = None
    paused: bool = False
    keys: bool = False
    trouble: str = ""


def render(frame: Frame) -> RenderableType:
    """Return a screen."""
    rows = list(frame.rows)
    hidden = 0
    if frame.height is not None:
        room = max(2, frame.height - _CHROME)
        if len(rows) > room:
            rows, hidden = rows[: room - 1], len(rows) - room + 1
    parts: list[RenderableType] = [_summary(frame)]
    if rows:
        parts.append(_table(rows, frame.sort))
    else:
        text = "no live jobs; 'ringstep job register' makes one"
        parts.append(Text(text, style="dim", no_wrap=True, overflow="ellipsis"))
    if hidden:
        parts.append(Text(f"... {hidden} more rows", style="dim"))
    if frame.keys:
        parts.append(Text(KEYS, style="dim", no_wrap=True, overflow="crop"))
    return Group(*parts)


def _summary(frame: Frame) -> Text:
    switches = len({row.switch for row in frame.rows if row.switch != "-"})
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("ringstep top", style="bold")
    text.append(
        f"  {time.strftime('%H:%M:%S')}  {frame.source}  {frame.jobs} jobs  {switches} switches"
        f"  every {frame.interval_s:g} s  by {frame.sort}"
    )
    if frame.paused:
        text.append("  paused", style="yellow")
    if frame.trouble:
        text.append(f"  {frame.trouble}", style="red")
    return text


_COLUMNS: tuple[tuple[str, SortKey | None], ...] = (
    ("job", SortKey.JOB),
    ("switch", SortKey.SWITCH),
    ("state", None),
    ("step", None),
    ("psn", None),
    ("steps/s", SortKey.STEPS),
    ("alpha", SortKey.ALPHA),
    ("marks/s", SortKey.MARKS),
    ("RED/s", SortKey.RED),
    ("corr/s", SortKey.CORRECTIONS),
    ("data pkt/s", SortKey.DATA),
    ("lease", SortKey.LEASE),
)


def _table(rows: Sequence[Row], sort: SortKey) -> Table:
    table = Table(box=None, pad_edge=False, expand=False, header_style="bold")
    for heading, key in _COLUMNS:
        words = heading in {"job", "switch", "state"}
        table.add_column(
            Text(heading, style="reverse" if key is sort else ""),
            justify="left" if words else "right",
            no_wrap=True,
            overflow="ellipsis",
            # Where the terminal is narrow, names give way and numbers stay.
            min_width=None if words else len(heading),
        )
    for row in rows:
        table.add_row(
            # Not markup: names come from others.
            Text(row.job),
            Text(row.switch),
            Text(row.phase, style=_PHASE_STYLE.get(row.phase, "yellow")),
            _whole(row.step_min),
            _whole(row.psn_rec),
            rate_text(row.steps_per_s),
            _whole(row.alpha),
            rate_text(row.marks_per_s),
            rate_text(row.red_marks_per_s),
            rate_text(row.corrections_per_s),
            rate_text(row.data_pps),
            "-" if row.lease_left_s is None else seconds_text(row.lease_left_s),
        )
    return table


def _whole(value: int | None) -> str:
    return "-" if value is None else str(value)


def rate_text(rate: float | None) -> str:
    """Return a rate in at most six characters, such as ``1.25M``."""
    if rate is None:
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if rate >= size:
            scaled = rate / (1e3 if unit == "k" else size)
            return f"{scaled:.3g}{unit}" if scaled < 999.5 else f"{scaled:.0f}{unit}"
    return f"{rate:.0f}" if rate >= 100 or rate == int(rate) else f"{rate:.2g}"
