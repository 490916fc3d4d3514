"""What the fleet does when its store fails with changes under way: it goes back to what is stored.

A commit may fail before or after it took effect; the store here does either, as told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_switch import FakeSwitch

from ringstep.controller import fleet as fleet_module
from ringstep.controller.client import job_spec
from ringstep.controller.facts import Change, DeposedError, NoSuchJobError, StoredSwitch, StoreError
from ringstep.controller.fleet import Fleet, FleetSettings, JobNews
from ringstep.controller.jobs import QueuePair
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.store import Store
from ringstep.controller.v1 import jobs_pb2
from ringstep.fabric.model import Topology

NewSwitch = Callable[..., Awaitable[FakeSwitch]]
RING = [["h1", "h2"]]


class FlakyStore(Store):
    """Fails as told: ``before`` or ``after`` a commit took effect; the next ``loads`` fail too."""

    fails = ""
    loads = 0

    def commit(self, epoch: int, changes: Sequence[Change]) -> None:
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise StoreError("broken; nothing was changed")
        super().commit(epoch, changes)
        if fails == "after":
            raise StoreError("the answer was lost", outcome_unknown=True)

    def settle(self, epoch: int) -> None:
        if self.loads:
            self.loads -= 1
            raise StoreError("still broken")
        super().settle(epoch)

    def set_drained(self, epoch: int, name: str, drained: bool) -> None:
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise StoreError("broken; nothing was changed")
        super().set_drained(epoch, name, drained)
        if fails == "after":
            raise StoreError("the answer was lost", outcome_unknown=True)


@pytest.fixture
def flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlakyStore:
    monkeypatch.setattr(fleet_module, "_RELOAD_RETRY_S", 0.02)
    return FlakyStore(f"sqlite:///{tmp_path / 'flaky.db'}")


async def usable(fleet: Fleet) -> None:
    """Wait until the fleet takes changes again."""
    async with asyncio.timeout(20):
        while True:
            try:
                fleet._check_usable()
            except StoreError:
                await asyncio.sleep(0.01)
            else:
                return


def desired_jobs(fleet: Fleet) -> set[int]:
    """Job_IDs that any switch is told to hold entries of."""
    return {
        value.value  # type: ignore[union-attr]
        for tables in fleet.switchboard._desired.values()
        for key in tables.entries
        if key.table == "job_params"
        for name, value in key.match
        if name == "job"
    }


def news(followed: list[tuple[Any, tuple[JobNews, Any]]]) -> list[tuple[JobNews, str]]:
    return [(what, job.name) for _, (what, job) in followed]


async def test_registration_whose_commit_is_lost_is_forgotten(
    topology: Topology, flaky: FlakyStore, pipeline: Pipeline
) -> None:
    async with Fleet(topology, flaky, pipeline) as fleet:
        kept = await fleet.register(job_spec("kept", rings=RING))
        flaky.fails, flaky.loads = "before", 2
        with fleet.job_news.follow() as follower:
            with pytest.raises(StoreError, match="nothing was changed"):
                await fleet.register(job_spec("a", queue_pairs=[QueuePair("h1", "h3", 1)]), "id")
            with pytest.raises(StoreError):
                await fleet.release("kept")
            await usable(fleet)
            assert not follower._waiting
        assert fleet.roster.listed() == [kept]
        assert desired_jobs(fleet) == {kept.id}
        again = await fleet.register(job_spec("a", queue_pairs=[QueuePair("h1", "h3", 1)]), "id")
        assert desired_jobs(fleet) == {kept.id, again.id}


async def test_fleet_that_may_have_lost_its_lock_takes_no_more_changes(
    topology: Topology, flaky: FlakyStore, pipeline: Pipeline
) -> None:
    """What broke the store may have cost the lock: another one can lead a moment later."""
    looks: list[bool] = [True, False]

    async def holds() -> bool:
        return looks.pop(0)

    fleet = Fleet(topology, flaky, pipeline)
    fleet.lead_in(0, holds)
    async with fleet:
        flaky.fails = "before"
        with pytest.raises(StoreError, match="nothing was changed"):
            await fleet.register(job_spec("a", rings=RING))
        await usable(fleet)
        flaky.fails = "before"
        with pytest.raises(StoreError, match="nothing was changed"):
            await fleet.register(job_spec("a", rings=RING))
        async with asyncio.timeout(20):
            await fleet.deposed.wait()
        with pytest.raises(DeposedError):
            await fleet.update("a", jobs_pb2.MarkerOverrides(k=0.01))
    assert not looks


async def test_registration_whose_answer_is_lost_is_found_programmed_and_told(
    topology: Topology, flaky: FlakyStore, pipeline: Pipeline
) -> None:
    settings = FleetSettings(lease_s=60)
    async with Fleet(topology, flaky, pipeline, settings=settings) as fleet:
        flaky.fails = "after"
        with fleet.job_news.follow() as follower:
            with pytest.raises(StoreError, match="answer was lost"):
                await fleet.register(job_spec("a", rings=RING), "id")
            await usable(fleet)
            assert news(await follower.read()) == [(JobNews.REGISTERED, "a")]
        (job,) = fleet.roster.listed()
        assert desired_jobs(fleet) == {job.id}
        assert fleet.roster.lease_remaining_s(job) > 0
        assert await fleet.register(job_spec("a", rings=RING), "id") is job


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_release_that_fails_is_undone_or_done_as_the_store_has_it(
    topology: Topology, flaky: FlakyStore, pipeline: Pipeline, fails: str
) -> None:
    settings = FleetSettings(lease_s=60)
    async with Fleet(topology, flaky, pipeline, settings=settings) as fleet:
        job = await fleet.register(job_spec("a", rings=RING), "id")
        flaky.fails = fails
        with fleet.job_news.follow() as follower:
            with pytest.raises(StoreError):
                await fleet.release("a")
            await usable(fleet)
            if fails == "after":
                assert news(await follower.read()) == [(JobNews.RELEASED, "a")]
                assert fleet.roster.listed() == []
                assert desired_jobs(fleet) == set()
                return
            assert not follower._waiting
        assert fleet.roster.listed() == [job]
        assert fleet.roster.lease_remaining_s(job) > 0
        assert desired_jobs(fleet) == {job.id}
        assert job.held == job.entries
        await fleet.release("a")
        assert desired_jobs(fleet) == set()


async def test_leases_start_anew_after_a_failure_in_which_nobody_could_renew(
    topology: Topology, flaky: FlakyStore, pipeline: Pipeline, eventually: Any
) -> None:
    now = 0.0
    async with Fleet(topology, flaky, pipeline, monotonic=lambda: now) as fleet:
        spec = job_spec("a", rings=RING)
        spec.lease_s = 100
        job = await fleet.register(spec)
        flaky.fails, flaky.loads = "before", 1_000_000
        with pytest.raises(StoreError):
            await fleet.register(job_spec("b", queue_pairs=[QueuePair("h1", "h3", 1)]))
        now = 150.0
        with pytest.raises(StoreError):
            await fleet.renew("a")
        with pytest.raises(StoreError):
            await fleet.drain("spine1", True)
        with pytest.raises(StoreError):
            await fleet.rebalance()
        flaky.loads = 0
        await usable(fleet)
        assert fleet.roster.lease_remaining_s(job) == 100
        # An end that is lost comes again.
        now, flaky.fails = 251.0, "before"
        await eventually(lambda: not flaky.fails)
        await usable(fleet)
        assert fleet.roster.listed() == [job]
        now = 500.0
        await eventually(lambda: not fleet.roster.listed())
        with pytest.raises(NoSuchJobError, match="lease ran out"):
            fleet.roster.get("a")


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_change_of_parameters_that_fails_is_undone_or_done_as_the_store_has_it(
    topology: Topology, flaky: FlakyStore, pipeline: Pipeline, fails: str
) -> None:
    async with Fleet(topology, flaky, pipeline) as fleet:
        job = await fleet.register(job_spec("a", rings=RING))
        t_win_us = job.spec.params.t_win
        flaky.fails = fails
        with pytest.raises(StoreError):
            await fleet.update("a", jobs_pb2.MarkerOverrides(t_win_us=t_win_us + 1))
        await usable(fleet)
        assert job.spec.params.t_win == t_win_us + (fails == "after")
        assert job.held == job.entries
        assert job.stored == next(iter(flaky.load().jobs))


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_drain_that_fails_ends_as_the_store_has_it(
    topology: Topology, flaky: FlakyStore, pipeline: Pipeline, fails: str
) -> None:
    async with Fleet(topology, flaky, pipeline) as fleet:
        flaky.fails = fails
        with pytest.raises(StoreError):
            await fleet.drain("spine1", True)
        await usable(fleet)
        assert fleet.switchboard["spine1"].drained == (fails == "after")


async def test_paths_follow_a_drain_although_the_store_fails_meanwhile(
    topology: Topology, flaky: FlakyStore, pipeline: Pipeline, eventually: Any
) -> None:
    async with Fleet(topology, flaky, pipeline) as fleet:
        job = await fleet.register(job_spec("a", rings=[["h1", "h3"]]))
        drained = next(
            hop.switch for hops in job.paths.values() for hop in hops if "spine" in hop.switch
        )
        real = flaky.set_drained

        def then_fail(epoch: int, name: str, is_drained: bool) -> None:
            real(epoch, name, is_drained)
            flaky.fails = "before"

        flaky.set_drained = then_fail  # type: ignore[method-assign]
        await fleet.drain(drained, True)
        await eventually(lambda: not flaky.fails)
        await eventually(lambda: drained not in next(iter(flaky.load().jobs)).paths)
        await usable(fleet)
        assert job.stored == next(iter(flaky.load().jobs))
        assert drained not in job.stored.paths
        await eventually(lambda: job.held == job.entries)


async def test_store_that_fails_again_while_the_lock_is_looked_at_is_recovered_from(
    topology: Topology, flaky: FlakyStore, pipeline: Pipeline, eventually: Any
) -> None:
    """Changes that nobody waits for are on their way then: their failure must not pass unseen."""
    fleet = Fleet(topology, flaky, pipeline)
    looks = []

    async def holds() -> bool:
        looks.append(1)
        await asyncio.sleep(0.2)
        return True

    fleet.lead_in(0, holds)
    async with fleet:
        job = await fleet.register(job_spec("a", rings=[["h1", "h3"]]))
        drained = next(
            hop.switch for hops in job.paths.values() for hop in hops if "spine" in hop.switch
        )
        real, failures = flaky.commit, []

        def commit(epoch: int, changes: Sequence[Change]) -> None:
            if len(failures) < 2:
                failures.append(1)
                raise StoreError("broken; nothing was changed")
            real(epoch, changes)

        flaky.commit = commit  # type: ignore[method-assign]
        await fleet.drain(drained, True)
        await eventually(lambda: len(failures) == 2)
        await usable(fleet)
        await eventually(lambda: drained not in next(iter(flaky.load().jobs)).paths)
        assert len(looks) == 2
        await fleet.register(job_spec("b", queue_pairs=[QueuePair("h1", "h3", 1)]))


async def test_call_that_changes_switches_is_answered_when_the_fleet_ends(
    topology: Topology, flaky: FlakyStore, pipeline: Pipeline, eventually: Any
) -> None:
    async with Fleet(topology, flaky, pipeline) as fleet:
        await fleet._changing.acquire()
        call = asyncio.create_task(fleet.drain("spine1", True))
        await eventually(lambda: len(fleet._background) > 1)
    with pytest.raises(DeposedError, match="leads no more"):
        await call
    with pytest.raises(DeposedError, match="leads no more"):
        await fleet.register(job_spec("a", rings=RING))


async def test_stored_job_that_is_none_for_this_version_is_kept_with_the_reason(
    topology: Topology, flaky: FlakyStore, pipeline: Pipeline
) -> None:
    async with Fleet(topology, flaky, pipeline) as fleet:
        good = await fleet.register(job_spec("good", rings=RING))
        bad = await fleet.register(job_spec("bad", queue_pairs=[QueuePair("h1", "h3", 1)]))
    with flaky.database.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET spec = x'ffff' WHERE name = 'bad'")
    async with Fleet(topology, flaky, pipeline) as fleet:
        assert [job.id for job in fleet.roster.listed()] == [good.id, bad.id]
        assert "release it and register it again" in fleet.roster.get("bad").problem
        assert desired_jobs(fleet) == {good.id}
        await fleet.release("bad")


async def test_blocks_that_run_out_while_paths_change_are_a_problem_of_their_job(
    topology: Topology,
    flaky: FlakyStore,
    pipeline: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ringstep.controller.facts import ExhaustedError

    async with Fleet(topology, flaky, pipeline) as fleet:
        job = await fleet.register(job_spec("a", rings=[["h1", "h3"]]))
        drained = next(
            hop.switch for hops in job.paths.values() for hop in hops if "spine" in hop.switch
        )

        def none_left(*_args: object, **_kwargs: object) -> None:
            raise ExhaustedError("no block is free")

        with monkeypatch.context() as patch:
            patch.setattr(fleet.ledger, "place", none_left)
            assert (await fleet.drain(drained, True)).broken == ("a",)
        assert job.problem == "no block is free"
        await fleet.drain(drained, False)
        assert job.problem == ""


async def test_kept_switches_survive(
    topology: Topology, flaky: FlakyStore, pipeline: Pipeline
) -> None:
    async with Fleet(topology, flaky, pipeline) as fleet:
        await fleet.add_switch("tor1", "127.0.0.1:9")
        assert flaky.sync_switches_from_file(0, []) == [
            StoredSwitch("tor1", topology.switches["tor1"].device_id, "127.0.0.1:9", False)
        ]
