"""From traces to what the networks are trained on, computed as the run time computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np

from ringstep.hostlib.dynamic.actions import (
    LEGAL,
    N_ACTIONS,
    Config,
    Key,
    encode,
)
from ringstep.hostlib.dynamic.baseline import Baseline
from ringstep.hostlib.dynamic.detector import Detector, Memory, sigmoid
from ringstep.hostlib.dynamic.features import (
    DETECTOR_SCALARS,
    Trend,
    detector_scalars,
    log_rho,
    selector_scalars,
)
from ringstep.hostlib.dynamic.sample import GpuStats
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.format import Column, Traces
from ringstep.hostlib.traces.scenarios import Label

Array = np.ndarray[Any, np.dtype[Any]]
Target = Literal["contended", "sustained"]
TARGETS: Final[tuple[Target, ...]] = ("contended", "sustained")
HIDDEN_BASELINE: Final = 1.2
"""A baseline this far above the clean latency hides contention: such calls teach nothing."""


@dataclass(frozen=True)
class Sequences:
    """Traces as the detector sees them; calls that teach nothing have weight 0.

    Attributes:
        scalars: (traces, calls, 11).
        collective: (traces,).
        target: (traces, calls), 1 for contended.
        weight: (traces, calls).
        label: (traces, calls), the oracle's.
        rho: (traces, calls), log2.
        decided: (traces, calls), another configuration than NCCL's ran.
    """

    scalars: Array
    collective: Array
    target: Array
    weight: Array
    label: Array
    rho: Array
    decided: Array

    def __len__(self) -> int:
        return len(self.scalars)

    def take(self, which: Array) -> Sequences:
        """Return some of the traces."""
        return Sequences(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class View:
    """One trace as the policy meets it: rows from the first call with a baseline on."""

    key: Key
    first: int
    scalars: Array
    rho: Array
    baseline: Array
    configs: list[Config]
    gpu: list[GpuStats | None]


def view(trace: Mapping[str, Column], calibrated: bool) -> View | None:
    """Return a trace as features; None where no baseline is ever found.

    Args:
        trace: columns of one trace.
        calibrated: the baseline is known from the start, as ``clean_us`` says.
    """
    n = len(trace["call"])
    key = Key.of(
        int(trace["ranks"][0]), int(trace["nodes"][0]), Collective(int(trace["collective"][0])),
        int(trace["bytes"][0]),
    )  # fmt: skip
    clean = float(trace["clean_us"][0])
    baseline = Baseline(clean if calibrated and np.isfinite(clean) else None)
    rows, rhos, bases, configs, gpus = [], [], [], [], []
    first, before = n, None
    columns = [
        trace[name].tolist()
        for name in (
            "latency_us", "algo", "proto", "channels", "chunk_bytes", "decided", "gpu_busy",
            "gpu_memory", "gpu_power",
        )
    ]  # fmt: skip
    n_bytes = int(trace["bytes"][0])
    for i, (latency, algo, proto, channels, chunk, decided, busy, memory, power) in enumerate(
        zip(*columns, strict=True)
    ):
        config = Config(Algo(algo), Proto(proto), channels, 0, chunk)
        if i > 0 and not decided:
            baseline.add(latency)
        value = baseline.value
        changed, before = before is not None and before != config, config
        if value is None:
            continue
        first = min(first, i)
        rho = log_rho(latency, value)
        gpu = None if busy != busy else GpuStats(busy, memory, power)
        rows.append(detector_scalars(key, n_bytes, rho, config, changed, gpu))
        rhos.append(rho)
        bases.append(value)
        configs.append(config)
        gpus.append(gpu)
    if not rows:
        return None
    return View(key, first, np.stack(rows), np.array(rhos), np.array(bases), configs, gpus)


def sequences(traces: Traces, target: Target, seed: int) -> Sequences:
    """Return what the detector is trained on.

    Half of the traces, by ``seed``, have a calibrated baseline. Weights make the oracle's classes
    count alike; slow hosts, and calls whose contention the baseline hides, count nothing.

    Raises:
        ValueError: no trace has labels.
    """
    rng = np.random.default_rng([seed, 1])
    longest = max(len(t["call"]) for t in traces.each())
    found: dict[str, list[Array]] = {name: [] for name in Sequences.__dataclass_fields__}
    for trace in traces.each():
        seen = view(trace, bool(rng.random() < 0.5))
        if seen is None:
            continue
        n = len(seen.rho)
        label = trace["label"][seen.first :].astype(np.int64)
        positive = label == Label.SUSTAINED
        if target == "contended":
            positive |= label == Label.SPIKE
        visible = seen.baseline <= HIDDEN_BASELINE * trace["clean_us"][seen.first :]
        known = (label >= 0) & (label != Label.SLOW_HOST) & (visible | ~positive)
        pad = longest - n

        def padded(column: Array, pad: int = pad) -> Array:
            return np.pad(column, [(0, pad)] + [(0, 0)] * (column.ndim - 1))

        found["scalars"].append(padded(seen.scalars))
        found["collective"].append(np.array(int(seen.key.collective)))
        found["target"].append(padded(positive.astype(np.float32)))
        found["weight"].append(padded(known.astype(np.float32)))
        found["label"].append(np.pad(label, (0, pad), constant_values=-1))
        found["rho"].append(padded(seen.rho))
        found["decided"].append(padded(trace["decided"][seen.first :] != 0))
    columns = {name: np.stack(parts) for name, parts in found.items()} if found["rho"] else {}
    if not columns or not columns["weight"].any():
        raise ValueError("no trace has labels to learn from")
    classes = np.where(columns["weight"] > 0, columns["label"], -1)
    present = [c for c in (Label.STEADY, Label.SPIKE, Label.SUSTAINED) if (classes == c).any()]
    total = columns["weight"].sum()
    for c in present:
        columns["weight"][classes == c] *= total / len(present) / (classes == c).sum()
    assert columns["scalars"].shape[2] == len(DETECTOR_SCALARS)
    return Sequences(**columns)


def prior(s: Sequences) -> float:
    """Return the weighted share of positives: what the detector's probabilities start from."""
    return float((s.target * s.weight).sum() / s.weight.sum())


class Oracle(Protocol):
    """Knows what every action would have taken."""

    def latencies_us(self, trace: int, call: int) -> Array | None:
        """Return times of the 96 actions in µs, NaN where one is not legal; None: not known."""


@dataclass(frozen=True)
class Transitions:
    """What the selector is trained on.

    Attributes:
        state, next_state: (n, 153).
        action: (n,), what ran next.
        reward: (n, 96), equation 3 for each action, NaN where it is not known.
        mask: (n, 96), legal actions.
        done: (n,), contention or trace ends.
        held: (n,), NCCL's action, -1 where it is none of the 96.
    """

    state: Array
    next_state: Array
    action: Array
    reward: Array
    mask: Array
    done: Array
    held: Array

    def __len__(self) -> int:
        return len(self.state)

    def take(self, which: Array) -> Transitions:
        """Return some of them."""
        return Transitions(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


WORST_REWARD: Final = -8.0


def transitions(
    traces: Traces, detector: Detector, oracle: Oracle | None, seed: int, per_trace: int = 8
) -> Transitions:
    """Return transitions under sustained contention, with the detector's memory as state.

    Args:
        traces: with labels and ``best_us``.
        detector: trained.
        oracle: gives the rewards of all actions; without it only those that ran are known.
        seed: which calls of a trace are taken, and which baselines are calibrated.
        per_trace: calls of a trace at most.

    Raises:
        ValueError: no trace has sustained contention.
    """
    rng = np.random.default_rng([seed, 2])
    found: dict[str, list[Any]] = {name: [] for name in Transitions.__dataclass_fields__}
    for trace in traces.each():
        label, best_us = trace["label"], float(trace["best_us"][0])
        calibrated = bool(rng.random() < 0.5)
        inside = np.flatnonzero(label == Label.SUSTAINED)
        if not np.isfinite(best_us) or len(inside) < 4:
            continue
        seen = view(trace, calibrated)
        if seen is None:
            continue
        usual = np.flatnonzero(trace["decided"] == 0)
        if not len(usual):
            continue
        at = int(usual[0])
        nccls = Config(
            Algo(int(trace["algo"][at])), Proto(int(trace["proto"][at])), int(trace["channels"][at])
        )
        calls = [
            int(c) for c in inside
            if c - seen.first >= 8 and c + 2 < len(label) and label[c + 1] == Label.SUSTAINED
        ]  # fmt: skip
        if len(calls) > per_trace:
            calls = sorted(rng.choice(calls, per_trace, replace=False).tolist())
        wanted = {c for call in calls for c in (call, call + 1)}
        if not wanted:
            continue
        states = _states(seen, detector, nccls, int(trace["bytes"][0]), wanted)
        mask = LEGAL[seen.key.collective]
        try:
            held = encode(nccls)
        except ValueError:
            held = -1
        for c in calls:
            action = _action(trace, c + 1)
            reward = np.full(N_ACTIONS, np.nan, np.float32)
            number = int(trace["trace"][0])
            times = None if oracle is None else oracle.latencies_us(number, c + 1)
            if times is not None:
                reward = ((best_us - times) / best_us).astype(np.float32)
            elif action is not None:
                reward[action] = (best_us - float(trace["latency_us"][c + 1])) / best_us
            else:
                continue
            found["state"].append(states[c])
            found["next_state"].append(states[c + 1])
            found["action"].append(held if action is None else action)
            found["reward"].append(np.maximum(reward, WORST_REWARD))
            found["mask"].append(mask)
            found["done"].append(label[c + 2] != Label.SUSTAINED)
            found["held"].append(held)
    if not found["state"]:
        raise ValueError("no trace has sustained contention that a selector could learn from")
    return Transitions(**{name: np.stack(parts) for name, parts in found.items()})


def _action(trace: Mapping[str, Column], call: int) -> int | None:
    config = Config(
        Algo(int(trace["algo"][call])), Proto(int(trace["proto"][call])),
        int(trace["channels"][call]),
    )  # fmt: skip
    try:
        return encode(config)
    except ValueError:
        return None


def _states(
    seen: View, detector: Detector, nccls: Config, n_bytes: int, wanted: set[int]
) -> dict[int, Array]:
    """Return the selector's inputs after the calls wanted."""
    memory, trend = Memory(), Trend()
    found = {}
    for i, (scalars, rho) in enumerate(zip(seen.scalars, seen.rho.tolist(), strict=True)):
        logit = detector.step(scalars, seen.key.collective, memory)
        call = seen.first + i
        if call > 0:
            trend.add(rho)
        if call in wanted:
            config = seen.configs[i]
            more = selector_scalars(
                seen.key, n_bytes, float(seen.baseline[i]), trend.vector(float(sigmoid(logit))),
                config, config == nccls, nccls, seen.gpu[i],
            )  # fmt: skip
            found[call] = np.concatenate([memory.hidden, more])
        if call > max(wanted):
            break
    return found
