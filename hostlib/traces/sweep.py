"""Sweeps: what every configuration took under every load, measured call by call, as files.

A sweep is how real links get into training and evaluation. Its medians are the oracle; its calls,
drawn again at random, are traces with the noise that was measured (:class:`Draws`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

import numpy as np

from ringstep.hostlib.dynamic.actions import N_ACTIONS, Config, Key, decode, encode
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.calibrate import Measured
from ringstep.hostlib.traces.fluid import CLEAN, Load

Array = np.ndarray[Any, np.dtype[Any]]
Times = tuple[tuple[float, ...], ...]
"""µs of each call, by load."""

FORMAT: Final = "ringstep-sweeps-1"
DIGITS: Final = 5
"""Significant digits of a time in a file."""


class SweepError(ValueError):
    """Sweeps that cannot be used; the message says where and what is wrong."""


@dataclass(frozen=True)
class Sweep:
    """What every configuration takes under every load that was tried.

    Attributes:
        env: name of the environment.
        key: of the collective.
        n_bytes: larger side.
        loads: by level, ascending; the first is ``CLEAN``.
        usual: NCCL's choice.
        usual_calls_us: its calls, by load.
        calls_us: calls of each configuration, by load.
    """

    env: str
    key: Key
    n_bytes: int
    loads: tuple[Load, ...]
    usual: Config
    usual_calls_us: Times
    calls_us: Mapping[Config, Times]

    def __post_init__(self) -> None:
        levels = [load.level for load in self.loads]
        if not levels or self.loads[0] != CLEAN:
            raise SweepError(f"{self.env}: a clean load is missing, by which rewards are reckoned")
        if levels != sorted(set(levels)):
            raise SweepError(f"{self.env}: loads {levels}: ascending, each level once")
        if not self.calls_us:
            raise SweepError(f"{self.env}: no configurations")
        for name, rows in (("NCCL's choice", self.usual_calls_us), *self.calls_us.items()):
            if len(rows) != len(levels) or not all(rows):
                raise SweepError(f"{self.env}: {name}: calls of {len(levels)} loads")
            for time in (t for row in rows for t in row):
                if not (math.isfinite(time) and time > 0):
                    raise SweepError(f"{self.env}: {name}: {time} µs: a finite time above 0")

    @cached_property
    def latencies_us(self) -> Array:
        """Medians, loads by 96 actions; NaN where an action was not measured."""
        table = np.full((len(self.loads), N_ACTIONS), np.nan)
        for config, rows in self.calls_us.items():
            last = encode(config)
            for i, row in enumerate(rows):  # the threads of an action do nothing
                table[i, last - last % 3 : last - last % 3 + 3] = median(row)
        return table

    @cached_property
    def usual_us(self) -> tuple[float, ...]:
        """Median of NCCL's choice, by load."""
        return tuple(median(row) for row in self.usual_calls_us)

    @property
    def samples(self) -> list[Measured]:
        """All calls, for :func:`ringstep.hostlib.traces.calibrate.calibrate`."""
        return [
            Measured(self.key, self.n_bytes, config, time, load)
            for config, rows in (*self.calls_us.items(), (self.usual, self.usual_calls_us))
            for load, row in zip(self.loads, rows, strict=True)
            for time in row
        ]

    def table_us(self, level: float) -> Array:
        """Return the medians of the 96 actions at a level, between those that were measured."""
        at, share = self._between(level)
        here: Array = np.log(self.latencies_us[at])
        if share:
            here = (1 - share) * here + share * np.log(self.latencies_us[at + 1])
        return np.asarray(np.exp(here))

    def best(self, load: Load) -> Config:
        """Return the best configuration under a load."""
        return decode(int(np.nanargmin(self.table_us(load.level)))).plain

    @property
    def clean_us(self) -> float:
        """NCCL's choice on a clean network."""
        return self.usual_us[0]

    @property
    def best_us(self) -> float:
        """The best configuration on a clean network."""
        return float(min(np.nanmin(self.latencies_us[0]), self.clean_us))

    def _between(self, level: float) -> tuple[int, float]:
        levels = [load.level for load in self.loads]
        if level >= levels[-1]:
            return len(levels) - 1, 0.0
        at = max(int(np.searchsorted(levels, level, side="right")) - 1, 0)
        return at, (max(level, 0.0) - levels[at]) / (levels[at + 1] - levels[at])

    # --- files ---

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""

        def plain(rows: Times) -> list[list[float]]:
            return [[float(f"{time:.{DIGITS}g}") for time in row] for row in rows]

        key = self.key
        return {
            "env": self.env, "ranks": key.n_ranks, "nodes": key.n_nodes,
            "collective": key.collective.name.lower(), "bytes": self.n_bytes,
            "loads": [[load.level, load.flows] for load in self.loads],
            "usual": _words(self.usual), "usual_us": plain(self.usual_calls_us),
            "configs": [
                {"config": _words(config), "us": plain(rows)}
                for config, rows in self.calls_us.items()
            ],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "sweep") -> Self:
        """Return the sweep that :meth:`to_dict` described.

        Raises:
            SweepError: not such data.
        """

        def rows(found: Any) -> Times:
            return tuple(tuple(float(time) for time in row) for row in found)

        try:
            n_bytes, collective = int(data["bytes"]), Collective[str(data["collective"]).upper()]
            return cls(
                str(data["env"]),
                Key.of(int(data["ranks"]), int(data["nodes"]), collective, n_bytes),
                n_bytes,
                tuple(Load(float(level), float(flows)) for level, flows in data["loads"]),
                _config(data["usual"]),
                rows(data["usual_us"]),
                {_config(row["config"]): rows(row["us"]) for row in data["configs"]},
            )
        except SweepError as error:
            raise SweepError(f"{where}: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise SweepError(f"{where}: not a sweep: {error!r}") from None


def _words(config: Config) -> list[str | int]:
    return [config.algo.name.lower(), config.proto.name.lower(), config.n_channels]


def _config(words: Sequence[Any]) -> Config:
    algo, proto, channels = words
    return Config(Algo[str(algo).upper()], Proto[str(proto).upper()], int(channels))


def save_sweeps(path: Path, sweeps: Sequence[Sweep]) -> None:
    """Write sweeps; the file appears whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(path.name + ".part")
    rows = ",\n".join(json.dumps(sweep.to_dict()) for sweep in sweeps)
    part.write_text(f'{{"format": "{FORMAT}", "sweeps": [\n{rows}\n]}}\n')
    part.replace(path)


def load_sweeps(path: Path) -> list[Sweep]:
    """Read sweeps.

    Raises:
        SweepError: not such a file, or none in it.
        OSError: it cannot be read.
    """
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise SweepError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or not data.get("sweeps"):
        raise SweepError(f"{path}: not a file of sweeps ('format' must be {FORMAT!r})")
    return [Sweep.from_dict(row, f"{path}: sweeps[{i}]") for i, row in enumerate(data["sweeps"])]


class Draws:
    """Draws the calls of a sweep again: any load between those measured, noise as it was.

    A draw is a share ``u`` from 0 to 1: the quantile of the calls that were measured, between the
    two loads nearest. The same ``u`` for two configurations pairs them.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._logs = {
            config: [np.sort(np.log(row)) for row in rows]
            for config, rows in sweep.calls_us.items()
        }
        self._usual = [np.sort(np.log(row)) for row in sweep.usual_calls_us]

    def latency_us(self, config: Config | None, load: Load, u: float) -> float:
        """Return what a call takes; None: as NCCL chooses.

        Raises:
            KeyError: a configuration that was not measured.
        """
        rows = self._usual if config is None else self._logs[config]
        at, share = self.sweep._between(load.level)
        log = _quantile(rows[at], u)
        if share:
            log = (1 - share) * log + share * _quantile(rows[at + 1], u)
        return math.exp(log) * load.slow_host


def _quantile(ascending: Array, u: float) -> float:
    place = u * (len(ascending) - 1)
    at = min(int(place), len(ascending) - 1)
    up = min(at + 1, len(ascending) - 1)
    return float(ascending[at] + (place - at) * (ascending[up] - ascending[at]))
