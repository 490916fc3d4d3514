"""A plan that turns with the step: every ring edge takes its paths one after the other.

A sender with a queue pair and a source port per step may have several steps on the way at once; on
one pinned path they share its links while others of the same edge lie idle. Turning gives each step
the next path of its edge. All edges turn alike, so that every single step loads the links as evenly
as the plan does.
"""

from __future__ import annotations

from ringstep.fabric.pathgraph import DirectedLink, PathGraph
from ringstep.fabric.planner import PathHop, Plan, PlannedEdge


def turns(plan: Plan) -> int:
    """Return after how many steps every edge has taken each of its ways: 1 where there is one.

    It is the largest number of links by which any switch on a planned path may forward.
    """
    graph = plan.fabric.graph
    return max(
        (
            len(_ways(graph, graph.number[hop.switch], graph.number[edge.switches[-1]]))
            for edge in plan.edges.values()
            for hop in edge.fabric_hops
        ),
        default=1,
    )


def turned(plan: Plan, edge: PlannedEdge, turn: int) -> tuple[PathHop, ...]:
    """Return the hops of an edge's path in a turn; turn 0 is the path of the plan.

    At each switch the way is the one ``turn`` places after the planned one, among the links that
    are up on shortest paths, in their order by neighbour and port.
    """
    graph = plan.fabric.graph
    target = graph.number[edge.switches[-1]]
    at = graph.number[edge.switches[0]]
    hops = []
    for hop in edge.fabric_hops:
        planned = [link.src.port for link in _ways(graph, graph.number[hop.switch], target)]
        ways = _ways(graph, at, target)
        link = ways[(planned.index(hop.port) + turn) % len(ways)]
        hops.append(PathHop(link.src.node, link.src.port))
        at = graph.number[link.dst.node]
    return (*hops, edge.hops[-1])


def _ways(graph: PathGraph, switch: int, target: int) -> list[DirectedLink]:
    return [link for trunk in graph.steps(switch, target) for link in graph.links[trunk]]
