"""Tables with which a target without multiplication decides on a mark.

Tofino 2 cannot multiply, so its pipeline compares logarithms. The reference marks where
``r * psn_rec < K * alpha * psn`` (r a 16-bit random number); turned around, where

    alpha > N,  N = r * psn_rec / (K * psn)

and ``log2 N = log2 r + log2 psn_rec - log2 K - log2 psn``. Two tables give a logarithm: one of
ternary prefixes, most significant bit first, finds the leading one and cuts out the bits after it;
the other turns these into the fraction. Two saturating additions and a saturating subtraction
combine the four, and one more table, an exponential, gives the whole part of N: all that an alpha
of 8 bits has to be compared with. RED's ``r * (q_max - q_min) < p_max * (depth - q_min)`` is a
comparison of two sums of logarithms and needs no exponential.

This module is the one home of these tables. ``python -m ringstep.protocol.p4tables DIR`` writes
them as P4 (``p4src/include/t2na/``); a test fails when the committed file differs, and others prove
from the same numbers how far the arithmetic is off over the whole input range. All of it is exact
integer arithmetic, so the entries are the same on every machine.
"""

from __future__ import annotations

import bisect
import functools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ringstep.protocol.limits import ALPHA_BITS, K_BITS, PSN_BITS, QDEPTH_BITS, RANDOM_BITS

LOG_BITS: Final = 16
"""Width of a logarithm; sums and differences saturate there."""
FRACTION_BITS: Final = 10
"""A logarithm counts 2**-10 of an octave."""
MANTISSA_BITS: Final = 8
"""How many bits after the leading one are looked at."""
LOG_BIAS: Final = PSN_BITS << FRACTION_BITS
"""Added to the logarithm of a random number, other than 0 for which the table has 0: so r = 0 lies
below all others, as minus infinity would. The other side of each comparison has it too."""
EXP_GRAIN: Final = 4
"""The exponential's steps lie at multiples of this, which halves the number of its prefixes."""

MARK_ERROR: Final = 0.0126
"""The threshold that r is held against, K * alpha * psn / psn_rec, is off by no more than this part
of itself; a test computes the bound from the tables."""
RED_ERROR: Final = 0.0090
"""The same for RED's threshold, p_max * (depth - q_min) / (q_max - q_min)."""

FILE: Final = "log2.p4"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a ternary table: a key with ``key & mask == value`` gives ``result``."""

    value: int
    mask: int
    result: int


def log2_fixed(low: int, high: int, unit: int = 1) -> int:
    """Return log2 of the geometric mean of ``low`` and ``high`` over ``unit``, a power of two.

    In 2**-FRACTION_BITS, rounded: of all values the one whose greatest relative error over
    ``low .. high`` is least.
    """
    # With n = floor(log2(power)), the wanted floor((log2(power) + 1) / 2) is (n + 1) // 2.
    mean = int((low * high) ** (1 << FRACTION_BITS)).bit_length() // 2
    return mean - (unit.bit_length() - 1 << FRACTION_BITS)


@functools.cache
def fractions() -> tuple[int, ...]:
    """Return, by the MANTISSA_BITS after the leading one, the fraction of the logarithm.

    The bits below are unknown: the entry stands for everything from all zeros to all ones.
    """
    one = 1 << MANTISSA_BITS
    fine = 16
    found = []
    for mantissa in range(one):
        low = (one + mantissa) << fine
        high = (one + mantissa + 1 << fine) - 1
        found.append(log2_fixed(low, high, one << fine))
    return tuple(found)


def heads(width: int) -> tuple[Entry, ...]:
    """Return the prefixes that find the leading one (``result``), most significant bit first."""
    full = (1 << width) - 1
    return tuple(Entry(1 << msb, full ^ (1 << msb) - 1, msb) for msb in range(width - 1, -1, -1))


def mantissa(x: int, msb: int) -> int:
    """Return the MANTISSA_BITS bits after the leading one ``msb`` of ``x``, zeros below its end."""
    return (x << MANTISSA_BITS >> msb) - (1 << MANTISSA_BITS)


def log2_pipeline(x: int, bias: int = 0) -> int:
    """Return the logarithm that the two tables give for ``x`` > 0."""
    msb = x.bit_length() - 1
    return (msb << FRACTION_BITS) + fractions()[mantissa(x, msb)] + bias


@functools.cache
def exp_steps() -> tuple[int, ...]:
    """Return, by n, from which logarithm on the whole part of N is held to be n.

    The logarithm 0 is also what the subtraction leaves where N < 1, so it stands for n = 0, and
    everything above it up to the next step for 1.
    """
    grain = EXP_GRAIN
    steps = [0, 1]
    for n in range(2, 1 << ALPHA_BITS):
        exact = log2_fixed(n, n)
        steps.append((exact + grain // 2) // grain * grain)
    return tuple(steps)


def exp_entries() -> tuple[Entry, ...]:
    """Return the exponential as prefixes of a logarithm -> whole part of N, saturated at 255."""
    steps = exp_steps()
    entries: list[Entry] = []
    for n, (start, end) in enumerate(zip(steps, (*steps[1:], 1 << LOG_BITS), strict=True)):
        entries += (Entry(value, mask, n) for value, mask in prefixes(start, end, LOG_BITS))
    return tuple(entries)


def exp_pipeline(logarithm: int) -> int:
    """Return the whole part of N that the table gives for a logarithm of LOG_BITS bits."""
    return bisect.bisect_right(exp_steps(), logarithm) - 1


def prefixes(start: int, end: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield (value, mask) of the fewest prefixes of ``width`` bits that make up [start, end)."""
    full = (1 << width) - 1
    while start < end:
        size = start & -start or 1 << width
        while size > end - start:
            size >>= 1
        yield start, full ^ size - 1
        start += size


def saturating_add(a: int, b: int) -> int:
    """Return ``a |+| b`` on LOG_BITS bits."""
    return min(a + b, (1 << LOG_BITS) - 1)


def saturating_sub(a: int, b: int) -> int:
    """Return ``a |-| b`` on unsigned bits."""
    return max(a - b, 0)


def alpha_exceeded(r: int, psn_rec: int, k: int, psn: int) -> int:
    """Return what the pipeline takes for the whole part of N; the mark is ``alpha > N``.

    Args:
        r: random number of 16 bits, 0 included.
        psn_rec: the laggards' progress, > 0.
        k: K, > 0.
        psn: the packet's progress, > 0.
    """
    log_r = log2_pipeline(r, LOG_BIAS) if r else 0
    above = saturating_add(log_r, log2_pipeline(psn_rec))
    below = saturating_add(log2_pipeline(k, LOG_BIAS), log2_pipeline(psn))
    return exp_pipeline(saturating_sub(above, below))


def red_marks(r: int, span: int, share: int, excess: int) -> bool:
    """Say whether the pipeline's RED marks: ``r * span < share * excess`` in logarithms.

    Args:
        r: random number of 16 bits, 0 included.
        span: q_max - q_min, > 0.
        share: p_max in 1/65536, > 0.
        excess: depth - q_min, 0 < excess <= span.
    """
    log_r = log2_pipeline(r, LOG_BIAS) if r else 0
    left = saturating_add(log_r, log2_pipeline(span))
    right = saturating_add(log2_pipeline(share, LOG_BIAS), log2_pipeline(excess))
    return left < right


@dataclass(frozen=True, slots=True)
class Log2:
    """A control that gives a logarithm of a number in some bits of a word of 32."""

    name: str
    bits: int
    low: int
    """Where the number's least significant bit lies; the bits below are 0."""
    bias: int
    about: str


WORD_BITS: Final = 32
LOG2_CONTROLS: Final[Sequence[Log2]] = (
    Log2("Log2Psn", PSN_BITS, WORD_BITS - PSN_BITS - 1, 0, "log2 of a progress, below the sign"),
    Log2("Log2Gain", K_BITS, 0, LOG_BIAS, "log2 of K, biased"),
    Log2("Log2Random", RANDOM_BITS, 0, LOG_BIAS, "log2 of 16 bits, biased"),
    Log2("Log2Depth", QDEPTH_BITS, 0, 0, "log2 of a queue depth"),
)


def _render_log2(control: Log2) -> str:
    found = heads(control.bits)
    low, top = control.low, WORD_BITS - 1
    shift = control.bias >> FRACTION_BITS
    actions = "".join(
        f"    action one_at_{e.result}() {{ y[{LOG_BITS - 1}:{FRACTION_BITS}] = "
        f"{e.result + shift}; lead = x << {top - low - e.result}; }}\n"
        for e in found
    )
    names = "".join(f"            one_at_{e.result};\n" for e in found)
    entries = "".join(
        f"            0x{e.value << low:08x} &&& 0x{e.mask << low:08x} : one_at_{e.result}();\n"
        for e in found
    )
    fraction = "".join(
        f"            {index} : set_fraction({value});\n" for index, value in enumerate(fractions())
    )
    return f"""
// {control.about[0].upper()}{control.about[1:]}; 0 for 0, which `is_zero` tells.
control {control.name}(in bit<{WORD_BITS}> x, out bit<{LOG_BITS}> y, out bit<1> is_zero) {{
    bit<{WORD_BITS}> lead;

{actions}
    action zero() {{ is_zero = 1; }}

    table leading_one {{
        key = {{ x : ternary; }}
        actions = {{
{names}            zero;
        }}
        const default_action = zero();
        const entries = {{
{entries}        }}
    }}

    action set_fraction(bit<{FRACTION_BITS}> value) {{ y[{FRACTION_BITS - 1}:0] = value; }}

    table fraction {{
        key = {{ lead[{top - 1}:{top - MANTISSA_BITS}] : exact @name("rest"); }}
        actions = {{ set_fraction; }}
        const default_action = set_fraction(0);
        const entries = {{
{fraction}        }}
    }}

    apply {{
        lead = 0;
        y = 0;
        is_zero = 0;
        if (leading_one.apply().hit) {{
            fraction.apply();
        }}
    }}
}}
"""


def render() -> str:
    """Return the P4 text: a control per kind of number, so that each can be used twice."""
    digits = (LOG_BITS + 3) // 4
    exp = "".join(
        f"            0x{e.value:0{digits}x} &&& 0x{e.mask:0{digits}x} : set_whole({e.result});\n"
        for e in exp_entries()
    )
    return (
        "// Generated by ringstep.protocol.p4tables; do not edit.\n"
        "// `make p4` writes this file anew, and a test fails when it differs.\n"
        + "".join(_render_log2(control) for control in LOG2_CONTROLS)
        + f"""
// The whole part of 2**x, 0 for 0 and at most {(1 << ALPHA_BITS) - 1}.
control Exp2(in bit<{LOG_BITS}> x, out bit<{ALPHA_BITS}> y) {{
    action set_whole(bit<{ALPHA_BITS}> whole) {{ y = whole; }}

    table whole_part {{
        key = {{ x : ternary; }}
        actions = {{ set_whole; }}
        const default_action = set_whole(0);
        const entries = {{
{exp}        }}
    }}

    apply {{
        y = 0;
        whole_part.apply();
    }}
}}
"""
    )


def main() -> None:
    """Write the tables below the folder given as the only argument."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m ringstep.protocol.p4tables DIR")
    (Path(sys.argv[1]) / FILE).write_text(render())


if __name__ == "__main__":
    main()
