"""Training of the selector: dueling double DQN with conservative Q-learning, offline.

Loss (equation 5): Bellman error plus 0.001 times the conservative penalty, log-sum-exp of all
legal actions less the one in the data. Where the source of the traces knows what every action would
have taken, the Bellman error is over all legal actions; load does not depend on what we do, so the
value of what comes next is the same for all of them.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch

from ringstep.hostlib.dynamic.detector import Detector
from ringstep.hostlib.dynamic.weights import HEADS, Weights, save
from ringstep.hostlib.learn import checkpoint
from ringstep.hostlib.learn.data import Array, Oracle, Transitions, transitions
from ringstep.hostlib.learn.detector import HELD_OUT, Progress, Trained
from ringstep.hostlib.learn.models import SelectorNet, adapt, export
from ringstep.hostlib.traces.format import Traces

Reward = Literal["paper", "log"]
REWARDS: Final[tuple[Reward, ...]] = ("paper", "log")


@dataclass(frozen=True, slots=True)
class SelectorParams:
    """How the selector is trained.

    Attributes:
        seed: of initial weights, order and resampling.
        epochs: at most.
        batch: transitions per step.
        rate: Adam's.
        gamma: discount. Small: load does not depend on the configuration.
        conservative: weight of the penalty.
        soft: share of the online network that the target network takes per step.
        share: of the transitions that each pair of heads learns from.
        patience: epochs without improvement before it stops.
        reward: ``paper``: equation 3, 1 - L / L_zero-best; ``log``: -log2(L / L_zero-best), which
            orders actions alike and keeps small differences visible beside disasters.
    """

    seed: int = 0
    epochs: int = 30
    batch: int = 256
    rate: float = 1e-3
    gamma: float = 0.3
    conservative: float = 0.001
    soft: float = 0.005
    share: float = 0.7
    patience: int = 5
    reward: Reward = "paper"


def train_selector(
    traces: Traces,
    detector: Weights,
    out: Path,
    oracle: Oracle | None = None,
    params: SelectorParams | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    start: Weights | None = None,
) -> Trained:
    """Train and write ``selector.safetensors`` and a checkpoint into ``out``.

    With ``start``, for example to adapt to a cluster, only the last layers move from there.

    Raises:
        ValueError: no trace has sustained contention; CheckpointError: ``resume`` from another
            training.
    """
    p = params or SelectorParams()
    checkpoint.prepare(p.seed)
    data = transitions(traces, Detector(detector), oracle, p.seed)
    order = np.random.default_rng([p.seed, 5]).permutation(len(data))
    held = max(int(len(data) * HELD_OUT), 1)
    if held >= len(data):
        raise ValueError(f"{len(data)} transitions: too few to hold some out")
    test, train = data.take(order[:held]), data.take(order[held:])
    boot = torch.from_numpy(
        (np.random.default_rng([p.seed, 6]).random((len(train), HEADS)) < p.share)
        .astype(np.float32)
    )  # fmt: skip

    out.mkdir(parents=True, exist_ok=True)
    path = out / "selector.ckpt"
    about = {
        **asdict(p), "data": traces.digest, "detector": detector.data,
        "torch": torch.__version__.split("+")[0],
    }  # fmt: skip
    about.pop("epochs")
    about["start"] = "" if start is None else start.data
    net, target = SelectorNet(), SelectorNet()
    moving = list(net.parameters()) if start is None else adapt(net, start)
    target.load_state_dict(net.state_dict())
    adam = torch.optim.Adam(moving, lr=p.rate)
    best, best_score, since, first = copy.deepcopy(net.state_dict()), float("inf"), 0, 0
    curve: list[list[float]] = []
    if resume:
        found = checkpoint.load(path, about)
        net.load_state_dict(found["net"])
        target.load_state_dict(found["target"])
        adam.load_state_dict(found["adam"])
        best, best_score, since = found["best"], found["best_score"], found["since"]
        first, curve = found["epoch"], found["curve"]
    steps = -(-len(train) // p.batch)
    for epoch in range(first, p.epochs):
        if since >= p.patience:
            break
        shuffled = np.random.default_rng([p.seed, 7, epoch]).permutation(len(train))
        total = 0.0
        for step in range(steps):
            which = shuffled[step * p.batch :][: p.batch]
            total += _learn(net, target, adam, train.take(which), boot[which], p)
            if progress is not None:
                progress("selector", epoch * steps + step + 1, p.epochs * steps,
                         f"epoch {epoch + 1}")  # fmt: skip
        score = regret(_values(net, test), test)["regret_mean"] if oracle else total / steps
        curve.append([total / steps, score])
        if score < best_score - 1e-5:
            best, best_score, since = copy.deepcopy(net.state_dict()), score, 0
        else:
            since += 1
        checkpoint.save(
            path, about, net=net.state_dict(), target=target.state_dict(), adam=adam.state_dict(),
            best=best, best_score=best_score, since=since, epoch=epoch + 1, curve=curve,
        )  # fmt: skip
    net.load_state_dict(best)
    net.fill(export(net, "", {}).tensors)
    weights = export(net, traces.digest, {"gamma": p.gamma})
    save(out / "selector.safetensors", weights)
    metrics = {"curve": curve, "transitions": len(data), "held_out": held}
    return Trained(weights, {**metrics, **regret(_values(net, test), test)})


def _learn(
    net: SelectorNet, target: SelectorNet, adam: Any, batch: Transitions, boot: Any,
    p: SelectorParams,
) -> float:  # fmt: skip
    state = torch.from_numpy(batch.state.astype(np.float32))
    after = torch.from_numpy(batch.next_state.astype(np.float32))
    mask = torch.from_numpy(batch.mask)
    reward = torch.from_numpy(batch.reward)
    if p.reward == "log":
        reward = -torch.log2(1 - reward)
    known = ~torch.isnan(reward) & mask
    action = torch.from_numpy(batch.action.astype(np.int64))
    with torch.no_grad():
        # Double DQN (equation 4), head by head: one network chooses, the other one values.
        choice = net(after).masked_fill(~mask, -torch.inf).argmax(dim=2, keepdim=True)
        later = target(after).gather(2, choice)
        going = torch.from_numpy(1 - batch.done.astype(np.float32))[None, :, None]
        y = torch.nan_to_num(reward)[None] + p.gamma * going * later
    q = net(state)
    weight = boot.T[:, :, None] * known[None]
    huber = torch.nn.functional.huber_loss(q, y, reduction="none")
    loss = (huber * weight).sum() / weight.sum().clamp(min=1)
    taken = q.gather(2, action[None, :, None].expand(len(q), -1, 1))[..., 0]
    penalty = torch.logsumexp(q.masked_fill(~mask, -torch.inf), dim=2) - taken
    loss = loss + p.conservative * penalty.mean()
    adam.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    adam.step()
    with torch.no_grad():
        for old, new in zip(target.parameters(), net.parameters(), strict=True):
            old.lerp_(new, p.soft)
    return float(loss.detach())


def _values(net: SelectorNet, data: Transitions) -> Array:
    with torch.no_grad():
        found = net(torch.from_numpy(data.state.astype(np.float32))).mean(dim=0)
    return found.numpy()  # type: ignore[no-any-return]


def regret(q: Array, data: Transitions) -> dict[str, float]:
    """Return how far the best-valued action is from the oracle's, and what share of it is gained.

    All in times: (chosen - best) / best, mean and median; ``gain_share`` is what NCCL's choice
    loses against the oracle and the selector wins back; ``worse_than_nccl`` the share of states
    in which the choice takes over 3 % longer than NCCL's. Over those states where all is known.
    """
    known = ~np.isnan(data.reward) & data.mask
    full = (known == data.mask).all(axis=1) & (data.held >= 0)
    if not full.any():
        return {}
    reward = np.where(known, data.reward, -np.inf)[full]
    rows = np.arange(len(reward))
    chosen = reward[rows, np.where(data.mask, q, -np.inf)[full].argmax(axis=1)]
    best, usual = reward.max(axis=1), reward[rows, data.held[full].astype(np.int64)]
    # Rewards are 1 - time / clean best: times relative to that.
    away = (best - chosen) / (1 - best)
    return {
        "regret_mean": float(away.mean()),
        "regret_p50": float(np.median(away)),
        "regret_p95": float(np.percentile(away, 95)),
        "gain_share": float((chosen - usual).sum() / max((best - usual).sum(), 1e-9)),
        "worse_than_nccl": float(((usual - chosen) / (1 - usual) > 0.03).mean()),
    }
