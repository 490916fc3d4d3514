"""What a recommendation needs to know of a fabric and a job, and how a topology file tells it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from ringstep.fabric.memo import Same
from ringstep.fabric.model import Topology
from ringstep.fabric.rings import ring_edges

UNKNOWN: Final = "unknown"
"""Sender model or DCQCN preset that nobody told."""


class FactError(ValueError):
    """Facts that make no sense; the text says which and what would be right."""


@dataclass(frozen=True, slots=True)
class FabricFacts:
    """A fabric as far as it matters here.

    ``rtt_ns`` between racks, empty; ``oversubscription`` of a ToR (its hosts' rate over its
    uplinks'); ``mtu`` payload bytes of a packet; ``red_q_min`` RED's lower threshold in packets,
    None: unknown; ``tenants``: whether others use the fabric too.

    Raises:
        FactError: a value that no fabric has.
    """

    rate_bps: int
    rtt_ns: int
    oversubscription: float = 1.0
    mtu: int = 4096
    red_q_min: int | None = None
    tenants: bool = False

    def __post_init__(self) -> None:
        _require(10**6 <= self.rate_bps <= 10**13, f"rate {self.rate_bps} bit/s", "1M to 10T")
        _require(0 < self.rtt_ns <= 10**9, f"RTT {self.rtt_ns} ns", "above 0 and at most 1 s")
        _require(
            0.01 <= self.oversubscription <= 1000,
            f"oversubscription {self.oversubscription:g}",
            "hosts' rate over uplinks' rate, such as 2",
        )
        _require(64 <= self.mtu <= 65_000, f"MTU {self.mtu}", "64 to 65000 bytes of payload")


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job as far as it matters here.

    ``step_bytes`` is what a rank sends per ring step and channel; ``ring`` the length of a ring.
    ``crossing`` is False where no ring edge leaves its rack, ``plannable`` where paths cannot be
    pinned (switches that only know ECMP, rings that the controller is not told); ``pinned`` where
    they are in any case, and only marking is to be decided on.

    Raises:
        FactError: a value that no job has.
    """

    step_bytes: int
    ring: int
    sender: str = UNKNOWN
    preset: str = UNKNOWN
    form: Literal["ring", "ring_2d"] = "ring"
    crossing: bool = True
    plannable: bool = True
    pinned: bool = False

    def __post_init__(self) -> None:
        _require(self.plannable or not self.pinned, "pinned but not plannable", "one of the two")
        _require(1 <= self.step_bytes < 1 << 50, f"{self.step_bytes} bytes per step", "1 or more")
        _require(2 <= self.ring <= 1 << 20, f"a ring of {self.ring}", "2 ranks or more")


def _require(holds: bool, what: str, right: str) -> None:
    if not holds:
        raise FactError(f"{what} makes no sense; right is {right}")


def fabric_facts(
    topology: Topology, hosts: Sequence[str] = (), *, rtt_ns: int | None = None, mtu: int = 4096
) -> FabricFacts:
    """Return what a topology file tells: slowest host link, longest RTT, largest oversubscription.

    ``hosts`` is a ring; empty: all hosts. The RTT is that of the ring's edges (of the farthest
    pair, without a ring) by the delays of the links, so switches and adapters are not in it.

    Raises:
        FactError: a host that is not there, hosts that nothing joins, or links without delays.
    """
    unknown = [host for host in hosts if host not in topology.hosts]
    if unknown:
        some = ", ".join(list(topology.hosts)[:8])
        raise FactError(f"{unknown[0]!r} is no host of {topology.source}; it has {some}")
    chosen = tuple(hosts) or tuple(topology.hosts)
    if len(chosen) < 2:
        raise FactError(f"{topology.source} has fewer than two hosts; a ring needs two")
    known = _known(Same(topology))
    if rtt_ns is None:
        rtt_ns = _rtt_ns(topology, chosen, ring=bool(hosts))
    return FabricFacts(
        rate_bps=min(known.rates[host] for host in chosen),
        rtt_ns=rtt_ns,
        oversubscription=known.oversubscription,
        mtu=mtu,
        red_q_min=known.red_q_min,
    )


def leaves_its_rack(topology: Topology, ring: Sequence[str]) -> bool:
    """Tell whether any edge of a ring joins hosts of different racks.

    Raises:
        ValueError: a ring of fewer than two hosts, or a host twice.
    """
    return any(
        not {e.node for e in topology.attachments(edge.src)}
        & {e.node for e in topology.attachments(edge.dst)}
        for edge in ring_edges([ring])
    )


def _rtt_ns(topology: Topology, hosts: Sequence[str], *, ring: bool) -> int:
    known = _known(Same(topology))
    access = known.access

    def one_way(src: str, dst: str) -> int | None:
        ways = [
            access[src, first.node] + between + access[last.node, dst]
            for first in topology.attachments(src)
            for last in topology.attachments(dst)
            if (between := known.delays_from(first.node).get(last.node)) is not None
        ]
        return min(ways, default=None)

    if ring:
        pairs: Iterable[tuple[str, str]] = ((e.src, e.dst) for e in ring_edges([hosts]))
    else:
        # Hosts of a ToR differ by their own link only: its farthest one stands for all.
        far: dict[str, str] = {}
        for host in hosts:
            tor = topology.attachments(host)[0].node
            if tor not in far or access[host, tor] > access[far[tor], tor]:
                far[tor] = host
        names = tuple(far.values()) if len(far) > 1 else tuple(hosts[:2])
        pairs = ((a, b) for a in names for b in names if a != b)
    longest = 0
    for src, dst in pairs:
        delay = one_way(src, dst)
        if delay is None:
            raise FactError(f"no links join {src!r} and {dst!r} in {topology.source}")
        longest = max(longest, 2 * delay)
    if not longest:
        raise FactError(
            f"{topology.source} gives no delays; add delay to its links, or give the RTT"
        )
    return longest


class _Known:
    """What a topology says whatever the ring: worked out once, jobs come by the thousand."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.access = {(link.a.node, link.b.node): link.delay_ns for link in topology.links}
        self.access |= {(b, a): delay for (a, b), delay in self.access.items()}
        self.rates: dict[str, int] = {}
        for link in topology.links:
            for end in (link.a, link.b):
                if end.node in topology.hosts:
                    least = self.rates.get(end.node, link.rate_bps)
                    self.rates[end.node] = min(least, link.rate_bps)
        reds = [link.red.q_min for link in topology.links if link.red is not None]
        self.red_q_min = min(reds, default=None)
        self.oversubscription = _oversubscription(topology)
        self._delays: dict[str, dict[str, int]] = {}

    def delays_from(self, switch: str) -> dict[str, int]:
        known = self._delays.get(switch)
        if known is None:
            known = self._delays[switch] = _delays(self._topology, switch)
        return known


@lru_cache(maxsize=8)
def _known(topology: Same[Topology]) -> _Known:
    return _Known(topology.value)


def _delays(topology: Topology, start: str) -> dict[str, int]:
    """Delay in ns from a switch to every other, over the fewest hops, the fastest of them."""
    hops = {start: 0}
    delays = {start: 0}
    pending = deque([start])
    while pending:
        here = pending.popleft()
        for far, link in topology.ports(here).values():
            if far.node not in topology.switches:
                continue
            delay = delays[here] + link.delay_ns
            if far.node not in hops:
                hops[far.node], delays[far.node] = hops[here] + 1, delay
                pending.append(far.node)
            elif hops[far.node] == hops[here] + 1:
                delays[far.node] = min(delays[far.node], delay)
    return delays


def _oversubscription(topology: Topology) -> float:
    worst = 0.0
    for name in topology.switches:
        ports = topology.ports(name).values()
        down = sum(link.rate_bps for far, link in ports if far.node in topology.hosts)
        up = sum(link.rate_bps for far, link in ports if far.node in topology.switches)
        if down and up:
            worst = max(worst, down / up)
    return worst or 1.0
