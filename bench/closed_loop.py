#!/usr/bin/env python3
"""Runs the closed loop on synthetic jobs whose truth is known.

Example: python bench/closed_loop.py --seeds 20 --epochs 1000

Excess: expected time of all epochs so far over that of as many safe ones, less one. `worst` is its
largest value at any horizon from `startup` epochs on, `end` that after the last epoch.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from ringstep.protocol.loop import Arm, ClosedLoop

NOISE: dict[str, Callable[[random.Random], float]] = {
    "5 %": lambda rng: math.exp(rng.gauss(0, 0.05)),
    "15 %": lambda rng: math.exp(rng.gauss(0, 0.15)),
    "tails": lambda rng: (
        math.exp(rng.gauss(0, 0.1)) * (rng.paretovariate(1.8) if rng.random() < 0.05 else 1)
    ),
}
Drift = Callable[[float, str], float]


def still(_at: float, _arm: str) -> float:
    return 1.0


CASES: dict[str, tuple[dict[str, float], Drift]] = {
    "-30 %": ({"a": 0.7}, still),
    "-15 %": ({"a": 0.85}, still),
    "-5 %": ({"a": 0.95}, still),
    "alike": ({"a": 1.0}, still),
    "+4 %": ({"a": 1.04}, still),
    "+10 %": ({"a": 1.1}, still),
    "+50 %": ({"a": 1.5}, still),
    "-20, -25, +5 %": ({"a": 0.8, "b": 0.75, "c": 1.05}, still),
    "+5, +10, +20 %": ({"a": 1.05, "b": 1.1, "c": 1.2}, still),
    "-20 %, from half on +10 %": (
        {"a": 0.8},
        lambda at, arm: 1.0 if at < 0.5 or arm == "safe" else 1.1 / 0.8,
    ),
    "+10 %, from half on -30 %": (
        {"a": 1.1},
        lambda at, arm: 1.0 if at < 0.5 or arm == "safe" else 0.7 / 1.1,
    ),
    "+10 %, all slower and slower": ({"a": 1.1}, lambda at, _: 1 + at),
}
"""Change against the safe arm by arm, and how means drift over the run (0 to 1)."""


def live(
    means: dict[str, float], drift: Drift, noise: str, epochs: int, seed: int, start: str
) -> tuple[str, list[float]]:
    """The arm in force at the end, and the excess by epoch."""
    rng = random.Random(seed)
    true = {"safe": 1.0, **means}
    loop = ClosedLoop([Arm(name) for name in true], "safe", start, seed=seed)
    spent = safe = 0.0
    excess = []
    for epoch in range(epochs):
        arm = loop.next_arm().name
        expected = true[arm] * drift(epoch / epochs, arm)
        loop.observe(arm, expected * NOISE[noise](rng))
        spent += expected
        safe += drift(epoch / epochs, "safe")
        excess.append(spent / safe - 1)
    return loop.in_force, excess


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for case, (means, drift) in CASES.items():
        for noise in NOISE:
            start = "a" if args.start else "safe"
            runs = [
                live(means, drift, noise, args.epochs, seed, start) for seed in range(args.seeds)
            ]
            worst = [max(excess[99:]) for _, excess in runs]
            end = [excess[-1] for _, excess in runs]
            kept = [held for held, _ in runs]
            rows.append(
                {
                    "case": case,
                    "noise": noise,
                    "worst_mean_pct": round(100 * statistics.fmean(worst), 2),
                    "worst_most_pct": round(100 * max(worst), 2),
                    "end_mean_pct": round(100 * statistics.fmean(end), 2),
                    "end_most_pct": round(100 * max(end), 2),
                    "kept": {name: kept.count(name) for name in sorted(set(kept))},
                }
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=1000, help="per run, from 100")
    parser.add_argument("--start", action="store_true", help="start with the first arm, not safe")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.seeds < 1 or args.epochs < 100:
        parser.error("takes at least 1 seed and 100 epochs")
    begun = time.process_time()
    rows = measure(args)
    cost_us = 1e6 * (time.process_time() - begun) / (len(rows) * args.seeds * args.epochs)
    if args.json:
        print(json.dumps({"rows": rows, "cpu_us_per_epoch": round(cost_us, 1)}))
        return 0
    print(
        "| change | noise | worst, mean (most) | end, mean (most) | kept |\n|---|---|---|---|---|"
    )
    for row in rows:
        kept = ", ".join(f"{name} {count}" for name, count in row["kept"].items())
        print(
            f"| {row['case']} | {row['noise']} | {row['worst_mean_pct']:.2f} "
            f"({row['worst_most_pct']:.2f}) | {row['end_mean_pct']:.2f} "
            f"({row['end_most_pct']:.2f}) | {kept} |"
        )
    print(f"\n{cost_us:.0f} us of CPU per epoch", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
