import pytest

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.fluid import (
    CLEAN,
    FluidParams,
    Load,
    best,
    latency_us,
    nccls_choice,
    scaled,
)

P = FluidParams()
BIG, SMALL = 256 << 20, 16 << 10
KEY = Key.of(8, 8, Collective.ALL_REDUCE, BIG)


def time(config: Config, load: Load = CLEAN, n_bytes: int = BIG, key: Key = KEY) -> float:
    return latency_us(key, n_bytes, config, load, P)


def ring(channels: int, proto: Proto = Proto.SIMPLE) -> Config:
    return Config(Algo.RING, proto, channels)


def test_a_large_ring_takes_what_its_link_takes() -> None:
    floor = 2 * 7 / 8 * BIG / P.link_rate
    assert floor <= time(ring(2)) <= 1.1 * floor


@pytest.mark.parametrize("level", [0.3, 0.5, 0.7, 0.8, 0.9])
def test_more_load_is_never_faster(level: float) -> None:
    for channels in (1, 2, 4, 8):
        for config in (ring(channels), Config(Algo.TREE, Proto.SIMPLE, channels)):
            assert time(config, Load(level)) >= time(config, Load(level - 0.1))


def test_more_channels_take_a_larger_share_of_a_contended_link() -> None:
    load = Load(0.8, flows=4)
    assert time(ring(8), load) < 0.6 * time(ring(2), load)
    assert time(ring(8)) > 0.95 * time(ring(2))


def test_a_background_that_wants_little_leaves_the_rest() -> None:
    load = Load(0.3, flows=1000)
    assert time(ring(1), load) == pytest.approx(time(ring(1)) / 0.7, rel=0.05)


def test_ll_is_for_small_messages() -> None:
    key = Key.of(8, 8, Collective.ALL_REDUCE, SMALL)
    assert time(ring(1, Proto.LL), n_bytes=SMALL, key=key) < time(ring(1), n_bytes=SMALL, key=key)
    assert time(ring(2, Proto.LL)) > 1.5 * time(ring(2))


def test_trees_are_for_many_nodes_and_small_messages() -> None:
    key = Key.of(64, 64, Collective.ALL_REDUCE, SMALL)
    tree = Config(Algo.TREE, Proto.LL, 1)
    assert time(tree, n_bytes=SMALL, key=key) < time(ring(1, Proto.LL), n_bytes=SMALL, key=key)


def test_there_are_trees_for_all_reduce_only() -> None:
    key = Key.of(8, 8, Collective.ALL_GATHER, BIG)
    with pytest.raises(ValueError, match="ALL_REDUCE only"):
        time(Config(Algo.TREE, Proto.SIMPLE, 2), key=key)
    assert nccls_choice(key, BIG, P).algo is Algo.RING


def test_a_slow_host_slows_what_is_bound_by_it() -> None:
    slow = Load(slow_host=4.0)
    assert time(ring(2), slow) > 1.3 * time(ring(2))


def test_one_node_knows_no_network() -> None:
    key = Key.of(8, 1, Collective.ALL_REDUCE, BIG)
    assert time(ring(2), Load(0.9), key=key) == time(ring(2), key=key)


def test_the_best_is_no_worse_than_any() -> None:
    for level in (0.0, 0.5, 0.9):
        _, least = best(KEY, BIG, Load(level), P)
        assert least <= min(time(ring(n), Load(level)) for n in range(1, 9)) + 1e-9
        assert least <= time(nccls_choice(KEY, BIG, P), Load(level))


def test_parameters_are_above_zero() -> None:
    with pytest.raises(ValueError, match="link_rate"):
        FluidParams(link_rate=0.0)
    with pytest.raises(ValueError, match="hop_ll"):
        scaled(P, hop_ll=float("nan"))
