"""What the others are told when a rank dies, hangs, aborts, leaves, or calls something else."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from engine_reference import LL, RING, SIMPLE, TREE, Case, Coll

BAD_ARGUMENT, PEER_LOST, TIMEOUT, ABORTED, SYSTEM, MISMATCH = range(1, 7)

SMALL = Case(Coll.ALL_REDUCE, 100).line()
LARGE = Case(Coll.ALL_REDUCE, 16 << 20, RING, SIMPLE, 2).line()


def code(answer: str) -> int:
    assert answer.startswith("error "), answer
    return int(answer.split()[1])


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("algo", [RING, TREE])
def test_all_others_learn_of_a_killed_rank(ranks: Any, victim: int, algo: int) -> None:
    """Also those that are no neighbours of it, and long before the timeout of 60 s."""
    ranks.start(6, None, "timeout=60")
    case = Case(Coll.ALL_REDUCE, 1000, algo, LL)
    ranks.ask(case.line())
    others = [rank for i, rank in enumerate(ranks.ranks) if i != victim]
    for rank in others:
        rank.tell(case.line())
    ranks.ranks[victim].kill()
    for rank in others:
        answer = rank.answer()
        assert code(answer) == PEER_LOST
        assert "rank" in answer
    # And the communicator stays broken, with the first reason.
    again = others[0].ask(case.line())
    assert code(again) == PEER_LOST
    assert "since an earlier error" in again


def test_a_rank_killed_in_the_middle_of_a_large_transfer(ranks: Any) -> None:
    ranks.start(4, None, "timeout=60")
    ranks.tell("repeat 50")
    ranks.tell(LARGE)
    time.sleep(0.3)
    ranks.ranks[2].kill()
    for i in (0, 1, 3):
        assert code(ranks.ranks[i].answer()) == PEER_LOST


def test_a_stopped_rank_is_a_timeout_that_names_it(ranks: Any) -> None:
    ranks.start(3, None, "timeout=1")
    ranks.ask(SMALL)
    os.kill(ranks.ranks[1].process.pid, signal.SIGSTOP)
    for i in (0, 2):
        ranks.ranks[i].tell(SMALL)
    answers = [ranks.ranks[i].answer() for i in (0, 2)]
    os.kill(ranks.ranks[1].process.pid, signal.SIGCONT)
    assert {code(answer) for answer in answers} == {TIMEOUT}
    # Rank 0 awaits rank 2, and rank 2 awaits rank 1; both know who says nothing.
    assert all("no progress for 1 s; awaited rank" in answer for answer in answers), answers
    assert all("stuck or elsewhere: rank 1" in answer for answer in answers), answers


def test_a_rank_that_does_not_call_is_a_timeout_in_an_exchange_too(ranks: Any) -> None:
    ranks.start(3, None, "timeout=1")
    for i in (0, 2):
        ranks.ranks[i].tell("exchange 8")
    answers = [ranks.ranks[i].answer() for i in (0, 2)]
    assert {code(answer) for answer in answers} == {TIMEOUT}
    # Rank 0 awaits rank 1, and rank 2 awaits rank 0; whoever gives up first tells the other.
    assert all("to take part in an exchange" in answer for answer in answers), answers
    assert all("stuck or elsewhere: rank 1" in answer for answer in answers), answers


@pytest.mark.parametrize("busy", [True, False])
def test_abort_from_another_thread_ends_the_call_and_the_others(ranks: Any, busy: bool) -> None:
    ranks.start(4, None, "timeout=60")
    ranks.ask(SMALL)
    for i in (0, 1, 2):
        ranks.ranks[i].tell(SMALL)
    if busy:
        ranks.ranks[3].tell("abort 0")
        ranks.ranks[3].tell("sleep 100")
        ranks.ranks[3].tell(SMALL)
        assert code(ranks.ranks[3].answer()) == ABORTED
    else:
        ranks.ranks[3].tell("abort 0")
    for i in (0, 1, 2):
        answer = ranks.ranks[i].answer()
        assert code(answer) == ABORTED
        assert "rank 3 aborted" in answer


def test_abort_while_a_collective_waits(ranks: Any) -> None:
    ranks.start(3, None, "timeout=60")
    ranks.ranks[0].tell("abort 200")
    ranks.ranks[0].tell(SMALL)
    answer = ranks.ranks[0].answer()
    assert code(answer) == ABORTED


WRONG = [
    Case(Coll.ALL_REDUCE, 101),
    Case(Coll.ALL_REDUCE, 100, proto=LL),
    Case(Coll.ALL_REDUCE, 100, algo=TREE),
    Case(Coll.ALL_REDUCE, 100, channels=3),
    Case(Coll.ALL_REDUCE, 100, chunk=4096),
    Case(Coll.ALL_REDUCE, 100, type=2),
    Case(Coll.ALL_GATHER, 100),
    Case(Coll.REDUCE_SCATTER, 100),
    Case(Coll.BROADCAST, 100, root=1),
]


@pytest.mark.parametrize("first", [True, False], ids=["first call", "later call"])
@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_different_calls_are_a_mismatch_that_shows_both(
    ranks: Any, wrong: Case, first: bool
) -> None:
    ranks.start(3, None, "timeout=60")
    if not first:
        ranks.ask(SMALL)
    for i, rank in enumerate(ranks.ranks):
        rank.tell(wrong.line() if i == 1 else SMALL)
    answers = [rank.answer() for rank in ranks.ranks]
    errors = [a for a in answers if a.startswith("error")]
    # A broadcast's root may be done before anybody has seen the other's header.
    assert len(errors) >= (2 if wrong.coll is Coll.BROADCAST else 3), answers
    assert {code(a) for a in errors} == {MISMATCH}, answers
    assert any("there call" in a and "here call" in a for a in errors), answers


def test_exchange_of_different_sizes_is_a_mismatch(ranks: Any) -> None:
    ranks.start(3, None, "timeout=60")
    for i, rank in enumerate(ranks.ranks):
        rank.tell(f"exchange {8 + i // 2}")
    for rank in ranks.ranks:
        assert code(rank.answer()) == MISMATCH


def test_a_rank_may_leave_as_soon_as_its_own_part_is_done(ranks: Any) -> None:
    """The broadcast's root is done before the others have read: they get all of it."""
    ranks.start(4, None, "timeout=20")
    case = Case(Coll.BROADCAST, 3000, RING, SIMPLE, 2, 4096)
    ranks.ask(case.line())  # makes the connections
    ranks.ranks[0].tell(case.line())
    assert ranks.ranks[0].answer().startswith("ok")
    ranks.ranks[0].tell("destroy")
    time.sleep(0.3)
    for rank in ranks.ranks[1:]:
        rank.tell(case.line())
    for rank in ranks.ranks[1:]:
        assert rank.answer().startswith("ok")
    for rank in ranks.ranks[1:]:
        assert code(rank.ask(SMALL)) == PEER_LOST


def test_an_exchange_with_a_rank_that_left_is_a_lost_peer(ranks: Any) -> None:
    ranks.start(3, None, "timeout=60")
    ranks.ask(SMALL)
    assert ranks.ranks[1].ask("destroy") == "ok"
    for i in (0, 2):
        ranks.ranks[i].tell("exchange 8")
    for i in (0, 2):
        answer = ranks.ranks[i].answer()
        assert code(answer) == PEER_LOST
        assert "rank 1 destroyed its communicator" in answer


def test_an_exit_without_goodbye_after_the_last_call_harms_nobody(ranks: Any) -> None:
    ranks.start(4, None, "timeout=60")
    case = Case(Coll.ALL_REDUCE, 50_000, RING, SIMPLE, 2)
    for rank in ranks.ranks:
        rank.tell(case.line())
        rank.tell("leave")
    for rank in ranks.ranks:
        assert rank.answer().startswith("ok")


def test_a_dead_rank_is_seen_though_its_forked_children_live(ranks: Any) -> None:
    ranks.start(3, None, "timeout=60")
    ranks.ask(SMALL)
    ranks.ranks[1].tell("fork")
    answer = ranks.ranks[1].answer()
    assert answer.startswith(f"child {BAD_ARGUMENT} "), answer
    assert "belongs to the parent process" in answer
    assert all(a.startswith("ok") for a in ranks.ask(SMALL))  # the child's end changed nothing
    ranks.ranks[0].tell(SMALL)
    ranks.ranks[2].tell(SMALL)
    ranks.ranks[1].kill()
    assert code(ranks.ranks[0].answer()) == PEER_LOST
    assert code(ranks.ranks[2].answer()) == PEER_LOST


def test_destroying_closes_every_descriptor(ranks: Any) -> None:
    ranks.start(3, None, "timeout=60")
    ranks.ask(Case(Coll.ALL_REDUCE, 5000, TREE, LL, 8).line())
    ranks.ask(Case(Coll.ALL_REDUCE, 5000, RING, SIMPLE, 8).line())
    ranks.ask("destroy")
    for answer in ranks.ask("descriptors"):
        # Standard input, output, error, the input and the output file.
        assert answer == "descriptors 5"
    ranks.close()
