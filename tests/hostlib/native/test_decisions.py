"""What getCollInfo and getChunkSize do with a decision, in every ABI."""

from __future__ import annotations

import locale
import math
from collections.abc import Callable
from ctypes import CFUNCTYPE, byref, c_int, c_size_t, c_uint64, c_void_p, cast
from typing import Any

import pytest

from ringstep.hostlib.native.caller import IGNORE, Costs, Plugin, Rank
from ringstep.hostlib.shm import Decision, DecisionTable, Reason, ShmFile
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

AR = Collective.ALL_REDUCE
ALL = range(64)
MakeRank = Callable[..., Rank]
TUNERS = pytest.mark.parametrize("tuner", [3, 4, 5, 6])


def decide(shm: ShmFile, algo: Algo, proto: Proto, collective: Collective = AR, **rest: int) -> int:
    table = DecisionTable()
    table.set(collective, ALL, Decision(algo, proto, **rest))
    return shm.write_static(table)


def untouched(costs: Costs, before: float = 10.0) -> bool:
    return all(c == before for c in costs.block)


@TUNERS
def test_choice_is_one_small_positive_cost(
    shm: ShmFile, make_rank: MakeRank, tuner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = decide(shm, Algo.TREE, Proto.LL128, n_channels=5)
    monkeypatch.setenv("RINGSTEP_STATIC_DIGEST", f"{digest:x}")
    rank = make_rank(1, 1, 0, tuner=tuner, profiler=None)
    costs, channels = rank.get_coll_info(AR)
    assert costs.chosen() == (Algo.TREE, Proto.LL128)
    assert channels == 5
    assert 0 < costs[Algo.TREE, Proto.LL128] < 1e-5
    costs[Algo.TREE, Proto.LL128] = 10.0
    assert untouched(costs)


@TUNERS
def test_without_a_file_nothing_is_touched(make_rank: MakeRank, tuner: int) -> None:
    rank = make_rank(1, 1, 0, tuner=tuner)
    costs, channels = rank.get_coll_info(AR, n_channels=17)
    assert untouched(costs)
    assert channels == 17


def test_bypass_leaves_n_channels_alone(shm: ShmFile, make_rank: MakeRank) -> None:
    """rccl #1985: a miss must not become one channel."""
    decide(shm, Algo.RING, Proto.LL, Collective.BROADCAST, n_channels=3)
    rank = make_rank(1, 1, 0)
    assert rank.get_coll_info(AR, n_channels=0)[1] == 0


def test_a_decision_without_channels_keeps_nccls(shm: ShmFile, make_rank: MakeRank) -> None:
    """rccl #1985: 0 says "keep"; it is not written either."""
    decide(shm, Algo.RING, Proto.LL)
    rank = make_rank(1, 1, 0)
    costs, channels = rank.get_coll_info(AR, n_channels=11)
    assert costs.chosen() == (Algo.RING, Proto.LL)
    assert channels == 11


@pytest.mark.parametrize(("wanted", "limit", "given"), [(200, None, 64), (64, None, 64),
                                                        (33, "16", 16), (1, "16", 1),
                                                        (9, "0", 9), (9, "many", 9)])  # fmt: skip
def test_channels_are_clamped(
    shm: ShmFile, make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, log: Any, wanted: int,
    limit: str | None, given: int,
) -> None:  # fmt: skip
    """rccl #1541, rocm-systems #11651: a number above 127 turned negative inside of NCCL."""
    if limit is not None:
        monkeypatch.setenv("RINGSTEP_MAX_CHANNELS", limit)
    table = DecisionTable()
    table.set(AR, ALL, Decision(Algo.RING, Proto.LL))
    table.entries["n_channels"][AR] = wanted
    shm.write_static(table)
    rank = make_rank(1, 1, 0, log=log)
    assert rank.get_coll_info(AR)[1] == given
    assert (Reason.CHANNELS_CLAMPED in log.reasons) == (given != wanted)


@pytest.mark.parametrize("bad", [IGNORE, -5.0, math.nan, math.inf])
def test_an_entry_that_nccl_excluded_is_never_chosen(
    shm: ShmFile, make_rank: MakeRank, log: Any, bad: float
) -> None:
    """nccl #1661, aws-ofi-nccl #982: NCCL_ALGO or the topology win; said once, not per call."""
    decide(shm, Algo.TREE, Proto.LL, n_channels=4)
    rank = make_rank(1, 1, 0, log=log)
    for _ in range(5):
        costs = Costs()
        costs[Algo.TREE, Proto.LL] = bad
        answer, channels = rank.get_coll_info(AR, costs=costs)
        left = answer[Algo.TREE, Proto.LL]
        assert left == bad or (math.isnan(left) and math.isnan(bad))
        answer[Algo.TREE, Proto.LL] = 10.0
        assert untouched(answer)
        assert channels == 0
    assert log.reasons == [Reason.ENTRY_IGNORED]


def test_a_table_that_is_all_ignore_stays_so(shm: ShmFile, make_rank: MakeRank) -> None:
    decide(shm, Algo.RING, Proto.SIMPLE)
    costs, _ = make_rank(1, 1, 0).get_coll_info(AR, costs=Costs(IGNORE))
    assert untouched(costs, IGNORE)
    assert costs.chosen() is None


def test_the_only_usable_entry_survives(shm: ShmFile, make_rank: MakeRank) -> None:
    decide(shm, Algo.TREE, Proto.LL)
    costs = Costs(IGNORE)
    costs[Algo.RING, Proto.SIMPLE] = 42.0
    answer, _ = make_rank(1, 1, 0).get_coll_info(AR, costs=costs)
    assert answer.chosen() == (Algo.RING, Proto.SIMPLE)
    assert answer[Algo.RING, Proto.SIMPLE] == 42.0


@pytest.mark.parametrize("num_algo", [1, 2, 6, 7, 8, 20])
@pytest.mark.parametrize("num_proto", [1, 2, 3, 4])
def test_the_table_is_one_block_of_the_size_passed(
    shm: ShmFile, make_rank: MakeRank, num_algo: int, num_proto: int
) -> None:
    """The argument is typed float** and is float[numAlgo][numProto]: indexing by rows crashes."""
    decide(shm, Algo.RING, Proto.LL128)
    costs, _ = make_rank(1, 1, 0).get_coll_info(AR, costs=Costs(10.0, num_algo, num_proto))
    if num_algo > Algo.RING and num_proto > Proto.LL128:
        assert costs.chosen() == (Algo.RING, Proto.LL128)
    else:
        assert untouched(costs)


@pytest.mark.parametrize(
    ("num_algo", "num_proto"), [(0, 3), (7, 0), (-1, 3), (7, -1), (1 << 30, 3)]
)
def test_senseless_table_sizes_are_bypassed(
    shm: ShmFile, make_rank: MakeRank, num_algo: int, num_proto: int
) -> None:
    decide(shm, Algo.RING, Proto.LL)
    costs = Costs()
    costs.num_algo, costs.num_proto = num_algo, num_proto
    answer, _ = make_rank(1, 1, 0).get_coll_info(AR, costs=costs)
    assert untouched(answer)


@pytest.mark.parametrize("collective", [c for c in Collective if c is not AR])
def test_tree_is_for_all_reduce_only(
    shm: ShmFile, make_rank: MakeRank, log: Any, collective: Collective
) -> None:
    table = DecisionTable()
    table.set(collective, ALL, Decision(Algo.RING, Proto.LL))
    with pytest.raises(ValueError, match="ALL_REDUCE only"):
        table.set(collective, ALL, Decision(Algo.TREE, Proto.LL))
    table.entries["algo"][collective] = Algo.TREE  # what a broken writer might do
    shm.write_static(table)
    costs, _ = make_rank(1, 1, 0, log=log).get_coll_info(collective)
    assert untouched(costs)
    assert log.reasons == [Reason.NOT_FOR_COLLECTIVE]


@pytest.mark.parametrize("field", ["algo", "proto", "flags", "reserved"])
@pytest.mark.parametrize("value", [-1, 7, 100])
def test_garbage_in_an_entry_is_bypassed(
    shm: ShmFile, make_rank: MakeRank, field: str, value: int
) -> None:
    table = DecisionTable()
    table.set(AR, ALL, Decision(Algo.RING, Proto.LL))
    table.entries[field][AR] = value % 256 if field in ("flags", "reserved") else value
    shm.write_static(table)
    costs, channels = make_rank(1, 1, 0).get_coll_info(AR)
    assert untouched(costs)
    assert channels == 0


@pytest.mark.parametrize("collective", [-1, 5, 6, 14, 255, 1 << 30, -(1 << 31)])
def test_unknown_collectives_are_bypassed(
    shm: ShmFile, make_rank: MakeRank, collective: int
) -> None:
    table = DecisionTable()
    for known in Collective:
        table.set(known, ALL, Decision(Algo.RING, Proto.LL))
    shm.write_static(table)
    assert untouched(make_rank(1, 1, 0).get_coll_info(collective)[0])


@pytest.mark.parametrize("n_bytes", [0, 1, (1 << 32) - 1, 1 << 32, 5 << 32, (1 << 64) - 1])
def test_sizes_have_no_ceiling(shm: ShmFile, make_rank: MakeRank, n_bytes: int) -> None:
    """The example tuner cuts sizes at 4 GiB."""
    decide(shm, Algo.RING, Proto.LL)
    assert make_rank(1, 1, 0).get_coll_info(AR, n_bytes)[0].chosen() == (Algo.RING, Proto.LL)


@TUNERS
def test_null_everywhere_nccl_may_pass_it(
    shm: ShmFile, make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, tuner: int
) -> None:
    """nccl #1974: NULL contexts, tables, channels and log functions."""
    digest = decide(shm, Algo.RING, Proto.LL, n_channels=2)
    monkeypatch.setenv("RINGSTEP_STATIC_DIGEST", f"{digest:x}")
    rank = make_rank(1, 1, 0, tuner=tuner)
    tail = (None,) if tuner == 3 else (0, None)
    some = Costs()
    block = some.block
    for context in (rank.context, None):
        for table in (None, block):
            assert rank._info(context, AR, 1 << 20, 1, table, 7, 3, *tail) == 0
    assert some.chosen() == (Algo.RING, Proto.LL)
    if rank._chunk:
        assert rank._chunk(None, AR, 1, 0, 0, 1, None) == 0
        assert rank._chunk(rank.context, AR, 1, 1, 0, 1, None) == 0


@TUNERS
def test_init_takes_null_for_whatever_is_optional(
    shm: ShmFile, plugin: Plugin, monkeypatch: pytest.MonkeyPatch, tuner: int
) -> None:
    """No log function, no NVLink domains, no constants."""
    digest = decide(shm, Algo.RING, Proto.LL, n_channels=2)
    monkeypatch.setenv("RINGSTEP_STATIC_DIGEST", f"{digest:x}")
    struct = plugin.tuner(tuner)
    context = c_void_p()
    if tuner >= 5:
        init = CFUNCTYPE(
            c_int, c_void_p, c_uint64, c_size_t, c_size_t, c_void_p, c_void_p, c_void_p
        )
        assert init(struct.init)(byref(context), 1, 1, 1, None, None, None) == 0
    else:
        init = CFUNCTYPE(c_int, c_size_t, c_size_t, c_void_p, c_void_p)
        assert init(struct.init)(1, 1, None, byref(context)) == 0
    costs = Costs()
    channels = c_int(0)
    head = (context, int(AR), 1 << 20, 1, cast(costs.block, c_void_p), 7, 3)
    types = [c_void_p, c_int, c_size_t, c_int, c_void_p, c_int, c_int]
    if tuner == 3:
        ask = CFUNCTYPE(c_int, *types, c_void_p)(struct.get_coll_info)
        assert ask(*head, byref(channels)) == 0
    else:
        ask = CFUNCTYPE(c_int, *types, c_int, c_void_p)(struct.get_coll_info)
        assert ask(*head, 0, byref(channels)) == 0
    assert (costs.chosen(), channels.value) == ((Algo.RING, Proto.LL), 2)
    assert CFUNCTYPE(c_int, c_void_p)(struct.finalize)(context) == 0
    assert CFUNCTYPE(c_int, c_void_p)(struct.finalize)(None) == 0


def test_contexts_are_valid_until_finalize_and_harmless_after(
    shm: ShmFile, make_rank: MakeRank
) -> None:
    """nccl #1974, #1978, #1620: late calls and a second finalize."""
    decide(shm, Algo.RING, Proto.LL)
    rank = make_rank(1, 1, 0)
    assert rank.get_coll_info(AR)[0].chosen() == (Algo.RING, Proto.LL)
    rank.finalize()
    rank.finalize()
    assert untouched(rank.get_coll_info(AR)[0])
    assert rank.launch() is None
    later = make_rank(1, 1, 0)  # has the same place, not the same context
    assert untouched(rank.get_coll_info(AR)[0])
    assert later.get_coll_info(AR)[0].chosen() == (Algo.RING, Proto.LL)


def test_each_communicator_has_a_context_of_its_own(shm: ShmFile, make_rank: MakeRank) -> None:
    """aws-ofi-nccl #318, FlagCX PR #317: one shared context for all."""
    ranks = [make_rank(100 + i, 1, 0) for i in range(8)]
    table = DecisionTable()
    table.set(AR, ALL, Decision(Algo.TREE, Proto.LL, 3))
    for rank in ranks:
        rank.collective(AR)
    shm.announce(5, 1, table)
    ranks[5].collective(AR)
    assert shm.commit(5, 1).name == "DONE"
    chosen = [rank.collective(AR)[1] for rank in ranks]
    assert chosen == [0, 0, 0, 0, 0, 3, 0, 0]


def test_more_communicators_than_places_are_bypassed(shm: ShmFile, make_rank: MakeRank) -> None:
    decide(shm, Algo.RING, Proto.LL)
    ranks = [make_rank(1000 + i, 1, 0) for i in range(140)]
    chosen = [r.get_coll_info(AR)[0].chosen() == (Algo.RING, Proto.LL) for r in ranks]
    assert chosen == [True] * 64 + [False] * 76
    for rank in ranks:
        rank.finalize()
    assert list(shm.comms()) == []
    assert make_rank(1, 1, 0).get_coll_info(AR)[0].chosen() == (Algo.RING, Proto.LL)


def test_chunk_is_given_for_the_chosen_algorithm_alone(
    shm: ShmFile, make_rank: MakeRank, log: Any
) -> None:
    table = DecisionTable()
    table.set(AR, 20, Decision(Algo.RING, Proto.SIMPLE, chunk_bytes=512 << 10))
    table.set(AR, 21, Decision(Algo.RING, Proto.SIMPLE, chunk_bytes=1))
    table.set(AR, 22, Decision(Algo.RING, Proto.SIMPLE, chunk_bytes=0xFFFFFFFF))
    table.set(AR, 23, Decision(Algo.RING, Proto.SIMPLE, chunk_bytes=(64 << 10) + 77))
    shm.write_static(table)
    rank = make_rank(1, 1, 0, log=log)
    ring, simple = Algo.RING, Proto.SIMPLE
    assert rank.get_chunk_size(AR, 1 << 20, ring, simple, 4096) == 512 << 10
    assert rank.get_chunk_size(AR, 1 << 20, Algo.TREE, simple, 4096) == 4096
    assert rank.get_chunk_size(AR, 1 << 20, ring, Proto.LL, 4096) == 4096
    assert rank.get_chunk_size(AR, 1 << 10, ring, simple, 4096) == 4096
    assert rank.get_chunk_size(99, 1 << 20, ring, simple, 4096) == 4096
    assert Reason.CHUNK_CLAMPED not in log.reasons
    assert rank.get_chunk_size(AR, 1 << 21, ring, simple, 4096) == 16 << 10
    assert rank.get_chunk_size(AR, 1 << 22, ring, simple, 4096) == 64 << 20
    assert rank.get_chunk_size(AR, 1 << 23, ring, simple, 4096) == 64 << 10
    assert Reason.CHUNK_CLAMPED in log.reasons


def test_threads_are_reported_as_not_applied(shm: ShmFile, make_rank: MakeRank, log: Any) -> None:
    decide(shm, Algo.RING, Proto.LL, n_threads=256)
    rank = make_rank(1, 1, 0, log=log)
    assert rank.get_coll_info(AR)[0].chosen() == (Algo.RING, Proto.LL)
    assert log.reasons == [Reason.THREADS_NOT_SET]
    assert next(shm.comms()).ranks[0].reasons == {Reason.THREADS_NOT_SET}


def test_counters_in_shared_memory(shm: ShmFile, make_rank: MakeRank) -> None:
    decide(shm, Algo.RING, Proto.LL)
    rank = make_rank(1, 1, 0)
    for _ in range(3):
        rank.get_coll_info(AR)
    rank.get_coll_info(Collective.BROADCAST)
    view = next(shm.comms()).ranks[0]
    assert (view.applied, view.bypassed) == (3, 1)
    assert set(view.usable) == {AR, Collective.BROADCAST}


def test_a_decimal_comma_changes_nothing(shm: ShmFile, make_rank: MakeRank) -> None:
    before = locale.setlocale(locale.LC_ALL)
    for name in ("de_DE.UTF-8", "de_DE", "fr_FR.UTF-8"):
        try:
            locale.setlocale(locale.LC_ALL, name)
            break
        except locale.Error:
            continue
    else:
        pytest.skip("needs a locale with a decimal comma; `locale-gen de_DE.UTF-8`")
    try:
        digest = decide(shm, Algo.RING, Proto.LL)
        assert digest
        assert make_rank(1, 1, 0).get_coll_info(AR)[0].chosen() == (Algo.RING, Proto.LL)
    finally:
        locale.setlocale(locale.LC_ALL, before)
