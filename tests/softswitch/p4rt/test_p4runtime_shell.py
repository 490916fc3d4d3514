"""p4runtime-shell, the specification group's own client, drives the server."""

from __future__ import annotations

import os
import subprocess

import pytest
from p4rt_rig import DATA, Rig

VARIABLE = "RINGSTEP_P4RUNTIME_SHELL_PYTHON"


@pytest.mark.slow
def test_a_session_of_p4runtime_shell(rig: Rig) -> None:
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(
            f"p4runtime-shell needs an environment of its own: python3 -m venv shell && "
            f"shell/bin/pip install p4runtime-shell, then set {VARIABLE}=shell/bin/python"
        )
    done = subprocess.run(
        [
            python,
            DATA / "p4runtime_shell_session.py",
            rig.server.address,
            DATA / "entities.p4info.txtpb",
            DATA / "entities.json",
        ],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert results == [
        "RESULT duplicate: [6]",
        "RESULT acl: [(3, 3)]",
        "RESULT all: 1",
        "RESULT groups: [1]",
        "RESULT counter: [0, 0, 0, 9, 0]",
        "RESULT default: 1",
    ]
    assert rig.sent.get(timeout=20)[0] == 4
