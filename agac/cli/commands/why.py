"""`agac why`."""

from __future__ import annotations

import click

from agac import api
from agac.cli import render
from agac.cli.main import Globals
from agac.cli.shown.why import why_lines


@click.command(
    help="Show what a row (ROW: its id) of a run (RUN: its number, or `last`) was asked with at a stage, and what "
    "differs from the last time."
)
@click.argument("run", metavar="RUN")
@click.argument("row", metavar="ROW")
@click.argument("stage", metavar="STAGE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(settings: Globals, run: str, row: str, stage: str, as_json: bool) -> None:
    """Reads the store only."""
    report = api.why(run, row, stage, project=settings.project_dir)
    if as_json:
        render.print_json(report.as_json())
    else:
        render.print_text("\n".join(why_lines(report)))
