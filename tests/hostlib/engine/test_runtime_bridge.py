"""The engine on the socket of a software RNIC: framing, steps, and what ends badly."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bridge_stand_in import UNTAGGED, StandIn
from engine_reference import LL, RING, SIMPLE, TREE, TYPES, Case, Coll, Op, check


class Bridges:
    """One stand-in per rank, in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stand_in = StandIn()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def options(self, rank: int) -> list[str]:
        path = self.folder / f"rnic.{rank}"
        listening = asyncio.run_coroutine_threadsafe(self.stand_in.listen(path), self.loop)
        listening.result(10)
        return [f"bridge={path}", "timeout=60"]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.stand_in.close(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def bridges(tmp_path: Path) -> Iterator[Bridges]:
    made = Bridges(tmp_path)
    yield made
    made.close()


def run(ranks: Any, cases: list[Case]) -> None:
    n = len(ranks.ranks)
    rng = np.random.default_rng(3)
    sent = [[case.data(rng, n) for _ in range(n)] for case in cases]
    for case, inputs, outputs in zip(cases, sent, ranks.collect(cases, sent), strict=True):
        check(case, inputs, outputs)


@pytest.mark.parametrize("n_ranks", [2, 3, 5])
def test_collectives_match_numpy_in_whatever_pieces_bytes_come(
    ranks: Any, bridges: Bridges, n_ranks: int
) -> None:
    """Pieces of 1, 3 and 61 bytes end inside elements, words, flags, headers and frames."""
    ranks.start(n_ranks, each=bridges.options)
    source = random.Random(n_ranks)
    cases = []
    for i in range(30):
        coll = source.choice(list(Coll))
        algo = source.choice((RING, TREE)) if coll is Coll.ALL_REDUCE else RING
        cases.append(Case(
            coll, source.choice((1, 5, 64, 1001, 3000)), algo, (LL, SIMPLE)[i % 2],
            source.randint(1, 4), source.choice((0, 1024)), i % len(TYPES), source.choice(list(Op)),
            source.randrange(n_ranks), source.random() < 0.5,
        ))  # fmt: skip
    run(ranks, cases)
    ranks.close()
    assert bridges.stand_in.wrong == []


def test_ring_messages_carry_their_step_of_the_job(ranks: Any, bridges: Bridges) -> None:
    """2 (n - 1) steps per all-reduce, n - 1 per all-gather, counted on; all else is untagged."""
    ranks.start(3, each=bridges.options)
    count = 3 * 16 * 2  # a whole cell for each rank on both channels
    run(ranks, [Case(Coll.ALL_REDUCE, count, RING, SIMPLE, 2)])
    run(ranks, [Case(Coll.ALL_GATHER, 64, RING, LL, 2)])
    run(ranks, [Case(Coll.ALL_REDUCE, count, TREE, SIMPLE, 2)])
    run(ranks, [Case(Coll.BROADCAST, 64, RING, SIMPLE, 1, root=1)])
    ranks.close()
    seen = bridges.stand_in.messages
    steps = [step for _, _, step in seen if step != UNTAGGED]
    assert set(steps) == set(range(4 + 2 + 2))
    for step in range(6):
        assert steps.count(step) == 3 * 2  # each rank, each channel
    assert steps.count(6) == steps.count(7) == 1  # the broadcast: one hop after the other
    assert {channel for channel, _, _ in seen} == {0, 1}


def test_loops_over_the_data_go_on_counting(ranks: Any, bridges: Bridges) -> None:
    ranks.start(2, each=bridges.options)
    run(ranks, [Case(Coll.ALL_REDUCE, 1024, RING, SIMPLE, 1, 512)])
    ranks.close()
    steps = sorted(step for _, _, step in bridges.stand_in.messages if step != UNTAGGED)
    # 4096 bytes in loops of two chunks of 512: four loops of two steps, sent by both ranks.
    assert steps == [step for step in range(8) for _ in range(2)]


def test_works_of_a_group_that_need_other_links_each_find_theirs(
    ranks: Any, bridges: Bridges
) -> None:
    """All queue pairs of a group are opened with its first work; each is used by who needs it."""
    n = 5
    ranks.start(n, each=bridges.options)
    run(ranks, [Case(Coll.ALL_REDUCE, 500, RING, SIMPLE, 1)])  # some are there already
    cases = [
        Case(Coll.ALL_REDUCE, 1000, RING, SIMPLE, 2), Case(Coll.ALL_REDUCE, 1000, TREE, LL, 3),
        Case(Coll.ALL_GATHER, 300, RING, LL, 4), Case(Coll.ALL_REDUCE, 9, TREE, SIMPLE, 1),
    ]  # fmt: skip
    rng = np.random.default_rng(3)
    sent = [[case.data(rng, n) for _ in range(n)] for case in cases]
    results = ranks.collect(cases, sent, group=True)
    for case, inputs, outputs in zip(cases, sent, results, strict=True):
        check(case, inputs, outputs)
    ranks.close()
    assert bridges.stand_in.wrong == []


def test_a_bridge_that_is_not_there_is_named(ranks: Any, tmp_path: Path) -> None:
    ranks.start(2, each=lambda rank: [f"bridge={tmp_path}/none", "timeout=20"])
    for answer in ranks.ask(Case(Coll.ALL_REDUCE, 5).line()):
        assert answer.startswith("error 5 ") or "said by" in answer
        assert f"{tmp_path}/none" in answer
        assert "ringstep.hostlib.bridge" in answer


def test_ranks_with_and_without_a_bridge_do_not_meet(ranks: Any, bridges: Bridges) -> None:
    ranks.start(
        2, each=lambda rank: bridges.options(rank) if rank == 1 else ["timeout=60"], wait=False
    )
    for rank in ranks.ranks:
        answer = rank.answer()
        assert answer.startswith("error 6 ")
        assert "some ranks have a bridge" in answer


def test_a_bridge_that_ends_is_a_lost_peer(ranks: Any, bridges: Bridges) -> None:
    ranks.start(3, each=bridges.options)
    run(ranks, [Case(Coll.ALL_REDUCE, 5)])
    asyncio.run_coroutine_threadsafe(bridges.stand_in.close(), bridges.loop).result(10)
    for answer in ranks.ask(Case(Coll.ALL_REDUCE, 5).line()):
        assert answer.startswith("error 2 ")


def test_other_calls_are_a_mismatch_while_connecting(ranks: Any, bridges: Bridges) -> None:
    ranks.start(3, each=bridges.options)
    for i, rank in enumerate(ranks.ranks):
        rank.tell(Case(Coll.ALL_REDUCE, 100 + i // 2).line())
    for rank in ranks.ranks:
        answer = rank.answer()
        assert answer.startswith("error 6 ")
        assert "there call 1" in answer
