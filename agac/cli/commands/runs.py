"""`agac runs`."""

from __future__ import annotations

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals
from agac.cli.shown.runs import runs_lines


@click.command(help="List all runs, the one last worked on first, and what changed from one to the next.")
@click.option("-a", "--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("-n", "newest", metavar="N", type=click.IntRange(1), help="Only so many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Globals, workflow: str | None, newest: int | None, as_json: bool) -> None:
    """Reads the store only."""
    report = api.runs(workflow, newest=newest, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        render.print_text("\n".join(runs_lines(report, workflow)))
