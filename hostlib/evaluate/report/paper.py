"""What the paper says: DynamICCL, arXiv:2611.10984v1, sections 3 to 5.

Only numbers that its text gives; what its plots show besides cannot be read from a text. Values
that follow from two of its numbers are marked as derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TITLE: Final = (
    "Network Contention-Aware Dynamic Optimizer for Accelerator Collective Communication "
    "(DynamICCL, arXiv:2611.10984v1)"
)


@dataclass(frozen=True, slots=True)
class Paper:
    """One statement.

    Attributes:
        where: figure and section.
        says: for a table.
        value: for a chart, in its unit (shares of 1); None: not one number.
    """

    where: str
    says: str
    value: float | None = None


def _pct(where: str, percent: float, more: str = "") -> Paper:
    return Paper(where, f"{percent:g} %{more}".replace("-", "\N{MINUS SIGN}"), percent / 100)


_DETECT, _SPIKES, _PERF = "Fig. 10, 5.1.1", "Fig. 11, 5.1.1", "Fig. 13, 5.1.2"
_AI, _RANKS, _NODES = "Fig. 16, 5.2", "Fig. 17a, 5.3", "Fig. 17b, 5.3"
_INTRINSIC, _BEHAVIOUR = "Fig. 18a, 5.4", "Fig. 18b, 5.4"

NUMBERS: Final[Mapping[str, Paper]] = {
    "inference/combined": Paper("4.4", "3.6 ms", 3.6),
    "inference/detector": Paper("4.3.1", "below 1 ms"),
    "inference/selector": Paper("4.3.2", "below 2 ms"),
    "overhead": Paper("5.1.2", "below 0.2 % (3,204 and 3,210 ms)", 0.002),
    "training/detector/auc": Paper("Fig. 8b, 4.3.1", "0.976", 0.976),
    "training/detector/sustained": _pct("Fig. 8c, 3.1", 97.5),
    "training/detector/spike": _pct("3.1", 84.9),
    "training/detector/false": Paper("Fig. 8c, 4.3.1", "below 5 %"),
    "training/detector/epochs": Paper("Fig. 8a, 4.3.1", "stable by epoch 3", 3),
    "training/selector/epochs": Paper("Fig. 9, 4.3.2", "within 10,000 steps"),
    "detect/0.5": Paper(_DETECT, "9", 9),
    "detect/0.8": Paper(_DETECT, "about 4", 4),
    "detect/0.9": Paper(_DETECT, "about 4", 4),
    "false/spikes": Paper(_SPIKES, "0 of 6", 0),
    "onset/spread": Paper("5.1.1", "the same gain (about 42 %) at each onset", 0),
    "transition/escalating/switches": Paper("Fig. 12, 5.1.1", "1", 1),
    "transition/de-escalating/switches": Paper("Fig. 12, 5.1.1", "1", 1),
    "transition/escalating/first_phase_gain": Paper(
        "Fig. 12, 5.1.1", "23 to 31 % (derived: 5,000 to 5,800 ms against 6,500 to 8,400)"
    ),
    "gain/0.5": _pct(_PERF, 8.2),
    "gain/0.7": _pct(_PERF, 19.0),
    "gain/0.8": _pct(_PERF, 29.1, "; 36 % in the fair regime"),
    "gain/0.9": _pct(_PERF, 30.2),
    "fair/0.8": _pct(_PERF, 32.0, ", p < 0.0001"),
    "equal/0.8": _pct(_PERF, 71.7, " (derived: 6,147 and 21,697 ms)"),
    "nccl/fair/0.8": _pct(_PERF, -6.8, " (derived: AutoCCL gains 6.4 %)"),
    "nccl/equal/0.8": _pct(_PERF, 60.0, " (derived: 8,673 and 21,697 ms)"),
    "sizes/least": _pct("Fig. 14, 5.1.2", 19.0),
    "sizes/most": _pct("Fig. 14, 5.1.2", 31.0),
    "distribution/p/nccl": Paper("Fig. 15, 5.1.2", "p < 0.0001"),
    "distribution/p/autoccl": Paper("Fig. 15, 5.1.2", "p < 0.0001"),
    "distribution/spread": Paper("Fig. 15, 5.1.2", "significantly lower (no number)"),
    "workloads/mean/0.8": _pct(_AI, 12.06),
    "workloads/mean/1": _pct(_AI, 12.98),
    "workloads/least": _pct(_AI, 7.0),
    "workloads/most": _pct(_AI, 28.3, " (NanoGPT at 100 %)"),
    "workloads/BERT/1": _pct(_AI, 18.9),
    "workloads/NanoGPT/1": _pct(_AI, 28.3),
    "ranks/1": _pct(_RANKS, 65.0),
    "ranks/2": _pct(_RANKS, 61.4),
    "ranks/3": _pct(_RANKS, 10.2),
    "ranks/4": _pct(_RANKS, 6.2),
    "nodes/least": _pct(_NODES, 35.3),
    "nodes/most": _pct(_NODES, 65.0),
    "nodes/mean": _pct(_NODES, 45.0, " and more"),
    "attribution/gradient/history": Paper(_INTRINSIC, "0.522", 0.522),
    "attribution/gradient/topology": Paper(_INTRINSIC, "0.596", 0.596),
    "attribution/share/history": Paper(_INTRINSIC, "about 97 %", 0.97),
    "attribution/flipped/history": _pct(_BEHAVIOUR, 41.2),
    "attribution/displaced/history": Paper(_BEHAVIOUR, "nearly 9 %", 0.09),
    "attribution/flipped/others": Paper(_BEHAVIOUR, "at most 3.4 %", 0.034),
}
"""By the id of a measure (:mod:`ringstep.hostlib.evaluate.report.measures`)."""
