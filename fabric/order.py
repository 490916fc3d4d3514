"""The order of hosts in a ring that leaves the racks least often.

An edge between racks is one that has to share uplinks: in reference runs the same ring took 1.09
times its lower bound with neighbours placed next to each other, and 2.4 to 4.8 times interleaved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ringstep.fabric.balance import natural
from ringstep.fabric.model import Topology
from ringstep.fabric.pathgraph import Fabric, PlanError

_MOST_STATES = 200_000
_MOST_SWAPS = 2_000_000


@dataclass(frozen=True, slots=True)
class RingOrder:
    """A proposed ring: host of each rank, and how often it leaves a rack or pod.

    Attributes:
        hosts: host per rank.
        inter_tor_edges: edges between different ToRs.
        inter_pod_edges: edges between different pods.
        given_inter_tor_edges: the same of the order that was given.
        given_inter_pod_edges: the same of the order that was given.
        fewest: whether no order can have fewer edges between ToRs; false means that the ranks
            held fixed made the search too large, and a good order is all that is promised.
    """

    hosts: tuple[str, ...]
    inter_tor_edges: int
    inter_pod_edges: int
    given_inter_tor_edges: int
    given_inter_pod_edges: int
    fewest: bool


Cost = tuple[int, int]
"""Edges between ToRs, then edges between pods."""


def propose_order(
    fabric: Fabric | Topology, hosts: Sequence[str], fixed: Collection[int] = ()
) -> RingOrder:
    """Return the ring order with the fewest inter-ToR edges, and of those the fewest inter-pod.

    Args:
        fabric: where the hosts are.
        hosts: the hosts in their present order: rank r is ``hosts[r]``.
        fixed: ranks that keep their host.

    Without fixed ranks the result depends on the set of hosts alone. It never leaves racks more
    often than the present order. A host with several ToRs counts for the first by name.

    Raises:
        PlanError: fewer than two hosts, a host twice or unknown, or a rank that does not exist.
    """
    fabric = Fabric.of(fabric) if isinstance(fabric, Topology) else fabric
    _check(fabric, hosts, fixed)
    place = _Places(fabric, hosts)
    given = place.cost([place.tor[host] for host in hosts])
    if not fixed:
        order = sorted(hosts, key=lambda host: (place.tor[host], natural(host)))
        cost = place.cost([place.tor[host] for host in order])
        return RingOrder(tuple(order), *cost, *given, fewest=True)

    # A ring has no beginning: turn it so that it begins at a rank that is fixed.
    turn = min(fixed)
    slots: list[int | None] = [None] * len(hosts)
    for rank in fixed:
        slots[(rank - turn) % len(hosts)] = place.tor[hosts[rank]]
    free = [host for rank, host in enumerate(hosts) if rank not in set(fixed)]
    supply = Counter(place.tor[host] for host in free)
    states = len(set(place.tor.values()))
    for count in supply.values():
        states *= count + 1
    exact = states <= _MOST_STATES
    filled = _fewest(place, slots, supply) if exact else _few(place, slots, supply)
    if place.cost(filled) > given:
        filled = [place.tor[hosts[(i + turn) % len(hosts)]] for i in range(len(hosts))]
    waiting: dict[int, list[str]] = {}
    for host in sorted(free, key=natural, reverse=True):
        waiting.setdefault(place.tor[host], []).append(host)
    ranked = [
        hosts[rank]
        if slots[(rank - turn) % len(hosts)] is not None
        else waiting[filled[(rank - turn) % len(hosts)]].pop()
        for rank in range(len(hosts))
    ]
    return RingOrder(tuple(ranked), *place.cost(filled), *given, fewest=exact)


def _check(fabric: Fabric, hosts: Sequence[str], fixed: Collection[int]) -> None:
    if len(hosts) < 2:
        raise PlanError(f"a ring of {len(hosts)} hosts has no order; name at least two hosts")
    twice = [host for host, count in Counter(hosts).items() if count > 1]
    if twice:
        raise PlanError(f"host {twice[0]!r} stands twice in the ring; name every host once")
    for host in hosts:
        if not fabric.attachments.get(host):
            raise PlanError(
                f"host {host!r} is not connected to the fabric; take it out of the ring, or add "
                "its link"
            )
    for rank in sorted(fixed):
        if not 0 <= rank < len(hosts):
            raise PlanError(
                f"rank {rank} cannot be fixed; the ring has ranks 0 to {len(hosts) - 1}"
            )


class _Places:
    """ToRs of the hosts, numbered pod by pod."""

    def __init__(self, fabric: Fabric, hosts: Sequence[str]) -> None:
        graph = fabric.graph
        pods = graph.parts(0, 1) if max(graph.tier) > 1 else [0] * len(graph.names)
        home = {host: graph.number[min(fabric.attachments[host]).node] for host in hosts}
        first = {
            pod: min(natural(graph.names[s]) for s in home.values() if pods[s] == pod)
            for pod in {pods[s] for s in home.values()}
        }
        switches = sorted(
            set(home.values()), key=lambda s: (first[pods[s]], pods[s], natural(graph.names[s]))
        )
        number = {switch: i for i, switch in enumerate(switches)}
        self.tor = {host: number[switch] for host, switch in home.items()}
        self._pod = [pods[switch] for switch in switches]

    def step(self, a: int, b: int) -> Cost:
        return int(a != b), int(self._pod[a] != self._pod[b])

    def cost(self, tors: Sequence[int]) -> Cost:
        steps = [self.step(a, tors[i - 1]) for i, a in enumerate(tors)]
        return sum(tor for tor, _ in steps), sum(pod for _, pod in steps)


def _fewest(place: _Places, slots: Sequence[int | None], supply: Counter[int]) -> list[int]:
    """Fill the free slots at least cost, by going through all ways to have used up the supply."""
    first = slots[0]
    assert first is not None
    tors = sorted(supply)
    layers: list[dict[tuple[tuple[int, ...], int], tuple[Cost, tuple[tuple[int, ...], int]]]] = []
    start = (tuple(supply[tor] for tor in tors), first)
    layer = {start: ((0, 0), start)}
    for slot in slots[1:]:
        layers.append(layer)
        following: dict[tuple[tuple[int, ...], int], tuple[Cost, tuple[tuple[int, ...], int]]] = {}
        for state, (cost, _) in layer.items():
            left, last = state
            choices = (
                [(slot, left)]
                if slot is not None
                else [
                    (tor, (*left[:i], left[i] - 1, *left[i + 1 :]))
                    for i, tor in enumerate(tors)
                    if left[i]
                ]
            )
            for tor, rest in choices:
                tor_step, pod_step = place.step(last, tor)
                reached = (cost[0] + tor_step, cost[1] + pod_step)
                known = following.get((rest, tor))
                if known is None or reached < known[0]:
                    following[rest, tor] = (reached, state)
        layer = following
    layers.append(layer)

    def closed(item: tuple[tuple[tuple[int, ...], int], tuple[Cost, object]]) -> tuple[Cost, int]:
        (_, last), (cost, _) = item
        tor_step, pod_step = place.step(last, first)
        return (cost[0] + tor_step, cost[1] + pod_step), last

    state = min(layer.items(), key=closed)[0]
    filled = []
    for layer in reversed(layers):
        filled.append(state[1])
        state = layer[state][1]
    return filled[::-1]


def _few(place: _Places, slots: Sequence[int | None], supply: Counter[int]) -> list[int]:
    """Fill the free slots by staying in a rack while it lasts, then swap while that helps."""
    left = Counter(supply)
    filled: list[int] = []
    for position, slot in enumerate(slots):
        if slot is not None:
            filled.append(slot)
            continue
        last = filled[-1]
        end = position
        while end < len(slots) and slots[end] is None:
            end += 1
        following = slots[end % len(slots)]
        gap = end - position

        def rank(
            tor: int, last: int = last, gap: int = gap, following: int | None = following
        ) -> tuple[bool, bool, int, int]:
            fits = gap - left[tor]
            return tor != last, tor != following, fits if fits >= 0 else len(slots) - fits, tor

        tor = min((tor for tor, count in left.items() if count), key=rank)
        left[tor] -= 1
        filled.append(tor)
    free = [position for position, slot in enumerate(slots) if slot is None]
    swaps = 0
    better = True
    while better and swaps < _MOST_SWAPS:
        better = False
        for at, i in enumerate(free):
            if filled[i - 1] == filled[i] == filled[(i + 1) % len(filled)]:
                continue
            for j in free[at + 1 :]:
                swaps += 1
                if filled[i] != filled[j] and _swap_if_better(place, filled, i, j):
                    better = True
    return filled


def _swap_if_better(place: _Places, filled: list[int], i: int, j: int) -> bool:
    size = len(filled)
    around = {i, (i + 1) % size, j, (j + 1) % size}

    def near() -> Cost:
        steps = [place.step(filled[k - 1], filled[k]) for k in around]
        return sum(tor for tor, _ in steps), sum(pod for _, pod in steps)

    before = near()
    filled[i], filled[j] = filled[j], filled[i]
    if near() < before:
        return True
    filled[i], filled[j] = filled[j], filled[i]
    return False
