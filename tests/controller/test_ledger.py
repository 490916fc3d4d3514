"""Job_IDs, generations and blocks: never shared, never mistaken for an earlier job's."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledgers import Clock, ledger, register

from ringstep.controller.facts import PastBlock, PastJobId, PastRequest
from ringstep.controller.ledger import (
    MAX_GENERATION,
    Change,
    ExhaustedError,
    Ledger,
    NameTakenError,
    NoSuchJobError,
    QuotaError,
    Quotas,
    RequestIdReusedError,
    Snapshot,
    StaleGenerationError,
    StoredJob,
)
from ringstep.controller.store import Store
from ringstep.protocol.limits import MAX_BLOCKS, MAX_JOBS


def past_ids(generation: int = 5, released_unix_ms: int = 0) -> tuple[PastJobId, ...]:
    return tuple(PastJobId(n, generation, released_unix_ms) for n in range(1, MAX_JOBS + 1))


def live_job(job_id: int, **blocks: dict[int, int]) -> StoredJob:
    return StoredJob(job_id, 1, f"live{job_id}", "", "", "", b"", b"", "", 0, 0, blocks)


def used_blocks(generations: dict[int, int]) -> Snapshot:
    """All blocks of tor1 are held by a live job but those with a generation."""
    held = dict(enumerate(set(range(MAX_BLOCKS)) - generations.keys(), start=1))
    return Snapshot(
        jobs=(live_job(9000, tor1=held),),
        blocks=tuple(PastBlock("tor1", block, g) for block, g in generations.items()),
    )


def test_ids_and_blocks_are_handed_out_from_the_lowest() -> None:
    book = ledger()
    first, _ = register(book, "a")
    second, _ = register(book, "b", blocks={"tor1": [2], "s1": [0], "s2": []})
    assert (first.job_id, first.generation, first.blocks) == (1, 1, {"tor1": {1: 0, 11: 1}})
    assert (second.job_id, second.generation) == (2, 1)
    assert second.blocks == {"tor1": {2: 2}, "s1": {0: 0}}


def test_released_id_comes_last_and_with_another_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringstep.controller.ledger.MAX_JOBS", 3)
    book = ledger()
    for name in "ab":
        register(book, name)
    for name in "ba":
        book.release(name)
    handed_out = [register(book, name)[0] for name in "cde"]
    assert [(job.job_id, job.generation) for job in handed_out] == [(3, 1), (2, 2), (1, 2)]
    with pytest.raises(ExhaustedError, match="all 3 Job_IDs are in use; release a job") as caught:
        register(book, "f")
    assert caught.value.retry_after_s is None


def test_released_id_rests_before_it_is_handed_out_again() -> None:
    clock = Clock()
    book = ledger(Snapshot(job_ids=past_ids()[1:]), clock=clock, quarantine_s=60)
    register(book, "a")
    for job_id in range(2, 5):
        assert register(book, f"j{job_id}")[0].job_id == job_id
    assert (book.free_ids, book.quarantined_ids) == (MAX_JOBS - 4, 0)
    clock.advance(1)
    book.release("a")
    assert (book.free_ids, book.quarantined_ids) == (MAX_JOBS - 4, 1)
    clock.advance(60)
    assert (book.free_ids, book.quarantined_ids) == (MAX_JOBS - 3, 0)


def test_exhaustion_by_quarantine_says_when_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringstep.controller.ledger.MAX_JOBS", 2)
    clock = Clock()
    book = ledger(clock=clock, quarantine_s=60)
    for name in "ab":
        register(book, name)
    book.release("a")
    clock.advance(20)
    book.release("b")
    with pytest.raises(ExhaustedError, match=r"the next one is free in 40\.0 s") as caught:
        register(book, "c")
    assert caught.value.retry_after_s == 40
    clock.advance(40)
    assert register(book, "c")[0].job_id == 1


@pytest.mark.parametrize(("step_s", "left_s"), [(0, 30), (-1e9, 60), (1e9, 0), (-10, 40), (10, 20)])
def test_stepped_wall_clock_never_makes_a_rest_longer_than_it_is(
    monkeypatch: pytest.MonkeyPatch, step_s: float, left_s: float
) -> None:
    """30 s after the release of a Job_ID that rests 60 s; the step came with the restart."""
    monkeypatch.setattr("ringstep.controller.ledger.MAX_JOBS", 1)
    clock = Clock()
    past = PastJobId(1, 1, clock.wall_ms - 30_000)
    clock.wall_ms += round(step_s * 1000)
    book = ledger(Snapshot(job_ids=(past,)), clock=clock, quarantine_s=60)
    if left_s:
        with pytest.raises(ExhaustedError) as caught:
            register(book, "a")
        assert caught.value.retry_after_s == pytest.approx(left_s)
    clock.advance(left_s)
    assert register(book, "a")[0].job_id == 1


def test_wall_clock_that_steps_while_running_changes_no_rest() -> None:
    clock = Clock()
    book = ledger(clock=clock, quarantine_s=60)
    register(book, "a")
    book.release("a")
    clock.wall_ms += 10**9
    assert book.quarantined_ids == 1


def test_reused_block_never_keeps_the_generation_it_had() -> None:
    """Another job's old block with an equal generation would not be cleared by the data plane."""
    fresh, _ = register(ledger(used_blocks({7: 1})), "new", blocks={"tor1": [1]})
    assert fresh.blocks == {"tor1": {1: 7}}
    assert (fresh.job_id, fresh.generation) == (1, 2)


def test_generation_wraps_past_zero() -> None:
    book = ledger(Snapshot(job_ids=past_ids(generation=255)))
    assert (register(book, "a", blocks={})[0].generation, MAX_GENERATION) == (1, 255)


def test_added_block_has_had_another_generation() -> None:
    book = ledger(used_blocks({7: 1, 8: 1, 9: 2}))
    job, _ = register(book, "a", blocks={"tor2": [1]})
    assert job.generation == 1
    assert book.place(1, {"tor1": [4]})[0].blocks == {"tor1": {4: 9}}
    with pytest.raises(ExhaustedError, match="register with scope SWITCH"):
        book.place(1, {"tor1": [4, 5]})
    assert book.get(1).blocks == {"tor1": {4: 9}}


def test_free_blocks_of_all_generations_leave_one_generation_aside() -> None:
    """300 keys, and the first 300 free blocks had every generation there is."""
    generations = {block: 1 + block % 255 for block in range(400)}
    job, _ = register(ledger(used_blocks(generations)), "a", blocks={"tor1": list(range(300))})
    assert all(generations[block] != job.generation for block in job.blocks["tor1"].values())
    with pytest.raises(ExhaustedError, match="carry all 255 generations; release a job first"):
        register(ledger(used_blocks(generations)), "a", blocks={"tor1": list(range(400))})


def test_placing_keeps_adds_and_frees_blocks() -> None:
    book = ledger()
    register(book, "a", blocks={"tor1": [1, 2], "tor2": [1]})
    placed, change = book.place(1, {"tor1": [2, 3]}, paths='{"x":1}')
    assert (placed.blocks, placed.paths) == ({"tor1": {2: 1, 3: 2}}, '{"x":1}')
    assert book.get("a") == placed
    assert getattr(change, "freed", None) == (("tor1", 0), ("tor2", 0))
    with pytest.raises(NoSuchJobError):
        book.place(2, {})


def test_no_block_left_is_said_with_a_way_out() -> None:
    book = ledger(used_blocks({}))
    with pytest.raises(ExhaustedError, match="register with scope SWITCH") as caught:
        register(book, "a", blocks={"tor0": [1], "tor1": [1]})
    assert caught.value.retry_after_s is None
    assert [job.job_id for job in book.live()] == [9000]
    assert (book.free_blocks("tor0"), book.free_blocks("tor1")) == (MAX_BLOCKS, 0)
    assert register(book, "b", blocks={"tor2": [1]})[0].job_id == 1


def test_update_changes_what_is_given_only() -> None:
    book = ledger()
    job, _ = register(book, "a", lease_s=10)
    assert book.update(1, lease_s=0)[0] == replace(job, lease_s=0)
    assert book.update(1, params=b"p")[0] == replace(job, lease_s=0, params=b"p")
    with pytest.raises(NoSuchJobError, match="no live job has Job_ID 2"):
        book.update(2)


def repeat(book: Ledger, name: str, **changes: Any) -> tuple[StoredJob, Change | None]:
    job = register(ledger(), name)[0]
    facts: dict[str, Any] = {
        "name": name, "tenant": "", "owner": "ann", "request_id": "r1", "spec": job.spec,
        "params": b"others", "paths": "[]", "lease_s": 0, "blocks": {"tor1": [1]},
    }  # fmt: skip
    return book.register(**(facts | changes))


def test_repeated_request_returns_the_same_job() -> None:
    book = ledger()
    first, _ = register(book, "a", request_id="r1")
    assert repeat(book, "a") == (first, None)
    assert book.update(1, lease_s=5)[0] == repeat(book, "a")[0]


def test_request_id_of_another_spec_is_refused() -> None:
    book = ledger()
    register(book, "a", request_id="r1")
    with pytest.raises(RequestIdReusedError, match="with another spec; use a new request_id, or"):
        repeat(book, "b", spec=b"other")


def test_request_id_of_a_released_job_is_refused() -> None:
    book = ledger()
    register(book, "a", request_id="r1")
    book.release("a")
    for known in (book, ledger(Snapshot(requests=(PastRequest("r1", "a"),)))):
        with pytest.raises(RequestIdReusedError, match="has been released; use a new request_id"):
            repeat(known, "a")


def test_request_ids_are_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringstep.controller.ledger.KEPT_REQUESTS", 2)
    book = ledger()
    forgotten = []
    for number in range(4):
        register(book, "a", request_id=f"r{number}")
        forgotten.append(getattr(book.release("a")[1], "forgotten", None))
    assert forgotten == [(), (), ("r0",), ("r1",)]
    assert register(book, "a", request_id="r0")[0].job_id == 5


def test_name_is_free_again_after_release() -> None:
    book = ledger()
    register(book, "a")
    with pytest.raises(NameTakenError, match="job 'a' is already registered as job 1"):
        register(book, "a")
    book.release(1)
    with pytest.raises(NoSuchJobError, match="no live job has name 'a'"):
        book.release("a")
    with pytest.raises(NoSuchJobError, match="Job_ID 1: the one of generation 1 was released"):
        book.release(1)
    assert register(book, "a")[0].job_id == 2


@pytest.mark.parametrize("ref", [0, -1, MAX_JOBS + 1, 2**40])
def test_job_id_out_of_range_is_no_job(ref: int) -> None:
    with pytest.raises(NoSuchJobError, match="Job_IDs are 1 to 16383"):
        ledger().get(ref)


def test_another_generation_is_refused() -> None:
    book = ledger(Snapshot(job_ids=past_ids(generation=6)))
    job, _ = register(book, "a")
    assert job.generation == 7
    assert book.get("a", 7) == book.get(1, 7) == book.get(1) == job
    for ref in ("a", 1):
        with pytest.raises(StaleGenerationError, match="in generation 7, not 6: the job of gener"):
            book.release(ref, 6)
    assert book.get("a") == job


def test_tenant_has_no_more_live_jobs_than_its_quota() -> None:
    book = ledger(quotas=Quotas(default=1, by_tenant={"big": 2, "free": None}))
    for tenant, count in (("small", 1), ("big", 2), ("free", 5)):
        for number in range(count):
            register(book, f"{tenant}{number}", tenant=tenant)
    for tenant, limit in (("small", 1), ("big", 2)):
        with pytest.raises(QuotaError, match=f"tenant '{tenant}' has {limit} live jobs and may"):
            register(book, "more", tenant=tenant)
    assert book.live_per_tenant == {"small": 1, "big": 2, "free": 5}
    book.release("small0")
    assert register(book, "more", tenant="small")[0].name == "more"
    after = ledger(Snapshot(jobs=tuple(book.live())), quotas=Quotas(default=0))
    with pytest.raises(QuotaError, match="has 2 live jobs and may have 0"):
        register(after, "x", tenant="big")


def test_live_jobs_are_listed_in_pages() -> None:
    book = ledger()
    for name in "abcde":
        register(book, name)
    book.release("d")
    assert [job.name for job in book.live(after=2)] == ["c", "e"]
    assert len(book) == 4


def test_memory_is_flat_over_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringstep.controller.ledger.MAX_JOBS", 500)
    monkeypatch.setattr("ringstep.controller.ledger.KEPT_REQUESTS", 100)
    monkeypatch.setattr("ringstep.controller.blocks.MAX_BLOCKS", 1000)
    book = ledger()

    def churn(count: int, first: int) -> None:
        for number in range(first, first + count):
            register(book, f"j{number}", request_id=f"r{number}", tenant=f"t{number}")
            book.release(f"j{number}")

    churn(1500, 0)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    churn(3000, 1500)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100_000


class Restarts(RuleBasedStateMachine):
    """Random work on few Job_IDs and blocks, with crashes that lose what was not committed."""

    JOBS, QUARANTINE_S = 4, 30.0

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("ringstep.controller.ledger.MAX_JOBS", self.JOBS)
        self.patch.setattr("ringstep.controller.ledger.KEPT_REQUESTS", 4)
        self.patch.setattr("ringstep.controller.blocks.MAX_BLOCKS", 16)
        self.clock = Clock()
        self.quotas = Quotas(default=3, by_tenant={"small": 1})
        self.queue: list[Change] = []
        self.number = 0
        # What is true of all that was handed out, as a switch and a job see it.
        self.last_of_id: dict[int, int] = {}
        self.last_of_block: dict[tuple[str, int], int] = {}
        self.given_back: dict[tuple[str, int], int] = {}
        """Of blocks given back by changes that are not stored yet: a crash takes them back."""
        self.released_at: dict[int, float] = {}
        self.release_called_at: dict[tuple[int, int], float] = {}
        self.wall_steps_s: list[float] = []
        self.acknowledged: dict[int, StoredJob] = {}

    @initialize()
    def start(self) -> None:
        self.store = Store("sqlite://")
        self.epoch = self.store.take_over("x")
        self.load()

    def load(self) -> None:
        self.book = ledger(
            self.store.load(),
            clock=self.clock,
            quarantine_s=self.QUARANTINE_S,
            quotas=self.quotas,
        )

    def teardown(self) -> None:
        self.patch.undo()
        self.store.close()

    blocks = st.dictionaries(
        st.sampled_from(["s1", "s2"]), st.lists(st.integers(0, 6), unique=True, max_size=5)
    )

    @rule(
        blocks=blocks,
        tenant=st.sampled_from(["small", "large"]),
        with_request=st.booleans(),
        name=st.sampled_from("abc") | st.none(),
    )
    def register(
        self, blocks: dict[str, list[int]], tenant: str, with_request: bool, name: str | None
    ) -> None:
        self.number += 1
        request_id = f"r{self.number}" if with_request else ""
        before = list(self.book.live())
        try:
            job, change = register(
                self.book,
                name or f"j{self.number}",
                tenant=tenant,
                request_id=request_id,
                blocks=blocks,
            )
        except (ExhaustedError, QuotaError, NameTakenError):
            assert list(self.book.live()) == before
            return
        assert {s: set(keys) for s, keys in blocks.items() if keys} == {
            s: set(ids) for s, ids in job.blocks.items()
        }
        assert job.generation != self.last_of_id.get(job.job_id)
        self.check_blocks(job, {})
        resting = self.clock.now_s - self.released_at.get(job.job_id, -1e9)
        # A clock that steps forward while the controller is down ends a rest earlier.
        assert resting >= self.QUARANTINE_S - sum(step for step in self.wall_steps_s if step > 0)
        self.queue.append(change)

    def check_blocks(self, job: StoredJob, had: Any) -> None:
        for switch, ids in job.blocks.items():
            for block in ids.values():
                if block not in had.get(switch, {}).values():
                    assert self.last_of_block.get((switch, block)) != job.generation
                    assert self.given_back.get((switch, block)) != job.generation

    def pick(self, number: int) -> StoredJob:
        live = list(self.book.live())
        return live[number % len(live)]

    @precondition(lambda self: len(self.book))
    @rule(number=st.integers(0, 99), blocks=blocks)
    def place(self, number: int, blocks: dict[str, list[int]]) -> None:
        job = self.pick(number)
        try:
            placed, change = self.book.place(job.job_id, blocks)
        except ExhaustedError:
            assert self.book.get(job.job_id) == job
            return
        self.check_blocks(placed, job.blocks)
        for switch, ids in job.blocks.items():
            for key, block in ids.items():
                if placed.blocks.get(switch, {}).get(key) != block:
                    self.given_back[switch, block] = job.generation
        self.queue.append(change)

    @precondition(lambda self: len(self.book))
    @rule(number=st.integers(0, 99), lease_s=st.integers(0, 9))
    def update(self, number: int, lease_s: int) -> None:
        self.queue.append(self.book.update(self.pick(number).job_id, lease_s=lease_s)[1])

    @precondition(lambda self: len(self.book))
    @rule(number=st.integers(0, 99))
    def release(self, number: int) -> None:
        job, change = self.book.release(self.pick(number).job_id)
        self.release_called_at[job.job_id, job.generation] = self.clock.now_s
        self.queue.append(change)

    @rule(seconds=st.sampled_from([1.0, 15.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def commit(self) -> None:
        """The switches and the clients hear of it only now."""
        self.store.commit(self.epoch, self.queue)
        self.queue.clear()
        self.note_stored()

    def note_stored(self) -> None:
        self.given_back.clear()
        live = {job.job_id: job for job in self.store.load().jobs}
        for job_id, job in self.acknowledged.items():
            now = live.get(job_id)
            if now is None or now.generation != job.generation:
                self.released_at[job_id] = self.release_called_at[job_id, job.generation]
                self.last_of_id[job_id] = job.generation
                now = None
            for switch, ids in job.blocks.items():
                for key, block in ids.items():
                    # Given back: with the job, or because its packets go another way.
                    if now is None or now.blocks.get(switch, {}).get(key) != block:
                        self.last_of_block[switch, block] = job.generation
        self.acknowledged = live

    @rule(stored=st.integers(0, 99), wall_step_s=st.sampled_from([0, 0, 0, -(10**6), 10]))
    def crash(self, stored: int, wall_step_s: int) -> None:
        """Part of the queue may have been written; the rest is lost. The clock may step."""
        if wall_step_s:
            self.clock.wall_ms += wall_step_s * 1000
            self.wall_steps_s.append(wall_step_s)
        self.store.commit(self.epoch, self.queue[: stored % (len(self.queue) + 1)])
        self.queue.clear()
        self.note_stored()
        self.load()
        assert {job.job_id: job for job in self.book.live()} == self.acknowledged

    @precondition(lambda self: not self.wall_steps_s)
    @rule()
    def restart_without_loss(self) -> None:
        """A restarted ledger hands out what the running one would have."""
        self.commit()
        running = self.offer(self.book)
        self.load()
        assert self.offer(self.book) == running
        self.load()

    def offer(self, book: Ledger) -> Any:
        try:
            return register(book, "offer", tenant="x", blocks={"s1": [1], "s2": [2, 3]})[0]
        except ExhaustedError as error:
            return str(error)

    @invariant()
    def nothing_is_shared(self) -> None:
        live = list(self.book.live())
        assert len({job.job_id for job in live}) == len({job.name for job in live}) == len(live)
        blocks = [
            (switch, block)
            for job in live
            for switch, ids in job.blocks.items()
            for block in ids.values()
        ]
        assert len(set(blocks)) == len(blocks)
        for switch in ("s1", "s2"):
            assert self.book.free_blocks(switch) >= 16 - len(blocks)
        assert len(live) + self.book.free_ids + self.book.quarantined_ids == self.JOBS
        assert sum(job.tenant == "small" for job in live) <= 1
        assert sum(job.tenant == "large" for job in live) <= 3


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
