from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LEVELS = ("0.5", "0.7", "0.8", "0.9")
POLICIES = ("dynamic", "dynamic+calibration", "nccl", "autoccl", "threshold", "threshold+trial",
            "cusum", "cusum+trial", "bandit")  # fmt: skip
DETECTING = tuple(p for p in POLICIES if p not in ("nccl", "autoccl", "bandit"))
GROUPS = ("history", "contention", "topology", "size", "collective", "configuration",
          "NCCL's choice", "gpu")  # fmt: skip


def estimate(value: float, width: float = 0.05, n: int = 12) -> dict[str, Any]:
    return {"value": value, "low": value - width, "high": value + width, "n": n}


def gain(at: float, level: str) -> dict[str, Any]:
    value = at * float(level) ** 2
    return {
        "gain_vs_nccl": estimate(value), "settled_gain": estimate(value + 0.01),
        "mean_gain": estimate(value - 0.01), "oracle_gain": estimate(0.62 * float(level)),
        "share_of_oracle": estimate(value / (0.62 * float(level) or 1.0)),
        "p_value": 0.0123, "worst_episode": 0.004 - value, "reconfigurations": 1.25,
    }  # fmt: skip


def detection(calls: float) -> dict[str, Any]:
    return {
        level: {"median": estimate(calls, 0.5), "p90": calls + 2, "found": 1.0,
                "false_alarms": 0, "episodes": 12}
        for level in LEVELS
    }  # fmt: skip


def wrong(count: int) -> dict[str, Any]:
    return {
        "spikes": {"episodes": 12, "spikes": 72, "false_alarms": count + 1,
                   "false_reconfigurations": count},
        "clean": {"calls": 10_000, "false_alarms": 2 * count, "false_reconfigurations": count},
    }  # fmt: skip


def table(labels: list[str], levels: tuple[str, ...] = LEVELS) -> dict[str, Any]:
    return {
        p: {
            label: {lv: estimate(0.1 + 0.03 * i + 0.1 * float(lv) - 0.05 * k) for lv in levels}
            for i, label in enumerate(labels)
        }
        for k, p in enumerate(("oracle", "dynamic", "nccl", "autoccl"))
    }


def trace(level: float, found: int) -> dict[str, Any]:
    return {
        "level": level, "onset": 20, "found": found, "switched": found + 1,
        "ratio": [1 + 0.01 * (i % 3) + (level * 2 if i >= 20 else 0) for i in range(60)],
        "probability": [
            None if i < 3 else 0.02 if i < 20 else min(1.0, 0.1 + (i - 19) * level / 5)
            for i in range(60)
        ],
    }  # fmt: skip


def full() -> dict[str, Any]:
    """Return a result with every key; no two figures of the learned policy are alike."""
    spread = {p: 0.45 - 0.07 * i for i, p in enumerate(POLICIES)} | {"nccl": 0.0, "threshold": -9.0}
    versus = {
        p: {
            regime: {
                lv: {"gain": estimate(g), "mean_gain": estimate(g - 0.01),
                     "settled_gain": estimate(g + 0.01), "p_value": 0.00001}
                for lv, g in zip(LEVELS, (0.02, 0.11, shift, 0.33), strict=True)
            }
            for regime, shift in (("equal", 0.61), ("fair", -0.21))
        }
        for p in POLICIES
    }  # fmt: skip
    return {
        "about": {
            "environment": "fluid", "words": "A model of flows & queues.", "machine": "2 cores",
            "seeds": "jobs 900001 and on, episodes 0 to 2",
            "commands": ["ringstep tuner train detector --data traces.npz --out weights",
                         "ringstep tuner evaluate --json fluid.json --weights weights"],
            "limits": ["queues have no packets"],
        },
        "environment": ["fluid 0: all_reduce", "fluid 1: all_gather"],
        "seeds": 3,
        "detection": {p: detection(4.0 + i) for i, p in enumerate(DETECTING)},
        "onsets": {p: {o: estimate(4.0 + i, 0.5) for o in ("10", "20", "30")}
                   for i, p in enumerate(DETECTING)},
        "false_reconfigurations": {p: wrong(3 * (p == "threshold")) for p in POLICIES},
        "gains": {p: {lv: gain(v, lv) for lv in ("0", *LEVELS)} for p, v in spread.items()},
        "transitions": {
            p: {plan: {"first_phase_gain": 0.21, "second_phase_gain": 0.17,
                       "reconfigurations": 1.0, "in_force_at_the_end": 1.0}
                for plan in ("escalating", "de-escalating", "ending")}
            for p in POLICIES
        },
        "versus_autoccl": versus,
        "clean_overhead_pct": {p: estimate(0.031 * i, 0.02) for i, p in enumerate(POLICIES)},
        "inference_ms": {
            "detector": {"p50": 0.061, "p99": 0.1}, "selector": {"p50": 0.142, "p99": 0.2},
            "combined": {"p50": estimate(0.207, 0.01), "p99": 0.31},
        },
        "sizes": table(["256 MiB", "512 MiB", "1024 MiB", "2048 MiB", "4096 MiB"]),
        "workloads": table(["ResNet-50", "BERT", "NanoGPT", "DLRM", "GPT-2 Medium", "ViT-Large"],
                           ("0.8", "1")),
        "ranks_per_node": table(["1", "2", "3", "4"]),
        "nodes": table(["4", "8", "12", "16", "24"]),
        "attribution": {
            g: {"flipped": 0.4 / (i + 1), "displaced": 0.08 / (i + 1), "gradient": 0.5 / (i + 1)}
            for i, g in enumerate(GROUPS)
        },
        "detection_traces": [trace(0.5, 28), trace(0.7, 25), trace(0.8, 23), trace(0.9, 22)],
        "distributions": {
            "level": 0.8, "unit": "clean median of NCCL's choice",
            "policies": {
                p: {"p05": 1.1 * s, "p25": 1.4 * s, "p50": 1.6 * s, "p75": 1.9 * s, "p95": 2.6 * s,
                    "mean": 1.7 * s, "deviation": 0.4 * s * s, "n": 2400}
                for p, s in (("nccl", 1.5), ("autoccl", 1.4), ("dynamic", 1.0))
            },
            "tests": [
                {"policy": "dynamic", "rival": r, "gain": estimate(g), "p_value": 0.00002,
                 "pairs": 36}
                for r, g in (("nccl", 0.31), ("autoccl", 0.27))
            ],
        },
        "training": {
            "detector": {"bytes": 369_000, "metrics": {
                "curve": [[0.21, 0.113], [0.107, 0.091], [0.09, 0.094]], "loss": 0.091,
                "auc": 0.9981, "steady_right": 0.9656, "spike_right": 0.9773,
                "sustained_right": 0.9927, "held_out_traces": 1350}},
            "selector": {"metrics": {
                "curve": [[1.2, 0.3], [0.6, 0.11], [0.4, 0.05]], "regret_mean": 0.05,
                "regret_p50": 0.0, "regret_p95": 0.2, "gain_share": 0.93,
                "worse_than_nccl": 0.013, "transitions": 30_000}},
        },
        "rules": {
            r: {"detection": detection(4.0 + i), "false_reconfigurations": wrong(i)}
            for i, r in enumerate(("sequence", "wald", "paper"))
        },
        "safety": {
            "budget": 0.01,
            "losses": {p: {lv: {"worst": 0.002 * i, "over": 0, "episodes": 36} for lv in LEVELS}
                       for i, p in enumerate(("dynamic", "threshold+trial"))},
        },
        "workload_training": [
            {"model": "small GPT", "policy": p, "level": 0.8, "steps": 200,
             "step_ms": estimate(ms, 4.0), "loss_first": 4.2, "loss_last": 2.75,
             "reconfigurations": int(p == "dynamic")}
            for p, ms in (("nccl", 151.0), ("dynamic", 118.0))
        ],
    }  # fmt: skip


@pytest.fixture
def result() -> dict[str, Any]:
    return full()


@pytest.fixture
def save(tmp_path: Path) -> Callable[[Any, str], Path]:
    def write(data: Any, name: str = "fluid.json") -> Path:
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return path

    return write
