"""The search: finds the best of a noisy cost surface, and stops."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.coordinator.autoccl import NOT_SEEN_NS, AutoCcl, make
from ringstep.hostlib.coordinator.descent import CHANNELS, CHUNKS, Limits, Search, Setting
from ringstep.hostlib.coordinator.policy import CallKey, Options, Pair, PolicyError, Ran, Sample
from ringstep.hostlib.shm import Decision
from ringstep.hostlib.shm_layout import Algo, Collective, EntryState, Proto

AR = Collective.ALL_REDUCE
PAIRS: frozenset[Pair] = frozenset((a, p) for a in (Algo.TREE, Algo.RING) for p in Proto)
SIZE = 1 << 24
Make = Callable[..., Any]


class Surface:
    """Durations with one peak along each parameter, multiplied noise, and spikes.

    NCCL's own choice is a setting of the surface, and not the best one.
    """

    def __init__(self, seed: int, *, noise: float = 0.04, spikes: float = 0.03) -> None:
        self.rng = random.Random(seed)
        self.noise, self.spikes = noise, spikes
        self.base = {pair: self.rng.uniform(1.0, 2.5) for pair in PAIRS}
        best = self.rng.choice(sorted(PAIRS))
        self.base[best] = 0.8
        self.peak = {pair: self.rng.choice(CHANNELS[1:-1]) for pair in PAIRS}
        self.chunk = {pair: self.rng.choice(CHUNKS[1:-1]) for pair in PAIRS}
        self.own = Setting(*self.rng.choice(sorted(PAIRS - {best})), 2, 1 << 20)

    def true_ns(self, setting: Setting | None) -> float:
        if setting is None:
            setting = self.own
        pair = (setting.algo, setting.proto)
        off_channels = math.log2((setting.n_channels or 2) / self.peak[pair])
        off_chunk = math.log2((setting.chunk_bytes or 1 << 20) / self.chunk[pair])
        return 1e6 * self.base[pair] * (1 + 0.12 * off_channels**2 + 0.06 * off_chunk**2)

    def measured_ns(self, setting: Setting | None) -> int:
        took = self.true_ns(setting) * math.exp(self.rng.gauss(0, self.noise))
        return int(took * (10 if self.rng.random() < self.spikes else 1))

    def best_ns(self) -> float:
        return min(
            self.true_ns(Setting(*pair, n, chunk))
            for pair in PAIRS for n in CHANNELS for chunk in CHUNKS
        )  # fmt: skip


class Job:
    """Runs collectives as the coordinator would: tables take a few collectives to apply."""

    def __init__(self, policy: AutoCcl, surface: Surface, *, lag: int = 2, n_bytes: int = SIZE):
        self.policy, self.surface, self.lag = policy, surface, lag
        self.key = CallKey("c", AR, n_bytes.bit_length() - 1, n_bytes, 4, 1, PAIRS)
        self.in_force: Decision | None = None
        self.coming: list[Decision | None] = []
        self.version: int | None = None
        self.settling = 0
        self.count = 0
        self.ran: list[Decision | None] = []
        self.refused: set[tuple[Algo, Proto]] = set()
        self.ignored: set[tuple[Algo, Proto]] = set()

    def collective(self, n_bytes: int | None = None) -> None:
        self.count += 1
        setting = None
        applied = self.in_force
        if applied is not None and (applied.algo, applied.proto) in self.ignored:
            applied = None
        if applied is not None:
            setting = Setting(applied.algo, applied.proto, applied.n_channels, applied.chunk_bytes)
        own = self.surface.own
        ran = Ran(own.algo, own.proto, own.n_channels)
        if applied is not None:
            ran = Ran(applied.algo, applied.proto, applied.n_channels)
        state = EntryState.WARMUP if self.count <= 8 else EntryState.NONE
        if self.settling:
            self.settling -= 1
            state = EntryState.COOLDOWN
        took = self.surface.measured_ns(setting)
        key = self.key
        if n_bytes is not None:
            key = CallKey("c", AR, key.size_class, n_bytes, 4, 1, PAIRS)
        self.ran.append(applied)
        self.policy.observe(
            Sample(key, self.count, self.count, self.count * NOT_SEEN_NS // 100,
                   {0: took, 1: took // 2}, frozenset(), ran, 1, self.in_force,
                   applied is not None, state)
        )  # fmt: skip
        if self.count >= 8 and self.policy.version != self.version:
            self.version = self.policy.version
            wanted = self.policy.process(self.key)
            self.coming = [self.in_force] * self.lag + [wanted]
        if self.coming:
            wanted = self.coming.pop(0)
            if wanted is not None and (wanted.algo, wanted.proto) in self.refused:
                wanted = self.in_force
            if wanted != self.in_force:
                self.settling = 3
            self.in_force = wanted

    def run(self, most: int = 5000) -> int:
        """Run until it has converged and is applied; return how many collectives that took."""
        for _ in range(most):
            self.collective()
            search = next(iter(self.policy._keys.values())).search
            if search is not None and search.converged and not self.coming:
                return self.count
        raise AssertionError("never converged")


@pytest.mark.parametrize("seed", range(12))
def test_converges_to_the_best_in_noise_and_spikes(seed: int) -> None:
    surface = Surface(seed)
    job = Job(AutoCcl(), surface)
    took = job.run()
    assert job.in_force is not None
    assert job.in_force.state is EntryState.CONVERGED
    found = job.in_force
    setting = Setting(found.algo, found.proto, found.n_channels, found.chunk_bytes)
    assert surface.true_ns(setting) <= 1.08 * surface.best_ns()
    assert surface.true_ns(setting) < surface.true_ns(None)
    assert took < 2500
    version = job.policy.version
    for _ in range(200):
        job.collective()
    assert job.policy.version == version
    assert job.in_force == found


def test_without_noise_it_finds_the_very_best() -> None:
    for seed in range(12):
        surface = Surface(seed, noise=0, spikes=0)
        job = Job(AutoCcl(), surface)
        job.run()
        found = job.in_force
        assert found is not None
        setting = Setting(found.algo, found.proto, found.n_channels, found.chunk_bytes)
        assert surface.true_ns(setting) <= 1.03 * surface.best_ns()


def test_nccl_is_left_alone_unless_it_is_beaten() -> None:
    surface = Surface(3, noise=0.02)
    surface.true_ns = lambda setting: 1e6 if setting is None else 1.2e6  # type: ignore[method-assign]
    job = Job(AutoCcl(), surface)
    job.run()
    assert job.in_force is None
    surface = Surface(3, noise=0.02)
    surface.true_ns = lambda setting: 1e6  # type: ignore[method-assign]
    job = Job(AutoCcl(), surface)
    job.run()
    assert job.in_force is None


def test_trials_stay_within_their_share() -> None:
    job = Job(AutoCcl(explore_share=0.25), Surface(5))
    took = job.run(20000)
    final = job.in_force
    assert final is not None
    best_so_far = 0
    for ran in job.ran[8:]:
        best_so_far += ran is None or ran.n_channels == final.n_channels
    assert took > 2 * Job(AutoCcl(), Surface(5)).run()
    with pytest.raises(PolicyError, match="above 0, at most 1"):
        AutoCcl(explore_share=0)


def test_a_trial_that_is_refused_or_not_applied_is_given_up() -> None:
    surface = Surface(1)
    best = min(PAIRS, key=lambda pair: surface.base[pair])
    for attribute in ("refused", "ignored"):
        job = Job(AutoCcl(), surface)
        getattr(job, attribute).add(best)
        job.run(20000)
        assert job.in_force is None or (job.in_force.algo, job.in_force.proto) != best


def test_only_usable_pairs_are_tried() -> None:
    surface = Surface(2)
    job = Job(AutoCcl(), surface)
    usable = frozenset({(Algo.RING, Proto.LL), (Algo.TREE, Proto.LL)})
    job.key = CallKey("c", AR, 24, SIZE, 4, 1, usable)
    job.run()
    assert {(r.algo, r.proto) for r in job.ran if r} <= usable
    for collective in (Collective.ALL_GATHER, Collective.BROADCAST):
        search = Search(collective, PAIRS, [1000] * 8, (None, 2), Limits())
        while not search.converged:
            assert search.candidate is None or search.candidate.algo is not Algo.TREE
            search.report(1000)


def test_a_pair_that_stops_being_usable_is_dropped_at_once() -> None:
    surface = Surface(2)
    job = Job(AutoCcl(), surface)
    for _ in range(30):
        job.collective()
    assert job.in_force is not None
    gone = (job.in_force.algo, job.in_force.proto)
    job.key = CallKey("c", AR, 24, SIZE, 4, 1, PAIRS - {gone})
    found = job.policy.process(job.key)
    assert found is None or (found.algo, found.proto) != gone


def test_only_equal_sizes_are_compared_and_a_new_usual_size_starts_anew() -> None:
    surface = Surface(4)
    job = Job(AutoCcl(), surface)
    for i in range(400):
        job.collective(SIZE + 4096 if i % 3 == 0 else None)
    trials = job.policy.trials()
    assert trials > 5
    for _ in range(100):
        job.collective(SIZE + 8192)
    (key,) = job.policy._keys.values()
    assert key.bytes == SIZE + 8192


def test_a_saved_table_is_where_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("collective,bytes,algorithm,protocol,channels\nallreduce,1MiB..,ring,ll,6\n")
    policy = make(Options(argument="t.csv", folder=tmp_path))
    found = policy.process(CallKey("c", AR, 24, SIZE, 4, 1, PAIRS))
    assert found is not None
    assert (found.n_channels, found.state) == (6, EntryState.CONVERGED)
    assert policy.process(CallKey("c", AR, 10, 1024, 4, 1, PAIRS)) is None
    unusable = frozenset({(Algo.TREE, Proto.LL)})
    assert policy.process(CallKey("d", AR, 24, SIZE, 4, 1, unusable)) is None
    with pytest.raises(PolicyError, match="No such file"):
        make(Options(argument="none.csv", folder=tmp_path))
