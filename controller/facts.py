"""What the controller remembers about jobs, how it changes, and what can be wrong with it.

Shared by the ledger, which decides, and the store, which writes; neither imports the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias


class StoreError(Exception):
    """The store cannot be used or did not take a change; the text says what to do about it.

    ``outcome_unknown``: the connection broke while the change was being committed. It may be
    stored or not; reading the store again tells.
    """

    def __init__(self, text: str, *, outcome_unknown: bool = False) -> None:
        self.outcome_unknown = outcome_unknown
        super().__init__(text)


class DeposedError(StoreError):
    """Another controller leads now: this one may not write any more."""


class NameTakenError(Exception):
    """A live job has the name already."""


class RequestIdReusedError(Exception):
    """The request id was used before, for something else."""


class NoSuchJobError(LookupError):
    """No live job of that name or id."""


class StaleGenerationError(LookupError):
    """The name or id belongs to a job of another generation than the one that is meant."""


class ExhaustedError(Exception):
    """No Job_ID, block or generation is free; the text says which, and what to do.

    ``retry_after_s``: until the next Job_ID leaves quarantine; None where waiting does not help.
    """

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(text)


class QuotaError(Exception):
    """The tenant has as many live jobs as it may have."""


@dataclass(frozen=True, slots=True)
class StoredSwitch:
    """A switch that is kept programmed. ``from_file``: its address follows the topology file."""

    name: str
    device_id: int
    address: str
    from_file: bool


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job with its Job_ID, and its block ids by switch and block key.

    ``spec`` and ``params`` are serialized protobuf messages, ``paths`` is JSON: opaque here.
    ``lease_s`` is the length of the lease, 0 for none. A block key is an egress port, or 0 for all
    ports of the switch.
    """

    job_id: int
    generation: int
    name: str
    tenant: str
    owner: str
    request_id: str
    spec: bytes
    params: bytes
    paths: str
    lease_s: int
    created_unix_ms: int
    blocks: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Registered:
    """A new live job."""

    job: StoredJob


@dataclass(frozen=True, slots=True)
class Updated:
    """A live job with other parameters, lease, paths or blocks.

    ``freed`` names the blocks that it gave back, as (switch, block); ``turn`` is their place in
    the order of all that was ever given back.
    """

    job: StoredJob
    freed: tuple[tuple[str, int], ...]
    turn: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that gave its Job_ID and all its blocks back.

    ``forgotten`` are request ids of jobs released so long ago that they need not be known.
    """

    job: StoredJob
    released_unix_ms: int
    turn: int
    forgotten: tuple[str, ...]


Change: TypeAlias = Registered | Updated | Ended


class PastJobId(NamedTuple):
    """A Job_ID that was given back, with the generation it had."""

    job_id: int
    generation: int
    released_unix_ms: int


class PastBlock(NamedTuple):
    """A block that was given back, with the generation it had."""

    switch: str
    block: int
    generation: int


class PastRequest(NamedTuple):
    """The request id of a released job, and that job's name."""

    request_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the store knows of jobs, at one moment.

    ``job_ids``, ``blocks`` and ``requests`` are in the order in which they were given back. What a
    live job holds may be among the first two as well: the live job says what is true now.
    ``turn`` is the last one used.
    """

    jobs: Sequence[StoredJob] = ()
    job_ids: Sequence[PastJobId] = ()
    blocks: Sequence[PastBlock] = ()
    requests: Sequence[PastRequest] = ()
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Quotas:
    """How many live jobs a tenant may have; None: as many as there are Job_IDs."""

    default: int | None = None
    by_tenant: Mapping[str, int | None] = field(default_factory=dict)

    def limit(self, tenant: str) -> int | None:
        """Return the largest number of live jobs of a tenant, None for no limit."""
        return self.by_tenant.get(tenant, self.default)
