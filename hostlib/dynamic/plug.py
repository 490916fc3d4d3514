"""The learned policy as the coordinator plugs it: ``--policy dynamic`` or ``dynamic:FOLDER``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ringstep.hostlib.coordinator.policy import CallKey, GpuFigures, Options, PolicyError
from ringstep.hostlib.coordinator.policy import Sample as Told
from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.dynamic.baseline import Baselines, CalibrationError, load_calibration
from ringstep.hostlib.dynamic.detector import Detector
from ringstep.hostlib.dynamic.policy import DETECTOR_FILE, SELECTOR_FILE, DynamicPolicy
from ringstep.hostlib.dynamic.sample import GpuStats, Sample
from ringstep.hostlib.dynamic.selector import Selector
from ringstep.hostlib.dynamic.sprt import State
from ringstep.hostlib.dynamic.weights import WeightsError, load
from ringstep.hostlib.shm import Decision
from ringstep.hostlib.shm_layout import Collective, EntryState

WEIGHTS: Final = Path(__file__).parent / "weights"
"""Those that come with the package."""
CALIBRATION_FILE: Final = "calibration.json"
BLIND: Final = 32
"""Collectives in a row that some rank did not tell of: what is in force can no longer be judged."""
SMALLEST: Final = 12
"""Size class from which on there is something to decide, and to learn from.

Below 4 KiB a collective is a packet or two, and its time is how far apart the ranks came to it:
the torch hook's own exchange at each fence is one of those.
"""
TOGETHER: Final = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
"""No rank can end before the last one has come: the fastest rank's time is the network's.

The others' have their wait for it in them: a backward pass that takes one rank longer than another
would look like contention.
"""
MAX_COMMS: Final = 256
"""Communicators remembered; the one that was quiet for longest is forgotten."""
FULL_POWER_W: Final = 700.0
"""Power that counts as 1: drivers do not always tell the limit."""
FULL_PCIE_BPS: Final = 64e9 * 8
"""Rate that counts as 1."""


def make(options: Options) -> Dynamic:
    """Return the policy; ``options.argument`` is a folder with weights, by default the package's.

    ``calibration.json`` beside the weights gives clean latencies.

    Raises:
        PolicyError: no such folder, or weights or a calibration that cannot be used.
    """
    folder = options.folder / options.argument if options.argument else WEIGHTS
    if options.argument and not folder.is_dir():
        raise PolicyError(f"dynamic:{options.argument}: no such folder: {folder}")
    baselines = Baselines()
    path = folder / CALIBRATION_FILE
    if path.exists():
        try:
            baselines = Baselines(load_calibration(path))
        except (CalibrationError, OSError) as error:
            raise PolicyError(f"dynamic: {error}") from error
    try:
        detector = Detector(load(folder / DETECTOR_FILE, "detector"))
        selector = Selector(load(folder / SELECTOR_FILE, "selector"))
    except WeightsError as error:
        raise PolicyError(f"dynamic: {error}") from error
    return Dynamic(detector, selector, baselines)


class Dynamic:
    """One learned policy per communicator; they share networks and clean latencies."""

    name = "dynamic"
    static = False

    def __init__(self, detector: Detector, selector: Selector, baselines: Baselines) -> None:
        self.version = 1
        self._detector, self._selector, self._baselines = detector, selector, baselines
        self._by_comm: dict[str, DynamicPolicy] = {}
        self._last: dict[tuple[str, Key], Decision | None] = {}
        self._blind: dict[tuple[str, Key], int] = {}

    def observe(self, sample: Told) -> None:
        """Take a collective; ``version`` rises when it changed what comes next.

        Small ones are left out, and those within one node: there is no network that others use.
        What shared a node's first calls under a new table with the old
        one's traffic (the coordinator's cooldown) is seen by the detector and judges no trial.
        """
        if sample.key.size_class < SMALLEST or sample.key.n_nodes < 2:
            return
        ran = sample.ran
        key = _key(sample.key)
        place = (sample.key.comm, key)
        policy = self._policy(sample.key.comm)
        # Nobody measured it, nobody knows what ran, or the slowest rank did not tell.
        if (
            sample.max_ns == 0
            or sample.missing
            or ran.algo is None
            or ran.proto is None
            or ran.n_channels < 1
        ):
            self._miss(policy, place)
            return
        self._blind.pop(place, None)
        policy.usable[key] = sample.key.usable
        chunk = sample.decision.chunk_bytes if sample.decided and sample.decision else 0
        took_ns = sample.min_ns if sample.key.collective in TOGETHER else sample.max_ns
        policy.observe(
            Sample(
                key,
                sample.key.bytes,
                took_ns / 1e3,
                sample.start_ns + sample.max_ns,
                Config(ran.algo, ran.proto, ran.n_channels, 0, chunk),
                sample.decided,
                _gpu(sample.gpu),
                sample.state is EntryState.COOLDOWN,
            )
        )
        self._tell(policy, place)

    def _miss(self, policy: DynamicPolicy, place: tuple[str, Key]) -> None:
        """Go back to NCCL's choice where too much is not told: a rank may have left."""
        self._blind[place] = self._blind.get(place, 0) + 1
        if self._blind[place] == BLIND:
            policy.forget(place[1], baseline=False)
            self._tell(policy, place)

    def _tell(self, policy: DynamicPolicy, place: tuple[str, Key]) -> None:
        now = self._answer(policy, place[1])
        if now != self._last.get(place):
            self._last[place] = now
            self.version += 1

    def process(self, key: CallKey) -> Decision | None:
        """Return what the next call of a key shall run."""
        policy = self._by_comm.get(key.comm)
        return None if policy is None else self._answer(policy, _key(key))

    def forget(self, comm: str) -> None:
        """Drop a communicator that is gone."""
        self._by_comm.pop(comm, None)
        for known in (self._last, self._blind):
            for place in [place for place in known if place[0] == comm]:
                del known[place]

    def _policy(self, comm: str) -> DynamicPolicy:
        found = self._by_comm.pop(comm, None)
        if found is None:
            found = DynamicPolicy(self._detector, self._selector, baselines=self._baselines)
            if len(self._by_comm) >= MAX_COMMS:
                self.forget(next(iter(self._by_comm)))
        self._by_comm[comm] = found  # the last in order is the one heard of last
        return found

    @staticmethod
    def _answer(policy: DynamicPolicy, key: Key) -> Decision | None:
        config = policy.process(key)
        if config is None:
            return None
        sustained = policy.state(key) is State.SUSTAINED
        return Decision(
            config.algo, config.proto, config.n_channels, config.chunk_bytes, config.n_threads,
            EntryState.CONVERGED if sustained and policy.kept(key) else EntryState.EXPLORE,
        )  # fmt: skip


def _key(key: CallKey) -> Key:
    return Key(key.n_ranks, key.n_nodes, key.collective, key.size_class)


def _gpu(figures: GpuFigures | None) -> GpuStats | None:
    if figures is None or figures.utilization is None:
        return None
    return GpuStats(
        figures.utilization,
        figures.memory_used or 0.0,
        (figures.power_w or 0.0) / FULL_POWER_W,
        (figures.pcie_tx_bps or 0.0) / FULL_PCIE_BPS,
        (figures.pcie_rx_bps or 0.0) / FULL_PCIE_BPS,
    )
