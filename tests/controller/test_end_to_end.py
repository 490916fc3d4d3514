"""Controller and software switches as an operator runs them: processes that meet over P4Runtime."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

import finsy
import pytest
from softswitches import SoftSwitch

from ringstep.controller.client import Q_GATE_OFF, ControllerClient, job_spec
from ringstep.controller.config import (
    ControllerConfig,
    JobsConfig,
    P4RuntimeConfig,
    PipelineConfig,
)
from ringstep.controller.jobs import Marking, QueuePair
from ringstep.controller.pipeline import Pipeline, load_pipeline
from ringstep.controller.serve import running
from ringstep.controller.v1 import switches_pb2
from ringstep.fabric import Topology
from ringstep.fabric.ecmp import FlowKey, ecmp_port
from ringstep.fabric.model import IPAddress
from ringstep.protocol import uec
from ringstep.protocol.rocev2 import CE, Bth, Opcode, RoceFrame, build, parse

pytestmark = pytest.mark.slow

Eventually = Callable[[Callable[[], object]], Awaitable[None]]
PORTS = (1, 2, 11, 12)
QP = 0x123456
THIRD_SPINE = """
[[switch]]
name = "spine3"
device_id = 13
role = "spine"
mac = "02:00:00:00:13:00"

[[link]]
a = "tor1:13"
b = "spine3:1"
rate = "10G"

[[link]]
a = "tor2:13"
b = "spine3:2"
rate = "10G"
"""


@pytest.fixture
def config(tmp_path: Path, fabric_text: str) -> ControllerConfig:
    topology = tmp_path / "fabric.toml"
    topology.write_text(fabric_text)
    return ControllerConfig(
        topology=topology,
        listen="127.0.0.1:0",
        store=f"sqlite:///{tmp_path / 'store.db'}",
        p4runtime=P4RuntimeConfig(
            election_id=10, heartbeat_s=0.2, audit_s=0.5, retry_max_s=0.2, connect_s=2
        ),
    )


@asynccontextmanager
async def controller(config: ControllerConfig) -> AsyncIterator[ControllerClient]:
    async with running(config) as address, ControllerClient(address) as client:
        yield client


async def added(client: ControllerClient, switch: SoftSwitch) -> None:
    await client.add_switch("tor1", switch.address)
    await client.wait_switches(["tor1"])


async def phase_of_tor1(
    client: ControllerClient, phase: switches_pb2.SwitchPhase
) -> switches_pb2.Switch:
    """Wait until the controller is in ``phase`` with tor1."""
    async with asyncio.timeout(60):
        while True:
            (view, *_) = await client.switches()
            if view.status.phase == phase:
                return view
            await asyncio.sleep(0.01)


async def held(switch: SoftSwitch, pipeline: Pipeline) -> set[str]:
    """Read all table entries as a foreign client that is no primary."""
    options = finsy.SwitchOptions(initial_election_id=1, device_id=switch.device_id)
    async with finsy.Switch("reader", switch.address, options) as reader:
        return {
            f"{entry.table_id} {dict(entry.match or {})} {entry.action}"
            async for entry in reader.read(finsy.P4TableEntry())
        }


async def test_empty_switch_is_programmed_and_a_second_run_writes_nothing(
    config: ControllerConfig, tmp_path: Path, pipeline: Pipeline
) -> None:
    with SoftSwitch(tmp_path, 1) as switch:
        async with controller(config) as client:
            await added(client, switch)
            entries = await held(switch, pipeline)
            # 4 IPv4 and 2 IPv6 routes, 3 next hops, 4 ports with RED, 2 planned ways out.
            assert len(entries) == 15
            assert (
                "route_v4 {'dst_addr': (167772675, 32)} P4TableAction(name='set_nexthop', "
                "args={'nexthop_id': 510})"
            ) in entries
            assert "nexthop {'nexthop_id': 510} P4IndirectAction(group_id=510)" in entries
        async with controller(config) as client:
            (ready,) = await client.wait_switches(["tor1"])
            assert (ready.status.updates_written, ready.status.sessions) == (0, 1)
            assert await held(switch, pipeline) == entries


async def test_foreign_entries_are_removed_and_the_default_action_put_right(
    config: ControllerConfig, tmp_path: Path, pipeline: Pipeline
) -> None:
    with SoftSwitch(tmp_path, 1) as switch:
        async with controller(config) as client:
            await added(client, switch)
            right = await held(switch, pipeline)
            options = finsy.SwitchOptions(initial_election_id=1 << 64, device_id=1)
            async with finsy.Switch("intruder", switch.address, options) as intruder:
                await intruder.write(
                    [
                        +finsy.P4TableEntry(
                            "red",
                            match=finsy.Match(egress_port=77),
                            action=finsy.Action("set_red", q_min=1, q_max=2, p_max=3, gap=4),
                        ),
                        -finsy.P4TableEntry("red", match=finsy.Match(egress_port=1)),
                        ~finsy.P4TableEntry(
                            "switch_config",
                            action=finsy.Action("set_switch", ecmp_seed=5),
                            is_default_action=True,
                        ),
                    ]
                )
                assert await held(switch, pipeline) != right
                view = await phase_of_tor1(client, switches_pb2.SWITCH_PHASE_ERROR)
                assert "another controller became primary" in view.status.detail
            (view,) = await client.wait_switches(["tor1"])
            assert view.status.foreign_removed == 1
            assert await held(switch, pipeline) == right
            async with finsy.Switch(
                "reader", switch.address, finsy.SwitchOptions(initial_election_id=1, device_id=1)
            ) as reader:
                wanted = finsy.P4TableEntry("switch_config", is_default_action=True)
                (default,) = [entry async for entry in reader.read(wanted)]
                assert default.action == finsy.Action("set_switch", ecmp_seed=101)


async def test_switch_killed_and_restarted_empty_is_whole_again(
    config: ControllerConfig, tmp_path: Path, pipeline: Pipeline
) -> None:
    async with controller(config) as client:
        with SoftSwitch(tmp_path, 1) as first:
            await added(client, first)
            await client.register(job_spec("a", rings=[["h1", "h2"]]))
            await client.wait_programmed("a")
            right = await held(first, pipeline)
            address = first.address
        view = await phase_of_tor1(client, switches_pb2.SWITCH_PHASE_CONNECTING)
        assert "cannot be reached" in view.status.detail
        with SoftSwitch(tmp_path, 1, grpc=address) as second:
            await client.wait_programmed("a")
            assert await held(second, pipeline) == right


async def test_stopped_switch_is_noticed_and_forgiven(
    config: ControllerConfig, tmp_path: Path
) -> None:
    with SoftSwitch(tmp_path, 1) as switch:
        async with controller(config) as client:
            await added(client, switch)
            os.kill(switch.process.pid, signal.SIGSTOP)
            await phase_of_tor1(client, switches_pb2.SWITCH_PHASE_CONNECTING)
            os.kill(switch.process.pid, signal.SIGCONT)
            await client.wait_switches(["tor1"])


async def test_program_that_the_switch_refuses_is_reported_and_nothing_is_written(
    config: ControllerConfig, tmp_path: Path
) -> None:
    program = json.loads((files("ringstep") / "p4build" / "ringstep_v1model.json").read_text())
    program["actions"][0]["primitives"].append({"op": "unheard_of", "parameters": []})
    other = tmp_path / "other.json"
    other.write_text(json.dumps(program))
    wrong = config.model_copy(update={"pipeline": PipelineConfig(json=other)})
    with SoftSwitch(tmp_path, 1) as switch:
        async with controller(wrong) as client:
            await client.add_switch("tor1", switch.address)
            view = await phase_of_tor1(client, switches_pb2.SWITCH_PHASE_ERROR)
            assert "refuses the program" in view.status.detail
            assert f"p4info.txtpb with {other}" in view.status.detail
            assert "must come from one run of p4c" in view.status.detail
            assert view.status.updates_written == 0
        async with controller(config) as client:
            await client.wait_switches(["tor1"])


def frame(src: IPAddress, dst: IPAddress, step: int, psn: int, qp: int = QP) -> bytes:
    """A data packet in the middle of a WRITE, tagged with its step."""
    return build(
        RoceFrame(
            src_mac=0x020000010001,
            dst_mac=0x020000000100,
            src_ip=src,
            dst_ip=dst,
            sport=0xC000 | step,
            bth=Bth(Opcode.RC_WRITE_MIDDLE, qp, psn),
            payload=bytes(64),
            ecn=2,
        )
    )


async def test_job_is_followed_and_shown_and_forgotten(
    config: ControllerConfig, tmp_path: Path, pipeline: Pipeline, topology: Topology
) -> None:
    h1, h2 = topology.hosts["h1"].ipv4, topology.hosts["h2"].ipv4
    assert h1 is not None
    assert h2 is not None
    with SoftSwitch(tmp_path, 1, PORTS) as switch:
        async with controller(config) as client:
            await added(client, switch)
            without = await held(switch, pipeline)
            spec = job_spec("a", queue_pairs=[QueuePair("h1", "h2", QP)])
            await client.register(spec)
            await client.wait_programmed("a")
            assert len(await held(switch, pipeline)) == len(without) + 3
            state = (await client.state("a")).switches[0].blocks[0]
            assert state.generation == 0
            for step, psn in [(7, 0), (7, 1), (7, 2), (8, 0), (6, 5)]:
                switch.send(1, frame(h1, h2, step, psn))
                port, sent = switch.receive()
                assert port == 2
                assert parse(sent).bth.psn == psn
            switch.send(1, frame(h1, h2, 9, 0, qp=QP + 1))
            switch.receive()
            reply = await client.state("a")
            (of_tor1,) = reply.switches
            assert of_tor1.error == ""
            (block,) = of_tor1.blocks
            assert list(block.egress_ports) == [2]
            assert (block.generation, block.step_min, block.alpha) == (1, 6, 1)
            assert block.now_us >= block.win_start_us
            counters = of_tor1.counters
            assert (counters.data, counters.corrections, counters.marks) == (5, 1, 0)
            await client.release("a")
            await client.wait_switches(["tor1"])
            assert await held(switch, pipeline) == without


def uec_frame(
    src: IPAddress, dst: IPAddress, job_id: int, pdc: int, psn: int, *, last: bool = False
) -> bytes:
    """A RUD WRITE request of Ultra Ethernet, whose source PDCID is its step."""
    return uec.build(
        uec.UecFrame(
            src_mac=0x020000010001,
            dst_mac=0x020000000100,
            src_ip=src,
            dst_ip=dst,
            sport=0x1234,
            pds=uec.Pds(psn=psn, spdcid=pdc),
            ses=uec.Ses(job_id=job_id, end_of_message=last),
            body=bytes(44),
            ecn=2,
        )
    )


async def test_job_of_ultra_ethernet_is_followed_marked_and_forgotten(
    config: ControllerConfig, tmp_path: Path, topology: Topology
) -> None:
    h1, h2 = topology.hosts["h1"].ipv4, topology.hosts["h2"].ipv4
    assert h1 is not None
    assert h2 is not None
    with_uec = config.model_copy(update={"pipeline": PipelineConfig(uec=True)})
    spec = job_spec(
        "a",
        rings=[["h1", "h2"]],
        uec_job_ids=[0xA00007],
        k=1,
        q_gate=Q_GATE_OFF,
        n_warmup=0,
        t_win_us=1 << 28,
        marking=Marking.ON,
    )
    with SoftSwitch(tmp_path, 1, PORTS) as switch:

        def ecn_after(job_id: int, pdc: int, psn: int, *, last: bool = False) -> int:
            switch.send(1, uec_frame(h1, h2, job_id, pdc, psn, last=last))
            port, sent = switch.receive()
            assert port == 2
            return uec.parse(sent).ecn

        async with controller(with_uec) as client:
            await added(client, switch)
            without = await held(switch, load_pipeline(uec=True))
            await client.register(spec)
            await client.wait_programmed("a")
            # One rule for both directions, parameters, two blocks.
            assert len(await held(switch, load_pipeline(uec=True))) == len(without) + 4
            assert ecn_after(0xA00007, 5, 50) == 2
            assert ecn_after(0xA00007, 6, 50) == CE
            assert ecn_after(0xA00008, 6, 50) == 2
            assert ecn_after(0xA00007, 5, 51, last=True) == 2
            (of_tor1,) = (await client.state("a")).switches
            block = next(one for one in of_tor1.blocks if list(one.egress_ports) == [2])
            assert (block.generation, block.step_min) == (1, 6)
            assert (of_tor1.counters.data, of_tor1.counters.marks) == (3, 1)
        # A restarted controller finds all as it should be, and writes nothing.
        async with controller(with_uec) as client:
            await client.wait_programmed("a")
            (ready, *_) = await client.switches()
            assert ready.status.updates_written == 0
            await client.release("a")
            await client.wait_switches(["tor1"])
            assert await held(switch, load_pipeline(uec=True)) == without
            assert ecn_after(0xA00007, 9, 50) == 2


async def test_reused_block_starts_clean_for_the_next_job(
    config: ControllerConfig, tmp_path: Path, topology: Topology
) -> None:
    """The second job's generation differs, so the first one's step_min is not taken for its own."""
    h1, h2 = topology.hosts["h1"].ipv4, topology.hosts["h2"].ipv4
    assert h1 is not None
    assert h2 is not None
    with SoftSwitch(tmp_path, 1, PORTS) as switch:
        async with controller(config) as client:
            await added(client, switch)
            spec = job_spec("a", queue_pairs=[QueuePair("h1", "h2", QP)])
            for step in (500, 3):
                job = await client.register(spec)
                await client.wait_programmed("a")
                switch.send(1, frame(h1, h2, step, 0))
                switch.receive()
                (block,) = (await client.state("a")).switches[0].blocks
                assert (block.generation, block.step_min) == (job.generation, step)
                await client.release("a")
                await client.wait_switches(["tor1"])


async def test_job_id_that_is_handed_out_again_counts_from_zero(
    config: ControllerConfig, tmp_path: Path, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringstep.controller.ledger.MAX_JOBS", 1)
    config = config.model_copy(update={"jobs": JobsConfig(quarantine=timedelta(0))})
    h1, h2 = topology.hosts["h1"].ipv4, topology.hosts["h2"].ipv4
    assert h1 is not None
    assert h2 is not None
    with SoftSwitch(tmp_path, 1, PORTS) as switch:
        async with controller(config) as client:
            await added(client, switch)
            spec = job_spec("a", queue_pairs=[QueuePair("h1", "h2", QP)])
            for packets in (3, 2):
                job = await client.register(spec)
                assert job.id == 1
                await client.wait_programmed("a")
                (of_tor1,) = (await client.state("a")).switches
                assert of_tor1.counters.data == 0
                for psn in range(packets):
                    switch.send(1, frame(h1, h2, 7, psn))
                    switch.receive()
                (of_tor1,) = (await client.state("a")).switches
                assert of_tor1.counters.data == packets
                await client.release("a")
                await client.wait_switches(["tor1"])
            await client.register(spec)
            await client.wait_programmed("a")
            switch.send(1, frame(h1, h2, 7, 0))
            switch.receive()
        async with controller(config) as client:
            await client.wait_programmed("a")
            (of_tor1,) = (await client.state("a")).switches
            assert of_tor1.counters.data == 1


@pytest.mark.parametrize("family", [4, 6])
async def test_ecmp_model_names_the_port_that_the_switch_takes(
    config: ControllerConfig, tmp_path: Path, topology: Topology, family: int
) -> None:
    h1, h3 = topology.hosts["h1"], topology.hosts["h3"]
    src, dst = (h1.ipv4, h3.ipv4) if family == 4 else (h1.ipv6, h3.ipv6)
    assert src is not None
    assert dst is not None
    seed = topology.switches["tor1"].ecmp_seed
    config.topology.write_text(config.topology.read_text() + THIRD_SPINE)
    with SoftSwitch(tmp_path, 1, (*PORTS, 13)) as switch:
        async with controller(config) as client:
            await added(client, switch)
            taken = []
            for step in range(40):
                switch.send(1, frame(src, dst, step, 0))
                port, _ = switch.receive()
                taken.append(port)
    flows = [FlowKey(src, dst, 0xC000 | step, 4791) for step in range(40)]
    assert taken == [ecmp_port(seed, flow, [11, 12, 13]) for flow in flows]
    assert set(taken) == {11, 12, 13}


async def test_many_jobs_are_programmed_and_released_again(
    config: ControllerConfig, tmp_path: Path, pipeline: Pipeline
) -> None:
    with SoftSwitch(tmp_path, 1) as switch:
        async with controller(config) as client:
            await added(client, switch)
            without = await held(switch, pipeline)
            names = [f"job{number}" for number in range(100)]
            await asyncio.gather(
                *(
                    client.register(job_spec(name, queue_pairs=[QueuePair("h1", "h2", qp)]))
                    for qp, name in enumerate(names, start=1)
                )
            )
            await client.wait_switches(["tor1"])
            assert len(await held(switch, pipeline)) == len(without) + 3 * len(names)
            await asyncio.gather(*(client.release(name) for name in names))
            await client.wait_switches(["tor1"])
            assert await held(switch, pipeline) == without
