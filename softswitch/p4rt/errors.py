"""Errors of the P4Runtime server and how they travel: gRPC status, per-update details.

P4Runtime 1.5 sections "Error Reporting Messages" and "Write RPC / Error Reporting".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import grpc
from finsy.proto import p4r, rpc_status

from ringstep.softswitch import tables

# What one reply may put into `grpc-status-details-bin`, in bytes of serialized google.rpc.Status.
# gRPC refuses metadata above the *receiver's* limit and then delivers nothing at all, so a reply is
# fitted to the default limit (8 KiB, base64 adds a third) and, where even short messages do not
# fit, to the limit that P4Runtime clients set (finsy: 64 KiB).
DEFAULT_BUDGET = 5_600
RAISED_BUDGET = 44_000
SERVER_METADATA_LIMIT = 1 << 20

_SHORTEST_MESSAGE = 48
# Serialized size of one detail without its message: the type URL takes most of it.
_OK_DETAIL = 36
_ERROR_DETAIL = 44
_STATUS_HEADROOM = 512


class Code(IntEnum):
    """google.rpc.Code: the canonical codes this server answers with."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14

    @property
    def grpc(self) -> grpc.StatusCode:
        """The same code as gRPC's enum."""
        return grpc.StatusCode[self.name]


class P4RuntimeError(Exception):
    """A request, update or stream message that the server refuses, with its canonical code."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> P4RuntimeError:
    """Return an INVALID_ARGUMENT error."""
    return P4RuntimeError(Code.INVALID_ARGUMENT, message)


def not_found(message: str) -> P4RuntimeError:
    """Return a NOT_FOUND error."""
    return P4RuntimeError(Code.NOT_FOUND, message)


def unimplemented(message: str) -> P4RuntimeError:
    """Return an UNIMPLEMENTED error."""
    return P4RuntimeError(Code.UNIMPLEMENTED, message)


_TABLE_ERROR_CODES: tuple[tuple[type[tables.TableError], Code], ...] = (
    (tables.EntryExists, Code.ALREADY_EXISTS),
    (tables.EntryNotFound, Code.NOT_FOUND),
    (tables.TableFull, Code.RESOURCE_EXHAUSTED),
    (tables.ConstTable, Code.PERMISSION_DENIED),
    (tables.InUse, Code.FAILED_PRECONDITION),
    (tables.InvalidEntry, Code.INVALID_ARGUMENT),
)


def from_table_error(error: tables.TableError) -> P4RuntimeError:
    """Return the P4Runtime error for an error of the switch's tables."""
    for kind, code in _TABLE_ERROR_CODES:
        if isinstance(error, kind):
            return P4RuntimeError(code, str(error))
    return P4RuntimeError(Code.INTERNAL, str(error))


def batch_status(results: Sequence[P4RuntimeError | None], noun: str) -> rpc_status.Status:
    """Return the status of a batch in which at least one element failed.

    `results[i]` belongs to element i; None is success. The code is UNKNOWN and `details` holds one
    p4.v1.Error per element, in order. Where that would overrun the budget, messages are shortened
    evenly first, then details of trailing successes are left out, then the list is cut at the
    budget and the status message says so; a detail's index is always its element's index.
    """
    failed = [index for index, error in enumerate(results) if error is not None]
    if not failed:
        raise ValueError("batch_status needs at least one failed element")
    first = results[failed[0]]
    assert first is not None
    summary = (
        f"{len(failed)} of {len(results)} {noun}s failed; first: {noun} {failed[0]}: "
        f"{first.code.name}: {_shorten(first.message, 200)}"
    )
    details = _fit(results, failed)
    if len(details) <= failed[-1]:
        summary += f" (details given for {noun}s 0 to {len(details) - 1} only)"
    status = rpc_status.Status(code=Code.UNKNOWN, message=summary)
    for error in details:
        status.details.add().Pack(error)
    return status


def _fit(results: Sequence[P4RuntimeError | None], failed: Sequence[int]) -> list[p4r.Error]:
    for budget in (DEFAULT_BUDGET, RAISED_BUDGET):
        limit = _message_limit(results, failed, budget, len(results))
        if limit is not None and (limit >= _SHORTEST_MESSAGE or budget == RAISED_BUDGET):
            return [_detail(error, limit) for error in results]
    count = failed[-1] + 1
    limit = _message_limit(results, failed, RAISED_BUDGET, count)
    if limit is None:
        limit = 0
        count = min(count, (RAISED_BUDGET - _STATUS_HEADROOM) // _ERROR_DETAIL)
    return [_detail(error, limit) for error in results[:count]]


def _message_limit(
    results: Sequence[P4RuntimeError | None], failed: Sequence[int], budget: int, count: int
) -> int | None:
    """Return how long messages may be for `count` details to fit `budget`; None: they cannot."""
    room = budget - _STATUS_HEADROOM - len(failed) * _ERROR_DETAIL
    room -= (count - len(failed)) * _OK_DETAIL
    if room < 0:
        return None
    lengths = sorted(len(_text(results[index])) for index in failed)
    for position, length in enumerate(lengths):
        if length * (len(lengths) - position) > room:
            return room // (len(lengths) - position)
        room -= length
    return max(lengths[-1], _SHORTEST_MESSAGE)


def _detail(error: P4RuntimeError | None, limit: int) -> p4r.Error:
    if error is None:
        return p4r.Error(canonical_code=Code.OK)
    return p4r.Error(canonical_code=error.code, message=_shorten(error.message, limit))


def _text(error: P4RuntimeError | None) -> bytes:
    return b"" if error is None else error.message.encode()


def _shorten(message: str, limit: int) -> str:
    data = message.encode()
    if len(data) <= limit:
        return message
    if limit < 4:
        return ""
    return data[: limit - 3].decode(errors="ignore") + "..."
