"""Steps on source ports and queue pairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep.hostlib.tagging import Placement, PortPerStep, QpPool
from ringstep.protocol.serial import ahead
from ringstep.protocol.tag import TagLayout


def test_port_per_step_uses_one_queue_pair() -> None:
    tagger = PortPerStep()
    assert tagger.qps == 1
    assert tagger.place(0, 0) == Placement(0, 0xC000)
    assert tagger.place(0, 5) == Placement(0, 0xC005)
    assert tagger.place(0, 0x4000 + 5) == Placement(0, 0xC005)


def test_port_per_step_with_job_bits() -> None:
    tagger = PortPerStep(TagLayout(job_bits=4, step_bits=10))
    assert tagger.place(3, 7).sport == 0xC000 | 3 << 10 | 7
    with pytest.raises(ValueError, match="job tag 16 does not fit in 4 bits"):
        tagger.place(16, 0)


def test_pool_cycles_through_its_queue_pairs() -> None:
    pool = QpPool.of(8)
    assert pool.qps == 8
    assert [pool.place(0, step).qp_index for step in range(10)] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    assert pool.ports(5) == [0xC000 | 5 << 3 | index for index in range(8)]


@given(st.sampled_from([4, 8, 16, 64, 1024]), st.integers(0, 10**6), st.integers(-(10**6), 10**6))
def test_steps_within_the_skew_are_ordered_rightly(k: int, step: int, difference: int) -> None:
    pool = QpPool.of(k)
    other = step + difference % (2 * pool.max_skew + 1) - pool.max_skew
    if other < 0:
        return
    pool.check_skew(other - step)
    tags = [pool.layout.step_of(pool.place(0, at).sport) for at in (step, other)]
    assert ahead(tags[1], tags[0], pool.layout.step_bits) == (other > step)


@given(st.sampled_from([4, 8, 16, 64, 1024]), st.integers(0, 10**6))
def test_the_port_of_a_step_is_that_of_its_queue_pair(k: int, step: int) -> None:
    pool = QpPool.of(k)
    place = pool.place(0, step)
    assert place.sport == pool.ports(0)[place.qp_index]


def test_skew_of_half_the_pool_is_refused() -> None:
    pool = QpPool.of(8)
    assert pool.max_skew == 3
    pool.check_skew(-3)
    with pytest.raises(ValueError, match=r"steps 4 apart .* S = 3 tag bits: at most 3"):
        pool.check_skew(4)
    assert PortPerStep().max_skew == 8191


@pytest.mark.parametrize("k", [0, -4, 1, 2, 3, 6, 100, 32768])
def test_pool_size_must_be_a_power_of_two(k: int) -> None:
    with pytest.raises(ValueError, match="power of two from 4 to 16384"):
        QpPool.of(k)
    with pytest.raises(ValueError, match="power of two from 4 to 16384"):
        QpPool(TagLayout(), k)


def test_pool_and_layout_must_agree() -> None:
    with pytest.raises(ValueError, match=r"use TagLayout\(job_bits=11, step_bits=3\)"):
        QpPool(TagLayout(), 8)
    assert QpPool(TagLayout(job_bits=11, step_bits=3), 8).k == 8


@pytest.mark.parametrize("tagger", [PortPerStep(), QpPool.of(4)])
def test_negative_steps_are_refused(tagger: PortPerStep | QpPool) -> None:
    with pytest.raises(ValueError, match="step -1 must not be negative"):
        tagger.place(0, -1)
