"""The client against controllers that lead, follow, refuse, or are not there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from fake_controller import FakeController, job, problem, switch

from ringstep.controller.client import (
    ControllerClient,
    ControllerError,
    NotProgrammedError,
    job_spec,
    marker_overrides,
    parse_targets,
)
from ringstep.controller.credentials import ClientCredentials
from ringstep.controller.jobs import Followers, PathsChoice
from ringstep.controller.v1 import jobs_pb2, switches_pb2

UNAVAILABLE = (grpc.StatusCode.UNAVAILABLE, "gone away", None)
UNIMPLEMENTED = (grpc.StatusCode.UNIMPLEMENTED, "not yet", None)
SNAPSHOT = jobs_pb2.JOB_EVENT_KIND_SNAPSHOT
SYNCED = jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_SYNCED)


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with FakeController() as fake:
        yield fake


@pytest.fixture
def other() -> Iterator[FakeController]:
    with FakeController() as fake:
        yield fake


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, and nobody will."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


def not_leader(leader: str = "") -> tuple[grpc.StatusCode, str, Any]:
    told = problem(
        "NOT_LEADER", "another controller leads", **({"leader": leader} if leader else {})
    )
    return (grpc.StatusCode.FAILED_PRECONDITION, "another controller leads", told)


def test_targets_are_a_list_and_each_is_checked() -> None:
    assert parse_targets("a:1, b:2,a:1") == ("a:1", "b:2")
    with pytest.raises(ValueError, match="'b' is not HOST:PORT"):
        parse_targets("a:1,b")
    with pytest.raises(ValueError, match="'' is not HOST:PORT"):
        parse_targets("")


def test_spec_tells_rings_with_channels_and_rails_and_what_is_new() -> None:
    spec = job_spec(
        "a",
        rings=[["h1", "h2"], ["h3", "h4"]],
        channels=[4],
        rails=["r0", "r1"],
        tenant="research",
        paths=PathsChoice.ECMP,
        followers=Followers.TOR,
        lease_s=600,
    )
    assert [(list(ring.hosts), ring.channels, ring.rail) for ring in spec.rings] == [
        (["h1", "h2"], 4, "r0"), (["h3", "h4"], 0, "r1"),
    ]  # fmt: skip
    assert (spec.tenant, spec.lease_s) == ("research", 600)
    assert (spec.paths, spec.followers) == (
        jobs_pb2.PATHS_CHOICE_ECMP, jobs_pb2.FOLLOWERS_TOR,
    )  # fmt: skip
    with pytest.raises(ValueError, match="2 channels, but 1 rings; give one per ring"):
        job_spec("a", rings=[["h1", "h2"]], channels=[1, 2])


async def test_every_call_sends_what_it_was_given(controller: FakeController) -> None:
    one = job()
    moved = switches_pb2.ReloadTopologyResponse(moved_jobs=["a"])
    controller.answers = {
        "Jobs.Renew": jobs_pb2.RenewResponse(job=one),
        "Jobs.Release": jobs_pb2.ReleaseResponse(job=one),
        "Jobs.UpdateParameters": jobs_pb2.UpdateParametersResponse(job=one),
        "Jobs.Plan": jobs_pb2.PlanResponse(gain=2),
        "Jobs.Rebalance": jobs_pb2.RebalanceResponse(moved_jobs=["a"]),
        "Switches.Drain": switches_pb2.DrainResponse(moved_jobs=["a"]),
        "Switches.SetLink": switches_pb2.SetLinkResponse(moved_jobs=["b"]),
        "Switches.ReloadTopology": moved,
    }
    async with ControllerClient(controller.target) as client:
        assert await client.renew(7, 60, generation=3) == one
        assert await client.release("resnet", generation=3) == one
        assert await client.update("resnet", marker_overrides(k=0.5)) == one
        assert (await client.plan("resnet", rebalance=True)).gain == 2
        assert (await client.plan(job_spec("b"))).gain == 2
        assert list((await client.rebalance(dry_run=True)).moved_jobs) == ["a"]
        assert list((await client.drain("tor1", drained=False)).moved_jobs) == ["a"]
        assert await client.set_link("tor1", 3, up=False) == ["b"]
        assert await client.reload_topology() == moved
    (renew,) = controller.asked("Jobs.Renew")
    assert (renew.job.id, renew.job.generation, renew.lease_s) == (7, 3, 60)
    (release,) = controller.asked("Jobs.Release")
    assert (release.job.name, release.job.generation) == ("resnet", 3)
    assert controller.asked("Jobs.UpdateParameters")[0].changes.k == 0.5
    live, new = controller.asked("Jobs.Plan")
    assert (live.job.name, live.rebalance, new.spec.name) == ("resnet", True, "b")
    assert controller.asked("Jobs.Rebalance")[0].dry_run
    assert not controller.asked("Switches.Drain")[0].drained
    (link,) = controller.asked("Switches.SetLink")
    assert (link.switch, link.port, link.up) == ("tor1", 3, False)


async def test_problem_of_a_refusal_is_kept(controller: FakeController) -> None:
    told = problem("NAME_TAKEN", "job 'a' is live; release it", "spec.name", id="7")
    controller.refusals["Jobs.Register"] = [(grpc.StatusCode.ALREADY_EXISTS, "short", told)]
    async with ControllerClient(controller.target) as client:
        with pytest.raises(ControllerError) as caught:
            await client.register(job_spec("a"))
    assert caught.value.code is grpc.StatusCode.ALREADY_EXISTS
    assert (caught.value.text, caught.value.reason) == ("job 'a' is live; release it", "NAME_TAKEN")
    assert caught.value.problem == told


async def test_register_makes_up_a_request_id_of_its_own(controller: FakeController) -> None:
    controller.answers["Jobs.Register"] = jobs_pb2.RegisterResponse(job=job())
    async with ControllerClient(controller.target) as client:
        await client.register(job_spec("a"))
        await client.register(job_spec("a"), rebalance=True)
        await client.register(job_spec("a"), "")
    first, second, third = controller.asked("Jobs.Register")
    assert first.request_id
    assert second.request_id not in ("", first.request_id)
    assert (first.rebalance, second.rebalance) == (False, True)
    assert third.request_id == ""


async def test_token_goes_with_every_call(controller: FakeController) -> None:
    controller.answers["Jobs.List"] = jobs_pb2.ListResponse()
    credentials = ClientCredentials(token="rs_secret")
    async with ControllerClient(controller.target, credentials=credentials) as client:
        await client.jobs()
    ((_, _, metadata),) = controller.calls
    assert metadata["authorization"] == "Bearer rs_secret"
    assert "rs_secret" not in repr(credentials)


async def test_leader_is_followed_even_where_it_was_not_named(
    controller: FakeController, other: FakeController
) -> None:
    controller.refuse_all = not_leader(other.target)
    other.answers["Switches.Remove"] = switches_pb2.RemoveSwitchResponse()
    async with ControllerClient(controller.target) as client:
        await client.remove_switch("tor1")
        assert client.target == other.target
        await client.remove_switch("tor1")
    # The second call went straight to the leader.
    assert len(controller.calls) == 1
    assert len(other.calls) == 2


async def test_next_controller_is_asked_where_one_is_gone(
    nobody: str, controller: FakeController
) -> None:
    """Nothing was sent to the first, so this holds for calls that must not be repeated too."""
    controller.answers["Jobs.Release"] = jobs_pb2.ReleaseResponse(job=job())
    async with ControllerClient(f"{nobody},{controller.target}") as client:
        assert (await client.release("resnet")).spec.name == "resnet"
    assert len(controller.calls) == 1


async def test_lost_answer_is_asked_for_again_only_where_that_is_harmless(
    controller: FakeController, other: FakeController
) -> None:
    controller.refuse_all = UNAVAILABLE
    other.answers = {
        "Jobs.Get": jobs_pb2.GetResponse(job=job()),
        "Jobs.Register": jobs_pb2.RegisterResponse(job=job()),
    }
    targets = [controller.target, other.target]
    async with ControllerClient(targets) as client:
        await client.get("resnet")
    async with ControllerClient(targets) as client:
        await client.register(job_spec("resnet"))
    assert other.asked("Jobs.Register") == controller.asked("Jobs.Register")
    async with ControllerClient(targets) as client:
        with pytest.raises(ControllerError):
            await client.register(job_spec("resnet"), "")
    async with ControllerClient(targets) as client:
        with pytest.raises(ControllerError):
            await client.release("resnet")
    assert not other.asked("Jobs.Release")


async def test_broken_connection_is_tried_once_more_where_that_is_harmless(
    controller: FakeController,
) -> None:
    controller.answers = {
        "Jobs.Register": jobs_pb2.RegisterResponse(job=job()),
        "Jobs.Release": jobs_pb2.ReleaseResponse(job=job()),
    }
    controller.refusals = {method: [UNAVAILABLE] for method in ("Jobs.Register", "Jobs.Release")}
    async with ControllerClient(controller.target) as client:
        assert (await client.register(job_spec("resnet"))).id == 1
        with pytest.raises(ControllerError, match="no controller answers"):
            await client.release("resnet")
    first, second = controller.asked("Jobs.Register")
    assert first == second
    assert len(controller.asked("Jobs.Release")) == 1


async def test_controller_that_takes_over_late_is_waited_for(
    controller: FakeController, other: FakeController
) -> None:
    controller.refuse_all = not_leader(other.target)
    other.refusals["Jobs.Get"] = [not_leader(), not_leader(controller.target)]
    other.answers["Jobs.Get"] = jobs_pb2.GetResponse(job=job())
    async with ControllerClient([controller.target, other.target], timeout_s=60) as client:
        assert (await client.get("resnet")).id == 1


async def test_no_leader_in_time_is_said_of_each(controller: FakeController) -> None:
    controller.refuse_all = not_leader()
    async with ControllerClient(controller.target, timeout_s=2) as client:
        with pytest.raises(ControllerError) as caught:
            await client.jobs()
    assert f"no controller leads after 2 s ({controller.target}: does not lead)" in (
        caught.value.text
    )


async def test_controllers_that_are_all_gone_are_all_named(nobody: str) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        second = f"127.0.0.1:{reserved.getsockname()[1]}"
        async with ControllerClient([nobody, second]) as client:
            with pytest.raises(ControllerError) as caught:
                await client.jobs()
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    assert nobody in caught.value.text
    assert second in caught.value.text
    assert "'ringstep controller serve'" in caught.value.text


async def collect(client: ControllerClient, count: int, **options: Any) -> list[tuple[str, str]]:
    found = []
    async for event in client.watch(**options):
        name = jobs_pb2.JobEventKind.Name(event.kind).removeprefix("JOB_EVENT_KIND_")
        found.append((name, event.job.spec.name))
        if len(found) == count:
            break
    return found


async def test_watch_takes_a_lost_stream_up_again_and_tells_what_is_gone(
    controller: FakeController, other: FakeController
) -> None:
    for event in (
        jobs_pb2.JobEvent(kind=SNAPSHOT, job=job("a", 1)),
        jobs_pb2.JobEvent(kind=SNAPSHOT, job=job("b", 2)),
        SYNCED,
    ):
        controller.events.put(event)
    controller.events.put(None)
    for event in (jobs_pb2.JobEvent(kind=SNAPSHOT, job=job("b", 2)), SYNCED):
        other.events.put(event)
    async with ControllerClient([controller.target, other.target], timeout_s=60) as client:
        events = await collect(client, 6, state_interval_ms=500, tenant="t", refs=["a", 2])
    assert events == [
        ("SNAPSHOT", "a"), ("SNAPSHOT", "b"), ("SYNCED", ""),
        ("SNAPSHOT", "b"), ("RELEASED", "a"), ("SYNCED", ""),
    ]  # fmt: skip
    (request,) = controller.asked("Jobs.Watch")
    assert (request.state_interval_ms, request.tenant) == (500, "t")
    assert [(ref.name, ref.id) for ref in request.jobs] == [("a", 0), ("", 2)]


async def test_watch_of_nobody_fails_at_once(nobody: str) -> None:
    async with ControllerClient(nobody) as client:
        with pytest.raises(ControllerError, match="no controller answers at"):
            await collect(client, 1)


def late_job() -> jobs_pb2.Job:
    late = job()
    late.programming[0].phase = switches_pb2.SWITCH_PHASE_PROGRAMMING
    return late


@pytest.mark.parametrize("streams", [True, False])
async def test_waiting_for_a_job_works_with_and_without_a_stream(
    controller: FakeController, streams: bool
) -> None:
    answers = [jobs_pb2.GetResponse(job=late_job()), jobs_pb2.GetResponse(job=job())]
    controller.answers["Jobs.Get"] = lambda _: answers.pop(0)
    if streams:
        for state in (late_job(), job()):
            controller.events.put(jobs_pb2.JobEvent(kind=SNAPSHOT, job=state))
    else:
        controller.refusals["Jobs.Watch"] = [UNIMPLEMENTED]
    async with ControllerClient(controller.target) as client:
        assert await client.wait_programmed(1) == job()
    assert len(controller.asked("Jobs.Get")) == (1 if streams else 2)


async def test_waiting_for_a_job_that_is_released_meanwhile_ends(
    controller: FakeController,
) -> None:
    controller.answers["Jobs.Get"] = jobs_pb2.GetResponse(job=late_job())
    controller.events.put(jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_EXPIRED, job=late_job()))
    async with ControllerClient(controller.target) as client:
        with pytest.raises(ControllerError, match=r"job 'resnet' \(1\) was released meanwhile"):
            await client.wait_programmed(1)


@pytest.mark.parametrize("streams", [True, False])
async def test_waiting_for_switches_works_with_and_without_a_stream(
    controller: FakeController, streams: bool
) -> None:
    late = switch("tor1", phase=switches_pb2.SWITCH_PHASE_CONNECTING, detail="no answer")
    answers = [
        switches_pb2.ListSwitchesResponse(switches=[late]),
        switches_pb2.ListSwitchesResponse(switches=[switch("tor1")]),
    ]
    controller.answers["Switches.List"] = lambda _: answers.pop(0) if answers else answers
    if streams:
        for event in (
            switches_pb2.SwitchEvent(switch=late),
            switches_pb2.SwitchEvent(synced=True),
            switches_pb2.SwitchEvent(switch=switch("tor1")),
        ):
            controller.switch_events.put(event)
    else:
        controller.refusals["Switches.Watch"] = [UNIMPLEMENTED]
    async with ControllerClient(controller.target) as client:
        assert await client.wait_switches(["tor1"]) == [switch("tor1")]
    assert len(controller.asked("Switches.List")) == (0 if streams else 2)


async def test_switch_that_is_late_is_told_with_its_reason(controller: FakeController) -> None:
    late = switch("tor1", phase=switches_pb2.SWITCH_PHASE_CONNECTING, detail="no answer")
    controller.switch_events.put(switches_pb2.SwitchEvent(switch=late))
    controller.switch_events.put(switches_pb2.SwitchEvent(synced=True))
    async with ControllerClient(controller.target) as client:
        with pytest.raises(NotProgrammedError, match="tor1 is connecting: no answer"):
            await client.wait_switches(timeout_s=1)


async def test_call_that_hangs_ends_in_time(controller: FakeController) -> None:
    hang = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(_: object) -> jobs_pb2.ListResponse:
        asyncio.run_coroutine_threadsafe(hang.wait(), loop).result()
        return jobs_pb2.ListResponse()

    controller.answers["Jobs.List"] = wait
    async with ControllerClient(controller.target, timeout_s=0.2) as client:
        with pytest.raises(ControllerError, match=r"did not answer within 0\.2 s"):
            await client.jobs()
    hang.set()
