"""What ``--dry-run`` shows: the environment, and what would be done, without any of it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ringstep.cli.launcher.coordinator import coordinator_arguments
from ringstep.cli.launcher.environment import settings
from ringstep.cli.launcher.plan import Plan
from ringstep.hostlib.native.build import SOURCES, built, missing_tools

_LATER = "(from the controller)"
_JOB_VARIABLES = (
    "RINGSTEP_JOB_ID", "RINGSTEP_JOB_NAME", "RINGSTEP_GENERATION", "RINGSTEP_TAG_BASE",
    "RINGSTEP_TAG_STEP_BITS", "RINGSTEP_TAG_JOB_BITS", "RINGSTEP_TAG_JOB",
    "RINGSTEP_PROGRESS_MODE", "RINGSTEP_PACKETS_PER_STEP", "RINGSTEP_CONTROLLER",
)  # fmt: skip


def preview(plan: Plan, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the preview for scripts, with stable keys."""
    plugin = None if plan.tuner is None else built()
    job = {} if plan.registration is None else dict.fromkeys(_JOB_VARIABLES, _LATER)
    # Where it would be built is not known before it is.
    path = None if plan.tuner is None else (SOURCES / "…" if plugin is None else plugin.plugin)
    found = settings(plan, env, job, path)
    if plan.tuner is not None and plugin is None:
        for name, value in found.added.items():
            if value == str(path):
                found.added[name] = "(built first)"
    return {
        "job": plan.job,
        "nodes": plan.place.nodes,
        "node_rank": plan.place.node_rank,
        "command": [plan.program, *plan.command[1:]],
        "static_digest": f"{plan.tuner.digest:x}" if plan.tuner and plan.tuner.digest else None,
        "environment": found.added,
        "kept": found.kept,
        "steps": steps(plan),
    }


def steps(plan: Plan) -> list[str]:
    """Return in words, one each, what would be done in order."""
    found = []
    asked = plan.registration
    if asked is not None:
        where = ", ".join(asked.connection.targets)
        if asked.spec is not None:
            rings = "; ".join(" → ".join(ring.hosts) for ring in asked.spec.rings)
            found.append(
                f"register {plan.job} at {where}"
                + (f", ring {rings}" if rings else "")
                + f", lease {asked.lease_s} s, renewed every {asked.lease_s / 3:g} s"
            )
        else:
            found.append(f"ask {where} for job {plan.job}, which others register")
    tuner = plan.tuner
    if tuner is not None:
        if built() is None:
            found.append(missing_tools() or "build the plugin for NCCL, once")
        if tuner.digest:
            found.append(f"check the table of {tuner.policy}: its digest is {tuner.digest:x}")
        if tuner.coordinates:
            words = [sys.executable, "-m", *coordinator_arguments(plan)]
            found.append(f"start {shlex.join(words)}")
        else:
            found.append("leave the coordinator to the first launcher of this node")
    found.append(f"run {shlex.join([plan.program, *plan.command[1:]])}")
    if asked is not None and asked.spec is not None:
        found.append(f"release {plan.job}")
    return found


def show(shown: Mapping[str, Any]) -> None:
    """Print a preview as tables."""
    console = Console(emoji=False, highlight=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("variable")
    table.add_column("value", overflow="fold")
    for name, value in shown["environment"].items():
        table.add_row(name, Text(value))
    console.print(table)
    for text in shown["kept"].values():
        console.print(Text(text), soft_wrap=True)
    console.print()
    for number, step in enumerate(shown["steps"], start=1):
        console.print(Text(f"{number}. {step}"), soft_wrap=True)
