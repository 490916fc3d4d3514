"""First and last words of the report: what was found, goals, how it was made, limits.

All of it is computed from the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ringstep.hostlib.evaluate.report.doc import (
    Block,
    Bullets,
    Commands,
    Grid,
    Section,
    Text,
    comparison,
)
from ringstep.hostlib.evaluate.report.measures import LEVELS, MEASURES, NOTHING
from ringstep.hostlib.evaluate.report.paper import NUMBERS, TITLE
from ringstep.hostlib.evaluate.report.read import Measured
from ringstep.hostlib.evaluate.report.shape import Estimate
from ringstep.hostlib.evaluate.report.words import (
    NOT_HERE,
    calls,
    interval,
    label,
    level_name,
    percent,
)

_UNLEARNED = ("threshold", "threshold+trial", "cusum", "cusum+trial", "bandit")
_ALIKE = "not told apart"


def found(measured: Sequence[Measured]) -> Section:
    """Return what was found, in sentences."""
    section = Section("found", "What was found")
    section.blocks.append(Text(
        f"Ringstep's learned tuner beside the paper that it follows, {TITLE}. In brackets: 95 % "
        "intervals."
    ))  # fmt: skip
    for e in measured:
        if len(measured) > 1:
            section.blocks.append(Text(f"{e.name}:"))
        section.blocks.append(Bullets(list(_sentences(e))))
    return section


def _sentences(e: Measured) -> Iterator[str]:
    yield _count(e)
    if gains := e.data.get("gains", {}).get(e.ours):
        for level in ("0.8",) if "0.8" in gains else list(gains)[-1:]:
            g, paper = gains[level], NUMBERS.get(f"gain/{level}")
            yield (
                f"At {level_name(level)} contention the median call takes "
                f"{_less(g['gain_vs_nccl'])} than with NCCL's choice"
                + (f" (in the paper {paper.says})" if paper else "")
                + f"; the best configuration would take {_less(g['oracle_gain'])}."
            )
    versus = e.data.get("versus_autoccl", {}).get(e.ours, {}).get("fair", {})
    if versus:
        yield _against_autoccl({lv: v["gain"] for lv, v in versus.items()})
    detection = e.data.get("detection", {}).get(e.ours, {})
    if detection:
        yield "Contention is found after " + ", ".join(
            f"{interval(row['median'], calls)} calls at {level_name(lv)}"
            for lv, row in detection.items()
        ) + "; in the paper after about 4 at 80 to 90 % and 9 at 50 %."  # fmt: skip
    if w := e.data.get("false_reconfigurations", {}).get(e.ours):
        yield (
            f"{w['spikes']['false_reconfigurations']} of {w['spikes']['spikes']:,} spikes and "
            f"{w['clean']['false_reconfigurations']} of {w['clean']['calls']:,} clean calls caused "
            f"a reconfiguration."
        )
    yield from _rivals(e)


def _count(e: Measured) -> str:
    verdicts = [(m.what, m.verdict(e)) for m in MEASURES if m.goal is not None]

    def number(start: str) -> int:
        return sum(v.startswith(start) for _, v in verdicts)

    missed = [what for what, v in verdicts if v.startswith("missed")]
    parts = [f"{number('reached')} of {len(verdicts)} goals were reached"]
    for start, words in (
        ("missed", "missed"), ("not shown", "not shown"), (NOTHING, "with nothing to gain"),
        ("out of reach", "out of reach by the oracle"), (NOT_HERE, NOT_HERE),
    ):  # fmt: skip
        if n := number(start):
            parts.append(f"{n} {words}")
    return ", ".join(parts) + "." + (f" Missed: {'; '.join(missed)}." if missed else "")


def _less(estimate: Estimate) -> str:
    value = estimate["value"]
    if value is None:
        return "no known time less"
    if value >= 0:
        return f"{interval(estimate, percent, ' %')} less time"
    turned: Estimate = {"value": -value, "low": None, "high": None}
    if estimate["low"] is not None and estimate["high"] is not None:
        turned["low"], turned["high"] = -estimate["high"], -estimate["low"]
    if "n" in estimate:
        turned["n"] = estimate["n"]
    return f"{interval(turned, percent, ' %')} more time"


def _against_autoccl(gains: dict[str, Estimate]) -> str:
    sides: dict[str, list[str]] = {"better": [], "worse": [], _ALIKE: []}
    for level, gain in gains.items():
        if gain["low"] is not None and gain["low"] > 0:
            sides["better"].append(level)
        elif gain["high"] is not None and gain["high"] < 0:
            sides["worse"].append(level)
        else:
            sides[_ALIKE].append(level)
    listed = ", ".join(
        f"{interval(g, percent, ' %')} at {level_name(lv)}" for lv, g in gains.items()
    )
    return (
        f"Against converged AutoCCL: {_at_levels(sides)} (less median latency: {listed}; in the "
        f"paper {NUMBERS['fair/0.8'].says} at 80 %)."
    )


def _at_levels(sides: dict[str, list[str]]) -> str:
    return "; ".join(
        f"{words} at {', '.join(level_name(lv) for lv in levels)}"
        for words, levels in sides.items() if levels
    )  # fmt: skip


def _rivals(e: Measured) -> Iterator[str]:
    """Say by level who is ahead in mean latency, the learned policy or the best unlearned one."""
    gains = e.data.get("gains", {})
    sides: dict[str, list[str]] = {"ahead": [], "behind": [], _ALIKE: []}
    listed = []
    for level in LEVELS:
        rows = [
            (g["value"], name, g) for name in _UNLEARNED
            if name != e.ours and level in gains.get(name, {})
            and (g := gains[name][level]["mean_gain"])["value"] is not None
        ]  # fmt: skip
        if not rows or level not in gains.get(e.ours, {}):
            continue
        _, name, best = max(rows, key=lambda r: (r[0], r[1]))
        mine = gains[e.ours][level]["mean_gain"]
        sides[_compare(mine, best)].append(level)
        listed.append(
            f"at {level_name(level)} ours gains {interval(mine, percent, ' %')}, {label(name)} "
            f"{interval(best, percent, ' %')}"
        )
    if listed:
        yield (
            f"Against the best rival without a learned model, in mean latency: {_at_levels(sides)} "
            f"({'; '.join(listed)})."
        )


def _compare(mine: Estimate, other: Estimate) -> str:
    """Return who is ahead; intervals that overlap tell nothing."""
    if mine["low"] is not None and other["high"] is not None and mine["low"] > other["high"]:
        return "ahead"
    if mine["high"] is not None and other["low"] is not None and mine["high"] < other["low"]:
        return "behind"
    return _ALIKE


def goals(measured: Sequence[Measured]) -> Section:
    """Return all goals with what was reached."""
    section = Section("goals", "Goals and what was reached")
    section.blocks.append(
        comparison("All goals", measured, [m for m in MEASURES if m.goal is not None])
    )
    return section


def made(measured: Sequence[Measured]) -> Section:
    """Return how the results were made."""
    section = Section("made", "How it was made")
    rows = []
    for e in measured:
        about, names = e.data.get("about", {}), e.data.get("environment", [])
        rows.append([
            e.name, about.get("words", ""), e.path.name, str(len(names)) if names else "",
            about.get("seeds", "") or str(e.data.get("seeds", "")),
            about.get("machine", "not said"), label(e.ours),
        ])  # fmt: skip
    section.blocks.append(Grid(
        "Environments",
        ["environment", "what it is", "file", "jobs", "seeds", "machine", "policy"], rows,
        words=frozenset({1, 2, 4, 5, 6}),
    ))  # fmt: skip
    for e in measured:
        if lines := e.data.get("about", {}).get("commands"):
            section.blocks += [Text(f"Commands ({e.name}):"), Commands(lines)]
    return section


def limits(measured: Sequence[Measured]) -> Section:
    """Return what the numbers do not show."""
    section = Section("limits", "Limits")
    items = [
        "The paper measured NCCL on GPUs (Chameleon: P100, 10 Gbit/s; Delta: A100, Slingshot-11). "
        "What is measured here runs on CPUs or in models of a network, so shares of time and "
        "counts of calls are compared, never milliseconds.",
        "The paper's text is what it is compared with; numbers that only its plots show are "
        "missing. It writes \"speedup\" for less latency in per cent, as the tables here do.",
        "Intervals are percentile bootstraps over episodes. Episodes of one job are not "
        "independent of one another, so intervals over few jobs are too narrow. A figure "
        "without brackets has no interval, and its verdict stands on the value alone.",
        "Policies are called ahead or behind of one another where their intervals lie apart. They "
        "met the same jobs and noise, so that a paired test would tell more apart.",
        "No correction is made for the number of goals and comparisons.",
    ]  # fmt: skip
    for e in measured:
        names = e.data.get("environment", [])
        if 0 < len(names) < 10:
            items.append(f"{e.name}: {len(names)} different jobs.")
        items += [f"{e.name}: {words}" for words in e.data.get("about", {}).get("limits", [])]
    blocks: list[Block] = [Bullets(items)]
    section.blocks = blocks
    return section
