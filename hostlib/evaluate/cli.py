"""``ringstep tuner evaluate``: the paper's experiments, for the learned policy and its rivals."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.table import Table

from ringstep.hostlib.cli_options import fail, progress_bar
from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.dynamic.detector import Detector
from ringstep.hostlib.dynamic.plug import WEIGHTS
from ringstep.hostlib.dynamic.policy import (
    DETECTOR_FILE,
    SELECTOR_FILE,
    DynamicPolicy,
    PolicyParams,
)
from ringstep.hostlib.dynamic.selector import Selector
from ringstep.hostlib.dynamic.sprt import RULES
from ringstep.hostlib.dynamic.weights import WeightsError, load
from ringstep.hostlib.evaluate import experiments
from ringstep.hostlib.evaluate.amounts import parse_bytes, parse_rate
from ringstep.hostlib.evaluate.engine.cluster import QUEUE_MS, EngineCluster, EngineError
from ringstep.hostlib.evaluate.engine.environment import EngineEnvironment
from ringstep.hostlib.evaluate.environment import (
    Environment,
    FluidEnvironment,
    Lagged,
    RecordedEnvironment,
)
from ringstep.hostlib.evaluate.evaluation import (
    DYNAMIC,
    Links,
    attribution,
    evaluate,
    evaluate_live,
    live_tables,
    machine,
    policies_of,
    rules,
    steps_of,
)
from ringstep.hostlib.evaluate.experiments import NCCL, timelines
from ringstep.hostlib.evaluate.inference import inference_ms
from ringstep.hostlib.evaluate.workloads import PARAMETERS, FluidWorkload, workload
from ringstep.hostlib.native.build import BuildError
from ringstep.hostlib.nethosts import NetHostsError
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces.cli import read_sweeps
from ringstep.hostlib.traces.fluid import FluidParams
from ringstep.hostlib.traces.generate import Job, random_job
from ringstep.hostlib.traces.noise import NoiseParams
from ringstep.hostlib.traces.sweep import Sweep

JOB_SEED = 900_001
"""Seeds from here on are for evaluation alone; training never draws from them."""
ENVIRONMENTS = {
    "fluid": "fluid: the fluid model, jobs at random",
    "recorded": "recorded: calls of sweeps, drawn again",
    "engine": "engine: the CPU engine on real TCP links (root)",
}
UNSHOWN = (NCCL, "dynamic+calibration", "cusum", "cusum+trial")
"""Policies that tables leave out."""
SHOWN = ("0.5", "0.7", "0.8", "0.9")


def fluid_environments(count: int) -> list[Environment]:
    """Return environments of jobs that no training has seen."""
    found: list[Environment] = []
    for i in range(count):
        job: Job = random_job(np.random.default_rng([JOB_SEED, i]))
        found.append(FluidEnvironment(job, f"fluid {i}: {job.key.collective.name.lower()}"))
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


def evaluate_command(
    out: Annotated[Path, typer.Option("--json", metavar="FILE", help="Written: all figures.")],
    weights: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder with detector and selector (.safetensors)."),
    ] = WEIGHTS,
    environment: Annotated[str, typer.Option(help="; ".join(ENVIRONMENTS.values()))] = "fluid",
    sweeps: Annotated[
        list[Path] | None,
        typer.Option(
            "--sweep",
            metavar="FILE",
            help="Sweeps for recorded and engine: collectives and oracle; may be given again.",
        ),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option("--bytes", help="Only sweeps of this size; may be given again."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="fluid: different jobs.", min=1)] = 12,
    seeds: Annotated[int, typer.Option(help="Episodes of each.", min=1)] = 3,
    main_seeds: Annotated[
        int, typer.Option(help="engine: episodes of each at 80 %, at least --seeds.", min=1)
    ] = 10,
    clean_calls: Annotated[int, typer.Option(help="Without contention.", min=20)] = 10_000,
    rate: Annotated[str, typer.Option(help="engine: of links, bits per second.")] = "200M",
    queue_ms: Annotated[float, typer.Option(help="engine: depth of queues.", min=0.1)] = QUEUE_MS,
    ranks: Annotated[
        str | None, typer.Option(help="engine: congestion control of the ranks.")
    ] = None,
    rivals: Annotated[
        str | None, typer.Option(help="engine: that of rival flows; bbr in the paper.")
    ] = None,
    backlog: Annotated[
        str | None,
        typer.Option(help="engine: unsent bytes that a rival holds (as the kernel likes)."),
    ] = None,
    lag: Annotated[
        int, typer.Option(help="Calls from a decision to the first that runs it.", min=0)
    ] = 0,
    rule: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(RULES)}; by default the one that the detector fits."),
    ] = None,
    contended: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="fluid: a detector trained with --target contended, to compare all test rules.",
        ),
    ] = None,
    tables: Annotated[
        bool,
        typer.Option("--tables", help="Ranks, nodes and the six workloads too; not for recorded."),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="These policies only; may be given again.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="In the report, instead of the environment's.")
    ] = None,
) -> None:
    """Run the experiments and write every figure with its interval.

    Example: ringstep tuner evaluate --json fluid.json --tables

    Example: ringstep tuner evaluate --environment engine --sweep engine.json --json live.json
    """
    if environment not in ENVIRONMENTS:
        fail(f"--environment {environment}: {', '.join(ENVIRONMENTS)}")
    chosen_rule = next((r for r in RULES if r == rule), None)
    if rule is not None and chosen_rule is None:
        fail(f"--rule {rule}: {', '.join(RULES)}")
    if (environment != "fluid") != bool(sweeps):
        fail(f"--environment {environment}: --sweep is for recorded and engine, which need it")
    try:
        detector = Detector(load(weights / DETECTOR_FILE, "detector"))
        selector = Selector(load(weights / SELECTOR_FILE, "selector"))
        other = None if contended is None else Detector(load(contended, "detector"))
    except WeightsError as error:
        fail(str(error))
    measured = read_sweeps(sweeps or [])
    try:
        wanted = [parse_bytes(size) for size in sizes or ()]
    except ValueError as error:
        fail(f"--bytes {error}")
    if wanted:
        measured = [sweep for sweep in measured if sweep.n_bytes in wanted]
        if not measured:
            fail(f"--bytes {', '.join(sizes or ())}: no sweep of that size")
    params = PolicyParams(rule=chosen_rule)
    policies = policies_of(detector, selector, params)
    if unknown := [name for name in only or () if name not in policies]:
        fail(f"--only {unknown[0]}: {', '.join(policies)}")
    policies = {name: policies[name] for name in only or policies}
    if not out.parent.is_dir():
        fail(f"{out.parent}: no such folder")
    try:
        held = 0 if backlog is None else parse_bytes(backlog)
        links = Links(parse_rate(rate), queue_ms, ranks, rivals, held)
    except ValueError as error:
        fail(f"--rate, --backlog: {error}")
    steps = steps_of(policies, environment == "engine", tables, other is not None)
    with _bar(steps) as step, contextlib.ExitStack() as stack:
        environments = _environments(environment, jobs, measured, links, lag, stack)
        if environment == "engine":
            found = evaluate_live(
                policies, environments, seeds, max(main_seeds, seeds), clean_calls, step
            )
        else:
            found = evaluate(
                policies, environments, range(seeds), clean_calls, step,
                sizes=environment == "recorded",
            )  # fmt: skip
        if DYNAMIC in policies:
            found["detection_traces"] = timelines(
                lambda env: DynamicPolicy(detector, selector, params), environments[0]
            )
        if tables and environment == "fluid":
            shown = {n: m for n, m in policies.items() if n not in UNSHOWN}
            for what, cells in fluid_tables().items():
                found[what] = experiments.table(shown, cells, range(seeds), progress=step)
        if tables and environment == "engine":
            own = {n: m for n, m in policies.items() if n == DYNAMIC}
            found |= live_tables(own, links, max(seeds // 2, 1), step)
        if other is not None:
            found["rules"] = rules(
                {
                    "sequence": (other, PolicyParams(rule="sequence")),
                    "wald": (detector, PolicyParams(rule="wald")),
                    "paper": (detector, PolicyParams(rule="paper")),
                },
                environments, range(seeds), clean_calls, step,
            )  # fmt: skip
    found["attribution"] = attribution(detector, selector)
    found["inference_ms"] = inference_ms(detector, selector)
    found["training"] = _cards(weights)
    more = f", {max(main_seeds, seeds)} at 80 %" if environment == "engine" else ""
    found["about"] = {
        "environment": name or environment,
        "words": "; ".join(dict.fromkeys(env.name for env in environments[:8])),
        "machine": machine(),
        "seeds": f"{seeds} episodes of each{more}",
        "commands": [shlex.join(["ringstep", *sys.argv[1:]])],
    }
    rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    out.write_text(f"{{\n{rows}\n}}\n")
    _print(found)


@contextlib.contextmanager
def _bar(steps: int) -> Iterator[experiments.Progress]:
    """Show what has ended, and about how long the rest takes."""
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("evaluate", total=steps)

        def step(what: str) -> None:
            bar.update(task, advance=1, description=what)

        yield step


def _environments(
    name: str, jobs: int, sweeps: Sequence[Sweep], links: Links, lag: int,
    stack: contextlib.ExitStack,
) -> list[Environment]:  # fmt: skip
    found: list[Environment]
    if name == "fluid":
        found = fluid_environments(jobs)
    elif name == "recorded":
        found = [RecordedEnvironment(sweep) for sweep in sweeps]
    else:
        found = []
        clusters: dict[tuple[int, int], EngineCluster] = {}
        try:
            for sweep in sweeps:
                key = sweep.key
                of = (key.n_nodes, key.n_ranks // key.n_nodes)
                if of not in clusters:
                    clusters[of] = stack.enter_context(links.cluster(*of))
                env = EngineEnvironment.on(clusters[of], key.collective, sweep.n_bytes)
                env.learn(sweep)
                found.append(env)
        except (ValueError, NetHostsError, EngineError, BuildError) as error:
            fail(f"--environment engine: {error}")
    return [Lagged(env, lag) for env in found] if lag else found


def _cards(weights: Path) -> dict[str, Any]:
    """Return the model cards beside weights, as far as they are there."""
    found = {}
    for name in ("detector", "selector"):
        with contextlib.suppress(OSError, ValueError):
            found[name] = json.loads((weights / f"{name}.json").read_text())
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
        wrong = found["false_reconfigurations"].get(name)
        table.add_row(
            name,
            *(f"{100 * rows[level]['gain_vs_nccl']['value']:.1f}" for level in SHOWN),
            *(
                "" if level not in detect else str(detect[level]["value"] or "never")
                for level in ("0.5", "0.8")
            ),
            ""
            if wrong is None
            else str(
                wrong["spikes"]["false_reconfigurations"] + wrong["clean"]["false_reconfigurations"]
            ),
            f"{found['clean_overhead_pct'][name]['value']:.2f}",
        )
    Console(highlight=False).print(table)
