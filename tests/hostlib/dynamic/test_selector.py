import numpy as np
import pytest

from ringstep.hostlib.dynamic.actions import LEGAL, N_ACTIONS, Config, encode
from ringstep.hostlib.dynamic.selector import Selector, propose
from ringstep.hostlib.dynamic.weights import HEADS, Weights
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

MASK = LEGAL[Collective.ALL_REDUCE]
LEGAL_ONES = np.flatnonzero(MASK).tolist()
HELD, BEST, SECOND = LEGAL_ONES[3], LEGAL_ONES[20], LEGAL_ONES[7]


def values(better: float = 1.0) -> np.ndarray:  # type: ignore[type-arg]
    q = np.zeros((HEADS, N_ACTIONS), np.float32)
    q[:, BEST], q[:, SECOND] = better, better / 2
    return q


def test_the_best_legal_action_is_proposed_first() -> None:
    found = propose(values(), MASK, HELD, 2)
    assert [each.action for each in found] == [BEST, SECOND]
    assert found[0].gain == 1.0
    assert found[0].agreement == 1.0


def test_illegal_actions_are_never_proposed() -> None:
    q = values()
    q[:, ~MASK] = 100.0
    assert [each.action for each in propose(q, MASK, HELD, 2)] == [BEST, SECOND]


def test_nothing_legal_means_no_proposal() -> None:
    assert propose(values(), np.zeros(N_ACTIONS, np.bool_), HELD) == []


def test_heads_that_disagree_keep_what_is_in_force() -> None:
    q = values()
    q[:2, HELD] = 5.0
    assert propose(q, MASK, HELD) == []


def test_what_is_in_force_is_no_proposal() -> None:
    assert propose(values(), MASK, BEST) == []


def test_an_action_outside_the_space_can_be_replaced() -> None:
    assert [each.action for each in propose(values(), MASK, None)] == [BEST]


def test_dueling_heads_are_centred(selector_weights: Weights) -> None:
    q = Selector(selector_weights).values(np.ones(128, np.float32), np.ones(25, np.float32))
    assert q.shape == (HEADS, N_ACTIONS)
    assert np.isfinite(q).all()


def test_weights_of_the_other_network_are_refused(detector_weights: Weights) -> None:
    with pytest.raises(ValueError, match="not of a selector"):
        Selector(detector_weights)


def test_proposals_differ_in_channels_by_some_or_in_more_than_that() -> None:
    q = np.zeros((HEADS, N_ACTIONS), np.float32)
    wide, near, apart, tree = (
        encode(Config(algo, Proto.SIMPLE, n))
        for algo, n in ((Algo.RING, 8), (Algo.RING, 7), (Algo.RING, 4), (Algo.TREE, 8))
    )
    q[:, wide], q[:, near], q[:, tree], q[:, apart] = 4.0, 3.0, 2.5, 2.0
    held = encode(Config(Algo.RING, Proto.LL, 1))
    assert [each.action for each in propose(q, MASK, held, 3)] == [wide, apart, tree]
