"""Planned paths as packets meet them: through software switches that the controller programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from softswitches import SoftSwitch

from ringstep.controller.client import ControllerClient, job_spec
from ringstep.controller.config import ControllerConfig
from ringstep.controller.jobs import MatchKind, PathsChoice, QueuePair
from ringstep.controller.serve import running
from ringstep.controller.v1 import jobs_pb2
from ringstep.fabric import Topology
from ringstep.fabric.model import IPAddress
from ringstep.protocol.rocev2 import Bth, Opcode, RoceFrame, build, parse

pytestmark = pytest.mark.slow

Way = tuple[tuple[str, int], ...]
"""Switches that a packet passed, each with the port that it left by."""
LOST = ("lost", 0)
SPORTS = [0xC000 | 977 * n % 0x4000 for n in range(24)]
"""Source ports that ECMP would spread over all uplinks."""
UPLINKS = {"spine1": 11, "spine2": 12}
"""The port of either ToR that leads to a spine."""


@dataclass
class Wired:
    """The fabric of switches as processes; the wires between them pass through the test."""

    topology: Topology
    switches: dict[str, SoftSwitch]
    client: ControllerClient

    def walk(self, src: str, dst: str, qp: int, sport: int, version: int = 4) -> Way:
        """Send a packet from host to host; return the way it took, which may end in LOST."""
        ends = [self.address(src, version), self.address(dst, version)]
        frame = RoceFrame(
            src_mac=0x020000010001,
            dst_mac=0x020000000100,
            src_ip=ends[0],
            dst_ip=ends[1],
            sport=sport,
            bth=Bth(Opcode.RC_WRITE_MIDDLE, qp, 5),
            payload=bytes(64),
            ecn=2,
        )
        at = next(iter(self.topology.attachments(src)))
        data, way = build(frame), []
        while at.node in self.switches:
            switch = self.switches[at.node]
            switch.send(at.port, data)
            try:
                port, data = switch.receive()
            except TimeoutError:
                return (*way, LOST)
            way.append((at.node, port))
            at = self.topology.ports(at.node)[port][0]
        assert at.node == dst
        assert (parse(data).sport, parse(data).bth) == (sport, frame.bth)
        return tuple(way)

    def address(self, host: str, version: int) -> IPAddress:
        return next(ip for ip in self.topology.hosts[host].ips if ip.version == version)

    async def ways(
        self, src: str, dst: str, qp: int, sports: Iterable[int] = SPORTS, version: int = 4
    ) -> set[Way]:
        """Return the ways that packets take which differ in nothing but their source port."""
        return {
            await asyncio.to_thread(self.walk, src, dst, qp, sport, version) for sport in sports
        }

    async def settled(self, name: str, qp: int) -> Way:
        """Wait until the packets of a job go where it was planned to go, and nowhere else."""
        async with asyncio.timeout(120):
            while True:
                job = await self.client.get(name)
                if not job.moving and await self.ways("h1", "h3", qp) == {planned(job)}:
                    break
                await asyncio.sleep(0.05)
        await self.client.wait_switches(timeout_s=120)
        return planned(job)


@pytest.fixture
async def wired(
    config: ControllerConfig, topology: Topology, tmp_path: Path
) -> AsyncIterator[Wired]:
    async with AsyncExitStack() as stack:
        switches = {
            name: stack.enter_context(
                SoftSwitch(tmp_path, switch.device_id, sorted(topology.ports(name)))
            )
            for name, switch in topology.switches.items()
        }
        address = await stack.enter_async_context(running(config))
        client = await stack.enter_async_context(ControllerClient(address))
        for name, switch in switches.items():
            await client.add_switch(name, switch.address)
        await client.wait_switches(timeout_s=120)
        yield Wired(topology, switches, client)


async def registered(client: ControllerClient, spec: jobs_pb2.JobSpec) -> jobs_pb2.Job:
    await client.register(spec)
    return await client.wait_programmed(spec.name, timeout_s=120)


def planned(job: jobs_pb2.Job, src: str = "h1") -> Way:
    """Return the path that the controller says the packets of a host take."""
    (path,) = [path for path in job.paths if path.src == src]
    return tuple((hop.switch, hop.port) for hop in path.hops)


def by_qp(name: str, qp: int, paths: PathsChoice = PathsChoice.PLANNED) -> jobs_pb2.JobSpec:
    return job_spec(name, queue_pairs=[QueuePair("h1", "h3", qp)], paths=paths)


async def test_packets_take_the_planned_path_whatever_their_source_port(wired: Wired) -> None:
    """Also where nothing but the queue pair tells the packets of two jobs apart."""
    client = wired.client
    first = await registered(client, by_qp("a", 1))
    second = await registered(client, by_qp("b", 2))
    assert {planned(first)[0], planned(second)[0]} == {("tor1", 11), ("tor1", 12)}
    for version in (4, 6):
        assert await wired.ways("h1", "h3", 1, version=version) == {planned(first)}
        assert await wired.ways("h1", "h3", 2, version=version) == {planned(second)}
    await registered(client, by_qp("c", 3, PathsChoice.ECMP))
    hashed = {planned(first), planned(second)}
    assert await wired.ways("h1", "h3", 3) == hashed, "by ECMP the same ports spread"
    await client.release("a")
    await client.wait_switches()
    assert await wired.ways("h1", "h3", 1) == hashed, "a job that is gone leaves no pin"


async def test_packets_of_address_pairs_take_the_planned_path(wired: Wired) -> None:
    spec = job_spec(
        "a",
        rings=[["h1", "h3", "h2", "h4"]],
        match=MatchKind.PAIR,
        paths=PathsChoice.PLANNED,
    )
    job = await registered(wired.client, spec)
    taken = {}
    for src, dst in (("h1", "h3"), ("h3", "h2"), ("h2", "h4"), ("h4", "h1")):
        (taken[src],) = await wired.ways(src, dst, 9)
        assert taken[src] == planned(job, src)
    assert taken["h1"][0] != taken["h2"][0], "no uplink carries two edges"
    assert taken["h3"][0] != taken["h4"][0]


async def test_packets_leave_a_failed_link_and_none_is_lost(wired: Wired) -> None:
    client = wired.client
    before = planned(await registered(client, by_qp("a", 1)))
    (_, uplink), _, _ = before
    (other_port,) = set(UPLINKS.values()) - {uplink}
    failing = asyncio.create_task(client.set_link("tor1", uplink, up=False))
    seen = []
    # The link works in truth: every packet arrives, whichever rules it meets.
    while not failing.done() or len(seen) < len(SPORTS):
        sport = SPORTS[len(seen) % len(SPORTS)]
        seen.append(await asyncio.to_thread(wired.walk, "h1", "h3", 1, sport))
    assert await failing == ["a"]
    await client.wait_switches(timeout_s=120)
    assert {way[:1] for way in await wired.ways("h1", "h3", 1)} == {(("tor1", other_port),)}
    after = await wired.settled("a", 1)
    assert after[0] == ("tor1", other_port)
    assert set(seen) <= {before, after}
    assert await wired.ways("h1", "h3", 1) == {after}
    assert await wired.ways("h1", "h3", 7) == {after}, "nor does ECMP use it"


@pytest.mark.parametrize("end", ["near", "far"])
async def test_packets_stay_where_they_went_when_the_link_is_back(wired: Wired, end: str) -> None:
    """The link from the sender's switch, or the one behind the spine, which no pin points at."""
    client = wired.client
    (_, uplink), (spine, _), _ = planned(await registered(client, by_qp("a", 1)))
    link = ("tor1", uplink) if end == "near" else ("tor2", UPLINKS[spine])
    await client.set_link(*link, up=False)
    after = await wired.settled("a", 1)
    assert await wired.ways("h1", "h3", 1) == {after}
    returning = asyncio.create_task(client.set_link(*link, up=True))
    seen = set()
    while not returning.done():
        seen |= await wired.ways("h1", "h3", 1)
    await returning
    await client.wait_switches(timeout_s=120)
    assert seen | await wired.ways("h1", "h3", 1) == {after}
    assert len(await wired.ways("h1", "h3", 7)) == 2, "ECMP uses it again"


async def test_packets_leave_a_drained_switch_and_come_back_when_asked_to(wired: Wired) -> None:
    client = wired.client
    jobs = [await registered(client, by_qp(name, qp)) for name, qp in (("a", 1), ("b", 2))]
    before = {planned(job) for job in jobs}
    (stays,) = [way for way in before if way[1][0] == "spine2"]
    await client.drain("spine1")
    for name, qp in (("a", 1), ("b", 2)):
        assert await wired.settled(name, qp) == stays
    assert await wired.ways("h1", "h3", 7) == {stays}, "ECMP goes around it, too"
    await client.drain("spine1", drained=False)
    await client.wait_switches(timeout_s=120)
    for qp in (1, 2):
        assert await wired.ways("h1", "h3", qp) == {stays}, "a switch that is back moves nobody"
    await client.rebalance()
    assert {await wired.settled("a", 1), await wired.settled("b", 2)} == before
