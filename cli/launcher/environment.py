"""The variables that the command gets beside its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ringstep.cli.launcher.plan import Plan

PLUGINS: Final = ("NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN")
STATIC_DIGEST: Final = "RINGSTEP_STATIC_DIGEST"


@dataclass(slots=True)
class Settings:
    """Variables to set, and those of the user's own that stay: name, and what that means."""

    added: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)

    def over(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with them."""
        return {**env, **self.added}


def default_folder() -> Path:
    """Return where the plugin looks for shared-memory files unless told."""
    return Path(f"/dev/shm/ringstep-{os.geteuid()}")


def shm_settings(plan: Plan) -> dict[str, str]:
    """Return what plugin and coordinator find the shared-memory file by."""
    assert plan.tuner is not None
    return {
        "RINGSTEP_JOB": plan.job,
        "RINGSTEP_SHM_DIR": str(plan.tuner.folder),
        "RINGSTEP_SHM_TOKEN": f"{plan.tuner.token:x}",
    }


def settings(
    plan: Plan, env: Mapping[str, str], job: Mapping[str, str], plugin: Path | None
) -> Settings:
    """Return all that the command is told.

    Args:
        plan: of the launch.
        env: what the user has set; plugins of the user's own stay.
        job: variables of the registered job; empty where there is none.
        plugin: the library; None where the tuner is not there.
    """
    found = Settings({"RINGSTEP_JOB": plan.job, **job})
    if plan.tuner is None or plugin is None:
        return found
    found.added |= shm_settings(plan)
    for name in PLUGINS:
        own = env.get(name, "")
        if own and own != str(plugin):
            found.kept[name] = f"{name}={own} is yours and stays; {_LOST[name]}"
        else:
            found.added[name] = str(plugin)
    if plan.tuner.vouched and not env.get(STATIC_DIGEST):
        found.added[STATIC_DIGEST] = f"{plan.tuner.vouched:x}"
    return found


_LOST: Final = {
    "NCCL_TUNER_PLUGIN": "Ringstep's decisions are not applied",
    "NCCL_PROFILER_PLUGIN": "ranks agree on a static table only",
}
