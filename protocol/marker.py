"""The reference marker: follows a job's ring progress and says which packets to mark.

Plain Python, integers only. The P4 program, the software switch and the simulator must agree with
it packet for packet on the golden vectors in ``tests/vectors/``. The algorithm is that of Symphony
(arXiv:2604.16880, section 3 and Algorithm 1) with three extensions, each a parameter: state blocks
per egress port, a queue gate, and anchored progress for persistent QPs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Final

from ringstep.protocol.limits import (
    ALPHA_BITS,
    ANCHORS_PER_JOB,
    CLOCK_BITS,
    COUNT_BITS,
    GENERATION_BITS,
    K_FRACTION_BITS,
    PSN_BITS,
    QDEPTH_BITS,
    RANDOM_BITS,
)
from ringstep.protocol.serial import ahead
from ringstep.protocol.tag import TagLayout

_PSN_MASK: Final = (1 << PSN_BITS) - 1
_PSN_HALF: Final = 1 << (PSN_BITS - 1)
LATENESS_US: Final = 1 << 16
"""A packet whose time is before the window's start, by no more than this, does not end the window.

BMv2's egress threads take their time before they wait for the block, so the packet that comes
after the one that began the window may have the earlier time.
"""
_CLOCK_MASK: Final = (1 << CLOCK_BITS) - 1
_COUNT_MASK: Final = (1 << COUNT_BITS) - 1


class Scope(StrEnum):
    """Which egress ports of a job share a state block."""

    SWITCH = "switch"
    """All of them: the paper's marker."""
    PORT = "port"
    """None: throttling a flow helps only a laggard on the same link."""


class ProgressMode(StrEnum):
    """How a PSN becomes progress within a step."""

    PER_STEP = "per_step"
    """The QP, or its PSN, is fresh for each step: progress is the PSN."""
    ANCHORED = "anchored"
    """Persistent QPs: progress counts from the first PSN seen of the step."""


def k_fixed(k: float) -> int:
    """Return K = round(k * 2**16), the fixed-point form in which a data plane takes ``k``.

    Raises:
        ValueError: ``k`` is outside [0, 1].
    """
    if not 0 <= k <= 1:
        raise ValueError(f"k = {k}: must be in 0..1 (the paper uses 0.001 to 0.01)")
    return round(k * (1 << K_FRACTION_BITS))


@dataclass(frozen=True, slots=True)
class MarkerParams:
    """Parameters of one job's marker.

    Raises:
        ValueError: a parameter is outside what a data plane can hold (the text gives the range), or
            ``mode`` is anchored with a tag of four steps.
    """

    k: int = k_fixed(0.01)
    """K = round(k * 2**16), 0..65536; see :func:`k_fixed`."""
    tau_num: int = 1
    tau_den: int = 4
    """tau = tau_num / tau_den, the share of outpacing packets from which alpha rises."""
    t_win: int = 100
    """Length of a window in microseconds, >= 1."""
    n_sample: int = 8
    """A window counts only where it saw more packets than this."""
    n_warmup: int = 8
    """Nothing is marked until the laggard's progress exceeds this, in packets."""
    alpha_max: int = 255
    q_gate: int | None = 10
    """Mark only where the queue at dequeue is deeper than this, in packets; None: always."""
    layout: TagLayout = field(default_factory=TagLayout)
    mode: ProgressMode = ProgressMode.PER_STEP
    packets_per_step: int = 0
    """C: a LAST ends the step only at progress >= C - 1; 0: every LAST does."""
    enabled: bool = True
    """False pauses marking; progress is still followed."""
    generation: int = 1
    """1..255; a block that holds another generation is cleared at its next packet."""

    def __post_init__(self) -> None:
        _in_range("k", self.k, 0, 1 << K_FRACTION_BITS)
        _in_range("tau_den", self.tau_den, 1, 255)
        _in_range("tau_num", self.tau_num, 0, self.tau_den)
        _in_range("t_win", self.t_win, 1, (1 << 32) - 1)
        _in_range("n_sample", self.n_sample, 0, (1 << 16) - 1)
        _in_range("n_warmup", self.n_warmup, 0, _PSN_MASK)
        _in_range("alpha_max", self.alpha_max, 1, (1 << ALPHA_BITS) - 1)
        if self.q_gate is not None:
            _in_range("q_gate", self.q_gate, 0, (1 << QDEPTH_BITS) - 2)
        _in_range("packets_per_step", self.packets_per_step, 0, _PSN_MASK)
        _in_range("generation", self.generation, 1, (1 << GENERATION_BITS) - 1)
        if self.mode is ProgressMode.ANCHORED and 1 << self.layout.step_bits <= ANCHORS_PER_JOB:
            # Each anchor would belong to one step for ever and keep the base of its first lap.
            raise ValueError(
                f"mode anchored with S = {self.layout.step_bits}: the tag needs more than "
                f"{ANCHORS_PER_JOB} steps, S >= {ANCHORS_PER_JOB.bit_length()}"
            )

    def to_table(self) -> dict[str, int]:
        """Return the arguments of the data plane's ``set_params`` action, by name."""
        return {
            "generation": self.generation,
            "step_mask": self.layout.step_mask,
            "step_sign": self.layout.step_sign,
            "anchored": int(self.mode is ProgressMode.ANCHORED),
            "packets_per_step": self.packets_per_step,
            "k": self.k,
            "tau_num": self.tau_num,
            "tau_den": self.tau_den,
            "t_win": self.t_win,
            "n_sample": self.n_sample,
            "n_warmup": self.n_warmup,
            "alpha_max": self.alpha_max,
            "q_min": 0 if self.q_gate is None else self.q_gate + 1,
            "enabled": int(self.enabled),
        }


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        hint = ", see k_fixed" if name == "k" else ""
        raise ValueError(f"{name} = {value!r}: must be a whole number in {low}..{high}{hint}")
    if not low <= value <= high:
        raise ValueError(f"{name} = {value}: must be in {low}..{high}")


@dataclass(frozen=True, slots=True)
class Profile:
    """A named set of defaults: a scope and marker parameters."""

    scope: Scope
    params: MarkerParams


PROFILES: Final[Mapping[str, Profile]] = {
    "paper": Profile(Scope.SWITCH, MarkerParams(q_gate=None)),
    "ringstep": Profile(Scope.PORT, MarkerParams()),
}
"""``paper``: as published, one block per switch and no queue gate. ``ringstep``: the default."""
DEFAULT_PROFILE: Final = "ringstep"


@dataclass(slots=True)
class Block:
    """State of one block. ``generation`` 0 is a register after a reset."""

    step_min: int = 0
    psn_rec: int = 0
    alpha: int = 0
    cnt_total: int = 0
    cnt_op: int = 0
    win_start: int = 0
    generation: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the fields by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(slots=True)
class Anchor:
    """Where the PSN of a step began."""

    generation: int = 0
    step: int = 0
    base: int = 0


@dataclass(slots=True)
class JobCounters:
    """What a switch counts per job, in packets."""

    data: int = 0
    marks: int = 0
    """ECN-capable packets that the marker said to mark."""
    red_marks: int = 0
    """ECN-capable packets that RED said to mark."""
    corrections: int = 0
    """Packets that moved step_min back."""
    advances: int = 0
    """Packets that moved step_min on."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one packet."""

    mark: bool
    """The marker's own word (step 5)."""
    ce: bool
    """The packet leaves newly CE-marked, by the marker or by RED (step 6)."""
    progress: int
    """Progress within the step, in packets."""


class Marker:
    """The marker of one job on one switch.

    Lost state is no error: nothing is marked beyond RED, and the next packets rebuild it.
    """

    def __init__(self, params: MarkerParams, scope: Scope = Scope.PORT) -> None:
        self.params = params
        self.scope = scope
        self.blocks: dict[int, Block] = {}
        self.anchors = [Anchor() for _ in range(ANCHORS_PER_JOB)]
        self.counters = JobCounters()

    def block(self, port: int = 0) -> Block:
        """Return the block that ``port`` uses."""
        key = port if self.scope is Scope.PORT else 0
        return self.blocks.setdefault(key, Block())

    def update(self, **changes: object) -> None:
        """Change parameters of the running job; its state stays.

        Raises:
            ValueError: as :class:`MarkerParams`.
        """
        self.params = replace(self.params, **changes)  # type: ignore[arg-type]

    def on_packet(
        self,
        now: int,
        step: int,
        psn: int,
        last: bool,
        ect: bool,
        r: int,
        qdepth: int = 0,
        red: bool = False,
        port: int = 0,
    ) -> Decision:
        """Follow one data packet at dequeue and decide on its mark.

        Args:
            now: microseconds, any origin, wraps at 2**48.
            step: step index of the tag, S bits.
            psn: PSN of the BTH, 24 bits.
            last: the opcode ends a message.
            ect: the packet is ECN-capable and not yet marked (ECT(0) or ECT(1)).
            r: uniform random number in [0, 2**16).
            qdepth: packets left in the egress queue.
            red: RED on the egress queue said mark.
            port: egress port.
        """
        p = self.params
        bits = p.layout.step_bits
        progress = self._progress(step, psn)
        ends_step = last and (p.packets_per_step == 0 or progress >= p.packets_per_step - 1)

        b = self.block(port)
        if b.generation != p.generation:
            b.step_min, b.psn_rec, b.alpha = step, 0, 1
            b.cnt_total = b.cnt_op = 0
            b.win_start, b.generation = now, p.generation

        if p.t_win <= (now - b.win_start) & _CLOCK_MASK <= _CLOCK_MASK - LATENESS_US:
            if b.cnt_total > p.n_sample:
                if b.cnt_op * p.tau_den >= p.tau_num * b.cnt_total:
                    b.alpha = min(b.alpha + 1, p.alpha_max)
                else:
                    b.alpha = max(b.alpha - 1, 1)
            b.cnt_total = b.cnt_op = b.psn_rec = 0
            b.win_start = now

        b.cnt_total = (b.cnt_total + 1) & _COUNT_MASK
        if ahead(step, b.step_min, bits):
            b.cnt_op = (b.cnt_op + 1) & _COUNT_MASK

        before = b.step_min
        if ends_step:
            b.step_min, b.psn_rec = (step + 1) & p.layout.step_mask, 0
        elif ahead(b.step_min, step, bits):
            b.step_min, b.psn_rec = step, progress
        elif step == b.step_min:
            b.psn_rec = max(b.psn_rec, progress)

        mark = (
            p.enabled
            and ahead(step, b.step_min, bits)
            and b.psn_rec > p.n_warmup
            and (p.q_gate is None or qdepth > p.q_gate)
            and r * b.psn_rec < p.k * b.alpha * progress
        )
        self._count(before, b.step_min, bits, mark and ect, red and ect)
        return Decision(mark=mark, ce=ect and (mark or red), progress=progress)

    def _progress(self, step: int, psn: int) -> int:
        if self.params.mode is ProgressMode.PER_STEP:
            return psn
        anchor = self.anchors[step % ANCHORS_PER_JOB]
        if anchor.generation != self.params.generation or anchor.step != step:
            anchor.generation, anchor.step, anchor.base = self.params.generation, step, psn
            return 0
        offset = (psn - anchor.base) & _PSN_MASK
        return offset if offset < _PSN_HALF else 0

    def _count(self, before: int, after: int, bits: int, mark: bool, red: bool) -> None:
        c = self.counters
        c.data += 1
        c.marks += mark
        c.red_marks += red
        c.advances += ahead(after, before, bits)
        c.corrections += ahead(before, after, bits)


def mark_probability(k: int, alpha: int, psn: int, psn_rec: int) -> float:
    """Return P = min(1, k * alpha * psn / psn_rec), eq. (4) of the paper, with ``k`` as K."""
    return min(1.0, k / (1 << RANDOM_BITS) * alpha * psn / psn_rec)
