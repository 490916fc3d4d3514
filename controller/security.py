"""Who calls, and what he may do: tokens, roles, tenants.

The interceptor refuses a call before its handler runs; a handler asks :func:`current_caller` for
whose jobs it may show and change.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from ringstep.controller.interceptors import ServerInterceptor
from ringstep.controller.problems import abort, kind
from ringstep.controller.tokens import LOCAL, Caller, Role, Tokens, load_tokens, utc_now

LOGGER = logging.getLogger(__name__)

_JOBS = "/ringstep.v1.Jobs/"
_SWITCHES = "/ringstep.v1.Switches/"
ROLES: Final[Mapping[str, Role]] = {
    **{f"{_JOBS}{name}": Role.READER for name in ("Get", "List", "Watch", "State", "Plan")},
    **{f"{_SWITCHES}{name}": Role.READER for name in ("List", "Watch")},
    **{
        f"{_JOBS}{name}": Role.SCHEDULER
        for name in ("Register", "Renew", "Release", "UpdateParameters", "Report")
    },
    "/grpc.health.v1.Health/Check": Role.READER,
    "/grpc.health.v1.Health/Watch": Role.READER,
    "/grpc.health.v1.Health/List": Role.READER,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Role.READER,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Role.READER,
}
"""The least role that may call a method; any other method is an operator's."""
AUTHORIZATION: Final = "authorization"
_CALLER: ContextVar[Caller] = ContextVar("ringstep_caller", default=LOCAL)


class UnauthenticatedError(Exception):
    """The call does not say who calls, or not so that it can be believed."""


class RoleTooLowError(Exception):
    """The caller's role may not make this call."""

    def __init__(self, caller: Caller, method: str, needs: Role) -> None:
        self.needs = needs
        self.caller = caller
        super().__init__(
            f"{caller.name!r} is a {caller.role}, and {method.lstrip('/')} needs role {needs}; use "
            "the token of such a caller"
        )


class OtherTenantError(Exception):
    """The caller's token is for another tenant."""

    def __init__(self, caller: Caller, tenant: str) -> None:
        self.tenant = tenant
        super().__init__(
            f"{caller.name!r} acts for tenant {caller.tenant!r}, not for {tenant!r}; use a token "
            "of that tenant, or of an operator"
        )


class UnknownTenantError(Exception):
    """The configuration lists the tenants, and this one is not among them."""

    field = "spec.tenant"

    def __init__(self, tenant: str, known: Iterable[str]) -> None:
        self.tenant = tenant
        super().__init__(
            f"tenant {tenant!r} is not known here; use one of {', '.join(sorted(known))}, or add "
            f"[tenants.{tenant}] to the controller's configuration"
        )


kind(UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
kind(
    RoleTooLowError,
    grpc.StatusCode.PERMISSION_DENIED,
    "ROLE_TOO_LOW",
    metadata=lambda error: {"role": error.caller.role, "needs": error.needs},
)
kind(
    OtherTenantError,
    grpc.StatusCode.PERMISSION_DENIED,
    "OTHER_TENANT",
    metadata=lambda error: {"tenant": error.tenant},
)
kind(
    UnknownTenantError,
    grpc.StatusCode.INVALID_ARGUMENT,
    "UNKNOWN_TENANT",
    metadata=lambda error: {"tenant": error.tenant},
)


def current_caller() -> Caller:
    """Return who makes the call that is being answered; :data:`LOCAL` where nobody is asked."""
    return _CALLER.get()


def tenant_for(caller: Caller, asked: str, default: str) -> str:
    """Return the tenant that a new job counts for.

    ``asked``: what the request says, may be empty; ``default``: where neither it nor the token
    names one.

    Raises:
        OtherTenantError: the caller may not act for it.
    """
    tenant = asked or caller.tenant or default
    refuse_other_tenant(caller, tenant)
    return tenant


def refuse_other_tenant(caller: Caller, tenant: str) -> None:
    """Check that the caller may change jobs of a tenant.

    Raises:
        OtherTenantError: he may not.
    """
    if caller.tenant is not None and caller.tenant != tenant:
        raise OtherTenantError(caller, tenant)


class Authenticator:
    """Says who calls, by the token that a call carries.

    ``path``: the tokens file; None: nobody is asked, and every caller is ``anonymous``.

    Raises:
        TokensError: the file cannot be used.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        anonymous: Caller = LOCAL,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._path = path
        self._anonymous = anonymous
        self._now = now
        self._tokens: Tokens | None = None
        self.reload()

    def reload(self) -> None:
        """Read the tokens file again; where it cannot be used, the old tokens stay in force.

        Raises:
            TokensError: the file cannot be used.
        """
        if self._path is not None:
            self._tokens = load_tokens(self._path)
            for warning in self._tokens.warnings:
                LOGGER.warning("%s", warning)

    def resolve(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller:
        """Return who sends this metadata.

        Raises:
            UnauthenticatedError: no token, or none that is known and in force.
        """
        if self._tokens is None:
            return self._anonymous
        given = [value for key, value in metadata or () if key.lower() == AUTHORIZATION]
        if not given:
            raise UnauthenticatedError(
                "this controller wants to know who calls; give a token with $RINGSTEP_TOKEN or "
                "--token-file"
            )
        scheme, _, token = str(given[0]).partition(" ")
        if len(given) > 1 or scheme.lower() != "bearer" or not token.strip():
            raise UnauthenticatedError(
                "the authorization of the call is not 'Bearer TOKEN'; give the token as it was "
                "printed, once"
            )
        caller = self._tokens.caller(token.strip(), self._now())
        if caller is None:
            raise UnauthenticatedError(
                "the token is not known here, or has expired; ask the controller's operator for "
                "a new one"
            )
        return caller


class AuthInterceptor(ServerInterceptor):
    """Lets a call through where its caller is known and his role suffices."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the call's handler, or one that refuses it."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        try:
            caller = self._authenticator.resolve(handler_call_details.invocation_metadata)
            needs = ROLES.get(method, Role.OPERATOR)
            if not caller.role.includes(needs):
                raise RoleTooLowError(caller, method, needs)
        except (UnauthenticatedError, RoleTooLowError) as error:
            LOGGER.info("refused %s: %s", method, error)
            return _refusal(handler, error)
        # The handler runs in the task that runs this: each call has one of its own.
        _CALLER.set(caller)
        return handler


def _refusal(handler: Any, error: Exception) -> Any:
    """Return a handler of the same shape that ends every call with ``error``."""

    async def answer(_request: object, context: Any) -> None:
        await abort(context, error)

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[(bool(handler.request_streaming), bool(handler.response_streaming))]
    return make(
        answer,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def reload_on_hangup(
    loop: asyncio.AbstractEventLoop, reloads: Iterable[Callable[[], None]]
) -> None:
    """Read files again at SIGHUP; what cannot be used stays as it was, and is logged."""
    waiting = tuple(reloads)

    def reload_all() -> None:
        for reload in waiting:
            try:
                reload()
            except (ValueError, OSError) as error:
                LOGGER.error("not read again, the old one stays in force: %s", error)
            else:
                LOGGER.info("read again")

    loop.add_signal_handler(signal.SIGHUP, reload_all)
