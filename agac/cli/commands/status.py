"""`agac status`."""

from __future__ import annotations

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals


@click.command(help="Show the newest runs: what is done, what failed, what it cost, what to do next.")
@click.option("-a", "--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Globals, workflow: str | None, as_json: bool) -> None:
    """Reads the store only."""
    report = api.status(workflow, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        render.print_status(report, workflow)
