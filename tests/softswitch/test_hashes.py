"""Hash algorithms against published check values and bit-by-bit definitions."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep.softswitch import hashes

CHECK = b"123456789"


def of(data: bytes) -> tuple[int, int]:
    return int.from_bytes(data, "big"), len(data)


@pytest.mark.parametrize(
    ("name", "check"),
    [("crc16", 0xBB3D), ("crc32", 0xCBF43926), ("crcCCITT", 0x29B1)],
)
def test_published_check_values(name: str, check: int) -> None:
    assert hashes.ALGORITHMS[name](*of(CHECK)) == check


@given(st.binary(max_size=64))
def test_csum16_is_the_sum_of_words_folded(data: bytes) -> None:
    padded = data + bytes(len(data) % 2)
    total = sum(int.from_bytes(padded[i : i + 2], "big") for i in range(0, len(padded), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert hashes.csum16(*of(data)) == total ^ 0xFFFF


@given(st.binary(max_size=40))
def test_crc16_bit_by_bit(data: bytes) -> None:
    remainder = 0
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0xA001 if remainder & 1 else 0)
    assert hashes.ALGORITHMS["crc16"](*of(data)) == remainder
    assert hashes.ALGORITHMS["crc16"](*of(data)) == remainder, "remembered"
    assert hashes.crc32(*of(data)) == zlib.crc32(data)


@given(st.binary(max_size=20))
def test_xor16_and_identity(data: bytes) -> None:
    padded = data + bytes(len(data) % 2)
    expected = 0
    for i in range(0, len(padded), 2):
        expected ^= int.from_bytes(padded[i : i + 2], "big")
    assert hashes.xor16(*of(data)) == expected
    assert hashes.identity(*of(data)) == int.from_bytes(data[:8], "big")


def test_the_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "_MEMO_LIMIT", 4)
    remembered = hashes._remembering(hashes.crc16)
    for value in range(50):
        assert remembered(value, 2) == hashes.crc16(value, 2)
