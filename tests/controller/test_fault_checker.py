"""The judge of the fault run sees what is planted, and nothing where all is right."""

from __future__ import annotations

import asyncio
import copy
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from faultrig import clock as clock_rig
from faultrig.clients import Endpoint
from faultrig.clock import SteppedClock
from faultrig.fabric import LeafSpine
from faultrig.judging import judge_list, judge_switches
from faultrig.reading import Action, Contents
from faultrig.record import JobFacts, Record, judge_record
from faultrig.rig import Rig, RigPlan, wait_in_sync

from ringstep.controller.v1 import jobs_pb2

FABRIC = LeafSpine(tors=2, spines=2, hosts=4)


# -- promises ------------------------------------------------------------------------------------


def facts(name: str = "a", job_id: int = 1, generation: int = 1, **changes: float) -> JobFacts:
    one = JobFacts(name, f"request-{name}", jobs_pb2.JobSpec(name=name), 0.0, attempts=1)
    one.job_id, one.generation = job_id, generation
    one.acknowledged, one.renewed_sent = 1.0, 0.5
    return replace(one, **changes)  # type: ignore[arg-type]


def listed(*jobs: JobFacts) -> list[jobs_pb2.Job]:
    return [
        jobs_pb2.Job(
            id=one.job_id,
            generation=one.generation,
            request_id=one.request_id,
            spec=one.spec,
            parameters=jobs_pb2.MarkerParameters(k=one.k or 0.01),
        )
        for one in jobs
    ]


def judged(jobs: list[JobFacts], live: list[jobs_pb2.Job], now: float = 100.0) -> str:
    record = Record({one.name: one for one in jobs})
    return "\n".join(judge_record(record, live, now, leading_since=0.0))


def test_kept_promises_are_no_violation() -> None:
    live = facts("a", 1)
    released = facts("b", 2, release_sent=5.0, released=6.0)
    reuse = facts("c", 2, generation=2, acknowledged=7.0)
    unanswered = facts("d", 0, 0, acknowledged=math.inf)
    lapsed = facts("e", 3, lease_s=5.0)
    assert judged([live, released, reuse, unanswered, lapsed], listed(live, reuse)) == ""


def test_lost_registration_is_seen() -> None:
    assert "lost: a (Job_ID 1" in judged([facts("a")], [])


def test_released_job_in_the_list_is_seen() -> None:
    gone = facts("a", release_sent=5.0, released=6.0)
    assert "was released, and is in List" in judged([gone], listed(gone))


def test_refused_job_in_the_list_is_seen() -> None:
    refused = facts("a", 0, 0, acknowledged=math.inf)
    refused.refused = True
    assert "was refused, and is in List" in judged([refused], listed(facts("a", 4)))


def test_job_that_nobody_asked_for_is_seen() -> None:
    assert "asked for by nobody" in judged([], listed(facts("stranger")))


def test_two_live_jobs_with_one_id_are_seen_although_one_is_gone_at_the_end() -> None:
    first = facts("a", 1, 1, release_sent=9.0, released=9.5)
    second = facts("b", 1, 2, acknowledged=8.0)
    assert "two live jobs with one id" in judged([first, second], listed(second))


def test_unchanged_generation_on_reuse_is_seen() -> None:
    first = facts("a", 1, 1, release_sent=5.0, released=5.5)
    second = facts("b", 1, 1, acknowledged=8.0)
    assert "generation did not change" in judged([first, second], listed(second))


def test_other_generation_or_id_in_the_list_is_seen() -> None:
    job = facts("a", 1, 1)
    assert "now Job_ID 1, generation 2" in judged([job], listed(facts("a", 1, 2)))
    assert "now Job_ID 2" in judged([job], listed(facts("a", 2, 1)))


def test_lease_that_ended_early_or_never_is_seen() -> None:
    leased = facts("a", lease_s=50.0)
    assert "lost: a" in judged([leased], [], now=49.0)
    assert judged([leased], [], now=51.0) == ""
    assert "is over, and it is in List" in judged([leased], listed(leased), now=60.0)


def test_lost_change_of_parameters_is_seen_unless_its_answer_was_lost() -> None:
    changed = facts("a")
    changed.k = 0.03125
    live = listed(facts("a"))
    assert "k was set to 0.03125" in judged([changed], live)
    changed.k_open = True
    assert judged([changed], live) == ""


def test_repeated_request_with_another_answer_is_seen() -> None:
    record, one = Record(), facts("a", 1, 1)
    record.granted(one, listed(facts("a", 2, 1))[0], 2.0, 3.0)
    assert "repeated" in record.violations[0]


def test_live_job_that_is_not_found_is_seen_unless_its_lease_is_over() -> None:
    record = Record()
    record.not_found(facts("a", lease_s=5.0), "Get", now=10.0)
    assert not record.violations
    record.not_found(facts("a", lease_s=50.0), "Get", now=10.0)
    assert "was not found" in record.violations[0]


# -- switches ------------------------------------------------------------------------------------


@dataclass
class Sound:
    """A fabric in order: live jobs, and what independent readers found on the switches."""

    jobs: list[jobs_pb2.Job]
    held: dict[str, Contents]


async def _collect(folder: Path) -> Sound:
    async with Rig(RigPlan(fabric=FABRIC, forked=True), folder) as rig:
        endpoint: Endpoint = rig.endpoint()
        try:
            by_pair = jobs_pb2.JobSpec(name="pair", match=jobs_pb2.MATCH_KIND_PAIR)
            by_pair.rings.add(hosts=["h1x1", "h1x2", "h2x1"])
            by_qp = jobs_pb2.JobSpec(name="qp", match=jobs_pb2.MATCH_KIND_DST_QP)
            by_qp.rings.add(hosts=["h1x1", "h2x1"])
            by_qp.queue_pairs.add(src="h1x1", dst="h2x1", dest_qp=17)
            by_qp.queue_pairs.add(src="h2x1", dst="h1x1", dest_qp=18)
            for spec in (by_pair, by_qp):
                request = jobs_pb2.RegisterRequest(request_id=spec.name, spec=spec)
                answer = await endpoint.call("Jobs", "Register", request, timeout_s=30)
                assert answer.ok, answer.text
            await wait_in_sync(endpoint, FABRIC.switches)
            jobs = await endpoint.jobs()
            assert jobs is not None
            return Sound(jobs, await rig.read_all())
        finally:
            await endpoint.close()


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return asyncio.run(_collect(tmp_path_factory.mktemp("rig")))


@pytest.fixture
def sound(collected: Sound) -> Sound:
    return copy.deepcopy(collected)


def wrong(sound: Sound) -> str:
    return "\n".join(
        [*judge_list(FABRIC, sound.jobs), *judge_switches(FABRIC, sound.jobs, sound.held)]
    )


def drop(table: str) -> Callable[[Sound], None]:
    def plant(sound: Sound) -> None:
        sound.held["tor1"].tables[table].popitem()

    return plant


def change(table: str, **params: int) -> Callable[[Sound], None]:
    def plant(sound: Sound) -> None:
        entries = sound.held["tor2"].tables[table]
        key, action = next(iter(entries.items()))
        entries[key] = Action(action.name, tuple(sorted((dict(action.params) | params).items())))

    return plant


def add(table: str, action: Action, **key: int) -> Callable[[Sound], None]:
    def plant(sound: Sound) -> None:
        sound.held["spine1"].tables.setdefault(table, {})[tuple(sorted(key.items()))] = action

    return plant


def other_seed(sound: Sound) -> None:
    sound.held["tor1"].defaults["switch_config"] = Action("set_switch", (("ecmp_seed", 5),))


def shared_block(sound: Sound) -> None:
    blocks = sound.held["tor1"].tables["block_map"]
    of_job = {dict(key)["job"]: key for key in blocks}
    first, second = list(of_job.values())[:2]
    blocks[first] = blocks[second]


def other_generation_in_the_list(sound: Sound) -> None:
    sound.jobs[0].generation += 1


def one_id_twice(sound: Sound) -> None:
    sound.jobs[1].id = sound.jobs[0].id


def one_rule_twice(sound: Sound) -> None:
    twin = copy.deepcopy(sound.jobs[0])
    twin.id, twin.spec.name = 99, "twin"
    sound.jobs.append(twin)


def member_elsewhere(sound: Sound) -> None:
    members = sound.held["spine2"].members
    key, action = next(iter(members.items()))
    params = dict(action.params) | {"port": 77}
    members[key] = Action(action.name, tuple(sorted(params.items())))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "text"),
    [
        pytest.param(drop("job_by_pair"), "job_by_pair of pair", id="rule dropped"),
        pytest.param(drop("job_by_dst_qp"), "job_by_dst_qp of qp", id="QP rule dropped"),
        pytest.param(drop("job_params"), "parameters of", id="parameters dropped"),
        pytest.param(drop("block_map"), "has no block at port", id="block dropped"),
        pytest.param(drop("route_v4"), "route to", id="route dropped"),
        pytest.param(drop("red"), "red of port", id="red dropped"),
        pytest.param(change("job_params", generation=9), "parameters of", id="old generation"),
        pytest.param(change("job_params", k=1), "parameters of", id="other k"),
        pytest.param(change("job_by_pair", job=9), "leads to set_job(job=9", id="other job"),
        pytest.param(change("red", q_min=1), "red of port", id="red changed"),
        pytest.param(
            add("job_by_pair", Action("set_job", (("job", 1),)), src_addr=1, dst_addr=2),
            "is of no live job",
            id="foreign rule",
        ),
        pytest.param(add("job_params", Action("set_params"), job=77), "no live job", id="old job"),
        pytest.param(
            add("block_map", Action("set_block", (("block", 1),)), job=77, egress_port=1),
            "is of no live job",
            id="foreign block",
        ),
        pytest.param(other_seed, "seed is", id="default action"),
        pytest.param(shared_block, "serves jobs", id="one block for two jobs"),
        pytest.param(member_elsewhere, "leads to ports", id="wrong port"),
        pytest.param(other_generation_in_the_list, "parameters of", id="generation in the list"),
        pytest.param(one_id_twice, "is that of pair and of qp", id="one id twice"),
        pytest.param(one_rule_twice, "both own job_by_pair", id="one rule twice"),
    ],
)  # fmt: skip
def test_planted_fault_is_seen(sound: Sound, plant: Callable[[Sound], None], text: str) -> None:
    assert wrong(sound) == ""
    plant(sound)
    assert text in wrong(sound)


@pytest.mark.slow
def test_released_job_whose_rules_stayed_is_seen(sound: Sound) -> None:
    del sound.jobs[0]
    assert "job_by_pair" in wrong(sound)
    assert "is of no live job" in wrong(sound)


# -- clock ---------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(clock_rig.why_not()), reason=clock_rig.why_not())
def test_clock_is_stepped_under_one_process_only(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path, "one")
    program = (
        "import time\n"
        "while True:\n"
        "    input()\n"
        "    print(time.time(), time.time_ns() // 10**9, time.monotonic(), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | clock.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask() -> list[float]:
            process.stdin.write("\n")
            process.stdin.flush()
            return [float(text) for text in process.stdout.readline().split()]

        before = ask()
        clock.step(-86400)
        after = ask()
        process.kill()
    assert -86400 <= after[0] - before[0] < -80000
    assert -86400 <= after[1] - before[1] < -80000
    assert 0 <= after[2] - before[2] < 5000
    assert abs(time.time() - before[0]) < 5000
    clock.close()
