"""Single figures with their source in a result, and the goals that they are held to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from ringstep.hostlib.evaluate.attribution import GROUPS
from ringstep.hostlib.evaluate.report.paper import NUMBERS, Paper
from ringstep.hostlib.evaluate.report.read import Measured
from ringstep.hostlib.evaluate.report.shape import Estimate
from ringstep.hostlib.evaluate.report.words import (
    NOT_HERE,
    Format,
    calls,
    interval,
    level_name,
    percent,
    plain,
    two_digits,
)

NOTHING: Final = "nothing to gain"
CLEAN_CALLS: Final = 10_000
"""Over which no reconfiguration is to be for nothing."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What was to be reached: at most or at least a limit."""

    words: str
    limit: float
    at_most: bool = False

    def met(self, value: float) -> bool:
        """Say whether a value is on the right side."""
        return value <= self.limit if self.at_most else value >= self.limit


@dataclass(frozen=True, slots=True)
class Seen:
    """What one environment gave.

    Attributes:
        estimate: the figure.
        note: follows it in tables.
        there: the most that any configuration could have given; a goal beyond it is out of reach.
        exact: a count that stands for itself: its interval does not enter the verdict.
        short: why too little was measured to say that a goal was reached; empty: enough was.
    """

    estimate: Estimate
    note: str = ""
    there: float | None = None
    exact: bool = False
    short: str = ""


@dataclass(frozen=True, slots=True)
class Measure:
    """A row of a comparison.

    Attributes:
        id: also of the paper's number.
        what: for readers, with what is better where that is not plain.
        get: finds it; None: it was not measured.
        show: writes one number.
        unit: follows it.
        none: stands for a null.
        goal: None: there is none.
    """

    id: str
    what: str
    get: Callable[[Measured], Seen | None]
    show: Format = percent
    unit: str = " %"
    none: str = NOTHING
    goal: Goal | None = None

    @property
    def section(self) -> str:
        """The first part of the id."""
        return self.id.partition("/")[0]

    @property
    def paper(self) -> Paper | None:
        """What the paper says; None: nothing."""
        return NUMBERS.get(self.id)

    def ours(self, measured: Measured) -> str:
        """Return the cell for an environment."""
        seen = self.get(measured)
        if seen is None:
            return NOT_HERE
        return interval(seen.estimate, self.show, self.unit, self.none) + seen.note

    def verdict(self, measured: Measured) -> str:
        """Say whether the goal was reached there."""
        if self.goal is None:
            return ""
        seen = self.get(measured)
        if seen is None:
            return NOT_HERE
        value, low, high = (seen.estimate[k] for k in ("value", "low", "high"))
        if value is None:
            return NOTHING if self.none == NOTHING else "missed"
        if self.goal.met(value):
            if seen.short:
                return f"not shown: {seen.short}"
            worst = high if self.goal.at_most else low
            if seen.exact or (worst is not None and self.goal.met(worst)):
                return "reached"
            return "reached; the interval reaches beyond the goal"
        if seen.there is not None and not self.goal.met(seen.there):
            return f"out of reach: the oracle gains {percent(seen.there)} %"
        best = low if self.goal.at_most else high
        if not seen.exact and best is not None and self.goal.met(best):
            return "missed; the goal is within the interval"
        return "missed"


def point(value: float, n: int = 1) -> Estimate:
    """Return a figure without an interval."""
    return {"value": value, "low": value, "high": value, "n": n}


def counted(count: int) -> Estimate:
    """Return a count with its exact 95 % interval, events taken to come independently."""

    def at_most(k: int, mean: float) -> float:
        return sum(math.exp(-mean + i * math.log(mean) - math.lgamma(i + 1)) for i in range(k + 1))

    def solve(k: int, chance: float) -> float:
        low, high = 1e-9, 2.0 * k + 20.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most(k, middle) > chance else (low, middle)
        return low

    below = solve(count - 1, 0.975) if count else 0.0
    return {"value": float(count), "low": below, "high": solve(count, 0.025)}


def _dig(measured: Measured, *keys: str) -> Any:
    """Return what lies under the keys; None: a key is missing."""
    found: Any = measured.data
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def _at(*keys: str) -> Callable[[Measured], Seen | None]:
    """Return what finds an estimate or a number; ``*`` stands for the policy."""

    def get(measured: Measured) -> Seen | None:
        found = _dig(measured, *(measured.ours if k == "*" else k for k in keys))
        if found is None:
            return None
        return Seen(cast(Estimate, found) if isinstance(found, dict) else point(found))

    return get


def _share(key: str, turn: bool = False) -> Callable[[Measured], Seen | None]:
    def get(measured: Measured) -> Seen | None:
        found = _dig(measured, "training", "detector", "metrics", key)
        return None if found is None else Seen(point(1 - found if turn else found))

    return get


def _best_epoch(network: str) -> Callable[[Measured], Seen | None]:
    def get(measured: Measured) -> Seen | None:
        curve = _dig(measured, "training", network, "metrics", "curve") or []
        held = [(row[1], i) for i, row in enumerate(curve) if row[1] is not None]
        return Seen(point(1 + min(held)[1]), f" of {len(curve)}") if held else None

    return get


def _gain(level: str) -> Callable[[Measured], Seen | None]:
    def get(measured: Measured) -> Seen | None:
        row = _dig(measured, "gains", measured.ours, level)
        if row is None:
            return None
        return Seen(row["gain_vs_nccl"], there=row["oracle_gain"]["value"])

    return get


def _wrong(kind: str, of: str) -> Callable[[Measured], Seen | None]:
    def get(measured: Measured) -> Seen | None:
        found = _dig(measured, "false_reconfigurations", measured.ours, kind)
        if found is None:
            return None
        estimate = counted(found["false_reconfigurations"])
        few = kind == "clean" and found[of] < CLEAN_CALLS
        return Seen(
            estimate, f" in {found[of]:,} {of}", exact=True,
            short=f"fewer than {CLEAN_CALLS:,} calls" if few else "",
        )  # fmt: skip

    return get


def _onset_spread(measured: Measured) -> Seen | None:
    rows = _dig(measured, "onsets", measured.ours)
    if not rows or any(row["value"] is None for row in rows.values()):
        return None
    values = [row["value"] for row in rows.values()]
    return Seen(point(max(values) - min(values)))


def table_values(measured: Measured, key: str, levels: Sequence[str] = ()) -> list[float]:
    """Return all gains of the policy in a table, at some levels or all."""
    rows = _dig(measured, key, measured.ours) or {}
    return [
        cell["value"] for row in rows.values() for level, cell in row.items()
        if cell["value"] is not None and (not levels or level in levels)
    ]  # fmt: skip


def _of_table(
    key: str, figure: Callable[[list[float]], float], *levels: str
) -> Callable[[Measured], Seen | None]:
    def get(measured: Measured) -> Seen | None:
        values = table_values(measured, key, levels)
        return Seen(point(figure(values))) if values else None

    return get


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _test(rival: str) -> Callable[[Measured], Seen | None]:
    def get(measured: Measured) -> Seen | None:
        for test in _dig(measured, "distributions", "tests") or []:
            if test["policy"] == measured.ours and test["rival"] == rival:
                return Seen(point(test["p_value"]), f" over {test['pairs']} pairs")
        return None

    return get


def _variation(measured: Measured) -> Seen | None:
    """Return the standard deviation over the mean, relative to NCCL's choice."""
    rows = _dig(measured, "distributions", "policies") or {}
    ours, usual = rows.get(measured.ours), rows.get("nccl")
    if ours is None or usual is None or not usual["deviation"] or not ours["mean"]:
        return None
    return Seen(point(ours["deviation"] / ours["mean"] / (usual["deviation"] / usual["mean"])))


def _others_flipped(measured: Measured) -> Seen | None:
    groups = _dig(measured, "attribution") or {}
    values = [g["flipped"] for n, g in groups.items() if n not in ("history", "contention")]
    return Seen(point(max(values))) if values else None


def _history_share(measured: Measured) -> Seen | None:
    groups = _dig(measured, "attribution") or {}
    power = {n: g["gradient"] ** 2 * len(GROUPS[n]) for n, g in groups.items() if n in GROUPS}
    if "history" not in power or not sum(power.values()):
        return None
    return Seen(point(power["history"] / sum(power.values())))


def _worst_loss(measured: Measured) -> Seen | None:
    rows = _dig(measured, "safety", "losses", measured.ours)
    if not rows:
        return None
    over, n = (sum(r[k] for r in rows.values()) for k in ("over", "episodes"))
    budget = percent(_dig(measured, "safety", "budget"))
    return Seen(point(max(r["worst"] for r in rows.values())),
                f"; {over} of {n} episodes beyond the stated {budget} %")  # fmt: skip


LEVELS: Final = ("0.5", "0.7", "0.8", "0.9")
_HEAVY: Final = ("0.7", "0.8", "0.9")


def _measures() -> Iterator[Measure]:
    yield Measure("inference/combined", "one decision, both networks, median",
                  _at("inference_ms", "combined", "p50"), plain, " ms",
                  goal=Goal("below 0.3 ms", 0.3, True))  # fmt: skip
    yield Measure("inference/combined99", "the same, 99th percentile",
                  _at("inference_ms", "combined", "p99"), plain, " ms")  # fmt: skip
    for name in ("detector", "selector"):
        yield Measure(f"inference/{name}", f"{name} alone, median",
                      _at("inference_ms", name, "p50"), plain, " ms")  # fmt: skip
    yield Measure("overhead", "longer than NCCL's choice on a clean network",
                  _at("clean_overhead_pct", "*"), two_digits,
                  goal=Goal("below 0.2 %", 0.2, True))  # fmt: skip
    at = "training/detector/"
    yield Measure(f"{at}auc", "detector: area under the ROC curve", _share("auc"), plain, "")
    yield Measure(f"{at}sustained", "detector: contended calls recognised",
                  _share("sustained_right"))  # fmt: skip
    yield Measure(f"{at}spike", "detector: calls of spikes recognised", _share("spike_right"))
    yield Measure(f"{at}false", "detector: clean calls taken for contended",
                  _share("steady_right", True))  # fmt: skip
    yield Measure(f"{at}epochs", "detector: epoch of the least held-out loss",
                  _best_epoch("detector"), calls, "")  # fmt: skip
    at = "training/selector/"
    yield Measure(f"{at}epochs", "selector: epoch of the least regret",
                  _best_epoch("selector"), calls, "")  # fmt: skip
    for key, what in (
        ("regret_mean", "mean time beyond the best configuration's"),
        ("gain_share", "share of the oracle's gain that its choices have"),
        ("worse_than_nccl", "states where its choice takes over 3 % longer than NCCL's"),
    ):
        yield Measure(at + key, f"selector: {what}", _at("training", "selector", "metrics", key))
    for level in LEVELS:
        goal = {"0.5": Goal("at most 9", 9, True), "0.8": Goal("at most 4", 4, True)}.get(level)
        yield Measure(f"detect/{level}", f"calls to find contention of {level_name(level)}, median",
                      _at("detection", "*", level, "median"), calls, "", "never", goal)  # fmt: skip
    for kind, of, goal in (
        ("spikes", "spikes", Goal("0", 0, True)), ("clean", "calls", Goal("0 in 10,000", 0, True)),
    ):  # fmt: skip
        what = "spikes of two calls" if kind == "spikes" else "a clean network"
        yield Measure(f"false/{kind}", f"reconfigurations for nothing, {what}", _wrong(kind, of),
                      plain, "", goal=goal)  # fmt: skip
    for onset in ("10", "20", "30"):
        yield Measure(f"onset/{onset}", f"calls to detection, onset at call {onset}",
                      _at("onsets", "*", onset), calls, "", "never")  # fmt: skip
    yield Measure("onset/spread", "difference between onsets", _onset_spread, calls, " calls")
    for plan in ("escalating", "de-escalating", "ending"):
        for key, what in (
            ("first_phase_gain", "gain in the first phase"),
            ("second_phase_gain", "gain in the second phase"),
            ("switches", "reconfigurations, mean"),
        ):
            counts = key == "switches"
            yield Measure(f"transition/{plan}/{key}", f"{plan}: {what}",
                          _at("transitions", "*", plan, "reconfigurations" if counts else key),
                          plain if counts else percent, "" if counts else " %")  # fmt: skip
    for level in LEVELS:
        yield Measure(f"gain/{level}", f"less median latency than NCCL's choice at "
                      f"{level_name(level)}", _gain(level),
                      goal=Goal("at least 36 % where the oracle shows it", 0.36)
                      if level == "0.8" else None)  # fmt: skip
    for regime, who in (("fair", "converged AutoCCL"), ("equal", "AutoCCL while it searches")):
        for level in LEVELS:
            yield Measure(f"{regime}/{level}", f"less median latency than {who} at "
                          f"{level_name(level)}", _at("versus_autoccl", "*", regime, level, "gain"),
                          goal=Goal("not worse", 0.0) if regime == "fair" else None)  # fmt: skip
        yield Measure(f"nccl/{regime}/0.8", f"NCCL's choice against {who} at 80 %",
                      _at("versus_autoccl", "nccl", regime, "0.8", "gain"))  # fmt: skip
    for level in LEVELS:
        yield Measure(f"share/{level}", f"share of the oracle's gain at {level_name(level)}",
                      _at("gains", "*", level, "share_of_oracle"),
                      goal=Goal("at least 90 %", 0.9))  # fmt: skip
    yield Measure("sizes/least", "least gain over sizes, 70 to 90 %",
                  _of_table("sizes", min, *_HEAVY))  # fmt: skip
    yield Measure("sizes/most", "greatest gain over sizes, 70 to 90 %",
                  _of_table("sizes", max, *_HEAVY))  # fmt: skip
    for rival, who in (("nccl", "NCCL's choice"), ("autoccl", "AutoCCL")):
        yield Measure(f"distribution/p/{rival}", f"paired sign-flip test against {who}, p",
                      _test(rival), lambda v: "< 0.0001" if v < 1e-4 else plain(v), "")  # fmt: skip
    yield Measure("distribution/spread", "coefficient of variation relative to NCCL's choice",
                  _variation, plain, "")  # fmt: skip
    for level in ("0.8", "1"):
        yield Measure(f"workloads/mean/{level}", f"mean gain over six workloads at "
                      f"{level_name(level)}", _of_table("workloads", _mean, level))  # fmt: skip
    yield Measure("workloads/least", "least gain of all", _of_table("workloads", min))
    yield Measure("workloads/most", "greatest gain of all", _of_table("workloads", max))
    for name in ("BERT", "NanoGPT"):
        yield Measure(f"workloads/{name}/1", f"{name} at 100 %",
                      _at("workloads", "*", name, "1"))  # fmt: skip
    for n in ("1", "2", "3", "4"):
        yield Measure(f"ranks/{n}", f"4 nodes with {n} rank{'s' * (n > '1')} each, 80 %",
                      _at("ranks_per_node", "*", n, "0.8"))  # fmt: skip
    for name, figure in (("least", min), ("mean", _mean), ("most", max)):
        yield Measure(f"nodes/{name}", f"{name} gain over numbers of nodes, 80 %",
                      _of_table("nodes", figure, "0.8"))  # fmt: skip
    for group in ("history", "topology"):
        yield Measure(f"attribution/gradient/{group}", f"gradient per input: {group}",
                      _at("attribution", group, "gradient"), plain, "")  # fmt: skip
    yield Measure("attribution/share/history", "the history's share of all sensitivity",
                  _history_share)  # fmt: skip
    yield Measure("attribution/flipped/history", "decisions changed when the history is permuted",
                  _at("attribution", "history", "flipped"))  # fmt: skip
    yield Measure("attribution/displaced/history", "values displaced then",
                  _at("attribution", "history", "displaced"))  # fmt: skip
    yield Measure("attribution/flipped/others", "decisions changed by any other group that is not "
                  "of the network, at most", _others_flipped)  # fmt: skip
    yield Measure("safety/worst", "worst episode against NCCL's choice, time lost", _worst_loss)


MEASURES: Final = tuple(_measures())
"""All of them, in the order of the report."""
