"""What a collective takes on a clean network, learned from the job's own calls.

The first calls in NCCL's configuration give a median. They may have been contended, which nobody
can tell from one job's latencies alone, so two things correct it: a calibration file, made on a
clean network; and time: when the running median of NCCL-configured calls falls clearly below the
baseline, it follows. It does not rise with contention, which would else become the new normal: only
calls near it refine it, and only the first ones.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Final

from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.shm_layout import Collective

FIRST_CALLS: Final = 7
"""Calls of the first median: those of the warm-up, without the very first call."""
REFINED: Final = 31
"""Calls whose median it becomes, those left out that are slower than :data:`SLOW` by then."""
SLOW: Final = 1.25
WINDOW: Final = 16
"""Calls of the running median."""
FALL: Final = 0.95
"""A running median below this share of the baseline replaces it."""
STEADY_SPREAD: Final = 0.15
"""First calls that spread more than this share of their median are not to be trusted."""

FORMAT: Final = "ringstep-baselines-1"


class CalibrationError(ValueError):
    """A calibration file that cannot be used; the message says where and why."""


class Baseline:
    """The clean latency of one key.

    ``calibrated_us`` comes from a calibration and is used from the first call on.
    """

    __slots__ = ("_calibrated", "_first", "_recent", "_value")

    def __init__(self, calibrated_us: float | None = None) -> None:
        self._calibrated = calibrated_us is not None
        self._value = calibrated_us
        self._first: list[float] = []
        self._recent: deque[float] = deque(maxlen=WINDOW)

    @property
    def value(self) -> float | None:
        """µs; None until there are calls enough."""
        if self._value is not None:
            return self._value
        return median(self._first) if len(self._first) >= 3 else None

    @property
    def trusted(self) -> bool:
        """Calibrated, or the first calls agreed with one another."""
        if self._calibrated:
            return True
        if len(self._first) < FIRST_CALLS:
            return False
        middle = median(self._first)
        return median(abs(x - middle) for x in self._first) <= STEADY_SPREAD * middle

    def add(self, latency_us: float) -> None:
        """Take a call that ran in NCCL's own configuration (a good one: above 0, finite)."""
        if self._value is None:
            self._first.append(latency_us)
            if len(self._first) == FIRST_CALLS:
                self._value = median(self._first)
            return
        near = latency_us <= SLOW * self._value
        if near and not self._calibrated and len(self._first) < REFINED:
            self._first.append(latency_us)
            self._value = median(self._first)
        self._recent.append(latency_us)
        if len(self._recent) == WINDOW:
            now = median(self._recent)
            if now < FALL * self._value:
                self._value = now
                self._first = [now] * REFINED


class Baselines:
    """Baselines by key; a calibration gives some of them from the start."""

    def __init__(self, calibrated: Mapping[Key, float] | None = None) -> None:
        self._calibrated = dict(calibrated or {})
        self._by_key: dict[Key, Baseline] = {}

    def of(self, key: Key) -> Baseline:
        """Return the baseline of a key, a new one where there is none."""
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = Baseline(self._calibrated.get(key))
        return found

    def forget(self, key: Key) -> None:
        """Start a key anew, for example when its communicator is gone."""
        self._by_key.pop(key, None)


def save_calibration(path: Path, values: Mapping[Key, float]) -> None:
    """Write clean latencies in µs by key, to be read by :func:`load_calibration`."""
    rows = [
        {
            "ranks": key.n_ranks, "nodes": key.n_nodes,
            "collective": key.collective.name.lower(), "size_class": key.size_class,
            "latency_us": value,
        }
        for key, value in sorted(values.items())
    ]  # fmt: skip
    path.write_text(json.dumps({"format": FORMAT, "baselines": rows}, indent=1) + "\n")


def load_calibration(path: Path) -> dict[Key, float]:
    """Read a calibration file.

    Raises:
        CalibrationError: not such a file, or a row that makes no sense.
        OSError: it cannot be read.
    """
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise CalibrationError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CalibrationError(f"{path}: not a calibration ('format' must be {FORMAT!r})")
    found: dict[Key, float] = {}
    for at, row in enumerate(data.get("baselines", [])):
        try:
            key = Key(
                int(row["ranks"]), int(row["nodes"]),
                Collective[str(row["collective"]).upper()], int(row["size_class"]),
            )  # fmt: skip
            value = float(row["latency_us"])
        except (KeyError, TypeError, ValueError) as error:
            raise CalibrationError(f"{path}: baselines[{at}]: {error!r}") from None
        if not (math.isfinite(value) and value > 0):
            raise CalibrationError(f"{path}: baselines[{at}]: latency_us {value}: above 0")
        if key in found:
            raise CalibrationError(f"{path}: baselines[{at}]: {key} stands twice")
        found[key] = value
    return found
