"""RED on an egress queue as the data planes run it, and the spacing of marks on jobs' packets.

RED at dequeue: no mark up to ``q_min``, with probability ``p_max * (q - q_min) / (q_max - q_min)``
between, always above ``q_max``. A burst of marks cuts a DCQCN flow many times over before its queue
has drained. So marks on packets of jobs are spaced, whether RED wants them or the marker: at most
one per port and ``gap``, unless more than twice ``q_max`` waits. Packets of no job are marked as
ever. docs/symphony-reproduction.md says what the spacing is worth.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from ringstep.protocol.limits import MARK_GAP_BITS, QDEPTH_BITS, RANDOM_BITS

MARK_GAP: Final = 20
"""Default gap in microseconds: of 10, 20 and 50 the one that harmed in none of 48 conditions."""
MARK_GAP_MAX: Final = (1 << MARK_GAP_BITS) - 1
"""Microseconds."""


@dataclass(frozen=True, slots=True)
class RedParams:
    """Parameters of one egress port, as the tables hold them (``set_red``)."""

    q_min: int = 40
    """Packets."""
    q_max: int = 160
    """Packets; at least ``q_min``."""
    p_max: int = 13107
    """Probability of a mark at ``q_max`` in units of 2**-16, below 2**16."""
    gap: int = MARK_GAP
    """Microseconds between marks on packets of jobs; 0: not spaced."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ValueError: a value that no data plane holds.
        """
        if not 0 <= self.q_min <= self.q_max < 1 << QDEPTH_BITS:
            raise ValueError(
                f"q_min {self.q_min}, q_max {self.q_max}: write 0 <= q_min <= q_max < 2**19 packets"
            )
        if not 0 <= self.p_max < 1 << RANDOM_BITS:
            raise ValueError(f"p_max {self.p_max}: write 0..65535, in units of 1/65536")
        if not 0 <= self.gap <= MARK_GAP_MAX:
            raise ValueError(f"gap {self.gap}: write 0..{MARK_GAP_MAX} microseconds, 0 for none")

    def to_table(self) -> dict[str, int]:
        """Return the parameters of the action ``set_red`` by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def wants(self, depth: int, r: int) -> bool:
        """Say whether RED wants a mark.

        Args:
            depth: packets left in the queue at dequeue.
            r: uniform in [0, 2**16); data planes draw it only where q_min < depth <= q_max.
        """
        share = self.p_max * (depth - self.q_min)
        return depth > self.q_max or (depth > self.q_min and r * (self.q_max - self.q_min) < share)


class MarkSpacing:
    """Lets marks on packets of jobs pass at one egress port, one per gap."""

    def __init__(self) -> None:
        """Nothing has been marked yet."""
        self.next = 0
        """Microseconds from which a packet may be marked again."""

    def stands(self, params: RedParams, now: int, depth: int) -> bool:
        """Say whether a mark that RED or the marker wants on an ECN-capable packet stands.

        Args:
            params: of the port.
            now: microseconds.
            depth: packets left in the queue at dequeue.
        """
        if params.gap == 0 or depth > 2 * params.q_max:
            return True
        if now < self.next:
            return False
        self.next = now + params.gap
        return True
