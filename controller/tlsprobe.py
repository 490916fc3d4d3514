"""Why a TLS connection does not come about, in words that name the certificate at fault.

gRPC says no more than that it could not connect. A handshake of Python's own finds out the rest.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ringstep.controller.channels import ChannelTls

_ALERT_WAIT_S: Final = 0.5
"""A server of TLS 1.3 refuses the client's certificate only after the handshake."""

_OURS: Final = {
    "CERTIFICATE_REQUIRED": "it asks for a client certificate and none was sent; set one",
    "HANDSHAKE_FAILURE": "it asks for a client certificate and none was sent, or has no cipher in "
    "common; set a client certificate",
    "UNKNOWN_CA": "it does not trust the authority of our client certificate; use one that the "
    "switch's client CA signed",
    "CERTIFICATE_EXPIRED": "our client certificate has expired; renew it",
    "BAD_CERTIFICATE": "it takes our client certificate for invalid; use one that its client CA "
    "signed",
    "CERTIFICATE_UNKNOWN": "it refuses our client certificate; use one that its client CA signed",
    "DECRYPT_ERROR": "our client certificate is not of its client CA; use one that this CA signed",
}
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})


async def explain_tls_failure(address: str, tls: ChannelTls | None, timeout_s: float) -> str:
    """Return what is wrong with the TLS of a server at ``HOST:PORT``; empty: nothing is known.

    Never raises: it is asked when a connection has failed already.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        async with asyncio.timeout(timeout_s):
            if tls is None:
                return await _speaks_tls(host, int(port))
            return await _handshake(host, int(port), tls)
    except (OSError, TimeoutError, ValueError):
        return ""


async def _handshake(host: str, port: int, tls: ChannelTls) -> str:
    name = tls.server_name or host
    try:
        context = _context(tls)
    except ssl.SSLError as error:
        return f"our certificate, key or CA file cannot be used ({error.reason or error})"
    try:
        reader, writer = await asyncio.open_connection(
            host, port, ssl=context, server_hostname=name
        )
    except ssl.SSLCertVerificationError as error:
        return _theirs(error, name)
    except ssl.SSLError as error:
        return _refused(error)
    try:
        # HTTP/2's preface: a server that waits for it would otherwise say nothing at all.
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        async with asyncio.timeout(_ALERT_WAIT_S):
            answer = await reader.read(1)
    except TimeoutError:
        return ""
    except ssl.SSLError as error:
        return _refused(error)
    except ConnectionError:
        answer = b""
    finally:
        writer.transport.abort()
    # gRPC servers end the connection without an alert where they do not take the client.
    return "" if answer else _unwelcome(tls)


def _unwelcome(tls: ChannelTls) -> str:
    if tls.cert is None or tls.key is None:
        return _refused_as("CERTIFICATE_REQUIRED")
    return _refused_as("CERTIFICATE_EXPIRED" if _is_expired(tls) else "UNKNOWN_CA")


def _is_expired(tls: ChannelTls) -> bool:
    """Say whether our own certificate has expired, by a handshake in memory."""
    assert tls.cert is not None
    judge = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    judge.check_hostname = False
    judge.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    judge.load_verify_locations(cadata=tls.cert.decode("ascii", "replace"))
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_own(ours, tls)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = judge.wrap_bio(back, there)
    server = ours.wrap_bio(there, back, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return "expired" in error.verify_message
    return False


def _theirs(error: ssl.SSLCertVerificationError, name: str) -> str:
    text = error.verify_message
    if "expired" in text:
        return "the server's certificate has expired; renew it"
    if "not yet valid" in text:
        return "the server's certificate is not valid yet; compare the two clocks"
    if "mismatch" in text or "doesn't match" in text:
        return (
            f"the server's certificate is not for the name {name!r}; use one that names it, or set "
            "the server name that it carries"
        )
    if "issuer" in text or "self-signed" in text or "self signed" in text:
        return (
            "the server's certificate comes from another authority than the CA file given "
            f"({text}); give the CA that signed it"
        )
    return f"the server's certificate is not accepted ({text})"


def _refused(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    for alert in _OURS:
        if reason.endswith(alert):
            return _refused_as(alert)
    if reason in _NO_TLS:
        return "the server does not speak TLS there; start it with a certificate, or use no TLS"
    return f"the TLS handshake failed ({reason or error})"


def _refused_as(alert: str) -> str:
    return f"the server ended the TLS connection: {_OURS[alert]}"


async def _speaks_tls(host: str, port: int) -> str:
    """Say so where a server speaks TLS and we do not."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    except ssl.SSLError as error:
        alerts = any((error.reason or "").endswith(alert) for alert in _OURS)
        return _WANTS_TLS if alerts else ""
    writer.transport.abort()
    return _WANTS_TLS


_WANTS_TLS: Final = "the server speaks TLS and this controller does not; set the CA file for it"


def _context(tls: ChannelTls) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    if tls.roots is not None:
        context = ssl.create_default_context(cadata=tls.roots.decode("ascii", "replace"))
        context.set_alpn_protocols(["h2"])
    if tls.cert is not None and tls.key is not None:
        _load_own(context, tls)
    return context


def _load_own(context: ssl.SSLContext, tls: ChannelTls) -> None:
    with _private_file(tls.cert or b"") as cert, _private_file(tls.key or b"") as key:
        context.load_cert_chain(cert, key)


@contextmanager
def _private_file(data: bytes) -> Iterator[str]:
    """Python's ssl takes a key from a file only; this one lies in memory."""
    descriptor = os.memfd_create("pem")
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
