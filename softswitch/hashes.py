"""Hash and checksum algorithms of v1model, as BMv2 computes them (`bm_sim/calculations.cpp`).

Each takes the concatenated input as an integer with its length in bytes (bits left-aligned, the
last byte padded with zeros) and returns an unsigned integer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TypeAlias

HashFunction: TypeAlias = Callable[[int, int], int]

_MEMO_LIMIT = 8192


def csum16(value: int, size: int) -> int:
    """The Internet checksum (RFC 1071) of `size` bytes; an odd last byte is the high one."""
    if size & 1:
        value <<= 8
    # 2^16 is 1 modulo 2^16 - 1, so the one's-complement sum of the words is a remainder.
    return 0xFFFF - (value % 0xFFFF or (0xFFFF if value else 0))


def _reflected_table(polynomial: int) -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ polynomial if byte & 1 else byte >> 1
        table.append(byte)
    return tuple(table)


_CRC16 = _reflected_table(0xA001)


def crc16(value: int, size: int) -> int:
    """CRC-16/ARC: polynomial 0x8005 reflected, initial value 0."""
    remainder = 0
    for byte in value.to_bytes(size, "big"):
        remainder = remainder >> 8 ^ _CRC16[(remainder ^ byte) & 0xFF]
    return remainder


def crc32(value: int, size: int) -> int:
    """CRC-32 (ISO-HDLC)."""
    return zlib.crc32(value.to_bytes(size, "big"))


def crc_ccitt(value: int, size: int) -> int:
    """CRC-16/CCITT-FALSE: polynomial 0x1021, initial value 0xffff (BMv2's crcCCITT)."""
    import binascii

    return binascii.crc_hqx(value.to_bytes(size, "big"), 0xFFFF)


def xor16(value: int, size: int) -> int:
    """The exclusive or of all 16-bit words, the last one padded with zeros."""
    if size & 1:
        value <<= 8
    result = 0
    while value:
        result ^= value & 0xFFFF
        value >>= 16
    return result


def identity(value: int, size: int) -> int:
    """The first 8 bytes as they are (BMv2 keeps 64 bits)."""
    return value >> 8 * (size - 8) if size > 8 else value


def _remembering(function: HashFunction) -> HashFunction:
    """`function` with a bounded memo: a flow's packets all hash the same input."""
    memo: dict[tuple[int, int], int] = {}

    def remembered(value: int, size: int) -> int:
        result = memo.get((value, size))
        if result is None:
            if len(memo) >= _MEMO_LIMIT:
                memo.clear()
            result = memo[value, size] = function(value, size)
        return result

    return remembered


ALGORITHMS: dict[str, HashFunction] = {
    "csum16": csum16,
    "crc16": _remembering(crc16),
    "crc32": crc32,
    "crcCCITT": crc_ccitt,
    "xor16": xor16,
    "identity": identity,
}
"""By the name in the BMv2 JSON. crc16_custom and crc32_custom with BMv2's initial configuration
equal crc16 and crc32, but exist to be reconfigured, which is not offered: they are refused."""
