"""The egress queues: one per port, first in first out, paced, with silent but counted tail drop."""

from __future__ import annotations

import math
from dataclasses import dataclass

DEFAULT_CAPACITY = 64
"""Packets per queue, as BMv2's simple_switch."""


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Pace and depth of a port's queue.

    `rate_bps` in bits per second and `rate_pps` in packets per second; 0 is unlimited, and both
    may be given. `capacity` in packets. `overhead_bytes` is added to each packet's length for
    `rate_bps` (20 for Ethernet's preamble and gap, 4 more for the FCS; 0 counts the frame alone).
    Raises ValueError for a value that is negative or not finite, or a capacity below 1.
    """

    rate_bps: float = 0
    rate_pps: float = 0
    capacity: int = DEFAULT_CAPACITY
    overhead_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("rate_bps", "rate_pps", "overhead_bytes"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"queue {name} is {value}; it must be finite and not negative")
        if self.capacity < 1:
            raise ValueError(f"queue capacity is {self.capacity}; at least 1 packet is needed")


class EgressQueue:
    """Depth and pace of one port's queue; the packets themselves wait in the switch's calendar.

    A packet departs at max(now, last departure) + its wire time at `rate_bps`, and not before
    1 / `rate_pps` after the last departure: idle time earns no burst credit.
    """

    __slots__ = ("_gap_us", "_overhead", "_us_per_byte", "capacity", "depth", "last_departure")

    def __init__(self, config: QueueConfig) -> None:
        self.depth = 0
        self.last_departure = float("-inf")
        self.configure(config)

    def configure(self, config: QueueConfig) -> None:
        """Change pace and capacity; packets that wait already keep their departure times."""
        self.capacity = config.capacity
        self._us_per_byte = 8e6 / config.rate_bps if config.rate_bps else 0.0
        self._gap_us = 1e6 / config.rate_pps if config.rate_pps else 0.0
        self._overhead = config.overhead_bytes

    def departure(self, now_us: float, length: int) -> float:
        """When a packet of `length` bytes that joins the queue now will leave it; joins it."""
        last = self.last_departure
        at = (now_us if now_us > last else last) + (length + self._overhead) * self._us_per_byte
        if self._gap_us and at < last + self._gap_us:
            at = last + self._gap_us
        self.last_departure = at
        self.depth += 1
        return at
