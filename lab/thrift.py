"""The one call of BMv2's Thrift interface that P4Runtime has no counterpart for: queue rates.

Written by hand after the Thrift binary protocol (struct encoding of a CALL message, multiplexed
service names as TMultiplexedProtocol does them), so that nothing of Thrift need be installed.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

_SERVICE: Final = "simple_switch"
_CALL: Final = 0x80010001
_REPLY: Final = 2
_I32: Final = 8
_I64: Final = 10
_STOP: Final = b"\0"
_TIMEOUT_S: Final = 5.0


class ThriftError(RuntimeError):
    """BMv2 did not take the call; the text says what it answered."""


def set_queue_rate(port: int, egress_port: int, rate_pps: int) -> None:
    """Set the rate of a port's egress queue on the BMv2 process whose Thrift server has ``port``.

    Raises:
        ThriftError: it refused.
        OSError: nobody answers.
    """
    _call(port, "set_egress_queue_rate", egress_port, rate_pps)


def set_queue_depth(port: int, egress_port: int, packets: int) -> None:
    """Set the depth of a port's egress queue. Raises as :func:`set_queue_rate`."""
    _call(port, "set_egress_queue_depth", egress_port, packets, wide=False)


def encode_call(method: str, first: int, second: int, *, wide: bool = True) -> bytes:
    """Return the message that calls ``method(1: i32 first, 2: i64 second)`` (i32 if not wide)."""
    name = f"{_SERVICE}:{method}".encode()
    arguments = struct.pack("!bhi", _I32, 1, first)
    arguments += (
        struct.pack("!bhq", _I64, 2, second) if wide else struct.pack("!bhi", _I32, 2, second)
    )
    return struct.pack("!Ii", _CALL, len(name)) + name + struct.pack("!i", 0) + arguments + _STOP


def _call(port: int, method: str, first: int, second: int, *, wide: bool = True) -> None:
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as connection:
        connection.sendall(encode_call(method, first, second, wide=wide))
        head, size = struct.unpack("!II", _exactly(connection, 8))
        _exactly(connection, size + 4)
        if head & 0xFF != _REPLY:
            raise ThriftError(f"BMv2 refused {method}({first}, {second})")


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ThriftError("BMv2 closed the connection before it answered")
        data += piece
    return data
