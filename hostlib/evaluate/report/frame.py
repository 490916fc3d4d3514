"""What stands around a chart's data: axes, title, legend; and how series look."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ringstep.hostlib.evaluate.report.svg import Canvas, Scale, text_width, ticks

WIDTH: Final = 600
HEIGHT: Final = 320
LEFT, RIGHT, BOTTOM = 74, 16, 50
"""Room around the data."""
_ROW = 18
FONT_STEP: Final = 14
"""From one line of text to the next."""
Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Style:
    """How a series looks in every chart: colour 0 to 7, and what tells it from its neighbours.

    Attributes:
        color: of the page's palette.
        hollow: bars in outline, lines with rings.
        dash: of lines, in SVG's words.
    """

    color: int
    hollow: bool = False
    dash: str = ""

    @property
    def paint(self) -> str:
        """Return the colour for CSS."""
        return f"var(--s{self.color})"


@dataclass(frozen=True, slots=True)
class Value:
    """A value with its interval; None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around the data.

    Attributes:
        title: of the chart.
        alt: what can be seen in it, in words.
        x: title of the axis, with its unit.
        y: likewise.
        limits: the y axis is cut here; None: it holds all values.
        show: writes a value of the y axis (of the x axis in :func:`boxes`).
    """

    title: str
    alt: str
    x: str
    y: str
    limits: tuple[float, float] | None = None
    show: Format = field(default=lambda v: f"{v:g}")


@dataclass(frozen=True, slots=True)
class Plot:
    """Where data goes: the canvas, the y axis and the edges."""

    canvas: Canvas
    y: Scale
    left: float
    right: float
    top: float
    bottom: float


def _legend_rows(names: Sequence[str], width: float) -> list[list[tuple[int, float]]]:
    """Return rows of (which, x)."""
    rows: list[list[tuple[int, float]]] = [[]]
    x = 0.0
    for i, name in enumerate(names):
        need = 24 + text_width(name) + 14
        if rows[-1] and x + need > width:
            rows.append([])
            x = 0.0
        rows[-1].append((i, x))
        x += need
    return rows


def _canvas(
    frame: Frame, names: Sequence[str], height: float
) -> tuple[Canvas, float, list[list[tuple[int, float]]]]:
    rows = _legend_rows(names, WIDTH - LEFT - RIGHT) if names else []
    top = 26 + _ROW * len(rows) + 14
    canvas = Canvas(WIDTH, height + _ROW * len(rows), frame.title, frame.alt)
    canvas.text(LEFT, 16, frame.title, kind="head")
    return canvas, top, rows


def open_plot(
    frame: Frame, names: Sequence[str], low: float, high: float, below: float = 0
) -> tuple[Plot, list[tuple[float, float]]]:
    """Draw frame and y axis; return the plot and where the legend's swatches go.

    ``below``: room for more lines of labels.
    """
    canvas, top, rows = _canvas(frame, names, HEIGHT + below)
    bottom = canvas.height - BOTTOM - below
    at = ticks(low, high)
    scale = Scale(at[0], at[-1], bottom, top)
    right = WIDTH - RIGHT
    for tick in at:
        canvas.line(LEFT, scale(tick), right, scale(tick), "zero" if tick == 0 else "grid")
        canvas.text(LEFT - 6, scale(tick) + 4, frame.show(tick), "end", "soft")
    canvas.text(14, (top + bottom) / 2, frame.y, "middle", "soft", -90)
    canvas.text((LEFT + right) / 2, canvas.height - 8, frame.x, "middle", "soft")
    places = [(0.0, 0.0)] * len(names)
    for row, entries in enumerate(rows):
        for i, x in entries:
            places[i] = (LEFT + x, 26 + _ROW * row + 9)
            canvas.text(LEFT + x + 22, 26 + _ROW * row + 13, names[i])
    return Plot(canvas, scale, LEFT, right, top, bottom), places


def span(
    values: Sequence[float], limits: tuple[float, float] | None, zero: bool
) -> tuple[float, float]:
    """Return the ends of an axis for values, cut at the limits, with 0 where it is wanted."""
    found = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(found), max(found)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if limits is not None:
        low, high = max(low, limits[0]), min(high, limits[1])
        low, high = min(low, limits[1]), max(high, limits[0])
    return low, high
