"""Run a scenario: from the core's simulation to results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import ringstep_ns3
from ringstep.fabric.units import format_rate
from ringstep_ns3 import _core, metrics
from ringstep_ns3.build import (
    Built,
    Policy,
    build,
    closed_loops,
    effective_dcqcn,
    with_policies,
)
from ringstep_ns3.loop import epoch_columns
from ringstep_ns3.prepare import Prepared, prepare
from ringstep_ns3.results import Results
from ringstep_ns3.scenario import FORMAT, Scenario, TrialTable
from ringstep_ns3.severed import Severed, severed
from ringstep_ns3.tables import (
    FROM_CORE,
    NO_VALUE,
    SCHEMAS,
    Column,
    difference,
    empty_table,
    node_table,
    rank_table,
    table_of,
)

_PROGRESS_EVENTS: Final = 200_000
_DEFAULT_WINDOW_NS: Final = 1_000_000
_PORTS_SHOWN: Final = 8
_RETRIES: Final = 8
"""Timeouts in a row without any ACK after which hosts that are cut off count as lost."""
_COUNTS: Final = (
    "hops",
    "events",
    "data_packets",
    "acks",
    "cnps",
    "naks",
    "timeouts",
    "retransmissions",
    "drops_buffer",
    "drops_wire",
    "pauses",
    "marks_red",
    "marks_marker",
    "peak_packets",
)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands. ``fraction``: share of the payload of all jobs that arrived."""

    sim_time_ns: int
    fraction: float
    events: int


class Interrupted(KeyboardInterrupt):
    """A run that was stopped by ctrl-C; ``results`` holds what was done, marked as not complete."""

    def __init__(self, results: Results) -> None:
        super().__init__()
        self.results = results


def run(
    scenario: Scenario,
    seed: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    policies: Mapping[str, Policy] | None = None,
) -> Results:
    """Simulate a scenario and return its results; ``seed`` None: the scenario's own.

    ``on_progress`` is called now and then. ``policies`` maps names of switches to functions that
    decide on marks there, in place of ``switch.marking``: each gets a
    :class:`ringstep_ns3._core.MarkingPacket` per data packet at dequeue and returns whether to mark
    it. An exception in any of them ends the run and comes out of here.

    Raises:
        ScenarioError: the scenario does not make sense as a whole, or the core refuses it.
        Interrupted: ctrl-C.
    """
    built = build(prepare(scenario, seed))
    return simulate(with_policies(built, policies) if policies else built, on_progress)


def simulate(built: Built, on_progress: Callable[[Progress], None] | None = None) -> Results:
    """Run a built simulation to its end and return its results.

    Raises:
        Interrupted: ctrl-C.
    """
    scenario = built.prepared.scenario
    started = time.perf_counter()
    apart = severed(built.prepared)
    silence = _Silence(built, apart) if apart is not None else None

    def report(sim_time_ns: int, fraction: float, events: int) -> None:
        if on_progress is not None:
            on_progress(Progress(sim_time_ns, fraction, events))
        if silence is not None:
            silence.check(sim_time_ns)

    try:
        with closed_loops(built):
            stats = built.simulation.run(scenario.until or 0, report, _PROGRESS_EVENTS)
    except _NothingMoreComesError:
        return _results(built, built.simulation.stats(), started, "stalled")
    except KeyboardInterrupt:
        results = _results(built, built.simulation.stats(), started, "interrupted")
        raise Interrupted(results) from None
    return _results(built, stats, started, stats.stopped)


class _NothingMoreComesError(Exception):
    """Every host that still sends sends to one that is cut off for good."""


class _Silence:
    """Ends a run in which timeouts would repeat lost packets for ever.

    Adapters give up after some retries; the core does not, because a failed link may come back.
    """

    def __init__(self, built: Built, apart: Severed) -> None:
        self._built = built
        self._acks = -1
        prepared = built.prepared
        starts = [job.start_ns for job in prepared.jobs]
        starts += [max(flows.start_ns) for flows in prepared.flows if flows.start_ns]
        self._from_ns = max(apart.time_ns, *starts, *(event.time_ns for event in prepared.events))

    def check(self, now_ns: int) -> None:
        """Note what arrived up to now.

        Raises:
            _NothingMoreComesError: no ACK came for too long, and nothing else is to happen.
        """
        prepared, simulation = self._built.prepared, self._built.simulation
        acks = simulation.stats().acks
        if acks != self._acks:
            self._acks = acks
            self._from_ns = max(self._from_ns, now_ns)
        patience_ns = _RETRIES * (prepared.scenario.transport.rto or 0)
        if now_ns - self._from_ns > patience_ns and not self._computing():
            raise _NothingMoreComesError

    def _computing(self) -> bool:
        rows = self._built.simulation.op_ranks()
        open_rows = (rows["start_ns"] != NO_VALUE) & (rows["end_ns"] == NO_VALUE)
        ops = {job.job_id: job.ops for job in self._built.prepared.jobs}
        return any(
            ops[job][op].kind == "compute"
            for job, op in zip(
                rows["job"][open_rows].tolist(), rows["op"][open_rows].tolist(), strict=True
            )
        )


def effective_toml(prepared: Prepared) -> str:
    """Return a scenario with every default, and what presets resolved to as comments."""
    scenario = prepared.scenario
    graph = prepared.graph
    comments: dict[str, list[str]] = {"cc": [], "switch.red": []}
    if scenario.cc.kind == "dcqcn":
        rate = graph.access_bps[graph.hosts[0]]
        values = effective_dcqcn(scenario, rate)
        comments["cc"] = [
            f"at {format_rate(rate)}:",
            *(f"  {name} = {_plain(value)}" for name, value in values.items()),
        ]
    comments["switch.red"] = [
        f"{format_rate(row.rate_bps)}: k_min {row.k_min} B, k_max {row.k_max} B, p_max {row.p_max}"
        for row in prepared.red
    ]
    params = next((marker for marker in prepared.markers if marker is not None), None)
    if params is not None:
        comments["marker"] = [
            f"scope = {prepared.scope.value}",
            *(f"{name} = {value}" for name, value in params.to_table().items()),
        ]
    return scenario.to_toml(comments)


def _plain(value: object) -> str:
    if value is None:
        return "off"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _results(built: Built, stats: _core.RunStats, started: float, stopped: str) -> Results:
    prepared, simulation = built.prepared, built.simulation
    scenario = prepared.scenario
    wall = time.perf_counter() - started
    tables = dict.fromkeys(SCHEMAS, None) | {
        "nodes": node_table(prepared.graph),
        "ranks": rank_table(prepared.jobs),
    }
    core: dict[str, Mapping[str, Column]] = {
        name: getattr(simulation, name)()
        for name in ("jobs", "collectives", "steps", "flows", "links", *FROM_CORE)
    }
    for name in FROM_CORE:
        tables[name] = table_of(name, core[name])
    tables["jobs"] = table_of("jobs", _jobs(prepared, core["jobs"]))
    tables["collectives"] = table_of("collectives", _collectives(prepared, core["collectives"]))
    steps, flows, links = dict(core["steps"]), dict(core["flows"]), dict(core["links"])
    steps["span_ns"] = difference(steps["end_ns"], steps["start_ns"])
    flows["fct_ns"] = difference(flows["end_ns"], flows["start_ns"])
    tables["steps"] = table_of("steps", steps)
    tables["flows"] = table_of("flows", flows)
    names = prepared.graph.link_names
    tables["links"] = table_of("links", {**links, "name": [names[i] for i in links["link"]]})
    transport, graph = scenario.transport, prepared.graph
    tables["step_rate"] = table_of(
        "step_rate", metrics.step_rates(core["steps"], prepared.jobs, transport, graph)
    )
    tables["overlap"] = table_of("overlap", metrics.overlap(core["link_series"]))
    window = scenario.output.sample or _DEFAULT_WINDOW_NS
    tables["throughput"] = table_of("throughput", metrics.throughput(core["flows"], window))
    tables["epochs"] = table_of("epochs", epoch_columns(built.loops))
    found = {name: empty_table(name) if t is None else t for name, t in tables.items()}
    summary = _summary(built, stats, stopped, core)
    timing = {
        "wall_s": round(wall, 6),
        "hops_per_s": round(stats.hops / wall) if wall > 0 else None,
        "events_per_s": round(stats.events / wall) if wall > 0 else None,
        "rss_mib": round(_core.memory_peak_bytes() / 2**20, 1),
    }
    return Results(found, summary, effective_toml(prepared), timing)


def _jobs(prepared: Prepared, jobs: Mapping[str, Column]) -> dict[str, Any]:
    names = {job.job_id: job.name for job in prepared.jobs}
    times, sizes = jobs["jct_ns"].tolist(), jobs["bytes"].tolist()
    return {
        **jobs,
        "name": [names[i] for i in jobs["job"].tolist()],
        "throughput_bps": [
            None if time in (NO_VALUE, 0) else size * 8e9 / time
            for time, size in zip(times, sizes, strict=True)
        ],
    }


def _collectives(prepared: Prepared, collectives: Mapping[str, Column]) -> dict[str, Any]:
    jobs = {job.job_id: job for job in prepared.jobs}
    rows = list(zip(collectives["job"].tolist(), collectives["op"].tolist(), strict=True))
    ops = [jobs[job].ops[op] for job, op in rows]
    transport, graph = prepared.scenario.transport, prepared.graph
    return {
        **collectives,
        "name": [op.name for op in ops],
        "kind": [op.kind for op in ops],
        "algorithm": ["" if op.kind == "compute" else op.algorithm for op in ops],
        "bound_ns": [
            metrics.bound_ns(op, jobs[job], transport, graph)
            for op, (job, _) in zip(ops, rows, strict=True)
        ],
    }


# --- Summary ----------------------------------------------------------------------------------


def _summary(
    built: Built, stats: _core.RunStats, stopped: str, core: Mapping[str, Mapping[str, Column]]
) -> dict[str, Any]:
    prepared = built.prepared
    scenario = prepared.scenario
    complete = stats.finished and stopped != "interrupted"
    return {
        "format": FORMAT,
        "scenario": scenario.name,
        "description": scenario.description,
        "seed": prepared.seed,
        "hash": scenario.content_hash(prepared.seed),
        "versions": versions(),
        "complete": complete,
        "stopped": stopped,
        "sim_time_ns": stats.sim_time_ns,
        "model": _model(prepared) | ({"policies": [*built.policies]} if built.policies else {}),
        "fabric": {
            "kind": scenario.fabric.kind,
            "hosts": len(prepared.graph.hosts),
            "switches": len(prepared.graph.switches),
            "cables": len(prepared.graph.cables),
        },
        "totals": {name: getattr(stats, name) for name in _COUNTS},
        "jobs": [_job_summary(built, i, core) for i in range(len(prepared.jobs))],
        "background": _background_summary(core["flows"]),
        "ports": _ports(prepared, core["links"]),
        "warnings": [*built.warnings, *_idle_drops(built, stopped)],
    }


def versions() -> dict[str, str]:
    """Return what made a result, as its summary has it."""
    return {"ringstep_ns3": ringstep_ns3.__version__, "core": _core.version()}


def _idle_drops(built: Built, stopped: str) -> list[str]:
    """Name the ``[[drop]]`` rules that took no packet; of a run that was interrupted, none."""
    if stopped == "interrupted":
        return []
    found = []
    done = built.simulation.drops_done()
    for i, (rule, taken) in enumerate(zip(built.prepared.scenario.drop, done, strict=True)):
        if not taken:
            what = f"fewer than n = {rule.n} packets" if rule.which == "nth" else "no packet"
            found.append(
                f"drop[{i + 1}]: nothing was lost by it, for {what} matched; look at kind, src, "
                "dst, step and link"
            )
    return found


def _model(prepared: Prepared) -> dict[str, Any]:
    """The choices that a result cannot be read without."""
    scenario = prepared.scenario
    cc = scenario.cc

    def of_jobs(key: str) -> list[str]:
        return sorted({str(getattr(job.table, key)) for job in prepared.jobs})

    trial = scenario.marker.trial
    rules = (
        []
        if trial is None
        else [name for name, value in TrialTable() if getattr(trial, name) != value]
    )
    return {
        "cc": cc.preset if cc.kind == "dcqcn" else cc.kind,
        "cc_changed": sorted(cc.dcqcn.model_fields_set),
        "window": scenario.transport.window,
        "nic": scenario.transport.nic,
        "lb": scenario.switch.lb,
        "marking": scenario.switch.marking,
        "marker_profile": scenario.marker.profile,
        **({"marker_trial": rules} if rules else {}),
        "loop": [arm.name for arm in scenario.loop.arm] if scenario.loop.enabled else "off",
        "mark_gap_us": prepared.mark_gap_us,
        "red_profile": scenario.switch.red.profile if scenario.switch.red.enabled else "off",
        "sender": of_jobs("sender"),
        "port": of_jobs("port"),
        "dependency": of_jobs("dependency"),
        "notify": of_jobs("notify"),
        "placement": of_jobs("placement"),
    }


def _job_summary(
    built: Built, index: int, core: Mapping[str, Mapping[str, Column]]
) -> dict[str, Any]:
    prepared = built.prepared
    job = prepared.jobs[index]
    row = int(np.flatnonzero(core["jobs"]["job"] == job.job_id)[0])
    jobs, ops = core["jobs"], core["collectives"]
    kinds = np.array([op.kind for op in job.ops])
    mine = ops["job"] == job.job_id
    mine &= np.isin(ops["op"], np.flatnonzero(kinds != "compute"))
    jct = int(jobs["jct_ns"][row])
    summary: dict[str, Any] = {
        "job": job.job_id,
        "name": job.name,
        "ranks": len(job.hosts),
        "operations": len(job.ops),
        "start_ns": job.start_ns,
        "jct_ns": None if jct == NO_VALUE else jct,
        "bytes": int(jobs["bytes"][row]),
        "throughput_bps": None
        if jct in (NO_VALUE, 0)
        else round(int(jobs["bytes"][row]) * 8e9 / jct, 3),
        "cct_ns": metrics.distribution(ops["cct_ns"][mine]),
        "last_step_span_ns": _last_span(core["steps"], job.job_id),
        "max_overlap": _most(core["link_series"], job.job_id, "steps"),
        "max_distance": _most(core["link_series"], job.job_id, "distance"),
    }
    bounds = {
        metrics.bound_ns(op, job, prepared.scenario.transport, prepared.graph)
        for op in job.ops
        if op.kind != "compute"
    }
    if len(bounds) == 1:
        summary["bound_ns"] = bounds.pop()
    if built.loops:
        summary["loop"] = built.loops[index].summary()
    return summary


def _last_span(steps: Mapping[str, Column], job: int) -> int | None:
    """Time from the first send to the last arrival of the job's last step, over all rings."""
    mine = steps["job"] == job
    if not mine.any():
        return None
    op = steps["op"][mine].max()
    last = mine & (steps["op"] == op)
    last &= steps["step"] == steps["step"][last].max()
    ends = steps["end_ns"][last]
    if (ends == NO_VALUE).any():
        return None
    return int(ends.max() - steps["start_ns"][last].min())


def _most(series: Mapping[str, Column], job: int, column: str) -> int | None:
    values = series[column][series["job"] == job]
    return int(values.max()) if len(values) else None


def _background_summary(flows: Mapping[str, Column]) -> dict[str, Any]:
    mine = flows["job"] == 0
    times = difference(flows["end_ns"][mine], flows["start_ns"][mine])
    return {"flows": int(mine.sum()), "fct_ns": metrics.distribution(times)}


def _ports(prepared: Prepared, links: Mapping[str, Column]) -> list[dict[str, Any]]:
    """The links on which most happened: marks, pauses, drops."""
    columns = ("marks_red", "marks_marker", "drops_buffer", "drops_wire", "pauses_received")
    weight: Column = np.sum([links[name].astype(np.int64) for name in columns], axis=0)
    order: Sequence[int] = np.lexsort((links["link"], -weight)).tolist()
    names = prepared.graph.link_names
    return [
        {
            "link": names[int(links["link"][i])],
            **{name: int(links[name][i]) for name in (*columns, "paused_ns", "max_queue_bytes")},
        }
        for i in order[:_PORTS_SHOWN]
        if weight[i] > 0
    ]
