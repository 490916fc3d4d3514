"""What Prometheus reads of a controller.

What happens is counted when it happens, by the methods of :class:`Metrics`. What is, is asked of
the fleet when Prometheus asks: :class:`FleetFacts`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

import grpc.aio
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from ringstep.controller.interceptors import AroundInterceptor, ServerInterceptor

_STORED_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_PROGRAMMED_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
_BATCH_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True, slots=True)
class SwitchFacts:
    """One kept switch; counts, and Unix seconds of the last full read (None: none yet)."""

    name: str
    phase: str
    desired: int = 0
    pending: int = 0
    drift_missing: int = 0
    drift_changed: int = 0
    drift_foreign: int = 0
    drifts: int = 0
    foreign_kept: int = 0
    foreign_removed: int = 0
    refused: int = 0
    updates: int = 0
    sessions: int = 0
    audited_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """One direction of a link between switches: planned edges, and their weight over its rate."""

    src: str
    dst: str
    edges: int
    load: float = 0.0


class FleetFacts(Protocol):
    """What is asked of a fleet at each scrape, on its own event loop; all answers are at hand."""

    def jobs_by_tenant(self) -> Mapping[str, int]:
        """Live jobs by tenant."""

    def leased_jobs(self) -> int:
        """Live jobs with a lease."""

    def free_ids(self) -> int:
        """Job_IDs that can be handed out now."""

    def quarantined_ids(self) -> int:
        """Job_IDs that wait for their quarantine to end."""

    def switches(self) -> Iterable[SwitchFacts]:
        """Kept switches."""

    def links(self) -> Iterable[LinkFacts]:
        """Directed links between switches that carry planned edges."""

    def leading(self) -> bool:
        """Whether this controller leads."""

    def epoch(self) -> int:
        """How often leadership has changed hands, as the store counts it; 0: never."""

    def store_queue(self) -> int:
        """Changes that wait to be stored."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    jobs: Mapping[str, int]
    leased: int
    free: int
    quarantined: int
    switches: tuple[SwitchFacts, ...]
    links: tuple[LinkFacts, ...]
    leading: bool
    epoch: int
    queue: int


_NOTHING = _Snapshot({}, 0, 0, 0, (), (), False, 0, 0)
_PHASES: Final = (
    "unmanaged", "connecting", "pushing_pipeline", "programming", "in_sync", "error",
)  # fmt: skip


class _FleetCollector:
    """Gauges of the snapshot that was taken last."""

    def __init__(self) -> None:
        self.snapshot = _NOTHING

    def collect(self) -> Iterator[Metric]:
        now = self.snapshot
        jobs = GaugeMetricFamily("ringstep_jobs", "Live jobs.", labels=["tenant"])
        for tenant, count in sorted(now.jobs.items()):
            jobs.add_metric([tenant], count)
        yield jobs
        yield GaugeMetricFamily("ringstep_jobs_leased", "Live jobs with a lease.", now.leased)
        ids = GaugeMetricFamily(
            "ringstep_job_ids", "Job_IDs that are not in use, by state.", labels=["state"]
        )
        ids.add_metric(["free"], now.free)
        ids.add_metric(["quarantined"], now.quarantined)
        yield ids
        yield GaugeMetricFamily(
            "ringstep_leader", "1 where this controller leads.", int(now.leading)
        )
        yield GaugeMetricFamily(
            "ringstep_leader_epoch", "Times that leadership changed hands.", now.epoch
        )
        yield GaugeMetricFamily(
            "ringstep_store_queue", "Changes that wait to be stored.", now.queue
        )
        yield from self._switches(now.switches)
        edges = GaugeMetricFamily(
            "ringstep_link_planned_edges",
            "Ring edges that are pinned to a directed link.",
            labels=["src", "dst"],
        )
        load = GaugeMetricFamily(
            "ringstep_link_planned_load",
            "Weight of the edges pinned to a directed link over its rate, in the plan's unit.",
            labels=["src", "dst"],
        )
        for link in now.links:
            edges.add_metric([link.src, link.dst], link.edges)
            load.add_metric([link.src, link.dst], link.load)
        yield edges
        yield load

    @staticmethod
    def _switches(switches: Iterable[SwitchFacts]) -> Iterator[Metric]:
        switches = tuple(switches)
        phases = GaugeMetricFamily("ringstep_switches", "Kept switches by phase.", labels=["phase"])
        for phase in _PHASES:
            phases.add_metric([phase], sum(each.phase == phase for each in switches))
        yield phases
        in_sync = GaugeMetricFamily(
            "ringstep_switch_in_sync", "1 where the switch holds what it should.", labels=["switch"]
        )
        for each in switches:
            in_sync.add_metric([each.name], int(each.phase == "in_sync"))
        yield in_sync
        for name, text, read in _SWITCH_GAUGES:
            gauge = GaugeMetricFamily(f"ringstep_switch_{name}", text, labels=["switch"])
            for each in switches:
                gauge.add_metric([each.name], read(each))
            yield gauge
        for name, text, read in _SWITCH_COUNTERS:
            counter = CounterMetricFamily(f"ringstep_switch_{name}", text, labels=["switch"])
            for each in switches:
                counter.add_metric([each.name], read(each))
            yield counter
        drift = GaugeMetricFamily(
            "ringstep_switch_drift_entries",
            "Entries that the last full read found otherwise than they should be.",
            labels=["switch", "kind"],
        )
        for each in switches:
            drift.add_metric([each.name, "missing"], each.drift_missing)
            drift.add_metric([each.name, "changed"], each.drift_changed)
            drift.add_metric([each.name, "foreign"], each.drift_foreign)
        yield drift
        audited = GaugeMetricFamily(
            "ringstep_switch_audit_age_seconds",
            "Time since the last full read of the switch; none yet: no sample.",
            labels=["switch"],
        )
        for each in switches:
            if each.audited_unix_s is not None:
                audited.add_metric([each.name], max(0.0, time.time() - each.audited_unix_s))
        yield audited


_Read = Callable[[SwitchFacts], float]
_SWITCH_GAUGES: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("desired_entries", "Entries that the switch should hold.", lambda each: each.desired),
    ("pending_updates", "Updates that are still to be written.", lambda each: each.pending),
    ("refused_updates", "Updates that the switch refuses.", lambda each: each.refused),
    ("foreign_kept", "Foreign entries that the policy keeps.", lambda each: each.foreign_kept),
)
_SWITCH_COUNTERS: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("updates", "Updates written to the switch.", lambda each: each.updates),
    ("sessions", "Sessions opened with the switch.", lambda each: each.sessions),
    ("drifts", "Times that drift was found.", lambda each: each.drifts),
    ("foreign_removed", "Foreign entries found and removed.", lambda each: each.foreign_removed),
)


class Metrics:
    """All metrics of one controller, in a registry of their own.

    Methods may be called from any thread, and cost a few microseconds.
    """

    def __init__(self, facts: FleetFacts | None = None, *, version: str = "") -> None:
        self.registry = CollectorRegistry()
        self.facts = facts
        self._fleet = _FleetCollector()
        self.registry.register(self._fleet)
        self.registry.register(_Build(version))
        ProcessCollector(registry=self.registry)
        self._registrations = self._counter("registrations", "Jobs registered.")
        self._stored_seconds = self._histogram(
            "registration_seconds", "From a request to its job being stored.", _STORED_BUCKETS
        )
        self._programmed_seconds = self._histogram(
            "programmed_seconds",
            "From a request to the job's rules being on all its switches.",
            _PROGRAMMED_BUCKETS,
        )
        self._releases = self._counter("releases", "Jobs that ended, by reason.", "reason")
        self._renewals = self._counter("renewals", "Leases renewed.")
        self._moves = self._counter("job_moves", "Jobs given other paths, by reason.", "reason")
        self._batch = self._histogram(
            "store_batch_changes", "Changes stored in one transaction.", _BATCH_BUCKETS
        )
        self._write_seconds = self._histogram(
            "store_write_seconds", "Duration of one transaction.", _STORED_BUCKETS
        )
        self._store_failures = self._counter("store_failures", "Transactions that failed.")
        self._calls = self._counter("calls", "Calls answered.", "method", "code")
        self._call_seconds = self._histogram(
            "call_seconds", "Duration of one call.", _STORED_BUCKETS, "method"
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"ringstep_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"ringstep_{name}", text, labels, registry=self.registry, buckets=buckets)

    # -- what happens --------------------------------------------------------------------------

    def registered(self, seconds: float) -> None:
        """A job was stored, this long after it was asked for."""
        self._registrations.inc()
        self._stored_seconds.observe(seconds)

    def programmed(self, seconds: float) -> None:
        """All switches of a job hold its rules, this long after it was asked for."""
        self._programmed_seconds.observe(seconds)

    def released(self, reason: str) -> None:
        """A job ended: "released", "expired", or another short word."""
        self._releases.labels(reason).inc()

    def renewed(self) -> None:
        """A lease was started anew."""
        self._renewals.inc()

    def moved(self, reason: str, jobs: int = 1) -> None:
        """Jobs got other paths: "link", "drain", "topology" or "rebalance"."""
        self._moves.labels(reason).inc(jobs)

    def stored(self, batch: int, seconds: float) -> None:
        """A transaction with this many changes took this long."""
        self._batch.observe(batch)
        self._write_seconds.observe(seconds)

    def store_failed(self) -> None:
        """A transaction failed."""
        self._store_failures.inc()

    def call(self, method: str, code: str, seconds: float) -> None:
        """A call was answered; ``method`` without its package, such as "Jobs.Register"."""
        self._calls.labels(method, code).inc()
        self._call_seconds.labels(method).observe(seconds)

    # -- what is read --------------------------------------------------------------------------

    def take_snapshot(self) -> None:
        """Ask the fleet for its facts; call it on the fleet's event loop."""
        if (facts := self.facts) is None:
            return
        self._fleet.snapshot = _Snapshot(
            dict(facts.jobs_by_tenant()),
            facts.leased_jobs(),
            facts.free_ids(),
            facts.quarantined_ids(),
            tuple(facts.switches()),
            tuple(facts.links()),
            facts.leading(),
            facts.epoch(),
            facts.store_queue(),
        )

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the last snapshot and all counts as text, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def interceptor(self) -> ServerInterceptor:
        """Return what counts and times all calls of a server; give it before others."""
        return AroundInterceptor(self._around)

    @asynccontextmanager
    async def _around(self, method: str, context: Any) -> AsyncIterator[None]:
        started = time.monotonic()
        failed = "UNKNOWN"
        try:
            yield
            failed = ""
        except grpc.aio.AbortError:
            raise
        except BaseException as error:
            failed = "UNKNOWN" if isinstance(error, Exception) else "CANCELLED"
            raise
        finally:
            self.call(_short_name(method), _code(context, failed), time.monotonic() - started)


_CODE_NAMES: Final = {each.value[0]: each.name for each in grpc.StatusCode}


def _code(context: Any, failed: str) -> str:
    code = context.code()
    if isinstance(code, grpc.StatusCode) and code is not grpc.StatusCode.OK:
        return code.name
    return failed or _CODE_NAMES.get(code, "OK")


@lru_cache(maxsize=256)
def _short_name(method: str) -> str:
    service, _, name = method.strip("/").partition("/")
    return f"{service.rpartition('.')[2]}.{name}"


class _Build:
    def __init__(self, version: str) -> None:
        self._version = version

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "ringstep_build", "Version of this controller.", {"version": self._version}
        )
