"""A model trained by torch under contention, with the whole host half around it.

Ranks on hosts of their own, each with its node's coordinator, the plugin and the fences of the
torch hook; a policy in the skeleton; rival TCP flows from a given step on. Unlike the environments,
which run what a policy wants with the very next call, this contains what it costs to agree.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ringstep.hostlib.evaluate.engine.calls import Call, CallLog
from ringstep.hostlib.evaluate.engine.cluster import (
    BURST_MS,
    LEAST_BURST,
    QUEUE_MS,
    RATE_BPS,
    RTO_MIN_MS,
    congestion_controls,
)
from ringstep.hostlib.evaluate.engine.job import TrainingJob
from ringstep.hostlib.native.build import build, build_engine
from ringstep.hostlib.nethosts import NetHosts

NOTHING: Final = "none"
"""Policy of a job without plugin, coordinator and hook."""


@dataclass(frozen=True, slots=True)
class Switch:
    """One change of what is decided: a table offered to all nodes.

    Attributes:
        epoch: of the table.
        offered_ns: when the skeleton offered it, monotonic.
        applied_ns: when the last node told that all its ranks apply it; None: never.
        calls_late: collectives that began after the offer and before the first under the new
            table; None: no collective ran under it.
    """

    epoch: int
    offered_ns: int
    applied_ns: int | None
    calls_late: int | None

    @property
    def apply_ms(self) -> float | None:
        """From offer to applied everywhere."""
        return None if self.applied_ns is None else (self.applied_ns - self.offered_ns) / 1e6


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What came of one job.

    Attributes:
        policy, level, onset, nodes, rate_bps, seed: as asked for.
        parameters: of the model.
        step_ms: how long each step took on rank 0.
        step_ns: when it began, monotonic.
        loss: by step, mean over ranks.
        onset_ns: when the rival flows were told to begin, monotonic; None without.
        calls: collectives that every rank told of; none without a plugin.
        switches: changes of what is decided.
        fault: why the policy was bypassed.
        problems: refusals, records lost and the like; empty where all went well.
    """

    policy: str
    level: float
    onset: int
    nodes: int
    rate_bps: float
    seed: int
    parameters: int
    step_ms: Sequence[float]
    step_ns: Sequence[int]
    loss: Sequence[float]
    onset_ns: int | None
    calls: Sequence[Call] = ()
    switches: Sequence[Switch] = ()
    fault: str | None = None
    problems: Sequence[str] = field(default_factory=tuple)

    @property
    def contended_ms(self) -> list[float]:
        """Steps that began under contention."""
        if self.onset_ns is None:
            return []
        return [
            ms for ms, at in zip(self.step_ms, self.step_ns, strict=True) if at >= self.onset_ns
        ]

    @property
    def clean_ms(self) -> list[float]:
        """Steps before contention; the first two, which set up, are left out."""
        return list(self.step_ms[2 : self.onset])

    @property
    def false_switches(self) -> int:
        """Switches offered before there was contention."""
        end = self.onset_ns
        return sum(end is None or s.offered_ns < end for s in self.switches)


def train_under_contention(
    policy: str,
    level: float,
    steps: int,
    onset: int,
    *,
    nodes: int = 4,
    rate_bps: float = RATE_BPS,
    queue_ms: float = QUEUE_MS,
    rivals: str | None = None,
    seed: int = 0,
    fence_every: int = 1,
    progress: Callable[[int], None] | None = None,
    **model: Any,
) -> TrainingRun:
    """Train a small model for some steps; from step ``onset`` on rival flows share every link.

    Args:
        policy: as ``--policy`` of the coordinator; "none": no plugin, coordinator or hook.
        level: share of a link's rate that the rivals want, 0 to 1; 0: there are none.
        steps: of training.
        onset: step that contention begins with; ``steps`` or more: never.
        nodes: hosts, one rank each.
        rate_bps: of every link.
        queue_ms: depth of their queues, as time at that rate.
        rivals: TCP congestion control of the rival flows; None: the kernel's default.
        seed: of model, data and policy.
        fence_every: steps between fences.
        progress: called with each step's number.
        **model: ``width``, ``layers``, ``batch``, ``bucket_mb`` of :class:`.trainer.Job`.

    Raises:
        TrainingError: something failed.
        NetHostsError: no namespaces here.
        BuildError: plugin or engine cannot be built.
        ValueError: an argument makes no sense.
    """
    if steps < 1 or onset < 0 or fence_every < 1:
        raise ValueError(f"steps = {steps}, onset = {onset}, fence_every = {fence_every}: too few")
    if not 0 <= level <= 1:
        raise ValueError(f"level = {level}: 0 to 1")
    known = congestion_controls()
    if rivals is not None and rivals not in known:
        raise ValueError(f"rivals = {rivals!r}: this kernel has {', '.join(known)}")
    build_engine()
    built = build()
    with ExitStack() as stack:
        hosts = stack.enter_context(
            NetHosts(
                nodes, rate_bps=rate_bps, queue_ms=queue_ms, burst_ms=BURST_MS,
                least_burst=LEAST_BURST, rto_min_ms=RTO_MIN_MS, congestion=known[0],
            )
        )  # fmt: skip
        base = stack.enter_context(tempfile.TemporaryDirectory(dir=_memory()))
        world = stack.enter_context(
            TrainingJob(hosts, rate_bps, Path(base), built, plugin=policy != NOTHING)
        )
        world.start_rivals(rivals or known[0])
        log = None
        if policy != NOTHING:
            world.start_coordinators(policy, seed)
            log = stack.enter_context(CallLog(world.file(node) for node in range(nodes)))
        told = {
            "ranks": nodes, "store": str(Path(base) / "store"), "steps": steps, "seed": seed,
            "fence_every": fence_every if policy != NOTHING else 0, **model,
        }  # fmt: skip
        world.start_ranks(told)
        onset_ns = world.follow(steps, onset if level > 0 else steps, level, progress)
        found = world.steps(steps)
        status = world.status() if policy != NOTHING else {}
        time.sleep(0.2)  # the log's last look
        calls = log.calls(nodes) if log is not None else []
        return TrainingRun(
            policy, level, onset, nodes, rate_bps, seed, world.parameters,
            *found, onset_ns, calls, switches(world.events, calls, nodes),
            status.get("fault"), _problems(status, calls),
        )  # fmt: skip


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def switches(
    events: Sequence[tuple[int, dict[str, Any]]], calls: Sequence[Call], nodes: int
) -> list[Switch]:
    """Return the offers among a skeleton's events, and what the calls say of each."""
    offered: dict[int, int] = {}
    applied: dict[int, dict[str, int]] = {}
    for at, event in events:
        if event["event"] == "offer":
            offered.setdefault(event["epoch"], at)
        elif event["event"] == "applied":
            applied.setdefault(event["epoch"], {})[event["node"]] = at
    found = []
    for epoch, at in offered.items():
        done = applied.get(epoch, {})
        first = next((c for c in calls if c.epoch >= epoch), None)
        late = None
        if first is not None and first.epoch == epoch:
            late = sum(at <= c.start_ns < first.start_ns for c in calls)
        found.append(
            Switch(epoch, at, max(done.values()) if len(done) == nodes else None, late)
        )  # fmt: skip
    return found


def _problems(status: dict[str, Any], calls: Sequence[Call]) -> list[str]:
    found = [f"refused: {text}" for text in status.get("refusals", [])]
    for name in ("records_lost", "samples_dropped"):
        if status.get(name):
            found.append(f"{name}: {status[name]}")
    differ = sum(not call.alike for call in calls)
    if differ:
        found.append(f"{differ} collectives ran differently on their ranks")
    return found


def distance(one: TrainingRun, other: TrainingRun) -> float:
    """Return the largest relative difference of two runs' losses at the same step."""
    return max(abs(a - b) / abs(b) for a, b in zip(one.loss, other.loss, strict=False))
