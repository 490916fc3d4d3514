"""Fits the fluid model to measured times, and says how far off it stays.

Damped least squares (Levenberg-Marquardt) on the logarithm of parameters against the logarithm of
times, so that a small message counts as much as a large one. Calls of the same kind are reduced to
their median first. A part of the kinds is held out, to state the error on what was not fitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.traces.fluid import CLEAN, FluidParams, Load, latency_us

FITTED: Final = (
    "link_rate", "hop_ll", "hop_simple", "cpu_rate", "message", "channel", "queue", "ll_window",
    "rival_weight", "tree_flows", "tree_bytes",
)  # fmt: skip
"""Parameters that are fitted unless told otherwise."""
CONTENDED_ONLY: Final = frozenset({"queue", "rival_weight", "tree_flows"})
"""Clean calls say nothing about these."""
WANDER: Final = 0.02
"""How little a parameter that the data does not decide may move: pull towards where it was."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One call: what ran, under what load, how long it took."""

    key: Key
    n_bytes: int
    config: Config
    latency_us: float
    load: Load = CLEAN


@dataclass(frozen=True)
class ErrorReport:
    """How well the model tells times; errors are |model / measured - 1|.

    Attributes:
        kinds: different (collective, size, configuration, load) that were measured.
        calls: in all.
        before_p50: median error of the parameters that were given.
        fitted_p50, fitted_p90: over the kinds that were fitted.
        held_out_p50, held_out_p90: over the others; None where there were too few.
        order: share of the pairs of configurations of one collective, size and load that the model
            orders as measured; None without such pairs that differ by more than 5 %.
        best_loss: what is lost, in the mean over those groups, by running the model's best instead
            of the measured best, a share; None without groups.
        parameters: fitted values, by name.
    """

    kinds: int
    calls: int
    before_p50: float
    fitted_p50: float
    fitted_p90: float
    held_out_p50: float | None
    held_out_p90: float | None
    order: float | None
    best_loss: float | None
    parameters: Mapping[str, float]


def calibrate(
    samples: Sequence[Measured],
    start: FluidParams | None = None,
    fitted: Sequence[str] = FITTED,
    held_out: float = 0.2,
    seed: int = 0,
    rounds: int = 60,
) -> tuple[FluidParams, ErrorReport]:
    """Return the parameters that tell the measured times best, and the error that is left.

    Args:
        samples: measured calls; kinds should differ in size, configuration and load.
        start: where to begin, and what stays where the data says nothing.
        fitted: names of the parameters that may move.
        held_out: share of the kinds that is not fitted.
        seed: which kinds those are.
        rounds: of least squares at most.

    Raises:
        ValueError: fewer than 8 kinds, a time that is none, or an unknown parameter.
    """
    p = start or FluidParams()
    if unknown := [name for name in fitted if not hasattr(p, name)]:
        raise ValueError(f"fitted: {unknown[0]!r} is no parameter of the model")
    groups: dict[tuple[Key, int, Config, Load], list[float]] = {}
    for s in samples:
        if not (math.isfinite(s.latency_us) and s.latency_us > 0):
            raise ValueError(f"latency_us {s.latency_us} of {s.config}: above 0")
        groups.setdefault((s.key, s.n_bytes, s.config, s.load), []).append(s.latency_us)
    kinds = list(groups)
    if len(kinds) < 8:
        raise ValueError(f"{len(kinds)} kinds of calls: 8 or more say something about a cluster")
    times = np.array([float(np.median(groups[kind])) for kind in kinds])
    if all(kind[3].level == 0 for kind in kinds):
        fitted = [name for name in fitted if name not in CONTENDED_ONLY]
    aside = np.zeros(len(kinds), np.bool_)
    if held_out > 0 and len(kinds) >= 20:
        count = int(len(kinds) * held_out)
        aside[np.random.default_rng(seed).permutation(len(kinds))[:count]] = True
    inside = [kind for kind, out in zip(kinds, aside, strict=True) if not out]
    best = _fit(inside, np.log(times[~aside]), p, list(fitted), rounds)
    report = _report(kinds, times, aside, p, best, fitted, len(samples))
    return best, report


_Kind = tuple[Key, int, Config, Load]
_Floats = np.ndarray[Any, np.dtype[np.float64]]


def _predict(kinds: Sequence[_Kind], p: FluidParams) -> _Floats:
    return np.log([latency_us(*kind, p) for kind in kinds])


def _fit(
    kinds: Sequence[_Kind], logs: _Floats, start: FluidParams, names: list[str], rounds: int
) -> FluidParams:
    origin = np.log([getattr(start, name) for name in names])

    def params(x: _Floats) -> FluidParams:
        return replace(start, **{n: float(math.exp(v)) for n, v in zip(names, x, strict=True)})

    def residuals(x: _Floats) -> _Floats:
        off = _predict(kinds, params(x)) - logs
        # Huber's weights: a kind that was disturbed while measured does not bend the rest.
        size = np.abs(off)
        weight = np.sqrt(np.minimum(1.0, 0.1 / np.maximum(size, 1e-9)))
        return np.concatenate([off * weight, WANDER * (x - origin)])

    x, damping = origin.copy(), 1e-2
    now = residuals(x)
    for _ in range(rounds):
        step = 1e-4
        jacobian = np.stack(
            [(residuals(x + step * unit) - now) / step for unit in np.eye(len(x))], axis=1
        )
        square, slope = jacobian.T @ jacobian, jacobian.T @ now
        for _ in range(8):
            move = -np.linalg.solve(square + damping * np.eye(len(x)), slope)
            there = x + np.clip(move, -1.0, 1.0)
            new = residuals(there)
            if new @ new < now @ now:
                gained = float(now @ now - new @ new)
                x, now, damping = there, new, max(damping / 4, 1e-9)
                break
            damping *= 4
        else:
            break
        if gained < 1e-10:
            break
    return params(x)


def _report(
    kinds: Sequence[_Kind], times: _Floats, aside: Any, before: FluidParams, after: FluidParams,
    fitted: Sequence[str], calls: int,
) -> ErrorReport:  # fmt: skip
    told = np.exp(_predict(kinds, after))
    error = np.abs(told / times - 1)
    first = np.abs(np.exp(_predict(kinds, before)) / times - 1)
    groups: dict[tuple[Key, int, Load], list[int]] = {}
    for i, (key, size, _, load) in enumerate(kinds):
        groups.setdefault((key, size, load), []).append(i)
    right = pairs = 0
    losses = []
    for members in groups.values():
        if len(members) < 2:
            continue
        chosen = min(members, key=lambda i: float(told[i]))
        losses.append(float(times[chosen] / min(times[i] for i in members) - 1))
        for place, i in enumerate(members):
            for j in members[place + 1 :]:
                if abs(math.log(times[i] / times[j])) > 0.05:
                    pairs += 1
                    right += (told[i] < told[j]) == (times[i] < times[j])

    def at(values: _Floats, q: float) -> float | None:
        return float(np.percentile(values, q)) if len(values) else None

    return ErrorReport(
        len(kinds), calls, float(np.median(first)), float(np.median(error[~aside])),
        float(np.percentile(error[~aside], 90)), at(error[aside], 50), at(error[aside], 90),
        float(right / pairs) if pairs else None, float(np.mean(losses)) if losses else None,
        {name: getattr(after, name) for name in fitted},
    )  # fmt: skip
