"""Ask a switch whether a controller could keep it, without becoming its primary."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from finsy.grpcutil import GRPC_EOF
from finsy.proto import U128, p4r, p4r_grpc, rpc_code

from ringstep.controller.channels import ChannelTls, open_channel
from ringstep.controller.findings import Finding, ok, problem, warning

Explain = Callable[[str, ChannelTls | None, float], Awaitable[str]]
"""Says why a TLS connection to an address fails, within some seconds; "" where it cannot tell."""


async def _no_explanation(_address: str, _tls: ChannelTls | None, _timeout_s: float) -> str:
    return ""


async def check_switch(
    name: str,
    address: str,
    device_id: int,
    cookie: int,
    tls: ChannelTls | None,
    *,
    election_id: int = 1,
    timeout_s: float = 5.0,
    explain: Explain = _no_explanation,
) -> Finding:
    """Return whether a switch answers, what it runs, and whether it has a primary.

    It is asked as a backup without an election id, which never takes a switch from another
    controller (P4Runtime 1.4, section 5.3). ``cookie``: of the program that it should run.
    ``election_id``: what a controller would bid for it.
    """
    part = f"switch {name}"
    at = f"{address} (device {device_id})"
    try:
        async with asyncio.timeout(timeout_s), open_channel(address, tls) as channel:
            stub: Any = p4r_grpc.P4RuntimeStub(channel)
            version = await _version(stub)
            program = await _program(stub, device_id, cookie)
            primary, highest, text = await _primary(stub, device_id)
    except TimeoutError:
        return problem(
            part,
            f"{at} did not answer within {timeout_s:g} s; is the address right, and does a "
            "firewall drop its packets?",
        )
    except grpc.RpcError as error:
        return problem(part, f"{at} {await _reason(error, address, tls, timeout_s, explain)}")
    text = f"{at} answers{f' (P4Runtime {version})' if version else ''}, {program}, {text}"
    if primary and highest > election_id:
        return warning(
            part,
            f"{text}, above this controller's {election_id}: a controller of another store keeps "
            "it; stop that one, or set a higher p4runtime.election_id",
        )
    return ok(part, text)


async def _reason(
    error: grpc.RpcError,
    address: str,
    tls: ChannelTls | None,
    timeout_s: float,
    explain: Explain,
) -> str:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        if why := await explain(address, tls, timeout_s):
            return f"cannot be reached: {why}"
        hint = (
            "is a P4Runtime server running there, without TLS?"
            if tls is None
            else "is a P4Runtime server running there, with TLS and a certificate of "
            "p4runtime.tls.ca for this name?"
        )
        return f"cannot be reached ({details}); {hint}"
    if code is grpc.StatusCode.NOT_FOUND:
        return f"does not know this device id ({details}); give its own in the topology file"
    return f"refuses to answer: {code.name} ({details}); is it a P4Runtime server?"


async def _version(stub: Any) -> str:
    try:
        reply = await stub.Capabilities(p4r.CapabilitiesRequest())
    except grpc.RpcError as error:
        # Servers older than P4Runtime 1.1 do not have it.
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return ""
        raise
    return str(reply.p4runtime_api_version)


async def _program(stub: Any, device_id: int, cookie: int) -> str:
    request = p4r.GetForwardingPipelineConfigRequest(
        device_id=device_id, response_type=p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY
    )
    try:
        reply = await stub.GetForwardingPipelineConfig(request)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            return "runs no program yet"
        raise
    if not reply.config.HasField("cookie"):
        return "runs no program yet, or one without a cookie"
    if reply.config.cookie.cookie == cookie:
        return "runs the controller's program"
    return "runs another program, which will be replaced"


async def _primary(stub: Any, device_id: int) -> tuple[bool, int, str]:
    """Return whether there is a primary, the highest election id ever seen, and both as text."""
    stream = stub.StreamChannel()
    try:
        reply = await _arbitration(stream, device_id)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT and "lection" in str(error.details()):
            # BMv2 takes no election id for election id 0, and two of these for a duplicate.
            return False, 0, "is being checked by somebody else too"
        raise
    finally:
        stream.cancel()
    highest = U128.decode(reply.election_id)
    if reply.status.code == rpc_code.ALREADY_EXISTS:
        return True, highest, f"has a primary with election id {highest}"
    return False, highest, "has no primary"


async def _arbitration(stream: Any, device_id: int) -> p4r.MasterArbitrationUpdate:
    bid = p4r.MasterArbitrationUpdate(device_id=device_id)
    try:
        await stream.write(p4r.StreamMessageRequest(arbitration=bid))
        while (message := await stream.read()) is not GRPC_EOF:
            if message.WhichOneof("update") == "arbitration":
                reply: p4r.MasterArbitrationUpdate = message.arbitration
                return reply
    except asyncio.InvalidStateError:
        pass  # The stream ended before the message left.
    nothing = grpc.aio.Metadata()
    raise grpc.aio.AioRpcError(await stream.code(), nothing, nothing, await stream.details(), None)
