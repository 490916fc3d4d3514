"""Curves over time of single runs, as the paper draws them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from ringstep_ns3.tables import Column

_POINTS: Final = 100

Curve = Mapping[str, list[float]]
"""Columns of equal length; ``time_ms`` first."""


def overlap_curve(run: Path) -> Curve:
    """Return, per window, the most steps and the largest distance of steps on one link."""
    table = _columns(run / "overlap.parquet")
    time, inverse = np.unique(table["time_ns"], return_inverse=True)
    steps, distance = np.zeros(len(time)), np.zeros(len(time))
    np.maximum.at(steps, inverse, table["max_steps"].astype(np.float64))
    np.maximum.at(distance, inverse, table["max_distance"].astype(np.float64))
    return {
        "time_ms": _plain(time / 1e6),
        "max_steps": _plain(steps),
        "max_distance": _plain(distance),
    }


def rate_curve(run: Path) -> Curve:
    """Return the step completion rate over time, % of line rate, averaged over a hundredth each.

    The rate of a step is the ideal over the real interval to the step before in its ring (paper,
    2.2: "the inverse of inter-step completion intervals"); the average weighs by time.
    """
    table = _columns(run / "step_rate.parquet")
    rate = table["rate"].astype(np.float64)
    interval = table["interval_ns"].astype(np.float64)
    known = ~np.isnan(rate) & ~np.isnan(interval)
    end = table["end_ns"].astype(np.float64)
    if not known.any():
        return {"time_ms": [], "rate_pct": []}
    edges = np.linspace(0.0, float(end[known].max()), _POINTS + 1)
    where = np.clip(np.searchsorted(edges, end[known], side="left") - 1, 0, _POINTS - 1)
    ideal = np.bincount(where, rate[known] * interval[known], _POINTS)
    real = np.bincount(where, interval[known], _POINTS)
    used = real > 0
    middle = (edges[:-1] + edges[1:]) / 2
    return {
        "time_ms": _plain(middle[used] / 1e6),
        "rate_pct": _plain(100 * ideal[used] / real[used]),
    }


def throughput_curves(run: Path) -> dict[str, Curve]:
    """Return payload in Gbit/s per job over time, and of all jobs together as ``Total``."""
    table = _columns(run / "throughput.parquet")
    jobs = _columns(run / "jobs.parquet")
    curves: dict[str, Curve] = {}
    time, inverse = np.unique(table["time_ns"], return_inverse=True)
    total = np.zeros(len(time))
    for number, name in zip(jobs["job"], jobs["name"], strict=True):
        own = np.zeros(len(time))
        mine = table["job"] == number
        np.add.at(own, inverse[mine], table["bps"][mine].astype(np.float64))
        total += own
        curves[str(name)] = {"time_ms": _plain(time / 1e6), "gbps": _plain(own / 1e9)}
    curves["Total"] = {"time_ms": _plain(time / 1e6), "gbps": _plain(total / 1e9)}
    return curves


def _columns(path: Path) -> dict[str, Column]:
    table: Any = pq.read_table(path)
    return {
        name: np.asarray(table.column(name).to_numpy(zero_copy_only=False))
        for name in table.column_names
    }


def _plain(values: Column) -> list[float]:
    return [round(float(value), 4) for value in values]
