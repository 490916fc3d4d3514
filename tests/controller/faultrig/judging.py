"""Holds every switch against what follows from the list of live jobs.

The expectation is worked out here from the fabric's shape and the messages of List, without the
controller's code. Where the controller has a choice (a planned path needs rules on its own hops
only), what must be there and what may be there are two sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from faultrig.fabric import RED, LeafSpine
from faultrig.reading import Action, Contents, Key
from ringstep.controller.v1 import jobs_pb2

_RULE_TABLES = ("job_by_pair", "job_by_dst_qp", "job_by_tag", "job_by_uec_id")
_K_ONE = 1 << 16


@dataclass(frozen=True)
class Edge:
    """One edge of a job with the key of the rule that finds its packets."""

    src: str
    dst: str
    qp: int
    table: str
    key: Key


def edges_of(fabric: LeafSpine, job: jobs_pb2.Job) -> list[Edge]:
    """Return the edges of a job that is found by address pair or by destination QP."""
    spec = job.spec
    by_qp = spec.match == jobs_pb2.MATCH_KIND_DST_QP or (
        spec.match == jobs_pb2.MATCH_KIND_UNSPECIFIED and spec.queue_pairs
    )
    if by_qp:
        return [
            Edge(
                pair.src, pair.dst, pair.dest_qp, "job_by_dst_qp",
                _key(dst_addr=fabric.mapped(pair.dst), dst_qp=pair.dest_qp),
            )
            for pair in spec.queue_pairs
        ]  # fmt: skip
    return [
        Edge(
            src, dst, 0, "job_by_pair",
            _key(src_addr=fabric.mapped(src), dst_addr=fabric.mapped(dst)),
        )
        for src, dst in dict.fromkeys(
            (ring.hosts[i], ring.hosts[(i + 1) % len(ring.hosts)])
            for ring in spec.rings
            for i in range(len(ring.hosts))
        )
    ]  # fmt: skip


def _key(**fields: Any) -> Key:
    return tuple(sorted(fields.items()))


def parameters_of(job: jobs_pb2.Job) -> Action:
    """Return the action that hands a job's parameters to a switch."""
    given = job.parameters
    return Action(
        "set_params",
        tuple(
            sorted(
                {
                    "generation": job.generation,
                    "step_mask": (1 << given.step_bits) - 1,
                    "step_sign": 1 << given.step_bits - 1,
                    "anchored": int(given.mode == jobs_pb2.PROGRESS_MODE_ANCHORED),
                    "packets_per_step": given.packets_per_step,
                    "k": round(given.k * _K_ONE),
                    "tau_num": given.tau.num,
                    "tau_den": given.tau.den,
                    "t_win": given.t_win_us,
                    "n_sample": given.n_sample,
                    "n_warmup": given.n_warmup,
                    "alpha_max": given.alpha_max,
                    "q_min": given.q_gate + 1,
                    "enabled": int(given.enabled),
                }.items()
            )
        ),
    )


def judge_list(fabric: LeafSpine, jobs: Iterable[jobs_pb2.Job]) -> list[str]:
    """Return what is wrong with the live jobs among themselves."""
    wrong: list[str] = []
    ids: dict[int, str] = {}
    names: dict[str, int] = {}
    owners: dict[tuple[str, Key], str] = {}
    for job in jobs:
        name = job.spec.name
        if not 1 <= job.id <= 16383 or not 1 <= job.generation <= 255:
            wrong.append(f"List: {name} has Job_ID {job.id}, generation {job.generation}")
        if job.id in ids:
            wrong.append(f"List: Job_ID {job.id} is that of {ids[job.id]} and of {name}")
        if name in names:
            wrong.append(f"List: two live jobs are called {name}: {names[name]} and {job.id}")
        ids[job.id] = name
        names[name] = job.id
        for edge in edges_of(fabric, job):
            other = owners.setdefault((edge.table, edge.key), name)
            if other != name:
                wrong.append(f"List: {other} and {name} both own {edge.table} {edge.key}")
    return wrong


def judge_switch(
    fabric: LeafSpine, switch: str, jobs: Iterable[jobs_pb2.Job], held: Contents
) -> list[str]:
    """Return how what a switch holds differs from what the live jobs and the fabric ask for."""
    return [
        f"{switch}: {text}"
        for text in [*_fabric_part(fabric, switch, held), *_jobs_part(fabric, switch, jobs, held)]
    ]


def _fabric_part(fabric: LeafSpine, switch: str, held: Contents) -> Iterable[str]:
    seed = held.defaults.get("switch_config")
    if seed != Action("set_switch", (("ecmp_seed", fabric.seed(switch)),)):
        yield f"default action of switch_config is {seed}; seed is {fabric.seed(switch)}"
    routes = dict(held.table("route_v4"))
    for host in fabric.host_names:
        route = routes.pop(_key(dst_addr=(fabric.address(host), 32)), None)
        ports = _ports_of(held, route)
        if ports != fabric.ports_towards(switch, host):
            yield f"route to {host} leads to ports {ports}"
    for key in routes:
        yield f"foreign route {key}"
    red = dict(held.table("red"))
    for port in fabric.ports(switch):
        found = red.pop(_key(egress_port=port), None)
        if found is None or (found["q_min"], found["q_max"]) != (RED["q_min"], RED["q_max"]):
            yield f"red of port {port} is {found}"
    for key in red:
        yield f"foreign entry red {key}"


def _ports_of(held: Contents, route: Action | None) -> set[int] | str:
    """Follow a route through next hop, group and members; a text where that breaks off."""
    if route is None or route.name != "set_nexthop":
        return f"(no route: {route})"
    hop = held.table("nexthop").get(_key(nexthop_id=route["nexthop_id"]))
    if hop is None or hop.name not in {"group", "member"}:
        return f"(no next hop {route})"
    members = held.groups.get(hop["id"], {}) if hop.name == "group" else {hop["id"]: 1}
    if any(member not in held.members for member in members):
        return "(a member is missing)"
    return {held.members[member]["port"] for member in members}


def _jobs_part(
    fabric: LeafSpine, switch: str, jobs: Iterable[jobs_pb2.Job], held: Contents
) -> Iterable[str]:
    rules = {
        (table, key): action for table in _RULE_TABLES for key, action in held.table(table).items()
    }
    params = dict(held.table("job_params"))
    blocks = dict(held.table("block_map"))
    owner_of_block: dict[int, int] = {}
    for job in jobs:
        if job.problem or any(one.switch == switch and one.cannot for one in job.programming):
            continue
        planned = {
            (path.src, path.dst, path.dest_qp): {hop.switch: hop.port for hop in path.hops}
            for path in job.paths
        }
        needed: set[int] = set()
        possible: set[int] = set()
        follows = False
        for edge in edges_of(fabric, job):
            if switch not in fabric.crossed(edge.src, edge.dst):
                continue
            ports = fabric.ports_towards(switch, edge.dst)
            possible |= ports
            hops = planned.get((edge.src, edge.dst, edge.qp)) or planned.get(
                (edge.src, edge.dst, 0)
            )
            must = hops is None or switch in hops or switch.startswith("tor")
            rule = rules.pop((edge.table, edge.key), None)
            if rule is None:
                if must:
                    yield f"{edge.table} of {job.spec.name} ({job.id}) is missing: {edge}"
                continue
            follows = True
            if rule.name != "set_job" or rule["job"] != job.id:
                yield f"{edge.table} of {job.spec.name} ({job.id}) leads to {rule}"
                continue
            if must:
                needed |= ports if hops is None or switch not in hops else {hops[switch]}
            if hops is not None and switch in hops:
                yield from _pinned(held, rule, hops[switch], len(ports) > 1, job, edge)
        if not follows:
            continue
        found = params.pop(_key(job=job.id), None)
        if found != parameters_of(job):
            yield f"parameters of {job.spec.name} are {found}, not {parameters_of(job)}"
        for port in possible:
            block = blocks.pop(_key(job=job.id, egress_port=port), None)
            if block is None:
                if port in needed:
                    yield f"{job.spec.name} ({job.id}) has no block at port {port}"
                continue
            owner = owner_of_block.setdefault(block["block"], job.id)
            if owner != job.id:
                yield f"block {block['block']} serves jobs {owner} and {job.id}"
    for table, key in rules:
        yield f"{table} {key} is of no live job"
    for key in params:
        yield f"job_params {key} is of no live job"
    for key in blocks:
        yield f"block_map {key} is of no live job"


def _pinned(
    held: Contents, rule: Action, port: int, choice: bool, job: jobs_pb2.Job, edge: Edge
) -> Iterable[str]:
    """A rule on a planned path pins its port, where ECMP would have a choice."""
    what = f"{job.spec.name} ({job.id}) {edge.src}->{edge.dst}"
    if not rule["path_id"]:
        if choice:
            yield f"{what} is planned by port {port}, and its rule pins none"
        return
    path = held.table("planned_path").get(_key(path_id=rule["path_id"]))
    if path is None or path["port"] != port:
        yield f"{what} is planned by port {port}, and its rule leads to {path}"


def judge_switches(
    fabric: LeafSpine, jobs: list[jobs_pb2.Job], held: Mapping[str, Contents]
) -> list[str]:
    """Return :func:`judge_switch` of all switches."""
    return [
        text for switch, contents in held.items()
        for text in judge_switch(fabric, switch, jobs, contents)
    ]  # fmt: skip
