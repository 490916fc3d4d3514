"""Plots in the layout of the paper's figures (extra ``plot``)."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ringstep_ns3.paper.figures import BASELINE
from ringstep_ns3.paper.measure import Key, Row, Samples

if TYPE_CHECKING:
    from ringstep_ns3.paper.report import Report

_NAMES: Final[Mapping[str, str]] = {
    "baseline": "Baseline (DCQCN, ECMP)",
    "priority": "Priority Queue",
    "paper": "Symphony (paper's marker)",
    "late": "Symphony (Late-Start)",
    "gated": "Ringstep's marker, ECMP",
    "planned": "planned paths",
    "ours": "planned paths + Ringstep's marker",
    "balanced": "Balanced paths",
    "imbalance": "Load Imbalance (1.13x)",
    "congestion": "Congestion (Transient)",
    "ecmp_step": "ECMP, path per step",
    "least_loaded": "least loaded uplink",
    "spray": "spray, go-back-N",
    "spray_selective": "spray, selective repeat",
    "ecmp+marker": "ECMP + Ringstep's marker",
    "least_loaded+marker": "least loaded + Ringstep's marker",
}
_PANEL: Final = 8
"""Groups side by side in a study's plot."""
_TALLEST: Final = 2.0
"""Bars above are cut off there, with their height written on them."""


def draw(report: Report) -> bytes | None:
    """Return a figure as PNG; None where matplotlib is not installed."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        return None
    drawing = DRAWINGS[report.figure.drawing]
    canvas = Canvas(figsize=(6.4, 4.8), layout="constrained")
    drawing(canvas, report)
    canvas.suptitle(
        f"{report.figure.heading}: {report.figure.title} ({report.scale}, {report.seeds} seeds)",
        fontsize="medium",
    )
    image = io.BytesIO()
    canvas.savefig(image, format="png", dpi=120)
    return image.getvalue()


def _name(variant: str) -> str:
    return _NAMES.get(variant, variant)


def _overlap_and_rate(canvas: Any, report: Report) -> None:
    upper, lower = canvas.subplots(2, 1, sharex=True)
    _overlap(upper, report)
    for variant, curve in report.curves.get("rate", {}).items():
        lower.plot(curve["time_ms"], curve["rate_pct"], label=_name(variant))
    bounds = next(iter(report.samples.bounds.values()), None)
    if bounds:
        share = 100 * bounds["host_bound"] / bounds["bound"]
        lower.axhline(share, color="black", linestyle="--", label="Theoretical (fabric)")
    lower.set(xlabel="Time (ms)", ylabel="Step completion rate (%)", ylim=(0, 105))
    lower.legend(fontsize="x-small")


def _overlap(axes: Any, report: Report) -> None:
    for variant, curve in report.curves.get("overlap", {}).items():
        (line,) = axes.plot(curve["time_ms"], curve["max_distance"], label=_name(variant))
        axes.plot(curve["time_ms"], curve["max_steps"], color=line.get_color(), linestyle=":")
    axes.axhline(1, color="black", linestyle="--", label="Theoretical")
    axes.set(ylabel="Step overlap: distance\n(dotted: distinct steps)", ylim=(0, None))
    axes.legend(fontsize="x-small")


def _overlap_and_cdf(canvas: Any, report: Report) -> None:
    upper, lower = canvas.subplots(2, 1)
    _overlap(upper, report)
    upper.set(xlabel="Time (ms)")
    _cdf(lower, report.samples, "max_distance", lambda _group, variant: _name(variant))
    lower.set(xlabel="Largest distance of steps on one link")


def _cdf(axes: Any, samples: Samples, metric: str, label: Callable[[str, str], str]) -> None:
    for (group, variant), metrics in samples.values.items():
        _step(axes, list(metrics.get(metric, {}).values()), label(group, variant))
    axes.set(ylabel="CDF", ylim=(0, 1))
    axes.legend(fontsize="x-small")


def _step(axes: Any, values: Sequence[float], label: str, **style: Any) -> None:
    if values:
        ordered = np.sort(np.array(values))
        share = np.arange(1, len(ordered) + 1) / len(ordered)
        axes.step(np.r_[ordered[0], ordered], np.r_[0.0, share], where="post", label=label, **style)


def _cdf_of_time(canvas: Any, report: Report) -> None:
    axes = canvas.subplots()
    _cdf(axes, report.samples, f"{report.figure.time}_ms", lambda _group, variant: _name(variant))
    bounds = next(iter(report.samples.bounds.values()), None)
    if bounds:
        axes.axvline(bounds["bound"], color="black", linestyle="--")
    axes.set(xlabel=f"{report.figure.time.upper()} (ms); dashed: bound of the fabric")


def _cdf_of_span(canvas: Any, report: Report) -> None:
    axes = canvas.subplots()
    _cdf(
        axes,
        report.samples,
        "last_span_ms",
        lambda group, variant: f"job {group}: {_name(variant)}",
    )
    axes.set(xlabel="Span of Last Collective Step (ms)")


def _cdf_of_normalised(canvas: Any, report: Report) -> None:
    axes = canvas.subplots()
    jobs = report.samples.jobs
    for (group, variant), times in jobs.items():
        base = jobs.get((group, BASELINE), {})
        if variant != BASELINE:
            values = [time / base[job] for job, time in times.items() if job in base]
            _step(axes, values, f"{group}: {_name(variant)}")
    axes.axvline(1.0, color="black", linestyle="--", label="Baseline")
    axes.set(xlabel="Normalized JCT", ylabel="CDF", ylim=(0, 1))
    axes.legend(fontsize="x-small")


def _throughput(canvas: Any, report: Report) -> None:
    shown = report.curves.get("throughput", {})
    every = canvas.subplots(max(len(shown), 1), 1, sharex=True, sharey=True, squeeze=False)
    for axes, (variant, jobs) in zip(every[:, 0], shown.items(), strict=False):
        for name, curve in jobs.items():
            label = name if name == "Total" else f"Job {name}"
            axes.plot(curve["time_ms"], curve["gbps"], label=label)
        axes.set_title(_name(variant), fontsize="small")
        axes.set(ylabel="Gbit/s", ylim=(0, None))
    every[0, 0].legend(fontsize="x-small")
    every[-1, 0].set(xlabel="Time (ms)")


def _normalised(rows: Sequence[Row]) -> dict[Key, tuple[float, Row]]:
    return {
        (row.group, row.variant): (1 - row.value / 100, row)
        for row in rows
        if row.metric == "reduction_pct"
    }


def _bars(canvas: Any, report: Report) -> None:
    axes = canvas.subplots()
    groups = report.samples.groups
    _bars_of(axes, report, groups)
    axes.set_xticks(range(len(groups)), groups, rotation=20, ha="right")
    axes.set(ylim=(0, None))
    axes.legend(fontsize="x-small")


def _panels(canvas: Any, report: Report) -> None:
    """Bars of many groups, some to a row."""
    groups = report.samples.groups
    rows = [groups[i : i + _PANEL] for i in range(0, len(groups), _PANEL)] or [[]]
    canvas.set_size_inches(12.8, 1.2 + 2.6 * len(rows))
    every = canvas.subplots(len(rows), 1, squeeze=False)[:, 0]
    tallest = 0.0
    for axes, shown in zip(every, rows, strict=True):
        tallest = max(tallest, _bars_of(axes, report, shown))
        axes.set_xlim(-0.5, _PANEL - 0.5 if len(rows) > 1 else len(shown) - 0.5)
        stacked = [group.replace("/", "\n") for group in shown]
        axes.set_xticks(range(len(shown)), stacked, fontsize="small")
    for axes in every:
        axes.set_ylim(0, min(1.05 * tallest, _TALLEST))
    every[0].legend(fontsize="x-small", ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _bars_of(axes: Any, report: Report, groups: Sequence[str]) -> float:
    """Draw a bar per group and variant with its interval; return the height of the tallest."""
    shown = _normalised(report.rows)
    variants = list(dict.fromkeys(variant for _, variant in shown))
    width = 0.8 / max(len(variants), 1)
    tallest = 1.0
    for i, variant in enumerate(variants):
        where = [j for j, group in enumerate(groups) if (group, variant) in shown]
        found = [shown[groups[j], variant] for j in where]
        middle = np.array([value for value, _ in found])
        low = [0.0 if row.high is None else value - (1 - row.high / 100) for value, row in found]
        high = [0.0 if row.low is None else (1 - row.low / 100) - value for value, row in found]
        at = np.array(where) + (i - (len(variants) - 1) / 2) * width
        axes.bar(
            at,
            middle,
            width,
            yerr=np.maximum(np.array([low, high]), 0.0),
            capsize=2,
            label=_name(variant),
        )
        for x, value, above in zip(at, middle, high, strict=True):
            tallest = max(tallest, value + above)
            if value > _TALLEST:
                axes.text(x, 0.97 * _TALLEST, f"{value:.1f}", rotation=90, fontsize="xx-small",
                          ha="center", va="top")  # fmt: skip
    axes.axhline(1.0, color="black", linestyle="--", label=_name(BASELINE))
    axes.set(ylabel=f"Normalized {report.figure.time.upper()}")
    return float(tallest)


def _by_k(canvas: Any, report: Report) -> None:
    axes = canvas.subplots()
    shown = _normalised(report.rows)
    for group in report.samples.groups:
        points = sorted(
            (float(variant.removeprefix("k=")), value)
            for (each, variant), (value, _) in shown.items()
            if each == group and variant.startswith("k=")
        )
        axes.plot([k for k, _ in points], [value for _, value in points], marker="o", label=group)
    axes.axhline(1.0, color="black", linestyle="--", label=_name(BASELINE))
    axes.set(xscale="log", xlabel="Value of k", ylabel="Normalized CCT")
    axes.legend(fontsize="x-small")


DRAWINGS: Final[Mapping[str, Callable[[Any, Report], None]]] = {
    "overlap_and_rate": _overlap_and_rate,
    "overlap_and_cdf": _overlap_and_cdf,
    "cdf_of_time": _cdf_of_time,
    "cdf_of_span": _cdf_of_span,
    "cdf_of_normalised": _cdf_of_normalised,
    "throughput": _throughput,
    "bars": _bars,
    "panels": _panels,
    "by_k": _by_k,
}
"""Drawing by name; each takes a matplotlib figure and a report."""
