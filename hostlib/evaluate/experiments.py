"""The paper's experiments (section 5.1), for any policies in any environment.

Each function returns plain data. What is compared is paired: every policy meets the same jobs, the
same schedules and, where the environment can, the same noise.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ringstep.hostlib.dynamic.policy import DynamicPolicy
from ringstep.hostlib.dynamic.safety import SafetyParams
from ringstep.hostlib.dynamic.sample import Sample
from ringstep.hostlib.evaluate.environment import Environment
from ringstep.hostlib.evaluate.harness import Decider, Episode, run_episode
from ringstep.hostlib.evaluate.report.shape import quantiles
from ringstep.hostlib.evaluate.stats import Interval, bootstrap, sign_flip
from ringstep.hostlib.rivals.fixed import Fixed
from ringstep.hostlib.rivals.nccl import LeaveNccl
from ringstep.hostlib.traces import scenarios as sc
from ringstep.hostlib.traces.fluid import Load

BUDGET: Final = SafetyParams().budget
"""The stated bound: a share of time that may be lost against NCCL's choice."""
Maker = Callable[[Environment], Decider]
"""Makes a fresh policy for an environment."""
Progress = Callable[[str], None]
Seen = Callable[[float, Mapping[str, list[Episode]]], None]
"""Is shown the episodes of a level, by policy."""

NCCL: Final = "nccl"
ORACLE: Final = "oracle"
"""The best configuration of each level, by sweep: no policy, a bound."""
ONSET: Final = 20
"""Calls before contention, where an experiment does not say."""
ONSETS: Final = (10, 20, 30)


def _median(values: Sequence[float]) -> float:
    # As numpy's, whose set-up takes longer than sorting as few as these.
    if not values or any(map(math.isnan, values)):
        return float("nan")
    return float(statistics.median(values))


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def detection(
    policies: Mapping[str, Maker], environments: Sequence[Environment], seeds: Sequence[int],
    levels: Sequence[float] = sc.LEVELS, calls: int = 80, progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return, by policy and level, calls to find sustained contention (onset at call 20).

    ``median`` has an interval over episodes; ``found`` is the share found at all, ``false_alarms``
    those before the onset.
    """
    found: dict[str, Any] = {}
    for name, make in policies.items():
        rows = {}
        for level in levels:
            schedule = sc.sustained(calls, level, ONSET)
            rows[f"{level:g}"] = detection_row(_run(make, environments, seeds, schedule))
            if progress is not None:
                progress(f"detection {name} {level:.0%}")
        found[name] = rows
    return found


def detection_row(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return how soon sustained contention was found in episodes."""
    times = [e.detect_calls for e in episodes]
    return {
        "median": _finite(bootstrap(times, _median)),
        "p90": _plain(float(np.percentile(times, 90, method="higher"))),
        "found": float(np.mean(np.isfinite(times))),
        "false_alarms": sum(e.false_alarms for e in episodes),
        "episodes": len(times),
    }


def onsets(
    policies: Mapping[str, Maker], environments: Sequence[Environment], seeds: Sequence[int],
    level: float = 0.8, progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return, by policy, median calls to detection for onsets at calls 10, 20 and 30."""
    found = {}
    for name, make in policies.items():
        found[name] = {
            str(at): _finite(
                bootstrap(
                    [
                        e.detect_calls
                        for e in _run(make, environments, seeds, sc.sustained(70, level, at))
                    ],
                    _median,
                )
            )
            for at in ONSETS
        }
        if progress is not None:
            progress(f"onsets {name}")
    return found


def false_reconfigurations(
    policies: Mapping[str, Maker], environments: Sequence[Environment], seeds: Sequence[int],
    clean_calls: int = 10_000, progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return, by policy, reconfigurations on six spikes of two calls, and on clean calls.

    ``clean_calls`` are spread over the environments, in episodes of 1,000 at most.
    """
    each = max(min(1000, clean_calls), 20)
    found = {}
    for name, make in policies.items():
        spikes = _run(make, environments, seeds, sc.paper_spikes())
        clean = []
        for i in range(-(-clean_calls // each)):
            env = environments[i % len(environments)]
            clean.append(run_episode(make(env), env, sc.clean(each), 10_000 + i))
        found[name] = {
            "spikes": {
                "episodes": len(spikes), "spikes": 6 * len(spikes),
                "false_alarms": sum(e.false_alarms for e in spikes),
                "false_reconfigurations": sum(e.false_reconfigurations for e in spikes),
            },
            "clean": {
                "calls": each * len(clean),
                "false_alarms": sum(e.false_alarms for e in clean),
                "false_reconfigurations": sum(e.false_reconfigurations for e in clean),
            },
        }  # fmt: skip
        if progress is not None:
            progress(f"false reconfigurations {name}")
    return found


def gains(
    policies: Mapping[str, Maker], environments: Sequence[Environment], seeds: Sequence[int],
    levels: Sequence[float] = (0.0, *sc.LEVELS), calls: int = 220,
    progress: Progress | None = None, seen: Seen | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return gains against NCCL's choice and shares of the oracle's gain, by policy and level.

    Contention starts at call 20. ``gain_vs_nccl`` is 1 - median latency / NCCL's, over all calls
    from the onset on, detection and trials included; ``settled`` over the last half of them.
    ``share_of_oracle`` is on mean times, so that trials and checks cost what they cost.
    Level 0 gives the overhead on a clean network.
    """
    found: dict[str, Any] = {name: {} for name in policies}
    for level in levels:
        schedule = sc.sustained(calls, level, ONSET) if level else sc.clean(calls)
        runs = paired(_with_bounds(policies, level), environments, seeds, schedule)
        if seen is not None:
            seen(level, runs)
        for name in policies:
            found[name][f"{level:g}"] = gain_row(runs[name], runs[NCCL], runs[ORACLE], ONSET)
        if progress is not None:
            progress(f"gains {level:.0%}")
    return found


def gain_row(
    runs: Sequence[Episode], base: Sequence[Episode], top: Sequence[Episode], onset: int
) -> dict[str, Any]:
    """Return gains of episodes against those of NCCL's choice, beside the oracle's."""
    half = onset + (len(runs[0].schedule) - onset) // 2
    units = [
        {
            "ratio": _ratio(np.median, e, b, onset), "settled": _ratio(np.median, e, b, half),
            "mean": _ratio(np.mean, e, b, onset), "oracle": _ratio(np.mean, t, b, onset),
            "oracle_p50": _ratio(np.median, t, b, onset), "all": _ratio(np.mean, e, b, 0),
        }
        for e, b, t in zip(runs, base, top, strict=True)
    ]  # fmt: skip
    return {
        "gain_vs_nccl": _gain(units, "ratio").plain(),
        "settled_gain": _gain(units, "settled").plain(),
        "mean_gain": _gain(units, "mean").plain(),
        "oracle_gain": _gain(units, "oracle_p50").plain(),
        "share_of_oracle": _finite(bootstrap(units, _share)),
        "p_value": sign_flip([float(np.log(u["mean"])) for u in units]),
        "worst_episode": float(max(u["mean"] for u in units) - 1),
        "loss": {
            "worst": max(u["all"] for u in units) - 1,
            "over": sum(u["all"] - 1 > BUDGET for u in units),
            "episodes": len(units),
        },
        "reconfigurations": float(np.mean([e.reconfigurations for e in runs])),
    }


REGIMES: Final = {"equal": 0, "fair": 150}
"""Clean calls before contention: none, or time for a search to converge (100 in the paper)."""


def versus(
    policies: Mapping[str, Maker],
    rival: str,
    environments: Sequence[Environment],
    seeds: Sequence[int],
    levels: Sequence[float] = sc.LEVELS,
    calls: int = 200,
    progress: Progress | None = None,
    seen: Seen | None = None,
) -> dict[str, Any]:
    """Return gains of every policy against one of them, by regime and level.

    ``equal``: contention from the first call on, all start at once; ``fair``: clean calls first.
    Median and mean latencies are over all contended calls, ``settled`` over the last half. ``seen``
    is shown the episodes of the fair regime.
    """
    found: dict[str, Any] = {name: {} for name in policies}
    for regime, before in REGIMES.items():
        for level in levels:
            schedule = sc.sustained(before + calls, level, before)
            runs = paired(policies, environments, seeds, schedule)
            if seen is not None and before:
                seen(level, runs)
            for name, episodes in runs.items():
                pairs = list(zip(episodes, runs[rival], strict=True))
                units = [
                    {
                        "median": _ratio(np.median, e, r, before),
                        "mean": _ratio(np.mean, e, r, before),
                        "settled": _ratio(np.median, e, r, before + calls // 2),
                    }
                    for e, r in pairs
                ]
                found[name].setdefault(regime, {})[f"{level:g}"] = {
                    "gain": _gain(units, "median").plain(),
                    "mean_gain": _gain(units, "mean").plain(),
                    "settled_gain": _gain(units, "settled").plain(),
                    "p_value": sign_flip([float(np.log(u["median"])) for u in units]),
                }
            if progress is not None:
                progress(f"against {rival}, {regime}, {level:.0%}")
    return found


def table(
    policies: Mapping[str, Maker],
    environments: Mapping[str, Environment],
    seeds: Sequence[int],
    levels: Sequence[float] = sc.LEVELS,
    calls: int = 200,
    progress: Progress | None = None,
    iterations: int = 40,
) -> dict[str, Any]:
    """Return mean gains by policy, environment and level: sizes, ranks, nodes or workloads.

    Contention starts after a tenth of the calls, which are at least ``iterations`` of a workload;
    what is compared is all that comes after.
    ``oracle`` is among the policies: the best configuration of each level, by sweep.
    """
    found: dict[str, Any] = {name: {} for name in (ORACLE, *policies)}
    for label, env in environments.items():
        for level in levels:
            count = max(calls, iterations * _spacing(env))
            onset = max(count // 10, min(12 * _spacing(env), count // 4), 1)
            schedule = sc.sustained(count, level, onset)
            every = paired(_with_bounds(policies, level), [env], seeds, schedule)
            base = every[NCCL]
            for name in (ORACLE, *policies):
                runs = every[name]
                row = found[name].setdefault(label, {})
                row[f"{level:g}"] = mean_gain(runs, base, onset)
        if progress is not None:
            progress(f"table {label}")
    return found


def mean_gain(
    runs: Sequence[Episode], base: Sequence[Episode], onset: int
) -> dict[str, float | int]:
    """Return the gain of mean latencies from a call on, its median over episodes."""
    pairs = zip(runs, base, strict=True)
    return _gain([{"mean": _ratio(np.mean, e, b, onset)} for e, b in pairs], "mean").plain()


def transitions(
    policies: Mapping[str, Maker], environments: Sequence[Environment], seeds: Sequence[int],
    progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the paper's figure 12: escalating and de-escalating load, latencies by phase."""
    plans = {
        "escalating": sc.steps(150, {20: 0.6, 85: 0.8}),
        "de-escalating": sc.steps(150, {20: 0.8, 85: 0.6}),
        "ending": sc.steps(150, {20: 0.8, 85: 0.0}),
    }
    found: dict[str, Any] = {name: {} for name in policies}
    for what, schedule in plans.items():
        every = paired(_with_bounds(policies, 0.0), environments, seeds, schedule)
        for name in policies:
            pairs = list(zip(every[name], every[NCCL], strict=True))
            found[name][what] = {
                "first_phase_gain": _phase(pairs, 20, 85),
                "second_phase_gain": _phase(pairs, 85, 150),
                "reconfigurations": float(np.mean([e.reconfigurations for e, _ in pairs])),
                "in_force_at_the_end": sum(e.configs[-1] is not None for e, _ in pairs)
                / len(pairs),
            }
        if progress is not None:
            progress(f"transitions {what}")
    return found


def _phase(pairs: Sequence[tuple[Episode, Episode]], first: int, last: int) -> float:
    return 1 - _median([_part(e, first, last) / _part(b, first, last) for e, b in pairs])


def distributions(
    runs: Mapping[str, Sequence[Episode]], level: float, rivals: Sequence[str] = (NCCL,)
) -> dict[str, Any]:
    """Return latencies of contended calls by policy; with NCCL's choice among them.

    In units of NCCL's clean median in the same environment; tests are paired by episode.
    """
    before = runs[NCCL][0].schedule.onset or 0
    scale = [float(np.median(e.latency_us[1:before])) for e in runs[NCCL]]
    pooled = {
        name: np.concatenate(
            [e.latency_us[before:] / s for e, s in zip(episodes, scale, strict=True)]
        )
        for name, episodes in runs.items()
    }
    tests = []
    for name in runs:
        for rival in rivals:
            if name in rivals:
                continue
            units = [
                {"median": _ratio(np.median, e, r, before)}
                for e, r in zip(runs[name], runs[rival], strict=True)
            ]
            tests.append(
                {
                    "policy": name, "rival": rival, "gain": _gain(units, "median").plain(),
                    "p_value": sign_flip([float(np.log(u["median"])) for u in units]),
                    "pairs": len(units),
                }
            )  # fmt: skip
    return {
        "level": level, "unit": "clean median of NCCL's choice", "tests": tests,
        "policies": {name: quantiles(values.tolist()) for name, values in pooled.items()},
    }  # fmt: skip


def timelines(
    make: Callable[[Environment], DynamicPolicy], env: Environment, seed: int = 0,
    levels: Sequence[float] = sc.LEVELS, calls: int = 60,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return an episode per level, call by call: contention ratio and the detector's probability.

    The ratio is to the median of the calls before the onset.
    """
    found = []
    for level in levels:
        policy, schedule = make(env), sc.sustained(calls, level, ONSET)
        probability: list[float | None] = []

        class Watched:
            def __init__(self, policy: DynamicPolicy, told: list[float | None]) -> None:
                self.process, self.state = policy.process, policy.state
                self._policy, self._told = policy, told

            def observe(self, sample: Sample) -> None:
                self._policy.observe(sample)
                asked = not sample.decided
                value = self._policy.status(sample.key).get("probability")
                self._told.append(value if asked else None)

        episode = run_episode(Watched(policy, probability), env, schedule, seed)
        times = episode.latency_us / np.median(episode.latency_us[1:ONSET])
        sustained = np.flatnonzero(episode.sustained)
        switched = [i for i, config in enumerate(episode.configs) if config is not None]
        found.append(
            {
                "level": level, "onset": ONSET,
                "ratio": [round(float(t), 4) for t in times], "probability": probability,
                "found": int(sustained[0]) if len(sustained) else None,
                "switched": switched[0] if switched else None,
            }
        )  # fmt: skip
    return found


def _spacing(env: Environment) -> int:
    """Return the calls of an iteration: 1 where there is one key."""
    return int(getattr(env, "calls_per_iteration", 1))


def _run(
    make: Maker, environments: Sequence[Environment], seeds: Sequence[int], schedule: sc.Schedule
) -> list[Episode]:
    return paired({"": make}, environments, seeds, schedule)[""]


def paired(
    policies: Mapping[str, Maker], environments: Sequence[Environment], seeds: Sequence[int],
    schedule: sc.Schedule,
) -> dict[str, list[Episode]]:  # fmt: skip
    """Run every policy in every environment: side by side, so that drift of real ones hits all.

    In random order, because on real links what comes first takes a little longer.
    """
    found: dict[str, list[Episode]] = {name: [] for name in policies}
    for env in environments:
        for seed in seeds:
            order = random.Random(f"{env.name} {schedule.level.sum():.6g} {seed}")
            for name in order.sample(list(policies), len(policies)):
                found[name].append(run_episode(policies[name](env), env, schedule, seed))
    return found


def _with_bounds(policies: Mapping[str, Maker], level: float) -> dict[str, Maker]:
    """Return the policies with NCCL's choice and the oracle's beside them."""

    def ideal(env: Environment) -> Decider:
        return Fixed(env.oracle(Load(level)))

    return {NCCL: lambda env: LeaveNccl(), ORACLE: ideal, **policies}


def _part(episode: Episode, first: int, last: int) -> float:
    return float(np.mean(episode.latency_us[first:last]))


def _ratio(figure: Any, episode: Episode, base: Episode, first: int) -> float:
    return float(figure(episode.latency_us[first:]) / figure(base.latency_us[first:]))


def _gain(units: Sequence[Mapping[str, float]], name: str) -> Interval:
    return bootstrap(units, lambda chosen: 1 - _median([u[name] for u in chosen]))


def _share(units: Sequence[Mapping[str, float]]) -> float:
    """Gain over the oracle's, on all episodes together; NaN where there is nothing to gain."""
    there = sum(1 - u["oracle"] for u in units)
    if there < 0.01 * len(units):
        return float("nan")
    return sum(1 - u["mean"] for u in units) / there


def _finite(interval: Interval) -> dict[str, Any]:
    plain: dict[str, Any] = interval.plain()
    return {k: (_plain(v) if isinstance(v, float) else v) for k, v in plain.items()}
