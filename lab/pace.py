"""Whether the machine kept the pace that a measurement in real time rests on.

Three signs, none of which needs more than /proc: a single flow on idle links against the time that
its bits need; how late this process polled its NICs; and how long each process of the lab stood in
the queue for a CPU.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

LEAST_RATE: Final = 0.95
"""A single flow below this share of its link's rate says that time was lost."""
PROBE_PACKETS: Final = 32
RETRY_LIMIT: Final = 64
"""Of the queue pairs: on a busy machine wires stall for longer than a NIC's seven retries take."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How the machine did during one run."""

    single_flow: float
    """Rate of a single flow over its link's, the lower of one before and one after the run."""
    lag_p99_ms: float
    """How late the NICs were polled."""
    lag_max_ms: float
    lag_limit_ms: float
    """What a NIC catches up with; beyond it senders fall below their rate."""
    cpu_wait: float
    """Share of the run that the switch which waited longest stood ready without a CPU."""
    cpu_busy: float
    """Share of the run that the busiest process of the lab computed."""
    load: float
    """The machine's load average over the last minute."""

    @property
    def kept(self) -> bool:
        """Whether the numbers of the run can be trusted."""
        return self.single_flow >= LEAST_RATE and self.lag_p99_ms <= self.lag_limit_ms

    def to_json(self) -> dict[str, Any]:
        """Return the record of ``result.json``."""
        rounded = {name: round(value, 4) for name, value in asdict(self).items()}
        return {"kept": self.kept, **rounded}


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds that a process computed, and that its most delayed thread waited for a CPU."""

    ran_s: float
    waited_s: float


def cpu_times(pid: int) -> CpuTimes:
    """Return a process's times since its start; zeros where the kernel does not tell."""
    ran = waited = 0
    for task in Path(f"/proc/{pid}/task").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (task / "schedstat").read_text().split()
            ran += int(fields[0])
            waited = max(waited, int(fields[1]))
    return CpuTimes(ran * 1e-9, waited * 1e-9)


class CpuMeter:
    """Differences of CPU times over a stretch of time, for several processes."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self._before = self._read()
        self._began = time.monotonic()

    def _read(self) -> Mapping[int, CpuTimes]:
        return {pid: cpu_times(pid) for pid in (*self._pids, os.getpid())}

    def shares(self) -> tuple[float, float]:
        """Return (greatest share computed by one, greatest share waited by one)."""
        now, span = self._read(), max(time.monotonic() - self._began, 1e-9)
        ran = max((now[p].ran_s - self._before[p].ran_s) / span for p in now)
        waited = max((now[p].waited_s - self._before[p].waited_s) / span for p in now)
        return ran, max(waited, 0.0)


def flow_time_us(packets: int, frame_bytes: int, rates_bps: Iterable[float]) -> float:
    """Return how long a message of full packets takes over idle store-and-forward links.

    Args:
        packets: of the message.
        frame_bytes: of each.
        rates_bps: of the links on the way, in order.
    """
    times = [frame_bytes * 8e6 / rate for rate in rates_bps]
    return sum(times) + (packets - 1) * max(times)


def load_average() -> float:
    """Return the machine's load average over the last minute."""
    return os.getloadavg()[0]
