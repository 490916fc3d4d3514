import numpy as np
import pytest

from ringstep.hostlib.dynamic.actions import LEGAL
from ringstep.hostlib.dynamic.features import HIDDEN, SELECTOR_INPUTS, SELECTOR_SCALARS
from ringstep.hostlib.dynamic.selector import Selector
from ringstep.hostlib.dynamic.weights import SELECTOR_SHAPES, Weights
from ringstep.hostlib.evaluate.attribution import GROUPS, attribute
from ringstep.hostlib.shm_layout import Collective


def blind_but_for(*inputs: int) -> Selector:
    rng = np.random.default_rng(0)
    tensors = {
        name: (0.3 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in SELECTOR_SHAPES.items()
    }
    first = tensors["trunk.0.weight"]
    kept = first[:, list(inputs)].copy()
    first[:] = 0
    first[:, list(inputs)] = 3 * kept
    return Selector(Weights("selector", tensors, "", {}))


def test_what_the_network_looks_at_is_found() -> None:
    rng = np.random.default_rng(1)
    states = rng.standard_normal((24, SELECTOR_INPUTS)).astype(np.float32)
    mask = np.repeat(LEGAL[Collective.ALL_REDUCE][None], 24, axis=0)
    size = [HIDDEN + SELECTOR_SCALARS.index(name) for name in ("bytes", "clean")]
    found = attribute(blind_but_for(*size), states, mask)
    assert set(found) == set(GROUPS)
    assert found["size"]["flipped"] > 0.2
    assert found["size"]["gradient"] > 0
    for name in set(GROUPS) - {"size"}:
        assert found[name] == {"flipped": 0.0, "displaced": 0.0, "gradient": 0.0}


def test_many_states_at_once_have_the_values_of_each() -> None:
    states = np.random.default_rng(2).standard_normal((9, SELECTOR_INPUTS)).astype(np.float32)
    selector = blind_but_for(*range(SELECTOR_INPUTS))
    each = [selector.values(state[:HIDDEN], state[HIDDEN:]) for state in states]
    assert np.array_equal(selector.values_of_many(states), np.stack(each))


def test_one_state_cannot_be_permuted() -> None:
    with pytest.raises(ValueError, match="two or more"):
        attribute(blind_but_for(0), np.zeros((1, SELECTOR_INPUTS)), np.ones((1, 96), np.bool_))
