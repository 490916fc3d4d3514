"""From the runs of a sweep to rows: a statistic over seeds with its confidence interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ringstep.fabric.intervals import expanded_tail
from ringstep_ns3.paper.bounds import fabric_bound_ns, host_bound_ns
from ringstep_ns3.paper.figures import BASELINE, VARIANT, Experiment, Scale, published_for
from ringstep_ns3.prepare import prepare
from ringstep_ns3.sweep import Point, SweepOutcome

_RESAMPLES: Final = 4000
_FEWEST: Final = 5
"""Seeds below which no interval is given: a resample of fewer says nothing."""

Floats = npt.NDArray[np.float64]
Picked = npt.NDArray[np.int64]
"""Positions of seeds."""
Key = tuple[str, str]
"""Group and variant."""


@dataclass(frozen=True)
class Row:
    """One metric of one variant: the statistic over seeds beside the paper's number.

    ``low`` and ``high`` bound the 95 % interval (bootstrap over seeds, paired where two
    variants are compared); None with fewer than 5 seeds. Times in ms.
    """

    group: str
    variant: str
    metric: str
    statistic: str
    seeds: int
    value: float
    low: float | None
    high: float | None
    least: float
    most: float
    paper: float | None
    paper_low: float | None
    paper_high: float | None
    place: str

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Samples:
    """What single runs gave, by group and variant: metric to seed to value."""

    values: Mapping[Key, Mapping[str, Mapping[int, float]]]
    jobs: Mapping[Key, Mapping[tuple[int, str], float]]
    """JCT in ms by seed and name of the job."""
    hashes: Mapping[Key, Mapping[int, str]]
    """Folder of each run."""
    bounds: Mapping[Key, Mapping[str, float]]
    """Bounds in ms: ``bound`` (of the fabric) and ``host_bound``."""

    @property
    def groups(self) -> list[str]:
        """Groups in order."""
        return list(dict.fromkeys(group for group, _ in self.values))

    def variants(self, group: str) -> list[str]:
        """Return the variants of a group, in order."""
        return [variant for each, variant in self.values if each == group]


def read_samples(
    experiment: Experiment, outcome: SweepOutcome, points: Sequence[Point], *, bounds: bool = True
) -> Samples:
    """Return what the finished runs of an experiment's sweep hold; ``bounds`` False: without them.

    Where a group has several jobs, a seed's value is their median (their largest overlap).
    """
    axes = [str(axis["name"]) for axis in outcome.summary["axes"]]
    groups = [axis for axis in axes if axis != VARIANT]
    by_run: dict[Key, dict[str, dict[int, list[float]]]] = {}
    jobs: dict[Key, dict[tuple[int, str], float]] = defaultdict(dict)
    hashes: dict[Key, dict[int, str]] = defaultdict(dict)
    where: dict[int, list[Key]] = defaultdict(list)
    for row in outcome.runs.to_pylist():
        labels = [str(row[axis]) for axis in groups]
        if experiment.split:
            labels.append(_job_group(row["name"]))
        key = ("/".join(labels), str(row[VARIANT]))
        seed = int(row["seed"])
        if not row["complete"]:
            continue
        mine = by_run.setdefault(key, defaultdict(lambda: defaultdict(list)))
        for metric, value in _measured(row).items():
            if value is not None:
                mine[metric][seed].append(value)
        jobs[key][seed, row["name"]] = row["jct_ns"] / 1e6
        hashes[key][seed] = row["hash"]
        where[row["point"]].append(key)
    values: dict[Key, dict[str, dict[int, float]]] = {
        key: {
            metric: {
                seed: float(max(found) if metric.startswith("max_") else np.median(found))
                for seed, found in seeds.items()
            }
            for metric, seeds in metrics.items()
        }
        for key, metrics in by_run.items()
    }
    order = sorted(values, key=lambda key: _order(key, experiment, where))
    found = _bounds(points, where) if bounds else {}
    return Samples({key: values[key] for key in order}, jobs, hashes, found)


def _order(
    key: Key, experiment: Experiment, where: Mapping[int, Sequence[Key]]
) -> tuple[str, int] | tuple[int]:
    """In the order of the sweep's points; where jobs make the groups, by their names first."""
    first = min(index for index, keys in where.items() if key in keys)
    return (key[0], first) if experiment.split else (first,)


def _job_group(name: str) -> str:
    """``16nodes.4MB-2`` and ``16nodes.32MB`` are one group, ``16nodes``."""
    return name.partition(".")[0]


def _measured(row: Mapping[str, Any]) -> dict[str, float | None]:
    def ms(name: str) -> float | None:
        return None if row[name] is None else float(row[name]) / 1e6

    def plain(name: str) -> float | None:
        return None if row[name] is None else float(row[name])

    return {
        "cct_ms": ms("cct_median_ns"),
        "jct_ms": ms("jct_ns"),
        "last_span_ms": ms("last_step_span_ns"),
        "max_overlap": plain("max_overlap"),
        "max_distance": plain("max_distance"),
        "background_ms": ms("background_fct_ns"),
    }


def _bounds(
    points: Sequence[Point], where: Mapping[int, Sequence[Key]]
) -> dict[Key, dict[str, float]]:
    found: dict[Key, dict[str, float]] = {}
    for point in points:
        prepared = None
        for key in dict.fromkeys(where.get(point.index, ())):
            prepared = prepared or prepare(point.scenario)
            host, fabric = host_bound_ns(prepared), fabric_bound_ns(prepared)
            if host is not None and fabric is not None:
                found[key] = {"host_bound": host / 1e6, "bound": fabric / 1e6}
    return found


def rows_of(experiment: Experiment, samples: Samples, scale: Scale | None) -> list[Row]:
    """Return the rows of an experiment's table, group by group.

    ``scale`` is that of a figure, for the paper's numbers; None: there are none.
    """
    statistic = _median if experiment.statistic == "median" else _mean
    rows = []
    for key, metrics in samples.values.items():
        group, variant = key
        time = f"{experiment.time}_ms"
        for metric in experiment.metrics:
            own = metrics.get(time, {})
            if metric == "reduction_pct":
                made = _reduction(samples, key, BASELINE, time, statistic)
            elif metric == "reduction_vs_priority_pct":
                made = _reduction(samples, key, "priority", time, statistic)
            elif metric == "background_pct":
                made = _increase(samples, key, BASELINE, "background_ms", statistic)
            elif metric in ("over_bound_pct", "over_host_bound_pct"):
                bound = samples.bounds.get(key, {}).get(metric[5:].removesuffix("_pct"))
                made = _spread(
                    {seed: 100 * (value / bound - 1) for seed, value in own.items()}
                    if bound
                    else {},
                    statistic,
                )
            else:
                made = _spread(metrics.get(metric, {}), statistic)
            if made is None:
                continue
            number = None
            if scale is not None:
                number = published_for(experiment.key, group, variant, metric, scale)
            rows.append(
                Row(
                    group,
                    variant,
                    metric,
                    experiment.statistic,
                    *made,
                    None if number is None else number.value,
                    None if number is None else number.low,
                    None if number is None else number.high,
                    "" if number is None else number.place,
                )
            )
    return rows


_Made = tuple[int, float, float | None, float | None, float, float]


Statistic = Callable[[Floats], Floats]
"""Along the last axis: a row per resample."""


def _mean(values: Floats) -> Floats:
    return np.asarray(values.mean(axis=-1))


def _median(values: Floats) -> Floats:
    return np.asarray(np.median(values, axis=-1))


def _spread(values: Mapping[int, float], statistic: Statistic) -> _Made | None:
    if not values:
        return None
    sample = np.array([values[seed] for seed in sorted(values)], dtype=np.float64)
    low, high = _interval(len(sample), lambda picked: statistic(sample[picked]))
    return (
        len(sample),
        float(statistic(sample)),
        low,
        high,
        float(sample.min()),
        float(sample.max()),
    )


def _reduction(
    samples: Samples, key: Key, against: str, time: str, statistic: Statistic
) -> _Made | None:
    """By how many percent the statistic is shorter; least and most are of single seeds."""
    return _compared(
        samples, key, against, time, lambda x, y: 100 * (1 - statistic(x) / statistic(y))
    )


def _increase(
    samples: Samples, key: Key, against: str, time: str, statistic: Statistic
) -> _Made | None:
    """By how many percent the statistic is longer."""
    return _compared(
        samples, key, against, time, lambda x, y: 100 * (statistic(x) / statistic(y) - 1)
    )


def _compared(
    samples: Samples,
    key: Key,
    against: str,
    time: str,
    difference: Callable[[Floats, Floats], Floats],
) -> _Made | None:
    """Compare the seeds that both variants of a group have, in pairs."""
    group, variant = key
    theirs = samples.values.get((group, against), {}).get(time, {})
    mine = samples.values[key].get(time, {})
    both = sorted(set(theirs) & set(mine))
    if variant == against or not both:
        return None
    x = np.array([mine[seed] for seed in both], dtype=np.float64)
    y = np.array([theirs[seed] for seed in both], dtype=np.float64)
    low, high = _interval(len(both), lambda picked: difference(x[picked], y[picked]))
    # Along the last axis there is one seed each.
    single = difference(x[:, None], y[:, None])
    value = float(difference(x, y))
    return len(both), value, low, high, float(single.min()), float(single.max())


def reduction_pct(
    mine: Floats, theirs: Floats, statistic: Statistic
) -> tuple[float, float | None, float | None]:
    """Return by how many percent a statistic of ``mine`` is shorter, and its interval.

    Both hold a value per seed, in the same order: resamples are paired. The interval is None, None
    with fewer than 5 seeds.
    """

    def shorter(picked: Picked) -> Floats:
        return 100 * (1 - statistic(mine[picked]) / statistic(theirs[picked]))

    return float(shorter(np.arange(len(mine)))), *_interval(len(mine), shorter)


def _interval(
    count: int, statistic: Callable[[Picked], Floats]
) -> tuple[float | None, float | None]:
    """95 %, expanded percentile bootstrap over seeds; the same data give the same interval."""
    if count < _FEWEST:
        return None, None
    drawn = statistic(np.random.default_rng(count).integers(0, count, (_RESAMPLES, count)))
    tail = 100 * expanded_tail(count)
    return float(np.percentile(drawn, tail)), float(np.percentile(drawn, 100 - tail))
