"""Which parts on the nodes are one communicator.

NCCL's id is the same on all nodes, but may come again while the old communicator lives. So parts
belong together only where they can: as many ranks wanted, one part by node, no rank twice. What
could be either is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringstep.hostlib.coordinator.group import Group, Member
from ringstep.hostlib.coordinator.messages import CommStatus, Where

__all__ = ["grouped"]

Groups = dict[frozenset[Member], Group]


def grouped(
    nodes: Mapping[str, Mapping[Where, CommStatus]], known: Groups, capacity: int
) -> Groups:
    """Return the communicators, those known among them as they are.

    Args:
        nodes: what each node told of its parts.
        known: communicators so far.
        capacity: keys remembered by a new one.
    """
    alike: dict[tuple[int, int], dict[Member, CommStatus]] = {}
    for node, statuses in nodes.items():
        for where, status in statuses.items():
            alike.setdefault((status.comm_id, status.n_ranks), {})[(node, where)] = status
    found: Groups = {}
    for (comm_id, n_ranks), parts in alike.items():
        name = f"{comm_id:016x}/{n_ranks}"
        rest = {}
        for member, status in parts.items():
            if status.whole:
                node, (block, generation) = member
                alone = {member: status}
                _keep(found, known, f"{name}@{node}:{block}.{generation}", alone, capacity)
            else:
                rest[member] = status
        if rest and _disjoint(rest):
            _keep(found, known, name, rest, capacity)
    return found


def _keep(
    found: Groups, known: Groups, name: str, members: dict[Member, CommStatus], capacity: int
) -> None:
    identity = frozenset(members)
    group = known.get(identity)
    if group is None or group.name != name:
        group = Group(name, members, capacity)
    else:
        group.members = members
    group.changed()
    found[identity] = group


def _disjoint(parts: dict[Member, CommStatus]) -> bool:
    """Whether parts can be of one communicator: one by node, no rank twice."""
    nodes = [node for node, _ in parts]
    ranks = [rank for status in parts.values() for rank in status.ranks]
    return len(set(nodes)) == len(nodes) and len(set(ranks)) == len(ranks)
