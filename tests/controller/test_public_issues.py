"""What went wrong in other people's controllers, tried on this one as an operator runs it.

Controller, switches and commands are processes; what a switch holds is read by a client of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from faultrig import database as database_rig
from faultrig.clients import Endpoint
from faultrig.fabric import LeafSpine
from faultrig.faults import drop_connections
from faultrig.judging import judge_switches
from faultrig.processes import RINGSTEP, ControllerProcess, RigError
from faultrig.rig import Rig, RigPlan, in_sync, wait_in_sync

from ringstep.controller.v1 import jobs_pb2

pytestmark = pytest.mark.slow

FABRIC = LeafSpine(tors=2, spines=1, hosts=4)
DEAD_PROXY = dict.fromkeys(
    ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"), "http://127.0.0.1:9"
)
PATIENCE_S = 90.0
"""Until a test that waits for something gives up; not what anything should take."""


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"never: {what}")


async def register(endpoint: Endpoint, name: str, *hosts: str) -> jobs_pb2.Job:
    spec = jobs_pb2.JobSpec(name=name, match=jobs_pb2.MATCH_KIND_PAIR)
    spec.rings.add(hosts=hosts)
    request = jobs_pb2.RegisterRequest(request_id=f"request-{name}", spec=spec)
    # Of several controllers another one may lead.
    for _ in endpoint.addresses:
        answer = await endpoint.call("Jobs", "Register", request, timeout_s=30)
        if not answer.not_leader:
            break
    assert answer.ok, answer.text
    job: jobs_pb2.Job = answer.reply.job
    return job


async def wrong(rig: Rig, endpoint: Endpoint) -> list[str]:
    jobs = await endpoint.jobs()
    assert jobs is not None
    return judge_switches(rig.plan.fabric, jobs, await rig.read_all())


async def command(rig: Rig, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [*RINGSTEP, *arguments, "--controller", rig.controllers[0].address],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | env,
        timeout=PATIENCE_S,
    )


async def test_state_is_answered_although_a_switch_goes_silent_while_it_is_read(
    tmp_path: Path,
) -> None:
    async with Rig(RigPlan(fabric=FABRIC, forked=True), tmp_path) as rig:
        endpoint = rig.endpoint(timeout_s=10)
        try:
            await register(endpoint, "a", "h1x1", "h2x1")
            await wait_in_sync(endpoint, FABRIC.switches)
            rig.switches["tor2"].signal(signal.SIGSTOP)
            assert await reasons_for_tor2(rig, endpoint)
        finally:
            await endpoint.close()


async def test_state_of_a_switch_that_cannot_be_read_is_a_reason_and_no_crash(
    tmp_path: Path,
) -> None:
    """Registers that cannot be read over P4Runtime (PI 376): here the way in-band is blocked."""
    async with Rig(RigPlan(fabric=FABRIC, forked=True), tmp_path) as rig:
        endpoint = rig.endpoint(timeout_s=10)
        try:
            await register(endpoint, "a", "h1x1", "h2x1")
            await wait_in_sync(endpoint, FABRIC.switches)
            rig.switches["tor2"].signal(signal.SIGSTOP)
            await until(
                lambda: _status_of(endpoint, "tor2", lambda text: text != ""), "tor2 is noticed"
            )
            assert await reasons_for_tor2(rig, endpoint)
            done = await command(rig, "job", "show", "a", "--json")
            assert done.returncode == 0, done.stderr
            assert "Traceback" not in done.stderr
            assert rig.switches["tor2"].address in done.stdout
        finally:
            await endpoint.close()


async def reasons_for_tor2(rig: Rig, endpoint: Endpoint) -> list[str]:
    """Read the state of job a; return what it says of tor2, having seen that tor1 was read."""
    request = jobs_pb2.StateRequest(job=jobs_pb2.JobRef(name="a"))
    answer = await endpoint.call("Jobs", "State", request, timeout_s=30)
    assert answer.ok, answer.text
    of = {one.switch: one for one in answer.reply.switches}
    assert of["tor1"].error == ""
    assert [block.error for block in of["tor1"].blocks if block.error] == []
    texts = [of["tor2"].error, *(block.error for block in of["tor2"].blocks)]
    return [text for text in texts if rig.switches["tor2"].address in text]


async def _status_of(endpoint: Endpoint, name: str, holds: Callable[[str], bool]) -> bool:
    found = await endpoint.switches()
    return found is not None and any(one.name == name and holds(one.status.detail) for one in found)


async def test_switch_that_restarts_empty_is_whole_again_and_no_other_is_written_to(
    tmp_path: Path,
) -> None:
    """A restart leaves the pipeline and loses the entries, or loses both (stratum 285)."""
    async with Rig(RigPlan(fabric=FABRIC, forked=True), tmp_path) as rig:
        endpoint = rig.endpoint(timeout_s=10)
        try:
            await register(endpoint, "a", "h1x1", "h1x2", "h2x1")
            await wait_in_sync(endpoint, FABRIC.switches)
            assert await wrong(rig, endpoint) == []
            before = {one.name: one.status for one in await endpoint.switches() or ()}
            victim = rig.switches["tor1"]
            await asyncio.to_thread(victim.kill)
            victim.start()
            await asyncio.to_thread(victim.wait_ready)

            async def again() -> bool:
                found = await endpoint.switches() or []
                sessions = {one.name: one.status.sessions for one in found}
                late = await in_sync(endpoint, FABRIC.switches)
                return sessions.get("tor1", 0) > before["tor1"].sessions and not late

            await until(again, "tor1 is in sync after its restart")
            assert await wrong(rig, endpoint) == []
            after = {one.name: one.status for one in await endpoint.switches() or ()}
            for name in ("tor2", "spine1"):
                assert after[name].updates_written == before[name].updates_written
        finally:
            await endpoint.close()


async def test_half_open_stream_is_noticed_without_a_storm_of_log_lines_and_forgiven(
    tmp_path: Path,
) -> None:
    """A stream whose other end is silent never fails by itself (grpc 16974)."""
    async with Rig(RigPlan(fabric=FABRIC, forked=True), tmp_path) as rig:
        endpoint = rig.endpoint(timeout_s=10)
        try:
            await wait_in_sync(endpoint, FABRIC.switches)
            log = rig.controllers[0].log
            lines = len(log.read_text().splitlines())
            rig.switches["spine1"].signal(signal.SIGSTOP)

            async def noticed() -> bool:
                return bool(await in_sync(endpoint, ["spine1"]))

            await until(noticed, "the stopped switch is noticed")
            assert await in_sync(endpoint, ["tor1", "tor2"]) == []
            # A job comes meanwhile; the others get it at once, the stopped one later.
            await register(endpoint, "a", "h1x1", "h2x1")
            await until(lambda: _synced(endpoint, ["tor1", "tor2"]), "the others are in sync")
            await asyncio.sleep(3)
            assert len(log.read_text().splitlines()) - lines < 60
            rig.switches["spine1"].signal(signal.SIGCONT)
            await wait_in_sync(endpoint, FABRIC.switches)
            await until(lambda: _right(rig, endpoint), "all switches hold what they should")
        finally:
            await endpoint.close()


async def _synced(endpoint: Endpoint, switches: list[str]) -> bool:
    return not await in_sync(endpoint, switches)


async def _right(rig: Rig, endpoint: Endpoint) -> bool:
    return not await wrong(rig, endpoint)


async def test_proxy_of_the_environment_is_not_asked_for_switches_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With http_proxy set, gRPC asks the proxy for localhost (tutorials 190)."""
    for name, value in DEAD_PROXY.items():
        monkeypatch.setenv(name, value)
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with Rig(RigPlan(fabric=LeafSpine(tors=1, spines=0, hosts=4)), tmp_path) as rig:
        endpoint = rig.endpoint(timeout_s=10)
        try:
            await wait_in_sync(endpoint, ["tor1"])
            done = await command(rig, "switch", "list", "--json", **DEAD_PROXY)
            assert done.returncode == 0, done.stderr
            (shown,) = json.loads(done.stdout)
            assert shown["name"] == "tor1"
        finally:
            await endpoint.close()


# -- several controllers -------------------------------------------------------------------------


def need_postgresql() -> None:
    if reason := database_rig.why_not():
        pytest.skip(reason)


def two_on_postgresql(folder: Path) -> Rig:
    plan = RigPlan(fabric=FABRIC, forked=True, store="postgresql", candidates=2, fsync=False)
    return Rig(plan, folder)


async def leaders(endpoint: Endpoint) -> list[int]:
    """Controllers that take an order, which changes nothing."""
    request = jobs_pb2.ReleaseRequest(job=jobs_pb2.JobRef(name="nobody"))
    answers = [
        await endpoint.call("Jobs", "Release", request, index=index, timeout_s=2)
        for index in range(len(endpoint.addresses))
    ]
    return [
        index
        for index, answer in enumerate(answers)
        if answer.code.name == "NOT_FOUND" and not answer.not_leader
    ]


async def start_or_skip(rig: Rig) -> None:
    try:
        await rig.__aenter__()
    except RigError as error:
        if "postgresql is not supported" in str(error):
            pytest.skip("this controller keeps its store on SQLite only")
        raise


async def test_second_controller_waits_and_takes_over_without_losing_a_job(tmp_path: Path) -> None:
    """The primary dies, the backup is promoted and reconciles (PI 553)."""
    need_postgresql()
    rig = two_on_postgresql(tmp_path)
    await start_or_skip(rig)
    endpoint = rig.endpoint(timeout_s=10)
    try:
        await until(lambda: _leads(endpoint, 1), "one controller leads")
        (first,) = await leaders(endpoint)
        second = 1 - first
        await until(lambda: _synced_at(endpoint, first), "switches are in sync")
        job = await register(endpoint, "a", "h1x1", "h2x1")
        refusal = await endpoint.call(
            "Jobs", "Release", jobs_pb2.ReleaseRequest(job=jobs_pb2.JobRef(name="a")), index=second
        )
        assert refusal.not_leader, refusal
        await asyncio.to_thread(rig.controllers[first].kill)
        await until(lambda: _leads(endpoint, 1), "the other controller leads")
        assert await leaders(endpoint) == [second]
        await until(lambda: _synced_at(endpoint, second), "switches follow the new leader")
        jobs = await endpoint.jobs(second)
        assert jobs is not None
        assert [(one.id, one.generation) for one in jobs] == [(job.id, job.generation)]
        answer = await endpoint.call(
            "Jobs",
            "Register",
            jobs_pb2.RegisterRequest(
                spec=jobs_pb2.JobSpec(name="b", rings=[jobs_pb2.Ring(hosts=["h1x2", "h2x2"])])
            ),
            index=second,
            timeout_s=30,
        )
        assert answer.ok, answer.text
        assert answer.reply.job.id != job.id
        await until(lambda: _synced_at(endpoint, second), "switches are in sync")
        jobs = await endpoint.jobs(second)
        assert jobs is not None
        assert judge_switches(FABRIC, jobs, await rig.read_all()) == []
    finally:
        await endpoint.close()
        rig.close()


async def test_deposed_leader_that_wakes_up_late_changes_nothing(tmp_path: Path) -> None:
    """It was stopped, another one took over: what it still meant to do must not happen."""
    need_postgresql()
    rig = two_on_postgresql(tmp_path)
    await start_or_skip(rig)
    endpoint = rig.endpoint(timeout_s=10)
    late = rig.endpoint(timeout_s=60)
    try:
        await until(lambda: _leads(endpoint, 1), "one controller leads")
        (first,) = await leaders(endpoint)
        second = 1 - first
        await until(lambda: _synced_at(endpoint, first), "switches are in sync")
        await register(endpoint, "a", "h1x1", "h2x1")
        rig.controllers[first].signal(signal.SIGSTOP)
        await asyncio.to_thread(drop_connections, rig, rig.controllers[first])
        # Asked of the one that sleeps, answered when it wakes up.
        asked = [
            asyncio.create_task(
                late.call(
                    "Jobs",
                    "Register",
                    jobs_pb2.RegisterRequest(
                        spec=jobs_pb2.JobSpec(
                            name=f"late{number}",
                            rings=[jobs_pb2.Ring(hosts=[f"h1x{number}", f"h2x{number}"])],
                        )
                    ),
                    index=first,
                )
            )
            for number in (2, 3)
        ]
        await until(lambda: _leads(endpoint, 1), "the other controller leads")
        assert await leaders(endpoint) == [second]
        answer = await endpoint.call(
            "Jobs",
            "Register",
            jobs_pb2.RegisterRequest(
                spec=jobs_pb2.JobSpec(name="b", rings=[jobs_pb2.Ring(hosts=["h1x2", "h2x3"])])
            ),
            index=second,
            timeout_s=30,
        )
        assert answer.ok, answer.text
        await until(lambda: _synced_at(endpoint, second), "switches follow the new leader")
        rig.controllers[first].signal(signal.SIGCONT)
        answers = await asyncio.gather(*asked)
        jobs = await endpoint.jobs(second)
        assert jobs is not None
        known = {job.spec.name: job for job in jobs}
        for number, one in zip((2, 3), answers, strict=True):
            # Refused; or, if acknowledged, then by the store, and the leader has it.
            if one.ok:
                assert known[f"late{number}"].id == one.reply.job.id
        assert len({job.id for job in jobs}) == len(jobs)
        assert await leaders(endpoint) == [second]
        await until(lambda: _synced_at(endpoint, second), "switches are in sync")
        assert judge_switches(FABRIC, jobs, await rig.read_all()) == []
    finally:
        await endpoint.close()
        await late.close()
        rig.close()


async def _leads(endpoint: Endpoint, count: int) -> bool:
    return len(await leaders(endpoint)) == count


async def _synced_at(endpoint: Endpoint, index: int) -> bool:
    return not await in_sync(endpoint, FABRIC.switches, index)


async def test_two_controllers_on_one_sqlite_file_do_not_both_take_orders(tmp_path: Path) -> None:
    fabric = LeafSpine(tors=1, spines=0, hosts=4)
    async with Rig(RigPlan(fabric=fabric, forked=True), tmp_path) as rig:
        first = rig.controllers[0]
        with ControllerProcess(
            "second", tmp_path, tmp_path / "fabric.toml", f"sqlite:///{tmp_path / 'store.db'}"
        ) as second:
            second.start()
            await asyncio.to_thread(second.wait_listening)
            both = Endpoint([first.address, second.address])
            try:
                assert await leaders(both) == [0]
                nobody = jobs_pb2.ReleaseRequest(job=jobs_pb2.JobRef(name="nobody"))
                refusal = await both.call("Jobs", "Release", nobody, index=1)
                assert refusal.code.name == "UNAVAILABLE"
                assert refusal.reason == "NOT_LEADER"
                assert refusal.leader == first.address
                await asyncio.to_thread(first.kill)
                await until(lambda: _leads(both, 1), "the second controller leads")
                assert await leaders(both) == [1]
            finally:
                await both.close()
