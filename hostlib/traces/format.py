"""Trace files: one .npz with a column per quantity and a header, checked when it is read.

Several traces lie end to end in one file; ``trace`` numbers them. Columns are in :data:`COLUMNS`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.sample import LONGEST_US
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.scenarios import Label

FORMAT: Final = "ringstep-trace-1"

Column = np.ndarray[Any, np.dtype[Any]]

COLUMNS: Final[Mapping[str, str]] = {
    "trace": "i4",  # from 0, ascending
    "call": "i4",  # within a trace, from 0, without gaps
    "time_ns": "i8",  # when the call ended, ascending within a trace
    "latency_us": "f8",
    "ranks": "i4",
    "nodes": "i4",
    "collective": "i1",
    "bytes": "i8",  # larger side
    "algo": "i1",  # what ran
    "proto": "i1",
    "channels": "i1",
    "chunk_bytes": "i4",  # 0: the protocol's default
    "decided": "i1",  # 0: NCCL's own choice
    "gpu_busy": "f4",  # NaN: not measured
    "gpu_memory": "f4",
    "gpu_power": "f4",
    "label": "i1",  # of the oracle; -1: not known
    "level": "f4",  # load of the link, 0 to 1; NaN: not known
    "clean_us": "f8",  # what the call takes in NCCL's choice on a clean network; NaN: not known
    "best_us": "f8",  # what the best configuration takes on a clean network; NaN: not known
}


class TraceError(ValueError):
    """A trace that cannot be used; the message says where and what is wrong."""


@dataclass(frozen=True)
class Traces:
    """Columns and what is known of them.

    Attributes:
        columns: by name, all of the same length.
        header: source, seed, parameters: plain data.
    """

    columns: Mapping[str, Column]
    header: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.columns["call"])

    @property
    def digest(self) -> str:
        """SHA-256 over all columns: names the data a model was trained on."""
        found = hashlib.sha256()
        for name in COLUMNS:
            found.update(name.encode())
            found.update(np.ascontiguousarray(self.columns[name]).tobytes())
        return found.hexdigest()

    def each(self) -> Iterator[Mapping[str, Column]]:
        """Yield the traces one by one, as views."""
        ids = self.columns["trace"]
        edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
        for first, last in itertools.pairwise(edges):
            yield {name: column[first:last] for name, column in self.columns.items()}


def validate(columns: Mapping[str, Column], where: str) -> None:
    """Refuse what no measurement can be.

    Raises:
        TraceError: missing columns, gaps, NaN, clock steps, latencies that are no times, names that
            NCCL does not have.
    """
    if missing := [name for name in COLUMNS if name not in columns]:
        raise TraceError(f"{where}: column {missing[0]!r} is missing")
    if extra := [name for name in columns if name not in COLUMNS]:
        raise TraceError(f"{where}: column {extra[0]!r} is not known")
    length = len(columns["trace"])
    if not length:
        raise TraceError(f"{where}: no calls")
    for name, kind in COLUMNS.items():
        column = columns[name]
        if column.shape != (length,):
            raise TraceError(f"{where}: column {name} has shape {column.shape}, not ({length},)")
        if column.dtype != np.dtype(kind):
            raise TraceError(f"{where}: column {name} is {column.dtype}, must be {np.dtype(kind)}")

    def refuse(bad: Any, why: str) -> None:
        if bad.any():
            at = int(np.argmax(bad))
            raise TraceError(
                f"{where}: trace {columns['trace'][at]} call {columns['call'][at]}: {why}"
            )

    trace, call, time = columns["trace"], columns["call"], columns["time_ns"]
    latency = columns["latency_us"]
    refuse(~np.isfinite(latency), "latency_us is not a number")
    refuse(latency <= 0, "latency_us is not above 0")
    refuse(latency > LONGEST_US, "latency_us is longer than an hour: a clock stepped")
    new = np.concatenate([[True], trace[1:] != trace[:-1]])
    refuse(np.concatenate([[False], trace[1:] < trace[:-1]]), "traces are not in order")
    refuse(new & (call != 0), "a trace starts with call 0")
    refuse(~new & (np.diff(call, prepend=call[:1]) != 1), "calls are missing before it (a gap)")
    refuse(
        ~new & (np.diff(time, prepend=time[:1]) < 0),
        "time_ns is before the previous call's: a clock stepped back",
    )
    refuse((columns["ranks"] < 2) | (columns["nodes"] < 1), "ranks below 2 or nodes below 1")
    refuse(columns["nodes"] > columns["ranks"], "more nodes than ranks")
    refuse(columns["bytes"] <= 0, "bytes is not above 0")
    refuse(~np.isin(columns["collective"], list(Collective)), "collective is none of NCCL's five")
    refuse(~np.isin(columns["algo"], list(Algo)), "algo is none of NCCL's")
    refuse(~np.isin(columns["proto"], list(Proto)), "proto is none of NCCL's")
    refuse(columns["channels"] < 1, "channels is not above 0")
    refuse(~np.isin(columns["label"], [-1, *Label]), "label is none of the oracle's")
    for name in ("clean_us", "best_us"):
        refuse(columns[name] <= 0, f"{name} is not above 0")


def save(path: Path, traces: Traces) -> None:
    """Write traces; the file appears whole or not at all.

    Raises:
        TraceError: they are not valid.
        OSError: the file cannot be written.
    """
    validate(traces.columns, str(path))
    header = {**traces.header, "format": FORMAT, "digest": traces.digest}
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            np.savez_compressed(file, header=np.array(json.dumps(header)), **dict(traces.columns))  # type: ignore[arg-type]
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load(path: Path) -> Traces:
    """Read traces.

    Raises:
        TraceError: not such a file, damaged, or traces that cannot be.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files if name != "header"}
            header = json.loads(str(file["header"])) if "header" in file.files else {}
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path}: not a trace file, or damaged: {error}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise TraceError(f"{path}: not a trace file of format {FORMAT!r}")
    validate(columns, str(path))
    traces = Traces(columns, header)
    if header.get("digest") != traces.digest:
        raise TraceError(f"{path}: damaged: its columns are not those that were written")
    return traces
