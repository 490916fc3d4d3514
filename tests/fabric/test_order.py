"""Ring order: fewest edges between racks, then between pods; fixed ranks keep their host."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringstep.fabric import Topology
from ringstep.fabric.order import propose_order
from ringstep.fabric.pathgraph import Fabric, PlanError, leaf_spine, multi_pod


def cost(fabric: Fabric, hosts: Sequence[str]) -> tuple[int, int]:
    """Edges between ToRs and between pods, counted from the names."""
    tors = [fabric.attachments[host][0].node for host in hosts]
    pods = [tor.split("-")[0] if tor.startswith("pod") else "" for tor in tors]
    return (
        sum(a != tors[i - 1] for i, a in enumerate(tors)),
        sum(a != pods[i - 1] for i, a in enumerate(pods)),
    )


@given(st.integers(2, 5), st.integers(1, 5), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_free_ring_leaves_every_rack_once(tors: int, hosts: int, rng: random.Random) -> None:
    fabric = leaf_spine(tors, 2, hosts)
    names = rng.sample(list(fabric.attachments), rng.randint(2, tors * hosts))
    order = propose_order(fabric, names)
    racks = {fabric.attachments[name][0].node for name in names}
    assert sorted(order.hosts) == sorted(names)
    assert order.inter_tor_edges == (len(racks) if len(racks) > 1 else 0)
    assert (order.inter_tor_edges, order.inter_pod_edges) == cost(fabric, order.hosts)
    assert (order.given_inter_tor_edges, order.given_inter_pod_edges) == cost(fabric, names)
    assert order.fewest


def test_free_ring_leaves_every_pod_once() -> None:
    fabric = multi_pod(3, 4, 2, 1, 2)
    names = random.Random(1).sample(list(fabric.attachments), 24)
    order = propose_order(fabric, names)
    assert (order.inter_tor_edges, order.inter_pod_edges) == (12, 3)
    assert cost(fabric, order.hosts) == (12, 3)


def test_free_ring_depends_on_the_set_of_hosts_alone() -> None:
    fabric = leaf_spine(12, 2, 3)
    names = list(fabric.attachments)
    shuffled = random.Random(2).sample(names, len(names))
    assert propose_order(fabric, shuffled).hosts == tuple(names)


@pytest.mark.parametrize("pods", [1, 2])
def test_with_fixed_ranks_no_permutation_is_better(pods: int) -> None:
    rng = random.Random(3)
    fabric = leaf_spine(3, 2, 3) if pods == 1 else multi_pod(2, 2, 1, 1, 3)
    for _ in range(12):
        names = rng.sample(list(fabric.attachments), 7)
        fixed = rng.sample(range(7), rng.randint(1, 4))
        order = propose_order(fabric, names, fixed)
        assert all(order.hosts[rank] == names[rank] for rank in fixed)
        assert sorted(order.hosts) == sorted(names)
        best = min(
            cost(fabric, ring)
            for ring in permutations(names)
            if all(ring[rank] == names[rank] for rank in fixed)
        )
        assert (order.inter_tor_edges, order.inter_pod_edges) == best
        assert cost(fabric, order.hosts) == best
        assert order.fewest


def test_all_ranks_fixed_change_nothing() -> None:
    fabric = leaf_spine(2, 1, 2)
    names = ["h0", "h2", "h1", "h3"]
    order = propose_order(fabric, names, range(4))
    assert order.hosts == tuple(names)
    assert order.inter_tor_edges == order.given_inter_tor_edges == 4


def test_large_ring_with_many_fixed_ranks_gets_better_and_keeps_them() -> None:
    fabric = leaf_spine(32, 4, 8)
    rng = random.Random(4)
    names = rng.sample(list(fabric.attachments), 256)
    fixed = rng.sample(range(256), 20)
    order = propose_order(fabric, names, fixed)
    assert not order.fewest
    assert all(order.hosts[rank] == names[rank] for rank in fixed)
    assert sorted(order.hosts) == sorted(names)
    assert order.inter_tor_edges < order.given_inter_tor_edges / 3
    assert (order.inter_tor_edges, order.inter_pod_edges) == cost(fabric, order.hosts)


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=20)
def test_order_is_never_worse_than_the_one_given(seed: int) -> None:
    rng = random.Random(seed)
    fabric = leaf_spine(16, 2, 4)
    names = list(fabric.attachments)
    for _ in range(rng.randint(0, 4)):
        i, j = rng.sample(range(64), 2)
        names[i], names[j] = names[j], names[i]
    order = propose_order(fabric, names, rng.sample(range(64), rng.randint(1, 50)))
    assert order.inter_tor_edges <= order.given_inter_tor_edges


def test_topology_is_accepted(two_tier: Topology) -> None:
    order = propose_order(two_tier, ["h1", "h3", "h2", "h4"])
    assert order.hosts == ("h1", "h2", "h3", "h4")
    assert (order.inter_tor_edges, order.given_inter_tor_edges) == (2, 4)


@pytest.mark.parametrize(
    ("hosts", "fixed", "message"),
    [
        (["h0"], [], "a ring of 1 hosts has no order; name at least two hosts"),
        (["h0", "h0"], [], "host 'h0' stands twice in the ring; name every host once"),
        (["h0", "x"], [], "host 'x' is not connected to the fabric"),
        (["h0", "h1"], [2], "rank 2 cannot be fixed; the ring has ranks 0 to 1"),
        (["h0", "h1"], [-1], "rank -1 cannot be fixed"),
    ],
)
def test_rings_without_sense_are_refused(hosts: list[str], fixed: list[int], message: str) -> None:
    with pytest.raises(PlanError, match=f"^{message}"):
        propose_order(leaf_spine(2, 1, 1), hosts, fixed)
