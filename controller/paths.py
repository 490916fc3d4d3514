"""The paths of all jobs of one fabric, and what every link carries by them.

Paths of a job are pinned by its rules (:mod:`ringstep.controller.desired`). A new job is planned
around the others and moves nobody.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from ringstep.controller.fabricview import FabricView
from ringstep.controller.jobs import QP_PER_STEP, JobSpec, MatchKind, PathsChoice
from ringstep.fabric.balance import Flow
from ringstep.fabric.beside import LoadedFabric, Way
from ringstep.fabric.explain import ecmp_beside
from ringstep.fabric.pathgraph import DirectedLink, PlanError
from ringstep.fabric.planner import PathHop, search_anew

_MOST_KNOWN: Final = 1 << 16
ECMP_DRAWS: Final = 32
"""Draws of ECMP's choices for the load that is to be expected of it."""


class PathKey(NamedTuple):
    """An edge of a job; ``dest_qp`` only where rules are by destination QP, else 0."""

    src: str
    dst: str
    dest_qp: int = 0

    def __str__(self) -> str:
        return f"{self.src}->{self.dst}" + (f":{self.dest_qp}" if self.dest_qp else "")


JobPaths = Mapping[PathKey, tuple[PathHop, ...]]
"""Edges between racks only: every switch in order, the last hop delivers to the host."""


def dump_paths(paths: JobPaths) -> str:
    """Return paths as compact JSON: a list per edge of src, dst, dest_qp, switch, port, ..."""
    rows = [
        [key.src, key.dst, key.dest_qp, *[part for hop in paths[key] for part in _parts(hop)]]
        for key in sorted(paths)
    ]
    return json.dumps(rows, separators=(",", ":"))


def _parts(hop: PathHop) -> tuple[str, int]:
    return hop.switch, hop.port


def load_paths(text: str) -> JobPaths:
    """Return what :func:`dump_paths` wrote; an empty text holds no paths.

    Raises:
        ValueError: the text is something else.
    """
    if not text:
        return {}
    paths: dict[PathKey, tuple[PathHop, ...]] = {}
    try:
        for src, dst, dest_qp, *hops in json.loads(text):
            if not hops or len(hops) % 2:
                raise ValueError(f"{src}->{dst} has no whole number of hops")
            paths[PathKey(str(src), str(dst), int(dest_qp))] = tuple(
                PathHop(str(hops[i]), int(hops[i + 1])) for i in range(0, len(hops), 2)
            )
    except (TypeError, ValueError) as error:
        raise ValueError(f"no paths of a job ({error}); they come from dump_paths") from None
    return paths


class _LastWanted:
    """The edges of the spec that was asked for last: a registration asks for them seven times.

    Copies of a spec share its tuples, so what the edges follow from is compared by identity.
    """

    spec: ClassVar[JobSpec | None] = None
    edges: ClassVar[dict[PathKey, int]] = {}

    @classmethod
    def knows(cls, spec: JobSpec) -> bool:
        last = cls.spec
        return (
            last is not None
            and last.rings is spec.rings
            and last.queue_pairs is spec.queue_pairs
            and last.channels is spec.channels
            and last.match is spec.match
        )


def wanted_edges(spec: JobSpec) -> Mapping[PathKey, int]:
    """Return the edges of a job that a rule can pin, with their weights.

    By destination QP every connection is an edge of weight 1. By address pair all packets of two
    hosts share a path: it weighs as many channels as the rings that pass it have, so an edge that
    is part of two rings has one path and the weight of both; two hosts that only queue pairs join
    weigh one per queue pair.
    """
    if not _LastWanted.knows(spec):
        _LastWanted.edges, _LastWanted.spec = _wanted_edges(spec), spec
    return _LastWanted.edges


def _wanted_edges(spec: JobSpec) -> dict[PathKey, int]:
    wants: dict[PathKey, int] = {}
    if spec.match is MatchKind.DST_QP:
        return dict.fromkeys((PathKey(p.src, p.dst, p.dest_qp) for p in spec.queue_pairs), 1)
    for index, ring in enumerate(spec.rings):
        channels = spec.channels[index] if index < len(spec.channels) else 1
        before = ring[-1]
        for host in ring:
            key = PathKey(before, host)
            wants[key] = wants.get(key, 0) + channels
            before = host
    if spec.queue_pairs:
        of_rings = set(wants)
        for pair in spec.queue_pairs:
            key = PathKey(pair.src, pair.dst)
            if key not in of_rings:
                wants[key] = wants.get(key, 0) + 1
    return wants


@dataclass(frozen=True, slots=True)
class PlannedLink:
    """One direction of a link between switches that a job may cross.

    ``edges_before`` and ``edges_after`` are planned edges of all jobs, without and with this job;
    ``edges_ecmp`` the same with this job under ECMP, a mean. Loads are weight over rate; 1.0 is
    the heaviest weight of one edge on the fastest link.
    """

    src: str
    dst: str
    rate_bps: int
    edges_before: int
    edges_after: int
    edges_ecmp: float
    load_after: float
    load_ecmp: float


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What a job's paths do to the links, against ECMP for this job beside the same others.

    ``max_load`` is the load of the fullest link that the job crosses, ``bound`` the least that any
    plan of this job can reach, ``ecmp_max_load`` its mean under ECMP, ``gain`` ECMP's over the
    plan's. ``reason`` says why there is no plan.
    """

    paths: JobPaths
    links: tuple[PlannedLink, ...]
    inter_rack_edges: int
    intra_rack_edges: int
    max_load: float
    bound: float
    ecmp_max_load: float
    gain: float
    reason: str


@dataclass(frozen=True, slots=True)
class _Held:
    name: str
    spec: JobSpec
    paths: JobPaths
    carried: tuple[tuple[int, int], ...]
    """(number of a link, weight) per edge and link."""
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An edge between racks that is to be planned."""

    key: PathKey
    flow: Flow
    last: PathHop


class PathBook:
    """The paths of all jobs on one view of the fabric. Nothing here waits or writes.

    Costs: :meth:`plan`, :meth:`hold` and :meth:`drop` grow with the edges of their job alone;
    :meth:`stale` and :meth:`rebase` look at every job.
    """

    def __init__(self, view: FabricView) -> None:
        self._jobs: dict[int, _Held] = {}
        self._by_name: dict[str, int] = {}
        self.rebase(view)

    @property
    def view(self) -> FabricView:
        """The view that paths are planned on."""
        return self._view

    def rebase(self, view: FabricView) -> None:
        """Go over to another view; paths stay as they are held, :meth:`stale` tells which broke."""
        self._view = view
        self._fabric = LoadedFabric(view.planner)
        self._load = [0] * len(self._fabric.links)
        self._edges = [0] * len(self._fabric.links)
        self._weights: Counter[int] = Counter()
        self._leads: dict[tuple[int, int, tuple[PathHop, ...]], bool] = {}
        jobs, self._jobs = self._jobs, {}
        for job_id, held in jobs.items():
            self.hold(job_id, held.name, held.spec, held.paths)

    def plan(self, spec: JobSpec) -> JobPaths:
        """Plan a new job around what is held; empty where nothing is to be pinned.

        Raises:
            PlanError: an edge names a host that is not there, or (Unreachable) that no path of
                links that are up reaches.
        """
        if not spec.planned:
            return {}
        return self._place(self._crossing(wanted_edges(spec)), self._load)

    def hold(self, job_id: int, name: str, spec: JobSpec, paths: JobPaths) -> None:
        """Count a job's paths in, in place of those that it had."""
        if job_id in self._jobs:
            self.drop(job_id)
        numbers, load, edges = self._fabric.numbers, self._load, self._edges
        carried = []
        weights: tuple[int, ...] = ()
        if paths:
            wants = wanted_edges(spec)
            for key, hops in paths.items():
                weight = wants.get(key, 1)
                for hop in hops[:-1]:
                    number = numbers.get((hop.switch, hop.port))
                    if number is not None:
                        load[number] += weight
                        edges[number] += 1
                        carried.append((number, weight))
            weights = tuple(wants.get(key, 1) for key in paths)
            self._weights.update(weights)
        self._jobs[job_id] = _Held(name, spec, paths, tuple(carried), weights)
        self._by_name[name] = job_id

    def drop(self, job_id: int) -> None:
        """Count a job out; a job that is not held is no error."""
        held = self._jobs.pop(job_id, None)
        if held is None:
            return
        if self._by_name.get(held.name) == job_id:
            del self._by_name[held.name]
        for number, weight in held.carried:
            self._load[number] -= weight
            self._edges[number] -= 1
        if held.weights:
            self._weights.subtract(held.weights)

    def valid(self, spec: JobSpec, paths: JobPaths) -> bool:
        """Tell whether paths are just what the job needs: every edge between racks, shortest, up.

        Raises:
            PlanError: as :meth:`plan`.
        """
        if not spec.planned:
            return not paths
        crossing = self._crossing(wanted_edges(spec))
        return len(crossing) == len(paths) and all(
            self._stands(wanted, paths.get(wanted.key, ())) for wanted in crossing
        )

    def stale(self) -> list[int]:
        """Return the held jobs whose paths are not valid, ascending, unreachable ones included."""
        return [job_id for job_id in sorted(self._jobs) if self._is_stale(self._jobs[job_id])]

    def _is_stale(self, held: _Held) -> bool:
        try:
            return not self.valid(held.spec, held.paths)
        except PlanError:
            return True

    def replan(self, spec: JobSpec, paths: JobPaths) -> JobPaths:
        """Keep the paths of a job that are still valid and plan the other edges beside all jobs.

        What is held under the job's name counts as ``paths``, not as another's load.

        Raises:
            PlanError: as :meth:`plan`.
        """
        if not spec.planned:
            return {}
        wants = wanted_edges(spec)
        crossing = self._crossing(wants)
        kept = {
            wanted.key: paths[wanted.key]
            for wanted in crossing
            if self._stands(wanted, paths.get(wanted.key, ()))
        }
        if len(kept) == len(crossing):
            return kept
        load = self._load_without(self._by_name.get(spec.name))
        for key, hops in kept.items():
            for hop in hops[:-1]:
                load[self._fabric.numbers[hop.switch, hop.port]] += wants[key]
        new = self._place([wanted for wanted in crossing if wanted.key not in kept], load)
        return {wanted.key: kept.get(wanted.key) or new[wanted.key] for wanted in crossing}

    def load(self) -> Mapping[tuple[str, int], int]:
        """Return the weight that every usable directed link carries, by (switch, egress port)."""
        return {end: self._load[number] for end, number in self._fabric.numbers.items()}

    def carried(self) -> list[tuple[DirectedLink, int, float]]:
        """Return each usable directed link, its planned edges, and its load as :meth:`max_load`."""
        heaviest = self._heaviest()
        return [
            (link, edges, float(self._fabric.relative(link.number, load) / heaviest))
            for link, edges, load in zip(self._fabric.links, self._edges, self._load, strict=True)
        ]

    def copy(self) -> PathBook:
        """Return a book with the same jobs that can be changed without changing this one."""
        other = object.__new__(PathBook)
        other._view, other._fabric, other._leads = self._view, self._fabric, self._leads
        other._load, other._edges = list(self._load), list(self._edges)
        other._weights = Counter(self._weights)
        other._jobs, other._by_name = dict(self._jobs), dict(self._by_name)
        return other

    def max_load(self) -> float:
        """Return the load of the fullest link: 1.0 is one edge, the heaviest, on the fastest link.

        So it is the number of such edges that it would take to fill the fastest link as much.
        """
        relative = self._fabric.relative
        highest = max((relative(number, load) for number, load in enumerate(self._load)), default=0)
        return highest / self._heaviest()

    def rebalance(self, extra: JobSpec | None = None) -> tuple[dict[int, JobPaths], JobPaths]:
        """Plan all held jobs anew, and a new one beside them; nothing is held by it.

        Edges move from links that stand above what planning from nothing could reach, no others,
        unless that does not do. Jobs that a failure cut off stay as they are.

        Returns:
            The paths of the jobs that would move, by Job_ID, and those of ``extra``.

        Raises:
            PlanError: as :meth:`plan`, for ``extra``.
        """
        wanted: list[_Wanted] = []
        current: list[tuple[DirectedLink, ...] | None] = []
        parts: dict[int, tuple[int, int]] = {}
        links, numbers = self._fabric.links, self._fabric.numbers
        for job_id, held in self._jobs.items():
            if not held.spec.planned:
                continue
            try:
                crossing = self._crossing(wanted_edges(held.spec))
            except PlanError:
                continue
            parts[job_id] = (len(wanted), len(wanted) + len(crossing))
            wanted += crossing
            for each in crossing:
                hops = held.paths.get(each.key, ())
                current.append(
                    tuple(links[numbers[hop.switch, hop.port]] for hop in hops[:-1])
                    if self._stands(each, hops)
                    else None
                )
        first_new = len(wanted)
        if extra is not None and extra.planned:
            wanted += self._crossing(wanted_edges(extra))
            current += [None] * (len(wanted) - first_new)
        if not wanted:
            return {}, {}
        flows = [each.flow for each in wanted]
        scale = self._fabric.scale(math.gcd(*(flow.weight for flow in flows)))
        found = search_anew(self._fabric.graph, flows, current, scale)
        every = [
            (each.key, self._hops(tuple(link.number for link in of_flow), each.last))
            for of_flow, each in zip(found, wanted, strict=True)
        ]
        moved: dict[int, JobPaths] = {}
        for job_id, (start, end) in parts.items():
            paths = dict(every[start:end])
            if paths != self._jobs[job_id].paths:
                moved[job_id] = paths
        return moved, dict(every[first_new:])

    def explain(self, spec: JobSpec, paths: JobPaths, *, without: int | None = None) -> PlanReport:
        """Set a job's paths against ECMP, beside all held jobs but ``without``.

        Give the job's own id as ``without`` where it is held. Edges of the job without a path
        count as ECMP's would.

        Raises:
            PlanError: as :meth:`plan`.
        """
        wants = wanted_edges(spec)
        crossing = self._crossing(wants)
        flows = [wanted.flow for wanted in crossing]
        before, edges = self._load_without(without), self._edges_without(without)
        graph = self._fabric.graph
        ecmp = ecmp_beside(graph, flows, before, ECMP_DRAWS)
        loose = [each.flow for each in crossing if each.key not in paths]
        rest = ecmp if len(loose) == len(flows) else ecmp_beside(graph, loose, before, ECMP_DRAWS)
        load: list[float] = [a + b for a, b in zip(before, rest.load, strict=True)]
        after: list[float] = [a + b for a, b in zip(edges, rest.edges, strict=True)]
        used = {number for number, count in enumerate(ecmp.edges) if count}
        mine = {number for number, count in enumerate(rest.edges) if count}
        for each in crossing:
            for hop in paths.get(each.key, ())[:-1]:
                number = self._fabric.numbers.get((hop.switch, hop.port))
                if number is not None:
                    load[number] += each.flow.weight
                    after[number] += 1
                    mine.add(number)
        heaviest = max(self._heaviest(without), max((f.weight for f in flows), default=1))

        def relative(number: int, weight: float) -> float:
            return self._fabric.relative(number, weight) / heaviest

        max_load = max((relative(number, load[number]) for number in mine), default=0.0)
        ecmp_max = ecmp.max_relative / heaviest
        if flows and len(loose) == len(flows):
            max_load = ecmp_max
        links = self._fabric.links
        rows = tuple(
            PlannedLink(
                src=links[number].src.node + f":{links[number].src.port}",
                dst=links[number].dst.node + f":{links[number].dst.port}",
                rate_bps=links[number].rate_bps,
                edges_before=edges[number],
                edges_after=round(after[number]),
                edges_ecmp=edges[number] + ecmp.edges[number],
                load_after=relative(number, load[number]),
                load_ecmp=relative(number, before[number] + ecmp.load[number]),
            )
            for number in sorted(used | mine, key=lambda n: links[n].src)
        )
        return PlanReport(
            paths=paths,
            links=rows,
            inter_rack_edges=len(crossing),
            intra_rack_edges=len(wants) - len(crossing),
            max_load=max_load,
            bound=self._fabric.bound(flows, before) / heaviest,
            ecmp_max_load=ecmp_max,
            gain=ecmp_max / max_load if max_load else 1.0,
            reason=_why_not(spec, paths, crossing),
        )

    # -- inside ------------------------------------------------------------------------------

    def _load_without(self, job_id: int | None) -> list[int]:
        load = list(self._load)
        held = None if job_id is None else self._jobs.get(job_id)
        if held is not None:
            for number, weight in held.carried:
                load[number] -= weight
        return load

    def _edges_without(self, job_id: int | None) -> list[int]:
        edges = list(self._edges)
        held = None if job_id is None else self._jobs.get(job_id)
        if held is not None:
            for number, _ in held.carried:
                edges[number] -= 1
        return edges

    def _heaviest(self, without: int | None = None) -> int:
        """The heaviest weight of one planned edge; 1 where none is planned."""
        weights = self._weights
        held = None if without is None else self._jobs.get(without)
        if held is not None:
            weights = weights.copy()
            weights.subtract(held.weights)
        return max((weight for weight, count in weights.items() if count > 0), default=1)

    def _crossing(self, wants: Mapping[PathKey, int]) -> list[_Wanted]:
        found = []
        ends = self._fabric.ends
        for key, weight in wants.items():
            source, target, last = ends(key.src, key.dst)
            if source != target:
                found.append(_Wanted(key, Flow(source, target, weight), last))
        return found

    def _place(self, wanted: Sequence[_Wanted], load: Sequence[int]) -> JobPaths:
        if not wanted:
            return {}
        ways = self._fabric.place([each.flow for each in wanted], load)
        return {
            each.key: self._hops(way, each.last) for each, way in zip(wanted, ways, strict=True)
        }

    def _hops(self, way: Way, last: PathHop) -> tuple[PathHop, ...]:
        hops = self._fabric.hops
        return (*[hops[number] for number in way], last)

    def _stands(self, wanted: _Wanted, hops: tuple[PathHop, ...]) -> bool:
        if not hops or hops[-1] != wanted.last:
            return False
        source, target, between = wanted.flow.source, wanted.flow.target, hops[:-1]
        known = self._leads.get((source, target, between))
        if known is None:
            if len(self._leads) >= _MOST_KNOWN:
                self._leads.clear()
            known = self._fabric.leads(source, target, between)
            self._leads[source, target, between] = known
        return known


def _why_not(spec: JobSpec, paths: JobPaths, crossing: Sequence[_Wanted]) -> str:
    if paths:
        return ""
    if spec.match not in {MatchKind.PAIR, MatchKind.DST_QP}:
        return (
            f"one rule finds the packets of all edges (match {spec.match.name}), so none can be "
            "pinned to a path of its own; match by PAIR or DST_QP"
        )
    if not spec.planned:
        if spec.paths is PathsChoice.ECMP:
            return "ECMP was asked for"
        return f"the sender has a queue pair per step ({QP_PER_STEP}), and loses by a pinned path"
    if not crossing:
        return "no edge leaves its rack: there is no path to choose"
    return "the job's edges are not planned yet"
