"""The ECMP hash model, against numbers worked out by other means."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address

import pytest

from ringstep.fabric.ecmp import FlowKey, address_128, ecmp_hash, ecmp_index, ecmp_port

FLOW = FlowKey(ip_address("10.0.1.1"), ip_address("10.0.2.3"), 0xC001, 4791)


def crc32_bitwise(data: bytes) -> int:
    """CRC-32 as IEEE 802.3 defines it, one bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_bitwise_crc_is_the_standard_one() -> None:
    assert crc32_bitwise(b"123456789") == 0xCBF43926


def test_ipv4_enters_mapped() -> None:
    assert address_128(ip_address("10.0.1.1")) == 0xFFFF_0A00_0101
    assert address_128(ip_address("fd00::1")) == int(ip_address("fd00::1"))


def murmur3_finalizer(word: int) -> int:
    """fmix32 of MurmurHash3; its last step, an XOR with the upper half, leaves the upper half."""
    word ^= word >> 16
    word = word * 0x85EBCA6B % 2**32
    word ^= word >> 13
    word = word * 0xC2B2AE35 % 2**32
    return word ^ word >> 16


def test_finalizer_is_the_published_one() -> None:
    # MurmurHash3_x86_32 of nothing with seed 1 is fmix32(1), by its published test vectors.
    assert murmur3_finalizer(1) == 0x514E28B7


def test_hash_covers_addresses_protocol_and_ports_in_this_order() -> None:
    data = bytes.fromhex(
        "00000000000000000000ffff0a00010100000000000000000000ffff0a00020311c00112b7"
    )
    assert len(data) == 37
    assert ecmp_hash(7, FLOW) == murmur3_finalizer(crc32_bitwise(data) ^ 7) >> 16


def test_ipv6_enters_whole() -> None:
    flow = FlowKey(ip_address("fd00:1::1"), ip_address("fd00:2::3"), 0xC001, 4791)
    data = bytes.fromhex(
        "fd000001000000000000000000000001fd00000200000000000000000000000311c00112b7"
    )
    assert ecmp_hash(0, flow) == murmur3_finalizer(crc32_bitwise(data)) >> 16


def test_member_is_hash_modulo_group_size_in_ascending_port_order() -> None:
    index = ecmp_hash(7, FLOW) % 3
    assert ecmp_index(7, FLOW, 3) == index
    assert ecmp_port(7, FLOW, [13, 11, 12]) == [11, 12, 13][index]


def test_ports_and_seeds_spread_flows() -> None:
    flows = [FlowKey(FLOW.src, FLOW.dst, 0xC000 + step, 4791) for step in range(1000)]
    counts = Counter(ecmp_index(1, flow, 4) for flow in flows)
    # 250 each, standard deviation 13.7: six of them on both sides.
    assert all(168 <= counts[index] <= 332 for index in range(4))
    moved = sum(ecmp_index(1, flow, 4) != ecmp_index(2, flow, 4) for flow in flows)
    assert moved > 500


def test_empty_group_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one member"):
        ecmp_index(0, FLOW, 0)
