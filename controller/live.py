"""A registered job as the controller holds it in memory, and what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError

from ringstep.controller.desired import JobEntries
from ringstep.controller.entries import EntryKey
from ringstep.controller.facts import StoredJob
from ringstep.controller.jobs import JobSpec, MatchKind, params_from_proto, spec_from_proto
from ringstep.controller.paths import JobPaths
from ringstep.controller.v1 import jobs_pb2
from ringstep.protocol.marker import DEFAULT_PROFILE, PROFILES, Scope


@dataclass(slots=True, eq=False)
class LiveJob:
    """A job with its Job_ID.

    Attributes:
        stored: what the store knows of it.
        message: the spec as it was sent.
        spec: the same, checked, with the marker parameters in force.
        parameters: these parameters as they travel.
        rules: keys of the rules that find its packets, on any switch.
        entries: what its switches should hold for it.
        held: what the switches were told to hold; behind ``entries`` while paths change.
        ports: egress ports that its packets may leave by, per switch.
        paths: the planned paths of its edges between racks.
        problem: why it has no rules; empty where it has.
        cannot: per switch, why that one will never hold its rules.
        late: switches that do not hold all of its entries yet.
        moving: why its paths are being changed; empty where they are not.
        move: the task that does that.
        durable: done when the store has it.
        unreadable: why its stored spec is none for this version; empty where it is.
        asked_at: monotonic time of the request, until all switches hold its rules; then 0.
    """

    stored: StoredJob
    message: jobs_pb2.JobSpec
    spec: JobSpec
    parameters: jobs_pb2.MarkerParameters
    rules: frozenset[EntryKey] = frozenset()
    entries: JobEntries = field(default_factory=dict)
    held: JobEntries = field(default_factory=dict)
    ports: Mapping[str, frozenset[int]] = field(default_factory=dict)
    paths: JobPaths = field(default_factory=dict)
    problem: str = ""
    cannot: Mapping[str, str] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    moving: str = ""
    move: asyncio.Task[None] | None = None
    durable: asyncio.Future[None] | None = None
    unreadable: str = ""
    asked_at: float = 0.0

    @property
    def id(self) -> int:
        """The Job_ID."""
        return self.stored.job_id

    @property
    def name(self) -> str:
        """The job's name, unique among live jobs."""
        return self.stored.name

    @property
    def is_durable(self) -> bool:
        """Whether the store has the job; before that nobody hears of it."""
        return self.durable is None or (
            self.durable.done() and not self.durable.cancelled() and not self.durable.exception()
        )


def parsed(stored: StoredJob) -> LiveJob:
    """Return a stored job with its checked spec, and nothing that depends on the fabric.

    One whose spec this version cannot use keeps its name and its Job_ID, and has no rules. A
    profile whose defaults changed since the job came does not change the job: its parameters are
    those that were stored with it.
    """
    message, parameters = jobs_pb2.JobSpec(), jobs_pb2.MarkerParameters()
    try:
        message.ParseFromString(stored.spec)
        parameters.ParseFromString(stored.params)
        spec = with_parameters(message, parameters, stored)
    except (DecodeError, ValueError) as error:
        why = (
            f"{error}; what is stored of the job is no job for this version of the controller: "
            "release it and register it again"
        )
        return LiveJob(stored, message, _no_spec(stored), parameters, unreadable=why)
    return LiveJob(stored, message, spec, parameters)


def _no_spec(stored: StoredJob) -> JobSpec:
    """Return a spec without edges, for a job of which nothing but its name is known."""
    return JobSpec(
        name=stored.name,
        rings=(),
        queue_pairs=(),
        match=MatchKind.PAIR,
        tag=None,
        profile=DEFAULT_PROFILE,
        scope=Scope.SWITCH,
        params=PROFILES[DEFAULT_PROFILE].params,
        tenant=stored.tenant,
    )


def with_parameters(
    message: jobs_pb2.JobSpec, parameters: jobs_pb2.MarkerParameters, stored: StoredJob
) -> JobSpec:
    """Return the checked spec of a job with the marker parameters that are in force for it."""
    scope, params = params_from_proto(parameters, stored.generation)
    return replace(spec_from_proto(message), scope=scope, params=params)
