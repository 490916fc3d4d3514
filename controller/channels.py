"""gRPC channels as every part of the controller opens them."""

from __future__ import annotations

import ipaddress

import grpc.aio

MAX_METADATA_BYTES = 4 << 20
"""A P4Runtime write answers with one status per update in its trailing metadata; gRPC's default
of 8 KiB cuts that off after some sixty updates."""
MAX_MESSAGE_BYTES = 64 << 20
_MIN_BACKOFF_MS = 100
_MAX_BACKOFF_MS = 2000


def is_loopback(target: str) -> bool:
    """Say whether ``HOST:PORT`` names this machine by a loopback address or as localhost."""
    host = target.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_channel(target: str) -> grpc.aio.Channel:
    """Return a channel to ``HOST:PORT``.

    A proxy from the environment (``http_proxy``) is never asked for a loopback address: it would
    connect to its own.
    """
    options: list[tuple[str, int]] = [
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", _MIN_BACKOFF_MS),
        ("grpc.min_reconnect_backoff_ms", _MIN_BACKOFF_MS),
        ("grpc.max_reconnect_backoff_ms", _MAX_BACKOFF_MS),
        # Otherwise channels of one process to one address share a connection and its back-off.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if is_loopback(target):
        options.append(("grpc.enable_http_proxy", 0))
    return grpc.aio.insecure_channel(target, options=options)
