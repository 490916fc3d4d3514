"""The policy ``autoccl``: searches while the job runs, one trial after the other, by key.

One leader searches for all ranks: the skeleton. It takes a collective's duration on its slowest
rank. A trial is an epoch; keys are searched independently, and one epoch holds the trials of all of
them. After a key has converged its search does not start again. ``autoccl:FILE`` begins with a
saved table: its sizes are not searched.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from ringstep.hostlib.coordinator.descent import Limits, Search, Setting
from ringstep.hostlib.coordinator.fixed import by_place, read_table
from ringstep.hostlib.coordinator.policy import CallKey, Options, Pair, PolicyError, Sample
from ringstep.hostlib.shm import Decision
from ringstep.hostlib.shm_layout import Collective, EntryState

__all__ = ["AutoCcl", "make"]

NOT_APPLIED_MAX: Final = 8
"""Collectives in a row that did not run what their table says: the trial cannot be applied."""
NOT_SEEN_MAX: Final = 200
NOT_SEEN_NS: Final = 10_000_000_000
"""Collectives in a row, and time, under other tables: the trial was refused."""
BASELINE: Final = 8
"""Collectives of NCCL's own choice before the first trial."""
BASELINE_MAX: Final = 32
ANOTHER_SIZE_MAX: Final = 64
"""Collectives of other sizes in a row, after which the search goes by the size that comes now."""


@dataclass(slots=True)
class _Key:
    """One key's search."""

    search: Search | None = None
    saved: Decision | None = None
    """From the table that it began with."""
    baseline: list[int] = field(default_factory=list)
    sizes: Counter[int] = field(default_factory=Counter)
    ran: Counter[tuple[Pair, int]] = field(default_factory=Counter)
    bytes: int = 0
    """Only collectives of exactly this size are compared."""
    other_sizes: int = 0
    not_applied: int = 0
    not_seen: int = 0
    not_seen_since_ns: int = 0
    used: int = 0
    """Collectives since the newest trial began."""
    rest: int = 0
    """Collectives left to run the best known, so that trials stay within their share."""


class AutoCcl:
    """Searches by key.

    Args:
        saved: decisions to begin with.
        explore_share: share of collectives that may run a trial, 0 to 1.
        limits: how much is measured.
    """

    name = "autoccl"
    static = False

    def __init__(
        self,
        saved: dict[tuple[Collective, int], Decision] | None = None,
        *,
        explore_share: float = 1.0,
        limits: Limits | None = None,
    ) -> None:
        if not 0 < explore_share <= 1:
            raise PolicyError(f"explore share {explore_share}: above 0, at most 1")
        self.version = 1
        self._saved = saved or {}
        self._share = explore_share
        self._limits = limits or Limits()
        self._keys: dict[tuple[str, Collective, int], _Key] = {}

    # --- learning ---

    def observe(self, sample: Sample) -> None:
        """Take in a collective: the trial's result, or NCCL's own time before the first trial."""
        key = self._of(sample.key)
        took = sample.max_ns
        if took == 0:
            return
        if key.search is None:
            if sample.decision is None:
                self._note_baseline(key, sample, took)
            return
        key.used += 1
        if key.search.converged or self._resting(key) or not self._same_size(key, sample):
            return
        self._judge(key, key.search, sample, took)

    def _of(self, key: CallKey) -> _Key:
        place = key.place
        found = self._keys.get(place)
        if found is None:
            saved = self._saved.get((key.collective, key.size_class))
            found = self._keys[place] = _Key(saved=saved)
        return found

    def _note_baseline(self, key: _Key, sample: Sample, took: int) -> None:
        key.sizes[sample.key.bytes] += 1
        usual = key.sizes.most_common(1)[0][0]
        if usual != key.bytes:
            key.bytes, key.baseline = usual, []
            key.ran.clear()
        if sample.key.bytes != usual:
            return
        key.baseline = [*key.baseline[1 - BASELINE_MAX :], took]
        if sample.ran.algo is not None and sample.ran.proto is not None:
            key.ran[((sample.ran.algo, sample.ran.proto), sample.ran.n_channels)] += 1
        if len(key.baseline) == BASELINE:
            self.version += 1

    def _resting(self, key: _Key) -> bool:
        if key.rest == 0:
            return False
        key.rest -= 1
        if key.rest == 0:
            key.used = 0
            self.version += 1
        return True

    def _same_size(self, key: _Key, sample: Sample) -> bool:
        if sample.key.bytes == key.bytes:
            key.other_sizes = 0
            return True
        key.other_sizes += 1
        if key.other_sizes >= ANOTHER_SIZE_MAX:
            # What was measured is of a size that no longer comes: begin again with this one.
            key.search, key.baseline, key.bytes = None, [], 0
            key.sizes.clear()
            key.other_sizes = key.rest = key.used = 0
            self.version += 1
        return False

    def _judge(self, key: _Key, search: Search, sample: Sample, took: int) -> None:
        wanted = search.candidate
        if _setting(sample.decision) != wanted:
            if key.not_seen == 0:
                key.not_seen_since_ns = sample.start_ns
            key.not_seen += 1
            waited_ns = sample.start_ns - key.not_seen_since_ns
            if key.not_seen >= NOT_SEEN_MAX and waited_ns >= NOT_SEEN_NS:
                self._next(key, search, skip=True)
            return
        key.not_seen = 0
        if sample.state in (EntryState.WARMUP, EntryState.COOLDOWN):
            return
        if wanted is not None and not _ran(sample, wanted):
            key.not_applied += 1
            if key.not_applied >= NOT_APPLIED_MAX:
                self._next(key, search, skip=True)
            return
        key.not_applied = 0
        if search.report(took):
            self._next(key, search, skip=False)

    def _next(self, key: _Key, search: Search, *, skip: bool) -> None:
        if skip:
            search.skip()
        key.not_seen = key.not_applied = 0
        if self._share < 1 and not search.converged:
            key.rest = math.ceil(key.used * (1 - self._share) / self._share)
        key.used = 0
        self.version += 1

    # --- answering ---

    def process(self, key: CallKey) -> Decision | None:
        """Return the trial that is due, or what was found."""
        found = self._of(key)
        if found.saved is not None and (found.saved.algo, found.saved.proto) in key.usable:
            return _decision(_setting(found.saved), EntryState.CONVERGED, 0)
        search = found.search
        if search is None:
            search = self._begin(found, key)
            if search is None:
                return None
        while not search.converged:
            candidate = search.candidate
            if candidate is None or (candidate.algo, candidate.proto) in key.usable:
                break
            search.skip()
        if search.converged:
            return _decision(search.best, EntryState.CONVERGED, search.best_ns)
        wanted = search.best if found.rest else search.candidate
        return _decision(wanted, EntryState.EXPLORE, 0)

    def _begin(self, found: _Key, key: CallKey) -> Search | None:
        if len(found.baseline) < BASELINE or not key.usable:
            return None
        ran: tuple[Pair | None, int] = max(found.ran, key=lambda r: found.ran[r], default=(None, 0))
        found.search = Search(key.collective, key.usable, found.baseline, ran, self._limits)
        found.used = 0
        return found.search

    def trials(self) -> int:
        """Return how many trials were begun, over all keys."""
        return sum(k.search.trials for k in self._keys.values() if k.search is not None)


def _setting(decision: Decision | None) -> Setting | None:
    if decision is None:
        return None
    return Setting(decision.algo, decision.proto, decision.n_channels, decision.chunk_bytes)


def _decision(setting: Setting | None, state: EntryState, took_ns: float) -> Decision | None:
    if setting is None:
        return None
    return Decision(
        setting.algo, setting.proto, setting.n_channels, setting.chunk_bytes, state=state,
        measured_us=min(round(took_ns / 1000), 0xFFFFFFFF),
    )  # fmt: skip


def _ran(sample: Sample, wanted: Setting) -> bool:
    """Whether the ranks ran what was wanted, as far as they tell."""
    ran = sample.ran
    differs = (ran.algo not in (None, wanted.algo)) or (ran.proto not in (None, wanted.proto))
    return sample.decided and not differs


def make(options: Options) -> AutoCcl:
    """Return the policy for ``autoccl`` or ``autoccl:FILE``.

    Raises:
        PolicyError: the file has a mistake.
    """
    saved = {}
    if options.argument:
        saved = by_place(read_table(options.folder / options.argument))
    return AutoCcl(saved, explore_share=options.explore_share)
