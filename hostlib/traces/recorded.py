"""Traces from sweeps: random schedules, and times drawn from those that were measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.actions import encode
from ringstep.hostlib.traces.format import Traces
from ringstep.hostlib.traces.generate import columns, joined, random_configs
from ringstep.hostlib.traces.scenarios import random_schedule
from ringstep.hostlib.traces.sweep import Draws, Sweep

Array = np.ndarray[Any, np.dtype[Any]]

COLD: Final = 2.0
"""A first call takes up to this much longer: sweeps leave it out, jobs do not."""


def generate_recorded(
    sweeps: Sequence[Sweep],
    seed: int,
    traces: int,
    calls: int = 64,
    reconfigured: float = 0.4,
    progress: Callable[[int], None] | None = None,
) -> Traces:
    """Return random traces; the same seed gives the same bytes.

    Args:
        sweeps: taken in turn.
        seed: of everything.
        traces: how many.
        calls: of each.
        reconfigured: share of traces in which other configurations than NCCL's run now and then.
        progress: called with how many are done.

    Raises:
        ValueError: a number that makes no sense, or no sweeps.
    """
    if traces < 1 or not sweeps:
        raise ValueError(f"{traces} traces of {len(sweeps)} sweeps: 1 or more of either")
    if not 0 <= reconfigured <= 1:
        raise ValueError(f"reconfigured = {reconfigured}: 0 to 1")
    draws = [Draws(sweep) for sweep in sweeps]
    parts: list[dict[str, Any]] = []
    for i in range(traces):
        rng = np.random.default_rng([seed, 14, i])
        drawn = draws[i % len(draws)]
        sweep = drawn.sweep
        schedule = random_schedule(rng, calls)
        measured = np.array(sorted(encode(config) for config in sweep.calls_us))
        asked = random_configs(rng, measured, calls, reconfigured)
        latency = np.array(
            [
                drawn.latency_us(config, schedule.load(call), float(u))
                for call, (config, u) in enumerate(zip(asked, rng.random(calls), strict=True))
            ]
        )
        latency[0] *= 1 + rng.uniform(0, COLD)
        parts.append(
            columns(
                sweep.key,
                sweep.n_bytes,
                schedule,
                asked,
                sweep.usual,
                latency,
                rng,
                sweep.clean_us,
                sweep.best_us,
            )
        )
        if progress is not None:
            progress(i + 1)
    header = {
        "source": "recorded", "seed": seed, "traces": traces, "calls": calls,
        "reconfigured": reconfigured, "sweeps": [sweep.to_dict() for sweep in sweeps],
        "sweep_of": [i % len(sweeps) for i in range(traces)],
    }  # fmt: skip
    return Traces(joined(parts), header)


class SweepOracle:
    """What every action takes at the level of a call, from the sweeps of recorded traces.

    Raises:
        ValueError: the traces have no sweeps.
    """

    def __init__(self, traces: Traces) -> None:
        sweeps = traces.header.get("sweeps")
        if not sweeps:
            raise ValueError("the traces have no sweep: record them with one")
        self._of_trace = list(traces.header["sweep_of"])
        self._sweeps = [Sweep.from_dict(found) for found in sweeps]
        level = traces.columns["level"]
        self._level = {
            (int(t), int(c)): float(v)
            for t, c, v in zip(traces.columns["trace"], traces.columns["call"], level, strict=True)
        }

    def latencies_us(self, trace: int, call: int) -> Array:
        """Return the measured median of each action at the call's level."""
        found: Array = self._sweeps[self._of_trace[trace]].table_us(self._level[trace, call])
        return found
