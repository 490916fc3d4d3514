"""Sections on the detector: Figures 10, 11 and 12, onsets, test rules, time and overhead."""

from __future__ import annotations

from collections.abc import Sequence

from ringstep.hostlib.evaluate.report.chart import Bars, Line, bars, lines
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
from ringstep.hostlib.evaluate.report.read import Measured
from ringstep.hostlib.evaluate.report.shape import Detection, Wrong
from ringstep.hostlib.evaluate.report.words import (
    SERIES,
    calls,
    calls_bar,
    interval,
    label,
    level_name,
    percent,
    plain,
    style,
    two_digits,
    whole_percent,
)


def cost(measured: Sequence[Measured]) -> Section:
    """Return the section on the time of a decision and the overhead on a clean network."""
    section = Section("cost", "Time of a decision, overhead on a clean network", "4.4, 5.1.2")
    section.blocks = [
        comparison("Time of a decision", measured, of("inference")),
        *missing(measured, "inference_ms"),
        comparison("Overhead", measured, of("overhead")),
        *grids(measured, "clean_overhead_pct", _overheads),
        *missing(measured, "clean_overhead_pct"),
    ]
    return section


def _overheads(e: Measured, suffix: str) -> Grid:
    rows = [
        [label(n), interval(v, two_digits, " %")] for n, v in e.data["clean_overhead_pct"].items()
    ]
    return Grid(f"Mean time beyond NCCL's choice on a clean network, by policy{suffix}",
                ["policy", "overhead"], rows, folded=True)  # fmt: skip


def timeline(measured: Sequence[Measured]) -> Section:
    """Return the section on detection of sustained contention (Figure 10)."""
    section = Section("detection", "How soon contention is found", "Fig. 10, 5.1.1")
    section.blocks = [
        comparison("Calls from the onset to detection, median", measured, of("detect")),
        *panels(measured, "detection", _by_level),
        *grids(measured, "detection", _detections),
        Text("Call by call: latency over the clean one, and the detector's probability of "
             "contention; a dot marks the call after which contention was held for sustained."),
        *panels(measured, "detection_traces", _latencies),
        *charts(measured, "detection_traces", _probabilities),
        *grids(measured, "detection_traces", _traces),
    ]  # fmt: skip
    return section


def _by_level(e: Measured, suffix: str) -> str:
    rows = e.data["detection"]
    levels = list(dict.fromkeys(level for row in rows.values() for level in row))
    frame = Frame(
        f"Calls to detection by level{suffix}",
        "Bars: median calls from the onset to detection, by policy and level; whiskers: 95 % "
        "intervals; diamonds: the paper. The numbers are in the table.",
        "contention, share of the link", "calls, median", limits=(0, 20), show=calls,
    )  # fmt: skip
    series = [
        Bars(label(n), style(n), [calls_bar(r[lv]["median"]) if lv in r else None for lv in levels])
        for n, r in rows.items()
    ]
    marks = [NUMBERS[f"detect/{lv}"].value if f"detect/{lv}" in NUMBERS else None for lv in levels]
    return bars(frame, [level_name(lv) for lv in levels], series, marks)


def _detection_row(name: str, level: str, row: Detection) -> list[str]:
    return [
        name, level_name(level), interval(row["median"], calls),
        "beyond the episode" if row["p90"] is None else calls(row["p90"]),
        percent(row["found"]), f"{row['false_alarms']} in {row['episodes']} episodes",
    ]  # fmt: skip


_DETECTION_HEAD = ("level", "calls, median", "calls, p90", "found %", "alarms before the onset")


def _detections(e: Measured, suffix: str) -> Grid:
    rows = [
        _detection_row(label(n), level, row)
        for n, levels in e.data["detection"].items()
        for level, row in levels.items()
    ]
    return Grid(f"Detection by policy and level{suffix}", ["policy", *_DETECTION_HEAD], rows,
                folded=True)  # fmt: skip


def _latencies(e: Measured, suffix: str) -> str:
    return _trace_lines(
        e, "ratio", f"Latency around an onset{suffix}", "latency / clean latency", ()
    )


def _probabilities(e: Measured, suffix: str) -> str:
    return _trace_lines(
        e, "probability", f"Probability of contention around an onset{suffix}", "probability",
        ((0.95, "the paper's 0.95"), (0.05, "the paper's 0.05")),
    )  # fmt: skip


def _trace_lines(
    e: Measured, key: str, title: str, y: str, rules: Sequence[tuple[float, str]]
) -> str:
    traces = e.data["detection_traces"]
    series, dots = [], {}
    for i, t in enumerate(traces):
        values = t["ratio"] if key == "ratio" else t["probability"]
        name = level_name(t["level"])
        series.append(Line(name, SERIES[i % len(SERIES)], range(len(values)), values))
        if t["found"] is not None:
            dots[name] = float(t["found"])
    onsets = sorted({t["onset"] for t in traces})
    alt = "Lines by call, one for each level: " + "; ".join(
        f"{level_name(t['level'])}: onset at call {t['onset']}, "
        + ("never found" if t["found"] is None else f"found after call {t['found']}")
        for t in traces
    )
    frame = Frame(title, alt + ".", "call", y, (0.0, 1.0) if rules else None, plain)
    return lines(frame, series, rules, [(float(o), "onset") for o in onsets[:1]], dots)


def _traces(e: Measured, suffix: str) -> Grid:
    rows = []
    for t in e.data["detection_traces"]:
        found, switched = t["found"], t.get("switched")
        rows.append([
            level_name(t["level"]), str(t["onset"]),
            "never" if found is None else str(found),
            "" if found is None else str(found - t["onset"] + 1),
            "none" if switched is None else str(switched),
            plain(max(t["ratio"])),
        ])  # fmt: skip
    return Grid(
        f"The episodes shown{suffix}",
        ["level", "onset, call", "found after call", "calls it took", "first call reconfigured",
         "most latency / clean"], rows, folded=True,
    )  # fmt: skip


def spikes(measured: Sequence[Measured]) -> Section:
    """Return the section on false reconfigurations (Figure 11)."""
    section = Section("spikes", "Spikes and clean calls are left alone", "Fig. 11, 5.1.1")
    section.blocks = [
        Text("Six spikes of two calls in an episode, two each at 30, 40 and 50 %. Intervals are "
             "exact for counts and take events to come independently of one another."),
        comparison("Reconfigurations for nothing", measured, of("false")),
        *panels(measured, "false_reconfigurations", _false_bars),
        *grids(measured, "false_reconfigurations", _falses),
    ]  # fmt: skip
    return section


def _false_bars(e: Measured, suffix: str) -> str:
    frame = Frame(
        f"Reconfigurations for nothing{suffix}",
        "Bars: reconfigurations that spikes caused, and on a clean network, by policy. The numbers "
        "are in the table.",
        "episodes", "reconfigurations", (0, 20), plain,
    )  # fmt: skip
    rows = e.data["false_reconfigurations"]
    series = [
        Bars(label(n), style(n), [Value(w["spikes"]["false_reconfigurations"]),
                                  Value(w["clean"]["false_reconfigurations"])])
        for n, w in rows.items()
    ]  # fmt: skip
    n_spikes = max(w["spikes"]["spikes"] for w in rows.values())
    n_calls = max(w["clean"]["calls"] for w in rows.values())
    return bars(frame, [f"{n_spikes:,} spikes", f"{n_calls:,} clean calls"], series, [0.0, None])


def _false_row(w: Wrong) -> list[str]:
    return [
        f"{w['spikes']['false_reconfigurations']} of {w['spikes']['spikes']:,}",
        str(w["spikes"]["false_alarms"]),
        f"{w['clean']['false_reconfigurations']} in {w['clean']['calls']:,}",
        str(w["clean"]["false_alarms"]),
    ]


_FALSE_HEAD = ("spikes that reconfigured", "alarms, spikes", "clean calls that reconfigured",
               "alarms, clean")  # fmt: skip


def _falses(e: Measured, suffix: str) -> Grid:
    rows = [[label(n), *_false_row(w)] for n, w in e.data["false_reconfigurations"].items()]
    return Grid(f"False alarms and reconfigurations by policy{suffix}", ["policy", *_FALSE_HEAD],
                rows, folded=True)  # fmt: skip


def onsets(measured: Sequence[Measured]) -> Section:
    """Return the section on onsets at calls 10, 20 and 30."""
    section = Section("onsets", "The onset's time does not matter", "5.1.1")
    section.blocks = [
        comparison("Calls to detection at 80 %, median", measured, of("onset")),
        *panels(measured, "onsets", _onset_bars),
        *grids(measured, "onsets", _onset_table),
    ]
    return section


def _onset_bars(e: Measured, suffix: str) -> str:
    rows = e.data["onsets"]
    at = list(dict.fromkeys(o for row in rows.values() for o in row))
    frame = Frame(
        f"Calls to detection by onset{suffix}",
        "Bars: median calls to detection for each onset, by policy; whiskers: 95 % intervals. The "
        "numbers are in the table.",
        "onset, call", "calls, median", limits=(0, 20), show=calls,
    )  # fmt: skip
    series = [
        Bars(label(n), style(n), [calls_bar(row.get(o)) for o in at]) for n, row in rows.items()
    ]  # fmt: skip
    return bars(frame, at, series)


def _onset_table(e: Measured, suffix: str) -> Grid:
    rows = e.data["onsets"]
    at = list(dict.fromkeys(o for row in rows.values() for o in row))
    return Grid(
        f"Calls to detection by policy and onset{suffix}", ["policy", *(f"call {o}" for o in at)],
        [[label(n), *(interval(row.get(o), calls) for o in at)] for n, row in rows.items()],
        folded=True,
    )  # fmt: skip


def transitions(measured: Sequence[Measured]) -> Section:
    """Return the section on changing load (Figure 12)."""
    section = Section("transitions", "Escalating, de-escalating and ending load", "Fig. 12, 5.1.1")
    section.blocks = [
        Text("Load is 0, then 60 and 80 % (escalating), 80 and 60 % (de-escalating), or 80 and 0 % "
             "(ending, which the paper does not have). Gains are medians over episodes of each "
             "phase's mean latency against NCCL's choice, detection and trials included."),
        comparison("Changing load", measured, of("transition")),
        *panels(measured, "transitions", _phase_bars),
        *grids(measured, "transitions", _phases),
    ]  # fmt: skip
    return section


def _phase_bars(e: Measured, suffix: str) -> str:
    rows = e.data["transitions"]
    plans = list(dict.fromkeys(p for row in rows.values() for p in row))
    keys = (("first_phase_gain", "1st"), ("second_phase_gain", "2nd"))
    frame = Frame(
        f"Gain by phase{suffix}",
        "Bars: gain against NCCL's choice in each phase, by policy. The numbers are in the table.",
        "load, phase", "less mean latency", limits=(-0.6, 0.6), show=whole_percent,
    )  # fmt: skip
    series = []
    for name, row in rows.items():
        found = [
            row[p]["first_phase_gain" if k == "first_phase_gain" else "second_phase_gain"]
            if p in row else None
            for p in plans for k, _ in keys
        ]  # fmt: skip
        series.append(Bars(label(name), style(name),
                           [None if v is None else Value(v) for v in found]))  # fmt: skip
    return bars(frame, [f"{p}, {n}" for p in plans for _, n in keys], series)


def _phases(e: Measured, suffix: str) -> Grid:
    def cell(value: float | None) -> str:
        return "" if value is None else percent(value)

    rows = [
        [label(n), plan, cell(r["first_phase_gain"]), cell(r["second_phase_gain"]),
         plain(r["reconfigurations"]), percent(r["in_force_at_the_end"])]
        for n, plans in e.data["transitions"].items()
        for plan, r in plans.items()
    ]  # fmt: skip
    return Grid(
        f"Changing load by policy{suffix}",
        ["policy", "load", "gain 1st phase %", "gain 2nd phase %", "reconfigurations, mean",
         "reconfigured at the end %"], rows, folded=True, words=frozenset({1}),
    )  # fmt: skip


def rules(measured: Sequence[Measured]) -> Section:
    """Return the section that compares test rules."""
    section = Section("rules", "Test rules: sequence, Wald, the paper's", "equation 2, algorithm 2")
    section.blocks = [
        Text("Each rule with a detector trained for it. Sequence: Wald's test on a sum of log "
             "likelihood ratios. Wald: his bounds on the posterior's log odds. Paper: thresholds "
             "0.95 and 0.05 on the posterior."),
        *panels(measured, "rules", _rule_bars),
        *grids(measured, "rules", _rule_table),
        *grids(measured, "rules", _rule_falses),
    ]  # fmt: skip
    return section


def _rule_bars(e: Measured, suffix: str) -> str:
    found = e.data["rules"]
    levels = list(dict.fromkeys(level for r in found.values() for level in r["detection"]))
    frame = Frame(
        f"Calls to detection by test rule{suffix}",
        "Bars: median calls to detection by rule and level; whiskers: 95 % intervals. The numbers "
        "are in the table.",
        "contention, share of the link", "calls, median", limits=(0, 20), show=calls,
    )  # fmt: skip
    series = [
        Bars(name, SERIES[i % len(SERIES)],
             [calls_bar(d["median"]) if (d := r["detection"].get(lv)) else None for lv in levels])
        for i, (name, r) in enumerate(found.items())
    ]  # fmt: skip
    return bars(frame, [level_name(lv) for lv in levels], series)


def _rule_table(e: Measured, suffix: str) -> Grid:
    rows = [
        _detection_row(name, level, row)
        for name, r in e.data["rules"].items()
        for level, row in r["detection"].items()
    ]
    return Grid(f"Detection by test rule{suffix}", ["rule", *_DETECTION_HEAD], rows)


def _rule_falses(e: Measured, suffix: str) -> Grid:
    rows = [[n, *_false_row(r["false_reconfigurations"])] for n, r in e.data["rules"].items()]
    return Grid(f"False alarms and reconfigurations by test rule{suffix}", ["rule", *_FALSE_HEAD],
                rows)  # fmt: skip
