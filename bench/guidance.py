#!/usr/bin/env python3
"""Reduces a sweep to the table that `ringstep job recommend` reads, or prints the table.

Example: ringstep sim sweep ns3-model/ringstep_ns3/paper/studies/operators.toml --out out/operators
         python bench/guidance.py out/operators --out fabric/guidance.json
         python bench/guidance.py --markdown

A cell is a point of all axes but `variant`; it counts once every variant has at least five seeds.
A sweep that was interrupted can be reduced: cells that are not done are left out, and counted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ringstep.fabric.facts import FabricFacts, JobFacts
from ringstep.fabric.guidance import (
    BASELINE,
    GATED,
    OURS,
    PLANNED,
    Cell,
    Change,
    GuidanceTable,
    load_table,
    parse_table,
)
from ringstep.fabric.recommend import recommend
from ringstep.fabric.units import format_rate

if TYPE_CHECKING:
    from ringstep_ns3.scenario import Scenario

Floats = npt.NDArray[np.float64]
Samples = dict[str, Floats]
"""CCT in ns by variant, a value per seed."""
FEWEST = 5
RESAMPLES = 4000
VARIANT = "variant"


class ReductionError(ValueError):
    """A result folder that no table can be made of."""


@dataclass(frozen=True)
class Measured:
    """A cell as the sweep left it; ``scenarios`` are the effective ones, by variant."""

    label: str
    samples: Samples
    seeds: tuple[int, ...]
    scenarios: Mapping[str, Scenario]


# --- From runs to cells -----------------------------------------------------------------------


def read_cells(folder: Path) -> tuple[list[Measured], int, int]:
    """Return the finished cells of a sweep, how many are not finished, and the runs used."""
    import pyarrow.parquet as pq

    try:
        outcome = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
        rows = pq.read_table(folder / "runs.parquet").to_pylist()
    except (OSError, ValueError) as error:
        raise ReductionError(
            f"{folder}: {error}; give the --out folder of ringstep sim sweep"
        ) from None
    axes = [str(axis["name"]) for axis in outcome["axes"]]
    if VARIANT not in axes:
        raise ReductionError(f"{folder}: the sweep has no axis {VARIANT!r}")
    names = list(dict.fromkeys(point[VARIANT] for point in outcome["points"]))
    others = [axis for axis in axes if axis != VARIANT]
    wanted = dict.fromkeys(tuple(p[axis] for axis in others) for p in outcome["points"])
    runs: dict[tuple[str, ...], dict[str, dict[int, tuple[float, str]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for row in rows:
        if row["complete"]:
            key = tuple(row[axis] for axis in others)
            runs[key][row[VARIANT]][row["seed"]] = row["cct_median_ns"], row["hash"]
    cells = []
    for key in wanted:
        found = [runs[key][name] for name in names]
        seeds = sorted(set.intersection(*(set(each) for each in found)))
        if len(seeds) >= FEWEST:
            cells.append(_measured(folder, key, names, found, seeds))
    used = sum(len(cell.samples) * len(cell.seeds) for cell in cells)
    return cells, len(wanted) - len(cells), used


def _measured(
    folder: Path,
    key: Sequence[str],
    names: Sequence[str],
    found: Sequence[Mapping[int, tuple[float, str]]],
    seeds: Sequence[int],
) -> Measured:
    from ringstep_ns3.scenario import Scenario

    samples = {
        name: np.array([runs[seed][0] for seed in seeds])
        for name, runs in zip(names, found, strict=True)
    }
    scenarios = {
        name: Scenario.load(folder / "runs" / runs[seeds[0]][1] / "effective.toml")
        for name, runs in zip(names, found, strict=True)
    }
    return Measured(key[0], samples, tuple(seeds), scenarios)


def site_of(label: str, scenario: Scenario) -> dict[str, Any]:
    """Return what is known of a cell's fabric and collective, from its effective configuration."""
    from ringstep_ns3.metrics import wire_bytes
    from ringstep_ns3.prepare import prepare
    from ringstep_ns3.scenario import LeafSpine

    prepared = prepare(scenario)
    fabric, job = scenario.fabric, prepared.jobs[0]
    if not isinstance(fabric, LeafSpine):
        raise ReductionError(f"{label}: only leaf_spine fabrics are reduced")
    uplink = fabric.uplink_rate or fabric.rate
    uplink_delay = fabric.delay if fabric.uplink_delay is None else fabric.uplink_delay
    ring = max((len(ring) for ring in job.ops[0].rings), default=len(job.hosts))
    packet = wire_bytes(scenario.transport.mtu, scenario.transport)
    (red,) = [row for row in prepared.red if row.rate_bps == uplink]
    return {
        "name": label,
        "rate_bps": fabric.rate,
        "rtt_ns": 4 * (fabric.delay + uplink_delay),
        "step_bytes": job.table.chunk,
        "mtu": scenario.transport.mtu,
        "oversubscription": round(
            fabric.hosts_per_leaf * fabric.rate / (fabric.spines * fabric.parallel * uplink), 3
        ),
        "ring": ring,
        "tenants": max((getattr(each, "load", 0) for each in scenario.background), default=0),
        "red_k_min": red.k_min // packet,
    }


def variant_of(name: str, scenario: Scenario) -> dict[str, Any]:
    """Return the setting of paths and marker that a variant stands for."""
    from ringstep_ns3.prepare import prepare

    params = prepare(scenario).markers[0]
    marker = params and {
        "k": params.k / (1 << 16),
        "tau": str(Fraction(params.tau_num, params.tau_den)),
        "t_win_us": params.t_win,
        "n_sample": params.n_sample,
        "n_warmup": params.n_warmup,
        "alpha_max": params.alpha_max,
        "q_gate": params.q_gate,
    }
    return {
        "name": name,
        "planned": scenario.switch.lb == "planned",
        "marker": marker,
    }


def change(mine: Floats, theirs: Floats) -> list[float]:
    """Return [mean, low, high]: by how many percent the mean of ``mine`` is longer."""
    from ringstep_ns3.paper.measure import reduction_pct

    less, low, high = reduction_pct(mine, theirs, lambda values: np.asarray(values.mean(axis=-1)))
    assert low is not None
    assert high is not None
    return [_tenth(-less), _tenth(-high), _tenth(-low)]


def _tenth(percent: float) -> float:
    return round(percent, 1) + 0.0


def held_out(samples: Samples, names: Sequence[str]) -> tuple[str, Floats]:
    """Return the variant that is best on average, and what choosing fairly would have given.

    For each seed the variant is chosen on the other seeds.
    """
    table = np.array([samples[name] for name in names])
    held = [
        table[np.delete(table, seed, axis=1).mean(axis=1).argmin(), seed]
        for seed in range(table.shape[1])
    ]
    return names[int(table.mean(axis=1).argmin())], np.array(held)


def reduce_cells(cells: Sequence[Measured]) -> dict[str, Any]:
    """Return variants, sites, cells and sensitivities as the table's JSON holds them."""
    variants = [variant_of(name, scenario) for name, scenario in cells[0].scenarios.items()]
    sites: dict[str, dict[str, Any]] = {}
    rows = []
    for cell in cells:
        scenario = cell.scenarios[BASELINE]
        sites.setdefault(cell.label, site_of(cell.label, scenario))
        rows.append(
            {
                "site": cell.label,
                "sender": scenario.job[0].sender,
                "preset": scenario.cc.preset,
                **_numbers(cell.samples, variants),
            }
        )
    return {
        "variants": variants,
        "sites": list(sites.values()),
        "cells": rows,
        "sensitivities": _sensitivities(cells, rows, variants),
    }


def _numbers(samples: Samples, variants: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    base = samples[BASELINE]
    alone = {True: samples[PLANNED], False: base}
    harm = [
        None if each["marker"] is None else change(samples[each["name"]], alone[each["planned"]])[2]
        for each in variants
    ]
    rivals = [each["name"] for each in variants if each["planned"] and each["marker"]]
    best, held = held_out(samples, rivals)
    return {
        "baseline_ms": round(float(base.mean()) / 1e6, 3),
        "changes": [
            None if each["name"] == BASELINE else change(samples[each["name"]], base)
            for each in variants
        ],
        "harm": harm,
        "best": [
            best,
            change(held, base),
            change(held, samples[OURS]),
            change(held, samples[PLANNED])[2],
        ],
    }


def _sensitivities(
    cells: Sequence[Measured],
    rows: Sequence[Mapping[str, Any]],
    variants: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Geometric means over cells against ``ours``; the interval resamples cells."""
    groups: dict[tuple[str, str], list[Samples]] = defaultdict(list)
    for cell, row in zip(cells, rows, strict=True):
        groups[row["sender"], row["preset"]].append(cell.samples)
    names = [each["name"] for each in variants if each["name"] not in (OURS, BASELINE, GATED)]
    found = []
    for (sender, preset), members in groups.items():
        drawn = np.random.default_rng(len(members)).integers(
            0, len(members), (RESAMPLES, len(members))
        )
        changes = {}
        for name in names:
            ratios = np.array([math.log(m[name].mean() / m[OURS].mean()) for m in members])
            spread = np.percentile(ratios[drawn].mean(axis=1), (2.5, 97.5))
            changes[name] = [_tenth(100 * math.expm1(value)) for value in (ratios.mean(), *spread)]
        found.append({"sender": sender, "preset": preset, "changes": changes})
    return found


def make_table(folder: Path) -> str:
    """Return the JSON text of the table for a sweep's folder."""
    cells, unfinished, runs = read_cells(folder)
    if not cells:
        raise ReductionError(
            f"{folder}: no cell has {FEWEST} seeds of every variant yet; let the sweep go on"
        )
    outcome = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
    seeds = {len(cell.seeds) for cell in cells}
    made = {
        "command": f"ringstep sim sweep {outcome['name']}.toml; python bench/guidance.py",
        "sweep": outcome["name"],
        "ringstep": version("ringstep"),
        "ringstep_ns3": version("ringstep-ns3"),
        "ns3": version("ns3"),
        "seeds": min(seeds),
        "most_seeds": max(seeds),
        "runs": runs,
        "unfinished_cells": unfinished,
        "interval": "95 %, bootstrap over seeds paired with the baseline's, expanded percentiles",
    }
    return _dump({"made": made, **reduce_cells(cells)})


def _dump(data: Mapping[str, Any]) -> str:
    """JSON with a line per row."""
    parts = [f'"made": {json.dumps(data["made"])}']
    for key in ("variants", "sites", "cells", "sensitivities"):
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in data[key])
        parts.append(f'"{key}": [\n{lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


# --- From the table to a page -----------------------------------------------------------------


def markdown(table: GuidanceTable) -> str:
    """Return the tables of docs/operators.md."""
    made = table.made
    seeds = f"{made['seeds']}" + (
        "" if made["seeds"] == made["most_seeds"] else f" to {made['most_seeds']}"
    )
    left = made["unfinished_cells"]
    lines = [
        f"{made['runs']} runs, {seeds} seeds, ringstep {made['ringstep']}, ns-3 {made['ns3']}; "
        f"{len(table.cells)} cells" + (f", {left} more not finished." if left else ".")
    ]
    for sender in table.senders:
        for preset in table.presets:
            cells = [c for c in table.cells if (c.sender, c.preset) == (sender, preset)]
            if cells:
                lines += ["", f"### {sender}, {preset}", "", *_cell_table(cells, table)]
    lines += ["", "### Parameters, one at a time", "", *_parameter_table(table)]
    return "\n".join(lines) + "\n"


def _start(cell: Cell, table: GuidanceTable) -> str:
    """What is recommended where the cell was measured."""
    site = cell.site
    fabric = FabricFacts(
        site.rate_bps, site.rtt_ns, site.oversubscription, site.mtu, tenants=bool(site.tenants)
    )
    found = recommend(fabric, JobFacts(site.step_bytes, site.ring, cell.sender, cell.preset), table)
    paths = "planned" if found.paths == "planned" else "ECMP"
    loop = ", loop" if found.closed_loop else ""
    return f"{paths}, {'marking' if found.marking else 'no marking'}{loop}"


def _cell_table(cells: Iterable[Cell], table: GuidanceTable) -> list[str]:
    lines = [
        "| fabric | RTT | step | ring | load | DCQCN + ECMP, ms | marked | planned | both | "
        "best set, held out | start |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        site = cell.site
        lines.append(
            f"| {format_rate(site.rate_bps)}, {site.oversubscription:g}:1 | "
            f"{site.rtt_ns / 1000:g} µs | {site.step_ns / 1e6:.2g} ms | {site.ring} | "
            f"{site.tenants:.0%} | {cell.baseline_ms:.2f} | {_text(cell.changes[GATED])} | "
            f"{_text(cell.changes[PLANNED])} | {_text(cell.changes[OURS])} | "
            f"{_text(cell.best.change)} {cell.best.variant} | {_start(cell, table)} |"
        )
    return lines


def _parameter_table(table: GuidanceTable) -> list[str]:
    groups = dict.fromkeys((each.sender, each.preset) for each in table.sensitivities)
    found = {(s.sender, s.preset, s.variant): s.change for s in table.sensitivities}
    names = dict.fromkeys(each.variant for each in table.sensitivities)
    heads = [f"{sender}, {preset}" for sender, preset in groups]
    lines = [f"| variant | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name in names:
        shown = "no marking" if name == PLANNED else name
        texts = [_text(found[(*group, name)]) for group in groups]
        lines.append(f"| {shown} | {' | '.join(texts)} |")
    return lines


def _text(each: Change) -> str:
    return f"{each.mean:+.1f} ({each.low:+.1f} … {each.high:+.1f})".replace("-", "\N{MINUS SIGN}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="?", type=Path, help="folder of the sweep")
    parser.add_argument("--out", type=Path, help="where the table goes; absent: standard output")
    parser.add_argument(
        "--markdown", action="store_true", help="print the tables of docs/operators.md"
    )
    args = parser.parse_args()
    try:
        text = None if args.results is None else make_table(args.results)
    except ReductionError as error:
        parser.error(str(error))
    if text is None and not args.markdown:
        parser.error("give the folder of a sweep, or --markdown for the table that is there")
    if text is not None and args.out is not None:
        args.out.write_text(text, encoding="utf-8")
        print(f"{args.out}: {len(text)} bytes", file=sys.stderr)
    if args.markdown:
        print(markdown(load_table() if text is None else parse_table(text)), end="")
    elif text is not None and args.out is None:
        print(text, end="")


if __name__ == "__main__":
    main()
