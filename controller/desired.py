"""From a fabric and its jobs to what every switch should hold. Pure functions.

A switch's state is the fabric's part (:attr:`FabricView.base`) and, on top, one part per job
(:func:`job_entries`) on the switches that the job's paths may cross. A job's rule pins a path:
its path id is the egress port of the planned path there, or 0 for ECMP.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from ringstep.controller.entries import (
    ActionCall,
    EntryKey,
    EntryValue,
    Exact,
    SwitchTables,
    Ternary,
    action,
    entry_key,
    merged,
)
from ringstep.controller.fabricview import ECMP_PROFILE, PLANNED_PATH, FabricView, fabric_view
from ringstep.controller.jobs import Followers, JobSpec, MatchKind
from ringstep.controller.paths import JobPaths, PathKey, wanted_edges
from ringstep.fabric.ecmp import address_128
from ringstep.fabric.model import MAX_PORT, Host, Topology
from ringstep.fabric.planner import PathHop
from ringstep.protocol.marker import MarkerParams, Scope
from ringstep.protocol.tag import JobCarrier

__all__ = [
    "ALL_PORTS",
    "ECMP_PROFILE",
    "RULE_TABLES",
    "JobEntries",
    "Layout",
    "PlacedJob",
    "block_keys",
    "desired_tables",
    "fabric_tables",
    "job_entries",
    "lay_out",
    "match_keys",
    "overlap",
]

ALL_PORTS = 0
"""Block key of a job whose ports share one block; port numbers start at 1."""
_ECMP = 0
_TAG_PRIORITY = {JobCarrier.SPORT: 30, JobCarrier.RESV6A: 20, JobCarrier.DSCP: 10}
_SIX_BITS = 0x3F
_PORT = tuple(("egress_port", Exact(port)) for port in range(MAX_PORT + 1))


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job with its Job_ID, its block ids by switch and block key, and its planned paths.

    A block key is an egress port, or :data:`ALL_PORTS` where the job's ports share a block.
    A switch that is not in ``blocks`` does not follow the job.
    """

    job_id: int
    generation: int
    spec: JobSpec
    blocks: Mapping[str, Mapping[int, int]]
    paths: JobPaths = field(default_factory=dict)


JobEntries = dict[str, dict[EntryKey, EntryValue]]
"""Switch -> entries of one job."""

_TARGETS: Final = "targets"
_Step = tuple[str, tuple[int, ...], int]
"""A switch, the ports that packets of an edge may leave by, and the path id that pins one, or 0."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a job's packets go and what finds them: all that its entries are made of.

    Attributes:
        edges: per edge, the rules that find its packets, and what they do at every switch.
        ports: switch -> egress ports that packets of the job may leave by.
    """

    edges: tuple[tuple[tuple[EntryKey, ...], tuple[_Step, ...]], ...]
    ports: Mapping[str, frozenset[int]]

    @property
    def rules(self) -> frozenset[EntryKey]:
        """The keys of all rules that find the job's packets."""
        return frozenset([rule for rules, _ in self.edges for rule in rules])


def lay_out(view: FabricView, spec: JobSpec, paths: JobPaths) -> Layout:
    """Return where a job's packets go.

    An edge with a planned path crosses exactly its hops, any other all ECMP paths.

    Raises:
        KeyError: a host of the job is not in the topology.
    """
    edges = []
    ports: dict[str, set[int]] = {}
    for key in _edges(spec):
        steps = _steps(view, key, paths.get(key, ()))
        edges.append((_rule_keys(view, spec, key), steps))
        for switch, used, _ in steps:
            known = ports.get(switch)
            if known is None:
                ports[switch] = set(used)
            else:
                known.update(used)
    return Layout(tuple(edges), {switch: frozenset(ports[switch]) for switch in sorted(ports)})


def _edges(spec: JobSpec) -> Iterable[PathKey]:
    """The edges whose traffic is the job's; with rules by destination QP, each connection's."""
    return wanted_edges(spec)


def _steps(view: FabricView, key: PathKey, hops: tuple[PathHop, ...]) -> tuple[_Step, ...]:
    """What packets of an edge do at every switch that they may pass."""
    return view.remembered((key.src, key.dst, hops), lambda: _find_steps(view, key, hops))


def _find_steps(view: FabricView, key: PathKey, hops: tuple[PathHop, ...]) -> tuple[_Step, ...]:
    src, dst = key.src, key.dst
    if not hops:
        return tuple(
            (switch, tuple(sorted(ports)), _ECMP)
            for switch, ports in view.ecmp_ports(src, dst).items()
        )
    pinned = {hop.switch: hop.port for hop in hops[:-1]}
    topology = view.usable
    steps: list[_Step] = []
    # A sender with links to several ToRs may send by any of them: the plan knows of one.
    pending = [end.node for end in reversed(topology.attachments(src))]
    seen: set[str] = set()
    while pending:
        switch = pending.pop()
        if switch in seen:
            continue
        seen.add(switch)
        ways = view.ports_towards(switch, dst)
        ports, path_id = ways, _ECMP
        port = pinned.get(switch, _ECMP)
        # A path id without an entry, of a path that is broken here, is as good as none.
        if (
            port
            and EntryKey(PLANNED_PATH, (("path_id", Exact(port)),)) in view.base[switch].entries
        ):
            ports = (port,)
            # Also while a failure leaves one way: when others are back, ECMP uses them at once.
            pins = len(ways) > 1 or port not in ways or view.has_choice(switch, dst)
            path_id = port if pins else _ECMP
        if not ports:
            continue
        steps.append((switch, ports, path_id))
        wired = view.topology.ports(switch)
        pending += [wired[p][0].node for p in ports if wired[p][0].node in topology.switches]
    return tuple(sorted(steps))


RULE_TABLES: Final = {
    MatchKind.DST_QP: "job_by_dst_qp",
    MatchKind.PAIR: "job_by_pair",
    MatchKind.TAG: "job_by_tag",
    MatchKind.UEC: "job_by_uec_id",
}
"""The table that finds a job's packets."""


def block_keys(
    view: FabricView, spec: JobSpec, layout: Layout, without: Collection[str] = ()
) -> dict[str, tuple[int, ...]]:
    """Return switch -> keys of the state blocks that the job needs there.

    Switches in ``without`` do not follow the job, nor do others than ToRs where its followers are
    the ToRs.
    """
    switches = view.topology.switches
    tors_only = spec.followers is Followers.TOR
    return {
        switch: (ALL_PORTS,) if spec.scope is Scope.SWITCH else tuple(sorted(ports))
        for switch, ports in layout.ports.items()
        if switch not in without and not (tors_only and switches[switch].role != "tor")
    }


def fabric_tables(topology: Topology) -> dict[str, SwitchTables]:
    """Return what every switch holds without any job while all links are up."""
    return dict(fabric_view(topology).base)


def job_entries(view: FabricView, job: PlacedJob, layout: Layout | None = None) -> JobEntries:
    """Return the entries of one job: all on the switches that follow it, rules alone on some.

    ``layout`` is that of the job's spec and paths, where it is at hand.

    Where the followers are the ToRs, other switches hold a rule only where it pins a path; there
    packets of the job are forwarded, and neither followed nor counted.

    Raises:
        KeyError: a host of the job is not in the topology, or a block is missing.
    """
    result: JobEntries = {}
    spec, blocks = job.spec, job.blocks
    shared = spec.scope is Scope.SWITCH
    pins_elsewhere = spec.followers is Followers.TOR
    job_key = ("job", Exact(job.job_id))
    calls: dict[int, ActionCall] = {}
    set_block: dict[int, ActionCall] = {}
    maps: dict[int, EntryKey] = {}
    for rules, steps in (layout or lay_out(view, spec, job.paths)).edges:
        for switch, ports, path_id in steps:
            of_switch = blocks.get(switch)
            if of_switch is None and not (path_id and pins_elsewhere):
                continue
            entries = result.get(switch)
            if entries is None:
                entries = result[switch] = {}
            call = calls.get(path_id)
            if call is None:
                call = calls[path_id] = ActionCall(
                    "set_job", (("job", job.job_id), ("path_id", path_id))
                )
            for rule in rules:
                entries[rule] = call
            if of_switch is None:
                continue
            for port in ports:
                block = of_switch[ALL_PORTS if shared else port]
                where = maps.get(port)
                if where is None:
                    where = maps[port] = EntryKey("block_map", (_PORT[port], job_key))
                mapped = set_block.get(block)
                if mapped is None:
                    mapped = set_block[block] = ActionCall("set_block", (("block", block),))
                entries[where] = mapped
    params_key = EntryKey("job_params", (job_key,))
    params = _set_params(spec.params, job.generation)
    for switch, entries in result.items():
        if switch in blocks:
            entries[params_key] = params
    return {switch: result[switch] for switch in sorted(result)}


@lru_cache(maxsize=4096)
def _set_params(params: MarkerParams, generation: int) -> ActionCall:
    return action("set_params", replace(params, generation=generation).to_table())


def _rule_keys(view: FabricView, spec: JobSpec, key: PathKey) -> tuple[EntryKey, ...]:
    if spec.match is MatchKind.DST_QP:
        qp = ("dst_qp", Exact(key.dest_qp))
        targets = view.remembered(
            (_TARGETS, key.src, key.dst), lambda: _targets(view.topology, key)
        )
        return tuple([EntryKey("job_by_dst_qp", (target, qp)) for target in targets])
    if spec.match is MatchKind.PAIR:
        return view.remembered(key, lambda: tuple(_match_keys(view.topology, spec, key)))
    return tuple(_match_keys(view.topology, spec, key))


def _targets(topology: Topology, edge: PathKey) -> tuple[tuple[str, Exact], ...]:
    """The fields that match an edge's destination, one per address family."""
    pairs = _address_pairs(topology.hosts[edge.src], topology.hosts[edge.dst])
    return tuple(("dst_addr", Exact(target)) for target in dict.fromkeys(t for _, t in pairs))


def match_keys(topology: Topology, spec: JobSpec) -> frozenset[EntryKey]:
    """Return the keys of all rules that find the job's packets.

    Raises:
        KeyError: a host of the job is not in the topology.
    """
    return frozenset(rule for edge in _edges(spec) for rule in _match_keys(topology, spec, edge))


def _match_keys(topology: Topology, spec: JobSpec, edge: PathKey) -> Iterable[EntryKey]:
    if spec.match is MatchKind.TAG:
        yield _tag_key(spec)
        return
    if spec.match is MatchKind.UEC:
        for job_id in spec.uec_job_ids:
            yield entry_key("job_by_uec_id", uec_job_id=Exact(job_id))
        return
    sender, receiver = topology.hosts[edge.src], topology.hosts[edge.dst]
    for source, target in _address_pairs(sender, receiver):
        if spec.match is MatchKind.PAIR:
            yield entry_key("job_by_pair", src_addr=Exact(source), dst_addr=Exact(target))
        else:
            yield entry_key("job_by_dst_qp", dst_addr=Exact(target), dst_qp=Exact(edge.dest_qp))


def _address_pairs(sender: Host, receiver: Host) -> Iterable[tuple[int, int]]:
    for source in sender.ips:
        for target in receiver.ips:
            if source.version == target.version:
                yield address_128(source), address_128(target)


def _tag_key(spec: JobSpec) -> EntryKey:
    assert spec.tag is not None, "a spec that matches by tag has a tag"
    carrier, value = spec.tag.carrier, spec.tag.value
    if carrier is JobCarrier.SPORT:
        field, match = "sport", Ternary(*spec.params.layout.sport_match(value))
    else:
        field, match = carrier.value, Ternary(value, _SIX_BITS)
    return entry_key("job_by_tag", _TAG_PRIORITY[carrier], **{field: match})


def overlap(first: frozenset[EntryKey], second: frozenset[EntryKey]) -> EntryKey | None:
    """Return a rule of ``second`` that a packet of ``first`` may also hit, or None.

    Exact rules overlap when they are equal; tags in the same header field when some value fits
    both, whatever their layouts.
    """
    for key in sorted(first & second, key=str):
        return key
    for left in first:
        for right in second:
            if left.table == right.table == "job_by_tag" and _tags_overlap(left, right):
                return right
    return None


def _tags_overlap(left: EntryKey, right: EntryKey) -> bool:
    (name, one), (other_name, other) = left.match[0], right.match[0]
    if name != other_name or not isinstance(one, Ternary) or not isinstance(other, Ternary):
        return False
    common = one.mask & other.mask
    return one.value & common == other.value & common


def desired_tables(view: FabricView, jobs: Iterable[PlacedJob]) -> dict[str, SwitchTables]:
    """Return what every switch of the topology should hold, with all ``jobs``."""
    of_jobs = [job_entries(view, job) for job in jobs]
    return {
        switch: merged(base, (entries[switch] for entries in of_jobs if switch in entries))
        for switch, base in view.base.items()
    }
