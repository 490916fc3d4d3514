from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep.protocol.tag import JobCarrier, TagLayout

layouts = st.integers(2, 14).map(lambda step_bits: TagLayout(14 - step_bits, step_bits))


def test_default_gives_all_14_bits_to_the_step() -> None:
    layout = TagLayout()
    assert (layout.job_bits, layout.step_bits) == (0, 14)
    assert layout.sport(0) == 0xC000
    assert layout.sport(16383) == 0xFFFF
    assert layout.sport(16384) == 0xC000
    assert (layout.step_mask, layout.step_sign) == (0x3FFF, 0x2000)


def test_job_tag_lies_above_the_step() -> None:
    layout = TagLayout(4, 10)
    assert layout.sport(0x155, 0b1010) == 0b11_1010_0101010101
    assert layout.job_tag_of(0b11_1010_0101010101) == 0b1010
    assert layout.step_of(0b11_1010_0101010101) == 0x155
    assert layout.sport_match(0b1010) == (0b11_1010_0000000000, 0b11_1111_0000000000)


@pytest.mark.parametrize("port", [0xC000, 0xC001, 0xFFFF])
def test_tagged_ports(port: int) -> None:
    assert TagLayout.is_tagged(port)


@pytest.mark.parametrize("port", [0, 4791, 0x8000, 0xBFFF])
def test_untagged_ports(port: int) -> None:
    assert not TagLayout.is_tagged(port)


@given(layouts, st.data())
def test_round_trip(layout: TagLayout, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, 1 << 20))
    job_tag = data.draw(st.integers(0, (1 << layout.job_bits) - 1))
    port = layout.sport(step, job_tag)
    assert 0xC000 <= port <= 0xFFFF
    assert layout.step_of(port) == step % (1 << layout.step_bits)
    assert layout.job_tag_of(port) == job_tag


@given(layouts, st.data())
def test_match_finds_every_step_of_its_job_and_no_other_job(
    layout: TagLayout, data: st.DataObject
) -> None:
    job_tags = st.integers(0, (1 << layout.job_bits) - 1)
    job_tag, other = data.draw(job_tags), data.draw(job_tags)
    step = data.draw(st.integers(0, layout.step_mask))
    value, mask = layout.sport_match(job_tag)
    assert value & ~mask == 0
    assert (layout.sport(step, other) & mask == value) == (other == job_tag)
    assert 0xBFFF & mask != value


@pytest.mark.parametrize(
    ("job_bits", "step_bits", "complaint"),
    [
        (0, 13, r"J=0, S=13: J \+ S must be 14"),
        (1, 14, r"J=1, S=14: J \+ S must be 14"),
        (13, 1, r"S in 2\.\.14"),
        (-1, 15, r"J must be >= 0 and S in 2\.\.14"),
        (0, 0, r"S in 2\.\.14"),
    ],
)
def test_impossible_layouts_are_refused(job_bits: int, step_bits: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        TagLayout(job_bits, step_bits)


@pytest.mark.parametrize("job_tag", [-1, 16])
def test_job_tag_that_does_not_fit_is_refused(job_tag: int) -> None:
    with pytest.raises(ValueError, match=rf"job tag {job_tag} does not fit in 4 bits; use 0\.\.15"):
        TagLayout(4, 10).sport(0, job_tag)


def test_carriers_are_spelt_as_in_configuration_files() -> None:
    assert [carrier.value for carrier in JobCarrier] == ["rule", "sport", "resv6a", "dscp"]
