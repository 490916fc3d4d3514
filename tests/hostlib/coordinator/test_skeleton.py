"""What computes, without files and links: when it asks, what it offers, what it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.coordinator.group import decisions_of
from ringstep.hostlib.coordinator.messages import (
    Abandon,
    CommGone,
    CommStatus,
    Gpu,
    NodeGone,
    NodeHello,
    Offer,
    OfferState,
    Outcome,
    Records,
)
from ringstep.hostlib.coordinator.policy import (
    CallKey,
    GpuFigures,
    NetworkFigures,
    Pair,
    Sample,
)
from ringstep.hostlib.coordinator.skeleton import Settings, Skeleton
from ringstep.hostlib.coordinator.telemetry import encode
from ringstep.hostlib.shm import Decision, Record
from ringstep.hostlib.shm_layout import Algo, Collective, EntryState, Proto, RecordFlag, Scope

AR = Collective.ALL_REDUCE
PAIRS: frozenset[Pair] = frozenset((a, p) for a in (Algo.TREE, Algo.RING) for p in Proto)
ONE = Decision(Algo.RING, Proto.LL, 3)
TWO = Decision(Algo.RING, Proto.SIMPLE, 6)
WHERE = (0, 1)


class Puppet:
    name, static = "puppet", False

    def __init__(self) -> None:
        self.version = 1
        self.answer: Decision | None = ONE
        self.samples: list[Sample] = []
        self.keys: list[CallKey] = []

    def observe(self, sample: Sample) -> None:
        self.samples.append(sample)

    def process(self, key: CallKey) -> Decision | None:
        self.keys.append(key)
        return self.answer


class Bench:
    """A skeleton with nodes that do what the test says."""

    def __init__(self, until: Callable[..., Any], **settings: Any) -> None:
        self.until = until
        self.now = 0.0
        self.policy = Puppet()
        self.sent: list[tuple[str, Any]] = []
        self.skeleton = Skeleton(
            lambda: self.policy, Settings(policy_limit_s=1e9, **settings),
            lambda node, command: self.sent.append((node, command)), lambda: None,
            lambda: self.now,
        )  # fmt: skip
        self.seq = 0
        self.epoch = 0

    def hello(self, node: str = "a", epoch: int = 0) -> None:
        self.skeleton.event(node, NodeHello(epoch, 1))

    def status(self, node: str = "a", ranks: tuple[int, ...] = (0, 1), **other: Any) -> CommStatus:
        n_ranks = other.pop("n_ranks", 2)
        found = CommStatus(
            where=WHERE, comm_id=7, n_ranks=n_ranks, n_nodes=1, scope=Scope.NODE, ranks=ranks,
            whole=len(ranks) == n_ranks, trusted=True, frozen=False, epoch=self.epoch,
            usable={AR: PAIRS}, table=None,
        )  # fmt: skip
        found = replace(found, **other)
        self.skeleton.event(node, found)
        return found

    def collective(self, n: int = 1, node: str = "a", ranks: tuple[int, ...] = (0, 1)) -> None:
        for _ in range(n):
            slots = [
                encode(Record(0, rank, AR, Algo.RING, Proto.LL, 2, 1 << 20, self.seq, self.seq,
                              self.epoch, 1, 1000, 0, RecordFlag.HOST_TIMER))
                for rank in ranks
            ]  # fmt: skip
            self.seq += 1
            self.skeleton.event(node, Records(np.concatenate(slots), {0: WHERE[1]}))
        self.step()

    def step(self) -> None:
        """Let everything settle that does not need time."""
        for _ in range(3):
            self.skeleton.step()
            self.until(lambda: self.skeleton._inference.idle)
        self.skeleton.step()

    def offers(self) -> list[Offer]:
        return [c for _, c in self.sent if isinstance(c, Offer)]

    def outcome(self, state: OfferState, epoch: int, node: str = "a") -> None:
        self.skeleton.event(node, Outcome(WHERE, epoch, state, ("because",)))
        if state is OfferState.APPLIED:
            self.epoch = epoch
        self.step()

    def applied(self, epoch: int) -> None:
        for state in (OfferState.ACKNOWLEDGED, OfferState.COMMITTED, OfferState.APPLIED):
            self.outcome(state, epoch)


@pytest.fixture
def make_bench(until: Callable[..., Any]) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**settings: Any) -> Bench:
        made.append(Bench(until, **settings))
        return made[-1]

    yield make
    for bench in made:
        bench.skeleton.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    made = make_bench()
    made.hello()
    made.status()
    return made


def test_warm_up_then_a_decision_then_cooldown(bench: Bench) -> None:
    bench.collective(7)
    assert bench.policy.keys == []
    bench.collective()
    assert len(bench.policy.keys) == 1
    assert [o.epoch for o in bench.offers()] == [1]
    assert decisions_of(bench.offers()[0].entries) == {(AR, 20): ONE}
    bench.applied(1)
    bench.policy.answer = TWO
    bench.policy.version += 1
    bench.collective(2)
    assert len(bench.policy.keys) == 1  # cooling down
    bench.collective()
    assert len(bench.policy.keys) == 2
    bench.step()
    assert [o.epoch for o in bench.offers()] == [1, 2]
    bench.collective(2)
    states = [s.state for s in bench.policy.samples]
    assert states[:8] == [EntryState.WARMUP] * 8
    assert states[8:] == [EntryState.COOLDOWN] * 3 + [EntryState.NONE] * 2
    assert [s.epoch for s in bench.policy.samples[8:]] == [1] * 5
    assert bench.policy.samples[-1].decision == ONE


def test_what_ran_before_a_change_and_is_told_after_it_had_settled(bench: Bench) -> None:
    bench.collective(8)
    bench.applied(1)
    bench.collective(3)
    bench.policy.answer = TWO
    bench.policy.version += 1
    bench.collective()
    for state in (OfferState.ACKNOWLEDGED, OfferState.COMMITTED, OfferState.APPLIED):
        bench.outcome(state, 2)
    bench.epoch = 1
    bench.collective(2)
    bench.epoch = 2
    bench.collective(4)
    states = [s.state for s in bench.policy.samples if s.epoch == 1][3:]
    assert states == [EntryState.NONE] * len(states)
    states = [s.state for s in bench.policy.samples if s.epoch == 2]
    assert states == [EntryState.COOLDOWN] * 3 + [EntryState.NONE]


def test_the_policy_is_asked_on_a_miss_and_for_a_new_version_only(bench: Bench) -> None:
    bench.collective(8)
    bench.applied(1)
    bench.collective(50)
    assert len(bench.policy.keys) == 1
    bench.policy.version += 1
    bench.collective()
    assert len(bench.policy.keys) == 2
    assert len(bench.offers()) == 1  # the same answer is no new epoch


def test_an_offer_waits_for_the_one_before_unless_nobody_takes_it(bench: Bench) -> None:
    bench.collective(8)
    bench.policy.answer = TWO
    bench.policy.version += 1
    bench.collective()
    assert len(bench.offers()) == 1
    bench.now += 1.0
    bench.step()
    assert [o.epoch for o in bench.offers()] == [1, 2]
    bench.outcome(OfferState.APPLIED, 1)  # late news of the one that gave way
    bench.outcome(OfferState.ACKNOWLEDGED, 2)
    bench.policy.answer = ONE
    bench.policy.version += 1
    bench.collective()
    bench.now += 100.0
    bench.step()
    assert len(bench.offers()) == 2  # every rank holds it: it may be in force any moment


def test_a_refused_table_is_offered_again_only_under_other_circumstances(bench: Bench) -> None:
    bench.collective(8)
    bench.outcome(OfferState.REFUSED, 1)
    for _ in range(10):
        bench.now += 1.0
        bench.collective()
    assert len(bench.offers()) == 1
    assert "because" in bench.skeleton.status()["refusals"][0]
    bench.status(usable={AR: PAIRS - {(Algo.TREE, Proto.LL)}})
    bench.now += 1.0
    bench.step()
    assert [o.epoch for o in bench.offers()] == [1, 2]


@pytest.mark.parametrize("state", [OfferState.FROZEN, OfferState.GONE])
def test_an_offer_that_failed_is_not_repeated_at_once(bench: Bench, state: OfferState) -> None:
    bench.collective(8)
    bench.outcome(state, 1)
    for _ in range(20):
        bench.step()
    assert len(bench.offers()) == 1


def test_only_what_every_rank_can_use_is_offered(bench: Bench) -> None:
    bench.status(usable={AR: PAIRS - {(Algo.RING, Proto.LL)}})
    bench.collective(8)
    assert len(bench.policy.keys) == 1
    assert bench.offers() == []
    bench.status(usable={})
    bench.policy.version += 1
    bench.collective()
    assert bench.offers() == []


def test_a_pair_that_stops_being_usable_leaves_the_table(bench: Bench) -> None:
    bench.collective(8)
    bench.applied(1)
    bench.status(usable={AR: PAIRS - {(Algo.RING, Proto.LL)}})
    bench.step()
    assert decisions_of(bench.offers()[-1].entries) == {}


def test_the_time_to_apply_is_counted_from_the_decision(bench: Bench) -> None:
    bench.now = 100.0
    bench.collective(8)
    bench.now += 0.25
    bench.applied(1)
    assert bench.skeleton.status()["communicators"][0]["apply_ms"] == 250.0
    bench.now += 50.0
    bench.status(usable={AR: PAIRS - {(Algo.RING, Proto.LL)}})
    bench.step()
    bench.now += 0.5
    bench.applied(2)
    assert bench.skeleton.status()["communicators"][0]["apply_ms"] == 500.0


def test_epochs_are_above_every_node_s(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(nodes=2)
    bench.hello("a", 5)
    bench.status()
    bench.collective(20)
    assert bench.offers() == []  # not all nodes are there
    bench.hello("b", 40)
    bench.step()
    assert [o.epoch for o in bench.offers()] == [41]
    bench.applied(41)
    bench.skeleton.event("b", NodeGone("cut"))
    bench.policy.answer = TWO
    bench.policy.version += 1
    bench.collective(5)
    assert [o.epoch for o in bench.offers()] == [41, 42]


def test_two_nodes_of_a_communicator_get_the_same_offer(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(nodes=2)
    for node, ranks in (("a", (0, 1)), ("b", (2, 3))):
        bench.hello(node)
        bench.status(node, ranks, n_ranks=4, n_nodes=2, scope=Scope.FENCED)
    for _ in range(8):
        bench.collective(node="a", ranks=(0, 1))
        bench.seq -= 1
        bench.collective(node="b", ranks=(2, 3))
    (one, two) = bench.sent
    assert {one[0], two[0]} == {"a", "b"}
    assert (one[1].epoch, one[1].scope) == (two[1].epoch, two[1].scope) == (1, Scope.FENCED)
    assert (one[1].entries == two[1].entries).all()
    assert bench.policy.samples[0].duration_ns.keys() == {0, 1, 2, 3}
    bench.outcome(OfferState.APPLIED, 1, "a")
    assert bench.skeleton.status()["communicators"][0]["on_offer"] == 1
    bench.outcome(OfferState.REFUSED, 1, "b")
    assert bench.sent[-1] == ("a", Abandon(WHERE, 1))


def test_a_lost_node_takes_the_offer_with_it(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(nodes=2, warm_up=0)
    for node, ranks in (("a", (0, 1)), ("b", (2, 3))):
        bench.hello(node)
        bench.status(node, ranks, n_ranks=4, n_nodes=2, scope=Scope.FENCED)
    bench.collective(ranks=(0, 1))
    bench.now += 2.0
    bench.step()
    assert len(bench.offers()) == 2
    bench.skeleton.event("b", NodeGone("cut"))
    assert bench.sent[-1] == ("a", Abandon(WHERE, 1))
    (comm,) = bench.skeleton.status()["communicators"]
    assert comm["obstacle"] == "2 of 4 ranks are attached"


def test_ranks_claimed_by_two_nodes_belong_to_no_communicator(bench: Bench) -> None:
    bench.hello("b")
    bench.status("a", (0, 1), n_ranks=4, n_nodes=2)
    bench.status("b", (1, 2), n_ranks=4, n_nodes=2)
    assert bench.skeleton.status()["communicators"] == []


def test_what_is_in_force_at_the_start_stays_until_something_is_known(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench()
    table = np.zeros((lay.COLLECTIVES, lay.SIZE_CLASSES), lay.ENTRY)
    table[AR, 20] = (TWO.algo, TWO.proto, 6, lay.ENTRY_VALID, 0, 0, 0, 0, 0)
    table[AR, 25] = table[AR, 20]
    bench.hello(epoch=9)
    bench.epoch = 9
    bench.status(table=table)
    bench.collective(7)
    assert bench.offers() == []
    bench.collective()
    assert decisions_of(bench.offers()[0].entries) == {(AR, 20): ONE, (AR, 25): TWO}
    assert bench.offers()[0].epoch == 10


def test_an_epoch_that_somebody_else_put_in_force_is_followed(bench: Bench) -> None:
    bench.collective(8)
    bench.applied(1)
    bench.epoch = 5
    bench.status()  # the file does not have its table any more
    bench.step()
    assert decisions_of(bench.offers()[-1].entries) == {(AR, 20): ONE}


def test_figures_go_with_the_samples(bench: Bench) -> None:
    gpu = GpuFigures(utilization=0.4)
    network = NetworkFigures(alpha=1.2, marks_red=3)
    bench.skeleton.event("a", Gpu(gpu))
    bench.skeleton.note_network(network)
    bench.collective()
    bench.skeleton.event("a", Gpu(None))
    bench.skeleton.note_network(None)
    bench.collective()
    assert [(s.gpu, s.network) for s in bench.policy.samples] == [(gpu, network), (None, None)]


def test_mixed_and_unplaced_records_teach_nothing(bench: Bench) -> None:
    slots = [
        encode(Record(0, rank, AR, algo, Proto.LL, 2, 1 << 20, 0, 0, 0, 1, 1000, 0, RecordFlag(0)))
        for rank, algo in ((0, Algo.RING), (1, Algo.TREE))
    ]
    bench.skeleton.event("a", Records(np.concatenate(slots), {0: WHERE[1]}))
    bench.skeleton.event("a", Records(np.concatenate(slots), {0: 99}))  # another generation
    bench.skeleton.event("x", Records(np.concatenate(slots), {0: WHERE[1]}))
    bench.step()
    assert bench.policy.samples == []
    assert bench.skeleton.status()["communicators"][0]["keys"][0]["seen"] == 1


def test_a_closed_communicator_is_forgotten(bench: Bench) -> None:
    bench.collective(8)
    bench.skeleton.event("a", CommGone(WHERE))
    bench.outcome(OfferState.APPLIED, 1)
    assert bench.skeleton.status()["communicators"] == []
