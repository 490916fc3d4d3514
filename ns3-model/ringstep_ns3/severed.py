"""Hosts that failing links cut off for good; timeouts would repeat what they miss for ever."""

from __future__ import annotations

from dataclasses import dataclass

from ringstep_ns3.prepare import Prepared


@dataclass(frozen=True, slots=True)
class Severed:
    """Two hosts that have to reach one another and no longer can.

    ``event`` is the position of the failure after which nothing joins them any more, ``time_ns``
    when it happens.
    """

    first: str
    second: str
    event: int
    time_ns: int


def severed(prepared: Prepared) -> Severed | None:
    """Return a pair of hosts of one job or flow that is apart once every event has happened."""
    order = sorted(range(len(prepared.events)), key=lambda i: prepared.events[i].time_ns)
    failed: dict[int, int] = {}
    for i in order:
        event = prepared.events[i]
        if event.action == "fail":
            failed.setdefault(event.cable, i)
        elif event.action == "restore":
            failed.pop(event.cable, None)
    if not failed:
        return None
    part = _parts(prepared, frozenset(failed))
    pair = _apart(prepared, part)
    if pair is None:
        return None
    gone: set[int] = set()
    for cable, i in sorted(failed.items(), key=lambda item: order.index(item[1])):
        gone.add(cable)
        now = _parts(prepared, frozenset(gone))
        if now[pair[0]] != now[pair[1]]:
            return Severed(*pair, i, prepared.events[i].time_ns)
    raise AssertionError("apart, and no failure took them apart")


def _apart(prepared: Prepared, part: dict[str, int]) -> tuple[str, str] | None:
    hosts = prepared.graph.hosts
    for job in prepared.jobs:
        for host in job.hosts[1:]:
            if part[host] != part[job.hosts[0]]:
                return job.hosts[0], host
    for flows in prepared.flows:
        for src, dst in zip(flows.src, flows.dst, strict=True):
            if part[hosts[src]] != part[hosts[dst]]:
                return hosts[src], hosts[dst]
    return None


def _parts(prepared: Prepared, without: frozenset[int]) -> dict[str, int]:
    """Connected parts of the fabric without some cables. A host has one cable, so none forwards."""
    graph = prepared.graph
    number = graph.number
    above = list(range(len(number)))

    def top(node: int) -> int:
        while above[node] != node:
            above[node] = above[above[node]]
            node = above[node]
        return node

    for i, cable in enumerate(graph.cables):
        if i not in without:
            above[top(number[cable.a])] = top(number[cable.b])
    return {name: top(i) for name, i in number.items()}
