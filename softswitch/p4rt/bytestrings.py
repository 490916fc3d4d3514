"""P4Runtime bytestrings: unsigned integers, big-endian (specification section "Bytestrings").

Padded input is accepted, output is always the shortest form, so that reads return what was written.
"""

from __future__ import annotations

from ringstep.softswitch.p4rt.errors import Code, P4RuntimeError


def decode(data: bytes, width: int, what: str) -> int:
    """Return the value of `data`, which must fit `bit<width>`; `what` names it in the error.

    Raises P4RuntimeError OUT_OF_RANGE where the string is empty or its value needs more bits.
    """
    if not data:
        raise P4RuntimeError(
            Code.OUT_OF_RANGE,
            f"{what}: the value is an empty bytestring; zero is written as one zero byte",
        )
    value = int.from_bytes(data, "big")
    if value >> width:
        raise P4RuntimeError(
            Code.OUT_OF_RANGE,
            f"{what}: {value:#x} needs {value.bit_length()} bits, the field is bit<{width}>",
        )
    return value


def encode(value: int) -> bytes:
    """Return the canonical (shortest) bytestring of an unsigned value; zero is one zero byte."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
