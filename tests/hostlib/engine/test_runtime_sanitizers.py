"""The engine's lower half under AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_reference import LL, RING, SIMPLE, TREE, TYPES, Case, Coll, Op, check

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "RINGSTEP_LONG" not in os.environ,
        reason="two more builds of the engine, which test_enqueue_sanitizers and system/"
        "test_engine_sanitizers put under sanitizers as a whole; RINGSTEP_LONG=1",
    ),
]

ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:exitcode=99",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=98",
}


@pytest.fixture(params=["address,undefined", "thread"])
def driver(build_driver: Callable[[str], Path], request: pytest.FixtureRequest) -> Path:
    return build_driver(request.param)


def start(ranks: Any, n_ranks: int, *options: str) -> None:
    try:
        ranks.start(n_ranks, None, "timeout=120", *options, env=ENVIRONMENT)
    except AssertionError as error:
        if "unexpected memory mapping" in str(error):
            pytest.skip("ThreadSanitizer does not know this kernel's memory map; "
                        "`sysctl vm.mmap_rnd_bits=28` or a newer compiler")  # fmt: skip
        raise


def test_collectives(ranks: Any) -> None:
    start(ranks, 3)
    source = random.Random(6)
    rng = np.random.default_rng(6)
    cases = []
    for i in range(60):
        coll = source.choice(list(Coll))
        algo = source.choice((RING, TREE)) if coll is Coll.ALL_REDUCE else RING
        cases.append(Case(
            coll, source.choice((0, 1, 65, 5000, 100_001)), algo, (LL, SIMPLE)[i % 2],
            source.randint(1, 8), source.choice((0, 4096)), i % len(TYPES), source.choice(list(Op)),
            source.randrange(3), source.random() < 0.5,
        ))  # fmt: skip
    sent = [[case.data(rng, 3) for _ in range(3)] for case in cases]
    for case, inputs, outputs in zip(cases, sent, ranks.collect(cases, sent), strict=True):
        check(case, inputs, outputs)
    assert ranks.ask("exchange 100") == ["ok"] * 3
    assert ranks.ask("destroy") == ["ok"] * 3
    ranks.close()


def test_abort_from_another_thread(ranks: Any) -> None:
    start(ranks, 3)
    ranks.ask(Case(Coll.ALL_REDUCE, 100).line())
    ranks.tell("repeat 100000")
    ranks.ranks[1].tell("abort 300")
    ranks.tell(Case(Coll.ALL_REDUCE, 10_000, RING, SIMPLE, 2).line())
    for rank in ranks.ranks:
        assert rank.answer().startswith("error 4 ")
    ranks.ask("destroy")
    ranks.close()


def test_a_killed_rank(ranks: Any) -> None:
    start(ranks, 4)
    case = Case(Coll.ALL_REDUCE, 1_000_000, TREE, SIMPLE, 2)
    ranks.tell("repeat 100000")
    ranks.tell(case.line())
    ranks.ranks[2].kill()
    del ranks.ranks[2]
    for rank in ranks.ranks:
        assert rank.answer().startswith("error 2 ")
    ranks.ask("destroy")
    ranks.close()
