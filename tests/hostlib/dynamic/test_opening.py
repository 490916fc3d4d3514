from __future__ import annotations

from itertools import permutations
from statistics import NormalDist

import numpy as np
import pytest

from ringstep.hostlib.dynamic.actions import Config
from ringstep.hostlib.dynamic.opening import FIRST_ROW, LEAST, Opening, looks_better, odds
from ringstep.hostlib.shm_layout import Algo, Proto

WIDE = Config(Algo.RING, Proto.SIMPLE, 8)
MIDDLE = Config(Algo.RING, Proto.SIMPLE, 4)
TREE = Config(Algo.TREE, Proto.SIMPLE, 8)


def play(
    times: dict[Config | None, float], proposals: list[Config], account: float = 1.5,
    noise: float = 0.03, seed: int = 0,
) -> Opening:  # fmt: skip
    rng = np.random.default_rng(seed)

    def call(config: Config | None) -> float:
        return times[config] * float(np.exp(rng.normal(0, noise)))

    opening = Opening([call(None) for _ in range(6)], proposals, 0.03, 0.9, account)
    while opening.config is not None:
        opening.observe(call(opening.config))
    return opening


@pytest.mark.parametrize(("m", "n"), [(2, 2), (3, 2), (2, 3)])
def test_odds_count_orders(m: int, n: int) -> None:
    orders = list(permutations(range(m + n)))
    for u in range(m * n + 1):
        few = sum(
            sum(one > other for one in order[m:] for other in order[:m]) <= u for order in orders
        )
        assert odds(m, n, u) == pytest.approx(few / len(orders))


def test_what_is_clearly_faster_wins_in_few_calls() -> None:
    opening = play({None: 100.0, WIDE: 60.0}, [WIDE])
    assert opening.champion == WIDE
    assert len(opening.calls[WIDE]) == LEAST
    assert opening.account == pytest.approx(1.5)


def test_what_is_clearly_slower_loses_in_few_calls() -> None:
    opening = play({None: 100.0, WIDE: 125.0}, [WIDE])
    assert opening.champion is None
    assert opening.lost == [WIDE]
    assert len(opening.calls[WIDE]) == LEAST


def test_what_is_alike_loses_after_its_row() -> None:
    opening = play({None: 100.0, WIDE: 101.0}, [WIDE])
    assert opening.champion is None
    assert len(opening.calls[WIDE]) <= FIRST_ROW


def test_what_looks_better_is_left_to_pairs() -> None:
    opening = play({None: 100.0, WIDE: 90.0}, [WIDE], noise=0.3, seed=1)
    assert opening.champion is None
    assert opening.undecided == WIDE


def test_the_better_of_two_winners_is_kept() -> None:
    opening = play({None: 100.0, WIDE: 70.0, TREE: 50.0}, [WIDE, TREE])
    assert opening.champion == TREE
    opening = play({None: 100.0, WIDE: 50.0, TREE: 70.0}, [WIDE, TREE])
    assert opening.champion == WIDE


def test_other_channels_are_tried_only_where_the_first_were_no_answer() -> None:
    opening = play({None: 100.0, WIDE: 60.0, MIDDLE: 40.0}, [WIDE, MIDDLE])
    assert opening.champion == WIDE
    assert MIDDLE not in opening.calls
    opening = play({None: 100.0, WIDE: 99.0, MIDDLE: 60.0}, [WIDE, MIDDLE])
    assert opening.champion == MIDDLE


def test_no_row_goes_on_without_an_account() -> None:
    opening = play({None: 100.0, WIDE: 190.0, TREE: 190.0}, [WIDE, TREE])
    assert sum(len(opening.calls.get(c, ())) for c in (WIDE, TREE)) <= 3
    assert opening.account >= 1.5 - 3 * 1.0
    assert play({None: 100.0, WIDE: 50.0}, [WIDE], account=0.5).champion is None


def test_what_loses_leaves_the_next_its_first_call() -> None:
    opening = play({None: 100.0, TREE: 130.0, WIDE: 70.0}, [TREE, WIDE], account=2.25)
    assert opening.lost == [TREE]
    assert opening.champion == WIDE


def test_with_little_money_a_single_call_that_is_slower_decides_nothing() -> None:
    opening = Opening([100.0] * 6, [WIDE, TREE], 0.03, 0.9, 1.0)
    opening.observe(101.0)
    assert opening.config == WIDE
    while opening.config == WIDE:
        opening.observe(60.0)
    assert opening.champion == WIDE


def test_other_channels_have_their_turn_after_what_lost() -> None:
    opening = play({None: 100.0, MIDDLE: 125.0, WIDE: 60.0}, [MIDDLE, WIDE], account=2.25)
    assert opening.lost == [MIDDLE]
    assert opening.champion == WIDE


def test_freaks_do_not_hide_a_better_mean() -> None:
    """Single calls take twice as long at random, as with timeouts: medians of few would mislead."""
    ones, others = [60.0, 120.0, 120.0, 60.0, 120.0], [100.0, 101.0, 100.0, 290.0, 210.0]
    assert looks_better(ones, others, 0.03)
    assert not looks_better(others, ones, 0.03)


def test_odds_of_many_calls_are_those_of_a_normal_distribution() -> None:
    for m, n in ((10, 12), (8, 16)):
        for u in (35, 45, 60):
            exact = odds(m, n, u)
            spread = (m * n * (m + n + 1) / 12) ** 0.5
            assert exact == pytest.approx(NormalDist(m * n / 2, spread).cdf(u + 0.5), rel=0.1)
    assert odds(12, 48, 150) == pytest.approx(NormalDist(288, 2928**0.5).cdf(150.5), rel=1e-6)


def test_a_champion_keeps_some_of_the_account() -> None:
    opening = play({None: 100.0, WIDE: 50.0, TREE: 190.0}, [WIDE, TREE])
    assert opening.champion == WIDE
    assert opening.account > 0


def test_a_shock_ends_a_row_and_is_booked_whole() -> None:
    opening = play({None: 100.0, WIDE: 1000.0, MIDDLE: 50.0}, [WIDE, MIDDLE], account=2.0)
    assert len(opening.calls[WIDE]) == 1
    assert opening.lost == [WIDE]
    assert MIDDLE not in opening.calls
    assert opening.account == pytest.approx(2.0 - 9.0, abs=1.0)


def test_calls_of_nccls_choice_that_come_late_count_as_before() -> None:
    opening = Opening([60.0] * 6, [WIDE], 0.03, 0.9, 1.5)
    for _ in range(8):
        opening.before(100.0)
    for _ in range(LEAST):
        opening.observe(70.0)
    opening.before(10.0)
    assert opening.champion == WIDE
    assert opening.account == pytest.approx(1.5)
