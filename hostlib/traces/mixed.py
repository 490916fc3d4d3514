"""Traces of several sources as one, and the oracle that knows their actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ringstep.hostlib.traces.format import COLUMNS, TraceError, Traces
from ringstep.hostlib.traces.generate import FluidOracle
from ringstep.hostlib.traces.recorded import SweepOracle

Array = np.ndarray[Any, np.dtype[Any]]


def merged(parts: Sequence[Traces]) -> Traces:
    """Return traces end to end, numbered anew; one part stays as it is.

    Raises:
        TraceError: nothing to merge, or a part that was merged itself.
    """
    if not parts:
        raise TraceError("no traces")
    if len(parts) == 1:
        return parts[0]
    if any("parts" in part.header for part in parts):
        raise TraceError("traces that were merged already: give the files they came from")
    columns, headers, first = [], [], 0
    for part in parts:
        _, place = np.unique(part.columns["trace"], return_inverse=True)
        columns.append({**part.columns, "trace": (first + place).astype("i4")})
        headers.append({**part.header, "first_trace": first})
        first += int(place.max()) + 1
    joined = {name: np.concatenate([c[name] for c in columns]) for name in COLUMNS}
    return Traces(joined, {"source": "mixed", "parts": headers})


def split(traces: Traces) -> list[tuple[int, Traces]]:
    """Return the parts of merged traces with the number of each one's first trace."""
    headers = traces.header.get("parts")
    if headers is None:
        return [(0, traces)]
    number = traces.columns["trace"]
    edges = [*np.searchsorted(number, [h["first_trace"] for h in headers]).tolist(), len(number)]
    found = []
    for header, start, end in zip(headers, edges, edges[1:], strict=False):
        first = int(header["first_trace"])
        columns = {name: column[start:end] for name, column in traces.columns.items()}
        columns["trace"] = columns["trace"] - first
        found.append((first, Traces(columns, header)))
    return found


class MixedOracle:
    """Asks the oracle of the part that a trace is from; NaN where that has none."""

    def __init__(self, parts: Sequence[tuple[int, FluidOracle | SweepOracle | None]]) -> None:
        self._parts = sorted(parts, key=lambda part: part[0], reverse=True)

    def latencies_us(self, trace: int, call: int) -> Array | None:
        """Return what each action takes; None where nobody knows."""
        first, oracle = next(part for part in self._parts if part[0] <= trace)
        return None if oracle is None else oracle.latencies_us(trace - first, call)


def oracle_of(traces: Traces) -> MixedOracle | None:
    """Return what knows all actions of these traces; None where nothing does."""
    found: list[tuple[int, FluidOracle | SweepOracle | None]] = []
    for first, part in split(traces):
        if part.header.get("source") == "fluid":
            found.append((first, FluidOracle(part)))
        else:
            found.append((first, SweepOracle(part) if part.header.get("sweeps") else None))
    return MixedOracle(found) if any(oracle is not None for _, oracle in found) else None
