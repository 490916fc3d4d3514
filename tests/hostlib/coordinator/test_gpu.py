"""GPU figures, against a module that answers as nvidia-ml-py does."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from ringstep.hostlib.coordinator.gpu import GpuSampler, mean, read
from ringstep.hostlib.coordinator.policy import GpuFigures

Make = Callable[..., Any]


class Nvml(types.ModuleType):
    """Two GPUs; what is in ``broken`` raises as NVML does where a GPU cannot tell."""

    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES, NVML_CLOCK_SM = 0, 1, 1
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139

    class NVMLError(Exception):
        pass

    def __init__(self, gpus: int = 2) -> None:
        super().__init__("pynvml")
        self.nvmlClocksThrottleReasonSwPowerCap = 4
        self.nvmlClocksThrottleReasonHwSlowdown = 8
        self.gpus = gpus
        self.broken: set[str] = set()
        self.reasons = 1  # idle: not held down
        self.kib = 0
        self.calls = 0
        self.shut_down = 0

    def _answer(self, name: str, value: Any) -> Any:
        if name in self.broken or "all" in self.broken:
            raise self.NVMLError("not supported")
        return value

    def nvmlInit(self) -> None:
        self._answer("init", None)

    def nvmlShutdown(self) -> None:
        self.shut_down += 1

    def nvmlDeviceGetCount(self) -> int:
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self.calls += 1
        return self._answer("utilization", types.SimpleNamespace(gpu=50 + 20 * handle, memory=9))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return self._answer("memory", types.SimpleNamespace(total=100, used=25, free=75))

    def nvmlDeviceGetPcieThroughput(self, handle: int, counter: int) -> int:
        return int(self._answer("pcie", 1000 + counter))

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return int(self._answer("clock", 1980))

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return int(self._answer("power", 350_000))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return int(self._answer("reasons", self.reasons))

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[Any]:
        self.kib += 1 << 20
        one = types.SimpleNamespace(
            nvmlReturn=int("nvlink" in self.broken), value=types.SimpleNamespace(ullVal=self.kib)
        )
        return [one for _ in fields]


def test_figures_have_units() -> None:
    assert read(Nvml(), 0) == GpuFigures(
        utilization=0.5, memory_used=0.25, pcie_tx_bps=8e6, pcie_rx_bps=8.008e6,
        sm_clock_mhz=1980.0, power_w=350.0, throttled=False,
    )  # fmt: skip


@pytest.mark.parametrize(("reasons", "held_down"), [(0, False), (1, False), (4, True), (9, True)])
def test_throttling(reasons: int, held_down: bool) -> None:
    nvml = Nvml()
    nvml.reasons = reasons
    assert read(nvml, 0).throttled is held_down


@pytest.mark.parametrize(
    ("broken", "absent"),
    [
        ("utilization", {"utilization"}), ("memory", {"memory_used"}), ("clock", {"sm_clock_mhz"}),
        ("pcie", {"pcie_tx_bps", "pcie_rx_bps"}), ("power", {"power_w"}),
        ("reasons", {"throttled"}),
    ],
)  # fmt: skip
def test_what_a_gpu_cannot_tell_is_absent_and_the_rest_is_there(
    broken: str, absent: set[str]
) -> None:
    nvml = Nvml()
    nvml.broken.add(broken)
    found = read(nvml, 0)
    nothing = {n for n in GpuFigures.__slots__ if getattr(found, n) is None}
    assert nothing == absent | {"nvlink_tx_bps", "nvlink_rx_bps"}


def test_functions_that_an_older_library_lacks() -> None:
    nvml: Any = types.SimpleNamespace(NVMLError=Nvml.NVMLError)
    assert read(nvml, 0) == GpuFigures()


def test_a_sampler_reads_all_gpus_again_and_again(until: Make) -> None:
    nvml = Nvml()
    sampler = GpuSampler(nvml, period_s=0.001)
    until(lambda: nvml.calls > 10)
    found = until(lambda: [f for f in sampler.figures() if f.nvlink_tx_bps])
    assert len(sampler.figures()) == 2
    assert found[0].nvlink_tx_bps > 0
    middle = sampler.mean()
    assert middle is not None
    assert middle.utilization == pytest.approx(0.6)
    sampler.close()
    assert nvml.shut_down == 1
    assert sampler.absent is None


def test_a_driver_that_stops_answering(until: Make) -> None:
    nvml = Nvml()
    sampler = GpuSampler(nvml, period_s=0.001)
    until(sampler.figures)
    nvml.broken |= {"all", "nvlink"}
    until(lambda: sampler.absent == "the driver stopped answering")
    assert sampler.figures() == []
    sampler.close()


def test_no_gpu_no_driver_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GpuSampler(Nvml(gpus=0)).absent == "no GPU"
    nvml = Nvml()
    nvml.broken.add("init")
    assert GpuSampler(nvml).absent == "NVML: not supported"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler = GpuSampler()
    assert sampler.absent == "nvidia-ml-py is not installed"
    assert sampler.mean() is None
    sampler.close()


def test_the_mean_is_over_gpus_that_tell() -> None:
    found = mean([GpuFigures(utilization=0.2), GpuFigures(utilization=0.4, power_w=100.0),
                  GpuFigures(throttled=True), GpuFigures(throttled=False)])  # fmt: skip
    assert found is not None
    assert found.utilization == pytest.approx(0.3)
    assert (found.power_w, found.throttled, found.sm_clock_mhz) == (100.0, True, None)
    assert mean([]) is None


def test_samples_carry_the_figures(start: Make, make_ranks: Make, until: Make) -> None:
    figures = GpuFigures(utilization=0.7)
    running = start(gpu=lambda: figures)
    seen: list[Any] = []
    running.coordinator.skeleton.policy.observe = seen.append
    ranks = make_ranks(2)
    until(lambda: [s for s in seen if s.gpu == figures], ranks.step)
