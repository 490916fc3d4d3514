"""Networks with random weights, and calls of a collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ringstep.hostlib.dynamic.actions import Config, Key, encode
from ringstep.hostlib.dynamic.sample import Sample
from ringstep.hostlib.dynamic.weights import SHAPES, Kind, Weights
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

KEY = Key.of(8, 4, Collective.ALL_REDUCE, 1 << 24)
USUAL = Config(Algo.RING, Proto.SIMPLE, 2)


class Slow:
    """A detector that calls every slow call contended."""

    prior, temper, rule = 0.5, 1.0, "sequence"

    def step(self, scalars: Any, collective: Any, memory: Any) -> float:
        return 10.0 if scalars[0] > 0.2 else -10.0


class Wants:
    """A selector that wants one configuration."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def values(self, hidden: Any, scalars: Any) -> Any:
        q = np.zeros((5, 96), np.float32)
        q[:, encode(self.config)] = 1.0
        return q


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def wants() -> type[Wants]:
    return Wants


def random_weights(kind: Kind, seed: int = 0, scale: float = 0.1) -> Weights:
    rng = np.random.default_rng(seed)
    tensors = {
        name: (scale * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in SHAPES[kind].items()
    }
    return Weights(kind, tensors, "0" * 64, {"prior": 0.5, "temper": 1.0})


@pytest.fixture
def detector_weights() -> Weights:
    return random_weights("detector")


@pytest.fixture
def selector_weights() -> Weights:
    return random_weights("selector", 1)


@pytest.fixture
def call() -> Callable[..., Sample]:
    """Make a call of the same collective; time passes by itself."""
    now = 10**9

    def make(
        latency_us: float = 1000.0,
        config: Config | None = None,
        key: Key = KEY,
        time_ns: int | None = None,
    ) -> Sample:
        nonlocal now
        now += 10**7
        return Sample(
            key, 1 << key.size_class, latency_us, now if time_ns is None else time_ns,
            config or USUAL, config is not None,
        )  # fmt: skip

    return make
