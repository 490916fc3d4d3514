"""How long a collective takes for a configuration and a load: a fluid model, microseconds per call.

It is meant to rank configurations as a shared link does, and to be calibrated to measurements
(:mod:`.calibrate`); it is no simulator. What it knows:

- every channel is a flow (in a tree two per link); flows share a link fairly with the background's,
  which never wants more than its load. So more channels take a larger share, and cost CPU;
- LL sends every byte twice and answers quickly; Simple sends messages with credits, so that a flow
  carries no more than its window per round trip, and round trips grow with the load;
- a ring has 2 (N - 1) steps, a double tree about 2 log2 of the nodes;
- bytes and messages cost CPU at the engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

CLEAN_CHANNELS: Final = 2
"""Channels of NCCL's own choice on one network interface per node."""


@dataclass(frozen=True, slots=True)
class FluidParams:
    """A cluster, as the model sees it. All times in µs, all rates in bytes per µs (= MB/s).

    Attributes:
        link_rate: of a node's link, per direction.
        local_rate: between ranks of one node.
        hop_ll, hop_simple: time of one step between nodes, without its bytes.
        hop_local: the same inside a node.
        queue: delay of a link whose load is one half; grows as load / (1 - load).
        cpu_rate: at which one rank handles bytes on the wire.
        message: CPU time of one Simple message.
        channel: fixed cost of a channel per collective.
        window: Simple messages in flight per flow.
        ll_window: bytes in flight per LL flow.
        chunk: bytes of a Simple message where the configuration does not say.
        rival_weight: share that a background flow takes against one of ours: 1 is fair.
        tree_flows: flows per channel and link of a tree; a ring has one.
        tree_bytes: bytes a tree sends against 2 S.
        background_flows: of the background, where a load does not say.
    """

    link_rate: float = 1250.0
    local_rate: float = 8000.0
    hop_ll: float = 25.0
    hop_simple: float = 60.0
    hop_local: float = 5.0
    queue: float = 40.0
    cpu_rate: float = 2600.0
    message: float = 4.0
    channel: float = 15.0
    window: float = 8.0
    ll_window: float = 131072.0
    chunk: float = 131072.0
    rival_weight: float = 1.0
    tree_flows: float = 2.0
    tree_bytes: float = 1.0
    background_flows: float = 4.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{each.name} = {value}: a finite number above 0")


@dataclass(frozen=True, slots=True)
class Load:
    """What else the network and the hosts do during a call.

    Attributes:
        level: share of the link that the background wants, 0 to 1.
        flows: of the background; 0: the cluster's usual number.
        slow_host: factor on the CPU time of the slowest rank, from 1.
    """

    level: float = 0.0
    flows: float = 0.0
    slow_host: float = 1.0


CLEAN: Final = Load()


def latency_us(key: Key, n_bytes: int, config: Config, load: Load, p: FluidParams) -> float:
    """Return the expected time of a collective in µs, without noise.

    Raises:
        ValueError: Tree for anything but AllReduce, or no channels.
    """
    tree = config.algo is Algo.TREE
    if tree and key.collective is not Collective.ALL_REDUCE:
        raise ValueError(f"TREE for {key.collective.name}: NCCL has it for ALL_REDUCE only")
    channels = config.n_channels
    if channels < 1:
        raise ValueError(f"{config}: no channels")
    ranks, nodes = key.n_ranks, key.n_nodes
    per_node = max(ranks / nodes, 1.0)
    ll = config.proto is not Proto.SIMPLE
    across = nodes > 1

    steps, moved = _work(key, n_bytes, tree)
    wire = moved * (2.0 if ll else 1.0) * (p.tree_bytes if tree else 1.0)
    level = min(max(load.level, 0.0), 0.99) if across else 0.0
    queue = p.queue * level / (1.0 - level)
    hop = (p.hop_ll if ll else p.hop_simple) + queue

    flows = channels * (p.tree_flows if tree else 1.0)
    rivals = p.rival_weight * (load.flows or p.background_flows)
    share = max(1.0 - level, flows / (flows + rivals)) if level > 0 else 1.0
    rate = p.link_rate * share if across else p.local_rate
    chunk = float(config.chunk_bytes or p.chunk)
    # A message is no larger than what a channel has to send in a step.
    piece = max(min(chunk, moved / max(steps, 1) / channels), 1.0)
    in_flight = p.ll_window if ll else p.window * piece
    rate = min(rate, flows * in_flight / (2.0 * (hop if across else p.hop_local)))
    if not ll:
        cpu = wire / p.cpu_rate + math.ceil(moved / channels / piece) * channels * p.message
    else:
        cpu = wire / p.cpu_rate
    streaming = max(wire / rate, cpu * load.slow_host)

    network_steps, local_steps = _hops(steps, ranks, nodes, per_node, tree)
    fill = network_steps * (hop + (0.0 if ll else piece * channels / rate)) + (
        local_steps * (p.hop_local + (0.0 if ll else piece * channels / p.local_rate))
    )
    return streaming + fill * (0.5 + 0.5 * load.slow_host) + channels * p.channel


def _work(key: Key, n_bytes: int, tree: bool) -> tuple[float, float]:
    """Return steps, and bytes that the busiest link carries in a direction."""
    n, size = key.n_ranks, float(n_bytes)
    if key.collective is Collective.ALL_REDUCE:
        if tree:
            depth = max(math.ceil(math.log2(max(key.n_nodes, 2))), 1)
            per_node = max(n / key.n_nodes, 1.0)
            return 2.0 * (depth + per_node - 1), size * (2.0 if key.n_nodes > 2 else 1.0)
        return 2.0 * (n - 1), 2.0 * size * (n - 1) / n
    if key.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        return n - 1.0, size * (n - 1) / n
    return n - 1.0, size


def _hops(steps: float, ranks: int, nodes: int, per_node: float, tree: bool) -> tuple[float, float]:
    """Split steps into those between nodes and those inside one."""
    if nodes <= 1:
        return 0.0, steps
    if tree:
        local = 2.0 * (per_node - 1)
        return steps - local, local
    network = steps * nodes / ranks
    return network, steps - network


def nccls_choice(key: Key, n_bytes: int, p: FluidParams, max_channels: int = 8) -> Config:
    """Return what a static cost model picks: the best pair on a clean network, usual channels."""
    channels = min(CLEAN_CHANNELS, max_channels)
    pairs = [
        Config(algo, proto, channels)
        for algo in (Algo.TREE, Algo.RING)
        for proto in (Proto.LL, Proto.SIMPLE)
        if algo is Algo.RING or key.collective is Collective.ALL_REDUCE
    ]
    return min(pairs, key=lambda c: latency_us(key, n_bytes, c, CLEAN, p))


def best(
    key: Key, n_bytes: int, load: Load, p: FluidParams, max_channels: int = 8
) -> tuple[Config, float]:
    """Return the oracle's configuration and its time: the best of all at this load."""
    found = [
        (latency_us(key, n_bytes, config, load, p), config)
        for algo in (Algo.RING, Algo.TREE)
        if algo is Algo.RING or key.collective is Collective.ALL_REDUCE
        for proto in (Proto.SIMPLE, Proto.LL)
        for config in (Config(algo, proto, n) for n in range(1, max_channels + 1))
    ]
    time, config = min(found)
    return config, time


def scaled(p: FluidParams, **factors: float) -> FluidParams:
    """Return parameters multiplied by the factors given."""
    return replace(p, **{name: getattr(p, name) * f for name, f in factors.items()})
