import math

import numpy as np
import pytest

from ringstep.hostlib.dynamic import features as f
from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.dynamic.sample import GpuStats
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

KEY = Key.of(8, 4, Collective.ALL_GATHER, 1 << 20)
CONFIG = Config(Algo.RING, Proto.SIMPLE, 4, 256)


def test_the_papers_totals() -> None:
    assert f.DETECTOR_INPUTS == 15
    assert len(f.DETECTOR_SCALARS) == 11
    assert f.SELECTOR_INPUTS == 153
    assert len(f.SELECTOR_SCALARS) == 25


def test_the_ratio_is_in_doublings_and_cut() -> None:
    assert f.log_rho(200.0, 100.0) == 1.0
    assert f.log_rho(1e9, 1.0) == 3.0
    assert f.log_rho(1.0, 1e9) == -1.0


def test_detector_scalars_are_where_their_names_are() -> None:
    gpu = GpuStats(busy=0.5, memory=0.25, power=0.75)
    found = dict(
        zip(
            f.DETECTOR_SCALARS,
            f.detector_scalars(KEY, 1 << 20, 0.5, CONFIG, True, gpu).tolist(),
            strict=True,
        )
    )
    assert found == pytest.approx(
        {
            "rho": 0.5, "ranks": 0.3, "nodes": 0.2, "bytes": 0.5, "algo": 1.0, "proto": 1.0,
            "channels": 0.5, "changed": 1.0, "gpu_busy": 0.5, "gpu_power": 0.75, "gpu_present": 1.0,
        }
    )  # fmt: skip


def test_an_absent_gpu_is_zeros_and_a_flag() -> None:
    found = f.detector_scalars(KEY, 1 << 20, 0.0, CONFIG, False, None)
    assert found[-3:].tolist() == [0.0, 0.0, 0.0]
    assert found.dtype == np.float32


def test_configurations_outside_the_action_space_are_marked() -> None:
    assert f.config_scalars(Config(Algo.NVLS, Proto.LL128, 32)) == (-1.0, -1.0, 2.0)


def test_selector_scalars_are_where_their_names_are() -> None:
    gpu = GpuStats(0.1, 0.2, 0.3, 0.4, 0.5)
    values = f.selector_scalars(
        KEY, 1 << 20, 1024.0, (0.5, 1.5, 0.9), CONFIG, False, Config(Algo.TREE, Proto.LL, 2), gpu
    )
    found = dict(zip(f.SELECTOR_SCALARS, values.tolist(), strict=True))
    assert found["direction"] == pytest.approx(0.5)
    assert found["magnitude"] == pytest.approx(1.5)
    assert found["is_all_gather"] == 1.0
    assert found["is_all_reduce"] == 0.0
    assert found["clean"] == pytest.approx(10 / 30)
    assert found["threads"] == 0.5
    assert (found["nccl_algo"], found["nccl_proto"], found["nccl_channels"]) == (0.0, 0.0, 0.25)
    assert found["gpu_pcie"] == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -3.0, 7.0])
def test_gpu_figures_that_are_no_shares_do_not_get_through(bad: float) -> None:
    found = f.detector_scalars(KEY, 1 << 20, 0.0, CONFIG, False, GpuStats(bad, bad, bad))
    assert np.isfinite(found).all()
    assert ((found[-3:] >= 0) & (found[-3:] <= 1)).all()


def test_the_trend_tells_worse_from_better() -> None:
    trend = f.Trend()
    for _ in range(20):
        trend.add(0.0)
    for _ in range(4):
        trend.add(1.0)
    direction, magnitude, confidence = trend.vector(0.9)
    assert direction > 0.5
    assert 0.8 < magnitude <= 1.0
    assert confidence == pytest.approx(0.8)
    for _ in range(4):
        trend.add(0.0)
    assert trend.vector(0.1)[0] < 0
