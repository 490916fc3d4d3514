"""Times that no routing and no congestion control beats on a fabric."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ringstep_ns3.jobs import JobOp, PlacedJob
from ringstep_ns3.metrics import wire_bytes
from ringstep_ns3.prepare import Prepared
from ringstep_ns3.topology import Graph

_PHASES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


@dataclass(frozen=True)
class _Stage:
    """Steps in which every ring edge carries one message of ``share`` bytes."""

    edges: tuple[tuple[int, int], ...]
    steps: int
    share: int


def host_bound_ns(prepared: Prepared) -> int | None:
    """Return what the slowest host link needs for a job's rings.

    None where there are several jobs, or one does anything but ring collectives.
    """
    return _bound(prepared, {})


def fabric_bound_ns(prepared: Prepared) -> int | None:
    """Return the work-conserving bound: host links, and all links up from and down to each ToR.

    Per step the bytes that leave (enter) a ToR need at least their sum over the rate of all its
    links to other switches, however they are spread. None as for :func:`host_bound_ns`.
    """
    return _bound(prepared, _tor_rates(prepared.graph))


def _bound(prepared: Prepared, tor_bps: Mapping[tuple[str, bool], int]) -> int | None:
    if len(prepared.jobs) != 1:
        return None
    job, graph = prepared.jobs[0], prepared.graph
    slowest = min(graph.access_bps[host] for host in job.hosts)
    total = 0.0
    for op in job.ops:
        if op.kind not in _PHASES or op.algorithm not in ("ring", "ring_2d"):
            return None
        for stage in _stages(op, len(job.hosts)):
            size = wire_bytes(stage.share, prepared.scenario.transport) * op.channels
            step = size * 8e9 / slowest
            for tor, edges in _crossing(stage, job, graph).items():
                if tor_bps.get(tor):
                    step = max(step, edges * size * 8e9 / tor_bps[tor])
            total += step * stage.steps * op.passes
    return int(total)


def _stages(op: JobOp, ranks: int) -> Iterator[_Stage]:
    phases = _PHASES[op.kind]
    if op.algorithm == "ring":
        rings = list(op.rings) or [tuple(range(ranks))]
        longest = max(len(ring) for ring in rings)
        yield _stage(rings, phases * (longest - 1), op.size, longest * op.channels)
        return
    inner, outer = op.dims
    rows = [tuple(range(i, i + inner)) for i in range(0, ranks, inner)]
    columns = [tuple(range(i, ranks, inner)) for i in range(inner)]
    yield _stage(rows, phases * (inner - 1), op.size, inner * op.channels)
    yield _stage(columns, phases * (outer - 1), op.size, inner * outer * op.channels)


def _stage(rings: list[tuple[int, ...]], steps: int, size: int, parts: int) -> _Stage:
    edges = [(rank, ring[(i + 1) % len(ring)]) for ring in rings for i, rank in enumerate(ring)]
    return _Stage(tuple(edges), steps, -(-size // parts))


def _crossing(stage: _Stage, job: PlacedJob, graph: Graph) -> dict[tuple[str, bool], int]:
    """Edges that leave (True) and enter (False) each ToR."""
    count: dict[tuple[str, bool], int] = defaultdict(int)
    for src, dst in stage.edges:
        out, into = graph.tor_of.get(job.hosts[src]), graph.tor_of.get(job.hosts[dst])
        if out is not None and into is not None and out != into:
            count[out, True] += 1
            count[into, False] += 1
    return count


def _tor_rates(graph: Graph) -> dict[tuple[str, bool], int]:
    """Rate of all links of each ToR to (True) and from other switches, in bit/s."""
    tier = dict(zip(graph.switches, graph.tiers, strict=True))
    rates: dict[tuple[str, bool], int] = defaultdict(int)
    for cable in graph.cables:
        if cable.a not in tier or cable.b not in tier:
            continue
        for tor, out, back in (
            (cable.a, cable.rate_bps, cable.rate_back_bps),
            (cable.b, cable.rate_back_bps, cable.rate_bps),
        ):
            if tier[tor] == 0:
                rates[tor, True] += out
                rates[tor, False] += back
    return rates
