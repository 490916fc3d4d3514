"""What the exceptions of store, jobs and fleet mean to callers; imported by whoever serves."""

from __future__ import annotations

import grpc

from ringstep.controller.fabricview import CutOffError
from ringstep.controller.facts import (
    DeposedError,
    ExhaustedError,
    NameTakenError,
    NoSuchJobError,
    QuotaError,
    RequestIdReusedError,
    StaleGenerationError,
    StoreError,
)
from ringstep.controller.fleet import NoRuleTableError, RuleConflictError, UnknownLinkError
from ringstep.controller.jobs import SpecError
from ringstep.controller.problems import kind
from ringstep.controller.switchboard import SwitchAddressError, UnknownSwitchError
from ringstep.controller.watching import FeedEndedError, TooSlowError
from ringstep.fabric.topology import TopologyError

_AGAIN_S = 1.0

kind(SpecError, grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD")
kind(TopologyError, grpc.StatusCode.INVALID_ARGUMENT, "TOPOLOGY_INVALID")
kind(SwitchAddressError, grpc.StatusCode.INVALID_ARGUMENT, "SWITCH_ADDRESS_TAKEN", field="address")
kind(NameTakenError, grpc.StatusCode.ALREADY_EXISTS, "NAME_TAKEN", field="spec.name")
kind(RequestIdReusedError, grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED", field="request_id")
kind(RuleConflictError, grpc.StatusCode.FAILED_PRECONDITION, "RULE_CONFLICT")
kind(NoRuleTableError, grpc.StatusCode.FAILED_PRECONDITION, "NO_RULE_TABLE")
kind(
    StaleGenerationError,
    grpc.StatusCode.FAILED_PRECONDITION,
    "STALE_GENERATION",
    field="job.generation",
)
kind(
    CutOffError,
    grpc.StatusCode.FAILED_PRECONDITION,
    "CUT_OFF",
    metadata=lambda error: {"hosts": " ".join(error.hosts)},
)
kind(NoSuchJobError, grpc.StatusCode.NOT_FOUND, "NO_SUCH_JOB", field="job")
kind(UnknownSwitchError, grpc.StatusCode.NOT_FOUND, "UNKNOWN_SWITCH", field="name")
kind(UnknownLinkError, grpc.StatusCode.NOT_FOUND, "UNKNOWN_LINK", field="port")
kind(QuotaError, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA", field="spec.tenant")
kind(
    ExhaustedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    "EXHAUSTED",
    retry_after_s=lambda error: error.retry_after_s or 0.0,
)
kind(TooSlowError, grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_SLOW", retry_after_s=_AGAIN_S)
kind(FeedEndedError, grpc.StatusCode.UNAVAILABLE, "NOT_LEADER", retry_after_s=_AGAIN_S)
kind(DeposedError, grpc.StatusCode.UNAVAILABLE, "NOT_LEADER", retry_after_s=_AGAIN_S)
kind(
    StoreError,
    grpc.StatusCode.INTERNAL,
    "STORE_FAILED",
    # A commit whose answer was lost: a call with a request id may be made again without harm.
    metadata=lambda error: {"outcome": "unknown"} if error.outcome_unknown else {},
    retry_after_s=_AGAIN_S,
)
