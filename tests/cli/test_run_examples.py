"""The scheduler examples, as far as the words that they give to ``ringstep run``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "train"
SBATCH = EXAMPLES / "slurm.sbatch"
DRY = f'#!/bin/sh\nshift\nexec {sys.executable} -m ringstep.cli run --dry-run --json "$@"\n'


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """An environment whose ``ringstep run`` is a dry run, and whose ``srun`` is node 1 alone."""
    programs = {
        "ringstep": DRY,
        "torchrun": "#!/bin/sh\n",
        "scontrol": '#!/bin/sh\n[ "$3" = "n[1-2]" ] && printf "n%s\\n" 1 2\n',
        "srun": '#!/bin/sh\nshift\nSLURM_NODEID=1 exec "$@"\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RINGSTEP_", "SLURM_"))}
    return {**clean, "PATH": f"{tmp_path}:{clean['PATH']}"}


def dry_run(words: list[str], env: dict[str, str]) -> dict[str, object]:
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=240, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_the_slurm_script_gives_every_node_its_rank_and_the_ring(site: dict[str, str]) -> None:
    slurm = {
        "SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2",
        "RINGSTEP_HOST_SED": "s/^n/h/", "RINGSTEP_POLICY": "autoccl", "GPUS_PER_NODE": "4",
    }  # fmt: skip
    told = dry_run(["bash", str(SBATCH), "train.py", "--epochs", "3 4"], {**site, **slurm})
    assert (told["job"], told["nodes"], told["node_rank"]) == ("slurm-42", 2, 1)
    steps = " / ".join(map(str, told["steps"]))  # type: ignore[call-overload]
    assert "--policy autoccl" in steps
    assert "--skeleton n1:9571" in steps
    assert list(told["command"])[-4:] == ["4", "train.py", "--epochs", "3 4"]  # type: ignore[call-overload]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_the_slurm_script_is_clean() -> None:
    done = subprocess.run(["shellcheck", SBATCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_kubernetes_job_names_ring_rank_and_meeting_place(site: dict[str, str]) -> None:
    text = (EXAMPLES / "kubernetes.yaml").read_text()
    block = text.partition("command:\n")[2].partition("          env:\n")[0]
    words = [
        word.replace("$(JOB_COMPLETION_INDEX)", "2")
        for word in re.findall(r"^ +- (.+)$", block, re.MULTILINE)
        if not word.startswith("#")
    ]
    told = dry_run(words, site)
    assert (told["job"], told["nodes"], told["node_rank"]) == ("train", 4, 2)
    assert "--skeleton train-0.train:9571" in " / ".join(map(str, told["steps"]))  # type: ignore[call-overload]
