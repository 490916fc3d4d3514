"""Training of the detector: binary cross-entropy on the oracle's labels, classes balanced.

Truncated backpropagation through time: traces are cut into pieces, the state goes from piece to
piece without its gradient. Stops early on traces that are not trained on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from ringstep.hostlib.dynamic.policy import WARM_UP
from ringstep.hostlib.dynamic.sprt import Sprt, State, TestParams
from ringstep.hostlib.dynamic.weights import Weights, save
from ringstep.hostlib.learn import checkpoint
from ringstep.hostlib.learn.data import Array, Sequences, Target, prior, sequences
from ringstep.hostlib.learn.models import DetectorNet, adapt, export
from ringstep.hostlib.traces.format import Traces
from ringstep.hostlib.traces.scenarios import Label

HELD_OUT: Final = 0.15
"""Share of the traces that is not trained on."""
TEMPERS: Final = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15)

Progress = Callable[[str, int, int, str], None]
"""What is done, step, steps, note."""


@dataclass(frozen=True, slots=True)
class DetectorParams:
    """How the detector is trained.

    Attributes:
        target: ``contended`` (is this call slowed down, for the rule ``sequence``) or
            ``sustained`` (will it last, the paper's labels, for the rules ``wald`` and ``paper``).
        seed: of initial weights, order and split.
        epochs: at most.
        batch: traces per step.
        piece: calls through which a gradient goes.
        rate: Adam's.
        patience: epochs without improvement before it stops.
    """

    target: Target = "sustained"
    seed: int = 0
    epochs: int = 12
    batch: int = 128
    piece: int = 32
    rate: float = 2e-3
    patience: int = 3


@dataclass(frozen=True)
class Trained:
    """What a training came to: weights, and figures on the held-out traces."""

    weights: Weights
    metrics: dict[str, Any]


def train_detector(
    traces: Traces,
    out: Path,
    params: DetectorParams | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    start: Weights | None = None,
) -> Trained:
    """Train and write ``detector.safetensors`` and a checkpoint into ``out``.

    The same data, parameters and PyTorch give the same weights, resumed or not. With ``start``, for
    example to adapt to a cluster, only the last layer moves from there.

    Raises:
        ValueError: traces without labels; CheckpointError: ``resume`` from another training.
    """
    p = params or DetectorParams()
    checkpoint.prepare(p.seed)
    data = sequences(traces, p.target, p.seed)
    order = np.random.default_rng([p.seed, 3]).permutation(len(data))
    held = max(int(len(data) * HELD_OUT), 1)
    if held >= len(data):
        raise ValueError(f"{len(data)} traces: too few to hold some out")
    test, train = data.take(order[:held]), data.take(order[held:])

    out.mkdir(parents=True, exist_ok=True)
    path = out / "detector.ckpt"
    about = {**asdict(p), "data": traces.digest, "torch": torch.__version__.split("+")[0]}
    about.pop("epochs")
    about["start"] = "" if start is None else start.data
    net = DetectorNet()
    moving = list(net.parameters()) if start is None else adapt(net, start)
    adam = torch.optim.Adam(moving, lr=p.rate)
    best, best_loss, since, first = copy.deepcopy(net.state_dict()), float("inf"), 0, 0
    curve: list[list[float]] = []
    if resume:
        found = checkpoint.load(path, about)
        net.load_state_dict(found["net"])
        adam.load_state_dict(found["adam"])
        best, best_loss, since = found["best"], found["best_loss"], found["since"]
        first, curve = found["epoch"], found["curve"]
    steps = -(-len(train) // p.batch)
    for epoch in range(first, p.epochs):
        if since >= p.patience:
            break
        shuffled = np.random.default_rng([p.seed, 4, epoch]).permutation(len(train))
        total = 0.0
        for step in range(steps):
            total += _learn(net, adam, train.take(shuffled[step * p.batch :][: p.batch]), p.piece)
            if progress is not None:
                progress("detector", epoch * steps + step + 1, p.epochs * steps,
                         f"epoch {epoch + 1}")  # fmt: skip
        loss = float(_loss(net, test))
        curve.append([total / steps, loss])
        if loss < best_loss - 1e-4:
            best, best_loss, since = copy.deepcopy(net.state_dict()), loss, 0
        else:
            since += 1
        checkpoint.save(
            path, about, net=net.state_dict(), adam=adam.state_dict(), best=best,
            best_loss=best_loss, since=since, epoch=epoch + 1, curve=curve,
        )  # fmt: skip
    net.load_state_dict(best)
    # Figures are those of the numbers that are shipped.
    net.fill(export(net, "", {}).tensors)
    logits = _logits(net, test)
    share = prior(data)
    temper = fit_temper(logits, test, share) if p.target == "contended" else 1.0
    weights = export(
        net, traces.digest,
        {"prior": share, "temper": temper, "contended": float(p.target == "contended")},
    )  # fmt: skip
    save(out / "detector.safetensors", weights)
    return Trained(weights, {"loss": best_loss, "curve": curve, "temper": temper, "prior": share,
                             "held_out_traces": held, **scores(logits, test)})  # fmt: skip


def _tensors(data: Sequences) -> tuple[torch.Tensor, ...]:
    return (
        torch.from_numpy(data.scalars), torch.from_numpy(data.collective.astype(np.int64)),
        torch.from_numpy(data.target), torch.from_numpy(data.weight),
    )  # fmt: skip


def _learn(net: DetectorNet, adam: Any, batch: Sequences, piece: int) -> float:
    x, collective, target, weight = _tensors(batch)
    state, total, pieces = None, 0.0, 0
    for at in range(0, x.shape[1], piece):
        w = weight[:, at : at + piece]
        logits, _, last = net(x[:, at : at + piece], collective, state)
        state = (last[0].detach(), last[1].detach())
        if not w.any():
            continue
        loss = (
            binary_cross_entropy_with_logits(logits, target[:, at : at + piece], reduction="none")
            * w
        ).sum() / w.sum()
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        total, pieces = total + float(loss.detach()), pieces + 1
    return total / max(pieces, 1)


def _logits(net: DetectorNet, data: Sequences) -> Array:
    x, collective, _, _ = _tensors(data)
    with torch.no_grad():
        parts = [net(x[i : i + 256], collective[i : i + 256])[0] for i in range(0, len(x), 256)]
    return torch.cat(parts).numpy()  # type: ignore[no-any-return]


def _loss(net: DetectorNet, data: Sequences) -> Any:
    logits = torch.from_numpy(_logits(net, data))
    _, _, target, weight = _tensors(data)
    losses = binary_cross_entropy_with_logits(logits, target, reduction="none")
    return (losses * weight).sum() / weight.sum()


def scores(logits: Array, data: Sequences) -> dict[str, float]:
    """Return figures by call: share right of each class, and the area under the ROC curve."""
    known = data.weight > 0
    positive = logits > 0
    found = {
        f"{label.name.lower()}_right": float((positive[m] == (data.target[m] > 0.5)).mean())
        for label in (Label.STEADY, Label.SPIKE, Label.SUSTAINED)
        if (m := known & (data.label == label)).any()
    }
    truth, score = data.target[known] > 0.5, logits[known]
    if truth.any() and not truth.all():
        ranks = np.empty(len(score))
        ranks[np.argsort(score, kind="stable")] = np.arange(1, len(score) + 1)
        n = int(truth.sum())
        found["auc"] = float((ranks[truth].sum() - n * (n + 1) / 2) / (n * (len(truth) - n)))
    return found


def fit_temper(logits: Array, data: Sequences, share: float) -> float:
    """Return the factor on the logits that finds contention as early as any with fewest alarms.

    Answers of neighbouring calls are not independent, as Wald's test takes them to be; a factor
    below 1 makes up for it. Alarms are counted on held-out traces without sustained contention,
    delays on those whose contention the baseline does not hide.
    """
    loud = (data.label == Label.SUSTAINED) | (data.label == Label.SLOW_HOST)
    quiet = ~loud.any(axis=1)
    sustained = (data.label == Label.SUSTAINED) & (data.weight > 0)
    counts = (data.label >= 0) & ~data.decided  # the policy asks its test about no other call
    found = []
    for temper in TEMPERS:
        alarms, delays = 0, []
        for i in range(len(data)):
            onset = int(np.argmax(sustained[i])) if sustained[i].any() else 0
            if not quiet[i] and onset < WARM_UP:
                continue
            test, calls, before = Sprt("sequence", TestParams(), share, temper), 0, False
            for at in np.flatnonzero(counts[i]).tolist():
                state = test.update(float(logits[i, at]), float(data.rho[i, at]))
                if quiet[i]:
                    alarms += state is State.SUSTAINED and not before
                    before = state is State.SUSTAINED
                    continue
                calls += at >= onset
                if calls and state is State.SUSTAINED:
                    delays.append(calls)
                    break
        found.append((float(np.median(delays)) if delays else 0.0, alarms, -temper))
    return -min(found)[2]
