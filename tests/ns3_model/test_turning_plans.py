"""Plans that pin a path per ring edge, or the paths of an edge in turn."""

import pytest

from ringstep_ns3 import Scenario, prepare, run

RINGS = """
[fabric]
kind = "leaf_spine"
leaves = 4
spines = 2
hosts_per_leaf = 2
rate = "10G"

[switch]
lb = "planned"

[[job]]
ring_size = 4
chunk = "40KB"
"""


def _paths_per_edge(scenario: Scenario) -> set[int]:
    paths = prepare(scenario).paths
    edges = [(path.job, path.src, path.dst, path.channel) for path in paths]
    return {edges.count(edge) for edge in edges}


@pytest.mark.parametrize(
    ("sender", "port", "plan", "turns"),
    [
        ("qp_per_step", "per_step", "auto", 2),
        ("qp_pool", "per_step", "auto", 2),
        ("qp_per_step", "sticky", "auto", 1),
        ("persistent", "sticky", "auto", 1),
        ("qp_per_step", "per_step", "edge", 1),
        ("qp_per_step", "sticky", "step", 2),
    ],
)
def test_which_jobs_turn(sender: str, port: str, plan: str, turns: int) -> None:
    scenario = Scenario.parse(RINGS).setting(
        {"job.sender": sender, "job.port": port, "switch.plan": plan}
    )
    assert _paths_per_edge(scenario) == {turns}


@pytest.mark.parametrize(("plan", "shares"), [("edge", [0, 6]), ("step", [3, 3])])
def test_steps_take_the_planned_links(plan: str, shares: list[int]) -> None:
    """One edge out of each ToR, six steps of 40 packets: all by one uplink, or by both in turn."""
    scenario = Scenario.parse(RINGS).setting({"fabric.hosts_per_leaf": 1, "switch.plan": plan})
    results = run(scenario)
    assert results.summary["complete"]
    links = results.table("links").to_pydict()
    carried = dict(zip(links["name"], links["data_packets"], strict=True))
    for tor in range(4):
        uplinks = [carried[f"tor{tor}->spine{spine}"] for spine in range(2)]
        assert sorted(uplinks) == [40 * share for share in shares]
