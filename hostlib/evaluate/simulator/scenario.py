"""A collective in a configuration under a load, as a scenario of the packet simulator.

===============  ==============================================================================
channel          a queue pair per hop of its ring (two in its pair of trees) with its share of
                 the bytes, kept from call to call, so that DCQCN's state lasts as in NCCL
Ring, Tree       ``ring``, ``double_binary_tree``
LL               every byte twice; messages of 32 KiB of data, a slot of NCCL's LL buffer; 5 µs
                 of host time per hop
Simple           slices and chunks as NCCL cuts them (:func:`pieces`); 14 µs per hop
node             one rank under a ToR switch of its own, whose uplink has the rate of the node
rivals           flows of hosts beside the nodes, so that uplinks and the core's ports are shared
                 and DCQCN settles who gets what; or of the nodes themselves, where the NIC does
load             what a link's flows want together, evenly, in messages of 256 KiB; what one
                 cannot send in its time it does not make up for
===============  ==============================================================================

Left out: credits (a Simple sender never waits for a free slot), what a channel or a message costs
at GPU and CPU, ranks that share a node, paths that collide in a larger fabric. Host times are the
latencies of NCCL's cost model for a network hop with one rank per node.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ringstep.hostlib.dynamic.actions import Config
from ringstep.hostlib.evaluate.sources import SweepOptions
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.fluid import Load

CALLS: Final = 2
"""Of the collective in a run, one after the other. A summary tells least and most: both of them."""
FLOWS: Final = 4
"""Rival flows per link, where a load does not say."""
BURST: Final = 256 << 10
"""Bytes of a rival's message."""
MTU: Final = 4096
HOST_US: Final = {Proto.LL: 5, Proto.SIMPLE: 14}
"""From an arrival to what it sets off."""

KINDS: Final = {
    Collective.ALL_REDUCE: "all_reduce",
    Collective.ALL_GATHER: "all_gather",
    Collective.REDUCE_SCATTER: "reduce_scatter",
    Collective.BROADCAST: "broadcast",
}
_LL_SLOT: Final = 32 << 10
_STEP: Final = 512 << 10  # an eighth of NCCL's buffer of 4 MiB
_SLICE_MIN: Final = 32 << 10
_PIECES_MAX: Final = 256
_TREE_CHUNKS: Final = ((8, 128 << 10), (4, 64 << 10), (1, 32 << 10))
"""Chunks of a tree shrink to the second as long as there are fewer than the first per level."""
_HEADER: Final = 48


class Rivals(Enum):
    """Where rival flows come from."""

    FABRIC = "fabric"
    HOST = "host"


@dataclass(frozen=True)
class Case:
    """A configuration under a load."""

    config: Config
    load: Load


def pieces(asked: SweepOptions, config: Config) -> int:
    """Return the messages of a channel: per step of a ring; of a tree or a chain, all told.

    Simple's ring cuts chunks of at most 2 MiB in two slices of 32 KiB or more; its trees take
    smaller chunks the deeper they are; a chain sends slots of 512 KiB. A step has no more than 256.
    """
    chain = asked.collective is Collective.BROADCAST
    share = asked.n_bytes / config.n_channels
    if config.algo is Algo.TREE:
        share /= 2
    elif not chain:
        share /= asked.nodes
    if config.proto is not Proto.SIMPLE:
        piece = _LL_SLOT
    elif config.chunk_bytes:
        piece = config.chunk_bytes
    elif config.algo is Algo.TREE:
        piece = _tree_chunk(asked, config)
    elif chain:
        piece = _STEP
    else:
        piece = min(max(math.ceil(share / 2), _SLICE_MIN), 2 * _STEP)
    return min(max(math.ceil(share / piece), 1), _PIECES_MAX)


def _tree_chunk(asked: SweepOptions, config: Config) -> int:
    depth = math.ceil(math.log2(asked.nodes))
    chunk = _STEP
    for per_level, least in _TREE_CHUNKS:
        while chunk > least and asked.n_bytes // (config.n_channels * chunk) < depth * per_level:
            chunk //= 2
    return chunk


def call(asked: SweepOptions, config: Config, rivals: Rivals, start_ns: int = 0) -> dict[str, Any]:
    """Return the job that runs the collective ``CALLS`` times."""
    tree = config.algo is Algo.TREE
    chain = asked.collective is Collective.BROADCAST
    split = "chunks" if tree or chain else "messages_per_step"
    return {
        "name": "call", "collective": KINDS[asked.collective],
        "algorithm": "double_binary_tree" if tree else "ring",
        "size": asked.n_bytes * _copies(config), "channels": config.n_channels,
        split: pieces(asked, config), "iterations": CALLS,
        "ranks": asked.nodes, "placement": "explicit", "hosts": _nodes(asked, rivals),
        "sender": "persistent", "port": "sticky",
        "endpoint_delay": f"{HOST_US[_kind(config.proto)]}us", "start": f"{start_ns}ns",
    }  # fmt: skip


def rival_jobs(
    asked: SweepOptions, load: Load, rivals: Rivals, until_ns: int
) -> Iterator[dict[str, Any]]:
    """Yield a job per rival flow: a message, and no other before its time is over."""
    if not load.level:
        return
    flows, period = flows_of(load), period_ns(asked, load)
    hosts = _nodes(asked, rivals) if rivals is Rivals.HOST else [
        f"h{2 * i + 1}" for i in range(asked.nodes)
    ]  # fmt: skip
    for i, src in enumerate(hosts):
        for j in range(flows):
            dst = hosts[(i + 1 + j % (asked.nodes - 1)) % asked.nodes]
            yield {
                "name": f"rival-{i}-{j}", "ranks": 2, "placement": "explicit", "hosts": [src, dst],
                "sender": "persistent", "port": "sticky", "marked": False,
                "jitter": f"{period}ns", "iterations": until_ns // period + 1,
                "op": [
                    {"kind": "send", "name": "message", "size": BURST},
                    {"kind": "compute", "name": "time", "time": f"{period}ns", "after": []},
                ],
            }  # fmt: skip


def flows_of(load: Load) -> int:
    """Return the rival flows per link."""
    return max(round(load.flows), 1) if load.flows else FLOWS


def period_ns(asked: SweepOptions, load: Load) -> int:
    """Return the time from one message of a rival flow to the next, where nothing holds it up."""
    return round(BURST * 8e9 / (load.level / flows_of(load) * asked.rate_bps))


def start_ns(asked: SweepOptions, load: Load) -> int:
    """Return when the first call starts: after all rivals have."""
    return period_ns(asked, load) + 50_000 if load.level else 0


def expected_ns(asked: SweepOptions, case: Case) -> int:
    """Return about what a call takes; only to tell when to look whether a run is over."""
    config, n = case.config, asked.nodes
    tree = config.algo is Algo.TREE
    reduce = asked.collective is Collective.ALL_REDUCE
    moved = asked.n_bytes * (2.0 if tree else (2.0 if reduce else 1.0) * (n - 1) / n)
    steps = 2 * math.ceil(math.log2(n)) if tree else (2 if reduce else 1) * (n - 1)
    wire = moved * _copies(config) * (1 + _HEADER / MTU)
    share = 1 / (1 + 2.5 * case.load.level)  # of most; more than that is a run made again
    hop = HOST_US[_kind(config.proto)] * 1000 + 4000
    crowd = 1.4 if tree else 1.1  # two children send to one parent at once
    return int(crowd * wire * 8e9 / (asked.rate_bps * share) + steps * hop)


def base(asked: SweepOptions, rivals: Rivals) -> dict[str, Any]:
    """Return what all runs share."""
    return {
        "fabric": {
            "kind": "leaf_spine", "leaves": asked.nodes, "spines": 1,
            "hosts_per_leaf": 2 if rivals is Rivals.FABRIC else 1, "rate": int(asked.rate_bps),
        },
        "transport": {"mtu": MTU, "header": _HEADER},
        "output": {"flows": False, "steps": False, "sample": "off", "queue_bin": "off"},
    }  # fmt: skip


def point(asked: SweepOptions, case: Case, rivals: Rivals, until_ns: int) -> dict[str, Any]:
    """Return what one run adds to :func:`base`, with a name that its content alone decides."""
    start = start_ns(asked, case.load)
    found: dict[str, Any] = {
        "job": [
            call(asked, case.config, rivals, start),
            *rival_jobs(asked, case.load, rivals, until_ns),
        ]
    }
    if case.load.level:
        found["until"] = f"{until_ns}ns"
    content = json.dumps([base(asked, rivals), found], sort_keys=True)
    words = str(case.config).replace("/", "-").replace(" ", "")
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return {"name": f"{words}-{digest}", **found}


def toml(value: object) -> str:
    """Return plain data as an inline TOML value."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)  # a string, a number or a truth value is the same in both


def document(tables: Mapping[str, object]) -> str:
    """Return a TOML file, a line per key."""
    return "".join(f"{key} = {toml(value)}\n" for key, value in tables.items())


def _nodes(asked: SweepOptions, rivals: Rivals) -> list[str]:
    return [f"h{2 * i if rivals is Rivals.FABRIC else i}" for i in range(asked.nodes)]


def _copies(config: Config) -> int:
    return 1 if config.proto is Proto.SIMPLE else 2


def _kind(proto: Proto) -> Proto:
    return Proto.SIMPLE if proto is Proto.SIMPLE else Proto.LL
