"""How long one decision takes on one core."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ringstep.hostlib.dynamic.actions import LEGAL, Config, Key, encode
from ringstep.hostlib.dynamic.detector import Detector, Memory
from ringstep.hostlib.dynamic.features import Trend, detector_scalars, log_rho, selector_scalars
from ringstep.hostlib.dynamic.selector import Selector, propose
from ringstep.hostlib.dynamic.sprt import Sprt
from ringstep.hostlib.evaluate.stats import bootstrap
from ringstep.hostlib.shm_layout import Algo, Collective, Proto


def inference_ms(detector: Detector, selector: Selector, repeat: int = 2000) -> dict[str, Any]:
    """Return median and 99th percentile of detector, selector and both, in ms, features included.

    Set OPENBLAS_NUM_THREADS=1 (or OMP_NUM_THREADS) before Python starts to hold it to one core.
    """
    key = Key.of(16, 8, Collective.ALL_REDUCE, 64 << 20)
    config = Config(Algo.RING, Proto.SIMPLE, 2)
    memory, trend, sprt = Memory(), Trend(), Sprt()
    mask, held = LEGAL[key.collective], encode(config)
    times = np.empty((repeat, 2))
    for i in range(repeat):
        start = time.perf_counter_ns()
        rho = log_rho(1000.0 + i % 7, 900.0)
        scalars = detector_scalars(key, 64 << 20, rho, config, False, None)
        logit = detector.step(scalars, key.collective, memory)
        trend.add(rho)
        sprt.update(logit, rho)
        middle = time.perf_counter_ns()
        more = selector_scalars(key, 64 << 20, 900.0, trend.vector(0.9), config, True, config, None)
        propose(selector.values(memory.hidden, more), mask, held, 2)
        times[i] = middle - start, time.perf_counter_ns() - middle
    times = np.column_stack([times, times.sum(axis=1)]) / 1e6
    # Calls next to one another meet the same disturbances: batches of them are resampled.
    batches = np.array_split(np.arange(repeat), 20)

    def at(column: int, share: float) -> dict[str, float | int]:
        return bootstrap(
            [times[batch, column] for batch in batches if len(batch)],
            lambda chosen: float(np.percentile(np.concatenate(chosen), share)), rounds=300,
        ).plain()  # fmt: skip

    return {
        name: {"p50": at(column, 50), "p99": at(column, 99)}
        for column, name in enumerate(("detector", "selector", "combined"))
    }
