"""Every reason that a refused call may give, for programs that decide by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from grpc import StatusCode


@dataclass(frozen=True, slots=True)
class Reason:
    """The status code a reason comes with, when it is given, and what would help."""

    code: StatusCode
    when: str
    remedy: str


REASONS: Final[Mapping[str, Reason]] = {
    "BAD_FIELD": Reason(
        StatusCode.INVALID_ARGUMENT,
        "a field of the request is missing, unknown or out of range",
        "mend the field that `field` names",
    ),
    "TOPOLOGY_INVALID": Reason(
        StatusCode.INVALID_ARGUMENT,
        "the topology file that should be read again cannot be used",
        "mend the lines that the text names; the old topology stays in force",
    ),
    "SWITCH_ADDRESS_TAKEN": Reason(
        StatusCode.INVALID_ARGUMENT,
        "another switch has this address and device id",
        "give another address or device id",
    ),
    "UNKNOWN_TENANT": Reason(
        StatusCode.INVALID_ARGUMENT,
        "controller.toml lists the tenants, and this one is not among them",
        "use a tenant of `[tenants]`, or add it there",
    ),
    "UNAUTHENTICATED": Reason(
        StatusCode.UNAUTHENTICATED,
        "the call carries no token, or one that is unknown or expired",
        "give the token of this caller: `$RINGSTEP_TOKEN` or `--token-file`",
    ),
    "ROLE_TOO_LOW": Reason(
        StatusCode.PERMISSION_DENIED,
        "the caller's role may not make this call",
        "use a token of the role in metadata `needs`",
    ),
    "OTHER_TENANT": Reason(
        StatusCode.PERMISSION_DENIED,
        "the caller's token is for another tenant",
        "use a token of that tenant, or of an operator",
    ),
    "NO_SUCH_JOB": Reason(
        StatusCode.NOT_FOUND,
        "no live job has this name or Job_ID; its lease may have run out",
        "list the live jobs; register the job again",
    ),
    "UNKNOWN_SWITCH": Reason(
        StatusCode.NOT_FOUND,
        "no switch of this name in the topology, or it is not kept programmed",
        "list the switches",
    ),
    "UNKNOWN_LINK": Reason(
        StatusCode.NOT_FOUND,
        "no link between switches at this port",
        "look at the topology file for the ports of the switch",
    ),
    "NAME_TAKEN": Reason(
        StatusCode.ALREADY_EXISTS,
        "a live job has the name",
        "release that job, or take another name",
    ),
    "REQUEST_ID_REUSED": Reason(
        StatusCode.ALREADY_EXISTS,
        "the request id was used for another spec",
        "use a request id of its own for each job",
    ),
    "RULE_CONFLICT": Reason(
        StatusCode.FAILED_PRECONDITION,
        "a packet of the job would also match the rules of another live job",
        "tell the jobs apart by destination QP or tag, or release the other job",
    ),
    "NO_RULE_TABLE": Reason(
        StatusCode.FAILED_PRECONDITION,
        "no switch of the job's paths runs a program that can find its packets",
        "load the program that has the table that the text names",
    ),
    "STALE_GENERATION": Reason(
        StatusCode.FAILED_PRECONDITION,
        "the call names an earlier job that had this name or Job_ID",
        "nothing: the job that was meant is gone",
    ),
    "CUT_OFF": Reason(
        StatusCode.FAILED_PRECONDITION,
        "hosts would have no way to each other any more",
        "end the draining of another switch, or bring a link up, first",
    ),
    "NOT_LEADER": Reason(
        StatusCode.UNAVAILABLE,
        "another controller leads",
        "call the one in metadata `leader`; without it, try again after `retry_after_ms`",
    ),
    "EXHAUSTED": Reason(
        StatusCode.RESOURCE_EXHAUSTED,
        "no Job_ID, state block or generation is free",
        "release a job; those in quarantine are free after `retry_after_ms`",
    ),
    "TOO_SLOW": Reason(
        StatusCode.RESOURCE_EXHAUSTED,
        "the reader of a Watch left too many changes unread",
        "start to watch anew, and read faster",
    ),
    "QUOTA": Reason(
        StatusCode.RESOURCE_EXHAUSTED,
        "the tenant has as many live jobs as it may",
        "release one of them, or raise `max_jobs` of the tenant",
    ),
    "STORE_FAILED": Reason(
        StatusCode.INTERNAL,
        "the store did not take the change: nothing was changed, unless metadata `outcome` is "
        "`unknown`",
        "look at the database and its disk, and try again, with the same request id",
    ),
    "INTERNAL": Reason(
        StatusCode.INTERNAL,
        "the controller failed unexpectedly",
        "look at its log",
    ),
}
"""Reason -> what it means. A reason once given is never given another meaning."""


def markdown_table() -> str:
    """Return the table of all reasons, as docs/controller.md shows it."""
    rows = ["| reason | code | when | what helps |", "|---|---|---|---|"]
    rows += [
        f"| `{name}` | {each.code.name} | {each.when} | {each.remedy} |"
        for name, each in REASONS.items()
    ]
    return "\n".join(rows) + "\n"
