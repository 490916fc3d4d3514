"""From clean calls to baselines, and to the fluid model's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.dynamic.detector import Detector
from ringstep.hostlib.evaluate.calibration.clean import (
    EXPECTED,
    LEAST,
    SLOW,
    SPREAD,
    STEP,
    TAIL,
    Judged,
    NotClean,
    Series,
    judge,
    judge_repeats,
)
from ringstep.hostlib.traces.calibrate import ErrorReport, Measured, calibrate
from ringstep.hostlib.traces.fluid import CLEAN, FluidParams
from ringstep.hostlib.traces.sweep import Sweep

CARD_FORMAT: Final = "ringstep-calibration-1"
KINDS: Final = 8
"""Different calls from which the fluid model can be fitted."""
FITS: Final = 0.25
"""Median error up to which the fitted model stands for the cluster."""
SIZES_APART: Final = 0.25


@dataclass
class Learned:
    """What was measured, and what follows from it.

    Attributes:
        baselines: clean latency in µs, by key.
        rows: one for each kind that was measured, for the card.
        samples: for the fluid model.
        sweeps: that were clean.
        notes: what a person should know.
    """

    baselines: dict[Key, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    samples: list[Measured] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def learn(
    series: Sequence[Series],
    sweeps: Sequence[Sweep] = (),
    detector: Detector | None = None,
    expected: Mapping[Key, float] | None = None,
) -> Learned:
    """Return what clean calls say; the sizes of one key have one baseline, their median.

    A key that was measured as such is not taken from a sweep.

    Args:
        series: calls by kind.
        sweeps: of the same cluster; each with a clean load.
        detector: is asked too.
        expected: clean latencies of an earlier calibration.

    Raises:
        NotClean: some of it was contended; nothing is learned then.
    """
    expected = expected or {}
    found = Learned()
    by_key: dict[Key, list[tuple[Series, Judged]]] = {}
    for one in series:
        judged = judge(one, detector, expected.get(one.key))
        by_key.setdefault(one.key, []).append((one, judged))
        found.rows.append(_row(one.name, one.key, one.n_bytes, judged))
        if one.config is not None:
            found.samples.append(Measured(one.key, one.n_bytes, one.config, judged.latency_us))
    for key, parts in by_key.items():
        found.baselines[key] = median(t for one, _ in parts for t in one.latency_us)
        low, high = (f(j.latency_us for _, j in parts) for f in (min, max))
        if high > (1 + SIZES_APART) * low:
            found.notes.append(
                f"{_words(key)}: {low:.0f} to {high:.0f} µs by size or communicator; the baseline "
                "is the median of all"
            )
    in_sweeps: dict[Key, list[float]] = {}
    for sweep in sweeps:
        rows = [sweep.usual_calls_us[0], *(times[0] for times in sweep.calls_us.values())]
        noise = judge_repeats(f"sweep of {sweep.env}", rows, expected.get(sweep.key))
        usual = sweep.usual_calls_us[0]
        if len(usual) >= LEAST:
            judge(
                Series(f"sweep of {sweep.env}", sweep.key, sweep.n_bytes, sweep.usual, usual),
                detector,
            )
        in_sweeps.setdefault(sweep.key, []).append(sweep.clean_us)
        judged = Judged(sweep.clean_us, 0.6745 * noise, noise, sum(map(len, rows)))
        found.rows.append(_row(f"sweep of {sweep.env}", sweep.key, sweep.n_bytes, judged))
        found.samples += sweep.samples
        found.sweeps.append(sweep)
    for key, times in in_sweeps.items():
        found.baselines.setdefault(key, median(times))
    if not found.baselines:
        raise NotClean("nothing was measured")
    if expected and not found.baselines.keys() & expected.keys():
        found.notes.append(
            "the expected calibration knows none of these collectives: it was of no use"
        )
    return found


def fit(learned: Learned) -> tuple[FluidParams, ErrorReport] | None:
    """Return the fluid model's parameters and its error; None where too few kinds were measured.

    Clean calls alone leave those parameters as they are that only contention tells of.
    """
    kinds = {(s.key, s.n_bytes, s.config, s.load) for s in learned.samples}
    if len(kinds) < KINDS:
        return None
    return calibrate(learned.samples)


def has_contention(sweeps: Sequence[Sweep]) -> bool:
    """Whether every sweep has loads beside the clean one."""
    return bool(sweeps) and all(sweep.loads[-1] != CLEAN for sweep in sweeps)


def card(
    learned: Learned,
    sources: Mapping[str, Any],
    fitted: ErrorReport | None,
    expected: str | None,
) -> dict[str, Any]:
    """Return what a person, or a later check, wants to know of a calibration."""
    return {
        "format": CARD_FORMAT,
        "sources": dict(sources),
        "expected": expected,
        "baselines": len(learned.baselines),
        "measured": learned.rows,
        "limits": {"step": STEP, "slow": SLOW, "tail": TAIL, "spread": SPREAD,
                   "expected": EXPECTED, "least_calls": LEAST},
        "fluid_model": None if fitted is None else asdict(fitted),
        "notes": learned.notes,
    }  # fmt: skip


def _row(name: str, key: Key, n_bytes: int, judged: Judged) -> dict[str, Any]:
    return {
        "name": name, "collective": key.collective.name.lower(), "bytes": n_bytes,
        "ranks": key.n_ranks, "nodes": key.n_nodes, "latency_us": round(judged.latency_us, 3),
        "spread": round(judged.spread, 5), "noise": round(judged.noise, 5), "calls": judged.calls,
    }  # fmt: skip


def _words(key: Key) -> str:
    return (
        f"{key.collective.name.lower()} of {1 << key.size_class} to {(2 << key.size_class) - 1} "
        f"bytes, {key.n_ranks} ranks on {key.n_nodes} nodes"
    )
