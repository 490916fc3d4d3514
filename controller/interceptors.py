"""Wrap the handlers of a gRPC server, whatever their shape."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

Around = Callable[[str, Any], AbstractAsyncContextManager[None]]
"""From a method's full name and the call's context to what is entered around its handler."""


if TYPE_CHECKING:
    ServerInterceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    # Generic for type checkers only.
    ServerInterceptor = grpc.aio.ServerInterceptor


_MOST_KNOWN: Final = 256


class AroundInterceptor(ServerInterceptor):
    """Enters ``around`` for the length of each call."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._wrapped: dict[int, tuple[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the call's handler inside ``around``."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        # A server has one handler per method; others, such as refusals, are made for one call.
        known, wrapped = self._wrapped.get(id(handler), (None, None))
        if known is not handler:
            behaviour, make = _behaviour(handler)
            wrapped = make(
                _wrap(behaviour, handler_call_details.method, self._around),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
            if len(self._wrapped) >= _MOST_KNOWN:
                self._wrapped.clear()
            self._wrapped[id(handler)] = handler, wrapped
        return wrapped


def _behaviour(handler: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    match bool(handler.request_streaming), bool(handler.response_streaming):
        case False, False:
            return handler.unary_unary, grpc.unary_unary_rpc_method_handler
        case False, True:
            return handler.unary_stream, grpc.unary_stream_rpc_method_handler
        case True, False:
            return handler.stream_unary, grpc.stream_unary_rpc_method_handler
        case _:
            return handler.stream_stream, grpc.stream_stream_rpc_method_handler


def _wrap(behaviour: Callable[..., Any], method: str, around: Around) -> Callable[..., Any]:
    # gRPC tells handlers that yield from those that write to the context by their kind of function.
    if inspect.isasyncgenfunction(behaviour):

        async def yielding(request: Any, context: Any) -> AsyncIterator[Any]:
            async with around(method, context):
                async for reply in behaviour(request, context):
                    yield reply

        return yielding

    if inspect.iscoroutinefunction(behaviour):

        async def returning(request: Any, context: Any) -> Any:
            async with around(method, context):
                return await behaviour(request, context)

        return returning
    return behaviour
