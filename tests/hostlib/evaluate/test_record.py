from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.evaluate.environment import FluidEnvironment
from ringstep.hostlib.evaluate.record import Recorder, sweep
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces import scenarios as sc
from ringstep.hostlib.traces.calibrate import calibrate
from ringstep.hostlib.traces.fluid import CLEAN, FluidParams, Load, latency_us, scaled
from ringstep.hostlib.traces.format import load, save
from ringstep.hostlib.traces.generate import Job, generate
from ringstep.hostlib.traces.mixed import oracle_of
from ringstep.hostlib.traces.noise import NoiseParams
from ringstep.hostlib.traces.recorded import SweepOracle
from ringstep.hostlib.traces.sweep import Sweep

SIZE = 64 << 20
KEY = Key.of(4, 4, Collective.ALL_REDUCE, SIZE)
TRUE = scaled(FluidParams(), link_rate=1.5, hop_simple=0.7)
LOADS = (CLEAN, Load(0.5), Load(0.8))


@pytest.fixture
def env() -> FluidEnvironment:
    return FluidEnvironment(
        Job(TRUE, KEY, SIZE, NoiseParams(contended=0.01, outlier_rate=0.0)), "links"
    )


@pytest.fixture
def found(env: FluidEnvironment) -> Sweep:
    return sweep(env, LOADS, repeats=3)


def test_a_sweep_finds_the_best_of_each_load(env: FluidEnvironment, found: Sweep) -> None:
    for at in LOADS:
        best = env.oracle(at)[KEY]
        chosen = latency_us(KEY, SIZE, found.best(at), at, TRUE)
        assert chosen <= 1.05 * latency_us(KEY, SIZE, best, at, TRUE)
    assert found.clean_us == pytest.approx(env.expected_us(None, CLEAN), rel=0.1)
    assert found.best_us <= found.clean_us
    assert (~np.isnan(found.latencies_us)).all()


def test_a_sweep_calibrates_the_fluid_model(found: Sweep) -> None:
    params, report = calibrate(found.samples)
    assert report.fitted_p50 < 0.05
    assert params.link_rate == pytest.approx(TRUE.link_rate, rel=0.1)


def test_recorded_traces_are_files_like_any_other(
    tmp_path: Path, env: FluidEnvironment, found: Sweep
) -> None:
    recorder = Recorder("links")
    wide = Config(Algo.RING, Proto.SIMPLE, 8)
    for seed in range(3):
        recorder.add(env, sc.sustained(40, 0.8, 15), [None] * 30 + [wide] * 10, seed, found)
    traces = recorder.traces(seed=0)
    save(tmp_path / "t.npz", traces)
    again = load(tmp_path / "t.npz")
    assert len(again) == 120
    assert again.header["source"] == "links"
    oracle = oracle_of(again)
    assert oracle is not None
    np.testing.assert_allclose(oracle.latencies_us(2, 30), found.latencies_us[2], rtol=1e-4)
    np.testing.assert_allclose(oracle.latencies_us(0, 3), found.latencies_us[0], rtol=1e-4)


def test_sweeps_without_a_clean_load_are_refused(env: FluidEnvironment) -> None:
    with pytest.raises(ValueError, match="clean"):
        sweep(env, [Load(0.5)])
    with pytest.raises(ValueError, match="repeats"):
        sweep(env, LOADS, repeats=0)


def test_what_does_not_fit_is_refused(env: FluidEnvironment, found: Sweep) -> None:
    recorder = Recorder("links")
    with pytest.raises(ValueError, match="nothing"):
        recorder.traces()
    with pytest.raises(ValueError, match="2 configurations for 20 calls"):
        recorder.add(env, sc.clean(20), [None] * 2, 0, found)


def test_traces_without_a_sweep_have_no_oracle() -> None:
    traces = generate(0, 2, 20)
    traces.header["source"] = "engine"  # type: ignore[index]
    assert oracle_of(traces) is None
    with pytest.raises(ValueError, match="no sweep"):
        SweepOracle(traces)
