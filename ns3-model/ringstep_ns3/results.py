"""What a run leaves: typed tables, a summary and the effective configuration.

A result folder holds one Parquet file per table, ``summary.json``, ``effective.toml`` and
``timing.json``. The same scenario and seed give the same bytes, ``timing.json`` apart.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ringstep.fabric.tomlfile import FileError
from ringstep_ns3.outfolder import write_folder
from ringstep_ns3.tables import SCHEMAS, Column

SUMMARY: Final = "summary.json"
EFFECTIVE: Final = "effective.toml"
TIMING: Final = "timing.json"


class ResultsError(FileError):
    """A folder that holds no results, or not whole ones."""


@dataclass(frozen=True)
class Results:
    """Tables of :data:`ringstep_ns3.tables.SCHEMAS` by name, and what goes with them.

    Attributes:
        summary: plain data, as in ``summary.json``.
        effective: the configuration with every default, as a scenario file.
        timing: wall-clock and speed; the only part that differs between equal runs.
    """

    tables: Mapping[str, pa.Table]
    summary: Mapping[str, Any]
    effective: str
    timing: Mapping[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every job and flow ended."""
        return bool(self.summary["complete"])

    @property
    def name(self) -> str:
        """Name of the scenario."""
        return str(self.summary["scenario"])

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.summary["seed"])

    def table(self, name: str) -> pa.Table:
        """Return a table.

        Raises:
            KeyError: no such table; the text names those there are.
        """
        if name not in self.tables:
            raise KeyError(f"{name!r} is no table; there are {', '.join(SCHEMAS)}")
        return self.tables[name]

    def column(self, table: str, column: str) -> Column:
        """Return a column as a numpy array; null is NaN (then all are floats)."""
        return _to_numpy(self.table(table).column(column))

    def times(self, table: str, column: str) -> Column:
        """Return a column of times in ns as whole numbers, without those that did not come."""
        values = self.table(table).column(column).drop_null()
        return np.asarray(values.to_numpy(), dtype=np.int64)

    @property
    def jobs(self) -> pa.Table:
        """One row per job."""
        return self.tables["jobs"]

    @property
    def collectives(self) -> pa.Table:
        """One row per operation of each job's program."""
        return self.tables["collectives"]

    @property
    def steps(self) -> pa.Table:
        """One row per step of each ring."""
        return self.tables["steps"]

    @property
    def flows(self) -> pa.Table:
        """One row per message."""
        return self.tables["flows"]

    @property
    def links(self) -> pa.Table:
        """One row per directed link, totals."""
        return self.tables["links"]

    @property
    def cct_ns(self) -> Column:
        """Completion times of all collectives that ended, in ns."""
        return collective_times(self.collectives)

    def files(self) -> dict[str, bytes]:
        """Return the content of every file of a result folder."""
        files = {f"{name}.parquet": _parquet(self.tables[name]) for name in SCHEMAS}
        files[SUMMARY] = json_bytes(self.summary)
        files[EFFECTIVE] = self.effective.encode()
        if self.timing:
            files[TIMING] = json_bytes(self.timing)
        return files

    def write(self, folder: str | Path) -> None:
        """Write a result folder: the whole of it, or nothing. What the folder held is replaced.

        Raises:
            OutputError: it cannot be written.
        """
        write_folder(Path(folder), self.files())

    @staticmethod
    def read(folder: str | Path) -> Results:
        """Return what :meth:`write` wrote.

        Raises:
            ResultsError: no result folder, or one with parts missing.
        """
        folder = Path(folder)
        try:
            summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
            effective = (folder / EFFECTIVE).read_text(encoding="utf-8")
            tables = {name: pq.read_table(folder / f"{name}.parquet") for name in SCHEMAS}
        except (OSError, ValueError) as error:
            raise ResultsError(
                str(folder),
                [f"{folder}: no results here ({error}); name a folder that `run --out` wrote"],
            ) from None
        timing = folder / TIMING
        return Results(
            tables, summary, effective, json.loads(timing.read_text()) if timing.is_file() else {}
        )


def json_bytes(data: object) -> bytes:
    """Return JSON text, keys in the order given."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_statistics=False, store_schema=False)
    return sink.getvalue()


def table_bytes(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file; equal tables give equal bytes."""
    return _parquet(table)


def collective_times(collectives: pa.Table) -> Column:
    """Return the completion times in ns of the collectives of a table that ended."""
    times = _to_numpy(collectives.column("cct_ns")).astype(np.float64)
    wanted = times[(_to_numpy(collectives.column("kind")) != "compute") & ~np.isnan(times)]
    whole: Column = wanted.astype(np.int64)
    return whole


def _to_numpy(column: pa.ChunkedArray) -> Column:
    return np.asarray(column.to_numpy(zero_copy_only=False))
