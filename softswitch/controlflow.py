"""Structure of a control: where its branches meet again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ringstep.softswitch.errors import PipelineError, UnsupportedConstruct
from ringstep.softswitch.model import Conditional, Control, ParseState, TableDef


def successors(node: TableDef | Conditional) -> list[str | None]:
    """The distinct nodes that may follow `node`; None is the end of the control."""
    if isinstance(node, Conditional):
        following = [node.true_next, node.false_next]
    elif node.next_by_action is None:
        following = [node.next_hit, node.next_miss]
    else:
        following = [*node.next_by_action.values(), node.base_default_next]
        if not node.next_by_action:
            following = [node.base_default_next]
    return list(dict.fromkeys(following))


def topological_order(graph: Mapping[str, Iterable[str | None]], start: str | None) -> list[str]:
    """The nodes reachable from `start`, each before those that follow it.

    Raises PipelineError where a node is missing, UnsupportedConstruct where there is a cycle.
    """
    order: list[str] = []
    state: dict[str, int] = {}
    stack: list[tuple[str, bool]] = [(start, False)] if start is not None else []
    while stack:
        name, done = stack.pop()
        if done:
            state[name] = 2
            order.append(name)
            continue
        if state.get(name) == 2:
            continue
        if state.get(name) == 1:
            raise UnsupportedConstruct(f"a loop through {name!r}", "in the control flow")
        if name not in graph:
            raise PipelineError(f"the control flow leads to {name!r}, which does not exist")
        state[name] = 1
        stack.append((name, True))
        for following in graph[name]:
            if following is None or state.get(following) == 2:
                continue
            if state.get(following) == 1 and (following, True) in stack:
                raise UnsupportedConstruct(f"a loop through {following!r}", "in the control flow")
            stack.append((following, False))
    order.reverse()
    return order


def meeting_points(control: Control) -> dict[str, str | None]:
    """The immediate post-dominator of each node.

    That is the first node that every path from it passes through again, or None, the end.
    """
    graph = {name: successors(node) for name, node in control.nodes.items()}
    order = topological_order(graph, control.start)
    # The sets of nodes that lie on every path from a node to the end, itself included.
    always: dict[str | None, frozenset[str | None]] = {None: frozenset({None})}
    result: dict[str, str | None] = {}
    for name in reversed(order):
        following = [always[n] for n in graph[name]]
        common = frozenset.intersection(*following)
        # Of these, the nearest has all the others behind it.
        result[name] = max(common, key=lambda n: len(always[n]))
        always[name] = common | {name}
    return result


def parser_graph(states: Mapping[str, ParseState]) -> dict[str, list[str | None]]:
    """The successors of each parser state."""
    return {
        name: list(dict.fromkeys([t.next_state for t in state.transitions]))
        for name, state in states.items()
    }
