"""Sections on latency: Figure 13, the oracle, rivals, safety."""

from __future__ import annotations

from collections.abc import Sequence

from ringstep.hostlib.evaluate.report.chart import Bars, bars
from ringstep.hostlib.evaluate.report.doc import (
    Grid,
    Section,
    Text,
    charts,
    comparison,
    grids,
    missing,
    of,
    panels,
)
from ringstep.hostlib.evaluate.report.frame import Frame, Value
from ringstep.hostlib.evaluate.report.paper import NUMBERS
from ringstep.hostlib.evaluate.report.read import Measured, is_number
from ringstep.hostlib.evaluate.report.shape import Gain
from ringstep.hostlib.evaluate.report.words import (
    bar,
    interval,
    label,
    level_name,
    p_value,
    percent,
    plain,
    style,
    whole_percent,
)

CUT = (-0.6, 1.0)
"""Axes of gains end here: some rivals lose many times NCCL's latency."""


def marks_of(prefix: str, levels: Sequence[str]) -> list[float | None]:
    """Return the paper's values for categories of a chart."""
    return [p.value if (p := NUMBERS.get(f"{prefix}/{lv}")) else None for lv in levels]


def _levels(rows: Sequence[str]) -> list[str]:
    return [lv for lv in rows if float(lv) > 0]


def latency(measured: Sequence[Measured]) -> Section:
    """Return the section on latency by level in both regimes (Figure 13)."""
    section = Section("latency", "Latency by level of contention", "Fig. 13, 5.1.2")
    section.blocks = [
        Text("Less median latency, detection and trials included. Against NCCL's choice over all "
             "calls from the onset on. Against AutoCCL in two regimes: equal, where contention is "
             "there from the first call on and all start at once, and fair, where AutoCCL has "
             "clean calls before to converge."),
        comparison("Against NCCL's choice", measured, of("gain")),
        *panels(measured, "gains", _gain_bars),
        *grids(measured, "gains", _gain_table),
        comparison("Against AutoCCL", measured, of("fair", "equal", "nccl")),
        *panels(measured, "versus_autoccl", lambda e, s: _versus_bars(e, s, "fair")),
        *charts(measured, "versus_autoccl", lambda e, s: _versus_bars(e, s, "equal")),
        *grids(measured, "versus_autoccl", _versus_table),
    ]  # fmt: skip
    return section


def _gain_bars(e: Measured, suffix: str) -> str:
    rows = e.data["gains"]
    shown = [n for n in dict.fromkeys((e.ours, f"{e.ours}+calibration", "autoccl")) if n in rows]
    levels = _levels(list(dict.fromkeys(lv for n in shown for lv in rows[n])))
    series = [
        Bars(label(n), style(n),
             [bar(rows[n][lv]["gain_vs_nccl"]) if lv in rows[n] else None for lv in levels])
        for n in shown
    ]  # fmt: skip
    if shown:
        top = rows[shown[0]]
        best = [bar(top[lv]["oracle_gain"]) if lv in top else None for lv in levels]
        series.append(Bars(label("oracle"), style("oracle"), best))
    frame = Frame(
        f"Against NCCL's choice, by level{suffix}",
        "Bars: less median latency than NCCL's choice, by level; whiskers: 95 % intervals; "
        "diamonds: the paper. The numbers are in the table.",
        "contention, share of the link", "less median latency", CUT, whole_percent,
    )  # fmt: skip
    return bars(frame, [level_name(lv) for lv in levels], series, marks_of("gain", levels))


def _gain_row(name: str, level: str, g: Gain) -> list[str]:
    return [
        label(name), level_name(level), interval(g["gain_vs_nccl"], percent),
        interval(g["settled_gain"], percent), interval(g["mean_gain"], percent),
        interval(g["oracle_gain"], percent), p_value(g["p_value"]), plain(g["reconfigurations"]),
    ]  # fmt: skip


def _gain_table(e: Measured, suffix: str) -> Grid:
    rows = [
        _gain_row(name, level, g)
        for name, levels in e.data["gains"].items() for level, g in levels.items()
    ]  # fmt: skip
    return Grid(
        f"Gains against NCCL's choice in %, by policy and level{suffix}",
        ["policy", "level", "median", "median, settled", "mean", "oracle, median",
         "mean differs from 0", "reconfigurations"], rows, folded=True,
    )  # fmt: skip


def _versus_bars(e: Measured, suffix: str, regime: str) -> str | None:
    rows = e.data["versus_autoccl"]
    shown = [n for n in dict.fromkeys((e.ours, f"{e.ours}+calibration", "nccl"))
             if n in rows and regime in rows[n]]  # fmt: skip
    levels = list(dict.fromkeys(lv for n in shown for lv in rows[n][regime]))
    if not levels:
        return None
    series = [
        Bars(label(n), style(n),
             [bar(rows[n][regime][lv]["gain"]) if lv in rows[n][regime] else None for lv in levels])
        for n in shown
    ]  # fmt: skip
    who = {"fair": "converged AutoCCL", "equal": "AutoCCL while it searches"}[regime]
    frame = Frame(
        f"Against {who} ({regime}){suffix}",
        f"Bars: less median latency than {who}, by level; whiskers: 95 % intervals; diamonds: the "
        "paper. The numbers are in the table.",
        "contention, share of the link", "less median latency", CUT, whole_percent,
    )  # fmt: skip
    return bars(frame, [level_name(lv) for lv in levels], series, marks_of(regime, levels))


def _versus_table(e: Measured, suffix: str) -> Grid:
    rows = [
        [label(n), regime, level_name(level), interval(v["gain"], percent),
         interval(v["settled_gain"], percent), interval(v["mean_gain"], percent),
         p_value(v["p_value"])]
        for n, regimes in e.data["versus_autoccl"].items() if n != "autoccl"
        for regime, levels in regimes.items() for level, v in levels.items()
    ]  # fmt: skip
    return Grid(
        f"Gains against AutoCCL in %, by policy, regime and level{suffix}",
        ["policy", "regime", "level", "median", "median, settled", "mean", "median differs from 0"],
        rows, folded=True, words=frozenset({1}),
    )  # fmt: skip


def oracle(measured: Sequence[Measured]) -> Section:
    """Return the section on shares of the oracle's gain."""
    section = Section("oracle", "How much of what is there is gained", "no figure of the paper")
    section.blocks = [
        Text("The oracle runs the best configuration of each level, known by sweep, from the first "
             "call on. Shares are of mean times, so that detection, trials and checks count."),
        comparison("Share of the oracle's gain", measured, of("share")),
        *panels(measured, "gains", _share_bars),
        *grids(measured, "gains", _share_table),
    ]  # fmt: skip
    return section


def _share_bars(e: Measured, suffix: str) -> str:
    rows = {n: r for n, r in e.data["gains"].items() if n != "nccl"}
    levels = _levels(list(dict.fromkeys(lv for r in rows.values() for lv in r)))
    frame = Frame(
        f"Share of the oracle's gain, by policy{suffix}",
        "Bars: share of the oracle's gain by policy and level; whiskers: 95 % intervals; arrows: "
        "values beyond the axis. The numbers are in the table.",
        "contention, share of the link", "share of the oracle's gain", (-0.5, 1.0), whole_percent,
    )  # fmt: skip
    series = [
        Bars(label(n), style(n),
             [bar(r[lv]["share_of_oracle"]) if lv in r else None for lv in levels])
        for n, r in rows.items()
    ]  # fmt: skip
    return bars(frame, [level_name(lv) for lv in levels], series, [0.9] * len(levels), "goal")


def _share_table(e: Measured, suffix: str) -> Grid:
    rows = e.data["gains"]
    levels = _levels(list(dict.fromkeys(lv for r in rows.values() for lv in r)))
    return Grid(
        f"Share of the oracle's gain in %, by policy and level{suffix}",
        ["policy", *(level_name(lv) for lv in levels)],
        [[label(n), *(interval(r[lv]["share_of_oracle"], percent, none="nothing to gain")
                      if lv in r else "" for lv in levels)] for n, r in rows.items()],
    )  # fmt: skip


def rivals(measured: Sequence[Measured]) -> Section:
    """Return the section on policies without a learned model."""
    section = Section("rivals", "Rivals without a learned model", "no figure of the paper")
    section.blocks = [
        Text("A learned model that a threshold rule beats has not earned its place. Mean gains "
             "against NCCL's choice, with and without the trial window that rolls back what is "
             "not better; all policies meet the same jobs and noise."),
        *panels(measured, "gains", _rival_bars),
        *grids(measured, "gains", _rival_table),
    ]  # fmt: skip
    return section


def _rival_bars(e: Measured, suffix: str) -> str:
    rows = {n: r for n, r in e.data["gains"].items() if n != "nccl"}
    levels = _levels(list(dict.fromkeys(lv for r in rows.values() for lv in r)))
    frame = Frame(
        f"Mean gain by policy{suffix}",
        "Bars: less mean latency than NCCL's choice, by policy and level; whiskers: 95 % "
        "intervals; arrows: values beyond the axis. The numbers are in the table.",
        "contention, share of the link", "less mean latency", CUT, whole_percent,
    )  # fmt: skip
    series = [
        Bars(label(n), style(n), [bar(r[lv]["mean_gain"]) if lv in r else None for lv in levels])
        for n, r in rows.items()
    ]
    return bars(frame, [level_name(lv) for lv in levels], series)


def _rival_table(e: Measured, suffix: str) -> Grid:
    rows = e.data["gains"]
    levels = _levels(list(dict.fromkeys(lv for r in rows.values() for lv in r)))
    return Grid(
        f"Mean gain against NCCL's choice in %, by policy and level{suffix}",
        ["policy", *(level_name(lv) for lv in levels)],
        [[label(n), *(interval(r[lv]["mean_gain"], percent) if lv in r else "" for lv in levels)]
         for n, r in rows.items()],
    )  # fmt: skip


def safety(measured: Sequence[Measured]) -> Section:
    """Return the section on losses against NCCL's choice."""
    section = Section("safety", "Never much worse than NCCL's choice", "no figure of the paper")
    section.blocks = [
        comparison("Losses over whole episodes", measured, of("safety")),
        *grids(measured, "safety", _losses),
        *missing(measured, "safety"),
        *panels(measured, "gains", _worst_bars),
        *grids(measured, "gains", _worsts),
    ]
    return section


def _losses(e: Measured, suffix: str) -> Grid:
    s = e.data["safety"]
    rows = [
        [label(n), level_name(kind) if is_number(kind) else kind, percent(row["worst"]),
         f"{row['over']} of {row['episodes']}"]
        for n, kinds in s["losses"].items() for kind, row in kinds.items()
    ]  # fmt: skip
    return Grid(
        f"Worst losses in %, stated bound {percent(s['budget'])} %{suffix}",
        ["policy", "episodes", "worst", "beyond the bound"], rows, words=frozenset({1}),
    )  # fmt: skip


def _worst_bars(e: Measured, suffix: str) -> str:
    rows = e.data["gains"]
    levels = list(dict.fromkeys(lv for r in rows.values() for lv in r))
    frame = Frame(
        f"The worst episode{suffix}",
        "Bars: time from call 20 on of the worst episode, beyond NCCL's choice, by policy and "
        "level; arrows: values beyond the axis. The numbers are in the table.",
        "contention, share of the link", "time lost", (-0.6, 0.6), whole_percent,
    )  # fmt: skip
    series = [
        Bars(label(n), style(n), [
            Value(w) if lv in r and (w := r[lv]["worst_episode"]) is not None else None
            for lv in levels
        ])
        for n, r in rows.items() if n != "nccl"
    ]  # fmt: skip
    return bars(frame, [level_name(lv) for lv in levels], series)


def _worsts(e: Measured, suffix: str) -> Grid:
    rows = e.data["gains"]
    levels = list(dict.fromkeys(lv for r in rows.values() for lv in r))

    def cell(gain: Gain | None) -> str:
        worst = None if gain is None else gain["worst_episode"]
        return "" if worst is None else percent(worst)

    return Grid(
        f"Mean time of the worst episode beyond NCCL's choice in %, from call 20 on{suffix}",
        ["policy", *(level_name(lv) for lv in levels)],
        [[label(n), *(cell(r.get(lv)) for lv in levels)] for n, r in rows.items()],
    )  # fmt: skip
