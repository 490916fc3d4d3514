"""The data plane's ECMP choice, bit for bit, on v1model and as far as the source says on Tofino 2.

v1model. The CRC-32 of BMv2 (reflected polynomial 0xEDB88320, initial value and final XOR all ones:
zlib's) over ``src(128) | dst(128) | proto(8) | sport(16) | dport(16)``, big-endian and packed, an
IPv4 address as ::ffff:a.b.c.d, is XORed with the switch's seed and put through the finalizer of
MurmurHash3. The action selector takes member ``upper half mod group size``, members in the order
in which they were put into the group. CRC alone will not do: it is linear, so a seed among its
inputs only permutes the members of a group of 2**n, and flows that share an uplink of one switch
would share one of the next.

Tofino 2. The same CRC-32 over the same bytes; then twice: the seed is added modulo 2**32, and the
sum goes through CRC-32C (Castagnoli: reflected polynomial 0x82F63B78, initial value and final XOR
all ones). The upper half, 16 bits, is what the program hands to the action selector
(:func:`t2na_hash`). p4c gives a fair selector the 14 lower bits of it (:func:`t2na_selection`).
Which member these pick is no longer in the source: the selector combines them, scrambled where the
compiler leaves that on, with a word of RAM that has a bit per member, in the order in which the
driver placed the members. So the model tells which flows certainly go together, and not where.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from ringstep.fabric.model import IPAddress

UDP = 17
_V4_MAPPED = 0xFFFF << 32
_WORD = 0xFFFFFFFF
SELECTION_BITS = 14
"""Hash bits of a fair action selector on Tofino 2."""


@dataclass(frozen=True, slots=True)
class FlowKey:
    """The five fields of a packet that ECMP looks at."""

    src: IPAddress
    dst: IPAddress
    sport: int
    dport: int
    proto: int = UDP


def address_128(ip: IPAddress) -> int:
    """Return an address as the data plane's 128-bit keys hold it (IPv4 mapped)."""
    return _V4_MAPPED | int(ip) if isinstance(ip, IPv4Address) else int(ip)


def ecmp_hash(seed: int, flow: FlowKey) -> int:
    """Return the 16-bit hash that a switch with ``seed`` computes for a packet of ``flow``.

    Raises:
        OverflowError: a field does not fit its width.
        ValueError: ``seed`` does not fit in 32 bits.
    """
    return _finalize(_flow_crc(seed, flow) ^ seed) >> 16


def _flow_crc(seed: int, flow: FlowKey) -> int:
    if not 0 <= seed <= _WORD:
        raise ValueError(f"ECMP seed {seed}: must be in 0..{_WORD}")
    data = b"".join(
        (
            address_128(flow.src).to_bytes(16, "big"),
            address_128(flow.dst).to_bytes(16, "big"),
            flow.proto.to_bytes(1, "big"),
            flow.sport.to_bytes(2, "big"),
            flow.dport.to_bytes(2, "big"),
        )
    )
    return zlib.crc32(data)


def _finalize(mix: int) -> int:
    mix = (mix ^ mix >> 16) * 0x85EBCA6B & _WORD
    return (mix ^ mix >> 13) * 0xC2B2AE35 & _WORD


def ecmp_index(seed: int, flow: FlowKey, group_size: int) -> int:
    """Return the position of the chosen member in a group of ``group_size`` members.

    Raises:
        ValueError: the group is empty.
    """
    if group_size < 1:
        raise ValueError("an ECMP group needs at least one member")
    return ecmp_hash(seed, flow) % group_size


def ecmp_port(seed: int, flow: FlowKey, ports: Sequence[int]) -> int:
    """Return the egress port a switch picks among equal-cost ``ports`` (ascending, as programmed).

    Raises:
        ValueError: no ports.
    """
    ordered = sorted(ports)
    return ordered[ecmp_index(seed, flow, len(ordered))]


def t2na_hash(seed: int, flow: FlowKey) -> int:
    """Return the 16 bits that the Tofino 2 program of ``seed`` hands to its action selector.

    Raises:
        OverflowError, ValueError: as :func:`ecmp_hash`.
    """
    mix = _flow_crc(seed, flow)
    for _ in range(2):
        mix = _crc32c((mix + seed & _WORD).to_bytes(4, "big"))
    return mix >> 16


def t2na_selection(seed: int, flow: FlowKey) -> int:
    """Return the bits of :func:`t2na_hash` that reach the selector.

    Flows of one group for which these are equal leave by one port, whatever the hardware does; of
    others nothing is known.

    Raises:
        OverflowError, ValueError: as :func:`ecmp_hash`.
    """
    return t2na_hash(seed, flow) & (1 << SELECTION_BITS) - 1


def _crc32c_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC32C = _crc32c_table()


def _crc32c(data: bytes) -> int:
    total = _WORD
    for byte in data:
        total = total >> 8 ^ _CRC32C[(total ^ byte) & 0xFF]
    return total ^ _WORD
