"""Charts of the report: bars with intervals, lines with bands, heat maps, boxes. Each is one SVG.

What a chart shows is also told by position, dash or outline, never by colour alone. Values beyond
an axis that was cut are drawn as arrows at its end, with their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringstep.hostlib.evaluate.report.frame import (
    BOTTOM,
    FONT_STEP,
    LEFT,
    RIGHT,
    WIDTH,
    Format,
    Frame,
    Plot,
    Style,
    Value,
    open_plot,
    span,
)
from ringstep.hostlib.evaluate.report.svg import FONT, Canvas, Scale, number, text_width, ticks


@dataclass(frozen=True, slots=True)
class Bars:
    """A series of bars, one for each category."""

    name: str
    style: Style
    values: Sequence[Value | None]


@dataclass(frozen=True, slots=True)
class Line:
    """A line over x, with a band where ``low`` and ``high`` are there."""

    name: str
    style: Style
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """Percentiles 5, 25, 50, 75 and 95 of a distribution."""

    name: str
    style: Style
    percentiles: Sequence[float]


def _arrow(plot: Plot, x: float, value: float, style: Style, show: Format, tip: str) -> None:
    """Draw a value that is beyond the axis."""
    up = value > plot.y.high
    y, d = (plot.top, -1) if up else (plot.bottom, 1)
    plot.canvas.add(
        "path", tip, style=f"fill:{style.paint}",
        d=f"M{number(x - 5)} {number(y - 7 * d)}h10L{number(x)} {number(y)}z",
    )  # fmt: skip
    plot.canvas.text(x + 3, y - 10 * d, show(value), "end" if up else "start", "small", -90)


def bars(
    frame: Frame,
    categories: Sequence[str],
    series: Sequence[Bars],
    marks: Sequence[float | None] = (),
    marks_name: str = "paper",
) -> str:
    """Draw grouped bars from 0 with their intervals; ``marks``: a reference for each category."""
    marked = any(m is not None for m in marks)
    names = [s.name for s in series] + [marks_name] * marked
    ends = [
        e for s in series for v in s.values if v is not None
        for e in (v.value, v.low, v.high) if e is not None
    ]  # fmt: skip
    ends += [m for m in marks if m is not None]
    group = (WIDTH - LEFT - RIGHT) / max(len(categories), 1)
    labels = _fit(categories, group)
    below = FONT_STEP * (max([len(lines) for lines in labels] or [1]) - 1)
    plot, places = open_plot(frame, names, *span(ends, frame.limits, zero=True), below)
    canvas = plot.canvas
    for s, (x, y) in zip(series, places, strict=False):
        _bar(canvas, x, y - 6, 14, 12, s.style)
    if marked:
        _diamond(canvas, places[-1][0] + 7, places[-1][1], "")
    thick = min(0.8 * group / max(len(series), 1), 34.0)
    for c, category in enumerate(categories):
        middle = plot.left + (c + 0.5) * group
        for row, text in enumerate(labels[c]):
            canvas.text(middle, plot.bottom + 17 + FONT_STEP * row, text, "middle")
        for i, s in enumerate(series):
            value = s.values[c]
            if value is None:
                continue
            x = middle + (i - (len(series) - 1) / 2) * thick
            tip = f"{s.name}, {category}: {_told(value, frame.show)}"
            y0, y1 = plot.y(0.0), plot.y(value.value)
            _bar(canvas, x - 0.42 * thick, min(y0, y1), 0.84 * thick, abs(y1 - y0), s.style, tip)
            if not plot.y.holds(value.value):
                _arrow(plot, x, value.value, s.style, frame.show, tip)
            elif value.low is not None and value.high is not None and value.high > value.low:
                _whisker(plot, x, value.low, value.high, min(3.0, 0.3 * thick))
        mark = marks[c] if c < len(marks) else None
        if mark is not None:
            _diamond(canvas, middle + (0.5 * len(series) * thick) + 8, plot.y(mark),
                     f"{marks_name}, {category}: {frame.show(mark)}")  # fmt: skip
    return canvas.render()


def _told(value: Value, show: Format) -> str:
    if value.low is None or value.high is None:
        return show(value.value)
    return f"{show(value.value)} ({show(value.low)} … {show(value.high)})"


def _fit(names: Sequence[str], width: float) -> list[list[str]]:
    """Return names in lines, so that neighbours do not touch: broken, and if need be in turns."""

    def wide(text: str) -> bool:
        return text_width(text) > width

    broken = [name.replace(", ", ",\n").split("\n") if wide(name) else [name] for name in names]
    broken = [[part for line in lines for part in (line.split(" ") if wide(line) else [line])]
              for lines in broken]  # fmt: skip
    if not any(wide(line) for lines in broken for line in lines):
        return broken
    step = max(len(lines) for lines in broken)
    return [[""] * (step * (i % 2)) + lines for i, lines in enumerate(broken)]


def _bar(
    canvas: Canvas, x: float, y: float, width: float, height: float, style: Style, tip: str = ""
) -> None:
    height = max(height, 0.5)
    if style.hollow:  # Nothing shines through.
        canvas.add("rect", x=x, y=y, width=width, height=height, style="fill:var(--page)")
    look = f"fill:{style.paint};stroke:{style.paint}" + (";fill-opacity:.2" * style.hollow)
    canvas.add("rect", tip, x=x, y=y, width=width, height=height, style=look)


def _whisker(plot: Plot, x: float, low: float, high: float, half: float) -> None:
    a, b = plot.y(low), plot.y(high)
    plot.canvas.line(x, a, x, b, "whisker")
    for value, y in ((low, a), (high, b)):
        if plot.y.holds(value):
            plot.canvas.line(x - half, y, x + half, y, "whisker")


def _diamond(canvas: Canvas, x: float, y: float, tip: str) -> None:
    canvas.add("path", tip, class_="mark",
               d=f"M{number(x)} {number(y - 6)}l6 6l-6 6l-6 -6z")  # fmt: skip


def lines(
    frame: Frame,
    series: Sequence[Line],
    rules: Sequence[tuple[float, str]] = (),
    events: Sequence[tuple[float, str]] = (),
    dots: Mapping[str, float] | None = None,
) -> str:
    """Draw lines.

    Args:
        frame: around it.
        series: the lines.
        rules: values of y that a line across marks, with what they are.
        events: values of x that a line from top to bottom marks, with what they are.
        dots: by name of a line, the x at which it is marked.
    """
    ys = [v for s in series for v in (*s.y, *s.low, *s.high) if v is not None]
    plot, places = open_plot(
        frame, [s.name for s in series], *span([*ys, *(v for v, _ in rules)], frame.limits, False)
    )
    canvas = plot.canvas
    xs = [x for s in series for x in s.x] or [0.0]
    at = ticks(min(xs), max(xs), 8)
    whole = all(float(x).is_integer() for x in xs)
    scale = Scale(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, plot.left, plot.right)
    for tick in at:
        if scale.holds(tick) and (not whole or tick.is_integer()):
            canvas.text(scale(tick), plot.bottom + 17, f"{tick:g}", "middle", "soft")
            canvas.line(scale(tick), plot.bottom, scale(tick), plot.bottom + 4, "zero")
    for value, name in rules:
        canvas.line(plot.left, plot.y(value), plot.right, plot.y(value), "rule")
        down = value > (plot.y.low + plot.y.high) / 2
        canvas.text(plot.left + 4, plot.y(value) + (13 if down else -4), name, kind="small")
    for i, (x, name) in enumerate(events):
        canvas.line(scale(x), plot.top, scale(x), plot.bottom, "rule")
        # What comes before an event is the quieter side.
        fits = scale(x) - plot.left > text_width(name)
        canvas.text(scale(x) + (-4 if fits else 4), plot.top + 12 + FONT_STEP * i, name,
                    "end" if fits else "start", "small")  # fmt: skip
    for s, (x, y) in zip(series, places, strict=True):
        look = f"fill:none;stroke:{s.style.paint}"
        canvas.add("line", x1=x, y1=y, x2=x + 18, y2=y, class_="line", style=look,
                   stroke_dasharray=s.style.dash or "none")  # fmt: skip
        if s.low:
            edge = [f"{number(scale(a))} {number(plot.y(b))}"
                    for a, b in [*zip(s.x, s.high, strict=True),
                                 *reversed(list(zip(s.x, s.low, strict=True)))]]  # fmt: skip
            canvas.add("path", d="M" + "L".join(edge) + "z",
                       style=f"fill:{s.style.paint};fill-opacity:.18")  # fmt: skip
        for d in _pieces(s, scale, plot.y):
            canvas.add("path", s.name, d=d, class_="line", style=look,
                       stroke_dasharray=s.style.dash or "none")  # fmt: skip
        dot = None if dots is None else dots.get(s.name)
        if dot is not None and dot in s.x and (v := s.y[list(s.x).index(dot)]) is not None:
            canvas.add("circle", f"{s.name}: {frame.x} {dot:g}", cx=scale(dot), cy=plot.y(v), r=5,
                       class_="dot", style=f"fill:{s.style.paint}")  # fmt: skip
    return canvas.render()


def _pieces(line: Line, x: Scale, y: Scale) -> list[str]:
    """Return the line's paths, broken where values are missing."""
    pieces: list[list[str]] = [[]]
    for a, b in zip(line.x, line.y, strict=True):
        if b is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{number(x(a))} {number(y(b))}")
    return ["M" + "L".join(p) for p in pieces if p]


def heat(
    frame: Frame,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
) -> str:
    """Draw a heat map: blue above 0, orange below, with every number in its cell.

    The frame's upper limit, if there is one, is where colours are darkest.
    """
    left = 24 + max([text_width(r) for r in rows] or [0])
    tall = 30
    canvas = Canvas(WIDTH, 64 + tall * len(rows) + 44, frame.title, frame.alt)
    canvas.text(12, 16, frame.title, kind="head")
    wide = (WIDTH - RIGHT - left) / max(len(columns), 1)
    most = max((abs(v) for row in values for v in row if v is not None), default=0.0)
    if frame.limits is not None:
        most = frame.limits[1]
    most = most or 1.0
    canvas.text(12, 36, f"{frame.y}, down; {frame.x}, across", kind="soft")
    for c, name in enumerate(columns):
        canvas.text(left + (c + 0.5) * wide, 56, name, "middle")
    for r, name in enumerate(rows):
        y = 64 + r * tall
        canvas.text(left - 8, y + tall / 2 + 4, name, "end")
        for c, value in enumerate(values[r]):
            paint, ink = _heat_color(value, most)
            words = "not measured" if value is None else frame.show(value)
            canvas.add("rect", f"{name}, {columns[c]}: {words}", x=left + c * wide + 1, y=y + 1,
                       width=wide - 2, height=tall - 2, style=f"fill:{paint}")  # fmt: skip
            if value is not None:
                canvas.text(left + (c + 0.5) * wide, y + tall / 2 + 4, words, "middle", ink=ink)
    y = 64 + tall * len(rows) + 14
    for i in range(21):
        paint, _ = _heat_color((i - 10) / 10 * most, most)
        canvas.add("rect", x=left + 12 * i, y=y, width=12, height=10, style=f"fill:{paint}")
    canvas.text(left, y + 24, frame.show(-most), kind="soft")
    canvas.text(left + 126, y + 24, frame.show(0.0), "middle", "soft")
    canvas.text(left + 252, y + 24, frame.show(most), "end", "soft")
    return canvas.render()


_NEUTRAL, _BLUE, _ORANGE = (236, 236, 232), (8, 81, 156), (166, 64, 8)


def _heat_color(value: float | None, most: float) -> tuple[str, str]:
    """Return fill and ink; both are fixed, so that they go together in either theme."""
    if value is None:
        return "var(--grid)", "var(--ink)"
    share = min(abs(value) / most, 1.0)
    end = _BLUE if value >= 0 else _ORANGE
    rgb = [round(a + share * (b - a)) for a, b in zip(_NEUTRAL, end, strict=True)]
    return "#" + "".join(f"{c:02x}" for c in rgb), "#ffffff" if share > 0.68 else "#1a1a19"


def boxes(frame: Frame, series: Sequence[Box]) -> str:
    """Draw boxes, one a row: whiskers are the 5th and 95th percentile, the bar is the median."""
    left = 20 + max([text_width(s.name) for s in series] or [0])
    tall = 34
    canvas = Canvas(WIDTH, 36 + tall * len(series) + BOTTOM, frame.title, frame.alt)
    canvas.text(12, 16, frame.title, kind="head")
    top, bottom = 30.0, 36.0 + tall * len(series)
    at = ticks(*span([v for s in series for v in s.percentiles], frame.limits, zero=False), 6)
    x = Scale(at[0], at[-1], left, WIDTH - RIGHT - 8)
    for tick in at:
        canvas.line(x(tick), top, x(tick), bottom, "grid")
        canvas.text(x(tick), bottom + 17, frame.show(tick), "middle", "soft")
    canvas.text((left + WIDTH - RIGHT) / 2, canvas.height - 8, frame.x, "middle", "soft")
    for i, s in enumerate(series):
        y = top + (i + 0.5) * tall + 3
        p5, p25, p50, p75, p95 = (x(v) for v in s.percentiles)
        canvas.text(left - 8, y + FONT / 3, s.name, "end")
        canvas.line(p5, y, p95, y, "whisker")
        for end in (p5, p95):
            canvas.line(end, y - 4, end, y + 4, "whisker")
        tip = f"{s.name}: " + ", ".join(frame.show(v) for v in s.percentiles)
        _bar(canvas, p25, y - 9, p75 - p25, 18, s.style, tip)
        canvas.line(p50, y - 11, p50, y + 11, "median")
    return canvas.render()
