import pytest

from ringstep.hostlib.dynamic.actions import (
    LEGAL,
    N_ACTIONS,
    Config,
    Key,
    decode,
    encode,
    legal,
)
from ringstep.hostlib.shm_layout import Algo, Collective, Proto


def test_every_action_has_a_meaning_of_its_own() -> None:
    meanings = {decode(action) for action in range(N_ACTIONS)}
    assert len(meanings) == N_ACTIONS == 96
    assert [encode(decode(action)) for action in range(N_ACTIONS)] == list(range(N_ACTIONS))


@pytest.mark.parametrize(
    ("action", "meaning"),
    [
        (0, Config(Algo.TREE, Proto.LL, 1, 128)),
        (24, Config(Algo.TREE, Proto.SIMPLE, 1, 128)),
        (48, Config(Algo.RING, Proto.LL, 1, 128)),
        (95, Config(Algo.RING, Proto.SIMPLE, 8, 512)),
        (48 + 24 + 3 * 4 + 1, Config(Algo.RING, Proto.SIMPLE, 5, 256)),
    ],
)
def test_actions_are_in_the_papers_order(action: int, meaning: Config) -> None:
    assert decode(action) == meaning


def test_threads_not_asked_for_are_the_most() -> None:
    assert decode(encode(Config(Algo.RING, Proto.LL, 3))).n_threads == 512


@pytest.mark.parametrize(
    "config",
    [
        Config(Algo.NVLS, Proto.SIMPLE, 2),
        Config(Algo.RING, Proto.LL128, 2),
        Config(Algo.RING, Proto.LL, 9),
        Config(Algo.RING, Proto.LL, 0),
    ],
)
def test_what_is_outside_the_space_has_no_action(config: Config) -> None:
    with pytest.raises(ValueError, match=r"action space|channels"):
        encode(config)


@pytest.mark.parametrize("action", [-1, 96])
def test_there_are_no_other_actions(action: int) -> None:
    with pytest.raises(ValueError, match="0 to 95"):
        decode(action)


def test_without_threads_32_actions_are_left_for_all_reduce_and_16_for_others() -> None:
    assert LEGAL[Collective.ALL_REDUCE].sum() == 32
    for collective in set(Collective) - {Collective.ALL_REDUCE}:
        assert LEGAL[collective].sum() == 16
        assert all(decode(int(a)).algo is Algo.RING for a in LEGAL[collective].nonzero()[0])


def test_pairs_and_channels_that_a_rank_lacks_are_masked() -> None:
    mask = legal(Collective.ALL_REDUCE, {(Algo.TREE, Proto.SIMPLE)}, max_channels=3, threads=True)
    left = [decode(int(a)) for a in mask.nonzero()[0]]
    assert len(left) == 9
    assert {(c.algo, c.proto) for c in left} == {(Algo.TREE, Proto.SIMPLE)}
    assert max(c.n_channels for c in left) == 3
    assert not legal(Collective.ALL_GATHER, {(Algo.TREE, Proto.SIMPLE)}).any()


def test_keys_are_by_size_class() -> None:
    sizes = (1 << 20, (1 << 21) - 1)
    assert len({Key.of(4, 2, Collective.ALL_REDUCE, n) for n in sizes}) == 1
    assert Key.of(4, 2, Collective.ALL_REDUCE, 1 << 21).size_class == 21
