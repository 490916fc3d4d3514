"""The C library and ringstep.protocol.tag compute the same ports."""

from __future__ import annotations

import ctypes

import pytest

from ringstep.hostlib.tagger import _Layout
from ringstep.hostlib.tagging import PortPerStep, QpPool
from ringstep.protocol.tag import TagLayout

LAYOUTS = [TagLayout(14 - s, s) for s in range(2, 15)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda at: f"S={at.step_bits}")
def test_every_port_of_every_layout(library: ctypes.CDLL, layout: TagLayout) -> None:
    c = _Layout(layout.job_bits, layout.step_bits)
    assert library.rt_layout_check(c) == 0
    for job in range(1 << layout.job_bits):
        for step in range(1 << layout.step_bits):
            port = library.rt_sport(c, job, step)
            assert port == layout.sport(step, job)
            label = library.rt_flow_label(c, job, step)
            # As ibv_flow_label_to_udp_sport has it.
            assert 0xC000 | (label & 0x3FFF ^ label >> 14) == port
            assert 0 < label < 1 << 20
            assert library.rt_step_of(c, port) == layout.step_of(port) == step
            assert library.rt_job_tag_of(c, port) == layout.job_tag_of(port) == job
    assert library.rt_sport(c, 1 << layout.job_bits, 0) == 0
    assert library.rt_flow_label(c, 1 << layout.job_bits, 0) == 0
    assert library.rt_max_skew(c) == PortPerStep(layout).max_skew
    assert library.rt_wraps_after(c) == layout.step_mask + 1


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda at: f"S={at.step_bits}")
def test_steps_wrap_and_are_ordered_across_the_wrap(
    library: ctypes.CDLL, layout: TagLayout
) -> None:
    c = _Layout(layout.job_bits, layout.step_bits)
    turn = layout.step_mask + 1
    for base in (0, turn - 1, turn, 2**32 - 1, 2**64 - 2 * turn):
        assert library.rt_sport(c, 0, base) == layout.sport(base)
        for distance in {0, 1, layout.step_sign - 1, layout.step_sign, turn - 1}:
            ahead = 0 < distance % turn < layout.step_sign
            assert bool(library.rt_ahead(c, base + distance, base)) == ahead


def test_what_is_no_layout_is_refused(library: ctypes.CDLL) -> None:
    for job, step in ((0, 13), (14, 0), (13, 1), (1, 14), (0, 15), (2**32 - 1, 15)):
        c = _Layout(job, step)
        assert library.rt_layout_check(c) == 22
        assert b"J + S must be 14" in library.rt_last_error()
        assert library.rt_sport(c, 0, 0) == 0
        assert library.rt_max_skew(c) == library.rt_wraps_after(c) == 0
        assert library.rt_ahead(c, 2, 1) == 0


def test_pools_need_the_layout_that_python_gives_them(library: ctypes.CDLL) -> None:
    for k in range(16_500):
        c = _Layout()
        status = library.rt_pool_layout(k, ctypes.byref(c))
        try:
            pool = QpPool.of(k)
        except ValueError:
            assert status == 22
        else:
            assert status == 0
            assert (c.job_bits, c.step_bits) == (pool.layout.job_bits, pool.layout.step_bits)
            assert library.rt_max_skew(c) == pool.max_skew == k // 2 - 1
            for step in (0, 1, k - 1, k, 5 * k + 3):
                assert library.rt_pool_index(k, step) == pool.place(0, step).qp_index
    assert library.rt_pool_index(0, 7) == 0
