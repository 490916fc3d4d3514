"""The ECMP hash model, against numbers worked out by other means."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address

import pytest

from ringstep.fabric.ecmp import (
    SELECTION_BITS,
    FlowKey,
    address_128,
    ecmp_hash,
    ecmp_index,
    ecmp_port,
    t2na_hash,
    t2na_selection,
)

FLOW = FlowKey(ip_address("10.0.1.1"), ip_address("10.0.2.3"), 0xC001, 4791)


CASTAGNOLI = 0x82F63B78


def crc32_bitwise(data: bytes, polynomial: int = 0xEDB88320) -> int:
    """CRC-32 as IEEE 802.3 defines it, one bit at a time; with another polynomial CRC-32C."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_bitwise_crc_is_the_standard_one() -> None:
    assert crc32_bitwise(b"123456789") == 0xCBF43926
    # RFC 3720, B.4 names the same check value for iSCSI's CRC-32C.
    assert crc32_bitwise(b"123456789", CASTAGNOLI) == 0xE3069283


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


# -- Tofino 2 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 7, 0xFFFFFFFF])
def test_t2na_adds_the_seed_between_crcs_of_two_polynomials(seed: int) -> None:
    data = bytes.fromhex(
        "00000000000000000000ffff0a00010100000000000000000000ffff0a00020311c00112b7"
    )
    word = crc32_bitwise(data)
    for _ in range(2):
        word = crc32_bitwise(((word + seed) % 2**32).to_bytes(4, "big"), CASTAGNOLI)
    assert t2na_hash(seed, FLOW) == word >> 16
    assert t2na_selection(seed, FLOW) == (word >> 16) % 2**SELECTION_BITS


def test_t2na_takes_the_seeds_that_v1model_takes() -> None:
    for seed in (-1, 1 << 32):
        with pytest.raises(ValueError, match=f"ECMP seed {seed}: must be in 0"):
            t2na_hash(seed, FLOW)


def dependence(first: int, second: int) -> float:
    """Chi-square per degree of freedom of three bits under two seeds; 1 if independent."""
    flows = [FlowKey(FLOW.src, FLOW.dst, 0xC000 + step, 4791) for step in range(4096)]
    ones, others = ([t2na_selection(seed, flow) for flow in flows] for seed in (first, second))
    pairs = Counter((a & 7, b & 7) for a, b in zip(ones, others, strict=True))
    expected = len(flows) / 64
    return sum((pairs[a, b] - expected) ** 2 / expected for a in range(8) for b in range(8)) / 63


@pytest.mark.parametrize(
    ("first", "second"),
    [("tor1", "tor2"), ("tor1", "spine1"), ("spine1", "spine2"), ("tor9", "tor10")],
)
def test_t2na_selections_under_seeds_of_names_are_independent(first: str, second: str) -> None:
    seeds = [crc32_bitwise(name.encode()) for name in (first, second)]
    # Standard deviation 0.18.
    assert dependence(*seeds) < 2


def test_t2na_selections_under_neighbouring_seeds_are_not() -> None:
    """A limit of the program (docs/tofino2.md): too little is carried where seeds differ little."""
    assert dependence(1, 2) > 20
    # Without a carry all is linear: one choice is the other's, XORed with a constant.
    ones, others = (
        [t2na_selection(seed, FlowKey(FLOW.src, FLOW.dst, port, 4791)) for port in range(64)]
        for seed in (0, 1 << 31)
    )
    assert len({a ^ b for a, b in zip(ones, others, strict=True)}) == 1
