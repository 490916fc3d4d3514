"""``ringstep tuner evaluate``: the paper's experiments, for the learned policy and its rivals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from ringstep.hostlib.cli_options import fail
from ringstep.hostlib.coordinator.autoccl import AutoCcl
from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.dynamic.baseline import Baselines
from ringstep.hostlib.dynamic.bench import inference_ms
from ringstep.hostlib.dynamic.detector import Detector
from ringstep.hostlib.dynamic.policy import (
    DETECTOR_FILE,
    SELECTOR_FILE,
    DynamicPolicy,
    PolicyParams,
)
from ringstep.hostlib.dynamic.safety import SafetyParams
from ringstep.hostlib.dynamic.selector import Selector
from ringstep.hostlib.dynamic.sprt import RULES
from ringstep.hostlib.dynamic.weights import WeightsError, load
from ringstep.hostlib.evaluate import experiments
from ringstep.hostlib.evaluate.calibration import measure
from ringstep.hostlib.evaluate.environment import Environment, FluidEnvironment, Lagged
from ringstep.hostlib.evaluate.workloads import PARAMETERS, FluidWorkload, workload
from ringstep.hostlib.rivals import Coordinated, CusumRule, LeaveNccl, ThresholdRule, UcbBandit
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces.fluid import FluidParams
from ringstep.hostlib.traces.generate import Job, random_job
from ringstep.hostlib.traces.noise import NoiseParams

JOB_SEED = 900_001
"""Seeds from here on are for evaluation alone; training never draws from them."""
AUTOCCL = "autoccl"
UNDETECTING = ("nccl", "bandit", AUTOCCL)
SHOWN = ("0.5", "0.7", "0.8", "0.9")


def fluid_environments(count: int, lag: int = 0) -> list[Environment]:
    """Return environments of jobs that no training has seen; decisions are ``lag`` calls late."""
    found: list[Environment] = []
    for i in range(count):
        job: Job = random_job(np.random.default_rng([JOB_SEED, i]))
        env = FluidEnvironment(job, f"fluid {i}: {job.key.collective.name.lower()}")
        found.append(Lagged(env, lag) if lag else env)
    return found


def fluid_tables() -> dict[str, dict[str, Environment]]:
    """Return the paper's figures 14, 16 and 17 as environments: four nodes at 10 Gb/s."""

    def one(ranks: int, nodes: int, size: int) -> Environment:
        key = Key.of(ranks, nodes, Collective.ALL_REDUCE, size)
        return FluidEnvironment(Job(FluidParams(), key, size, NoiseParams()))

    return {
        "sizes": {f"{mib} MiB": one(4, 4, mib << 20) for mib in (256, 512, 1024, 2048, 4096)},
        "ranks_per_node": {str(n): one(4 * n, 4, 256 << 20) for n in (1, 2, 3, 4)},
        "nodes": {str(n): one(n, n, 256 << 20) for n in (4, 8, 12, 16, 24)},
        "workloads": {name: FluidWorkload(workload(name), 4, 4) for name in PARAMETERS},
    }


def rivals() -> dict[str, experiments.Maker]:
    """Return the policies without a learned model, by name."""
    trial = SafetyParams()
    return {
        "nccl": lambda env: LeaveNccl(),
        AUTOCCL: lambda env: Coordinated(AutoCcl()),
        "threshold": lambda env: ThresholdRule(),
        "threshold+trial": lambda env: ThresholdRule(safety=trial),
        "cusum": lambda env: CusumRule(),
        "cusum+trial": lambda env: CusumRule(safety=trial),
        "bandit": lambda env: UcbBandit(),
    }


def evaluate_command(
    out: Annotated[Path, typer.Option("--json", metavar="FILE", help="Written: all figures.")],
    weights: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with detector and selector (.safetensors).")
    ],
    environment: Annotated[str, typer.Option(help="fluid: the fluid model.")] = "fluid",
    jobs: Annotated[int, typer.Option(help="Different jobs.", min=1)] = 12,
    seeds: Annotated[int, typer.Option(help="Episodes of each.", min=1)] = 3,
    clean_calls: Annotated[int, typer.Option(help="Without contention.", min=20)] = 10_000,
    lag: Annotated[
        int, typer.Option(help="Calls from a decision to the first that runs it.", min=0)
    ] = 0,
    rule: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(RULES)}; by default the one that the detector fits."),
    ] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="Sizes, ranks, nodes and the six workloads too.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="These policies only; may be given again.")
    ] = None,
) -> None:
    """Run the experiments and write every figure with its interval.

    Example: ringstep tuner evaluate --json evaluation.json --weights weights
    """
    if environment != "fluid":
        fail(f"--environment {environment}: fluid")
    chosen_rule = next((r for r in RULES if r == rule), None)
    if rule is not None and chosen_rule is None:
        fail(f"--rule {rule}: {', '.join(RULES)}")
    try:
        detector = Detector(load(weights / DETECTOR_FILE, "detector"))
        selector = Selector(load(weights / SELECTOR_FILE, "selector"))
    except WeightsError as error:
        fail(str(error))
    params = PolicyParams(rule=chosen_rule)
    policies: dict[str, experiments.Maker] = {
        "dynamic": lambda env: DynamicPolicy(detector, selector, params),
        "dynamic+calibration": lambda env: DynamicPolicy(
            detector, selector, params, Baselines(measure([env]).baselines)
        ),
        **rivals(),
    }
    if unknown := [name for name in only or () if name not in policies]:
        fail(f"--only {unknown[0]}: {', '.join(policies)}")
    policies = {name: policies[name] for name in only or policies}
    if not out.parent.is_dir():
        fail(f"{out.parent}: no such folder")
    console = Console(stderr=True, highlight=False)
    with console.status("") as status:
        found = evaluate(
            policies, fluid_environments(jobs, lag), range(seeds), clean_calls, status.update
        )
        if tables:
            for what, cells in fluid_tables().items():
                found[what] = experiments.table(
                    policies, cells, range(seeds), progress=status.update
                )
    found["inference_ms"] = inference_ms(detector, selector)
    out.write_text(json.dumps(found, indent=1) + "\n")
    _print(found)


def evaluate(
    policies: dict[str, Callable[[Environment], Any]],
    environments: list[Environment],
    seeds: range,
    clean_calls: int = 10_000,
    progress: experiments.Progress | None = None,
) -> dict[str, Any]:
    """Return all figures, by experiment and policy.

    ``clean_overhead_pct``, ``detect_calls``, ``gain_vs_nccl`` and ``share_of_oracle`` are gathered
    from the experiments, by policy and level.
    """
    detects = {n: m for n, m in policies.items() if n not in UNDETECTING}
    found: dict[str, Any] = {
        "environment": [env.name for env in environments],
        "seeds": len(seeds),
        "detection": experiments.detection(detects, environments, seeds, progress=progress),
        "onsets": experiments.onsets(detects, environments, seeds, progress=progress),
        "false_reconfigurations": experiments.false_reconfigurations(
            policies, environments, seeds, clean_calls, progress
        ),
        "gains": experiments.gains(policies, environments, seeds, progress=progress),
        "transitions": experiments.transitions(policies, environments, seeds, progress),
    }
    if AUTOCCL in policies:
        found["versus_autoccl"] = experiments.versus(
            policies, AUTOCCL, environments, seeds, progress=progress
        )
        found["gain_vs_autoccl"] = {
            name: {level: row["gain"] for level, row in rows["fair"].items()}
            for name, rows in found["versus_autoccl"].items()
        }
    found["detect_calls"] = {
        name: {level: row["median"] for level, row in rows.items()}
        for name, rows in found["detection"].items()
    }
    for key in ("gain_vs_nccl", "share_of_oracle"):
        found[key] = {
            name: {level: row[key] for level, row in rows.items() if level != "0"}
            for name, rows in found["gains"].items()
        }
    found["clean_overhead_pct"] = {
        name: {
            "value": -100 * rows["0"]["mean_gain"]["value"],
            "low": -100 * rows["0"]["mean_gain"]["high"],
            "high": -100 * rows["0"]["mean_gain"]["low"],
        }
        for name, rows in found["gains"].items()
    }
    return found


def _print(found: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, title_justify="left",
                  title="median gain against NCCL's choice, from the onset on, in %")  # fmt: skip
    table.add_column("policy")
    for level in SHOWN:
        table.add_column(f"{float(level):.0%}", justify="right")
    for name in ("detect 50 %", "detect 80 %", "false", "overhead %"):
        table.add_column(name, justify="right")
    for name, rows in found["gains"].items():
        detect = found["detect_calls"].get(name, {})
        wrong = found["false_reconfigurations"][name]
        table.add_row(
            name,
            *(f"{100 * rows[level]['gain_vs_nccl']['value']:.1f}" for level in SHOWN),
            *(
                "" if level not in detect else str(detect[level]["value"] or "never")
                for level in ("0.5", "0.8")
            ),
            str(
                wrong["spikes"]["false_reconfigurations"] + wrong["clean"]["false_reconfigurations"]
            ),
            f"{found['clean_overhead_pct'][name]['value']:.2f}",
        )
    Console(highlight=False).print(table)
