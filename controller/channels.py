"""gRPC channels as every part of the controller opens them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import grpc
import grpc.aio

MAX_METADATA_BYTES = 4 << 20
"""A P4Runtime write answers with one status per update in its trailing metadata; gRPC's default
of 8 KiB cuts that off after some sixty updates."""
MAX_MESSAGE_BYTES = 64 << 20
_MIN_BACKOFF_MS = 100
_CONNECT_S = 10.0
"""For one attempt to connect, with TLS; what gRPC calls a minimal back-off is just this."""
_MAX_BACKOFF_MS = 2000


@dataclass(frozen=True, slots=True)
class ChannelTls:
    """TLS of a connection that we open; PEM texts. Never printed: ``key`` is a secret.

    ``roots``: certificates of the authorities to trust; None: those of the system. ``cert`` and
    ``key``: who we are, where the other side asks. ``server_name``: the name that its certificate
    must carry, where that is not the host of the address.
    """

    roots: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = None
    server_name: str = ""

    def __repr__(self) -> str:
        return "ChannelTls(...)"


def is_loopback(target: str) -> bool:
    """Say whether ``HOST:PORT`` names this machine by a loopback address or as localhost."""
    host = target.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_channel(
    target: str,
    tls: ChannelTls | None = None,
    *,
    keepalive_s: float | None = None,
    connect_s: float = _CONNECT_S,
) -> grpc.aio.Channel:
    """Return a channel to ``HOST:PORT``, with TLS where ``tls`` is given.

    ``keepalive_s``: ask the other side this often whether it is still there, and give up the
    connection where it does not answer as long again.

    ``connect_s``: give up an attempt to connect after this long, TLS included; how soon the
    next one follows is another matter.

    A proxy from the environment (``http_proxy``) is never asked for a loopback address: it would
    connect to its own.
    """
    options: list[tuple[str, int | str]] = [
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", _MIN_BACKOFF_MS),
        # By its name a pause, in gRPC's code the time that an attempt has.
        ("grpc.min_reconnect_backoff_ms", round(connect_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", _MAX_BACKOFF_MS),
        # Otherwise channels of one process to one address share a connection and its back-off.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if is_loopback(target):
        options.append(("grpc.enable_http_proxy", 0))
    if keepalive_s is not None:
        options += [
            ("grpc.keepalive_time_ms", round(keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", round(keepalive_s * 1000)),
            ("grpc.http2.max_pings_without_data", 0),
        ]
    if tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    credentials = grpc.ssl_channel_credentials(tls.roots, tls.key, tls.cert)
    return grpc.aio.secure_channel(target, credentials, options=options)
