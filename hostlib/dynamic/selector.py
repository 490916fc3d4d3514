"""The selector's network in plain numpy: dueling, 153 inputs, 256-128, five pairs of heads.

Each pair of heads was trained on its own resampling of the data (bootstrapped DQN: Osband et al.,
NIPS 2016), so where the data does not decide they disagree. A proposal counts only if the heads
agree that it is better than what it would replace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ringstep.hostlib.dynamic.actions import Mask, decode
from ringstep.hostlib.dynamic.features import Vector
from ringstep.hostlib.dynamic.weights import Weights
from ringstep.hostlib.shm_layout import Algo, Proto

AGREEMENT: Final = 0.8
"""Share of the heads that must find a proposal better than what is in force."""


APART: Final = 3
"""Two proposals of one algorithm and protocol differ by as many channels at least."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An action to try.

    Attributes:
        action: index of the paper's.
        gain: what the heads expect of it over the action in force, in units of the reward.
        agreement: share of the heads that expect any.
    """

    action: int
    gain: float
    agreement: float


class Selector:
    """Values the 96 actions."""

    def __init__(self, weights: Weights) -> None:
        if weights.kind != "selector":
            raise ValueError(f"weights of a {weights.kind}, not of a selector")
        t = weights.tensors
        self._trunk = [(t[f"trunk.{i}.weight"], t[f"trunk.{i}.bias"]) for i in range(2)]
        v, a = t["value.0.weight"], t["advantage.0.weight"]
        self._heads = v.shape[0]
        self._first = np.ascontiguousarray(np.concatenate([v, a], axis=1).reshape(-1, v.shape[2]))
        self._first_bias = np.concatenate(
            [t["value.0.bias"], t["advantage.0.bias"]], axis=1
        ).reshape(-1)
        self._width = v.shape[1]
        self._value, self._value_bias = t["value.1.weight"], t["value.1.bias"]
        self._advantage, self._advantage_bias = t["advantage.1.weight"], t["advantage.1.bias"]

    def values(self, hidden: Vector, scalars: Vector) -> Vector:
        """Return Q, heads by actions, from the detector's memory and the 25 scalars."""
        return self.values_of_many(np.concatenate([hidden, scalars]))

    def values_of_many(self, states: Vector) -> Vector:
        """Return Q, states by heads by actions, of many states (n, 153), to the bit as for each.

        Matrix by vector for each state, as for one: a product of two matrices rounds otherwise.
        """
        z = states
        for weight, bias in self._trunk:
            z = np.maximum((weight @ z[..., None])[..., 0] + bias, 0)
        first = np.maximum((self._first @ z[..., None])[..., 0] + self._first_bias, 0)
        first = first.reshape(*z.shape[:-1], self._heads, -1, 1)
        value = (self._value @ first[..., : self._width, :])[..., 0] + self._value_bias
        advantage = (self._advantage @ first[..., self._width :, :])[..., 0] + self._advantage_bias
        q: Vector = value + advantage - advantage.mean(axis=-1, keepdims=True)
        return q


def propose(q: Vector, mask: Mask, in_force: int | None, count: int = 1) -> list[Proposal]:
    """Return the best legal actions that the heads agree on, best first; may be none.

    The first is the best of all, the second the best of the same algorithm and protocol with other
    channels, from the third on they are of others.

    Args:
        q: heads by actions.
        mask: legal actions.
        in_force: the action that would be replaced; None where it is outside the action space:
            then agreement is on the proposal being the best of its head within a hair.
        count: how many at most.
    """
    if not mask.any():
        return []
    if in_force is None:
        best = np.where(mask, q, -np.inf).max(axis=1, keepdims=True)
        spread = float(q[:, mask].std()) or 1.0
        gain = np.zeros(q.shape[1])
        agreement = (q - best > -0.25 * spread).mean(axis=0)
    else:
        margins = q - q[:, in_force, None]
        gain, agreement = margins.mean(axis=0), (margins > 0).mean(axis=0)
    agreed = mask & (agreement >= AGREEMENT)
    if in_force is not None:
        agreed[in_force] = False
    ranked = [
        Proposal(action, float(gain[action]), float(agreement[action]))
        for action in np.argsort(-q.mean(axis=0), kind="stable").tolist()
        if agreed[action]
    ]
    if not ranked:
        return []
    first = decode(ranked[0].action)
    by_pair: dict[tuple[Algo, Proto], Proposal] = {}
    others: list[Proposal] = []
    for each in ranked[1:]:
        config = decode(each.action)
        if (config.algo, config.proto) != (first.algo, first.proto):
            by_pair.setdefault((config.algo, config.proto), each)
        elif not others and abs(config.n_channels - first.n_channels) >= APART:
            others.append(each)
    return [ranked[0], *others, *by_pair.values()][:count]
