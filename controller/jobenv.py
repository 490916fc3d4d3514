"""What a training job learns of its Job_ID and tags: environment variables for its processes.

docs/controller.md lists them. Numbers are decimal but for the base of the tag.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from enum import StrEnum

from ringstep.controller.v1 import jobs_pb2
from ringstep.protocol.limits import UDP_SPORT_BASE


class EnvFormat(StrEnum):
    """How variables are written down."""

    SHELL = "shell"
    """``export NAME=value``, quoted for a POSIX shell."""
    DOTENV = "dotenv"
    """``NAME=value``, as Slurm, Docker and Kubernetes read it: nothing is quoted."""
    JSON = "json"


_TAG_VARIABLE = {
    jobs_pb2.TAG_CARRIER_RESV6A: "RINGSTEP_TAG_RESV6A",
    jobs_pb2.TAG_CARRIER_DSCP: "RINGSTEP_TAG_DSCP",
}


def job_environment(job: jobs_pb2.Job, targets: Iterable[str]) -> dict[str, str]:
    """Return the variables of a job; ``targets`` are the controllers it may ask.

    The UDP source port of a packet is RINGSTEP_TAG_BASE | RINGSTEP_TAG_JOB <<
    RINGSTEP_TAG_STEP_BITS | step. A tag in another field is in a variable of its own, which is
    there only then; so are the JobIDs of Ultra Ethernet packets.
    """
    params, spec = job.parameters, job.spec
    tag = spec.tag if spec.HasField("tag") else None
    in_port = tag is not None and tag.carrier == jobs_pb2.TAG_CARRIER_SPORT
    mode = jobs_pb2.ProgressMode.Name(params.mode).removeprefix("PROGRESS_MODE_").lower()
    variables = {
        "RINGSTEP_JOB_ID": str(job.id),
        "RINGSTEP_JOB_NAME": spec.name,
        "RINGSTEP_GENERATION": str(job.generation),
        "RINGSTEP_TAG_BASE": f"{UDP_SPORT_BASE:#06X}".replace("X", "x"),
        "RINGSTEP_TAG_STEP_BITS": str(params.step_bits),
        "RINGSTEP_TAG_JOB_BITS": str(params.job_bits),
        "RINGSTEP_TAG_JOB": str(tag.value if tag is not None and in_port else 0),
        "RINGSTEP_PROGRESS_MODE": mode,
        "RINGSTEP_PACKETS_PER_STEP": str(params.packets_per_step),
        "RINGSTEP_CONTROLLER": ",".join(targets),
    }
    if tag is not None and tag.carrier in _TAG_VARIABLE:
        variables[_TAG_VARIABLE[tag.carrier]] = str(tag.value)
    if spec.uec_job_ids:
        variables["RINGSTEP_UEC_JOB_ID"] = ",".join(str(value) for value in spec.uec_job_ids)
    return variables


def environment_text(variables: dict[str, str], form: EnvFormat) -> str:
    """Return variables as text, with a line break at the end."""
    if form is EnvFormat.JSON:
        return json.dumps(variables, indent=2) + "\n"
    if form is EnvFormat.DOTENV:
        return "".join(f"{name}={value}\n" for name, value in variables.items())
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
