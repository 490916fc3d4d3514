#!/usr/bin/env python3
"""Trains a small model under contention, by policy: step times beside those of NCCL's choice.

Example: python bench/tuner_training.py --policies nccl,autoccl,dynamic:weights --seeds 3 --json out

Four hosts in network namespaces, a rank and a coordinator on each, and rival TCP flows from step
``--onset`` on. All policies of a seed run one after the other, so that they meet the same machine.
A row's ``step_ms`` is the median over seeds of the median contended step, its interval by
bootstrap over seeds; ``gain`` is the share saved against ``nccl`` in the same seed.
``loss_distance`` says how far the loss at any step was from nccl's, relative: the order of
additions differs, nothing else.
Needs root, iproute2, a C and C++ compiler and torch. The JSON has ``workload_training``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ringstep.hostlib.evaluate.engine.job import TrainingError
from ringstep.hostlib.evaluate.engine.training_table import TrainingParams, compare
from ringstep.hostlib.native.build import BuildError
from ringstep.hostlib.nethosts import NetHostsError, missing


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small model under contention, and compare policies.",
        epilog="example: python bench/tuner_training.py --policies nccl,autoccl --json out.json",
    )
    parser.add_argument("--policies", default="nccl,autoccl", metavar="NAME[:ARGUMENT],...")
    parser.add_argument("--level", type=float, default=0.8, help="of the links' rate, 0 to 1")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--onset", type=int, default=30, help="step that contention begins with")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--fence-every", type=int, default=1, metavar="STEPS")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    return parser.parse_args()


def main() -> int:
    options = parse()
    why = missing()
    if why is not None:
        print(f"tuner_training.py: {why}", file=sys.stderr)
        return 2
    try:
        params = TrainingParams(
            level=options.level, steps=options.steps, onset=options.onset, nodes=options.nodes,
            fence_every=options.fence_every,
        )  # fmt: skip
        policies = options.policies.split(",")
        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task("", total=len(policies) * options.seeds * params.steps)

            def progress(what: str, _step: int) -> None:
                bar.update(task, description=what, advance=1)

            found = compare(policies, options.seeds, params, progress)
    except (ValueError, BuildError, NetHostsError, TrainingError) as error:
        print(f"tuner_training.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    show(found["workload_training"])
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    columns = ("policy", "step ms", "clean", "gain %", "loss", "apart", "switches", "false",
               "late", "apply ms")  # fmt: skip
    for name in columns:
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for row in rows:
        step, gain, apart = row["step_ms"], row["gain_pct"], row["loss_distance"]
        table.add_row(
            row["policy"], f"{step['value']:.0f} ({step['low']:.0f}-{step['high']:.0f})",
            f"{row['clean_step_ms']['value']:.0f}", "-" if gain is None else f"{gain['value']:.1f}",
            f"{row['loss_last']:.4f}", "-" if apart is None else f"{apart:.0e}",
            str(row["reconfigurations"]), str(row["false_reconfigurations"]),
            _or_dash(row["calls_late"]), _or_dash(row["apply_ms"]),
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


if __name__ == "__main__":
    sys.exit(main())
