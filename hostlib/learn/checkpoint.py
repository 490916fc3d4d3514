"""Checkpoints: training goes on where it stopped, on the same data and options or not at all."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


class CheckpointError(ValueError):
    """A checkpoint that does not belong to this training."""


def prepare(seed: int) -> None:
    """Make PyTorch deterministic, on one thread: others use the machine too."""
    with contextlib.suppress(RuntimeError):  # only before the first parallel work
        torch.set_num_interop_threads(1)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)


def save(path: Path, about: Mapping[str, Any], **state: Any) -> None:
    """Write a checkpoint whole or not at all; ``about`` is what a resumed training must share."""
    part = path.with_name(path.name + ".part")
    torch.save({"about": dict(about), **state}, part)
    part.replace(path)


def load(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Read a checkpoint.

    Raises:
        CheckpointError: absent, damaged, or of other data or options.
    """
    try:
        found = torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no checkpoint to resume") from None
    except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError, OSError) as error:
        raise CheckpointError(f"{path}: not a checkpoint, or damaged: {error}") from None
    if not isinstance(found, dict) or "about" not in found:
        raise CheckpointError(f"{path}: not a checkpoint of this program")
    for name, value in about.items():
        if found["about"].get(name) != value:
            raise CheckpointError(
                f"{path}: {name} was {found['about'].get(name)!r}, now it is {value!r}: "
                "resume with the same data and options, or start anew without --resume"
            )
    return dict(found)
