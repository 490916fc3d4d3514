"""The detector's network in plain numpy: 15 inputs, LSTM of 128, head 128-256-128-1.

One step per collective; what it remembers of a key is kept by the caller (:class:`Memory`).
Equal to the PyTorch network it was trained as, within 1e-5.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ringstep.hostlib.dynamic.features import EMBEDDING, HIDDEN, Vector
from ringstep.hostlib.dynamic.sprt import LOGIT_LIMIT, RuleName
from ringstep.hostlib.dynamic.weights import Weights
from ringstep.hostlib.shm_layout import Collective


class Memory:
    """Hidden and cell state of one key, from zero."""

    __slots__ = ("cell", "hidden")

    def __init__(self) -> None:
        self.hidden: Vector = np.zeros(HIDDEN, np.float32)
        self.cell: Vector = np.zeros(HIDDEN, np.float32)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)), without overflow at any x."""
    return 0.5 + 0.5 * np.tanh(0.5 * x)


class Detector:
    """Says how likely it is that the contention seen now is sustained."""

    def __init__(self, weights: Weights) -> None:
        if weights.kind != "detector":
            raise ValueError(f"weights of a {weights.kind}, not of a detector")
        t = weights.tensors
        w_ih = t["lstm.weight_ih"]
        n = w_ih.shape[1] - EMBEDDING
        # One matrix for what comes in and what is remembered; the embedding's part is a constant
        # per collective and sits in the bias.
        self._w = np.ascontiguousarray(np.concatenate([w_ih[:, :n], t["lstm.weight_hh"]], axis=1))
        self._bias = [
            np.ascontiguousarray(t["lstm.bias"] + w_ih[:, n:] @ t["embedding"][collective])
            for collective in Collective
        ]
        self._head = [(t[f"head.{i}.weight"], t[f"head.{i}.bias"]) for i in range(3)]
        self._n = n
        self._x = np.zeros(n + HIDDEN, np.float32)
        self.prior = float(weights.params.get("prior", 0.5))
        """Share of contended calls among those it was trained on."""
        self.contended = bool(weights.params.get("contended", 1.0))
        """Trained to say whether a call is slowed down; False: whether that will last."""
        self.temper = float(weights.params.get("temper", 1.0))
        """Factor that makes its logits a likelihood ratio per call (see :mod:`.sprt`)."""

    @property
    def rule(self) -> RuleName:
        """The rule of :mod:`.sprt` that fits what it was trained to say."""
        return "sequence" if self.contended else "wald"

    def step(self, scalars: Vector, collective: Collective, memory: Memory) -> float:
        """Take one call, change ``memory``, return the logit of P(sustained)."""
        self._x[: self._n] = scalars
        self._x[self._n :] = memory.hidden
        gates = self._w @ self._x + self._bias[collective]
        # PyTorch's order: in, forget, cell, out.
        h = HIDDEN
        opened = sigmoid(gates)
        memory.cell = opened[h : 2 * h] * memory.cell + opened[:h] * np.tanh(gates[2 * h : 3 * h])
        memory.hidden = opened[3 * h :] * np.tanh(memory.cell)
        z = memory.hidden
        for weight, bias in self._head[:2]:
            z = np.maximum(weight @ z + bias, 0)
        weight, bias = self._head[2]
        return min(max(float((weight @ z + bias)[0]), -LOGIT_LIMIT), LOGIT_LIMIT)
