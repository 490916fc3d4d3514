"""Calls to one of several controllers: finds the one that leads, and goes on where one is gone.

A controller that does not lead answers NOT_LEADER and did nothing, so every call may follow its
advice. An answer that was lost is another matter: only calls that are harmless when repeated are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypeVar

import grpc
import grpc.aio

from ringstep.controller.channels import open_channel
from ringstep.controller.credentials import ClientCredentials, metadata
from ringstep.controller.problems import problem_of
from ringstep.controller.v1 import errors_pb2, jobs_pb2_grpc, switches_pb2_grpc

NOT_LEADER = "NOT_LEADER"
LEADER = "leader"
"""Key of ``Problem.metadata`` with HOST:PORT of the controller that leads."""
_PAUSE_S = 0.2
"""Before all controllers are asked again, where one of them said that another leads."""
_CONNECT_S = 3.0
"""For a connection with its TLS handshake, at a controller that is far away or busy."""
_LEAST_S = 0.01
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class ControllerError(Exception):
    """A call that the controller refused, or that did not reach it.

    Attributes:
        code: gRPC's status code.
        text: what was wrong and what would be right, for people.
        problem: the controller's own account; None where it gave none.
    """

    def __init__(
        self, code: grpc.StatusCode, text: str, problem: errors_pb2.Problem | None = None
    ) -> None:
        self.code = code
        self.text = text
        self.problem = problem
        super().__init__(text)

    @property
    def reason(self) -> str:
        """Constant of the cause, such as ``NAME_TAKEN``; empty where the controller gave none."""
        return self.problem.reason if self.problem is not None else ""


class Endpoint:
    """A controller at one address, with its stubs and what every call to it carries."""

    def __init__(self, target: str, credentials: ClientCredentials) -> None:
        self.target = target
        self.metadata = grpc.aio.Metadata(*metadata(credentials, target))
        self.channel = open_channel(target, credentials.tls, connect_s=_CONNECT_S)
        self.jobs = jobs_pb2_grpc.JobsStub(self.channel)
        self.switches = switches_pb2_grpc.SwitchesStub(self.channel)

    async def connect(self, timeout_s: float) -> bool:
        """Say whether there is a connection, or one comes about in time.

        After True a call may still fail; after False nothing was sent.
        """
        try:
            async with asyncio.timeout(timeout_s):
                state = self.channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY:
                    if state in {
                        grpc.ChannelConnectivity.TRANSIENT_FAILURE,
                        grpc.ChannelConnectivity.SHUTDOWN,
                    }:
                        return False
                    await self.channel.wait_for_state_change(state)
                    state = self.channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return True


class Caller:
    """Makes calls to the controllers at ``targets``, first to the one that answered last."""

    def __init__(
        self, targets: Sequence[str], credentials: ClientCredentials, timeout_s: float
    ) -> None:
        """Open channels; nothing is sent yet.

        Raises:
            ValueError: no target, or the credentials do not go with one.
        """
        if not targets:
            raise ValueError("no controller to ask; give HOST:PORT")
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._endpoints = {target: Endpoint(target, credentials) for target in targets}
        self._current = next(iter(self._endpoints))

    @property
    def current(self) -> Endpoint:
        """The controller that is asked next."""
        return self._endpoints[self._current]

    @property
    def targets(self) -> tuple[str, ...]:
        """All controllers that are known, those that others named included."""
        return tuple(self._endpoints)

    async def close(self) -> None:
        """Close all channels."""
        for endpoint in self._endpoints.values():
            await endpoint.channel.close(None)

    async def call(
        self,
        pick: Callable[[Endpoint], grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]],
        request: _Request,
        *,
        repeatable: bool,
    ) -> _Response:
        """Make a call; ``repeatable`` says that a second one after a lost answer is harmless.

        Raises:
            ControllerError: refused, or no controller answered in time.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        round_ = _Round(self._timeout_s)
        while True:
            endpoint = self.current
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                return await self._attempt(endpoint, pick, request, left_s, repeatable)
            except _NotConnectedError:
                round_.failed[endpoint.target] = "no connection"
            except grpc.aio.AioRpcError as error:
                if not self._goes_on(endpoint, error, round_, repeatable=repeatable):
                    raise self.error(endpoint.target, error) from None
            pause_s = self._next(round_)
            if asyncio.get_running_loop().time() + pause_s >= deadline:
                raise round_.error()
            await asyncio.sleep(pause_s)

    async def _attempt(
        self,
        endpoint: Endpoint,
        pick: Callable[[Endpoint], grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]],
        request: _Request,
        left_s: float,
        repeatable: bool,
    ) -> _Response:
        several = len(self._endpoints) > 1
        if several and not await endpoint.connect(min(_CONNECT_S, left_s)):
            raise _NotConnectedError
        # A controller that hangs must leave time for the others.
        timeout_s = left_s / 2 if several and repeatable else left_s
        return await pick(endpoint)(
            request, timeout=max(timeout_s, _LEAST_S), metadata=endpoint.metadata
        )

    async def stream(
        self,
        pick: Callable[[Endpoint], grpc.aio.UnaryStreamMultiCallable[_Request, _Response]],
        request: _Request,
    ) -> AsyncIterator[_Response | None]:
        """Yield what a controller streams; None where the stream was lost and starts anew.

        Raises:
            ControllerError: refused, or no controller took the stream up again in time.
        """
        clock = asyncio.get_running_loop().time
        deadline, heard = clock() + self._timeout_s, False
        round_ = _Round(self._timeout_s)
        while True:
            endpoint = self.current
            try:
                if len(self._endpoints) > 1 and not await endpoint.connect(_CONNECT_S):
                    raise _NotConnectedError
                call = pick(endpoint)(request, metadata=endpoint.metadata)
                try:
                    async for message in call:
                        yield message
                        deadline, heard = clock() + self._timeout_s, True
                        round_ = _Round(self._timeout_s)
                finally:
                    call.cancel()
                round_.failed[endpoint.target] = "ended the stream"
            except _NotConnectedError:
                round_.failed[endpoint.target] = "no connection"
            except grpc.aio.AioRpcError as error:
                lost = heard and error.code() is grpc.StatusCode.UNAVAILABLE
                if not self._goes_on(endpoint, error, round_, repeatable=True) and not lost:
                    raise self.error(endpoint.target, error) from None
                round_.failed.setdefault(endpoint.target, error.details() or "no answer")
            # A stream that was there before is worth the wait for whoever takes it over.
            round_.leaderless |= heard
            pause_s = max(self._next(round_), _PAUSE_S if heard else 0.0)
            if clock() + pause_s >= deadline:
                raise round_.error()
            await asyncio.sleep(pause_s)
            if heard:
                yield None

    def _goes_on(
        self,
        endpoint: Endpoint,
        error: grpc.aio.AioRpcError,
        round_: _Round,
        *,
        repeatable: bool,
    ) -> bool:
        """Note a failure, and say whether another controller may be asked."""
        problem = problem_of(error)
        if problem is not None and problem.reason == NOT_LEADER:
            round_.failed[endpoint.target] = "does not lead"
            round_.leaderless = True
            round_.advice = problem.metadata.get(LEADER, "")
            return True
        lost = error.code() in {
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        }
        if not (lost and repeatable):
            return False
        if len(self._endpoints) == 1:
            # Once more: a connection that broke is often there again, or leads to another one.
            again = error.code() is grpc.StatusCode.UNAVAILABLE and not round_.repeated
            round_.repeated = True
            return again
        round_.failed[endpoint.target] = error.details() or "no answer"
        return True

    def _next(self, round_: _Round) -> float:
        """Choose the controller to ask next; returns seconds to wait before.

        Raises:
            ControllerError: all were asked, and none said that another leads.
        """
        advice, round_.advice = round_.advice, ""
        if advice and advice not in round_.failed:
            if advice not in self._endpoints:
                try:
                    self._endpoints[advice] = Endpoint(advice, self._credentials)
                except ValueError as error:
                    raise ControllerError(
                        grpc.StatusCode.UNAVAILABLE, f"the controller that leads: {error}"
                    ) from None
            self._current = advice
            return 0.0
        for target in self._endpoints:
            if target not in round_.failed:
                self._current = target
                return 0.0
        if not round_.leaderless:
            raise round_.error()
        # Another is about to lead; ask all of them again.
        self._current = next(iter(self._endpoints))
        round_.again()
        return _PAUSE_S

    def error(self, target: str, error: grpc.aio.AioRpcError) -> ControllerError:
        """Return a failed call as this package tells it."""
        code, details, problem = error.code(), error.details() or "", problem_of(error)
        if problem is not None:
            return ControllerError(code, problem.text or details, problem)
        if code is grpc.StatusCode.UNAVAILABLE:
            return _unreachable({target: details})
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            details = f"{target} did not answer within {self._timeout_s:g} s"
        return ControllerError(code, details)


_CLOSED: Final = "Socket closed"
"""What gRPC says where a connection is ended at once, as plaintext is by a server with TLS."""
_TLS_HINT: Final = "; if it wants TLS, give --ca (or --tls)"


class _NotConnectedError(Exception):
    pass


class _Round:
    """Who was asked already, and what came of it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._before: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.leaderless = False
        self.repeated = False
        self.advice = ""

    def again(self) -> None:
        self._before |= self.failed
        self.failed = {}
        self.leaderless = False

    def error(self) -> ControllerError:
        failed = self._before | self.failed
        if "does not lead" in failed.values():
            said = "; ".join(f"{target}: {why}" for target, why in failed.items())
            return ControllerError(
                grpc.StatusCode.UNAVAILABLE,
                f"no controller leads after {self._timeout_s:g} s ({said}); see their logs, and "
                "whether their database answers",
            )
        return _unreachable(failed)


def _unreachable(failed: dict[str, str]) -> ControllerError:
    said = "; ".join(f"{target} ({why})" for target, why in failed.items())
    return ControllerError(
        grpc.StatusCode.UNAVAILABLE,
        f"no controller answers at {said}; start one with 'ringstep controller serve', or give "
        f"--controller HOST:PORT{_TLS_HINT if _CLOSED in said else ''}",
    )
