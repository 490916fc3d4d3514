"""From topology and jobs to what every switch should hold. Pure functions.

A switch's state is the fabric's part (:func:`fabric_tables`: routes, ECMP groups, RED, seed) and,
on top, one part per job (:func:`job_entries`) on the switches that the job's paths may cross.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ringstep.controller.entries import (
    EntryKey,
    EntryValue,
    Exact,
    GroupRef,
    Lpm,
    ProfileKey,
    SwitchTables,
    Ternary,
    action,
    entry_key,
    merged,
)
from ringstep.controller.jobs import JobSpec, MatchKind
from ringstep.fabric.ecmp import address_128
from ringstep.fabric.model import MAX_PORT, Host, Topology
from ringstep.fabric.rings import egress_ports
from ringstep.fabric.routing import Hop, RouteTable
from ringstep.protocol.marker import Scope
from ringstep.protocol.tag import JobCarrier

ECMP_PROFILE = "ecmp"
ALL_PORTS = 0
"""Block key of a job whose ports share one block; port numbers start at 1."""
_UNPLANNED = 0
_FIRST_SHARED_GROUP = MAX_PORT + 1
_TAG_PRIORITY = {JobCarrier.SPORT: 30, JobCarrier.RESV6A: 20, JobCarrier.DSCP: 10}
_SIX_BITS = 0x3F


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job with its Job_ID, and its block ids by switch and block key.

    A block key is an egress port, or :data:`ALL_PORTS` where the job's ports share a block.
    A switch that is not in ``blocks`` does not follow the job.
    """

    job_id: int
    generation: int
    spec: JobSpec
    blocks: Mapping[str, Mapping[int, int]]


JobEntries = dict[str, dict[EntryKey, EntryValue]]
"""Switch -> entries of one job."""


def crossings(
    topology: Topology, tables: Mapping[str, RouteTable], spec: JobSpec
) -> dict[str, frozenset[int]]:
    """Return switch -> egress ports that packets of the job may leave by, over all ECMP paths.

    Raises:
        KeyError: a host of the job is not in the topology.
    """
    ports: dict[str, frozenset[int]] = {}
    for edge in spec.edges:
        for switch, used in egress_ports(topology, tables, edge).items():
            ports[switch] = ports.get(switch, frozenset()) | used
    return dict(sorted(ports.items()))


RULE_TABLES: Final = {
    MatchKind.DST_QP: "job_by_dst_qp",
    MatchKind.PAIR: "job_by_pair",
    MatchKind.TAG: "job_by_tag",
    MatchKind.UEC: "job_by_uec_id",
}
"""The table that finds a job's packets."""


def block_keys(
    topology: Topology,
    tables: Mapping[str, RouteTable],
    spec: JobSpec,
    without: Collection[str] = (),
) -> dict[str, tuple[int, ...]]:
    """Return switch -> keys of the state blocks that the job needs there.

    Switches in ``without`` do not follow the job.

    Raises:
        KeyError: a host of the job is not in the topology.
    """
    return {
        switch: (ALL_PORTS,) if spec.scope is Scope.SWITCH else tuple(sorted(ports))
        for switch, ports in crossings(topology, tables, spec).items()
        if switch not in without
    }


def fabric_tables(topology: Topology, tables: Mapping[str, RouteTable]) -> dict[str, SwitchTables]:
    """Return what every switch holds without any job.

    Member ids are port numbers. A group of one port has the port's number, a group of several
    ports a number above all ports, in the order of first use; next hop ids are group ids.
    """
    return {name: _switch_tables(topology, tables[name]) for name in topology.switches}


def _switch_tables(topology: Topology, routes: RouteTable) -> SwitchTables:
    switch = topology.switches[routes.switch]
    result = SwitchTables()
    result.defaults["switch_config"] = action("set_switch", {"ecmp_seed": switch.ecmp_seed})
    result.defaults["route_v4"] = action("drop")
    result.defaults["route_v6"] = action("drop")
    group_ids: dict[tuple[Hop, ...], int] = {}
    for network, hops in routes.routes.items():
        group_id = group_ids.get(hops)
        if group_id is None:
            shared = sum(1 for known in group_ids if len(known) > 1)
            group_id = hops[0].port if len(hops) == 1 else _FIRST_SHARED_GROUP + shared
            group_ids[hops] = group_id
            for hop in hops:
                result.members[ProfileKey(ECMP_PROFILE, hop.port)] = action(
                    "forward",
                    {"port": hop.port, "src_mac": switch.mac, "dst_mac": hop.dst_mac},
                )
            result.groups[ProfileKey(ECMP_PROFILE, group_id)] = tuple((hop.port, 1) for hop in hops)
            result.entries[entry_key("nexthop", nexthop_id=Exact(group_id))] = GroupRef(group_id)
        prefix = Lpm(int(network.network_address), network.prefixlen)
        result.entries[entry_key(f"route_v{network.version}", dst_addr=prefix)] = action(
            "set_nexthop", {"nexthop_id": group_id}
        )
    for port, (_, link) in topology.ports(switch.name).items():
        if link.red is not None:
            result.entries[entry_key("red", egress_port=Exact(port))] = action(
                "set_red", link.red.params.to_table()
            )
    return result


def job_entries(topology: Topology, tables: Mapping[str, RouteTable], job: PlacedJob) -> JobEntries:
    """Return the entries of one job, on the switches that have blocks for it and nowhere else.

    Raises:
        KeyError: a host of the job is not in the topology, or a block is missing.
    """
    result: JobEntries = {}
    for edge in job.spec.edges:
        rules = _rules(topology, job, edge.src, edge.dst)
        for switch, ports in egress_ports(topology, tables, edge).items():
            if switch not in job.blocks:
                continue
            entries = result.setdefault(switch, {})
            entries.update(rules)
            for port in ports:
                key = ALL_PORTS if job.spec.scope is Scope.SWITCH else port
                entries[entry_key("block_map", job=Exact(job.job_id), egress_port=Exact(port))] = (
                    action("set_block", {"block": job.blocks[switch][key]})
                )
    params = replace(job.spec.params, generation=job.generation)
    for entries in result.values():
        entries[entry_key("job_params", job=Exact(job.job_id))] = action(
            "set_params", params.to_table()
        )
    return dict(sorted(result.items()))


def _rules(topology: Topology, job: PlacedJob, src: str, dst: str) -> dict[EntryKey, EntryValue]:
    set_job = action("set_job", {"job": job.job_id, "path_id": _UNPLANNED})
    return dict.fromkeys(_match_keys(topology, job.spec, src, dst), set_job)


def match_keys(topology: Topology, spec: JobSpec) -> frozenset[EntryKey]:
    """Return the keys of all rules that find the job's packets.

    Raises:
        KeyError: a host of the job is not in the topology.
    """
    return frozenset(
        key for edge in spec.edges for key in _match_keys(topology, spec, edge.src, edge.dst)
    )


def _match_keys(topology: Topology, spec: JobSpec, src: str, dst: str) -> Iterable[EntryKey]:
    if spec.match is MatchKind.TAG:
        yield _tag_key(spec)
        return
    if spec.match is MatchKind.UEC:
        for job_id in spec.uec_job_ids:
            yield entry_key("job_by_uec_id", uec_job_id=Exact(job_id))
        return
    sender, receiver = topology.hosts[src], topology.hosts[dst]
    for source, target in _address_pairs(sender, receiver):
        if spec.match is MatchKind.PAIR:
            yield entry_key("job_by_pair", src_addr=Exact(source), dst_addr=Exact(target))
            continue
        for pair in spec.queue_pairs:
            if (pair.src, pair.dst) == (src, dst):
                yield entry_key("job_by_dst_qp", dst_addr=Exact(target), dst_qp=Exact(pair.dest_qp))


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


def desired_tables(
    topology: Topology, tables: Mapping[str, RouteTable], jobs: Iterable[PlacedJob]
) -> dict[str, SwitchTables]:
    """Return what every switch of the topology should hold, with all ``jobs``."""
    of_jobs = [job_entries(topology, tables, job) for job in jobs]
    return {
        switch: merged(base, (entries[switch] for entries in of_jobs if switch in entries))
        for switch, base in fabric_tables(topology, tables).items()
    }
