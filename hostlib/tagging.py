"""How a sender puts the step of a ring collective into its packets: queue pair and source port.

Two ways, chosen per job. :class:`PortPerStep` changes the source port of one queue pair from step
to step (``mlx5dv_modify_qp_udp_sport`` on ConnectX). :class:`QpPool` spreads the steps over K queue
pairs whose ports are set once; no firmware command is then in the data path, and the tag holds the
step modulo K.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ringstep.protocol.limits import STEP_BITS_MAX
from ringstep.protocol.tag import TagLayout

__all__ = ["Placement", "PortPerStep", "QpPool", "StepTagger"]


class Placement(NamedTuple):
    """Where a message of one step goes."""

    qp_index: int
    """Index of the queue pair in the connection, from 0."""
    sport: int
    """UDP source port of its packets."""


class StepTagger(Protocol):
    """What a sender asks before it posts a message."""

    @property
    def layout(self) -> TagLayout:
        """Split of the tag bits."""

    @property
    def qps(self) -> int:
        """Queue pairs that one connection needs."""

    @property
    def max_skew(self) -> int:
        """Largest difference between the steps of two senders that the tag still orders rightly."""

    def place(self, job_tag: int, step: int) -> Placement:
        """Return queue pair and source port for ``step``."""


class _Tagger:
    __slots__ = ("layout",)

    def __init__(self, layout: TagLayout) -> None:
        self.layout = layout

    @property
    def max_skew(self) -> int:
        """Largest step difference that serial order on S bits decides: 2^(S-1) - 1."""
        return self.layout.step_sign - 1

    def check_skew(self, skew: int) -> None:
        """Raise ValueError if senders ``skew`` steps apart would be put in the wrong order."""
        if abs(skew) > self.max_skew:
            raise ValueError(
                f"steps {abs(skew)} apart cannot be ordered by S = {self.layout.step_bits} "
                f"tag bits: at most {self.max_skew}; give the step more bits "
                "(TagLayout.step_bits), or keep the senders closer together"
            )

    def _sport(self, job_tag: int, step: int) -> int:
        if step < 0:
            raise ValueError(
                f"step {step} must not be negative: steps count up over the life of a job"
            )
        return self.layout.sport(step, job_tag)


class PortPerStep(_Tagger):
    """One queue pair per connection whose source port changes with the step.

    Each step is hashed by ECMP anew and may take another path.
    """

    __slots__ = ()

    def __init__(self, layout: TagLayout | None = None) -> None:
        super().__init__(TagLayout() if layout is None else layout)

    @property
    def qps(self) -> int:
        """Always 1."""
        return 1

    def place(self, job_tag: int, step: int) -> Placement:
        """Return queue pair 0 and the port of ``step``.

        Raises ValueError for a negative step or a job tag that does not fit the layout.
        """
        return Placement(0, self._sport(job_tag, step))


def _pool_bits(k: int) -> int:
    if k < 4 or k & (k - 1) or k > 1 << STEP_BITS_MAX:
        raise ValueError(
            f"a pool of k = {k} queue pairs: k must be a power of two "
            f"from 4 to {1 << STEP_BITS_MAX}"
        )
    return k.bit_length() - 1


class QpPool(_Tagger):
    """K queue pairs per connection with preset ports; step s uses queue pair s mod K.

    The tag holds s mod K, so S = log2 K, and two senders must stay fewer than K/2 steps apart.
    """

    __slots__ = ("k",)

    def __init__(self, layout: TagLayout, k: int) -> None:
        """Raises ValueError unless ``k`` is 2^S of ``layout``."""
        bits = _pool_bits(k)
        if layout.step_bits != bits:
            raise ValueError(
                f"a pool of k = {k} queue pairs carries S = {bits} step bits, the layout has "
                f"{layout.step_bits}; "
                f"use TagLayout(job_bits={STEP_BITS_MAX - bits}, step_bits={bits})"
            )
        super().__init__(layout)
        self.k = k

    @classmethod
    def of(cls, k: int) -> QpPool:
        """Return the pool of ``k`` queue pairs with the layout that belongs to it."""
        bits = _pool_bits(k)
        return cls(TagLayout(job_bits=STEP_BITS_MAX - bits, step_bits=bits), k)

    @property
    def qps(self) -> int:
        """K."""
        return self.k

    def ports(self, job_tag: int) -> list[int]:
        """Return the source ports to set on the K queue pairs, in order."""
        return [self.layout.sport(index, job_tag) for index in range(self.k)]

    def place(self, job_tag: int, step: int) -> Placement:
        """Return queue pair ``step`` mod K and its port.

        Raises ValueError for a negative step or a job tag that does not fit the layout.
        """
        return Placement(step % self.k, self._sport(job_tag, step))
