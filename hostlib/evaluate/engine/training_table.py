"""Policies compared on a model that is really trained, as rows for the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Final

from ringstep.hostlib.evaluate.engine.cluster import QUEUE_MS, RATE_BPS
from ringstep.hostlib.evaluate.engine.training import (
    NOTHING,
    TrainingRun,
    distance,
    train_under_contention,
)
from ringstep.hostlib.evaluate.stats import bootstrap

REFERENCE: Final = "nccl"


@dataclass(frozen=True, slots=True)
class TrainingParams:
    """The job and its network; as the arguments of :func:`.train_under_contention`."""

    level: float = 0.8
    steps: int = 120
    onset: int = 30
    nodes: int = 4
    rate_bps: float = RATE_BPS
    queue_ms: float = QUEUE_MS
    fence_every: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.level <= 1:
            raise ValueError(f"level = {self.level}: above 0, at most 1")
        if not 3 <= self.onset <= self.steps - 2:
            raise ValueError(
                f"onset = {self.onset}: 3 to {self.steps - 2}, two before the last of "
                f"{self.steps} steps"
            )


def compare(
    policies: Sequence[str],
    seeds: int,
    params: TrainingParams | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> dict[str, Any]:
    """Train with every policy and seed; return ``{"workload_training": rows}``.

    The policies of a seed run one after the other, in turning order: each comes first as often.

    Args:
        policies: as ``--policy`` of the coordinator, or "none".
        seeds: 1 or more.
        params: job and network.
        progress: called with what runs and the step it has reached.

    Raises:
        ValueError: no policy, one twice, or no seed.
        TrainingError: a run failed.
    """
    if not policies or len(set(policies)) != len(policies):
        raise ValueError(f"policies {', '.join(policies) or 'none'}: one or more, each once")
    if seeds < 1:
        raise ValueError(f"seeds = {seeds}: 1 or more")
    p = params or TrainingParams()
    runs: dict[str, list[TrainingRun]] = {policy: [] for policy in policies}
    for seed in range(seeds):
        turn = seed % len(policies)
        for policy in (*policies[turn:], *policies[:turn]):
            what = f"{policy}, seed {seed}"
            runs[policy].append(
                train_under_contention(
                    policy, p.level, p.steps, p.onset, nodes=p.nodes, rate_bps=p.rate_bps,
                    queue_ms=p.queue_ms, seed=seed, fence_every=p.fence_every,
                    progress=None if progress is None else partial(progress, what),
                )
            )  # fmt: skip
    return {"workload_training": rows(runs)}


def rows(runs: dict[str, list[TrainingRun]]) -> list[dict[str, Any]]:
    """Return one row by policy; runs of the reference and of others are paired by seed."""
    return [_row(policy, mine, runs.get(REFERENCE)) for policy, mine in runs.items()]


def _row(
    policy: str, mine: Sequence[TrainingRun], reference: Sequence[TrainingRun] | None
) -> dict[str, Any]:
    one = mine[0]
    pairs: list[tuple[TrainingRun, TrainingRun]] = []
    if reference is not None and policy != REFERENCE:
        pairs = list(zip(mine, reference, strict=True))
    late = [s.calls_late for r in mine for s in r.switches if s.calls_late is not None]
    took = [s.apply_ms for r in mine for s in r.switches if s.apply_ms is not None]
    return {
        "model": f"transformer, {one.parameters:,} parameters, {one.nodes} ranks at "
        f"{one.rate_bps / 1e6:g} Mb/s",
        "policy": policy.partition(":")[0],
        "argument": policy.partition(":")[2],
        "level": one.level,
        "steps": len(one.step_ms),
        "onset": one.onset,
        "seeds": len(mine),
        "step_ms": bootstrap(mine, _middle(lambda r: median(r.contended_ms))).plain(),
        "late_step_ms": bootstrap(mine, _middle(lambda r: median(_second_half(r)))).plain(),
        "clean_step_ms": bootstrap(mine, _middle(lambda r: median(r.clean_ms))).plain(),
        "total_contended_s": bootstrap(
            mine, _middle(lambda r: math.fsum(r.contended_ms) / 1e3)
        ).plain(),
        "gain_pct": bootstrap(pairs, _gain_pct).plain() if pairs else None,
        "loss_first": median(r.loss[0] for r in mine),
        "loss_last": median(r.loss[-1] for r in mine),
        "loss_distance": max((distance(a, b) for a, b in pairs), default=None),
        "reconfigurations": round(median(len(r.switches) for r in mine)),
        "false_reconfigurations": max(r.false_switches for r in mine),
        "calls_late": median(late) if late else None,
        "apply_ms": median(took) if took else None,
        "fault": next((r.fault for r in mine if r.fault), None),
        "problems": sorted({text for r in mine for text in r.problems}),
        "host_half": policy != NOTHING,
    }


def _middle(figure: Callable[[TrainingRun], float]) -> Callable[[list[Any]], float]:
    return lambda runs: median(figure(run) for run in runs)


def _second_half(run: TrainingRun) -> list[float]:
    """Return contended steps without the first half, in which policies find out."""
    steps = run.contended_ms
    return steps[len(steps) // 2 :]


def _gain_pct(pairs: list[Any]) -> float:
    ratios: list[float] = [median(a.contended_ms) / median(b.contended_ms) for a, b in pairs]
    return 100 * (1 - median(ratios))
