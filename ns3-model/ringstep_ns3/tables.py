"""The result tables: their columns, and how they come from the core's arrays.

Times are in ns of simulated time, null where something did not end; names follow the core's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringstep_ns3.jobs import PlacedJob
from ringstep_ns3.topology import Graph

NO_VALUE: Final = 2**63 - 1

_I = pa.int64()
_F = pa.float64()
_S = pa.string()

SCHEMAS: Final[Mapping[str, Mapping[str, pa.DataType]]] = {
    "nodes": {"node": _I, "name": _S, "kind": _S, "tier": _I},
    "jobs": {
        "job": _I,
        "name": _S,
        "ranks": _I,
        "start_ns": _I,
        "end_ns": _I,
        "jct_ns": _I,
        "bytes": _I,
        "throughput_bps": _F,
    },
    "ranks": {"job": _I, "rank": _I, "host": _S},
    "collectives": {
        "job": _I,
        "op": _I,
        "name": _S,
        "kind": _S,
        "algorithm": _S,
        "start_ns": _I,
        "end_ns": _I,
        "cct_ns": _I,
        "bytes": _I,
        "bound_ns": _I,
    },
    "op_ranks": {"job": _I, "op": _I, "rank": _I, "start_ns": _I, "end_ns": _I},
    "steps": {
        "job": _I,
        "op": _I,
        "ring": _I,
        "step": _I,
        "start_ns": _I,
        "end_ns": _I,
        "span_ns": _I,
        "messages": _I,
    },
    "flows": {
        "id": _I,
        "job": _I,
        "op": _I,
        "ring": _I,
        "step": _I,
        "src": _I,
        "dst": _I,
        "bytes": _I,
        "start_ns": _I,
        "end_ns": _I,
        "delivered_ns": _I,
        "fct_ns": _I,
        "retransmissions": _I,
        "sport": _I,
        "qp": _I,
    },
    "links": {
        "link": _I,
        "name": _S,
        "src": _I,
        "dst": _I,
        "rate_bps": _I,
        "packets": _I,
        "bytes": _I,
        "data_packets": _I,
        "marks_red": _I,
        "marks_marker": _I,
        "drops_buffer": _I,
        "drops_wire": _I,
        "pauses_sent": _I,
        "pauses_received": _I,
        "paused_ns": _I,
        "max_queue_bytes": _I,
        "max_queue_packets": _I,
        "max_steps": _I,
        "max_distance": _I,
    },
    "link_series": {
        "link": _I,
        "job": _I,
        "time_ns": _I,
        "data_bytes": _I,
        "data_packets": _I,
        "steps": _I,
        "distance": _I,
        "queue_bytes": _I,
        "marks": _I,
    },
    "alpha_trace": {
        "time_ns": _I,
        "switch": _I,
        "port": _I,
        "job": _I,
        "alpha": _I,
        "step_min": _I,
        "psn_rec": _I,
    },
    "queue_histogram": {"link": _I, "bin": _I, "packets": _I},
    "markers": {
        "switch": _I,
        "job": _I,
        "data": _I,
        "marks": _I,
        "red_marks": _I,
        "corrections": _I,
        "advances": _I,
    },
    "rate_trace": {"flow": _I, "time_ns": _I, "rate_bps": _F, "alpha": _F},
    "overlap": {
        "time_ns": _I,
        "job": _I,
        "links": _I,
        "max_steps": _I,
        "mean_steps": _F,
        "max_distance": _I,
    },
    "step_rate": {
        "job": _I,
        "op": _I,
        "ring": _I,
        "step": _I,
        "end_ns": _I,
        "interval_ns": _I,
        "rate": _F,
    },
    "throughput": {"time_ns": _I, "job": _I, "bps": _F},
    "epochs": {
        "job": _I,
        "epoch": _I,
        "arm": _S,
        "in_force": _S,
        "start_ns": _I,
        "end_ns": _I,
        "cct_ns": _I,
        "account": _F,
    },
}
"""Table -> column -> type. The last four are computed here, the others counted by the core.

``collectives.bound_ns``: the time the slowest host link needs for the payload and headers of a
ring; null for other algorithms. ``flows.fct_ns``: from the first send to the last ACK.
``step_rate.rate``: ideal over real interval between completions of steps of a ring (paper, Fig.
2b); 1 is line rate. ``overlap``: over the recorded links of a window, the steps of a job that left
by one link. ``throughput``: payload of a job, each message spread evenly over its time.
``epochs``: of the closed loop; ``cct_ns`` from the end of the epoch before, computation included,
``in_force`` and ``account`` (in epochs of the safe arm) as they stand at its end.
"""

FROM_CORE: Final = (
    "op_ranks",
    "link_series",
    "alpha_trace",
    "queue_histogram",
    "markers",
    "rate_trace",
)

Column = npt.NDArray[Any]


def table_of(name: str, columns: Mapping[str, Column | Sequence[object]]) -> pa.Table:
    """Return a table of :data:`SCHEMAS`; :data:`NO_VALUE` in a time becomes null.

    Raises:
        KeyError: a column is missing.
    """
    arrays = []
    for column, kind in SCHEMAS[name].items():
        values = columns[column]
        if isinstance(values, np.ndarray):
            plain = np.ascontiguousarray(values)
            if column.endswith("_ns"):
                arrays.append(pa.array(plain.astype(np.int64), kind, mask=plain == NO_VALUE))
            else:
                arrays.append(pa.array(plain).cast(kind))
        else:
            arrays.append(pa.array(list(values), kind))
    return pa.Table.from_arrays(arrays, names=list(SCHEMAS[name]))


def empty_table(name: str) -> pa.Table:
    """Return a table without rows."""
    return table_of(name, {column: [] for column in SCHEMAS[name]})


def node_table(graph: Graph) -> pa.Table:
    """Return number, name, kind (``host``, ``switch``) and tier (-1: host) of every node."""
    names = (*graph.hosts, *graph.switches)
    hosts = len(graph.hosts)
    return table_of(
        "nodes",
        {
            "node": list(range(len(names))),
            "name": names,
            "kind": ["host"] * hosts + ["switch"] * len(graph.switches),
            "tier": [-1] * hosts + list(graph.tiers),
        },
    )


def rank_table(jobs: Sequence[PlacedJob]) -> pa.Table:
    """Return the host of every rank."""
    rows = [(job.job_id, rank, host) for job in jobs for rank, host in enumerate(job.hosts)]
    return table_of(
        "ranks",
        {
            "job": [row[0] for row in rows],
            "rank": [row[1] for row in rows],
            "host": [row[2] for row in rows],
        },
    )


def difference(end: Column, start: Column) -> Column:
    """Return end - start, :data:`NO_VALUE` where either did not come."""
    known = (end != NO_VALUE) & (start != NO_VALUE)
    return np.where(known, end - np.where(known, start, 0), NO_VALUE)
