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
    both = times.sum(axis=1) / 1e6
    times /= 1e6

    def summary(values: Any) -> dict[str, float]:
        return {
            "p50": float(np.percentile(values, 50)), "p99": float(np.percentile(values, 99))
        }  # fmt: skip

    return {
        "detector": summary(times[:, 0]),
        "selector": summary(times[:, 1]),
        "combined": summary(both),
    }
