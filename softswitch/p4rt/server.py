"""Starts and stops the gRPC server that serves one software switch."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import grpc
from finsy.proto import p4r_grpc

from ringstep.softswitch.engine import compile_pipeline
from ringstep.softswitch.p4rt.errors import SERVER_METADATA_LIMIT
from ringstep.softswitch.p4rt.pipeline import Compiler, SwitchLike
from ringstep.softswitch.p4rt.service import MAX_STREAMS, P4RuntimeService, PacketOutSink

KEEPALIVE_S = 10.0
_UNARY_WORKERS = 16
_MAX_MESSAGE_BYTES = 128 * 1024 * 1024


class PacketSwitch(SwitchLike, Protocol):
    """A switch that takes packet-outs: `ringstep.softswitch.engine.Switch`."""

    def packet_out(self, frame: bytes, now_us: float) -> None:
        """Take a frame, packet_out header in front, in at the CPU port."""


class P4RuntimeServer:
    """A running server. `address` is where it listens, the port resolved."""

    def __init__(self, grpc_server: grpc.Server, service: P4RuntimeService, address: str) -> None:
        self._grpc_server = grpc_server
        self._service = service
        self.address = address

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        return int(self.address.rpartition(":")[2])

    @property
    def packet_ins_dropped(self) -> int:
        """Packet-ins that no client took, or took too slowly."""
        return self._service.packet_ins_dropped

    def packet_in(self, frame: bytes) -> None:
        """Hand a frame that left at the CPU port to the primary; never blocks."""
        self._service.deliver_packet_in(frame)

    @property
    def digest_lists_dropped(self) -> int:
        """Digest lists that no client took, or took too slowly."""
        return self._service.digest_lists_dropped

    def digest(self, name: str, values: tuple[int, ...]) -> None:
        """Hand a digest message of the data plane to whoever asked for it; never blocks."""
        self._service.deliver_digest(name, values)

    def stop(self, grace_s: float = 1.0) -> None:
        """End streams with UNAVAILABLE, let calls in progress finish for `grace_s` seconds."""
        self._service.close_streams()
        self._grpc_server.stop(grace_s).wait()

    def wait(self) -> None:
        """Block until the server has stopped."""
        self._grpc_server.wait_for_termination()


def serve(
    switch: PacketSwitch,
    address: str = "127.0.0.1:9559",
    *,
    compiler: Compiler = compile_pipeline,
    packet_out: PacketOutSink | None = None,
    credentials: grpc.ServerCredentials | None = None,
    max_streams: int = MAX_STREAMS,
    keepalive_s: float = KEEPALIVE_S,
) -> P4RuntimeServer:
    """Start a P4Runtime server for `switch` on `address` (HOST:PORT, port 0 picks a free one).

    `compiler` turns P4Info and JSON into a pipeline. `packet_out` takes frames for the CPU
    port; unless given they go to `switch.packet_out` at once, stamped with the monotonic clock in
    microseconds, and what they cause waits for the next `advance`. `credentials` turn TLS on. A
    client that is silent for `keepalive_s` seconds is pinged, and its streams end when it does not
    answer for as long again. Raises OSError where the address cannot be bound, ValueError where
    the switch has device id 0.
    """
    if switch.device_id < 1:
        raise ValueError(f"device id {switch.device_id}: P4Runtime device ids are 1 or more")
    if packet_out is None:

        def packet_out(frame: bytes) -> None:
            with switch.lock:
                switch.packet_out(frame, time.monotonic_ns() // 1000)

    service = P4RuntimeService(switch, compiler, packet_out, max_streams)
    grpc_server = grpc.server(
        ThreadPoolExecutor(max_streams + _UNARY_WORKERS, thread_name_prefix="p4rt"),
        options=(
            # Without it a second server on the port would share its connections silently.
            ("grpc.so_reuseport", 0),
            ("grpc.max_metadata_size", SERVER_METADATA_LIMIT),
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
            # A client that vanished without closing must not stay primary for ever.
            ("grpc.keepalive_time_ms", int(keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(keepalive_s * 1000)),
            # gRPC waits for a ping's answer by this timer, not by the one above.
            ("grpc.http2.ping_timeout_ms", int(keepalive_s * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ),
    )
    p4r_grpc.add_P4RuntimeServicer_to_server(service, grpc_server)
    port = _bind(grpc_server, address, credentials)
    grpc_server.start()
    host = address.rpartition(":")[0]
    return P4RuntimeServer(grpc_server, service, f"{host}:{port}")


def _bind(
    grpc_server: grpc.Server, address: str, credentials: grpc.ServerCredentials | None
) -> int:
    host, _, number = address.rpartition(":")
    # gRPC itself takes a missing port for 443, and one above 65535 modulo 65536.
    if not host or not number.isdecimal() or int(number) > 65535:
        raise OSError(
            f"{address!r} is not HOST:PORT; write for example 127.0.0.1:9559, port 0 for a free one"
        )
    try:
        if credentials is None:
            port = grpc_server.add_insecure_port(address)
        else:
            port = grpc_server.add_secure_port(address, credentials)
    except RuntimeError:
        # gRPC's own text only points to its debug log.
        port = 0
    if port == 0:
        raise OSError(
            f"P4Runtime server: cannot listen on {address}: the port is in use or the address is "
            "not of this machine; give another HOST:PORT, port 0 for a free one"
        )
    return int(port)
