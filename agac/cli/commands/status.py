"""`agac status`."""

from __future__ import annotations

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals
from agac.cli.shown.status import run_status_lines, status_lines


@click.command(
    help="Show the newest runs, or one run (RUN: its number, or `last`) in full: what is done, what failed, what it "
    "cost, what to do next."
)
@click.argument("run", required=False)
@click.option("-a", "--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Globals, run: str | None, workflow: str | None, as_json: bool) -> None:
    """RUN is a number, or `last`. Reads the store only."""
    report = api.status(workflow, run=run, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        lines = status_lines(report, workflow) if run is None else run_status_lines(report)
        render.print_text("\n".join(lines))
