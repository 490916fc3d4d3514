"""Ring edges, and the switch ports that their packets may leave by."""

from __future__ import annotations

import pytest

from ringstep.fabric import Topology
from ringstep.fabric.rings import Edge, egress_ports, ring_edges
from ringstep.fabric.routing import route_tables


def test_last_host_sends_to_the_first() -> None:
    assert ring_edges([["a", "b", "c"]]) == (Edge("a", "b"), Edge("b", "c"), Edge("c", "a"))


def test_two_hosts_send_to_each_other() -> None:
    assert ring_edges([["a", "b"]]) == (Edge("a", "b"), Edge("b", "a"))


def test_channels_share_equal_edges() -> None:
    edges = ring_edges([["a", "b", "c"], ["b", "c", "a"], ["c", "b", "a"]])
    assert [str(edge) for edge in edges] == ["a->b", "b->c", "c->a", "c->b", "b->a", "a->c"]


@pytest.mark.parametrize(
    ("ring", "message"),
    [
        ([], "a ring of 0 hosts has no edges; name at least two hosts"),
        (["a"], "a ring of 1 hosts has no edges; name at least two hosts"),
        (["a", "b", "a"], "host 'a' stands twice in one ring; name every host once"),
    ],
)
def test_rings_without_sense_are_refused(ring: list[str], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message + "$"):
        ring_edges([ring])


def test_edge_within_a_rack_crosses_one_port(two_tier: Topology) -> None:
    assert egress_ports(two_tier, route_tables(two_tier), Edge("h1", "h2")) == {
        "tor1": frozenset({2})
    }


def test_edge_between_racks_crosses_all_equal_cost_paths(two_tier: Topology) -> None:
    assert egress_ports(two_tier, route_tables(two_tier), Edge("h2", "h3")) == {
        "spine1": frozenset({2}),
        "spine2": frozenset({2}),
        "tor1": frozenset({11, 12}),
        "tor2": frozenset({1}),
    }
