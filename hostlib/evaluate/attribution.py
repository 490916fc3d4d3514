"""What the selector's choices hang on (DynamICCL, section 5.4): by permutation and by gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.features import HIDDEN, SELECTOR_INPUTS, SELECTOR_SCALARS
from ringstep.hostlib.dynamic.selector import Selector

Array = np.ndarray[Any, np.dtype[Any]]


def _at(*names: str) -> list[int]:
    return [HIDDEN + SELECTOR_SCALARS.index(name) for name in names]


GROUPS: Final[Mapping[str, list[int]]] = {
    "history": list(range(HIDDEN)),
    "contention": _at("direction", "magnitude", "confidence"),
    "topology": _at("ranks", "nodes"),
    "size": _at("bytes", "clean"),
    "collective": [
        HIDDEN + i for i, name in enumerate(SELECTOR_SCALARS)
        if name.startswith("is_") and name != "is_nccls"
    ],
    "configuration": _at("algo", "proto", "channels", "threads", "is_nccls"),
    "NCCL's choice": _at("nccl_algo", "nccl_proto", "nccl_channels"),
    "gpu": _at("gpu_busy", "gpu_memory", "gpu_power", "gpu_pcie", "gpu_present"),
}  # fmt: skip
assert sorted(i for group in GROUPS.values() for i in group) == list(range(SELECTOR_INPUTS))


def attribute(
    selector: Selector, states: Array, mask: Array, seed: int = 0, step: float = 1e-2
) -> dict[str, dict[str, float]]:
    """Return, by group of inputs, how much decisions and values depend on it.

    Args:
        selector: to look into.
        states: (n, 153), realistic ones.
        mask: (n, 96), legal actions.
        seed: of the permutations.
        step: of the difference quotients.

    Returns:
        ``flipped``: share of decisions that change when the group is permuted among the states;
        ``displaced``: mean change of the values then, as a share of their spread;
        ``gradient``: mean norm of the values' gradient by the group over the square root of its
        size.

    Raises:
        ValueError: fewer than two states.
    """
    n = len(states)
    if n < 2:
        raise ValueError(f"{n} states: two or more can be permuted")
    states = states.astype(np.float32)
    rng = np.random.default_rng([seed, 12])
    base = _values(selector, states)
    chosen = np.where(mask, base, -np.inf).argmax(axis=1)
    spread = float(base[mask].std()) or 1.0
    found = {}
    for name, group in GROUPS.items():
        mixed = states.copy()
        mixed[:, group] = states[rng.permutation(n)][:, group]
        values = _values(selector, mixed)
        moved = np.where(mask, values, -np.inf).argmax(axis=1)
        square = np.zeros(n)
        for i in group:
            shifted = states.copy()
            shifted[:, i] += step
            change = (_values(selector, shifted) - base) / step
            square += (np.where(mask, change, 0.0) ** 2).sum(axis=1) / mask.sum(axis=1)
        found[name] = {
            "flipped": float((moved != chosen).mean()),
            "displaced": float(np.abs(values - base)[mask].mean() / spread),
            "gradient": float(np.sqrt(square).mean() / np.sqrt(len(group))),
        }
    return found


def _values(selector: Selector, states: Array) -> Array:
    found: Array = selector.values_of_many(states).mean(axis=1)
    return found
