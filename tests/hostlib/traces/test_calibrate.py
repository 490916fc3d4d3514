from dataclasses import replace

import numpy as np
import pytest

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.calibrate import Measured, calibrate
from ringstep.hostlib.traces.fluid import FluidParams, Load, latency_us, scaled

TRUE = scaled(FluidParams(), link_rate=1.4, hop_simple=0.6, cpu_rate=1.3, rival_weight=2.0)


def sweep(levels: tuple[float, ...] = (0.0, 0.6), noise: float = 0.02) -> list[Measured]:
    rng = np.random.default_rng(1)
    found = []
    for size in (1 << 16, 1 << 20, 1 << 24, 1 << 27):
        key = Key.of(8, 4, Collective.ALL_REDUCE, size)
        for algo in (Algo.RING, Algo.TREE):
            for proto in (Proto.LL, Proto.SIMPLE):
                for channels in (1, 4, 8):
                    for level in levels:
                        config, load = Config(algo, proto, channels), Load(level)
                        time = latency_us(key, size, config, load, TRUE)
                        found += [
                            Measured(
                                key, size, config, time * float(np.exp(rng.normal(0, noise))), load
                            )
                            for _ in range(3)
                        ]
    return found


def test_it_finds_back_what_made_the_times() -> None:
    found, report = calibrate(sweep(), FluidParams())
    assert report.before_p50 > 0.1
    assert report.fitted_p50 < 0.03
    assert report.held_out_p90 is not None
    assert report.held_out_p90 < 0.1
    assert found.link_rate == pytest.approx(TRUE.link_rate, rel=0.05)
    assert report.order is not None
    assert report.order > 0.95
    assert report.best_loss is not None
    assert report.best_loss < 0.03


def test_clean_calls_leave_alone_what_they_do_not_tell() -> None:
    found, report = calibrate(sweep(levels=(0.0,)), FluidParams())
    assert found.rival_weight == FluidParams().rival_weight
    assert found.queue == FluidParams().queue
    assert "queue" not in report.parameters


def test_a_disturbed_measurement_does_not_bend_the_rest() -> None:
    samples = sweep()
    samples[0:3] = [replace(s, latency_us=20 * s.latency_us) for s in samples[0:3]]
    _, report = calibrate(samples, FluidParams())
    assert report.fitted_p50 < 0.05


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([], "8 or more"),
        ([replace(sweep()[0], latency_us=-1.0)], "above 0"),
    ],
)  # fmt: skip
def test_too_little_or_impossible_measurements_are_refused(
    samples: list[Measured], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        calibrate(samples)


def test_unknown_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="no parameter"):
        calibrate(sweep(), fitted=("speed",))
