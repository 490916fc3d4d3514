"""A second marker, to judge the first: Algorithm 1 and section 3.4 of the Symphony paper, and
section 3 of the design, transliterated as naively as they read.

Nothing of ``ringstep.protocol.marker`` is used here, nor its arithmetic. Steps are ordered by how
many increments lead from one to the other, a window is the list of its packets, tau, k and P are
exact fractions, anchors are a dictionary, and a state is rebuilt as a value at every packet
instead of being changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction


@dataclass(frozen=True)
class OracleParams:
    """Parameters as they stand in a vector file, as text -> number, with nothing derived."""

    k: Fraction
    tau: Fraction
    t_win: int
    n_sample: int
    n_warmup: int
    alpha_max: int
    gate: int | None
    step_bits: int
    anchored: bool
    packets_per_step: int
    enabled: bool
    generation: int

    @classmethod
    def of(cls, text: dict[str, str]) -> OracleParams:
        """Read the parameters of one job of a vector file."""
        return cls(
            k=Fraction(int(text["k"]), 65536),
            tau=Fraction(int(text["tau_num"]), int(text["tau_den"])),
            t_win=int(text["t_win"]),
            n_sample=int(text["n_sample"]),
            n_warmup=int(text["n_warmup"]),
            alpha_max=int(text["alpha_max"]),
            gate=None if text["q_gate"] == "none" else int(text["q_gate"]),
            step_bits=int(text["step_bits"]),
            anchored=text["mode"] == "anchored",
            packets_per_step=int(text["packets_per_step"]),
            enabled=text["enabled"] == "1",
            generation=int(text["generation"]),
        )


@dataclass(frozen=True)
class OracleBlock:
    """A state block; ``window`` holds one truth value per packet: was it outpacing?"""

    generation: int
    step_min: int
    psn_rec: int
    alpha: int
    window: tuple[bool, ...]
    since: int


@dataclass(frozen=True)
class Verdict:
    """What the oracle says of one packet."""

    mark: bool
    progress: int
    base: int | None
    block: OracleBlock


class OracleJob:
    """One job's blocks and anchors."""

    def __init__(self, params: OracleParams) -> None:
        self.params = params
        self.blocks: dict[int, OracleBlock] = {}
        self.anchors: dict[int, tuple[int, int, int]] = {}

    def packet(
        self, block: int, now: int, step: int, psn: int, last: bool, r: int, depth: int
    ) -> Verdict:
        """Follow one data packet."""
        p = self.params
        base = self._anchor(step, psn) if p.anchored else None
        progress = psn if base is None else _not_negative(_signed(psn - base, 24))

        state = self.blocks.get(block)
        if state is None or state.generation != p.generation:
            state = OracleBlock(p.generation, step, 0, 1, (), now)
        state = self._window(state, now)

        # UpdateTrafficStats(step): compared with step_min as it stands before this packet.
        outpacing = _later(step, state.step_min, p.step_bits)
        state = replace(state, window=(*state.window, outpacing))

        # Algorithm 1, lines 3 to 10.
        complete = p.packets_per_step == 0 or progress + 1 >= p.packets_per_step
        if last and complete:
            state = replace(state, step_min=(step + 1) % 2**p.step_bits, psn_rec=0)
        elif _later(state.step_min, step, p.step_bits):
            state = replace(state, step_min=step, psn_rec=progress)
        elif step == state.step_min and progress > state.psn_rec:
            state = replace(state, psn_rec=progress)
        self.blocks[block] = state

        # Lines 11 to 17. TossCoin(P) with the coin given: r / 2^16 is uniform in [0, 1).
        if not _later(step, state.step_min, p.step_bits) or state.psn_rec <= p.n_warmup:
            return Verdict(False, progress, base, state)
        if not p.enabled or (p.gate is not None and depth <= p.gate):
            return Verdict(False, progress, base, state)
        delta = state.alpha * Fraction(progress, state.psn_rec)
        probability = min(Fraction(1), p.k * delta)
        return Verdict(Fraction(r, 65536) < probability, progress, base, state)

    def _window(self, state: OracleBlock, now: int) -> OracleBlock:
        p = self.params
        if (now - state.since) % 2**48 < p.t_win or (state.since - now) % 2**48 <= 2**16:
            return state
        alpha = state.alpha
        if len(state.window) > p.n_sample:
            rho = Fraction(sum(state.window), len(state.window))
            if rho >= p.tau:
                alpha = alpha + 1 if alpha + 1 <= p.alpha_max else p.alpha_max
            elif alpha > 1:
                alpha = alpha - 1
        return replace(state, alpha=alpha, window=(), psn_rec=0, since=now)

    def _anchor(self, step: int, psn: int) -> int:
        held = self.anchors.get(step % 4)
        if held is None or held[:2] != (self.params.generation, step):
            self.anchors[step % 4] = (self.params.generation, step, psn)
        return self.anchors[step % 4][2]


def _later(a: int, b: int, bits: int) -> bool:
    """Say whether fewer than half of all increments, and at least one, lead from b to a."""
    forwards = a - b if a >= b else a - b + 2**bits
    return forwards != 0 and forwards * 2 < 2**bits


def _signed(value: int, bits: int) -> int:
    value %= 2**bits
    return value if value * 2 < 2**bits else value - 2**bits


def _not_negative(value: int) -> int:
    return value if value > 0 else 0
