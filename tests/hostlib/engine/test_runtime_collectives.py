"""All collectives by numpy: algorithms, protocols, types, operations, sizes, numbers of ranks."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from engine_reference import LL, RING, SIMPLE, TREE, TYPES, Array, Case, Coll, Op, check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

COUNTS = (0, 1, 2, 3, 5, 7, 31, 64, 65, 1000, 1023, 4097, 20011)


def run(ranks: Any, cases: list[Case], seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    n = len(ranks.ranks)
    sent: list[list[Array]] = [[case.data(rng, n) for _ in range(n)] for case in cases]
    for case, inputs, outputs in zip(cases, sent, ranks.collect(cases, sent), strict=True):
        check(case, inputs, outputs)


def drawn(source: random.Random, n_ranks: int) -> Case:
    coll = source.choice(list(Coll))
    return Case(
        coll,
        source.choice(COUNTS),
        source.choice((RING, TREE)) if coll is Coll.ALL_REDUCE else RING,
        source.choice((LL, SIMPLE)),
        source.randint(1, 8),
        source.choice((0, 1000, 4096, 1 << 20)),
        source.randrange(len(TYPES)),
        source.choice(list(Op)),
        source.randrange(n_ranks),
        source.random() < 0.5,
    )


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4, 5, 7, 8, 16])
def test_collectives_match_numpy_whatever_they_are_made_of(ranks: Any, n_ranks: int) -> None:
    source = random.Random(n_ranks)
    ranks.start(n_ranks)
    run(ranks, [drawn(source, n_ranks) for _ in range(40)], n_ranks)
    ranks.close()


@pytest.mark.parametrize("algo", [RING, TREE])
@pytest.mark.parametrize("proto", [LL, SIMPLE])
def test_every_type_with_every_operation(ranks: Any, algo: int, proto: int) -> None:
    ranks.start(3)
    cases = [
        Case(Coll.ALL_REDUCE, 777, algo, proto, 2, 1024, kind, op)
        for kind, op in itertools.product(range(len(TYPES)), Op)
    ]
    run(ranks, cases)
    ranks.close()


@pytest.mark.parametrize("coll", list(Coll))
def test_every_type_with_every_collective_in_place_and_not(ranks: Any, coll: Coll) -> None:
    ranks.start(4)
    cases = [
        Case(coll, 1001, RING, proto, 3, 4096, kind, Op.SUM, kind % 4, in_place)
        for kind, proto, in_place in itertools.product(range(len(TYPES)), (LL, SIMPLE), (0, 1))
    ]
    run(ranks, cases)
    ranks.close()


@pytest.mark.parametrize("n_channels", range(1, 9))
def test_every_number_of_channels(ranks: Any, n_channels: int) -> None:
    ranks.start(3)
    protos = ((RING, LL), (RING, SIMPLE), (TREE, LL), (TREE, SIMPLE))
    counts = (1, n_channels * 16, n_channels * 16 + 1, 100_003)
    cases = [
        Case(Coll.ALL_REDUCE, count, algo, proto, n_channels)
        for (algo, proto), count in itertools.product(protos, counts)
    ]
    run(ranks, cases)
    ranks.close()


@pytest.mark.parametrize("chunk", [0, 1, 100, 16 << 10, 1 << 20, 1 << 30])
def test_every_size_of_chunk_down_to_one_that_is_less_than_an_element(
    ranks: Any, chunk: int
) -> None:
    ranks.start(4)
    cases = [
        Case(coll, 5003, algo, proto, 2, chunk, 8)
        for coll, algo, proto in (
            (Coll.ALL_REDUCE, RING, SIMPLE), (Coll.ALL_REDUCE, TREE, SIMPLE),
            (Coll.ALL_REDUCE, RING, LL), (Coll.ALL_REDUCE, TREE, LL),
            (Coll.BROADCAST, RING, SIMPLE), (Coll.REDUCE_SCATTER, RING, SIMPLE),
        )
    ]  # fmt: skip
    run(ranks, cases)
    ranks.close()


def test_large_buffers(ranks: Any) -> None:
    """More than what sockets hold, so that every link stalls and goes on."""
    ranks.start(3)
    n = (8 << 20) // 4 + 3
    cases = [
        Case(Coll.ALL_REDUCE, n, RING, SIMPLE, 2), Case(Coll.ALL_REDUCE, n, TREE, SIMPLE, 1),
        Case(Coll.ALL_REDUCE, n, RING, LL, 4), Case(Coll.ALL_REDUCE, n, TREE, LL, 1),
        Case(Coll.ALL_GATHER, n, RING, SIMPLE, 1), Case(Coll.REDUCE_SCATTER, n, RING, SIMPLE, 1),
        Case(Coll.REDUCE_SCATTER, n, RING, LL, 1), Case(Coll.BROADCAST, n, RING, SIMPLE, 3, root=2),
    ]  # fmt: skip
    run(ranks, cases)
    ranks.close()


def test_nan_in_one_rank_reaches_maximum_and_minimum_of_all(ranks: Any) -> None:
    ranks.start(3)
    for kind in (6, 7, 8):
        for op, position in itertools.product((Op.MAX, Op.MIN), range(3)):
            case = Case(Coll.ALL_REDUCE, 9, type=kind, op=op)
            sent = [np.full(9, rank, case.stored) for rank in range(3)]
            sent[position][4] = np.nan
            (got,) = ranks.collect([case], [sent])
            for found in got:
                assert np.flatnonzero(np.isnan(found)).tolist() == [4]
    ranks.close()


def test_float16_keeps_subnormals_infinities_and_rounds_to_even(ranks: Any) -> None:
    """Exact: with two ranks there is one addition, and numpy rounds it the same way."""
    ranks.start(2)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    other = np.random.default_rng(5).permutation(every)
    case = Case(Coll.ALL_REDUCE, 1 << 16, type=6)
    (got,) = ranks.collect([case], [[every, other]])
    with np.errstate(all="ignore"):
        expected = (every.astype(np.float32) + other.astype(np.float32)).astype(np.float16)
    assert np.array_equal(got[0], expected, equal_nan=True)
    ranks.close()


def test_reductions_of_this_host_and_of_any_other_agree(ranks: Any) -> None:
    """Ranks on hosts with other instruction sets have to get the same numbers."""
    ranks.start(1)
    assert ranks.ask("reductions") == ["ok"]
    ranks.close()


def test_groups_run_all_of_their_collectives(ranks: Any) -> None:
    ranks.start(4)
    cases = [Case(Coll.ALL_REDUCE, 100 + i, RING, (LL, SIMPLE)[i % 2], 1 + i % 3) for i in range(9)]
    rng = np.random.default_rng(1)
    sent = [[case.data(rng, 4) for _ in range(4)] for case in cases]
    results = ranks.collect(cases, sent, group=True)
    for case, inputs, outputs in zip(cases, sent, results, strict=True):
        check(case, inputs, outputs)
    ranks.close()


def test_runs_again_give_the_same_bits(ranks: Any) -> None:
    """The order of a reduction does not depend on what comes first."""
    ranks.start(5)
    rng = np.random.default_rng(2)
    for algo in (RING, TREE):
        case = Case(Coll.ALL_REDUCE, 30_001, algo, SIMPLE, 3)
        sent = [case.data(rng, 5) for _ in range(5)]
        results = {ranks.collect([case], [sent])[0][0].tobytes() for _ in range(5)}
        assert len(results) == 1
    ranks.close()


@pytest.fixture
def four(ranks: Any) -> Any:
    ranks.start(4)
    return ranks


@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(
    coll=st.sampled_from(Coll),
    count=st.integers(0, 3000),
    tree=st.booleans(),
    proto=st.sampled_from((LL, SIMPLE)),
    channels=st.integers(1, 8),
    chunk=st.integers(0, 5000),
    kind=st.integers(0, len(TYPES) - 1),
    op=st.sampled_from(Op),
    root=st.integers(0, 3),
    in_place=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_collective_after_any_other(
    four: Any, coll: Coll, count: int, tree: bool, proto: int, channels: int, chunk: int,
    kind: int, op: Op, root: int, in_place: bool, seed: int,
) -> None:  # fmt: skip
    algo = TREE if tree and coll is Coll.ALL_REDUCE else RING
    case = Case(coll, count, algo, proto, channels, chunk, kind, op, root, in_place)
    run(four, [case], seed)
