"""What to set for a job on a fabric: paths, marking at the start, parameters, the closed loop.

A pure function of the fabric, the job and a table of measurements. It answers from the nearest
measured cells (logarithms of rate, RTT, time of a step, oversubscription and ring length) and says
how it knows: measured there, interpolated between cells, extrapolated beyond them, or no evidence.
What is not known to be harmless does not start: marking then is left to the closed loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Literal

from ringstep.fabric.facts import FabricFacts, FactError, JobFacts
from ringstep.fabric.guidance import (
    GATED,
    OURS,
    PLANNED,
    Cell,
    Change,
    GuidanceTable,
    Variant,
)
from ringstep.fabric.units import format_rate
from ringstep.protocol.marker import PROFILES, MarkerParams

HARM_LIMIT: Final = 1.0
"""Marking starts only where the harmful end of its interval is at most this, in percent."""
HEADER_BYTES: Final = 48
"""RoCEv2 over IPv4 around a payload, Ethernet without preamble."""
_SCALES: Final[Mapping[str, float]] = {
    "rate": math.log(4),
    "RTT": math.log(5),
    "step time": math.log(4),
    "oversubscription": math.log(2),
    "ring length": math.log(8),
}
"""What counts as one unit of distance: as far apart as neighbouring cells of the study."""
_SAME: Final = 0.1
_NEAR: Final = 1.0
_FAR: Final = 2.0
"""Units up to which a cell is the same place, a neighbour, and evidence at all."""
_THRIFT: Final = 1.0
"""Percent of CCT below which there is nothing to gain."""


class Confidence(StrEnum):
    """How a recommendation is known."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of thumb for one parameter: its value here, the rule, and where it comes from."""

    parameter: str
    value: str
    rule: str
    why: str


@dataclass(frozen=True)
class Recommendation:
    """What to set, and how it is known.

    ``expected`` is the change of CCT against DCQCN + ECMP with this start, ``marking_harm`` the
    upper end of what marking alone changes with these parameters, in percent; None: no evidence.
    ``marking_reason`` is those of ``reasons`` that decided on marking, in one line.
    """

    paths: Literal["planned", "ecmp"]
    marking: bool
    params: MarkerParams
    closed_loop: bool
    confidence: Confidence
    expected: Change | None
    marking_harm: float | None
    reasons: tuple[str, ...]
    evidence: tuple[Cell, ...]
    rules: tuple[Rule, ...]
    marking_reason: str


# --- Evidence ---------------------------------------------------------------------------------

_Point = Mapping[str, float]


@dataclass(frozen=True)
class _Evidence:
    """Cells that a recommendation goes by, the nearest first, with weights that sum to 1."""

    cells: tuple[Cell, ...]
    weights: tuple[float, ...]
    confidence: Confidence
    reasons: tuple[str, ...]

    def change(self, variant: str) -> Change:
        """The cells' means weighted, and an interval as wide as all of theirs together."""
        found = [_fair(cell, variant)[0] for cell in self.cells]
        mean = sum(w * each.mean for w, each in zip(self.weights, found, strict=True))
        return Change(
            round(mean, 1), min(each.low for each in found), max(each.high for each in found)
        )

    @property
    def plan_is_safe(self) -> bool:
        """Whether planned paths alone are nowhere worse than ECMP by more than the limit."""
        return self.change(PLANNED).high <= HARM_LIMIT

    def marking(self, variant: Variant, *, pinned: bool) -> tuple[float, float]:
        """Percent that marking gains by the means, and that it may cost at most in any cell.

        Against the same paths without it; planned ones that are not safe alone, against ECMP,
        unless they are taken in any case.
        """
        change = self.change(variant.name)
        if variant.planned and not self.plan_is_safe and not pinned:
            return -change.mean, change.high
        plain = self.change(PLANNED).mean if variant.planned else 0.0
        harm = max(_fair(cell, variant.name)[1] for cell in self.cells)
        return _shorter(change.mean, plain), harm


def _shorter(change: float, plain: float) -> float:
    """Percent less of one change against another, both against the same baseline."""
    return 100 * (1 - (100 + change) / (100 + plain))


def _fair(cell: Cell, variant: str) -> tuple[Change, float]:
    """Change and harm of a variant; where it was chosen for being the best, as held out."""
    if variant == cell.best.variant != OURS:
        return cell.best.change, cell.best.harm
    return cell.changes[variant], cell.harm.get(variant, 0.0)


def _place(fabric: FabricFacts, job: JobFacts) -> _Point:
    return {
        "rate": math.log(fabric.rate_bps),
        "RTT": math.log(fabric.rtt_ns),
        "step time": math.log(job.step_bytes * 8e9 / fabric.rate_bps),
        "oversubscription": math.log(max(fabric.oversubscription, 1.0)),
        "ring length": math.log(job.ring),
    }


def _place_of(cell: Cell) -> _Point:
    site = cell.site
    return {
        "rate": math.log(site.rate_bps),
        "RTT": math.log(site.rtt_ns),
        "step time": math.log(site.step_ns),
        "oversubscription": math.log(max(site.oversubscription, 1.0)),
        "ring length": math.log(site.ring),
    }


def _apart(a: _Point, b: _Point) -> dict[str, float]:
    return {name: abs(a[name] - b[name]) / scale for name, scale in _SCALES.items()}


def _evidence(fabric: FabricFacts, job: JobFacts, table: GuidanceTable) -> _Evidence:
    here = _place(fabric, job)
    doubts = []
    if job.form != "ring":
        doubts.append(f"no ring of the form {job.form} was measured in this study")
    known = [c for c in table.cells if c.sender == job.sender and c.preset == job.preset]
    if not known:
        doubts.append(_not_measured(job, table))
        known = (
            [c for c in table.cells if c.sender == job.sender]
            or [c for c in table.cells if c.preset == job.preset]
            or list(table.cells)
        )
    same_use = [c for c in known if bool(c.site.tenants) == fabric.tenants]
    if fabric.tenants and not same_use:
        doubts.append("nothing was measured with other tenants' traffic")
    known = same_use or known
    ordered = sorted(known, key=lambda c: (_norm(here, c), c.site.name, c.sender, c.preset))
    nearest = _norm(here, ordered[0])
    if nearest > _FAR:
        apart = _apart(here, _place_of(ordered[0]))
        name = max(apart, key=lambda each: apart[each])
        doubts.append(f"the nearest measured place is far away in {name}")
    if doubts:
        # Everything near, of every kind that it might be: paths must not be worse under any.
        near = tuple(c for c in ordered if _norm(here, c) <= max(nearest, _NEAR))
        return _Evidence(near, _weights(here, near), Confidence.NONE, tuple(doubts))
    if max(_apart(here, _place_of(ordered[0])).values()) <= _SAME:
        return _Evidence((ordered[0],), (1.0,), Confidence.MEASURED, ())
    around: list[Cell] = []
    for cell in ordered:
        if _norm(here, cell) > _FAR:
            break
        around.append(cell)
        if not _outside(here, around):
            cells = _needed(here, around)
            return _Evidence(cells, _weights(here, cells), Confidence.INTERPOLATED, ())
    outside = _outside(here, ordered) or _outside(here, around)
    cells = tuple(c for c in ordered if _norm(here, c) <= max(nearest, _NEAR))
    why = f"not between measured places in {', '.join(outside)}"
    return _Evidence(cells, _weights(here, cells), Confidence.EXTRAPOLATED, (why,))


def _needed(here: _Point, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Leave out cells, the farthest first, as long as the place stays between the others."""
    kept = list(cells)
    for cell in reversed(cells[1:]):
        others = [each for each in kept if each is not cell]
        if not _outside(here, others):
            kept = others
    return tuple(kept)


def _not_measured(job: JobFacts, table: GuidanceTable) -> str:
    if job.sender not in table.senders:
        return f"sender {job.sender!r} was not measured; known: {', '.join(table.senders)}"
    if job.preset not in table.presets:
        return f"DCQCN preset {job.preset!r} was not measured; known: {', '.join(table.presets)}"
    return f"{job.sender} senders were not measured with {job.preset}"


def _norm(here: _Point, cell: Cell) -> float:
    return math.hypot(*_apart(here, _place_of(cell)).values())


def _weights(here: _Point, cells: Sequence[Cell]) -> tuple[float, ...]:
    raw = [1 / (_SAME + _norm(here, cell)) ** 2 for cell in cells]
    return tuple(each / sum(raw) for each in raw)


def _outside(here: _Point, cells: Sequence[Cell]) -> list[str]:
    """Dimensions in which a place is not between the cells."""
    places = [_place_of(cell) for cell in cells]
    return [
        name
        for name, scale in _SCALES.items()
        if not min(p[name] for p in places) - _SAME * scale
        <= here[name]
        <= max(p[name] for p in places) + _SAME * scale
    ]


# --- The recommendation -----------------------------------------------------------------------


def recommend(fabric: FabricFacts, job: JobFacts, table: GuidanceTable) -> Recommendation:
    """Return what to set for a job, from the nearest cells of a table of measurements.

    Of ECMP or planned paths, with or without marking, the one with the least expected CCT is taken
    among those that nowhere in the evidence may be more than 1 % worse: against DCQCN + ECMP as a
    whole, and for marking against the same paths without (where those are safe themselves), which
    it must beat by 1 % too. Extrapolated, marking does not start. For a job whose paths are pinned
    in any case, only marking on planned paths is weighed, against the same paths without it.

    Raises:
        FactError: the table is empty.
    """
    if not table.cells:
        raise FactError("the table of measurements is empty; make it with bench/guidance.py")
    rules = rules_of_thumb(fabric, job)
    if not job.crossing:
        reason = "no ring edge leaves its rack: there is no path to choose and no queue to mark in"
        return Recommendation(
            "ecmp", False, _fitted(PROFILES["ringstep"].params, fabric, job), False,
            Confidence.MEASURED, Change(0.0, 0.0, 0.0), None,
            (reason,), (), rules, reason,
        )  # fmt: skip
    evidence = _evidence(fabric, job, table)
    reasons = list(evidence.reasons)
    tuned = _tuned(evidence)
    known = evidence.confidence in (Confidence.MEASURED, Confidence.INTERPOLATED)
    candidates = [
        name
        for name in ((PLANNED, GATED, OURS, tuned) if known else (PLANNED,))
        if (job.plannable and not job.pinned) or table.variants[name].planned is job.pinned
    ]
    start = _best_start(evidence, table.variants, candidates, reasons, job.pinned, known=known)
    planned = start is not None and table.variants[start].planned
    marking = start is not None and table.variants[start].params is not None
    set_up = table.variants[start if start is not None and marking else tuned if planned else GATED]
    params = set_up.params if known else PROFILES["ringstep"].params
    assert params is not None
    harm = evidence.marking(set_up, pinned=job.pinned)[1] if known else None
    loop = _needs_loop(evidence, table.variants, planned=planned, known=known)
    why = _why_marking(evidence, set_up, job.pinned, marking=marking, known=known)
    reasons.append(why)
    if not loop:
        reasons.append(
            f"no parameters gained {_THRIFT:g} % by marking here, so there is nothing to try out"
        )
    expected = evidence.change(start) if start is not None else Change(0.0, 0.0, 0.0)
    fitted = _fitted(params, fabric, job)
    reasons += _why_fitted(params, fitted, fabric)
    return Recommendation(
        "planned" if planned else "ecmp",
        marking,
        fitted,
        loop,
        evidence.confidence,
        None if evidence.confidence is Confidence.NONE else expected,
        harm,
        tuple(reasons),
        evidence.cells,
        rules,
        "; ".join((*evidence.reasons, why)),
    )


def _tuned(evidence: _Evidence) -> str:
    """The best variant of the nearest cell where it is clearly better, and nowhere near worse."""
    best = evidence.cells[0].best
    if best.variant == OURS or best.over_ours.high >= 0:
        return OURS
    worse = any(
        cell.changes[best.variant].mean > cell.changes[OURS].mean for cell in evidence.cells
    )
    return OURS if worse else best.variant


def _best_start(
    evidence: _Evidence,
    variants: Mapping[str, Variant],
    candidates: Sequence[str],
    reasons: list[str],
    pinned: bool,
    *,
    known: bool,
) -> str | None:
    """Return the variant to start with; None: DCQCN + ECMP as it is.

    Where paths are ``pinned`` in any case, only what marking does to them counts.
    """
    allowed = []
    for name in dict.fromkeys(candidates):
        change, variant = evidence.change(name), variants[name]
        gain, harm = _THRIFT, 0.0
        if variant.params is not None:
            gain, harm = evidence.marking(variant, pinned=pinned)
        if not pinned:
            harm = max(change.high, harm)
        if harm <= HARM_LIMIT and gain >= _THRIFT:
            allowed.append(name)
        elif name == PLANNED:
            reasons.append(
                f"planned paths alone: {_percent(change)} against ECMP, which may be worse by more "
                f"than {HARM_LIMIT:g} %"
            )
    best = min(
        allowed,
        key=lambda name: (evidence.change(name).mean, variants[name].params is not None),
        default=None,
    )
    if best is not None and not pinned and evidence.change(best).mean >= 0:
        best = None
    if best is not None:
        label = {PLANNED: "planned paths", GATED: "marking on ECMP paths"}.get(
            best, "planned paths and marking"
        )
        near = "" if known else ", over all that was measured near"
        reasons.append(
            f"{label}: {_percent(evidence.change(best))} of CCT against DCQCN + ECMP{near}"
        )
    return best


def _why_marking(
    evidence: _Evidence, variant: Variant, pinned: bool, *, marking: bool, known: bool
) -> str:
    if not known:
        return "marking does not start without evidence; the closed loop may try it"
    gain, harm = evidence.marking(variant, pinned=pinned)
    what = "on ECMP paths it alone"
    if variant.planned:
        safe = evidence.plan_is_safe or pinned
        what = "on planned paths it alone" if safe else "planned paths with it"
    if marking:
        most = max(harm, 0.0)
        return f"marking starts: {what} may cost {most:.1f} % at most (limit {HARM_LIMIT:g} %)"
    if harm > HARM_LIMIT:
        return (
            f"marking does not start: {what} may cost up to {harm:.1f} % (limit {HARM_LIMIT:g} %)"
        )
    return f"marking does not start: {what} gains {gain:.1f} %, less than {_THRIFT:g} %"


def _needs_loop(
    evidence: _Evidence, variants: Mapping[str, Variant], *, planned: bool, known: bool
) -> bool:
    """Whether marking may gain or cost anything, so that it is worth watching."""
    if not known:
        return True
    same = [v.name for v in variants.values() if v.params is not None and v.planned is planned]
    for cell in evidence.cells:
        plain = cell.changes[PLANNED].mean if planned else 0.0
        if any(_shorter(cell.changes[name].mean, plain) >= _THRIFT for name in same):
            return True
        if cell.harm[OURS if planned else GATED] > HARM_LIMIT:
            return True
    return False


def _percent(change: Change) -> str:
    return f"{change.mean:+.1f} % ({change.low:+.1f} … {change.high:+.1f})".replace(
        "-", "\N{MINUS SIGN}"
    )


# --- Parameters -------------------------------------------------------------------------------


def packets_per_step(fabric: FabricFacts, job: JobFacts) -> int:
    """Return the packets of a step that is one message."""
    return -(-job.step_bytes // fabric.mtu)


def _window_packets(fabric: FabricFacts, t_win_us: int) -> float:
    return t_win_us * 1e-6 * fabric.rate_bps / (8 * (fabric.mtu + HEADER_BYTES))


def _fitted(params: MarkerParams, fabric: FabricFacts, job: JobFacts) -> MarkerParams:
    """Measured parameters, within what this fabric and job can carry."""
    gate, q_min = params.q_gate, fabric.red_q_min
    if gate is not None and q_min is not None and gate >= q_min:
        gate = max(q_min // 5, 1)
    return replace(
        params,
        n_warmup=min(params.n_warmup, packets_per_step(fabric, job) // 16),
        n_sample=min(params.n_sample, int(_window_packets(fabric, params.t_win) / 8)),
        q_gate=gate,
    )


def _why_fitted(before: MarkerParams, after: MarkerParams, fabric: FabricFacts) -> list[str]:
    reasons = []
    if after.n_warmup != before.n_warmup:
        reasons.append(
            f"n_warmup {after.n_warmup} in place of {before.n_warmup}: steps are short, and up "
            "to a sixteenth of one is spent on it"
        )
    if after.n_sample != before.n_sample:
        reasons.append(
            f"n_sample {after.n_sample} in place of {before.n_sample}: a window of {after.t_win} "
            f"µs holds few packets at {format_rate(fabric.rate_bps)}"
        )
    if after.q_gate != before.q_gate:
        reasons.append(
            f"q_gate {after.q_gate} in place of {before.q_gate}: RED marks from {fabric.red_q_min} "
            "packets on, and a gate above that leaves the marker nothing to do"
        )
    return reasons


def rules_of_thumb(fabric: FabricFacts, job: JobFacts) -> tuple[Rule, ...]:
    """Return what each parameter should be by reasoning, to hold against what was measured."""
    rtt_us = fabric.rtt_ns / 1000
    step_us = job.step_bytes * 8e6 / fabric.rate_bps
    packet_us = (fabric.mtu + HEADER_BYTES) * 8e6 / fabric.rate_bps
    per_step = packets_per_step(fabric, job)
    in_flight = max(rtt_us / packet_us, 1.0)
    defaults = PROFILES["ringstep"].params
    window = math.ceil(max(4 * rtt_us, 8 * defaults.n_sample * packet_us, 1))
    packets = _window_packets(fabric, window)
    gate = "unknown" if fabric.red_q_min is None else str(max(fabric.red_q_min // 5, 1))
    return (
        Rule(
            "k",
            f"{min(max(1 / (10 * in_flight), 0.001), 0.1):.2g}",
            "1 / (10 x packets in flight), within 0.001 and 0.1",
            f"a flow ahead has up to {in_flight:.0f} packets in flight and k alpha of them are "
            "marked: one mark per RTT, which is all that DCQCN answers to, once alpha is 10, that "
            "is after ten windows of misalignment",
        ),
        Rule(
            "tau",
            "1/4",
            "at most 1 / (edges per uplink)",
            "with n edges on a link one that is ahead makes 1/n of its packets; planned paths put "
            f"{max(math.ceil(fabric.oversubscription), 1)} on an uplink in fabrics of "
            f"{fabric.oversubscription:g}:1, ECMP some twice as many",
        ),
        Rule(
            "t_win",
            f"{window} µs",
            "4 x RTT, and room for 8 n_sample packets",
            "what a mark does shows one RTT later, so a shorter window counts packets that were "
            "sent before the marks of the window before"
            + (
                f"; a step lasts {step_us:.0f} µs, so alpha can hardly follow within it"
                if window > step_us
                else ""
            ),
        ),
        Rule(
            "q_gate",
            gate,
            "a fifth of RED's k_min",
            "below some packets nobody waits, and bandwidth taken away is used by nobody; from "
            "k_min on RED marks all flows alike, and the marker can no longer choose",
        ),
        Rule(
            "n_sample",
            f"{max(min(defaults.n_sample, int(packets / 8)), 1)}",
            "an eighth of the packets that a window holds, at most 8",
            f"a window of {window} µs holds {packets:.0f} packets at line rate; the share of "
            "outpacing ones among fewer than 8 is chance",
        ),
        Rule(
            "n_warmup",
            f"{min(defaults.n_warmup, per_step // 16)}",
            "a sixteenth of a step's packets, at most 8",
            f"P goes with psn / psn_rec, up to {per_step} / n_warmup in the first moments of a "
            "step's laggard; a step without marks before its sixteenth loses little",
        ),
    )
