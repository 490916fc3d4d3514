"""The command line against a fake controller."""

from __future__ import annotations

import json
from typing import Any

from fake_controller import FakeController
from typer.testing import CliRunner, Result

from ringstep.controller.cli import app


def run(*arguments: str, at: FakeController | None = None, **environment: str) -> Result:
    """Run a command; ``at``: the controller that it is to ask."""
    if at is not None:
        environment["RINGSTEP_CONTROLLER"] = at.target
    return CliRunner(env={"COLUMNS": "200", **environment}).invoke(app, arguments)


def read(*arguments: str, at: FakeController) -> Any:
    result = run(*arguments, "--json", at=at)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
