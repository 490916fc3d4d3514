"""The data plane's ECMP choice, bit for bit.

The CRC-32 of BMv2 (reflected polynomial 0xEDB88320, initial value and final XOR all ones: zlib's)
over ``src(128) | dst(128) | proto(8) | sport(16) | dport(16)``, big-endian and packed, an IPv4
address as ::ffff:a.b.c.d, is XORed with the switch's seed and put through the finalizer of
MurmurHash3. The action selector takes member ``upper half mod group size``, members in the order
in which they were put into the group. CRC alone will not do: it is linear, so a seed among its
inputs only permutes the members of a group of 2**n, and flows that share an uplink of one switch
would share one of the next.
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
    return _finalize(zlib.crc32(data) ^ seed) >> 16


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
