"""Meters: two rates, three colours, colour-blind (RFC 2698), in packets or bytes.

Time comes with every packet, in microseconds; all arithmetic is in whole tokens, as in BMv2.
"""

from __future__ import annotations

from dataclasses import dataclass

GREEN, YELLOW, RED = 0, 1, 2
"""v1model's MeterColor."""

_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class MeterConfig:
    """Committed and peak rate in units per second, and their bursts in units.

    The unit, packets or bytes, is the meter's. Raises ValueError for a negative value, and for a
    peak rate below the committed one.
    """

    cir: int
    cburst: int
    pir: int
    pburst: int

    def __post_init__(self) -> None:
        for name in ("cir", "cburst", "pir", "pburst"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.pir < self.cir:
            raise ValueError(f"pir {self.pir} is below cir {self.cir}; a peak is at least that")


class _Bucket:
    """Tokens that come at `rate` per second, up to `burst`; full at first."""

    __slots__ = ("_burst", "_earned", "_rate", "tokens")

    def __init__(self, rate: int, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self.tokens = burst
        self._earned: int | None = None

    def take(self, amount: int, now: int) -> bool:
        """Refill, and take `amount` if it is there."""
        # Everything earned since time zero, so that no fraction of a token is ever lost.
        earned = now * self._rate // _US_PER_S
        if self._earned is not None and earned > self._earned:
            self.tokens = min(self.tokens + earned - self._earned, self._burst)
        if self._earned is None or earned > self._earned:
            self._earned = earned
        if self.tokens < amount:
            return False
        self.tokens -= amount
        return True


class Meter:
    """One cell of a meter; green until it has a configuration."""

    __slots__ = ("_buckets", "_in_bytes", "config")

    def __init__(self, unit: str) -> None:
        self._in_bytes = unit == "bytes"
        self.config: MeterConfig | None = None
        self._buckets: tuple[_Bucket, _Bucket] | None = None

    def configure(self, config: MeterConfig | None) -> None:
        """Set the rates, with full buckets; None makes every packet green again."""
        self.config = config
        self._buckets = None
        if config is not None:
            self._buckets = _Bucket(config.pir, config.pburst), _Bucket(config.cir, config.cburst)

    def execute(self, size: int, now: int) -> int:
        """The colour of a packet of `size` bytes at `now` (microseconds)."""
        if self._buckets is None:
            return GREEN
        amount = size if self._in_bytes else 1
        peak, committed = self._buckets
        if not peak.take(amount, now):
            return RED
        return GREEN if committed.take(amount, now) else YELLOW
