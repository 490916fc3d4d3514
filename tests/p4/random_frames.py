"""Frames for hypothesis to draw: a job's, damaged."""

from __future__ import annotations

from broken_frames import KINDS, mended
from hypothesis import strategies as st
from rule_book import WHOLE


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A frame of the job, changed in a few bytes of its headers, cut short or made longer."""
    if draw(st.integers(0, 7)) == 0:
        return draw(st.sampled_from([*KINDS.values(), *WHOLE])) + draw(st.binary(max_size=3))
    data = bytearray(draw(st.sampled_from(WHOLE)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(12, min(len(data) - 1, 80)))
        data[at] = draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 4, 5, 17, 0xFF])))
    cut = draw(st.sampled_from([0, 0, 0, 0, 1, 4, 20, 45]))
    made = bytes(data[: len(data) - cut]) + draw(st.binary(max_size=4))
    if draw(st.booleans()) and made[12:14] == b"\x08\x00":
        made = mended(made)
    return made
