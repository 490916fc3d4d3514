"""Errors of the API: from an exception to a status with details, and back at the client.

A refused call ends with a status code and a text for people. Its trailing metadata hold the same
for programs: ``ringstep-problem-bin`` is a :class:`~ringstep.controller.v1.errors_pb2.Problem`,
``grpc-status-details-bin`` what clients that know Google's error model expect.

Which exception means what is said once, with :func:`kind`, next to what raises it or where a
service is put together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from ringstep.controller.cancelling import being_cancelled
from ringstep.controller.reasons import REASONS
from ringstep.controller.v1 import errors_pb2

LOGGER = logging.getLogger(__name__)

PROBLEM_KEY: Final = "ringstep-problem-bin"
DETAILS_KEY: Final = "grpc-status-details-bin"
DOMAIN: Final = "ringstep"
INTERNAL_TEXT: Final = (
    "the controller failed at this call, and nothing is known to have changed; its log says why, "
    "look for this method there, and try again"
)
MAX_TEXT: Final = 1000
"""Characters of a text that are sent. gRPC clients take 8 KiB of metadata unless told otherwise,
and the text is in there three times."""
_MAX_FACTS: Final = 16
_REST_ON_WHAT_IS_KNOWN: Final = frozenset(
    {
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
_TYPE_URL: Final = "type.googleapis.com/google.rpc."
_E = TypeVar("_E", bound=Exception)
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """What an exception type means to callers; the functions read it from an exception."""

    code: grpc.StatusCode
    reason: str
    field: Callable[[Any], str]
    metadata: Callable[[Any], Mapping[str, str]]
    retry_after_s: Callable[[Any], float]


PROBLEMS: Final[dict[type[Exception], Kind]] = {}
"""What every exception that services may raise means. A type that is not listed has the meaning
of its nearest base that is."""

INTERNAL: Final = "INTERNAL"
_UNEXPECTED: Final = Kind(
    grpc.StatusCode.INTERNAL, INTERNAL, lambda _: "", lambda _: {}, lambda _: 0.0
)


def kind(
    exc_type: type[_E],
    code: grpc.StatusCode,
    reason: str,
    *,
    field: str | Callable[[_E], str] = "",
    metadata: Callable[[_E], Mapping[str, object]] | None = None,
    retry_after_s: float | Callable[[_E], float] = 0.0,
) -> None:
    """Say what an exception type means to callers.

    ``field``: the field of the request that is wrong; without it, the exception's ``field`` where
    it has one. ``retry_after_s``: seconds after which trying again may help; 0: it will not.

    Raises:
        ValueError: the type is registered with another meaning, or ``reason`` is not in
            :data:`~ringstep.controller.reasons.REASONS` with this code.
    """
    described = REASONS.get(reason)
    if described is None or described.code is not code:
        raise ValueError(f"{reason} with {code.name} is not in REASONS; describe it there first")
    known = PROBLEMS.get(exc_type)
    if known is not None and (known.code, known.reason) != (code, reason):
        raise ValueError(f"{exc_type.__name__} already means {known.reason}")
    PROBLEMS[exc_type] = Kind(
        code,
        reason,
        cast("Callable[[Any], str]", field) if callable(field) else _field_or(field),
        _texts(metadata),
        retry_after_s if callable(retry_after_s) else _constant(float(retry_after_s)),
    )


def _constant(value: float) -> Callable[[object], float]:
    return lambda _: value


def _field_or(given: str) -> Callable[[object], str]:
    return lambda error: given or str(getattr(error, "field", ""))


def _texts(
    metadata: Callable[[Any], Mapping[str, object]] | None,
) -> Callable[[Any], Mapping[str, str]]:
    if metadata is None:
        return lambda _: {}
    return lambda error: {key: str(value) for key, value in metadata(error).items()}


def kind_of(error: Exception) -> Kind:
    """Return what an exception means; one that nobody described is INTERNAL."""
    found = (PROBLEMS.get(each) for each in type(error).__mro__ if each is not object)
    return next((each for each in found if each is not None), _UNEXPECTED)


def problem_from(error: Exception) -> tuple[grpc.StatusCode, errors_pb2.Problem]:
    """Return the status code and the details of an exception.

    The text of an unexpected exception is not sent: it was not written for callers.
    """
    meaning = kind_of(error)
    text = INTERNAL_TEXT if meaning is _UNEXPECTED else str(error)
    facts = list(meaning.metadata(error).items())[:_MAX_FACTS]
    return meaning.code, errors_pb2.Problem(
        reason=meaning.reason,
        field=meaning.field(error),
        text=_short(text),
        metadata={key: _short(value, 200) for key, value in facts},
        retry_after_ms=round(1000 * max(0.0, meaning.retry_after_s(error))),
    )


def _short(text: str, limit: int = MAX_TEXT) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def status_details(code: grpc.StatusCode, problem: errors_pb2.Problem) -> bytes:
    """Return a serialized ``google.rpc.Status`` with ErrorInfo, BadRequest and RetryInfo."""
    details: list[Message] = [
        errors_pb2.ErrorInfo(reason=problem.reason, domain=DOMAIN, metadata=dict(problem.metadata))
    ]
    if problem.field:
        violation = errors_pb2.BadRequest.FieldViolation(
            field=problem.field, description=problem.text
        )
        details.append(errors_pb2.BadRequest(field_violations=[violation]))
    if problem.retry_after_ms:
        retry = errors_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(problem.retry_after_ms)
        details.append(retry)
    status = errors_pb2.RpcStatus(
        code=code.value[0],
        message=problem.text,
        details=[
            AnyMessage(
                type_url=f"{_TYPE_URL}{message.DESCRIPTOR.name}",
                value=message.SerializeToString(),
            )
            for message in details
        ],
    )
    return status.SerializeToString()


class NotLeaderError(Exception):
    """Another controller leads; ``leader`` is its HOST:PORT, "" where nobody does yet."""

    def __init__(self, leader: str, retry_after_s: float = 1.0) -> None:
        self.leader = leader
        self.retry_after_s = retry_after_s
        super().__init__(
            f"this controller stands by; {leader} leads: call it instead"
            if leader
            else "no controller leads yet; try again in a moment"
        )


kind(
    NotLeaderError,
    grpc.StatusCode.UNAVAILABLE,
    "NOT_LEADER",
    metadata=lambda error: {"leader": error.leader} if error.leader else {},
    retry_after_s=lambda error: error.retry_after_s,
)


async def abort(context: Context, error: Exception) -> NoReturn:
    """End a call with the status and the details of an exception.

    Raises:
        grpc.aio.AbortError: always; gRPC's way to leave the handler.
    """
    code, problem = problem_from(error)
    if problem.reason == INTERNAL:
        LOGGER.error("a call failed unexpectedly", exc_info=error)
    await context.abort(
        code,
        problem.text,
        (
            (PROBLEM_KEY, problem.SerializeToString()),
            (DETAILS_KEY, status_details(code, problem)),
        ),
    )
    raise AssertionError("abort raises")


class answering:  # noqa: N801 - used like a function
    """Turns the exceptions of a call into statuses with details; an async context manager.

    A class, because every call enters one and a generator costs it ten times as much.

    ``deposed`` is asked before a refusal that rests on what the controller knows; what it returns,
    if anything, is answered instead.
    """

    __slots__ = ("_context", "_deposed")

    def __init__(
        self, context: Context, deposed: Callable[[], Awaitable[Exception | None]] | None = None
    ) -> None:
        self._context, self._deposed = context, deposed

    async def __aenter__(self) -> None:
        """Begin to answer."""

    async def __aexit__(
        self, _kind: object, error: BaseException | None, _traceback: object
    ) -> None:
        """End with what an exception means."""
        if isinstance(error, asyncio.CancelledError) and not being_cancelled():
            # gRPC would take it for the caller's hanging up, and never answer.
            error = RuntimeError(f"what the call waited for was cancelled: {error!r}")
        if isinstance(error, Exception) and not isinstance(error, grpc.aio.AbortError):
            if self._deposed is not None and kind_of(error).code in _REST_ON_WHAT_IS_KNOWN:
                error = await self._deposed() or error
            await abort(self._context, error)


def problem_of(error: grpc.RpcError) -> errors_pb2.Problem | None:
    """Return the details that came with a failed call, or None where the controller sent none.

    There are none where the call did not reach the controller, or gRPC itself refused it.
    """
    trailing = getattr(error, "trailing_metadata", None)
    for key, value in (trailing() if callable(trailing) else None) or ():
        if key == PROBLEM_KEY:
            try:
                return errors_pb2.Problem.FromString(value)
            except DecodeError:
                return None
    return None
