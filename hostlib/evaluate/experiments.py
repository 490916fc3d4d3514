"""The paper's experiments (section 5.1), for any policies in any environment.

Each function returns plain data. What is compared is paired: every policy meets the same jobs, the
same schedules and, where the environment can, the same noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ringstep.hostlib.evaluate.environment import Environment
from ringstep.hostlib.evaluate.harness import Decider, Episode, run_episode
from ringstep.hostlib.evaluate.stats import Interval, bootstrap, sign_flip
from ringstep.hostlib.rivals.fixed import Fixed
from ringstep.hostlib.rivals.nccl import LeaveNccl
from ringstep.hostlib.traces import scenarios as sc
from ringstep.hostlib.traces.fluid import Load

Maker = Callable[[Environment], Decider]
"""Makes a fresh policy for an environment."""
Progress = Callable[[str], None]

ONSETS: Final = (10, 20, 30)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else float("nan")


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
            episodes = _run(make, environments, seeds, sc.sustained(calls, level, 20))
            times = [e.detect_calls for e in episodes]
            alarms = sum(e.false_alarms for e in episodes)
            rows[f"{level:g}"] = {
                "median": _finite(bootstrap(times, _median)),
                "p90": _plain(float(np.percentile(times, 90, method="higher"))),
                "found": float(np.mean(np.isfinite(times))),
                "false_alarms": alarms,
                "episodes": len(times),
            }
            if progress is not None:
                progress(f"detection {name} {level:.0%}")
        found[name] = rows
    return found


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
    levels: Sequence[float] = sc.LEVELS, calls: int = 220, progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return gains against NCCL's choice and shares of the oracle's gain, by policy and level.

    Contention starts at call 20. ``gain_vs_nccl`` is 1 - median latency / NCCL's, over all calls
    from the onset on, detection and trials included; ``settled`` over the last half of them.
    ``share_of_oracle`` is on mean times, so that trials and checks cost what they cost.
    Level 0 gives the overhead on a clean network.
    """
    found: dict[str, Any] = {name: {} for name in policies}
    for level in (0.0, *levels):
        schedule = sc.sustained(calls, level, 20) if level else sc.clean(calls)
        base = _run(lambda env: LeaveNccl(), environments, seeds, schedule)

        def ideal(env: Environment, level: float = level) -> Decider:
            return Fixed(env.oracle(Load(level)))

        top = _run(ideal, environments, seeds, schedule)
        for name, make in policies.items():
            runs = _run(make, environments, seeds, schedule)
            units = [
                {
                    "ratio": _ratio(np.median, e, b, 20), "settled": _ratio(np.median, e, b, 120),
                    "mean": _ratio(np.mean, e, b, 20), "oracle": _ratio(np.mean, t, b, 20),
                    "oracle_p50": _ratio(np.median, t, b, 20),
                }
                for e, b, t in zip(runs, base, top, strict=True)
            ]  # fmt: skip
            found[name][f"{level:g}"] = {
                "gain_vs_nccl": _gain(units, "ratio").plain(),
                "settled_gain": _gain(units, "settled").plain(),
                "mean_gain": _gain(units, "mean").plain(),
                "oracle_gain": _gain(units, "oracle_p50").plain(),
                "share_of_oracle": _finite(bootstrap(units, _share)),
                "p_value": sign_flip([float(np.log(u["mean"])) for u in units]),
                "worst_episode": float(max(u["mean"] for u in units) - 1),
                "reconfigurations": float(np.mean([e.reconfigurations for e in runs])),
            }
            if progress is not None:
                progress(f"gains {name} {level:.0%}")
    return found


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
) -> dict[str, Any]:
    """Return gains of every policy against one of them, by regime and level.

    ``equal``: contention from the first call on, all start at once; ``fair``: clean calls first.
    Median and mean latencies are over all contended calls, ``settled`` over the last half.
    """
    found: dict[str, Any] = {name: {} for name in policies}
    for regime, before in REGIMES.items():
        for level in levels:
            schedule = sc.sustained(before + calls, level, before)
            runs = {n: _run(m, environments, seeds, schedule) for n, m in policies.items()}
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
) -> dict[str, Any]:
    """Return mean gains by policy, environment and level: sizes, ranks, nodes or workloads.

    Contention starts after a tenth of the calls, which are at least forty
    iterations of a workload; what is compared is all that comes after.
    ``oracle`` is among the policies: the best configuration of each level, by sweep.
    """
    found: dict[str, Any] = {name: {} for name in ("oracle", *policies)}
    for label, env in environments.items():
        for level in levels:
            count = max(calls, 40 * _spacing(env))
            onset = max(count // 10, 12 * _spacing(env))
            schedule = sc.sustained(count, level, onset)
            base = _run(lambda env: LeaveNccl(), [env], seeds, schedule)

            def ideal(env: Environment, level: float = level) -> Decider:
                return Fixed(env.oracle(Load(level)))

            for name, make in {"oracle": ideal, **policies}.items():
                runs = _run(make, [env], seeds, schedule)
                units = [
                    {"mean": _ratio(np.mean, e, b, onset)} for e, b in zip(runs, base, strict=True)
                ]
                row = found[name].setdefault(label, {})
                row[f"{level:g}"] = _gain(units, "mean").plain()
        if progress is not None:
            progress(f"table {label}")
    return found


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
    found: dict[str, Any] = {}
    for name, make in policies.items():
        rows = {}
        for what, schedule in plans.items():
            runs = _run(make, environments, seeds, schedule)
            base = _run(lambda env: LeaveNccl(), environments, seeds, schedule)
            rows[what] = {
                "first_phase_gain": 1 - _median(
                    [_part(e, 20, 85) / _part(b, 20, 85) for e, b in zip(runs, base, strict=True)]
                ),
                "second_phase_gain": 1 - _median(
                    [_part(e, 85, 150) / _part(b, 85, 150) for e, b in zip(runs, base, strict=True)]
                ),
                "reconfigurations": float(np.mean([e.reconfigurations for e in runs])),
                "in_force_at_the_end": sum(e.configs[-1] is not None for e in runs) / len(runs),
            }  # fmt: skip
        found[name] = rows
        if progress is not None:
            progress(f"transitions {name}")
    return found


def _spacing(env: Environment) -> int:
    """Return the calls of an iteration: 1 where there is one key."""
    return int(getattr(env, "calls_per_iteration", 1))


def _run(
    make: Maker, environments: Sequence[Environment], seeds: Sequence[int], schedule: sc.Schedule
) -> list[Episode]:
    return [run_episode(make(env), env, schedule, seed) for env in environments for seed in seeds]


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
