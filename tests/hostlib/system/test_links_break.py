"""A host's link goes down under running ranks."""

from __future__ import annotations

import time

import pytest

from .world import World

pytestmark = pytest.mark.root


def test_short_outage_delays_and_changes_nothing(world: World) -> None:
    ranks = world.start_ranks(sizes=[1 << 12, 1 << 18])
    world.go_on(ranks, 5)
    world.hosts.set_link(2, up=False)
    time.sleep(0.5)
    world.hosts.set_link(2, up=True)
    world.go_on(ranks, 10)
    world.finish(ranks)


def test_host_that_stays_away_ends_every_rank_with_the_reason(world: World) -> None:
    ranks = world.start_ranks(sizes=[1 << 12, 1 << 18], timeout_s=4)
    world.go_on(ranks, 5)
    world.hosts.set_link(2, up=False)
    for rank in ranks:
        assert rank.wait() == 3, rank.text
        assert rank.result["error"] in ("TimedOut", "PeerLost")
        assert rank.result["text"]
