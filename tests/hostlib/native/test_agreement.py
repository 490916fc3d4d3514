"""Ranks that choose differently hang: every rank applies the same decision at the same index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ringstep.hostlib.native.caller import IGNORE, Costs, Rank
from ringstep.hostlib.shm import (
    Commit,
    Decision,
    DecisionTable,
    FenceMember,
    Once,
    Reason,
    Scope,
    ShmError,
    ShmFile,
)
from ringstep.hostlib.shm_layout import Algo, Collective, CommState, Proto

AR = Collective.ALL_REDUCE
MakeRank = Callable[..., Rank]


def table(channels: int, algo: Algo = Algo.RING, proto: Proto = Proto.LL) -> DecisionTable:
    made = DecisionTable()
    made.set(AR, range(64), Decision(algo, proto, channels))
    return made


def world(make_rank: MakeRank, n: int, comm_id: int = 3, **options: Any) -> list[Rank]:
    return [make_rank(comm_id, n, rank, **options) for rank in range(n)]


def channels(ranks: list[Rank]) -> list[int]:
    return [rank.collective(AR)[1] for rank in ranks]


def put_in_force(shm: ShmFile, ranks: list[Rank], epoch: int, wanted: DecisionTable) -> None:
    shm.announce(0, epoch, wanted)
    channels(ranks)
    assert shm.commit(0, epoch) is Commit.DONE


def offer_raw(shm: ShmFile, epoch: int, wanted: DecisionTable) -> None:
    """Offer as announce() does, without its check that epochs rise."""
    block = shm.raw["comms"][0][0]
    block["bank"]["version"] += 1
    block["bank"]["epoch"] = epoch
    block["bank"]["digest"] = wanted.digest(epoch)
    block["bank"]["entries"] = wanted.entries
    block["bank"]["version"] += 1
    block["announced"] = epoch


def test_an_epoch_waits_for_every_rank(shm: ShmFile, make_rank: MakeRank) -> None:
    ranks = world(make_rank, 3)
    channels(ranks)
    shm.announce(0, 1, table(5))
    for rank in ranks[:2]:
        rank.collective()
        assert shm.commit(0, 1) is Commit.NOT_ACKNOWLEDGED
    assert ranks[2].collective()[1] == 0
    assert shm.commit(0, 1) is Commit.DONE
    assert shm.commit(0, 1) is Commit.DONE  # a repeated message changes nothing
    assert channels(ranks) == [5, 5, 5]


def test_a_rank_that_lags_switches_at_the_same_index(shm: ShmFile, make_rank: MakeRank) -> None:
    ahead, behind = world(make_rank, 2)
    channels([ahead, behind])
    shm.announce(0, 1, table(5))
    channels([ahead, behind])
    by_index: dict[str, list[int]] = {"ahead": [], "behind": []}
    by_index["ahead"] += channels([ahead] * 4)  # indices 2..5, before the commit
    assert shm.commit(0, 1) is Commit.DONE
    assert shm.comm(0).first_index == 6
    by_index["ahead"] += channels([ahead] * 3)
    by_index["behind"] += channels([behind] * 7)
    assert by_index["ahead"] == by_index["behind"] == [0, 0, 0, 0, 5, 5, 5]


def test_no_epoch_follows_before_all_are_past_the_last(shm: ShmFile, make_rank: MakeRank) -> None:
    ahead, behind = world(make_rank, 2)
    put_in_force(shm, [ahead, behind], 1, table(5))
    channels([ahead])
    shm.announce(0, 2, table(6))
    channels([ahead])
    assert shm.commit(0, 2) is Commit.NOT_ACKNOWLEDGED
    assert channels([behind, behind, behind]) == [5, 5, 5]
    assert shm.commit(0, 2) is Commit.DONE
    assert shm.comm(0).first_index == 4


def test_an_offer_never_displaces_a_table_that_is_committed(
    shm: ShmFile, make_rank: MakeRank
) -> None:
    """A rank that lags still needs its copy: the epoch waits for its first index there."""
    ahead, behind = world(make_rank, 2)
    channels([ahead, behind])
    shm.announce(0, 1, table(5))
    channels([ahead, behind])
    channels([ahead] * 4)
    assert shm.commit(0, 1) is Commit.DONE  # from index 6 on
    shm.announce(0, 2, table(6))
    assert channels([behind] * 4) == [0, 0, 0, 0]  # 2..5: sees the offer, must not take it
    assert [r.ack_epoch for r in shm.comm(0).ranks] == [1, 1]
    assert channels([ahead]) == channels([behind]) == [5]
    channels([ahead, behind])
    assert shm.commit(0, 2) is Commit.DONE
    assert channels([ahead, behind]) == [6, 6]


def test_an_epoch_that_the_gate_cannot_hold_is_not_acknowledged(
    shm: ShmFile, make_rank: MakeRank
) -> None:
    ranks = world(make_rank, 2)
    channels(ranks)
    offer_raw(shm, 1 << 24, table(5))
    assert channels(ranks) == channels(ranks) == [0, 0]
    assert [r.ack_epoch for r in shm.comm(0).ranks] == [0, 0]


@pytest.mark.parametrize("again", [1, 2])
def test_an_epoch_that_is_over_is_not_acknowledged_again(
    shm: ShmFile, make_rank: MakeRank, again: int
) -> None:
    """A coordinator that forgot what it did, and writes past the check of its own library."""
    ranks = world(make_rank, 2)
    put_in_force(shm, ranks, 1, table(5))
    channels(ranks)
    put_in_force(shm, ranks, 2, table(6))
    channels(ranks)
    offer_raw(shm, again, table(9))
    assert channels(ranks) == [6, 6]
    assert [r.ack_epoch for r in shm.comm(0).ranks] == [2, 2]
    assert [r.in_force for r in shm.comm(0).ranks] == [2, 2]
    shm.commit(0, again)
    assert channels(ranks) == [6, 6]


def test_a_fence_holds_for_the_contents_that_were_agreed(shm: ShmFile, make_rank: MakeRank) -> None:
    """One node's stub is told other contents under the epoch in force: only the digest differs."""
    ranks = world(make_rank, 2, n_nodes=2)
    shm.set_scope(0, Scope.FENCED)
    channels(ranks)
    shm.announce(0, 1, table(5))
    channels(ranks)
    members = [shm.fence_member(0, rank) for rank in range(2)]
    assert len({m.propose() for m in members}) == 1
    for member in members:
        member.settle(agreed=True)
    assert channels(ranks) == [5, 5]
    offer_raw(shm, 1, table(9))
    assert channels(ranks) == [5, 5]
    assert channels(ranks) == [5, 5]


def test_simulated_groups_do_not_shift_the_schedule(shm: ShmFile, make_rank: MakeRank) -> None:
    """ncclGroupSimulateEnd asks without a launch, on whatever rank calls it."""
    one, two = world(make_rank, 2)
    put_in_force(shm, [one, two], 1, table(5))
    for _ in range(10):
        one.api_call()
        one.get_coll_info(AR)
    shm.announce(0, 2, table(6))
    channels([one, two])
    one.get_coll_info(AR)
    assert shm.commit(0, 2) is Commit.DONE
    first = shm.comm(0).first_index
    seen: list[list[int]] = []
    for rank in (one, two):
        answers = []
        for _ in range(4):
            index = next(r.index for r in shm.comm(0).ranks if r.rank == [one, two].index(rank))
            answers.append((index, rank.collective()[1]))
        seen.append([c for i, c in answers if i >= first])
        assert all(c == (6 if i >= first else 5) for i, c in answers)
    assert all(seen)


def test_all_bins_of_a_group_see_one_epoch(shm: ShmFile, make_rank: MakeRank) -> None:
    ranks = world(make_rank, 2)
    put_in_force(shm, ranks, 1, table(5))
    shm.announce(0, 2, table(6))
    channels(ranks)
    one, two = ranks
    first = [one.get_coll_info(AR, size)[1] for size in (1 << 10, 1 << 20)]
    assert shm.commit(0, 2) is Commit.DONE  # between two bins of one group
    first.append(one.get_coll_info(AR, 1 << 24)[1])
    second = [two.get_coll_info(AR, size)[1] for size in (1 << 10, 1 << 20, 1 << 24)]
    assert first == second == [5, 5, 5]
    for rank in ranks:
        for _ in range(3):
            rank.launch()
    assert channels(ranks) == [6, 6]


def test_an_abandoned_epoch_never_comes_back(shm: ShmFile, make_rank: MakeRank) -> None:
    ranks = world(make_rank, 2)
    shm.announce(0, 1, table(5))
    channels(ranks)
    assert shm.abandon(0, 1)
    assert shm.commit(0, 1) is Commit.NOT_ANNOUNCED
    shm.announce(0, 2, table(6))
    channels(ranks)
    shm.abandon(0, 1)  # a late message: it is not about what is on offer now
    assert shm.commit(0, 1) is Commit.NOT_ANNOUNCED
    assert shm.commit(0, 2) is Commit.DONE
    assert not shm.abandon(0, 2)
    assert channels(ranks) == [6, 6]
    for used in (0, 1, 2, 1 << 24):
        with pytest.raises(ShmError, match="epoch"):
            shm.announce(0, used, table(7))


def test_ranks_with_different_tables_agree(shm: ShmFile, make_rank: MakeRank) -> None:
    """nccl #1136: Intel and AMD nodes computed different costs and hung."""
    ranks = world(make_rank, 2)
    tables = [Costs([float(i + 1) for i in range(21)]), Costs([float(30 - i) for i in range(21)])]
    for rank, costs in zip(ranks, tables, strict=True):
        rank.get_coll_info(AR, costs=costs)
        rank.launch()
    assert tables[0].chosen() != tables[1].chosen()
    put_in_force(shm, ranks, 1, table(4, Algo.TREE, Proto.SIMPLE))
    answers = [r.get_coll_info(AR, costs=c) for r, c in zip(ranks, tables, strict=True)]
    assert [(c.chosen(), n) for c, n in answers] == [((Algo.TREE, Proto.SIMPLE), 4)] * 2


def test_only_what_every_rank_can_use_is_acknowledged(
    shm: ShmFile, make_rank: MakeRank, log: Any
) -> None:
    """nccl #1184, #794, #1110: an entry that one rank has and another one ignores."""
    able = make_rank(3, 2, 0)
    unable = make_rank(3, 2, 1, log=log)

    def costs_of(rank: Rank) -> Costs:
        made = Costs()
        if rank is unable:
            made[Algo.RING, Proto.LL128] = IGNORE
        return made

    def step() -> list[int]:
        answers = []
        for rank in (able, unable):
            answers.append(rank.get_coll_info(AR, costs=costs_of(rank))[1])
            rank.launch()
        return answers

    step()
    usable = shm.comm(0).usable(AR)
    assert (Algo.RING, Proto.LL128) not in usable
    assert (Algo.RING, Proto.LL) in usable
    shm.announce(0, 1, table(4, Algo.RING, Proto.LL128))
    for _ in range(3):
        assert step() == [0, 0]
    assert shm.commit(0, 1) is Commit.NOT_ACKNOWLEDGED
    assert [r.refused_epoch for r in shm.comm(0).ranks] == [0, 1]
    assert log.reasons == [Reason.NOT_USABLE_EVERYWHERE]
    shm.announce(0, 2, table(4, Algo.RING, Proto.LL))
    step()
    assert shm.commit(0, 2) is Commit.DONE
    assert step() == [4, 4]


def test_nothing_is_decided_about_a_collective_not_seen_yet(
    shm: ShmFile, make_rank: MakeRank
) -> None:
    (rank,) = world(make_rank, 1)
    rank.collective()
    wanted = table(4)
    wanted.set(Collective.BROADCAST, range(64), Decision(Algo.RING, Proto.LL, 4))
    shm.announce(0, 1, wanted)
    rank.collective()
    assert shm.commit(0, 1) is Commit.NOT_ACKNOWLEDGED
    rank.collective(Collective.BROADCAST)  # now it knows
    rank.collective()
    assert shm.commit(0, 1) is Commit.DONE
    assert shm.comm(0).usable(Collective.REDUCE) == frozenset()


@pytest.mark.parametrize("announced", [7, 1 << 24, (1 << 32) + 1, (1 << 64) - 1])
def test_an_offer_of_another_epoch_than_its_table_is_not_taken(
    shm: ShmFile, make_rank: MakeRank, announced: int
) -> None:
    """Half a message: the announcement is there, the table that belongs to it is not."""
    ranks = world(make_rank, 2)
    shm.announce(0, 1, table(5))
    shm.raw["comms"][0][0]["announced"] = announced
    assert channels(ranks) == [0, 0]
    assert channels(ranks) == [0, 0]
    assert [r.ack_epoch for r in shm.comm(0).ranks] == [0, 0]
    assert shm.commit(0, announced & 0xFFFFFFFF) is not Commit.DONE
    shm.announce(0, 2, table(6))
    channels(ranks)
    assert shm.commit(0, 2) is Commit.DONE
    assert channels(ranks) == [6, 6]


def test_a_rank_without_a_trusted_clock_acknowledges_nothing(
    shm: ShmFile, make_rank: MakeRank
) -> None:
    """Profiler ABI v4 cannot tell replays of graphs from launches."""
    ranks = [make_rank(3, 2, 0), make_rank(3, 2, 1, profiler=4)]
    channels(ranks)
    shm.announce(0, 1, table(5))
    assert channels(ranks) == [0, 0]
    assert [r.ack_epoch for r in shm.comm(0).ranks] == [1, 0]
    assert shm.commit(0, 1) is Commit.NOT_ACKNOWLEDGED
    assert channels(ranks) == [0, 0]


def test_a_table_changed_after_it_was_acknowledged(shm: ShmFile, make_rank: MakeRank) -> None:
    ranks = world(make_rank, 2)
    shm.announce(0, 1, table(5))
    channels(ranks)
    shm.raw["comms"]["bank"]["entries"]["n_channels"][0, 0] = 9  # a writer gone wild
    assert shm.commit(0, 1) is Commit.DONE
    assert channels(ranks) == [5, 5]  # the checked copies


def test_other_contents_under_an_epoch_that_was_acknowledged(
    shm: ShmFile, make_rank: MakeRank
) -> None:
    """Between acknowledgement and commit: no rank may exchange the one for the other."""
    ranks = world(make_rank, 2)
    shm.announce(0, 1, table(5))
    channels(ranks)
    digests = [r.ack_digest for r in shm.comm(0).ranks]
    offer_raw(shm, 1, table(9))
    channels(ranks)
    assert [r.ack_digest for r in shm.comm(0).ranks] == digests
    assert shm.commit(0, 1) is Commit.NOT_ACKNOWLEDGED
    assert channels(ranks) == [0, 0]


def test_a_table_that_is_garbage_is_never_acknowledged(
    shm: ShmFile, make_rank: MakeRank, log: Any
) -> None:
    (rank,) = world(make_rank, 1, log=log)
    rank.collective()
    shm.announce(0, 1, table(5))
    shm.raw["comms"]["bank"]["entries"]["algo"][0, 0] = 77
    assert rank.collective()[1] == 0
    assert shm.commit(0, 1) is Commit.NOT_ACKNOWLEDGED
    assert log.reasons == [Reason.BAD_DIGEST]


def test_a_gate_that_is_garbage_keeps_what_was_in_force(
    shm: ShmFile, make_rank: MakeRank, log: Any
) -> None:
    ranks = world(make_rank, 2, log=log)
    put_in_force(shm, ranks, 1, table(5))
    channels(ranks)
    shm.raw["comms"]["gate"][0, 0] = (12345 << 40) | 7
    assert channels(ranks) == [5, 5]
    assert Reason.UNKNOWN_EPOCH in log.reasons


def test_captured_graphs_freeze_the_agreement(shm: ShmFile, make_rank: MakeRank) -> None:
    ranks = world(make_rank, 2)
    put_in_force(shm, ranks, 1, table(5))
    shm.announce(0, 2, table(6))
    channels(ranks)
    ranks[1].api_call(captured=True)
    assert shm.commit(0, 2) is Commit.FROZEN
    assert channels(ranks) == [5, 5]
    shm.announce(0, 3, table(7))
    assert channels(ranks) == [5, 5]
    assert [r.ack_epoch for r in shm.comm(0).ranks] == [2, 2]  # all of the process


def test_a_block_that_is_used_again_has_another_version(shm: ShmFile, make_rank: MakeRank) -> None:
    """A reader that looks twice must not take the old communicator's table for the new one's."""
    seen = set()
    for epoch in range(1, 4):
        ranks = world(make_rank, 2)
        put_in_force(shm, ranks, epoch, table(5)) if epoch == 1 else channels(ranks)
        version = int(shm.raw["comms"][0][0]["bank"]["version"])
        assert version % 2 == 0
        assert version not in seen
        seen.add(version)
        for rank in ranks:
            rank.finalize()


def test_a_rank_that_left_ends_the_communicator(shm: ShmFile, make_rank: MakeRank) -> None:
    ranks = world(make_rank, 2)
    put_in_force(shm, ranks, 1, table(5))
    channels(ranks)
    shm.announce(0, 2, table(6))
    channels(ranks)
    ranks[1].finalize()
    with pytest.raises(ShmError, match="not in use"):
        shm.commit(0, 2)
    assert channels(ranks[:1]) == [5]
    ranks[0].finalize()
    assert list(shm.comms()) == []


def test_an_id_that_comes_again_is_another_communicator(shm: ShmFile, make_rank: MakeRank) -> None:
    """commHash may repeat after ncclCommShrink."""
    first = world(make_rank, 2)
    put_in_force(shm, first, 1, table(5))
    second = world(make_rank, 2)
    assert channels(second) == [0, 0]
    assert channels(first) == [5, 5]
    assert [c.state for c in shm.comms()] == [CommState.FULL, CommState.FULL]
    first[0].finalize()
    third = world(make_rank, 2)  # does not fill the place that became free
    assert channels(third) == [0, 0]
    assert channels(first[1:]) == [5]
    smaller = world(make_rank, 1)
    assert channels(smaller) == [0]


def test_a_rank_without_a_file_keeps_everybody_out(
    shm: ShmFile, make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGSTEP_JOB", "absent")
    lonely = make_rank(3, 2, 1)
    lonely.finalize()
    monkeypatch.delenv("RINGSTEP_JOB")
    present = make_rank(3, 2, 0)
    present.collective()
    shm.announce(0, 1, table(5))
    present.collective()
    assert shm.commit(0, 1) is Commit.NOT_ACKNOWLEDGED


@pytest.mark.parametrize("tuner", [5, 6])
def test_the_static_table_is_for_all_or_for_none(
    shm: ShmFile, make_rank: MakeRank, tuner: int
) -> None:
    """Without a profiler there is no clock; the first question settles it once."""
    shm.write_static(table(5))
    ranks = [make_rank(3, 3, 0, tuner=tuner, profiler=None) for _ in range(2)]
    assert [r.get_coll_info(AR)[1] for r in ranks] == [0, 0]  # the third one is not here
    ranks.append(make_rank(3, 3, 0, tuner=tuner, profiler=None))
    assert [r.get_coll_info(AR)[1] for r in ranks] == [0, 0, 0]
    assert shm.comm(0).once is Once.OFF
    others = [make_rank(4, 3, 0, tuner=tuner, profiler=None) for _ in range(3)]
    assert [r.get_coll_info(AR)[1] for r in others] == [5, 5, 5]


def test_a_static_table_that_changed_between_ranks(
    shm: ShmFile, make_rank: MakeRank, log: Any
) -> None:
    shm.write_static(table(5))
    one = make_rank(3, 2, 0)
    shm.write_static(table(6))
    two = make_rank(3, 2, 1, log=log)
    assert channels([one, two]) == [0, 0]
    assert log.reasons == [Reason.STATIC_DIFFERS]


def test_the_launchers_word_for_several_nodes(
    shm: ShmFile, make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, log: Any
) -> None:
    digest = shm.write_static(table(5))
    monkeypatch.setenv("RINGSTEP_STATIC_DIGEST", f"{digest:x}")
    rank = make_rank(3, 16, 9, n_nodes=8, profiler=None, tuner=3)
    assert rank.get_coll_info(AR)[1] == 5
    monkeypatch.setenv("RINGSTEP_STATIC_DIGEST", f"{digest ^ 1:x}")
    other = make_rank(3, 16, 9, n_nodes=8, profiler=None, tuner=3, log=log)
    assert other.get_coll_info(AR)[1] == 0
    assert Reason.STATIC_DIFFERS in log.reasons


def test_fences_switch_where_the_program_says(shm: ShmFile, make_rank: MakeRank) -> None:
    """Several nodes have no memory in common: the job's own collective carries the outcome."""
    ranks = world(make_rank, 2, n_nodes=2)
    shm.set_scope(0, Scope.FENCED)
    channels(ranks)
    shm.announce(0, 1, table(5))
    assert channels(ranks) == [0, 0]
    assert shm.commit(0, 1) is Commit.FENCED
    members = [shm.fence_member(0, rank) for rank in range(2)]
    proposals = [m.propose() for m in members]
    assert proposals[0] == proposals[1]
    shm.announce(0, 2, table(6))
    assert channels(ranks) == [0, 0]  # held: nothing new is taken over during the exchange
    for member in members:
        member.settle(agreed=True)
    assert channels(ranks) == [5, 5]
    assert channels(ranks) == [5, 5]
    first, second = (m.propose() for m in members)
    assert first == second
    members[0].settle(agreed=False)
    members[1].settle(agreed=False)
    assert channels(ranks) == [5, 5]
    with pytest.raises(ShmError, match="first epoch"):
        shm.set_scope(0, Scope.NODE)


def fenced_world(shm: ShmFile, make_rank: MakeRank) -> tuple[list[Rank], list[FenceMember]]:
    """Two ranks that hold epoch 1, not in force yet."""
    ranks = world(make_rank, 2, n_nodes=2)
    shm.set_scope(0, Scope.FENCED)
    channels(ranks)
    shm.announce(0, 1, table(5))
    channels(ranks)
    return ranks, [shm.fence_member(0, rank) for rank in range(2)]


def fence(members: list[FenceMember]) -> bool:
    """What the application does between two collectives."""
    agreed = len({member.propose() for member in members}) == 1
    for member in members:
        member.settle(agreed)
    return agreed


@pytest.mark.parametrize("how", ["refused", "half written"])
def test_a_fence_does_not_count_a_table_that_a_rank_has_let_go(
    shm: ShmFile, make_rank: MakeRank, how: str
) -> None:
    """One rank looked at the next offer already and could not take it; the other one did not."""
    ranks, members = fenced_world(shm, make_rank)
    bad = table(6)
    if how == "refused":
        bad.set(Collective.BROADCAST, range(64), Decision(Algo.RING, Proto.LL, 4))  # never seen
    shm.announce(0, 2, bad)
    if how == "half written":
        shm.raw["comms"]["bank"]["version"][0, 0] += 1
    ranks[0].get_coll_info(AR)
    fence(members)
    assert len(set(channels(ranks))) == 1
    assert len(set(channels(ranks))) == 1


def test_two_fences_in_a_row_switch_at_the_first(shm: ShmFile, make_rank: MakeRank) -> None:
    ranks, members = fenced_world(shm, make_rank)
    assert fence(members)
    proposals = {member.propose() for member in members}
    assert channels(ranks) == [5, 5]  # the second one's exchange runs under the first one's outcome
    assert len(proposals) == 1
    for member in members:
        member.settle(agreed=False)
    assert channels(ranks) == [5, 5]


def test_a_static_table_stays_until_the_first_fence(shm: ShmFile, make_rank: MakeRank) -> None:
    shm.write_static(table(3))
    ranks = world(make_rank, 2, n_nodes=2)
    shm.set_scope(0, Scope.FENCED)
    assert channels(ranks) == channels(ranks) == [3, 3]
    shm.announce(0, 1, table(5))
    assert channels(ranks) == channels(ranks) == [3, 3]
    assert fence([shm.fence_member(0, rank) for rank in range(2)])
    assert channels(ranks) == channels(ranks) == [5, 5]


def test_fences_with_a_rank_that_knows_less(shm: ShmFile, make_rank: MakeRank) -> None:
    ranks = world(make_rank, 2, n_nodes=2)
    shm.set_scope(0, Scope.FENCED)
    channels(ranks)
    shm.announce(0, 1, table(5))
    channels(ranks[:1])
    members = [shm.fence_member(0, rank) for rank in range(2)]
    proposals = [m.propose() for m in members]
    assert proposals[0] != proposals[1]
    for member in members:
        member.settle(agreed=False)
    assert channels(ranks) == [0, 0]


def test_a_fence_is_for_the_rank_itself(shm: ShmFile, make_rank: MakeRank) -> None:
    world(make_rank, 1)
    shm.raw["comms"]["ranks"]["pid"][0, 0, 0] = 1
    with pytest.raises(ShmError, match="belongs to process 1"):
        shm.fence_member(0, 0)
    with pytest.raises(ShmError, match="not attached"):
        shm.fence_member(0, 4)


def test_reads_while_the_owner_writes(shm: ShmFile, make_rank: MakeRank) -> None:
    """Whatever moment the plugin looks at, it takes a whole table or none."""
    (rank,) = world(make_rank, 1)
    rank.collective()
    bank = shm.raw["comms"]["bank"][0, 0:1]
    for epoch in range(1, 40):
        shm.announce(0, epoch, table(1 + epoch % 60))
        version = int(bank["version"][0])
        bank["version"] = version + 1  # begins to write ...
        bank["entries"]["n_channels"] = 99
        before = shm.comm(0).ranks[0].ack_epoch
        rank.collective()
        assert shm.comm(0).ranks[0].ack_epoch == before
        bank["entries"]["n_channels"][:, AR] = 1 + epoch % 60
        bank["entries"]["n_channels"][:, :AR] = 0
        bank["version"] = version + 2  # ... and ends
        rank.collective()
        assert shm.comm(0).ranks[0].ack_epoch == epoch
        assert shm.commit(0, epoch) is Commit.DONE
        assert rank.collective()[1] == 1 + epoch % 60


def test_a_missing_event_freezes_the_agreement(shm: ShmFile, make_rank: MakeRank, log: Any) -> None:
    """NCCL counts launches per function too: a gap says that this rank's own count is short."""
    ranks = world(make_rank, 2, log=log)
    put_in_force(shm, ranks, 1, table(5))
    shm.announce(0, 2, table(6))
    channels(ranks)
    ranks[0].seq[AR] += 1
    assert channels(ranks) == [5, 5]
    assert shm.commit(0, 2) is Commit.FROZEN
    assert log.reasons == [Reason.NO_CLOCK]


def test_sixty_four_ranks_on_a_node_and_one_more(shm: ShmFile, make_rank: MakeRank) -> None:
    full = world(make_rank, 64)
    put_in_force(shm, full, 1, table(5))
    assert channels(full) == [5] * 64
    for rank in full:
        rank.finalize()
    crowd = world(make_rank, 65)  # one finds no place, so nothing is ever committed
    shm.announce(0, 2, table(6))
    channels(crowd)
    assert shm.commit(0, 2) is Commit.NOT_ACKNOWLEDGED
    assert channels(crowd) == [0] * 65
