#!/usr/bin/env python3
"""Sweeps the marker's parameters over the two-flow experiment, in virtual time.

Example: python bench/marker_sweep.py --rate 200 --json

Each setting runs the same seeds; every number is relative to DCQCN alone in the same run. The rate
sets the grain: at 200 Mb/s one packet stands for five of the 10 Gb/s prototype. Values are given
in packets of the prototype and divided by the grain.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from ringstep.lab.experiment import DemoParams, Planned, run_once
from ringstep.lab.results import Run
from ringstep.lab.rigs import JobSetting, memory_rig
from ringstep.lab.scenario import Mode

SWEEPS: dict[str, tuple[int | None, ...]] = {
    "n_sample": (0, 8, 32, 64),
    "n_warmup": (0, 8, 64, 512),
    "q_gate": (None, 5, 10, 25, 50),
}
"""Values in packets of the prototype; one parameter at a time, the others at their default."""


def settings(params: DemoParams) -> Iterator[tuple[str, int | None, JobSetting]]:
    base = params.job()
    for name, values in SWEEPS.items():
        for value in values:
            scaled = None if value is None else round(value / params.grain)
            yield name, value, replace(base, **{name: scaled})


def measure(params: DemoParams, setting: JobSetting) -> list[dict[str, Any]]:
    """Return, per delay, what the marker changed against DCQCN alone."""
    rows = []
    with memory_rig(params.host_params(), params.link(), setting) as rig:
        for delay in params.delays_ms:
            runs: dict[Mode, list[Run]] = {
                mode: [
                    run_once(params, rig, Planned(i, delay, mode), params.seed * 1000 + i)
                    for i in range(params.repeat)
                ]
                for mode in (Mode.DCQCN, Mode.MARKER)
            }
            rows.append({"delay_ms": delay, **changes(runs)})
    return rows


def changes(runs: dict[Mode, list[Run]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for flow in ("a", "b"):
        pairs = zip(runs[Mode.DCQCN], runs[Mode.MARKER], strict=True)
        percent = [
            100 * (getattr(m, flow).completion_ms / getattr(d, flow).completion_ms - 1)
            for d, m in pairs
        ]
        result[f"{flow}_change_percent"] = round(statistics.median(percent), 2)
        result[f"{flow}_spread_percent"] = [round(min(percent), 2), round(max(percent), 2)]
    result["marks"] = statistics.median(run.marked["marks"] for run in runs[Mode.MARKER])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=200, help="link rate in Mb/s")
    parser.add_argument("--delays", default="500,1000", help="how late flow A starts, ms")
    parser.add_argument("--repeat", type=int, default=3, help="seeds per setting")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON to standard output")
    args = parser.parse_args()
    try:
        params = DemoParams(
            delays_ms=tuple(float(d) for d in args.delays.split(",")),
            repeat=args.repeat,
            seed=args.seed,
            rate_bps=args.rate * 1e6,
        )
    except ValueError as error:
        parser.error(str(error))
    rows = []
    cases = list(settings(params))
    for name, value, setting in track(cases, "sweeping", console=Console(emoji=False, stderr=True)):
        for row in measure(params, setting):
            rows.append({"parameter": name, "value": value, **row})
    if args.json:
        json.dump({"parameters": params.to_json(), "rows": rows}, sys.stdout, indent=2)
        print()
        return
    table = Table(title="Change against DCQCN alone, medians (least..greatest)")
    for column in ("parameter", "value", "A late, ms", "A, %", "B, %", "marks"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["parameter"],
            "off" if row["value"] is None else str(row["value"]),
            f"{row['delay_ms']:g}",
            *(
                f"{row[f'{f}_change_percent']:+.1f} "
                f"({row[f'{f}_spread_percent'][0]:+.1f}..{row[f'{f}_spread_percent'][1]:+.1f})"
                for f in ("a", "b")
            ),
            f"{row['marks']:.0f}",
        )
    Console(emoji=False).print(table)


if __name__ == "__main__":
    main()
