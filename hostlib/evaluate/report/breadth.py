"""Sections on how far gains carry: Figures 14 to 17, the model really trained."""

from __future__ import annotations

from collections.abc import Sequence

from ringstep.hostlib.evaluate.report.chart import Bars, Box, bars, boxes, heat
from ringstep.hostlib.evaluate.report.doc import (
    Grid,
    Section,
    Text,
    charts,
    comparison,
    grids,
    of,
    panels,
)
from ringstep.hostlib.evaluate.report.frame import Frame
from ringstep.hostlib.evaluate.report.performance import CUT, marks_of
from ringstep.hostlib.evaluate.report.read import Measured
from ringstep.hostlib.evaluate.report.shape import Estimate, Table
from ringstep.hostlib.evaluate.report.words import (
    SERIES,
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


def sizes(measured: Sequence[Measured]) -> Section:
    """Return the section on sizes (Figure 14)."""
    section = Section("sizes", "Sizes and levels", "Fig. 14, 5.1.2")
    section.blocks = [
        comparison("Gains over five sizes", measured, of("sizes")),
        *panels(measured, "sizes", lambda e, s: _heat(e, s, e.ours)),
        *charts(measured, "sizes", lambda e, s: _heat(e, s, "oracle")),
        *grids(measured, "sizes", lambda e, s: _table(e.data["sizes"], "size", s)),
    ]
    return section


def _heat(e: Measured, suffix: str, policy: str) -> str | None:
    rows = e.data["sizes"].get(policy)
    if not rows:
        return None
    both = [e.data["sizes"].get(p, {}) for p in (e.ours, "oracle")]
    most = max(
        (abs(c["value"]) for t in both for row in t.values() for c in row.values()
         if c["value"] is not None),
        default=1.0,
    )  # fmt: skip
    levels = list(dict.fromkeys(lv for row in rows.values() for lv in row))
    values = [[row[lv]["value"] if lv in row else None for lv in levels] for row in rows.values()]
    frame = Frame(
        f"Gain by size: {label(policy)}{suffix}",
        "Heat map of less mean latency than NCCL's choice by size and level, each cell with its "
        "number; the table has intervals.",
        "contention, share of the link", "size of the collective", (-most, most), _percent_cell,
    )  # fmt: skip
    return heat(frame, list(rows), [level_name(lv) for lv in levels], values)


def _percent_cell(share: float) -> str:
    """Return a share for a cell of a heat map."""
    return f"{percent(share)} %"


def _table(rows: Table, what: str, suffix: str) -> Grid:
    levels = list(dict.fromkeys(lv for r in rows.values() for row in r.values() for lv in row))
    return Grid(
        f"Mean gain against NCCL's choice in %, by policy and {what}{suffix}",
        ["policy", what, *(level_name(lv) for lv in levels)],
        [[label(n), name, *(_cell(row.get(lv)) for lv in levels)]
         for n, r in rows.items() for name, row in r.items()],
        folded=True, words=frozenset({1}),
    )  # fmt: skip


def _cell(estimate: Estimate | None) -> str:
    return "" if estimate is None else interval(estimate, percent)


def distributions(measured: Sequence[Measured]) -> Section:
    """Return the section on distributions (Figure 15)."""
    section = Section("distributions", "Distributions and paired tests", "Fig. 15, 5.1.2")
    section.blocks = [
        comparison("Tests and spread", measured, of("distribution")),
        Text(
            "Whiskers end at the 5th and 95th percentile, boxes at the 25th and 75th; the bar is "
            "the median."
        ),
        *panels(measured, "distributions", _boxes),
        *grids(measured, "distributions", _quantile_table),
        *grids(measured, "distributions", _test_table),
    ]
    return section


def _boxes(e: Measured, suffix: str) -> str:
    d = e.data["distributions"]
    frame = Frame(
        f"Latency at {level_name(d['level'])}{suffix}",
        "Boxes by policy: 5th, 25th, 50th, 75th and 95th percentile of the latencies of contended "
        "calls. The numbers are in the table.",
        f"latency, {d['unit']}", "policy", show=plain,
    )  # fmt: skip
    return boxes(frame, [
        Box(label(n), style(n), (q["p05"], q["p25"], q["p50"], q["p75"], q["p95"]))
        for n, q in d["policies"].items()
    ])  # fmt: skip


def _quantile_table(e: Measured, suffix: str) -> Grid:
    d = e.data["distributions"]
    rows = [
        [label(n), *(plain(v) for v in (q["p05"], q["p25"], q["p50"], q["p75"], q["p95"])),
         plain(q["mean"]), plain(q["deviation"]), f"{q['n']:,}"]
        for n, q in d["policies"].items()
    ]  # fmt: skip
    return Grid(
        f"Latency at {level_name(d['level'])}, {d['unit']}{suffix}",
        ["policy", "p5", "p25", "median", "p75", "p95", "mean", "standard deviation", "calls"],
        rows,
    )  # fmt: skip


def _test_table(e: Measured, suffix: str) -> Grid:
    rows = [
        [f"{label(t['policy'])} against {label(t['rival'])}", interval(t["gain"], percent, " %"),
         p_value(t["p_value"]), str(t["pairs"])]
        for t in e.data["distributions"]["tests"]
    ]  # fmt: skip
    return Grid(f"Paired sign-flip tests{suffix}",
                ["pair", "less median latency", "two-sided", "pairs"], rows)  # fmt: skip


def workloads(measured: Sequence[Measured]) -> Section:
    """Return the section on six workloads (Figure 16) and the model really trained."""
    section = Section("workloads", "Six workloads", "Fig. 16, 5.2")
    section.blocks = [
        Text("The workloads are communication patterns: gradient buckets of each model in turn."),
        comparison("Gains over six workloads", measured, of("workloads")),
        *panels(measured, "workloads",
                lambda e, s: _table_bars(e, s, e.data["workloads"], "workload", "")),
        *grids(measured, "workloads", lambda e, s: _table(e.data["workloads"], "workload", s)),
    ]  # fmt: skip
    return section


def _table_bars(e: Measured, suffix: str, rows: Table, what: str, marks: str) -> str | None:
    """Draw our gains by label, a bar for each level, and the oracle's at 80 %."""
    ours = rows.get(e.ours)
    if not ours:
        return None
    levels = list(dict.fromkeys(lv for row in ours.values() for lv in row))
    names = list(ours)
    series = [
        Bars(level_name(lv), SERIES[i % len(SERIES)], [bar(ours[n].get(lv)) for n in names])
        for i, lv in enumerate(levels)
    ]
    top = rows.get("oracle", {})
    if any("0.8" in row for row in top.values()):
        series.append(Bars("oracle at 80 %", style("oracle"),
                           [bar(top.get(n, {}).get("0.8")) for n in names]))  # fmt: skip
    frame = Frame(
        f"Less mean latency than NCCL's choice by {what}{suffix}",
        f"Bars: our gain by {what} and level, and the oracle's at 80 %; whiskers: 95 % intervals"
        + ("; diamonds: the paper" if marks else "") + ". The numbers are in the table.",
        what, "less mean latency", CUT, whole_percent,
    )  # fmt: skip
    return bars(frame, names, series, marks_of(marks, names) if marks else ())


def scaling(measured: Sequence[Measured]) -> Section:
    """Return the section on ranks per node and nodes (Figure 17)."""
    section = Section("scaling", "Ranks per node, and nodes", "Fig. 17, 5.3")
    section.blocks = [
        Text("The paper measured under the background load of a shared cluster, whose level it "
             "does not give; beside it stand our gains at 80 %."),
        comparison("Four nodes, more ranks each", measured, of("ranks")),
        *panels(measured, "ranks_per_node", lambda e, s: _table_bars(
            e, s, e.data["ranks_per_node"], "ranks per node", "ranks")),
        *grids(measured, "ranks_per_node",
               lambda e, s: _table(e.data["ranks_per_node"], "ranks per node", s)),
        comparison("One rank each, more nodes", measured, of("nodes")),
        *panels(measured, "nodes", lambda e, s: _table_bars(
            e, s, e.data["nodes"], "nodes", "")),
        *grids(measured, "nodes", lambda e, s: _table(e.data["nodes"], "nodes", s)),
    ]  # fmt: skip
    return section


def trained(measured: Sequence[Measured]) -> Section:
    """Return the section on the model that was really trained."""
    section = Section("trained", "A model really trained", "5.2")
    section.blocks = [
        *panels(measured, "workload_training", _trained_bars),
        *grids(measured, "workload_training", _trained_table),
    ]
    return section


def _trained_bars(e: Measured, suffix: str) -> str:
    rows = e.data["workload_training"]
    policies = list(dict.fromkeys(r["policy"] for r in rows))
    cells = list(dict.fromkeys((r["model"], r["level"]) for r in rows))
    found = {(r["model"], r["level"], r["policy"]): r["step_ms"] for r in rows}
    frame = Frame(
        f"Time of a training step{suffix}",
        "Bars: time of a step by model, level and policy; whiskers: 95 % intervals. The numbers "
        "are in the table.",
        "model, contention", "step, ms", show=plain,
    )  # fmt: skip
    series = [
        Bars(label(p), style(p), [bar(found.get((m, lv, p))) for m, lv in cells]) for p in policies
    ]
    return bars(frame, [f"{m}, {level_name(lv)}" for m, lv in cells], series)


def _trained_table(e: Measured, suffix: str) -> Grid:
    rows = e.data["workload_training"]
    usual = {(r["model"], r["level"]): r["step_ms"]["value"] for r in rows if r["policy"] == "nccl"}
    cells = []
    for r in rows:
        base, value = usual.get((r["model"], r["level"])), r["step_ms"]["value"]
        gain = "" if not base or value is None else percent(1 - value / base)
        cells.append([
            r["model"], label(r["policy"]), level_name(r["level"]), f"{r['steps']:,}",
            interval(r["step_ms"], plain), gain, plain(r["loss_first"]), plain(r["loss_last"]),
            str(r["reconfigurations"]),
        ])  # fmt: skip
    return Grid(
        f"Training steps by policy and level{suffix}",
        ["model", "policy", "level", "steps", "step, ms", "less than NCCL's choice, %",
         "first loss", "last loss", "reconfigurations"], cells, words=frozenset({1}),
    )  # fmt: skip
