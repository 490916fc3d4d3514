"""All experiments of an evaluation: keys and figures as :mod:`.report.shape` describes them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ringstep.hostlib.coordinator.autoccl import AutoCcl
from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.dynamic.baseline import Baselines
from ringstep.hostlib.dynamic.detector import Detector
from ringstep.hostlib.dynamic.policy import DynamicPolicy, PolicyParams
from ringstep.hostlib.dynamic.safety import SafetyParams
from ringstep.hostlib.dynamic.selector import Selector
from ringstep.hostlib.evaluate import experiments
from ringstep.hostlib.evaluate.attribution import attribute
from ringstep.hostlib.evaluate.calibration import NotClean, measure
from ringstep.hostlib.evaluate.engine.cluster import EngineCluster
from ringstep.hostlib.evaluate.engine.environment import EngineEnvironment, EngineWorkload, scaled
from ringstep.hostlib.evaluate.environment import Environment
from ringstep.hostlib.evaluate.experiments import BUDGET, NCCL, Maker, Progress
from ringstep.hostlib.evaluate.harness import Episode
from ringstep.hostlib.evaluate.workloads import PARAMETERS, workload
from ringstep.hostlib.learn.data import transitions
from ringstep.hostlib.rivals import Coordinated, CusumRule, LeaveNccl, ThresholdRule, UcbBandit
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces import scenarios as sc
from ringstep.hostlib.traces.generate import generate

DYNAMIC: Final = "dynamic"
AUTOCCL: Final = "autoccl"
UNDETECTING: Final = (NCCL, "bandit", AUTOCCL)
LIVE: Final = (DYNAMIC, AUTOCCL, "threshold", "threshold+trial")
"""Policies that are compared where every call takes its time."""
LIVE_CALLS: Final = 140
TABLE_BYTES: Final = 512 << 10
STATES_SEED: Final = 900_002
STATES: Final = 800
"""As many as the paper asks (section 5.4)."""


def policies_of(
    detector: Detector, selector: Selector, params: PolicyParams | None = None
) -> dict[str, Maker]:
    """Return all policies by name: the learned one, and its rivals without a learned model."""
    trial = SafetyParams()
    return {
        DYNAMIC: lambda env: DynamicPolicy(detector, selector, params),
        "dynamic+calibration": lambda env: DynamicPolicy(
            detector, selector, params, Baselines(_calibration(env))
        ),
        NCCL: lambda env: LeaveNccl(),
        AUTOCCL: lambda env: Coordinated(AutoCcl()),
        "threshold": lambda env: ThresholdRule(),
        "threshold+trial": lambda env: ThresholdRule(safety=trial),
        "cusum": lambda env: CusumRule(),
        "cusum+trial": lambda env: CusumRule(safety=trial),
        "bandit": lambda env: UcbBandit(),
    }


def _calibration(env: Environment) -> Mapping[Key, float]:
    """Return clean latencies; none where a network is too restless to be calibrated."""
    try:
        return measure([env]).baselines
    except NotClean:
        return {}


def evaluate(
    policies: Mapping[str, Maker],
    environments: Sequence[Environment],
    seeds: Sequence[int],
    clean_calls: int = 10_000,
    progress: Progress | None = None,
    sizes: bool = False,
) -> dict[str, Any]:
    """Return all figures of environments in which calls cost next to nothing.

    With ``sizes`` the environments are the sizes of the heat map.
    """
    each = _ByEnvironment(environments)
    detects = {n: m for n, m in policies.items() if n not in UNDETECTING}
    found: dict[str, Any] = {
        "detection": experiments.detection(detects, environments, seeds, progress=progress),
        "onsets": experiments.onsets(detects, environments, seeds, progress=progress),
        "false_reconfigurations": experiments.false_reconfigurations(
            policies, environments, seeds, clean_calls, progress
        ),
        "gains": experiments.gains(
            policies, environments, seeds, progress=progress, seen=each.add if sizes else None
        ),
        "transitions": experiments.transitions(policies, environments, seeds, progress),
    }
    if sizes:
        found["sizes"] = each.table
    if AUTOCCL in policies:
        _versus(found, policies, environments, seeds, sc.LEVELS, 200, progress)
    return _gathered(found, environments, len(seeds))


def evaluate_live(
    policies: Mapping[str, Maker],
    environments: Sequence[Environment],
    seeds: int,
    main_seeds: int,
    clean_calls: int = 1000,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return the figures of environments in which calls take their time.

    Detection is counted in the episodes that give the gains, and the rest is asked of fewer
    policies.

    Args:
        policies: with those of :data:`LIVE` among them, or some of them.
        environments: started.
        seeds: episodes of each level and environment.
        main_seeds: of 80 % contention, the paper's main case.
        clean_calls: in NCCL's choice on a clean network, to count false alarms.
        progress: told what has ended.
    """
    compared = {name: policies[name] for name in LIVE if name in policies}
    own = {name: compared[name] for name in (DYNAMIC,) if name in compared}
    detection: dict[str, Any] = {name: {} for name in compared if name not in UNDETECTING}

    def seen(level: float, runs: Mapping[str, list[Episode]]) -> None:
        each.add(level, runs)
        for name, rows in detection.items():
            if level:
                rows[f"{level:g}"] = experiments.detection_row(runs[name])

    each = _ByEnvironment(environments)
    found: dict[str, Any] = {"detection": detection, "gains": {name: {} for name in compared}}
    for levels, count in (((0.0, 0.5, 0.7), seeds), ((0.8,), main_seeds), ((0.9,), seeds)):
        rows = experiments.gains(
            compared, environments, range(count), levels, LIVE_CALLS, progress, seen
        )
        for name in compared:
            found["gains"][name].update(rows[name])
    found["sizes"] = each.table
    found["onsets"] = experiments.onsets(own, environments, range(seeds), progress=progress)
    found["false_reconfigurations"] = experiments.false_reconfigurations(
        own, environments, range(main_seeds), clean_calls, progress
    )
    found["transitions"] = experiments.transitions(own, environments, range(seeds), progress)
    if AUTOCCL in compared:
        pair: dict[str, Maker] = {
            name: compared[name] for name in (DYNAMIC, AUTOCCL) if name in compared
        }
        _versus(found, pair, environments, range(seeds), (0.8,), 100, progress)
    return _gathered(found, environments, seeds)


class _ByEnvironment:
    """Gains in each environment by itself, from the episodes of an experiment."""

    def __init__(self, environments: Sequence[Environment]) -> None:
        self._labels = [_label(env) for env in environments]
        self.table: dict[str, dict[str, dict[str, Any]]] = {}

    def add(self, level: float, runs: Mapping[str, list[Episode]]) -> None:
        """Take the episodes of a level: those of one environment stand together."""
        if not level:
            return
        seeds = len(runs[NCCL]) // len(self._labels)
        for name, episodes in runs.items():
            for i, label in enumerate(self._labels):
                part = slice(i * seeds, (i + 1) * seeds)
                row = self.table.setdefault(name, {}).setdefault(label, {})
                row[f"{level:g}"] = experiments.mean_gain(
                    episodes[part], runs[NCCL][part], experiments.ONSET
                )


def _label(env: Environment) -> str:
    size = env.n_bytes
    text = f"{size / (1 << 20):g} MiB" if size >= 1 << 20 else f"{size / 1024:g} KiB"
    if env.key.collective is Collective.ALL_REDUCE:
        return text
    return f"{env.key.collective.name.lower()} {text}"


def steps_of(policies: Collection[str], live: bool, tables: bool, rules: bool) -> int:
    """Return how often an evaluation tells its progress."""
    levels, detecting = len(sc.LEVELS), len([n for n in policies if n not in UNDETECTING])
    own, autoccl = int(DYNAMIC in policies), int(AUTOCCL in policies)
    if live:
        found = levels + 1 + 2 * own + 3 + 2 * autoccl
        return found + (len(PARAMETERS) + 6 if tables else 0)
    found = (levels + 1) * detecting + len(policies) + levels + 1 + 3 + 2 * levels * autoccl
    cells = 5 + len(PARAMETERS) + 4 + 5
    return found + (cells if tables else 0) + (3 * (levels + 1) if rules else 0)


def _versus(
    found: dict[str, Any], policies: Mapping[str, Maker], environments: Sequence[Environment],
    seeds: Sequence[int], levels: Sequence[float], calls: int, progress: Progress | None,
) -> None:  # fmt: skip
    def seen(level: float, runs: Mapping[str, list[Episode]]) -> None:
        if level == 0.8:
            shown = {n: runs[n] for n in (NCCL, AUTOCCL, DYNAMIC, "threshold+trial") if n in runs}
            found["distributions"] = experiments.distributions(shown, level, (NCCL, AUTOCCL))

    everyone = {NCCL: lambda env: LeaveNccl(), **policies}
    found["versus_autoccl"] = experiments.versus(
        everyone, AUTOCCL, environments, seeds, levels, calls, progress, seen
    )
    found["gain_vs_autoccl"] = {
        name: {level: row["gain"] for level, row in rows["fair"].items()}
        for name, rows in found["versus_autoccl"].items()
    }


def _gathered(
    found: dict[str, Any], environments: Sequence[Environment], seeds: int
) -> dict[str, Any]:
    """Add the keys that are drawn from several experiments."""
    gains = found["gains"]
    found["detect_calls"] = {
        name: {level: row["median"] for level, row in rows.items()}
        for name, rows in found["detection"].items()
    }
    for key in ("gain_vs_nccl", "share_of_oracle"):
        found[key] = {
            name: {level: row[key] for level, row in rows.items() if level != "0"}
            for name, rows in gains.items()
        }
    found["clean_overhead_pct"] = {
        name: {
            "value": -100 * rows["0"]["mean_gain"]["value"],
            "low": -100 * rows["0"]["mean_gain"]["high"],
            "high": -100 * rows["0"]["mean_gain"]["low"],
            "n": rows["0"]["mean_gain"]["n"],
        }
        for name, rows in gains.items()
    }
    found["safety"] = {
        "budget": BUDGET,
        "losses": {
            name: {level: row["loss"] for level, row in rows.items()}
            for name, rows in gains.items()
        },
    }
    return {"environment": [env.name for env in environments], "seeds": seeds, **found}


@dataclass(frozen=True, slots=True)
class Links:
    """Of the engine's clusters; see :class:`EngineCluster`."""

    rate_bps: float
    queue_ms: float
    ranks: str | None
    rivals: str | None
    backlog: int

    def cluster(self, nodes: int, ranks_per_node: int = 1) -> EngineCluster:
        """Return a cluster with such links, not running yet."""
        return EngineCluster(
            nodes, self.rate_bps, self.queue_ms, ranks_per_node=ranks_per_node, ranks=self.ranks,
            rivals=self.rivals, backlog=self.backlog,
        )  # fmt: skip


def live_tables(
    policies: Mapping[str, Maker], links: Links, seeds: int, progress: Progress | None = None
) -> dict[str, Any]:
    """Return the paper's figures 16 and 17 on the engine, at 80 %: workloads, ranks and nodes.

    Workloads have fewer bytes (:data:`ringstep.hostlib.evaluate.engine.environment.SCALE`).
    """

    def run(cells: Mapping[str, Environment]) -> dict[str, Any]:
        return experiments.table(
            policies, cells, range(seeds), (0.8,), LIVE_CALLS, progress, iterations=0
        )

    found: dict[str, Any] = {"ranks_per_node": {}, "nodes": {}}
    with links.cluster(4) as four:
        found["workloads"] = run(
            {name: EngineWorkload(scaled(workload(name)), four) for name in PARAMETERS}
        )
    for what, plan in (
        ("ranks_per_node", {str(n): (4, n) for n in (1, 2, 4)}),
        ("nodes", {str(n): (n, 1) for n in (4, 6, 8)}),
    ):
        for label, (nodes, ranks) in plan.items():
            with links.cluster(nodes, ranks) as these:
                env = EngineEnvironment.on(these, Collective.ALL_REDUCE, TABLE_BYTES)
                for name, rows in run({label: env}).items():
                    found[what].setdefault(name, {}).update(rows)
    for rows in found.values():
        rows.pop(experiments.ORACLE)  # nothing of these was swept
    return found


def rules(
    detectors: Mapping[str, tuple[Detector, PolicyParams]],
    environments: Sequence[Environment],
    seeds: Sequence[int],
    clean_calls: int,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return how detectors with their test rules find contention, and what they hold for it."""

    def maker(detector: Detector, params: PolicyParams) -> Callable[[Environment], DynamicPolicy]:
        return lambda env: DynamicPolicy(detector, None, params)

    makers = {name: maker(*each) for name, each in detectors.items()}
    detection = experiments.detection(makers, environments, seeds, progress=progress)
    wrong = experiments.false_reconfigurations(makers, environments, seeds, clean_calls, progress)
    return {
        name: {"detection": detection[name], "false_reconfigurations": wrong[name]}
        for name in makers
    }


def attribution(detector: Detector, selector: Selector, traces: int = 160) -> dict[str, Any]:
    """Return what the selector's decisions hang on, over states of generated contention."""
    states = transitions(
        generate(STATES_SEED, traces), detector, None, STATES_SEED, per_trace=12
    ).take(slice(0, STATES))  # type: ignore[arg-type]
    return dict(attribute(selector, states.state, states.mask))


def machine() -> str:
    """Return what this ran on, in words."""
    cores = len(os.sched_getaffinity(0))
    release = platform.release().split("-")[0]
    return f"{cores} cores, {platform.system()} {release}, numpy {np.__version__}"
