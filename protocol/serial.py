"""Serial arithmetic on ``bits`` bits, for step indices and PSNs that wrap.

The order is that of RFC 1982: two numbers half the space apart are ahead of neither.
"""

from __future__ import annotations


def ahead(a: int, b: int, bits: int) -> bool:
    """Say whether ``a`` comes after ``b``: 0 < (a - b) mod 2**bits < 2**(bits - 1)."""
    return 0 < (a - b) & ((1 << bits) - 1) < 1 << (bits - 1)


def distance(a: int, b: int, bits: int) -> int:
    """Return the signed distance from ``b`` to ``a``, in [-2**(bits - 1), 2**(bits - 1))."""
    half = 1 << (bits - 1)
    return ((a - b + half) & ((1 << bits) - 1)) - half


def advance(a: int, by: int, bits: int) -> int:
    """Return ``a`` moved on by ``by``, wrapped to ``bits`` bits."""
    return (a + by) & ((1 << bits) - 1)
