"""The step tag: how a UDP source port carries a step index, and where a job is named.

The source port is ``0xC000 | job_tag << S | step`` with J + S = 14. ICRC covers it, so only the
sender writes it; a switch reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ringstep.protocol.limits import STEP_BITS_MAX, UDP_SPORT_BASE


class JobCarrier(StrEnum):
    """Where a switch finds the job of a packet."""

    RULE = "rule"
    """By table: destination IP and destination QP, or source and destination IP."""
    SPORT = "sport"
    """J bits of the UDP source port."""
    RESV6A = "resv6a"
    """BTH.resv6a, 6 bits; ICRC masks it. ConnectX gives software no BTH bit."""
    DSCP = "dscp"
    """6 bits of the IP header; ICRC masks them."""


@dataclass(frozen=True, slots=True)
class TagLayout:
    """Split of the 14 tag bits into a job tag (J bits, above) and a step (S bits, below).

    Raises:
        ValueError: the two do not share 14 bits, or S < 2 (serial order needs two bits).
    """

    job_bits: int = 0
    step_bits: int = STEP_BITS_MAX

    def __post_init__(self) -> None:
        if self.job_bits < 0 or not 2 <= self.step_bits <= STEP_BITS_MAX:
            raise ValueError(
                f"tag layout J={self.job_bits}, S={self.step_bits}: "
                f"J must be >= 0 and S in 2..{STEP_BITS_MAX}"
            )
        if self.job_bits + self.step_bits != STEP_BITS_MAX:
            raise ValueError(
                f"tag layout J={self.job_bits}, S={self.step_bits}: "
                f"J + S must be {STEP_BITS_MAX}, the bits below 0xC000"
            )

    @property
    def step_mask(self) -> int:
        """Mask of the step bits, 2**S - 1."""
        return (1 << self.step_bits) - 1

    @property
    def step_sign(self) -> int:
        """Bit that is set in a step difference when the first operand is not ahead."""
        return 1 << (self.step_bits - 1)

    def sport(self, step: int, job_tag: int = 0) -> int:
        """Return the UDP source port for ``step`` (any non-negative integer; it wraps).

        Raises:
            ValueError: ``job_tag`` does not fit in J bits.
        """
        if not 0 <= job_tag < 1 << self.job_bits:
            raise ValueError(
                f"job tag {job_tag} does not fit in {self.job_bits} bits; "
                f"use 0..{(1 << self.job_bits) - 1}"
            )
        return UDP_SPORT_BASE | job_tag << self.step_bits | (step & self.step_mask)

    def step_of(self, sport: int) -> int:
        """Return the step that a tagged source port carries."""
        return sport & self.step_mask

    def job_tag_of(self, sport: int) -> int:
        """Return the job tag that a tagged source port carries (0 where J = 0)."""
        return (sport & (UDP_SPORT_BASE ^ 0xFFFF)) >> self.step_bits

    @staticmethod
    def is_tagged(sport: int) -> bool:
        """Say whether a source port lies in the tagged range 0xC000 .. 0xFFFF."""
        return sport >= UDP_SPORT_BASE

    def sport_match(self, job_tag: int) -> tuple[int, int]:
        """Return (value, mask) that matches every port of ``job_tag``, whatever its step."""
        return self.sport(0, job_tag), 0xFFFF ^ self.step_mask
