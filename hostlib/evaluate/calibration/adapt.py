"""Moves the selector's last layers to a cluster, and keeps them only where that helps.

The detector stays as it is: what it sees is relative to the baselines. Needs PyTorch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.detector import Detector
from ringstep.hostlib.dynamic.weights import Weights
from ringstep.hostlib.traces.fluid import FluidParams
from ringstep.hostlib.traces.format import Traces
from ringstep.hostlib.traces.generate import generate
from ringstep.hostlib.traces.recorded import generate_recorded
from ringstep.hostlib.traces.sweep import Sweep

TRACES: Final = 300
"""To learn from; a third as many to judge by."""
CALLS: Final = 48
EPOCHS: Final = 40
"""All of them: the regret stands still until a choice flips, which is no sign of an end."""
BATCH: Final = 64
"""Small: few transitions make few steps otherwise."""

Progress = Callable[[str, int, int, str], None]


def traces_of(
    sweeps: Sequence[Sweep], around: FluidParams | None, traces: int, seed: int
) -> Traces:
    """Return traces of a cluster: of contended sweeps where there are some, else of its model.

    Raises:
        ValueError: neither is there.
    """
    if sweeps:
        return generate_recorded(sweeps, seed, traces, CALLS)
    if around is None:
        raise ValueError("neither sweeps under load nor a fitted model: nothing to adapt to")
    return generate(seed, traces, CALLS, around)


def adapt_selector(
    selector: Weights,
    detector: Weights,
    sweeps: Sequence[Sweep],
    around: FluidParams | None,
    seed: int = 0,
    traces: int | None = None,
    progress: Progress | None = None,
) -> tuple[Weights, dict[str, Any]]:
    """Return the selector's weights for a cluster, and how it was before and is now.

    What it was stays where adapting did not lower the regret on traces that it was not adapted on.

    Args:
        selector: weights to begin with.
        detector: that goes with it.
        sweeps: with loads beside the clean one; empty: ``around`` is used.
        around: the fitted fluid model.
        seed: of everything.
        traces: to learn from, by default :data:`TRACES`.
        progress: as for training.

    Raises:
        ValueError: nothing to adapt to.
    """
    from ringstep.hostlib.learn.data import transitions
    from ringstep.hostlib.learn.selector import SelectorParams, train_selector
    from ringstep.hostlib.traces.mixed import oracle_of

    traces = traces or TRACES
    data = traces_of(sweeps, around, traces, seed)
    with tempfile.TemporaryDirectory(prefix="ringstep-adapt-") as folder:
        trained = train_selector(
            data, detector, Path(folder), oracle_of(data),
            SelectorParams(seed=seed, epochs=EPOCHS, batch=BATCH, patience=EPOCHS, reward="log"),
            progress=progress, start=selector,
        )  # fmt: skip
    fresh = traces_of(sweeps, around, max(traces // 3, 8), seed + 1)
    judged_on = transitions(fresh, Detector(detector), oracle_of(fresh), seed + 1)
    before, after = (_regret(w, judged_on) for w in (selector, trained.weights))
    better = after.get("regret_mean", np.inf) < before.get("regret_mean", np.inf)
    return trained.weights if better else selector, {
        "from": "sweeps" if sweeps else "the fitted fluid model",
        "traces": traces, "judged_on": len(judged_on), "before": before, "after": after,
        "kept": "adapted" if better else "as it was: adapting did not help",
    }  # fmt: skip


def _regret(weights: Weights, data: Any) -> dict[str, float]:
    import torch

    from ringstep.hostlib.learn.models import SelectorNet
    from ringstep.hostlib.learn.selector import regret

    net = SelectorNet()
    net.fill(weights.tensors)
    with torch.no_grad():
        q = net(torch.from_numpy(data.state.astype(np.float32))).mean(dim=0).numpy()
    return regret(q, data)
