"""What is computed from the core's tables: bounds, completion rates, overlap, throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ringstep_ns3.jobs import JobOp, PlacedJob
from ringstep_ns3.scenario import Transport
from ringstep_ns3.tables import NO_VALUE, Column
from ringstep_ns3.topology import Graph

_MOST_WINDOWS = 1_000_000


def wire_bytes(payload: int, transport: Transport) -> int:
    """Return the bytes that a message of ``payload`` puts on a link."""
    return payload + -(-payload // transport.mtu) * transport.header


def step_time_ns(op: JobOp, job: PlacedJob, transport: Transport, graph: Graph) -> float | None:
    """Return the least time between two steps of a ring: its share at the slowest host's rate.

    None where the algorithm has no such steps.
    """
    if op.algorithm != "ring" or op.kind not in ("all_reduce", "all_gather", "reduce_scatter"):
        return None
    ranks = max((len(ring) for ring in op.rings), default=len(job.hosts))
    slowest = min(graph.access_bps[host] for host in job.hosts)
    payload = -(-op.size // ranks)
    share = -(-payload // op.channels)
    return wire_bytes(share, transport) * op.channels * 8e9 / slowest


def bound_ns(op: JobOp, job: PlacedJob, transport: Transport, graph: Graph) -> int | None:
    """Return the time that no run of a ring collective beats; None for other algorithms."""
    step = step_time_ns(op, job, transport, graph)
    return None if step is None else int(step * op.steps(len(job.hosts)))


def step_rates(
    steps: Mapping[str, Column], jobs: Sequence[PlacedJob], transport: Transport, graph: Graph
) -> dict[str, Any]:
    """Return the intervals between completions of the steps of each ring, against the ideal."""
    done = steps["end_ns"] != NO_VALUE
    column = {name: np.asarray(values)[done] for name, values in steps.items()}
    order = np.lexsort(
        (column["step"], column["end_ns"], column["ring"], column["op"], column["job"])
    )
    sort = {name: values[order] for name, values in column.items()}
    keys = np.stack([sort["job"], sort["op"], sort["ring"]]).astype(np.int64)
    follows = np.zeros(len(order), dtype=bool)
    follows[1:] = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    interval = np.full(len(order), NO_VALUE, dtype=np.int64)
    ends = sort["end_ns"].astype(np.int64)
    interval[1:] = np.where(follows[1:], ends[1:] - ends[:-1], NO_VALUE)
    ideal: dict[tuple[int, int], float | None] = {}
    rates: list[float | None] = []
    by_id = {job.job_id: job for job in jobs}
    for job_id, op, gap in zip(
        sort["job"].tolist(), sort["op"].tolist(), interval.tolist(), strict=True
    ):
        if (job_id, op) not in ideal:
            job = by_id[job_id]
            ideal[job_id, op] = step_time_ns(job.ops[op], job, transport, graph)
        best = ideal[job_id, op]
        rates.append(None if best is None or gap in (NO_VALUE, 0) else best / gap)
    return {
        "job": sort["job"],
        "op": sort["op"],
        "ring": sort["ring"],
        "step": sort["step"],
        "end_ns": ends,
        "interval_ns": interval,
        "rate": rates,
    }


def overlap(series: Mapping[str, Column]) -> dict[str, Any]:
    """Return, per window and job, the most and the mean steps that shared a recorded link."""
    mine = np.asarray(series["job"]) != 0
    job, time = np.asarray(series["job"])[mine], np.asarray(series["time_ns"])[mine]
    steps = np.asarray(series["steps"])[mine].astype(np.int64)
    distance = np.asarray(series["distance"])[mine].astype(np.int64)
    order = np.lexsort((job, time))
    job, time, steps, distance = job[order], time[order], steps[order], distance[order]
    if not len(order):
        return {name: [] for name in _OVERLAP}
    first = np.flatnonzero(np.r_[True, (time[1:] != time[:-1]) | (job[1:] != job[:-1])])
    count = np.diff(np.r_[first, len(order)])
    return {
        "time_ns": time[first].astype(np.int64),
        "job": job[first],
        "links": count,
        "max_steps": np.maximum.reduceat(steps, first),
        "mean_steps": np.add.reduceat(steps, first) / count,
        "max_distance": np.maximum.reduceat(distance, first),
    }


_OVERLAP = ("time_ns", "job", "links", "max_steps", "mean_steps", "max_distance")


def throughput(flows: Mapping[str, Column], window_ns: int) -> dict[str, Any]:
    """Return payload per window and job in bit/s (job 0: background).

    Each message is spread evenly between its first send and its last byte's arrival.
    """
    done = np.asarray(flows["delivered_ns"]) != NO_VALUE
    start = np.asarray(flows["start_ns"])[done].astype(np.int64)
    end = np.maximum(np.asarray(flows["delivered_ns"])[done].astype(np.int64), start + 1)
    size = np.asarray(flows["bytes"])[done].astype(np.float64)
    job = np.asarray(flows["job"])[done]
    empty: dict[str, Any] = {"time_ns": [], "job": [], "bps": []}
    if not len(start):
        return empty
    windows = int(end.max() // window_ns) + 1
    if windows > _MOST_WINDOWS:
        return empty
    rows: dict[str, list[Any]] = {"time_ns": [], "job": [], "bps": []}
    for each in np.unique(job):
        mine = job == each
        total = _spread(start[mine], end[mine], size[mine], window_ns, windows)
        used = np.flatnonzero(total > 0)
        rows["time_ns"].append(used * window_ns)
        rows["job"].append(np.full(len(used), each))
        rows["bps"].append(total[used] * 8e9 / window_ns)
    return {name: np.concatenate(parts) for name, parts in rows.items()}


def _spread(start: Column, end: Column, size: Column, window_ns: int, windows: int) -> Column:
    """Bytes per window: from the running total at window edges, which is piecewise linear."""
    edges = np.arange(windows + 1, dtype=np.float64) * window_ns
    points = np.unique(np.concatenate([start, end]))
    slope = np.zeros(len(points))
    density = size / (end - start)
    np.add.at(slope, np.searchsorted(points, start), density)
    np.subtract.at(slope, np.searchsorted(points, end), density)
    level = np.cumsum(slope)
    total = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(points))])
    running = np.interp(edges, points.astype(np.float64), total)
    spread: Column = np.diff(running)
    return np.where(spread > 1e-6, spread, 0.0)


def distribution(values: Column) -> dict[str, float | int | None]:
    """Return count, min, median, mean, p99 and max of times that came."""
    known = np.asarray(values, dtype=np.int64)
    known = known[known != NO_VALUE]
    if not len(known):
        return {"count": 0}
    return {
        "count": len(known),
        "min": int(known.min()),
        "median": float(np.median(known)),
        "mean": float(known.mean()),
        "p99": float(np.percentile(known, 99)),
        "max": int(known.max()),
    }
