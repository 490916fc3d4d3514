"""The fabric with links down and switches drained: what is left, and what changes on switches."""

from __future__ import annotations

import pytest
from leafspine import leaf_spine

from ringstep.controller.entries import EntryKey, Exact, SwitchTables
from ringstep.controller.fabricview import CutOffError, FabricView, fabric_view
from ringstep.fabric import Topology
from ringstep.fabric.rings import Edge


@pytest.fixture
def fabric() -> Topology:
    """Four ToRs with two hosts each, three spines."""
    return leaf_spine(4, 3, 2)


def path_ids(view: FabricView, switch: str) -> list[int]:
    return sorted(
        dict(key.match)["path_id"].value  # type: ignore[union-attr]
        for key in view.base[switch].entries
        if key.table == "planned_path"
    )


def changed(before: SwitchTables, after: SwitchTables) -> list[str]:
    """Lines that are not in both."""
    return sorted(set(before.lines()) ^ set(after.lines()))


def test_every_port_between_switches_is_a_path(fabric: Topology) -> None:
    view = fabric_view(fabric)
    assert path_ids(view, "tor1") == [101, 102, 103]
    assert path_ids(view, "spine2") == [1, 2, 3, 4]
    assert view.usable is fabric
    key = EntryKey("planned_path", (("path_id", Exact(101)),))
    member = next(call for key, call in view.base["tor1"].members.items() if key.id == 101)
    assert view.base["tor1"].entries[key] == member


@pytest.mark.parametrize("end", [("tor1", 101), ("spine1", 1)])
def test_failed_link_costs_few_writes_and_renumbers_nothing(
    fabric: Topology, end: tuple[str, int]
) -> None:
    well, view = fabric_view(fabric), fabric_view(fabric, {end})
    assert view.down == {("tor1", 101), ("spine1", 1)}
    assert path_ids(view, "tor1") == [102, 103]
    assert path_ids(view, "spine1") == [2, 3, 4]
    # Its own ToR: one group has a member less, and the path is gone. No route changes.
    lines = changed(well.base["tor1"], view.base["tor1"])
    assert [line.split()[0] for line in lines] == ["entry", "group", "group", "member"]
    # Other ToRs: only the routes to the two hosts behind it change.
    lines = changed(well.base["tor3"], view.base["tor3"])
    assert sum("route_v4" in line for line in lines) == 4
    assert all("10.1.0" in line or "0xa0100" in line for line in lines if "route" in line)
    assert well.base["spine2"] == view.base["spine2"]
    assert fabric_view(fabric).base == well.base


def test_second_failure_leaves_the_groups_of_the_first(fabric: Topology) -> None:
    one = fabric_view(fabric, {("tor1", 101)})
    two = fabric_view(fabric, {("tor1", 101), ("tor2", 102)})
    lines = changed(one.base["tor3"], two.base["tor3"])
    routes = [line for line in lines if "route_v4" in line]
    # What changes is towards tor2's hosts: 10.2.0.1 and 10.2.0.2.
    assert len(routes) == 4
    assert all("0xa0200" in line for line in routes)


def test_host_of_a_failed_link_is_cut_off_and_that_is_no_error(fabric: Topology) -> None:
    view = fabric_view(fabric, {("tor1", 1)})
    assert view.ports_towards("tor2", "h1-1") == ()
    assert view.ports_towards("tor2", "h1-2") == (101, 102, 103)
    assert view.planner.attachments["h1-1"] == ()


def test_drained_spine_gets_no_traffic_and_keeps_its_tables(fabric: Topology) -> None:
    well, view = fabric_view(fabric), fabric_view(fabric, drained={"spine2"})
    assert view.drained == {"spine2"}
    assert view.base["spine2"] == well.base["spine2"]
    assert path_ids(view, "tor1") == [101, 103]
    assert view.ports_towards("tor1", "h2-1") == (101, 103)
    assert not any(
        "spine2" in (link.a.node, link.b.node) and link.up for link in view.planner.links
    )
    lines = changed(well.base["tor1"], view.base["tor1"])
    assert [line.split()[0] for line in lines] == ["entry", "group", "group", "member"]


def test_drained_switch_follows_failures(fabric: Topology) -> None:
    view = fabric_view(fabric, {("tor1", 102)}, {"spine2"})
    assert path_ids(view, "spine2") == [2, 3, 4]


def test_draining_that_cuts_off_hosts_is_refused(fabric: Topology) -> None:
    with pytest.raises(CutOffError, match="draining tor2 would cut off hosts h2-1, h2-2;") as error:
        fabric_view(fabric, drained={"tor2"})
    assert error.value.hosts == ("h2-1", "h2-2")
    # Without spines every rack is alone: the first one counts as what is left.
    with pytest.raises(CutOffError, match="hosts h2-1, h2-2, h3-1, h3-2, h4-1, h4-2;"):
        fabric_view(fabric, drained={"spine1", "spine2", "spine3"})
    with pytest.raises(CutOffError, match="hosts h1-1, h1-2;"):
        fabric_view(fabric, {("tor1", 102), ("tor1", 103)}, {"spine1"})


def test_only_edges_that_must_reach_count(fabric: Topology) -> None:
    view = fabric_view(fabric, drained={"tor2"}, must_reach=[Edge("h1-1", "h3-1")])
    assert view.ports_towards("tor1", "h2-1") == ()
    assert fabric_view(fabric, drained={"tor2"}, must_reach=[Edge("h2-1", "h2-2")])
    with pytest.raises(CutOffError) as error:
        fabric_view(fabric, drained={"tor2"}, must_reach=[Edge("h2-1", "h3-1")])
    assert error.value.hosts == ("h2-1", "h3-1")
    assert fabric_view(fabric, drained={"tor2"}, must_reach=())


def test_host_with_two_tors_is_not_cut_off() -> None:
    view = fabric_view(leaf_spine(3, 2, 1, ["h1-1"]), drained={"tor1"}, must_reach=None)
    assert view.ports_towards("spine1", "h1-1") == (2,)


def test_facts_older_than_the_topology_are_left_out(fabric: Topology) -> None:
    view = fabric_view(fabric, {("tor9", 1), ("tor1", 77), ("h1-1", 0)}, {"spine9"})
    assert (view.down, view.drained) == (frozenset(), frozenset())
    assert view.base == fabric_view(fabric).base


def test_numbers_of_groups_depend_on_ports_alone(fabric: Topology) -> None:
    ends = [("tor1", 101), ("tor2", 102), ("tor3", 103), ("tor4", 101)]
    views = [fabric_view(fabric, ends[:n]) for n in range(5)]
    for switch in fabric.switches:
        seen: dict[int, set[tuple[int, ...]]] = {}
        for view in views:
            for key, members in view.base[switch].groups.items():
                ports = tuple(port for port, _ in members)
                seen.setdefault(key.id, set()).add(ports)
        # A group from above all ports' numbers that only failures make has one set of ports.
        assert all(len(ports) == 1 for number, ports in seen.items() if number >= 1 << 15)
        assert all(0 < number < 1 << 16 for number in seen)
