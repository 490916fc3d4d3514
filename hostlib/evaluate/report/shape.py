"""What a result file holds: what ``ringstep tuner evaluate --json`` writes, and what may be added.

Every key is optional; a section of the report whose key is missing says that it was not measured.
Shares are of 1, not of 100, unless a name ends in ``pct``. Missing numbers (a median of "never",
a share of nothing) are null, as :mod:`ringstep.hostlib.evaluate.experiments` writes them; NaN and
infinities read as null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict

import numpy as np


class Estimate(TypedDict):
    """A figure with its 95 % interval; ``n``: independent units in it."""

    value: float | None
    low: float | None
    high: float | None
    n: NotRequired[int]


class About(TypedDict, total=False):
    """How the file was made, in words for the report.

    Attributes:
        environment: short name for columns: fluid, engine, simulator.
        words: what that is, a sentence.
        machine: what it ran on.
        seeds: of jobs and episodes.
        commands: from data to this file, in order.
        policy: the one the report is about; by default ``dynamic``.
        limits: what the numbers do not show, a sentence each.
    """

    environment: str
    words: str
    machine: str
    seeds: str
    commands: list[str]
    policy: str
    limits: list[str]


class Detection(TypedDict):
    """Calls from the onset of contention to its detection, over episodes."""

    median: Estimate
    p90: float | None
    found: float
    false_alarms: int
    episodes: int


class SpikeCount(TypedDict):
    """What spikes caused."""

    episodes: int
    spikes: int
    false_alarms: int
    false_reconfigurations: int


class CleanCount(TypedDict):
    """What clean calls caused."""

    calls: int
    false_alarms: int
    false_reconfigurations: int


class Wrong(TypedDict):
    """Alarms and reconfigurations that were for nothing."""

    spikes: SpikeCount
    clean: CleanCount


class Gain(TypedDict):
    """Gains of a policy at one level of contention; see ``experiments.gains``."""

    gain_vs_nccl: Estimate
    settled_gain: Estimate
    mean_gain: Estimate
    oracle_gain: Estimate
    share_of_oracle: Estimate
    p_value: float | None
    worst_episode: float | None
    reconfigurations: float


class Phases(TypedDict):
    """Gains against NCCL's choice while the load changes; see ``experiments.transitions``."""

    first_phase_gain: float | None
    second_phase_gain: float | None
    reconfigurations: float
    in_force_at_the_end: float


class Versus(TypedDict):
    """Gains against another policy; see ``experiments.versus``."""

    gain: Estimate
    mean_gain: Estimate
    settled_gain: Estimate
    p_value: float | None


class Percentiles(TypedDict):
    """Median and 99th percentile of a time in ms; numbers, or figures with their intervals."""

    p50: Estimate | float
    p99: Estimate | float


class Importance(TypedDict):
    """How much the selector hangs on a group of inputs; see ``attribution.attribute``."""

    flipped: float
    displaced: float
    gradient: float


class Trace(TypedDict):
    """One episode, call by call (Figure 10).

    Attributes:
        level: of contention, a share of the link.
        onset: first contended call, from 0.
        ratio: latency over the clean one of NCCL's choice, by call.
        probability: of contention as the detector sees it after the call; null where it was not
            asked.
        found: call after which contention was held for sustained; null: never.
        switched: first call in another configuration; null: none.
    """

    level: float
    onset: int
    ratio: list[float]
    probability: list[float | None]
    found: int | None
    switched: NotRequired[int | None]


class Quantiles(TypedDict):
    """A distribution of latencies: percentiles, mean, standard deviation; :func:`quantiles`."""

    p05: float
    p25: float
    p50: float
    p75: float
    p95: float
    mean: float
    deviation: float
    n: int


class Pair(TypedDict):
    """Two policies on the same jobs and noise: gain of medians, and a paired sign-flip test."""

    policy: str
    rival: str
    gain: Estimate
    p_value: float
    pairs: int


class Distributions(TypedDict):
    """Latencies of contended calls, by policy (Figure 15).

    Attributes:
        level: of contention.
        unit: of the latencies, for the axis: "clean median of NCCL's choice", or "ms".
        policies: in the order to show.
        tests: paired.
    """

    level: float
    unit: str
    policies: dict[str, Quantiles]
    tests: list[Pair]


class Metrics(TypedDict, total=False):
    """Figures of a model card (``ringstep tuner train``); detector's, then selector's.

    ``curve`` has a row for each epoch: training loss, then loss on held-out traces (detector) or
    mean regret on held-out states (selector).
    """

    curve: list[list[float | None]]
    loss: float
    auc: float
    steady_right: float
    spike_right: float
    sustained_right: float
    held_out_traces: int
    regret_mean: float
    regret_p50: float
    regret_p95: float
    gain_share: float
    worse_than_nccl: float
    transitions: int


class Card(TypedDict):
    """A model card, as far as the report reads it."""

    metrics: Metrics
    bytes: NotRequired[int]


class Training(TypedDict, total=False):
    """Model cards of both networks (Figures 8 and 9)."""

    detector: Card
    selector: Card


class Rule(TypedDict):
    """One test rule, with the detector trained for it.

    ``detection`` by level, as ``experiments.detection`` gives them for a policy;
    ``false_reconfigurations`` likewise.
    """

    detection: dict[str, Detection]
    false_reconfigurations: Wrong


class Loss(TypedDict):
    """Time over all calls of an episode against NCCL's choice on the same, less 1.

    ``worst`` is the largest of the episodes, ``over``: how many lost more than the stated bound.
    """

    worst: float
    over: int
    episodes: int


class Safety(TypedDict):
    """The stated bound and what was lost: by policy and by level or kind of episode."""

    budget: float
    losses: dict[str, dict[str, Loss]]


class TrainedModel(TypedDict):
    """A model that was really trained, under one policy and one level of contention."""

    model: str
    policy: str
    level: float
    steps: int
    step_ms: Estimate
    loss_first: float
    loss_last: float
    reconfigurations: int


Table = dict[str, dict[str, dict[str, Estimate]]]
"""Mean gain against NCCL's choice by policy (and ``oracle``), label and level."""


class Result(TypedDict, total=False):
    """One file: one environment."""

    about: About
    environment: list[str]
    seeds: int
    detection: dict[str, dict[str, Detection]]
    onsets: dict[str, dict[str, Estimate]]
    false_reconfigurations: dict[str, Wrong]
    gains: dict[str, dict[str, Gain]]
    transitions: dict[str, dict[str, Phases]]
    versus_autoccl: dict[str, dict[str, dict[str, Versus]]]
    clean_overhead_pct: dict[str, Estimate]
    inference_ms: dict[str, Percentiles]
    sizes: Table
    workloads: Table
    ranks_per_node: Table
    nodes: Table
    attribution: dict[str, Importance]
    detection_traces: list[Trace]
    distributions: Distributions
    training: Training
    rules: dict[str, Rule]
    safety: Safety
    workload_training: list[TrainedModel]


def quantiles(latencies: Sequence[float]) -> Quantiles:
    """Summarize latencies for :class:`Distributions`.

    Raises:
        ValueError: there are none.
    """
    values = np.asarray(latencies, np.float64)
    if not len(values):
        raise ValueError("no latencies to summarize")
    p05, p25, p50, p75, p95 = (float(v) for v in np.percentile(values, [5, 25, 50, 75, 95]))
    return {
        "p05": p05, "p25": p25, "p50": p50, "p75": p75, "p95": p95,
        "mean": float(values.mean()), "deviation": float(values.std()), "n": len(values),
    }  # fmt: skip
