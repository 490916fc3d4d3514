"""GPU figures by NVML, every 100 ms on a thread of their own.

NVML's own reading rate is the bound: DynamICCL section 4.1. Without the library (nvidia-ml-py), a
driver or a GPU there are no figures; a figure that one GPU or driver does not have is None.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

from ringstep.hostlib.coordinator.policy import GpuFigures

__all__ = ["GpuSampler", "mean", "read"]

_LOG: Final = logging.getLogger("ringstep.coordinator")
PERIOD_S: Final = 0.1
_KILO: Final = 1000.0
_MILLI: Final = 1e-3
_FAILURES_MAX: Final = 10
"""Rounds in a row without any figure after which the sampler gives up."""
_HELD_DOWN: Final = (
    "nvmlClocksThrottleReasonSwPowerCap",
    "nvmlClocksThrottleReasonHwSlowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
)


def mean(figures: list[GpuFigures]) -> GpuFigures | None:
    """Return the mean over GPUs that have a figure; throttled where any is. None for none."""
    if not figures:
        return None
    found: dict[str, Any] = {}
    for one in fields(GpuFigures):
        known = [v for v in (getattr(f, one.name) for f in figures) if v is not None]
        if not known:
            continue
        found[one.name] = any(known) if one.name == "throttled" else sum(known) / len(known)
    return GpuFigures(**found)


def read(nvml: Any, handle: Any) -> GpuFigures:
    """Return the figures of one GPU.

    Args:
        nvml: the module ``pynvml``.
        handle: of a device.
    """

    def ask(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (nvml.NVMLError, AttributeError):  # not supported here, or by this library
            return None

    utilization = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    sent = ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES))
    received = ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES))
    clock = ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    reasons = ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    bits = 0
    for name in _HELD_DOWN:
        bits |= getattr(nvml, name, 0)
    return GpuFigures(
        utilization=None if utilization is None else utilization.gpu / 100,
        memory_used=None if memory is None or not memory.total else memory.used / memory.total,
        pcie_tx_bps=None if sent is None else sent * _KILO * 8,
        pcie_rx_bps=None if received is None else received * _KILO * 8,
        sm_clock_mhz=None if clock is None else float(clock),
        power_w=None if power is None else power * _MILLI,
        throttled=None if reasons is None else bool(reasons & bits),
    )


class _LinkCounters:
    """NVLink bytes of one GPU so far: rates need two readings."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._before: tuple[float, int, int] | None = None

    def rates(self, now: float) -> tuple[float | None, float | None]:
        """Return bits per second sent and received since the last call."""
        counts = self._counts()
        before, self._before = self._before, None if counts is None else (now, *counts)
        if counts is None or before is None or now <= before[0]:
            return None, None
        bits = 8 * 1024 / (now - before[0])  # the counters are in KiB
        return max(counts[0] - before[1], 0) * bits, max(counts[1] - before[2], 0) * bits

    def _counts(self) -> tuple[int, int] | None:
        nvml = self._nvml
        sent = getattr(nvml, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", None)
        received = getattr(nvml, "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", None)
        if sent is None or received is None:
            return None
        try:
            values = nvml.nvmlDeviceGetFieldValues(self._handle, [sent, received])
        except (nvml.NVMLError, AttributeError):
            return None
        if len(values) != 2 or any(value.nvmlReturn != 0 for value in values):
            return None
        return int(values[0].value.ullVal), int(values[1].value.ullVal)


class GpuSampler:
    """Keeps the newest figures of all GPUs of this node.

    Args:
        nvml: the module ``pynvml``, by default the installed one, if any.
        period_s: between readings.
    """

    def __init__(self, nvml: Any = None, *, period_s: float = PERIOD_S) -> None:
        self._period_s = period_s
        self._ending = threading.Event()
        self._figures: list[GpuFigures] = []
        self._thread: threading.Thread | None = None
        self.absent: str | None = None
        """Why there are no figures; None where there are."""
        try:
            self._nvml = importlib.import_module("pynvml") if nvml is None else nvml
        except ImportError:
            self.absent = "nvidia-ml-py is not installed"
            return
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except (self._nvml.NVMLError, OSError) as error:
            self.absent = f"NVML: {error}"
            return
        if not handles:
            self.absent = "no GPU"
            self._shut_down()
            return
        self._thread = threading.Thread(
            target=self._run, args=(handles,), name="ringstep-gpu", daemon=True
        )
        self._thread.start()

    def figures(self) -> list[GpuFigures]:
        """Return the newest figures by GPU; empty without GPUs and before the first reading."""
        return list(self._figures)

    def mean(self) -> GpuFigures | None:
        """Return their mean, None for none."""
        return mean(self._figures)

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
            self._thread = None

    def _run(self, handles: list[Any]) -> None:
        links = [_LinkCounters(self._nvml, handle) for handle in handles]
        failures = 0
        while not self._ending.wait(self._period_s) and failures < _FAILURES_MAX:
            found = []
            for handle, counters in zip(handles, links, strict=True):
                sent, received = counters.rates(time.monotonic())
                one = read(self._nvml, handle)
                found.append(replace(one, nvlink_tx_bps=sent, nvlink_rx_bps=received))
            told = any(getattr(one, f.name) is not None for one in found for f in fields(one))
            failures = 0 if told else failures + 1
            self._figures = found if told else []
        if failures >= _FAILURES_MAX:
            self.absent = "the driver stopped answering"
            _LOG.warning("GPU figures: %s", self.absent)
        self._shut_down()

    def _shut_down(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            _LOG.debug("NVML was shut down already")
