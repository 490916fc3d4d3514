"""Which way the lab's packets take: ECMP's choice, the controller's plan, or one that turns.

Planned paths are the controller's: it pins them by rule, whatever ports the sender uses
(docs/planning.md, "In service"). A plan that turns with the step is no rule's, so there the sender
steers: a switch that finds the job by address pair ignores the job bits of the source port, but
ECMP hashes them. With ``ringstep.fabric.ecmp``, which is that hash bit for bit, the lab looks for
job bits that lead over the wanted links.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cache, cached_property
from typing import Final

from ringstep.fabric.ecmp import FlowKey, ecmp_port
from ringstep.fabric.model import Topology
from ringstep.fabric.planner import PathHop, Plan, PlannedEdge, plan_paths, ring_demands
from ringstep.fabric.routing import route_tables
from ringstep.fabric.turns import turned
from ringstep.protocol.limits import ROCE_UDP_PORT
from ringstep.protocol.tag import TagLayout

LAYOUT: Final = TagLayout(job_bits=6, step_bits=8)
"""Steps modulo 256, so that ranks may be 127 apart; 64 source ports to choose from per step."""
JOB: Final = "lab"


class Paths(StrEnum):
    """How an edge's packets find their way."""

    ECMP = "ecmp"
    """By hash; each step, having a port of its own, is hashed anew."""
    PLANNED = "planned"
    """Each edge keeps the path that the controller planned and pinned."""
    TURNING = "turning"
    """Step s takes the way s places after a planned one (``ringstep.fabric.turns``)."""

    @property
    def pinned(self) -> bool:
        """Whether rules of the switches decide, not the source port."""
        return self is Paths.PLANNED


class NoPortFound(RuntimeError):
    """No source port leads over the wanted links; there are too many of them for 64 ports."""


class Steering:
    """Source ports for every step of a ring, and where they lead."""

    def __init__(self, topology: Topology, ring: Sequence[str]) -> None:
        self._topology = topology
        self._tables = route_tables(topology)
        self.ring = tuple(ring)
        self._route = cache(self._walk)

    @cached_property
    def plan(self) -> Plan:
        """The planner's paths for the ring's edges, from which a plan that turns starts."""
        return plan_paths(self._topology, ring_demands(JOB, [self.ring]))

    def _edge(self, rank: int) -> PlannedEdge:
        return next(e for key, e in self.plan.edges.items() if key.index == rank)

    def route(self, src: str, dst: str, sport: int) -> tuple[PathHop, ...]:
        """Return the switches and egress ports that a packet passes under ECMP."""
        return self._route(src, dst, sport)

    def _walk(self, src: str, dst: str, sport: int) -> tuple[PathHop, ...]:
        topology = self._topology
        sender, receiver = topology.hosts[src], topology.hosts[dst]
        flow = FlowKey(sender.ips[0], receiver.ips[0], sport, ROCE_UDP_PORT)
        at = next(iter(topology.attachments(src))).node
        hops = []
        while at in topology.switches:
            choices = [hop.port for hop in self._tables[at].towards(receiver)]
            port = ecmp_port(topology.switches[at].ecmp_seed, flow, choices)
            hops.append(PathHop(at, port))
            at = topology.ports(at)[port][0].node
        return tuple(hops)

    def edge(self, rank: int) -> tuple[str, str]:
        """Return sender and receiver of the ring edge of a rank."""
        return self.ring[rank], self.ring[(rank + 1) % len(self.ring)]

    def sport(self, paths: Paths, rank: int, step: int, tag: int) -> int:
        """Return the source port of a step.

        Args:
            paths: how it is to find its way.
            rank: the sender's.
            step: counted over the life of the job; its low bits are what the port carries.
            tag: the job bits; where the search for them starts with a plan that turns.

        Raises:
            NoPortFound: no job bits lead over the wanted links.
        """
        tags = 1 << LAYOUT.job_bits
        if paths is not Paths.TURNING:
            return LAYOUT.sport(step, tag % tags)
        wanted = turned(self.plan, self._edge(rank), step)
        src, dst = self.edge(rank)
        for offset in range(tags):
            sport = LAYOUT.sport(step, (tag + offset) % tags)
            if self.route(src, dst, sport) == wanted:
                return sport
        raise NoPortFound(
            f"no source port takes {src}->{dst} over "
            f"{', '.join(map(str, wanted))} in step {step}; use fewer spines"
        )
