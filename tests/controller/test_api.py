"""The gRPC API on loopback, with switches that do as they are told or with none at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import pytest
from api import controller, refused
from fake_switch import FakeSwitch

from ringstep.controller.client import (
    ControllerClient,
    ControllerError,
    NotProgrammedError,
    job_spec,
)
from ringstep.controller.config import ControllerConfig, PipelineConfig, ProgramConfig
from ringstep.controller.facts import Change
from ringstep.controller.fleet import Fleet
from ringstep.controller.jobs import MatchKind, QueuePair, Tag
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.serve import ListenError, running
from ringstep.controller.store import Store
from ringstep.controller.v1 import jobs_pb2, switches_pb2
from ringstep.fabric import Topology
from ringstep.protocol.inband import StateReply
from ringstep.protocol.tag import JobCarrier

NewSwitch = Callable[..., Awaitable[FakeSwitch]]
RING = [["h1", "h2", "h3", "h4"]]
CROSSED = [["h1", "h3", "h2", "h4"]]
"""Every edge leaves its rack, so that all switches have a part in it."""
SWITCHES = ["tor1", "tor2", "spine1", "spine2"]


def by_ecmp(spec: jobs_pb2.JobSpec) -> jobs_pb2.JobSpec:
    """Return the spec with all paths that are as short as any."""
    spec.paths = jobs_pb2.PATHS_CHOICE_ECMP
    return spec


async def test_registered_job_has_id_parameters_and_switches(config: ControllerConfig) -> None:
    async with controller(config) as client:
        job = await client.register(job_spec("resnet", rings=CROSSED, k=0.5))
        assert (job.id, job.generation, job.spec.name) == (1, 1, "resnet")
        assert job.parameters.k == 0.5
        assert job.parameters.scope == jobs_pb2.SCOPE_PORT
        assert [item.switch for item in job.programming] == sorted(SWITCHES)
        assert {item.phase for item in job.programming} == {switches_pb2.SWITCH_PHASE_UNMANAGED}
        assert await client.get("resnet") == await client.get(1) == job
        assert await client.jobs() == [job]


async def test_jobs_survive_a_restart_of_the_controller(config: ControllerConfig) -> None:
    async with controller(config) as client:
        before = await client.register(job_spec("resnet", rings=RING, profile="paper"), "r1")
    async with controller(config) as client:
        assert await client.get("resnet") == before
        assert await client.register(job_spec("resnet", rings=RING, profile="paper"), "r1") == (
            before
        )
        assert (await client.register(job_spec("other", rings=[["h1", "h3"]]))).id == 2


async def test_repeated_request_is_harmless_and_another_spec_is_not(
    config: ControllerConfig,
) -> None:
    async with controller(config) as client:
        first = await client.register(job_spec("a", rings=RING), "r1")
        assert await client.register(job_spec("a", rings=RING), "r1") == first
        with refused(grpc.StatusCode.ALREADY_EXISTS, "with another spec"):
            await client.register(job_spec("a", rings=RING, k=0.1), "r1")
        with refused(grpc.StatusCode.ALREADY_EXISTS, "job 'a' is already registered as"):
            await client.register(job_spec("a", rings=RING), "r2")
        assert len(await client.jobs()) == 1


async def test_jobs_whose_packets_would_be_confused_are_refused(config: ControllerConfig) -> None:
    async with controller(config) as client:
        await client.register(job_spec("a", rings=RING))
        with refused(
            grpc.StatusCode.FAILED_PRECONDITION,
            "job 'a' (1) already owns packets that match job_by_pair",
        ):
            await client.register(job_spec("b", rings=[["h1", "h2"]]))
        by_qp = job_spec("b", queue_pairs=[QueuePair("h1", "h2", 17)])
        assert (await client.register(by_qp)).id == 2
        tagged = job_spec("c", rings=RING, tag=Tag(JobCarrier.SPORT, 1), job_bits=2)
        assert (await client.register(tagged)).id == 3
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "job 'c' (3) already owns"):
            await client.register(
                job_spec("d", rings=RING, tag=Tag(JobCarrier.SPORT, 7), job_bits=4)
            )
        await client.release("c")
        await client.register(job_spec("d", rings=RING, tag=Tag(JobCarrier.SPORT, 7), job_bits=4))


UEC = PipelineConfig(uec=True)


async def test_a_job_id_of_ultra_ethernet_belongs_to_one_job(config: ControllerConfig) -> None:
    async with controller(config.model_copy(update={"pipeline": UEC})) as client:
        job = await client.register(job_spec("a", rings=[["h1", "h2"]], uec_job_ids=[7, 8]))
        assert list(job.spec.uec_job_ids) == [7, 8]
        with refused(
            grpc.StatusCode.FAILED_PRECONDITION,
            "job 'a' (1) already owns packets that match job_by_uec_id uec_job_id=8; release it, "
            "or give this job's packets another JobID",
        ):
            await client.register(job_spec("b", rings=[["h3", "h4"]], uec_job_ids=[8, 9]))
        assert (await client.register(job_spec("b", rings=RING))).id == 2
        await client.release("a")
        await client.register(job_spec("c", rings=[["h3", "h4"]], uec_job_ids=[8, 9]))


async def test_without_a_program_for_ultra_ethernet_its_jobs_are_refused(
    config: ControllerConfig,
) -> None:
    spec = job_spec("a", rings=[["h1", "h2"]], uec_job_ids=[7])
    async with controller(config) as client:
        with refused(
            grpc.StatusCode.FAILED_PRECONDITION,
            "no switch of the job's paths can find its packets: tor1; their program has no table "
            "job_by_uec_id; give one compiled with -DRINGSTEP_UEC",
        ):
            await client.register(spec)
        assert await client.jobs() == []
    async with controller(config.model_copy(update={"pipeline": UEC})) as client:
        await client.register(spec)
    # The operator went back to the plain program.
    async with controller(config) as client:
        job = await client.get("a")
        assert "no table job_by_uec_id" in job.problem
        assert list(job.programming) == []


async def test_switch_with_the_plain_program_says_that_it_cannot(
    config: ControllerConfig, new_switch: NewSwitch
) -> None:
    mixed = PipelineConfig(uec=True, switch={"spine1": ProgramConfig()})
    async with controller(config.model_copy(update={"pipeline": mixed})) as client:
        switches = await all_switches(client, new_switch)
        before = {name: switch.lines() for name, switch in switches.items()}
        await client.register(job_spec("a", rings=RING, uec_job_ids=[7]))
        with pytest.raises(NotProgrammedError) as caught:
            await client.wait_programmed("a", timeout_s=60)
        assert str(caught.value).startswith(
            "job 'a' is registered as 1, and followed by all its switches but spine1: its program "
            "has no table job_by_uec_id; give it one compiled with -DRINGSTEP_UEC"
        )
        job = await client.get("a")
        assert {item.switch: item.cannot for item in job.programming} == {
            "spine1": True, "spine2": False, "tor1": False, "tor2": False,
        }  # fmt: skip
        assert switches["spine1"].lines() == before["spine1"]
        # One rule, two blocks, one set of parameters.
        assert len(switches["spine2"].lines()) == len(before["spine2"]) + 4
        (spine1, *_) = (await client.state("a")).switches
        assert (spine1.switch, list(spine1.blocks)) == ("spine1", [])
        assert "no table job_by_uec_id" in spine1.error


async def test_program_for_a_switch_that_is_not_there_is_refused(config: ControllerConfig) -> None:
    wrong = PipelineConfig(switch={"tor9": ProgramConfig()})
    with pytest.raises(ValueError, match=r"pipeline\.switch\.tor9: not in the topology .* tor1"):
        async with running(config.model_copy(update={"pipeline": wrong})):
            pass


async def test_released_job_is_gone(config: ControllerConfig) -> None:
    async with controller(config) as client:
        await client.register(job_spec("a", rings=RING))
        assert (await client.release("a")).id == 1
        for attempt in (client.release("a"), client.get(1), client.state("a")):
            with refused(grpc.StatusCode.NOT_FOUND, "'ringstep job list' shows"):
                await attempt
        assert await client.jobs() == []
        assert (await client.register(job_spec("a", rings=RING))).id == 2


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (job_spec("a", rings=[["h1", "h9"]]), "host 'h9' is not in the topology; known hosts: h1"),
        (job_spec("a", rings=[["h1"]]), "spec.rings[1].hosts: a ring of 1 hosts has no edges"),
        (job_spec("", rings=RING), "spec.name: '' is not a job name"),
        (job_spec("a", rings=RING, match=MatchKind.DST_QP), "spec.queue_pairs: empty"),
        (jobs_pb2.JobSpec(), "spec.name: '' is not a job name"),
    ],
)
async def test_bad_requests_name_the_field_and_change_nothing(
    config: ControllerConfig, spec: jobs_pb2.JobSpec, text: str
) -> None:
    async with controller(config) as client:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, text):
            await client.register(spec)
        assert await client.jobs() == []
        assert (await client.register(job_spec("a", rings=RING))).id == 1


async def test_bad_references_and_tokens_are_refused(config: ControllerConfig) -> None:
    async with controller(config) as client:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "job: empty; give the name or the"):
            await client.get("")
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "job.id: 16384: must be in 1..16383"):
            await client.get(16384)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "request_id: 129 characters"):
            await client.register(job_spec("a", rings=RING), "x" * 129)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, r"request_id: 'a\x00b' has characters"):
            await client.register(job_spec("a", rings=RING), "a\0b")
        with pytest.raises(grpc.aio.AioRpcError, match="does not come from this service"):
            await client._calls.current.jobs.List(jobs_pb2.ListRequest(page_token="next"))


async def test_jobs_are_listed_in_pages(config: ControllerConfig) -> None:
    async with controller(config) as client:
        for qp in range(1, 6):
            await client.register(job_spec(f"j{qp}", queue_pairs=[QueuePair("h1", "h3", qp)]))
        names: list[list[str]] = []
        token = ""
        while True:
            page = await client._calls.current.jobs.List(
                jobs_pb2.ListRequest(page_size=2, page_token=token)
            )
            names.append([job.spec.name for job in page.jobs])
            token = page.next_page_token
            if not token:
                break
        assert names == [["j1", "j2"], ["j3", "j4"], ["j5"]]
        assert len(await client.jobs()) == 5


async def test_concurrent_registrations_get_different_ids(config: ControllerConfig) -> None:
    async with controller(config) as client:
        jobs = await asyncio.gather(
            *(
                client.register(job_spec(f"j{qp}", queue_pairs=[QueuePair("h1", "h3", qp)]))
                for qp in range(1, 21)
            )
        )
        assert sorted(job.id for job in jobs) == list(range(1, 21))
        same = await asyncio.gather(
            *(
                client.register(job_spec("same", queue_pairs=[QueuePair("h1", "h3", 99)]), "r")
                for _ in range(5)
            )
        )
        assert {job.id for job in same} == {21}


async def test_switches_of_the_topology_are_listed_before_they_are_added(
    config: ControllerConfig,
) -> None:
    async with controller(config) as client:
        switches = await client.switches()
        assert [switch.name for switch in switches] == SWITCHES
        assert {switch.status.phase for switch in switches} == {switches_pb2.SWITCH_PHASE_UNMANAGED}
        assert "ringstep switch add" in switches[0].status.detail


async def test_added_switch_is_programmed_and_stays_added(
    config: ControllerConfig, new_switch: NewSwitch
) -> None:
    switch = await new_switch()
    async with controller(config) as client:
        added = await client.add_switch("tor1", switch.address)
        assert (added.device_id, added.address) == (1, switch.address)
        (ready,) = await client.wait_switches(["tor1"])
        assert ready.status.desired_entries == len(switch.entities)
        assert ready.status.updates_written == len(switch.writes)
        again = await client.add_switch("tor1", switch.address)
        assert again.status.sessions == 1
    async with controller(config) as client:
        (ready,) = await client.wait_switches(["tor1"])
        assert ready.address == switch.address
        assert ready.status.updates_written == 0
        await client.remove_switch("tor1")
        with refused(grpc.StatusCode.NOT_FOUND, "is not kept programmed"):
            await client.remove_switch("tor1")
    assert switch.entities


async def test_switch_moves_to_another_address(
    config: ControllerConfig, new_switch: NewSwitch
) -> None:
    first, second = await new_switch(), await new_switch()
    async with controller(config) as client:
        await client.add_switch("tor1", first.address)
        await client.wait_switches(["tor1"])
        await client.add_switch("tor1", second.address)
        (moved,) = await client.wait_switches(["tor1"])
        assert moved.address == second.address
        assert second.lines() == first.lines()


async def test_address_in_the_topology_is_enough(
    config: ControllerConfig, new_switch: NewSwitch, fabric_text: str
) -> None:
    switch = await new_switch()
    config.topology.write_text(
        fabric_text.replace("device_id = 1\n", f'device_id = 1\np4runtime = "{switch.address}"\n')
    )
    async with controller(config) as client:
        await client.wait_switches(["tor1"])
    assert switch.pushes == 1


async def test_switches_that_make_no_sense_are_refused(
    config: ControllerConfig, new_switch: NewSwitch
) -> None:
    switch = await new_switch()
    async with controller(config) as client:
        with refused(grpc.StatusCode.NOT_FOUND, "known switches: tor1, tor2, spine1, spine2"):
            await client.add_switch("tor9", switch.address)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "address: 'tor1' is not HOST:PORT"):
            await client.add_switch("tor1", "tor1")
        await client.add_switch("tor1", switch.address)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "is already switch 'tor1'"):
            await client.add_switch("tor2", switch.address, device_id=1)


async def all_switches(client: ControllerClient, new_switch: NewSwitch) -> dict[str, FakeSwitch]:
    switches = {name: await new_switch() for name in SWITCHES}
    for name, switch in switches.items():
        await client.add_switch(name, switch.address)
    await client.wait_switches()
    return switches


async def test_job_reaches_its_switches_and_leaves_them_again(
    config: ControllerConfig, new_switch: NewSwitch
) -> None:
    async with controller(config) as client:
        switches = await all_switches(client, new_switch)
        before = {name: switch.lines() for name, switch in switches.items()}
        await client.register(job_spec("local", rings=[["h1", "h2"]]))
        job = await client.wait_programmed("local")
        assert [item.switch for item in job.programming] == ["tor1"]
        # Two rules, two blocks, one set of parameters.
        assert len(switches["tor1"].lines()) == len(before["tor1"]) + 5
        assert all(switches[name].lines() == before[name] for name in SWITCHES[1:])
        await client.release("local")
        await client.wait_switches()
        assert switches["tor1"].lines() == before["tor1"]


async def test_waiting_for_a_switch_that_is_not_there_tells_why(config: ControllerConfig) -> None:
    async with controller(config) as client:
        await client.register(job_spec("a", rings=[["h1", "h2"]]))
        with pytest.raises(NotProgrammedError) as caught:
            await client.wait_programmed("a", timeout_s=0.05)
    assert str(caught.value) == (
        "job 'a' is registered as 1, but not programmed everywhere after 0.05 s: tor1 is "
        "unmanaged: has no P4Runtime address; add it with 'ringstep switch add'"
    )


STATE = StateReply(0, 0, 0, 5000, 1, 7, 99, 3, 40, 10, 4900, ((1, 7, 5),) * 4)


async def test_state_tells_blocks_counters_and_what_could_not_be_read(
    config: ControllerConfig, new_switch: NewSwitch, pipeline: Pipeline
) -> None:
    async with controller(config) as client:
        tor1 = await new_switch(states={0: STATE, 1: replace(STATE, step_min=8, generation=9)})
        spine1 = await new_switch()
        await client.add_switch("tor1", tor1.address)
        await client.add_switch("spine1", spine1.address)
        await client.wait_switches(["tor1", "spine1"])
        spec = by_ecmp(job_spec("a", queue_pairs=[QueuePair("h1", "h3", 17)]))
        await client.register(spec)
        await client.wait_switches(["tor1", "spine1"])
        tor1.counters[pipeline.schema.counters["job_marks"].id, 1] = 12
        reply = await client.state("a")
        of = {switch.switch: switch for switch in reply.switches}
        assert list(of) == sorted(SWITCHES)
        assert [list(block.egress_ports) for block in of["tor1"].blocks] == [[11], [12]]
        assert [block.step_min for block in of["tor1"].blocks] == [7, 8]
        first = of["tor1"].blocks[0]
        assert (first.psn_rec, first.alpha, first.cnt_total, first.cnt_op) == (99, 3, 40, 10)
        assert (first.generation, first.win_start_us, first.now_us) == (1, 4900, 5000)
        assert of["tor1"].counters.marks == 12
        assert "the data plane did not answer 3 reads" in of["spine1"].blocks[0].error
        assert of["spine1"].HasField("counters")
        assert of["tor2"].error == ("has no P4Runtime address; add it with 'ringstep switch add'")
        await spine1.stop()
        await asyncio.sleep(0.3)
        again = await client.state("a")
        gone = next(switch for switch in again.switches if switch.switch == "spine1")
        assert spine1.address in gone.error
        assert not gone.HasField("counters")


async def test_all_ports_of_a_switch_share_the_papers_block(
    config: ControllerConfig, new_switch: NewSwitch
) -> None:
    async with controller(config) as client:
        tor1 = await new_switch(states={0: STATE})
        await client.add_switch("tor1", tor1.address)
        await client.wait_switches(["tor1"])
        await client.register(by_ecmp(job_spec("a", rings=RING, profile="paper")))
        reply = await client.state("a")
        state = next(switch for switch in reply.switches if switch.switch == "tor1")
        assert [list(block.egress_ports) for block in state.blocks] == [[1, 2, 11, 12]]


async def test_state_on_tofino_2_is_read_from_every_pipe_of_a_block(
    config: ControllerConfig, new_switch: NewSwitch, fabric_text: str, tmp_path: Path
) -> None:
    text = (files("ringstep") / "p4build" / "ringstep_v1model.p4info.txtpb").read_text()
    (tmp_path / "t2na.p4info.txtpb").write_text(text.replace('arch: "v1model"', 'arch: "t2na"'))
    (tmp_path / "tofino2.bin").write_bytes(b"\xff")
    program = ProgramConfig(p4info=tmp_path / "t2na.p4info.txtpb", json=tmp_path / "tofino2.bin")
    config.topology.write_text(
        fabric_text.replace('"tor1:2"', '"tor1:130"').replace('"tor1:12"', '"tor1:300"')
    )
    tofino = config.model_copy(update={"pipeline": PipelineConfig(switch={"tor1": program})})
    states = {(510, 0): STATE, (134, 0): replace(STATE, step_min=8)}
    async with controller(tofino) as client:
        tor1 = await new_switch(states_at=states)
        await client.add_switch("tor1", tor1.address)
        await client.wait_switches(["tor1"])
        await client.register(by_ecmp(job_spec("a", rings=RING, profile="paper")))
        reply = await client.state("a")
        (blocks,) = [switch.blocks for switch in reply.switches if switch.switch == "tor1"]
        assert [(block.block, list(block.egress_ports), block.step_min) for block in blocks] == [
            (0, [1, 11], 7), (0, [130], 8), (0, [300], 0),
        ]  # fmt: skip
        assert "is recirculation enabled on its port 262?" in blocks[2].error
        # Ticks of 256 ns.
        assert (blocks[0].win_start_us, blocks[0].now_us) == (1254, 1280)


async def test_job_whose_host_left_the_topology_is_kept_with_the_reason(
    config: ControllerConfig, fabric_text: str
) -> None:
    async with controller(config) as client:
        await client.register(job_spec("a", rings=RING))
    head, _, _ = fabric_text.partition('[[host]]\nname = "h4"')
    links = fabric_text[fabric_text.index("[[link]]") :].replace(
        '[[link]]\na = "tor2:2"\nb = "h4"\nrate = "10G"\n', ""
    )
    config.topology.write_text(head + links)
    async with controller(config) as client:
        job = await client.get("a")
        assert "host 'h4' is not in the topology" in job.problem
        assert list(job.programming) == []
        with pytest.raises(NotProgrammedError, match="host 'h4' is not in the topology"):
            await client.wait_programmed("a", timeout_s=0.05)
        await client.release("a")
    config.topology.write_text(fabric_text)


async def test_jobs_that_clash_after_a_change_of_topology_do_not_share_rules(
    config: ControllerConfig, fabric_text: str
) -> None:
    """While its host was gone the first job had no rules, so another could take its tag."""
    tag = Tag(JobCarrier.DSCP, 3)
    async with controller(config) as client:
        await client.register(job_spec("first", rings=[["h1", "h2"]], tag=tag))
    renamed = fabric_text.replace('"h2"', '"h9"')
    config.topology.write_text(renamed)
    async with controller(config) as client:
        assert "host 'h2' is not in the topology" in (await client.get("first")).problem
        await client.register(job_spec("second", rings=[["h3", "h4"]], tag=tag))
    config.topology.write_text(fabric_text)
    async with controller(config) as client:
        assert not (await client.get("first")).problem
        second = await client.get("second")
        assert "job 'first' (1) already owns packets that match job_by_tag dscp=" in second.problem
        assert "release one of the two" in second.problem
        await client.release("second")
        first = await client.get("first")
        assert [item.switch for item in first.programming] == ["tor1"]


async def test_job_follows_a_topology_that_grew(config: ControllerConfig, fabric_text: str) -> None:
    async with controller(config) as client:
        spec = by_ecmp(job_spec("a", queue_pairs=[QueuePair("h1", "h3", 17)]))
        before = await client.register(spec)
    third = (
        '[[switch]]\nname = "spine3"\ndevice_id = 13\nrole = "spine"\nmac = "02:00:00:00:13:00"\n'
        '[[link]]\na = "tor1:13"\nb = "spine3:1"\nrate = "10G"\n'
        '[[link]]\na = "tor2:13"\nb = "spine3:2"\nrate = "10G"\n'
    )
    config.topology.write_text(fabric_text + third)
    async with controller(config) as client:
        job = await client.get("a")
        assert (job.id, job.generation) == (before.id, before.generation)
        assert "spine3" in [item.switch for item in job.programming]
        state = await client.state("a")
        tor1 = next(switch for switch in state.switches if switch.switch == "tor1")
        assert tor1.error


async def test_second_controller_on_the_same_port_is_refused(config: ControllerConfig) -> None:
    async with running(config) as address:
        other = config.model_copy(update={"listen": address, "store": "sqlite://"})
        with pytest.raises(ListenError, match="the port is in use"):
            async with running(other):
                pass
    async with running(config.model_copy(update={"listen": address})) as again:
        assert again == address


async def test_no_controller_is_said_with_a_way_out(config: ControllerConfig) -> None:
    async with running(config) as address:
        pass
    async with ControllerClient(address) as client:
        with refused(grpc.StatusCode.UNAVAILABLE, "'ringstep controller serve'"):
            await client.jobs()


async def test_clients_reach_loopback_whatever_proxy_is_set(
    config: ControllerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with controller(config) as client:
        assert await client.jobs() == []


async def test_failing_store_is_an_error_and_changes_nothing(
    config: ControllerConfig, tmp_path: Path
) -> None:
    async with controller(config) as client:
        kept = await client.register(job_spec("a", rings=RING))
        with sqlite3.connect(tmp_path / "store.db") as other:
            other.execute("ALTER TABLE jobs RENAME TO away")
        with refused(grpc.StatusCode.INTERNAL, "no such table: jobs; nothing was changed"):
            await client.register(job_spec("b", queue_pairs=[QueuePair("h1", "h3", 1)]))
        with refused(grpc.StatusCode.INTERNAL, "nothing was changed"):
            await client.release("a")
        assert await client.jobs() == [kept]
        with other:
            other.execute("ALTER TABLE away RENAME TO jobs")
        other.close()
        await until_it_works(lambda: client.release("a"))


async def until_it_works(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call that the controller refuses while it reads its store again."""
    async with asyncio.timeout(20):
        while True:
            try:
                await call()
            except ControllerError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_client_that_hangs_up_leaves_no_half_registered_job(
    topology: Topology,
    store: Store,
    pipeline: Pipeline,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is in the store is in memory too, although the call was cancelled in between."""
    entered, go_on = threading.Event(), threading.Event()
    real = store.commit

    def slow(epoch: int, changes: Sequence[Change]) -> None:
        entered.set()
        go_on.wait()
        real(epoch, changes)

    monkeypatch.setattr(store, "commit", slow)
    async with Fleet(topology, store, pipeline) as fleet:
        call = asyncio.create_task(fleet.register(job_spec("a", rings=RING)))
        await eventually(entered.is_set)
        assert fleet.roster.listed() == []
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        go_on.set()
        await eventually(fleet.roster.listed)
        assert [job.stored for job in fleet.roster.listed()] == list(store.load().jobs)


async def test_nothing_is_left_when_the_controller_ends(
    config: ControllerConfig, new_switch: NewSwitch, eventually: Any
) -> None:
    switch = await new_switch()
    before = asyncio.all_tasks()
    async with controller(config) as client:
        await client.add_switch("tor1", switch.address)
        await client.wait_switches(["tor1"])
    await eventually(lambda: not switch._streams)
    left = [task for task in asyncio.all_tasks() - before if "programmer" in task.get_name()]
    assert left == []
