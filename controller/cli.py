"""Commands of the controller: ``ringstep controller``, ``ringstep switch``, ``ringstep job``."""

from __future__ import annotations

import typer

from ringstep.controller.cli_controller import controller_app as controller_app
from ringstep.controller.cli_jobs import job_app as job_app
from ringstep.controller.cli_switches import switch_app as switch_app
from ringstep.controller.top import top

app = typer.Typer(help="Controller, switches and jobs.", no_args_is_help=True)
app.add_typer(controller_app, name="controller")
app.add_typer(switch_app, name="switch")
app.add_typer(job_app, name="job")
app.command("top")(top)
