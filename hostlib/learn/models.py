"""The two networks in PyTorch, and their weights as the run time keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ringstep.hostlib.dynamic.features import DETECTOR_INPUTS, EMBEDDING, HIDDEN, SELECTOR_INPUTS
from ringstep.hostlib.dynamic.weights import HEADS, Kind, Weights, rounded

State = tuple[Tensor, Tensor]


class DetectorNet(nn.Module):  # type: ignore[misc]
    """15 inputs, LSTM of 128, head 128-256-128-1: a logit per call."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, EMBEDDING)
        self.lstm = nn.LSTM(DETECTOR_INPUTS, HIDDEN, batch_first=True)
        self.head = nn.Sequential(
            nn.Linear(HIDDEN, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(
        self, scalars: Tensor, collective: Tensor, state: State | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """Return logits (batch, calls), hidden states (batch, calls, 128) and the last state.

        Args:
            scalars: (batch, calls, 11).
            collective: (batch,), the same for all calls of a trace.
            state: from the calls before; None at the start.
        """
        emb = self.embedding(collective)[:, None].expand(-1, scalars.shape[1], -1)
        out, last = self.lstm(torch.cat([scalars, emb], dim=2), state)
        return self.head(out)[..., 0], out, last

    def tensors(self) -> dict[str, Any]:
        """Return the weights by their names on disk."""
        lstm, head = self.lstm, self.head
        named = {
            "embedding": self.embedding.weight,
            "lstm.weight_ih": lstm.weight_ih_l0,
            "lstm.weight_hh": lstm.weight_hh_l0,
            "lstm.bias": lstm.bias_ih_l0 + lstm.bias_hh_l0,
        }
        for i, layer in enumerate((head[0], head[2], head[4])):
            named |= {f"head.{i}.weight": layer.weight, f"head.{i}.bias": layer.bias}
        return _numpy(named)

    def fill(self, tensors: Mapping[str, Any]) -> None:
        """Take weights from disk."""
        lstm, head = self.lstm, self.head
        with torch.no_grad():
            lstm.bias_hh_l0.zero_()
            for target, name in (
                (self.embedding.weight, "embedding"),
                (lstm.weight_ih_l0, "lstm.weight_ih"),
                (lstm.weight_hh_l0, "lstm.weight_hh"),
                (lstm.bias_ih_l0, "lstm.bias"),
            ):
                target.copy_(torch.from_numpy(tensors[name]))
            for i, layer in enumerate((head[0], head[2], head[4])):
                layer.weight.copy_(torch.from_numpy(tensors[f"head.{i}.weight"]))
                layer.bias.copy_(torch.from_numpy(tensors[f"head.{i}.bias"]))


class SelectorNet(nn.Module):  # type: ignore[misc]
    """153 inputs, trunk 256-128, five pairs of heads: value 64-1 and advantage 64-96."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(SELECTOR_INPUTS, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
        )

        def head(out: int) -> nn.ModuleList:
            return nn.ModuleList(
                nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, out))
                for _ in range(HEADS)
            )

        self.value, self.advantage = head(1), head(96)

    def forward(self, state: Tensor) -> Tensor:
        """Return Q (heads, batch, actions) of states (batch, 153)."""
        z = self.trunk(state)
        found = []
        for value, advantage in zip(self.value, self.advantage, strict=True):
            a = advantage(z)
            found.append(value(z) + a - a.mean(dim=1, keepdim=True))
        return torch.stack(found)

    def tensors(self) -> dict[str, Any]:
        """Return the weights by their names on disk."""
        named: dict[str, Tensor] = {}
        for i, layer in enumerate((self.trunk[0], self.trunk[2])):
            named |= {f"trunk.{i}.weight": layer.weight, f"trunk.{i}.bias": layer.bias}
        for name, heads in (("value", self.value), ("advantage", self.advantage)):
            for i, at in enumerate((0, 2)):
                named[f"{name}.{i}.weight"] = torch.stack([h[at].weight for h in heads])
                named[f"{name}.{i}.bias"] = torch.stack([h[at].bias for h in heads])
        return _numpy(named)

    def fill(self, tensors: Mapping[str, Any]) -> None:
        """Take weights from disk."""
        with torch.no_grad():
            for i, layer in enumerate((self.trunk[0], self.trunk[2])):
                layer.weight.copy_(torch.from_numpy(tensors[f"trunk.{i}.weight"]))
                layer.bias.copy_(torch.from_numpy(tensors[f"trunk.{i}.bias"]))
            for name, heads in (("value", self.value), ("advantage", self.advantage)):
                for i, at in enumerate((0, 2)):
                    for j, h in enumerate(heads):
                        h[at].weight.copy_(torch.from_numpy(tensors[f"{name}.{i}.weight"][j]))
                        h[at].bias.copy_(torch.from_numpy(tensors[f"{name}.{i}.bias"][j]))


def adapt(net: DetectorNet | SelectorNet, weights: Weights) -> list[Tensor]:
    """Fill a network with weights; return the parameters of its last layers, the only ones to move.

    Raises:
        ValueError: weights of the other network.
    """
    if (weights.kind == "detector") is not isinstance(net, DetectorNet):
        raise ValueError(f"weights of a {weights.kind} to adapt the other network")
    net.fill(weights.tensors)
    for each in net.parameters():
        each.requires_grad_(False)
    last = [net.head[4]] if isinstance(net, DetectorNet) else [
        head[2] for head in (*net.value, *net.advantage)
    ]  # fmt: skip
    found = [each for layer in last for each in layer.parameters()]
    for each in found:
        each.requires_grad_(True)
    return found


def _numpy(named: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: t.detach().cpu().numpy().astype(np.float32).copy() for name, t in named.items()}


def export(net: DetectorNet | SelectorNet, data: str, params: Mapping[str, float]) -> Weights:
    """Return a network's weights, rounded as the file rounds them."""
    kind: Kind = "detector" if isinstance(net, DetectorNet) else "selector"
    return Weights(kind, rounded(net.tensors()), data, dict(params))
