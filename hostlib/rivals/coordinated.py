"""Any policy of the coordinator, AutoCCL too, as the evaluation's harness drives policies."""

from __future__ import annotations

from itertools import product

from ringstep.hostlib.coordinator.policy import CallKey, Policy, Ran
from ringstep.hostlib.coordinator.policy import Sample as Told
from ringstep.hostlib.dynamic.actions import ALGOS, PROTOS, Config, Key
from ringstep.hostlib.dynamic.sample import Sample
from ringstep.hostlib.shm import Decision
from ringstep.hostlib.shm_layout import Algo, Collective, EntryState


class Coordinated:
    """Asks a policy as the coordinator does: again whenever its version has changed.

    Decisions are in force with the next call; the harness can delay them.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._answers: dict[Key, tuple[int, Decision | None]] = {}
        self._bytes: dict[Key, int] = {}
        self._calls = 0
        self._epoch = 0

    def process(self, key: Key) -> Config | None:
        """Return what the policy says."""
        known = self._answers.get(key)
        if known is None or known[0] != self._policy.version:
            version = self._policy.version
            decision = self._policy.process(self._call_key(key))
            if known is not None and decision != known[1]:
                self._epoch += 1
            known = self._answers[key] = (version, decision)
        decision = known[1]
        if decision is None:
            return None
        return Config(decision.algo, decision.proto, decision.n_channels, 0, decision.chunk_bytes)

    def observe(self, sample: Sample) -> None:
        """Tell the policy of a call."""
        self._calls += 1
        self._bytes[sample.key] = sample.n_bytes
        c = sample.config
        took = round(sample.latency_us * 1e3)
        decision = None
        if sample.decided:
            decision = Decision(c.algo, c.proto, c.n_channels, c.chunk_bytes)
        self._policy.observe(
            Told(
                self._call_key(sample.key),
                self._calls,
                self._calls,
                sample.time_ns - took,
                {0: took},
                frozenset(),
                Ran(c.algo, c.proto, c.n_channels),
                self._epoch,
                decision,
                sample.decided,
                EntryState.NONE,
            )
        )

    def _call_key(self, key: Key) -> CallKey:
        n_bytes = self._bytes.get(key, 1 << key.size_class)
        usable = frozenset(
            (a, p)
            for a, p in product(ALGOS, PROTOS)
            if a is Algo.RING or key.collective is Collective.ALL_REDUCE
        )
        return CallKey(
            "evaluation", key.collective, key.size_class, n_bytes, key.n_ranks, key.n_nodes, usable
        )
