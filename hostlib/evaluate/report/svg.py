"""SVG, as much of it as the charts need: a canvas, scales, ticks, widths of text.

Colours are CSS variables of the page, so that a chart follows its light or dark theme.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Final

FONT: Final = 12
"""Size of text, in units of the view box."""
_SMALLEST: Final = 1e-15
"""What is smaller counts as zero: nothing measured is, and floats get coarse further down."""


def number(value: float) -> str:
    """Return a coordinate, the same on every machine."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def text_width(text: str, size: float = FONT) -> float:
    """Return about how wide a text comes out, rather too much than too little."""
    return 0.6 * size * len(text)


class Canvas:
    """An SVG element that grows from the back to the front.

    Args:
        width: of the view box.
        height: of the view box.
        title: what it shows, for screen readers.
        alt: what can be seen in it, in words.
    """

    def __init__(self, width: float, height: float, title: str, alt: str) -> None:
        self.width, self.height = width, height
        self._parts = [
            f'<svg viewBox="0 0 {number(width)} {number(height)}" role="img" '
            f'aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(alt)}</desc>",
        ]

    def add(self, tag: str, tip: str = "", **attributes: float | str) -> None:
        """Append an element; ``tip`` is what a pointer on it shows.

        Attributes are named as in SVG, with _ for -.
        """
        words = " ".join(
            f'{name.rstrip("_").replace("_", "-")}="'
            + (escape(value) if isinstance(value, str) else number(value))
            + '"'
            for name, value in attributes.items()
        )
        end = f"><title>{escape(tip)}</title></{tag}>" if tip else "/>"
        self._parts.append(f"<{tag} {words}{end}")

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", kind: str = "",
        turn: float = 0, ink: str = "",
    ) -> None:  # fmt: skip
        """Append a text.

        Args:
            x: of its anchor.
            y: of its base line.
            text: to write.
            anchor: start, middle or end.
            kind: a class of the page's style sheet.
            turn: in degrees, about the anchor.
            ink: a colour other than the theme's.
        """
        words = f'x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"'
        if ink:
            words += f' style="fill:{ink}"'
        if kind:
            words += f' class="{kind}"'
        if turn:
            words += f' transform="rotate({number(turn)} {number(x)} {number(y)})"'
        self._parts.append(f"<text {words}>{escape(text)}</text>")

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """Append a straight line."""
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)

    def render(self) -> str:
        """Return the element."""
        return "\n".join([*self._parts, "</svg>"])


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from ``low`` to ``high`` onto coordinates from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the coordinate; values beyond an end come out at that end."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def holds(self, value: float) -> bool:
        """Say whether a value is within."""
        slack = 1e-9 * (self.high - self.low)
        return self.low - slack <= value <= self.high + slack


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round values that span at least ``low`` to ``high``, evenly spaced.

    Raises:
        ValueError: low is above high, or one of them is not finite.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(f"no axis from {low} to {high}")
    largest = max(abs(low), abs(high))
    if largest < _SMALLEST:
        high = low + 1.0
    elif high - low <= 1e-9 * largest:
        high = low + largest
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1.0, 2.0, 2.5, 5.0, 10.0) if f * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]
