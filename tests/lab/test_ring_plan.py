"""Which runs an experiment has, in which fabrics, and what they need at least."""

import pytest

from ringstep.lab.leafspine import LeafSpine
from ringstep.lab.ringlab import (
    Marking,
    Planned,
    RingBound,
    RingParams,
    expected_s,
    fabrics_needed,
    plan_runs,
)
from ringstep.lab.steering import Paths


def test_every_variant_of_a_seed_before_the_next_seed() -> None:
    params = RingParams(seeds=(3, 1), background=(True, False))
    runs = plan_runs(params, spaced=False)
    assert len(runs) == len(set(runs)) == 2 * 2 * 2 * 2
    assert [run.seed for run in runs] == [3] * 8 + [1] * 8
    assert runs[0] == Planned(3, Paths.ECMP, Marking.OFF, background=True)
    assert {run.marking for run in runs} == {Marking.OFF, Marking.PAPER}
    spaced = plan_runs(params, spaced=True)
    assert {run.marking for run in spaced} == {Marking.SPACED, Marking.RINGSTEP}


@pytest.mark.parametrize(
    ("markings", "spaced"),
    [
        ((Marking.OFF, Marking.PAPER), [False]),
        ((Marking.RINGSTEP, Marking.OFF), [True, False]),
        ((Marking.SPACED,), [True]),
    ],
)
def test_a_fabric_per_spacing_that_the_markings_need(
    markings: tuple[Marking, ...], spaced: list[bool]
) -> None:
    fabric = LeafSpine(hosts=4, leaves=2)
    needed = fabrics_needed(fabric, RingParams(markings=markings))
    assert [one.spaced for one in needed] == spaced
    assert all((one.hosts, one.leaves) == (4, 2) for one in needed)


def test_the_bound_counts_bits_over_a_fair_share_of_the_uplinks() -> None:
    # 8 ranks, 2 MiB: 32 packets of 8192 + 58 bytes per step, over 50, 25, 25 and 50 Mb/s.
    bound = RingBound(LeafSpine(), 2 << 20)
    frame_us = 8250 * 8 / 25
    assert (bound.packets, bound.steps) == (32, 14)
    assert bound.step_us == pytest.approx(31 * frame_us + 2 * frame_us + 2 * frame_us / 2)
    assert bound.total_us == pytest.approx(14 * bound.step_us)
    # Three edges on an uplink's share take three times as long, but for the hosts' links.
    crowded = RingBound(LeafSpine(hosts=12, leaves=4, spines=1, oversubscription=6), 2 << 20)
    assert crowded.hops_bps[1] == pytest.approx(25e6 / 3)
    params = RingParams(seeds=(1,))
    assert expected_s(params, LeafSpine(), plan_runs(params, spaced=True)) > 4 * 1.2


def test_a_step_of_less_than_a_packet() -> None:
    bound = RingBound(LeafSpine(hosts=4, leaves=2), 64)
    assert (bound.packets, bound.chunk) == (1, 16)
    assert bound.step_us == pytest.approx((16 + 58) * 8 * (2 / 50 + 2 / 25))
