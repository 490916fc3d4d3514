"""How numbers, policies and levels are written and coloured, in every table and chart alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from ringstep.hostlib.evaluate.report.frame import Style, Value
from ringstep.hostlib.evaluate.report.shape import Estimate

Format = Callable[[float], str]
NOT_HERE: Final = "not measured"
NOT_MEASURED: Final = "Not measured in this environment"

_LABELS: Final = {
    "oracle": "oracle (best by sweep)",
    "dynamic": "ours",
    "dynamic+calibration": "ours, calibrated",
    "nccl": "NCCL's choice",
    "autoccl": "AutoCCL",
    "threshold": "threshold rule",
    "threshold+trial": "threshold rule, trial",
    "cusum": "CUSUM",
    "cusum+trial": "CUSUM, trial",
    "bandit": "bandit (UCB)",
}
_STYLES: Final = {
    "dynamic": Style(0),
    "dynamic+calibration": Style(0, hollow=True, dash="6 3"),
    "nccl": Style(7),
    "autoccl": Style(1),
    "threshold": Style(2, hollow=True, dash="6 3"),
    "threshold+trial": Style(2),
    "cusum": Style(3, hollow=True, dash="6 3"),
    "cusum+trial": Style(3),
    "bandit": Style(4),
    "oracle": Style(6, hollow=True, dash="2 3"),
}
SERIES: Final = (Style(0), Style(1, dash="6 3"), Style(2, dash="2 3"), Style(3, dash="9 3 2 3"))
"""Of lines that are no policies, in this order."""


def label(policy: str) -> str:
    """Return a policy's name for readers."""
    return _LABELS.get(policy, policy)


def style(policy: str) -> Style:
    """Return a policy's look, the same in all charts."""
    return _STYLES.get(policy, Style(5))


def level_name(level: str | float) -> str:
    """Return a level of contention for readers: 0.8 is 80 %."""
    return f"{100 * float(level):g} %"


def _minus(text: str) -> str:
    """Write a true minus, and none before 0."""
    if text.startswith("-"):
        return text[1:] if not text.strip("-0.,") else "\N{MINUS SIGN}" + text[1:]
    return text


def percent(share: float) -> str:
    """Return a share as a number of per cent, without the unit."""
    return _minus(f"{100 * share:,.1f}" if abs(share) < 9.995 else f"{100 * share:,.0f}")


def two_digits(value: float) -> str:
    """Return a number with two digits after the point."""
    return _minus(f"{value:.2f}")


def whole_percent(share: float) -> str:
    """Return a share for an axis."""
    return _minus(f"{100 * share:.3g} %" if abs(share) < 9.995 else f"{100 * share:,.0f} %")


def plain(value: float) -> str:
    """Return a number with three significant digits, or whole."""
    if value == 0 or abs(value) >= 1000:
        return _minus(f"{value:,.0f}")
    return _minus(f"{value:.3g}")


def calls(value: float) -> str:
    """Return a number of calls; halves come from medians of an even number of episodes."""
    return f"{value:g}" if math.isfinite(value) else "never"


def p_value(value: float | None) -> str:
    """Return a p-value."""
    if value is None:
        return ""
    return "p < 0.0001" if value < 1e-4 else f"p = {value:.2g}"


def interval(estimate: Estimate | None, show: Format, unit: str = "", none: str = "never") -> str:
    """Return an estimate with its interval: 9.3 % (5.0 … 12.3).

    Args:
        estimate: None: it was not measured.
        show: writes one number.
        unit: follows the value.
        none: stands for a null.
    """
    if estimate is None:
        return NOT_HERE
    low, value, high = (estimate["low"], estimate["value"], estimate["high"])
    written = none if value is None else show(value) + unit
    if estimate.get("n") == 1 or (value is None and low is None and high is None):
        return written
    ends = [none if v is None else show(v) for v in (low, high)]
    return f"{written} ({ends[0]} … {ends[1]})"


def bar(estimate: Estimate | None) -> Value | None:
    """Return an estimate for a chart."""
    if estimate is None or estimate["value"] is None:
        return None
    return Value(estimate["value"], estimate["low"], estimate["high"])


def calls_bar(estimate: Estimate | None) -> Value | None:
    """Return a number of calls for a chart; a null is "never", beyond every axis."""
    if estimate is None:
        return None
    value, low, high = (
        math.inf if v is None else v for v in (estimate["value"], estimate["low"], estimate["high"])
    )
    return Value(value, low, high)
