"""Weights on disk: safetensors with what they are, refused where anything does not fit.

Numbers are stored as float16 (both networks fit into 1 MB) and used as float32; training rounds
the same way before it reports, so that what was measured is what runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from ringstep.hostlib.dynamic.features import (
    DETECTOR_INPUTS,
    EMBEDDING,
    HIDDEN,
    SCHEMA,
    SELECTOR_INPUTS,
    Vector,
)

FORMAT: Final = "1"
ABOUT: Final = "ringstep"
"""The entry of the file's metadata that holds ours, as JSON."""
Kind = Literal["detector", "selector"]
HEADS: Final = 5
"""Value and advantage heads of the selector, for disagreement."""

DETECTOR_SHAPES: Final[Mapping[str, tuple[int, ...]]] = {
    "embedding": (5, EMBEDDING),
    "lstm.weight_ih": (4 * HIDDEN, DETECTOR_INPUTS),
    "lstm.weight_hh": (4 * HIDDEN, HIDDEN),
    "lstm.bias": (4 * HIDDEN,),
    "head.0.weight": (256, HIDDEN),
    "head.0.bias": (256,),
    "head.1.weight": (128, 256),
    "head.1.bias": (128,),
    "head.2.weight": (1, 128),
    "head.2.bias": (1,),
}
SELECTOR_SHAPES: Final[Mapping[str, tuple[int, ...]]] = {
    "trunk.0.weight": (256, SELECTOR_INPUTS),
    "trunk.0.bias": (256,),
    "trunk.1.weight": (128, 256),
    "trunk.1.bias": (128,),
    "value.0.weight": (HEADS, 64, 128),
    "value.0.bias": (HEADS, 64),
    "value.1.weight": (HEADS, 1, 64),
    "value.1.bias": (HEADS, 1),
    "advantage.0.weight": (HEADS, 64, 128),
    "advantage.0.bias": (HEADS, 64),
    "advantage.1.weight": (HEADS, 96, 64),
    "advantage.1.bias": (HEADS, 96),
}
SHAPES: Final[Mapping[Kind, Mapping[str, tuple[int, ...]]]] = {
    "detector": DETECTOR_SHAPES,
    "selector": SELECTOR_SHAPES,
}


class WeightsError(ValueError):
    """Weights that must not be used; the message says which file, what, and what would be right."""


@dataclass(frozen=True)
class Weights:
    """One network's numbers.

    Attributes:
        kind: which network.
        tensors: float32, by name.
        data: digest of the training data.
        params: numbers beside the tensors, such as the prior of the detector's labels.
    """

    kind: Kind
    tensors: Mapping[str, Vector]
    data: str
    params: Mapping[str, float]


def _digest(tensors: Mapping[str, np.ndarray[Any, Any]]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(np.ascontiguousarray(tensors[name]).tobytes())
    return found.hexdigest()


def rounded(tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Vector]:
    """Return tensors as they come back from a file."""
    return {name: t.astype(np.float16).astype(np.float32) for name, t in tensors.items()}


def _check(kind: Kind, tensors: Mapping[str, np.ndarray[Any, Any]], where: str) -> None:
    shapes = SHAPES[kind]
    if missing := sorted(set(shapes) - set(tensors)):
        raise WeightsError(f"{where}: {missing[0]!r} is missing from the {kind}")
    if extra := sorted(set(tensors) - set(shapes)):
        raise WeightsError(f"{where}: {extra[0]!r} is no tensor of the {kind}")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise WeightsError(f"{where}: {name} is {tensors[name].shape}, must be {shape}")
        if not np.isfinite(tensors[name]).all():
            raise WeightsError(f"{where}: {name} holds NaN, or values that float16 cannot hold")


def save(path: Path, weights: Weights) -> None:
    """Write weights; the file appears whole or not at all.

    Raises:
        WeightsError: tensors that are not the network's.
        OSError: it cannot be written.
    """
    with np.errstate(over="ignore"):
        halves = {
            n: np.asarray(t, np.float32).astype(np.float16) for n, t in weights.tensors.items()
        }
    _check(weights.kind, halves, str(path))
    about = {
        "format": FORMAT,
        "kind": weights.kind,
        "features": SCHEMA,
        "data": weights.data,
        "digest": _digest(halves),
        "params": dict(weights.params),
    }
    # One entry: the library writes several in any order, and the same training shall give the same
    # bytes.
    header = {ABOUT: json.dumps(about, sort_keys=True)}
    part = path.with_name(path.name + ".part")
    part.write_bytes(to_bytes(halves, header))
    part.replace(path)


def load(path: Path, kind: Kind) -> Weights:
    """Read weights of a network.

    Raises:
        WeightsError: absent, damaged, of another network, version or feature schema.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            halves = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path}: not a safetensors file, or damaged: {error}") from None
    try:
        about = json.loads(header.get(ABOUT, "{}"))
        params = {str(k): float(v) for k, v in about.get("params", {}).items()}
    except (ValueError, TypeError, AttributeError):
        raise WeightsError(f"{path}: damaged: its description cannot be read") from None
    for name, right in (("format", FORMAT), ("kind", kind), ("features", SCHEMA)):
        if about.get(name) != right:
            raise WeightsError(
                f"{path}: {name} is {about.get(name)!r}, this version uses {right!r}: "
                "train again or take the weights of this version"
            )
    _check(kind, halves, str(path))
    if about.get("digest") != _digest(halves):
        raise WeightsError(f"{path}: damaged: its numbers are not those that were written")
    tensors = {name: np.ascontiguousarray(t, np.float32) for name, t in halves.items()}
    return Weights(kind, tensors, about.get("data", ""), params)
