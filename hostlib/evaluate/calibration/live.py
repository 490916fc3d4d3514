"""Runs collectives on an environment that is there, and learns their clean latencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.dynamic.detector import Detector
from ringstep.hostlib.evaluate.calibration.clean import LEAST, Series, judge
from ringstep.hostlib.evaluate.environment import Environment
from ringstep.hostlib.traces.scenarios import clean

CALLS: Final = 40
COLD: Final = 3
"""Calls left out at the start."""


@dataclass(frozen=True)
class Calibration:
    """What was measured.

    Attributes:
        baselines: clean latency in µs, by key.
        spread: median deviation from it, a share, by key.
    """

    baselines: dict[Key, float]
    spread: dict[Key, float]


def observe(
    env: Environment,
    calls: int = CALLS,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Series:
    """Run calls in NCCL's configuration without contention of our own, and return them.

    Args:
        env: runs them.
        calls: how many, the cold ones among them.
        seed: of the environment's noise, where it has one.
        progress: called with how many are done.

    Raises:
        ValueError: too few calls.
    """
    if calls < COLD + LEAST:
        raise ValueError(f"calls = {calls}: {COLD + LEAST} or more")
    env.start(clean(calls), seed)
    ran = []
    for i in range(calls):
        ran.append(env.run(None))
        if progress is not None:
            progress(i + 1)
    kept = ran[COLD:]
    return Series(
        env.name, env.key, env.n_bytes, kept[-1].config,
        [r.latency_us for r in kept], [r.time_ns for r in kept],
    )  # fmt: skip


def measure(
    environments: Sequence[Environment],
    calls: int = CALLS,
    detector: Detector | None = None,
    expected_us: Callable[[Environment], float | None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Measure NCCL's choice in every environment.

    Args:
        environments: one per key.
        calls: of each.
        detector: where there is one it has to find nothing either.
        expected_us: what a cost model or an earlier calibration says; a median above 1.25 times
            that is refused. Contention that lasts through all of the measurement, and never
            changes, cannot be told from a slow network without it.
        progress: called with environments done and to do.

    Raises:
        NotClean: it was contended, in which environment, and how that showed.
        ValueError: too few calls.
    """
    found, spreads = {}, {}
    for i, env in enumerate(environments):
        judged = judge(
            observe(env, calls, i), detector, None if expected_us is None else expected_us(env)
        )
        found[env.key], spreads[env.key] = judged.latency_us, judged.spread
        if progress is not None:
            progress(i + 1, len(environments))
    return Calibration(found, spreads)
