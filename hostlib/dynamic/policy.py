"""Algorithm 1: watch every collective, and reconfigure only where contention is sustained.

Per key: the first call is discarded (cold start) and seven more warm up; then the detector's test
decides on the state; ``SUSTAINED`` asks the selector, whose proposals go through a trial; after a
reconfiguration three calls pass before the next.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from ringstep.hostlib.dynamic.actions import THREADS, Config, Key, Mask, decode, encode, legal
from ringstep.hostlib.dynamic.baseline import Baselines
from ringstep.hostlib.dynamic.detector import Detector, Memory, sigmoid
from ringstep.hostlib.dynamic.features import (
    Trend,
    Vector,
    detector_scalars,
    log_rho,
    selector_scalars,
)
from ringstep.hostlib.dynamic.safety import Guard, SafetyParams, Verdict
from ringstep.hostlib.dynamic.sample import BadSample, GpuStats, Sample, check
from ringstep.hostlib.dynamic.selector import Selector, propose
from ringstep.hostlib.dynamic.sprt import PERTURBED, RuleName, Sprt, State, TestParams
from ringstep.hostlib.dynamic.weights import WeightsError, load
from ringstep.hostlib.shm_layout import Algo, Proto

log = logging.getLogger(__name__)

WARM_UP: Final = 8
COOLDOWN: Final = 3
GAP_NS: Final = 120 * 10**9
"""After so long without a call what the detector remembers is of another time."""
NOT_APPLIED: Final = 256
"""Calls in a row that ran something else than asked: the decision cannot be applied here."""
DETECTOR_FILE: Final = "detector.safetensors"
SELECTOR_FILE: Final = "selector.safetensors"


@dataclass(frozen=True, slots=True)
class PolicyParams:
    """How a policy decides.

    Attributes:
        rule: from the detector's probabilities to states (:mod:`.sprt`); None: the one that fits
            what the detector was trained to say.
        test: bounds of that; None: the rule's own.
        safety: bounds of trials.
        proposals: how many go into one trial, each unlike the others: the selector's best.
        hedge: the second is a ring with bulk messages and every channel, which takes the largest
            share of most links: where the selector errs, that is tried too.
        threads: the runtime honours thread counts (no stock NCCL does).
        max_channels: as many as communicators have.
    """

    rule: RuleName | None = None
    test: TestParams | None = None
    safety: SafetyParams = field(default_factory=SafetyParams)
    proposals: int = 2
    hedge: bool = True
    threads: bool = False
    max_channels: int = 8


@dataclass(slots=True)
class _Watched:
    """What is known of one key."""

    sprt: Sprt
    guard: Guard
    memory: Memory = field(default_factory=Memory)
    trend: Trend = field(default_factory=Trend)
    tick: int = 0
    cooldown: int = 0
    last_ns: int | None = None
    last_config: Config | None = None
    nccls: Config | None = None
    gpu: GpuStats | None = None
    n_bytes: int = 0
    probability: float = 0.0
    slow: int = 0
    misses: int = 0
    refused: int = 0
    rejected: set[Config] = field(default_factory=set)
    asked: Config | None = None


class DynamicPolicy:
    """Detector, selector and trials behind ``process`` and ``observe``; one thread at a time.

    Args:
        detector, selector: networks. Without a detector nothing is ever decided; without a selector
            states are found and nothing is decided.
        params: how it decides.
        baselines: with a calibration, contention is seen from the first call on.
    """

    def __init__(
        self,
        detector: Detector | None,
        selector: Selector | None,
        params: PolicyParams | None = None,
        baselines: Baselines | None = None,
    ) -> None:
        self.params = params or PolicyParams()
        self._detector, self._selector = detector, selector
        self._baselines = baselines or Baselines()
        self._watched: dict[Key, _Watched] = {}
        self.usable: dict[Key, Collection[tuple[Algo, Proto]]] = {}
        """Pairs that every rank can run, by key; a key that is not there can use all of them."""

    @classmethod
    def load(
        cls,
        folder: Path,
        params: PolicyParams | None = None,
        baselines: Baselines | None = None,
    ) -> Self:
        """Return the policy with the weights in ``folder``.

        Raises:
            WeightsError: they cannot be used.
        """
        detector = Detector(load(folder / DETECTOR_FILE, "detector"))
        selector = Selector(load(folder / SELECTOR_FILE, "selector"))
        return cls(detector, selector, params, baselines)

    @classmethod
    def load_or_bypass(
        cls,
        folder: Path,
        params: PolicyParams | None = None,
        baselines: Baselines | None = None,
    ) -> Self:
        """Like :meth:`load`, but unusable weights are logged and leave NCCL alone."""
        try:
            return cls.load(folder, params, baselines)
        except WeightsError as error:
            log.warning("the dynamic policy leaves NCCL alone: %s", error)
            return cls(None, None, params, baselines)

    def process(self, key: Key) -> Config | None:
        """Return what the next call of a key shall run; None leaves NCCL alone."""
        watched = self._watched.get(key)
        if watched is None:
            return None
        watched.asked = watched.guard.config()
        return watched.asked

    def observe(self, sample: Sample) -> None:
        """Take a finished call; what cannot be a measurement is counted and left out."""
        watched = self._watched.get(sample.key)
        try:
            check(sample, None if watched is None else watched.last_ns)
        except BadSample as error:
            if watched is not None:
                watched.refused += 1
                if sample.time_ns < (watched.last_ns or 0):
                    watched.last_ns = sample.time_ns  # the clock was set back: go on from there
            log.debug("left out: %s", error)
            return
        if watched is None:
            watched = self._watched[sample.key] = self._watch()
        if watched.last_ns is not None and sample.time_ns - watched.last_ns > GAP_NS:
            watched.memory, watched.trend = Memory(), Trend()
            watched.sprt.restart()
        self._see(watched, sample)
        watched.last_ns = sample.time_ns
        watched.last_config = sample.config
        watched.tick += 1

    def forget(self, key: Key, baseline: bool = True) -> None:
        """Drop a key, for example because a rank of its communicator left.

        Args:
            key: to drop; NCCL decides on it from now on.
            baseline: drop its clean latency too, which other communicators may share.
        """
        self._watched.pop(key, None)
        if baseline:
            self._baselines.forget(key)
        self.usable.pop(key, None)

    def state(self, key: Key) -> State:
        """Return the network's state as a key sees it."""
        watched = self._watched.get(key)
        return State.STEADY if watched is None else watched.sprt.state

    def kept(self, key: Key) -> bool:
        """Whether what is in force was shown to be better than NCCL's choice."""
        watched = self._watched.get(key)
        return watched is not None and watched.guard.proven

    def status(self, key: Key) -> dict[str, Any]:
        """Return what is known of a key, for people and scripts."""
        w = self._watched.get(key)
        if w is None:
            return {"calls": 0, "state": State.STEADY.value}
        baseline = self._baselines.of(key)
        return {
            "calls": w.tick,
            "state": w.sprt.state.value,
            "probability": w.probability,
            "evidence": w.sprt.evidence,
            "baseline_us": baseline.value,
            "baseline_trusted": baseline.trusted,
            "in_force": None if w.guard.in_force is None else str(w.guard.in_force),
            "trials": w.guard.trials,
            "rollbacks": w.guard.rollbacks,
            "account_calls": w.guard.account,
            "refused_samples": w.refused,
        }

    # --- one call ---

    def _watch(self) -> _Watched:
        p, d = self.params, self._detector
        guard = Guard(p.safety, seed=len(self._watched))
        if d is None:
            return _Watched(Sprt(), guard)
        return _Watched(Sprt(p.rule or d.rule, p.test, d.prior, d.temper), guard)

    def _see(self, w: _Watched, sample: Sample) -> None:
        if not sample.decided:
            w.nccls = sample.config
        w.gpu, w.n_bytes = sample.gpu, sample.n_bytes
        baseline = self._baselines.of(sample.key)
        if w.tick > 0 and not sample.decided:
            baseline.add(sample.latency_us)
        clean_us = baseline.value
        if clean_us is None or self._detector is None:
            return
        rho = log_rho(sample.latency_us, clean_us)
        changed = w.last_config is not None and w.last_config != sample.config
        scalars = detector_scalars(
            sample.key, sample.n_bytes, rho, sample.config, changed, sample.gpu
        )
        logit = self._detector.step(scalars, sample.key.collective, w.memory)
        if w.tick == 0:
            return
        w.probability = float(sigmoid(logit))
        w.trend.add(rho)
        if w.tick < WARM_UP:
            return
        # In another configuration a ratio to NCCL's clean latency tells two things at once.
        before, state = w.sprt.state, w.sprt.state
        if not sample.decided:
            state = w.sprt.update(logit, rho)
            w.slow = w.slow + 1 if rho >= PERTURBED else 0
        if before is State.SUSTAINED is not state:
            w.rejected.clear()
        self._act(w, sample, state)

    def _act(self, w: _Watched, sample: Sample, state: State) -> None:
        ran = sample.config if sample.decided else None
        if self._unapplied(w, ran):
            return
        if sample.settling:
            w.guard.charge(None if ran is None else ran.plain, sample.latency_us)
            return
        verdict = w.guard.observe(None if ran is None else ran.plain, sample.latency_us)
        if verdict is Verdict.ROLLED_BACK:
            w.rejected.update(w.guard.lost)
            w.cooldown = COOLDOWN
            return
        if w.cooldown > 0:
            w.cooldown -= 1
        elif state is not State.SUSTAINED:
            if w.guard.open:
                w.guard.end()
                w.cooldown = COOLDOWN
        elif w.guard.can_open():
            proposals = self._proposals(w, sample.key)
            if proposals and w.guard.begin(proposals, w.slow):
                w.cooldown = COOLDOWN

    def _unapplied(self, w: _Watched, ran: Config | None) -> bool:
        """Give up a decision that is not applied: masked by the user, or not there on a rank."""
        if w.asked is None or (ran is not None and ran.plain == w.asked):
            w.misses = 0
            return False
        w.misses += 1
        if w.misses < NOT_APPLIED:
            return False
        w.rejected.add(w.asked)
        w.guard.end()
        w.asked, w.misses, w.cooldown = None, 0, COOLDOWN
        return True

    def _proposals(self, w: _Watched, key: Key) -> list[Config]:
        clean_us = self._baselines.of(key).value
        if self._selector is None or w.nccls is None or clean_us is None:
            return []
        p = self.params
        mask = legal(key.collective, self.usable.get(key), p.max_channels, p.threads)
        for config in w.rejected:
            same = [a for a in np.flatnonzero(mask).tolist() if decode(a).plain == config.plain]
            mask[same] = False
        q = self._selector.values(
            w.memory.hidden,
            selector_scalars(
                key,
                w.n_bytes,
                clean_us,
                w.trend.vector(w.probability),
                w.nccls,
                True,
                w.nccls,
                w.gpu,
            ),
        )
        try:
            held: int | None = encode(w.nccls)
        except ValueError:
            held = None
        found = [decode(each.action) for each in propose(q, mask, held, p.proposals)]
        widest = Config(Algo.RING, Proto.SIMPLE, p.max_channels, THREADS[-1])
        if found and p.hedge and widest != found[0] and _thinkable(q, mask, held, encode(widest)):
            others = [config for config in found[1:] if config != widest]
            found[1:] = [widest, *others][: max(p.proposals - 1, 1)]
        return [config.plain for config in found]


def _thinkable(q: Vector, mask: Mask, held: int | None, action: int) -> bool:
    """Whether an action is legal, another one, and better than what is held by some head."""
    if not mask[action] or action == held:
        return False
    return held is None or bool((q[:, action] > q[:, held]).any())
